/* test_pg_seen.c - what scans have shown is kept (seen.h), tested without a server: answers are made here. */
#include <stdio.h>
#include <stdlib.h>

#include "harness.h"
#include "store/postgres/seen.h"

enum { ROOM = 64, LARGE = 12 << 20 };
static const kl_place here = {3, 7}, elsewhere = {3, 8};

/* --- Answers as a server gives them --- */

static void put_word(char *to, uint32_t word)
{
    for (int i = 0; i < 4; i++)
        to[i] = (char)(word >> (24 - 8 * i));
}

/* An array of one element. */
static void set_array(PGresult *rows, int row, int column, const void *bytes, size_t length)
{
    char value[ROOM];
    memset(value, 0, 24);
    put_word(value, 1);
    put_word(value + 12, 1);
    put_word(value + 16, 1);
    put_word(value + 20, (uint32_t)length);
    memcpy(value + 24, bytes, length);
    if (!PQsetvalue(rows, row, column, value, (int)(24 + length)))
        abort();
}

static void set_task(PGresult *rows, int row, const kl_entry *entry)
{
    static unsigned char tasks[LARGE + ROOM];
    size_t bytes = kl__pg_pack(tasks, (char *)tasks + KL_PG_HEAD, 0, 0, entry);
    char one[4];
    put_word(one, 1);
    if (!PQsetvalue(rows, row, KL_PG_SHOWN_NUMBER, one, sizeof one) ||
        !PQsetvalue(rows, row, KL_PG_SHOWN_TASKS, (char *)tasks, (int)(KL_PG_HEAD + bytes)))
        abort();
}

static PGresult *make_answer(void)
{
    static char name[] = "c";
    PGresAttDesc columns[KL_PG_SHOWN_HIDDEN + 1];
    PGresult *rows = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
    for (int i = 0; i <= KL_PG_SHOWN_HIDDEN; i++)
        columns[i] = (PGresAttDesc){.name = name, .format = 1, .typlen = -1, .atttypmod = -1};
    if (!rows || !PQsetResultAttrs(rows, KL_PG_SHOWN_HIDDEN + 1, columns))
        abort();
    return rows;
}

static kl_stub stub_of(uint64_t position)
{
    kl_stub stub = {.position = position};
    memcpy(&stub.id, &position, sizeof position);
    return stub;
}

/* A row with one task of the ready line 0, which has a key, a group and a payload. */
static void add_row(PGresult *rows, const void *payload, size_t length)
{
    int row = PQntuples(rows);
    for (int i = 0; i <= KL_PG_SHOWN_HIDDEN; i++)
        if (!PQsetvalue(rows, row, i, NULL, -1))
            abort();
    set_array(rows, row, KL_PG_SHOWN_GROUPS, "\1\2", 2);
    set_task(rows, row, &(kl_entry){.key = kl_str("key"), .payload = {payload, length}});
}

/* As a scan does it: one answer with a row for each position. */
static void show(kl__pg_seen *seen, const uint64_t *positions, size_t count, const char *payload)
{
    PGresult *rows = make_answer();
    for (size_t i = 0; i < count; i++)
        add_row(rows, payload, strlen(payload));
    kl__pg_shown *shown = kl__pg_seen_begin(seen, rows);
    if (!shown)
        abort();
    for (size_t i = 0; i < count; i++) {
        kl_stub stub = stub_of(positions[i]);
        kl__pg_seen_add(seen, shown, (int)i, 0, here, &stub);
    }
    kl__pg_seen_end(seen, shown);
}

/* --- Asking --- */

static kl_ref ref_to(uint64_t position)
{
    return (kl_ref){.place = here, .id = stub_of(position).id, .position = position, .owned = true};
}

/* How many of the tasks are read, and the payload of the first. */
static size_t read_some(kl__pg_seen *seen, const kl_ref *refs, size_t count, char payload[ROOM])
{
    kl_arena arena = {0};
    kl_task tasks[ROOM];
    size_t found = 0;
    CHECK_INT(kl__pg_seen_read(seen, refs, count, &arena, tasks, &found), KL_OK);
    if (found > 0)
        snprintf(payload, ROOM, "%.*s", (int)tasks[0].entry.payload.len, (const char *)tasks[0].entry.payload.data);
    kl_arena_free(&arena);
    return found;
}

static size_t read_one(kl__pg_seen *seen, uint64_t position)
{
    char payload[ROOM];
    kl_ref ref = ref_to(position);
    return read_some(seen, &ref, 1, payload);
}

static bool take(kl__pg_seen *seen, kl_place place, uint64_t position)
{
    kl_settled settled = {.id = stub_of(position).id, .position = position};
    return kl__pg_seen_take(seen, &(kl_settle){.place = place, .tasks = &settled, .count = 1}, 1);
}

/* Positions of ready line 0 that stand in buckets of their own, most likely. */
static uint64_t position_of(uint64_t number) { return number << 16 | 16; }

TEST(an_owner_reads_what_a_scan_has_shown)
{
    kl__pg_seen *seen = kl__pg_seen_open();
    kl_arena arena = {0};
    uint64_t position = position_of(5);
    kl_ref ref = ref_to(position);
    kl_task task;
    size_t found = 0;
    REQUIRE(seen);
    show(seen, &position, 1, "some payload");
    CHECK_INT(kl__pg_seen_read(seen, &ref, 1, &arena, &task, &found), KL_OK);
    REQUIRE(found == 1);
    CHECK(kl__bytes_equal(task.entry.payload, kl_str("some payload")));
    CHECK(kl__bytes_equal(task.entry.key, kl_str("key")));
    CHECK_INT(task.entry.kind.len, 0);
    CHECK_INT(task.entry.group, 0x102);
    CHECK_INT(task.entry.priority, 0);
    CHECK_INT(task.entry.place.shard, here.shard);
    CHECK_INT(task.position, position);
    CHECK_INT(task.state, KL_TASK_WAITING);
    kl_arena_free(&arena);
    kl__pg_seen_close(seen);
}

TEST(who_does_not_own_a_shard_is_told_nothing_of_it)
{
    kl__pg_seen *seen = kl__pg_seen_open();
    uint64_t positions[] = {position_of(1), position_of(2)};
    char payload[ROOM];
    REQUIRE(seen);
    show(seen, positions, 2, "x");
    kl_ref refs[] = {ref_to(positions[0]), ref_to(positions[1])};
    refs[1].owned = false;
    CHECK_INT(read_some(seen, refs, 2, payload), 1);
    CHECK_INT(read_some(seen, &refs[1], 1, payload), 0);
    kl__pg_seen_close(seen);
}

TEST(reading_ends_at_the_first_that_is_not_here)
{
    kl__pg_seen *seen = kl__pg_seen_open();
    uint64_t positions[] = {position_of(1), position_of(2)};
    char payload[ROOM];
    REQUIRE(seen);
    show(seen, positions, 2, "x");
    kl_ref refs[] = {ref_to(positions[0]), ref_to(position_of(9)), ref_to(positions[1])};
    CHECK_INT(read_some(seen, refs, 3, payload), 1);
    kl_ref other = ref_to(positions[1]);
    other.place = elsewhere;
    CHECK_INT(read_some(seen, &other, 1, payload), 0);
    other = ref_to(positions[1]);
    other.id.bytes[15] = 1;
    CHECK_INT(read_some(seen, &other, 1, payload), 0);
    CHECK_INT(read_one(seen, positions[1]), 1);
    kl__pg_seen_close(seen);
}

TEST(bytes_are_given_once_and_the_task_stays_known)
{
    kl__pg_seen *seen = kl__pg_seen_open();
    uint64_t position = position_of(4);
    REQUIRE(seen);
    show(seen, &position, 1, "x");
    CHECK_INT(read_one(seen, position), 1);
    CHECK_INT(read_one(seen, position), 0);
    CHECK(take(seen, here, position));
    kl__pg_seen_close(seen);
}

TEST(a_settle_knows_what_was_shown_and_only_once)
{
    kl__pg_seen *seen = kl__pg_seen_open();
    uint64_t positions[] = {position_of(1), position_of(2)};
    REQUIRE(seen);
    show(seen, positions, 2, "x");
    CHECK(!take(seen, elsewhere, positions[0]));
    CHECK(take(seen, here, positions[0]));
    CHECK(!take(seen, here, positions[0]));
    CHECK_INT(read_one(seen, positions[0]), 0);
    kl_settled both[] = {{.id = stub_of(positions[0]).id, .position = positions[0]},
                         {.id = stub_of(positions[1]).id, .position = positions[1]}};
    CHECK(!kl__pg_seen_take(seen, &(kl_settle){.place = here, .tasks = both, .count = 2}, 1));
    CHECK(!take(seen, here, positions[1])); /* it went with the batch */
    kl__pg_seen_close(seen);
}

TEST(a_task_that_is_shown_again_has_the_newer_bytes)
{
    kl__pg_seen *seen = kl__pg_seen_open();
    uint64_t position = position_of(4);
    char payload[ROOM] = "";
    kl_ref ref = ref_to(position);
    REQUIRE(seen);
    show(seen, &position, 1, "older");
    show(seen, &position, 1, "newer");
    CHECK_INT(read_some(seen, &ref, 1, payload), 1);
    CHECK_STR(payload, "newer");
    CHECK(take(seen, here, position));
    CHECK(!take(seen, here, position));
    kl__pg_seen_close(seen);
}

TEST(where_there_is_no_place_left_the_lowest_position_goes)
{
    kl__pg_seen *seen = kl__pg_seen_open();
    uint64_t positions[9]; /* of one bucket, which has eight places */
    REQUIRE(seen);
    for (size_t i = 0; i < 9; i++)
        positions[i] = (UINT64_C(7) << 16) + i;
    show(seen, positions, 9, "x");
    CHECK(!take(seen, here, positions[0]));
    for (size_t i = 1; i < 9; i++)
        CHECK(take(seen, here, positions[i]));
    kl__pg_seen_close(seen);
}

TEST(of_more_bytes_than_are_kept_the_latest_stay)
{
    enum { ANSWERS = 6 };
    kl__pg_seen *seen = kl__pg_seen_open();
    char *payload = kl__alloc_zeroed(1, LARGE);
    REQUIRE(seen && payload);
    for (uint64_t i = 1; i <= ANSWERS; i++) {
        PGresult *rows = make_answer();
        kl_stub small = stub_of(position_of(i)), large = stub_of(position_of(i + ANSWERS));
        add_row(rows, "x", 1);
        add_row(rows, payload, LARGE);
        kl__pg_shown *shown = kl__pg_seen_begin(seen, rows);
        REQUIRE(shown);
        kl__pg_seen_add(seen, shown, 0, 0, here, &small);
        kl__pg_seen_add(seen, shown, 1, 0, here, &large);
        kl__pg_seen_end(seen, shown);
    }
    CHECK_INT(read_one(seen, position_of(1)), 0);
    for (uint64_t i = 2; i <= ANSWERS; i++)
        CHECK_INT(read_one(seen, position_of(i)), 1);
    for (uint64_t i = 1; i <= UINT64_C(2) * ANSWERS; i++)
        CHECK(take(seen, here, position_of(i)));
    kl__free(payload);
    kl__pg_seen_close(seen);
}

TEST(a_task_that_fills_a_row_alone_is_known_without_its_bytes)
{
    kl__pg_seen *seen = kl__pg_seen_open();
    PGresult *rows = make_answer();
    kl_stub stub = stub_of(position_of(1));
    char bytes[] = "\0\0\x20";
    REQUIRE(seen);
    add_row(rows, "", 0);
    REQUIRE(PQsetvalue(rows, 0, KL_PG_SHOWN_BYTES, bytes, 4));
    kl__pg_shown *shown = kl__pg_seen_begin(seen, rows);
    REQUIRE(shown);
    kl__pg_seen_add(seen, shown, 0, 0, here, &stub);
    kl__pg_seen_end(seen, shown);
    CHECK_INT(read_one(seen, stub.position), 0);
    CHECK(take(seen, here, stub.position));
    kl__pg_seen_close(seen);
}

TEST(what_is_cleared_is_known_no_more_and_its_places_are_free)
{
    kl__pg_seen *seen = kl__pg_seen_open();
    uint64_t positions[] = {position_of(1), position_of(2)};
    REQUIRE(seen);
    show(seen, positions, 2, "x");
    kl__pg_seen_clear(seen);
    for (size_t i = 0; i < 2; i++) {
        CHECK_INT(read_one(seen, positions[i]), 0);
        CHECK(!take(seen, here, positions[i]));
    }
    show(seen, positions, 1, "x");
    CHECK_INT(read_one(seen, positions[0]), 1);
    CHECK(take(seen, here, positions[0]));
    kl__pg_seen_close(seen);
}

TEST(without_memory_for_it_nothing_is_known)
{
    kl__pg_seen_clear(NULL);
    CHECK_INT(read_one(NULL, position_of(1)), 0);
    CHECK(!take(NULL, here, position_of(1)));
    CHECK(!kl__pg_seen_begin(NULL, NULL));
    kl__pg_seen_close(NULL);
}
