/* why.h - how the state of a key is called, and what keeps single tasks from being started. */
#ifndef KL_WORK_WHY_H
#define KL_WORK_WHY_H

#include "keyline/control.h"

/* One or two words: "retrying", "no worker". */
static inline const char *kl__why_name(kl_why why)
{
    static const char *const names[] = {"idle",   "ready",     "running",      "retrying", "delayed",
                                        "paused", "halted",    "queue paused", "kind",     "layout",
                                        "rate",   "no worker", "partition"};
    return names[why <= KL_WHY_PARTITION ? why : 0];
}

/* The same where only the store was asked: it does not know what runs. */
static inline const char *kl__why_listed(kl_why why) { return why == KL_WHY_READY ? "waiting" : kl__why_name(why); }

/* task_why.c. What the store's records tell; no worker is asked.
 *
 * For each task what keeps it from being started: PAUSED, HALTED, RETRYING, QUEUE_PAUSED, DELAYED, NO_WORKER or KIND;
 * PARTITION when that keeps it or others of its partition; READY when nothing is known of it, and it may be running;
 * IDLE when it is finished. Errors as from kl__owners_read. */
KL_MUST_USE kl_rc kl__tasks_why(kl_queue *queue, const kl_found *found, size_t count, kl_why *ret_why);

/* The first of the key's tasks that stand before this one, in its line or in older layouts; all zero: none, or the task
 * is finished, has no key, or was tried and so is the first. */
KL_MUST_USE kl_rc kl__task_behind(kl_queue *queue, const kl_found *found, kl_task_id *ret_first);

#endif
