/* test_disk_parts.c - what the disk engine keeps in memory, each part against a model too simple to be wrong. */
#include <stdlib.h>

#include "base/random.h"
#include "harness.h"
#include "store/disk/format.h"
#include "store/disk/line.h"
#include "store/disk/records.h"
#include "store/disk/state.h"
#include "store/disk/stubs.h"
#include "store/disk/tokens.h"

/* ---- Line: a sorted array ---- */

enum { LINE_MAX = 6000, LINE_OPS = 200000, ORDERS_MANY = 1 << 20, ORDERS_FEW = 7 };

struct element {
    uint64_t order, position;
};

struct lined {
    kl__line line;
    struct element sorted[LINE_MAX];
    size_t count;
    uint64_t positions[LINE_MAX + 1]; /* by slot */
    uint32_t free_slots[LINE_MAX];
    size_t free_count;
    uint64_t next_position, random;
};

static uint64_t position_of(const void *ctx, uint32_t slot) { return ((const struct lined *)ctx)->positions[slot]; }

static kl__line_ties ties_of(const struct lined *lined) { return (kl__line_ties){position_of, lined}; }

static struct lined *lined_new(uint64_t seed)
{
    struct lined *lined = calloc(1, sizeof *lined);
    lined->random = seed;
    for (uint32_t i = 0; i < LINE_MAX; i++)
        lined->free_slots[lined->free_count++] = i + 1;
    return lined;
}

static void lined_free(struct lined *lined)
{
    kl__line_free(&lined->line);
    free(lined);
}

static bool is_behind(struct element a, uint64_t order, uint64_t position)
{
    return a.order != order ? a.order > order : a.position > position;
}

/* How many elements are not behind (order, position). */
static size_t rank(const struct lined *lined, uint64_t order, uint64_t position)
{
    size_t low = 0, high = lined->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (is_behind(lined->sorted[middle], order, position))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void add(struct lined *lined, uint64_t order, uint64_t position)
{
    kl__line_ties ties = ties_of(lined);
    uint32_t slot = lined->free_slots[--lined->free_count];
    lined->positions[slot] = position;
    CHECK(kl__line_insert(&lined->line, &ties, order, position, slot));
    size_t at = rank(lined, order, position);
    memmove(&lined->sorted[at + 1], &lined->sorted[at], (lined->count - at) * sizeof(lined->sorted[0]));
    lined->sorted[at] = (struct element){order, position};
    lined->count++;
}

static void take(struct lined *lined, size_t index)
{
    kl__line_ties ties = ties_of(lined);
    struct element gone = lined->sorted[index];
    kl__line_at at;
    bool found = index ? kl__line_after(&lined->line, &ties, lined->sorted[index - 1].order,
                                        lined->sorted[index - 1].position, &at)
                       : kl__line_first(&lined->line, &at);
    REQUIRE(found);
    uint32_t slot = kl__line_slot(&lined->line, &at);
    CHECK(lined->positions[slot] == gone.position);
    kl__line_remove(&lined->line, &ties, gone.order, gone.position);
    lined->free_slots[lined->free_count++] = slot;
    memmove(&lined->sorted[index], &lined->sorted[index + 1], (--lined->count - index) * sizeof(lined->sorted[0]));
}

/* Behind some place, which may hold nothing, stands what the array says. */
static void look_behind(const struct lined *lined, uint64_t order, uint64_t position)
{
    kl__line_ties ties = ties_of(lined);
    kl__line_at at;
    size_t expected = rank(lined, order, position);
    bool found = kl__line_after(&lined->line, &ties, order, position, &at);
    CHECK_INT(found, expected < lined->count);
    if (found && expected < lined->count) {
        CHECK(kl__line_order(&lined->line, &at) == lined->sorted[expected].order);
        CHECK(lined->positions[kl__line_slot(&lined->line, &at)] == lined->sorted[expected].position);
    }
}

static void compare_all(const struct lined *lined)
{
    kl__line_at at;
    size_t index = 0, elements = 0;
    CHECK_INT(lined->line.count, lined->count);
    for (bool more = kl__line_first(&lined->line, &at); more; more = kl__line_next(&lined->line, &at), index++) {
        REQUIRE(index < lined->count);
        CHECK(kl__line_order(&lined->line, &at) == lined->sorted[index].order);
        CHECK(lined->positions[kl__line_slot(&lined->line, &at)] == lined->sorted[index].position);
    }
    CHECK_INT(index, lined->count);
    for (size_t i = 0; i < lined->line.used; i++) {
        const kl__line_block *block = lined->line.blocks[lined->line.first + i];
        CHECK(block->begin < block->end); /* W1: no block is empty */
        elements += (size_t)block->end - block->begin;
    }
    CHECK_INT(elements, lined->count);
}

/* orders: how many different ones there are; `front` of 8 removals are of the first. */
static void line_equals_array(uint64_t orders, uint64_t front)
{
    struct lined *lined = lined_new(test_seed());
    uint64_t *random = &lined->random;
    for (uint64_t i = 0, ops = test_ops(LINE_OPS); i < ops && !test_failed(); i++) {
        bool grows = i / LINE_MAX % 2 == 0 ? kl__random_below(random, 4) != 0 : kl__random_below(random, 4) == 0;
        uint64_t order = kl__random_below(random, orders);
        if (grows && lined->free_count)
            add(lined, orders == 1 ? 0 : order, orders == ORDERS_FEW ? kl__random_next(random) >> 16 : i);
        else if (lined->count)
            take(lined, kl__random_below(random, 8) < front ? 0 : kl__random_below(random, lined->count));
        look_behind(lined, order, kl__random_next(random) >> 16);
        if (i % 1024 == 0)
            compare_all(lined);
    }
    compare_all(lined);
    lined_free(lined);
}

TEST(a_line_is_a_sorted_array) { line_equals_array(ORDERS_MANY, 2); }

TEST(a_line_of_few_orders_goes_by_position) { line_equals_array(ORDERS_FEW, 2); }

TEST(a_line_of_positions_is_a_queue)
{
    struct lined *lined = lined_new(test_seed());
    for (uint64_t i = 1; i < test_ops(LINE_OPS) && !test_failed(); i++) {
        if (lined->free_count)
            add(lined, i, i);
        if (lined->count > kl__random_below(&lined->random, LINE_MAX))
            take(lined, kl__random_below(&lined->random, 50) ? 0 : kl__random_below(&lined->random, lined->count));
    }
    compare_all(lined);
    lined_free(lined);
}

TEST(stragglers_do_not_keep_a_block_each)
{
    struct lined *lined = lined_new(1);
    for (uint64_t i = 0; i < LINE_MAX; i++)
        add(lined, i, i);
    for (size_t i = lined->count; i-- > 0;)
        if (i % 100)
            take(lined, i);
    compare_all(lined);
    CHECK(lined->count >= LINE_MAX / 100);
    CHECK(lined->line.used <= 2 + lined->count / (KL_LINE_BLOCK / 8));
    lined_free(lined);
}

TEST(a_line_that_finds_no_memory_is_as_before)
{
    struct lined *lined = lined_new(3);
    for (uint64_t n = 1; lined->count < LINE_MAX / 2; n++) {
        kl__line_ties ties = ties_of(lined);
        uint32_t slot = lined->free_slots[lined->free_count - 1];
        uint64_t order = kl__random_below(&lined->random, ORDERS_MANY);
        lined->positions[slot] = n;
        kl__alloc_fail_at(1);
        bool added = kl__line_insert(&lined->line, &ties, order, n, slot);
        kl__alloc_fail_at(0);
        if (added) { /* there was room: the model follows */
            lined->free_count--;
            size_t at = rank(lined, order, n);
            memmove(&lined->sorted[at + 1], &lined->sorted[at], (lined->count++ - at) * sizeof(lined->sorted[0]));
            lined->sorted[at] = (struct element){order, n};
        } else {
            add(lined, order, n);
        }
        if (n % 256 == 0)
            compare_all(lined);
    }
    compare_all(lined);
    lined_free(lined);
}

/* ---- Stubs: an array of who is there ---- */

enum { IDS = 1 << 14, STUBS_OPS = 1000000 };

static kl_task_id id_of(uint64_t number)
{
    kl_task_id id;
    uint64_t words[2] = {number * 0x9e3779b97f4a7c15u, ~number};
    memcpy(id.bytes, words, sizeof id.bytes);
    return id;
}

static void check_slot(const kl__stubs *stubs, uint64_t number, uint32_t slot)
{
    kl_task_id id = id_of(number);
    CHECK_INT(kl__stubs_find(stubs, 1, &id), slot);
    if (slot != KL_SLOT_NONE) {
        CHECK(memcmp(&kl__stubs_slot(stubs, slot)->id, &id, sizeof id) == 0);
        CHECK_INT(kl__stubs_slot(stubs, slot)->key_hash, number);
    }
}

TEST(stubs_are_found_until_they_are_removed)
{
    kl__stubs *stubs = kl__stubs_open();
    uint32_t *slots = calloc(IDS, sizeof *slots);
    uint64_t random = test_seed(), count = 0;
    for (uint64_t i = 0, ops = test_ops(STUBS_OPS); i < ops && !test_failed(); i++) {
        uint64_t number = kl__random_below(&random, IDS);
        kl_task_id id = id_of(number);
        bool is_lean = i / (ops / 8 + 1) % 2; /* times of many, times of few */
        if (slots[number] && (is_lean || i % 2)) {
            kl__stubs_remove(stubs, slots[number]);
            slots[number] = KL_SLOT_NONE;
            count--;
        } else if (!slots[number] && !(is_lean && i % 8)) {
            slots[number] = kl__stubs_add(stubs, 1, &id);
            REQUIRE(slots[number] != KL_SLOT_NONE);
            kl__stubs_slot(stubs, slots[number])->key_hash = number;
            count++;
        }
        kl__stubs_prefetch(stubs, &id);
        uint64_t other = kl__random_below(&random, IDS);
        check_slot(stubs, other, slots[other]);
        CHECK_INT(kl__stubs_count(stubs), count);
    }
    for (uint64_t number = 0; number < IDS; number++)
        check_slot(stubs, number, slots[number]);
    free(slots);
    kl__stubs_close(stubs);
}

/* Where few tasks wait, others come and go beside them until every bucket of theirs was once too full for somebody. */
TEST(a_stub_that_is_not_there_is_looked_for_and_not_found)
{
    enum { WAITING_MAX = IDS / 2, CHURN = 8 };
    kl__stubs *stubs = kl__stubs_open();
    uint32_t *slots = calloc(WAITING_MAX, sizeof *slots);
    uint64_t random = test_seed(), next = 0;
    for (uint64_t waiting = 0; waiting < WAITING_MAX && !test_failed(); waiting++) {
        for (int i = 0; i < CHURN; i++) {
            uint64_t which = i ? kl__random_below(&random, waiting + 1) : waiting;
            if (i)
                kl__stubs_remove(stubs, slots[which]);
            kl_task_id id = id_of(next++), other = id_of(UINT32_MAX + next);
            slots[which] = kl__stubs_add(stubs, 1, &id);
            CHECK_INT(kl__stubs_find(stubs, 1, &other), KL_SLOT_NONE);
        }
        CHECK_INT(kl__stubs_count(stubs), waiting + 1);
    }
    free(slots);
    kl__stubs_close(stubs);
}

TEST(a_slot_has_room_for_the_largest_task_at_the_last_place)
{
    enum { BYTES = KL_KEY_BYTES_MAX + KL_KIND_BYTES_MAX + KL_HEADERS_BYTES_MAX + KL_PAYLOAD_BYTES_MAX };
    kl__slot slot = {.offset8 = (KL_SEGMENT_BYTES_MAX - 8) / 8, .bytes = BYTES, .group = UINT16_MAX};
    CHECK_INT(slot.offset8, (KL_SEGMENT_BYTES_MAX - 8) / 8);
    CHECK_INT(slot.bytes, BYTES);
    CHECK_INT(slot.group, UINT16_MAX);
    CHECK_INT(sizeof slot, 56);
}

TEST(a_stub_that_finds_no_memory_is_not_added)
{
    kl__stubs *stubs = kl__stubs_open();
    uint64_t refused = 0;
    for (uint64_t number = 1; number < IDS; number++) {
        kl_task_id id = id_of(number);
        kl__alloc_fail_at(1);
        uint32_t slot = kl__stubs_add(stubs, 1, &id);
        kl__alloc_fail_at(0);
        refused += slot == KL_SLOT_NONE;
        if (slot == KL_SLOT_NONE) {
            CHECK_INT(kl__stubs_find(stubs, 1, &id), KL_SLOT_NONE);
            slot = kl__stubs_add(stubs, 1, &id);
        }
        CHECK(slot != KL_SLOT_NONE);
        CHECK_INT(kl__stubs_find(stubs, 1, &id), slot);
        CHECK_INT(kl__stubs_count(stubs), number);
    }
    CHECK(refused > 0);
    kl__stubs_close(stubs);
}

/* ---- Tokens: the last ones ---- */

static kl_token token_of(uint64_t number)
{
    kl_token token;
    kl_task_id id = id_of(number);
    memcpy(token.bytes, id.bytes, sizeof token.bytes);
    return token;
}

static void note_forgotten(void *ctx, const kl__token_info *forgotten) { *(uint64_t *)ctx = forgotten->segment; }

/* As a journal gives them whose old tokens were moved: the youngest count, in whatever order they come. */
TEST(tokens_that_were_moved_are_not_taken_for_young_ones)
{
    enum { TOKENS = 3 * KL_TOKENS_KEPT };
    uint64_t forgotten = 0;
    kl__tokens *tokens = kl__tokens_open(note_forgotten, &forgotten);
    for (uint64_t i = 0; i < TOKENS; i++) {
        uint64_t sequence = i < TOKENS / 2 ? TOKENS - 1 - i : i - TOKENS / 2;
        REQUIRE(kl__tokens_add(tokens, &(kl__token_info){token_of(sequence), sequence, 1}));
    }
    kl__tokens_recovered(tokens);
    for (uint64_t i = 0; i < TOKENS; i++) {
        kl_token token = token_of(i);
        CHECK_INT(kl__tokens_find(tokens, &token) != NULL, i >= TOKENS - KL_TOKENS_KEPT);
    }
    kl_token oldest = token_of(TOKENS - KL_TOKENS_KEPT), next = token_of(TOKENS - KL_TOKENS_KEPT + 1);
    CHECK(kl__tokens_add(tokens, &(kl__token_info){token_of(TOKENS), TOKENS, 1}));
    CHECK(!kl__tokens_find(tokens, &oldest));
    CHECK(kl__tokens_find(tokens, &next));
    kl__tokens_close(tokens);
}

TEST(tokens_are_found_by_the_segment_they_are_written_in)
{
    enum { TOKENS = 1000, SEGMENTS = 7 };
    uint64_t forgotten = 0, found = 0;
    uint32_t place = 0;
    kl__tokens *tokens = kl__tokens_open(note_forgotten, &forgotten);
    kl__tokens_recovered(tokens);
    CHECK(!kl__tokens_next(tokens, 3, &place));
    for (uint64_t i = 0; i < TOKENS; i++)
        REQUIRE(kl__tokens_add(tokens, &(kl__token_info){token_of(i), i, i % SEGMENTS}));
    for (const kl__token_info *info; (info = kl__tokens_next(tokens, 3, &place)) != NULL; found++)
        CHECK_INT(info->sequence, found * SEGMENTS + 3);
    CHECK_INT(found, (TOKENS - 3 + SEGMENTS - 1) / SEGMENTS);
    kl__tokens_close(tokens);
}

TEST(the_last_tokens_are_known_and_no_others)
{
    enum { TOKENS = 3 * KL_TOKENS_KEPT };
    uint64_t forgotten = 0;
    kl__tokens *tokens = kl__tokens_open(note_forgotten, &forgotten);
    kl__tokens_recovered(tokens);
    for (uint64_t i = 0; i < TOKENS; i++) {
        kl_token token = token_of(i), latest = token_of(i - 1), oldest = token_of(i - KL_TOKENS_KEPT);
        CHECK(!kl__tokens_find(tokens, &token));
        forgotten = 0;
        REQUIRE(kl__tokens_add(tokens, &(kl__token_info){token, i, i / 1000 + 1}));
        CHECK_INT(forgotten, i < KL_TOKENS_KEPT ? 0 : (i - KL_TOKENS_KEPT) / 1000 + 1);
        const kl__token_info *info = kl__tokens_find(tokens, &token);
        REQUIRE(info);
        CHECK_INT(info->segment, i / 1000 + 1);
        CHECK(i == 0 || kl__tokens_find(tokens, &latest));
        CHECK(i < KL_TOKENS_KEPT || !kl__tokens_find(tokens, &oldest));
    }
    for (uint64_t i = 0; i < TOKENS; i++) {
        kl_token token = token_of(i);
        CHECK_INT(kl__tokens_find(tokens, &token) != NULL, i >= TOKENS - KL_TOKENS_KEPT);
    }
    kl__tokens_close(tokens);
}

static void apply_token(kl__state *state, uint64_t number, uint64_t sequence)
{
    kl__token_record record = {.header = {.type = KL_RECORD_TOKEN, .bytes = sizeof record, .sequence = sequence}};
    kl_token token = token_of(number);
    memcpy(record.token, &token, sizeof record.token);
    CHECK_INT(kl__state_apply(state, &record.header, (kl__where){1, 64}, 0), KL_OK);
}

/* Its first use is in the journal still, and read first. */
TEST(a_token_that_is_used_again_when_it_was_forgotten_is_as_young_as_its_last_use)
{
    enum { AGAIN = KL_TOKENS_KEPT + 1, LAST = AGAIN + KL_TOKENS_KEPT - 1 };
    kl__state state = {0};
    kl__segment segment = {.number = 1, .bytes = 1 << 20};
    kl_token token = token_of(0), older = token_of(AGAIN - 1), next = token_of(AGAIN + 1);
    REQUIRE(kl__state_open(&state) == KL_OK && kl__state_add_segment(&state, &segment));
    for (uint64_t i = 0; i <= LAST; i++)
        apply_token(&state, i == AGAIN ? 0 : i, i + 1);
    kl__tokens_recovered(state.tokens);
    CHECK(kl__tokens_find(state.tokens, &token));
    CHECK(!kl__tokens_find(state.tokens, &older));
    CHECK_INT(state.live, KL_TOKENS_KEPT * sizeof(kl__token_record));
    apply_token(&state, LAST + 1, LAST + 2);
    CHECK(!kl__tokens_find(state.tokens, &token));
    CHECK(kl__tokens_find(state.tokens, &next));
    kl__free(segment.part_live);
    kl__state_close(&state);
}

static void remember(kl__tokens *tokens, uint64_t first, uint64_t count)
{
    for (uint64_t i = first; i < first + count; i++)
        REQUIRE(kl__tokens_add(tokens, &(kl__token_info){token_of(i), i + 1, 1}));
}

/* `read` of those that follow are in the journal when it is read. */
static void check_lasts(uint64_t read)
{
    enum { FOLLOW = 65536 };
    uint64_t forgotten = 0;
    kl_token token = token_of(0);
    kl__tokens *tokens = kl__tokens_open(note_forgotten, &forgotten);
    remember(tokens, 0, 1 + read);
    kl__tokens_recovered(tokens);
    remember(tokens, 1 + read, FOLLOW - read);
    CHECK(kl__tokens_find(tokens, &token));
    remember(tokens, 1 + FOLLOW, 1);
    CHECK(!kl__tokens_find(tokens, &token));
    kl__tokens_close(tokens);
}

TEST(a_token_is_remembered_through_the_next_65536_and_then_forgotten)
{
    check_lasts(0);
    check_lasts(1000);
    check_lasts(65536);
}

TEST(tokens_that_find_no_memory_are_not_known)
{
    for (uint64_t n = 1; n <= 3; n++) {
        uint64_t forgotten = 0;
        kl__tokens *tokens = kl__tokens_open(note_forgotten, &forgotten);
        kl_token token = token_of(n);
        kl__alloc_fail_at(n);
        CHECK(!kl__tokens_add(tokens, &(kl__token_info){token, n, 1}));
        kl__alloc_fail_at(0);
        CHECK(!kl__tokens_find(tokens, &token));
        CHECK(kl__tokens_add(tokens, &(kl__token_info){token, n, 1}));
        CHECK(kl__tokens_find(tokens, &token));
        kl__tokens_close(tokens);
    }
}

/* ---- Records: an array by name ---- */

enum { NAMES = 200, RECORDS_OPS = 50000, WRITE_BYTES = 512 };

static kl_bytes name_of(uint64_t number, char *room)
{
    return (kl_bytes){room, (size_t)snprintf(room, 24, "%0*llu", (int)(1 + number % 5), (unsigned long long)number)};
}

static void set_record(kl__records *records, uint64_t number, uint64_t version)
{
    _Alignas(8) char bytes[WRITE_BYTES] = {0};
    kl__write_record *write = (kl__write_record *)(void *)bytes;
    char name[24], value[24];
    kl_bytes named = name_of(number, name);
    write->version = version;
    write->expires_ms = (int64_t)(version % 7) * 10; /* some never */
    write->name_bytes = (uint16_t)named.len;
    write->value_bytes = (uint32_t)snprintf(value, sizeof value, "value %llu", (unsigned long long)version);
    write->header.bytes = (uint32_t)kl__round8(sizeof *write + write->name_bytes + write->value_bytes);
    memcpy(write + 1, name, named.len);
    memcpy((char *)(write + 1) + named.len, value, write->value_bytes);
    CHECK(kl__records_set(records, write, (kl__where){version / 100, 0}));
}

static void check_record(const kl__records *records, uint64_t number, uint64_t version)
{
    char name[24], value[24];
    const kl__held_record *held = kl__records_find(records, name_of(number, name));
    CHECK_INT(held != NULL, version != 0);
    if (!held || !version)
        return;
    kl_bytes its = kl__held_value(held);
    int length = snprintf(value, sizeof value, "value %llu", (unsigned long long)version);
    CHECK_INT(held->version, version);
    CHECK_INT(held->where.segment, version / 100);
    CHECK(its.len == (size_t)length && memcmp(its.data, value, its.len) == 0);
}

/* By name, each once. */
static void walk_records(const kl__records *records)
{
    uint64_t count = 0;
    const kl__held_record *held = kl__records_after(records, (kl_bytes){"", 0}, true), *next;
    for (; held; held = next, count++) {
        kl_bytes name = kl__held_name(held), later;
        next = kl__records_after(records, name, false);
        if (!next)
            continue;
        later = kl__held_name(next);
        int order = memcmp(name.data, later.data, name.len < later.len ? name.len : later.len);
        CHECK(order < 0 || (order == 0 && name.len < later.len));
    }
    CHECK_INT(count, records->count);
}

TEST(records_are_what_was_last_set)
{
    kl__records records = {0};
    uint64_t versions[NAMES] = {0}, random = test_seed();
    for (uint64_t i = 1, ops = test_ops(RECORDS_OPS); i <= ops && !test_failed(); i++) {
        uint64_t number = kl__random_below(&random, NAMES), other = kl__random_below(&random, NAMES);
        char name[24];
        if (kl__random_below(&random, 3)) {
            set_record(&records, number, i);
            versions[number] = i;
        } else if (versions[number]) {
            kl__records_remove(&records, kl__records_find(&records, name_of(number, name)));
            versions[number] = 0;
        }
        check_record(&records, other, versions[other]);
        if (i % 1000 == 0)
            walk_records(&records);
    }
    walk_records(&records);
    kl__held_record *held;
    for (int64_t last_ms = 1; (held = kl__records_expired(&records, 60)) != NULL;) {
        CHECK(held->expires_ms >= last_ms && held->expires_ms == (int64_t)(held->version % 7) * 10);
        last_ms = held->expires_ms;
        CHECK(!kl__records_expired(&records, last_ms - 1));
        kl__records_remove(&records, held);
    }
    for (uint64_t number = 0; number < NAMES; number++)
        check_record(&records, number, versions[number] % 7 ? 0 : versions[number]);
    kl__records_free(&records);
    CHECK_INT(records.count, 0);
}

/* However many there are that have not, and in parts. */
TEST(records_that_have_expired_are_swept)
{
    enum { KEPT = 5000, EXPIRED = 300, PART = 256 };
    struct {
        kl__write_record write;
        char name[8];
    } named = {.write = {.header = {.type = KL_RECORD_WRITE, .bytes = sizeof named}, .name_bytes = 8}};
    kl__state state = {0};
    kl__segment segment = {.number = 1, .bytes = 1 << 20};
    REQUIRE(kl__state_open(&state) == KL_OK && kl__state_add_segment(&state, &segment));
    for (int i = 0; i < KEPT + EXPIRED; i++) {
        snprintf(named.name, sizeof named.name, "%07d", i);
        named.write.expires_ms = i >= KEPT ? 100 : i % 2 ? 101 : 0;
        CHECK_INT(kl__state_apply(&state, &named.write.header, (kl__where){1, 64 + (uint64_t)i * sizeof named}, 0),
                  KL_OK);
    }
    CHECK(!kl__state_sweep(&state, 99, PART));
    CHECK(kl__state_sweep(&state, 100, PART));
    CHECK_INT(state.records.count, KEPT + EXPIRED - PART);
    CHECK(!kl__state_sweep(&state, 100, PART));
    CHECK_INT(state.records.count, KEPT);
    CHECK_INT(state.live, KEPT * sizeof named);
    kl__free(segment.part_live);
    kl__state_close(&state);
}
