/* keyline.h - a queue of the benchmark's: a store with one partition, ids, and where reading has come to. */
#ifndef BENCH_DISK_KEYLINE_H
#define BENCH_DISK_KEYLINE_H

#include <stdbool.h>

#include "bench.h"
#include "keyline/store.h"

#define MUST_KL(call) MUST_SAYING((call) == KL_OK, kl_error_text())

enum { KEY_BYTES = 8 };

struct queue {
    kl_store *store;
    uint32_t partition;
    kl_idgen *idgen;
    uint32_t turn;        /* the next task's shard, before modulo; the rest is for whoever settles */
    uint32_t settle_turn; /* the same for the first task that is not settled */
    kl_stub last[SHARDS]; /* the last stub read of each shard's line; position 0: none */
    int64_t scan_ns;      /* spent in scan by settle_group */
};

void open_queue(struct queue *queue, const char *dir);
void close_queue(struct queue *queue);

/* Entries for the next tasks, over all shards in turn. */
void fill_entries(struct queue *queue, kl_entry *ret_entries, size_t count);

/* Fills in the entries of a group, and appends them, in one and the same thread. */
void prepare_group(struct queue *queue, size_t count);
void append_group(struct queue *queue, size_t count);

/* Reads on in the shards' lines, as many tasks as a group of `count` put there, and settles them. By one
 * thread, which may be another than the one that appends. */
void settle_group(struct queue *queue, size_t count);

extern const struct mode keyline_modes[];

#endif
