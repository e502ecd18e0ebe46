/* record.h - one record at a time: its name, reading it, writing it by compare-and-set.
 *
 * S5 of store.h: a put that finds its own value there counts as its repeat. Values that must be told apart therefore
 * carry something unique. A store that says KL_EBUSY is asked again a few times, after a little wait: that is safe for
 * the same reason, and a lost reply is no failed call then. */
#ifndef KL_QUEUE_RECORD_H
#define KL_QUEUE_RECORD_H

#include "keyline/store.h"
#include "queue/json.h"

enum { KL_RECORD_NAME_BYTES = KL_RECORD_NAME_MAX + 1 };

/* "KIND/QUEUE/SUFFIX", or "KIND/QUEUE" when suffix is NULL, written into the buffer with a terminator. What does not
 * fit into size is a defect of the caller, who has checked the parts. */
kl_bytes kl__record_name(char *buffer, size_t size, const char *kind, const char *queue, const char *suffix);

/* version 0: there is none. Name and value lie in the arena, the name with a zero byte behind and set in any case.
 */
kl_rc kl__record_get(kl_store *store, kl_bytes name, kl_arena *arena, kl_record *ret_record);

/* The same with its value parsed, to be freed; KL_ENOTFOUND (without a sentence of its own) when there is none. `what`
 * of the result lies in the arena. ret_record is also set when there is none. */
kl_rc kl__record_read(kl_store *store, kl_bytes name, kl_arena *arena, kl__json *ret_value, kl_record *ret_record);

/* Writes if the version is still this one, 0: if there is none. KL_ECONFLICT: it is not; read it and decide anew.
 * Others as from kl_store_put; making the call again is safe. ret_version may be NULL. */
kl_rc kl__record_put(kl_store *store, kl_bytes name, uint64_t version, kl_bytes value, int64_t expires_ms,
                     uint64_t *ret_version);

/* The same with an object, which stays the caller's; NULL gives KL_ENOMEM. */
kl_rc kl__record_write(kl_store *store, kl_bytes name, uint64_t version, const json_t *value, int64_t expires_ms,
                       uint64_t *ret_version);

/* Removes it if the version is still this one. KL_OK when it is gone already. */
kl_rc kl__record_remove(kl_store *store, kl_bytes name, uint64_t version);

/* Removes all records whose names begin with the prefix, whatever their versions. */
kl_rc kl__records_clear(kl_store *store, kl_bytes prefix);

#endif
