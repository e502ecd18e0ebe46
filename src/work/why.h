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

/* For each task: KIND or NO_WORKER when that keeps it from being started, PARTITION when that keeps it or others of its
 * partition, READY when nothing is known of it, IDLE when it is finished or not due. Errors as from kl__owners_read. (task_why.c) */
KL_MUST_USE kl_rc kl__tasks_why(kl_queue *queue, const kl_found *found, size_t count, kl_why *ret_why);

#endif
