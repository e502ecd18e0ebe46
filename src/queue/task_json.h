/* task_json.h - a task to be put, from JSON: a line of `keyline push --file`, or of what is sent to the server.
 *
 *     key, kind, group, unique, traceparent    text, or {"base64": "..."}
 *     payload        text, or {"base64": "..."}, or any other JSON, which is stored as its text
 *     priority, attempts                       whole numbers
 *     in, timeout, unique_for                  durations: "5s"
 *     at                                       a time: "2026-11-15T18:00:00Z", "+5m", or milliseconds since 1970
 *     headers                                  an object of texts
 *     tags                                     an array of texts
 *     partition                                text
 *
 * null is as if the field were not there, but of the payload. */
#ifndef KL_QUEUE_TASK_JSON_H
#define KL_QUEUE_TASK_JSON_H

#include <jansson.h>

#include "keyline/queue.h"

enum { KL_LINE_BYTES_MAX = 8 << 20, KL_LINE_ERROR_BYTES = 512 };

/* Reads an object. `task` holds what it does not say, and bytes lie in the arena. False: `ret_error`, of `room` bytes,
 * names the field and says what is wrong. */
bool kl__task_take(json_t *object, int64_t now_ms, kl_arena *arena, kl_put *task, char *ret_error, size_t room);

/* The same from a line. */
bool kl__task_read(kl_bytes line, int64_t now_ms, kl_arena *arena, kl_put *task, char ret_error[KL_LINE_ERROR_BYTES]);

#endif
