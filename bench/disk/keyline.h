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
    uint32_t turn;           /* the next task's shard, before modulo */
    kl_stub last[SHARDS];    /* the last stub read of each shard's line; position 0: none */
    size_t appended[SHARDS]; /* by the last fill_entries */
    int64_t scan_ns;         /* spent in scan by settle_group */
};

void open_queue(struct queue *queue, const char *dir);
void close_queue(struct queue *queue);

/* Entries for the next tasks, over all shards in turn. */
void fill_entries(struct queue *queue, kl_entry *ret_entries, size_t count);

/* Fills in the entries of a group, and appends them. They are kept in one place: for one thread at a time. */
void prepare_group(struct queue *queue, size_t count);
void append_group(struct queue *queue, size_t count);

/* Reads on in every shard's line, as many tasks as the last group put there, and settles them. */
void settle_group(struct queue *queue);

extern const struct mode keyline_modes[];

#endif
