/* metrics_inside.h - what metrics.c (counting) and metrics_text.c (telling) share. */
#ifndef KL_NET_METRICS_INSIDE_H
#define KL_NET_METRICS_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "net/metrics.h"
#include "queue/inside.h"

enum {
    KL_METRIC_BUCKETS = 13, /* and one for all above */
    KL_METRIC_CLASSES = 5,  /* of statuses: 1xx..5xx */
    KL_METRIC_QUEUE_ROOMS = 256,
    KL_METRIC_ANY = KL_PARTITIONS_MAX, /* the partition of tasks without a key, and of tokens that are none */
    KL_METRIC_OUTCOMES = 4,
    KL_METRIC_SAMPLES = 16, /* of totals, for rates: more than a minute of the keeper's rounds */
};

typedef struct kl__histogram {
    _Atomic(uint64_t) buckets[KL_METRIC_BUCKETS + 1];
    _Atomic(uint64_t) sum_ns;
} kl__histogram;

/* Bounds in nanoseconds: what a server does itself, and what tasks take. */
extern const int64_t kl__metric_quick_ns[KL_METRIC_BUCKETS], kl__metric_slow_ns[KL_METRIC_BUCKETS];

/* Series of histograms that a queue has. */
enum { KL_METRIC_COMMIT, KL_METRIC_CLAIM, KL_METRIC_SETTLE, KL_METRIC_RUN, KL_METRIC_HISTOGRAMS };

/* Of one partition. */
typedef struct kl__part_metrics {
    _Atomic(uint64_t) put, lapsed, stale;
    _Atomic(uint64_t) blocked, blocking;            /* keys, now; and while they are being told */
    _Atomic(uint64_t) outcomes[KL_METRIC_OUTCOMES]; /* by kl_outcome */
    kl__histogram histograms[KL_METRIC_HISTOGRAMS];
} kl__part_metrics;

typedef _Atomic(kl__part_metrics *) kl__part_slot;

/* What the store said of a queue, and when. */
typedef struct kl__looked {
    int64_t at_ns;
    kl_layout layout; /* with as many partitions as its widest one */
    uint64_t draining;
    bool paused;
    kl_counts parts[];
} kl__looked;

struct kl__queue_metrics {
    struct kl__queue_metrics *next; /* in its room */
    kl__metrics *metrics;
    kl__part_metrics first;         /* partition 0 */
    _Atomic(kl__part_slot *) parts; /* the others, by partition, the last being "any"; NULL: there were none yet */
    kl__claims_counts now, left; /* of the claims there are, and of those that have ended; under the metrics' mutex */
    kl__queue_totals told;       /* what kl__metrics_changes has told; likewise, as all below */
    struct {
        int64_t at_ns;
        kl__queue_totals totals;
    } samples[KL_METRIC_SAMPLES]; /* a ring; the first is of its beginning */
    size_t sample_count;          /* ever */
    kl__looked *looked;           /* NULL: not yet */
    char name[KL_QUEUE_NAME_MAX + 1];
};

typedef struct kl__route_metrics {
    _Atomic(uint64_t) classes[KL_METRIC_CLASSES];
    kl__histogram duration;
} kl__route_metrics;

struct kl__metrics {
    kl__metrics_opts opts;
    int64_t began_ms;
    pthread_mutex_t mutex; /* guards the rooms, and counts of claims */
    kl__queue_metrics *rooms[KL_METRIC_QUEUE_ROOMS];
    kl__route_metrics *routes; /* by their place in kl__routes, and one for no route */
};

static inline uint64_t kl__metric_load(const _Atomic(uint64_t) *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* A partition's, if something was counted of it; else NULL. */
const kl__part_metrics *kl__queue_metrics_part(const kl__queue_metrics *queue, uint32_t partition);

/* What claims have counted, past ones included; gauges are those of now. */
kl__claims_counts kl__queue_metrics_claims(kl__queue_metrics *queue);

#endif
