/* lossy.h - a store that loses replies: an engine over another store that is open.
 *
 * A call that is chosen by chance fails with KL_EBUSY, whose class is KL_CLASS_RETRY: some after they were done, as
 * when a reply is lost on its way, and some without having been done, as when the request is. Whoever called cannot
 * tell which. With the same seed and the same calls of one thread, the same ones fail. */
#ifndef TESTS_STORE_LOSSY_H
#define TESTS_STORE_LOSSY_H

#include <stdatomic.h>
#include <stdbool.h>

#include "keyline/store.h"

#define LOSSY_RC KL_EBUSY

struct lossy {
    kl_engine engine;
    kl_store *inner;
    _Atomic uint64_t random;
    uint32_t replies_lost;  /* of 100 calls */
    uint32_t requests_lost; /* likewise */
    _Atomic bool down;      /* all requests are; may be changed while the store is used */
    bool tells;             /* of itself what is wrong with it (kl_engine.is_away) */
    _Atomic uint64_t lost_replies, lost_requests;
};

/* `lossy` and `inner` must outlive the store; closing it leaves `inner` open. */
kl_rc lossy_open(struct lossy *lossy, kl_store *inner, uint64_t seed, kl_store **ret_store);

#endif
