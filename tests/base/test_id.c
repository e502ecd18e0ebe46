/* test_id.c - what an id holds, and that a generator never steps back or repeats itself. */
#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/random.h"
#include "harness.h"
#include "keyline/id.h"

static const int64_t NEW_YEAR_2026 = 1767225600000;

static kl_layout digits(uint32_t prefix_len) { return (kl_layout){1, prefix_len}; }

static int64_t read_hand(void *ctx) { return atomic_load((_Atomic(int64_t) *)ctx); }

/* A generator whose clock is *hand. */
static kl_idgen *open_with(uint32_t prefix_len, _Atomic(int64_t) *hand, uint64_t seed)
{
    kl_layout layout = digits(prefix_len);
    kl_idgen_opts opts = {.size = sizeof opts, .now_ms = read_hand, .now_ctx = hand, .seed = seed};
    kl_idgen *idgen = NULL;
    CHECK_INT(kl_idgen_open(&layout, &opts, &idgen), KL_OK);
    return idgen;
}

static kl_id_parts random_parts(const kl_layout *layout, uint64_t *random)
{
    kl_id_parts parts = {
        .shard = (uint32_t)kl__random_below(random, kl_layout_shards(layout)),
        .sequence = (uint32_t)kl__random_below(random, UINT64_C(1) << (28 - 4 * layout->shard_prefix_len)),
        .ms = (int64_t)kl__random_below(random, KL_ID_MS_MAX + 1),
        .lane = (uint32_t)kl__random_below(random, KL_LANE_MAX + 1),
        .random = (uint32_t)kl__random_below(random, KL_ID_RANDOM_MAX + 1),
    };
    return parts;
}

static kl_task_id packed(const kl_layout *layout, kl_id_parts parts)
{
    kl_task_id id = {{0}};
    CHECK_INT(kl_id_pack(layout, &parts, &id), KL_OK);
    return id;
}

TEST(an_id_gives_back_what_was_put_in)
{
    uint64_t random = test_seed();
    for (uint64_t i = 0; i < test_ops(100000); i++) {
        kl_layout layout = digits(1 + (uint32_t)(i % 4));
        kl_id_parts in = random_parts(&layout, &random);
        kl_task_id id = packed(&layout, in);
        kl_id_parts out = kl_id_unpack(&layout, &id);
        CHECK_INT(out.shard, in.shard);
        CHECK_INT(out.ms, in.ms);
        CHECK_INT(out.sequence, in.sequence);
        CHECK_INT(out.lane, in.lane);
        CHECK_INT(out.random, in.random);
        CHECK(id.bytes[6] >> 4 == 8 && id.bytes[8] >> 6 == 2);
    }
}

TEST(an_id_begins_with_the_name_of_its_shard)
{
    uint64_t random = test_seed();
    for (uint64_t i = 0; i < test_ops(20000); i++) {
        kl_layout layout = digits(1 + (uint32_t)(i % 4));
        kl_id_parts parts = random_parts(&layout, &random);
        kl_task_id id = packed(&layout, parts);
        char text[KL_ID_TEXT_BYTES], name[KL_SHARD_NAME_BYTES];
        kl_id_print(&id, text);
        kl_shard_name(&layout, parts.shard, name);
        CHECK(strncmp(text, name, strlen(name)) == 0);
    }
}

static int sign(int64_t a, int64_t b) { return (a > b) - (a < b); }

/* The order that ids promise, from their parts. Beyond the sequence only equality matters. */
static int order_of(kl_id_parts a, kl_id_parts b)
{
    int order = sign(a.shard, b.shard);
    order = order ? order : sign(a.ms, b.ms);
    order = order ? order : sign(a.sequence, b.sequence);
    order = order ? order : sign(a.lane, b.lane);
    return order ? order : sign(a.random, b.random);
}

TEST(ids_sort_by_shard_then_time_then_sequence_as_bytes_and_as_text)
{
    uint64_t random = test_seed();
    for (uint64_t i = 0; i < test_ops(100000); i++) {
        kl_layout layout = digits(1 + (uint32_t)(i % 4));
        kl_id_parts a = random_parts(&layout, &random), b = random_parts(&layout, &random);
        b.shard = kl__random_below(&random, 4) ? a.shard : b.shard; /* make ties frequent */
        b.ms = kl__random_below(&random, 2) ? a.ms : b.ms;
        b.sequence = kl__random_below(&random, 2) ? a.sequence : b.sequence;
        kl_task_id id_a = packed(&layout, a), id_b = packed(&layout, b);
        char text_a[KL_ID_TEXT_BYTES], text_b[KL_ID_TEXT_BYTES];
        kl_id_print(&id_a, text_a);
        kl_id_print(&id_b, text_b);
        CHECK_INT(sign(kl_id_compare(&id_a, &id_b), 0), order_of(a, b));
        CHECK_INT(sign(strcmp(text_a, text_b), 0), order_of(a, b));
        CHECK_INT(kl_id_compare(&id_a, &id_a), 0);
    }
}

TEST(a_part_too_big_for_its_place_is_refused)
{
    for (uint32_t len = 1; len <= 4; len++) {
        kl_layout layout = digits(len);
        kl_id_parts top = {kl_layout_shards(&layout) - 1, (1u << (28 - 4 * len)) - 1, KL_ID_MS_MAX, KL_LANE_MAX,
                           KL_ID_RANDOM_MAX};
        kl_id_parts wrong[] = {top, top, top, top, top, top};
        static const char *const names[] = {"shard", "sequence", "ms", "ms", "lane", "random"};
        wrong[0].shard++;
        wrong[1].sequence++;
        wrong[2].ms++;
        wrong[3].ms = -1;
        wrong[4].lane++;
        wrong[5].random++;
        kl_task_id id = packed(&layout, top), same = id;
        for (int i = 0; i < 6; i++) {
            char start[32];
            snprintf(start, sizeof start, "the id's %s is", names[i]);
            CHECK_INT(kl_id_pack(&layout, &wrong[i], &id), KL_EINVAL);
            CHECK_CONTAINS(kl_error_text(), start);
            CHECK_INT(kl_id_compare(&id, &same), 0);
        }
    }
}

TEST(text_is_read_in_either_case_and_printed_in_lower)
{
    uint64_t random = test_seed();
    for (uint64_t i = 0; i < test_ops(20000); i++) {
        kl_layout layout = digits(1 + (uint32_t)(i % 4));
        kl_task_id id = packed(&layout, random_parts(&layout, &random)), back = {{0}};
        char text[KL_ID_TEXT_BYTES], upper[KL_ID_TEXT_BYTES];
        kl_id_print(&id, text);
        for (size_t c = 0; c < sizeof text; c++)
            upper[c] = (char)toupper((unsigned char)text[c]);
        CHECK_INT(strlen(text), 36);
        CHECK_INT(kl_id_parse(kl_str(text), &back), KL_OK);
        CHECK_INT(kl_id_compare(&id, &back), 0);
        CHECK_INT(kl_id_parse((kl_bytes){upper, 36}, &back), KL_OK);
        CHECK_INT(kl_id_compare(&id, &back), 0);
    }
}

TEST(what_is_not_a_task_id_is_refused)
{
    static const struct {
        const char *text, *why;
    } wrong[] = {
        {"", "write its 36 characters"},
        {"3019e0c2-a1b4-8c55-8f00-12ab34cd56e", "write its 36 characters"},
        {"3019e0c2-a1b4-8c55-8f00-12ab34cd56ef0", "write its 36 characters"},
        {"3019e0c2a1b48c558f0012ab34cd56ef", "write its 36 characters"},
        {"{019e0c2-a1b4-8c55-8f00-12ab34cd56e}", "only the digits 0-9 and a-f"},
        {"3019e0c2-a1b4-8c55-8f00-12ab34cd56eg", "only the digits 0-9 and a-f"},
        {"3019e0c2-a1b4-8c55-8f00-12ab-4cd56ef", "only the digits 0-9 and a-f"},
        {"3019e0c2aa1b4-8c55-8f00-12ab34cd56ef", "write hyphens as in"},
        {"3019e0c2-a1b4-8c55-8f00012ab34cd56ef", "write hyphens as in"},
        {"3019e0c2-a1b4-4c55-8f00-12ab34cd56ef", "another version; the 15th character"},
        {"3019e0c2-a1b4-7c55-8f00-12ab34cd56ef", "another version"},
        {"3019e0c2-a1b4-8c55-cf00-12ab34cd56ef", "another variant; the 20th character"},
        {"3019e0c2-a1b4-8c55-0f00-12ab34cd56ef", "another variant"},
        {"00000000-0000-0000-0000-000000000000", "another version"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        kl_task_id id = {{7}};
        CHECK_INT(kl_id_parse(kl_str(wrong[i].text), &id), KL_EINVAL);
        CHECK_CONTAINS(kl_error_text(), wrong[i].why);
        CHECK_INT(id.bytes[0], 7);
    }
    kl_task_id id;
    CHECK_INT(kl_id_parse(kl_str("3019e0c2-a1b4-8c55-8f00-12ab34cd56ef"), &id), KL_OK);
}

TEST(a_new_id_tells_shard_time_and_lane)
{
    _Atomic(int64_t) hand = NEW_YEAR_2026;
    for (uint32_t len = 1; len <= 4; len++) {
        kl_layout layout = digits(len);
        kl_idgen *idgen = open_with(len, &hand, 0);
        kl_task_id id;
        REQUIRE(kl_idgen_next(idgen, 11, 0xabcdef, &id) == KL_OK);
        CHECK_INT(kl_id_shard(&layout, &id), 11);
        CHECK_INT(kl_id_ms(&layout, &id), NEW_YEAR_2026);
        CHECK_INT(kl_id_lane(&id), 0xabcdef);
        CHECK(id.bytes[6] >> 4 == 8 && id.bytes[8] >> 6 == 2);
        kl_idgen_close(idgen);
    }
}

/* A clock that mostly stands, often steps, and sometimes leaps, forward and back. */
static void move_hand(_Atomic(int64_t) *hand, uint64_t *random)
{
    static const int64_t reach[] = {0, 0, 0, 0, 0, 1, 2, 1000, 3600000};
    int64_t most = reach[kl__random_below(random, sizeof reach / sizeof reach[0])];
    int64_t step = (int64_t)kl__random_below(random, (uint64_t)(2 * most + 1)) - most;
    atomic_store(hand, atomic_load(hand) + step);
}

TEST(ids_of_a_shard_increase_whatever_the_clock_does)
{
    uint64_t random = test_seed();
    static kl_task_id last[KL_SHARDS_MAX];
    for (uint32_t len = 1; len <= 4; len++) {
        kl_layout layout = digits(len);
        _Atomic(int64_t) hand = NEW_YEAR_2026;
        kl_idgen *idgen = open_with(len, &hand, random | 1);
        memset(last, 0, sizeof last);
        for (uint64_t i = 0; i < test_ops(200000); i++) {
            uint32_t shard = (uint32_t)kl__random_below(&random, kl_layout_shards(&layout));
            kl_task_id id;
            move_hand(&hand, &random);
            REQUIRE(kl_idgen_next(idgen, shard, 5, &id) == KL_OK);
            CHECK(kl_id_compare(&id, &last[shard]) > 0);
            CHECK(kl_id_ms(&layout, &id) >= atomic_load(&hand));
            CHECK_INT(kl_id_shard(&layout, &id), shard);
            last[shard] = id;
        }
        kl_idgen_close(idgen);
    }
}

TEST(a_used_up_sequence_borrows_from_the_next_millisecond)
{
    enum { IDS = 3 * 4096 }; /* with 4 digits a millisecond has 4096 */
    kl_layout layout = digits(4);
    _Atomic(int64_t) hand = NEW_YEAR_2026;
    kl_idgen *idgen = open_with(4, &hand, 0);
    kl_task_id id = {{0}}, last;
    for (int i = 0; i < IDS; i++) {
        last = id;
        REQUIRE(kl_idgen_next(idgen, 9, 0, &id) == KL_OK);
        CHECK(kl_id_compare(&id, &last) > 0);
    }
    int64_t borrowed = kl_id_ms(&layout, &id) - NEW_YEAR_2026;
    CHECK(borrowed == 3 || borrowed == 2); /* the first millisecond started in its lower half */
    atomic_store(&hand, NEW_YEAR_2026 + 10);
    REQUIRE(kl_idgen_next(idgen, 9, 0, &id) == KL_OK);
    CHECK_INT(kl_id_ms(&layout, &id), NEW_YEAR_2026 + 10);
    kl_idgen_close(idgen);
}

TEST(ids_spread_over_many_shards_borrow_no_time)
{
    enum { EACH = 4 }; /* all in one slot they would use up 64 milliseconds */
    kl_layout layout = digits(4);
    _Atomic(int64_t) hand = NEW_YEAR_2026;
    kl_idgen *idgen = open_with(4, &hand, 0);
    for (uint32_t i = 0; i < EACH * KL_SHARDS_MAX; i++) {
        kl_task_id id;
        REQUIRE(kl_idgen_next(idgen, i % KL_SHARDS_MAX, 0, &id) == KL_OK);
        CHECK_INT(kl_id_ms(&layout, &id), NEW_YEAR_2026);
    }
    kl_idgen_close(idgen);
}

TEST(a_batch_is_ascending_and_in_one_piece)
{
    enum { BATCH = 5000 };
    static kl_task_id ids[BATCH + 2];
    static uint32_t lanes[BATCH];
    for (uint32_t i = 0; i < BATCH; i++)
        lanes[i] = i;
    for (uint32_t len = 1; len <= 4; len++) {
        _Atomic(int64_t) hand = NEW_YEAR_2026;
        kl_idgen *idgen = open_with(len, &hand, 0);
        REQUIRE(kl_idgen_next(idgen, 3, 0, &ids[0]) == KL_OK);
        REQUIRE(kl_idgen_batch(idgen, 3, lanes, BATCH, ids + 1) == KL_OK);
        REQUIRE(kl_idgen_next(idgen, 3, 0, &ids[BATCH + 1]) == KL_OK);
        for (uint32_t i = 1; i < BATCH + 2; i++)
            CHECK(kl_id_compare(&ids[i - 1], &ids[i]) < 0);
        for (uint32_t i = 0; i < BATCH; i++)
            CHECK_INT(kl_id_lane(&ids[i + 1]), i);
        REQUIRE(kl_idgen_batch(idgen, 3, NULL, 10, ids) == KL_OK);
        CHECK_INT(kl_id_lane(&ids[9]), 0);
        CHECK_INT(kl_idgen_batch(idgen, 3, NULL, 0, NULL), KL_OK);
        kl_idgen_close(idgen);
    }
}

TEST(a_generator_refuses_what_its_layout_does_not_have)
{
    _Atomic(int64_t) hand = NEW_YEAR_2026;
    kl_idgen *idgen = open_with(1, &hand, 0);
    kl_task_id id = {{7}};
    uint32_t lanes[] = {1, KL_LANE_MAX + 1};
    CHECK_INT(kl_idgen_next(idgen, 16, 0, &id), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "there is no shard 16: this queue has 16");
    CHECK_INT(kl_idgen_next(idgen, 0, KL_LANE_MAX + 1, &id), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "there is no lane 16777216");
    CHECK_INT(kl_idgen_batch(idgen, 0, lanes, 2, &id), KL_EINVAL);
    CHECK_INT(kl_idgen_batch(idgen, 0, NULL, KL_IDGEN_BATCH_MAX + 1, &id), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "65537 ids are too many");
    CHECK_INT(id.bytes[0], 7);
    kl_idgen_close(idgen);
}

TEST(ids_end_in_2527_with_a_sentence_and_go_on_when_the_clock_is_set)
{
    for (uint32_t len = 1; len <= 4; len++) {
        _Atomic(int64_t) hand = KL_ID_MS_MAX;
        kl_layout layout = digits(len);
        kl_idgen *idgen = open_with(len, &hand, 0);
        kl_task_id id;
        CHECK_INT(kl_idgen_next(idgen, 0, 0, &id), KL_ESYSTEM);
        CHECK_CONTAINS(kl_error_text(), "set the clock");
        atomic_store(&hand, INT64_MAX);
        CHECK_INT(kl_idgen_next(idgen, 0, 0, &id), KL_ESYSTEM);
        atomic_store(&hand, NEW_YEAR_2026);
        CHECK_INT(kl_idgen_next(idgen, 0, 0, &id), KL_OK);
        CHECK_INT(kl_id_ms(&layout, &id), NEW_YEAR_2026);
        kl_idgen_close(idgen);
    }
}

TEST(the_last_ids_of_all_are_still_in_order)
{
    _Atomic(int64_t) hand = KL_ID_MS_MAX - 1;
    kl_idgen *idgen = open_with(4, &hand, 0);
    kl_task_id id = {{0}}, last = {{0}};
    int made = 0;
    while (made < 10000 && kl_idgen_next(idgen, 0, 0, &id) == KL_OK) {
        CHECK(kl_id_compare(&id, &last) > 0);
        last = id;
        made++;
    }
    CHECK(made >= 2048 && made <= 4096);
    CHECK_INT(kl_idgen_next(idgen, 0, 0, &id), KL_ESYSTEM);
    kl_idgen_close(idgen);
}

TEST(a_clock_before_1970_still_gives_ids_in_order)
{
    _Atomic(int64_t) hand = -5;
    kl_layout layout = digits(2);
    kl_idgen *idgen = open_with(2, &hand, 0);
    kl_task_id id, later;
    REQUIRE(kl_idgen_next(idgen, 0, 0, &id) == KL_OK);
    REQUIRE(kl_idgen_next(idgen, 0, 0, &later) == KL_OK);
    CHECK_INT(kl_id_ms(&layout, &id), 0);
    CHECK(kl_id_compare(&id, &later) < 0);
    kl_idgen_close(idgen);
}

TEST(two_producers_of_one_moment_differ_in_sequence_already)
{
    enum { PRODUCERS = 64 };
    for (uint32_t len = 1; len <= 4; len++) {
        kl_layout layout = digits(len);
        uint32_t sequences[PRODUCERS], alike = 0;
        for (uint32_t i = 0; i < PRODUCERS; i++) {
            _Atomic(int64_t) hand = NEW_YEAR_2026;
            kl_idgen *idgen = open_with(len, &hand, test_seed() + i + 1);
            kl_task_id id;
            REQUIRE(kl_idgen_next(idgen, 0, 0, &id) == KL_OK);
            sequences[i] = kl_id_sequence(&layout, &id);
            for (uint32_t j = 0; j < i; j++)
                alike += sequences[i] == sequences[j];
            kl_idgen_close(idgen);
        }
        CHECK(alike <= 20); /* of 2016 pairs; with 2048 places to start from, one is expected */
    }
}

TEST(one_seed_and_one_clock_give_the_same_ids)
{
    _Atomic(int64_t) hand = NEW_YEAR_2026;
    kl_idgen *one = open_with(2, &hand, 42), *two = open_with(2, &hand, 42);
    for (uint32_t i = 0; i < 1000; i++) {
        kl_task_id a, b;
        atomic_fetch_add(&hand, i % 3);
        REQUIRE(kl_idgen_next(one, i % 256, i, &a) == KL_OK);
        REQUIRE(kl_idgen_next(two, i % 256, i, &b) == KL_OK);
        CHECK_INT(kl_id_compare(&a, &b), 0);
    }
    kl_idgen_close(one);
    kl_idgen_close(two);
}

TEST(a_generator_opens_with_defaults_and_without_memory_not_at_all)
{
    kl_layout layout = digits(1);
    kl_idgen *idgen = NULL;
    kl_idgen_opts unsized = {0};
    kl_task_id id;
    CHECK_INT(kl_idgen_open(&layout, &unsized, &idgen), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "sizeof(kl_idgen_opts)");
    kl__alloc_fail_at(1);
    CHECK_INT(kl_idgen_open(&layout, NULL, &idgen), KL_ENOMEM);
    kl__alloc_fail_at(0);
    CHECK(!idgen);
    REQUIRE(kl_idgen_open(&layout, NULL, &idgen) == KL_OK);
    REQUIRE(kl_idgen_next(idgen, 1, 1, &id) == KL_OK);
    CHECK(kl_id_ms(&layout, &id) >= NEW_YEAR_2026 - INT64_C(31536000000)); /* the wall clock says 2025 or later */
    kl_idgen_close(idgen);
    kl_idgen_close(NULL);
}

enum { THREADS = 6, SHARDS = 16 };

/* What the threads of the test below share. `newest` is the greatest id that any of them has told the others of. */
struct shared {
    kl_idgen *idgen;
    _Atomic(int64_t) hand;
    pthread_mutex_t mutex;
    kl_task_id newest[SHARDS];
};

struct producer {
    struct shared *shared;
    uint64_t random;
    uint64_t count;
    kl_task_id *ids;
};

static kl_task_id told(struct shared *shared, uint32_t shard)
{
    pthread_mutex_lock(&shared->mutex);
    kl_task_id id = shared->newest[shard];
    pthread_mutex_unlock(&shared->mutex);
    return id;
}

static void tell(struct shared *shared, uint32_t shard, kl_task_id id)
{
    pthread_mutex_lock(&shared->mutex);
    if (kl_id_compare(&id, &shared->newest[shard]) > 0)
        shared->newest[shard] = id;
    pthread_mutex_unlock(&shared->mutex);
}

/* Makes ids one by one and in batches, and moves the clock. Half of the time it talks to the others, half of the time
 * it runs free of their pace. */
static void *produce(void *ctx)
{
    struct producer *me = ctx;
    kl_task_id last[SHARDS] = {{{0}}};
    for (uint64_t done = 0, n; done < me->count; done += n) {
        uint32_t shard = (uint32_t)kl__random_below(&me->random, SHARDS);
        bool talk = kl__random_below(&me->random, 2);
        n = kl__random_below(&me->random, 4) ? 1 : 1 + kl__random_below(&me->random, 8);
        n = n < me->count - done ? n : me->count - done;
        move_hand(&me->shared->hand, &me->random);
        kl_task_id before = talk ? told(me->shared, shard) : last[shard];
        if (kl_idgen_batch(me->shared->idgen, shard, NULL, n, me->ids + done) != KL_OK)
            test_fail(__FILE__, __LINE__, "%s", kl_error_text());
        CHECK(kl_id_compare(&me->ids[done], &before) > 0);
        CHECK(kl_id_compare(&me->ids[done], &last[shard]) > 0);
        last[shard] = me->ids[done + n - 1];
        if (talk)
            tell(me->shared, shard, last[shard]);
    }
    return NULL;
}

static int compare_ids(const void *a, const void *b) { return kl_id_compare(a, b); }

static void check_distinct(const kl_layout *layout, kl_task_id *ids, size_t count)
{
    size_t same_number = 0;
    qsort(ids, count, sizeof *ids, compare_ids);
    for (size_t i = 1; i < count; i++) {
        kl_id_parts a = kl_id_unpack(layout, &ids[i - 1]), b = kl_id_unpack(layout, &ids[i]);
        CHECK(kl_id_compare(&ids[i - 1], &ids[i]) != 0);
        /* Not the random bits may tell them apart. With 1 digit the last 4 bits of the sequence are random too. */
        same_number += a.shard == b.shard && a.ms == b.ms &&
                       a.sequence >> (layout->shard_prefix_len == 1 ? 4 : 0) ==
                           b.sequence >> (layout->shard_prefix_len == 1 ? 4 : 0);
    }
    CHECK_INT(same_number, 0);
}

static void run_producers(uint32_t prefix_len, uint64_t each)
{
    static struct shared shared;
    struct producer producers[THREADS];
    pthread_t threads[THREADS];
    kl_layout layout = digits(prefix_len);
    kl_task_id *ids = calloc(THREADS * each, sizeof *ids);
    REQUIRE(ids);
    memset(shared.newest, 0, sizeof shared.newest);
    atomic_store(&shared.hand, NEW_YEAR_2026);
    shared.idgen = open_with(prefix_len, &shared.hand, 0);
    pthread_mutex_init(&shared.mutex, NULL);
    for (uint64_t i = 0; i < THREADS; i++) {
        producers[i] = (struct producer){&shared, test_seed() + i, each, ids + i * each};
        REQUIRE(pthread_create(&threads[i], NULL, produce, &producers[i]) == 0);
    }
    for (uint64_t i = 0; i < THREADS; i++)
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    check_distinct(&layout, ids, THREADS * each);
    pthread_mutex_destroy(&shared.mutex);
    kl_idgen_close(shared.idgen);
    free(ids);
}

TEST(threads_get_no_id_twice_and_each_shard_in_order)
{
    for (uint32_t len = 1; len <= 4; len++)
        run_producers(len, test_ops(100000));
}
