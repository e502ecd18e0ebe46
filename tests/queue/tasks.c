/* tasks.c - tasks of a queue as the stores show them; see tasks.h. */
#include "queue/tasks.h"

enum { TASKS_MAX = 40000, STUBS_ROOM = 20000 };

_Atomic int64_t slept_ms;

void sleep_not(int64_t ms) { atomic_fetch_add(&slept_ms, ms); }

/* --- Scanning --- */

typedef void each_line_fn(void *ctx, const kl__queue_layout *layout, uint32_t partition, kl_place place,
                          const kl_stub *stubs, size_t count);

static void scan_lines(const kl__queue_layout *layout, uint32_t partition, uint32_t shard, kl_stub *stubs,
                       each_line_fn *each, void *ctx)
{
    for (int32_t line = KL_PRIORITY_MIN; line <= KL_LINE_RETRY; line++) {
        kl_scan scan = {
            .place = {layout->numbers[partition], shard},
            .line = line,
            .until_ms = INT64_MAX,
            .stubs = stubs,
            .max = STUBS_ROOM,
        };
        CHECK_INT(kl_store_scan(layout->stores[partition], &scan, 1), KL_OK);
        CHECK(scan.count < STUBS_ROOM);
        if (scan.count > 0)
            each(ctx, layout, partition, scan.place, stubs, scan.count);
    }
}

static void scan_queue(kl_queue *queue, each_line_fn *each, void *ctx)
{
    kl_stub *stubs = kl__alloc_zeroed(STUBS_ROOM, sizeof *stubs);
    CHECK_INT(kl__queue_refresh(queue), KL_OK);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    for (size_t i = 0; i < descriptor->layout_count; i++) {
        const kl__queue_layout *layout = &descriptor->layouts[i];
        for (uint32_t p = 0; p < layout->layout.partitions; p++)
            for (uint32_t shard = 0; shard < kl_layout_shards(&layout->layout); shard++)
                scan_lines(layout, p, shard, stubs, each, ctx);
    }
    kl__descriptor_release(descriptor);
    kl__free(stubs);
}

struct reading {
    struct tasks tasks;
    kl_arena *arena;
};

static void read_line(void *ctx, const kl__queue_layout *layout, uint32_t partition, kl_place place,
                      const kl_stub *stubs, size_t count)
{
    struct reading *reading = ctx;
    for (size_t i = 0; i < count && reading->tasks.count < TASKS_MAX; i++) {
        kl_ref ref = {.place = place, .id = stubs[i].id, .position = stubs[i].position};
        size_t read = 0;
        CHECK_INT(kl_store_read(layout->stores[partition], &ref, 1, reading->arena,
                                &reading->tasks.tasks[reading->tasks.count], &read),
                  KL_OK);
        CHECK_INT(read, 1);
        CHECK_INT(stubs[i].group, reading->tasks.tasks[reading->tasks.count].entry.group);
        reading->tasks.count++;
    }
}

struct tasks scan_tasks(kl_queue *queue, kl_arena *arena)
{
    struct reading reading = {{kl_arena_alloc(arena, TASKS_MAX * sizeof(kl_task)), 0}, arena};
    scan_queue(queue, read_line, &reading);
    return reading.tasks;
}

/* --- Moves --- */

static void move_line(void *ctx, const kl__queue_layout *layout, uint32_t partition, kl_place place,
                      const kl_stub *stubs, size_t count)
{
    const kl__descriptor *descriptor = ctx;
    kl_store *from = layout->stores[partition], *to = NULL;
    for (size_t i = 0; i < count && layout->number != kl__newest_layout(descriptor)->number; i++) {
        kl_ref ref = {.place = place, .id = stubs[i].id};
        kl_settled settled = {.id = stubs[i].id, .position = stubs[i].position, .outcome = KL_DONE};
        kl_settle batch = {.place = place, .tasks = &settled, .count = 1};
        kl_arena arena = {0};
        kl_task task;
        size_t read = 0;
        CHECK_INT(kl_store_read(from, &ref, 1, &arena, &task, &read), KL_OK);
        REQUIRE(read == 1 && task.state == KL_TASK_WAITING);
        kl_entry moved = kl__entry_moved(descriptor, layout->number, &layout->layout, &task.entry, &to);
        CHECK_INT(kl__queue_append(to, &moved, 1), KL_OK);
        CHECK_INT(kl__queue_append(to, &moved, 1), KL_OK);
        CHECK_INT(kl_store_settle(from, &batch, 1), KL_OK);
        kl_arena_free(&arena);
    }
}

void move_tasks(kl_queue *queue)
{
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    scan_queue(queue, move_line, descriptor);
    kl__descriptor_release(descriptor);
}

/* --- Outcomes --- */

struct settling {
    kl_outcome outcome;
    int64_t keep_ms;
    const char *error;
    size_t count;
};

static void settle_line(void *ctx, const kl__queue_layout *layout, uint32_t partition, kl_place place,
                        const kl_stub *stubs, size_t count)
{
    struct settling *settling = ctx;
    if (settling->outcome == KL_RETRY && stubs[0].attempts > 0)
        return; /* the retry line: they have just been settled */
    for (size_t i = 0; i < count; i++) {
        kl_settled settled = {
            .id = stubs[i].id,
            .position = stubs[i].position,
            .outcome = settling->outcome,
            .attempts = stubs[i].attempts + 1u,
            .keep_ms = settling->keep_ms,
            .error = kl_str(settling->error),
        };
        kl_settle batch = {.place = place, .tasks = &settled, .count = 1};
        CHECK_INT(kl_store_settle(layout->stores[partition], &batch, 1), KL_OK);
        settling->count++;
    }
}

size_t settle_tasks(kl_queue *queue, kl_outcome outcome, int64_t keep_ms, const char *error)
{
    struct settling settling = {outcome, keep_ms, error, 0};
    scan_queue(queue, settle_line, &settling);
    return settling.count;
}

/* --- The wire --- */

static int64_t cut_now(void *ctx)
{
    struct cut *cut = ctx;
    return atomic_load(&cut->clock_ms);
}

/* Called after each call of the inner store; those of the wire are counted while it is armed. What happens meanwhile is
 * not. */
static void count_call(void *ctx, const kl_store_call *call)
{
    struct cut *cut = ctx;
    (void)call;
    if (!atomic_load(&cut->armed))
        return;
    cut->calls++;
    if (cut->goes_on && cut->calls == cut->after) {
        atomic_store(&cut->armed, 0);
        cut->meanwhile(cut->ctx);
    } else if (!cut->goes_on) {
        cut->lossy.replies_lost = cut->reply_lost && cut->calls + 1 == cut->after ? 100 : 0;
        cut->lossy.requests_lost = cut->calls >= cut->after ? 100 : 0;
    }
}

bool cut_open(struct cut *cut)
{
    memset(cut, 0, sizeof *cut);
    atomic_store(&cut->clock_ms, 1700000000000);
    kl_store_opts opts = {
        .size = sizeof opts, .now_ms = cut_now, .now_ctx = cut, .trace = count_call, .trace_ctx = cut};
    kl_rc rc = kl_store_open("memory:", &opts, &cut->inner);
    if (rc == KL_OK)
        rc = lossy_open(&cut->lossy, cut->inner, 1, &cut->wire);
    cut->lossy.replies_lost = cut->lossy.requests_lost = 0;
    CHECK_INT(rc, KL_OK);
    return rc == KL_OK;
}

void cut_close(struct cut *cut)
{
    kl_store_close(cut->wire);
    kl_store_close(cut->inner);
}

void cut_arm(struct cut *cut, int after)
{
    cut->calls = 0;
    cut->after = after;
    cut->lossy.replies_lost = cut->reply_lost && after == 1 ? 100 : 0;
    cut->lossy.requests_lost = after == 0 ? 100 : 0;
    atomic_store(&cut->armed, 1);
}

bool cut_disarm(struct cut *cut)
{
    atomic_store(&cut->armed, 0);
    cut->lossy.replies_lost = cut->lossy.requests_lost = 0;
    return cut->calls >= cut->after;
}
