/* claims.h - a worker whose tasks are run elsewhere: given out under leases, and taken back with a token.
 *
 * From: pump.h (ready tasks of one queue).  To: net (remote clients).
 *
 * It owns shards like any worker and has the same threads around its pump (scout, beat, tick, settler, inbox), but none
 * that runs tasks: a claim takes ready tasks, loads them and remembers each under a number; its token says who gave it
 * out and which it is. Who has the token may finish it, fail it, extend it, release it, or tell progress.
 *
 * C1  A task is given to one claim at a time, and its key's next task to nobody until it was finished, released or its
 *     lease is over: order per key is the pump's.
 * C2  A token that is not the current one of a running task is stale, and nothing changes. Numbers are never used
 *     again, and a part of each token is random, so nobody can guess one.
 * C3  `finished` is told after the outcome is durable in the store, or was refused there (KL_ESTALE).
 * C4  A lease that is over costs an attempt, as a failure does: a task that ends its client each time runs out of
 *     attempts. A release, and a stop, cost none.
 * C5  A task of a kind that a claim did not ask for is not given to it; it keeps its place for a claim that does, and
 *     tasks of kinds that nobody asks for do not keep others from being given out: when more than a few hundred of one
 *     kind wait so, or for some seconds, the kind counts as unserved (as for a worker without a handler) until somebody
 *     asks for it.
 * C6  What waits in an ask is answered once: with tasks, with none when its time is over, or with an error on close. */
#ifndef KL_WORK_CLAIMS_H
#define KL_WORK_CLAIMS_H

#include "keyline/worker.h"
#include "work/pump.h"

enum {
    KL_CLAIM_MAX = 1000, /* tasks of one claim */
    KL_CLAIM_KINDS_MAX = 64,
    KL_CLAIM_TOKEN_BYTES = 64, /* with its terminator; letters, digits, '-' and '_' */
    KL_CLAIM_LEASE_MS = 30000, /* when a claim names none */
    KL_CLAIM_LEASE_MS_MAX = 12 * 3600 * 1000,
    KL_CLAIM_WAIT_MS_MAX = 60000,
    KL_CLAIM_BYTES_MAX =
        8 << 20, /* keys, kinds, headers and payloads after which an ask is answered; one task may go beyond */
};

typedef struct kl__claims kl__claims;

typedef struct kl__claims_opts {
    kl_queue *queue;  /* must outlive it */
    const char *name; /* of the worker, for people; copied */
    const char
        *server; /* up to 22 letters and digits that name the giver, first part of every token ("" : none); copied */
    int64_t window_max;  /* 65,536 */
    int64_t running_max; /* tasks given out at once: 100,000 */
    int64_t kind_ms;     /* 10 s: tasks of a kind that nobody asks for so long are left to others (C5) */
    /* Told of every outcome that is durable, and of which partition, by its place in the layout; must not block. NULL:
     * nobody. */
    void (*ended)(void *ctx, uint32_t partition, kl_outcome outcome);
    void (*lapsed)(void *ctx, uint32_t partition); /* likewise, of every lease that ran out */
    void *told_ctx;
    kl_log_fn *log;
    void *log_ctx;
} kl__claims_opts;

/* Starts it. Errors as kl_worker_start. */
KL_MUST_USE kl_rc kl__claims_open(const kl__claims_opts *opts, kl__claims **ret_claims);

/* Gives out nothing more, and answers what waits with none. What runs may still be finished. May be repeated. */
void kl__claims_stop(kl__claims *claims);

/* Gives out nothing more, answers what waits with none, lets what runs be finished for up to wait_ms, releases the rest
 * (at no attempt), settles everything and gives the shards back, for which it waits some seconds more. KL_ETIMEDOUT:
 * not yet; it goes on by itself. */
KL_MUST_USE kl_rc kl__claims_drain(kl__claims *claims, int64_t wait_ms);

/* Its parts, for whoever ends many at once: as stop, and releases what runs, without waiting for anything; then waits
 * until everything is settled and the shards are given back. KL_ETIMEDOUT: not within wait_ms. */
void kl__claims_release(kl__claims *claims);
KL_MUST_USE kl_rc kl__claims_await(kl__claims *claims, int64_t wait_ms);
void kl__claims_close(kl__claims *claims); /* NULL is fine; what waits is answered with KL_ECLOSED */

/* One task that was given out. */
typedef struct kl__claimed {
    char token[KL_CLAIM_TOKEN_BYTES];
    const kl_task *task; /* lies in the ask's arena, as all it points to */
    const kl_task_extra *extra;
    uint32_t attempt;
    int64_t lease_until_ms; /* on this machine's wall clock */
    int64_t lease_ms;
    const char *partition; /* lasts as long as the claims */
    uint32_t partition_index;
} kl__claimed;

/* A wish for tasks; the caller's memory until it is answered, from {.max = ...}: what is not named is zero. */
typedef struct kl__claim_ask {
    size_t max;            /* 1..KL_CLAIM_MAX */
    int64_t wait_ms;       /* 0: what is there now, once shards are owned; up to 60 s for something to come */
    int64_t lease_ms;      /* 0: KL_CLAIM_LEASE_MS; up to KL_CLAIM_LEASE_MS_MAX, and never beyond the task's time-out */
    const kl_bytes *kinds; /* exactly these; an empty one stands for tasks without a kind */
    size_t kind_count;     /* 0: every kind */
    kl_arena *arena;       /* for the tasks; nobody else uses it until the answer */
    /* Called once, on any thread, without any mutex held, also before kl__claims_ask returns: rc KL_OK with 0 or more
     * tasks; KL_EINVAL: a number is out of its range; KL_ECLOSED, KL_ENOMEM, or the store's error. */
    void (*answer)(struct kl__claim_ask *ask, kl_rc rc, const kl__claimed *tasks, size_t count);
    void *ctx;
    struct kl__claim_ask *previous, *next; /* the claims' own, as all below */
    int64_t until_ns;
    uint64_t looks;     /* wait_ms 0: it waits until so many looks have begun, and none is under way */
    kl__claimed *tasks; /* so far */
    size_t count, room;
    size_t bytes;    /* of those that it was given */
    size_t reserved; /* tasks that are being loaded for it */
    kl_rc rc;
    bool waits;     /* it is in line */
    bool early;     /* there were no shards yet when it came, or was last looked at */
    bool touched;   /* and has tasks, or is to be answered for another reason */
    bool fresh;     /* it was given some just now */
    bool withdrawn; /* nobody waits for it any more */
} kl__claim_ask;

void kl__claims_ask(kl__claims *claims, kl__claim_ask *ask);

/* The client is gone: the ask is answered, now or by whoever is just serving it, mostly with none; what it was given
 * before is the caller's to release. One that was not made yet is answered when it is. An ask that was answered
 * meanwhile is left alone, so its memory must still be there. */
void kl__claims_withdraw(kl__claims *claims, kl__claim_ask *ask);

/* What a client says of one task. */
typedef enum kl__claim_word {
    KL_CLAIM_DONE,     /* result */
    KL_CLAIM_RETRY,    /* error, retry_after_ms (-1: the queue's back-off) */
    KL_CLAIM_DEAD,     /* error: no more attempts */
    KL_CLAIM_RELEASE,  /* was not run: costs no attempt, may be given out again at once */
    KL_CLAIM_EXTEND,   /* lease_ms from now; 0: as long as it was given for */
    KL_CLAIM_PROGRESS, /* percent, text; and, if lease_ms is not 0, extends */
} kl__claim_word;

typedef struct kl__claim_say {
    kl__claim_word word;
    kl_bytes token;
    kl_bytes result, error, text; /* copied where they are needed longer than the call */
    int64_t retry_after_ms, lease_ms;
    int percent;    /* -1: none */
    kl_rc rc;       /* the answer: KL_OK; KL_ENOTFOUND: the token is stale or unknown; KL_ESTALE: the shard was lost;
                     * KL_EINVAL: the result is too long, a lease or a delay out of its range. Of an outcome: also the
                     * store's error, after which it is not known whether it counts */
    int64_t ran_ns; /* the answer: for how long it had been given out; 0: it was not given out here */
    uint32_t partition;          /* the answer: of which it was, by its place in the layout */
    kl_outcome outcome;          /* the answer to done, retry and dead: what became of the task, */
    bool halted;                 /* and of KL_RETRY: it has failed for good, and its key waits for an operator */
    bool cancelled;              /* the answer to extend and progress: the task is unwanted, better stop */
    int64_t lease_until_ms;      /* the answer to extend and progress: the wall clock's */
    struct kl__claim_says *says; /* the claims' own */
} kl__claim_say;

/* A batch of them; the caller's memory until it is answered. */
typedef struct kl__claim_says {
    kl__claim_say *says;
    size_t count;
    /* Called once, without any mutex held, on any thread, also before kl__claims_say returns: when all outcomes are
     * durable (C3). rc: KL_OK, look at each; KL_ECLOSED: it ended before they were. */
    void (*answer)(struct kl__claim_says *says, kl_rc rc);
    void *ctx;
    struct kl__claim_says *previous, *next; /* the claims' own, as all below */
    uint64_t pending;                       /* outcomes that are not durable yet */
    int64_t until_ns;                       /* when a store's error is told */
} kl__claim_says;

void kl__claims_say(kl__claims *claims, kl__claim_says *says);

/* The giver's name in a token ("" when there is none); false: it cannot be a token at all. */
bool kl__claim_token_server(kl_bytes token, char ret_server[24]);

/* The partition of the task that it was given for, by its place in the layout, as the token says (nobody has checked
 * it); UINT32_MAX: it cannot be a token at all. */
uint32_t kl__claim_token_partition(kl_bytes token);

typedef struct kl__claims_counts {
    uint64_t running;               /* given out now */
    uint64_t asks;                  /* waiting now */
    uint64_t given, expired, stale; /* ever */
    uint64_t shards;                /* owned now */
    int64_t idle_ms;                /* since somebody last asked, waited, or held a task */
    kl__pump_counts pump;
} kl__claims_counts;

kl__claims_counts kl__claims_counted(kl__claims *claims);

/* Keys of owned shards that are in memory and retrying, paused or halted: how many of each partition that has shards
 * here. `visit` must not block, nor call anything here; it may be told of a partition twice (of two layouts), and adds
 * then. */
void kl__claims_blocked_keys(kl__claims *claims, void (*visit)(void *ctx, uint32_t partition, uint64_t keys),
                             void *ctx);

#endif
