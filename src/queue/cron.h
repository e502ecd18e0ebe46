/* cron.h - what the files about schedules share, and what workers call. */
#ifndef KL_QUEUE_CRON_H
#define KL_QUEUE_CRON_H

#include "base/zone.h"
#include "keyline/cron.h"
#include "keyline/task.h"

/* --- cron_fields.c: when --- */

/* Which times the fields name: bit n stands for minute n, hour n, ... */
typedef struct kl__cron_fields {
    uint64_t minutes;
    uint32_t hours;
    uint32_t days;     /* of the month, bits 1..31 */
    uint32_t months;   /* bits 1..12 */
    uint32_t weekdays; /* bits 0..6, Sunday first */
    bool day_any;      /* the field begins with an asterisk, */
    bool weekday_any;  /* and so this one: then a day must fit both fields, else either */
} kl__cron_fields;

/* KL_EINVAL: the sentence says which field and what is allowed. */
KL_MUST_USE kl_rc kl__cron_parse(const char *when, kl__cron_fields *ret_fields);

/* The first time after after_ms (not below 0), 0 when there is none within eight years. */
int64_t kl__cron_next(const kl__cron_fields *fields, const kl__zone *zone, int64_t after_ms);

/* The last time in (after_ms, until_ms], 0 when there is none. */
int64_t kl__cron_last(const kl__cron_fields *fields, const kl__zone *zone, int64_t after_ms, int64_t until_ms);

/* --- cron_record.c: a schedule in its record --- */

/* A tick that is being fired: it is in the record before its task is in a line, and until it surely is. */
typedef struct kl__firing {
    int64_t tick_ms;  /* 0: none is */
    uint64_t layout;  /* where its task goes, */
    kl_task_id id;    /* and under which id */
    int64_t since_ms; /* when it was begun */
    int64_t nonce;    /* of who began it */
} kl__firing;

typedef struct kl__schedule {
    kl_cron cron;     /* texts and bytes lie in an arena; zone and catch_up are set */
    uint64_t version; /* of the record; 0: it is not written yet */
    int64_t seen_ns;  /* when this version was read or written here, on the monotonic clock */
    int64_t behind;   /* ticks made up for in a row by KL_CATCH_UP_ALL */
    kl__firing firing;
} kl__schedule;

enum {
    KL_CRON_HEADERS = 2,       /* that a task gets from its schedule */
    KL_CRON_SPARE_BYTES = 512, /* of a record are left for the tick that is being fired, and for later times */
};

/* Of what a caller passes; not of `when` and `zone`. KL_EINVAL: the sentence says what is allowed. */
KL_MUST_USE kl_rc kl__cron_check(const kl_cron *cron);
KL_MUST_USE kl_rc kl__cron_check_name(const char *name);

/* Bytes in the arena. Equal schedules make equal bytes. */
KL_MUST_USE kl_rc kl__schedule_encode(const kl__schedule *schedule, kl_arena *arena, kl_bytes *ret_value);

/* prefix_len: of what stands before the schedule's name in the record's. KL_EDAMAGED names the record. */
KL_MUST_USE kl_rc kl__schedule_decode(const kl_record *record, size_t prefix_len, kl_arena *arena,
                                      kl__schedule *ret_schedule);

/* --- cron.c: once each --- */

enum {
    KL_CRON_LOOK_MAX = 10000,     /* schedules of a queue that are looked at */
    KL_CRON_CATCH_UP_MAX = 1000,  /* times that KL_CATCH_UP_ALL makes up for; those behind them are dropped */
    KL_CRON_FIRE_MAX = 256,       /* tasks put by one call of kl__cron_fire; the rest by the next */
    KL_CRON_LATE_MS = 60000,      /* KL_CATCH_UP_NONE: what is later than this is passed over */
    KL_CRON_HELP_MS = 5000,       /* a firing so old is finished by others */
    KL_CRON_LOOK_AGAIN_MS = 1000, /* when somebody else is just firing what is due; and how long a record is believed */
};

/* Fires what is due in the queue on the store's clock, and finishes what a worker that died was firing. Any number of
 * workers may call it at once, and each should once at its start. *ret_next_ms: when to call it again at the latest, on
 * the store's clock; KL_NEVER: nothing is scheduled (look again now and then: others may add schedules). Returns the
 * first failure after all other schedules had their turn; *ret_next_ms is set then too, unless listing failed. */
KL_MUST_USE kl_rc kl__cron_fire(kl_queue *queue, int64_t *ret_next_ms);

/* One schedule, as kl_cron_list shows it. KL_EINVAL: no name can be so; KL_ENOTFOUND; KL_EDAMAGED; the store's. */
KL_MUST_USE kl_rc kl__cron_read(kl_queue *queue, const char *name, kl_arena *arena, kl_cron *ret_cron);

#endif
