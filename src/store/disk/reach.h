/* reach.h - how far the journal had come at least: the file `reached` in the data directory (format.h).
 *
 * A journal whose last segments are gone looks like one that never had them. So it is written down beside it which
 * frame is on the disk: some time after a segment came into use (compact.c), and when the store is closed. What is
 * written down was synced before, so no loss of power makes the journal end earlier; and when it does, the store is not
 * opened.
 *
 * It is a help, and nothing depends on it: without it, or when it is damaged, the journal is believed. */
#ifndef KL_STORE_REACH_H
#define KL_STORE_REACH_H

#include "base/base.h"
#include "store/disk/format.h"
#include "store/disk/vfs.h"

typedef struct kl__reach {
    uint64_t segment; /* the frame is in this one, or one behind it */
    uint64_t frame;   /* 0: nothing is known */
} kl__reach;

/* Of the journal with that random number, in the data directory `path`. 0 or a negative errno. */
int kl__reach_read(kl__vfs *vfs, const char *path, uint64_t journal, kl__reach *ret_reach);

/* Durable on return; what stood there before counts until then. 0 or a negative errno. */
int kl__reach_write(kl__vfs *vfs, const char *path, uint64_t journal, const kl__reach *reach);

#endif
