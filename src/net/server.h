/* server.h - `keyline serve`: a store, its queues, and the API around them.
 *
 *     clients ══► http.c ─► routes.c ─┬─► api_put.c ──► one kl_queue_put for all that came meanwhile ══► store
 *                                     ├─► api_claim.c ─► claims.c (work): tasks under leases ◄══ pump ══► store
 *                                     └─► pool.c: all else, on threads that may block; apart what is known to be slow
 *
 * N1  Queues are opened when they are first named and stay open until the server ends or they are removed.
 * N2  A queue's shards are taken when somebody first claims of it, and given back when nobody has for a while, so that
 *     other workers get them.
 * N3  Without tokens everybody is admin, and only loopback addresses are listened on. */
#ifndef KL_NET_SERVER_H
#define KL_NET_SERVER_H

#include <pthread.h>
#include <stdatomic.h>

#include "net/api.h"
#include "net/audit.h"
#include "net/events.h"
#include "net/guard.h"
#include "net/metrics.h"
#include "net/tokens.h"
#include "work/claims.h"

enum { KL_QUEUE_BUCKETS = 256 };

/* A queue that is open. */
struct kl__open_queue {
    struct kl__open_queue *next;
    kl_queue *queue;
    kl__api *api;
    uint64_t users;     /* exchanges, and 1 while it is in the table; under api->queues_mutex */
    bool removed;       /* out of the table */
    kl__claims *claims; /* NULL: its shards are not ours; these four under api->queues_mutex as well */
    uint64_t claims_users;
    bool starting;         /* somebody starts claims, and api->starting counts it */
    kl__exchange *waiting; /* for that */
    kl__queue_metrics *metrics;
    char name[KL_QUEUE_NAME_MAX + 1];
};

/* Zero in a field means its default. All is copied. */
typedef struct kl__api_opts {
    kl_store *store; /* the caller's, and outlives it */
    const char *store_url;
    const char *dir; /* the data directory, in which a socket is made; NULL: none */
    const char *const *listen;
    size_t listen_count;
    const char *tls_cert, *tls_key;
    const char *tokens;       /* a file; NULL: none */
    const char *const *hosts; /* names that may stand in Host beside the obvious ones */
    size_t host_count;
    const char *url;   /* under which other servers on the same store reach this one; NULL: kl__api_url */
    const char *audit; /* a file, or "-" for standard error; NULL: none */
    int64_t threads;   /* of the pool: 8 */
    int64_t body_bytes_max;
    bool log_json;
    kl_log_fn *log;
    void *log_ctx;
} kl__api_opts;

struct kl__api {
    kl__api_opts opts;
    kl_store *store;
    kl__http *http;
    kl__access *tokens;
    kl__guard guard;
    kl__metrics *metrics;
    kl__events *events;
    kl__audit *audit;
    char name[24];   /* of this server, in tokens of claims */
    char secret[48]; /* by which other servers of the store forward to this one */
    char host[64];
    char worker_name[96]; /* for people */
    int64_t began_ms;
    _Atomic(bool) stopping;      /* gives out no more tasks, takes no more puts */
    _Atomic(bool) hurried;       /* kl__api_hurry */
    _Atomic(bool) closing;       /* serves nothing any more */
    _Atomic(uint64_t) exchanges; /* under way */
    _Atomic(int64_t) asked_ns;   /* when the store last answered whether it does; api_server.c */
    _Atomic(int64_t) asking_ns;  /* since when it is being asked; 0: it is not */
    _Atomic(bool) unready;       /* it failed then */
    kl_arena arena;

    pthread_mutex_t queues_mutex;
    pthread_cond_t queues_changed; /* starting is 0 */
    uint64_t starting;             /* queues whose claims are being started; under queues_mutex */
    kl__open_queue *queues[KL_QUEUE_BUCKETS];
    kl__open_queue *left_queues; /* removed, and nobody uses them any more */

    struct kl__pool *pool;
    struct kl__pool *long_pool;    /* what may take many seconds (KL_ROUTE_LONG) holds up nothing else, */
    struct kl__pool *forward_pool; /* nor does another server that hangs */
    struct kl__puts *puts;
    struct kl__puts *puts_apart; /* of queues whose partitions lie in stores of their own */
    struct kl__forward *forward;
    struct kl__server *stores; /* connections that speak the protocol of the socket: api_store.c */
    pthread_t keeper;          /* renews the server's record */
    pthread_t rester;          /* gives back shards that nobody claims of */
    pthread_mutex_t keeper_mutex;
    pthread_cond_t keeper_wake;
    bool keeper_started, rester_started, keeper_ends;
    bool stopped; /* kl__api_stop has come to its end */
};

/* Opens everything and serves. KL_EINVAL: an option; the sentence says which. As kl__http_open. */
KL_MUST_USE kl_rc kl__api_open(const kl__api_opts *opts, kl__api **ret_api);
int kl__api_port(const kl__api *api, size_t index);
/* The first address that is no socket's path, as "http://127.0.0.1:7420"; elsewhere: as other machines would say it.
 * NULL: there is none. */
const char *kl__api_url(const kl__api *api, bool elsewhere, char *buffer, size_t size);

/* Reads tokens and certificate again, and opens the audit log anew. What cannot be used stays as it was, the others are
 * taken, and the first error is returned. Streams and connections to the store whose token has gone end. */
KL_MUST_USE kl_rc kl__api_reload(kl__api *api);

/* Gives out nothing more and refuses puts with 503; what clients run may be finished for up to wait_ms and is released
 * then, at no attempt; outcomes are settled and shards given back. Then close. */
void kl__api_stop(kl__api *api, int64_t wait_ms);
void kl__api_hurry(kl__api *api); /* a stop under way waits no longer */
void kl__api_close(kl__api *api); /* NULL is fine */

/* A line of the log. Any thread. Never payloads, keys or tokens. */
void kl__api_log(const kl__api *api, kl_log_level level, const char *format, ...) KL_PRINTF(3, 4);

/* ---- queues.c ---- */

/* The queue, if it is open already; NULL: not. For loops: never blocks on the store. */
kl__open_queue *kl__queues_known(kl__api *api, const char *name);
/* Opens it: finds it, or makes it. May block. */
kl_rc kl__queues_open(kl__api *api, const char *name, bool make, kl__open_queue **ret_open);
/* Whether some of its partitions lie in stores of their own, as far as is known now: the layout may change at any
 * time. */
bool kl__queues_apart(const kl__open_queue *open);
void kl__queues_leave(kl__open_queue *open);  /* NULL is fine */
void kl__queues_forget(kl__open_queue *open); /* it was removed: the next one of that name is another */
/* Keeps it and its claims while a call of theirs is under way that may answer the exchange, which then is gone. */
void kl__queues_hold(kl__open_queue *open);
void kl__queues_let_go(kl__open_queue *open);
/* Its claims; `known` only if they are there, `claims` starts them and may block. To be left by whoever got them. KL_OK
 * with NULL: another thread is just starting them, and `again` is called on the pool when it has. KL_ECLOSED: the
 * server stops. */
kl__claims *kl__queues_claims_known(kl__open_queue *open);
kl_rc kl__queues_claims(kl__open_queue *open, kl__exchange *exchange, kl__handler_fn *again, kl__claims **ret_claims);
void kl__queues_claims_leave(kl__open_queue *open);

void kl__queues_release(kl__open_queue *open); /* ends its claims now, if nobody uses them */
void kl__queues_rest(kl__api *api);            /* ends claims that nobody uses */
/* Ends all claims, whose starting is waited for; nothing is given out any more, and what runs is released after
 * wait_ms. What then has to be settled gets end_ms, all queues together. */
void kl__queues_drain(kl__api *api, int64_t wait_ms, int64_t end_ms);
void kl__queues_close(kl__api *api); /* nobody may use one */

/* ---- pool.c ---- */

kl_rc kl__pool_open(size_t threads, struct kl__pool **ret_pool);
void kl__pool_close(struct kl__pool *pool); /* what waits is done first; NULL is fine */
/* Opens the exchange's queue where it is not, and calls the handler, on a thread of the pool. */
void kl__pool_push(struct kl__pool *pool, kl__exchange *exchange, kl__handler_fn *handler);

/* ---- api_put.c ---- */

kl_rc kl__puts_open(struct kl__puts **ret_puts);
void kl__puts_close(struct kl__puts *puts); /* what waits is put first; NULL is fine */

/* ---- api_store.c ---- */

void kl__api_store_left(void *api, const void *who);                       /* a kl__left_fn */
void kl__api_store_made(void *api, const void *who, const kl__made *made); /* a kl__made_fn */
void kl__api_store_recheck(kl__api *api); /* connections to the store whose token is no longer in force are cut */

/* ---- routes.c ---- */

void kl__route_serve(void *api, kl__request *request);  /* a kl__serve_fn */
bool kl__route_admits(void *api, kl__request *request); /* a kl__admit_fn: whether serve would look at its body */

/* Everything that ends with an answer: leaves its queues, counts, writes the audit log; then sends it. What answers in
 * another way (streams) calls `over` alone, with the status that it sends. */
void kl__exchange_answer(kl__exchange *exchange, const kl__answer *answer);
void kl__exchange_over(kl__exchange *exchange, int status);

#endif
