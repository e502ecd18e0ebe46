/* shared.c - disk:PATH for several processes: whoever comes first holds the directory, the others are its clients.
 *
 * From: store.c.  To: the disk engine, or client.c.
 *
 * Opening and going on after the holder's end are the same thing: connect, and where nobody listens open the directory
 * and listen. The disk engine lets one process have a directory open at a time, and so decides between several that
 * try. Partition numbers, positions, tokens and epochs are in the journal, so they are the same whoever holds it; and
 * they are used on no other journal (N4).
 *
 * `disk` is set once, when everything is ready, and read by every call without a mutex (N2): a holder's call costs one
 * load more than it would without all this. */
#include <stdatomic.h>
#include <stdio.h>

#include "store/disk/disk.h"
#include "store/engines.h"
#include "store/socket/socket.h"

struct shared {
    _Atomic(void *) disk; /* the engine's self; NULL: this handle is a client */
    kl__client *client;
    kl_store_opts opts;
    char path[KL_DISK_PATH_MAX + 1];

    kl_store
        *lent; /* the same disk for those who call from outside: their calls are checked, and not counted as ours */
    kl__server *server; /* NULL: nobody else can come */
};

/* ---- A second store over an engine that is open ---- */

/* The engine's open has no place for what is there already, so it travels beside the call, on the same thread. */
static _Thread_local void *next_lent;

static kl_rc lend(const char *where, const kl_store_opts *opts, void **ret_self)
{
    (void)where, (void)opts;
    *ret_self = next_lent;
    return KL_OK;
}

static void keep_open(void *self) { (void)self; }

static kl_engine lent_engine;

static void make_lent_engine(void)
{
    lent_engine = kl__engine_disk;
    lent_engine.can |= KL_STORE_SHARED;
    lent_engine.open = lend;
    lent_engine.close = keep_open;
}

static uint32_t count_partitions(kl__disk *disk)
{
    pthread_mutex_lock(&disk->state.mutex);
    uint32_t count = disk->state.partition_count;
    pthread_mutex_unlock(&disk->state.mutex);
    return count;
}

/* Clients may use the numbers of partitions that an earlier holder gave them, so all that there are are made known. */
static kl_rc know_partitions(kl__disk *disk, kl_store *lent)
{
    kl_rc rc = KL_OK;
    uint32_t count = count_partitions(disk), number;
    for (uint32_t i = 1; rc == KL_OK && i <= count; i++) {
        const kl__partition_state *its = disk->state.partitions[i]; /* never moves, and these parts never change */
        rc = kl_store_partition(lent, its->name, its->shard_prefix_len, &number);
    }
    return rc;
}

static kl_rc lend_disk(kl__disk *disk, kl_store **ret_lent)
{
    static pthread_once_t made = PTHREAD_ONCE_INIT;
    pthread_once(&made, make_lent_engine);
    kl_store *lent;
    next_lent = disk;
    kl_rc rc = kl_store_open_engine(&lent_engine, NULL, NULL, &lent);
    if (rc != KL_OK)
        return rc;
    rc = know_partitions(disk, lent);
    if (rc == KL_OK)
        *ret_lent = lent;
    else
        kl_store_close(lent);
    return rc;
}

/* ---- Holding ---- */

static void warn_alone(const struct shared *shared)
{
    char text[KL_PATH_BYTES + 512];
    if (!shared->opts.log)
        return;
    snprintf(text, sizeof text, "other processes cannot use %s while this one has it open: %s", shared->path,
             kl_error_text());
    shared->opts.log(shared->opts.log_ctx, KL_LOG_WARN, text);
}

/* A directory in which there can be no socket is a good store all the same, for one process. */
static void listen_for_others(struct shared *shared, void *disk)
{
    kl_rc rc = lend_disk(disk, &shared->lent);
    if (rc == KL_OK)
        rc = kl__server_start(shared->lent, kl__disk_identity(disk), shared->path, &shared->server);
    if (rc == KL_OK)
        return;
    warn_alone(shared);
    kl_store_close(shared->lent);
    shared->lent = NULL;
}

/* The store that the clients' numbers are of, and no new one in its place (N4). */
static kl_rc open_disk(struct shared *shared, void **ret_disk)
{
    bool is_known = kl__client_identity(shared->client) != 0;
    kl_store_opts opts = shared->opts;
    opts.no_make |= is_known;
    kl_rc rc = kl__engine_disk.open(shared->path, &opts, ret_disk);
    if (rc == KL_ENOTFOUND && is_known)
        return kl__fail(KL_ESYSTEM,
                        "the store in %s is gone; put back what was there, or close the store and open it again, which "
                        "makes a new one",
                        shared->path);
    if (rc != KL_OK)
        return rc;
    rc = kl__client_recognise(shared->client, kl__disk_identity(*ret_disk), count_partitions(*ret_disk));
    if (rc != KL_OK)
        kl__engine_disk.close(*ret_disk);
    return rc;
}

/* Nobody listens (kl__absent_fn): the directory is ours, if it is anybody's. */
static kl_rc hold(void *ctx)
{
    struct shared *shared = ctx;
    void *disk;
    kl_rc rc = open_disk(shared, &disk);
    if (rc != KL_OK)
        return rc;
    listen_for_others(shared, disk);
    atomic_store_explicit(&shared->disk, disk, memory_order_release);
    return KL_OK;
}

/* ---- Open and close ---- */

static void close_shared(void *self)
{
    struct shared *shared = self;
    kl__server_stop(shared->server);
    kl_store_close(shared->lent);
    kl__client_close(shared->client);
    void *disk = atomic_load(&shared->disk);
    if (disk)
        kl__engine_disk.close(disk);
    kl__free(shared);
}

static kl_rc open_shared(const char *path, const kl_store_opts *opts, void **ret_self)
{
    struct shared *shared = kl__alloc_zeroed(1, sizeof *shared);
    if (!shared)
        return kl__fail_memory();
    shared->opts = *opts;
    strcpy(shared->path, path);
    kl_rc rc = kl__client_open(shared->path, hold, shared, &shared->client);
    if (rc == KL_OK)
        rc = kl__client_connect(shared->client);
    if (rc != KL_OK && rc != KL_MOVED) {
        close_shared(shared);
        return rc;
    }
    *ret_self = shared;
    return KL_OK;
}

uint32_t kl__shared_can(const void *self)
{
    const struct shared *shared = self;
    if (!atomic_load(&shared->disk))
        return (kl__client_can(shared->client) | KL_STORE_SHARED) & ~(uint32_t)KL_STORE_ASYNC;
    return kl__engine_disk.can | (shared->server ? KL_STORE_SHARED : 0);
}

uint64_t kl__shared_identity(const void *self) { return kl__client_identity(((const struct shared *)self)->client); }

/* ---- The calls ---- */

/* Makes the call where the store is: `call` and its arguments behind self. */
#define PASS_ON(self, call, ...)                                                                                       \
    do {                                                                                                               \
        struct shared *shared_ = (self);                                                                               \
        void *disk_ = atomic_load_explicit(&shared_->disk, memory_order_acquire);                                      \
        if (KL_UNLIKELY(!disk_)) {                                                                                     \
            kl_rc rc_ = kl__client_##call(shared_->client, __VA_ARGS__);                                               \
            if (rc_ != KL_MOVED)                                                                                       \
                return rc_;                                                                                            \
            disk_ = atomic_load_explicit(&shared_->disk, memory_order_acquire);                                        \
        }                                                                                                              \
        return kl__engine_disk.call(disk_, __VA_ARGS__);                                                               \
    } while (0)

static kl_rc now(void *self, int64_t *ret_ms) { PASS_ON(self, now, ret_ms); }

static kl_rc partition(void *self, const char *name, uint32_t shard_prefix_len, uint32_t *ret_partition)
{
    PASS_ON(self, partition, name, shard_prefix_len, ret_partition);
}

static kl_rc append(void *self, const kl_append *entries) { PASS_ON(self, append, entries); }
static kl_rc scan(void *self, kl_scan *scans, size_t count) { PASS_ON(self, scan, scans, count); }

static kl_rc read_tasks(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks,
                        size_t *ret_count)
{
    PASS_ON(self, read, refs, count, arena, ret_tasks, ret_count);
}

static kl_rc settle(void *self, kl_settle *batches, size_t count) { PASS_ON(self, settle, batches, count); }
static kl_rc fence(void *self, kl_fence *fences, size_t count) { PASS_ON(self, fence, fences, count); }

static kl_rc counts(void *self, kl_place place, const kl_task_id *job, kl_counts *ret_counts)
{
    PASS_ON(self, counts, place, job, ret_counts);
}

static kl_rc wait_for_work(void *self, uint32_t number, int64_t wait_ms, uint64_t *seen)
{
    PASS_ON(self, wait, number, wait_ms, seen);
}

static kl_rc results(void *self, kl_place place, const kl_task_id *job, const kl_task_id *after, size_t max,
                     kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    PASS_ON(self, results, place, job, after, max, arena, ret_tasks, ret_count);
}

static kl_rc find(void *self, const kl_find *what, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    PASS_ON(self, find, what, arena, ret_tasks, ret_count);
}

static kl_rc forget(void *self, kl_place place, const kl_task_id *ids, size_t count)
{
    PASS_ON(self, forget, place, ids, count);
}

static kl_rc get(void *self, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records)
{
    PASS_ON(self, get, names, count, arena, ret_records);
}

static kl_rc put(void *self, kl_write *writes, size_t count) { PASS_ON(self, put, writes, count); }

static kl_rc list(void *self, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena, kl_record *ret_records,
                  size_t *ret_count)
{
    PASS_ON(self, list, prefix, after, max, arena, ret_records, ret_count);
}

const kl_engine kl__engine_shared = {
    .size = sizeof(kl_engine),
    .scheme = "disk",
    .usage = "disk:PATH",
    .can = KL_STORE_DURABLE | KL_STORE_ATOMIC_APPEND | KL_STORE_KEY_HASH | KL_STORE_WAIT | KL_STORE_ASYNC |
           KL_STORE_ORDERED | KL_STORE_SEARCH | KL_STORE_GROUP | KL_STORE_SEAL | KL_STORE_SHARED,
    .open = open_shared,
    .close = close_shared,
    .now = now,
    .partition = partition,
    .append = append,
    .scan = scan,
    .read = read_tasks,
    .settle = settle,
    .fence = fence,
    .counts = counts,
    .wait = wait_for_work,
    .results = results,
    .find = find,
    .forget = forget,
    .get = get,
    .put = put,
    .list = list,
};
