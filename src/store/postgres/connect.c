/* connect.c - a connection is made, with a limit for each address.
 *
 * Step by step, so that notices go to the log from the first on: libpq would print them. Led so, it keeps no limit, and
 * goes on to its next host only where one refuses. So `connect_timeout` is kept here. A host that lets it pass is left
 * out, and it is begun anew with the others: those before it have said at once that they will not do (a standby, where
 * the primary is wanted), and say so again. */
#include <errno.h>
#include <poll.h>
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
    ADDRESS_BYTES = 400
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

/* Lists of libpq: their elements are parted by commas. */
static size_t length_of_list(const char *list)
{
    size_t count = 1;
    for (; *list; list++)
        count += *list == ',';
    return count;
}

static char *element(char *list, size_t index)
{
    for (; index > 0; index--)
        list += strcspn(list, ",") + 1;
    return list;
}

static bool has_element(char *list, size_t index, const char *text)
{
    const char *at = element(list, index);
    return kl__bytes_equal((kl_bytes){at, strcspn(at, ",")}, kl_str(text));
}

/* A list of one holds for all, and stays. */
static void leave_out(char *list, size_t index)
{
    size_t count = length_of_list(list);
    char *at = element(list, count == 1 ? 0 : index), *rest = at + strcspn(at, ",");
    if (*rest)
        memmove(at, rest + 1, strlen(rest + 1) + 1);
    else if (count > 1)
        at[-1] = '\0';
}

/* Takes the one that is tried now out of the lists. False: it is the only one. */
static bool leave_host_out(const PGconn *conn, const PQconninfoOption *options)
{
    char *lists[] = {value_of(options, "host"), value_of(options, "hostaddr"), value_of(options, "port")};
    char *list = lists[0] && *lists[0] ? lists[0] : lists[1], *ports = lists[2];
    size_t index = 0, count = list ? length_of_list(list) : 1;
    bool ports_differ = ports && length_of_list(ports) > 1;
    while (count > 1 && index < count &&
           !(has_element(list, index, PQhost(conn)) && (!ports_differ || has_element(ports, index, PQport(conn)))))
        index++;
    for (int i = 0; i < 3 && count > 1 && index < count; i++)
        if (lists[i])
            leave_out(lists[i], index);
    return count > 1 && index < count;
}

/* NULL: there is no other host, or no memory. */
static PGconn *begin_with_others(PGconn *conn)
{
    const char *names[OPTIONS_MAX + 1], *values[OPTIONS_MAX + 1];
    PQconninfoOption *options = PQconninfo(conn);
    PGconn *next = NULL;
    size_t count = 0;
    for (const PQconninfoOption *option = options; option && option->keyword && count < OPTIONS_MAX; option++) {
        names[count] = option->keyword;
        values[count++] = option->val;
    }
    names[count] = values[count] = NULL;
    if (options && leave_host_out(conn, options))
        next = PQconnectStartParams(names, values, 0);
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
