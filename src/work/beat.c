/* beat.c - what a worker looks at from time to time.
 *
 * From: worker_keep.c, every kl__pump_beat_ms, in two threads: what may take long must not keep the lease from being
 * renewed.  To: partitions.c, older.c, gate.c, sweep.c, ask.c, and the queue's records.
 *
 * Every TICK_MS: the queue's record (settings, pause, layouts), paused keys, cancelled jobs and requests of operators,
 * all of which are read only if some record has changed, where the store tells; and schedules that are due. Every
 * WATCH_MS: whether other workers came or went. Every third of a lease (half of one while there is nothing to do), or
 * at once when they did or a shard is to be given back: ownership. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mutant.h"
#include "queue/cron.h"
#include "store/quick.h"
#include "work/ask.h"
#include "work/inside.h"

enum { TICK_MS = 100, WATCH_MS = 200, NEWS_MS = 1000 };

int64_t kl__pump_beat_ms(const kl__pump *pump)
{
    return pump->stopping || pump->opts.handler_count == 0 ? TICK_MS / 10 : TICK_MS;
}

/* --- The clock and the record --- */

/* Unless it was done within age_ms: of the two threads, one asks for both. */
static kl_rc set_clock(kl__pump *pump, int64_t age_ms)
{
    int64_t store_ms = 0, local_ms = pump->opts.local_ms(pump->opts.local_ctx);
    if (pump->clock_set && local_ms - pump->clock_ms < age_ms)
        return KL_OK;
    kl__pump_leave(pump);
    uint64_t news = 0;
    kl_rc rc = kl__store_pulse(pump->queue->store, &store_ms, &news);
    kl__pump_enter(pump);
    if (rc != KL_OK)
        return rc;
    pump->news = news;
    pump->clock_ms = local_ms;
    pump->clock_offset_ms = store_ms - pump->opts.local_ms(pump->opts.local_ctx); /* rather behind than ahead */
    pump->clock_set = true;
    kl__pump_now(pump);
    return KL_OK;
}

/* Where the store tells, records are read when some have changed, and in the next tick once more, because a change may
 * be told of before it can be read; and now and then, because some expire. */
bool kl__pump_has_news(kl__pump *pump, const kl_store *store, kl__reader *reader)
{
    int64_t local_ms = pump->opts.local_ms(pump->opts.local_ctx);
    bool changed = store != pump->queue->store || !pump->news || pump->news != reader->news;
    if (!changed && !reader->again && reader->read_ms && local_ms - reader->read_ms < NEWS_MS)
        return false;
    *reader = (kl__reader){pump->news, local_ms ? local_ms : 1, changed};
    return true;
}

/* A key that is halted, or is about to be when its outcome is settled: its first task is looked at again. What is
 * drained already goes on being drained. */
static void reconsider(kl__held *held)
{
    if (held->draining)
        return;
    if (held->state == KL_HELD_FINISHED)
        held->reconsider = held->halted;
    else if (held->state == KL_HELD_LINE && held->blocked == KL_BLOCKED_HALTED)
        kl__window_serve(held->window, held);
}

static void reconsider_halted(kl__pump *pump)
{
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next) {
        for (kl__window *window = partition->windows; window; window = window->next) {
            for (uint32_t i = 0; i < window->table_capacity; i++)
                if (window->table[i].held)
                    reconsider(window->table[i].held);
            kl__window_ready(window);
        }
    }
}

/* Keys that are halted would not be by what is now said of the queue, or may not be: tasks may have their own
 * limits. */
static bool lets_halted_go(const kl_queue_opts *old, const kl_queue_opts *now)
{
    return old->head_policy == KL_HEAD_HALT &&
           (now->head_policy != KL_HEAD_HALT || now->attempts_max > old->attempts_max);
}

static kl_rc refresh(kl__pump *pump)
{
    uint64_t number = ++pump->refreshes; /* a window that is opened from here on may be newer than what is read */
    kl__pump_leave(pump);
    kl_rc rc = kl__queue_refresh(pump->queue);
    kl__pump_enter(pump);
    if (rc != KL_OK)
        return rc;
    kl__descriptor *old = pump->descriptor;
    pump->descriptor = kl__queue_descriptor(pump->queue);
    pump->refreshed = number;
    const kl_queue_opts *now = &pump->descriptor->settings;
    pump->beat_now |= now->concurrency != old->settings.concurrency || now->lease_ms != old->settings.lease_ms;
    if (lets_halted_go(&old->settings, now))
        reconsider_halted(pump);
    kl__descriptor_release(old);
    return kl__partitions_sync(pump);
}

/* --- Paused keys --- */

static void pause_key(kl__window *window, uint64_t key_hash)
{
    kl__lane_key key = kl__lane_key_of(&key_hash);
    kl__lane *lane = kl__window_lane(window, key_hash);
    int64_t now_ms = window->pump->now_ms;
    kl__lane_task *head = lane ? kl__lane_head(lane) : NULL;
    if (!lane)
        return;
    kl__held *held = head ? kl__held_of(head) : NULL;
    if (held && held->state == KL_HELD_ROOM) {
        kl__room_remove(held);
        held->state = KL_HELD_LINE;
        kl__lanes_untake(window->lanes, head, held->retry_line, now_ms);
    }
    if (kl__lanes_pause(window->lanes, &key, now_ms) != KL_OK)
        return; /* no memory: the next tick tries again */
    kl__window_evict(window, lane);
    head = kl__lane_head(lane);
    if (head && kl__held_of(head)->state == KL_HELD_LINE)
        kl__window_block(window, kl__held_of(head), KL_BLOCKED_PAUSED);
}

static void resume_key(kl__window *window, uint64_t key_hash)
{
    kl__lane_key key = kl__lane_key_of(&key_hash);
    if (!kl__window_lane(window, key_hash))
        return;
    kl__lanes_resume(window->lanes, &key, window->pump->now_ms);
    kl__window_ready(window);
}

static void each_new(kl__pump *pump, const kl__keyset *keys, const kl__keyset *known,
                     void (*change)(kl__window *window, uint64_t key_hash))
{
    for (uint64_t i = 0; i < kl__keyset_capacity(keys); i++) {
        uint64_t key_hash = kl__keyset_at(keys, i);
        if (!key_hash || kl__keyset_has(known, key_hash))
            continue;
        for (kl__partition *partition = pump->partitions; partition; partition = partition->next)
            for (kl__window *window = partition->windows; window; window = window->next)
                change(window, key_hash);
    }
}

static kl_rc look_at_paused(kl__pump *pump)
{
    kl_arena arena = {0};
    kl__keyset *keys = kl__keyset_open(), *old = pump->paused;
    if (!keys)
        return kl__fail_memory();
    kl__pump_leave(pump);
    kl_rc rc = kl__keyset_read_paused(keys, pump->queue, &arena);
    kl__pump_enter(pump);
    kl_arena_free(&arena);
    if (rc != KL_OK) {
        kl__keyset_free(keys);
        return rc;
    }
    pump->paused = keys;
    each_new(pump, keys, old, pause_key);
    each_new(pump, old, keys, resume_key);
    kl__keyset_free(old);
    return KL_OK;
}

/* --- Jobs and schedules --- */

static kl_rc look_at_jobs(kl__pump *pump)
{
    kl__pump_leave(pump);
    kl__cancelled_set fresh = {0};
    kl_rc rc = kl__jobs_cancelled(pump->queue, &fresh);
    kl__pump_enter(pump);
    if (rc != KL_OK) {
        kl__cancelled_free(&fresh);
        return rc;
    }
    kl__cancelled_free(&pump->cancelled);
    pump->cancelled = fresh;
    return KL_OK;
}

/* Others may add schedules, so it looks again every second at least. */
static kl_rc look_at_schedules(kl__pump *pump)
{
    enum { CRON_EVERY_MS = 1000 };
    if (pump->opts.handler_count == 0 || pump->stopping || pump->now_ms < pump->cron_ms)
        return KL_OK;
    int64_t next_ms = KL_NEVER;
    kl__pump_leave(pump);
    kl_rc rc = kl__cron_fire(pump->queue, &next_ms);
    kl__pump_enter(pump);
    int64_t again_ms = pump->now_ms + CRON_EVERY_MS;
    pump->cron_ms = next_ms < again_ms ? next_ms : again_ms;
    return rc;
}

/* --- The beat --- */

/* What others write for all workers of the queue. While an older layout is drained, how far that is counts
 * refreshes. */
static kl_rc look_at_records(kl__pump *pump)
{
    static kl_rc (*const steps[])(kl__pump * pump) = {refresh, look_at_paused, look_at_jobs};
    kl_rc first = KL_OK;
    if (!kl__pump_has_news(pump, pump->queue->store, &pump->records) && !kl__older_undrained(pump->descriptor))
        return KL_OK;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        kl_rc rc = steps[i](pump);
        first = first != KL_OK ? first : rc;
    }
    if (first != KL_OK)
        pump->records = (kl__reader){0};
    return first;
}

/* Whatever fails, the other steps are taken too: a task that cannot be moved must not keep an operator from removing
 * it. Gates take longest and come behind requests: those need the lease, which one who stands in renews between two
 * ticks. */
static kl_rc tick(kl__pump *pump)
{
    static kl_rc (*const steps[])(kl__pump * pump) = {kl__older_layouts, kl__pump_drain_keys, kl__asks_carry_out,
                                                      kl__gates_refresh, look_at_schedules,   kl__pump_count};
    kl_rc first = look_at_records(pump);
    pump->informed |= first == KL_OK;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        kl_rc rc = steps[i](pump);
        first = first != KL_OK ? first : rc;
    }
    return first;
}

kl_rc kl__pump_tick(kl__pump *pump)
{
    int64_t local_ms = pump->opts.local_ms(pump->opts.local_ctx);
    if (pump->ticking || (pump->tick_ms && local_ms - pump->tick_ms < kl__pump_beat_ms(pump)))
        return KL_OK;
    pump->ticking = true;
    kl_rc rc = set_clock(pump, kl__pump_beat_ms(pump) / 2);
    if (rc == KL_OK)
        rc = tick(pump);
    if (rc == KL_OK || pump->informed)
        pump->tick_ms = local_ms ? local_ms : 1;
    pump->ticking = false;
    return rc;
}

/* So that two beats may fail; one, while nothing is run that others would have to run again: where each write is paid
 * for, most workers are idle most of the time. */
static int64_t beat_every_ms(const kl__pump *pump)
{
    bool idle = pump->running == 0 && pump->held == 0 && pump->finished == 0;
    int64_t lease_ms = KL_MUTANT(lease_kept) ? pump->descriptor->settings.lease_ms : kl__partitions_lease_ms(pump);
    return lease_ms / (idle ? 2 : 3);
}

static kl_rc keep(kl__pump *pump)
{
    kl_rc first = set_clock(pump, kl__pump_beat_ms(pump));
    int64_t local_ms = pump->opts.local_ms(pump->opts.local_ctx);
    if (first != KL_OK || !pump->informed) /* nothing is owned before it is known what is paused and cancelled */
        return first;
    if (local_ms - pump->watch_ms >= WATCH_MS && pump->opts.handler_count > 0) {
        first = kl__partitions_watch(pump);
        pump->watch_ms = local_ms;
    }
    pump->beat_now |= kl__partitions_starve(pump);
    bool wanted = pump->beat_now;
    if (!wanted && pump->owners_ms && local_ms - pump->owners_ms < beat_every_ms(pump))
        return first != KL_OK ? first : kl__partitions_fenced(pump);
    pump->beat_now = pump->stopping;
    kl_rc rc = kl__partitions_beat(pump);
    if (rc == KL_OK)
        pump->owners_ms = local_ms ? local_ms : 1;
    else
        pump->beat_now |= wanted;
    first = first != KL_OK ? first : rc;
    return first != KL_OK ? first : kl__partitions_fenced(pump);
}

kl_rc kl__pump_keep(kl__pump *pump)
{
    if (pump->beating)
        return KL_OK;
    pump->beating = true;
    kl_rc rc = keep(pump);
    pump->beating = false;
    return rc;
}

kl_rc kl__pump_beat(kl__pump *pump)
{
    kl_rc first = kl__pump_tick(pump);
    kl_rc rc = kl__pump_keep(pump);
    return first != KL_OK ? first : rc;
}
