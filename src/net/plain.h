/* plain.h - bodies in their plainest form, read without making a tree of them: for the data path.
 *
 *     {"key": "a", "payload": "..."}        or        {"tasks": [{"key": "a", "payload": "..."}, ...]}
 *
 * Plain is an object, or a list of objects in one field, whose values are whole numbers, true, false, or strings
 * without an escape: UTF-8, no control characters, no backslash. Whatever is not plain, or not even JSON, is left to
 * the careful reader (queue/json.h), which then decides; so a body means the same whichever reads it. Nothing is
 * copied: strings point into the body. */
#ifndef KL_NET_PLAIN_H
#define KL_NET_PLAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "keyline/queue.h"

enum { KL_PLAIN_FIELDS_MAX = 8 };

typedef struct kl__plain_field {
    kl_bytes name;
    kl_bytes text; /* of a string; data NULL: it is none */
    int64_t number;
    bool is_number, flag; /* neither text nor a number: true or false */
} kl__plain_field;

/* One object. False: to be left to the careful reader, because a field is not known. */
typedef bool kl__plain_fn(void *ctx, const kl__plain_field *fields, size_t count);

/* Calls `take` with each object of the body, in order; *ret_many: they stand in the list `name`. False: it is not
 * plain; what `take` was told so far counts for nothing. */
bool kl__plain_read(kl_bytes body, const char *name, kl__plain_fn *take, void *ctx, bool *ret_many);

/* No more objects than this can be in the body. */
size_t kl__plain_count(kl_bytes body);

/* A task of an object's fields. False: some field is not one of those that most tasks have, or not in its range. */
bool kl__plain_task(const kl__plain_field *fields, size_t count, kl_put *ret_task);

static inline bool kl__plain_is(const kl__plain_field *field, const char *name)
{
    return field->name.len == strlen(name) && memcmp(field->name.data, name, field->name.len) == 0;
}

#endif
