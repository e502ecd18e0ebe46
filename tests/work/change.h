/* change.h - the layout of a queue is changed while it is filled and emptied. */
#ifndef TESTS_WORK_CHANGE_H
#define TESTS_WORK_CHANGE_H

#include "support.h"

/* For the queue that is changed: two partitions. */
#define CHANGE_OPTS                                                                                                    \
    &(kl_queue_opts) { .size = sizeof(kl_queue_opts), .partitions = 2, .lease_ms = 2000, .attempts_max = 50 }

/* More partitions and shards, and fewer, under load: everything runs, in its key's order. */
void change_under_load(struct rig *rig, int retry_every);

#endif
