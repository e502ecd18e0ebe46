/* write.c - JSON as text. See write.h. */
#include "net/write.h"

#include "base/times.h"
#include "base/utf8.h"
#include "net/server.h"

enum { ROOM_FIRST = 512, NUMBER_BYTES = 24 };

/* Room for `len` more; NULL: out of memory. */
static char *reserve(kl__writer *writer, size_t len)
{
    if (writer->room - writer->len < len && !writer->failed) {
        size_t room = writer->room ? writer->room * 2 : ROOM_FIRST;
        while (room - writer->len < len)
            room *= 2;
        char *text = kl_arena_alloc(writer->arena, room);
        writer->failed = !text;
        if (text && writer->len)
            memcpy(text, writer->text, writer->len);
        if (text) {
            writer->text = text;
            writer->room = room;
        }
    }
    return writer->failed ? NULL : writer->text + writer->len;
}

static void append(kl__writer *writer, const char *bytes, size_t len)
{
    char *to = len ? reserve(writer, len) : NULL;
    if (!to)
        return;
    memcpy(to, bytes, len);
    writer->len += len;
}

void kl__write(kl__writer *writer, const char *text) { append(writer, text, strlen(text)); }

/* What has escapes or is no text goes the careful way. */
static void write_careful(kl__writer *writer, kl_bytes bytes)
{
    json_t *value = kl__json_bytes_value(bytes);
    size_t len = value ? json_dumpb(value, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY) : 0;
    char *to = len ? reserve(writer, len) : NULL;
    if (to)
        writer->len += json_dumpb(value, to, len, JSON_COMPACT | JSON_ENCODE_ANY);
    else
        writer->failed = true;
    json_decref(value);
}

void kl__write_bytes(kl__writer *writer, kl_bytes bytes)
{
    if (bytes.len && !kl__utf8_is_plain(bytes)) {
        write_careful(writer, bytes);
        return;
    }
    char *to = reserve(writer, bytes.len + 2);
    if (!to)
        return;
    *to++ = '"';
    if (bytes.len)
        memcpy(to, bytes.data, bytes.len);
    to[bytes.len] = '"';
    writer->len += bytes.len + 2;
}

void kl__write_int(kl__writer *writer, int64_t number)
{
    char text[NUMBER_BYTES], *at = text + sizeof text;
    uint64_t rest = number < 0 ? (uint64_t)0 - (uint64_t)number : (uint64_t)number;
    do
        *--at = (char)('0' + rest % 10);
    while ((rest /= 10) > 0);
    if (number < 0)
        *--at = '-';
    append(writer, at, (size_t)(text + sizeof text - at));
}

void kl__write_id(kl__writer *writer, const kl_task_id *id)
{
    char text[KL_ID_TEXT_BYTES];
    kl_id_print(id, text);
    append(writer, "\"", 1);
    kl__write(writer, text);
    append(writer, "\"", 1);
}

void kl__write_time(kl__writer *writer, int64_t ms)
{
    char text[KL_TIME_TEXT_BYTES];
    if (ms == 0) {
        kl__write(writer, "null");
        return;
    }
    kl__time_print(ms, text);
    append(writer, "\"", 1);
    kl__write(writer, text);
    append(writer, "\"", 1);
}

void kl__reply_written(kl__exchange *exchange, int status, const kl__writer *writer)
{
    if (writer->failed)
        kl__reply(exchange, status, NULL);
    else
        kl__exchange_answer(
            exchange, &(kl__answer){.status = status, .type = "application/json", .body = {writer->text, writer->len}});
}
