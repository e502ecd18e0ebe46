/* server.c - listens on the socket of a data directory and has a thread for each connection.
 *
 * From: shared.c, which starts and stops it.  To: serve.c.
 *
 *      run_listener --accept--> connection: a thread that receives, serves, sends --> ended --joined by--> run_listener
 *
 * A thread for each connection, because the calls of a store wait: for a sync, for work. There are as many connections
 * as clients have calls under way at once, or had, and at most KL_CONNECTIONS_MAX; others wait in the listener's queue.
 * While some do, connections without a call are closed, the longest idle first. One that is adopted takes the place of
 * such a one at once, while that is still closing.
 *
 * V1  A connection is in the list from before its thread starts until the thread was joined; its descriptor is closed
 *     after that, so whoever has the mutex may shut it down.
 * V2  After `stopping` is set no connection is added.
 *
 * To stop, reading is shut down everywhere: a thread that waits for a request finds its end, requests that were sent
 * before are still read and told that they were not made, and a client that sends now gets EPIPE. So no client is left
 * in doubt. One that does not take its answer is cut off after STOP_MS. An idle connection is closed in the same way,
 * and a request that is already on its way is still served. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"
#include "base/wait.h"
#include "store/socket/serve.h"
#include "store/socket/socket.h"

/* IDLE_MS: a connection that was used more recently is not closed for another, for they would only change places. */
enum { SOCKET_MODE = 0600, STOP_MS = 2000, PAUSE_MS = 20, IDLE_MS = 100 };

struct connection {
    struct connection *next;
    kl__server *server;
    pthread_t thread;
    int fd;
    bool ended;                /* with the server's mutex: the thread is about to return */
    bool closing;              /* with the server's mutex: it was closed to make room */
    const void *whose;         /* NULL: it was not adopted, or is nobody's */
    _Atomic(int64_t) since_ns; /* when it began to wait for a request; KL_NEVER: it serves one */
};

struct kl__server {
    kl_store *store;
    uint64_t salt, identity;
    int fd;
    int dir_fd; /* the process may work elsewhere by the time that the socket is removed */
    pthread_t listener;
    atomic_bool stopping;

    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a connection has ended, or stopping is set */
    struct connection *connections;
    uint32_t count, closing;
    bool ended; /* whoever stops it owns this */
    kl__left_fn *left;
    void *left_ctx;
    kl__made_fn *made;
    void *made_ctx;
};

/* ---- Connections ---- */

static void *run_connection(void *arg)
{
    struct connection *connection = arg;
    kl__server *server = connection->server;
    kl__frame request = {0};
    kl__serving serving = {.store = server->store,
                           .salt = server->salt,
                           .identity = server->identity,
                           .stopping = &server->stopping,
                           .fd = connection->fd,
                           .made = connection->whose ? server->made : NULL,
                           .made_ctx = server->made_ctx,
                           .whose = connection->whose};
    while (kl__frame_receive(connection->fd, &request) == 0) {
        atomic_store_explicit(&connection->since_ns, KL_NEVER, memory_order_relaxed);
        if (atomic_load(&server->stopping))
            kl__serve_not(&serving, &request);
        else
            kl__serve(&serving, &request);
        if (kl__frame_send(connection->fd, &serving.out) != 0)
            break;
        atomic_store_explicit(&connection->since_ns, kl__monotonic_ns(), memory_order_relaxed);
    }
    kl__frame_free(&request);
    kl__out_free(&serving.out);
    shutdown(connection->fd, SHUT_RDWR);
    if (server->left && connection->whose)
        server->left(server->left_ctx, connection->whose);
    pthread_mutex_lock(&server->mutex);
    connection->ended = true;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->mutex);
    return NULL;
}

/* The signals of the process are for its own threads. */
static int start_thread(pthread_t *thread, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* A connection for which there is no memory or thread is closed: its client tries again. */
static void add_connection(kl__server *server, int fd, const void *whose)
{
    struct connection *connection = kl__alloc_zeroed(1, sizeof *connection);
    if (!connection) {
        close(fd);
        return;
    }
    connection->server = server;
    connection->fd = fd;
    connection->whose = whose;
    atomic_init(&connection->since_ns, kl__monotonic_ns());
    pthread_mutex_lock(&server->mutex);
    bool added = !atomic_load(&server->stopping) && start_thread(&connection->thread, run_connection, connection) == 0;
    if (added) {
        connection->next = server->connections;
        server->connections = connection;
        server->count++;
    }
    pthread_mutex_unlock(&server->mutex);
    if (!added) {
        close(fd);
        kl__free(connection);
    }
}

/* Takes those that have ended out of the list. With the mutex held. */
static struct connection *take_ended(kl__server *server)
{
    struct connection *ended = NULL;
    for (struct connection **link = &server->connections; *link;) {
        struct connection *connection = *link;
        if (!connection->ended) {
            link = &connection->next;
            continue;
        }
        *link = connection->next;
        connection->next = ended;
        ended = connection;
        server->count--;
        server->closing -= connection->closing;
    }
    return ended;
}

static void join_all(struct connection *ended)
{
    while (ended) {
        struct connection *next = ended->next;
        pthread_join(ended->thread, NULL);
        close(ended->fd);
        kl__free(ended);
        ended = next;
    }
}

/* ---- Listening ---- */

/* Closes the connection that has been idle longest, if one has been for IDLE_MS; false: none has. With the mutex
 * held. */
static bool close_idle(kl__server *server)
{
    struct connection *idlest = NULL;
    int64_t least_ns = kl__monotonic_ns() - INT64_C(1000000) * IDLE_MS;
    for (struct connection *connection = server->connections; connection; connection = connection->next) {
        int64_t since_ns = atomic_load_explicit(&connection->since_ns, memory_order_relaxed);
        if (!connection->ended && !connection->closing && since_ns < least_ns) {
            idlest = connection;
            least_ns = since_ns;
        }
    }
    if (!idlest)
        return false;
    idlest->closing = true;
    server->closing++;
    shutdown(idlest->fd, SHUT_RD);
    return true;
}

/* Until there is room for a connection. Nobody is sent away before another one comes. False: the server stops. */
static bool await_room(kl__server *server)
{
    pthread_mutex_lock(&server->mutex);
    struct connection *ended = take_ended(server);
    while (!ended && server->count >= KL_CONNECTIONS_MAX && !atomic_load(&server->stopping)) {
        struct pollfd coming = {.fd = server->fd, .events = POLLIN};
        if (poll(&coming, 1, 0) > 0)
            close_idle(server);
        kl__cond_wait(&server->changed, &server->mutex, kl__deadline_ns(PAUSE_MS));
        ended = take_ended(server);
    }
    pthread_mutex_unlock(&server->mutex);
    join_all(ended);
    return !atomic_load(&server->stopping);
}

static void *run_listener(void *arg)
{
    kl__server *server = arg;
    while (await_room(server)) {
        int fd = accept4(server->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0)
            add_connection(server, fd, NULL);
        else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
            poll(NULL, 0, PAUSE_MS); /* it would fail again at once */
    }
    return NULL;
}

kl_rc kl__socket_address(const char *dir, struct sockaddr_un *ret_address, int *ret_fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t room = sizeof address.sun_path;
    int fd = -1;
    if ((size_t)snprintf(address.sun_path, room, "%s/socket", dir) >= room) {
        fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
            return kl__fail(KL_ESYSTEM, "the directory %s could not be opened: %s", dir, strerror(errno));
        snprintf(address.sun_path, room, "/proc/self/fd/%d/socket", fd);
    }
    *ret_address = address;
    *ret_fd = fd;
    return KL_OK;
}

/* The mode is set before the name is there, so that nobody can slip in between. */
static kl_rc listen_at(kl__server *server, const char *dir)
{
    struct sockaddr_un address;
    int address_fd;
    kl_rc rc = kl__socket_address(dir, &address, &address_fd);
    if (rc != KL_OK)
        return rc;
    server->dir_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    server->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (server->dir_fd >= 0)
        unlinkat(server->dir_fd, "socket", 0); /* what a holder that was killed has left (N1) */
    bool listens = server->dir_fd >= 0 && server->fd >= 0 && fchmod(server->fd, SOCKET_MODE) == 0 &&
                   bind(server->fd, (struct sockaddr *)&address, sizeof address) == 0 &&
                   listen(server->fd, KL_CONNECTIONS_MAX) == 0;
    if (!listens)
        rc = kl__fail(KL_ESYSTEM, "no socket could be made in %s: %s; other processes cannot reach this store", dir,
                      strerror(errno));
    if (address_fd >= 0)
        close(address_fd);
    return rc;
}

static void free_server(kl__server *server)
{
    if (server->fd >= 0)
        close(server->fd);
    if (server->dir_fd >= 0)
        close(server->dir_fd);
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->mutex);
    kl__free(server);
}

kl_rc kl__server_open(kl_store *store, uint64_t identity, kl__server **ret_server)
{
    kl__server *server = kl__alloc_zeroed(1, sizeof *server);
    if (!server)
        return kl__fail_memory();
    server->store = store;
    server->salt = kl__random_seed();
    server->identity = identity;
    server->fd = server->dir_fd = -1;
    pthread_mutex_init(&server->mutex, NULL);
    kl__cond_init(&server->changed);
    *ret_server = server;
    return KL_OK;
}

void kl__server_adopt(kl__server *server, int fd, const void *whose)
{
    pthread_mutex_lock(&server->mutex);
    struct connection *ended = take_ended(server);
    bool room = server->count - server->closing < KL_CONNECTIONS_MAX || close_idle(server);
    pthread_mutex_unlock(&server->mutex);
    join_all(ended);
    if (room)
        add_connection(server, fd, whose);
    else
        close(fd);
}

void kl__server_on_left(kl__server *server, kl__left_fn *left, void *ctx)
{
    server->left = left;
    server->left_ctx = ctx;
}

void kl__server_on_made(kl__server *server, kl__made_fn *made, void *ctx)
{
    server->made = made;
    server->made_ctx = ctx;
}

void kl__server_cut(kl__server *server, kl__may_stay_fn *may_stay, void *ctx)
{
    pthread_mutex_lock(&server->mutex);
    for (struct connection *connection = server->connections; connection; connection = connection->next)
        if (connection->whose && !may_stay(ctx, connection->whose))
            shutdown(connection->fd, SHUT_RDWR);
    pthread_mutex_unlock(&server->mutex);
}

void kl__socket_notice_silence(int fd)
{
    int on = 1, idle_s = 15, every_s = 5, probes = 4, unanswered_ms = 30000;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms, sizeof unanswered_ms);
}

kl_rc kl__server_start(kl_store *store, uint64_t identity, const char *dir, kl__server **ret_server)
{
    kl__server *server = NULL;
    kl_rc rc = kl__server_open(store, identity, &server);
    if (rc != KL_OK)
        return rc;
    rc = listen_at(server, dir);
    if (rc == KL_OK && start_thread(&server->listener, run_listener, server) != 0)
        rc = kl__fail(KL_ESYSTEM, "no thread could be started that listens in %s", dir);
    if (rc == KL_OK)
        *ret_server = server;
    else
        free_server(server);
    return rc;
}

/* ---- Stopping ---- */

static void shut_all(kl__server *server, int how)
{
    for (struct connection *connection = server->connections; connection; connection = connection->next)
        shutdown(connection->fd, how);
}

static bool all_ended(const kl__server *server)
{
    for (const struct connection *connection = server->connections; connection; connection = connection->next)
        if (!connection->ended)
            return false;
    return true;
}

void kl__server_end(kl__server *server)
{
    if (!server || server->ended)
        return;
    server->ended = true;
    if (server->dir_fd >= 0)
        unlinkat(server->dir_fd, "socket", 0);
    pthread_mutex_lock(&server->mutex);
    atomic_store(&server->stopping, true);
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->mutex);
    if (server->fd >= 0) {
        shutdown(server->fd, SHUT_RDWR); /* accept returns */
        pthread_join(server->listener, NULL);
    }

    pthread_mutex_lock(&server->mutex);
    shut_all(server, SHUT_RD);
    int64_t until_ns = kl__deadline_ns(STOP_MS);
    while (!all_ended(server) && kl__cond_wait(&server->changed, &server->mutex, until_ns))
        continue;
    shut_all(server, SHUT_RDWR);
    struct connection *rest = server->connections;
    server->connections = NULL;
    pthread_mutex_unlock(&server->mutex);
    join_all(rest);
}

void kl__server_stop(kl__server *server)
{
    kl__server_end(server);
    if (server)
        free_server(server);
}
