/* ask.h - requests of operators: left in the store, carried out and answered by the owner of the shard.
 *
 *     control.c -> ask_send.c: record ask/PARTITION/SHARD/NONCE ... the owner's next tick -> ask.c: carries it out,
 *     writes the answer into the record -> ask_send.c finds it there
 *
 *     asked     {"verb": "cancel", "id": "..."}            {"verb": "drain", "key": "customer-7", "dead": true}
 *     answered  {"answered": true, "rc": 0, "error": "", ...what the verb tells}
 *
 *     begun     {"verb": "skip", "key": "customer-7", "begun": true, "id": "..."}: cancel, end, skip and drain, which
 *               would find nothing to end when they are carried out again because the answer could not be written
 *
 * When no worker owns the shard, ask_send.c owns it for a moment itself: with a pump that runs nothing. */
#ifndef KL_ASK_H
#define KL_ASK_H

#include "queue/json.h"
#include "queue/look.h"
#include "work/pump.h"

enum { KL_ASK_EXPIRES_MS = 60000 };

#define KL_OPERATOR_NAME "operator" /* of a worker that only stands in */

/* verb, and what it takes beside
 *     cancel  id         -> running
 *     again   id         -> running (or: tried now, with all its attempts)
 *     peek    id         -> running
 *     end     id         -> running (or: ended without a trace, for it has been moved)
 *     skip    key        -> id
 *     wake    key        (its first task is tried now, with all its attempts)
 *     drain   key dead   -> count begun
 *     purge              -> count
 *     forget  id         -> count (the waiting tasks of this job, and what comes of its running ones, without a trace)
 *     show    key        -> why waiting at_least until head attempts head_error running_ms percent progress */
kl_rc kl__asks_carry_out(kl__pump *pump); /* the mutex is held; left around store calls */

json_t *kl__ask_for(const char *verb); /* a request, to be completed; NULL: no memory */

/* Sends a request to the owner of a shard and waits for the answer. Takes `ask` over. The answer is to be freed; its
 * `rc` has been turned into this function's. KL_ETIMEDOUT: no answer within KL_CONTROL_WAIT_MS. */
kl_rc kl__ask_send(kl_queue *queue, kl__source source, uint32_t shard, json_t *ask, kl_arena *arena,
                   kl__json *ret_answer);

#endif
