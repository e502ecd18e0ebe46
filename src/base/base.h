/* base.h - the few things every file needs: assertions, failing with a sentence, and memory that a test can refuse. */
#ifndef KL_BASE_H
#define KL_BASE_H

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "keyline/bytes.h"
#include "keyline/error.h"

#define KL_CACHE_LINE          64

#define KL_LIKELY(condition)   __builtin_expect(!!(condition), 1)
#define KL_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* The struct of `type` whose member `member` is at `pointer`. */
#define KL_CONTAINER(pointer, type, member) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

/* Bad state inside is a bug, and going on would damage data: assertions stay on in release. */
#define KL_ASSERT(condition)                                                                                           \
    do {                                                                                                               \
        if (KL_UNLIKELY(!(condition)))                                                                                 \
            kl__assert_failed(#condition, __FILE__, __LINE__);                                                         \
    } while (0)

_Noreturn void kl__assert_failed(const char *condition, const char *file, int line);

/* Records the sentence that kl_error_text() returns to this thread, and returns rc. */
kl_rc kl__fail(kl_rc rc, const char *format, ...) KL_PRINTF(2, 3);

/* The same, but the sentence is made when somebody asks for it, by `say` from facts: for what fails so often that a
 * sentence would cost more than all the rest. Returns where the caller is to write them, in up to KL_FACTS_BYTES_MAX
 * bytes. */
enum { KL_FACTS_BYTES_MAX = 96 };
typedef void kl__say_fn(const void *facts, char *text, size_t bytes);
void *kl__fail_facts(kl__say_fn *say);

/* The end of a noun that is counted, for sentences: "%u task%s". */
static inline const char *kl__plural(uint64_t count) { return count == 1 ? "" : "s"; }

/* Memory. Each may return NULL, and then has recorded nothing: the caller says kl__fail_memory(). Sizes are checked for
 * overflow. kl__free(NULL) is fine. */
void *kl__alloc(size_t size);
void *kl__alloc_zeroed(size_t count, size_t size);
void *kl__alloc_aligned(size_t alignment, size_t count, size_t size);
void kl__free(void *memory);
void kl__free_large(void *memory, size_t bytes); /* its pages go back to the system, and do not wait for what fits */

/* Room for one more behind `count` items: `items` as they are, or a larger array with them in it, and the old one
 * freed. *room is how many fit. NULL: no memory, and nothing has changed. */
void *kl__grow(void *items, size_t count, size_t *room, size_t item_bytes);

kl_rc kl__fail_memory(void);

/* For tests: the n-th allocation from now on, in any thread, fails (1 = the next); 0 lets all succeed again. The number
 * of allocations since the last call is returned. */
uint64_t kl__alloc_fail_at(uint64_t n);
void kl__alloc_fail_all(bool fail); /* every one, until false */

#endif
