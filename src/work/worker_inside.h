/* worker_inside.h - what the files of a worker's threads share.
 *
 * Reading order: worker.c (start, drain, close) -> worker_thread.c (take, run, finish) -> worker_keep.c (beats, looks)
 * -> work.c (what handlers call).
 *
 * One mutex guards the pumps and everything here; it is not held while a handler runs or the store is called. */
#ifndef KL_WORKER_INSIDE_H
#define KL_WORKER_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/told.h"
#include "work/inside.h"

enum {
    KL_HAND_SIZE_MAX = 64, /* tasks in one hand */
    KL_STEAL_NS = 1000000, /* a task that takes longer is long */
    KL_RETRY_MS = 100,     /* after the store has failed */
};

/* A queue that is served. */
typedef struct kl__served {
    kl__pump *pump;
    kl_queue *queue;
    kl_handler *handlers;
    size_t handler_count;
    int64_t weight, min;
    uint64_t busy; /* threads that run its tasks */
    bool waited;   /* it had ready tasks and could take a thread when last asked */
    double passed; /* tasks taken, divided by weight: the least is next */
} kl__served;

/* One attempt of one task. */
struct kl_work {
    struct kl_worker *worker;
    kl__served *served;
    kl__held *held;
    const kl_task *task;
    const kl_task_extra *extra;
    uint32_t attempt;
    int64_t deadline_ns; /* KL_NEVER: none */
    int64_t retry_after_ms;
    kl__progress progress;
    bool told;   /* others may see it */
    char *error; /* KL_ERROR_BYTES_MAX + 1, made when it is needed; reused */
    size_t error_len;
    char *result; /* of this run */
    size_t result_len;
};

/* The tasks that a thread has taken. It claims them one by one; others may take back those that it has not claimed. */
typedef struct kl__thread {
    struct kl_worker *worker;
    pthread_t id;
    bool started;
    kl__served *served; /* whose tasks it has; NULL: none */
    kl__held *held[KL_LOAD_MAX];
    kl_task tasks[KL_LOAD_MAX];
    kl_task_extra extras[KL_LOAD_MAX];
    const kl_handler *handlers[KL_LOAD_MAX];
    kl__verdict verdicts[KL_LOAD_MAX];
    bool stopped[KL_LOAD_MAX]; /* the run was ended by a stop: it costs no attempt */
    _Atomic(uint64_t) claim;   /* next << 32 | count */
    size_t handed_in;          /* outcomes of those before this one are with the pump */
    int64_t timeout_ms;        /* the queue's */
    _Atomic(int64_t) began_ns; /* when the one that runs did */
    size_t hand_size;
    int64_t load_ns; /* what loading it took */
    kl_arena arena;
    kl_work work;
} kl__thread;

/* What is done with the store again and again, for telling once that it fails. */
typedef enum kl__doing {
    KL_DOING_LOOK,
    KL_DOING_LOAD,
    KL_DOING_SETTLE,
    KL_DOING_TICK,
    KL_DOING_BEAT,
    KL_DOING_TAKE_IN
} kl__doing;

/* Whoever gives tasks out instead of running them (claims.c): the first three as in kl__pump_opts; `after` is called
 * with the mutex held, and may leave it, when outcomes may have been settled. */
typedef struct kl__giver {
    bool (*wanted)(void *ctx, kl__held *held, kl_bytes kind);
    bool (*settled)(void *ctx, void *waiter, kl_rc rc);
    void (*ended)(void *ctx, uint32_t partition, kl_outcome outcome);
    void (*after)(void *ctx);
    void *ctx;
} kl__giver;

struct kl_worker {
    pthread_mutex_t mutex;
    pthread_cond_t ready;    /* a task may run, or the worker ends */
    pthread_cond_t scout;    /* look again */
    pthread_cond_t outcomes; /* some are to be sent */
    pthread_cond_t all_run;  /* the settler need not wait for more */
    pthread_cond_t changed;  /* for those who wait for the end */
    kl_worker_opts opts;
    char name[128];
    kl__served *served;
    size_t served_count;
    double passed; /* the most that a queue had passed when it was its turn */
    kl__thread *threads;
    size_t thread_count, idle, threads_ended;
    int64_t cared_ns; /* when a busy thread last looked for what waits behind a long task */
    size_t worth;     /* so many tasks take as long to run as a hand takes to load; at least 1 */
    pthread_t scout_id, beat_id, tick_id, settler_id, inbox_id;
    bool scout_started, beat_started, tick_started, settler_started, inbox_started;
    bool look_now;
    bool resting;             /* the scout: looks are full, and the next is some time away */
    bool stopping;            /* starts nothing more */
    bool ended;               /* everything was given back */
    bool closing;             /* threads go home */
    _Atomic(bool) abandoning; /* what runs is asked to stop */
    int64_t stopping_ns;
    uint32_t failing;  /* bits: what failed when it was last done */
    int64_t broken_ns; /* since then a store fails for good, and none has taken an outcome; 0: none does */
    kl__told told;
    kl__giver giver; /* all NULL: there is none, and it runs tasks itself */
};

/* A worker of one queue without threads that run tasks. `running_max` stands for their number. */
kl_rc kl__worker_start_giving(kl_queue *queue, const kl_worker_opts *opts, int64_t running_max, const kl__giver *giver,
                              kl_worker **ret_worker);

void *kl__worker_thread(void *thread);  /* runs tasks */
void *kl__worker_scout(void *worker);   /* looks for tasks */
void *kl__worker_tick(void *worker);    /* looks at records, carries out requests */
void *kl__worker_beat(void *worker);    /* beats */
void *kl__worker_settler(void *worker); /* sends outcomes */
void *kl__worker_inbox(void *worker);   /* takes in what was left in the stores */
bool kl__worker_has_inbox(const kl_worker *worker);

/* With the mutex held. */
void kl__worker_stop(kl_worker *worker);
void kl__worker_wake(kl_worker *worker, uint64_t ready);
void kl__worker_take_back(kl_worker *worker, bool all); /* what waits in hands behind a long task, or all; and outcomes
                                                         * of those that were run before it */
bool kl__worker_has_outcomes(const kl_worker *worker);  /* that nobody is sending */
bool kl__worker_has_run_all(const kl_worker *worker);   /* and nothing more comes soon */
void kl__worker_tell_giver(kl_worker *worker);          /* outcomes may have been settled */
void kl__worker_log(const kl_worker *worker, kl_log_level level, const char *text);
void kl__worker_failed(kl_worker *worker, kl__doing doing, kl_rc rc); /* tells kl_error_text, but not all the time */
void kl__worker_recovered(kl_worker *worker, kl__doing doing);
void kl__worker_wait(kl_worker *worker, pthread_cond_t *condition, int64_t wait_ms);

static inline void kl__worker_worked(kl_worker *worker, kl__doing doing)
{
    if (KL_UNLIKELY(worker->told.failing))
        kl__worker_recovered(worker, doing);
}

#endif
