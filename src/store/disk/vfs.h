/* vfs.h - everything the disk engine does to files, so that a test can lose power, fail or fill up at any call.
 *
 * Functions return 0 or a byte count, or a negative errno. A file is used by several threads at once for reading, and
 * by one at a time for the rest. Paths are as given to open; nothing is resolved against anything. What is written is
 * durable after sync; a name that was made, renamed or removed is durable after sync_dir of its directory. */
#ifndef KL_STORE_VFS_H
#define KL_STORE_VFS_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct kl__vfs kl__vfs;
typedef struct kl__file kl__file;

typedef enum kl__open_mode {
    KL_OPEN_READ,   /* must be there */
    KL_OPEN_WRITE,  /* read and write; must be there */
    KL_OPEN_CREATE, /* read and write; made, and must not be there: -EEXIST */
} kl__open_mode;

/* Called for each name in a directory but . and .. */
typedef void kl__name_fn(void *ctx, const char *name);

struct kl__vfs {
    /* Regular files only, and never waits: -EISDIR, -ELOOP or -ENXIO where the name is something else's
     * (kl__vfs_is_no_file). */
    int (*open)(kl__vfs *vfs, const char *path, kl__open_mode mode, kl__file **ret_file);
    void (*close)(kl__vfs *vfs, kl__file *file); /* NULL is fine */

    /* May move fewer bytes than asked, or be interrupted (-EINTR): kl__vfs_read and kl__vfs_write go on until done. */
    ssize_t (*read)(kl__vfs *vfs, kl__file *file, void *bytes, size_t count, uint64_t offset);
    ssize_t (*write)(kl__vfs *vfs, kl__file *file, const void *bytes, size_t count, uint64_t offset);

    int (*sync)(kl__vfs *vfs, kl__file *file); /* fdatasync */
    /* Makes reads show what is on the disk, not what the system remembers of it: after a sync that failed, that may be
     * something that was never written. Syncs first. */
    int (*refresh)(kl__vfs *vfs, kl__file *file);
    int (*truncate)(kl__vfs *vfs, kl__file *file, uint64_t size);
    int (*size)(kl__vfs *vfs, kl__file *file, uint64_t *ret_size);

    int (*rename)(kl__vfs *vfs, const char *from, const char *to); /* `to` is replaced */
    int (*unlink)(kl__vfs *vfs, const char *path);
    int (*mkdir)(kl__vfs *vfs, const char *path); /* -EEXIST: it is there */
    int (*list)(kl__vfs *vfs, const char *path, kl__name_fn *visit, void *ctx);
    int (*sync_dir)(kl__vfs *vfs, const char *path);

    /* Makes this process the directory's only owner, by a file `lock` in it that holds the pid, until it is unlocked or
     * the process ends, with its children if it forked without exec. -EBUSY: another has it, and *ret_pid is its pid (0: not known). */
    int (*lock)(kl__vfs *vfs, const char *path, kl__file **ret_lock, int64_t *ret_pid);
    void (*unlock)(kl__vfs *vfs, kl__file *lock); /* NULL is fine */

    /* Keeps everybody from owning the directory while it is looked at, until unlocked; several may look at once.
     * Nothing is changed. -EBUSY as above; -ENOENT: nobody ever owned it. NULL: there is nobody else. */
    int (*look)(kl__vfs *vfs, const char *path, kl__file **ret_lock, int64_t *ret_pid);

    /* Is an open file still in its place? 0; -ENOENT: it has no name any more, or a lock's path leads nowhere; -ESTALE:
     * that leads to another file. What cannot be told counts as 0. NULL: nobody else is there to change it. */
    int (*still)(kl__vfs *vfs, kl__file *file);

    /* How many bytes can still be written in the directory's file system, and how many its blocks have. NULL: that
     * cannot be told. */
    int (*room)(kl__vfs *vfs, const char *path, uint64_t *ret_bytes, uint64_t *ret_block);

    /* The name of SQLite's file layer under which history.db is opened; NULL: SQLite's own. */
    const char *sqlite_vfs;
};

/* In words, with the directory's path twice: a lock is taken, and by whom is not known. */
#define KL_DISK_HELD                                                                                                   \
    "%s is held by a process whose number is not known (it looks at the directory, runs in another container, or "     \
    "was forked by one which had it open and has ended; `fuser %s/lock` finds it)"

/* Does the errno say that there is no room on the disk? */
static inline bool kl__vfs_is_full(int error) { return error == -ENOSPC || error == -EDQUOT; }

/* Does the errno of an open say that the name is not a regular file's? */
static inline bool kl__vfs_is_no_file(int error) { return error == -EISDIR || error == -ELOOP || error == -ENXIO; }

/* The machine's file system. */
extern kl__vfs kl__vfs_system;

/* All of `count` bytes, through interruptions and short counts. Reading stops at the end of the file, and *ret_count
 * says where. 0 or a negative errno. */
int kl__vfs_read(kl__vfs *vfs, kl__file *file, void *bytes, size_t count, uint64_t offset, size_t *ret_count);
int kl__vfs_write(kl__vfs *vfs, kl__file *file, const void *bytes, size_t count, uint64_t offset);

#endif
