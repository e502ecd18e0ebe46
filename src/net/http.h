/* http.h - HTTP/1.1 for the API: strict requests in, answers out, from any thread.
 *
 * From: clients.  To: one function that gets every request (routes.c).
 *
 * A few threads (loops) each run an epoll over their connections. A loop reads a request whole, head and body, within
 * limits of size and time, and calls `serve` on its own thread; serve must not block. The request stays valid until it
 * is answered, which any thread may do, once: kl__http_answer hands it back to its loop, which sends it and goes on
 * with the connection's next request. So a request that waits (long poll, a sync of the disk) holds memory and no
 * thread.
 *
 * H1  What could be read in two ways is refused with 400 and the connection closed: see parse.h.
 * H2  A connection has one request at a time; what a client sends ahead stays unread until that is answered.
 * H3  Every read is bounded in bytes and time: head, body, idle time between requests, time to take the answer.
 * H4  Idle or slow connections cost memory alone: none is looked at unless the kernel says so or its time is over. */
#ifndef KL_NET_HTTP_H
#define KL_NET_HTTP_H

#include "base/base.h"
#include "keyline/arena.h"
#include "keyline/log.h"
#include "net/parse.h"

typedef struct kl__http kl__http;

/* A request; read-only outside http's own files. All bytes last until it is answered. */
typedef struct kl__request {
    kl__head head; /* method, path, query, headers: parse.h */
    kl_bytes body;
    kl_arena *arena;  /* for whoever serves it, one thread at a time; given back after the answer */
    const char *peer; /* "127.0.0.1:40412", or "socket" */
    bool local;       /* came by the Unix socket */
    bool secure;      /* came by TLS */
    bool unread;      /* admit said no: its body was not read */
    void *serving;    /* whoever serves it may keep something here */
    int64_t began_ns; /* when its head was complete */
} kl__request;

typedef void kl__serve_fn(void *ctx, kl__request *request);
typedef void kl__gone_fn(void *ctx); /* on the loop's thread */

/* Whether the body, most of which is still to come, is worth reading; on the loop's thread, with the head complete.
 * False: serve gets the request at once, without its body and marked as unread, and the connection ends with the
 * answer. */
typedef bool kl__admit_fn(void *ctx, kl__request *request);

/* Zero in a field means its default. */
typedef struct kl__http_opts {
    const char *const *listen; /* "127.0.0.1:7420", "[::1]:7420", "unix:/dir/http.sock"; copied */
    size_t listen_count;
    const char *tls_cert, *tls_key; /* PEM files; NULL: no TLS. Unix sockets never have it */
    int64_t loops;                  /* 1 */
    size_t head_bytes_max;          /* 16 KiB; the target may have half of it */
    size_t body_bytes_max;          /* 64 MiB */
    size_t bodies_bytes_max;        /* 512 MiB of bodies of all connections, or twice body_bytes_max; 503 beyond */
    size_t connections_max;         /* 10,000; beyond, the one that has been idle longest is closed, or 503 said */
    int64_t head_ms;                /* 10 s from the first byte of a head to its end */
    int64_t body_ms;                /* 60 s for all of a body */
    int64_t idle_ms;                /* 75 s between requests */
    int64_t send_ms;                /* 60 s without a byte of the answer taken */
    kl__serve_fn *serve;
    kl__admit_fn *admit; /* NULL: all are */
    void *ctx;
    kl_log_fn *log;
    void *log_ctx;
} kl__http_opts;

/* Binds, and starts the loops. KL_EINVAL: an address, a certificate or key that cannot be used (the sentence says
 * which and what to do). KL_ESYSTEM: in use, no permission, no threads. KL_ENOMEM. */
KL_MUST_USE kl_rc kl__http_open(const kl__http_opts *opts, kl__http **ret_http);

/* The port that listen[i] got; useful for ":0". 0: a Unix socket. */
int kl__http_port(const kl__http *http, size_t index);

/* Takes no more connections, and closes each after the answer that it waits for; then kl__http_close. */
void kl__http_stop(kl__http *http);

/* Reads certificate and key again, for connections from now on. Same errors as open; then the old ones stay. */
KL_MUST_USE kl_rc kl__http_reload_tls(kl__http *http);

/* Requests that were not answered are answered with 503, connections closed, threads joined. Nobody may hold a
 * request. */
void kl__http_close(kl__http *http); /* NULL is fine */

typedef struct kl__answer {
    int status;
    const char *type;        /* content type; NULL: no body */
    kl_bytes body;           /* copied, unless it lies in the request's arena: then it is sent from there */
    const kl__field *fields; /* more headers; copied */
    size_t field_count;
    bool close; /* close the connection after it */
} kl__answer;

/* Answers, once. Any thread. The request is no longer the caller's. Out of memory: the connection is closed. */
void kl__http_answer(kl__request *request, const kl__answer *answer);

/* Asks to be told, once, when the client closes the connection, or its half of it, before its answer. By whoever has
 * the request; inside serve gone is not called before that has returned. False: the client is gone already, and nobody
 * will be told.
 *
 * Set to NULL again before the answer when ctx goes, by any thread: afterwards gone is not being called and will not
 * be. So that may wait for gone to return, and must not be done holding what gone takes. Telling and kl__http_answer
 * may cross: whoever is told must still answer (which then sends it, should the client still listen, or only frees the
 * request). */
bool kl__http_on_gone(kl__request *request, kl__gone_fn *gone, void *ctx);

/* An answer without an end (server-sent events): head at once, then pieces. Each returns false when the client is
 * gone, has not taken `unsent_max` bytes, or there is no memory: end it then. end sends what is left, closes the
 * connection and frees the request; it is needed after every kl__http_stream. Any thread, one at a time. */
bool kl__http_stream(kl__request *request, const char *type);
bool kl__http_send(kl__request *request, kl_bytes piece, size_t unsent_max);
void kl__http_end(kl__request *request);

/* Hands the connection over after "101 Switching Protocols" with this Upgrade: protocol. `taken` is called once the
 * answer is out, on the loop's thread, with a file descriptor that is the callee's: blocking, plain bytes both ways
 * (where the connection has TLS, a thread of http's own carries the bytes between). -1: the connection broke. */
typedef void kl__taken_fn(void *ctx, int fd);
void kl__http_upgrade(kl__request *request, const char *protocol, kl__taken_fn *taken, void *ctx);

typedef struct kl__http_counts {
    uint64_t connections, requests, refused; /* now; ever; answered 4xx by http itself */
    uint64_t bytes_in, bytes_out;
} kl__http_counts;

kl__http_counts kl__http_counted(const kl__http *http);

#endif
