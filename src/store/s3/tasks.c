/* tasks.c - looking: scan, read, counts, wait, and what is finished.
 *
 * Each call brings the replica as far as it needs (refresh.c) and then asks the memory engine. A shard whose log is
 * long is read only as far as the answer reaches: lines other than the ordinary one are marked (special/), so that
 * nobody reads a million tasks to learn that none of them is urgent. A look under which a replica was cleared is made
 * again (E5). */
#include <stdlib.h>

#include "base/layout.h"
#include "base/wait.h"
#include "store/s3/s3.h"

enum { FIRST_WANT = 16, LOOKS_MAX = 16, READ_STEP = 64, DUE_STEP = 64 };

/* --- Looks --- */

typedef kl_rc look_fn(kl__s3 *s3, void *ctx);

/* Looks, until nothing was cleared meanwhile: what is seen of a replica that is read anew may be half of what is
 * there. */
static kl_rc look_whole(kl__s3 *s3, look_fn *look, void *ctx)
{
    for (int i = 0; i < LOOKS_MAX; i++) {
        uint64_t clears = atomic_load(&s3->clears);
        kl_rc rc = look(s3, ctx);
        if (rc != KL_OK || clears == atomic_load(&s3->clears))
            return rc;
    }
    return kl__fail(KL_EBUSY, "shards were read anew again and again while they were looked at; call again");
}

/* --- Sets of shards --- */

struct shards {
    kl__s3_shard **items;
    size_t count;
};

static int by_place(const void *a, const void *b)
{
    const kl__s3_shard *x = *(kl__s3_shard *const *)a, *y = *(kl__s3_shard *const *)b;
    if (x->place.partition != y->place.partition)
        return x->place.partition < y->place.partition ? -1 : 1;
    return (x->place.shard > y->place.shard) - (x->place.shard < y->place.shard);
}

/* Each shard once. */
static void make_unique(struct shards *shards)
{
    size_t kept = 0;
    qsort(shards->items, shards->count, sizeof *shards->items, by_place);
    for (size_t i = 0; i < shards->count; i++)
        if (kept == 0 || shards->items[kept - 1] != shards->items[i])
            shards->items[kept++] = shards->items[i];
    shards->count = kept;
}

static bool shards_open(struct shards *shards, size_t room)
{
    *shards = (struct shards){.items = kl__alloc_zeroed(room ? room : 1, sizeof *shards->items)};
    return shards->items != NULL;
}

static bool shards_add(kl__s3 *s3, struct shards *shards, kl_place place)
{
    kl__s3_shard *shard = kl__s3_shard_make(s3, place);
    if (shard)
        shards->items[shards->count++] = shard;
    return shard != NULL;
}

/* Up to date, but for those that are broken, if they are not all that is asked for. */
static kl_rc refresh_whole(kl__s3 *s3, const struct shards *shards, bool owned_too, bool *ret_broken)
{
    size_t broken = 0;
    kl_rc rc = kl__s3_refresh(s3, shards->items, shards->count, owned_too);
    for (size_t i = 0; rc == KL_EDAMAGED && i < shards->count; i++)
        broken += kl__s3_is_broken(s3, shards->items[i]);
    *ret_broken = broken > 0;
    return rc == KL_EDAMAGED && broken < shards->count ? KL_OK : rc;
}

/* --- Scan --- */

struct look {
    kl_scan *scans; /* copies, because looks are made again, and a scan's `after` may lie where its answer goes */
    size_t count;
    kl_stub *after; /* of theirs */
    struct shards shards;
    kl__s3_more *more;
    int64_t since_ns;
    bool mixed; /* it asks for other lines than the due ones, too */
    bool spent; /* then so much has been read for due lines that they wait for the next look */
};

static void look_free(struct look *look)
{
    kl__free(look->scans);
    kl__free(look->after);
    kl__free(look->shards.items);
    kl__free(look->more);
}

static bool look_open(kl__s3 *s3, struct look *look, const kl_scan *scans, size_t count)
{
    *look = (struct look){.count = count, .since_ns = kl__monotonic_ns()};
    look->scans = kl__alloc_zeroed(count, sizeof *look->scans);
    look->after = kl__alloc_zeroed(count, sizeof *look->after);
    look->more = kl__alloc_zeroed(count, sizeof *look->more);
    bool good = look->scans && look->after && look->more && shards_open(&look->shards, count);
    kl__memory_enter(s3->memory);
    for (size_t i = 0; good && i < count; i++) {
        good = shards_add(s3, &look->shards, scans[i].place);
        look->scans[i] = scans[i];
        look->mixed |= scans[i].line != KL_LINE_DUE;
        if (scans[i].after) {
            look->after[i] = *scans[i].after;
            look->scans[i].after = &look->after[i];
        }
    }
    kl__memory_leave(s3->memory);
    if (good)
        make_unique(&look->shards);
    return good;
}

/* Whether the due line is not shown this time. All of the log is to be read for it, which may take minutes: what is
 * ready is not to wait for that, so it is read in pieces, one a look. Where the ready lines show all there is, it has
 * been read. */
static bool waits(const struct look *look, const kl_scan *scan, const kl__s3_shard *shard)
{
    return look->mixed && scan->line == KL_LINE_DUE && !shard->ended &&
           (look->spent || look->since_ns - shard->due_ns < INT64_C(1000000) * KL_S3_DUE_MS);
}

static void begin_due(kl__s3 *s3, const struct look *look)
{
    kl__memory_enter(s3->memory);
    for (size_t i = 0; i < look->count; i++) {
        kl__s3_shard *shard = kl__s3_shard_of(s3, look->scans[i].place);
        if (look->scans[i].line == KL_LINE_DUE && shard->due_ns == 0)
            shard->due_ns = look->since_ns;
    }
    kl__memory_leave(s3->memory);
}

/* Half of the line would be out of its order: it is shown whole, or not. */
static void end_due(kl__s3 *s3, const struct look *look)
{
    kl__memory_enter(s3->memory);
    for (size_t i = 0; i < look->count; i++) {
        kl_scan *scan = &look->scans[i];
        kl__s3_shard *shard = kl__s3_shard_of(s3, scan->place);
        if (scan->line != KL_LINE_DUE)
            continue;
        if (waits(look, scan, shard))
            scan->count = 0;
        else
            shard->due_ns = look->since_ns;
    }
    kl__memory_leave(s3->memory);
}

/* Whether more of the log could show more of the line. The due line is ordered by time, not by number: the last object
 * may have its first task. */
static kl_rc line_goes_on(kl__s3 *s3, const struct look *look, const kl_scan *scan, const kl__s3_shard *shard,
                          bool *ret_on)
{
    *ret_on = false;
    kl__memory_enter(s3->memory);
    bool ended = shard->ended || shard->broken || waits(look, scan, shard), tried = shard->retry_to > shard->taken;
    kl__memory_leave(s3->memory);
    if (ended || (scan->count == scan->max && scan->line != KL_LINE_DUE))
        return KL_OK;
    if (scan->line == 0 || scan->line == KL_LINE_RETRY) {
        *ret_on = scan->line == 0 || tried;
        return KL_OK;
    }
    kl_rc rc = kl__s3_see_marks(s3, shard->partition);
    kl__memory_enter(s3->memory);
    *ret_on = kl__s3_lines_of(shard) >> (scan->line - KL_PRIORITY_MIN) & 1;
    kl__memory_leave(s3->memory);
    return rc;
}

static void want(struct look *look, size_t *count, kl__s3_shard *shard, size_t objects)
{
    for (size_t i = 0; i < *count; i++) {
        if (look->more[i].shard == shard) {
            look->more[i].want = objects > look->more[i].want ? objects : look->more[i].want;
            return;
        }
    }
    look->more[(*count)++] = (kl__s3_more){.shard = shard, .want = objects, .since_ns = look->since_ns};
}

/* How many objects have so many tasks, going by the last one that was read: an object has one task, or 65,536. */
static size_t objects_for(kl__s3 *s3, kl__s3_shard *shard, size_t tasks)
{
    kl__memory_enter(s3->memory);
    const kl__s3_object *last = kl__s3_object_of(shard, shard->taken);
    size_t each = last && last->loaded && last->count ? last->count : tasks;
    kl__memory_leave(s3->memory);
    return (tasks + each - 1) / each;
}

/* The shards that must be read further before all scans are answered. */
static kl_rc plan(kl__s3 *s3, struct look *look, size_t want_max, size_t *ret_count)
{
    kl_rc rc = KL_OK;
    *ret_count = 0;
    for (size_t i = 0; rc == KL_OK && i < look->count; i++) {
        const kl_scan *scan = &look->scans[i];
        kl__s3_shard *shard = kl__s3_shard_of(s3, scan->place);
        bool on = false;
        rc = line_goes_on(s3, look, scan, shard, &on);
        bool all = scan->line == KL_LINE_DUE;
        size_t missing = on && !all ? objects_for(s3, shard, scan->max - scan->count) : want_max;
        if (on)
            want(look, ret_count, shard, missing < want_max ? missing : want_max);
    }
    return rc;
}

static kl_rc scan_all(kl__s3 *s3, void *ctx)
{
    struct look *look = ctx;
    size_t count = 0, want_max = FIRST_WANT;
    uint64_t clears = atomic_load(&s3->clears);
    bool broken;
    look->spent = false;
    kl_rc rc = refresh_whole(s3, &look->shards, false, &broken);
    if (rc == KL_OK)
        rc = kl__s3_discover(s3, look->shards.items, look->shards.count);
    begin_due(s3, look);
    do {
        if (rc == KL_OK)
            rc = kl__memory_scan(s3->memory, look->scans, look->count);
        if (rc == KL_OK)
            rc = plan(s3, look, want_max, &count);
        if (rc == KL_OK && count)
            rc = kl__s3_extend(s3, look->more, count);
        look->spent = want_max >= DUE_STEP;
        want_max = want_max * 4 < KL_BATCH_MAX ? want_max * 4 : KL_BATCH_MAX;
    } while (rc == KL_OK && count && clears == atomic_load(&s3->clears));
    end_due(s3, look);
    return rc;
}

kl_rc kl__s3_scan(void *self, kl_scan *scans, size_t count)
{
    struct look look;
    kl_rc rc = look_open(self, &look, scans, count) ? look_whole(self, scan_all, &look) : kl__fail_memory();
    for (size_t i = 0; rc == KL_OK && i < count; i++)
        scans[i].count = look.scans[i].count;
    look_free(&look);
    return rc;
}

/* --- Shards of a partition that have ever had a task --- */

static kl_rc used_shards(kl__s3 *s3, kl__s3_partition *partition, struct shards *shards)
{
    kl_rc rc = kl__s3_pulse(s3, partition->worked ? -1 : KL_S3_POLL_MIN_MS);
    if (rc != KL_OK)
        return rc;
    bool all = !s3->pulse_whole;
    kl__memory_enter(s3->memory);
    for (uint32_t i = 0; rc == KL_OK && i < partition->shard_count; i++) {
        const kl__s3_shard *shard = partition->shards[i];
        if ((all || (shard && (shard->tail > 0 || shard->loaded))) &&
            !shards_add(s3, shards, (kl_place){partition->number, i}))
            rc = kl__fail_memory();
    }
    kl__memory_leave(s3->memory);
    return rc;
}

/* --- Counts --- */

/* By their marks. A look at the bucket, which scans need as well, shows them in most cases. */
kl_rc kl__s3_lines(void *self, uint32_t partition, uint32_t *ret_priorities)
{
    kl__s3 *s3 = self;
    kl__s3_partition *at = s3->partitions[partition - 1];
    uint64_t marks = UINT64_C(1) << -KL_PRIORITY_MIN;
    kl_rc rc = kl__s3_pulse(s3, -1);
    if (rc == KL_OK)
        rc = kl__s3_see_marks(s3, at);
    kl__memory_enter(s3->memory);
    for (uint32_t i = 0; i < at->shard_count; i++)
        marks |= at->shards[i] ? kl__s3_lines_of(at->shards[i]) : 0;
    kl__memory_leave(s3->memory);
    if (rc == KL_OK)
        *ret_priorities = (uint32_t)(marks & 0xffffffff);
    return rc;
}

/* How far each shard is read to be counted. */
static size_t count_max(const kl__s3 *s3, size_t shards)
{
    size_t all = s3->pulse_whole || shards == 1 ? KL_S3_COUNTED_MAX : KL_S3_PEEKED_MAX;
    return all / (shards + 1) + 1;
}

struct counting {
    kl__s3_partition *partition;
    struct shards shards;
    kl_place place;
    const kl_task_id *job; /* or NULL */
    kl_counts *ret_counts;
};

/* One shard is counted as it is now: who asks for it may be about to take it for empty (or a key for free) for good. */
static kl_rc read_counted(kl__s3 *s3, const struct counting *counting, int64_t since_ns)
{
    const struct shards *shards = &counting->shards;
    size_t max = count_max(s3, shards->count);
    if (counting->place.shard == KL_ALL_SHARDS)
        return kl__s3_read_all(s3, shards->items, shards->count, max, since_ns);
    kl__s3_more more = {.shard = shards->items[0], .want = max, .since_ns = since_ns, .sure = true};
    kl__memory_enter(s3->memory);
    more.shard->ended = more.shard->sealed && more.shard->taken >= more.shard->tail;
    kl__memory_leave(s3->memory);
    return kl__s3_extend(s3, &more, 1);
}

static bool is_counted(const struct counting *counting, const kl__s3_shard *shard, int64_t since_ns)
{
    bool one = counting->place.shard != KL_ALL_SHARDS;
    return one ? shard->taken >= shard->tail && (shard->sealed || shard->tail_ns >= since_ns) : shard->ended;
}

static bool has_waiting(const kl_counts *counts) { return counts->ready + counts->due + counts->retry > 0; }

/* A worker looks at the bucket less often when nothing happens: that there is nothing it knows only of what is
 * sealed. */
static bool is_surely_empty(kl__s3 *s3, const kl__s3_partition *partition)
{
    bool sure = true;
    kl__memory_enter(s3->memory);
    for (uint32_t i = 0; sure && partition->worked && i < partition->shard_count; i++) {
        const kl__s3_shard *shard = partition->shards[i];
        sure = shard && shard->sealed && shard->taken >= shard->tail;
    }
    kl__memory_leave(s3->memory);
    return sure;
}

/* Whether all shards were read to their ends; *ret_kept: and all of their archives. */
static bool all_counted(kl__s3 *s3, const struct counting *counting, int64_t since_ns, bool *ret_kept)
{
    bool all = true;
    *ret_kept = true;
    kl__memory_enter(s3->memory);
    for (size_t i = 0; i < counting->shards.count; i++) {
        const kl__s3_shard *shard = counting->shards.items[i];
        all &= is_counted(counting, shard, since_ns);
        *ret_kept &= shard->kept != KL_S3_KEPT_SOME;
    }
    kl__memory_leave(s3->memory);
    return all;
}

/* A shard of ours may have been given back since: one of which nothing was heard for long is followed like others. */
static kl_rc follow_own(kl__s3 *s3, const struct shards *shards)
{
    struct shards own;
    if (!shards_open(&own, shards->count))
        return kl__fail_memory();
    kl__memory_enter(s3->memory);
    for (size_t i = 0; i < shards->count; i++)
        if (shards->items[i]->owned && !kl__s3_is_fresh(s3, shards->items[i]->followed_ns, KL_S3_TRUST_MS))
            own.items[own.count++] = shards->items[i];
    kl__memory_leave(s3->memory);
    bool broken;
    kl_rc rc = own.count ? refresh_whole(s3, &own, true, &broken) : KL_OK;
    kl__free(own.items);
    return rc == KL_EDAMAGED ? KL_OK : rc;
}

static kl_rc count_shards(kl__s3 *s3, void *ctx)
{
    const struct counting *counting = ctx;
    const struct shards *shards = &counting->shards;
    kl_place place = counting->place;
    kl_counts *counts = counting->ret_counts;
    bool whole = place.shard == KL_ALL_SHARDS, broken = false, kept;
    uint32_t marks = 0;
    int64_t since_ns = kl__monotonic_ns();
    kl_rc rc = whole ? follow_own(s3, shards) : KL_OK;
    if (rc == KL_OK)
        rc = refresh_whole(s3, shards, !whole, &broken);
    if (rc == KL_OK)
        rc = kl__s3_discover(s3, shards->items, shards->count);
    if (rc == KL_OK)
        rc = read_counted(s3, counting, since_ns);
    if (rc == KL_OK && whole)
        rc = kl__s3_load_kept(s3, shards->items, shards->count, KL_S3_COUNTED_MAX);
    if (rc == KL_OK)
        rc = kl__memory_counts(s3->memory, place, NULL, counts);
    bool all = all_counted(s3, counting, since_ns, &kept);
    if (rc == KL_OK && !all)
        rc = kl__s3_lines(s3, place.partition, &marks);
    if (rc != KL_OK)
        return rc;
    counts->priorities |= marks;
    bool doubt = whole && (!kept || (!has_waiting(counts) && !is_surely_empty(s3, counting->partition)));
    counts->at_least |= !all || broken || doubt;
    return KL_OK;
}

static kl_rc count_job(kl__s3 *s3, void *ctx)
{
    const struct counting *counting = ctx;
    bool broken;
    kl_rc rc = refresh_whole(s3, &counting->shards, true, &broken);
    if (rc == KL_OK)
        rc = kl__s3_load_kept(s3, counting->shards.items, counting->shards.count, SIZE_MAX);
    if (rc == KL_OK)
        rc = kl__memory_counts(s3->memory, counting->place, counting->job, counting->ret_counts);
    if (rc == KL_OK && broken)
        counting->ret_counts->at_least = true;
    return rc;
}

kl_rc kl__s3_counts(void *self, kl_place place, const kl_task_id *job, kl_counts *ret_counts)
{
    kl__s3 *s3 = self;
    kl__s3_partition *partition = s3->partitions[place.partition - 1];
    struct counting counting = {.partition = partition, .place = place, .job = job, .ret_counts = ret_counts};
    struct shards *shards = &counting.shards;
    kl_rc rc = KL_OK;
    if (!shards_open(shards, partition->shard_count))
        return kl__fail_memory();
    if (place.shard != KL_ALL_SHARDS) {
        kl__memory_enter(s3->memory);
        rc = shards_add(s3, shards, place) ? KL_OK : kl__fail_memory();
        kl__memory_leave(s3->memory);
    } else {
        rc = used_shards(s3, partition, shards);
    }
    if (rc == KL_OK)
        rc = look_whole(s3, job ? count_job : count_shards, &counting);
    kl__free(shards->items);
    return rc;
}

/* --- Wait --- */

static uint64_t objects_of(kl__s3 *s3, uint32_t partition)
{
    uint64_t objects = 0;
    kl__memory_enter(s3->memory);
    const kl__s3_partition *waited = s3->partitions[partition - 1];
    for (uint32_t i = 0; i < waited->shard_count; i++)
        objects += waited->shards[i] ? waited->shards[i]->tail : 0;
    kl__memory_leave(s3->memory);
    return objects;
}

void kl__s3_sleep(kl__s3 *s3, int64_t wait_ms)
{
    int64_t until_ns = kl__deadline_ns(wait_ms);
    pthread_mutex_lock(&s3->upkeep_mutex);
    while (!s3->closing && kl__monotonic_ns() < until_ns)
        kl__cond_wait(&s3->upkeep_wakes, &s3->upkeep_mutex, until_ns);
    pthread_mutex_unlock(&s3->upkeep_mutex);
}

/* Nobody tells us: it sleeps, and says how many objects are known of then. */
kl_rc kl__s3_wait(void *self, uint32_t partition, int64_t wait_ms, uint64_t *seen)
{
    kl__s3_sleep(self, wait_ms);
    *seen = objects_of(self, partition);
    return KL_OK;
}

/* --- Read --- */

static bool any_unknown(const kl_task *tasks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (tasks[i].state == KL_TASK_UNKNOWN)
            return true;
    return false;
}

/* The shards of these refs; unknown: only of those that were not found. */
static kl_rc shards_of(kl__s3 *s3, const kl_ref *refs, size_t count, const kl_task *unknown, struct shards *shards)
{
    bool good = shards_open(shards, count);
    kl__memory_enter(s3->memory);
    for (size_t i = 0; good && i < count; i++)
        if (!unknown || unknown[i].state == KL_TASK_UNKNOWN)
            good = shards_add(s3, shards, refs[i].place);
    kl__memory_leave(s3->memory);
    if (!good)
        return kl__fail_memory();
    make_unique(shards);
    return KL_OK;
}

struct reading {
    const kl_ref *refs;
    size_t count; /* of those before the first whose shard is broken */
    kl_arena *arena;
    kl_task *ret_tasks;
    size_t read;
};

static kl_rc read_known(kl__s3 *s3, struct reading *reading)
{
    return kl__memory_read(s3->memory, reading->refs, reading->count, reading->arena, reading->ret_tasks,
                           &reading->read);
}

static bool all_ended(kl__s3 *s3, const struct shards *shards)
{
    bool all = true;
    kl__memory_enter(s3->memory);
    for (size_t i = 0; i < shards->count; i++)
        all &= shards->items[i]->ended || !shards->items[i]->loaded;
    kl__memory_leave(s3->memory);
    return all;
}

/* Some are not in memory: what waits is read on for them, then what is kept, then the rest of what waits, until they
 * are found. */
static kl_rc read_further(kl__s3 *s3, struct reading *reading)
{
    struct shards shards = {0};
    int64_t since_ns = kl__monotonic_ns();
    kl_rc rc = shards_of(s3, reading->refs, reading->read, reading->ret_tasks, &shards);
    bool ended = false, kept = false;
    if (rc == KL_OK)
        rc = kl__s3_discover(s3, shards.items, shards.count);
    for (size_t step = READ_STEP; rc == KL_OK && !(ended && kept) && any_unknown(reading->ret_tasks, reading->read);) {
        ended = all_ended(s3, &shards);
        if (!ended && (step == READ_STEP || kept)) {
            rc = kl__s3_read_all(s3, shards.items, shards.count, step, since_ns);
            step *= 2;
        } else {
            rc = kl__s3_load_kept(s3, shards.items, shards.count, SIZE_MAX);
            kept = true;
        }
        if (rc == KL_OK)
            rc = read_known(s3, reading);
    }
    kl__free(shards.items);
    return rc;
}

/* How many come before the first whose shard is broken. */
static size_t before_broken(kl__s3 *s3, const struct reading *reading)
{
    size_t count = 0;
    kl__memory_enter(s3->memory);
    while (count < reading->count && !kl__s3_shard_of(s3, reading->refs[count].place)->broken)
        count++;
    kl__memory_leave(s3->memory);
    return count;
}

/* Whether somebody asks who is not the shard's owner: then others may have settled what he asks for. */
static bool asks_for_news(const struct reading *reading)
{
    bool news = false;
    for (size_t i = 0; i < reading->count; i++)
        news |= !reading->refs[i].owned;
    return news;
}

static kl_rc read_refs(kl__s3 *s3, void *ctx)
{
    struct reading *reading = ctx;
    struct shards shards = {0};
    kl_rc rc = shards_of(s3, reading->refs, reading->count, NULL, &shards);
    if (rc == KL_OK)
        rc = kl__s3_refresh(s3, shards.items, shards.count, asks_for_news(reading));
    kl__free(shards.items);
    bool broken = rc == KL_EDAMAGED;
    if (broken)
        reading->count = before_broken(s3, reading);
    reading->read = 0;
    if (broken && reading->count == 0)
        return rc;
    if (rc == KL_OK || broken)
        rc = read_known(s3, reading);
    if (rc == KL_OK && any_unknown(reading->ret_tasks, reading->read))
        rc = read_further(s3, reading);
    return rc;
}

kl_rc kl__s3_read(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    struct reading reading = {.refs = refs, .count = count, .arena = arena, .ret_tasks = ret_tasks};
    kl_rc rc = look_whole(self, read_refs, &reading);
    if (rc == KL_OK || rc == KL_EDAMAGED)
        *ret_count = reading.read;
    return rc;
}

/* --- What is finished --- */

struct finding {
    kl_place place; /* of results */
    const kl_task_id *job, *after;
    size_t max;
    const kl_find *find;
    kl_arena *arena;
    kl_task *ret_tasks;
    size_t *ret_count;
};

static kl_rc find_results(kl__s3 *s3, void *ctx)
{
    const struct finding *of = ctx;
    kl__memory_enter(s3->memory);
    kl__s3_shard *shard = kl__s3_shard_make(s3, of->place);
    kl__memory_leave(s3->memory);
    kl_rc rc = shard ? kl__s3_refresh(s3, &shard, 1, true) : kl__fail_memory();
    if (rc == KL_OK)
        rc = kl__s3_load_kept(s3, &shard, 1, SIZE_MAX);
    return rc == KL_OK ? kl__memory_results(s3->memory, of->place, of->job, of->after, of->max, of->arena,
                                            of->ret_tasks, of->ret_count)
                       : rc;
}

kl_rc kl__s3_results(void *self, kl_place place, const kl_task_id *job, const kl_task_id *after, size_t max,
                     kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    struct finding of = {.place = place,
                         .job = job,
                         .after = after,
                         .max = max,
                         .arena = arena,
                         .ret_tasks = ret_tasks,
                         .ret_count = ret_count};
    return look_whole(self, find_results, &of);
}

static kl_rc load_partition(kl__s3 *s3, kl__s3_partition *partition)
{
    struct shards shards;
    bool broken;
    kl_rc rc = shards_open(&shards, partition->shard_count) ? used_shards(s3, partition, &shards) : kl__fail_memory();
    if (rc == KL_OK)
        rc = refresh_whole(s3, &shards, true, &broken);
    if (rc == KL_OK)
        rc = kl__s3_load_kept(s3, shards.items, shards.count, SIZE_MAX);
    kl__free(shards.items);
    return rc;
}

static kl_rc find_finished(kl__s3 *s3, void *ctx)
{
    const struct finding *of = ctx;
    kl_rc rc = KL_OK;
    for (uint32_t i = 0; rc == KL_OK && i < s3->partition_count; i++)
        if (of->find->partition == 0 || of->find->partition == i + 1)
            rc = load_partition(s3, s3->partitions[i]);
    return rc == KL_OK ? kl__memory_find(s3->memory, of->find, of->arena, of->ret_tasks, of->ret_count) : rc;
}

kl_rc kl__s3_find(void *self, const kl_find *find, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    struct finding of = {.find = find, .arena = arena, .ret_tasks = ret_tasks, .ret_count = ret_count};
    return look_whole(self, find_finished, &of);
}
