/* vfs.c - the machine's file system, as the disk engine sees it.
 *
 * From: every file of the disk engine.  To: the system calls.
 *
 * A directory belongs to who holds flock on its file `lock`. That lock belongs to the open file and not to the
 * process, so it refuses a second open in the same process as well, and the kernel gives it up when the process
 * ends, however it ends. A child that it forked has the same open file, and would keep the directory: so the lock is
 * given up by name when it is not wanted any more, though not by that child. The pid inside is for people: it is
 * written after the lock was taken and is never trusted.
 * The file is never removed, because someone else may be about to lock it. */
#include "store/disk/vfs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/base.h"

enum { FILE_MODE = 0600, DIRECTORY_MODE = 0700, PID_BYTES_MAX = 24 };

struct kl__file {
    int fd;
    char *path;  /* of a lock that makes an owner, as given, links included: does that still lead here? */
    pid_t taker; /* of a lock */
};

/* Repeats a call that a signal interrupted; only read and write show that to the caller, as they may have done a
 * part. */
#define UNINTERRUPTED(result, call)                                                                                    \
    do                                                                                                                 \
        (result) = (call);                                                                                             \
    while ((result) < 0 && errno == EINTR)

static int open_fd(const char *path, int flags, kl__file **ret_file)
{
    kl__file *file = kl__alloc(sizeof *file);
    if (!file)
        return -ENOMEM;
    file->path = NULL;
    UNINTERRUPTED(file->fd, open(path, flags | O_CLOEXEC, FILE_MODE));
    if (file->fd < 0) {
        int error = errno;
        kl__free(file);
        return -error;
    }
    *ret_file = file;
    return 0;
}

/* Without O_NONBLOCK a pipe would be waited for; files do not mind. */
static int open_regular(const char *path, int flags, kl__file **ret_file)
{
    struct stat status;
    kl__file *file = NULL;
    int rc = open_fd(path, flags | O_NONBLOCK, &file);
    if (rc == 0 && fstat(file->fd, &status) < 0)
        rc = -errno;
    else if (rc == 0 && !S_ISREG(status.st_mode))
        rc = S_ISDIR(status.st_mode) ? -EISDIR : -ENXIO;
    if (rc == 0)
        *ret_file = file;
    else
        kl__vfs_system.close(&kl__vfs_system, file);
    return rc;
}

static int system_open(kl__vfs *vfs, const char *path, kl__open_mode mode, kl__file **ret_file)
{
    (void)vfs;
    static const int flags[] = {
        [KL_OPEN_READ] = O_RDONLY,
        [KL_OPEN_WRITE] = O_RDWR,
        [KL_OPEN_CREATE] = O_RDWR | O_CREAT | O_EXCL,
    };
    return open_regular(path, flags[mode], ret_file);
}

/* Nothing is known to be durable by closing, so there is nothing that its result could say. */
static void system_close(kl__vfs *vfs, kl__file *file)
{
    (void)vfs;
    if (!file)
        return;
    close(file->fd);
    kl__free(file->path);
    kl__free(file);
}

static ssize_t system_read(kl__vfs *vfs, kl__file *file, void *bytes, size_t count, uint64_t offset)
{
    (void)vfs;
    ssize_t got = pread(file->fd, bytes, count, (off_t)offset);
    return got < 0 ? -errno : got;
}

static ssize_t system_write(kl__vfs *vfs, kl__file *file, const void *bytes, size_t count, uint64_t offset)
{
    (void)vfs;
    ssize_t put = pwrite(file->fd, bytes, count, (off_t)offset);
    return put < 0 ? -errno : put;
}

static int system_sync(kl__vfs *vfs, kl__file *file)
{
    (void)vfs;
    int result;
    UNINTERRUPTED(result, fdatasync(file->fd));
    return result < 0 ? -errno : 0;
}

static int system_refresh(kl__vfs *vfs, kl__file *file)
{
    int error = system_sync(vfs, file);
    if (!error)
        (void)posix_fadvise(file->fd, 0, 0,
                            POSIX_FADV_DONTNEED); /* a file system that keeps no pages need not know it */
    return error;
}

static int system_truncate(kl__vfs *vfs, kl__file *file, uint64_t size)
{
    (void)vfs;
    int result;
    UNINTERRUPTED(result, ftruncate(file->fd, (off_t)size));
    return result < 0 ? -errno : 0;
}

static int system_size(kl__vfs *vfs, kl__file *file, uint64_t *ret_size)
{
    (void)vfs;
    struct stat stat;
    if (fstat(file->fd, &stat) < 0)
        return -errno;
    *ret_size = (uint64_t)stat.st_size;
    return 0;
}

static int system_rename(kl__vfs *vfs, const char *from, const char *to)
{
    (void)vfs;
    return rename(from, to) < 0 ? -errno : 0;
}

static int system_unlink(kl__vfs *vfs, const char *path)
{
    (void)vfs;
    return unlink(path) < 0 ? -errno : 0;
}

static int system_mkdir(kl__vfs *vfs, const char *path)
{
    (void)vfs;
    return mkdir(path, DIRECTORY_MODE) < 0 ? -errno : 0;
}

static int system_list(kl__vfs *vfs, const char *path, kl__name_fn *visit, void *ctx)
{
    (void)vfs;
    DIR *directory = opendir(path);
    if (!directory)
        return -errno;
    struct dirent *entry;
    while (errno = 0, (entry = readdir(directory)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            visit(ctx, entry->d_name);
    int error = errno;
    closedir(directory);
    return -error;
}

static int system_sync_dir(kl__vfs *vfs, const char *path)
{
    (void)vfs;
    int fd, result;
    UNINTERRUPTED(fd, open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0)
        return -errno;
    UNINTERRUPTED(result, fsync(fd));
    int error = result < 0 ? errno : 0;
    close(fd);
    return -error;
}

/* The pid that stands in the file, up to its newline; 0 when what is there is no pid (the owner is about to write
 * it). */
static int64_t read_pid(kl__file *file)
{
    char text[PID_BYTES_MAX + 1];
    size_t got = 0;
    if (kl__vfs_read(&kl__vfs_system, file, text, PID_BYTES_MAX, 0, &got) < 0)
        return 0;
    text[got] = '\0';
    char *end;
    errno = 0;
    long long pid = strtoll(text, &end, 10);
    return errno == 0 && *end == '\n' && pid > 0 ? pid : 0;
}

/* Written before what is left of a longer pid is cut off, so that a reader always finds a whole line. */
static int write_pid(kl__file *file)
{
    char text[PID_BYTES_MAX];
    int length = snprintf(text, sizeof text, "%" PRId64 "\n", (int64_t)getpid());
    int rc = kl__vfs_write(&kl__vfs_system, file, text, (size_t)length, 0);
    return rc < 0 ? rc : system_truncate(&kl__vfs_system, file, (uint64_t)length);
}

/* Of the process that stands in the way; 0 when the one in the file has ended: then somebody only looks. */
static int64_t find_owner(kl__file *file)
{
    int64_t pid = read_pid(file);
    return pid && kill((pid_t)pid, 0) < 0 && errno == ESRCH ? 0 : pid;
}

static int take_lock(kl__file *file, int how, int64_t *ret_pid)
{
    int result;
    UNINTERRUPTED(result, flock(file->fd, how | LOCK_NB));
    if (result == 0)
        return how == LOCK_EX ? write_pid(file) : 0;
    if (errno != EWOULDBLOCK)
        return -errno;
    *ret_pid = find_owner(file);
    return -EBUSY;
}

static int keep_path(kl__file *file, const char *name)
{
    file->path = kl__alloc(strlen(name) + 1);
    if (!file->path)
        return -ENOMEM;
    strcpy(file->path, name);
    return 0;
}

static int open_lock(const char *path, int flags, int how, kl__file **ret_lock, int64_t *ret_pid)
{
    char name[PATH_MAX];
    if ((size_t)snprintf(name, sizeof name, "%s/lock", path) >= sizeof name)
        return -ENAMETOOLONG;
    kl__file *file = NULL;
    int rc = open_regular(name, flags, &file);
    if (rc < 0)
        return rc;
    file->taker = getpid();
    rc = take_lock(file, how, ret_pid);
    if (rc == 0 && how == LOCK_EX)
        rc = keep_path(file, name);
    if (rc < 0)
        system_close(&kl__vfs_system, file);
    else
        *ret_lock = file;
    return rc;
}

static int system_lock(kl__vfs *vfs, const char *path, kl__file **ret_lock, int64_t *ret_pid)
{
    (void)vfs;
    return open_lock(path, O_RDWR | O_CREAT, LOCK_EX, ret_lock, ret_pid);
}

static void system_unlock(kl__vfs *vfs, kl__file *lock)
{
    int result;
    if (lock && lock->taker == getpid())
        UNINTERRUPTED(result, flock(lock->fd, LOCK_UN));
    system_close(vfs, lock);
}

static int system_look(kl__vfs *vfs, const char *path, kl__file **ret_lock, int64_t *ret_pid)
{
    (void)vfs;
    return open_lock(path, O_RDONLY, LOCK_SH, ret_lock, ret_pid);
}

static int system_still(kl__vfs *vfs, kl__file *file)
{
    (void)vfs;
    struct stat own, there;
    if (fstat(file->fd, &own) < 0)
        return 0;
    if (own.st_nlink == 0)
        return -ENOENT;
    if (!file->path)
        return 0;
    if (stat(file->path, &there) < 0)
        return errno == ENOENT || errno == ENOTDIR ? -ENOENT : 0;
    return own.st_dev == there.st_dev && own.st_ino == there.st_ino ? 0 : -ESTALE;
}

static int system_room(kl__vfs *vfs, const char *path, uint64_t *ret_bytes, uint64_t *ret_block)
{
    (void)vfs;
    struct statvfs about;
    int rc;
    UNINTERRUPTED(rc, statvfs(path, &about));
    if (rc < 0 || about.f_blocks == 0) /* a file system that does not tell */
        return rc < 0 ? -errno : -ENOSYS;
    *ret_bytes = (uint64_t)about.f_bavail * about.f_frsize;
    *ret_block = about.f_frsize;
    return 0;
}

kl__vfs kl__vfs_system = {
    .open = system_open,
    .close = system_close,
    .read = system_read,
    .write = system_write,
    .sync = system_sync,
    .refresh = system_refresh,
    .truncate = system_truncate,
    .size = system_size,
    .rename = system_rename,
    .unlink = system_unlink,
    .mkdir = system_mkdir,
    .list = system_list,
    .sync_dir = system_sync_dir,
    .lock = system_lock,
    .unlock = system_unlock,
    .look = system_look,
    .still = system_still,
    .room = system_room,
};

int kl__vfs_read(kl__vfs *vfs, kl__file *file, void *bytes, size_t count, uint64_t offset, size_t *ret_count)
{
    size_t done = 0;
    while (done < count) {
        ssize_t got = vfs->read(vfs, file, (char *)bytes + done, count - done, offset + done);
        if (got == 0)
            break;
        if (got < 0 && got != -EINTR)
            return (int)got;
        if (got > 0)
            done += (size_t)got;
    }
    *ret_count = done;
    return 0;
}

/* A write that moves nothing and gives no reason would be repeated for ever: it is taken as a failure of the disk. */
int kl__vfs_write(kl__vfs *vfs, kl__file *file, const void *bytes, size_t count, uint64_t offset)
{
    size_t done = 0;
    while (done < count) {
        ssize_t put = vfs->write(vfs, file, (const char *)bytes + done, count - done, offset + done);
        if (put == 0)
            return -EIO;
        if (put < 0 && put != -EINTR)
            return (int)put;
        if (put > 0)
            done += (size_t)put;
    }
    return 0;
}
