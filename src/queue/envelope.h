/* envelope.h - an envelope's repeat: what inside.h does not say of envelope.c. */
#ifndef KL_QUEUE_ENVELOPE_H
#define KL_QUEUE_ENVELOPE_H

#include "queue/inside.h"

/* The same envelope for a task that repeats another one: every field as it is, those of unknown numbers too, and the
 * origin set. An envelope so full that the origin does not fit is left without. KL_EDAMAGED: no envelope. */
kl_rc kl__envelope_repeat(kl_bytes bytes, const kl_task_id *origin, kl_arena *arena, kl_bytes *ret_bytes);

#endif
