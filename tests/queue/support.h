/* support.h - what tests of queues share: a store with a clock of its own, and records as text.
 *
 *     CLAIM(a_paused_queue_stays_paused) { ... rig->store ... }            once on memory:, once on disk: */
#ifndef TESTS_QUEUE_SUPPORT_H
#define TESTS_QUEUE_SUPPORT_H

#include <stdatomic.h>

#include "base/base.h"
#include "harness.h"
#include "keyline/queue.h"
#include "store/workdir.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct rig {
    kl_store *store;
    _Atomic int64_t clock_ms; /* the store's clock; set it forward as wanted */
    kl_arena arena;           /* for answers; lasts as long as the rig */
    bool disk;
    char path[WORKDIR_BYTES];     /* a directory of the rig's own, on memory: too */
    char url[WORKDIR_BYTES + 16]; /* of the store */
};

bool rig_open(struct rig *rig, bool disk); /* false: a failure was recorded */
void rig_close(struct rig *rig);
void rig_reopen(struct rig *rig); /* disk only: closes the store and opens it again */

void run_on_stores(void (*claim)(struct rig *rig));
void run_on_memory(void (*claim)(struct rig *rig));

#define CLAIM_ON(runner, name)                                                                                         \
    static void name(struct rig *rig);                                                                                 \
    static void run_##name(void) { runner(name); }                                                                     \
    static struct test test_##name = {#name, run_##name, NULL};                                                        \
    __attribute__((constructor)) static void register_##name(void) { test_register(&test_##name); }                    \
    static void name(struct rig *rig)

#define CLAIM(name)           CLAIM_ON(run_on_stores, name)
#define CLAIM_IN_MEMORY(name) CLAIM_ON(run_on_memory, name)

/* A queue with these fields of kl_queue_opts stated; NULL and a recorded failure when it does not open. */
#define OPEN(store, name, ...)                                                                                         \
    open_queue(__FILE__, __LINE__, store, name, &(kl_queue_opts){.size = sizeof(kl_queue_opts), __VA_ARGS__})
kl_queue *open_queue(const char *file, int line, kl_store *store, const char *name, const kl_queue_opts *opts);

/* What the call says, and how its sentence begins. */
#define CHECK_FAILS(call, expected_rc, part)                                                                           \
    do {                                                                                                               \
        CHECK_INT(call, expected_rc);                                                                                  \
        CHECK_CONTAINS(kl_error_text(), part);                                                                         \
    } while (0)

/* The record's value as text in the arena, NULL: there is none. */
const char *record_text(struct rig *rig, const char *name);
/* Writes it whatever its version; value NULL removes it. */
void set_record(struct rig *rig, const char *name, const char *value);

#endif
