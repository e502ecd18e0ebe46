/* quick.h - calls of a store that are not of the public contract: quick answers that some engines have. */
#ifndef KL_STORE_QUICK_H
#define KL_STORE_QUICK_H

#include "keyline/store.h"

/* In the place of a partition's number, when kl_store_partition has failed with KL_EBUSY: calls that name it fail so,
 * too. */
#define KL_PARTITION_AWAY UINT32_MAX

/* The engine tells which lines are in use without counting what stands in them (kl_engine.lines). */
bool kl__store_has_lines(const kl_store *store);

/* As kl_counts.priorities, but a line that has become empty may be among them. Only where kl__store_has_lines. Counted
 * and traced as a call of kl_store_counts; errors as there. */
KL_MUST_USE kl_rc kl__store_lines(kl_store *store, uint32_t partition, uint32_t *ret_priorities);

/* How many tasks of the queue lie in the store's inbox and can be taken in; 0 where it has none. Counted and traced as
 * a call of kl_store_counts. KL_EBUSY, KL_ESYSTEM: as from kl_store_counts. */
KL_MUST_USE kl_rc kl__store_left(kl_store *store, const char *queue, uint64_t *ret_count);

/* How many tasks of the queue in the inbox were refused when they were to be taken in; and of the first why, and what
 * to do: in the arena, "" where there is none. Counted, traced and failing likewise; and KL_ENOMEM. */
KL_MUST_USE kl_rc kl__store_refused(kl_store *store, const char *queue, kl_arena *arena, uint64_t *ret_count,
                                    const char **ret_why);

/* As kl_store_now, and *ret_news: a number that is another one when a record was written or removed since, and not
 * quietly; it may change a moment before that can be read. 0: the engine does not tell, so whoever wants to know reads.
 * Counted and traced as a call of kl_store_now; errors as there. */
KL_MUST_USE kl_rc kl__store_pulse(kl_store *store, int64_t *ret_ms, uint64_t *ret_news);

/* The store's server does not answer, and the store tells its log of it (kl_engine.is_away). Not counted. */
bool kl__store_is_away(const kl_store *store);

/* Calls of all threads that have waited for the store's server for so long fail with KL_EBUSY (kl_engine.cut). Not
 * counted. */
void kl__store_cut(const kl_store *store, int64_t wait_ms);

/* The store is hasty from now on (kl_store_opts). Not counted. KL_ESYSTEM: no thread is to be had. */
KL_MUST_USE kl_rc kl__store_hasten(const kl_store *store);

/* Tells this store from others, for as long as it is the same, whoever holds it: partition numbers and positions of one
 * mean nothing in another. 0: the store does not tell. Not counted. */
uint64_t kl__store_identity(const kl_store *store);

#endif
