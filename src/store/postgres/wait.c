/* wait.c - being told of appends.
 *
 * One connection per handle, in a thread of its own that begins with the first wait, listens: it hears of every append,
 * and counts them by partition. What somebody has seen is that count, marked by its highest bit.
 *
 * Who has not listened yet asks the database instead. The last positions of a partition's lines, added up, change with
 * every append to it: the sum is compared with what was seen, so nothing is missed. Where the two ways meet, what was
 * seen differs, and whoever waits looks once in vain.
 *
 * Every session that listens is woken by every append, whether anybody waits or not. So when notices come and nobody
 * has waited for a partition for a while, because all have enough to do, it stops listening until somebody waits again.
 * Those who wait for the inbox ask once each time meanwhile.
 *
 * A pooler may take LISTEN and never deliver anything, or to others. So the listener does not try where there is one,
 * and proves that it hears its own NOTIFY; until then, and whenever that connection is gone, waiting compares every few
 * milliseconds, less and less often. A connection that died without a word is found out by keepalives (connect.c). */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/wait.h"
#include "store/postgres/postgres.h"

enum {
    ASK_MIN_MS = 5,
    ASK_MAX_MS = 250, /* without LISTEN */
    PROOF_MS = 2000,  /* after that, LISTEN is taken to be dead */
    UNHEARD_MS = 200, /* without anybody who waits, notices are not wanted */
    RESUME_MS = 100,  /* after that, whoever waits asks */
    RECONNECT_MS = 1000,
};

/* Marks what was seen by listening; sums do not reach it. */
#define HEARD (UINT64_C(1) << 63)

/* --- The listener --- */

/* False: it was so before. */
static bool set_listens(kl__pg *pg, bool listens)
{
    pthread_mutex_lock(&pg->mutex);
    bool changed = pg->listens != listens;
    pg->listens = listens;
    pg->pauses = false;
    for (int i = 0; changed && i < KL_PG_NEWS; i++)
        pg->news[i]++; /* something may have been missed */
    pthread_cond_broadcast(&pg->told);
    pthread_mutex_unlock(&pg->mutex);
    return changed;
}

static void tell_listens(kl__pg *pg)
{
    if (set_listens(pg, true))
        kl__pg_log(pg, KL_LOG_INFO, "appends are heard of by LISTEN");
}

/* Waits for bytes of the connection (NULL: just waits), for the end of a pause, or for the end. False: the end. */
static bool await_bytes(const kl__pg *pg, PGconn *conn, int wait_ms)
{
    struct pollfd ready[2] = {{.fd = pg->wake[0], .events = POLLIN},
                              {.fd = conn ? PQsocket(conn) : -1, .events = POLLIN}};
    char byte;
    poll(ready, 2, wait_ms);
    return ready[0].revents == 0 || read(pg->wake[0], &byte, 1) == 1;
}

/* Until the store is closed: false. */
static bool stay_deaf(kl__pg *pg)
{
    kl__pg_log(pg, KL_LOG_INFO, "LISTEN does not work here, as behind a pooler: asking for appends now and then");
    while (await_bytes(pg, NULL, -1))
        continue;
    return false;
}

static void tell(kl__pg *pg, uint32_t partition)
{
    pthread_mutex_lock(&pg->mutex);
    pg->news[partition % KL_PG_NEWS]++;
    for (kl__pg_waiter *waiter = pg->waiters; waiter; waiter = waiter->next)
        if (waiter->partition == partition)
            waiter->told = true;
    pthread_cond_broadcast(&pg->told);
    pthread_mutex_unlock(&pg->mutex);
}

/* Reads what has come. A notice is a partition's number, or "proof", or "inbox" (which is KL_PG_INBOX as a number). */
static void hear(kl__pg *pg, PGconn *conn)
{
    PGnotify *notice;
    while ((notice = PQnotifies(conn))) {
        if (strcmp(notice->extra, "proof") == 0 && notice->be_pid == PQbackendPID(conn))
            tell_listens(pg);
        else
            tell(pg, (uint32_t)strtoul(notice->extra, NULL, 10));
        PQfreemem(notice);
    }
}

static bool run(kl__pg *pg, PGconn *conn, const char *sql)
{
    kl__pg_link_wait(pg, conn, true);
    PGresult *rows = kl__pg_run(pg, conn, sql);
    bool good = kl__pg_is_good(rows);
    kl__pg_link_wait(pg, conn, false);
    PQclear(rows);
    return good;
}

/* Notices come for nobody. */
static bool is_unheard(kl__pg *pg)
{
    pthread_mutex_lock(&pg->mutex);
    bool unheard = pg->listens && pg->waited_ns && kl__monotonic_ns() - pg->waited_ns > UNHEARD_MS * INT64_C(1000000);
    for (const kl__pg_waiter *waiter = pg->waiters; waiter; waiter = waiter->next)
        unheard &= waiter->partition == KL_PG_INBOX;
    pg->pauses = unheard;
    pg->listens &= !unheard;
    pthread_mutex_unlock(&pg->mutex);
    return unheard;
}

static bool is_pausing(kl__pg *pg)
{
    pthread_mutex_lock(&pg->mutex);
    bool pauses = pg->pauses;
    pthread_mutex_unlock(&pg->mutex);
    return pauses;
}

/* Stops listening until somebody waits. False: the connection is lost, or it is the end. */
static bool pause_listening(kl__pg *pg, PGconn *conn)
{
    bool good = run(pg, conn, "UNLISTEN *");
    while (good && is_pausing(pg))
        good = await_bytes(pg, conn, -1) && PQconsumeInput(conn) == 1 && PQstatus(conn) == CONNECTION_OK;
    if (!good || !run(pg, conn, "LISTEN $S"))
        return false;
    set_listens(pg, true);
    return true;
}

/* Until the connection is lost, or proves to be deaf, or the store is closed: false. */
static bool listen_on(kl__pg *pg, PGconn *conn)
{
    bool direct = kl__pg_is_direct(conn);
    kl__pg_link_wait(pg, conn, false);
    if (!direct && PQstatus(conn) == CONNECTION_OK)
        return stay_deaf(pg); /* LISTEN would stay behind in a session that others use */
    bool goes_on = run(pg, conn, "LISTEN $S") && run(pg, conn, "SELECT pg_catalog.pg_notify($C, 'proof')");
    int64_t proof_ns = kl__deadline_ns(PROOF_MS);
    while (goes_on) {
        hear(pg, conn);
        bool deaf = !pg->listens && kl__monotonic_ns() >= proof_ns; /* this thread alone writes it */
        if (deaf)
            return stay_deaf(pg);
        if (is_unheard(pg) && !pause_listening(pg, conn))
            return await_bytes(pg, NULL, 0);
        if (!await_bytes(pg, conn, pg->listens ? -1 : PROOF_MS))
            return false;
        goes_on = PQconsumeInput(conn) == 1 && PQstatus(conn) == CONNECTION_OK;
    }
    return true;
}

static void *listen_thread(void *ctx)
{
    kl__pg *pg = ctx;
    bool goes_on = true;
    while (goes_on) {
        PGconn *conn;
        if (kl__pg_connect(pg, &conn) == KL_OK) {
            goes_on = listen_on(pg, conn);
            kl__pg_disconnect(pg, conn);
        }
        if (set_listens(pg, false) && goes_on)
            kl__pg_log(pg, KL_LOG_INFO, "the connection that listens is lost: asking until there is another");
        goes_on = goes_on && await_bytes(pg, NULL, RECONNECT_MS);
    }
    return NULL;
}

/* The mutex is held. */
static void start_listener(kl__pg *pg)
{
    if (pg->listener_runs || !pg->may_listen)
        return;
    pg->may_listen = pipe2(pg->wake, O_CLOEXEC) == 0; /* whoever else holds it keeps the listener from its end */
    if (pg->may_listen && pthread_create(&pg->listener, NULL, listen_thread, pg) == 0) {
        pg->listener_runs = true;
    } else if (pg->may_listen) {
        close(pg->wake[0]);
        close(pg->wake[1]);
        pg->may_listen = false;
    }
}

void kl__pg_wait_close(kl__pg *pg)
{
    if (!pg->listener_runs)
        return;
    close(pg->wake[1]);
    kl__pg_join(pg, pg->listener);
    close(pg->wake[0]);
}

/* --- Waiting --- */

static kl_rc ask_appended(kl__pg *pg, uint32_t partition, uint64_t *ret_appended)
{
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    kl__pg_int(&args, KL_PG_INT4, partition);
    kl_rc rc = kl__pg_ask(pg, &(kl__pg_call){"SELECT $S.appended($1)", &args, true}, &rows);
    kl__pg_args_free(&args);
    if (rc == KL_OK) {
        *ret_appended = (uint64_t)kl__pg_get_int(rows, 0, 0);
        PQclear(rows);
    }
    return rc;
}

/* Until the waiter is told or may have missed something, which is true, or it is time to ask again. */
static bool rest(kl__pg *pg, kl__pg_waiter *waiter, int64_t until_ns, int64_t *pause_ms)
{
    pthread_mutex_lock(&pg->mutex);
    int64_t ask_ns = pg->listens || pg->pauses ? until_ns : kl__deadline_ns(*pause_ms);
    bool listened = pg->listens, in_time = true;
    ask_ns = ask_ns < until_ns ? ask_ns : until_ns;
    while (in_time && !waiter->told && listened == pg->listens)
        in_time = kl__cond_wait(&pg->told, &pg->mutex, ask_ns);
    bool told = waiter->told || listened != pg->listens;
    waiter->told = false;
    *pause_ms = 2 * *pause_ms < ASK_MAX_MS ? 2 * *pause_ms : ASK_MAX_MS;
    pthread_mutex_unlock(&pg->mutex);
    return told;
}

static void enter(kl__pg *pg, kl__pg_waiter *waiter)
{
    pthread_mutex_lock(&pg->mutex);
    start_listener(pg);
    waiter->next = pg->waiters;
    pg->waiters = waiter;
    pthread_mutex_unlock(&pg->mutex);
}

/* Somebody waits for a partition: if the listener pauses it goes on, and what it missed is looked at. */
static void resume(kl__pg *pg)
{
    pthread_mutex_lock(&pg->mutex);
    int64_t until_ns = kl__deadline_ns(RESUME_MS);
    bool in_time = pg->pauses && write(pg->wake[1], "", 1) == 1;
    pg->waited_ns = kl__monotonic_ns();
    pg->pauses = false;
    while (in_time && !pg->listens)
        in_time = kl__cond_wait(&pg->told, &pg->mutex, until_ns);
    pthread_mutex_unlock(&pg->mutex);
}

static void leave(kl__pg *pg, const kl__pg_waiter *waiter)
{
    pthread_mutex_lock(&pg->mutex);
    kl__pg_waiter **link = &pg->waiters;
    while (*link != waiter)
        link = &(*link)->next;
    *link = waiter->next;
    if (waiter->partition != KL_PG_INBOX)
        pg->waited_ns = kl__monotonic_ns();
    pthread_mutex_unlock(&pg->mutex);
}

/* There is nothing to ask for before it is told, or not soon. */
static bool is_content(kl__pg *pg)
{
    pthread_mutex_lock(&pg->mutex);
    bool content = pg->listens || pg->pauses;
    pthread_mutex_unlock(&pg->mutex);
    return content;
}

kl_rc kl__pg_wait_until(kl__pg *pg, uint32_t partition, int64_t wait_ms, kl__pg_ask_fn *ask, const void *ctx,
                        bool *ret_yes)
{
    kl__pg_waiter waiter = {.partition = partition};
    int64_t until_ns = kl__deadline_ns(wait_ms), pause_ms = ASK_MIN_MS;
    bool yes = false, ends = false;
    enter(pg, &waiter);
    kl_rc rc = ask(pg, ctx, &yes);
    while (rc == KL_OK && !yes && !ends && kl__monotonic_ns() < until_ns) {
        bool told = rest(pg, &waiter, until_ns, &pause_ms);
        ends = told && partition == KL_PG_INBOX;
        if (told || !is_content(pg))
            rc = ask(pg, ctx, &yes);
    }
    leave(pg, &waiter);
    if (rc == KL_OK)
        *ret_yes = yes;
    return rc;
}

struct appended {
    uint32_t partition;
    uint64_t *seen;
};

/* What was heard of the partition so far, as `seen` says it; 0: nobody listens. */
static uint64_t heard(kl__pg *pg, uint32_t partition)
{
    pthread_mutex_lock(&pg->mutex);
    uint64_t news = pg->listens ? pg->news[partition % KL_PG_NEWS] | HEARD : 0;
    pthread_mutex_unlock(&pg->mutex);
    return news;
}

static kl_rc more_appended(kl__pg *pg, const void *ctx, bool *ret_yes)
{
    const struct appended *appended = ctx;
    uint64_t now = *appended->seen & HEARD ? heard(pg, appended->partition) : 0;
    kl_rc rc = now ? KL_OK : ask_appended(pg, appended->partition, &now);
    if (rc != KL_OK || now == *appended->seen)
        return rc;
    *ret_yes = true;
    *appended->seen = now;
    return KL_OK;
}

/* Whoever has asked once since it is listened hears of the rest from now on, whether there was something or not. */
kl_rc kl__pg_wait(void *self, uint32_t partition, int64_t wait_ms, uint64_t *seen)
{
    struct appended appended = {partition, seen};
    bool yes = false;
    resume(self);
    uint64_t before = heard(self, partition);
    kl_rc rc = kl__pg_wait_until(self, partition, wait_ms, more_appended, &appended, &yes);
    if (rc == KL_OK && before && !(*seen & HEARD))
        *seen = before;
    return rc;
}
