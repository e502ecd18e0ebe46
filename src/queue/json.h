/* json.h - records' values: jansson, with memory from base, and getters that say which record is damaged.
 *
 *     kl__json from;
 *     if (kl__json_parse(record.value, "queue/orders", &from) != KL_OK) ...
 *     int64_t attempts = kl__json_int(&from, "attempts_max", 1, KL_ATTEMPTS_MAX);
 *     const char *origin = kl__json_text_or(&from, "origin", arena, "");
 *     kl_rc rc = from.rc;                               the first that went wrong, with its sentence
 *     kl__json_free(&from);                             what getters returned lies in the arena and stays
 *
 *     json_t *to = kl__json_object();
 *     kl_rc rc = kl__json_set_int(to, "attempts_max", 8) && kl__json_set_bytes(to, "key", key)
 *                    ? kl__json_print(to, arena, &value) : kl__fail_memory();
 *     json_decref(to);
 *
 * J1  What is set by kl__json_set_x is read back the same by kl__json_x.
 * J2  Fields keep the order in which they were set, so equal content prints as equal bytes.
 * J3  A field that nobody asks for is ignored: newer programs may write more than older ones read.
 *
 * Bytes that are UTF-8 without a NUL stand as a string, others as {"base64": "..."}. One object is for one thread. */
#ifndef KL_QUEUE_JSON_H
#define KL_QUEUE_JSON_H

#include <jansson.h>

#include "base/base.h"
#include "keyline/arena.h"
#include "keyline/id.h"

/* An object that is read. The first getter that fails sets rc and the thread's sentence; the rest still return what
 * is valid (the least value, "", no bytes, all zero), so one look at rc after all of them is enough. */
typedef struct kl__json {
    json_t *object;
    const char *what; /* names the record in sentences; the caller's, as long as this lasts */
    kl_rc rc;
    bool given; /* somebody sent it: what is wrong with it is KL_EINVAL, and theirs to correct */
} kl__json;

/* KL_EDAMAGED: not one JSON object. KL_ENOMEM. ret is to be freed, also after getters failed. */
kl_rc kl__json_parse(kl_bytes text, const char *what, kl__json *ret);
void kl__json_free(kl__json *from); /* NULL, all zero and a second time are fine */

/* What somebody sent, instead of a record: KL_EINVAL: not one JSON object, or one with more than depth_max objects and
 * arrays inside each other, which is found before anything is parsed. Texts may have zero bytes in them. `what` as "the
 * body". KL_ENOMEM. */
kl_rc kl__json_parse_given(kl_bytes text, size_t depth_max, const char *what, kl__json *ret);
bool kl__json_is_deeper(kl_bytes text, size_t depth_max);

bool kl__json_has(const kl__json *from, const char *field); /* null counts as missing */

/* Each: KL_EDAMAGED when the field is of another type, out of range, or missing; with _or, missing is `otherwise`. */
int64_t kl__json_int(kl__json *from, const char *field, int64_t min, int64_t max);
int64_t kl__json_int_or(kl__json *from, const char *field, int64_t min, int64_t max, int64_t otherwise);
bool kl__json_bool(kl__json *from, const char *field);
bool kl__json_bool_or(kl__json *from, const char *field, bool otherwise);
const char *kl__json_text(kl__json *from, const char *field, kl_arena *arena); /* no NUL in it; lies in the arena */
const char *kl__json_text_or(kl__json *from, const char *field, kl_arena *arena, const char *otherwise);
kl_bytes kl__json_bytes(kl__json *from, const char *field, kl_arena *arena); /* lies in the arena; a zero byte behind */
kl_bytes kl__json_bytes_or(kl__json *from, const char *field, kl_arena *arena, kl_bytes otherwise);
kl_task_id kl__json_id(kl__json *from, const char *field);
kl_task_id kl__json_id_or(kl__json *from, const char *field, kl_task_id otherwise);

/* An array of 0..max items, borrowed from `from`; NULL on failure. kl__json_item reads its i-th, which must be an
 * object: the result borrows from `from` too and is not freed; look at its rc after the getters. */
json_t *kl__json_array_of(kl__json *from, const char *field, size_t max);
kl__json kl__json_item(const kl__json *from, json_t *array, size_t index);

/* An object in the object, to be read in the same way and not freed. */
kl__json kl__json_inner(kl__json *from, const char *field);

/* A value by itself, for arrays of plain ones; `field` is for the sentence. Same failures. */
int64_t kl__json_int_of(kl__json *from, const json_t *value, const char *field, int64_t min, int64_t max);
kl_bytes kl__json_bytes_of(kl__json *from, const json_t *value, const char *field, kl_arena *arena);

/* Says that a field is damaged although its type is right; the reason is a clause: "is no time zone". */
kl_rc kl__json_damaged(kl__json *from, const char *field, const char *reason);

/* --- Writing --- */

json_t *kl__json_object(void); /* NULL: out of memory; for json_decref */
json_t *kl__json_array(void);
json_t *kl__json_bytes_value(kl_bytes bytes); /* string or {"base64": "..."}; NULL: out of memory */

/* False: out of memory. object NULL (from a failed kl__json_object) is fine, and false. */
bool kl__json_set_int(json_t *object, const char *field, int64_t value);
bool kl__json_set_bool(json_t *object, const char *field, bool value);
bool kl__json_set_text(json_t *object, const char *field, const char *text);
bool kl__json_set_bytes(json_t *object, const char *field, kl_bytes bytes);
bool kl__json_set_id(json_t *object, const char *field, const kl_task_id *id);

/* These take the value over, also on failure; NULL is fine, and false. */
bool kl__json_set(json_t *object, const char *field, json_t *value);
bool kl__json_append(json_t *array, json_t *value);

/* Compact, in the arena, with a zero byte behind. KL_ENOMEM, which is also said of object NULL. */
kl_rc kl__json_print(const json_t *object, kl_arena *arena, kl_bytes *ret_text);

#endif
