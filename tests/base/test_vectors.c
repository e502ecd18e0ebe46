/* test_vectors.c - the library gives every answer of vectors/routing.txt, which another implementation computed. */
#include <stdlib.h>

#include "base/hash.h"
#include "harness.h"
#include "keyline/id.h"
#include "keyline/shards.h"

enum { LINE_BYTES = 2048 };

struct seen {
    int hashes, keys, ids, lists, slices;
};

static kl_bytes unhex(const char *hex, uint8_t buffer[KL_KEY_BYTES_MAX])
{
    size_t len = strlen(hex) / 2;
    for (size_t i = 0; i < len && i < KL_KEY_BYTES_MAX; i++) {
        unsigned byte = 0;
        CHECK(sscanf(hex + 2 * i, "%2x", &byte) == 1);
        buffer[i] = (uint8_t)byte;
    }
    return (kl_bytes){buffer, len};
}

static bool check_hash(const char *line)
{
    char hex[LINE_BYTES];
    uint8_t buffer[KL_KEY_BYTES_MAX];
    uint64_t seed, hash;
    if (sscanf(line, "hash %s %" SCNu64 " %" SCNx64, hex, &seed, &hash) != 3)
        return false;
    CHECK(kl__hash(unhex(hex, buffer), seed) == hash);
    return true;
}

static bool check_key(const char *line)
{
    char hex[LINE_BYTES];
    uint8_t buffer[KL_KEY_BYTES_MAX];
    uint32_t partitions, len, partition, shard, lane;
    if (sscanf(line, "key %s %u %u %u %u %u", hex, &partitions, &len, &partition, &shard, &lane) != 6)
        return false;
    kl_bytes key = unhex(hex, buffer);
    kl_layout layout = {1, 1};
    CHECK_INT(kl_layout_init(partitions, len, &layout), KL_OK);
    CHECK_INT(kl_partition_of(&layout, key), partition);
    CHECK_INT(kl_shard_of(&layout, key), shard);
    CHECK_INT(kl_lane_of(key), lane);
    return true;
}

static bool check_id(const char *line)
{
    char uuid[LINE_BYTES], text[KL_ID_TEXT_BYTES];
    uint32_t len;
    kl_id_parts parts;
    if (sscanf(line, "id %s %u %u %" SCNd64 " %u %u %u", uuid, &len, &parts.shard, &parts.ms, &parts.sequence,
               &parts.lane, &parts.random) != 7)
        return false;
    kl_layout layout = {1, 1};
    kl_task_id id = {{0}}, packed = {{0}};
    CHECK_INT(kl_layout_init(1, len, &layout), KL_OK);
    CHECK_INT(kl_id_parse(kl_str(uuid), &id), KL_OK);
    CHECK_INT(kl_id_shard(&layout, &id), parts.shard);
    CHECK_INT(kl_id_ms(&layout, &id), parts.ms);
    CHECK_INT(kl_id_sequence(&layout, &id), parts.sequence);
    CHECK_INT(kl_id_lane(&id), parts.lane);
    CHECK_INT(kl_id_unpack(&layout, &id).random, parts.random);
    CHECK_INT(kl_id_pack(&layout, &parts, &packed), KL_OK);
    kl_id_print(&packed, text);
    CHECK_STR(text, uuid);
    return true;
}

static void check_set(const kl_shards *shards, const char *expected)
{
    char text[LINE_BYTES];
    CHECK(kl_shards_print(shards, text, sizeof text) < sizeof text);
    CHECK_STR(text, expected);
}

static bool check_list(const char *line)
{
    char hex[LINE_BYTES], expected[LINE_BYTES];
    uint8_t buffer[KL_KEY_BYTES_MAX];
    kl_layout layout = {1, 1};
    kl_shards shards;
    if (sscanf(line, "list %s %u %s", hex, &layout.shard_prefix_len, expected) != 3)
        return false;
    bool refused = strcmp(expected, "refused") == 0;
    CHECK_INT(kl_shards_parse(&layout, unhex(hex, buffer), &shards), refused ? KL_EINVAL : KL_OK);
    if (!refused && !test_failed())
        check_set(&shards, expected);
    return true;
}

static bool check_slice(const char *line)
{
    char expected[LINE_BYTES];
    int64_t worker, workers;
    kl_layout layout = {1, 1};
    kl_shards shards;
    if (sscanf(line, "slice %u %" SCNd64 " %" SCNd64 " %s", &layout.shard_prefix_len, &worker, &workers, expected) != 4)
        return false;
    CHECK_INT(kl_shards_slice(&layout, worker, workers, &shards), KL_OK);
    if (!test_failed())
        check_set(&shards, expected);
    return true;
}

static void check_line(const char *line, int number, struct seen *seen)
{
    if (*line == '#' || *line == '\n')
        return;
    if (check_hash(line))
        seen->hashes++;
    else if (check_key(line))
        seen->keys++;
    else if (check_id(line))
        seen->ids++;
    else if (check_list(line))
        seen->lists++;
    else if (check_slice(line))
        seen->slices++;
    else
        test_fail(VECTORS, number, "this line is no vector");
    if (test_failed())
        test_fail(VECTORS, number, "%.200s", line);
}

TEST(the_library_agrees_with_the_vectors_of_every_client)
{
    char line[LINE_BYTES];
    struct seen seen = {0};
    FILE *file = fopen(VECTORS, "r");
    REQUIRE(file);
    for (int number = 1; !test_failed() && fgets(line, sizeof line, file); number++)
        check_line(line, number, &seen);
    fclose(file);
    CHECK(seen.hashes >= 100 && seen.keys >= 100 && seen.ids >= 100 && seen.lists >= 100 && seen.slices >= 100);
}
