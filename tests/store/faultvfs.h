/* faultvfs.h - a file system over another one in which a chosen call fails.
 *
 * Calls are counted by kind from the moment a fault is set; the n-th of the chosen kinds fails, once or from then
 * on. */
#ifndef TESTS_FAULTVFS_H
#define TESTS_FAULTVFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/disk/vfs.h"

typedef struct faultvfs faultvfs;

enum fault_kind {
    FAULT_OPEN = 1 << 0, /* of a file that is there */
    FAULT_CREATE = 1 << 1,
    FAULT_READ = 1 << 2,
    FAULT_WRITE = 1 << 3,
    FAULT_SYNC = 1 << 4,
    FAULT_TRUNCATE = 1 << 5,
    FAULT_SIZE = 1 << 6,
    FAULT_RENAME = 1 << 7,
    FAULT_UNLINK = 1 << 8,
    FAULT_MKDIR = 1 << 9,
    FAULT_LIST = 1 << 10,
    FAULT_SYNC_DIR = 1 << 11,
    FAULT_LOCK = 1 << 12,
    FAULT_ANY = (1 << 13) - 1,
};

typedef struct vfs_fault {
    unsigned kinds;     /* FAULT_* */
    uint64_t at;        /* 1: the next call of these kinds */
    bool lasting;       /* and every one after it; of EINTR, every other one, since the caller tries again for ever */
    int error;          /* EIO, ENOSPC, EINTR, ...; 0: a write moves half of its bytes */
    const char *only;   /* counts only calls on paths that contain this; NULL: all */
    const char *except; /* and not this; NULL: all */
    /* Told of a sync that fails, with the file of the file system below, before the error is returned. */
    void (*sync_failed)(void *ctx, kl__file *under);
    void *ctx;
} vfs_fault;

faultvfs *faultvfs_new(kl__vfs *under);
void faultvfs_free(faultvfs *vfs);
kl__vfs *faultvfs_vfs(faultvfs *vfs);

/* Counts from 0 again. NULL: nothing fails. */
void faultvfs_set(faultvfs *vfs, const vfs_fault *fault);

/* Calls of the kinds that the fault names (of all kinds, when there is none), since it was set. */
uint64_t faultvfs_calls(faultvfs *vfs);

/* How often the fault happened since it was set, and on which path it did first. ret_path may be NULL. */
uint64_t faultvfs_hits(faultvfs *vfs, char *ret_path, size_t size);

#endif
