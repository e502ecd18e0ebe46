/* wire.c - see wire.h: numbers, items and frames, written and read. */
#include "store/socket/wire.h"

#include <errno.h>
#include <sys/socket.h>

enum { ROOM_MIN = 4 << 10, ROOM_KEPT = 256 << 10 };

/* ---- Writing ---- */

static void grow(kl__out *out, size_t needed)
{
    size_t room = out->room ? out->room : ROOM_MIN;
    while (room < needed)
        room *= 2;
    uint8_t *bytes = kl__alloc(room);
    if (!bytes) {
        out->failed = true;
        return;
    }
    kl__put_raw(bytes, out->bytes, out->length);
    kl__free(out->bytes);
    out->bytes = bytes;
    out->room = room;
}

uint8_t *kl__out_room(kl__out *out, size_t size)
{
    size_t needed = out->length + size;
    if (KL_UNLIKELY(out->failed || needed > KL_FRAME_HEAD + KL_FRAME_BYTES_MAX)) {
        out->failed = true;
        return NULL;
    }
    if (KL_UNLIKELY(needed > out->room))
        grow(out, needed);
    if (KL_UNLIKELY(out->failed))
        return NULL;
    uint8_t *at = out->bytes + out->length;
    out->length = needed;
    return at;
}

void kl__out_free(kl__out *out)
{
    kl__free(out->bytes);
    *out = (kl__out){0};
}

/* A large frame's memory is not kept for the small ones that follow. */
void kl__out_request(kl__out *out, kl__wire_call call, uint64_t number)
{
    if (out->room > ROOM_KEPT)
        kl__out_free(out);
    out->length = 0;
    out->failed = false;
    uint8_t *at = kl__out_room(out, KL_FRAME_HEAD);
    if (!at)
        return;
    at = KL_PUT(at, uint32_t, 0);
    at = KL_PUT(at, uint8_t, KL_WIRE_VERSION);
    at = KL_PUT(at, uint8_t, call);
    at = KL_PUT(at, uint16_t, 0);
    KL_PUT(at, uint64_t, number);
}

void kl__out_answer(kl__out *out, kl__wire_call call, uint64_t number)
{
    kl__out_request(out, call, number);
    kl__out_room(out, KL_ANSWER_HEAD);
}

void kl__out_finish(kl__out *out, kl_rc rc, int state, const char *sentence)
{
    size_t length = rc == KL_OK ? 0 : strlen(sentence);
    if (state != KL_ANSWERED && !out->failed)
        out->length = KL_FRAME_HEAD + KL_ANSWER_HEAD;
    uint8_t *behind = kl__out_room(out, length);
    if (!behind)
        return;
    kl__put_raw(behind, sentence, length);
    uint8_t *at = out->bytes + KL_FRAME_HEAD;
    at = KL_PUT(at, int32_t, rc);
    at = KL_PUT(at, uint8_t, state);
    at = KL_PUT(at, uint8_t, 0);
    KL_PUT(at, uint16_t, length);
}

void kl__out_u8(kl__out *out, uint8_t value)
{
    uint8_t *at = kl__out_room(out, sizeof value);
    if (at)
        *at = value;
}

void kl__out_u32(kl__out *out, uint32_t value)
{
    uint8_t *at = kl__out_room(out, sizeof value);
    if (at)
        KL_PUT(at, uint32_t, value);
}

void kl__out_u64(kl__out *out, uint64_t value)
{
    uint8_t *at = kl__out_room(out, sizeof value);
    if (at)
        KL_PUT(at, uint64_t, value);
}

void kl__out_bytes(kl__out *out, kl_bytes bytes)
{
    uint8_t *at = kl__out_room(out, sizeof(uint32_t) + bytes.len);
    if (!at)
        return;
    at = KL_PUT(at, uint32_t, bytes.len);
    kl__put_raw(at, bytes.data, bytes.len);
}

void kl__out_id(kl__out *out, const kl_task_id *id)
{
    static const kl_task_id none;
    uint8_t *at = kl__out_room(out, sizeof *id);
    if (at)
        kl__put_raw(at, id ? id : &none, sizeof *id);
}

static uint8_t *put_place(uint8_t *at, kl_place place)
{
    at = KL_PUT(at, uint32_t, place.partition);
    return KL_PUT(at, uint32_t, place.shard);
}

void kl__out_place(kl__out *out, kl_place place)
{
    uint8_t *at = kl__out_room(out, KL_WIRE_PLACE);
    if (at)
        put_place(at, place);
}

void kl__out_entry(kl__out *out, const kl_entry *entry)
{
    const kl_bytes *const parts[] = {&entry->key, &entry->kind, &entry->headers, &entry->payload};
    size_t sum = entry->key.len + entry->kind.len + entry->headers.len + entry->payload.len;
    uint8_t *at = kl__out_room(out, KL_WIRE_ENTRY + sum);
    if (!at)
        return;
    at = put_place(at, entry->place);
    at = kl__put_raw(at, &entry->id, sizeof entry->id);
    at = kl__put_raw(at, &entry->job, sizeof entry->job);
    at = KL_PUT(at, int64_t, entry->due_ms);
    at = KL_PUT(at, int16_t, entry->priority);
    at = KL_PUT(at, uint16_t, entry->group);
    for (int i = 0; i < 4; i++)
        at = KL_PUT(at, uint32_t, parts[i]->len);
    for (int i = 0; i < 4; i++)
        at = kl__put_raw(at, parts[i]->data, parts[i]->len);
}

void kl__out_stub(kl__out *out, const kl_stub *stub)
{
    uint8_t *at = kl__out_room(out, KL_WIRE_STUB);
    if (!at)
        return;
    at = kl__put_raw(at, &stub->id, sizeof stub->id);
    at = KL_PUT(at, uint64_t, stub->position);
    at = KL_PUT(at, uint64_t, stub->key_hash);
    at = KL_PUT(at, int64_t, stub->due_ms);
    at = KL_PUT(at, uint32_t, stub->bytes);
    at = KL_PUT(at, uint16_t, stub->attempts);
    at = KL_PUT(at, uint16_t, stub->group);
    at = KL_PUT(at, int8_t, stub->priority);
    KL_PUT(at, uint8_t, 0);
}

void kl__out_ref(kl__out *out, const kl_ref *ref)
{
    uint8_t *at = kl__out_room(out, KL_WIRE_REF);
    if (!at)
        return;
    at = put_place(at, ref->place);
    at = kl__put_raw(at, &ref->id, sizeof ref->id);
    KL_PUT(at, uint64_t, ref->position);
}

void kl__out_settled(kl__out *out, const kl_settled *settled)
{
    uint8_t *at = kl__out_room(out, KL_WIRE_SETTLED + settled->error.len + settled->result.len);
    if (!at)
        return;
    at = kl__put_raw(at, &settled->id, sizeof settled->id);
    at = KL_PUT(at, uint64_t, settled->position);
    at = KL_PUT(at, uint32_t, settled->outcome);
    at = KL_PUT(at, uint32_t, settled->attempts);
    at = KL_PUT(at, int64_t, settled->due_ms);
    at = KL_PUT(at, int64_t, settled->keep_ms);
    at = KL_PUT(at, uint32_t, settled->error.len);
    at = KL_PUT(at, uint32_t, settled->result.len);
    at = kl__put_raw(at, settled->error.data, settled->error.len);
    kl__put_raw(at, settled->result.data, settled->result.len);
}

void kl__out_task(kl__out *out, const kl_task *task)
{
    kl__out_entry(out, &task->entry);
    uint8_t *at = kl__out_room(out, 32);
    if (!at)
        return;
    at = KL_PUT(at, uint32_t, task->state);
    at = KL_PUT(at, uint32_t, task->attempts);
    at = KL_PUT(at, uint64_t, task->position);
    at = KL_PUT(at, int64_t, task->not_before_ms);
    KL_PUT(at, int64_t, task->finished_ms);
    kl__out_bytes(out, task->error);
    kl__out_bytes(out, task->result);
}

void kl__out_record(kl__out *out, const kl_record *record, bool with_name)
{
    kl__out_u64(out, record->version);
    kl__out_u64(out, (uint64_t)record->expires_ms);
    kl__out_bytes(out, with_name ? record->name : (kl_bytes){NULL, 0});
    kl__out_bytes(out, record->value);
}

/* ---- Reading ---- */

#define TAKE(in, value)                                                                                                \
    do {                                                                                                               \
        const uint8_t *at_ = kl__in_raw(in, sizeof(value));                                                            \
        if (at_)                                                                                                       \
            memcpy(&(value), at_, sizeof(value));                                                                      \
    } while (0)

/* The same from bytes that are known to be there. */
#define NEXT(at, value) (memcpy(&(value), at, sizeof(value)), (at) += sizeof(value))

uint8_t kl__in_u8(kl__in *in)
{
    uint8_t value = 0;
    TAKE(in, value);
    return value;
}

uint32_t kl__in_u32(kl__in *in)
{
    uint32_t value = 0;
    TAKE(in, value);
    return value;
}

uint64_t kl__in_u64(kl__in *in)
{
    uint64_t value = 0;
    TAKE(in, value);
    return value;
}

bool kl__in_flag(kl__in *in)
{
    uint8_t value = kl__in_u8(in);
    in->bad |= value > 1;
    return value == 1;
}

/* Only codes that this library knows: a caller decides by their class. */
kl_rc kl__in_rc(kl__in *in)
{
    kl_rc rc = (kl_rc)(int32_t)kl__in_u32(in);
    switch (rc) {
#define RC_CASE(code, value, text, class_) case code:
        KL_RC_TABLE(RC_CASE)
#undef RC_CASE
        return rc;
    }
    in->bad = true;
    return KL_ESYSTEM;
}

/* No bytes are none: what is empty here may be tested for by its pointer there. */
static kl_bytes take_bytes(kl__in *in, size_t length, size_t max)
{
    in->bad |= length > max;
    const uint8_t *at = length ? kl__in_raw(in, length) : NULL;
    return at ? (kl_bytes){at, length} : (kl_bytes){NULL, 0};
}

kl_bytes kl__in_bytes(kl__in *in, size_t max) { return take_bytes(in, kl__in_u32(in), max); }

size_t kl__in_count(kl__in *in, size_t max, size_t item_bytes)
{
    size_t count = kl__in_u32(in);
    if (count > max || count > kl__in_left(in) / item_bytes)
        in->bad = true;
    return in->bad ? 0 : count;
}

kl_task_id kl__in_id(kl__in *in)
{
    kl_task_id id = {{0}};
    TAKE(in, id);
    return id;
}

kl_place kl__in_place(kl__in *in)
{
    kl_place place = {0};
    place.partition = kl__in_u32(in);
    place.shard = kl__in_u32(in);
    return place;
}

kl_entry kl__in_entry(kl__in *in)
{
    kl_entry entry = {0};
    uint32_t lengths[4];
    int16_t priority;
    const uint8_t *at = kl__in_raw(in, KL_WIRE_ENTRY);
    if (!at)
        return entry;
    NEXT(at, entry.place.partition);
    NEXT(at, entry.place.shard);
    NEXT(at, entry.id);
    NEXT(at, entry.job);
    NEXT(at, entry.due_ms);
    NEXT(at, priority);
    NEXT(at, entry.group);
    NEXT(at, lengths);
    entry.priority = priority;
    entry.key = take_bytes(in, lengths[0], KL_KEY_BYTES_MAX);
    entry.kind = take_bytes(in, lengths[1], KL_KIND_BYTES_MAX);
    entry.headers = take_bytes(in, lengths[2], KL_HEADERS_BYTES_MAX);
    entry.payload = take_bytes(in, lengths[3], KL_PAYLOAD_BYTES_MAX);
    return entry;
}

kl_stub kl__in_stub(kl__in *in)
{
    kl_stub stub = {.id = {{0}}};
    const uint8_t *at = kl__in_raw(in, KL_WIRE_STUB);
    if (!at)
        return stub;
    NEXT(at, stub.id);
    NEXT(at, stub.position);
    NEXT(at, stub.key_hash);
    NEXT(at, stub.due_ms);
    NEXT(at, stub.bytes);
    NEXT(at, stub.attempts);
    NEXT(at, stub.group);
    NEXT(at, stub.priority);
    return stub;
}

kl_ref kl__in_ref(kl__in *in)
{
    kl_ref ref = {0};
    ref.place = kl__in_place(in);
    ref.id = kl__in_id(in);
    ref.position = kl__in_u64(in);
    return ref;
}

kl_settled kl__in_settled(kl__in *in)
{
    kl_settled settled = {.position = 0};
    uint32_t outcome, error, result;
    const uint8_t *at = kl__in_raw(in, KL_WIRE_SETTLED);
    if (!at)
        return settled;
    NEXT(at, settled.id);
    NEXT(at, settled.position);
    NEXT(at, outcome);
    NEXT(at, settled.attempts);
    NEXT(at, settled.due_ms);
    NEXT(at, settled.keep_ms);
    NEXT(at, error);
    NEXT(at, result);
    in->bad |= outcome > KL_CANCELLED;
    settled.outcome = (kl_outcome)outcome;
    settled.error = take_bytes(in, error, KL_ERROR_BYTES_MAX);
    settled.result = take_bytes(in, result, KL_RESULT_BYTES_MAX);
    return settled;
}

kl_task kl__in_task(kl__in *in)
{
    kl_task task = {.entry = kl__in_entry(in)};
    uint32_t state = kl__in_u32(in);
    in->bad |= state > KL_TASK_CANCELLED;
    task.state = (kl_task_state)state;
    task.attempts = kl__in_u32(in);
    task.position = kl__in_u64(in);
    task.not_before_ms = (int64_t)kl__in_u64(in);
    task.finished_ms = (int64_t)kl__in_u64(in);
    task.error = kl__in_bytes(in, KL_ERROR_BYTES_MAX);
    task.result = kl__in_bytes(in, KL_RESULT_BYTES_MAX);
    return task;
}

kl_record kl__in_record(kl__in *in)
{
    kl_record record = {.version = kl__in_u64(in)};
    record.expires_ms = (int64_t)kl__in_u64(in);
    record.name = kl__in_bytes(in, KL_RECORD_NAME_MAX);
    record.value = kl__in_bytes(in, KL_RECORD_BYTES_MAX);
    return record;
}

/* ---- Frames ---- */

kl__in kl__frame_body(const kl__frame *frame)
{
    return (kl__in){.at = frame->bytes + KL_FRAME_HEAD, .end = frame->bytes + frame->length};
}

bool kl__frame_answer(const kl__frame *frame, kl__answer *ret_answer)
{
    kl__answer answer = {.body = kl__frame_body(frame)};
    answer.rc = kl__in_rc(&answer.body);
    answer.state = kl__in_u8(&answer.body);
    answer.body.bad |= kl__in_u8(&answer.body) != 0 || answer.state < KL_ANSWERED || answer.state > KL_ANSWER_NOT;
    uint16_t length = 0;
    TAKE(&answer.body, length);
    if (answer.body.bad || length > kl__in_left(&answer.body))
        return false;
    answer.body.end -= length;
    answer.sentence = (kl_bytes){answer.body.end, length};
    *ret_answer = answer;
    return answer.state == KL_ANSWERED || (answer.rc != KL_OK && answer.body.at == answer.body.end);
}

void kl__frame_free(kl__frame *frame)
{
    kl__free(frame->bytes);
    *frame = (kl__frame){0};
}

int kl__frame_send(int fd, kl__out *out)
{
    if (out->failed)
        return -ENOMEM;
    KL_PUT(out->bytes, uint32_t, out->length - KL_FRAME_HEAD);
    for (size_t done = 0; done < out->length;) {
        ssize_t sent = send(fd, out->bytes + done, out->length - done, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            return -errno;
        done += sent > 0 ? (size_t)sent : 0;
    }
    return 0;
}

static int make_room(kl__frame *frame, size_t room)
{
    uint8_t *bytes = kl__alloc(room);
    if (!bytes)
        return -ENOMEM;
    kl__put_raw(bytes, frame->bytes, frame->length);
    kl__free(frame->bytes);
    frame->bytes = bytes;
    frame->room = room;
    return 0;
}

/* How many bytes the frame will have, as far as is known. 0: it is none. */
static size_t whole_length(const kl__frame *frame)
{
    if (frame->length < KL_FRAME_HEAD)
        return KL_FRAME_HEAD;
    uint32_t body;
    uint16_t zero;
    memcpy(&body, frame->bytes, sizeof body);
    memcpy(&zero, frame->bytes + 6, sizeof zero);
    return body > KL_FRAME_BYTES_MAX || zero != 0 ? 0 : KL_FRAME_HEAD + body;
}

/* Memory grows with what has come, not with what was announced (W1). */
int kl__frame_receive_more(int fd, kl__frame *frame)
{
    for (;;) {
        size_t whole = whole_length(frame);
        if (whole == 0 || frame->length > whole)
            return -EPROTO;
        if (frame->length == whole)
            return 0;
        int error = frame->length < frame->room ? 0 : make_room(frame, frame->room ? 2 * frame->room : ROOM_MIN);
        if (error)
            return error;
        ssize_t got = recv(fd, frame->bytes + frame->length, frame->room - frame->length, 0);
        if (got == 0)
            return frame->length ? -EPROTO : -ENOTCONN;
        if (got < 0 && errno != EINTR)
            return -errno;
        frame->length += got > 0 ? (size_t)got : 0;
    }
}

int kl__frame_receive(int fd, kl__frame *frame)
{
    if (frame->room > ROOM_KEPT)
        kl__frame_free(frame);
    frame->length = 0;
    return kl__frame_receive_more(fd, frame);
}
