/* http_inside.h - the parts of http: loops, connections, turns, and who may touch what.
 *
 *    http.c             open, stop, close, counts
 *    http_listen.c      addresses and listening sockets
 *    http_loop.c        a loop's thread: events, timers, what others post, accepting
 *    http_connection.c  a connection from its first byte to its last: serve, send, close
 *    http_read.c        heads and bodies
 *    http_answer.c      answers as bytes
 *    http_stream.c      answers without an end
 *    http_upgrade.c     connections that are handed over
 *    tls.c              OpenSSL behind five calls
 *
 *    accept ─► HEAD ─► (BODY) ─► SERVING ═ any thread ═► SENDING ─► HEAD ...
 *                │        │                   post          └─► LINGER ─► closed
 *                └────────┴── refused: an answer of http's own ──► SENDING
 *
 * A connection has memory of any size only while there is something in it: the buffer and the turn (the request, its
 * arena) come from its loop when bytes come, and go back with the answer. An idle one is a struct and a descriptor.
 *
 * I1  All of a loop and its connections belongs to the loop's thread, but `posted`, `asleep`, what stands under
 *     `mutex` and `gone_mutex`, and the counts.
 * I2  A turn belongs to whoever serves it from serve until it posts it; the connection stays as long.
 * I3  A connection is in the timer list of `timer`, or in none when that is TIMER_NONE. All of one list have the same
 *     time-out, so the list is in the order of deadlines.
 * I4  A connection that has ended is freed after all events of the round were handled: they may name it. */
#ifndef KL_NET_HTTP_INSIDE_H
#define KL_NET_HTTP_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "base/clock.h"
#include "net/http.h"
#include "net/tls.h"

enum {
    KL_PEER_BYTES = 56,             /* an IPv6 address in brackets, a port, and the terminator */
    KL_HTTP_LISTEN_MAX = 16,        /* addresses */
    KL_HTTP_LOOPS_MAX = 64,         /* threads */
    KL_HTTP_EVENTS_MAX = 256,       /* of one round */
    KL_HTTP_ACCEPT_MAX = 64,        /* of one round: those that are there must not wait long */
    KL_HTTP_ROOM_MIN = 4096,        /* bytes behind the longest head */
    KL_HTTP_BODY_FIRST = 65536,     /* the first buffer of a body, whatever length it is said to have */
    KL_HTTP_READS_MAX = 16,         /* of one connection in one round, of a body or what is thrown away */
    KL_HTTP_SPARE_MAX = 64,         /* buffers, and turns, that a loop keeps for the next request */
    KL_HTTP_ARENA_KEPT_MAX = 65536, /* bytes of body or answer up to which a turn keeps its arena's block */
    KL_HTTP_COPY_MAX = 8192,        /* bytes of an answer's body that are copied behind its head, to be sent as one */
    KL_HTTP_LINGER_MS = 2000,       /* for the client to read an answer whose request was not read to its end */
    KL_HTTP_SLOW_HEAD_MS = 1000,    /* a head that takes longer may be closed in favour of a new connection */
};

typedef enum kl__timer {
    KL_TIMER_IDLE,
    KL_TIMER_HEAD, /* and a handshake */
    KL_TIMER_BODY,
    KL_TIMER_SEND,
    KL_TIMER_LINGER,
    KL_TIMER_COUNT,
    KL_TIMER_NONE = KL_TIMER_COUNT,
} kl__timer;

typedef enum kl__conn_state {
    KL_CONN_HANDSHAKE,
    KL_CONN_HEAD, /* waits for a request, or has a part of its head */
    KL_CONN_BODY,
    KL_CONN_SERVING, /* somebody else has the turn (I2) */
    KL_CONN_SENDING,
    KL_CONN_STREAM,
    KL_CONN_LINGER, /* the answer is out, and what the client still sends is thrown away */
    KL_CONN_DEAD,   /* I4 */
} kl__conn_state;

typedef struct kl__loop kl__loop;
typedef struct kl__connection kl__connection;

typedef enum kl__posted { KL_POSTED_ANSWER, KL_POSTED_STREAM, KL_POSTED_UPGRADE } kl__posted;

/* Bytes to be sent: a head, and a body when it was not copied behind the head. */
typedef struct kl__sending {
    kl_bytes pieces[2];
} kl__sending;

/* Bytes of a stream that wait. */
typedef struct kl__pending {
    char *bytes;
    size_t len, size;
} kl__pending;

typedef struct kl__turn {
    kl__request request; /* first: whoever has the request has the turn */
    kl_arena arena;
    kl__connection *connection;
    struct kl__turn *next; /* in the loop's list of posted or spare ones */

    char *body; /* where the body is read to: behind the head, or a buffer of its own */
    size_t body_size, body_len;
    bool body_apart;
    size_t chunk_from, chunk_to; /* parse.h: io_from, io_to */

    kl__posted posted;
    kl__sending sending;
    size_t sent_bytes;
    bool close;   /* the connection, after the answer */
    bool refused; /* http's own answer to what it could not read */

    kl__gone_fn *gone; /* under gone_mutex, as these two */
    void *gone_ctx;
    bool is_gone; /* the client */

    /* A stream, under the loop's mutex. */
    kl__pending pending;
    size_t sending_bytes; /* taken out of pending and not sent yet */
    bool is_posted, ended, lost;

    kl__taken_fn *taken;
    void *taken_ctx;
} kl__turn;

struct kl__connection {
    kl__loop *loop;
    int fd; /* -1: closed, while somebody still has the turn */
    kl__conn_state state;
    kl__timer timer;
    kl__connection *earlier, *later; /* I3 */
    int64_t due_ns;
    kl__connection *next, **link;             /* of all of the loop's, or of the dead ones */
    kl__connection *again_next, **again_link; /* of those that go on in the next round; again_link is NULL in none */

    bool readable;    /* the kernel may have bytes or an end for us */
    bool hung;        /* the client has sent all it will; some of it may still be unread */
    bool awaits_room; /* EPOLLOUT is asked for */
    bool local;
    kl__tls *tls; /* NULL: plain */

    char *in;             /* NULL, or kl__buffer_size bytes from the loop; a request begins with the first */
    size_t in_len;        /* bytes that are there */
    size_t in_seen;       /* bytes that were looked at when the head was not complete yet */
    size_t in_next;       /* where the next request begins, while one is served */
    kl__turn *turn;       /* NULL while there is none */
    kl__pending outgoing; /* of a stream: what is being sent */
    char peer[KL_PEER_BYTES];
};

typedef struct kl__timers {
    kl__connection *first, *last;
    int64_t wait_ns;
} kl__timers;

struct kl__loop {
    kl__http *http;
    int number;
    int epoll_fd, wake_fd, spare_fd; /* spare_fd: given up for a moment when descriptors run out */
    pthread_t thread;
    bool started, stopped; /* stopped: listeners are closed, idle connections too */
    int64_t now_ns;

    kl__timers timers[KL_TIMER_COUNT];
    kl__connection *connections, *dead, *again;
    char *spare_buffers; /* each holds a pointer to the next */
    size_t spare_buffer_count;
    kl__turn *spare_turns;
    size_t spare_turn_count;

    alignas(KL_CACHE_LINE) _Atomic(kl__turn *) posted;
    atomic_bool asleep;
    _Atomic(kl__connection *) arrived; /* accepted by another loop */

    pthread_mutex_t mutex;      /* streams */
    pthread_mutex_t gone_mutex; /* held while gone is called */

    _Atomic(uint64_t) requests, refused, bytes_in, bytes_out;
};

typedef struct kl__listener {
    int fd;
    int port; /* 0: a Unix socket */
    bool local;
    char *path; /* of a Unix socket */
    dev_t device;
    ino_t inode; /* it is removed only while it is this one */
} kl__listener;

struct kl__http {
    kl__http_opts opts; /* with defaults filled in; its pointers are not kept */
    kl__listener listeners[KL_HTTP_LISTEN_MAX];
    size_t listener_count;
    kl__loop *loops;
    int loop_count;
    atomic_uint next_loop;
    _Atomic(int64_t) connection_count;
    _Atomic(size_t) bodies_bytes; /* of buffers of bodies: http_read.c */
    atomic_bool stopping, closing;

    char *tls_cert, *tls_key;
    pthread_mutex_t tls_mutex;
    kl__tls_context *tls; /* under tls_mutex: reload replaces it */

    pthread_mutex_t carriers_mutex;
    pthread_cond_t carriers_changed; /* one has ended */
    struct kl__carrier *carriers;
};

void kl__http_log(const kl__http *http, kl_log_level level, const char *format, ...) KL_PRINTF(3, 4);

/* All signals are for the program's own threads. */
KL_MUST_USE bool kl__http_thread(pthread_t *thread, void *(*run)(void *), void *arg);

/* ---- http_listen.c ---- */

KL_MUST_USE kl_rc kl__listener_open(const char *address, kl__listener *ret_listener);
void kl__listener_close(kl__listener *listener);

/* ---- http_loop.c ---- */

KL_MUST_USE kl_rc kl__loop_init(kl__loop *loop, kl__http *http, int number);
KL_MUST_USE kl_rc kl__loop_start(kl__loop *loop);
void kl__loop_free(kl__loop *loop); /* also one that was not started, or all zero; waits for its thread */
void kl__loop_wake(kl__loop *loop);

/* Gives a turn back to its loop. Any thread; the turn is no longer the caller's. */
void kl__loop_post(kl__turn *turn);
void kl__loop_again(kl__connection *connection); /* kl__connection_go_on in the next round */

void kl__timer_set(kl__connection *connection, kl__timer timer); /* from now on; KL_TIMER_NONE: none */

/* From the loop's own stock, or new. NULL: out of memory. */
size_t kl__buffer_size(const kl__http *http);
char *kl__buffer_take(kl__loop *loop);
void kl__buffer_give(kl__loop *loop, char *buffer);
kl__turn *kl__turn_take(kl__connection *connection);
void kl__turn_give(kl__loop *loop, kl__turn *turn);

/* Counts have one writer each. */
static inline void kl__count(_Atomic(uint64_t) *count, uint64_t more)
{
    atomic_store_explicit(count, atomic_load_explicit(count, memory_order_relaxed) + more, memory_order_relaxed);
}

/* ---- http_connection.c ---- */

/* Takes the descriptor, on any thread; *ret_connection is not in its loop yet. False: out of memory, the descriptor is
 * closed. */
bool kl__connection_make(kl__loop *loop, int fd, const struct sockaddr_storage *address,
                         kl__connection **ret_connection);
void kl__connection_begin(kl__connection *connection); /* on its loop's thread, as all below */
void kl__connection_free(kl__connection *connection);

void kl__connection_event(kl__connection *connection, uint32_t events);
void kl__connection_go_on(kl__connection *connection);
void kl__connection_overdue(kl__connection *connection); /* its timer has been taken off */
void kl__connection_posted(kl__turn *turn);

/* Closes it: now; or, where somebody has its turn, for the client now and for us when the turn comes back. */
void kl__connection_close(kl__connection *connection);
void kl__connection_bury(kl__connection *connection);    /* nobody has its turn */
void kl__connection_abandon(kl__connection *connection); /* http closes, and nobody has a turn */

kl__io kl__connection_read(kl__connection *connection, char *to, size_t room, size_t *ret_len);

/* Sends what the socket takes, and sees to it that the rest is asked for. False: broken. */
bool kl__connection_send(kl__connection *connection, kl__sending *io_sending);
size_t kl__sending_left(const kl__sending *sending);

/* After the last byte: shuts down, and lingers or closes. unread: the request was not read to its end. */
void kl__connection_finish(kl__connection *connection, bool unread);
void kl__connection_serve(kl__connection *connection);
void kl__connection_serve_unread(kl__connection *connection); /* what admit does not want */
bool kl__connection_admits(kl__connection *connection);
void kl__connection_refuse(kl__connection *connection, int status, const char *reason); /* and close */

/* ---- http_read.c ---- */

void kl__connection_read_head(kl__connection *connection);
void kl__connection_read_body(kl__connection *connection);

/* ---- http_answer.c ---- */

/* Writes the answer into the turn. False: out of memory. */
bool kl__answer_format(kl__turn *turn, const kl__answer *answer);
bool kl__answer_format_head(kl__turn *turn, int status, const kl__field *fields, size_t count); /* and no length */
bool kl__answer_refusal(kl__turn *turn, int status, const char *reason);
const char *kl__status_text(int status);

/* ---- http_stream.c, http_upgrade.c ---- */

void kl__stream_posted(kl__turn *turn);
void kl__stream_go_on(kl__connection *connection);

/* Its descriptor is closed: whoever sends learns of it. True: nobody does any more, and it is to be buried. */
bool kl__stream_lost(kl__connection *connection);
void kl__upgrade_sent(kl__connection *connection);
void kl__carriers_close(kl__http *http);

#endif
