/* write.h - JSON that is written as text, piece by piece: for answers of the data path, of which there are many.
 *
 *     kl__writer writer = {.arena = arena};
 *     kl__write(&writer, "{\"token\":");
 *     kl__write_bytes(&writer, token);
 *     kl__write(&writer, "}");
 *     kl__reply_written(exchange, 200, &writer);
 *
 * Prints the same bytes as queue/json.h would. Out of memory is noted, and seen at the end. */
#ifndef KL_NET_WRITE_H
#define KL_NET_WRITE_H

#include "net/api.h"

typedef struct kl__writer {
    kl_arena *arena;
    char *text;
    size_t len, room;
    bool failed;
} kl__writer;

void kl__write(kl__writer *writer, const char *text);     /* as it is */
void kl__write_bytes(kl__writer *writer, kl_bytes bytes); /* a string, or {"base64": ...} */
void kl__write_int(kl__writer *writer, int64_t number);
void kl__write_id(kl__writer *writer, const kl_task_id *id);
void kl__write_time(kl__writer *writer, int64_t ms); /* RFC 3339, or null for 0 */

/* Answers with it; without memory, 503. */
void kl__reply_written(kl__exchange *exchange, int status, const kl__writer *writer);

#endif
