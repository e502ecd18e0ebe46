/* test_skips.c - the table of keys that were left out, against a model too simple to be wrong. */
#include "base/random.h"
#include "harness.h"
#include "work/skips.h"

enum { KEYS = 600 };

/* from[i]: of key i + 1; 0: it has no entry. */
static bool agree(const kl__skips *skips, const uint64_t *from, uint32_t count)
{
    for (uint64_t i = 0; i < KEYS; i++) {
        const kl__skip *skip = kl__skips_find(skips, (i + 1) << 40);
        if (from[i] ? !skip || skip->key != (i + 1) << 40 || skip->from != from[i] : skip != NULL)
            return false;
    }
    return skips->count == count;
}

static void change(kl__skips *skips, uint64_t *from, uint32_t *count, uint64_t index, uint64_t value)
{
    if (from[index]) {
        kl__skips_remove(skips, kl__skips_find(skips, (index + 1) << 40));
        from[index] = 0;
        --*count;
        return;
    }
    kl__skip *skip = kl__skips_add(skips, (index + 1) << 40);
    CHECK(skip != NULL);
    if (!skip)
        return;
    skip->from = from[index] = value;
    ++*count;
}

TEST(the_table_of_skipped_keys_finds_what_is_in_it_and_nothing_else)
{
    uint64_t from[KEYS] = {0}, random = test_seed();
    uint32_t count = 0;
    kl__skips skips = {0};
    CHECK(!kl__skips_find(&skips, 1));
    for (uint64_t step = 1; step <= 20000; step++) {
        /* Few keys for a while, then many: removals close gaps in a full table and in a sparse one. */
        uint64_t keys = step / 1000 % 2 ? KEYS : KEYS / 20;
        change(&skips, from, &count, kl__random_below(&random, keys), step);
        if (step % 100 == 0)
            CHECK(agree(&skips, from, count));
    }
    kl__skips_free(&skips);
    CHECK_INT(skips.capacity, 0);
}
