/* why.h - how the state of a key is called. */
#ifndef KL_WORK_WHY_H
#define KL_WORK_WHY_H

#include "keyline/control.h"

/* One or two words: "retrying", "no worker". */
static inline const char *kl__why_name(kl_why why)
{
    static const char *const names[] = {"idle",   "ready",        "running", "retrying", "delayed", "paused",
                                        "halted", "queue paused", "kind",    "layout",   "rate",    "no worker"};
    return names[why <= KL_WHY_NO_WORKER ? why : 0];
}

/* The same where only the store was asked: it does not know what runs. */
static inline const char *kl__why_listed(kl_why why) { return why == KL_WHY_READY ? "waiting" : kl__why_name(why); }

#endif
