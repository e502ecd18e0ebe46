/* simsqlite.c - the sqlite3_vfs.
 *
 * A node stands for each path that is open: who holds which lock on it, and the WAL's index. The index is gone when
 * the last connection is, as it is after a crash. */
#include "simsqlite.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/random.h"
#include "simpages.h"

enum { PATH_BYTES_MAX = 512, SECTOR_BYTES = 4096, REGIONS_MAX = 64 };

struct sim_db;

struct node {
    struct node *next;
    char *path;
    int refs;
    /* The database's lock, as os_unix.c has it. */
    int shared;
    struct sim_db *reserved, *pending, *exclusive;
    /* The WAL's index. */
    int mapped; /* connections that use it */
    void *regions[REGIONS_MAX];
    int index_shared[SQLITE_SHM_NLOCK];
    struct sim_db *index_exclusive[SQLITE_SHM_NLOCK];
};

struct simsqlite {
    sqlite3_vfs base;
    kl__vfs *vfs;
    char name[32];
    pthread_mutex_t mutex; /* guards nodes, random and clock */
    struct node *nodes;
    uint64_t random;
    int64_t clock_ms;
    unsigned temporary; /* names given to files that have none */
};

struct sim_db {
    sqlite3_file base;
    simsqlite *layer;
    kl__file *file;
    struct node *node;
    int level;           /* SQLITE_LOCK_* */
    bool sync_directory; /* with the next sync: the name is new */
    bool remove;         /* on close */
    bool mapped;
    unsigned index_shared; /* bit i: this connection holds lock i of the index */
};

static struct sim_db *db_of(sqlite3_file *file) { return (struct sim_db *)(void *)file; }
static simsqlite *layer_of(sqlite3_vfs *vfs) { return KL_CONTAINER(vfs, simsqlite, base); }

/* The vfs answers with a negative errno. */
static int failed(int rc, int otherwise) { return rc == -ENOSPC ? SQLITE_FULL : otherwise; }

static int sync_directory_of(simsqlite *layer, const char *path)
{
    char directory[PATH_BYTES_MAX];
    snprintf(directory, sizeof directory, "%s", path);
    char *slash = strrchr(directory, '/');
    if (!slash)
        strcpy(directory, ".");
    else
        slash[slash == directory] = '\0';
    int rc = layer->vfs->sync_dir(layer->vfs, directory);
    return rc < 0 ? failed(rc, SQLITE_IOERR_DIR_FSYNC) : SQLITE_OK;
}

/* ---- Nodes ---- */

static struct node *take_node(simsqlite *layer, const char *path)
{
    pthread_mutex_lock(&layer->mutex);
    struct node *node = layer->nodes;
    while (node && strcmp(node->path, path) != 0)
        node = node->next;
    if (!node) {
        node = sim_alloc(sizeof *node);
        node->path = strdup(path);
        node->next = layer->nodes;
        layer->nodes = node;
    }
    node->refs++;
    pthread_mutex_unlock(&layer->mutex);
    return node;
}

static void drop_node(simsqlite *layer, struct node *node)
{
    pthread_mutex_lock(&layer->mutex);
    if (--node->refs == 0) {
        struct node **link = &layer->nodes;
        while (*link != node)
            link = &(*link)->next;
        *link = node->next;
        KL_ASSERT(node->mapped == 0);
        free(node->path);
        free(node);
    }
    pthread_mutex_unlock(&layer->mutex);
}

/* ---- Bytes ---- */

static int db_read(sqlite3_file *file, void *bytes, int count, sqlite3_int64 offset)
{
    struct sim_db *db = db_of(file);
    size_t got = 0;
    int rc = kl__vfs_read(db->layer->vfs, db->file, bytes, (size_t)count, (uint64_t)offset, &got);
    if (rc < 0)
        return SQLITE_IOERR_READ;
    if (got == (size_t)count)
        return SQLITE_OK;
    memset((char *)bytes + got, 0, (size_t)count - got);
    return SQLITE_IOERR_SHORT_READ;
}

static int db_write(sqlite3_file *file, const void *bytes, int count, sqlite3_int64 offset)
{
    struct sim_db *db = db_of(file);
    int rc = kl__vfs_write(db->layer->vfs, db->file, bytes, (size_t)count, (uint64_t)offset);
    return rc < 0 ? failed(rc, SQLITE_IOERR_WRITE) : SQLITE_OK;
}

static int db_truncate(sqlite3_file *file, sqlite3_int64 size)
{
    struct sim_db *db = db_of(file);
    return db->layer->vfs->truncate(db->layer->vfs, db->file, (uint64_t)size) < 0 ? SQLITE_IOERR_TRUNCATE : SQLITE_OK;
}

static int db_sync(sqlite3_file *file, int flags)
{
    (void)flags;
    struct sim_db *db = db_of(file);
    int rc = db->layer->vfs->sync(db->layer->vfs, db->file);
    if (rc < 0)
        return failed(rc, SQLITE_IOERR_FSYNC);
    if (!db->sync_directory)
        return SQLITE_OK;
    rc = sync_directory_of(db->layer, db->node->path);
    if (rc == SQLITE_OK)
        db->sync_directory = false;
    return rc;
}

static int db_size(sqlite3_file *file, sqlite3_int64 *ret_size)
{
    struct sim_db *db = db_of(file);
    uint64_t size = 0;
    int rc = db->layer->vfs->size(db->layer->vfs, db->file, &size);
    *ret_size = (sqlite3_int64)size;
    return rc < 0 ? SQLITE_IOERR_FSTAT : SQLITE_OK;
}

/* ---- The database's lock ---- */

static int raise(struct sim_db *db, int level)
{
    struct node *node = db->node;
    if (level == SQLITE_LOCK_SHARED) {
        if (node->pending || node->exclusive)
            return SQLITE_BUSY;
        node->shared++;
    } else if (level == SQLITE_LOCK_RESERVED) {
        if (node->reserved)
            return SQLITE_BUSY;
        node->reserved = db;
    } else {
        if ((node->pending && node->pending != db) || (node->reserved && node->reserved != db))
            return SQLITE_BUSY;
        node->pending = db;
        db->level = SQLITE_LOCK_PENDING;
        if (node->shared > 1)
            return SQLITE_BUSY;
        node->exclusive = db;
    }
    db->level = level;
    return SQLITE_OK;
}

static int db_lock(sqlite3_file *file, int level)
{
    struct sim_db *db = db_of(file);
    if (db->level >= level)
        return SQLITE_OK;
    pthread_mutex_lock(&db->layer->mutex);
    int rc = raise(db, level);
    pthread_mutex_unlock(&db->layer->mutex);
    return rc;
}

static int db_unlock(sqlite3_file *file, int level)
{
    struct sim_db *db = db_of(file);
    struct node *node = db->node;
    if (db->level <= level)
        return SQLITE_OK;
    pthread_mutex_lock(&db->layer->mutex);
    node->reserved = node->reserved == db ? NULL : node->reserved;
    node->pending = node->pending == db ? NULL : node->pending;
    node->exclusive = node->exclusive == db ? NULL : node->exclusive;
    if (level == SQLITE_LOCK_NONE)
        node->shared--;
    db->level = level;
    pthread_mutex_unlock(&db->layer->mutex);
    return SQLITE_OK;
}

static int db_check_reserved(sqlite3_file *file, int *ret_reserved)
{
    struct sim_db *db = db_of(file);
    pthread_mutex_lock(&db->layer->mutex);
    *ret_reserved = db->node->reserved != NULL;
    pthread_mutex_unlock(&db->layer->mutex);
    return SQLITE_OK;
}

/* ---- The WAL's index ---- */

static int index_map(sqlite3_file *file, int region, int size, int extend, void volatile **ret_region)
{
    struct sim_db *db = db_of(file);
    KL_ASSERT(region < REGIONS_MAX);
    pthread_mutex_lock(&db->layer->mutex);
    if (!db->mapped) {
        db->mapped = true;
        db->node->mapped++;
    }
    if (!db->node->regions[region] && extend)
        db->node->regions[region] = sim_alloc((size_t)size);
    *ret_region = db->node->regions[region];
    pthread_mutex_unlock(&db->layer->mutex);
    return SQLITE_OK;
}

static void let_go(struct sim_db *db, int slot)
{
    struct node *node = db->node;
    if (db->index_shared & (1u << slot)) {
        db->index_shared &= ~(1u << slot);
        node->index_shared[slot]--;
    }
    if (node->index_exclusive[slot] == db)
        node->index_exclusive[slot] = NULL;
}

/* Holders of the slot other than this connection. */
static bool held_by_others(const struct sim_db *db, int slot, bool exclusive_only)
{
    const struct node *node = db->node;
    int own = (db->index_shared >> slot) & 1;
    if (node->index_exclusive[slot] && node->index_exclusive[slot] != db)
        return true;
    return !exclusive_only && node->index_shared[slot] > own;
}

static int index_lock(sqlite3_file *file, int offset, int count, int flags)
{
    struct sim_db *db = db_of(file);
    bool shared = flags & SQLITE_SHM_SHARED;
    int rc = SQLITE_OK;
    pthread_mutex_lock(&db->layer->mutex);
    for (int i = offset; !(flags & SQLITE_SHM_UNLOCK) && i < offset + count; i++)
        if (held_by_others(db, i, shared))
            rc = SQLITE_BUSY;
    for (int i = offset; rc == SQLITE_OK && i < offset + count; i++) {
        if (flags & SQLITE_SHM_UNLOCK) {
            let_go(db, i);
        } else if (!shared) {
            db->node->index_exclusive[i] = db;
        } else if (!(db->index_shared & (1u << i))) {
            db->index_shared |= 1u << i;
            db->node->index_shared[i]++;
        }
    }
    pthread_mutex_unlock(&db->layer->mutex);
    return rc;
}

static void index_barrier(sqlite3_file *file)
{
    struct sim_db *db = db_of(file);
    pthread_mutex_lock(&db->layer->mutex);
    pthread_mutex_unlock(&db->layer->mutex);
}

static int index_unmap(sqlite3_file *file, int remove)
{
    (void)remove;
    struct sim_db *db = db_of(file);
    pthread_mutex_lock(&db->layer->mutex);
    if (db->mapped) {
        for (int i = 0; i < SQLITE_SHM_NLOCK; i++)
            let_go(db, i);
        db->mapped = false;
        if (--db->node->mapped == 0)
            for (int i = 0; i < REGIONS_MAX; i++) {
                free(db->node->regions[i]);
                db->node->regions[i] = NULL;
            }
    }
    pthread_mutex_unlock(&db->layer->mutex);
    return SQLITE_OK;
}

/* ---- The rest of a file ---- */

static int db_control(sqlite3_file *file, int operation, void *argument)
{
    (void)file, (void)operation, (void)argument;
    return SQLITE_NOTFOUND;
}

static int db_sector_size(sqlite3_file *file)
{
    (void)file;
    return SECTOR_BYTES;
}

static int db_characteristics(sqlite3_file *file)
{
    (void)file;
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

static int db_close(sqlite3_file *file)
{
    struct sim_db *db = db_of(file);
    db_unlock(file, SQLITE_LOCK_NONE);
    index_unmap(file, 0);
    db->layer->vfs->close(db->layer->vfs, db->file);
    if (db->remove)
        db->layer->vfs->unlink(db->layer->vfs, db->node->path);
    drop_node(db->layer, db->node);
    return SQLITE_OK;
}

static const sqlite3_io_methods db_methods = {
    .iVersion = 2,
    .xClose = db_close,
    .xRead = db_read,
    .xWrite = db_write,
    .xTruncate = db_truncate,
    .xSync = db_sync,
    .xFileSize = db_size,
    .xLock = db_lock,
    .xUnlock = db_unlock,
    .xCheckReservedLock = db_check_reserved,
    .xFileControl = db_control,
    .xSectorSize = db_sector_size,
    .xDeviceCharacteristics = db_characteristics,
    .xShmMap = index_map,
    .xShmLock = index_lock,
    .xShmBarrier = index_barrier,
    .xShmUnmap = index_unmap,
};

/* ---- The layer ---- */

static int open_file(kl__vfs *vfs, const char *path, int flags, kl__file **ret_file, bool *ret_made)
{
    int rc = -EEXIST;
    if (flags & SQLITE_OPEN_CREATE)
        rc = vfs->open(vfs, path, KL_OPEN_CREATE, ret_file);
    *ret_made = rc == 0;
    if (rc == -EEXIST && !(flags & SQLITE_OPEN_EXCLUSIVE))
        rc = vfs->open(vfs, path, flags & SQLITE_OPEN_READWRITE ? KL_OPEN_WRITE : KL_OPEN_READ, ret_file);
    return rc;
}

static int layer_open(sqlite3_vfs *vfs, const char *path, sqlite3_file *file, int flags, int *ret_flags)
{
    simsqlite *layer = layer_of(vfs);
    struct sim_db *db = db_of(file);
    char temporary[64];
    *db = (struct sim_db){.layer = layer};
    if (!path) {
        pthread_mutex_lock(&layer->mutex);
        snprintf(temporary, sizeof temporary, "./temporary-%u", ++layer->temporary);
        pthread_mutex_unlock(&layer->mutex);
        path = temporary;
    }
    bool made = false;
    if (open_file(layer->vfs, path, flags, &db->file, &made) < 0)
        return SQLITE_CANTOPEN;
    db->base.pMethods = &db_methods;
    db->node = take_node(layer, path);
    db->sync_directory =
        made && (flags & (SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_SUPER_JOURNAL | SQLITE_OPEN_WAL)) != 0;
    db->remove = flags & SQLITE_OPEN_DELETEONCLOSE;
    if (ret_flags)
        *ret_flags = flags;
    return SQLITE_OK;
}

static int layer_delete(sqlite3_vfs *vfs, const char *path, int sync_directory)
{
    simsqlite *layer = layer_of(vfs);
    int rc = layer->vfs->unlink(layer->vfs, path);
    if (rc == -ENOENT)
        return SQLITE_IOERR_DELETE_NOENT;
    if (rc < 0)
        return SQLITE_IOERR_DELETE;
    return sync_directory ? sync_directory_of(layer, path) : SQLITE_OK;
}

/* As os_unix.c: an empty file counts as none. */
static int layer_access(sqlite3_vfs *vfs, const char *path, int flags, int *ret_there)
{
    simsqlite *layer = layer_of(vfs);
    kl__file *file;
    uint64_t size = 0;
    *ret_there = 0;
    if (layer->vfs->open(layer->vfs, path, KL_OPEN_READ, &file) < 0)
        return SQLITE_OK;
    int rc = layer->vfs->size(layer->vfs, file, &size);
    layer->vfs->close(layer->vfs, file);
    *ret_there = flags != SQLITE_ACCESS_EXISTS || size > 0;
    return rc < 0 ? SQLITE_IOERR_ACCESS : SQLITE_OK;
}

static int layer_full_path(sqlite3_vfs *vfs, const char *path, int size, char *ret_path)
{
    (void)vfs;
    return snprintf(ret_path, (size_t)size, "%s", path) < size ? SQLITE_OK : SQLITE_CANTOPEN;
}

static int layer_randomness(sqlite3_vfs *vfs, int count, char *bytes)
{
    simsqlite *layer = layer_of(vfs);
    pthread_mutex_lock(&layer->mutex);
    for (int i = 0; i < count; i++)
        bytes[i] = (char)kl__random_next(&layer->random);
    pthread_mutex_unlock(&layer->mutex);
    return count;
}

/* Whoever sleeps waits for a thread that holds a lock: that one goes on. */
static int layer_sleep(sqlite3_vfs *vfs, int microseconds)
{
    (void)vfs;
    sched_yield();
    return microseconds;
}

static int layer_time(sqlite3_vfs *vfs, sqlite3_int64 *ret_ms)
{
    simsqlite *layer = layer_of(vfs);
    pthread_mutex_lock(&layer->mutex);
    *ret_ms = layer->clock_ms++;
    pthread_mutex_unlock(&layer->mutex);
    return SQLITE_OK;
}

static int layer_last_error(sqlite3_vfs *vfs, int size, char *text)
{
    (void)vfs, (void)size, (void)text;
    return 0;
}

simsqlite *simsqlite_new(kl__vfs *vfs)
{
    static atomic_uint number;
    simsqlite *layer = sim_alloc(sizeof *layer);
    *layer = (simsqlite){
        .base = {.iVersion = 2,
                 .szOsFile = sizeof(struct sim_db),
                 .mxPathname = PATH_BYTES_MAX,
                 .zName = layer->name,
                 .xOpen = layer_open,
                 .xDelete = layer_delete,
                 .xAccess = layer_access,
                 .xFullPathname = layer_full_path,
                 .xRandomness = layer_randomness,
                 .xSleep = layer_sleep,
                 .xGetLastError = layer_last_error,
                 .xCurrentTimeInt64 = layer_time},
        .vfs = vfs,
        .random = 1,
        .clock_ms = 212501836800000, /* Julian milliseconds of the year 2021 */
    };
    pthread_mutex_init(&layer->mutex, NULL);
    snprintf(layer->name, sizeof layer->name, "keyline-sim-%u", atomic_fetch_add(&number, 1));
    KL_ASSERT(sqlite3_vfs_register(&layer->base, 0) == SQLITE_OK);
    vfs->sqlite_vfs = layer->name;
    return layer;
}

void simsqlite_free(simsqlite *layer)
{
    if (!layer)
        return;
    KL_ASSERT(!layer->nodes);
    sqlite3_vfs_unregister(&layer->base);
    layer->vfs->sqlite_vfs = NULL;
    pthread_mutex_destroy(&layer->mutex);
    free(layer);
}
