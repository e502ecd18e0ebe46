/* body.c - what stands in objects: JSON that people can read.
 *
 * Bytes are a string where they are text, and base64 under a name that ends in 64 where they are not. Numbers that may
 * exceed 53 bits (positions, versions, epochs) are strings of hex digits. */
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json_memory.h"
#include "store/s3/s3.h"

/* --- Writing --- */

/* How many bytes the character at `at` takes; 0: it is none of UTF-8, or a control character. */
static size_t char_at(const unsigned char *at, size_t left)
{
    if (*at < 0x80)
        return *at >= 0x20 || *at == '\n' || *at == '\t' || *at == '\r' ? (*at == 0x7f ? 0 : 1) : 0;
    size_t len = *at >= 0xf0 && *at < 0xf5 ? 4 : *at >= 0xe0 ? 3 : *at >= 0xc2 ? 2 : 0;
    if (*at >= 0xf5 || len == 0 || len > left)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xf0 && at[1] < 0x90);
    bool outside = (at[0] == 0xed && at[1] >= 0xa0) || (at[0] == 0xf4 && at[1] >= 0x90);
    return overlong || outside ? 0 : len;
}

static bool is_text(kl_bytes bytes)
{
    const unsigned char *at = bytes.data;
    for (size_t i = 0, len; i < bytes.len; i += len)
        if ((len = char_at(at + i, bytes.len - i)) == 0)
            return false;
    return true;
}

void kl__s3_put_string(kl__s3_text *text, kl_bytes bytes)
{
    const char *at = bytes.data;
    size_t from = 0;
    kl__s3_text_add(text, "\"", 1);
    for (size_t i = 0; i < bytes.len; i++) {
        if (at[i] != '"' && at[i] != '\\' && (unsigned char)at[i] >= 0x20)
            continue;
        kl__s3_text_add(text, at + from, i - from);
        const char *escape = at[i] == '\n' ? "\\n" : at[i] == '\t' ? "\\t" : at[i] == '\r' ? "\\r" : NULL;
        if (escape)
            kl__s3_text_add(text, escape, 2);
        else
            kl__s3_text_put(text, "\\%c", at[i]);
        from = i + 1;
    }
    kl__s3_text_add(text, at + from, bytes.len - from);
    kl__s3_text_add(text, "\"", 1);
}

static void put_base64(kl__s3_text *text, kl_bytes bytes)
{
    enum { PIECE = 3000 };
    unsigned char piece[PIECE / 3 * 4 + 1];
    const unsigned char *at = bytes.data;
    for (size_t i = 0; i < bytes.len; i += PIECE) {
        size_t len = bytes.len - i < PIECE ? bytes.len - i : PIECE;
        int made = EVP_EncodeBlock(piece, at + i, (int)len);
        kl__s3_text_add(text, piece, (size_t)made);
    }
}

void kl__s3_put_bytes(kl__s3_text *text, const char *name, kl_bytes bytes)
{
    if (bytes.len == 0)
        return;
    if (is_text(bytes)) {
        kl__s3_text_put(text, ",\"%s\":", name);
        kl__s3_put_string(text, bytes);
        return;
    }
    kl__s3_text_put(text, ",\"%s64\":\"", name);
    put_base64(text, bytes);
    kl__s3_text_add(text, "\"", 1);
}

void kl__s3_put_id(kl__s3_text *text, const char *name, const kl_task_id *id)
{
    char printed[KL_ID_TEXT_BYTES];
    kl_id_print(id, printed);
    kl__s3_text_put(text, "\"%s\":\"%s\"", name, printed);
}

void kl__s3_put_token(kl__s3_text *text, const kl_token *token)
{
    for (size_t i = 0; i < sizeof token->bytes; i++)
        kl__s3_text_put(text, "%02x", token->bytes[i]);
}

void kl__s3_put_entry(kl__s3_text *text, const kl_entry *entry)
{
    kl__s3_put_id(text, "id", &entry->id);
    if (!kl__id_is_none(&entry->job)) {
        kl__s3_text_add(text, ",", 1);
        kl__s3_put_id(text, "job", &entry->job);
    }
    if (entry->priority)
        kl__s3_text_put(text, ",\"priority\":%d", (int)entry->priority);
    if (entry->due_ms)
        kl__s3_text_put(text, ",\"due_ms\":%lld", (long long)entry->due_ms);
    if (entry->group)
        kl__s3_text_put(text, ",\"group\":%u", (unsigned)entry->group);
    kl__s3_put_bytes(text, "key", entry->key);
    kl__s3_put_bytes(text, "kind", entry->kind);
    kl__s3_put_bytes(text, "headers", entry->headers);
    kl__s3_put_bytes(text, "payload", entry->payload);
}

/* --- Reading --- */

kl_rc kl__s3_parse_json(const kl__s3_text *text, json_t **ret_root)
{
    json_error_t error;
    kl__json_memory_begin();
    json_t *root = json_loadb(text->data ? text->data : "", text->len, 0, &error);
    if (kl__json_memory_refused() || (!root && json_error_code(&error) == json_error_out_of_memory)) {
        json_decref(root); /* it may lack what there was no memory for */
        return KL_ENOMEM;
    }
    if (!root)
        return KL_EDAMAGED;
    if (json_integer_value(json_object_get(root, "keyline")) != KL_S3_FORMAT) {
        json_decref(root);
        return KL_EDAMAGED;
    }
    *ret_root = root;
    return KL_OK;
}

json_t *kl__s3_parse(const kl__s3_text *text)
{
    json_t *root = NULL;
    return kl__s3_parse_json(text, &root) == KL_OK ? root : NULL;
}

bool kl__s3_get_int(const json_t *object, const char *name, int64_t *ret_value)
{
    const json_t *value = json_object_get(object, name);
    *ret_value = value ? json_integer_value(value) : 0;
    return !value || json_is_integer(value);
}

bool kl__s3_get_hex(const json_t *object, const char *name, uint64_t *ret_value)
{
    const json_t *value = json_object_get(object, name);
    const char *text = json_string_value(value);
    char *end = NULL;
    *ret_value = text ? strtoull(text, &end, 16) : 0;
    return !value || (text && end != text && *end == '\0');
}

int kl__s3_hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* 32 hex digits, with hyphens wherever. */
bool kl__s3_read_16(const char *text, uint8_t ret_bytes[16])
{
    size_t digits = 0;
    for (; *text; text++) {
        int digit = kl__s3_hex_digit(*text);
        if (*text == '-')
            continue;
        if (digit < 0 || digits == 32)
            return false;
        ret_bytes[digits / 2] = (uint8_t)(digits % 2 ? ret_bytes[digits / 2] | digit : digit << 4);
        digits++;
    }
    return digits == 32;
}

bool kl__s3_get_id(const json_t *object, const char *name, kl_task_id *ret_id)
{
    const char *text = json_string_value(json_object_get(object, name));
    *ret_id = (kl_task_id){{0}};
    return !text || kl__s3_read_16(text, ret_id->bytes);
}

bool kl__s3_get_token(const json_t *object, const char *name, kl_token *ret_token, bool *ret_there)
{
    const char *text = json_string_value(json_object_get(object, name));
    *ret_there = text != NULL;
    return !text || kl__s3_read_16(text, ret_token->bytes);
}

static bool decode_base64(kl_bytes text, kl_arena *arena, kl_bytes *ret_bytes)
{
    if (text.len % 4 != 0)
        return false;
    unsigned char *bytes = kl_arena_alloc(arena, text.len / 4 * 3 + 1);
    int len = bytes && text.len ? EVP_DecodeBlock(bytes, text.data, (int)text.len) : -1;
    if (len < 0)
        return false;
    const char *last = (const char *)text.data + text.len;
    len -= (last[-1] == '=') + (last[-2] == '=');
    bytes[len] = '\0';
    *ret_bytes = (kl_bytes){bytes, (size_t)len};
    return true;
}

bool kl__s3_get_bytes(const json_t *object, const char *name, kl_arena *arena, kl_bytes *ret_bytes)
{
    char name64[32];
    const json_t *value = json_object_get(object, name);
    *ret_bytes = (kl_bytes){"", 0};
    if (value)
        return json_is_string(value) &&
               kl_arena_copy(arena, (kl_bytes){json_string_value(value), json_string_length(value)}, ret_bytes);
    snprintf(name64, sizeof name64, "%s64", name);
    value = json_object_get(object, name64);
    return !value || (json_is_string(value) &&
                      decode_base64((kl_bytes){json_string_value(value), json_string_length(value)}, arena, ret_bytes));
}

bool kl__s3_get_entry(const json_t *object, kl_place place, kl_arena *arena, kl_entry *ret_entry)
{
    int64_t priority, group;
    *ret_entry = (kl_entry){.place = place};
    bool good = json_is_object(object) && kl__s3_get_id(object, "id", &ret_entry->id) &&
                kl__s3_get_id(object, "job", &ret_entry->job) && kl__s3_get_int(object, "priority", &priority) &&
                kl__s3_get_int(object, "due_ms", &ret_entry->due_ms) && kl__s3_get_int(object, "group", &group) &&
                kl__s3_get_bytes(object, "key", arena, &ret_entry->key) &&
                kl__s3_get_bytes(object, "kind", arena, &ret_entry->kind) &&
                kl__s3_get_bytes(object, "headers", arena, &ret_entry->headers) &&
                kl__s3_get_bytes(object, "payload", arena, &ret_entry->payload);
    if (!good || priority < KL_PRIORITY_MIN || priority > KL_PRIORITY_MAX || group < 0 || group > UINT16_MAX)
        return false;
    ret_entry->priority = (int32_t)priority;
    ret_entry->group = (uint16_t)group;
    return true;
}

bool kl__s3_has_nonce(const kl__s3_text *body, uint64_t nonce)
{
    char text[40];
    snprintf(text, sizeof text, "\"nonce\":\"%016llx\"", (unsigned long long)nonce);
    return body->len && memmem(body->data, body->len < 200 ? body->len : 200, text, strlen(text));
}
