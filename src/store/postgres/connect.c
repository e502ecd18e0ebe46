/* connect.c - a connection is made, with a limit for each address.
 *
 * Step by step, so that notices go to the log from the first on: libpq would print them. Led so, it keeps no limit, and
 * goes on to its next host only where one refuses. So `connect_timeout` is kept here. A host that lets it pass is left
 * out, and it is begun anew with the others: those before it have said at once that they will not do (a standby, where
 * the primary is wanted), and say so again. Of a name that has several addresses only the one is left out. */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "store/postgres/postgres.h"

enum {
    SLOW_MS = 1000,    /* connecting does not take so long */
    LOOK_MS = 100,     /* so soon it is noticed that it is given up */
    LIMIT_LEAST_S = 2, /* as libpq has it */
    LIMIT_MOST_S = 3600,
    OPTIONS_MAX = 128, /* of libpq, which has some fifty */
    ADDRESS_BYTES = 400,
    HOSTS_MAX = 32,
    LIST_BYTES = HOSTS_MAX * 257
};

/* --- How long --- */

/* NULL: it is not said. */
static char *value_of(const PQconninfoOption *options, const char *name)
{
    while (options && options->keyword && strcmp(options->keyword, name) != 0)
        options++;
    return options && options->keyword ? options->val : NULL;
}

/* What the URL, the environment or the service file says; who has other databases to see to waits no longer than
 * ever. */
static int64_t limit_of(kl__pg *pg, PGconn *conn)
{
    PQconninfoOption *options = PQconninfo(conn);
    const char *said = value_of(options, "connect_timeout");
    long said_s = said ? strtol(said, NULL, 10) : 0;
    PQconninfoFree(options);
    int64_t most_ms = atomic_load(&pg->hasty) ? KL_PG_HASTY_MS : KL_PG_PATIENCE_MS;
    if (said_s <= 0)
        return most_ms;
    int64_t said_ms = 1000 * (said_s < LIMIT_LEAST_S ? LIMIT_LEAST_S : said_s < LIMIT_MOST_S ? said_s : LIMIT_MOST_S);
    return atomic_load(&pg->hasty) && said_ms > most_ms ? most_ms : said_ms;
}

/* --- Step by step --- */

enum end { MADE, FAILED, LATE };

/* True: it is another one than before. */
static bool name_address(const PGconn *conn, char address[ADDRESS_BYTES])
{
    char now[ADDRESS_BYTES];
    const char *host = PQhost(conn), *port = PQport(conn), *number = PQhostaddr(conn);
    snprintf(now, sizeof now, "%s %s %s", host ? host : "", port ? port : "", number ? number : "");
    bool other = strcmp(now, address) != 0;
    memcpy(address, now, sizeof now);
    return other;
}

static enum end finish(kl__pg *pg, PGconn *conn)
{
    PostgresPollingStatusType wants = PGRES_POLLING_WRITING;
    char address[ADDRESS_BYTES] = "";
    int64_t limit_ms = limit_of(pg, conn), until_ns = 0, slow_ns = kl__deadline_ns(SLOW_MS);
    while (wants == PGRES_POLLING_READING || wants == PGRES_POLLING_WRITING) {
        struct pollfd ready = {.fd = PQsocket(conn), .events = wants == PGRES_POLLING_READING ? POLLIN : POLLOUT};
        if (name_address(conn, address))
            until_ns = kl__deadline_ns(limit_ms);
        int64_t now_ns = kl__monotonic_ns(), left_ms = (until_ns - now_ns) / 1000000;
        if (left_ms <= 0)
            return LATE;
        if (poll(&ready, 1, (int)(left_ms < LOOK_MS ? left_ms : LOOK_MS)) < 0 && errno != EINTR)
            return FAILED;
        if (kl__pg_link_is_cut(pg, conn))
            return FAILED;
        if (ready.revents == 0 && now_ns >= slow_ns) {
            kl__away_failed(&pg->away, KL_EBUSY, "the server takes long to accept a connection");
            slow_ns = kl__deadline_ns(SLOW_MS);
        }
        if (ready.revents != 0)
            wants = PQconnectPoll(conn);
    }
    return wants == PGRES_POLLING_OK ? MADE : FAILED;
}

/* --- Why not --- */

/* libpq has the server's code for why it refused a connection nowhere but in its text: "FATAL: 3D000: there is no
 * ...". */
static const char *find_state(const char *text)
{
    for (const char *at = text; (at = strstr(at, ":  ")); at++)
        if (strspn(at + 3, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5 && strncmp(at + 8, ": ", 2) == 0)
            return at + 3;
    return NULL;
}

static bool was_opened(kl__pg *pg)
{
    pthread_mutex_lock(&pg->mutex);
    bool opened = pg->opened;
    pthread_mutex_unlock(&pg->mutex);
    return opened;
}

/* Why there is no connection, and what to do. Who is not let in as the store is opened has a wrong URL. Later it is the
 * server that has changed, and in mid-call KL_EINVAL would say that nothing was done, which nobody knows. */
static kl_rc refuse(kl__pg *pg, const PGconn *conn, enum end end)
{
    kl_rc denied = was_opened(pg) ? KL_EBUSY : KL_EINVAL;
    bool silent = end == LATE || !*PQerrorMessage(conn);
    const char *text = silent ? "it does not answer" : PQerrorMessage(conn), *state = find_state(text);
    const char *said = state ? state + 7 : text;
    int length = kl__pg_length(said);
    if (PQconnectionNeedsPassword(conn))
        return kl__fail(
            denied,
            "the server wants a password, and there is none (%.*s); supply a password in ~/.pgpass, in PGPASSWORD "
            "or in the URL",
            length, said);
    if (!state && (strncmp(said, "invalid integer value", 21) == 0 || strncmp(said, "invalid port number", 19) == 0))
        return kl__fail(denied, "the URL of the database is wrong: %.*s", length, said);
    if (!state)
        return kl__fail(KL_EBUSY,
                        "the database is not to be reached; see that the server runs and that the URL names its host "
                        "and port: %.*s",
                        length, said);
    if (strncmp(state, "3D000", 5) == 0 || strncmp(state, "28", 2) == 0)
        return kl__fail(denied,
                        "the server refused the connection: %.*s; see that the URL names a database that is there, and "
                        "a user who may use it, with his password",
                        length, said);
    if (strncmp(state, "53300", 5) == 0)
        return kl__fail(KL_EBUSY,
                        "the server has no connection left: %.*s; raise its max_connections, or write a smaller `pool` "
                        "in the URLs",
                        length, said);
    return kl__fail(KL_EBUSY, "the server takes no connection now: %.*s; try again", length, said);
}

/* --- Hosts --- */

struct host {
    char name[256], address[64], port[16]; /* as libpq has them; empty: not said */
};

struct hosts {
    struct host each[HOSTS_MAX];
    size_t count;
};

/* libpq has them in lists, whose elements are parted by commas. */
static size_t length_of_list(const char *list)
{
    size_t count = list && *list ? 1 : 0;
    for (; list && *list; list++)
        count += *list == ',';
    return count;
}

/* A list of one holds for all. False: there is no room for it. */
static bool copy_element(const char *list, size_t index, char *to, size_t room)
{
    size_t count = length_of_list(list), length = 0;
    if (count > 0) {
        for (size_t i = 0; count > 1 && i < index; i++)
            list += strcspn(list, ",") + (i + 1 < count);
        length = strcspn(list, ",");
    }
    if (length >= room)
        return false;
    memcpy(to, count > 0 ? list : "", length);
    to[length] = '\0';
    return true;
}

static bool read_hosts(const PQconninfoOption *options, struct hosts *hosts)
{
    const char *names = value_of(options, "host"), *addresses = value_of(options, "hostaddr");
    const char *ports = value_of(options, "port");
    size_t name_count = length_of_list(names), count = length_of_list(addresses);
    hosts->count = name_count > count ? name_count : count;
    bool good = hosts->count <= HOSTS_MAX;
    for (size_t i = 0; good && i < hosts->count; i++) {
        struct host *host = &hosts->each[i];
        good = copy_element(names, i, host->name, sizeof host->name) &&
               copy_element(addresses, i, host->address, sizeof host->address) &&
               copy_element(ports, i, host->port, sizeof host->port);
    }
    return good;
}

static bool is_tried(const struct host *host, const PGconn *conn)
{
    bool named = *host->name, same = strcmp(named ? host->name : host->address, PQhost(conn)) == 0;
    return same && (!*host->port || strcmp(host->port, PQport(conn)) == 0) &&
           (!named || !*host->address || strcmp(host->address, PQhostaddr(conn)) == 0);
}

/* A name may have several addresses, of which one was tried. */
static void add_addresses(struct hosts *hosts, const struct host *tried, const PGconn *conn)
{
    struct addrinfo *all = NULL, wanted = {.ai_socktype = SOCK_STREAM};
    if (*tried->address || !*PQhostaddr(conn) || getaddrinfo(tried->name, NULL, &wanted, &all) != 0)
        return;
    for (const struct addrinfo *one = all; one && hosts->count < HOSTS_MAX; one = one->ai_next) {
        struct host *host = &hosts->each[hosts->count];
        *host = *tried;
        bool good = getnameinfo(one->ai_addr, one->ai_addrlen, host->address, sizeof host->address, NULL, 0,
                                NI_NUMERICHOST) == 0;
        hosts->count += good && strcmp(host->address, PQhostaddr(conn)) != 0;
    }
    freeaddrinfo(all);
}

/* The one that is tried now is left out, but for the other addresses of its name, which come last. False: there is no
 * other. */
static bool leave_tried_out(struct hosts *hosts, const PGconn *conn)
{
    size_t index = 0;
    while (index < hosts->count && !is_tried(&hosts->each[index], conn))
        index++;
    if (index == hosts->count)
        return false;
    struct host tried = hosts->each[index];
    hosts->count--;
    memmove(&hosts->each[index], &hosts->each[index + 1], (hosts->count - index) * sizeof tried);
    add_addresses(hosts, &tried, conn);
    return hosts->count > 0;
}

/* As libpq has them. NULL: nothing is said. */
static const char *write_list(const struct hosts *hosts, size_t field, char list[LIST_BYTES])
{
    size_t used = 0;
    bool said = false;
    for (size_t i = 0; i < hosts->count; i++) {
        const char *text = (const char *)&hosts->each[i] + field;
        used += (size_t)snprintf(list + used, LIST_BYTES - used, "%s%s", i > 0 ? "," : "", text);
        said |= *text;
    }
    return said ? list : NULL;
}

/* NULL: there is no other host, or no memory. */
static PGconn *begin_with_others(PGconn *conn)
{
    static const struct {
        const char *keyword;
        size_t field;
    } lists[] = {{"host", offsetof(struct host, name)},
                 {"hostaddr", offsetof(struct host, address)},
                 {"port", offsetof(struct host, port)}};
    enum { LISTS = sizeof lists / sizeof lists[0] };
    const char *names[OPTIONS_MAX + 1], *values[OPTIONS_MAX + 1];
    char texts[LISTS][LIST_BYTES];
    struct hosts hosts;
    PQconninfoOption *options = PQconninfo(conn);
    PGconn *next = NULL;
    size_t count = 0;
    for (const PQconninfoOption *option = options; option && option->keyword && count < OPTIONS_MAX; option++) {
        names[count] = option->keyword;
        values[count++] = option->val;
    }
    if (options && read_hosts(options, &hosts) && leave_tried_out(&hosts, conn)) {
        for (size_t i = 0; i < count; i++)
            for (size_t list = 0; list < LISTS; list++)
                if (strcmp(names[i], lists[list].keyword) == 0)
                    values[i] = write_list(&hosts, lists[list].field, texts[list]);
        names[count] = values[count] = NULL;
        next = PQconnectStartParams(names, values, 0);
    }
    PQconninfoFree(options);
    return next;
}

/* --- The call --- */

static void take_notice(void *ctx, const char *text)
{
    kl__pg_log(ctx, KL_LOG_DEBUG, "%.*s", kl__pg_length(text), text);
}

static PGconn *begin(const kl__pg *pg)
{
    /* Keepalives find out a host that is gone while nothing is on its way; what is on its way has a limit of its
     * own. */
    static const char *const names[] = {"keepalives_idle",
                                        "keepalives_interval",
                                        "keepalives_count",
                                        "tcp_user_timeout",
                                        "fallback_application_name",
                                        "dbname",
                                        NULL};
    const char *const values[] = {"10",    "5",       "3",
                                  "25000", "keyline", pg->url, /* the URL comes last: it has the last word */
                                  NULL};
    return PQconnectStartParams(names, values, 1);
}

static enum end try_hosts(kl__pg *pg, PGconn *conn)
{
    PQsetNoticeProcessor(conn, take_notice, pg);
    PQsetErrorVerbosity(conn, PQERRORS_VERBOSE);
    return PQstatus(conn) == CONNECTION_BAD ? FAILED : finish(pg, conn);
}

kl_rc kl__pg_connect(kl__pg *pg, PGconn **ret_conn)
{
    PGconn *conn = begin(pg), *next;
    if (!conn)
        return kl__fail_memory();
    kl__pg_link_add(pg, conn);
    enum end end = try_hosts(pg, conn);
    while (end == LATE && (next = begin_with_others(conn))) {
        kl__pg_link_pass(pg, conn, next);
        PQfinish(conn);
        conn = next;
        end = try_hosts(pg, conn);
    }
    if (end != MADE) {
        kl_rc rc = refuse(pg, conn, end);
        kl__pg_disconnect(pg, conn);
        return rc;
    }
    kl__pg_link_made(pg, conn);
    PQsetErrorVerbosity(conn, PQERRORS_DEFAULT);
    *ret_conn = conn;
    return KL_OK;
}
