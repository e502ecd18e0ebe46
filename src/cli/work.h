/* work.h - what the files of `keyline work` share.
 *
 * Reading order: work.c (the command: queues, handlers, signals, the end) -> work_run.c (one task: its environment, its
 * process, its outcome) -> process.c (a process group with its pipes); work_left.c (what stays at the end). */
#ifndef KL_CLI_WORK_H
#define KL_CLI_WORK_H

#include <pthread.h>
#include <stdatomic.h>

#include "cli/cli.h"
#include "keyline/worker.h"

/* What a handler's exit status means: those of sysexits.h, and all others ask for another attempt. */
enum { KL_HANDLER_DONE = 0, KL_HANDLER_DEAD = 65, KL_HANDLER_RETRY = 75 };

/* What all handlers of a worker share. */
typedef struct kl__crew {
    const kl__call *call;
    char **environment; /* of every handler, without what is about its task; ends with NULL */
    size_t environment_count;
    int64_t grace_ms;
    bool verbose;
    const char *const *queues; /* of the worker, and */
    const int64_t *attempts;   /* how often each starts a task when the task does not say, and */
    const kl_head_policy *policies;
    size_t queue_count;
    atomic_bool stopping;        /* nothing more is started, and what runs too long is ended: */
    _Atomic(uint64_t) given_up;  /* so many tasks */
    atomic_bool closing;         /* what runs is being ended, and the worker's figures were taken: */
    _Atomic(uint64_t) done_late; /* tasks that were done all the same */
    pthread_mutex_t mutex;       /* of what is printed */
    bool drawn;                  /* a line that tells how far it is stands on the terminal, to be wiped by the next */
} kl__crew;

/* One command, for a kind or for all. */
typedef struct kl__runner {
    kl__crew *crew;
    char **words; /* ends with NULL */
} kl__runner;

/* The environment that handlers start from: this process's, without what an outer `keyline work` said about its task,
 * and with the store in force. False: out of memory, and it has complained. */
bool kl__crew_prepare(kl__crew *crew, kl__call *call);

/* How many tasks a worker leaves in a queue; false: that cannot be told. *ret_why: the reasons, in the arena; NULL:
 * none are left. *ret_away: which partitions' stores are away, and so not counted, or why nothing can be told; NULL:
 * none. */
bool kl__work_left(const kl_worker_queue *queue, kl_arena *arena, uint64_t *ret_left, const char **ret_why,
                   const char **ret_away);

/* A kl_handler_fn; ctx is a kl__runner. */
kl_outcome kl__runner_run(kl_work *work, void *ctx);

#endif
