/* format.h - the journal on disk, byte by byte. Version 1; little-endian throughout.
 *
 * A data directory holds
 *
 *      journal/0000000000000001.seg ...   segments, numbered without gaps; the last one or two are not full yet
 *      journal/spare                      a segment to be used again; what it holds means nothing
 *      journal/spare2                     one that is being made while nobody knows what the spare is on the disk
 *      reached                            how far the journal had come at least (reach.h)
 *      history.db                         what is finished and kept (history.h)
 *      reserve                            room for opening the store on a full disk (reserve.h)
 *      quarantine/                        what `keyline doctor --repair` could not read and moved aside
 *      lock                               the pid of the process that has it open
 *
 * A segment is a header, then frames one behind another, up to the first place where no valid frame stands. Segments
 * are written full once, with zeros, and then used again: what stands behind the last frame is left over from before.
 *
 *      segment header                               frame header
 *       0  8  "KLSEGMNT"                              0  4  "KLF1"
 *       8  4  version, 1                              4  4  CRC-32C of bytes 8..63
 *      12  4  CRC-32C of bytes 8..11 and 16..63       8  8  number of the segment it was written for
 *      16  8  number of this segment                 16  8  number of the frame, counting from 1 without gaps
 *      24  8  random number of the journal           24  8  random number of the journal
 *      32  8  bytes of this segment*                 32  8  the store's clock, ms since 1970
 *      40 24  zero                                   40  8  sum of the CRCs of its records
 *                                                    48  4  bytes of its records
 *                                                    52  4  how many records
 *                                                    56  8  sequence number of its first record, moved ones not counted
 *
 * * when it was prepared. It is never shorter; it is longer when a batch would not have fitted.
 *
 * The first 16 bytes are read alike in every version: a header whose CRC is wrong is damaged, and is not taken for one
 * of a version to come.
 *
 * A frame is what one commit wrote, and counts whole or not at all: its header's CRC, each record's CRC and the sum of
 * them must be right. The sum binds the records to the header, so that a record left over from before cannot pass for
 * one of this frame. Frame n + 1 is written only after frame n was synced; so a bad frame with a good one of a higher
 * number behind it is damage, and a bad frame with nothing behind it is the torn end of the last write.
 *
 * A record begins with these 32 bytes, and is as long as a multiple of 8, filled up with zeros:
 *
 *       0  4  CRC-32C of bytes 4..          24  1  type
 *       4  4  bytes of this record          25  1  flags
 *       8  8  sequence number               26  1  \ as the type says
 *      16  8  epoch, where one applies;     27  1  /
 *             of an ENTRY its group; else 0 28  2  partition
 *                                           30  2  shard
 *
 * ENTRY, a task                            SETTLE, what came of tasks of a shard
 *      16  8  group, up to 65,535
 *      26  1  priority, signed                   32  4  how many tasks
 *      27  1  bytes of its kind                  36  4  zero
 *      32 16  id                                 40     each task: 24 bytes, then what its numbers say,
 *      48  8  key's hash; 0: no key                     filled up to a multiple of 8
 *      56  2  bytes of its key                         0 16  id
 *      58  2  bytes of its headers                    16  1  outcome: 0 done, 1 retry, 2 dead, 3 cancelled
 *      60  4  bytes of its payload                    17  1  flags: 1 = RETRY with a time, 2 = kept
 *      64     8 due time        (flag 1)              18  2  attempts
 *            16 job             (flag 2)              20  4  bytes of the result
 *             8 attempts, 2; zero, 6 (flag 4: tried)  24     8 not before       (flag 1)
 *             8 not before      (flag 4)                     8 kept until, ms   (flag 2)
 *            then key, kind, headers, payload                2 bytes of the error, 6 zero  (flag 2)
 *      Moved, it has the sequence number                     then error, result (flag 2)
 *      of its first writing. Flag 16: its key,
 *      kind, headers, payload and job were
 *      damaged before it was moved, and none of
 *      them stands here.
 *
 * FENCE        the shard's epoch is the record's, or higher. Flag 1: it is sealed as well; then the epoch may be 0.
 *
 * PARTITION    26: shard_prefix_len; 32: 4 number, 4 zero; then the name up to the first zero.
 *
 * TOKEN        32: 16 token, of the append whose entries stand behind it.
 *
 * WRITE        a record of store.h. 32: 8 version; 40: 8 expires; 48: 2 bytes of its name, 2 zero, 4 bytes of its
 *              value; 56: name, value. Flag 1: removed.
 *
 * NOTE         epoch: how many transactions history.db had by then. It has lost some if it has fewer when it is opened.
 *              26: 6 number of the first segment that was needed by then; those before it may be gone, and no other. 0:
 *              not known.
 *
 * CLOSE        the store was closed in order: everything before it is whole.
 *
 * Flag 8 of any type: moved, that is written again because the segment where it stood was dropped.
 *
 * The file `reached` has two of these marks, at bytes 0 and 4096, of which the one with the higher frame counts. The
 * journal it names had that frame on the disk when it was written: a journal that ends before it has lost its end.
 *
 *       0  8  "KLREACHD"                             24  8  number of the segment it stands in, or one before that
 *       8  4  version, 1                             32  8  number of the frame
 *      12  4  CRC-32C of bytes 8..11 and 16..63      40 24  zero
 *      16  8  random number of the journal
 *
 * Records are facts, not requests: whether a settle came too late, a version was another or a token known was decided
 * before it was written. So the journal can be read from any segment on: the first frame of each names the partitions,
 * fences and seals, and what older segments still had to say was written again, moved, before they were dropped. */
#ifndef KL_STORE_FORMAT_H
#define KL_STORE_FORMAT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/base.h"
#include "base/crc32c.h"
#include "keyline/store.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the journal's structs are laid over its bytes, which are little-endian"
#endif

enum { KL_FORMAT_VERSION = 1, KL_SEGMENT_HEADER = 64, KL_FRAME_HEADER = 64 };

#define KL_SEGMENT_BYTES_MAX (UINT64_C(1) << 30) /* no frame ends behind this */

#define KL_SEGMENT_MAGIC     "KLSEGMNT"
#define KL_FRAME_MAGIC       UINT32_C(0x31464c4b) /* "KLF1" */

typedef struct kl__segment_header {
    char magic[8];
    uint32_t version;
    uint32_t crc;
    uint64_t number;
    uint64_t journal;
    uint64_t bytes;
    uint64_t zero[3];
} kl__segment_header;
_Static_assert(sizeof(kl__segment_header) == KL_SEGMENT_HEADER, "the format says so");

typedef struct kl__frame {
    uint32_t magic;
    uint32_t crc;
    uint64_t segment;
    uint64_t number;
    uint64_t journal;
    int64_t now_ms;
    uint64_t sum;
    uint32_t bytes;
    uint32_t records;
    uint64_t sequence;
} kl__frame;
_Static_assert(sizeof(kl__frame) == KL_FRAME_HEADER, "the format says so");

typedef enum kl__record_type {
    KL_RECORD_ENTRY = 1,
    KL_RECORD_SETTLE,
    KL_RECORD_FENCE,
    KL_RECORD_PARTITION,
    KL_RECORD_TOKEN,
    KL_RECORD_WRITE,
    KL_RECORD_CLOSE,
    KL_RECORD_NOTE,
    KL_RECORD_TYPES,
} kl__record_type;

enum { KL_ENTRY_DUE = 1, KL_ENTRY_JOB = 2, KL_ENTRY_TRIED = 4, KL_RECORD_MOVED = 8, KL_WRITE_REMOVE = 1 };
enum { KL_ENTRY_LOST = 16 };
enum { KL_FENCE_SEAL = 1 };
enum { KL_SETTLED_DUE = 1, KL_SETTLED_KEPT = 2 };

typedef struct kl__record_header {
    uint32_t crc;
    uint32_t bytes;
    uint64_t sequence;
    uint64_t epoch; /* of an entry, its group */
    uint8_t type;
    uint8_t flags;
    uint8_t small[2];
    uint16_t partition;
    uint16_t shard;
} kl__record_header;
_Static_assert(sizeof(kl__record_header) == 32 && offsetof(kl__record_header, small) == 26, "the format says so");

static inline const kl__record_header *kl__record_next(const kl__record_header *record)
{
    return (const kl__record_header *)(const void *)((const char *)record + record->bytes);
}

static inline uint64_t kl__note_first(const kl__record_header *note)
{
    return note->small[0] | (uint64_t)note->small[1] << 8 | (uint64_t)note->partition << 16 |
           (uint64_t)note->shard << 32;
}

typedef struct kl__entry_record {
    kl__record_header header; /* small: priority, kind_bytes */
    uint8_t id[16];
    uint64_t key_hash;
    uint16_t key_bytes;
    uint16_t headers_bytes;
    uint32_t payload_bytes;
} kl__entry_record;
_Static_assert(sizeof(kl__entry_record) == 64, "the format says so");

typedef struct kl__settle_record {
    kl__record_header header;
    uint32_t count;
    uint32_t zero;
} kl__settle_record;
_Static_assert(sizeof(kl__settle_record) == 40, "the format says so");

typedef struct kl__settled_item {
    uint8_t id[16];
    uint8_t outcome;
    uint8_t flags;
    uint16_t attempts;
    uint32_t result_bytes;
} kl__settled_item;
_Static_assert(sizeof(kl__settled_item) == 24, "the format says so");

typedef struct kl__partition_record {
    kl__record_header header; /* small: shard_prefix_len */
    uint32_t number;
    uint32_t zero;
} kl__partition_record;
_Static_assert(sizeof(kl__partition_record) == 40, "the format says so");

typedef struct kl__token_record {
    kl__record_header header;
    uint8_t token[16];
} kl__token_record;
_Static_assert(sizeof(kl__token_record) == 48, "the format says so");

typedef struct kl__write_record {
    kl__record_header header;
    uint64_t version;
    int64_t expires_ms;
    uint16_t name_bytes;
    uint16_t zero;
    uint32_t value_bytes;
} kl__write_record;
_Static_assert(sizeof(kl__write_record) == 56, "the format says so");

enum { KL_REACH_BYTES = 4096 }; /* from one mark to the other */

#define KL_REACH_MAGIC "KLREACHD"

typedef struct kl__reach_mark {
    char magic[8];
    uint32_t version;
    uint32_t crc;
    uint64_t journal;
    uint64_t segment;
    uint64_t frame;
    uint64_t zero[3];
} kl__reach_mark;
_Static_assert(sizeof(kl__reach_mark) == 64, "the format says so");

/* A place in the journal. */
typedef struct kl__where {
    uint64_t segment;
    uint64_t offset;
} kl__where;

/* A priority is one signed byte. */
static inline int kl__entry_priority(const kl__entry_record *entry) { return (entry->header.small[0] ^ 0x80) - 0x80; }

/* What the contract allows has a place. */
#define KL_FITS(type, number) _Static_assert((type)(number) == (number), #number " fits")
KL_FITS(uint8_t, KL_KIND_BYTES_MAX);
KL_FITS(uint16_t, KL_KEY_BYTES_MAX);
KL_FITS(uint16_t, KL_HEADERS_BYTES_MAX);
KL_FITS(uint16_t, KL_ERROR_BYTES_MAX);
KL_FITS(uint16_t, KL_RECORD_NAME_MAX);
KL_FITS(uint16_t, KL_ATTEMPTS_MAX);
KL_FITS(uint16_t, KL_SHARDS_MAX - 1);
_Static_assert(KL_CANCELLED == 3, "outcomes are numbered as in task.h");

static inline size_t kl__round8(size_t bytes) { return (bytes + 7) & ~(size_t)7; }

/* An item of a SETTLE, taken apart. */
typedef struct kl__settled {
    const kl__settled_item *item;
    int64_t not_before_ms, until_ms; /* 0: it has none */
    kl_bytes error, result;
} kl__settled;

/* Reads the item at `at`, which is a multiple of 8, and returns its bytes; 0: it does not end within `room`. */
static inline size_t kl__settled_read(const void *at, size_t room, kl__settled *ret_settled)
{
    const kl__settled_item *item = at;
    const char *more = (const char *)(item + 1);
    if (room < sizeof *item)
        return 0;
    bool is_due = item->flags & KL_SETTLED_DUE, is_kept = item->flags & KL_SETTLED_KEPT;
    size_t bytes = sizeof *item + (is_due ? 8 : 0) + (is_kept ? 16 : 0);
    if (room < bytes)
        return 0;
    *ret_settled = (kl__settled){.item = item};
    if (is_due) {
        memcpy(&ret_settled->not_before_ms, more, 8);
        more += 8;
    }
    if (!is_kept)
        return bytes;
    uint16_t error_bytes;
    memcpy(&ret_settled->until_ms, more, 8);
    memcpy(&error_bytes, more + 8, sizeof error_bytes);
    ret_settled->error = (kl_bytes){more + 16, error_bytes};
    ret_settled->result = (kl_bytes){more + 16 + error_bytes, item->result_bytes};
    bytes = kl__round8(bytes + error_bytes + item->result_bytes);
    return bytes <= room ? bytes : 0;
}

/* The record's checksum, over everything but itself. */
static inline uint32_t kl__record_crc(const kl__record_header *record)
{
    return kl__crc32c(0, (const char *)record + 4, record->bytes - 4);
}

static inline uint32_t kl__frame_crc(const kl__frame *frame)
{
    return kl__crc32c(0, (const char *)frame + 8, sizeof *frame - 8);
}

static inline uint32_t kl__reach_crc(const kl__reach_mark *mark)
{
    return kl__crc32c(kl__crc32c(0, &mark->version, sizeof mark->version), &mark->journal,
                      sizeof *mark - offsetof(kl__reach_mark, journal));
}

static inline uint32_t kl__segment_crc(const kl__segment_header *header)
{
    return kl__crc32c(kl__crc32c(0, &header->version, sizeof header->version), &header->number,
                      sizeof *header - offsetof(kl__segment_header, number));
}

#endif
