/* disk_rig.h - a disk store in a directory of its own, with tasks that are numbers.
 *
 * Task n is in shard n % 16; its bytes follow from n and its size. Helpers fail the test themselves. */
#ifndef TESTS_STORE_DISK_RIG_H
#define TESTS_STORE_DISK_RIG_H

#include "base/base.h"
#include "calls.h"
#include "harness.h"
#include "keyline/store.h"
#include "workdir.h"

enum { RIG_SHARDS = 16, RIG_SEGMENT = 256 << 10, RIG_PATIENCE_S = 60, RIG_BATCH = 1024 };

struct rig {
    char dir[WORKDIR_BYTES], data[WORKDIR_BYTES + 8], journal[WORKDIR_BYTES + 16], url[WORKDIR_BYTES + 16];
    kl_store_opts opts;
    kl_store *store;
    uint32_t partition;
    kl_arena arena;
};

#define CHECK_OK(call)                                                                                                 \
    do {                                                                                                               \
        kl_rc rc_ = (call);                                                                                            \
        if (rc_ != KL_OK)                                                                                              \
            test_fail(__FILE__, __LINE__, "%s is %d: %s", #call, rc_, kl_error_text());                                \
    } while (0)

/* A new store with segments of that size, for this process alone. False: there is none, and the test has failed. */
bool rig_begin(struct rig *rig, int64_t segment_bytes);
void rig_end(struct rig *rig); /* closes, and removes the directory */

kl_rc rig_open(struct rig *rig); /* the store, and its partition */
void rig_close(struct rig *rig);
bool rig_reopen(struct rig *rig);

kl_place rig_place(const struct rig *rig, uint64_t number);
kl_task_id rig_id(uint64_t number);
uint64_t rig_number(const kl_task_id *id);
kl_entry rig_entry(const struct rig *rig, uint64_t number, size_t bytes); /* bytes: of the payload, up to 1 MiB */

/* Tasks first .. first + count, in calls of RIG_BATCH or fewer. */
void rig_append(struct rig *rig, uint64_t first, uint64_t count, size_t bytes);
void rig_append_due(struct rig *rig, uint64_t first, uint64_t count, size_t bytes, int64_t due_ms);

/* Sets the positions of tasks of one shard as scans show them; of those that do not wait, none. */
kl_rc rig_set_positions(const struct rig *rig, kl_place place, kl_settled *settled, size_t count);

/* Settles as done, without keeping. */
void rig_settle(struct rig *rig, uint64_t first, uint64_t count);
void rig_settle_some(struct rig *rig, const uint64_t *numbers, size_t count);

uint64_t rig_waiting(struct rig *rig);

/* Is the task waiting, with the bytes that it was appended with? */
bool rig_is_whole(struct rig *rig, uint64_t number, size_t bytes);

/* Waits until `holds` is true. False: it never was, and the test has failed. */
bool rig_await(bool (*holds)(void *ctx), void *ctx, const char *what);

#endif
