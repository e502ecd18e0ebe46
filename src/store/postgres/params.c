/* params.c - parameters and rows in PostgreSQL's binary format: big-endian integers, bytes as they are.
 *
 *     an array   int32 dimensions (1; 0: empty)   int32 may hold NULL (1)   int32 type of the elements
 *                int32 elements   int32 first index (1)   then each: int32 length (-1: NULL), bytes */
#include <stdlib.h>

#include "store/postgres/postgres.h"

enum { ARRAY_HEAD = 20, EMPTY_ARRAY = 12, GROW_BYTES = 4096 };

static const struct {
    Oid type, array;
    int width;
} types[] = {
    [KL_PG_BOOL] = {16, 1000, 1}, [KL_PG_INT2] = {21, 1005, 2},    [KL_PG_INT4] = {23, 1007, 4},
    [KL_PG_INT8] = {20, 1016, 8}, [KL_PG_UUID] = {2950, 2951, 16}, [KL_PG_BYTEA] = {17, 1001, -1},
};

/* --- Writing --- */

void kl__pg_args_free(kl__pg_args *args) { kl__free(args->bytes); }

/* Room for so many bytes more, at the end. NULL: out of memory. */
static char *extend(kl__pg_args *args, size_t size)
{
    if (args->failed)
        return NULL;
    if (!args->bytes || args->room - args->used < size) {
        size_t room = 2 * args->room + size + GROW_BYTES;
        char *grown = kl__alloc(room);
        if (!grown) {
            args->failed = true;
            return NULL;
        }
        if (args->used > 0)
            memcpy(grown, args->bytes, args->used);
        kl__free(args->bytes);
        args->bytes = grown;
        args->room = room;
    }
    args->used += size;
    return args->bytes + args->used - size;
}

static void write_int(char *to, int width, int64_t value)
{
    for (int i = 0; i < width; i++)
        to[i] = (char)((uint64_t)value >> (8 * (width - 1 - i)));
}

static void put_int(kl__pg_args *args, int width, int64_t value)
{
    char *to = extend(args, (size_t)width);
    if (to)
        write_int(to, width, value);
}

static void put_bytes(kl__pg_args *args, const void *bytes, size_t len)
{
    char *to = extend(args, len);
    if (to && len > 0)
        memcpy(to, bytes, len);
}

static void begin(kl__pg_args *args, Oid type, int length)
{
    KL_ASSERT(args->count < KL_PG_ARGS_MAX);
    args->types[args->count] = type;
    args->offsets[args->count] = args->used;
    args->lengths[args->count++] = length;
}

void kl__pg_int(kl__pg_args *args, kl__pg_type type, int64_t value)
{
    begin(args, types[type].type, types[type].width);
    put_int(args, types[type].width, value);
}

void kl__pg_null(kl__pg_args *args, kl__pg_type type) { begin(args, types[type].type, -1); }

void kl__pg_null_array(kl__pg_args *args, kl__pg_type type) { begin(args, types[type].array, -1); }

void kl__pg_uuid(kl__pg_args *args, const void *bytes16)
{
    begin(args, types[KL_PG_UUID].type, bytes16 ? 16 : -1);
    if (bytes16)
        put_bytes(args, bytes16, 16);
}

void *kl__pg_room(kl__pg_args *args, size_t len)
{
    begin(args, types[KL_PG_BYTEA].type, (int)len);
    return extend(args, len);
}

void kl__pg_bytes(kl__pg_args *args, kl_bytes bytes)
{
    begin(args, types[KL_PG_BYTEA].type, (int)bytes.len);
    put_bytes(args, bytes.data, bytes.len);
}

/* An element of the array that was begun last. */
static void put_element(kl__pg_args *args, const void *bytes, size_t len)
{
    put_int(args, 4, (int64_t)len);
    put_bytes(args, bytes, len);
    args->lengths[args->count - 1] += 4 + (int)len;
}

void kl__pg_array(kl__pg_args *args, kl__pg_type type, size_t count)
{
    int64_t head[] = {count > 0, 1, types[type].type, (int64_t)count, 1};
    int fields = count > 0 ? ARRAY_HEAD / 4 : EMPTY_ARRAY / 4;
    begin(args, types[type].array, 4 * fields);
    for (int i = 0; i < fields; i++)
        put_int(args, 4, head[i]);
}

void kl__pg_add_int(kl__pg_args *args, kl__pg_type type, int64_t value)
{
    char bytes[8];
    write_int(bytes, types[type].width, value);
    put_element(args, bytes, (size_t)types[type].width);
}

void kl__pg_add_int_or_null(kl__pg_args *args, kl__pg_type type, int64_t value)
{
    if (value != 0)
        kl__pg_add_int(args, type, value);
    else
        kl__pg_add_null(args);
}

void kl__pg_add_uuid(kl__pg_args *args, const void *bytes16) { put_element(args, bytes16, 16); }

void kl__pg_add_bytes(kl__pg_args *args, kl_bytes bytes) { put_element(args, bytes.data, bytes.len); }

void *kl__pg_add_room(kl__pg_args *args, size_t len)
{
    put_int(args, 4, (int64_t)len);
    args->lengths[args->count - 1] += 4 + (int)len;
    return extend(args, len);
}

void kl__pg_add_null(kl__pg_args *args)
{
    put_int(args, 4, -1);
    args->lengths[args->count - 1] += 4;
}

void kl__pg_add_bytes_or_null(kl__pg_args *args, kl_bytes bytes)
{
    if (bytes.len > 0)
        kl__pg_add_bytes(args, bytes);
    else
        kl__pg_add_null(args);
}

/* --- Reading --- */

static int64_t read_int(const void *bytes, size_t width)
{
    const unsigned char *from = bytes;
    uint64_t value = width > 0 && from[0] & 0x80 ? UINT64_MAX : 0;
    for (size_t i = 0; i < width; i++)
        value = value << 8 | from[i];
    return (int64_t)value;
}

kl_bytes kl__pg_get_bytes(const PGresult *rows, int row, int column)
{
    return (kl_bytes){PQgetvalue(rows, row, column), (size_t)PQgetlength(rows, row, column)};
}

int64_t kl__pg_get_int(const PGresult *rows, int row, int column)
{
    kl_bytes bytes = kl__pg_get_bytes(rows, row, column);
    KL_ASSERT(bytes.len <= 8);
    return read_int(bytes.data, bytes.len);
}

int64_t kl__pg_get_text_int(const PGresult *rows, int row, int column)
{
    return strtoll(PQgetvalue(rows, row, column), NULL, 10);
}

kl_task_id kl__pg_get_id(const PGresult *rows, int row, int column)
{
    kl_task_id id = {{0}};
    kl_bytes bytes = kl__pg_get_bytes(rows, row, column);
    if (bytes.len == sizeof id)
        memcpy(&id, bytes.data, sizeof id);
    return id;
}

size_t kl__pg_get_length(const PGresult *rows, int row, int column)
{
    kl_bytes bytes = kl__pg_get_bytes(rows, row, column);
    return bytes.len < ARRAY_HEAD ? 0 : (size_t)read_int((const char *)bytes.data + 12, 4);
}

kl_bytes kl__pg_get_elements(const PGresult *rows, int row, int column)
{
    kl_bytes bytes = kl__pg_get_bytes(rows, row, column);
    return bytes.len < ARRAY_HEAD ? (kl_bytes){"", 0}
                                  : (kl_bytes){(const char *)bytes.data + ARRAY_HEAD, bytes.len - ARRAY_HEAD};
}

kl_bytes kl__pg_next_element(kl_bytes *rest)
{
    KL_ASSERT(rest->len >= 4);
    int64_t len = read_int(rest->data, 4);
    kl_bytes element = {(const char *)rest->data + 4, len > 0 ? (size_t)len : 0};
    KL_ASSERT(rest->len - 4 >= element.len);
    *rest = (kl_bytes){(const char *)element.data + element.len, rest->len - 4 - element.len};
    return element;
}

int64_t kl__pg_get_element_int(const PGresult *rows, int row, int column, size_t index)
{
    kl_bytes rest = kl__pg_get_elements(rows, row, column), element = {"", 0};
    for (size_t i = 0; i <= index; i++)
        element = kl__pg_next_element(&rest);
    return read_int(element.data, element.len);
}
