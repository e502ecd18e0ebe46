/* simdisk.h - a disk in memory that can lose power, to open the disk engine on.
 *
 * Everything that changes the disk is an operation with a number: write, truncate, sync, create, rename, unlink,
 * mkdir and sync_dir. A disk holds what programs see (the page cache) and, apart from it, what is durable:
 *
 *   D1  What is written to a file, and its size, is durable after sync of that file; until then any part of it may be.
 *   D2  A name that is made, renamed or removed is durable after sync_dir of its directory. A rename is never half
 *       done: a file has one name at a time. A name and the bytes of its file are independent.
 *   D3  What is durable stays.
 *
 * simdisk_image makes the disk that may be found after power was lost now. To lose it after each operation of a run,
 * record the run, and bring a second disk forward through the recorded operations. The disk is thread-safe, and does
 * the same for the same operations and seed. */
#ifndef TESTS_SIMDISK_H
#define TESTS_SIMDISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "store/disk/vfs.h"

typedef struct simdisk simdisk;

/* What remains of the operations that were not yet durable. */
typedef enum simdisk_outcome {
    SIM_NOTHING,   /* none of them */
    SIM_ALL,       /* all */
    SIM_PREFIX,    /* those up to some operation */
    SIM_SUBSET,    /* some, each 4 KiB page of a write on its own */
    SIM_REORDERED, /* some, in any order: of overlapping ones any may be the last */
    SIM_TORN_512,  /* a prefix whose last write ends early at a multiple of 512 */
    SIM_TORN_4K,   /* likewise of 4096 */
    SIM_GARBAGE,   /* a prefix whose last write becomes noise somewhere inside */
    SIM_OUTCOMES
} simdisk_outcome;

extern const char *const simdisk_outcome_names[SIM_OUTCOMES];

/* An empty disk with the directories "/" and ".". Paths are compared as they are; a slash at their end is ignored. */
simdisk *simdisk_new(void);
void simdisk_free(simdisk *disk); /* NULL is fine; no file may be open */

/* To open things on. The caller may set its sqlite_vfs. */
kl__vfs *simdisk_vfs(simdisk *disk);

uint64_t simdisk_ops(simdisk *disk); /* done since it was made */

/* A disk of the same contents and the same state of durability. Nothing is recorded in it yet, and its operations
 * count from 0. */
simdisk *simdisk_clone(simdisk *disk);

/* From now on operations are kept, to be done again on a clone from before. */
void simdisk_record(simdisk *disk);
uint64_t simdisk_recorded(simdisk *disk); /* how many there are */
/* Does the recorded operations on `disk` until it has done `op` of them. */
void simdisk_forward(simdisk *disk, simdisk *recorded, uint64_t op);
/* Says in words what recorded operation `op` was (the first is 1). */
void simdisk_describe(simdisk *recorded, uint64_t op, char *ret_text, size_t size);

/* What was recorded, to a file and back: the disk that is loaded has done none of it, and holds nothing but the
 * recording. */
bool simdisk_save(simdisk *recorded, FILE *file);
simdisk *simdisk_load(FILE *file); /* NULL: it cannot be read */

/* A disk as it may be found after power was lost now: nothing in it is unsynced, nothing is open. */
simdisk *simdisk_image(simdisk *disk, simdisk_outcome outcome, uint64_t seed);

/* How much is not durable: operations that simdisk_image may keep or lose. */
size_t simdisk_unsynced(simdisk *disk);

/* ---- Faults ---- */

/* What a failed fsync does with the pages that it could not write. */
typedef enum simdisk_dirty {
    SIM_DIRTY_KEPT,      /* a later sync may write them */
    SIM_DIRTY_FORGOTTEN, /* programs see them, but no sync will ever write them (ext4, xfs) */
    SIM_DIRTY_DROPPED,   /* programs see what was there before (the page was evicted) */
} simdisk_dirty;

void simdisk_fail_sync(simdisk *disk, kl__file *file, simdisk_dirty dirty);

/* The most bytes that files may take, in pages of 4 KiB; growing beyond is ENOSPC. 0: no end. It may be changed at
 * any time. */
void simdisk_capacity(simdisk *disk, uint64_t bytes);
uint64_t simdisk_used(simdisk *disk);

#endif
