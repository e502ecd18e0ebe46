/* test_simdisk.c - the simulated disk keeps what was synced and loses the rest in every way it says; faults come
 * when asked for. */
#include <errno.h>
#include <stdlib.h>

#include "base/random.h"
#include "faultvfs.h"
#include "harness.h"
#include "simdisk.h"

enum { SEEDS = 200, FILE_BYTES = 3 * 4096 };

static kl__file *open_file(simdisk *disk, const char *path, kl__open_mode mode)
{
    kl__file *file = NULL;
    kl__vfs *vfs = simdisk_vfs(disk);
    int rc = vfs->open(vfs, path, mode, &file);
    if (rc < 0)
        test_fail(__FILE__, __LINE__, "open %s: %d", path, rc);
    return file;
}

static void put(simdisk *disk, kl__file *file, const char *text, uint64_t offset)
{
    CHECK_INT(kl__vfs_write(simdisk_vfs(disk), file, text, strlen(text), offset), 0);
}

/* The file's bytes as text; "(none)" when it is not there. */
static const char *text_of(simdisk *disk, const char *path)
{
    static char text[FILE_BYTES + 1];
    kl__vfs *vfs = simdisk_vfs(disk);
    kl__file *file;
    size_t got = 0;
    if (vfs->open(vfs, path, KL_OPEN_READ, &file) < 0)
        return "(none)";
    CHECK_INT(kl__vfs_read(vfs, file, text, FILE_BYTES, 0, &got), 0);
    vfs->close(vfs, file);
    text[got] = '\0';
    return text;
}

/* A disk with the durable file /a holding `text`. */
static simdisk *disk_with(const char *text, kl__file **ret_file)
{
    simdisk *disk = simdisk_new();
    kl__vfs *vfs = simdisk_vfs(disk);
    *ret_file = open_file(disk, "/a", KL_OPEN_CREATE);
    put(disk, *ret_file, text, 0);
    CHECK_INT(vfs->sync(vfs, *ret_file), 0);
    CHECK_INT(vfs->sync_dir(vfs, "/"), 0);
    return disk;
}

static void end(simdisk *disk, kl__file *file)
{
    simdisk_vfs(disk)->close(simdisk_vfs(disk), file);
    simdisk_free(disk);
}

#define CHECK_IMAGE(disk, outcome, path, expected)                                                                     \
    do {                                                                                                               \
        simdisk *image_ = simdisk_image(disk, outcome, 1);                                                             \
        CHECK_STR(text_of(image_, path), expected);                                                                    \
        simdisk_free(image_);                                                                                          \
    } while (0)

TEST(what_is_written_is_lost_until_it_is_synced)
{
    kl__file *file;
    simdisk *disk = disk_with("old", &file);
    put(disk, file, "newer", 0);
    CHECK_STR(text_of(disk, "/a"), "newer");
    CHECK_IMAGE(disk, SIM_NOTHING, "/a", "old");
    CHECK_IMAGE(disk, SIM_ALL, "/a", "newer");
    CHECK_INT(simdisk_vfs(disk)->sync(simdisk_vfs(disk), file), 0);
    CHECK_IMAGE(disk, SIM_NOTHING, "/a", "newer");
    CHECK_INT(simdisk_unsynced(disk), 0);
    end(disk, file);
}

TEST(a_size_is_lost_until_it_is_synced)
{
    kl__file *file;
    simdisk *disk = disk_with("old", &file);
    kl__vfs *vfs = simdisk_vfs(disk);
    CHECK_INT(vfs->truncate(vfs, file, 1), 0);
    CHECK_STR(text_of(disk, "/a"), "o");
    CHECK_IMAGE(disk, SIM_NOTHING, "/a", "old");
    CHECK_INT(vfs->sync(vfs, file), 0);
    CHECK_IMAGE(disk, SIM_NOTHING, "/a", "o");
    end(disk, file);
}

TEST(a_name_is_lost_until_its_directory_is_synced)
{
    kl__file *file;
    simdisk *disk = disk_with("old", &file);
    kl__vfs *vfs = simdisk_vfs(disk);
    kl__file *other = open_file(disk, "/b", KL_OPEN_CREATE);
    put(disk, other, "bytes", 0);
    CHECK_INT(vfs->sync(vfs, other), 0);
    CHECK_IMAGE(disk, SIM_NOTHING, "/b", "(none)");
    CHECK_IMAGE(disk, SIM_ALL, "/b", "bytes");
    CHECK_INT(vfs->sync_dir(vfs, "/"), 0);
    CHECK_IMAGE(disk, SIM_NOTHING, "/b", "bytes");
    CHECK_INT(vfs->unlink(vfs, "/a"), 0);
    CHECK_IMAGE(disk, SIM_NOTHING, "/a", "old");
    CHECK_IMAGE(disk, SIM_ALL, "/a", "(none)");
    CHECK_INT(vfs->sync_dir(vfs, "/"), 0);
    CHECK_IMAGE(disk, SIM_NOTHING, "/a", "(none)");
    vfs->close(vfs, other);
    end(disk, file);
}

TEST(a_durable_name_does_not_bring_its_bytes)
{
    kl__file *file;
    simdisk *disk = disk_with("old", &file);
    kl__vfs *vfs = simdisk_vfs(disk);
    kl__file *other = open_file(disk, "/b", KL_OPEN_CREATE);
    put(disk, other, "bytes", 0);
    CHECK_INT(vfs->sync_dir(vfs, "/"), 0);
    CHECK_IMAGE(disk, SIM_NOTHING, "/b", "");
    vfs->close(vfs, other);
    end(disk, file);
}

TEST(a_lost_directory_takes_along_what_is_in_it)
{
    simdisk *disk = simdisk_new();
    kl__vfs *vfs = simdisk_vfs(disk);
    CHECK_INT(vfs->mkdir(vfs, "/d"), 0);
    CHECK_INT(vfs->mkdir(vfs, "/d"), -EEXIST);
    CHECK_INT(vfs->mkdir(vfs, "/none/e"), -ENOENT);
    kl__file *file = open_file(disk, "/d/a", KL_OPEN_CREATE);
    put(disk, file, "x", 0);
    CHECK_INT(vfs->sync(vfs, file), 0);
    CHECK_INT(vfs->sync_dir(vfs, "/d/"), 0);
    CHECK_IMAGE(disk, SIM_NOTHING, "/d/a", "(none)");
    CHECK_INT(vfs->sync_dir(vfs, "/"), 0);
    CHECK_IMAGE(disk, SIM_NOTHING, "/d/a", "x");
    end(disk, file);
}

TEST(what_was_written_to_files_without_a_name_is_no_longer_unsynced)
{
    kl__file *file, *others[3];
    simdisk *disk = disk_with("old", &file);
    kl__vfs *vfs = simdisk_vfs(disk);
    for (int i = 0; i < 3; i++) {
        others[i] = open_file(disk, (char[]){'/', (char)('b' + i), '\0'}, KL_OPEN_CREATE);
        put(disk, others[i], "x", 0);
        put(disk, file, "y", (uint64_t)i);
    }
    CHECK_INT(vfs->unlink(vfs, "/b"), 0);
    CHECK_INT(vfs->unlink(vfs, "/d"), 0);
    CHECK_INT(simdisk_unsynced(disk), 11);
    CHECK_INT(vfs->sync_dir(vfs, "/"), 0);
    CHECK_INT(simdisk_unsynced(disk), 4);
    CHECK_IMAGE(disk, SIM_ALL, "/c", "x");
    CHECK_IMAGE(disk, SIM_ALL, "/d", "(none)");
    CHECK_IMAGE(disk, SIM_NOTHING, "/a", "old");
    for (int i = 0; i < 3; i++)
        vfs->close(vfs, others[i]);
    end(disk, file);
}

TEST(a_rename_is_never_half_done)
{
    int before = 0, after = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        for (int outcome = 0; outcome < SIM_OUTCOMES; outcome++) {
            kl__file *file;
            simdisk *disk = disk_with("one", &file);
            kl__vfs *vfs = simdisk_vfs(disk);
            CHECK_INT(vfs->rename(vfs, "/a", "/b"), 0);
            CHECK_INT(vfs->rename(vfs, "/b", "/c"), 0);
            simdisk *image = simdisk_image(disk, (simdisk_outcome)outcome, seed);
            int named = 0;
            for (const char *path = "/a\0/b\0/c\0"; *path; path += 3)
                named += strcmp(text_of(image, path), "one") == 0;
            CHECK_INT(named, 1);
            before += strcmp(text_of(image, "/a"), "one") == 0;
            after += strcmp(text_of(image, "/c"), "one") == 0;
            simdisk_free(image);
            end(disk, file);
        }
    CHECK(before > 0 && after > 0);
}

TEST(a_rename_replaces_and_refuses_as_files_do)
{
    kl__file *file;
    simdisk *disk = disk_with("one", &file);
    kl__vfs *vfs = simdisk_vfs(disk);
    kl__file *other = open_file(disk, "/b", KL_OPEN_CREATE);
    put(disk, other, "two", 0);
    CHECK_INT(vfs->rename(vfs, "/b", "/a"), 0);
    CHECK_STR(text_of(disk, "/a"), "two");
    CHECK_STR(text_of(disk, "/b"), "(none)");
    CHECK_INT(vfs->rename(vfs, "/b", "/a"), -ENOENT);
    CHECK_INT(vfs->rename(vfs, "/a", "a"), -EXDEV);
    CHECK_INT(vfs->unlink(vfs, "/b"), -ENOENT);
    vfs->close(vfs, other);
    CHECK_INT(vfs->open(vfs, "/none/x", KL_OPEN_CREATE, &other), -ENOENT);
    CHECK_INT(vfs->sync_dir(vfs, "/none"), -ENOENT);
    end(disk, file);
}

/* ---- What each outcome keeps: ten writes of one letter each ---- */

static unsigned kept_of(simdisk *disk, simdisk_outcome outcome, uint64_t seed)
{
    simdisk *image = simdisk_image(disk, outcome, seed);
    const char *text = text_of(image, "/a");
    unsigned kept = 0;
    for (unsigned i = 0; i < 10; i++)
        kept |= (text[i] == (char)('0' + i) ? 1u : 0u) << i;
    simdisk_free(image);
    return kept;
}

static void write_ten(simdisk *disk, kl__file *file)
{
    for (unsigned i = 0; i < 10; i++) {
        char digit[2] = {(char)('0' + i), '\0'};
        put(disk, file, digit, i);
    }
}

TEST(a_prefix_is_a_prefix_and_a_subset_need_not_be)
{
    kl__file *file;
    simdisk *disk = disk_with("..........", &file);
    write_ten(disk, file);
    bool partial = false, other = false;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        unsigned prefix = kept_of(disk, SIM_PREFIX, seed), subset = kept_of(disk, SIM_SUBSET, seed);
        CHECK_INT(prefix & (prefix + 1), 0);
        partial |= prefix != 0 && prefix != 0x3ff;
        other |= (subset & (subset + 1)) != 0;
        CHECK_INT(kept_of(disk, SIM_SUBSET, seed), subset);
    }
    CHECK(partial && other);
    CHECK_INT(kept_of(disk, SIM_NOTHING, 1), 0);
    CHECK_INT(kept_of(disk, SIM_ALL, 1), 0x3ff);
    end(disk, file);
}

TEST(of_overlapping_writes_any_may_win_when_reordered)
{
    kl__file *file;
    simdisk *disk = disk_with("x", &file);
    put(disk, file, "1", 0);
    put(disk, file, "2", 0);
    bool first = false, second = false, subset_first_over_second = false;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        simdisk *image = simdisk_image(disk, SIM_REORDERED, seed);
        first |= text_of(image, "/a")[0] == '1';
        second |= text_of(image, "/a")[0] == '2';
        subset_first_over_second |= text_of(image, "/a")[0] == 'x';
        simdisk_free(image);
    }
    CHECK(first && second && subset_first_over_second);
    end(disk, file);
}

/* Old bytes are 'o' and new ones 'n'; the write covers [100, 9100). */
static void check_torn(simdisk *disk, simdisk_outcome outcome, size_t unit, uint64_t seed, bool *inside)
{
    simdisk *image = simdisk_image(disk, outcome, seed);
    const char *text = text_of(image, "/a");
    size_t cut = 100 + strspn(text + 100, "n");
    CHECK_INT(strspn(text, "o"), 100);
    CHECK_INT(cut + strspn(text + cut, "o"), FILE_BYTES - 1);
    CHECK(cut > 100 && cut < 9100 && cut % unit == 0);
    *inside |= cut % 4096 != 0;
    simdisk_free(image);
}

static simdisk *half_written(kl__file **ret_file)
{
    static char old[FILE_BYTES], new[9001];
    memset(old, 'o', sizeof old - 1);
    memset(new, 'n', sizeof new - 1);
    simdisk *disk = disk_with(old, ret_file);
    put(disk, *ret_file, new, 100);
    return disk;
}

TEST(a_torn_write_ends_at_a_multiple_of_its_unit)
{
    kl__file *file;
    simdisk *disk = half_written(&file);
    bool inside = false, never = false;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        check_torn(disk, SIM_TORN_512, 512, seed, &inside);
        check_torn(disk, SIM_TORN_4K, 4096, seed, &never);
    }
    CHECK(inside && !never);
    end(disk, file);
}

TEST(garbage_stays_inside_its_write)
{
    kl__file *file;
    simdisk *disk = half_written(&file);
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        simdisk *image = simdisk_image(disk, SIM_GARBAGE, seed);
        const char *text = text_of(image, "/a");
        CHECK_INT(strspn(text, "o"), 100);
        size_t good = strspn(text + 100, "n"), noise = 0;
        for (size_t i = 100 + good; i < 9100; i++)
            noise += text[i] != 'n' && text[i] != 'o';
        CHECK(good == 9000 || noise * 10 >= (9000 - good) * 9 || 9000 - good < 20);
        for (size_t i = 9100; i < FILE_BYTES - 1; i++)
            CHECK(text[i] == 'o');
        simdisk_free(image);
    }
    end(disk, file);
}

/* ---- At random ---- */

enum { RANDOM_FILES = 3, RANDOM_OPS = 200 };

/* Each file's durable bytes, and which of them an unsynced operation touches. */
struct known {
    char durable[FILE_BYTES];
    bool touched[FILE_BYTES];
};

static void check_durable(simdisk *disk, const struct known *known, uint64_t *random)
{
    simdisk *image =
        simdisk_image(disk, (simdisk_outcome)kl__random_below(random, SIM_OUTCOMES), kl__random_next(random));
    for (int i = 0; i < RANDOM_FILES; i++) {
        char path[] = {'/', (char)('a' + i), '\0'};
        char bytes[FILE_BYTES] = "";
        size_t got = 0;
        kl__file *file = open_file(image, path, KL_OPEN_READ);
        CHECK_INT(kl__vfs_read(simdisk_vfs(image), file, bytes, FILE_BYTES, 0, &got), 0);
        CHECK_INT(got, FILE_BYTES);
        for (size_t at = 0; at < FILE_BYTES; at++)
            CHECK(known[i].touched[at] || bytes[at] == known[i].durable[at]);
        simdisk_vfs(image)->close(simdisk_vfs(image), file);
    }
    simdisk_free(image);
}

static void change_one(simdisk *disk, kl__file *file, struct known *known, char *seen, uint64_t *random)
{
    kl__vfs *vfs = simdisk_vfs(disk);
    if (kl__random_below(random, 4) == 0) {
        CHECK_INT(vfs->sync(vfs, file), 0);
        memcpy(known->durable, seen, FILE_BYTES);
        memset(known->touched, 0, sizeof known->touched);
        return;
    }
    size_t from = (size_t)kl__random_below(random, FILE_BYTES);
    size_t count = 1 + (size_t)kl__random_below(random, FILE_BYTES - from);
    memset(seen + from, 'a' + (int)kl__random_below(random, 26), count);
    memset(known->touched + from, 1, count);
    CHECK_INT(kl__vfs_write(vfs, file, seen + from, count, from), 0);
}

static bool same_file(simdisk *a, simdisk *b, const char *path)
{
    static char text[FILE_BYTES + 1];
    strcpy(text, text_of(a, path));
    return strcmp(text, text_of(b, path)) == 0;
}

TEST(what_is_synced_is_always_there_and_a_recording_repeats_the_run)
{
    static struct known known[RANDOM_FILES];
    static char seen[RANDOM_FILES][FILE_BYTES];
    uint64_t random = test_seed();
    kl__file *files[RANDOM_FILES];
    simdisk *disk = simdisk_new();
    kl__vfs *vfs = simdisk_vfs(disk);
    memset(known, 0, sizeof known);
    for (int i = 0; i < RANDOM_FILES; i++) {
        char path[] = {'/', (char)('a' + i), '\0'};
        memset(seen[i], '.', FILE_BYTES);
        files[i] = open_file(disk, path, KL_OPEN_CREATE);
        CHECK_INT(kl__vfs_write(vfs, files[i], seen[i], FILE_BYTES, 0), 0);
        CHECK_INT(vfs->sync(vfs, files[i]), 0);
        memcpy(known[i].durable, seen[i], FILE_BYTES);
    }
    CHECK_INT(vfs->sync_dir(vfs, "/"), 0);
    simdisk *again = simdisk_clone(disk), *recorded = simdisk_clone(disk);
    simdisk_record(recorded);
    kl__file *copies[RANDOM_FILES];
    for (int i = 0; i < RANDOM_FILES; i++)
        copies[i] = open_file(recorded, (char[]){'/', (char)('a' + i), '\0'}, KL_OPEN_WRITE);
    for (int i = 0; i < RANDOM_OPS; i++) {
        size_t one = (size_t)kl__random_below(&random, RANDOM_FILES);
        change_one(recorded, copies[one], &known[one], seen[one], &random);
        simdisk_forward(again, recorded, simdisk_ops(recorded));
        CHECK_INT(simdisk_unsynced(again), simdisk_unsynced(recorded));
        check_durable(again, known, &random);
    }
    for (int i = 0; i < RANDOM_FILES; i++) {
        CHECK(same_file(recorded, again, (char[]){'/', (char)('a' + i), '\0'}));
        simdisk_vfs(recorded)->close(simdisk_vfs(recorded), copies[i]);
        vfs->close(vfs, files[i]);
    }
    char text[64];
    simdisk_describe(recorded, simdisk_ops(recorded) + 1, text, sizeof text);
    CHECK_STR(text, "no operation");
    simdisk_free(recorded);
    simdisk_free(again);
    simdisk_free(disk);
}

/* ---- Locks, room and faults ---- */

TEST(a_locked_directory_is_refused_until_it_is_unlocked_or_power_is_lost)
{
    simdisk *disk = simdisk_new();
    kl__vfs *vfs = simdisk_vfs(disk);
    kl__file *lock, *second;
    int64_t pid = 0;
    REQUIRE(vfs->lock(vfs, "/", &lock, &pid) == 0);
    CHECK_INT(vfs->lock(vfs, "/", &second, &pid), -EBUSY);
    CHECK_INT(pid, 1);
    simdisk *image = simdisk_image(disk, SIM_ALL, 1);
    REQUIRE(simdisk_vfs(image)->lock(simdisk_vfs(image), "/", &second, &pid) == 0);
    simdisk_vfs(image)->unlock(simdisk_vfs(image), second);
    vfs->unlock(vfs, lock);
    REQUIRE(vfs->lock(vfs, "/", &lock, &pid) == 0);
    vfs->unlock(vfs, lock);
    simdisk_free(image);
    simdisk_free(disk);
}

TEST(a_full_disk_refuses_growth_until_there_is_room)
{
    static char bytes[3 * 4096];
    simdisk *disk = simdisk_new();
    kl__vfs *vfs = simdisk_vfs(disk);
    kl__file *file = open_file(disk, "/a", KL_OPEN_CREATE), *other = open_file(disk, "/b", KL_OPEN_CREATE);
    simdisk_capacity(disk, 2 * 4096);
    CHECK_INT(vfs->write(vfs, file, bytes, sizeof bytes, 0), 2 * 4096);
    CHECK_INT(vfs->write(vfs, file, bytes, 1, 2 * 4096), -ENOSPC);
    CHECK_INT(vfs->write(vfs, file, bytes, 4096, 100), 4096);
    CHECK_INT(vfs->write(vfs, other, bytes, 1, 0), -ENOSPC);
    CHECK_INT(simdisk_used(disk), 2 * 4096);
    simdisk_capacity(disk, 3 * 4096);
    CHECK_INT(vfs->write(vfs, other, bytes, 1, 0), 1);
    CHECK_INT(vfs->unlink(vfs, "/a"), 0);
    CHECK_INT(vfs->write(vfs, other, bytes, sizeof bytes, 0), (ssize_t)sizeof bytes);
    vfs->close(vfs, other);
    end(disk, file);
}

static void forget(void *ctx, kl__file *file) { simdisk_fail_sync(ctx, file, SIM_DIRTY_FORGOTTEN); }
static void drop(void *ctx, kl__file *file) { simdisk_fail_sync(ctx, file, SIM_DIRTY_DROPPED); }

/* Fails the first sync, lets the second succeed, and says what programs saw in between and what is there after power
 * loss. */
static void check_failed_sync(void (*told)(void *, kl__file *), const char *seen, const char *durable)
{
    kl__file *file;
    simdisk *disk = disk_with("old", &file);
    faultvfs *faulty = faultvfs_new(simdisk_vfs(disk));
    kl__vfs *vfs = faultvfs_vfs(faulty);
    kl__file *second;
    REQUIRE(vfs->open(vfs, "/a", KL_OPEN_WRITE, &second) == 0);
    CHECK_INT(vfs->write(vfs, second, "new", 3, 0), 3);
    faultvfs_set(faulty, &(vfs_fault){.kinds = FAULT_SYNC, .at = 1, .error = EIO, .sync_failed = told, .ctx = disk});
    CHECK_INT(vfs->sync(vfs, second), -EIO);
    CHECK_STR(text_of(disk, "/a"), seen);
    CHECK_INT(vfs->sync(vfs, second), 0);
    CHECK_IMAGE(disk, SIM_NOTHING, "/a", durable);
    CHECK_INT(faultvfs_hits(faulty, NULL, 0), 1);
    CHECK_INT(faultvfs_calls(faulty), 2);
    vfs->close(vfs, second);
    faultvfs_free(faulty);
    end(disk, file);
}

TEST(a_failed_sync_keeps_forgets_or_drops_what_was_dirty)
{
    check_failed_sync(NULL, "new", "new");
    check_failed_sync(forget, "new", "old");
    check_failed_sync(drop, "old", "old");
}

TEST(a_fault_comes_at_its_call_once_or_from_then_on)
{
    simdisk *disk = simdisk_new();
    faultvfs *faulty = faultvfs_new(simdisk_vfs(disk));
    kl__vfs *vfs = faultvfs_vfs(faulty);
    kl__file *a, *b;
    char path[16], bytes[8];
    size_t got;
    REQUIRE(vfs->open(vfs, "/a", KL_OPEN_CREATE, &a) == 0);
    REQUIRE(vfs->open(vfs, "/b", KL_OPEN_CREATE, &b) == 0);
    faultvfs_set(faulty, &(vfs_fault){.kinds = FAULT_WRITE, .at = 2, .error = ENOSPC});
    CHECK_INT(vfs->write(vfs, a, "1234", 4, 0), 4);
    CHECK_INT(vfs->write(vfs, b, "1234", 4, 0), -ENOSPC);
    CHECK_INT(vfs->write(vfs, b, "1234", 4, 0), 4);
    faultvfs_hits(faulty, path, sizeof path);
    CHECK_STR(path, "/b");
    faultvfs_set(faulty, &(vfs_fault){.kinds = FAULT_ANY, .at = 2, .error = EIO, .lasting = true, .except = "/b"});
    CHECK_INT(vfs->sync(vfs, b), 0);
    CHECK_INT(vfs->sync(vfs, a), 0);
    CHECK_INT(vfs->read(vfs, a, bytes, 4, 0), -EIO);
    CHECK_INT(vfs->truncate(vfs, a, 0), -EIO);
    CHECK_INT(vfs->unlink(vfs, "/a"), -EIO);
    CHECK_INT(vfs->read(vfs, b, bytes, 4, 0), 4);
    CHECK_INT(faultvfs_hits(faulty, NULL, 0), 3);
    faultvfs_set(faulty, &(vfs_fault){.kinds = FAULT_WRITE, .at = 1});
    CHECK_INT(vfs->write(vfs, a, "abcd", 4, 0), 2);
    faultvfs_set(faulty, &(vfs_fault){.kinds = FAULT_WRITE | FAULT_READ, .at = 1, .error = EINTR, .lasting = true});
    CHECK_INT(vfs->write(vfs, a, "abcd", 4, 0), -EINTR);
    CHECK_INT(kl__vfs_write(vfs, a, "wxyz", 4, 0), 0);
    CHECK_INT(kl__vfs_read(vfs, a, bytes, 4, 0, &got), 0);
    CHECK(memcmp(bytes, "wxyz", 4) == 0);
    vfs->close(vfs, a);
    vfs->close(vfs, b);
    faultvfs_free(faulty);
    simdisk_free(disk);
}
