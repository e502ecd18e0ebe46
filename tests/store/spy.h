/* spy.h - an engine that only notes what reaches it, and a store over it. */
#ifndef TESTS_STORE_SPY_H
#define TESTS_STORE_SPY_H

#include "harness.h"
#include "store/dispatch.h"

extern struct spy {
    int calls; /* since the store was opened, partitions aside */
    kl_rc rc;  /* what every call returns */
    kl_append append;
    int64_t wait_ms;
    kl_store_opts opts;
    char where[64];
    int closed;
} spy;

extern const kl_engine spy_engine;

/* A store over the spy that knows partition 1 with 16 shards and partition 2 with 256. */
kl_store *open_spy(const kl_store_opts *opts);

kl_task_id id_of(uint8_t first, uint8_t second);
kl_entry entry_of(uint32_t partition, uint32_t shard);
kl_bytes sized(size_t len); /* so many zeros */

#define OPTS(...)    (&(kl_store_opts){.size = sizeof(kl_store_opts), __VA_ARGS__})

#define SETTLED(...) ((kl_settled){.id = id_of(0x30, 2), .position = 2, __VA_ARGS__})

/* The call is refused with a sentence that says this, and the engine has not seen it. */
#define REFUSED(call, part)                                                                                            \
    do {                                                                                                               \
        int before_ = spy.calls;                                                                                       \
        CHECK_INT(call, KL_EINVAL);                                                                                    \
        CHECK_CONTAINS(kl_error_text(), part);                                                                         \
        CHECK_INT(spy.calls, before_);                                                                                 \
    } while (0)

#define TAKEN(call)                                                                                                    \
    do {                                                                                                               \
        int before_ = spy.calls;                                                                                       \
        CHECK_INT(call, KL_OK);                                                                                        \
        CHECK_INT(spy.calls, before_ + 1);                                                                             \
    } while (0)

/* The call succeeds, and there was nothing to do. */
#define NOTHING(call)                                                                                                  \
    do {                                                                                                               \
        int before_ = spy.calls;                                                                                       \
        CHECK_INT(call, KL_OK);                                                                                        \
        CHECK_INT(spy.calls, before_);                                                                                 \
    } while (0)

/* The end of an asynchronous append. */
struct end {
    int count;
    kl_rc rc;
    char error[80];
};

void note_end(void *ctx, kl_rc rc, const char *error);

#endif
