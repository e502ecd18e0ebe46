/* calls.h - the calls of store.h that take arrays, for tests that ask for one thing at a time. */
#ifndef TESTS_STORE_CALLS_H
#define TESTS_STORE_CALLS_H

#include "keyline/store.h"

enum { READ_MAX = 4096 };

/* One line. */
static inline kl_rc scan_one(kl_store *store, const kl_scan *asked, kl_stub *ret_stubs, size_t *ret_count)
{
    kl_scan scan = *asked;
    scan.stubs = ret_stubs;
    kl_rc rc = kl_store_scan(store, &scan, 1);
    *ret_count = rc == KL_OK ? scan.count : 0;
    return rc;
}

/* Tasks of one shard, at most READ_MAX. */
static inline kl_rc read_some(kl_store *store, kl_place place, const kl_task_id *ids, size_t count, kl_arena *arena,
                              kl_task *ret_tasks, size_t *ret_count)
{
    static _Thread_local kl_ref refs[READ_MAX];
    for (size_t i = 0; i < count && i < READ_MAX; i++)
        refs[i] = (kl_ref){.place = place, .id = ids[i]};
    return kl_store_read(store, refs, count, arena, ret_tasks, ret_count);
}

#endif
