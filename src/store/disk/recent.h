/* recent.h - the last bytes of the journal, kept in memory: a task that is run soon after it came is not read from its
 * file.
 *
 * A ring over the last segments, filled before records are applied, and taken from the system page by page as it is
 * filled for the first time. Everything here is called with the state's mutex held, except open, close and fill.
 *
 * E1  What copy gives for a record that was applied is what was written. */
#ifndef KL_STORE_RECENT_H
#define KL_STORE_RECENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kl__recent kl__recent;

kl__recent *kl__recent_open(size_t size); /* of the ring, in bytes; NULL: no memory */
void kl__recent_close(kl__recent *recent);

/* Takes the place of the oldest bytes for the records of a frame that stands at `offset`, behind everything that was
 * claimed of this segment; and fills it, before the next claim and before anybody asks for those records: then no one
 * else is at these bytes, and the mutex is not needed. */
void kl__recent_claim(kl__recent *recent, uint64_t segment, uint64_t offset, size_t count);
void kl__recent_fill(kl__recent *recent, const void *bytes, size_t count);

/* Tells the processor to fetch what stands there, if it is here. */
void kl__recent_prefetch(const kl__recent *recent, uint64_t segment, uint64_t offset, size_t count);

/* Copies what stands there; false: it is no longer here, or never was. */
bool kl__recent_copy(const kl__recent *recent, uint64_t segment, uint64_t offset, void *ret_bytes, size_t count);

#endif
