/* simdisk.c - the simulated disk's calls: each change becomes an operation, is done to what programs see, and waits
 * among the unsynced ones until a sync makes it durable. */
#include "simdisk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "simdisk_inside.h"

const char *const simdisk_outcome_names[SIM_OUTCOMES] = {"nothing",   "all",      "prefix",  "subset",
                                                         "reordered", "torn-512", "torn-4k", "garbage"};

static const char *const kind_names[OP_KINDS] = {"write", "truncate", "sync",   "create",
                                                 "mkdir", "rename",   "unlink", "sync_dir"};

struct sim_file {
    size_t node;
    bool writable;
    char *path; /* at the time of open, for words */
};

static struct sim_file *file_of(kl__file *file) { return (struct sim_file *)(void *)file; }
static simdisk *disk_of(kl__vfs *vfs) { return KL_CONTAINER(vfs, simdisk, vfs); }

/* ---- Names ---- */

char *sim_path_copy(const char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    char *copy = sim_alloc(length + 1);
    memcpy(copy, path, length);
    return copy;
}

/* Whether the directory is the path's own. */
bool sim_path_inside(const char *path, const char *directory)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strcmp(directory, ".") == 0 && strcmp(path, ".") != 0;
    if (slash == path)
        return strcmp(directory, "/") == 0 && path[1];
    return strlen(directory) == (size_t)(slash - path) && memcmp(path, directory, (size_t)(slash - path)) == 0;
}

static bool same_directory(const char *a, const char *b)
{
    const char *slash_a = strrchr(a, '/'), *slash_b = strrchr(b, '/');
    size_t length_a = slash_a ? (size_t)(slash_a - a) + 1 : 0, length_b = slash_b ? (size_t)(slash_b - b) + 1 : 0;
    return length_a == length_b && memcmp(a, b, length_a) == 0;
}

ptrdiff_t sim_names_find(const struct sim_names *names, const char *path)
{
    for (size_t i = 0; i < names->count; i++)
        if (strcmp(names->list[i].path, path) == 0)
            return (ptrdiff_t)i;
    return -1;
}

static void add_name(struct sim_names *names, const char *path, size_t node)
{
    if (names->count == names->room) {
        names->room = names->room ? 2 * names->room : 16;
        names->list = realloc(names->list, names->room * sizeof *names->list);
        KL_ASSERT(names->list);
    }
    names->list[names->count++] = (struct sim_name){sim_path_copy(path), node};
}

/* Keeps the order of the others, so that clones number and list alike. */
void sim_names_remove(struct sim_names *names, size_t index)
{
    free(names->list[index].path);
    memmove(names->list + index, names->list + index + 1, (--names->count - index) * sizeof *names->list);
}

void sim_names_copy(struct sim_names *to, const struct sim_names *from)
{
    for (size_t i = 0; i < from->count; i++)
        add_name(to, from->list[i].path, from->list[i].node);
}

void sim_names_free(struct sim_names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->list[i].path);
    free(names->list);
}

static void link_name(struct sim_names *names, const char *path, size_t node)
{
    for (size_t i = names->count; i-- > 0;)
        if (names->list[i].node == node || strcmp(names->list[i].path, path) == 0)
            sim_names_remove(names, i);
    add_name(names, path, node);
}

void sim_names_apply(struct sim_names *names, const struct sim_op *op)
{
    if (op->kind != OP_UNLINK) {
        link_name(names, op->kind == OP_RENAME ? op->to : op->path, op->node);
        return;
    }
    ptrdiff_t index = sim_names_find(names, op->path);
    if (index >= 0 && names->list[index].node == op->node)
        sim_names_remove(names, (size_t)index);
}

bool sim_op_names(const struct sim_op *op)
{
    return op->kind == OP_CREATE || op->kind == OP_MKDIR || op->kind == OP_RENAME || op->kind == OP_UNLINK;
}

static bool is_directory(const simdisk *disk, const char *path)
{
    ptrdiff_t index = sim_names_find(&disk->seen, path);
    return index >= 0 && disk->nodes[disk->seen.list[index].node]->directory;
}

static bool parent_is_there(const simdisk *disk, const char *path)
{
    for (size_t i = 0; i < disk->seen.count; i++)
        if (sim_path_inside(path, disk->seen.list[i].path))
            return disk->nodes[disk->seen.list[i].node]->directory;
    return false;
}

/* ---- Operations ---- */

static struct sim_op *make_op(enum sim_kind kind, size_t node, const char *path, const void *bytes, size_t count)
{
    struct sim_op *op = sim_alloc(sizeof *op + count);
    atomic_init(&op->refs, 1);
    op->kind = kind;
    op->node = node;
    op->path = path ? sim_path_copy(path) : NULL;
    op->count = count;
    if (count)
        memcpy(op->bytes, bytes, count);
    return op;
}

static void drop_op(struct sim_op *op)
{
    if (atomic_fetch_sub(&op->refs, 1) > 1)
        return;
    free(op->path);
    free(op->to);
    free(op);
}

static void push_op(struct sim_ops *ops, struct sim_op *op)
{
    if (ops->count == ops->room) {
        ops->room = ops->room ? 2 * ops->room : 64;
        ops->list = realloc(ops->list, ops->room * sizeof(struct sim_op *));
        KL_ASSERT(ops->list);
    }
    atomic_fetch_add(&op->refs, 1);
    ops->list[ops->count++] = op;
}

static void free_ops(struct sim_ops *ops)
{
    for (size_t i = 0; i < ops->count; i++)
        drop_op(ops->list[i]);
    free(ops->list);
}

size_t sim_node_add(simdisk *disk, bool directory)
{
    if (disk->node_count == disk->node_room) {
        disk->node_room = disk->node_room ? 2 * disk->node_room : 16;
        disk->nodes = realloc(disk->nodes, disk->node_room * sizeof(struct sim_node *));
        KL_ASSERT(disk->nodes);
    }
    disk->nodes[disk->node_count] = sim_alloc(sizeof(struct sim_node));
    disk->nodes[disk->node_count]->directory = directory;
    return disk->node_count++;
}

static void apply_bytes(struct sim_pages *pages, const struct sim_op *op)
{
    if (op->kind == OP_WRITE)
        sim_pages_write(pages, op->bytes, op->count, op->offset);
    else
        sim_pages_truncate(pages, op->offset);
}

/* Takes operations off the unsynced ones: those of the file, or those of the directory's names. They become durable, or
 * are lost. */
static void settle_unsynced(simdisk *disk, const struct sim_op *sync, bool durable)
{
    size_t kept = 0;
    for (size_t i = 0; i < disk->unsynced.count; i++) {
        struct sim_op *op = disk->unsynced.list[i];
        bool names = sim_op_names(op);
        bool meant = sync->kind == OP_SYNC_DIR ? names && sim_path_inside(op->path, sync->path)
                                               : !names && op->node == sync->node;
        if (!meant) {
            disk->unsynced.list[kept++] = op;
            continue;
        }
        if (durable && names)
            sim_names_apply(&disk->durable, op);
        else if (durable)
            apply_bytes(&disk->nodes[op->node]->durable, op);
        drop_op(op);
    }
    disk->unsynced.count = kept;
}

/* Which files a name leads to, or may lead to after power was lost. */
static bool *find_named(const simdisk *disk)
{
    bool *named = sim_alloc(disk->node_count * sizeof *named);
    for (size_t i = 0; i < disk->seen.count; i++)
        named[disk->seen.list[i].node] = true;
    for (size_t i = 0; i < disk->durable.count; i++)
        named[disk->durable.list[i].node] = true;
    for (size_t i = 0; i < disk->unsynced.count; i++)
        if (sim_op_names(disk->unsynced.list[i]))
            named[disk->unsynced.list[i]->node] = true;
    return named;
}

/* Bytes of files that no name can ever lead to again need not be remembered. */
static void forget_nameless(simdisk *disk)
{
    bool *named = find_named(disk);
    size_t kept = 0;
    for (size_t i = 0; i < disk->unsynced.count; i++) {
        struct sim_op *op = disk->unsynced.list[i];
        if (named[op->node])
            disk->unsynced.list[kept++] = op;
        else
            drop_op(op);
    }
    disk->unsynced.count = kept;
    free(named);
}

static void count_pages(simdisk *disk)
{
    disk->used = 0;
    for (size_t i = 0; i < disk->seen.count; i++)
        disk->used += sim_pages_held(&disk->nodes[disk->seen.list[i].node]->seen);
}

/* Does an operation that is known to be possible. */
static void perform(simdisk *disk, struct sim_op *op)
{
    if (op->kind == OP_SYNC || op->kind == OP_SYNC_DIR) {
        settle_unsynced(disk, op, true);
        if (op->kind == OP_SYNC_DIR)
            forget_nameless(disk);
    } else {
        if (op->kind == OP_CREATE || op->kind == OP_MKDIR)
            KL_ASSERT(sim_node_add(disk, op->kind == OP_MKDIR) == op->node);
        if (sim_op_names(op))
            sim_names_apply(&disk->seen, op);
        else
            apply_bytes(&disk->nodes[op->node]->seen, op);
        push_op(&disk->unsynced, op);
    }
    if (disk->capacity && op->kind != OP_SYNC)
        count_pages(disk);
    disk->ops++;
    if (disk->recording)
        push_op(&disk->recorded, op);
}

static void perform_new(simdisk *disk, struct sim_op *op)
{
    perform(disk, op);
    drop_op(op);
}

/* ---- The calls ---- */

static int open_locked(simdisk *disk, const char *path, kl__open_mode mode, size_t *ret_node)
{
    ptrdiff_t index = sim_names_find(&disk->seen, path);
    if (index >= 0 && mode == KL_OPEN_CREATE)
        return -EEXIST;
    if (index >= 0) {
        *ret_node = disk->seen.list[index].node;
        return disk->nodes[*ret_node]->directory ? -EISDIR : 0;
    }
    if (mode != KL_OPEN_CREATE || !parent_is_there(disk, path))
        return -ENOENT;
    *ret_node = disk->node_count;
    perform_new(disk, make_op(OP_CREATE, *ret_node, path, NULL, 0));
    return 0;
}

static kl__file *make_file(size_t node, bool writable, const char *path)
{
    struct sim_file *file = sim_alloc(sizeof *file);
    *file = (struct sim_file){node, writable, sim_path_copy(path)};
    return (kl__file *)(void *)file;
}

static int sim_open(kl__vfs *vfs, const char *path, kl__open_mode mode, kl__file **ret_file)
{
    simdisk *disk = disk_of(vfs);
    char *name = sim_path_copy(path);
    size_t node = 0;
    pthread_mutex_lock(&disk->mutex);
    int rc = open_locked(disk, name, mode, &node);
    pthread_mutex_unlock(&disk->mutex);
    if (rc == 0)
        *ret_file = make_file(node, mode != KL_OPEN_READ, name);
    free(name);
    return rc;
}

static void sim_close(kl__vfs *vfs, kl__file *file)
{
    (void)vfs;
    if (!file)
        return;
    free(file_of(file)->path);
    free(file);
}

static ssize_t sim_read(kl__vfs *vfs, kl__file *file, void *bytes, size_t count, uint64_t offset)
{
    simdisk *disk = disk_of(vfs);
    pthread_mutex_lock(&disk->mutex);
    size_t got = sim_pages_read(&disk->nodes[file_of(file)->node]->seen, bytes, count, offset);
    pthread_mutex_unlock(&disk->mutex);
    return (ssize_t)got;
}

static ssize_t sim_write(kl__vfs *vfs, kl__file *file, const void *bytes, size_t count, uint64_t offset)
{
    simdisk *disk = disk_of(vfs);
    struct sim_file *f = file_of(file);
    if (!f->writable)
        return -EBADF;
    if (count == 0)
        return 0;
    pthread_mutex_lock(&disk->mutex);
    if (disk->capacity) {
        uint64_t room = disk->capacity > disk->used ? disk->capacity - disk->used : 0;
        count = sim_pages_fit(&disk->nodes[f->node]->seen, count, offset, room);
    }
    if (count) {
        struct sim_op *op = make_op(OP_WRITE, f->node, f->path, bytes, count);
        op->offset = offset;
        perform_new(disk, op);
    }
    pthread_mutex_unlock(&disk->mutex);
    return count ? (ssize_t)count : -ENOSPC;
}

static int sim_sync(kl__vfs *vfs, kl__file *file)
{
    simdisk *disk = disk_of(vfs);
    struct sim_file *f = file_of(file);
    pthread_mutex_lock(&disk->mutex);
    perform_new(disk, make_op(OP_SYNC, f->node, f->path, NULL, 0));
    pthread_mutex_unlock(&disk->mutex);
    return 0;
}

static int sim_refresh(kl__vfs *vfs, kl__file *file)
{
    simdisk *disk = disk_of(vfs);
    sim_sync(vfs, file);
    pthread_mutex_lock(&disk->mutex);
    struct sim_node *node = disk->nodes[file_of(file)->node];
    sim_pages_free(&node->seen);
    sim_pages_copy(&node->seen, &node->durable);
    pthread_mutex_unlock(&disk->mutex);
    return 0;
}

static int sim_truncate(kl__vfs *vfs, kl__file *file, uint64_t size)
{
    simdisk *disk = disk_of(vfs);
    struct sim_file *f = file_of(file);
    if (!f->writable)
        return -EBADF;
    struct sim_op *op = make_op(OP_TRUNCATE, f->node, f->path, NULL, 0);
    op->offset = size;
    pthread_mutex_lock(&disk->mutex);
    perform_new(disk, op);
    pthread_mutex_unlock(&disk->mutex);
    return 0;
}

static int sim_size(kl__vfs *vfs, kl__file *file, uint64_t *ret_size)
{
    simdisk *disk = disk_of(vfs);
    pthread_mutex_lock(&disk->mutex);
    *ret_size = disk->nodes[file_of(file)->node]->seen.size;
    pthread_mutex_unlock(&disk->mutex);
    return 0;
}

/* Only inside one directory: moving between two would make their syncs depend on each other. */
static int rename_locked(simdisk *disk, const char *from, const char *to)
{
    ptrdiff_t index = sim_names_find(&disk->seen, from);
    if (index < 0)
        return -ENOENT;
    if (!same_directory(from, to))
        return -EXDEV;
    if (is_directory(disk, from) || is_directory(disk, to))
        return -EISDIR;
    struct sim_op *op = make_op(OP_RENAME, disk->seen.list[index].node, from, NULL, 0);
    op->to = sim_path_copy(to);
    perform_new(disk, op);
    return 0;
}

static int sim_rename(kl__vfs *vfs, const char *from, const char *to)
{
    simdisk *disk = disk_of(vfs);
    pthread_mutex_lock(&disk->mutex);
    int rc = rename_locked(disk, from, to);
    pthread_mutex_unlock(&disk->mutex);
    return rc;
}

static int sim_unlink(kl__vfs *vfs, const char *path)
{
    simdisk *disk = disk_of(vfs);
    pthread_mutex_lock(&disk->mutex);
    ptrdiff_t index = sim_names_find(&disk->seen, path);
    int rc = index < 0 ? -ENOENT : is_directory(disk, path) ? -EISDIR : 0;
    if (rc == 0)
        perform_new(disk, make_op(OP_UNLINK, disk->seen.list[index].node, path, NULL, 0));
    pthread_mutex_unlock(&disk->mutex);
    return rc;
}

static int sim_mkdir(kl__vfs *vfs, const char *path)
{
    simdisk *disk = disk_of(vfs);
    char *name = sim_path_copy(path);
    pthread_mutex_lock(&disk->mutex);
    int rc = sim_names_find(&disk->seen, name) >= 0 ? -EEXIST : !parent_is_there(disk, name) ? -ENOENT : 0;
    if (rc == 0)
        perform_new(disk, make_op(OP_MKDIR, disk->node_count, name, NULL, 0));
    pthread_mutex_unlock(&disk->mutex);
    free(name);
    return rc;
}

/* Names are copied first, because visit may call the disk. */
static int sim_list(kl__vfs *vfs, const char *path, kl__name_fn *visit, void *ctx)
{
    simdisk *disk = disk_of(vfs);
    char *name = sim_path_copy(path);
    struct sim_names copy = {0};
    pthread_mutex_lock(&disk->mutex);
    int rc = is_directory(disk, name) ? 0 : -ENOENT;
    if (rc == 0)
        sim_names_copy(&copy, &disk->seen);
    pthread_mutex_unlock(&disk->mutex);
    for (size_t i = 0; i < copy.count; i++)
        if (sim_path_inside(copy.list[i].path, name)) {
            const char *slash = strrchr(copy.list[i].path, '/');
            visit(ctx, slash ? slash + 1 : copy.list[i].path);
        }
    sim_names_free(&copy);
    free(name);
    return rc;
}

static int sim_sync_dir(kl__vfs *vfs, const char *path)
{
    simdisk *disk = disk_of(vfs);
    char *name = sim_path_copy(path);
    pthread_mutex_lock(&disk->mutex);
    int rc = is_directory(disk, name) ? 0 : -ENOENT;
    if (rc == 0)
        perform_new(disk, make_op(OP_SYNC_DIR, 0, name, NULL, 0));
    pthread_mutex_unlock(&disk->mutex);
    free(name);
    return rc;
}

/* The pid is always 1, so that runs are alike. */
static int sim_lock(kl__vfs *vfs, const char *path, kl__file **ret_lock, int64_t *ret_pid)
{
    simdisk *disk = disk_of(vfs);
    char name[512];
    KL_ASSERT((size_t)snprintf(name, sizeof name, "%s/lock", path) < sizeof name);
    kl__file *file;
    int rc = sim_open(vfs, name, KL_OPEN_CREATE, &file);
    if (rc == -EEXIST)
        rc = sim_open(vfs, name, KL_OPEN_WRITE, &file);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&disk->mutex);
    struct sim_node *node = disk->nodes[file_of(file)->node];
    bool taken = node->locked;
    node->locked = true;
    pthread_mutex_unlock(&disk->mutex);
    if (taken) {
        sim_close(vfs, file);
        *ret_pid = 1;
        return -EBUSY;
    }
    rc = kl__vfs_write(vfs, file, "1\n", 2, 0);
    if (rc == 0)
        rc = sim_truncate(vfs, file, 2);
    if (rc == 0)
        *ret_lock = file;
    else
        vfs->unlock(vfs, file);
    return rc;
}

static void sim_unlock(kl__vfs *vfs, kl__file *lock)
{
    if (!lock)
        return;
    simdisk *disk = disk_of(vfs);
    pthread_mutex_lock(&disk->mutex);
    disk->nodes[file_of(lock)->node]->locked = false;
    pthread_mutex_unlock(&disk->mutex);
    sim_close(vfs, lock);
}

static const kl__vfs sim_vfs = {
    .open = sim_open,
    .close = sim_close,
    .read = sim_read,
    .write = sim_write,
    .sync = sim_sync,
    .refresh = sim_refresh,
    .truncate = sim_truncate,
    .size = sim_size,
    .rename = sim_rename,
    .unlink = sim_unlink,
    .mkdir = sim_mkdir,
    .list = sim_list,
    .sync_dir = sim_sync_dir,
    .lock = sim_lock,
    .unlock = sim_unlock,
};

/* ---- Disks ---- */

simdisk *simdisk_new(void)
{
    simdisk *disk = sim_alloc(sizeof *disk);
    disk->vfs = sim_vfs;
    pthread_mutex_init(&disk->mutex, NULL);
    add_name(&disk->seen, "/", sim_node_add(disk, true));
    add_name(&disk->seen, ".", sim_node_add(disk, true));
    sim_names_copy(&disk->durable, &disk->seen);
    return disk;
}

void simdisk_free(simdisk *disk)
{
    if (!disk)
        return;
    for (size_t i = 0; i < disk->node_count; i++) {
        sim_pages_free(&disk->nodes[i]->seen);
        sim_pages_free(&disk->nodes[i]->durable);
        free(disk->nodes[i]);
    }
    free(disk->nodes);
    sim_names_free(&disk->seen);
    sim_names_free(&disk->durable);
    free_ops(&disk->unsynced);
    free_ops(&disk->recorded);
    pthread_mutex_destroy(&disk->mutex);
    free(disk);
}

kl__vfs *simdisk_vfs(simdisk *disk) { return &disk->vfs; }

uint64_t simdisk_ops(simdisk *disk)
{
    pthread_mutex_lock(&disk->mutex);
    uint64_t ops = disk->ops;
    pthread_mutex_unlock(&disk->mutex);
    return ops;
}

size_t simdisk_unsynced(simdisk *disk)
{
    pthread_mutex_lock(&disk->mutex);
    size_t count = disk->unsynced.count;
    pthread_mutex_unlock(&disk->mutex);
    return count;
}

simdisk *simdisk_clone(simdisk *disk)
{
    simdisk *clone = sim_alloc(sizeof *clone);
    clone->vfs = sim_vfs;
    pthread_mutex_init(&clone->mutex, NULL);
    pthread_mutex_lock(&disk->mutex);
    for (size_t i = 0; i < disk->node_count; i++) {
        size_t node = sim_node_add(clone, disk->nodes[i]->directory);
        sim_pages_copy(&clone->nodes[node]->seen, &disk->nodes[i]->seen);
        sim_pages_copy(&clone->nodes[node]->durable, &disk->nodes[i]->durable);
    }
    sim_names_copy(&clone->seen, &disk->seen);
    sim_names_copy(&clone->durable, &disk->durable);
    for (size_t i = 0; i < disk->unsynced.count; i++)
        push_op(&clone->unsynced, disk->unsynced.list[i]);
    pthread_mutex_unlock(&disk->mutex);
    return clone;
}

void simdisk_record(simdisk *disk)
{
    pthread_mutex_lock(&disk->mutex);
    KL_ASSERT(disk->ops == disk->recorded.count);
    disk->recording = true;
    pthread_mutex_unlock(&disk->mutex);
}

uint64_t simdisk_recorded(simdisk *disk) { return disk->recorded.count; }

void simdisk_forward(simdisk *disk, simdisk *recorded, uint64_t op)
{
    KL_ASSERT(op <= recorded->recorded.count && disk->ops <= op);
    while (disk->ops < op)
        perform(disk, recorded->recorded.list[disk->ops]);
}

void simdisk_describe(simdisk *recorded, uint64_t op, char *ret_text, size_t size)
{
    if (op == 0 || op > recorded->recorded.count) {
        snprintf(ret_text, size, "no operation");
        return;
    }
    const struct sim_op *o = recorded->recorded.list[op - 1];
    if (o->kind == OP_WRITE)
        snprintf(ret_text, size, "write %s at %llu, %zu bytes", o->path, (unsigned long long)o->offset, o->count);
    else if (o->kind == OP_TRUNCATE)
        snprintf(ret_text, size, "truncate %s to %llu", o->path, (unsigned long long)o->offset);
    else
        snprintf(ret_text, size, "%s %s%s%s", kind_names[o->kind], o->path, o->to ? " to " : "", o->to ? o->to : "");
}

struct saved_op {
    uint64_t kind, node, offset, count, path, to; /* path and to: their lengths */
};

bool simdisk_save(simdisk *recorded, FILE *file)
{
    uint64_t count = recorded->recorded.count;
    bool ok = fwrite(&count, sizeof count, 1, file) == 1;
    for (size_t i = 0; ok && i < count; i++) {
        const struct sim_op *op = recorded->recorded.list[i];
        struct saved_op saved = {op->kind,  op->node,         op->offset,
                                 op->count, strlen(op->path), op->to ? strlen(op->to) : 0};
        ok = fwrite(&saved, sizeof saved, 1, file) == 1 && fwrite(op->bytes, 1, op->count, file) == op->count &&
             fwrite(op->path, 1, saved.path, file) == saved.path &&
             (!saved.to || fwrite(op->to, 1, saved.to, file) == saved.to);
    }
    return ok;
}

static struct sim_op *load_op(FILE *file)
{
    struct saved_op saved;
    if (fread(&saved, sizeof saved, 1, file) != 1)
        return NULL;
    struct sim_op *op = sim_alloc(sizeof *op + saved.count);
    atomic_init(&op->refs, 1);
    op->kind = (enum sim_kind)saved.kind;
    op->node = saved.node;
    op->offset = saved.offset;
    op->count = saved.count;
    op->path = sim_alloc(saved.path + 1);
    op->to = saved.to ? sim_alloc(saved.to + 1) : NULL;
    if (fread(op->bytes, 1, op->count, file) == op->count && fread(op->path, 1, saved.path, file) == saved.path &&
        (!saved.to || fread(op->to, 1, saved.to, file) == saved.to))
        return op;
    drop_op(op);
    return NULL;
}

simdisk *simdisk_load(FILE *file)
{
    uint64_t count = 0;
    if (fread(&count, sizeof count, 1, file) != 1)
        return NULL;
    simdisk *disk = simdisk_new();
    for (uint64_t i = 0; i < count; i++) {
        struct sim_op *op = load_op(file);
        if (!op) {
            simdisk_free(disk);
            return NULL;
        }
        push_op(&disk->recorded, op);
        drop_op(op);
    }
    return disk;
}

/* ---- Faults ---- */

void simdisk_fail_sync(simdisk *disk, kl__file *file, simdisk_dirty dirty)
{
    if (dirty == SIM_DIRTY_KEPT)
        return;
    const struct sim_op sync = {.kind = OP_SYNC, .node = file_of(file)->node};
    pthread_mutex_lock(&disk->mutex);
    struct sim_node *node = disk->nodes[sync.node];
    settle_unsynced(disk, &sync, false);
    if (dirty == SIM_DIRTY_DROPPED) {
        sim_pages_free(&node->seen);
        sim_pages_copy(&node->seen, &node->durable);
    }
    pthread_mutex_unlock(&disk->mutex);
}

void simdisk_capacity(simdisk *disk, uint64_t bytes)
{
    pthread_mutex_lock(&disk->mutex);
    disk->capacity = bytes / SIM_PAGE_BYTES;
    count_pages(disk);
    pthread_mutex_unlock(&disk->mutex);
}

uint64_t simdisk_used(simdisk *disk)
{
    pthread_mutex_lock(&disk->mutex);
    count_pages(disk);
    uint64_t used = disk->used * SIM_PAGE_BYTES;
    pthread_mutex_unlock(&disk->mutex);
    return used;
}
