/* claims_inside.h - what the files of the claims share.
 *
 * Reading order: claims.h -> claims.c (open, its thread, drain, close) -> claims_give.c (from asks to tasks) ->
 * claims_say.c (from says to outcomes; leases that are over) -> claims_token.c.
 *
 * The worker's mutex guards everything here. Nobody is called with it held. */
#ifndef KL_WORK_CLAIMS_INSIDE_H
#define KL_WORK_CLAIMS_INSIDE_H

#include "work/claims.h"
#include "work/worker_inside.h"

enum {
    KL_TOKEN_RANDOM = 12,      /* bytes; with the other 12 they make 32 letters */
    KL_CLAIM_BLOCK = 256,      /* claims that are allocated together */
    KL_SAY_ERROR_MS = 5000,    /* so long a say waits while the store fails */
    KL_RANDOM_POOL = 256 * 12, /* bytes asked of the kernel at once */
};

/* A task that is given out. Its place is used again, its serial never. */
typedef struct kl__claim {
    kl__held *held; /* NULL: it is free */
    uint64_t serial;
    uint8_t random[KL_TOKEN_RANDOM];
    uint32_t index; /* among all claims */
    uint32_t place; /* in the heap */
    int64_t given_ns, until_ns, deadline_ns;
    int64_t lease_ms, timeout_ms;
    int64_t keep_ms;
    uint32_t attempts_max;
    kl__progress progress;
    struct kl__claim *next_free;
} kl__claim;

/* What a token says. */
typedef struct kl__token {
    uint32_t index;
    uint64_t serial; /* 48 bits */
    uint16_t partition;
    uint8_t random[KL_TOKEN_RANDOM];
} kl__token;

/* A task on its way to an ask, told apart from its claim because that may be over before the answer is made. */
typedef struct kl__giving {
    kl__claim_ask *ask;
    kl__held *held; /* what was wanted for it; NULL: it is not to be given after all */
    kl__token token;
    uint32_t attempt;
    int64_t lease_until_ms, lease_ms;
    const char *partition;
    uint32_t partition_index;
    size_t from; /* among the loaded */
    kl_rc rc;
} kl__giving;

/* One take and load. Only whoever has set `serving` uses it. */
typedef struct kl__batch {
    kl__claim_ask *only; /* all are for this ask, and loaded into its arena; NULL: for whoever is first */
    kl__claim_ask *next; /* no ask before this one wants more */
    kl__held *held[KL_LOAD_MAX];
    kl_task *tasks; /* in that arena */
    kl_task_extra *extras;
    const kl_handler *handlers[KL_LOAD_MAX];
    kl__giving giving[KL_LOAD_MAX]; /* in the order in which they were wanted */
    size_t wanted;
    size_t task_bytes; /* of a task of the last one, on average */
    bool dry;          /* nobody wanted anything of the last one */
    kl_arena arena;
} kl__batch;

struct kl__claims {
    kl_worker *worker;
    kl__pump *pump;
    char server[24];
    uint64_t running_max;
    int64_t kind_ms;
    bool far; /* reading takes long: never in the thread of whoever asks */
    pthread_t thread;
    bool started;
    int64_t wait_until_ns; /* the thread waits until then; 0: it does not wait */
    bool ending;           /* gives out nothing more */
    bool closed;

    kl__claim_ask *first, *last; /* asks in order of arrival */
    uint64_t ask_count, touched;
    uint64_t hasty; /* asks that only wait for a look */
    uint64_t wanted;
    int64_t ask_until_ns; /* none of them waits longer; may be early */
    bool serving;
    int64_t rest_until_ns; /* the store failed: nothing is loaded before */
    kl__batch batch;

    kl__claim **blocks;
    size_t block_count, block_room;
    kl__claim *free;
    kl__claim **heap; /* by until_ns; room for all */
    uint64_t running, serial;
    uint8_t random[KL_RANDOM_POOL];
    size_t random_used;

    kl__claim_says *waiting;                  /* for outcomes to be durable */
    kl__claim_says *answered, *answered_last; /* to be told */

    struct kl__claims_name *names; /* of partitions */
    void (*ended)(void *ctx, uint32_t partition, kl_outcome outcome);
    void (*lapsed)(void *ctx, uint32_t partition);
    void *told_ctx;
    uint64_t given, expired, stale;
    int64_t began_ns, busy_ns, swept_ns;
};

/* --- claims_token.c --- */

kl_rc kl__token_refill(kl__claims *claims); /* KL_ESYSTEM: the kernel has no random bytes */
kl_rc kl__token_random(kl__claims *claims, uint8_t ret_random[KL_TOKEN_RANDOM]);
void kl__token_write(const char *server, const kl__token *token, char ret_text[KL_CLAIM_TOKEN_BYTES]);
bool kl__token_read(kl_bytes text, kl__token *ret_token);

/* --- claims_say.c, with the mutex held --- */

kl_rc kl__claim_new(kl__claims *claims, kl__claim **ret_claim); /* KL_ENOMEM, KL_ESYSTEM */
void kl__claim_free(kl__claims *claims, kl__claim *claim);
kl__claim *kl__claim_find(const kl__claims *claims, const kl__token *token);  /* NULL: it is stale */
void kl__claim_lease(kl__claims *claims, kl__claim *claim, int64_t until_ns); /* enters it into the heap, or moves it */
void kl__claim_give_back(kl__claims *claims, kl__claim *claim);               /* unrun */
void kl__claims_expire(kl__claims *claims, int64_t now_ns);
void kl__claims_release_all(kl__claims *claims);
bool kl__claims_settled(void *claims, void *waiter, kl_rc rc);
void kl__claims_deliver(kl__claims *claims); /* leaves the mutex */
void kl__claims_after(void *claims);

/* --- claims_give.c, with the mutex held --- */

void kl__claims_free_names(kl__claims *claims);
bool kl__claims_wanted(void *claims, kl__held *held, kl_bytes kind);
bool kl__claims_serve(kl__claims *claims);                    /* leaves the mutex; false: nothing came of it */
void kl__claims_look(kl__claims *claims);                     /* likewise */
void kl__claims_time_out(kl__claims *claims, int64_t now_ns); /* likewise */
void kl__claims_answer_all(kl__claims *claims, kl_rc rc);     /* likewise */
void kl__claims_sweep(kl__claims *claims, int64_t now_ns);    /* kinds that nobody asks for */

static inline int64_t kl__claims_until_ns(int64_t now_ns, int64_t ms) { return now_ns + ms * 1000000; }

#endif
