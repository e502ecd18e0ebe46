/* cron.h - schedules: a task put at the times that five fields say, once each however many workers run.
 *
 *     kl_cron cron = {.size = sizeof cron, .name = "nightly", .when = "0 3 * * *", .zone = "Europe/Zurich",
 *                     .task = {.kind = kl_str("report")}};
 *     if (kl_cron_add(queue, &cron) != KL_OK) ...
 *
 * Any worker of the queue fires what is due. Each time fires once, and as surely as a put: a worker that dies over
 * it leaves it to another one, a few seconds later (docs/queue.md names the one exception). Nothing fires without a
 * worker.
 *
 * Every function is safe from any thread. Nothing is kept of the caller's memory after a call returns. Errors of every
 * call, beside those that it names: those of queue.h. */
#ifndef KEYLINE_CRON_H
#define KEYLINE_CRON_H

#include "keyline/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KL_CRON_NAME_MAX 128 /* bytes; see kl_cron_add */
#define KL_CRON_WHEN_MAX 256

/* What to do about times that passed while no worker ran or the schedule was paused. */
typedef enum kl_catch_up {
    KL_CATCH_UP_UNSET, /* KL_CATCH_UP_ONE */
    KL_CATCH_UP_NONE,  /* nothing: go on with the next time; a time is missed when it is a minute late */
    KL_CATCH_UP_ONE,   /* one task for all of them, for the latest of these times */
    KL_CATCH_UP_ALL,   /* one for each, the earliest 1,000; the others are dropped */
} kl_catch_up;

/* When: minute hour day-of-month month day-of-week, each *, a list (1,15), ranges (mon-fri), steps (10-40/10, * too);
 * or @hourly, @daily, @weekly, @monthly, @yearly. Names (jan, mon) go in any case, and 7 is Sunday. When both days are
 * restricted, either will do; where one begins with *, with a step too, both must fit.
 *
 * Where clocks are changed: with some hours, a time that is stepped over fires at the first moment after the step, and
 * one that comes twice fires the first time only. With all 24 hours (hour *), it fires whenever the wall's clock shows
 * such a minute: every 15 minutes stays every 15 minutes. */
typedef struct kl_cron {
    size_t size;
    const char *name; /* letters, digits, '.', '_' and '-', beginning with a letter or digit */
    const char *when; /* up to KL_CRON_WHEN_MAX bytes */
    const char *zone; /* "Europe/Zurich"; NULL: UTC. Workers need it too: package tzdata */
    kl_catch_up catch_up;
    bool paused; /* whether it begins so; one that is there stays as it is (kl_cron_pause) */
    /* What is put; queue, partition, unique, delay, due time and job are not used. Its headers get two more:
     * keyline-schedule, the name, and keyline-tick, the time that it is put for: 2026-11-15T03:00:00Z */
    kl_put task;
    int64_t next_ms, last_ms; /* shown: when it fires next (0: never), when it fired last (0: never) */
} kl_cron;

/* Adds a schedule, or changes the one of that name; where its times stay the same, those that were missed are still
 * made up for, so a program may add its schedules each time it starts. What a schedule keeps must fit into a record
 * (256 KiB as JSON). KL_EINVAL: the sentence says which field and what is allowed, or which zone is not there.
 * KL_EBUSY: others change it all the time; and as from the store. Making the call again is safe. */
KL_API KL_MUST_USE kl_rc kl_cron_add(kl_queue *queue, const kl_cron *cron);

/* Schedules by name, behind `after` (NULL or "": from the first), at most max (1..10,000); what they point to lies in
 * the arena. KL_EDAMAGED: a record is no schedule, and the sentence names it. */
KL_API KL_MUST_USE kl_rc kl_cron_list(kl_queue *queue, const char *after, size_t max, kl_arena *arena,
                                      kl_cron *ret_crons, size_t *ret_count);

/* KL_ENOTFOUND: there is no schedule of that name. Others as for kl_cron_add. Times that pass while it is paused are
 * treated as catch_up says when it is resumed. Run puts its task now, beside its times (also when it is paused), and
 * once more if the call is made again; ret_id may be NULL. */
KL_API KL_MUST_USE kl_rc kl_cron_pause(kl_queue *queue, const char *name, bool paused);
KL_API KL_MUST_USE kl_rc kl_cron_run(kl_queue *queue, const char *name, kl_task_id *ret_id);
KL_API KL_MUST_USE kl_rc kl_cron_remove(kl_queue *queue, const char *name);

/* The first time after after_ms (0..KL_ID_MS_MAX) that the fields name, 0 when there is none within eight years. zone
 * NULL: UTC. KL_EINVAL: as for kl_cron_add. KL_EDAMAGED, KL_ESYSTEM: the zone's file cannot be used. KL_ENOMEM. */
KL_API KL_MUST_USE kl_rc kl_cron_next(const char *when, const char *zone, int64_t after_ms, int64_t *ret_ms);

#ifdef __cplusplus
}
#endif
#endif
