/* recover.h - reads the journal into the state when a store is opened. */
#ifndef KL_STORE_RECOVER_H
#define KL_STORE_RECOVER_H

#include "store/disk/segments.h"
#include "store/disk/state.h"

/* Where the journal goes on. */
typedef struct kl__recovered {
    uint64_t last_frame;
    uint64_t last_sequence;
    int64_t clock_ms; /* of the last frame */
    bool was_closed;  /* in order */
} kl__recovered;

/* Fills state and segments from the files in segments->dir, which may be empty. KL_EDAMAGED: something in the middle
 * cannot be read; nothing was changed on disk. KL_ESYSTEM, KL_ENOMEM. */
kl_rc kl__recover(kl__segments *segments, kl__state *state, kl__recovered *ret_recovered);

/* The numbers of the segments in a directory, ascending; free with kl__free. */
kl_rc kl__recover_list(kl__vfs *vfs, const char *dir, uint64_t **ret_numbers, size_t *ret_count);

#endif
