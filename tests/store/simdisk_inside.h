/* simdisk_inside.h - the simulated disk's own data, shared by simdisk.c (calls) and simimage.c (what power loss
 * leaves). */
#ifndef TESTS_SIMDISK_INSIDE_H
#define TESTS_SIMDISK_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "simdisk.h"
#include "simpages.h"

enum sim_kind { OP_WRITE, OP_TRUNCATE, OP_SYNC, OP_CREATE, OP_MKDIR, OP_RENAME, OP_UNLINK, OP_SYNC_DIR, OP_KINDS };

/* One operation, shared by the recording and by every disk on which it is not durable yet. Files go by number,
 * because the same operations number them alike on every disk. */
struct sim_op {
    atomic_int refs;
    enum sim_kind kind;
    size_t node;     /* file or directory; of SYNC_DIR none */
    uint64_t offset; /* WRITE; TRUNCATE: the size */
    size_t count;    /* WRITE */
    char *path, *to; /* names; of operations on files, the name at the time */
    uint8_t bytes[]; /* WRITE */
};

/* A file or directory. */
struct sim_node {
    bool directory;
    bool locked;
    struct sim_pages seen, durable;
};

struct sim_name {
    char *path;
    size_t node;
};

struct sim_names {
    struct sim_name *list;
    size_t count, room;
};

struct sim_ops {
    struct sim_op **list;
    size_t count, room;
};

/* D1 and D2: `unsynced` holds, in order, each operation that is in `seen` and not in `durable`. */
struct simdisk {
    kl__vfs vfs;
    pthread_mutex_t mutex;
    struct sim_node **nodes;
    size_t node_count, node_room;
    struct sim_names seen, durable;
    struct sim_ops unsynced, recorded;
    bool recording;
    uint64_t ops;
    uint64_t capacity, used; /* in pages; 0: no end */
};

size_t sim_node_add(simdisk *disk, bool directory);

/* The place of the path, or -1. */
ptrdiff_t sim_names_find(const struct sim_names *names, const char *path);
void sim_names_copy(struct sim_names *to, const struct sim_names *from);
void sim_names_free(struct sim_names *names);
void sim_names_remove(struct sim_names *names, size_t index);
/* Applies a create, mkdir, rename or unlink. It counts on nothing that came before: any others may have been lost. */
void sim_names_apply(struct sim_names *names, const struct sim_op *op);

bool sim_op_names(const struct sim_op *op); /* it is about a name, and not about a file's bytes */
bool sim_path_inside(const char *path, const char *directory);
char *sim_path_copy(const char *path);

#endif
