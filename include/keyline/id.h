/* id.h - task ids: UUIDs (version 8) that sort by time inside a shard.
 *
 *     shard (4L bits) | unix ms (44) | sequence (28 - 4L) | lane (24) | random (26)          L = shard_prefix_len
 *
 * These 122 bits fill the UUID from its first bit to its last, stepping over the 4 version and 2 variant bits that
 * RFC 9562 reserves. So the first L hex digits are the shard, and inside a shard byte order is time order. Lane 0
 * means that the task has no key. Milliseconds fit until 2527-06-23.
 *
 * Where the shard ends and the time begins is not written in an id: reading those takes the layout that it was made
 * with. Everything here is safe from any thread, except kl_idgen_close. */
#ifndef KEYLINE_ID_H
#define KEYLINE_ID_H

#include <stddef.h>
#include <stdint.h>

#include "keyline/bytes.h"
#include "keyline/error.h"
#include "keyline/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KL_ID_TEXT_BYTES   37 /* 36 characters and a terminator */
#define KL_ID_MS_MAX       ((INT64_C(1) << 44) - 1)
#define KL_ID_RANDOM_MAX   ((UINT32_C(1) << 26) - 1)
#define KL_IDGEN_BATCH_MAX 65536 /* with 4 digits of shard, 16 ms worth of sequence numbers */

/* A value, in the byte order of its text. */
typedef struct kl_task_id {
    uint8_t bytes[16];
} kl_task_id;

/* What an id says. */
typedef struct kl_id_parts {
    uint32_t shard;
    uint32_t sequence; /* below 2^(28 - 4L): orders ids of one shard and millisecond; it counts nothing */
    int64_t ms;        /* since 1970, 0..KL_ID_MS_MAX */
    uint32_t lane;     /* 0..KL_LANE_MAX */
    uint32_t random;   /* 0..KL_ID_RANDOM_MAX */
} kl_id_parts;

/* Puts an id together; programs that make new ids use a generator. KL_EINVAL: a part is too big for its place. */
KL_API KL_MUST_USE kl_rc kl_id_pack(const kl_layout *layout, const kl_id_parts *parts, kl_task_id *ret_id);

/* Takes an id apart. Any id is accepted, and with another layout than its own the answers are meaningless. */
KL_API kl_id_parts kl_id_unpack(const kl_layout *layout, const kl_task_id *id);
KL_API uint32_t kl_id_shard(const kl_layout *layout, const kl_task_id *id);
KL_API int64_t kl_id_ms(const kl_layout *layout, const kl_task_id *id);
KL_API uint32_t kl_id_sequence(const kl_layout *layout, const kl_task_id *id);
KL_API uint32_t kl_id_lane(const kl_task_id *id);

/* Below, equal to or above 0, like memcmp: by shard, then by age. */
KL_API int kl_id_compare(const kl_task_id *a, const kl_task_id *b);

/* The 36 characters of the id, lower case, with a terminator. */
KL_API void kl_id_print(const kl_task_id *id, char ret_text[KL_ID_TEXT_BYTES]);

/* Reads exactly 36 characters, in lower or upper case. KL_EINVAL: another length, a hyphen or hex digit out of place, a
 * UUID of another version or variant. */
KL_API KL_MUST_USE kl_rc kl_id_parse(kl_bytes text, kl_task_id *ret_id);

/* Makes ids for one queue. Inside a shard every id is greater than all that the generator made before, whatever the
 * clock does: while it stands still or runs behind, ids go on counting from the last one. A clock that was wrongly far
 * ahead therefore leaves its mark until the generator is opened again.
 *
 * Two generators, in one process or in two, agree on an id only by chance: that takes the same shard, millisecond,
 * lane, sequence and random bits. A child made by fork() must open its own. */
typedef struct kl_idgen kl_idgen;

/* Wall clock in milliseconds since 1970. Called for each id, possibly by many threads at once. Times before 1970 count
 * as 1970. */
typedef int64_t kl_now_ms_fn(void *ctx);

typedef struct kl_idgen_opts {
    size_t size;
    kl_now_ms_fn *now_ms; /* the system's wall clock, a few milliseconds coarse */
    void *now_ctx;
    uint64_t seed; /* of the random bits; 0: one from the kernel */
} kl_idgen_opts;

/* NULL options: all defaults. The layout is copied. KL_EINVAL: opts->size is not set. KL_ENOMEM. */
KL_API KL_MUST_USE kl_rc kl_idgen_open(const kl_layout *layout, const kl_idgen_opts *opts, kl_idgen **ret_idgen);

/* No other call may be under way or follow. NULL is fine. */
KL_API void kl_idgen_close(kl_idgen *idgen);

/* The next id. KL_EINVAL: no such shard or lane. KL_ESYSTEM: the clock stands past KL_ID_MS_MAX; set it and call
 * again. */
KL_API KL_MUST_USE kl_rc kl_idgen_next(kl_idgen *idgen, uint32_t shard, uint32_t lane, kl_task_id *ret_id);

/* Many ids of one shard for the price of one look at the clock, in ascending order and with no other id of the shard
 * between them. lanes has count entries; NULL: no task has a key. KL_EINVAL: as above, or count is over
 * KL_IDGEN_BATCH_MAX. KL_ESYSTEM: as above. On failure nothing is written. */
KL_API KL_MUST_USE kl_rc kl_idgen_batch(kl_idgen *idgen, uint32_t shard, const uint32_t *lanes, size_t count,
                                        kl_task_id *ret_ids);

#ifdef __cplusplus
}
#endif
#endif
