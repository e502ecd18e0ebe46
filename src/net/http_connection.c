/* http_connection.c - a connection from its first byte to its last.
 *
 * From: http_loop.c (events, overdue, posted answers).  To: the serve function, http_answer.c, http_read.c.
 *
 *    HEAD ─► BODY ─► SERVING ─► SENDING ─┬─► HEAD: the next request, of which bytes may already be there
 *                                        └─► finish: nothing unread, closed; else LINGER until the client has closed
 *
 * A client whose answer says that the connection ends may still be sending. To close then would have the kernel send a
 * reset, which can overtake the answer; so writing is shut down and what comes is thrown away for a moment.
 *
 * A client that shuts down its side and waits still gets its answer, and `gone` is told: it cannot be known whether it
 * still listens, and who is told answers soon. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "net/http_inside.h"

/* ---- Beginning and end ---- */

static void name_peer(kl__connection *connection, const struct sockaddr_storage *address)
{
    char text[INET6_ADDRSTRLEN] = "?";
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)address;
        inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
        snprintf(connection->peer, sizeof connection->peer, "%s:%u", text, ntohs(v4->sin_port));
    } else if (address->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const void *)address;
        inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
        snprintf(connection->peer, sizeof connection->peer, "[%s]:%u", text, ntohs(v6->sin6_port));
    } else {
        snprintf(connection->peer, sizeof connection->peer, "socket");
    }
}

static bool add_tls(kl__connection *connection)
{
    kl__http *http = connection->loop->http;
    pthread_mutex_lock(&http->tls_mutex);
    connection->tls = kl__tls_open(http->tls, connection->fd);
    pthread_mutex_unlock(&http->tls_mutex);
    connection->state = KL_CONN_HANDSHAKE;
    return connection->tls != NULL;
}

bool kl__connection_make(kl__loop *loop, int fd, const struct sockaddr_storage *address,
                         kl__connection **ret_connection)
{
    kl__connection *connection = kl__alloc_zeroed(1, sizeof *connection);
    if (!connection) {
        close(fd);
        return false;
    }
    atomic_fetch_add(&loop->http->connection_count, 1);
    connection->loop = loop;
    connection->fd = fd;
    connection->state = KL_CONN_HEAD;
    connection->timer = KL_TIMER_NONE;
    connection->local = address->ss_family == AF_UNIX;
    name_peer(connection, address);
    if (loop->http->tls_cert && !connection->local && !add_tls(connection)) {
        kl__connection_free(connection);
        return false;
    }
    *ret_connection = connection;
    return true;
}

static void drop_descriptor(kl__connection *connection)
{
    if (connection->fd < 0)
        return;
    kl__tls_close(connection->tls);
    connection->tls = NULL;
    close(connection->fd);
    connection->fd = -1;
    atomic_fetch_sub(&connection->loop->http->connection_count, 1);
}

void kl__connection_free(kl__connection *connection)
{
    drop_descriptor(connection);
    kl__free(connection->outgoing.bytes);
    kl__free(connection);
}

void kl__connection_begin(kl__connection *connection)
{
    kl__loop *loop = connection->loop;
    connection->next = loop->connections;
    connection->link = &loop->connections;
    if (connection->next)
        connection->next->link = &connection->next;
    loop->connections = connection;
    kl__timer_set(connection, connection->tls ? KL_TIMER_HEAD : KL_TIMER_IDLE);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = connection};
    if (loop->stopped || epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, connection->fd, &event) != 0)
        kl__connection_close(connection);
}

static void give_buffer(kl__connection *connection)
{
    kl__buffer_give(connection->loop, connection->in);
    connection->in = NULL;
    connection->in_len = connection->in_seen = connection->in_next = 0;
}

static void tell_gone(kl__connection *connection)
{
    kl__turn *turn = connection->turn;
    pthread_mutex_lock(&connection->loop->gone_mutex);
    kl__gone_fn *gone = turn->gone;
    turn->gone = NULL;
    turn->is_gone = true;
    if (gone)
        gone(turn->gone_ctx);
    pthread_mutex_unlock(&connection->loop->gone_mutex);
}

static void leave_again(kl__connection *connection)
{
    if (!connection->again_link)
        return;
    *connection->again_link = connection->again_next;
    if (connection->again_next)
        connection->again_next->again_link = connection->again_link;
    connection->again_link = NULL;
}

/* Out of all lists but that of the dead (I4). */
void kl__connection_bury(kl__connection *connection)
{
    kl__loop *loop = connection->loop;
    drop_descriptor(connection);
    give_buffer(connection);
    kl__timer_set(connection, KL_TIMER_NONE);
    leave_again(connection);
    if (connection->turn)
        kl__turn_give(loop, connection->turn);
    connection->turn = NULL;
    *connection->link = connection->next;
    if (connection->next)
        connection->next->link = connection->link;
    connection->state = KL_CONN_DEAD;
    connection->next = loop->dead;
    loop->dead = connection;
}

void kl__connection_close(kl__connection *connection)
{
    if (connection->state == KL_CONN_SERVING) {
        drop_descriptor(connection); /* who serves still has the turn (I2) */
        kl__timer_set(connection, KL_TIMER_NONE);
        tell_gone(connection);
    } else if (connection->state == KL_CONN_STREAM) {
        drop_descriptor(connection);
        kl__timer_set(connection, KL_TIMER_NONE);
        if (kl__stream_lost(connection))
            kl__connection_bury(connection);
        else
            tell_gone(connection);
    } else if (connection->state != KL_CONN_DEAD) {
        if (connection->state == KL_CONN_SENDING && connection->turn->posted == KL_POSTED_UPGRADE)
            connection->turn->taken(connection->turn->taken_ctx, -1);
        kl__connection_bury(connection);
    }
}

/* ---- Bytes in and out ---- */

/* A read that fills less than its room has emptied the socket, and the kernel will tell of more; but an end that it
 * has told of already must be read. */
kl__io kl__connection_read(kl__connection *connection, char *to, size_t room, size_t *ret_len)
{
    kl__io io = KL_IO_DONE;
    ssize_t len = 0;
    if (connection->tls)
        io = kl__tls_read(connection->tls, to, room, ret_len);
    else if ((len = recv(connection->fd, to, room, 0)) > 0)
        *ret_len = (size_t)len;
    else
        io = len == 0 ? KL_IO_END : errno == EAGAIN || errno == EINTR ? KL_IO_READ : KL_IO_BROKEN;
    if (io == KL_IO_READ || io == KL_IO_WRITE || (!connection->tls && (size_t)len < room && !connection->hung))
        connection->readable = false;
    if (io == KL_IO_DONE)
        kl__count(&connection->loop->bytes_in, *ret_len);
    return io;
}

static void cut(kl__sending *sending, size_t len)
{
    for (size_t i = 0; i < 2 && len > 0; i++) {
        kl_bytes *piece = &sending->pieces[i];
        size_t less = len < piece->len ? len : piece->len;
        *piece = (kl_bytes){(const char *)piece->data + less, piece->len - less};
        len -= less;
    }
}

static kl__io write_some(kl__connection *connection, const kl__sending *sending, size_t *ret_len)
{
    const kl_bytes *pieces = sending->pieces;
    if (connection->tls) {
        const kl_bytes *piece = &pieces[pieces[0].len == 0];
        return kl__tls_write(connection->tls, piece->data, piece->len, ret_len);
    }
    ssize_t len;
    if (pieces[1].len == 0) {
        len = send(connection->fd, pieces[0].data, pieces[0].len, MSG_NOSIGNAL);
    } else {
        struct iovec vectors[2] = {{(void *)pieces[0].data, pieces[0].len}, {(void *)pieces[1].data, pieces[1].len}};
        struct msghdr message = {.msg_iov = vectors, .msg_iovlen = 2};
        len = sendmsg(connection->fd, &message, MSG_NOSIGNAL);
    }
    if (len < 0)
        return errno == EAGAIN || errno == EINTR ? KL_IO_WRITE : KL_IO_BROKEN;
    *ret_len = (size_t)len;
    return KL_IO_DONE;
}

size_t kl__sending_left(const kl__sending *sending) { return sending->pieces[0].len + sending->pieces[1].len; }

static void await_room(kl__connection *connection, bool await)
{
    if (connection->awaits_room == await)
        return;
    connection->awaits_room = await;
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET | (await ? EPOLLOUT : 0u),
                                .data.ptr = connection};
    epoll_ctl(connection->loop->epoll_fd, EPOLL_CTL_MOD, connection->fd, &event);
}

bool kl__connection_send(kl__connection *connection, kl__sending *io_sending)
{
    kl__io io = KL_IO_DONE;
    size_t before = kl__sending_left(io_sending);
    while (io == KL_IO_DONE && kl__sending_left(io_sending) > 0) {
        size_t len = 0;
        io = write_some(connection, io_sending, &len);
        cut(io_sending, len);
    }
    size_t left = kl__sending_left(io_sending);
    kl__count(&connection->loop->bytes_out, before - left);
    await_room(connection, left > 0);
    if (left > 0 && (left < before || connection->timer != KL_TIMER_SEND))
        kl__timer_set(connection, KL_TIMER_SEND);
    return io == KL_IO_DONE || io == KL_IO_READ || io == KL_IO_WRITE;
}

/* ---- The end of a turn ---- */

static void linger(kl__connection *connection)
{
    char thrown_away[KL_HTTP_ROOM_MIN];
    kl__io io = KL_IO_DONE;
    for (int i = 0; i < KL_HTTP_READS_MAX && io == KL_IO_DONE && connection->readable; i++) {
        size_t len;
        io = kl__connection_read(connection, thrown_away, sizeof thrown_away, &len);
    }
    if (io == KL_IO_END || io == KL_IO_BROKEN)
        kl__connection_bury(connection);
    else if (connection->readable)
        kl__loop_again(connection);
}

void kl__connection_finish(kl__connection *connection, bool unread)
{
    if (connection->tls)
        kl__tls_end(connection->tls);
    if (!unread && !connection->readable && connection->in_next == connection->in_len) {
        kl__connection_bury(connection);
        return;
    }
    shutdown(connection->fd, SHUT_WR);
    give_buffer(connection);
    connection->state = KL_CONN_LINGER;
    kl__timer_set(connection, KL_TIMER_LINGER);
    linger(connection);
}

/* On to what follows the request in the buffer, or to waiting. */
static void await_request(kl__connection *connection)
{
    if (connection->in_next == connection->in_len) {
        give_buffer(connection);
    } else {
        connection->in_len -= connection->in_next;
        memmove(connection->in, connection->in + connection->in_next, connection->in_len);
        connection->in_seen = connection->in_next = 0;
    }
    connection->state = KL_CONN_HEAD;
    kl__timer_set(connection, KL_TIMER_IDLE);
    if (connection->in || connection->readable)
        kl__connection_read_head(connection);
}

static void end_turn(kl__connection *connection)
{
    kl__turn *turn = connection->turn;
    bool close = turn->close || connection->loop->stopped, refused = turn->refused;
    connection->turn = NULL;
    kl__turn_give(connection->loop, turn);
    if (close)
        kl__connection_finish(connection, refused);
    else
        await_request(connection);
}

static void go_on_sending(kl__connection *connection)
{
    kl__turn *turn = connection->turn;
    if (!kl__connection_send(connection, &turn->sending))
        kl__connection_close(connection);
    else if (kl__sending_left(&turn->sending) > 0)
        return;
    else if (turn->posted == KL_POSTED_UPGRADE)
        kl__upgrade_sent(connection);
    else
        end_turn(connection);
}

static void send_answer(kl__connection *connection)
{
    kl__turn *turn = connection->turn;
    connection->state = KL_CONN_SENDING;
    turn->sent_bytes = kl__sending_left(&turn->sending);
    if (turn->sent_bytes == 0)
        kl__connection_close(connection); /* there was no memory for it */
    else
        go_on_sending(connection);
}

void kl__connection_posted(kl__turn *turn)
{
    kl__connection *connection = turn->connection;
    if (turn->posted == KL_POSTED_STREAM) {
        kl__stream_posted(turn);
    } else if (connection->fd >= 0) {
        send_answer(connection);
    } else {
        if (turn->posted == KL_POSTED_UPGRADE)
            turn->taken(turn->taken_ctx, -1);
        kl__connection_bury(connection);
    }
}

/* ---- Serving ---- */

static void introduce(kl__connection *connection)
{
    kl__request *request = &connection->turn->request;
    request->peer = connection->peer;
    request->local = connection->local;
    request->secure = connection->tls != NULL;
    request->began_ns = connection->loop->now_ns;
}

bool kl__connection_admits(kl__connection *connection)
{
    const kl__http_opts *opts = &connection->loop->http->opts;
    introduce(connection);
    return !opts->admit || opts->admit(opts->ctx, &connection->turn->request);
}

void kl__connection_serve_unread(kl__connection *connection)
{
    kl__turn *turn = connection->turn;
    turn->refused = turn->request.unread = true;
    turn->request.head.keep_alive = false;
    connection->in_next = connection->in_len;
    kl__connection_serve(connection);
}

void kl__connection_serve(kl__connection *connection)
{
    kl__loop *loop = connection->loop;
    kl__request *request = &connection->turn->request;
    connection->state = KL_CONN_SERVING;
    kl__timer_set(connection, KL_TIMER_NONE);
    kl__count(&loop->requests, 1);
    introduce(connection);
    loop->http->opts.serve(loop->http->opts.ctx, request);
    if (connection->hung)
        tell_gone(connection); /* the turn is ours to touch: what was posted is taken by this thread, later */
}

void kl__connection_refuse(kl__connection *connection, int status, const char *reason)
{
    kl__turn *turn = connection->turn ? connection->turn : kl__turn_take(connection);
    if (!turn) {
        kl__connection_bury(connection);
        return;
    }
    connection->turn = turn;
    kl__count(&connection->loop->refused, 1);
    kl__http_log(connection->loop->http, KL_LOG_DEBUG, "answered %d to %s: %s", status, connection->peer, reason);
    turn->refused = true;
    turn->request.head.method = KL_METHOD_GET;
    turn->request.head.keep_alive = false;
    turn->sending = (kl__sending){0};
    if (!kl__answer_refusal(turn, status, reason))
        turn->sending = (kl__sending){0};
    kl__timer_set(connection, KL_TIMER_NONE);
    send_answer(connection);
}

bool kl__http_on_gone(kl__request *request, kl__gone_fn *gone, void *ctx)
{
    kl__turn *turn = (kl__turn *)(void *)request;
    pthread_mutex_t *mutex = &turn->connection->loop->gone_mutex;
    pthread_mutex_lock(mutex);
    bool is_gone = turn->is_gone;
    turn->gone = is_gone ? NULL : gone;
    turn->gone_ctx = ctx;
    pthread_mutex_unlock(mutex);
    return !is_gone;
}

/* ---- What the loop tells ---- */

static void shake_hands(kl__connection *connection)
{
    kl__io io = kl__tls_accept(connection->tls);
    if (io == KL_IO_DONE) {
        connection->state = KL_CONN_HEAD;
        connection->readable = true; /* bytes may have come with the handshake */
        await_room(connection, false);
        kl__timer_set(connection, KL_TIMER_IDLE);
        kl__connection_read_head(connection);
    } else if (io == KL_IO_READ || io == KL_IO_WRITE) {
        await_room(connection, io == KL_IO_WRITE);
    } else {
        kl__connection_bury(connection);
    }
}

void kl__connection_go_on(kl__connection *connection)
{
    switch (connection->state) {
    case KL_CONN_HANDSHAKE:
        shake_hands(connection);
        break;
    case KL_CONN_HEAD:
        kl__connection_read_head(connection);
        break;
    case KL_CONN_BODY:
        kl__connection_read_body(connection);
        break;
    case KL_CONN_SERVING:
        if (connection->hung)
            tell_gone(connection);
        break;
    case KL_CONN_SENDING:
        go_on_sending(connection);
        break;
    case KL_CONN_STREAM:
        if (connection->hung)
            kl__connection_close(connection);
        else
            kl__stream_go_on(connection);
        break;
    case KL_CONN_LINGER:
        linger(connection);
        break;
    case KL_CONN_DEAD:
        break;
    }
}

void kl__connection_event(kl__connection *connection, uint32_t events)
{
    if (connection->fd < 0)
        return;
    if (events & (EPOLLIN | EPOLLRDHUP))
        connection->readable = true;
    if (connection->tls && (events & EPOLLOUT))
        connection->readable = true; /* what TLS had to read first may have waited for room to write */
    if (events & EPOLLRDHUP)
        connection->hung = true;
    if (events & (EPOLLERR | EPOLLHUP))
        kl__connection_close(connection);
    else
        kl__connection_go_on(connection);
}

/* Its timer has been taken off. */
void kl__connection_overdue(kl__connection *connection)
{
    bool asked = connection->state == KL_CONN_HEAD && connection->in_len > 0;
    if (asked)
        kl__connection_refuse(connection, 408, "The head of the request did not come in time.");
    else if (connection->state == KL_CONN_BODY)
        kl__connection_refuse(connection, 408, "The body of the request did not come in time.");
    else
        kl__connection_close(connection);
}

/* When http closes, and nobody holds a turn any more. */
void kl__connection_abandon(kl__connection *connection)
{
    kl__turn *turn = connection->turn;
    if (connection->state == KL_CONN_SERVING && connection->fd >= 0 &&
        kl__answer_refusal(turn, 503, "The server ends. Try again later, or with another one."))
        kl__connection_send(connection, &turn->sending);
    if (connection->state == KL_CONN_SENDING && turn->posted == KL_POSTED_UPGRADE)
        turn->taken(turn->taken_ctx, -1);
    kl__connection_bury(connection);
}
