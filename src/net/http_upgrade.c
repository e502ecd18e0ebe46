/* http_upgrade.c - connections that are handed over after "101 Switching Protocols".
 *
 * From: whoever serves a request.  To: `taken`, with a descriptor that is its own.
 *
 * A plain connection is handed over as it is. Where there is TLS between, or where bytes of the new protocol came
 * together with the request, the callee gets one end of a socket pair, and a carrier, a thread of ours, moves bytes:
 *
 *     client ═ TLS ═ fd  ── up ──►  pair ═ the callee
 *                        ◄─ down ─
 *
 * An end is passed on as an end, so either side may shut down its half first; a callee that reads no more may still
 * have something to say. The carrier ends when both have, or when one is broken. It is joined by the next one that
 * starts, or by close, which gives those whose callee has closed a moment to carry the rest. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/wait.h"
#include "net/http_inside.h"
#include "store/socket/socket.h"

enum { FLOW_BYTES = 16384 };

/* One direction: bytes[from..to) were read and not written yet. */
struct flow {
    char *bytes;
    size_t from, to, size;
    bool ended; /* nothing more will be read */
    bool shut;  /* and that has been passed on */
};

typedef struct kl__carrier {
    struct kl__carrier *next;
    kl__http *http;
    pthread_t thread;
    kl__tls *tls;
    int fd, pair;
    struct flow up, down;
    short fd_events, pair_events; /* what it waits for */
    bool broken;
    atomic_bool ended; /* its thread is about to return; set under carriers_mutex */
} kl__carrier;

/* ---- Moving bytes ---- */

static kl__io read_client(kl__carrier *carrier, struct flow *flow, size_t *ret_len)
{
    if (carrier->tls)
        return kl__tls_read(carrier->tls, flow->bytes, flow->size, ret_len);
    ssize_t len = recv(carrier->fd, flow->bytes, flow->size, 0);
    if (len > 0)
        *ret_len = (size_t)len;
    return len > 0 ? KL_IO_DONE : len == 0 ? KL_IO_END : errno == EAGAIN || errno == EINTR ? KL_IO_READ : KL_IO_BROKEN;
}

static kl__io read_pair(const kl__carrier *carrier, struct flow *flow, size_t *ret_len)
{
    ssize_t len = recv(carrier->pair, flow->bytes, flow->size, MSG_DONTWAIT);
    if (len > 0)
        *ret_len = (size_t)len;
    return len > 0 ? KL_IO_DONE : len == 0 ? KL_IO_END : errno == EAGAIN || errno == EINTR ? KL_IO_READ : KL_IO_BROKEN;
}

static kl__io write_plain(int fd, const struct flow *flow, size_t *ret_len)
{
    ssize_t len = send(fd, flow->bytes + flow->from, flow->to - flow->from, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (len >= 0)
        *ret_len = (size_t)len;
    return len >= 0 ? KL_IO_DONE : errno == EAGAIN || errno == EINTR ? KL_IO_WRITE : KL_IO_BROKEN;
}

static kl__io write_client(kl__carrier *carrier, const struct flow *flow, size_t *ret_len)
{
    if (carrier->tls)
        return kl__tls_write(carrier->tls, flow->bytes + flow->from, flow->to - flow->from, ret_len);
    return write_plain(carrier->fd, flow, ret_len);
}

/* What came of one try: bytes that were read, an end, or what to wait for. True: it went on. */
static bool note_read(kl__carrier *carrier, struct flow *flow, kl__io io, size_t len, short *io_events)
{
    flow->from = 0;
    flow->to = io == KL_IO_DONE ? len : 0;
    flow->ended |= io == KL_IO_END;
    carrier->broken |= io == KL_IO_BROKEN;
    if (io == KL_IO_READ || io == KL_IO_WRITE)
        *io_events |= io == KL_IO_READ ? POLLIN : POLLOUT;
    return io == KL_IO_DONE || io == KL_IO_END;
}

static bool note_written(kl__carrier *carrier, struct flow *flow, kl__io io, size_t len, short *io_events)
{
    if (io == KL_IO_DONE)
        flow->from += len;
    carrier->broken |= io == KL_IO_BROKEN || io == KL_IO_END;
    if (io == KL_IO_READ || io == KL_IO_WRITE)
        *io_events |= io == KL_IO_READ ? POLLIN : POLLOUT;
    return io == KL_IO_DONE;
}

static bool carry_up(kl__carrier *carrier)
{
    struct flow *flow = &carrier->up;
    size_t len = 0;
    if (flow->from < flow->to) {
        kl__io io = write_plain(carrier->pair, flow, &len);
        if (io == KL_IO_BROKEN) {
            flow->from = flow->to;
            flow->ended = flow->shut = true;
            return true;
        }
        return note_written(carrier, flow, io, len, &carrier->pair_events);
    }
    if (!flow->ended) {
        kl__io io = read_client(carrier, flow, &len);
        return note_read(carrier, flow, io, len, &carrier->fd_events);
    }
    if (!flow->shut)
        shutdown(carrier->pair, SHUT_WR);
    flow->shut = true;
    return false;
}

/* The callee has closed its end, rather than shut down half of it. */
static bool callee_is_gone(const kl__carrier *carrier)
{
    struct pollfd pair = {.fd = carrier->pair};
    return poll(&pair, 1, 0) == 1 && (pair.revents & POLLHUP);
}

static bool carry_down(kl__carrier *carrier)
{
    struct flow *flow = &carrier->down;
    size_t len = 0;
    if (flow->from < flow->to) {
        kl__io io = write_client(carrier, flow, &len);
        return note_written(carrier, flow, io, len, &carrier->fd_events);
    }
    if (!flow->ended) {
        kl__io io = read_pair(carrier, flow, &len);
        return note_read(carrier, flow, io, len, &carrier->pair_events);
    }
    if (!flow->shut) {
        if (carrier->tls)
            kl__tls_end(carrier->tls);
        shutdown(carrier->fd, SHUT_WR);
        carrier->broken |= callee_is_gone(carrier);
    }
    flow->shut = true;
    return false;
}

static void *run_carrier(void *arg)
{
    kl__carrier *carrier = arg;
    while (!carrier->broken && !(carrier->up.shut && carrier->down.shut)) {
        carrier->fd_events = carrier->pair_events = 0;
        bool up = carry_up(carrier), down = !carrier->broken && carry_down(carrier);
        if (up || down || carrier->broken || (carrier->up.shut && carrier->down.shut))
            continue;
        struct pollfd polled[] = {{carrier->fd_events ? carrier->fd : -1, carrier->fd_events, 0},
                                  {carrier->pair_events ? carrier->pair : -1, carrier->pair_events, 0}};
        poll(polled, 2, -1);
    }
    shutdown(carrier->pair, SHUT_RDWR);
    shutdown(carrier->fd, carrier->broken ? SHUT_RDWR : SHUT_WR);
    pthread_mutex_lock(&carrier->http->carriers_mutex);
    atomic_store(&carrier->ended, true);
    pthread_cond_broadcast(&carrier->http->carriers_changed);
    pthread_mutex_unlock(&carrier->http->carriers_mutex);
    return NULL;
}

/* ---- Carriers ---- */

static void free_carrier(kl__carrier *carrier)
{
    kl__tls_close(carrier->tls);
    if (carrier->fd >= 0)
        close(carrier->fd);
    if (carrier->pair >= 0)
        close(carrier->pair);
    kl__free(carrier->up.bytes);
    kl__free(carrier->down.bytes);
    kl__free(carrier);
}

static void join_carriers(kl__http *http, bool all)
{
    kl__carrier *joined = NULL;
    pthread_mutex_lock(&http->carriers_mutex);
    for (kl__carrier **link = &http->carriers, *carrier; (carrier = *link) != NULL;) {
        if (!all && !atomic_load(&carrier->ended)) {
            link = &carrier->next;
            continue;
        }
        *link = carrier->next;
        carrier->next = joined;
        joined = carrier;
    }
    pthread_mutex_unlock(&http->carriers_mutex);
    for (kl__carrier *next; joined; joined = next) {
        next = joined->next;
        shutdown(joined->fd, SHUT_RDWR);
        shutdown(joined->pair, SHUT_RDWR);
        pthread_join(joined->thread, NULL);
        free_carrier(joined);
    }
}

static bool any_ending(const kl__http *http)
{
    for (const kl__carrier *carrier = http->carriers; carrier; carrier = carrier->next)
        if (!atomic_load(&carrier->ended) && callee_is_gone(carrier))
            return true;
    return false;
}

void kl__carriers_close(kl__http *http)
{
    int64_t until_ns = kl__deadline_ns(KL_HTTP_LINGER_MS);
    pthread_mutex_lock(&http->carriers_mutex);
    while (any_ending(http) && kl__cond_wait(&http->carriers_changed, &http->carriers_mutex, until_ns))
        continue;
    pthread_mutex_unlock(&http->carriers_mutex);
    join_carriers(http, true);
}

/* `ahead`: bytes of the new protocol that were read with the request. NULL: no memory. */
static kl__carrier *make_carrier(kl_bytes ahead)
{
    kl__carrier *carrier = kl__alloc_zeroed(1, sizeof *carrier);
    if (!carrier)
        return NULL;
    carrier->fd = carrier->pair = -1;
    carrier->up.size = ahead.len > FLOW_BYTES ? ahead.len : FLOW_BYTES;
    carrier->down.size = FLOW_BYTES;
    carrier->up.bytes = kl__alloc(carrier->up.size);
    carrier->down.bytes = kl__alloc(carrier->down.size);
    if (!carrier->up.bytes || !carrier->down.bytes) {
        free_carrier(carrier);
        return NULL;
    }
    if (ahead.len > 0)
        memcpy(carrier->up.bytes, ahead.data, ahead.len);
    carrier->up.to = ahead.len;
    return carrier;
}

/* The callee's end, or -1. Takes the connection's descriptor and TLS when it works out. */
static int start_carrier(kl__connection *connection, kl_bytes ahead)
{
    kl__http *http = connection->loop->http;
    join_carriers(http, false);
    kl__carrier *carrier = make_carrier(ahead);
    int pair[2] = {-1, -1};
    if (!carrier || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        if (carrier)
            free_carrier(carrier);
        return -1;
    }
    carrier->http = http;
    carrier->fd = connection->fd;
    carrier->tls = connection->tls;
    carrier->pair = pair[0];
    pthread_mutex_lock(&http->carriers_mutex);
    bool started = kl__http_thread(&carrier->thread, run_carrier, carrier);
    if (started) {
        carrier->next = http->carriers;
        http->carriers = carrier;
        connection->fd = -1;
        connection->tls = NULL;
    } else {
        carrier->fd = -1;
        carrier->tls = NULL;
        free_carrier(carrier);
        close(pair[1]);
    }
    pthread_mutex_unlock(&http->carriers_mutex);
    return started ? pair[1] : -1;
}

/* ---- Handing over ---- */

void kl__http_upgrade(kl__request *request, const char *protocol, kl__taken_fn *taken, void *ctx)
{
    kl__turn *turn = (kl__turn *)(void *)request;
    const kl__field fields[] = {{kl_str("Upgrade"), kl_str(protocol)}, {kl_str("Connection"), kl_str("Upgrade")}};
    if (!kl__answer_format_head(turn, 101, fields, sizeof fields / sizeof fields[0]))
        turn->sending = (kl__sending){0};
    turn->posted = KL_POSTED_UPGRADE;
    turn->taken = taken;
    turn->taken_ctx = ctx;
    kl__loop_post(turn);
}

static int give_descriptor(kl__connection *connection)
{
    int fd = connection->fd;
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) != 0)
        return -1;
    connection->fd = -1;
    return fd;
}

void kl__upgrade_sent(kl__connection *connection)
{
    kl__loop *loop = connection->loop;
    kl__turn *turn = connection->turn;
    kl_bytes ahead = {connection->in + connection->in_next, connection->in_len - connection->in_next};
    epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, connection->fd, NULL);
    bool plain = !connection->tls && ahead.len == 0;
    kl__socket_notice_silence(connection->fd);
    int fd = plain ? give_descriptor(connection) : start_carrier(connection, ahead);
    if (fd >= 0)
        atomic_fetch_sub(&loop->http->connection_count, 1);
    turn->taken(turn->taken_ctx, fd);
    kl__connection_bury(connection);
}
