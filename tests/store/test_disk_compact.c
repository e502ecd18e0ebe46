/* test_disk_compact.c - what is copied out of old segments: all that is live, and nothing else; and the counts by which
 * it is found. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/random.h"
#include "disk_rig.h"
#include "store/disk/doctor.h"
#include "store/disk/format.h"
#include "store/disk/frames.h"
#include "store/disk/recover.h"

/* A batch is a frame of more than four parts, and three of them fill a segment. */
enum { SEGMENT = 1 << 20, BYTES = 200, FRAMES = 3, PER_SEGMENT = FRAMES * RIG_BATCH, SEGMENTS = 6 };
enum { COUNT = SEGMENTS * PER_SEGMENT };

/* ---- A journal, read again by the code that opens it ---- */

struct reading {
    kl__state state;
    kl__segments segments;
    kl__segment_image image;
    kl_rc rc;
};

static bool read_journal(struct reading *reading, const struct rig *rig)
{
    kl__recovered recovered;
    memset(reading, 0, sizeof *reading);
    reading->segments.vfs = &kl__vfs_system;
    reading->segments.state = &reading->state;
    snprintf(reading->segments.dir, sizeof reading->segments.dir, "%s", rig->journal);
    pthread_mutex_init(&reading->segments.files, NULL);
    pthread_mutex_init(&reading->segments.mutex, NULL);
    pthread_cond_init(&reading->segments.changed, NULL);
    CHECK_OK(kl__state_open(&reading->state));
    reading->state.kept_sequence = UINT64_MAX; /* history has everything */
    reading->rc = kl__recover(&reading->segments, &reading->state, &recovered);
    CHECK_OK(reading->rc);
    return reading->rc == KL_OK;
}

static void end_reading(struct reading *reading)
{
    kl__image_free(&reading->image);
    kl__segments_close(&reading->segments);
    kl__state_close(&reading->state);
}

typedef void visit_fn(void *ctx, const kl__record_header *record, kl__where where);

/* Every record of a segment, in order. */
static void visit(struct reading *reading, const kl__segment *segment, visit_fn *fn, void *ctx)
{
    const kl__frame *frame;
    CHECK_OK(kl__image_load(&kl__vfs_system, segment->file, &reading->image));
    for (uint64_t at = KL_SEGMENT_HEADER; (frame = kl__image_frame(&reading->image, at)) != NULL;
         at += KL_FRAME_HEADER + frame->bytes) {
        const kl__record_header *record = kl__frame_first(frame);
        for (uint32_t i = 0; i < frame->records; i++, record = kl__record_next(record))
            fn(ctx, record, (kl__where){segment->number, at + (uint64_t)((const char *)record - (const char *)frame)});
    }
}

/* ---- The counts ---- */

struct counts {
    kl__state *state;
    uint64_t live, *parts;
};

static void count_live(void *ctx, const kl__record_header *record, kl__where where)
{
    struct counts *counts = ctx;
    if (!kl__state_is_live(counts->state, record, where, 0))
        return;
    counts->live += record->bytes;
    if (record->type != KL_RECORD_TOKEN)
        counts->parts[where.offset / KL_PART_BYTES] += record->bytes;
}

/* By them a segment has what its records say, one by one. Returns how many parts hold something. */
static size_t check_segment(struct reading *reading, const kl__segment *segment)
{
    size_t parts = segment->bytes / KL_PART_BYTES + 1, used = 0;
    struct counts counts = {.state = &reading->state, .parts = calloc(parts, sizeof *counts.parts)};
    if (!counts.parts)
        abort();
    visit(reading, segment, count_live, &counts);
    CHECK_INT(segment->live, counts.live);
    for (size_t i = 0; i < parts; i++) {
        CHECK_INT(segment->part_live[i], counts.parts[i]);
        CHECK(kl__segment_has_live(segment, i * KL_PART_BYTES, (i + 1) * KL_PART_BYTES) == (counts.parts[i] > 0));
        used += counts.parts[i] > 0;
    }
    free(counts.parts);
    return used;
}

static size_t check_counts(const struct rig *rig)
{
    struct reading reading;
    size_t used = 0;
    if (read_journal(&reading, rig))
        for (size_t i = 0; i < reading.state.segment_count; i++)
            used += check_segment(&reading, reading.state.segments[i]);
    end_reading(&reading);
    return used;
}

/* ---- A journal with much that is dead ---- */

static kl_token token_of(uint64_t number)
{
    kl_token token = {{0}};
    memcpy(token.bytes, &number, sizeof number);
    return token;
}

/* Batches of RIG_BATCH, each with a token, and before the first of each segment a record. */
static void fill(struct rig *rig)
{
    kl_entry *entries = calloc(RIG_BATCH, sizeof *entries);
    for (uint64_t first = 0; entries && first < COUNT; first += RIG_BATCH) {
        kl_token token = token_of(first);
        kl_write write = {.name = {&first, sizeof first}, .value = {&first, sizeof first}};
        for (size_t i = 0; i < RIG_BATCH; i++)
            entries[i] = rig_entry(rig, first + i, BYTES);
        if (first % PER_SEGMENT == 0)
            CHECK_OK(kl_store_put(rig->store, &write, 1));
        CHECK_OK(kl_store_append(rig->store, entries, RIG_BATCH, &token));
    }
    free(entries);
}

/* Three in the middle of each frame, but none in the second of each segment, nor in a part that it begins or ends
 * in. */
static bool stays(uint64_t number)
{
    return number % RIG_BATCH / 3 == RIG_BATCH / 6 && number / RIG_BATCH % FRAMES != 1;
}

/* All others are settled by one call: before it everything was live, and behind it only these are. */
static void settle_others(struct rig *rig)
{
    kl_settled *settled = calloc(COUNT, sizeof *settled);
    kl_settle batches[RIG_SHARDS];
    size_t count = 0;
    for (uint32_t shard = 0; settled && shard < RIG_SHARDS; shard++) {
        batches[shard] = (kl_settle){.place = {rig->partition, shard}, .tasks = settled + count};
        for (uint64_t number = shard; number < COUNT; number += RIG_SHARDS)
            if (!stays(number))
                settled[count++] = (kl_settled){.id = rig_id(number), .outcome = KL_DONE, .attempts = 1};
        batches[shard].count = (size_t)(settled + count - batches[shard].tasks);
        CHECK_OK(
            rig_set_positions(rig, batches[shard].place, settled + count - batches[shard].count, batches[shard].count));
    }
    if (settled)
        CHECK_OK(kl_store_settle(rig->store, batches, RIG_SHARDS));
    free(settled);
}

static bool is_small(void *ctx) { return workdir_files(((struct rig *)ctx)->journal, "").bytes <= 3 * SEGMENT; }

static uint64_t check_tasks(struct rig *rig)
{
    uint64_t stayed = 0;
    for (uint64_t number = 0; number < COUNT; number++) {
        if (!stays(number))
            continue;
        CHECK(rig_is_whole(rig, number, BYTES));
        stayed++;
    }
    CHECK_INT(rig_waiting(rig), stayed);
    return stayed;
}

static void check_all_there(struct rig *rig)
{
    uint64_t stayed = check_tasks(rig);
    for (uint64_t first = 0; first < COUNT; first += RIG_BATCH) {
        kl_entry repeated = rig_entry(rig, first, BYTES);
        kl_token token = token_of(first);
        CHECK_OK(kl_store_append(rig->store, &repeated, 1, &token));
    }
    CHECK_INT(rig_waiting(rig), stayed); /* each token was known */
    for (uint64_t first = 0; first < COUNT; first += PER_SEGMENT) {
        kl_bytes name = {&first, sizeof first};
        kl_record record;
        CHECK_OK(kl_store_get(rig->store, &name, 1, &rig->arena, &record));
        CHECK(record.value.len == sizeof first && memcmp(record.value.data, &first, sizeof first) == 0);
    }
}

/* ---- Copying ---- */

struct moved {
    uint64_t stayed, others, tokens, records;
};

static void note_moved(void *ctx, const kl__record_header *record, kl__where where)
{
    struct moved *moved = ctx;
    (void)where;
    if (!(record->flags & KL_RECORD_MOVED))
        return;
    moved->tokens += record->type == KL_RECORD_TOKEN;
    moved->records += record->type == KL_RECORD_WRITE;
    if (record->type != KL_RECORD_ENTRY)
        return;
    kl_task_id id;
    memcpy(&id, ((const kl__entry_record *)(const void *)record)->id, sizeof id);
    *(stays(rig_number(&id)) ? &moved->stayed : &moved->others) += 1;
}

TEST(all_that_is_live_is_copied_and_nothing_else)
{
    struct rig rig;
    struct reading reading;
    struct moved moved = {0};
    REQUIRE(rig_begin(&rig, SEGMENT));
    fill(&rig);
    settle_others(&rig);
    CHECK(rig_await(is_small, &rig, "what is live is copied"));
    check_all_there(&rig);
    rig_close(&rig);
    if (read_journal(&reading, &rig))
        for (size_t i = 0; i < reading.state.segment_count; i++)
            visit(&reading, reading.state.segments[i], note_moved, &moved);
    end_reading(&reading);
    CHECK(moved.stayed > 0 && moved.tokens > 0 && moved.records > 0);
    CHECK_INT(moved.others, 0);
    CHECK_OK(rig_open(&rig));
    check_all_there(&rig);
    rig_end(&rig);
}

static void spoil(const struct rig *rig, const char *name, off_t offset)
{
    char path[sizeof rig->journal + 32];
    snprintf(path, sizeof path, "%s/%s", rig->journal, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0 && pwrite(fd, "spoiled", 7, offset) == 7);
    close(fd);
}

/* It need not be read. */
TEST(a_damaged_frame_in_which_nothing_is_live_keeps_no_segment)
{
    struct rig rig;
    REQUIRE(rig_begin(&rig, SEGMENT));
    fill(&rig);
    spoil(&rig, "0000000000000001.seg", RIG_BATCH * (BYTES + 80) * 3 / 2);
    settle_others(&rig);
    CHECK(rig_await(is_small, &rig, "what is live is copied"));
    CHECK(rig_reopen(&rig));
    check_all_there(&rig);
    rig_end(&rig);
}

/* ---- Counts ---- */

TEST(what_is_live_in_each_part_is_known_after_reading)
{
    struct rig rig;
    REQUIRE(rig_begin(&rig, SEGMENT));
    fill(&rig);
    rig_close(&rig);
    CHECK(check_counts(&rig) >= SEGMENTS * (size_t)(SEGMENT / KL_PART_BYTES * 3 / 4)); /* all is live */
    CHECK_OK(rig_open(&rig));
    settle_others(&rig);
    rig_close(&rig);
    CHECK(check_counts(&rig) > 0);
    CHECK_OK(rig_open(&rig));
    CHECK(rig_await(is_small, &rig, "what is live is copied"));
    rig_close(&rig);
    CHECK(check_counts(&rig) > 0);
    rig_end(&rig);
}

/* Retries, due tasks, large ones that begin in one part and end in another, and records that are written over. */
TEST(what_is_live_in_each_part_is_known_whatever_was_done)
{
    enum { ROUNDS = 40, EACH = 64, NAMES = 5 };
    struct rig rig;
    uint64_t random = test_seed(), versions[NAMES] = {0};
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    for (uint64_t round = 0; round < ROUNDS && !test_failed(); round++) {
        uint64_t first = round * EACH, name = round % NAMES;
        kl_write write = {.name = {&name, sizeof name},
                          .version = versions[name],
                          .value = {&round, 1 + kl__random_below(&random, sizeof round)}};
        rig_append_due(&rig, first, EACH, kl__random_below(&random, 4000), round % 3 ? 0 : KL_ID_MS_MAX - 1);
        rig_append(&rig, ROUNDS * EACH + round, 1, 100000);
        CHECK_OK(kl_store_put(rig.store, &write, 1));
        versions[name] = write.new_version;
        for (uint64_t number = first; number < first + EACH; number++) {
            static const kl_outcome outcomes[] = {KL_DONE, KL_DEAD, KL_RETRY};
            kl_settled settled = {.id = rig_id(number),
                                  .outcome = outcomes[kl__random_below(&random, 3)],
                                  .attempts = 1,
                                  .keep_ms = kl__random_below(&random, 2) ? 100000000 : 0};
            kl_settle batch = {.place = rig_place(&rig, number), .tasks = &settled, .count = 1};
            CHECK_OK(rig_set_positions(&rig, batch.place, &settled, 1));
            if (kl__random_below(&random, 4))
                CHECK_OK(kl_store_settle(rig.store, &batch, 1));
        }
        if (round % 8 == 7) {
            rig_close(&rig);
            CHECK(check_counts(&rig) > 0);
            CHECK_OK(rig_open(&rig));
        }
    }
    rig_end(&rig);
}

/* No copy is; but a journal that somebody has forged must not be believed halfway. */
TEST(a_copy_in_another_shard_takes_its_task_along)
{
    struct {
        kl__partition_record record;
        char name[8];
    } partition = {{{.bytes = sizeof partition, .type = KL_RECORD_PARTITION, .small = {1}}, .number = 1}, "forged"};
    kl__entry_record entry = {
        .header = {.bytes = sizeof entry, .sequence = 5, .type = KL_RECORD_ENTRY, .partition = 1, .shard = 1}};
    struct {
        kl__settle_record record;
        kl__settled_item item;
    } settle = {{{.bytes = sizeof settle, .type = KL_RECORD_SETTLE, .partition = 1, .shard = 2}, .count = 1},
                {.outcome = KL_DONE}};
    kl__segment segment = {.number = 1, .bytes = SEGMENT};
    kl__state state;
    CHECK_OK(kl__state_open(&state));
    CHECK(kl__state_add_segment(&state, &segment));
    CHECK_OK(kl__state_apply(&state, &partition.record.header, (kl__where){1, 64}, 0));
    CHECK_OK(kl__state_apply(&state, &entry.header, (kl__where){1, 128}, 0));
    entry.header.flags = KL_RECORD_MOVED;
    entry.header.shard = 2;
    CHECK_OK(kl__state_apply(&state, &entry.header, (kl__where){1, 2 * KL_PART_BYTES}, 0));
    CHECK(!kl__segment_has_live(&segment, 0, KL_PART_BYTES) && segment.part_live[2] == sizeof entry);
    CHECK_OK(kl__state_apply(&state, &settle.record.header, (kl__where){1, 3 * KL_PART_BYTES}, 0));
    CHECK(kl__stubs_count(state.stubs) == 0 && segment.live == 0);
    kl__free(segment.part_live);
    kl__state_close(&state);
}

/* ---- The spare ---- */

static bool has_spare(void *ctx) { return workdir_files(((struct rig *)ctx)->journal, "spare").count > 0; }

/* Beside the segment being written and the next there is none, however the store was closed. */
TEST(processes_that_come_and_go_leave_the_journal_within_its_bound)
{
    enum { PROCESSES = 40, TASKS = 200, LEFT = 10, TASK_BYTES = 1000 };
    struct rig rig;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    for (uint64_t process = 0; process < PROCESSES && !test_failed(); process++) {
        rig_append(&rig, process * TASKS, TASKS, TASK_BYTES);
        rig_settle(&rig, process * TASKS + LEFT, TASKS - LEFT);
        rig_close(&rig);
        kl__doctor_opts opts = {.vfs = &kl__vfs_system, .path = rig.data};
        kl__doctor_totals totals;
        CHECK_OK(kl__doctor_see(&opts, &totals));
        CHECK_INT(totals.waiting, (process + 1) * LEFT);
        CHECK(workdir_files(rig.journal, "").bytes <= 2 * totals.live_bytes + UINT64_C(2) * RIG_SEGMENT);
        CHECK_OK(rig_open(&rig));
        REQUIRE(rig.store);
    }
    rig_end(&rig);
}

TEST(no_spare_outlives_the_store)
{
    struct rig rig;
    char path[sizeof rig.journal + 32];
    REQUIRE(rig_begin(&rig, SEGMENT));
    fill(&rig);
    rig_settle(&rig, 0, COUNT);
    CHECK(rig_await(has_spare, &rig, "a dropped segment is kept for a while"));
    rig_close(&rig);
    CHECK(!has_spare(&rig));
    snprintf(path, sizeof path, "%s/spare", rig.journal); /* as a kill leaves it */
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, SEGMENT) == 0);
    close(fd);
    CHECK_OK(rig_open(&rig));
    CHECK(!has_spare(&rig));
    rig_end(&rig);
}
