/* envelope.c - what a task carries beside its entry: attempts, headers, tags and the like, as bytes in entry.headers.
 *
 * From: put.c, dead.c.  To: look.c, and whoever runs tasks.
 *
 * An envelope is a row of fields, in any order. A field:
 *
 *     offset  size   what
 *          0     1   number, from the table below; 0 is none
 *          1   1..3  length n of the value: LEB128, seven bits a byte, the least first; no more bytes than it takes
 *          .     n   value
 *
 *     number  value
 *          1  attempts_max: LEB128
 *          2  timeout_ms: LEB128
 *          3  unique
 *          4  group
 *          5  traceparent
 *          6  a header, one field for each, in order: LEB128 length of its name, name, value
 *          7  a tag, one field for each, in order
 *          8  origin: the 16 bytes of an id
 *          9  keep_ms: LEB128
 *         10  job_run: LEB128
 *
 * Nothing to carry is no bytes at all. Fields of other numbers are of newer programs and are passed over. Numbers 1 to
 * 5 and 8 stand once at most. */
#include "queue/envelope.h"
#include "base/compare.h"

enum {
    FIELD_ATTEMPTS = 1,
    FIELD_TIMEOUT,
    FIELD_UNIQUE,
    FIELD_GROUP,
    FIELD_TRACEPARENT,
    FIELD_HEADER,
    FIELD_TAG,
    FIELD_ORIGIN,
    FIELD_KEEP,
    FIELD_JOB_RUN,
    VARINT_BYTES_MAX = 10, /* of 64 bits */
};

/* --- Writing: once to measure (bytes NULL), once to write --- */

struct writer {
    uint8_t *bytes;
    size_t length;
};

static void put_byte(struct writer *to, uint8_t byte)
{
    if (to->bytes)
        to->bytes[to->length] = byte;
    to->length++;
}

static void put_bytes(struct writer *to, kl_bytes bytes)
{
    if (to->bytes && bytes.len > 0)
        memcpy(to->bytes + to->length, bytes.data, bytes.len);
    to->length += bytes.len;
}

static void put_number(struct writer *to, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        put_byte(to, (uint8_t)(value | 0x80));
    put_byte(to, (uint8_t)value);
}

static size_t number_bytes(uint64_t value)
{
    struct writer measure = {NULL, 0};
    put_number(&measure, value);
    return measure.length;
}

static void put_number_field(struct writer *to, uint8_t number, uint64_t value)
{
    if (value == 0)
        return;
    put_byte(to, number);
    put_number(to, number_bytes(value));
    put_number(to, value);
}

static void put_bytes_field(struct writer *to, uint8_t number, kl_bytes value)
{
    put_byte(to, number);
    put_number(to, value.len);
    put_bytes(to, value);
}

static void put_header(struct writer *to, const kl_header *header)
{
    put_byte(to, FIELD_HEADER);
    put_number(to, number_bytes(header->name.len) + header->name.len + header->value.len);
    put_number(to, header->name.len);
    put_bytes(to, header->name);
    put_bytes(to, header->value);
}

static void put_origin(struct writer *to, const kl_task_id *origin)
{
    if (!kl__id_is_none(origin))
        put_bytes_field(to, FIELD_ORIGIN, (kl_bytes){origin->bytes, sizeof origin->bytes});
}

static void put_all(struct writer *to, const kl_task_extra *extra)
{
    put_number_field(to, FIELD_ATTEMPTS, extra->attempts_max);
    put_number_field(to, FIELD_TIMEOUT, (uint64_t)extra->timeout_ms);
    if (extra->unique.len > 0)
        put_bytes_field(to, FIELD_UNIQUE, extra->unique);
    if (extra->group.len > 0)
        put_bytes_field(to, FIELD_GROUP, extra->group);
    if (extra->traceparent.len > 0)
        put_bytes_field(to, FIELD_TRACEPARENT, extra->traceparent);
    for (size_t i = 0; i < extra->header_count; i++)
        put_header(to, &extra->headers[i]);
    for (size_t i = 0; i < extra->tag_count; i++)
        put_bytes_field(to, FIELD_TAG, extra->tags[i]);
    put_origin(to, &extra->origin);
    put_number_field(to, FIELD_KEEP, (uint64_t)extra->keep_ms);
    put_number_field(to, FIELD_JOB_RUN, (uint64_t)extra->job_run);
}

static kl_rc check_length(size_t length)
{
    if (length <= KL_HEADERS_BYTES_MAX)
        return KL_OK;
    return kl__fail(KL_EINVAL,
                    "its headers, tags, group and the like take %zu bytes, and a task carries up to %d; put what is "
                    "large into the payload",
                    length, KL_HEADERS_BYTES_MAX);
}

kl_rc kl__envelope_encode(const kl_task_extra *extra, kl_arena *arena, kl_bytes *ret_bytes)
{
    struct writer to = {NULL, 0};
    put_all(&to, extra);
    size_t length = to.length;
    kl_rc rc = check_length(length);
    if (rc != KL_OK)
        return rc;
    if (length == 0) {
        *ret_bytes = (kl_bytes){"", 0};
        return KL_OK;
    }
    to = (struct writer){kl_arena_alloc(arena, length), 0};
    if (!to.bytes)
        return kl__fail_memory();
    put_all(&to, extra);
    KL_ASSERT(to.length == length);
    *ret_bytes = (kl_bytes){to.bytes, length};
    return KL_OK;
}

/* --- Reading --- */

struct reader {
    const uint8_t *at, *end;
};

struct field {
    uint8_t number;
    kl_bytes value;
};

static struct reader read_from(kl_bytes bytes)
{
    const uint8_t *at = bytes.len > 0 ? bytes.data : (const uint8_t *)"";
    return (struct reader){at, at + bytes.len};
}

/* False: it is cut off, longer than it need be, or beyond 64 bits. */
static bool take_number(struct reader *from, uint64_t *ret_value)
{
    uint64_t value = 0;
    for (uint32_t i = 0; i < VARINT_BYTES_MAX && from->at < from->end; i++) {
        uint8_t byte = *from->at++;
        if (i == VARINT_BYTES_MAX - 1 && byte > 1)
            return false;
        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            *ret_value = value;
            return i == 0 || byte > 0;
        }
    }
    return false;
}

static bool take_bytes(struct reader *from, uint64_t length, kl_bytes *ret_bytes)
{
    if (length > (size_t)(from->end - from->at))
        return false;
    *ret_bytes = (kl_bytes){from->at, (size_t)length};
    from->at += length;
    return true;
}

static bool take_field(struct reader *from, struct field *ret_field)
{
    uint64_t length;
    ret_field->number = *from->at++;
    return ret_field->number > 0 && take_number(from, &length) && take_bytes(from, length, &ret_field->value);
}

static bool read_number(kl_bytes value, uint64_t max, uint64_t *ret_number)
{
    struct reader from = read_from(value);
    return take_number(&from, ret_number) && from.at == from.end && *ret_number > 0 && *ret_number <= max;
}

static bool read_header(kl_bytes value, kl_header *ret_header)
{
    struct reader from = read_from(value);
    uint64_t length;
    if (!take_number(&from, &length) || !take_bytes(&from, length, &ret_header->name))
        return false;
    ret_header->value = (kl_bytes){from.at, (size_t)(from.end - from.at)};
    return true;
}

/* Sets a field that stands once at most; false when it is there already or makes no sense. */
static bool read_single(const struct field *field, kl_task_extra *extra)
{
    uint64_t number;
    kl_bytes *bytes = field->number == FIELD_UNIQUE  ? &extra->unique
                      : field->number == FIELD_GROUP ? &extra->group
                                                     : &extra->traceparent;
    switch (field->number) {
    case FIELD_ATTEMPTS:
        if (extra->attempts_max != 0 || !read_number(field->value, KL_ATTEMPTS_MAX, &number))
            return false;
        extra->attempts_max = (uint32_t)number;
        return true;
    case FIELD_TIMEOUT:
        if (extra->timeout_ms != 0 || !read_number(field->value, INT64_MAX, &number))
            return false;
        extra->timeout_ms = (int64_t)number;
        return true;
    case FIELD_KEEP:
        if (extra->keep_ms != 0 || !read_number(field->value, INT64_MAX, &number))
            return false;
        extra->keep_ms = (int64_t)number;
        return true;
    case FIELD_JOB_RUN:
        if (extra->job_run != 0 || !read_number(field->value, INT64_MAX, &number))
            return false;
        extra->job_run = (int64_t)number;
        return true;
    case FIELD_ORIGIN:
        if (!kl__id_is_none(&extra->origin) || field->value.len != sizeof extra->origin.bytes)
            return false;
        memcpy(extra->origin.bytes, field->value.data, sizeof extra->origin.bytes);
        return true;
    default:
        if (bytes->len > 0 || field->value.len == 0)
            return false;
        *bytes = field->value;
        return true;
    }
}

/* Counts headers and tags, reads the rest. */
static bool read_singles(kl_bytes bytes, kl_task_extra *extra)
{
    for (struct reader from = read_from(bytes); from.at < from.end;) {
        struct field field;
        if (!take_field(&from, &field))
            return false;
        if (field.number == FIELD_HEADER)
            extra->header_count++;
        else if (field.number == FIELD_TAG)
            extra->tag_count++;
        else if (field.number <= FIELD_JOB_RUN && !read_single(&field, extra))
            return false;
    }
    return extra->header_count <= KL_HEADERS_MAX && extra->tag_count <= KL_TAGS_MAX;
}

/* All fields can be taken, or there would be no counts. */
static bool read_lists(kl_bytes bytes, kl_task_extra *extra)
{
    size_t headers = 0, tags = 0;
    bool sound = true;
    for (struct reader from = read_from(bytes); sound && from.at < from.end;) {
        struct field field;
        sound = take_field(&from, &field);
        if (sound && field.number == FIELD_HEADER)
            sound = read_header(field.value, &extra->headers[headers++]);
        else if (sound && field.number == FIELD_TAG)
            extra->tags[tags++] = field.value;
    }
    return sound;
}

static kl_rc refuse(void)
{
    return kl__fail(KL_EDAMAGED,
                    "what a task carries beside its payload cannot be read; it was not written by Keyline, "
                    "or it is damaged");
}

kl_rc kl__envelope_decode(kl_bytes bytes, kl_arena *arena, kl_task_extra *ret_extra)
{
    kl_task_extra extra = {0};
    if (bytes.len > KL_HEADERS_BYTES_MAX || !read_singles(bytes, &extra))
        return refuse();
    if (extra.header_count > 0 && !(extra.headers = kl_arena_alloc(arena, extra.header_count * sizeof *extra.headers)))
        return kl__fail_memory();
    if (extra.tag_count > 0 && !(extra.tags = kl_arena_alloc(arena, extra.tag_count * sizeof *extra.tags)))
        return kl__fail_memory();
    if (extra.header_count + extra.tag_count > 0 && !read_lists(bytes, &extra))
        return refuse();
    *ret_extra = extra;
    return KL_OK;
}

/* --- Repeating --- */

static bool is_left(uint64_t number, kl__leaves leaves)
{
    if (number == FIELD_UNIQUE)
        return leaves != KL_LEAVES_NOTHING;
    return leaves == KL_LEAVES_UNIQUE_AND_JOB && (number == FIELD_JOB_RUN || number == FIELD_KEEP);
}

/* The fields as they are, without the origin and what is left. */
static bool copy_fields(kl_bytes bytes, kl__leaves leaves, struct writer *to)
{
    for (struct reader from = read_from(bytes); from.at < from.end;) {
        const uint8_t *first = from.at;
        struct field field;
        if (!take_field(&from, &field))
            return false;
        if (field.number != FIELD_ORIGIN && !is_left(field.number, leaves))
            put_bytes(to, (kl_bytes){first, (size_t)(from.at - first)});
    }
    return true;
}

kl_rc kl__envelope_repeat(kl_bytes bytes, const kl_task_id *origin, kl__leaves leaves, kl_arena *arena,
                          kl_bytes *ret_bytes)
{
    struct writer to = {kl_arena_alloc(arena, bytes.len + 2 + sizeof origin->bytes), 0};
    if (!to.bytes)
        return kl__fail_memory();
    if (!copy_fields(bytes, leaves, &to))
        return refuse();
    put_origin(&to, origin);
    if (to.length > KL_HEADERS_BYTES_MAX) { /* rather without its origin than not at all */
        to.length = 0;
        (void)copy_fields(bytes, leaves, &to);
    }
    *ret_bytes = (kl_bytes){to.bytes, to.length};
    return KL_OK;
}
