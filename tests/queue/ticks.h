/* ticks.h - what tests of schedules share: which ticks tasks were put for, and a clock to set. */
#ifndef TESTS_QUEUE_TICKS_H
#define TESTS_QUEUE_TICKS_H

#include "base/clock.h"
#include "queue/cron.h"
#include "queue/inside.h"
#include "queue/support.h"

#define MINUTE_MS INT64_C(60000)
#define HOUR_MS   (60 * MINUTE_MS)
#define DAY_MS    (24 * HOUR_MS)
#define START_MS  INT64_C(1767225600000) /* 2026-01-01T00:00:00Z, a Thursday */

enum { TICKS_MAX = 4096 };

/* The ticks that tasks were put for, in the order in which they were found. */
struct ticks {
    size_t count;
    int64_t at_ms[TICKS_MAX];
};

kl_bytes header_of(const kl_task_extra *extra, const char *name);
int64_t parse_tick(kl_bytes text); /* of the header; -1: it is none */

/* What waits; with `settle` it is done afterwards and kept nowhere. */
void take_ticks(kl_queue *queue, kl_store *store, bool settle, struct ticks *ticks);
size_t count_tick(const struct ticks *ticks, int64_t at_ms);

/* One task for each of these ticks waits in the queue, and no other. */
#define CHECK_TICKS(rig, queue, ...)                                                                                   \
    do {                                                                                                               \
        const int64_t ticks_[] = {__VA_ARGS__};                                                                        \
        check_ticks(__FILE__, __LINE__, rig, queue, ticks_, COUNT(ticks_));                                            \
    } while (0)
#define CHECK_NO_TICKS(rig, queue) check_ticks(__FILE__, __LINE__, rig, queue, NULL, 0)
void check_ticks(const char *file, int line, struct rig *rig, kl_queue *queue, const int64_t *expected_ms,
                 size_t count);

#define ADD(queue, ...) CHECK_INT(kl_cron_add(queue, &(kl_cron){.size = sizeof(kl_cron), __VA_ARGS__}), KL_OK)

static inline void set_clock(struct rig *rig, int64_t at_ms) { atomic_store(&rig->clock_ms, at_ms); }

/* Fires what is due, which must go well; when it is to be called next. */
int64_t fire(kl_queue *queue);
int64_t fire_at(struct rig *rig, kl_queue *queue, int64_t at_ms);

/* The only schedule of the queue. */
kl_cron show_cron(struct rig *rig, kl_queue *queue);

#endif
