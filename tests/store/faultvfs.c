/* faultvfs.c - each call asks whether it is the one that fails, and else goes to the file system below. */
#include "faultvfs.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "simpages.h"

struct faultvfs {
    kl__vfs vfs;
    kl__vfs *under;
    pthread_mutex_t mutex;
    struct fault_file *open; /* all of them: a file is known by the name that it has now */
    vfs_fault fault;
    uint64_t calls, hits;
    char path[512]; /* of the first hit */
};

struct fault_file {
    kl__file *under;
    char *path;
    struct fault_file *next;
};

static faultvfs *self_of(kl__vfs *vfs) { return KL_CONTAINER(vfs, faultvfs, vfs); }
static struct fault_file *file_of(kl__file *file) { return (struct fault_file *)(void *)file; }

static bool counts(const vfs_fault *fault, unsigned kind, const char *path)
{
    return (fault->kinds & kind) && (!fault->only || strstr(path, fault->only)) &&
           (!fault->except || !strstr(path, fault->except));
}

/* Whether this call fails. Short writes only count writes, and interruptions only what may be interrupted. */
static bool fails_locked(faultvfs *self, unsigned kind, const char *path, vfs_fault *ret_fault)
{
    const vfs_fault *fault = &self->fault;
    bool hit = false;
    if (counts(fault, kind, path)) {
        uint64_t call = ++self->calls;
        hit = fault->at && (call == fault->at || (fault->lasting && call > fault->at));
        if (hit && fault->error == EINTR && (call - fault->at) % 2 == 1)
            hit = false;
        if (hit && self->hits++ == 0)
            snprintf(self->path, sizeof self->path, "%s", path);
    }
    *ret_fault = *fault;
    return hit;
}

static bool fails(faultvfs *self, unsigned kind, const char *path, vfs_fault *ret_fault)
{
    pthread_mutex_lock(&self->mutex);
    bool hit = fails_locked(self, kind, path, ret_fault);
    pthread_mutex_unlock(&self->mutex);
    return hit;
}

static bool file_fails(faultvfs *self, unsigned kind, kl__file *file, vfs_fault *ret_fault)
{
    pthread_mutex_lock(&self->mutex);
    bool hit = fails_locked(self, kind, file_of(file)->path, ret_fault);
    pthread_mutex_unlock(&self->mutex);
    return hit;
}

static int fault_open(kl__vfs *vfs, const char *path, kl__open_mode mode, kl__file **ret_file)
{
    faultvfs *self = self_of(vfs);
    vfs_fault fault;
    if (fails(self, mode == KL_OPEN_CREATE ? FAULT_CREATE : FAULT_OPEN, path, &fault))
        return -fault.error;
    kl__file *under;
    int rc = self->under->open(self->under, path, mode, &under);
    if (rc < 0)
        return rc;
    struct fault_file *file = sim_alloc(sizeof *file);
    pthread_mutex_lock(&self->mutex);
    *file = (struct fault_file){under, strdup(path), self->open};
    self->open = file;
    pthread_mutex_unlock(&self->mutex);
    *ret_file = (kl__file *)(void *)file;
    return 0;
}

static void fault_close(kl__vfs *vfs, kl__file *file)
{
    faultvfs *self = self_of(vfs);
    if (!file)
        return;
    self->under->close(self->under, file_of(file)->under);
    pthread_mutex_lock(&self->mutex);
    struct fault_file **link = &self->open;
    while (*link != file_of(file))
        link = &(*link)->next;
    *link = file_of(file)->next;
    pthread_mutex_unlock(&self->mutex);
    free(file_of(file)->path);
    free(file);
}

static ssize_t fault_read(kl__vfs *vfs, kl__file *file, void *bytes, size_t count, uint64_t offset)
{
    faultvfs *self = self_of(vfs);
    vfs_fault fault;
    if (file_fails(self, FAULT_READ, file, &fault))
        return -fault.error;
    return self->under->read(self->under, file_of(file)->under, bytes, count, offset);
}

static ssize_t fault_write(kl__vfs *vfs, kl__file *file, const void *bytes, size_t count, uint64_t offset)
{
    faultvfs *self = self_of(vfs);
    vfs_fault fault;
    if (file_fails(self, FAULT_WRITE, file, &fault)) {
        if (fault.error)
            return -fault.error;
        count = count > 1 ? count / 2 : count;
    }
    return self->under->write(self->under, file_of(file)->under, bytes, count, offset);
}

static int fault_sync(kl__vfs *vfs, kl__file *file)
{
    faultvfs *self = self_of(vfs);
    vfs_fault fault;
    if (!file_fails(self, FAULT_SYNC, file, &fault))
        return self->under->sync(self->under, file_of(file)->under);
    if (fault.sync_failed)
        fault.sync_failed(fault.ctx, file_of(file)->under);
    return -fault.error;
}

static int fault_refresh(kl__vfs *vfs, kl__file *file)
{
    faultvfs *self = self_of(vfs);
    vfs_fault fault;
    if (file_fails(self, FAULT_SYNC, file, &fault))
        return -fault.error;
    return self->under->refresh(self->under, file_of(file)->under);
}

static int fault_truncate(kl__vfs *vfs, kl__file *file, uint64_t size)
{
    faultvfs *self = self_of(vfs);
    vfs_fault fault;
    if (file_fails(self, FAULT_TRUNCATE, file, &fault))
        return -fault.error;
    return self->under->truncate(self->under, file_of(file)->under, size);
}

static int fault_size(kl__vfs *vfs, kl__file *file, uint64_t *ret_size)
{
    faultvfs *self = self_of(vfs);
    vfs_fault fault;
    if (file_fails(self, FAULT_SIZE, file, &fault))
        return -fault.error;
    return self->under->size(self->under, file_of(file)->under, ret_size);
}

static void rename_open(faultvfs *self, const char *from, const char *to)
{
    pthread_mutex_lock(&self->mutex);
    for (struct fault_file *file = self->open; file; file = file->next)
        if (strcmp(file->path, from) == 0) {
            free(file->path);
            file->path = strdup(to);
        }
    pthread_mutex_unlock(&self->mutex);
}

static int fault_rename(kl__vfs *vfs, const char *from, const char *to)
{
    faultvfs *self = self_of(vfs);
    vfs_fault fault;
    int rc = fails(self, FAULT_RENAME, from, &fault) ? -fault.error : self->under->rename(self->under, from, to);
    if (rc == 0)
        rename_open(self, from, to);
    return rc;
}

static int fault_unlink(kl__vfs *vfs, const char *path)
{
    faultvfs *self = self_of(vfs);
    vfs_fault fault;
    return fails(self, FAULT_UNLINK, path, &fault) ? -fault.error : self->under->unlink(self->under, path);
}

static int fault_mkdir(kl__vfs *vfs, const char *path)
{
    faultvfs *self = self_of(vfs);
    vfs_fault fault;
    return fails(self, FAULT_MKDIR, path, &fault) ? -fault.error : self->under->mkdir(self->under, path);
}

static int fault_list(kl__vfs *vfs, const char *path, kl__name_fn *visit, void *ctx)
{
    faultvfs *self = self_of(vfs);
    vfs_fault fault;
    return fails(self, FAULT_LIST, path, &fault) ? -fault.error : self->under->list(self->under, path, visit, ctx);
}

static int fault_sync_dir(kl__vfs *vfs, const char *path)
{
    faultvfs *self = self_of(vfs);
    vfs_fault fault;
    return fails(self, FAULT_SYNC_DIR, path, &fault) ? -fault.error : self->under->sync_dir(self->under, path);
}

static int fault_lock(kl__vfs *vfs, const char *path, kl__file **ret_lock, int64_t *ret_pid)
{
    faultvfs *self = self_of(vfs);
    vfs_fault fault;
    if (fails(self, FAULT_LOCK, path, &fault))
        return -fault.error;
    return self->under->lock(self->under, path, ret_lock, ret_pid);
}

static void fault_unlock(kl__vfs *vfs, kl__file *lock)
{
    faultvfs *self = self_of(vfs);
    self->under->unlock(self->under, lock);
}

faultvfs *faultvfs_new(kl__vfs *under)
{
    faultvfs *self = sim_alloc(sizeof *self);
    *self = (faultvfs){
        .vfs = {.open = fault_open,
                .close = fault_close,
                .read = fault_read,
                .write = fault_write,
                .sync = fault_sync,
                .refresh = fault_refresh,
                .truncate = fault_truncate,
                .size = fault_size,
                .rename = fault_rename,
                .unlink = fault_unlink,
                .mkdir = fault_mkdir,
                .list = fault_list,
                .sync_dir = fault_sync_dir,
                .lock = fault_lock,
                .unlock = fault_unlock},
        .under = under,
    };
    pthread_mutex_init(&self->mutex, NULL);
    faultvfs_set(self, NULL);
    return self;
}

void faultvfs_free(faultvfs *self)
{
    if (!self)
        return;
    pthread_mutex_destroy(&self->mutex);
    free(self);
}

kl__vfs *faultvfs_vfs(faultvfs *self) { return &self->vfs; }

void faultvfs_set(faultvfs *self, const vfs_fault *fault)
{
    static const vfs_fault none = {.kinds = FAULT_ANY};
    pthread_mutex_lock(&self->mutex);
    self->fault = fault ? *fault : none;
    KL_ASSERT(self->fault.error || self->fault.kinds == FAULT_WRITE || !self->fault.at);
    self->calls = self->hits = 0;
    self->path[0] = '\0';
    pthread_mutex_unlock(&self->mutex);
}

uint64_t faultvfs_calls(faultvfs *self)
{
    pthread_mutex_lock(&self->mutex);
    uint64_t calls = self->calls;
    pthread_mutex_unlock(&self->mutex);
    return calls;
}

uint64_t faultvfs_hits(faultvfs *self, char *ret_path, size_t size)
{
    pthread_mutex_lock(&self->mutex);
    uint64_t hits = self->hits;
    if (ret_path)
        snprintf(ret_path, size, "%s", self->path);
    pthread_mutex_unlock(&self->mutex);
    return hits;
}
