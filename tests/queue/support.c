/* support.c - stores and records for tests of queues. */
#include "queue/support.h"

static int64_t rig_now(void *ctx) { return atomic_load(&((struct rig *)ctx)->clock_ms); }

static void open_store(struct rig *rig)
{
    kl_store_opts opts = {.size = sizeof opts, .now_ms = rig_now, .now_ctx = rig, .segment_bytes = 64 << 10};
    if (kl_store_open(rig->url, &opts, &rig->store) != KL_OK)
        test_fail(__FILE__, __LINE__, "%s does not open: %s", rig->url, kl_error_text());
}

bool rig_open(struct rig *rig, bool disk)
{
    *rig = (struct rig){.disk = disk};
    atomic_store(&rig->clock_ms, INT64_C(1700000000000));
    if (!workdir_make(rig->path)) {
        test_fail(__FILE__, __LINE__, "no directory is to be made");
        return false;
    }
    if (disk)
        snprintf(rig->url, sizeof rig->url, "disk:%s/data", rig->path);
    else
        strcpy(rig->url, "memory:");
    open_store(rig);
    return rig->store != NULL;
}

void rig_close(struct rig *rig)
{
    kl_store_close(rig->store);
    kl_arena_free(&rig->arena);
    CHECK(workdir_remove(rig->path));
}

void rig_reopen(struct rig *rig)
{
    CHECK(rig->disk);
    kl_store_close(rig->store);
    rig->store = NULL;
    open_store(rig);
}

static void run_once(void (*claim)(struct rig *rig), bool disk)
{
    struct rig rig;
    if (!rig_open(&rig, disk))
        return;
    claim(&rig);
    rig_close(&rig);
}

void run_on_memory(void (*claim)(struct rig *rig)) { run_once(claim, false); }

void run_on_stores(void (*claim)(struct rig *rig))
{
    run_once(claim, false);
    run_once(claim, true);
}

kl_queue *open_queue(const char *file, int line, kl_store *store, const char *name, const kl_queue_opts *opts)
{
    kl_queue *queue = NULL;
    if (kl_queue_open(store, name, opts, &queue) != KL_OK)
        test_fail(file, line, "queue %s does not open: %s", name, kl_error_text());
    return queue;
}

const char *record_text(struct rig *rig, const char *name)
{
    kl_bytes key = kl_str(name), copy = {0};
    kl_record record = {0};
    CHECK_INT(kl_store_get(rig->store, &key, 1, &rig->arena, &record), KL_OK);
    if (record.version == 0)
        return NULL;
    CHECK(kl_arena_copy(&rig->arena, record.value, &copy));
    return copy.data;
}

void set_record(struct rig *rig, const char *name, const char *value)
{
    kl_write write = {.name = kl_str(name), .value = kl_str(value), .remove = value == NULL};
    kl_record record = {0};
    CHECK_INT(kl_store_get(rig->store, &write.name, 1, &rig->arena, &record), KL_OK);
    write.version = record.version;
    CHECK_INT(kl_store_put(rig->store, &write, 1), KL_OK);
}
