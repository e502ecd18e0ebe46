/* shared.h - a store that is far away, simulated. */
#ifndef BENCH_QUEUE_SHARED_H
#define BENCH_QUEUE_SHARED_H

#include "keyline/store.h"

/* The store itself; the caller closes it, last. Before any other is opened. */
kl_rc open_inner(kl_store **ret_store);

/* The same store, as somebody far away sees it. */
kl_rc open_far_store(kl_store **ret_store);

#endif
