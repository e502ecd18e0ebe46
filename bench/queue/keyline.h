/* keyline.h - a queue on disk, producers that fill it, and a worker that empties it. */
#ifndef BENCH_QUEUE_KEYLINE_H
#define BENCH_QUEUE_KEYLINE_H

#include "bench.h"
#include "keyline/worker.h"

#define MUST_KL(call) MUST_SAYING((call) == KL_OK, kl_error_text())

enum { KEY_BYTES = 32 };

struct place {
    kl_store *store;
    kl_queue *queue;
};

void open_place(struct place *place, const struct settings *settings);
void close_place(struct place *place);

kl_worker *start_worker(kl_queue *queue, kl_handler_fn *handler, void *ctx, long threads);

/* Runs tasks that do nothing. */
kl_outcome run_noop(kl_work *work, void *ctx);

/* Tasks over `keys` keys in turn, as many as there are keys and GROUP_MAX more: a group may begin at any key. */
struct turn {
    kl_put *tasks;
    char (*names)[KEY_BYTES];
    size_t keys;
};

struct turn make_turn(const char *prefix, size_t keys);
void free_turn(struct turn *turn);

/* Puts `count` tasks in groups, going on behind *at. */
void put_tasks(kl_queue *queue, const struct turn *turn, size_t *at, long count, long group);

/* Puts groups from PRODUCERS threads for settings->ms; returns how many tasks. */
int64_t produce(kl_queue *queue, const struct settings *settings, const struct turn *turn);

/* Waits until the worker has settled so many. */
void await_done(kl_worker *worker, int64_t done);

void run_cycle(const struct settings *settings);
void run_fill(const struct settings *settings);
void run_start(const struct settings *settings);
void run_failing(const struct settings *settings);
void run_processes(const struct settings *settings);
void run_workers(const struct settings *settings);

#endif
