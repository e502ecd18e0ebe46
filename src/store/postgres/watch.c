/* watch.c - a thread that finds out that the server is silent, so that who has other stores to see to is not held up.
 *
 * Of a store that is hasty only. A server, or a pooler, that was stopped looks no different from one that works on a
 * call, or waits for somebody's transaction. So when a call has waited for long, something small is asked on a
 * connection of its own. If anything comes back, be it a refusal, the call is waited for. If nothing does, what has
 * waited is cut (links.c), and other calls fail at once until something comes back.
 *
 * While the store is opened nobody knows it yet, so nobody else can end what takes long there. */
#include <poll.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/wait.h"
#include "store/postgres/postgres.h"

enum { LOOK_MS = 250 };

/* The mutex is held. */
static bool waits_long(const kl__pg *pg)
{
    int64_t since_ns = kl__monotonic_ns() - KL_PG_HASTY_MS * INT64_C(1000000);
    const kl__pg_link *link = pg->links;
    while (link < pg->links + KL_PG_LINKS && (!link->conn || !link->since_ns || link->since_ns > since_ns))
        link++;
    return link < pg->links + KL_PG_LINKS;
}

static bool answers(kl__pg *pg)
{
    PGconn *conn;
    int64_t soon_ns = kl__deadline_ns(KL_PG_HASTY_MS / 2);
    if (kl__pg_connect(pg, &conn) != KL_OK)
        return kl__monotonic_ns() < soon_ns; /* it was refused, or there is nobody: calls will be told the same */
    struct pollfd ready = {.fd = PQsocket(conn), .events = POLLIN};
    bool answered = PQsendQuery(conn, "SELECT 1") != 1 || poll(&ready, 1, KL_PG_HASTY_MS) != 0;
    kl__pg_disconnect(pg, conn);
    return answered;
}

static void look(kl__pg *pg)
{
    bool silent = !answers(pg);
    pthread_mutex_lock(&pg->mutex);
    pg->silent = silent;
    if (silent)
        snprintf(
            pg->gone_why, sizeof pg->gone_why,
            "the database takes calls and has answered none for %d s; see that the server, and a pooler in front of "
            "it, is not stopped",
            KL_PG_HASTY_MS / 1000);
    pthread_mutex_unlock(&pg->mutex);
    if (silent)
        kl__pg_cut(pg, KL_PG_HASTY_MS);
}

static void *watch_thread(void *ctx)
{
    kl__pg *pg = ctx;
    int64_t next_ns = 0;
    pthread_mutex_lock(&pg->mutex);
    while (!atomic_load(&pg->closing)) {
        kl__cond_wait(&pg->upkeep_wakes, &pg->mutex, kl__deadline_ns(LOOK_MS));
        bool looks = pg->silent || (waits_long(pg) && kl__monotonic_ns() >= next_ns), opens = !pg->opened;
        pthread_mutex_unlock(&pg->mutex);
        if (looks && !atomic_load(&pg->closing)) {
            look(pg);
            next_ns = kl__deadline_ns(KL_PG_HASTY_MS);
        }
        if (opens)
            kl__pg_cut(pg, KL_PG_PATIENCE_MS);
        pthread_mutex_lock(&pg->mutex);
    }
    pthread_mutex_unlock(&pg->mutex);
    return NULL;
}

kl_rc kl__pg_watch_start(void *self)
{
    kl__pg *pg = self;
    pthread_mutex_lock(&pg->mutex);
    if (!pg->watch_runs)
        pg->watch_runs = pthread_create(&pg->watch, NULL, watch_thread, pg) == 0;
    bool runs = pg->watch_runs;
    pthread_mutex_unlock(&pg->mutex);
    if (!runs)
        return kl__fail(KL_ESYSTEM, "no thread is to be had for watching the database; end others first");
    atomic_store(&pg->hasty, true);
    return KL_OK;
}

void kl__pg_watch_stop(kl__pg *pg)
{
    pthread_mutex_lock(&pg->mutex);
    atomic_store(&pg->closing, true);
    pthread_cond_broadcast(&pg->upkeep_wakes);
    pthread_mutex_unlock(&pg->mutex);
    if (pg->watch_runs)
        kl__pg_join(pg, pg->watch);
}
