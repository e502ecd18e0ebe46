/* job_support.c - see job_support.h. */
#include "queue/job_support.h"

#include <stdlib.h>

enum { SETTLE_AT_ONCE = 1000 };

/* --- Tasks --- */

kl_put *make_puts(struct rig *rig, size_t count, size_t keys, size_t bytes)
{
    kl_put *puts = kl_arena_alloc(&rig->arena, (count ? count : 1) * sizeof *puts);
    for (size_t i = 0; i < count; i++) {
        size_t room = bytes > 24 ? bytes : 24;
        char *payload = kl_arena_alloc(&rig->arena, room), *key = kl_arena_alloc(&rig->arena, 24);
        int length = snprintf(payload, room, "%zu", i);
        if (bytes > (size_t)length)
            memset(payload + length, ' ', bytes - (size_t)length);
        snprintf(key, 24, "key-%zu", keys ? i % keys : 0);
        puts[i] = (kl_put){.payload = {payload, bytes > (size_t)length ? bytes : (size_t)length}};
        if (keys > 0)
            puts[i].key = kl_str(key);
    }
    return puts;
}

kl_task_id submit_job(kl_queue *queue, const kl_put *tasks, size_t count)
{
    kl_job_spec spec = {.size = sizeof spec, .tasks = tasks, .count = count};
    kl_job_answer answer = {.tasks = 0};
    CHECK_INT(kl_job_submit(queue, &spec, &answer, NULL), KL_OK);
    return answer.job;
}

/* Every place of every layout. */
static void each_place(kl_queue *queue, void (*visit)(kl_store *store, kl_place place, void *ctx), void *ctx)
{
    CHECK_INT(kl__queue_refresh(queue), KL_OK);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    for (size_t l = 0; l < descriptor->layout_count; l++) {
        const kl__queue_layout *layout = &descriptor->layouts[l];
        for (uint32_t p = 0; p < layout->layout.partitions; p++)
            for (uint32_t s = 0; s < kl_layout_shards(&layout->layout); s++)
                visit(layout->stores[p], (kl_place){layout->numbers[p], s}, ctx);
    }
    kl__descriptor_release(descriptor);
}

/* Up to max stubs of a shard, whatever line they stand in. */
static size_t scan_some(kl_store *store, kl_place place, kl_stub *stubs, size_t max)
{
    size_t count = 0;
    for (int32_t line = KL_PRIORITY_MIN; line <= KL_LINE_RETRY && count < max; line++) {
        kl_scan scan = {.place = place, .line = line, .until_ms = KL_ID_MS_MAX, .stubs = stubs + count};
        scan.max = max - count;
        CHECK_INT(kl_store_scan(store, &scan, 1), KL_OK);
        count += scan.count;
    }
    return count;
}

struct settling {
    kl_outcome outcome;
    size_t left, done;
};

static void settle_some(kl_store *store, kl_place place, void *ctx)
{
    struct settling *settling = ctx;
    static kl_stub stubs[SETTLE_AT_ONCE];
    static kl_settled settled[SETTLE_AT_ONCE];
    size_t count;
    do {
        size_t max = settling->left < SETTLE_AT_ONCE ? settling->left : SETTLE_AT_ONCE;
        count = max ? scan_some(store, place, stubs, max) : 0;
        for (size_t i = 0; i < count; i++)
            settled[i] = (kl_settled){.id = stubs[i].id,
                                      .position = stubs[i].position,
                                      .attempts = 1,
                                      .outcome = settling->outcome,
                                      .keep_ms = JOB_KEEP_MS};
        kl_settle batch = {.place = place, .tasks = settled, .count = count};
        if (count > 0)
            CHECK_INT(kl_store_settle(store, &batch, 1), KL_OK);
        settling->left -= count;
        settling->done += count;
    } while (count > 0);
}

static kl_rc sweep_nothing(kl_queue *queue, const kl_task_id *job)
{
    (void)queue, (void)job;
    return KL_ETIMEDOUT;
}

kl_rc remove_job(kl_queue *queue, const kl_task_id *job) { return kl__job_remove(queue, job, sweep_nothing); }

size_t settle_any(kl_queue *queue, kl_outcome outcome, size_t max)
{
    struct settling settling = {outcome, max, 0};
    each_place(queue, settle_some, &settling);
    return settling.done;
}

/* --- What is there --- */

struct seeing {
    const kl_task_id *job;
    uint32_t *seen;
    size_t count, all;
};

size_t index_of(const kl_task *task)
{
    char text[24] = "";
    size_t length = task->entry.payload.len < sizeof text - 1 ? task->entry.payload.len : sizeof text - 1;
    memcpy(text, task->entry.payload.data, length);
    return strtoull(text, NULL, 10);
}

static void see_one(struct seeing *seeing, const kl_task *task)
{
    if (kl_id_compare(&task->entry.job, seeing->job) != 0)
        return;
    size_t index = index_of(task);
    seeing->all++;
    if (index < seeing->count)
        seeing->seen[index]++;
}

static void see_waiting(kl_store *store, kl_place place, struct seeing *seeing)
{
    static kl_stub stubs[KL_BATCH_MAX];
    size_t count = scan_some(store, place, stubs, KL_BATCH_MAX);
    for (size_t i = 0; i < count; i++) {
        kl_arena arena = {0};
        kl_task task;
        size_t read;
        kl_ref ref = {.place = place, .id = stubs[i].id, .position = stubs[i].position};
        CHECK_INT(kl_store_read(store, &ref, 1, &arena, &task, &read), KL_OK);
        see_one(seeing, &task);
        kl_arena_free(&arena);
    }
}

static void see_kept(kl_store *store, kl_place place, struct seeing *seeing)
{
    kl_task tasks[64];
    kl_task_id last;
    size_t count;
    const kl_task_id *after = NULL;
    do {
        kl_arena arena = {0};
        CHECK_INT(kl_store_results(store, place, seeing->job, after, 64, &arena, tasks, &count), KL_OK);
        for (size_t i = 0; i < count; i++)
            see_one(seeing, &tasks[i]);
        if (count > 0)
            last = tasks[count - 1].entry.id;
        after = &last;
        kl_arena_free(&arena);
    } while (count == 64);
}

static void see_place(kl_store *store, kl_place place, void *ctx)
{
    see_waiting(store, place, ctx);
    see_kept(store, place, ctx);
}

size_t see_tasks(kl_queue *queue, const kl_task_id *job, uint32_t *seen, size_t count)
{
    struct seeing seeing = {job, seen, count, 0};
    memset(seen, 0, count * sizeof *seen);
    each_place(queue, see_place, &seeing);
    return seeing.all;
}

void check_each_once(const char *file, int line, kl_queue *queue, const kl_task_id *job, size_t count)
{
    uint32_t *seen = calloc(count ? count : 1, sizeof *seen);
    size_t all = see_tasks(queue, job, seen, count);
    if (all != count)
        test_fail(file, line, "there are %zu tasks, expected %zu", all, count);
    for (size_t i = 0; i < count; i++)
        if (seen[i] != 1)
            test_fail(file, line, "task %zu is there %u times", i, seen[i]);
    free(seen);
}

kl_job_info show_job(kl_queue *queue, const kl_task_id *job, kl_arena *arena)
{
    kl_job_info info = {.name = ""};
    kl_rc rc = kl_job_show(queue, job, arena, &info);
    if (rc != KL_OK)
        test_fail(__FILE__, __LINE__, "the job is not shown: %s", kl_error_text());
    return info;
}

size_t jobs_named(kl_queue *queue, const char *name)
{
    static kl_job_info jobs[KL_JOB_PAGE_MAX];
    kl_arena arena = {0};
    size_t count = 0, found = 0;
    CHECK_INT(kl_job_list(queue, NULL, KL_JOB_PAGE_MAX, &arena, jobs, &count), KL_OK);
    for (size_t i = 0; i < count; i++)
        found += strcmp(jobs[i].name, name) == 0;
    kl_arena_free(&arena);
    return found;
}

/* --- A store that ends --- */

static _Thread_local struct ending *opening;

static kl_rc gone(void) { return kl__fail(KL_ESYSTEM, "the store is gone"); }

/* 0: goes well; 1: is carried out and its reply lost; 2: not carried out. */
static int fate(struct ending *ending)
{
    uint64_t call = ++ending->calls;
    if (ending->end_at == 0 || call < ending->end_at || (ending->recovers && call > ending->end_at))
        return 0;
    return call == ending->end_at && ending->done_first ? 1 : 2;
}

#define PASS_ON(self, call)                                                                                            \
    do {                                                                                                               \
        struct ending *ending = (self);                                                                                \
        int fate_ = fate(ending);                                                                                      \
        kl_rc rc_ = fate_ == 2 ? KL_OK : (call);                                                                       \
        return fate_ == 0 ? rc_ : gone();                                                                              \
    } while (0)

static kl_rc open_ending(const char *where, const kl_store_opts *opts, void **ret_self)
{
    (void)where, (void)opts;
    *ret_self = opening;
    return KL_OK;
}

static void close_ending(void *self) { (void)self; }

static kl_rc ending_now(void *self, int64_t *ret_ms) { PASS_ON(self, kl_store_now(ending->inner, ret_ms)); }

static kl_rc ending_partition(void *self, const char *name, uint32_t len, uint32_t *ret)
{
    PASS_ON(self, kl_store_partition(ending->inner, name, len, ret));
}

static kl_rc ending_append(void *self, const kl_append *append)
{
    if (append->done)
        return gone(); /* nobody here appends so */
    PASS_ON(self, kl_store_append(ending->inner, append->entries, append->count, append->token));
}

static kl_rc ending_scan(void *self, kl_scan *scans, size_t count)
{
    PASS_ON(self, kl_store_scan(ending->inner, scans, count));
}

static kl_rc ending_read(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *tasks, size_t *ret)
{
    PASS_ON(self, kl_store_read(ending->inner, refs, count, arena, tasks, ret));
}

static kl_rc ending_settle(void *self, kl_settle *batches, size_t count)
{
    PASS_ON(self, kl_store_settle(ending->inner, batches, count));
}

static kl_rc ending_fence(void *self, kl_fence *fences, size_t count)
{
    PASS_ON(self, kl_store_fence(ending->inner, fences, count));
}

static kl_rc ending_counts(void *self, kl_place place, const kl_task_id *job, kl_counts *ret)
{
    PASS_ON(self, kl_store_counts(ending->inner, place, job, ret));
}

static kl_rc ending_wait(void *self, uint32_t partition, int64_t wait_ms, uint64_t *seen)
{
    PASS_ON(self, kl_store_wait(ending->inner, partition, wait_ms, seen));
}

static kl_rc ending_results(void *self, kl_place place, const kl_task_id *job, const kl_task_id *after, size_t max,
                            kl_arena *arena, kl_task *tasks, size_t *ret)
{
    PASS_ON(self, kl_store_results(ending->inner, place, job, after, max, arena, tasks, ret));
}

static kl_rc ending_find(void *self, const kl_find *find, kl_arena *arena, kl_task *tasks, size_t *ret)
{
    PASS_ON(self, kl_store_find(ending->inner, find, arena, tasks, ret));
}

static kl_rc ending_forget(void *self, kl_place place, const kl_task_id *ids, size_t count)
{
    PASS_ON(self, kl_store_forget(ending->inner, place, ids, count));
}

static kl_rc ending_get(void *self, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *records)
{
    PASS_ON(self, kl_store_get(ending->inner, names, count, arena, records));
}

static kl_rc ending_put(void *self, kl_write *writes, size_t count)
{
    PASS_ON(self, kl_store_put(ending->inner, writes, count));
}

static kl_rc ending_list(void *self, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena, kl_record *records,
                         size_t *ret)
{
    PASS_ON(self, kl_store_list(ending->inner, prefix, after, max, arena, records, ret));
}

kl_rc ending_open(struct ending *ending, kl_store *inner, kl_store **ret_store)
{
    *ending = (struct ending){.inner = inner};
    ending->engine = (kl_engine){
        .size = sizeof ending->engine,
        .scheme = "ending",
        .usage = "ending:",
        .can = kl_store_info_of(inner).can,
        .open = open_ending,
        .close = close_ending,
        .now = ending_now,
        .partition = ending_partition,
        .append = ending_append,
        .scan = ending_scan,
        .read = ending_read,
        .settle = ending_settle,
        .fence = ending_fence,
        .counts = ending_counts,
        .wait = ending_wait,
        .results = ending_results,
        .find = ending_find,
        .forget = ending_forget,
        .get = ending_get,
        .put = ending_put,
        .list = ending_list,
    };
    opening = ending;
    return kl_store_open_engine(&ending->engine, "", NULL, ret_store);
}

void ending_arm(struct ending *ending, uint64_t end_at, bool done_first)
{
    ending->calls = 0;
    ending->end_at = end_at;
    ending->done_first = done_first;
}
