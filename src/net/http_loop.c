/* http_loop.c - a loop's thread: what the kernel says, what others post, whose time is over, and new connections.
 *
 * From: http.c, and any thread by kl__loop_post.  To: http_connection.c.
 *
 *     round:  wait (events, a post, the first deadline) ─► events ─► posted answers ─► overdue ─► free the dead
 *
 * Who posts pushes its turn on a list by one compare-and-swap. Only the first on an empty list looks whether the loop
 * sleeps, and only when it does is there a write to its eventfd: answers that come together cost one wake, and those
 * that come while the loop works cost none. The loop says that it sleeps before it looks at the list for the last
 * time.
 *
 * Events are told once (edge-triggered), so there is nothing to switch on and off per request: a connection remembers
 * that it may be readable until it has read all.
 *
 * The first loop accepts, and deals connections out in turn: of few connections each loop has its share, which
 * SO_REUSEPORT would leave to chance. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/http_inside.h"

/* ---- Posting ---- */

void kl__loop_wake(kl__loop *loop)
{
    if (atomic_exchange(&loop->asleep, false))
        eventfd_write(loop->wake_fd, 1);
}

void kl__loop_post(kl__turn *turn)
{
    kl__loop *loop = turn->connection->loop;
    kl__turn *first = atomic_load_explicit(&loop->posted, memory_order_relaxed);
    do
        turn->next = first;
    while (!atomic_compare_exchange_weak(&loop->posted, &first, turn));
    if (!first)
        kl__loop_wake(loop);
}

/* In the order in which they were posted. */
static void take_posted(kl__loop *loop)
{
    kl__turn *turn = atomic_exchange(&loop->posted, NULL), *ordered = NULL;
    while (turn) {
        kl__turn *next = turn->next;
        turn->next = ordered;
        ordered = turn;
        turn = next;
    }
    while (ordered) {
        turn = ordered;
        ordered = turn->next;
        kl__connection_posted(turn);
    }
}

/* ---- Timers (I3) ---- */

static void leave_timer(kl__connection *connection)
{
    kl__timers *timers = &connection->loop->timers[connection->timer];
    *(connection->earlier ? &connection->earlier->later : &timers->first) = connection->later;
    *(connection->later ? &connection->later->earlier : &timers->last) = connection->earlier;
}

void kl__timer_set(kl__connection *connection, kl__timer timer)
{
    if (connection->timer != KL_TIMER_NONE)
        leave_timer(connection);
    connection->timer = timer;
    if (timer == KL_TIMER_NONE)
        return;
    kl__timers *timers = &connection->loop->timers[timer];
    connection->due_ns = connection->loop->now_ns + timers->wait_ns;
    connection->earlier = timers->last;
    connection->later = NULL;
    *(timers->last ? &timers->last->later : &timers->first) = connection;
    timers->last = connection;
}

static void end_overdue(kl__loop *loop)
{
    for (int timer = 0; timer < KL_TIMER_COUNT; timer++) {
        kl__connection *first;
        while ((first = loop->timers[timer].first) != NULL && first->due_ns <= loop->now_ns) {
            kl__timer_set(first, KL_TIMER_NONE);
            kl__connection_overdue(first);
        }
    }
}

static int wait_ms(const kl__loop *loop)
{
    int64_t due_ns = KL_NEVER;
    for (int timer = 0; timer < KL_TIMER_COUNT; timer++)
        if (loop->timers[timer].first && loop->timers[timer].first->due_ns < due_ns)
            due_ns = loop->timers[timer].first->due_ns;
    if (due_ns == KL_NEVER)
        return -1;
    int64_t left_ns = due_ns - loop->now_ns;
    int64_t left_ms = left_ns > 0 ? (left_ns + 999999) / 1000000 : 0;
    return left_ms < 3600000 ? (int)left_ms : 3600000;
}

/* ---- Those that have more to do ---- */

void kl__loop_again(kl__connection *connection)
{
    kl__loop *loop = connection->loop;
    if (connection->again_link)
        return;
    connection->again_next = loop->again;
    connection->again_link = &loop->again;
    if (connection->again_next)
        connection->again_next->again_link = &connection->again_next;
    loop->again = connection;
}

/* Those that ask for it once more meanwhile wait for the next round. */
static void go_on_again(kl__loop *loop)
{
    kl__connection *first = loop->again;
    loop->again = NULL;
    if (first)
        first->again_link = &first;
    while (first) {
        kl__connection *connection = first;
        first = connection->again_next;
        if (first)
            first->again_link = &first;
        connection->again_link = NULL;
        kl__connection_go_on(connection);
    }
}

/* ---- What connections borrow ---- */

size_t kl__buffer_size(const kl__http *http) { return http->opts.head_bytes_max + KL_HTTP_ROOM_MIN; }

char *kl__buffer_take(kl__loop *loop)
{
    char *buffer = loop->spare_buffers;
    if (!buffer)
        return kl__alloc(kl__buffer_size(loop->http));
    memcpy(&loop->spare_buffers, buffer, sizeof loop->spare_buffers);
    loop->spare_buffer_count--;
    return buffer;
}

void kl__buffer_give(kl__loop *loop, char *buffer)
{
    if (!buffer)
        return;
    if (loop->spare_buffer_count == KL_HTTP_SPARE_MAX) {
        kl__free(buffer);
        return;
    }
    memcpy(buffer, &loop->spare_buffers, sizeof loop->spare_buffers);
    loop->spare_buffers = buffer;
    loop->spare_buffer_count++;
}

/* Not zeroed: the head alone is 2 KiB, and the parser sets what is to be set. */
kl__turn *kl__turn_take(kl__connection *connection)
{
    kl__loop *loop = connection->loop;
    kl__turn *turn = loop->spare_turns;
    if (turn) {
        loop->spare_turns = turn->next;
        loop->spare_turn_count--;
    } else {
        turn = kl__alloc_zeroed(1, sizeof *turn);
        if (!turn)
            return NULL;
        turn->request.arena = &turn->arena;
    }
    turn->connection = connection;
    return turn;
}

static void free_turn(kl__turn *turn)
{
    kl_arena_free(&turn->arena);
    kl__free(turn);
}

/* Large blocks are not kept: 64 spare turns would hold them for ever. */
static void tidy_turn(kl__loop *loop, kl__turn *turn)
{
    size_t used = turn->request.body.len + turn->sending.pieces[1].len + turn->sent_bytes;
    if (used > KL_HTTP_ARENA_KEPT_MAX)
        kl_arena_free(&turn->arena);
    else
        kl_arena_reset(&turn->arena);
    if (turn->body_apart) {
        atomic_fetch_sub(&loop->http->bodies_bytes, turn->body_size);
        kl__free(turn->body);
    }
    kl__free(turn->pending.bytes);
    kl__request *request = &turn->request;
    request->body = (kl_bytes){0};
    request->serving = NULL;
    request->unread = false;
    turn->sending = (kl__sending){0};
    turn->sent_bytes = turn->body_size = turn->body_len = turn->chunk_from = turn->chunk_to = turn->sending_bytes = 0;
    turn->body = NULL;
    turn->gone = NULL;
    turn->pending = (kl__pending){0};
    turn->posted = KL_POSTED_ANSWER;
    turn->body_apart = turn->close = turn->refused = turn->is_posted = turn->ended = turn->lost = turn->is_gone = false;
}

void kl__turn_give(kl__loop *loop, kl__turn *turn)
{
    tidy_turn(loop, turn);
    if (loop->spare_turn_count == KL_HTTP_SPARE_MAX) {
        free_turn(turn);
        return;
    }
    turn->next = loop->spare_turns;
    loop->spare_turns = turn;
    loop->spare_turn_count++;
}

/* ---- New connections ---- */

/* For one more: the one that has been idle longest, or one that takes long over its head. False: all are at work. */
static bool make_room(kl__loop *loop)
{
    kl__connection *idle = loop->timers[KL_TIMER_IDLE].first, *slow = loop->timers[KL_TIMER_HEAD].first;
    int64_t slow_ns = slow ? loop->now_ns + loop->timers[KL_TIMER_HEAD].wait_ns - slow->due_ns : 0;
    if (!idle && slow_ns >= KL_HTTP_SLOW_HEAD_MS * INT64_C(1000000))
        idle = slow;
    if (!idle)
        return false;
    kl__connection_close(idle);
    return true;
}

/* Says that there is no room, to a client that will not be read from. */
static void send_away(kl__http *http, int fd, bool plain)
{
    static const char text[] = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n"
                               "Connection: close\r\n\r\n";
    if (plain) {
        ssize_t sent = send(fd, text, sizeof text - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)sent; /* it did what it could */
        shutdown(fd, SHUT_WR);
        char unread[KL_HTTP_ROOM_MIN]; /* bytes that stay unread would have the kernel take back what was sent */
        while (recv(fd, unread, sizeof unread, MSG_DONTWAIT) > 0)
            continue;
    }
    kl__count(&http->loops[0].refused, 1);
    close(fd);
}

static void give_to_loop(kl__connection *connection)
{
    kl__loop *loop = connection->loop;
    connection->next = atomic_load(&loop->arrived);
    while (!atomic_compare_exchange_weak(&loop->arrived, &connection->next, connection))
        continue;
    kl__loop_wake(loop);
}

static void take_arrived(kl__loop *loop)
{
    kl__connection *connection = atomic_exchange(&loop->arrived, NULL);
    while (connection) {
        kl__connection *next = connection->next;
        kl__connection_begin(connection);
        connection = next;
    }
}

static void welcome(kl__loop *loop, int fd, const struct sockaddr_storage *address)
{
    kl__http *http = loop->http;
    if (atomic_load(&http->connection_count) >= (int64_t)http->opts.connections_max && !make_room(loop)) {
        send_away(http, fd, address->ss_family == AF_UNIX || !http->tls_cert);
        return;
    }
    kl__loop *to = &http->loops[atomic_fetch_add(&http->next_loop, 1) % (unsigned)http->loop_count];
    kl__connection *connection;
    if (!kl__connection_make(to, fd, address, &connection))
        return;
    if (to == loop)
        kl__connection_begin(connection);
    else
        give_to_loop(connection);
}

/* No descriptor is left: an idle connection gives its own, or the caller at the door is let in and out again.
 * Otherwise the kernel would tell of it for ever. */
static void out_of_descriptors(kl__loop *loop, int listen_fd)
{
    if (make_room(loop) || loop->spare_fd < 0)
        return;
    close(loop->spare_fd);
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0)
        close(fd);
    loop->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void accept_some(kl__loop *loop, const kl__listener *listener)
{
    for (int i = 0; i < KL_HTTP_ACCEPT_MAX; i++) {
        struct sockaddr_storage address = {.ss_family = AF_UNIX};
        socklen_t len = sizeof address;
        int fd = accept4(listener->fd, (struct sockaddr *)&address, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0)
            welcome(loop, fd, &address);
        else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
            out_of_descriptors(loop, listener->fd);
        else if (errno == EAGAIN)
            return;
    }
}

/* ---- Rounds ---- */

static kl__listener *find_listener(kl__http *http, const void *pointer)
{
    for (size_t i = 0; i < http->listener_count; i++)
        if (pointer == &http->listeners[i])
            return &http->listeners[i];
    return NULL;
}

static void handle_event(kl__loop *loop, const struct epoll_event *event)
{
    kl__listener *listener = loop->number == 0 ? find_listener(loop->http, event->data.ptr) : NULL;
    if (listener && listener->fd >= 0)
        accept_some(loop, listener);
    else if (!listener && event->data.ptr != loop)
        kl__connection_event(event->data.ptr, event->events);
}

static void free_dead(kl__loop *loop)
{
    while (loop->dead) {
        kl__connection *connection = loop->dead;
        loop->dead = connection->next;
        kl__connection_free(connection);
    }
}

/* No more listeners, and nobody is waited for that has not begun a request. */
static void stop_loop(kl__loop *loop)
{
    loop->stopped = true;
    for (size_t i = 0; loop->number == 0 && i < loop->http->listener_count; i++)
        kl__listener_close(&loop->http->listeners[i]);
    while (loop->timers[KL_TIMER_IDLE].first)
        kl__connection_close(loop->timers[KL_TIMER_IDLE].first);
}

static int await_events(kl__loop *loop, struct epoll_event *events)
{
    int timeout = wait_ms(loop);
    atomic_store(&loop->asleep, true);
    if (loop->again || atomic_load(&loop->posted) || atomic_load(&loop->arrived) || atomic_load(&loop->http->closing) ||
        atomic_load(&loop->http->stopping) != loop->stopped)
        timeout = 0;
    int count = epoll_wait(loop->epoll_fd, events, KL_HTTP_EVENTS_MAX, timeout);
    atomic_store_explicit(&loop->asleep, false, memory_order_relaxed);
    loop->now_ns = kl__monotonic_ns();
    return count;
}

/* Everybody was told to let go of requests: what is left belongs to nobody. */
static void end_connections(kl__loop *loop)
{
    take_arrived(loop);
    take_posted(loop);
    while (loop->connections)
        kl__connection_abandon(loop->connections);
    free_dead(loop);
}

static void *run_loop(void *arg)
{
    kl__loop *loop = arg;
    struct epoll_event events[KL_HTTP_EVENTS_MAX];
    while (!atomic_load(&loop->http->closing)) {
        int count = await_events(loop, events);
        go_on_again(loop);
        for (int i = 0; i < count; i++)
            handle_event(loop, &events[i]);
        take_arrived(loop);
        take_posted(loop);
        end_overdue(loop);
        if (!loop->stopped && atomic_load(&loop->http->stopping))
            stop_loop(loop);
        free_dead(loop);
    }
    end_connections(loop);
    return NULL;
}

/* ---- From start to end ---- */

static bool watch(kl__loop *loop, int fd, void *pointer, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = pointer};
    return epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* The eventfd is never read: each write to it is an edge. */
static bool watch_all(kl__loop *loop)
{
    if (loop->epoll_fd < 0 || loop->wake_fd < 0 || !watch(loop, loop->wake_fd, loop, EPOLLIN | EPOLLET))
        return false;
    for (size_t i = 0; loop->number == 0 && i < loop->http->listener_count; i++)
        if (!watch(loop, loop->http->listeners[i].fd, &loop->http->listeners[i], EPOLLIN))
            return false;
    return true;
}

kl_rc kl__loop_init(kl__loop *loop, kl__http *http, int number)
{
    const kl__http_opts *opts = &http->opts;
    const int64_t wait_ms[KL_TIMER_COUNT] = {[KL_TIMER_IDLE] = opts->idle_ms,
                                             [KL_TIMER_HEAD] = opts->head_ms,
                                             [KL_TIMER_BODY] = opts->body_ms,
                                             [KL_TIMER_SEND] = opts->send_ms,
                                             [KL_TIMER_LINGER] = KL_HTTP_LINGER_MS};
    for (int timer = 0; timer < KL_TIMER_COUNT; timer++)
        loop->timers[timer].wait_ns = wait_ms[timer] * 1000000;
    loop->http = http;
    loop->number = number;
    loop->now_ns = kl__monotonic_ns();
    pthread_mutex_init(&loop->mutex, NULL);
    pthread_mutex_init(&loop->gone_mutex, NULL);
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    loop->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (!watch_all(loop))
        return kl__fail(KL_ESYSTEM, "no epoll could be set up: %s; raise the limit of open files (ulimit -n)",
                        strerror(errno));
    return KL_OK;
}

kl_rc kl__loop_start(kl__loop *loop)
{
    loop->started = kl__http_thread(&loop->thread, run_loop, loop);
    return loop->started ? KL_OK : kl__fail(KL_ESYSTEM, "no thread could be started that serves connections");
}

void kl__loop_free(kl__loop *loop)
{
    if (!loop->http)
        return;
    if (loop->started) {
        kl__loop_wake(loop);
        pthread_join(loop->thread, NULL);
    }
    for (kl__connection *late = atomic_load(&loop->arrived), *next; late; late = next) {
        next = late->next;
        kl__connection_free(late);
    }
    for (char *buffer; (buffer = loop->spare_buffers) != NULL; kl__free(buffer))
        memcpy(&loop->spare_buffers, buffer, sizeof loop->spare_buffers);
    for (kl__turn *turn; (turn = loop->spare_turns) != NULL; free_turn(turn))
        loop->spare_turns = turn->next;
    const int fds[] = {loop->epoll_fd, loop->wake_fd, loop->spare_fd};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    pthread_mutex_destroy(&loop->gone_mutex);
    pthread_mutex_destroy(&loop->mutex);
}
