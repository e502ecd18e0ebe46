/* test_layout.c - keys spread evenly, and a key's partition says nothing about its shard.
 *
 * Evenness is judged by chi-square. For an even hash the statistic of k degrees of freedom exceeds k + 2 sqrt(k x) + 2x
 * with a probability below e^-x (Laurent and Massart); x = 20 makes a false alarm rarer than 1 in 10^8 per table. Two
 * schemes that are known to be bad go through the same judge, which shows that it can say no. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/random.h"
#include "harness.h"
#include "keyline/layout.h"

enum { CELLS_MAX = 4096, PER_CELL_MIN = 25 };

struct table {
    uint32_t cells;
    uint64_t keys;
    uint32_t counts[CELLS_MAX];
};

static kl_layout layout_of(int64_t partitions, int64_t prefix_len)
{
    kl_layout layout = {1, 1};
    CHECK_INT(kl_layout_init(partitions, prefix_len, &layout), KL_OK);
    return layout;
}

static void count(struct table *table, uint32_t cell)
{
    CHECK(cell < table->cells);
    table->counts[cell % table->cells]++;
    table->keys++;
}

static double chi_square(const struct table *table)
{
    double expected = (double)table->keys / table->cells, sum = 0;
    for (uint32_t i = 0; i < table->cells; i++)
        sum += (table->counts[i] - expected) * (table->counts[i] - expected) / expected;
    return sum;
}

static bool even(const struct table *table)
{
    double x = 20, k = table->cells - 1, excess = chi_square(table) - k - 2 * x;
    return excess <= 0 || excess * excess <= 4 * k * x;
}

static uint32_t used(const struct table *table)
{
    uint32_t cells = 0;
    for (uint32_t i = 0; i < table->cells; i++)
        cells += table->counts[i] > 0;
    return cells;
}

/* How many keys to try: as asked, but enough for chi-square to mean something. */
static uint64_t keys_for(uint32_t cells, uint64_t normal)
{
    uint64_t keys = test_ops(normal), least = (uint64_t)cells * PER_CELL_MIN;
    return keys > least ? keys : least;
}

/* Keys as people make them: a word, something of this run, and a number that goes up. */
static kl_bytes nth_key(uint64_t n, char buffer[64])
{
    int len = snprintf(buffer, 64, "customer-%" PRIx64 "-%" PRIu64, test_seed(), n);
    return (kl_bytes){buffer, (size_t)len};
}

TEST(a_layout_needs_one_to_four_digits)
{
    kl_layout layout = {9, 9};
    CHECK_INT(kl_layout_init(1, 0, &layout), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "shard_prefix_len is 0");
    CHECK_CONTAINS(kl_error_text(), "write 1 (16 shards");
    CHECK_INT(kl_layout_init(1, 5, &layout), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "shard_prefix_len is 5");
    CHECK_CONTAINS(kl_error_text(), "write 1 to 4");
    CHECK_INT(kl_layout_init(1, -1, &layout), KL_EINVAL);
    CHECK_INT(kl_layout_init(1, INT64_MAX, &layout), KL_EINVAL);
    CHECK_INT(layout.shard_prefix_len, 9);
    static const uint32_t shards[] = {16, 256, 4096, 65536};
    for (int64_t len = 1; len <= 4; len++) {
        layout = layout_of(3, len);
        CHECK_INT(kl_layout_shards(&layout), shards[len - 1]);
    }
}

TEST(a_layout_has_1_to_1024_partitions)
{
    kl_layout layout = {9, 9};
    static const int64_t wrong[] = {0, -1, 1025, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_INT(kl_layout_init(wrong[i], 1, &layout), KL_EINVAL);
        CHECK_CONTAINS(kl_error_text(), "write 1 (the queue as it is) to 1024");
    }
    CHECK_INT(layout.partitions, 9);
    CHECK_INT(layout_of(1, 1).partitions, 1);
    CHECK_INT(layout_of(1024, 1).partitions, 1024);
}

TEST(a_shard_is_named_by_its_digits)
{
    char name[KL_SHARD_NAME_BYTES];
    for (uint32_t len = 1; len <= 4; len++) {
        kl_layout layout = layout_of(1, len);
        for (uint32_t shard = 0, back = 1; shard < kl_layout_shards(&layout); shard++) {
            kl_shard_name(&layout, shard, name);
            CHECK_INT(strlen(name), len);
            CHECK_INT(strtoul(name, NULL, 16), shard);
            CHECK_INT(kl_shard_parse(&layout, kl_str(name), &back), KL_OK);
            CHECK_INT(back, shard);
        }
    }
    kl_layout layout = layout_of(1, 2);
    uint32_t shard = 0;
    kl_shard_name(&layout, 0x0a, name);
    CHECK_STR(name, "0a");
    CHECK_INT(kl_shard_parse(&layout, kl_str("3F"), &shard), KL_OK);
    CHECK_INT(shard, 0x3f);
}

TEST(a_wrong_shard_name_is_refused)
{
    static const struct {
        const char *name, *why;
    } wrong[] = {
        {"", "is empty"},
        {"4", "has 1 digit, but this queue's shards have 2: write 2 hex digits, 00 to ff"},
        {"004", "has 3 digits, but"},
        {"0000000000000004", "has 16 digits, but"},
        {"0g", "the shard \"0g\" at column 1 is not a hex number"},
        {" 0", "is not a hex number"},
        {"0\n", "\"0?\""},
        {"0x12345678901234567890123456789012345678901234567890", "\"0x12345678901234567890123456789012...\""},
    };
    kl_layout layout = layout_of(1, 2);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        uint32_t shard = 77;
        CHECK_INT(kl_shard_parse(&layout, kl_str(wrong[i].name), &shard), KL_EINVAL);
        CHECK_CONTAINS(kl_error_text(), wrong[i].why);
        CHECK_INT(shard, 77);
    }
}

TEST(partition_0_bears_the_name_of_its_queue)
{
    kl_layout layout = layout_of(12, 1);
    char name[32] = "as it was";
    CHECK_INT(kl_partition_name(&layout, "orders", 0, sizeof name, name), KL_OK);
    CHECK_STR(name, "orders");
    CHECK_INT(kl_partition_name(&layout, "orders", 11, sizeof name, name), KL_OK);
    CHECK_STR(name, "orders__p11");
    CHECK_INT(kl_partition_name(&layout, "orders", 1, sizeof "orders__p1", name), KL_OK);
    CHECK_STR(name, "orders__p1");
}

TEST(a_partition_name_without_room_or_sense_is_refused)
{
    kl_layout layout = layout_of(12, 1);
    char name[32] = "as it was";
    CHECK_INT(kl_partition_name(&layout, "orders", 1, sizeof "orders__p1" - 1, name), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "takes 11 bytes");
    CHECK_INT(kl_partition_name(&layout, "orders", 0, 6, name), KL_EINVAL);
    CHECK_INT(kl_partition_name(&layout, "orders", 0, 0, name), KL_EINVAL);
    CHECK_INT(kl_partition_name(&layout, "orders", 12, sizeof name, name), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "there is no partition 12: this queue has 12");
    CHECK_INT(kl_partition_name(&layout, "", 0, sizeof name, name), KL_EINVAL);
    CHECK_INT(kl_partition_name(&layout, NULL, 0, sizeof name, name), KL_EINVAL);
    CHECK_STR(name, "as it was");
}

TEST(only_a_task_without_a_key_is_in_lane_0)
{
    CHECK_INT(kl_lane_of((kl_bytes){NULL, 0}), 0);
    CHECK_INT(kl_lane_of(kl_str("")), 0);
    CHECK_INT(kl_lane_of(kl_str("order-18547159")), 1); /* its hash's top 24 bits are 0 */
    char buffer[64];
    for (uint64_t i = 0; i < test_ops(100000); i++) {
        uint32_t lane = kl_lane_of(nth_key(i, buffer));
        CHECK(lane >= 1 && lane <= KL_LANE_MAX);
    }
}

static int signal_of_a_child_without_a_key(void)
{
    kl_layout layout = layout_of(2, 2);
    pid_t child = fork();
    if (child == 0) {
        close(STDERR_FILENO);
        _exit((int)kl_shard_of(&layout, kl_str("")) & 0);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(asking_for_the_shard_of_no_key_stops_the_program) { CHECK_INT(signal_of_a_child_without_a_key(), SIGABRT); }

TEST(keys_spread_evenly_over_shards)
{
    static struct table table;
    char buffer[64];
    for (int64_t len = 1; len <= 3; len++) {
        kl_layout layout = layout_of(1, len);
        table = (struct table){.cells = kl_layout_shards(&layout)};
        for (uint64_t i = 0, keys = keys_for(table.cells, 400000); i < keys; i++)
            count(&table, kl_shard_of(&layout, nth_key(i, buffer)));
        CHECK(even(&table));
        CHECK_INT(used(&table), table.cells);
    }
}

TEST(keys_spread_evenly_over_any_number_of_partitions)
{
    static struct table table;
    static const uint32_t partitions[] = {2, 3, 5, 7, 12, 100, 1000, 1024};
    char buffer[64];
    for (size_t p = 0; p < sizeof partitions / sizeof partitions[0]; p++) {
        kl_layout layout = layout_of(partitions[p], 1);
        table = (struct table){.cells = partitions[p]};
        for (uint64_t i = 0, keys = keys_for(table.cells, 100000); i < keys; i++)
            count(&table, kl_partition_of(&layout, nth_key(i, buffer)));
        CHECK(even(&table));
    }
}

struct place {
    uint32_t partition, shard;
};

typedef struct place place_fn(kl_bytes key, uint32_t partitions, uint32_t shards);

/* Ours. Fewer than 16 shards are the top bits of one digit. */
static struct place place_by_layout(kl_bytes key, uint32_t partitions, uint32_t shards)
{
    kl_layout layout = {partitions, 1};
    return (struct place){kl_partition_of(&layout, key), kl_shard_of(&layout, key) * shards / 16};
}

static uint64_t fnv1a(uint8_t prefix, kl_bytes key)
{
    uint64_t hash = (0xcbf29ce484222325u ^ prefix) * 0x100000001b3u;
    for (size_t i = 0; i < key.len; i++)
        hash = (hash ^ ((const uint8_t *)key.data)[i]) * 0x100000001b3u;
    return hash;
}

/* What many queues do: a popular hash, told apart by a byte in front. */
static struct place place_by_fnv(kl_bytes key, uint32_t partitions, uint32_t shards)
{
    return (struct place){(uint32_t)(fnv1a(1, key) % partitions), (uint32_t)(fnv1a(2, key) % shards)};
}

/* A good hash used twice. */
static struct place place_by_one_seed(kl_bytes key, uint32_t partitions, uint32_t shards)
{
    kl_layout layout = {partitions, 1};
    uint32_t digit = kl_shard_of(&layout, key);
    return (struct place){digit * partitions / 16, digit * shards / 16};
}

static void fill(struct table *table, place_fn *place, uint32_t partitions, uint32_t shards)
{
    char buffer[64];
    *table = (struct table){.cells = partitions * shards};
    for (uint64_t i = 0, keys = keys_for(table->cells, 100000); i < keys; i++) {
        struct place at = place(nth_key(i, buffer), partitions, shards);
        count(table, at.partition * shards + at.shard);
    }
}

static const struct {
    uint32_t partitions, shards;
} grids[] = {{2, 2}, {4, 4}, {4, 2}, {8, 8}, {16, 16}};

enum { GRIDS = sizeof grids / sizeof grids[0] };

TEST(a_partition_gets_keys_of_every_shard_alike)
{
    static struct table table;
    for (size_t g = 0; g < GRIDS; g++) {
        fill(&table, place_by_layout, grids[g].partitions, grids[g].shards);
        CHECK_INT(used(&table), table.cells);
        CHECK(even(&table));
    }
}

TEST(the_same_test_finds_fnv_and_a_shared_seed_wanting)
{
    static struct table table;
    for (size_t g = 0; g < GRIDS; g++) {
        fill(&table, place_by_fnv, grids[g].partitions, grids[g].shards);
        CHECK_INT(used(&table), table.cells / 2);
        CHECK(!even(&table));
        fill(&table, place_by_one_seed, grids[g].partitions, grids[g].shards);
        CHECK(used(&table) < table.cells);
        CHECK(!even(&table));
    }
}

TEST(keys_of_one_repeated_letter_do_not_skew)
{
    static struct table shards, cells;
    kl_layout layout = layout_of(4, 1);
    char key[KL_KEY_BYTES_MAX];
    shards = (struct table){.cells = 16};
    cells = (struct table){.cells = 64};
    for (char letter = 'a'; letter <= 'z'; letter++) {
        memset(key, letter, sizeof key);
        for (size_t len = 1; len <= sizeof key; len++) {
            kl_bytes bytes = {key, len};
            count(&shards, kl_shard_of(&layout, bytes));
            count(&cells, kl_partition_of(&layout, bytes) * 16 + kl_shard_of(&layout, bytes));
        }
    }
    CHECK(even(&shards));
    CHECK(even(&cells));
}

TEST(keys_that_differ_only_at_their_end_do_not_skew)
{
    static struct table table;
    kl_layout layout = layout_of(1, 2);
    char key[300];
    memset(key, 'a', sizeof key);
    table = (struct table){.cells = 256};
    for (uint32_t i = 0; i < 65536; i++) {
        key[sizeof key - 2] = (char)(i >> 8);
        key[sizeof key - 1] = (char)i;
        count(&table, kl_shard_of(&layout, (kl_bytes){key, sizeof key}));
    }
    CHECK(even(&table));
}
