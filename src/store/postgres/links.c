/* links.c - every connection of a store, and since when somebody waits on it.
 *
 * libpq waits for an answer as long as it takes, which is right while the server works on it, or waits for somebody
 * else's transaction. A server, or a pooler, that was stopped looks no different. So it is left to those who want to
 * end: they cut what has been waited for too long. Its socket is shut down from outside, and the call fails as when the
 * network breaks: what came of it is not known.
 *
 * K1  A link has a descriptor of its own for its socket: libpq may close its own at any time, and its number may be
 *     somebody else's a moment later.
 * K2  A link that nobody waits on (it is idle, or it listens) is not cut. */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/postgres/postgres.h"

enum { JOIN_MS = 50, JOIN_CUT_MS = 5000 };

kl__pg_link *kl__pg_link_of(kl__pg *pg, const PGconn *conn)
{
    kl__pg_link *link = pg->links;
    while (link < pg->links + KL_PG_LINKS && link->conn != conn)
        link++;
    return link < pg->links + KL_PG_LINKS ? link : NULL;
}

void kl__pg_link_add(kl__pg *pg, PGconn *conn)
{
    pthread_mutex_lock(&pg->mutex);
    kl__pg_link *link = kl__pg_link_of(pg, NULL);
    if (link)
        *link = (kl__pg_link){.conn = conn, .socket = -1, .since_ns = kl__monotonic_ns()};
    pthread_mutex_unlock(&pg->mutex);
}

void kl__pg_link_pass(kl__pg *pg, const PGconn *conn, PGconn *next)
{
    pthread_mutex_lock(&pg->mutex);
    kl__pg_link *link = kl__pg_link_of(pg, conn);
    if (link)
        link->conn = next;
    pthread_mutex_unlock(&pg->mutex);
}

void kl__pg_link_made(kl__pg *pg, const PGconn *conn)
{
    int own = fcntl(PQsocket(conn), F_DUPFD_CLOEXEC, 0);
    pthread_mutex_lock(&pg->mutex);
    kl__pg_link *link = kl__pg_link_of(pg, conn);
    if (link)
        link->socket = own;
    if (link && link->cut && own >= 0)
        shutdown(own, SHUT_RDWR); /* while it was being made */
    pthread_mutex_unlock(&pg->mutex);
    if (!link && own >= 0)
        close(own);
}

void kl__pg_link_wait(kl__pg *pg, const PGconn *conn, bool waits)
{
    pthread_mutex_lock(&pg->mutex);
    kl__pg_link *link = kl__pg_link_of(pg, conn);
    if (link)
        link->since_ns = waits ? kl__monotonic_ns() : 0;
    pthread_mutex_unlock(&pg->mutex);
}

bool kl__pg_link_is_cut(kl__pg *pg, const PGconn *conn)
{
    pthread_mutex_lock(&pg->mutex);
    const kl__pg_link *link = kl__pg_link_of(pg, conn);
    bool cut = link && link->cut;
    pthread_mutex_unlock(&pg->mutex);
    return cut;
}

void kl__pg_disconnect(kl__pg *pg, PGconn *conn)
{
    int own = -1;
    if (!conn)
        return;
    pthread_mutex_lock(&pg->mutex);
    kl__pg_link *link = kl__pg_link_of(pg, conn);
    if (link) {
        own = link->socket;
        *link = (kl__pg_link){.conn = NULL};
    }
    pthread_mutex_unlock(&pg->mutex);
    PQfinish(conn);
    if (own >= 0)
        close(own);
}

void kl__pg_cut(void *self, int64_t wait_ms)
{
    kl__pg *pg = self;
    int64_t now_ns = kl__monotonic_ns();
    pthread_mutex_lock(&pg->mutex);
    for (kl__pg_link *link = pg->links; link < pg->links + KL_PG_LINKS; link++) {
        bool waits = link->conn && link->since_ns && !link->cut;
        if (!waits || now_ns - link->since_ns < wait_ms * INT64_C(1000000))
            continue;
        link->cut = true;
        atomic_store(&pg->cut_ns, now_ns);
        if (link->socket >= 0)
            shutdown(link->socket, SHUT_RDWR);
        pthread_cond_broadcast(&pg->given);
    }
    pthread_mutex_unlock(&pg->mutex);
}

void kl__pg_join(kl__pg *pg, pthread_t thread)
{
    struct timespec until;
    do {
        kl__pg_cut(pg, JOIN_CUT_MS);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += JOIN_MS * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
    } while (pthread_timedjoin_np(thread, NULL, &until) == ETIMEDOUT);
}
