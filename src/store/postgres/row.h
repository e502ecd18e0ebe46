/* row.h - the tasks of a row of `entries`, as the bytes of its column `tasks`.
 *
 *     a head for each   uint8    its place among those that share the row's number
 *                       uint24   where its bytes end, counted from the end of the heads
 *                       uint16   length of its key
 *                       uint8    of its kind
 *                       uint16   of its headers; the rest is its payload
 *                       16 B     its id
 *     then of each      key, kind, headers, payload
 *
 * Big-endian. Heads come first and are of one size, so SQL finds the bytes of any task (the view `tasks`), and one that
 * is too large is known by the first bytes of its row. The function `pack` writes it, too (sql_tables.c). */
#ifndef KL_STORE_POSTGRES_ROW_H
#define KL_STORE_POSTGRES_ROW_H

#include <string.h>

#include "base/base.h"
#include "keyline/task.h"

enum {
    KL_PG_HEAD = 25,
    KL_PG_HEAD_END = 1,
    KL_PG_HEAD_KEY = 4,
    KL_PG_HEAD_KIND = 6,
    KL_PG_HEAD_HEADERS = 7,
    KL_PG_HEAD_ID = 9,
};

_Static_assert(KL_PG_HEAD_ID + sizeof(kl_task_id) == KL_PG_HEAD, "a head ends with the id");
_Static_assert(KL_KEY_BYTES_MAX + KL_KIND_BYTES_MAX + KL_HEADERS_BYTES_MAX + KL_PAYLOAD_BYTES_MAX < 1 << 24, "uint24");
_Static_assert(KL_KIND_BYTES_MAX < 1 << 8 && KL_KEY_BYTES_MAX < 1 << 16 && KL_HEADERS_BYTES_MAX < 1 << 16, "lengths");

static inline void kl__pg_write_number(unsigned char *to, int width, size_t number)
{
    for (int i = width - 1; i >= 0; i--, number >>= 8)
        to[i] = (unsigned char)number;
}

static inline size_t kl__pg_read_number(const unsigned char *from, int width)
{
    size_t number = 0;
    for (int i = 0; i < width; i++)
        number = number << 8 | from[i];
    return number;
}

/* Writes a task: its head, and its bytes `end` behind where those of all begin. Returns where they end. */
static inline size_t kl__pg_pack(unsigned char *head, char *bytes, size_t end, uint8_t at, const kl_entry *entry)
{
    const kl_bytes parts[] = {entry->key, entry->kind, entry->headers, entry->payload};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i].len > 0)
            memcpy(bytes + end, parts[i].data, parts[i].len);
        end += parts[i].len;
    }
    head[0] = at;
    kl__pg_write_number(head + KL_PG_HEAD_END, 3, end);
    kl__pg_write_number(head + KL_PG_HEAD_KEY, 2, entry->key.len);
    kl__pg_write_number(head + KL_PG_HEAD_KIND, 1, entry->kind.len);
    kl__pg_write_number(head + KL_PG_HEAD_HEADERS, 2, entry->headers.len);
    memcpy(head + KL_PG_HEAD_ID, &entry->id, sizeof entry->id);
    return end;
}

typedef struct kl__pg_packed {
    kl_task_id id;
    uint8_t at;
    size_t bytes;
    bool cut;                             /* the row ends before its bytes do */
    kl_bytes key, kind, headers, payload; /* all but the key are empty where it was cut */
} kl__pg_packed;

/* Task `n`, from 0, of `number`. False: the lengths do not fit one another or the bytes, so the row is damaged. */
static inline bool kl__pg_unpack(kl_bytes tasks, size_t number, size_t n, kl__pg_packed *ret_packed)
{
    KL_ASSERT(n < number);
    if (number > tasks.len / KL_PG_HEAD)
        return false;
    const unsigned char *head = (const unsigned char *)tasks.data + n * KL_PG_HEAD;
    size_t begin = n > 0 ? kl__pg_read_number(head - KL_PG_HEAD + KL_PG_HEAD_END, 3) : 0;
    size_t end = kl__pg_read_number(head + KL_PG_HEAD_END, 3), there = tasks.len - number * KL_PG_HEAD;
    size_t key = kl__pg_read_number(head + KL_PG_HEAD_KEY, 2), kind = kl__pg_read_number(head + KL_PG_HEAD_KIND, 1);
    size_t headers = kl__pg_read_number(head + KL_PG_HEAD_HEADERS, 2);
    if (begin + key + kind + headers > end || begin + key > there)
        return false;
    const char *bytes = (const char *)tasks.data + number * KL_PG_HEAD + begin;
    kl__pg_packed packed = {.at = head[0], .bytes = end - begin, .cut = end > there, .key = {bytes, key}};
    memcpy(&packed.id, head + KL_PG_HEAD_ID, sizeof packed.id);
    if (!packed.cut) {
        packed.kind = (kl_bytes){bytes + key, kind};
        packed.headers = (kl_bytes){bytes + key + kind, headers};
        packed.payload = (kl_bytes){bytes + key + kind + headers, end - begin - key - kind - headers};
    }
    *ret_packed = packed;
    return true;
}

#endif
