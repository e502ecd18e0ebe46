/* json.c - records' values: see json.h.
 *
 * From: every file of the queue that has a record.  To: jansson. */
#include "queue/json.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_memory.h"
#include "base/utf8.h"

/* --- Memory --- */

json_t *kl__json_object(void)
{
    kl__json_memory_begin();
    return json_object();
}

json_t *kl__json_array(void)
{
    kl__json_memory_begin();
    return json_array();
}

/* --- Reading --- */

kl_rc kl__json_parse(kl_bytes text, const char *what, kl__json *ret)
{
    json_error_t error;
    kl__json_memory_begin();
    json_t *object = json_loadb(text.len ? text.data : "", text.len, JSON_REJECT_DUPLICATES, &error);
    if (kl__json_memory_refused() || (!object && json_error_code(&error) == json_error_out_of_memory)) {
        json_decref(object); /* it may lack what there was no memory for */
        return kl__fail_memory();
    }
    if (!object)
        return kl__fail(KL_EDAMAGED, "the record %s is damaged: %s at byte %d of %zu; remove or restore it", what,
                        error.text, error.position, text.len);
    if (!json_is_object(object)) {
        json_decref(object);
        return kl__fail(KL_EDAMAGED, "the record %s is damaged: it is no JSON object; remove or restore it", what);
    }
    *ret = (kl__json){.object = object, .what = what};
    return KL_OK;
}

bool kl__json_is_deeper(kl_bytes text, size_t depth_max)
{
    const char *at = text.data;
    size_t depth = 0;
    bool in_text = false;
    for (size_t i = 0; i < text.len; i++) {
        if (at[i] == '"')
            in_text = !in_text;
        else if (in_text && at[i] == '\\')
            i++;
        else if (in_text)
            continue;
        else if ((at[i] == '[' || at[i] == '{') && ++depth > depth_max)
            return true;
        else if ((at[i] == ']' || at[i] == '}') && depth > 0)
            depth--;
    }
    return false;
}

kl_rc kl__json_parse_given(kl_bytes text, size_t depth_max, const char *what, kl__json *ret)
{
    json_error_t error;
    if (kl__json_is_deeper(text, depth_max))
        return kl__fail(KL_EINVAL, "%s has more than %zu objects and arrays inside each other; make it flatter", what,
                        depth_max);
    kl__json_memory_begin();
    json_t *object = json_loadb(text.len ? text.data : "", text.len,
                                JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);
    if (kl__json_memory_refused() || (!object && json_error_code(&error) == json_error_out_of_memory)) {
        json_decref(object);
        return kl__fail_memory();
    }
    if (!json_is_object(object)) {
        bool parsed = object != NULL;
        json_decref(object);
        return parsed ? kl__fail(KL_EINVAL, "%s is not one JSON object; send {...}", what)
                      : kl__fail(KL_EINVAL, "%s is no JSON: %s at byte %d of %zu; correct it", what, error.text,
                                 error.position, text.len);
    }
    *ret = (kl__json){.object = object, .what = what, .given = true};
    return KL_OK;
}

void kl__json_free(kl__json *from)
{
    if (!from)
        return;
    json_decref(from->object);
    from->object = NULL;
}

kl_rc kl__json_damaged(kl__json *from, const char *field, const char *reason)
{
    if (from->rc == KL_OK && from->given)
        from->rc = kl__fail(KL_EINVAL, "%s: \"%s\" %s; correct it", from->what, field, reason);
    else if (from->rc == KL_OK)
        from->rc = kl__fail(KL_EDAMAGED, "the record %s is damaged: its field %s %s; remove or restore it", from->what,
                            field, reason);
    return from->rc;
}

static void *fail_memory(kl__json *from)
{
    if (from->rc == KL_OK)
        from->rc = kl__fail_memory();
    return NULL;
}

/* null counts as missing. */
static json_t *value_of(const kl__json *from, const char *field)
{
    json_t *value = json_object_get(from->object, field);
    return json_is_null(value) ? NULL : value;
}

static json_t *required(kl__json *from, const char *field)
{
    json_t *value = value_of(from, field);
    if (!value)
        kl__json_damaged(from, field, "is missing");
    return value;
}

bool kl__json_has(const kl__json *from, const char *field) { return value_of(from, field) != NULL; }

int64_t kl__json_int_of(kl__json *from, const json_t *value, const char *field, int64_t min, int64_t max)
{
    if (!value || !json_is_integer(value)) {
        kl__json_damaged(from, field, "is no whole number");
        return min;
    }
    int64_t number = json_integer_value(value);
    if (number >= min && number <= max)
        return number;
    char reason[96];
    snprintf(reason, sizeof reason, "is %lld, not from %lld to %lld", (long long)number, (long long)min,
             (long long)max);
    kl__json_damaged(from, field, reason);
    return min;
}

int64_t kl__json_int(kl__json *from, const char *field, int64_t min, int64_t max)
{
    const json_t *value = required(from, field);
    return value ? kl__json_int_of(from, value, field, min, max) : min;
}

int64_t kl__json_int_or(kl__json *from, const char *field, int64_t min, int64_t max, int64_t otherwise)
{
    const json_t *value = value_of(from, field);
    return value ? kl__json_int_of(from, value, field, min, max) : otherwise;
}

bool kl__json_bool_or(kl__json *from, const char *field, bool otherwise)
{
    const json_t *value = value_of(from, field);
    if (value && !json_is_boolean(value))
        kl__json_damaged(from, field, "is neither true nor false");
    return value ? json_is_true(value) : otherwise;
}

bool kl__json_bool(kl__json *from, const char *field)
{
    return required(from, field) && kl__json_bool_or(from, field, false);
}

/* --- Bytes --- */

/* How many characters of padding end it; -1: not a length that base64 has. */
static int padding_of(const char *text, size_t length)
{
    if (length % 4 != 0)
        return -1;
    return length == 0 ? 0 : (text[length - 1] == '=') + (text[length - 1] == '=' && text[length - 2] == '=');
}

static kl_bytes decode(kl__json *from, const json_t *coded, const char *field, kl_arena *arena)
{
    static const kl_bytes none = {"", 0};
    const char *text = json_string_value(coded);
    size_t length = json_string_length(coded);
    int padding = text ? padding_of(text, length) : -1;
    if (padding < 0) {
        kl__json_damaged(from, field, "is no base64");
        return none;
    }
    unsigned char *bytes = kl_arena_alloc(arena, length / 4 * 3 + 1);
    if (!bytes) {
        fail_memory(from);
        return none;
    }
    int decoded = length == 0 ? 0 : EVP_DecodeBlock(bytes, (const unsigned char *)text, (int)length);
    if (decoded < padding || (size_t)decoded != length / 4 * 3) {
        kl__json_damaged(from, field, "is no base64");
        return none;
    }
    bytes[decoded - padding] = 0;
    return (kl_bytes){bytes, (size_t)(decoded - padding)};
}

kl_bytes kl__json_bytes_of(kl__json *from, const json_t *value, const char *field, kl_arena *arena)
{
    kl_bytes copy = {"", 0};
    const json_t *coded = json_is_object(value) ? json_object_get(value, "base64") : NULL;
    if (coded)
        return decode(from, coded, field, arena);
    if (!json_is_string(value))
        kl__json_damaged(from, field, "is no text");
    else if (!kl_arena_copy(arena, (kl_bytes){json_string_value(value), json_string_length(value)}, &copy))
        fail_memory(from);
    return copy;
}

kl_bytes kl__json_bytes(kl__json *from, const char *field, kl_arena *arena)
{
    const json_t *value = required(from, field);
    return value ? kl__json_bytes_of(from, value, field, arena) : (kl_bytes){"", 0};
}

kl_bytes kl__json_bytes_or(kl__json *from, const char *field, kl_arena *arena, kl_bytes otherwise)
{
    const json_t *value = value_of(from, field);
    return value ? kl__json_bytes_of(from, value, field, arena) : otherwise;
}

const char *kl__json_text(kl__json *from, const char *field, kl_arena *arena)
{
    kl_bytes bytes = kl__json_bytes(from, field, arena);
    if (bytes.len == 0 || !memchr(bytes.data, 0, bytes.len))
        return bytes.data;
    kl__json_damaged(from, field, "has a zero byte in it");
    return "";
}

const char *kl__json_text_or(kl__json *from, const char *field, kl_arena *arena, const char *otherwise)
{
    return kl__json_has(from, field) ? kl__json_text(from, field, arena) : otherwise;
}

kl_task_id kl__json_id(kl__json *from, const char *field)
{
    kl_task_id id = {{0}};
    const json_t *value = required(from, field);
    kl_bytes text = {json_string_value(value), json_string_length(value)};
    if (value && from->rc == KL_OK && (!text.data || kl_id_parse(text, &id) != KL_OK))
        kl__json_damaged(from, field, "is no id");
    return id;
}

kl_task_id kl__json_id_or(kl__json *from, const char *field, kl_task_id otherwise)
{
    return kl__json_has(from, field) ? kl__json_id(from, field) : otherwise;
}

/* --- Arrays and objects inside --- */

json_t *kl__json_array_of(kl__json *from, const char *field, size_t max)
{
    json_t *value = required(from, field);
    if (!value)
        return NULL;
    if (json_is_array(value) && json_array_size(value) <= max)
        return value;
    kl__json_damaged(from, field, json_is_array(value) ? "has too many items" : "is no list");
    return NULL;
}

kl__json kl__json_item(const kl__json *from, json_t *array, size_t index)
{
    kl__json item = {.object = json_array_get(array, index), .what = from->what, .given = from->given};
    if (!json_is_object(item.object))
        kl__json_damaged(&item, "(of a list)", "is no object");
    return item;
}

kl__json kl__json_inner(kl__json *from, const char *field)
{
    kl__json inner = {.object = required(from, field), .what = from->what, .given = from->given};
    if (inner.object && !json_is_object(inner.object))
        kl__json_damaged(from, field, "is no object");
    inner.rc = from->rc;
    return inner;
}

/* --- Writing --- */

static bool is_text(kl_bytes bytes)
{
    const unsigned char *at = bytes.data;
    for (size_t left = bytes.len, length; left > 0; left -= length, at += length)
        if (*at == 0 || (length = kl__utf8_char(at, left)) == 0)
            return false;
    return true;
}

static json_t *encode(kl_bytes bytes)
{
    char *coded = kl__alloc((bytes.len + 2) / 3 * 4 + 1);
    if (!coded)
        return NULL;
    int length = EVP_EncodeBlock((unsigned char *)coded, bytes.data, (int)bytes.len);
    json_t *object = kl__json_object();
    bool made = kl__json_set(object, "base64", json_stringn(coded, (size_t)length));
    kl__free(coded);
    if (made)
        return object;
    json_decref(object);
    return NULL;
}

json_t *kl__json_bytes_value(kl_bytes bytes)
{
    kl__json_memory_begin();
    if (bytes.len == 0)
        return json_stringn("", 0);
    KL_ASSERT(bytes.len <= INT32_MAX / 2);
    return is_text(bytes) ? json_stringn(bytes.data, bytes.len) : encode(bytes);
}

bool kl__json_set(json_t *object, const char *field, json_t *value)
{
    return json_object_set_new(object, field, value) == 0;
}

bool kl__json_append(json_t *array, json_t *value) { return json_array_append_new(array, value) == 0; }

bool kl__json_set_int(json_t *object, const char *field, int64_t value)
{
    return kl__json_set(object, field, json_integer(value));
}

bool kl__json_set_bool(json_t *object, const char *field, bool value)
{
    return kl__json_set(object, field, json_boolean(value));
}

bool kl__json_set_text(json_t *object, const char *field, const char *text)
{
    return kl__json_set_bytes(object, field, kl_str(text));
}

bool kl__json_set_bytes(json_t *object, const char *field, kl_bytes bytes)
{
    return kl__json_set(object, field, kl__json_bytes_value(bytes));
}

bool kl__json_set_id(json_t *object, const char *field, const kl_task_id *id)
{
    char text[KL_ID_TEXT_BYTES];
    kl_id_print(id, text);
    return kl__json_set(object, field, json_string(text));
}

/* Printed twice, first to measure: texts are small, and so they are allocated once. Printing can only fail for want of
 * memory, because jansson remembers where it has been. */
kl_rc kl__json_print(const json_t *object, kl_arena *arena, kl_bytes *ret_text)
{
    size_t length = object ? json_dumpb(object, NULL, 0, JSON_COMPACT) : 0;
    char *text = length > 0 ? kl_arena_alloc(arena, length + 1) : NULL;
    if (!text || json_dumpb(object, text, length, JSON_COMPACT) != length)
        return kl__fail_memory();
    text[length] = 0;
    *ret_text = (kl_bytes){text, length};
    return KL_OK;
}
