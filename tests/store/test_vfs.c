/* test_vfs.c - the machine's file system behind the vfs, and the loops above it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "harness.h"
#include "store/disk/vfs.h"

static kl__vfs *const vfs = &kl__vfs_system;
static char home[64];
static char path_text[2][128];

/* A directory of the test's own; its files are removed by leave(). */
static bool enter(void)
{
    snprintf(home, sizeof home, "/tmp/keyline-vfs-XXXXXX");
    return mkdtemp(home) != NULL;
}

static const char *path_of(int slot, const char *name)
{
    snprintf(path_text[slot], sizeof path_text[slot], "%s/%s", home, name);
    return path_text[slot];
}

static void leave(void)
{
    static const char *names[] = {"a", "b", "lock"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unlink(path_of(0, names[i]));
    rmdir(path_of(0, "sub"));
    CHECK_INT(rmdir(home), 0);
}

TEST(what_was_written_is_read_back)
{
    REQUIRE(enter());
    kl__file *file;
    char bytes[32];
    size_t got = 99;
    uint64_t size = 99;
    REQUIRE(vfs->open(vfs, path_of(0, "a"), KL_OPEN_CREATE, &file) == 0);
    CHECK_INT(kl__vfs_write(vfs, file, "hello world", 11, 5), 0);
    CHECK_INT(vfs->sync(vfs, file), 0);
    CHECK_INT(vfs->size(vfs, file, &size), 0);
    CHECK_INT(size, 16);
    CHECK_INT(kl__vfs_read(vfs, file, bytes, sizeof bytes, 3, &got), 0);
    CHECK_INT(got, 13);
    CHECK(memcmp(bytes, "\0\0hello world", 13) == 0);
    CHECK_INT(vfs->truncate(vfs, file, 10), 0);
    CHECK_INT(kl__vfs_read(vfs, file, bytes, sizeof bytes, 5, &got), 0);
    CHECK_INT(got, 5);
    CHECK_INT(kl__vfs_read(vfs, file, bytes, sizeof bytes, 1000, &got), 0);
    CHECK_INT(got, 0);
    vfs->close(vfs, file);
    vfs->close(vfs, NULL);
    leave();
}

TEST(modes_say_whether_a_file_must_be_there)
{
    REQUIRE(enter());
    kl__file *file;
    CHECK_INT(vfs->open(vfs, path_of(0, "a"), KL_OPEN_READ, &file), -ENOENT);
    CHECK_INT(vfs->open(vfs, path_of(0, "a"), KL_OPEN_WRITE, &file), -ENOENT);
    REQUIRE(vfs->open(vfs, path_of(0, "a"), KL_OPEN_CREATE, &file) == 0);
    vfs->close(vfs, file);
    CHECK_INT(vfs->open(vfs, path_of(0, "a"), KL_OPEN_CREATE, &file), -EEXIST);
    REQUIRE(vfs->open(vfs, path_of(0, "a"), KL_OPEN_READ, &file) == 0);
    CHECK_INT(vfs->write(vfs, file, "x", 1, 0), -EBADF);
    vfs->close(vfs, file);
    REQUIRE(vfs->open(vfs, path_of(0, "a"), KL_OPEN_WRITE, &file) == 0);
    CHECK_INT(vfs->write(vfs, file, "x", 1, 0), 1);
    vfs->close(vfs, file);
    leave();
}

static void count_name(void *ctx, const char *name)
{
    int *seen = ctx;
    *seen += strcmp(name, "a") == 0 ? 1 : strcmp(name, "b") == 0 ? 10 : strcmp(name, "sub") == 0 ? 100 : 1000;
}

TEST(names_are_made_moved_listed_and_removed)
{
    REQUIRE(enter());
    kl__file *file;
    int seen = 0;
    CHECK_INT(vfs->mkdir(vfs, path_of(0, "sub")), 0);
    CHECK_INT(vfs->mkdir(vfs, path_of(0, "sub")), -EEXIST);
    REQUIRE(vfs->open(vfs, path_of(0, "a"), KL_OPEN_CREATE, &file) == 0);
    vfs->close(vfs, file);
    REQUIRE(vfs->open(vfs, path_of(0, "b"), KL_OPEN_CREATE, &file) == 0);
    vfs->close(vfs, file);
    CHECK_INT(vfs->list(vfs, home, count_name, &seen), 0);
    CHECK_INT(seen, 111);
    CHECK_INT(vfs->rename(vfs, path_of(0, "a"), path_of(1, "b")), 0);
    seen = 0;
    CHECK_INT(vfs->list(vfs, home, count_name, &seen), 0);
    CHECK_INT(seen, 110);
    CHECK_INT(vfs->unlink(vfs, path_of(0, "b")), 0);
    CHECK_INT(vfs->unlink(vfs, path_of(0, "b")), -ENOENT);
    CHECK_INT(vfs->rename(vfs, path_of(0, "b"), path_of(1, "a")), -ENOENT);
    CHECK_INT(vfs->sync_dir(vfs, home), 0);
    CHECK_INT(vfs->sync_dir(vfs, path_of(0, "none")), -ENOENT);
    CHECK_INT(vfs->list(vfs, path_of(0, "none"), count_name, &seen), -ENOENT);
    leave();
}

TEST(a_locked_directory_refuses_its_own_process_and_names_the_pid)
{
    REQUIRE(enter());
    kl__file *lock, *second;
    int64_t pid = -1;
    REQUIRE(vfs->lock(vfs, home, &lock, &pid) == 0);
    CHECK_INT(vfs->lock(vfs, home, &second, &pid), -EBUSY);
    CHECK_INT(pid, getpid());
    vfs->unlock(vfs, lock);
    REQUIRE(vfs->lock(vfs, home, &lock, &pid) == 0);
    vfs->unlock(vfs, lock);
    vfs->unlock(vfs, NULL);
    CHECK_INT(vfs->lock(vfs, path_of(0, "none"), &lock, &pid), -ENOENT);
    leave();
}

/* Takes the lock in a child, tells so through the pipe, and stays until it is killed. */
static void hold_lock(int tell)
{
    kl__file *lock;
    int64_t pid;
    char answer = vfs->lock(vfs, home, &lock, &pid) == 0 ? 'y' : 'n';
    if (write(tell, &answer, 1) == 1)
        pause();
    _exit(1);
}

TEST(a_lock_dies_with_its_process)
{
    REQUIRE(enter());
    int ends[2];
    char answer = '?';
    REQUIRE(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0)
        hold_lock(ends[1]);
    CHECK_INT(read(ends[0], &answer, 1), 1);
    CHECK_INT(answer, 'y');
    kl__file *lock;
    int64_t pid = -1;
    CHECK_INT(vfs->lock(vfs, home, &lock, &pid), -EBUSY);
    CHECK_INT(pid, child);
    kill(child, SIGKILL);
    CHECK_INT(waitpid(child, NULL, 0), child);
    REQUIRE(vfs->lock(vfs, home, &lock, &pid) == 0);
    vfs->unlock(vfs, lock);
    close(ends[0]);
    close(ends[1]);
    leave();
}

TEST(a_lock_holds_the_pid_as_one_line)
{
    REQUIRE(enter());
    FILE *old = fopen(path_of(0, "lock"), "w");
    REQUIRE(old);
    fputs("12345678901234567890\n", old);
    fclose(old);
    kl__file *lock, *file;
    int64_t pid = -1;
    char text[64] = "", expected[64];
    size_t got = 0;
    REQUIRE(vfs->lock(vfs, home, &lock, &pid) == 0);
    REQUIRE(vfs->open(vfs, path_of(0, "lock"), KL_OPEN_READ, &file) == 0);
    CHECK_INT(kl__vfs_read(vfs, file, text, sizeof text - 1, 0, &got), 0);
    snprintf(expected, sizeof expected, "%d\n", (int)getpid());
    CHECK_STR(text, expected);
    vfs->close(vfs, file);
    vfs->unlock(vfs, lock);
    leave();
}

TEST(a_pid_that_cannot_be_read_is_not_known)
{
    static const char *texts[] = {"", "\n", "x\n", "12", "-4\n", "99999999999999999999999\n"};
    REQUIRE(enter());
    kl__file *lock, *second, *file;
    int64_t pid;
    REQUIRE(vfs->lock(vfs, home, &lock, &pid) == 0);
    REQUIRE(vfs->open(vfs, path_of(0, "lock"), KL_OPEN_WRITE, &file) == 0);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        CHECK_INT(vfs->truncate(vfs, file, 0), 0);
        CHECK_INT(kl__vfs_write(vfs, file, texts[i], strlen(texts[i]), 0), 0);
        pid = -1;
        CHECK_INT(vfs->lock(vfs, home, &second, &pid), -EBUSY);
        CHECK_INT(pid, 0);
    }
    vfs->close(vfs, file);
    vfs->unlock(vfs, lock);
    leave();
}

TEST(files_are_not_left_open_in_programs_that_are_started)
{
    REQUIRE(enter());
    kl__file *file, *lock;
    int64_t pid;
    REQUIRE(vfs->open(vfs, path_of(0, "a"), KL_OPEN_CREATE, &file) == 0);
    REQUIRE(vfs->lock(vfs, home, &lock, &pid) == 0);
    struct stat ours[2], other;
    CHECK_INT(stat(path_of(0, "a"), &ours[0]), 0);
    CHECK_INT(stat(path_of(0, "lock"), &ours[1]), 0);
    int found = 0;
    for (int fd = 3; fd < 256; fd++) {
        bool open_here = fstat(fd, &other) == 0;
        for (int i = 0; open_here && i < 2; i++)
            if (other.st_ino == ours[i].st_ino && other.st_dev == ours[i].st_dev) {
                found++;
                CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
            }
    }
    CHECK_INT(found, 2);
    vfs->close(vfs, file);
    vfs->unlock(vfs, lock);
    leave();
}

TEST(an_open_without_memory_says_so)
{
    REQUIRE(enter());
    kl__file *file;
    kl__alloc_fail_at(1);
    CHECK_INT(vfs->open(vfs, path_of(0, "a"), KL_OPEN_CREATE, &file), -ENOMEM);
    kl__alloc_fail_at(0);
    CHECK_INT(vfs->open(vfs, path_of(0, "a"), KL_OPEN_READ, &file), -ENOENT);
    leave();
}

/* ---- The loops, over a file system that does little at a time ---- */

struct slow {
    kl__vfs vfs;
    char bytes[64];
    size_t size;
    int calls;
    ssize_t answer; /* when not 0: what every third call returns */
    bool stuck;     /* writes move nothing */
};

static ssize_t read_slowly(kl__vfs *self, kl__file *file, void *bytes, size_t count, uint64_t offset)
{
    (void)file;
    struct slow *slow = KL_CONTAINER(self, struct slow, vfs);
    if (slow->answer && ++slow->calls % 3 == 0)
        return slow->answer;
    size_t left = offset < slow->size ? slow->size - (size_t)offset : 0;
    size_t part = count < 3 ? count : 3;
    part = part < left ? part : left;
    memcpy(bytes, slow->bytes + offset, part);
    return (ssize_t)part;
}

static ssize_t write_slowly(kl__vfs *self, kl__file *file, const void *bytes, size_t count, uint64_t offset)
{
    (void)file;
    struct slow *slow = KL_CONTAINER(self, struct slow, vfs);
    if (slow->answer && ++slow->calls % 3 == 0)
        return slow->answer;
    if (slow->stuck)
        return 0;
    size_t part = count < 3 ? count : 3;
    KL_ASSERT(offset + part <= sizeof slow->bytes);
    memcpy(slow->bytes + offset, bytes, part);
    slow->size = offset + part > slow->size ? (size_t)offset + part : slow->size;
    return (ssize_t)part;
}

static struct slow slow_vfs(ssize_t answer)
{
    return (struct slow){.vfs = {.read = read_slowly, .write = write_slowly}, .answer = answer};
}

TEST(short_counts_and_interruptions_are_gone_through)
{
    struct slow slow = slow_vfs(-EINTR);
    char bytes[64];
    size_t got = 0;
    CHECK_INT(kl__vfs_write(&slow.vfs, NULL, "0123456789abcdefghij", 20, 2), 0);
    CHECK_INT(slow.size, 22);
    CHECK_INT(kl__vfs_read(&slow.vfs, NULL, bytes, 12, 4, &got), 0);
    CHECK_INT(got, 12);
    CHECK(memcmp(bytes, "23456789abcd", 12) == 0);
    CHECK_INT(kl__vfs_read(&slow.vfs, NULL, bytes, sizeof bytes, 15, &got), 0);
    CHECK_INT(got, 7);
    CHECK(memcmp(bytes, "defghij", 7) == 0);
}

TEST(a_failure_in_the_middle_is_returned)
{
    struct slow slow = slow_vfs(-EIO);
    char bytes[64];
    size_t got = 77;
    CHECK_INT(kl__vfs_write(&slow.vfs, NULL, "0123456789abcdefghij", 20, 0), -EIO);
    slow.size = 20;
    slow.calls = 0;
    CHECK_INT(kl__vfs_read(&slow.vfs, NULL, bytes, 20, 0, &got), -EIO);
    CHECK_INT(got, 77);
}

TEST(a_write_that_moves_nothing_is_a_failure)
{
    struct slow slow = slow_vfs(0);
    slow.stuck = true;
    CHECK_INT(kl__vfs_write(&slow.vfs, NULL, "x", 1, 0), -EIO);
    CHECK_INT(kl__vfs_write(&slow.vfs, NULL, "x", 0, 0), 0);
}
