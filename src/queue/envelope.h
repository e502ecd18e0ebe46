/* envelope.h - an envelope's repeat: what inside.h does not say of envelope.c. */
#ifndef KL_QUEUE_ENVELOPE_H
#define KL_QUEUE_ENVELOPE_H

#include "queue/inside.h"

/* What a repeated task has no more of. */
typedef enum kl__leaves {
    KL_LEAVES_NOTHING,
    KL_LEAVES_UNIQUE,
    KL_LEAVES_UNIQUE_AND_JOB, /* its run, and how long it is kept, too */
} kl__leaves;

/* The same envelope for a task that repeats another one: every field as it is, those of unknown numbers too, but what
 * it leaves, and the origin set. An envelope so full that the origin does not fit is left without. KL_EDAMAGED: no
 * envelope. */
kl_rc kl__envelope_repeat(kl_bytes bytes, const kl_task_id *origin, kl__leaves leaves, kl_arena *arena,
                          kl_bytes *ret_bytes);

#endif
