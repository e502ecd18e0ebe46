/* wire.h - the store contract as bytes: what goes over the socket inside a data directory.
 *
 * A connection carries one call at a time: a frame there, a frame back. All numbers are little-endian.
 *
 *     frame      u32 length of the body (up to KL_FRAME_BYTES_MAX), u8 version (KL_WIRE_VERSION), u8 call, u16 zero,
 *                u64 number, body; the answer has the call and the number of the request
 *     answer     the body begins with i32 rc, u8 state (KL_ANSWER_*), u8 zero, u16 length of the sentence; then what
 *                the call answers when the state is KL_ANSWERED; then the sentence of rc
 *
 *     bytes      u32 length, the bytes              id       16 bytes
 *     place      u32 partition, u32 shard           flag     u8, 0 or 1
 *     entry      place, id, id job, i64 due_ms, i16 priority, u16 group, u32 length of key, of kind, of headers, of
 *                payload, the bytes of the four
 *     stub       id, u64 position, u64 key_hash, i64 due_ms, u32 bytes, u16 attempts, u16 group, i8 priority,
 *                u8 zero
 *     ref        place, id, u64 position
 *     settled    id, u64 position, u32 outcome, u32 attempts, i64 due_ms, i64 keep_ms, u32 length of error, of
 *                result, the bytes of the two
 *     task       entry, u32 state, u32 attempts, u64 position, i64 not_before_ms, i64 finished_ms, bytes error,
 *                bytes result
 *     record     u64 version, i64 expires_ms, bytes name (get: none, as it was asked for), bytes value
 *
 *     call         request                                                  answer
 *      0 hello     u32 magic                                                u32 can, u32 pid, u32 KL_BATCH_MAX,
 *                                                                           u32 KL_BATCH_BYTES_MAX, u64 identity
 *      1 now                                                                i64 ms
 *      2 partition bytes name, u32 shard_prefix_len                         u32 partition
 *      3 append    flag, 16 bytes token, u32 count, entries
 *      4 scan      u32 count, {place, i32 line, i64 until_ms, u32 max,      {u32 count, stubs} of each
 *                  flag, stub after}
 *      5 read      u32 count, refs                                          u32 count, tasks; also with KL_EDAMAGED
 *      6 settle    u32 batches, u32 tasks of all,                           i32 rc of each; whatever the call's is
 *                  {place, u64 epoch, u32 count, settled}
 *      7 fence     u32 count, {place, u64 epoch, flag seal}                 i32 rc of each; whatever the call's is
 *      8 counts    place, flag, id job                                      u64 ready, due, retry, u32 priorities,
 *                                                                           i64 oldest_id_ms, u64 done, dead,
 *                                                                           cancelled, flag at_least,
 *                                                                           flag finished_behind
 *      9 wait      u32 partition, i64 wait_ms, u64 seen                     u64 seen
 *     10 results   place, id job, flag, id after, u32 max                   u32 count, flag more, tasks
 *     11 find      u32 partition, u32 state, id job, i64 from_ms,           u32 count, flag more, tasks
 *                  i64 until_ms, u32 max, flag, {place, id, u64 position,
 *                  i64 finished_ms} after, bytes key, kind, words
 *     12 forget    place, u32 count, ids
 *     13 get       u32 count, bytes of each                                 u32 count, records: as many as fit
 *     14 put       u32 count, {u64 version, i64 expires_ms, flag remove,    {i32 rc, u64 new_version} of each; whatever
 *                  bytes name, bytes value}                                 the call's is
 *     15 list      bytes prefix, bytes after, u32 max                       u32 count, flag more, records
 *
 * W1  Nothing is read beyond a frame, whatever it says, and nothing is taken on trust: a count is compared with the
 *     bytes that are there before memory is taken for it, so a frame makes its reader take at most
 *     KL_ITEM_GROWTH_MAX times its own size, and what W3 names.
 * W2  A frame that does not read to its end exactly is refused whole.
 * W3  Answers that have no limit of their own are given in parts: the server asks its store for KL_PART_ITEMS at a time
 *     and stops behind KL_BATCH_BYTES_MAX; the client goes on where it stopped.
 * W4  Any change of this table is another KL_WIRE_VERSION. Both sides refuse another than their own. */
#ifndef KL_STORE_WIRE_H
#define KL_STORE_WIRE_H

#include <string.h>

#include "base/base.h"
#include "keyline/store.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are copied as they are");

enum { KL_WIRE_VERSION = 3, KL_WIRE_MAGIC = 0x534c4b21, KL_FRAME_HEAD = 16, KL_ANSWER_HEAD = 8 };

/* The largest frame: 65,536 entries of 68 bytes and their 8 MiB are 12.3 MiB; 65,536 tasks that are read, at 108 bytes,
 * with 8 MiB are 14.8 MiB; parts (W3) have 8 MiB and the one that passed it (2.2 MiB); KL_STUBS_MAX stubs of 50 bytes
 * are 12.5 MiB. */
#define KL_FRAME_BYTES_MAX (24u << 20)

/* Of one frame's scans together. A client asks for more in several frames. */
#define KL_STUBS_MAX ((size_t)4 * KL_BATCH_MAX)

/* Finished tasks, at up to 2.2 MiB, or records, at up to 0.25, that the server has in memory at once for a call. */
enum { KL_PART_ITEMS = 64 };

/* The item that grows most in memory: a name of one byte, 5 bytes here, is a kl_bytes and a kl_record there. */
enum { KL_ITEM_GROWTH_MAX = 16 };

typedef enum kl__wire_call {
    KL_WIRE_HELLO,
    KL_WIRE_NOW,
    KL_WIRE_PARTITION,
    KL_WIRE_APPEND,
    KL_WIRE_SCAN,
    KL_WIRE_READ,
    KL_WIRE_SETTLE,
    KL_WIRE_FENCE,
    KL_WIRE_COUNTS,
    KL_WIRE_WAIT,
    KL_WIRE_RESULTS,
    KL_WIRE_FIND,
    KL_WIRE_FORGET,
    KL_WIRE_GET,
    KL_WIRE_PUT,
    KL_WIRE_LIST,
    KL_WIRE_CALLS
} kl__wire_call;

enum {
    KL_ANSWERED = 1,    /* the call was made, and its answer follows */
    KL_ANSWER_NONE = 2, /* the call failed, and has no more to say than rc */
    KL_ANSWER_NOT = 3,  /* the call was not made: the store is being closed */
};

/* Bytes of an item that is all zero. */
enum {
    KL_WIRE_PLACE = 8,
    KL_WIRE_ID = 16,
    KL_WIRE_ENTRY = 68,
    KL_WIRE_STUB = 50,
    KL_WIRE_REF = 32,
    KL_WIRE_SETTLED = 56,
    KL_WIRE_TASK = KL_WIRE_ENTRY + 40,
    KL_WIRE_RECORD = 24,
};

/* ---- Writing ---- */

/* A frame that is being written. Zeroed is empty. It is used again and again by one thread at a time. */
typedef struct kl__out {
    uint8_t *bytes;
    size_t length, room;
    bool failed; /* out of memory, or longer than a frame may be: nothing more is written */
} kl__out;

/* `size` more bytes; NULL when it has failed. */
uint8_t *kl__out_room(kl__out *out, size_t size);
void kl__out_free(kl__out *out);

/* Begins a frame; what was there is gone. An answer's head is filled in at the end. */
void kl__out_request(kl__out *out, kl__wire_call call, uint64_t number);
void kl__out_answer(kl__out *out, kl__wire_call call, uint64_t number);

/* Ends an answer: fills in its head, and puts the sentence behind what was written, or behind nothing when it is not
 * KL_ANSWERED. */
void kl__out_finish(kl__out *out, kl_rc rc, int state, const char *sentence);

static inline uint8_t *kl__put_raw(uint8_t *at, const void *bytes, size_t count)
{
    if (count)
        memcpy(at, bytes, count);
    return at + count;
}

#define KL_PUT(at, type, value) kl__put_raw(at, &(type){(type)(value)}, sizeof(type))

void kl__out_u8(kl__out *out, uint8_t value);
void kl__out_u32(kl__out *out, uint32_t value);
void kl__out_u64(kl__out *out, uint64_t value);
void kl__out_bytes(kl__out *out, kl_bytes bytes);
void kl__out_id(kl__out *out, const kl_task_id *id); /* NULL: all zero */
void kl__out_place(kl__out *out, kl_place place);
void kl__out_entry(kl__out *out, const kl_entry *entry);
void kl__out_stub(kl__out *out, const kl_stub *stub);
void kl__out_ref(kl__out *out, const kl_ref *ref);
void kl__out_settled(kl__out *out, const kl_settled *settled);
void kl__out_task(kl__out *out, const kl_task *task);
void kl__out_record(kl__out *out, const kl_record *record, bool with_name);

/* ---- Reading ---- */

/* What is left of a body. Once something did not fit, everything reads as zero. Bytes that are read lie in the
 * frame. */
typedef struct kl__in {
    const uint8_t *at, *end;
    bool bad;
} kl__in;

static inline size_t kl__in_left(const kl__in *in) { return (size_t)(in->end - in->at); }

/* `size` bytes, or NULL. */
static inline const uint8_t *kl__in_raw(kl__in *in, size_t size)
{
    if (KL_UNLIKELY(in->bad || kl__in_left(in) < size)) {
        in->bad = true;
        return NULL;
    }
    const uint8_t *at = in->at;
    in->at += size;
    return at;
}

/* Everything was read, and everything was there (W2). */
static inline bool kl__in_done(const kl__in *in) { return !in->bad && in->at == in->end; }

uint8_t kl__in_u8(kl__in *in);
uint32_t kl__in_u32(kl__in *in);
uint64_t kl__in_u64(kl__in *in);
bool kl__in_flag(kl__in *in);
kl_bytes kl__in_bytes(kl__in *in, size_t max);
kl_rc kl__in_rc(kl__in *in);

/* How many items follow, each of at least item_bytes: never more than max, or than there are bytes for (W1). */
size_t kl__in_count(kl__in *in, size_t max, size_t item_bytes);

kl_task_id kl__in_id(kl__in *in);
kl_place kl__in_place(kl__in *in);
kl_entry kl__in_entry(kl__in *in);
kl_stub kl__in_stub(kl__in *in);
kl_ref kl__in_ref(kl__in *in);
kl_settled kl__in_settled(kl__in *in);
kl_task kl__in_task(kl__in *in);
kl_record kl__in_record(kl__in *in);

/* ---- Frames ---- */

/* A frame that was received. Zeroed is empty. */
typedef struct kl__frame {
    uint8_t *bytes;
    size_t length, room;
} kl__frame;

static inline uint8_t kl__frame_version(const kl__frame *frame) { return frame->bytes[4]; }
static inline uint8_t kl__frame_call(const kl__frame *frame) { return frame->bytes[5]; }

static inline uint64_t kl__frame_number(const kl__frame *frame)
{
    uint64_t number;
    memcpy(&number, frame->bytes + 8, sizeof number);
    return number;
}

kl__in kl__frame_body(const kl__frame *frame);

/* Takes an answer's head off. False: it is none. */
typedef struct kl__answer {
    kl_rc rc;
    int state;
    kl_bytes sentence;
    kl__in body;
} kl__answer;

bool kl__frame_answer(const kl__frame *frame, kl__answer *ret_answer);

void kl__frame_free(kl__frame *frame);

/* Sends a whole frame. 0, or a negative errno: then the other side has not had all of it. */
int kl__frame_send(int fd, kl__out *out);

/* Receives a whole frame and nothing behind it. 0, or a negative errno. -ENOTCONN: the other side has gone, and has
 * sent nothing more. -EPROTO: what came is no frame. -ENOMEM. */
int kl__frame_receive(int fd, kl__frame *frame);

/* The rest of a frame of which kl__frame_receive had some, or nothing, when it came to the socket's limit (-EAGAIN). */
int kl__frame_receive_more(int fd, kl__frame *frame);

#endif
