/* look.h - what the files that look at tasks share: sources, cursors, and what is said of a task that was found. */
#ifndef KL_QUEUE_LOOK_H
#define KL_QUEUE_LOOK_H

#include "queue/inside.h"

enum {
    KL_LIST_MAX = 1000,    /* tasks in one list */
    KL_CURSOR_BYTES = 256, /* of a cursor, with a terminator */
};

/* A partition of a layout. */
typedef struct kl__source {
    const kl__queue_layout *layout;
    uint32_t partition;
} kl__source;

static inline kl_store *kl__source_store(kl__source source) { return source.layout->stores[source.partition]; }

/* --- look.c --- */

kl_rc kl__refuse_no_queue(void);

/* Finds a task by its id alone. KL_ENOTFOUND: no such task. */
kl_rc kl__look_task(kl_queue *queue, const kl__descriptor *descriptor, const kl_task_id *id, kl_arena *arena,
                    kl_task *ret_task, kl__source *ret_source);

/* Tasks of the key that wait in this partition, in the order of a worker: up to max (1..KL_LIST_MAX), in ret_found.
 * *ret_more: there may be more. However many others stand before them, they are found. */
kl_rc kl__look_key(kl_queue *queue, kl__source source, kl_bytes key, size_t max, kl_arena *arena, kl_found *ret_found,
                   size_t *ret_count, bool *ret_more);

/* Adds to found->task what it carries and where it is. */
kl_rc kl__look_describe(const kl_queue *queue, kl__source source, kl_arena *arena, kl_found *found);

/* Cursors: text without a zero byte of its own, signed for the list, which is a hash of the queue and the filter.
 * KL_EINVAL: not of this list. */
uint64_t kl__cursor_hash(uint64_t before, kl_bytes bytes);
kl_rc kl__cursor_write(const char *text, uint64_t list, kl_arena *arena, kl_bytes *ret_cursor);
kl_rc kl__cursor_read(kl_bytes cursor, uint64_t list, char ret_text[KL_CURSOR_BYTES]);
kl_rc kl__cursor_refuse(void);

kl_rc kl__list_check(size_t max, const kl_arena *arena, const kl_found *ret_found, const size_t *ret_count,
                     const kl_bytes *ret_cursor);

/* --- finished.c --- */

/* The question for one partition, to which `after` and `max` are still to be added. */
kl_find kl__finished_find(const kl_finished *which, kl__source source);

#endif
