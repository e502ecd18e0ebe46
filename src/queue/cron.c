/* cron.c - schedules: a task for each tick, once, however many workers look.
 *
 * From: applications (add, list, ...), work/ (kl__cron_fire).  To: the queue's store.
 *
 *     record   ... next = T ...
 *       1      write: firing T under id X, next = T'          one worker succeeds; the others leave it to that one
 *       2      append the task with id X
 *       3      write: last = T, nothing is being fired        (and 1 of the next tick, when that is due too)
 *
 * A worker may die between any two of these. Whoever finds a firing that is some seconds old makes 2 and 3 for it, and
 * so does whoever changes or removes the schedule, with the id that stands there: a store passes over an id that waits,
 * and an append whose token it knows. The id is made of queue, name, tick and layout, the same whoever makes it.
 *
 * C1  A task of a schedule is appended only under the id and into the layout that its record names at that time.
 * C2  A record names one firing at a time, and each tick at most once: `next` is behind it from 1 on.
 * C3  When nothing is due, a call costs the clock and one list per page of schedules.
 *
 * Nobody helps a firing that is fresh, two writers of 1 are told apart by a nonce (S5 of store.h would have let both
 * pass), a schedule that was found in a list is read once more before it is acted on, whoever was held up for a second
 * reads its version once more right before the append, and a firing that somebody else began is looked for before it is
 * appended. What is left: a worker that stands still exactly between that look and the append, for longer than the
 * store remembers tokens (ten minutes, or 65,536 of them), while another one finishes the firing and the task is run
 * and not kept, appends it again. */
#include <stdio.h>

#include "base/clock.h"
#include "base/layout.h"
#include "base/mutant.h"
#include "base/random.h"
#include "queue/cron.h"
#include "queue/inside.h"
#include "queue/put.h"
#include "queue/record.h"

enum {
    PAGE = 128,        /* schedules listed at once: 32 MiB where all are as large as can be */
    CHANGE_TRIES = 16, /* how often a change is begun anew because others change the same schedule */
    MOVE_TRIES = 8,    /* layouts that may be opened while one tick is fired */
    NAME_BYTES = KL_RECORD_NAME_BYTES,
    TICK_BYTES = 32,
};

#define NO_BYTES ((kl_bytes){"", 0})

/* --- Records --- */

static kl_bytes record_name(const kl_queue *queue, const char *name, char buffer[NAME_BYTES])
{
    return kl__record_name(buffer, NAME_BYTES, "cron", queue->name, name);
}

/* "cron/QUEUE/" */
static size_t prefix_len(const kl_queue *queue) { return sizeof "cron//" - 1 + strlen(queue->name); }

static kl_rc check_queue(const kl_queue *queue)
{
    return queue ? KL_OK : kl__fail(KL_EINVAL, "the queue is NULL; open one with kl_queue_open");
}

/* KL_ENOTFOUND: with a sentence. */
static kl_rc read_schedule(kl_queue *queue, const char *name, kl_arena *arena, kl__schedule *ret_schedule)
{
    char buffer[NAME_BYTES];
    kl_record record;
    int64_t seen_ns = kl__monotonic_ns();
    kl_rc rc = kl__cron_check_name(name);
    if (rc == KL_OK)
        rc = kl__record_get(queue->store, record_name(queue, name, buffer), arena, &record);
    if (rc != KL_OK)
        return rc;
    if (record.version == 0)
        return kl__fail(KL_ENOTFOUND, "the queue %s has no schedule %s; list its schedules to see those that it has",
                        queue->name, name);
    rc = kl__schedule_decode(&record, prefix_len(queue), arena, ret_schedule);
    if (rc == KL_OK)
        ret_schedule->seen_ns = seen_ns;
    return rc;
}

/* Writes if the version is still the schedule's, and sets the new one. */
static kl_rc write_schedule(kl_queue *queue, kl__schedule *schedule, kl_arena *arena)
{
    char buffer[NAME_BYTES];
    kl_bytes value;
    kl_rc rc = kl__schedule_encode(schedule, arena, &value);
    if (rc != KL_OK)
        return rc;
    schedule->seen_ns = kl__monotonic_ns();
    return kl__record_put(queue->store, record_name(queue, schedule->cron.name, buffer), schedule->version, value, 0,
                          &schedule->version);
}

/* --- Tasks --- */

/* RFC 3339. */
static void print_tick(int64_t tick_ms, char ret_text[TICK_BYTES])
{
    int64_t seconds = tick_ms / 1000, rest = seconds % 86400;
    kl__date date = kl__date_of_days(seconds / 86400);
    snprintf(ret_text, TICK_BYTES, "%04d-%02d-%02dT%02d:%02d:%02dZ", (int)date.year, (int)date.month, (int)date.day,
             (int)(rest / 3600), (int)(rest / 60 % 60), (int)(rest % 60));
}

/* The schedule's headers with two more before them, by which a handler knows what it is run for. */
static kl_header *make_headers(const kl_cron *cron, int64_t tick_ms, kl_arena *arena)
{
    size_t own = cron->task.header_count;
    kl_header *headers = kl_arena_alloc(arena, (own + KL_CRON_HEADERS) * sizeof *headers);
    char tick[TICK_BYTES];
    kl_bytes copy;
    print_tick(tick_ms, tick);
    if (!headers || !kl_arena_copy(arena, kl_str(tick), &copy))
        return NULL;
    headers[0] = (kl_header){kl_str("keyline-schedule"), kl_str(cron->name)};
    headers[1] = (kl_header){kl_str("keyline-tick"), copy};
    if (own > 0)
        memcpy(headers + KL_CRON_HEADERS, cron->task.headers, own * sizeof *headers);
    return headers;
}

static kl_rc make_entry(const kl_cron *cron, int64_t tick_ms, kl_arena *arena, kl_entry *ret_entry)
{
    const kl_put *task = &cron->task;
    kl_header *headers = make_headers(cron, tick_ms, arena);
    if (!headers)
        return kl__fail_memory();
    kl_task_extra extra = {
        .attempts_max = (uint32_t)task->attempts_max,
        .timeout_ms = task->timeout_ms,
        .group = task->group,
        .traceparent = task->traceparent,
        .headers = headers,
        .header_count = task->header_count + KL_CRON_HEADERS,
        .tags = (kl_bytes *)task->tags, /* only read */
        .tag_count = task->tag_count,
        .keep_ms = task->keep_ms,
    };
    *ret_entry = (kl_entry){
        .priority = (int32_t)task->priority,
        .group = kl__group_hash(task->group),
        .key = task->key,
        .kind = task->kind,
        .payload = task->payload,
    };
    return kl__envelope_encode(&extra, arena, &ret_entry->headers);
}

/* --- Places --- */

/* What tells a tick from all others, as a number; another one for each use. */
static uint64_t hash_tick(const kl_queue *queue, const kl_cron *cron, int64_t tick_ms, uint64_t use)
{
    char buffer[NAME_BYTES];
    uint64_t schedule = kl__hash(record_name(queue, cron->name, buffer), use);
    return kl__hash((kl_bytes){&tick_ms, sizeof tick_ms}, schedule);
}

/* Without a key, ticks are spread over the shards. */
static uint32_t shard_of(const kl_queue *queue, const kl_layout *layout, const kl_cron *cron, int64_t tick_ms)
{
    return cron->task.key.len > 0
               ? kl_shard_of(layout, cron->task.key)
               : kl__hash_scale(hash_tick(queue, cron, tick_ms, KL_SEED_SHARD), kl_layout_shards(layout));
}

static uint32_t partition_of(const kl_queue *queue, const kl_layout *layout, const kl_cron *cron, int64_t tick_ms)
{
    return cron->task.key.len > 0
               ? kl_partition_of(layout, cron->task.key)
               : kl__hash_scale(hash_tick(queue, cron, tick_ms, KL_SEED_PARTITION), layout->partitions);
}

/* The place and id of a tick's task in this layout. */
static kl_rc choose_place(const kl_queue *queue, const kl__queue_layout *layout, const kl_cron *cron, int64_t tick_ms,
                          kl__firing *ret_firing)
{
    uint64_t hash = hash_tick(queue, cron, tick_ms, KL_SEED_LANE);
    kl_id_parts parts = {
        .shard = shard_of(queue, &layout->layout, cron, tick_ms),
        .sequence = (uint32_t)(hash >> 32) >> (4 + kl__shard_bits(&layout->layout)), /* 28 - 4L bits */
        .ms = tick_ms,
        .lane = kl_lane_of(cron->task.key),
        .random = (uint32_t)hash & KL_ID_RANDOM_MAX,
    };
    ret_firing->tick_ms = tick_ms;
    ret_firing->layout = layout->number;
    return kl_id_pack(&layout->layout, &parts, &ret_firing->id);
}

/* In the newest layout that is known here. */
static kl_rc choose_newest(kl_queue *queue, const kl_cron *cron, int64_t tick_ms, kl__firing *ret_firing)
{
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    kl_rc rc = choose_place(queue, kl__put_layout(descriptor), cron, tick_ms, ret_firing);
    kl__descriptor_release(descriptor);
    return rc;
}

static const kl__queue_layout *find_layout(const kl__descriptor *descriptor, uint64_t number)
{
    for (size_t i = 0; i < descriptor->layout_count; i++)
        if (descriptor->layouts[i].number == number)
            return &descriptor->layouts[i];
    return NULL;
}

/* --- Firing --- */

/* Whether the task is known, waiting or kept. */
static kl_rc look_up(kl_store *store, const kl_entry *entry, kl_arena *arena, bool *ret_known)
{
    kl_ref ref = {.place = entry->place, .id = entry->id};
    kl_task task = {.state = KL_TASK_UNKNOWN};
    size_t count;
    kl_rc rc = kl_store_read(store, &ref, 1, arena, &task, &count);
    *ret_known = rc == KL_OK && task.state != KL_TASK_UNKNOWN;
    return rc;
}

/* C1, for one that was held up since it saw the record. KL_ECONFLICT: somebody else has changed it. */
static kl_rc look_again(kl_queue *queue, const kl__schedule *schedule, kl_arena *arena)
{
    char buffer[NAME_BYTES];
    kl_record record;
    if (kl__monotonic_ns() - schedule->seen_ns < KL_CRON_LOOK_AGAIN_MS * INT64_C(1000000))
        return KL_OK;
    kl_rc rc = kl__record_get(queue->store, record_name(queue, schedule->cron.name, buffer), arena, &record);
    if (rc == KL_OK && record.version != schedule->version)
        rc = kl__fail(KL_ECONFLICT, "somebody else has changed the schedule %s meanwhile", schedule->cron.name);
    return rc;
}

/* Step 2. KL_ESEALED: its layout takes no more tasks, and has not got this one. */
static kl_rc append_in(kl_queue *queue, const kl__queue_layout *layout, const kl__schedule *schedule, bool own,
                       kl_arena *arena)
{
    const kl__firing *firing = &schedule->firing;
    uint32_t partition = partition_of(queue, &layout->layout, &schedule->cron, firing->tick_ms);
    kl_store *store = layout->stores[partition];
    kl_entry entry;
    bool known = false;
    kl_rc rc = make_entry(&schedule->cron, firing->tick_ms, arena, &entry);
    if (rc != KL_OK)
        return rc;
    entry.place = (kl_place){kl__layout_number(layout, partition), kl_id_shard(&layout->layout, &firing->id)};
    entry.id = firing->id;
    if (KL_MUTANT(tick_twice))
        entry.id.bytes[15] ^= (uint8_t)kl__random_seed();
    if (!own)
        rc = look_up(store, &entry, arena, &known);
    if (rc == KL_OK && !known)
        rc = look_again(queue, schedule, arena);
    if (rc != KL_OK || known)
        return rc;
    rc = kl__queue_append(store, &entry, 1);
    if (rc != KL_ESEALED)
        return rc;
    rc = look_up(store, &entry, arena, &known);
    return rc == KL_OK && !known ? kl__fail(KL_ESEALED, "the queue has a newer layout") : rc;
}

/* The same in the layout that the firing names. One that is known no more is older than all that are. */
static kl_rc append_firing(kl_queue *queue, const kl__schedule *schedule, bool own, kl_arena *arena)
{
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    const kl__queue_layout *layout = find_layout(descriptor, schedule->firing.layout);
    if (!layout) {
        kl__descriptor_release(descriptor);
        kl_rc rc = kl__queue_refresh(queue);
        if (rc != KL_OK)
            return rc;
        descriptor = kl__queue_descriptor(queue);
        layout = find_layout(descriptor, schedule->firing.layout);
    }
    kl_rc rc = layout ? append_in(queue, layout, schedule, own, arena)
                      : kl__fail(KL_ESEALED, "the queue's layout %llu is no more",
                                 (unsigned long long)schedule->firing.layout);
    kl__descriptor_release(descriptor);
    return rc;
}

/* Step 2, and what step 3 is to write. Where the layout was sealed meanwhile, the record says so first (C1). own: this
 * call has just begun it. */
static kl_rc finish_firing(kl_queue *queue, kl__schedule *schedule, bool own, kl_arena *arena)
{
    kl__firing *firing = &schedule->firing;
    kl_rc rc = KL_OK;
    for (int tries = 0; firing->tick_ms != 0 && tries < MOVE_TRIES; tries++) {
        rc = append_firing(queue, schedule, own, arena);
        if (rc == KL_OK) {
            schedule->cron.last_ms = firing->tick_ms;
            *firing = (kl__firing){.tick_ms = 0};
            return KL_OK;
        }
        if (rc == KL_ESEALED)
            rc = kl__queue_seal(queue);
        if (rc == KL_OK)
            rc = choose_newest(queue, &schedule->cron, firing->tick_ms, firing);
        if (rc == KL_OK)
            rc = write_schedule(queue, schedule, arena);
        if (rc != KL_OK)
            return rc;
    }
    return firing->tick_ms == 0 ? KL_OK
                                : kl__fail(KL_EBUSY, "the layout of the queue %s changes again and again", queue->name);
}

/* --- What is due --- */

static bool is_due(const kl__schedule *schedule, int64_t now_ms)
{
    return !schedule->cron.paused && schedule->cron.next_ms != 0 && schedule->cron.next_ms <= now_ms;
}

/* Which of the times that have passed is fired now (0: none), and the one that follows. */
static int64_t choose_tick(kl__schedule *schedule, const kl__cron_fields *fields, const kl__zone *zone, int64_t now_ms)
{
    kl_cron *cron = &schedule->cron;
    int64_t tick_ms = cron->next_ms;
    if (cron->catch_up == KL_CATCH_UP_ALL && schedule->behind < KL_CRON_CATCH_UP_MAX) {
        cron->next_ms = kl__cron_next(fields, zone, tick_ms);
        schedule->behind = is_due(schedule, now_ms) ? schedule->behind + 1 : 0;
        return tick_ms;
    }
    int64_t last_ms = kl__cron_last(fields, zone, tick_ms, now_ms);
    tick_ms = last_ms != 0 ? last_ms : tick_ms;
    cron->next_ms = kl__cron_next(fields, zone, now_ms);
    if (cron->catch_up == KL_CATCH_UP_ALL) { /* as many as are made up for: the rest are dropped */
        schedule->behind = 0;
        return 0;
    }
    return cron->catch_up == KL_CATCH_UP_ONE || now_ms - tick_ms < KL_CRON_LATE_MS ? tick_ms : 0;
}

/* What step 1 is to write. */
static kl_rc begin_firing(kl_queue *queue, kl__schedule *schedule, int64_t now_ms)
{
    kl__cron_fields fields;
    kl__zone *zone;
    kl_rc rc = kl__cron_parse(schedule->cron.when, &fields);
    if (rc == KL_OK)
        rc = kl__zone_load(schedule->cron.zone, &zone);
    if (rc != KL_OK)
        return rc;
    int64_t tick_ms = choose_tick(schedule, &fields, zone, now_ms);
    kl__zone_free(zone);
    schedule->firing = (kl__firing){.since_ms = now_ms, .nonce = (int64_t)(kl__random_seed() >> 1)};
    return tick_ms != 0 ? choose_newest(queue, &schedule->cron, tick_ms, &schedule->firing) : KL_OK;
}

/* One call of kl__cron_fire. */
struct round {
    kl_queue *queue;
    int64_t now_ms;
    int64_t next_ms;
    uint32_t left;   /* ticks that may still be fired */
    kl_rc rc;        /* the first failure, */
    char error[512]; /* and its sentence */
};

static void come_back(struct round *round, int64_t at_ms)
{
    if (at_ms < round->next_ms)
        round->next_ms = at_ms;
}

static void note_failure(struct round *round, kl_rc rc, kl_bytes record)
{
    come_back(round, round->now_ms + KL_CRON_LOOK_AGAIN_MS);
    if (round->rc != KL_OK || rc == KL_ECONFLICT) /* somebody else is at it */
        return;
    round->rc = rc;
    snprintf(round->error, sizeof round->error, "the record %.*s: %.300s", (int)record.len, (const char *)record.data,
             kl_error_text());
}

/* Whether this round has something to do about it. */
static bool is_mine(const struct round *round, const kl__schedule *schedule)
{
    if (schedule->firing.tick_ms != 0)
        return schedule->firing.since_ms + KL_CRON_HELP_MS <= round->now_ms;
    return round->left > 0 && is_due(schedule, round->now_ms);
}

static void come_back_for(struct round *round, const kl__schedule *schedule)
{
    if (schedule->firing.tick_ms != 0)
        come_back(round, schedule->firing.since_ms + KL_CRON_HELP_MS);
    if (!schedule->cron.paused && schedule->cron.next_ms != 0)
        come_back(round, schedule->cron.next_ms > round->now_ms ? schedule->cron.next_ms : round->now_ms);
}

/* One write: the end of the firing that there is, the beginning of the next, or both. */
static kl_rc fire_tick(struct round *round, kl__schedule *schedule, bool own)
{
    kl_arena arena = {0}; /* of this tick: there may be many */
    kl_rc rc = finish_firing(round->queue, schedule, own, &arena);
    if (rc == KL_OK && round->left > 0 && is_due(schedule, round->now_ms)) {
        rc = begin_firing(round->queue, schedule, round->now_ms);
        round->left--;
    }
    if (rc == KL_OK)
        rc = write_schedule(round->queue, schedule, &arena);
    kl_arena_free(&arena);
    return rc;
}

/* A schedule with something to do, read once more. */
static kl_rc fire_schedule(struct round *round, const char *name)
{
    kl_arena arena = {0};
    kl__schedule schedule;
    kl_rc rc = read_schedule(round->queue, name, &arena, &schedule);
    bool own = false, mine = rc == KL_OK && is_mine(round, &schedule);
    while (rc == KL_OK && mine) {
        rc = fire_tick(round, &schedule, own);
        own = schedule.firing.tick_ms != 0;
        mine = own || is_mine(round, &schedule);
    }
    if (rc == KL_OK)
        come_back_for(round, &schedule);
    kl_arena_free(&arena);
    return rc == KL_ENOTFOUND ? KL_OK : rc; /* it was removed just now */
}

static void look_at(struct round *round, const kl_record *record, kl_arena *arena)
{
    kl__schedule schedule;
    kl_rc rc = kl__schedule_decode(record, prefix_len(round->queue), arena, &schedule);
    if (rc == KL_OK && is_mine(round, &schedule))
        rc = fire_schedule(round, schedule.cron.name);
    else if (rc == KL_OK)
        come_back_for(round, &schedule);
    if (rc != KL_OK)
        note_failure(round, rc, record->name);
}

/* Lists a page and looks at its schedules. *after is the last name; empty at the end. */
static kl_rc look_at_page(struct round *round, kl_bytes prefix, char after[NAME_BYTES], kl_arena *arena,
                          size_t *ret_count)
{
    kl_record records[PAGE];
    size_t count;
    kl_rc rc = kl_store_list(round->queue->store, prefix, kl_str(after), PAGE, arena, records, &count);
    if (rc != KL_OK)
        return rc;
    for (size_t i = 0; i < count; i++)
        look_at(round, &records[i], arena);
    if (count > 0) {
        memcpy(after, records[count - 1].name.data, records[count - 1].name.len);
        after[records[count - 1].name.len] = '\0';
    }
    *ret_count = count;
    return KL_OK;
}

static kl_rc look_at_all(struct round *round)
{
    char prefix[NAME_BYTES], after[NAME_BYTES] = "";
    kl_bytes begin = record_name(round->queue, "", prefix);
    kl_arena arena = {0};
    size_t looked = 0, count = PAGE;
    kl_rc rc = KL_OK;
    while (rc == KL_OK && count == PAGE && looked < KL_CRON_LOOK_MAX) {
        kl_arena_reset(&arena);
        rc = look_at_page(round, begin, after, &arena, &count);
        looked += rc == KL_OK ? count : 0;
    }
    kl_arena_free(&arena);
    if (rc == KL_OK && count == PAGE && looked >= KL_CRON_LOOK_MAX)
        rc = kl__fail(KL_EFULL, "the queue %s has %zu schedules or more, and only so many are looked at; remove some",
                      round->queue->name, looked);
    return rc;
}

kl_rc kl__cron_fire(kl_queue *queue, int64_t *ret_next_ms)
{
    struct round round = {.queue = queue, .next_ms = KL_NEVER, .left = KL_CRON_FIRE_MAX};
    kl_rc rc = kl_store_now(queue->store, &round.now_ms);
    if (rc == KL_OK)
        rc = look_at_all(&round);
    if (rc == KL_OK || rc == KL_EFULL)
        *ret_next_ms = round.next_ms;
    return rc == KL_OK && round.rc != KL_OK ? kl__fail(round.rc, "%s", round.error) : rc;
}

/* --- Changing --- */

/* Edits the schedule; version 0: there is none yet. May be called again after a conflict. */
typedef kl_rc change_fn(kl__schedule *schedule, const void *ctx, int64_t now_ms);

static kl_rc change_once(kl_queue *queue, const char *name, change_fn *change, const void *ctx, kl_arena *arena)
{
    int64_t now_ms;
    kl__schedule schedule = {.cron = {.size = sizeof(kl_cron), .name = name}};
    kl_rc rc = kl_store_now(queue->store, &now_ms);
    if (rc == KL_OK)
        rc = read_schedule(queue, name, arena, &schedule);
    if (rc == KL_OK)
        rc = finish_firing(queue, &schedule, false, arena);
    if (rc == KL_OK || rc == KL_ENOTFOUND)
        rc = change(&schedule, ctx, now_ms);
    return rc == KL_OK ? write_schedule(queue, &schedule, arena) : rc;
}

static kl_rc fail_busy(const kl_queue *queue, const char *name)
{
    return kl__fail(KL_EBUSY, "the schedule %s of the queue %s is changed by others again and again; call again", name,
                    queue->name);
}

static kl_rc change_schedule(kl_queue *queue, const char *name, change_fn *change, const void *ctx)
{
    kl_rc rc = KL_ECONFLICT;
    for (int tries = 0; rc == KL_ECONFLICT && tries < CHANGE_TRIES; tries++) {
        kl_arena arena = {0};
        rc = change_once(queue, name, change, ctx, &arena);
        kl_arena_free(&arena);
    }
    return rc == KL_ECONFLICT ? fail_busy(queue, name) : rc;
}

static kl_rc next_after(const kl_cron *cron, int64_t now_ms, int64_t *ret_ms)
{
    return kl_cron_next(cron->when, cron->zone, now_ms, ret_ms);
}

/* The same times as before are not begun anew: what was missed is still made up for, though a program adds its
 * schedules each time it starts. */
static kl_rc change_to(kl__schedule *schedule, const void *ctx, int64_t now_ms)
{
    const kl_cron *cron = ctx, *before = &schedule->cron;
    kl_cron after = *cron;
    bool is_new = schedule->version == 0;
    bool same = !is_new && strcmp(cron->when, before->when) == 0 && strcmp(cron->zone, before->zone) == 0;
    after.last_ms = before->last_ms;
    after.next_ms = before->next_ms;
    after.paused = is_new ? cron->paused : before->paused;
    kl_rc rc = same ? KL_OK : next_after(&after, now_ms, &after.next_ms);
    if (rc == KL_OK) {
        schedule->cron = after;
        schedule->behind = same ? schedule->behind : 0;
    }
    return rc;
}

/* Whether it fits into its record, and its headers into their envelope. */
static kl_rc check_sizes(const kl_cron *cron)
{
    kl_arena arena = {0};
    kl__schedule schedule = {.cron = *cron};
    kl_entry entry;
    kl_bytes value;
    kl_rc rc = make_entry(cron, 0, &arena, &entry);
    if (rc == KL_OK)
        rc = kl__schedule_encode(&schedule, &arena, &value);
    if (rc == KL_OK && value.len > KL_RECORD_BYTES_MAX - KL_CRON_SPARE_BYTES)
        rc =
            kl__fail(KL_EINVAL,
                     "the schedule %s is too large: written out it has %zu bytes, and %u is the most; make its payload "
                     "smaller, or let it name where the data is",
                     cron->name, value.len, KL_RECORD_BYTES_MAX - KL_CRON_SPARE_BYTES);
    kl_arena_free(&arena);
    return rc;
}

static kl_rc copy_cron(const kl_cron *given, kl_cron *ret_cron)
{
    kl_cron cron = {.size = 0};
    if (given->size < sizeof given->size || given->size > sizeof cron)
        return kl__fail(KL_EINVAL, "kl_cron.size is %zu; start from {.size = sizeof(kl_cron)}, which is %zu here",
                        given->size, sizeof cron);
    memcpy(&cron, given, given->size);
    cron.size = sizeof cron;
    cron.zone = cron.zone ? cron.zone : "UTC";
    cron.catch_up = cron.catch_up == KL_CATCH_UP_UNSET ? KL_CATCH_UP_ONE : cron.catch_up;
    *ret_cron = cron;
    return KL_OK;
}

/* A sentence of its own for a schedule that can never fire. */
static kl_rc check_when(const kl_cron *cron)
{
    int64_t next_ms;
    kl_rc rc = next_after(cron, 0, &next_ms);
    if (rc == KL_OK && next_ms == 0)
        rc = kl__fail(KL_EINVAL, "the schedule %s would never fire: no year has the day that \"%s\" names", cron->name,
                      cron->when);
    return rc;
}

kl_rc kl_cron_add(kl_queue *queue, const kl_cron *given)
{
    kl_cron cron;
    kl_rc rc = check_queue(queue);
    if (rc == KL_OK && !given)
        rc = kl__fail(KL_EINVAL, "the kl_cron is NULL; pass one");
    if (rc == KL_OK)
        rc = copy_cron(given, &cron);
    if (rc == KL_OK)
        rc = kl__cron_check(&cron);
    if (rc == KL_OK)
        rc = check_when(&cron);
    if (rc == KL_OK)
        rc = check_sizes(&cron);
    return rc == KL_OK ? change_schedule(queue, cron.name, change_to, &cron) : rc;
}

/* Times that passed meanwhile are treated as if no worker had run: without catching up, they are passed over now. */
static kl_rc change_pause(kl__schedule *schedule, const void *ctx, int64_t now_ms)
{
    const bool *paused = ctx;
    kl_cron *cron = &schedule->cron;
    bool resumes = cron->paused && !*paused;
    if (schedule->version == 0)
        return KL_ENOTFOUND;
    cron->paused = *paused;
    if (resumes && cron->catch_up == KL_CATCH_UP_NONE && cron->next_ms != 0 && cron->next_ms <= now_ms)
        return next_after(cron, now_ms, &cron->next_ms);
    return KL_OK;
}

kl_rc kl_cron_pause(kl_queue *queue, const char *name, bool paused)
{
    kl_rc rc = check_queue(queue);
    return rc == KL_OK ? change_schedule(queue, name, change_pause, &paused) : rc;
}

static kl_rc remove_once(kl_queue *queue, const char *name, kl_arena *arena)
{
    char buffer[NAME_BYTES];
    kl__schedule schedule;
    kl_rc rc = read_schedule(queue, name, arena, &schedule);
    if (rc == KL_OK)
        rc = finish_firing(queue, &schedule, false, arena);
    return rc == KL_OK ? kl__record_remove(queue->store, record_name(queue, name, buffer), schedule.version) : rc;
}

kl_rc kl_cron_remove(kl_queue *queue, const char *name)
{
    kl_rc rc = check_queue(queue);
    if (rc != KL_OK)
        return rc;
    rc = KL_ECONFLICT;
    for (int tries = 0; rc == KL_ECONFLICT && tries < CHANGE_TRIES; tries++) {
        kl_arena arena = {0};
        rc = remove_once(queue, name, &arena);
        kl_arena_free(&arena);
    }
    return rc == KL_ECONFLICT ? fail_busy(queue, name) : rc;
}

/* --- Looking, and running --- */

kl_rc kl_cron_list(kl_queue *queue, const char *after, size_t max, kl_arena *arena, kl_cron *ret_crons,
                   size_t *ret_count)
{
    char prefix[NAME_BYTES], behind[NAME_BYTES];
    kl_bytes from = NO_BYTES;
    kl_rc rc = check_queue(queue);
    if (rc == KL_OK && (!arena || !ret_crons || !ret_count))
        rc = kl__fail(KL_EINVAL, "the arena, ret_crons or ret_count is NULL; pass all three");
    if (rc == KL_OK && after && *after)
        rc = kl__cron_check_name(after);
    if (rc != KL_OK)
        return rc;
    if (max == 0 || max > KL_CRON_LOOK_MAX)
        return kl__fail(KL_EINVAL, "max is %zu; ask for 1 to %d schedules", max, KL_CRON_LOOK_MAX);
    if (after && *after)
        from = record_name(queue, after, behind);
    kl_record *records = kl_arena_alloc(arena, max * sizeof *records);
    size_t count;
    if (!records)
        return kl__fail_memory();
    rc = kl_store_list(queue->store, record_name(queue, "", prefix), from, max, arena, records, &count);
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        kl__schedule schedule;
        rc = kl__schedule_decode(&records[i], prefix_len(queue), arena, &schedule);
        if (rc == KL_OK)
            ret_crons[i] = schedule.cron;
    }
    if (rc == KL_OK)
        *ret_count = count;
    return rc;
}

kl_rc kl__cron_read(kl_queue *queue, const char *name, kl_arena *arena, kl_cron *ret_cron)
{
    kl__schedule schedule;
    kl_rc rc = read_schedule(queue, name, arena, &schedule);
    if (rc == KL_OK)
        *ret_cron = schedule.cron;
    return rc;
}

kl_rc kl_cron_run(kl_queue *queue, const char *name, kl_task_id *ret_id)
{
    kl_arena arena = {0};
    kl__schedule schedule;
    kl_put_result result = {.duplicate = false};
    int64_t now_ms;
    kl_rc rc = check_queue(queue);
    if (rc == KL_OK)
        rc = kl_store_now(queue->store, &now_ms);
    if (rc == KL_OK)
        rc = read_schedule(queue, name, &arena, &schedule);
    if (rc == KL_OK) {
        kl_put task = schedule.cron.task;
        task.headers = make_headers(&schedule.cron, now_ms, &arena);
        task.header_count += KL_CRON_HEADERS;
        rc = task.headers ? kl_queue_put(queue, &task, 1, NO_BYTES, &result) : kl__fail_memory();
    }
    if (rc == KL_OK && ret_id)
        *ret_id = result.id;
    kl_arena_free(&arena);
    return rc;
}
