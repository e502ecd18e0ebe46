/* test_disk_aside.c - a damaged segment does not keep those behind it: what is sound in it is copied, and it goes to
 * quarantine/. */
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "disk_rig.h"
#include "store/disk/disk.h"
#include "store/disk/doctor.h"
#include "store/disk/format.h"

/* Each batch is a frame; the first segment holds three, and one task of each is to stay. */
enum { SEGMENT = 1 << 20, BYTES = 200, BATCHES = 18, COUNT = BATCHES * RIG_BATCH, STAYS = RIG_BATCH / 2 };
enum { SPOILED = STAYS, DUE = COUNT, RETRIED = COUNT + 1, LAST = COUNT + 2 };

static bool stays(uint64_t number) { return number % RIG_BATCH == STAYS || number >= COUNT; }

/* Tasks in the first segment besides: one that is due late, and one that was tried. And a token, and a record. */
static void fill(struct rig *rig)
{
    kl_token token = {{7}};
    kl_entry entry = rig_entry(rig, RETRIED, BYTES);
    kl_write write = {.name = kl_str("name"), .value = kl_str("value")};
    kl_settled settled = {.id = entry.id, .outcome = KL_RETRY, .attempts = 3, .due_ms = KL_ID_MS_MAX - 5};
    kl_settle batch = {.place = entry.place, .tasks = &settled, .count = 1};
    CHECK_OK(kl_store_append(rig->store, &entry, 1, &token));
    CHECK_OK(rig_set_positions(rig, entry.place, &settled, 1));
    CHECK_OK(kl_store_settle(rig->store, &batch, 1));
    CHECK_OK(kl_store_put(rig->store, &write, 1));
    rig_append_due(rig, DUE, 1, BYTES, KL_ID_MS_MAX - 1);
    rig_append(rig, 0, COUNT, BYTES);
}

static void settle_others(struct rig *rig)
{
    for (uint64_t first = 0; first < COUNT; first += RIG_BATCH) {
        rig_settle(rig, first, STAYS);
        rig_settle(rig, first + STAYS + 1, RIG_BATCH - STAYS - 1);
    }
}

/* Writes over the middle of the task's payload in the first segment. */
static void spoil(const struct rig *rig, uint64_t number)
{
    static char bytes[SEGMENT];
    char path[sizeof rig->journal + 32];
    kl_task_id id = rig_id(number);
    snprintf(path, sizeof path, "%s/%016x.seg", rig->journal, 1);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    REQUIRE(fd >= 0 && read(fd, bytes, sizeof bytes) == sizeof bytes);
    bool is_found = false;
    for (off_t at = 0; !is_found && at + (off_t)sizeof(kl__entry_record) < SEGMENT; at += 8) {
        const kl__entry_record *entry = (const void *)(bytes + at);
        is_found = entry->header.type == KL_RECORD_ENTRY && memcmp(entry->id, &id, sizeof id) == 0;
        if (is_found)
            CHECK(pwrite(fd, "spoiled", 7, at + (off_t)sizeof *entry + BYTES / 2) == 7);
    }
    CHECK(is_found);
    close(fd);
}

static kl_rc read_task(struct rig *rig, uint64_t number, kl_task *ret_task)
{
    size_t count = 0;
    kl_ref ref = {.place = rig_place(rig, number), .id = rig_id(number)};
    return kl_store_read(rig->store, &ref, 1, &rig->arena, ret_task, &count);
}

static bool is_spoiled(uint64_t number) { return number == SPOILED || number == DUE || number == RETRIED; }

/* Whatever was spoiled waits still, in its place, and is not given; all else is as it was. */
static void check_all(struct rig *rig)
{
    uint64_t stayed = 0;
    kl_task task;
    for (uint64_t number = 0; number < LAST; number++) {
        if (!stays(number))
            continue;
        stayed++;
        if (is_spoiled(number))
            CHECK_INT(read_task(rig, number, &task), KL_EDAMAGED);
        else
            CHECK(rig_is_whole(rig, number, BYTES));
    }
    kl_counts counts;
    CHECK_OK(kl_store_counts(rig->store, (kl_place){rig->partition, KL_ALL_SHARDS}, NULL, &counts));
    CHECK_INT(counts.ready, stayed - 2);
    CHECK_INT(counts.due, 1);
    CHECK_INT(counts.retry, 1);
    kl_stub stub = {0};
    kl_scan scan = {.place = rig_place(rig, RETRIED), .line = KL_LINE_RETRY, .stubs = &stub, .max = 1};
    CHECK_OK(kl_store_scan(rig->store, &scan, 1));
    CHECK_INT(scan.count, 1);
    CHECK_INT(stub.attempts, 3);
    CHECK_INT(stub.due_ms, KL_ID_MS_MAX - 5);
    kl_token token = {{7}};
    kl_entry repeated = rig_entry(rig, LAST, BYTES);
    CHECK_OK(kl_store_append(rig->store, &repeated, 1, &token)); /* it is known, so this is not put */
    kl_record record;
    kl_bytes name = kl_str("name");
    CHECK_OK(kl_store_get(rig->store, &name, 1, &rig->arena, &record));
    CHECK(record.value.len == 5 && memcmp(record.value.data, "value", 5) == 0);
    CHECK_INT(rig_waiting(rig), stayed);
}

static bool is_small(void *ctx)
{
    return workdir_files(((struct rig *)ctx)->journal, "").bytes <= UINT64_C(3) * SEGMENT;
}

/* What is done about quarantine/, and when. */
static struct {
    char data[WORKDIR_BYTES + 8];
    atomic_bool is_made, is_durable, is_used, was_used_early;
} noted;

/* On this file system; NULL: the machine's. */
static bool make(struct rig *rig, kl__vfs *vfs)
{
    if (!rig_begin(rig, SEGMENT))
        return false;
    fill(rig);
    rig_close(rig); /* what was appended is not in memory any more */
    snprintf(noted.data, sizeof noted.data, "%s", rig->data);
    if (vfs)
        CHECK_OK(kl__disk_open_on(vfs, rig->data, &rig->opts, &rig->store));
    if (vfs && rig->store)
        CHECK_OK(kl_store_partition(rig->store, "rig", 1, &rig->partition));
    if (!vfs)
        CHECK_OK(rig_open(rig));
    if (!rig->store)
        return false;
    spoil(rig, SPOILED);
    spoil(rig, DUE);
    spoil(rig, RETRIED);
    settle_others(rig);
    return rig_await(is_small, rig, "the journal is copied, and nothing keeps it");
}

TEST(damaged_tasks_wait_on_and_keep_no_segment)
{
    struct rig rig;
    char quarantine[sizeof rig.data + 16], path[sizeof quarantine + 32];
    struct stat about = {0};
    kl__doctor_totals totals;
    if (make(&rig, NULL)) {
        check_all(&rig);
        snprintf(quarantine, sizeof quarantine, "%s/quarantine", rig.data);
        snprintf(path, sizeof path, "%s/%016x.seg-1", quarantine, 1);
        CHECK_INT(workdir_files(quarantine, "").count, 1);
        CHECK(stat(path, &about) == 0 && about.st_size == SEGMENT);
        rig_close(&rig);
        kl__doctor_opts opts = {.vfs = &kl__vfs_system, .path = rig.data};
        CHECK_OK(kl__doctor_see(&opts, &totals));
        CHECK_INT(totals.damages, 0);
        CHECK_OK(rig_open(&rig));
        check_all(&rig);
    }
    rig_end(&rig);
}

TEST(what_came_of_a_damaged_task_is_kept_when_its_segment_is_gone)
{
    struct rig rig;
    kl_task task = {0};
    if (make(&rig, NULL) && rig_reopen(&rig)) {
        kl_settled settled = {.id = rig_id(SPOILED), .attempts = 1, .keep_ms = 1000000, .result = kl_str("result")};
        kl_settle batch = {.place = rig_place(&rig, SPOILED), .tasks = &settled, .count = 1};
        CHECK_OK(rig_set_positions(&rig, batch.place, &settled, 1));
        CHECK_OK(kl_store_settle(rig.store, &batch, 1));
        CHECK_OK(read_task(&rig, SPOILED, &task));
        CHECK_INT(task.state, KL_TASK_DONE);
        CHECK(task.result.len == 6 && task.entry.payload.len == 0);
        CHECK_CONTAINS(task.error.len ? (const char *)task.error.data : "", "damaged in the journal");
    }
    rig_end(&rig);
}

static int note_mkdir(kl__vfs *vfs, const char *path)
{
    if (strstr(path, "/quarantine"))
        atomic_store(&noted.is_made, true);
    return kl__vfs_system.mkdir(vfs, path);
}

static int note_sync_dir(kl__vfs *vfs, const char *path)
{
    if (strcmp(path, noted.data) == 0 && atomic_load(&noted.is_made))
        atomic_store(&noted.is_durable, true);
    return kl__vfs_system.sync_dir(vfs, path);
}

static int note_rename(kl__vfs *vfs, const char *from, const char *to)
{
    if (strstr(to, "/quarantine/")) {
        atomic_store(&noted.is_used, true);
        atomic_store(&noted.was_used_early, !atomic_load(&noted.is_durable));
    }
    return kl__vfs_system.rename(vfs, from, to);
}

/* Or the file would be nowhere when power is lost, and the directory is not there. */
TEST(a_damaged_segment_moves_to_quarantine_when_that_is_durable)
{
    struct rig rig = {0};
    kl__vfs vfs = kl__vfs_system;
    vfs.mkdir = note_mkdir;
    vfs.sync_dir = note_sync_dir;
    vfs.rename = note_rename;
    memset(&noted, 0, sizeof noted);
    if (make(&rig, &vfs))
        CHECK(atomic_load(&noted.is_used) && !atomic_load(&noted.was_used_early));
    rig_end(&rig);
}
