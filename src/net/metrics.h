/* metrics.h - what the server counts, and /metrics: OpenMetrics text.
 *
 * Counters of the data path are relaxed additions to memory that is found once per queue (kl__metrics_queue): no mutex,
 * no allocation. What others count anyway (claims, pumps) is handed over as it stands when somebody asks (`refresh`).
 * What waits is asked of the store when the text is made, at most once a second for each queue.
 *
 * M1  Every queue of the store has all its series from its first moment, at 0.
 * M2  Nothing is ever labelled with a key, a task, or anything else that producers choose.
 * M3  Counters never go back while the process lives: claims that are closed leave their counts behind
 *     (kl__metrics_leave).
 *
 * Every function is safe from any thread, but open and close. NULL is fine for a queue or the metrics: nothing is
 * counted. */
#ifndef KL_NET_METRICS_H
#define KL_NET_METRICS_H

#include "keyline/queue.h"
#include "net/http.h"
#include "work/claims.h"

typedef struct kl__metrics kl__metrics;
typedef struct kl__queue_metrics kl__queue_metrics; /* of one queue; lives as long as the metrics */

typedef struct kl__metrics_opts {
    const char *version;
    void (*refresh)(void *ctx); /* hands over counts of claims with kl__metrics_claims; NULL: nobody to ask */
    void *ctx;
} kl__metrics_opts;

KL_MUST_USE kl_rc kl__metrics_open(const kl__metrics_opts *opts, kl__metrics **ret_metrics); /* KL_ENOMEM */
void kl__metrics_close(kl__metrics *metrics);                                                /* NULL is fine */

/* The counters of a queue, made at the first call. NULL: out of memory. Keep it with the open queue. */
kl__queue_metrics *kl__metrics_queue(kl__metrics *metrics, const char *queue);

/* ---- The data path ---- */

/* One put that is durable: `ns` is how long it took from the request to that. Duplicates among the results do not
 * count; NULL: there are none. `of` tells the partitions of keys; NULL: it has one. A task without a key counts for
 * partition "any" where there are several. As below, what takes time counts once for each partition that it has tasks
 * of. */
void kl__metrics_put(kl__queue_metrics *queue, kl_queue *of, const kl_put *tasks, const kl_put_result *results,
                     size_t count, int64_t ns);

/* One claim that was answered with tasks, and how long that took from the request. */
void kl__metrics_claimed(kl__queue_metrics *queue, const kl__claimed *tasks, size_t count, int64_t ns);

/* One task that was finished, failed or released, and for how long it had been given out. */
void kl__metrics_ran(kl__queue_metrics *queue, uint32_t partition, int64_t ns);

/* One batch of outcomes that is durable, and how long that took from the request. */
void kl__metrics_settled(kl__queue_metrics *queue, const kl__claim_say *says, size_t count, int64_t ns);

/* One task that was settled, and how. As kl__claims_opts.ended; ctx is the kl__queue_metrics. */
void kl__metrics_ended(void *queue, uint32_t partition, kl_outcome outcome);

/* One lease that ran out. As kl__claims_opts.lapsed; ctx is the kl__queue_metrics. */
void kl__metrics_lapsed(void *queue, uint32_t partition);

/* One finish or the like that was refused because its token was stale. `of` says which partitions there are; of what
 * the token says is none of them it counts for "any". */
void kl__metrics_stale(kl__queue_metrics *queue, kl_queue *of, uint32_t partition);

/* The counts of a queue's claims, as they stand: replaces what was said before. leave: they end with these (M3). */
void kl__metrics_claims(kl__queue_metrics *queue, const kl__claims_counts *counts);
void kl__metrics_leave(kl__queue_metrics *queue, const kl__claims_counts *counts);

/* Keys that are blocked, as kl__claims_blocked_keys tells them (ctx is the kl__queue_metrics); together they are what
 * is shown once all are told. Both under one mutex of the caller's. leave: there are none. */
void kl__metrics_blocked(void *queue, uint32_t partition, uint64_t keys);
void kl__metrics_blocked_told(kl__queue_metrics *queue);

/* A request that was answered; route NULL: none was found. `ns` from its complete head to the answer. */
struct kl__route;
void kl__metrics_request(kl__metrics *metrics, const struct kl__route *route, int status, int64_t ns);

/* ---- Reading ---- */

/* What happened to tasks of a queue in this process. */
typedef struct kl__queue_totals {
    uint64_t put, claimed, done, retried, dead, cancelled, expired, stale;
} kl__queue_totals;

void kl__metrics_refresh(kl__metrics *metrics); /* asks `refresh` */

/* Tasks a second of a queue in this process, over the last minute or since it was first heard of. To be sampled every
 * few seconds; what was refreshed last is what counts. */
typedef struct kl__queue_rates {
    double put, claimed, settled,
        failed; /* settled: done, dead or cancelled; failed: attempts, of dead ones the last, too */
    int64_t over_ms;
} kl__queue_rates;

void kl__metrics_sample(kl__metrics *metrics);
kl__queue_rates kl__metrics_rates(kl__queue_metrics *queue);

/* Every queue of which something was counted since the last call, with how much. One caller at a time; `visit` must not
 * call anything here. */
typedef void kl__metrics_visit_fn(void *ctx, const char *queue, const kl__queue_totals *more);
void kl__metrics_changes(kl__metrics *metrics, kl__metrics_visit_fn *visit, void *ctx);

/* All metrics as OpenMetrics text, in the arena. scope: only queues that it includes (tokens.h). May block: asks the
 * store. A queue that cannot be looked at is left out of what waits, and counted in keyline_scrape_errors. KL_ENOMEM,
 * and the store's errors when not even the queues can be listed. */
KL_MUST_USE kl_rc kl__metrics_text(kl__metrics *metrics, kl_store *store, const kl__http *http, const char *scope,
                                   kl_arena *arena, kl_bytes *ret_text);

#endif
