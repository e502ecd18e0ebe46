/* api_body.c - what a request says: parameters of its query, the JSON of its body, parts of its path. See api.h.
 *
 * Nothing is passed over in silence: a parameter or field that nobody asks for is refused, because a misspelt one would
 * otherwise do nothing. */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/suggest.h"
#include "base/times.h"
#include "net/api.h"

KL_PRINTF(2, 3) static void complain(kl__exchange *exchange, const char *format, ...)
{
    va_list arguments;
    if (exchange->failed)
        return;
    exchange->failed = true;
    va_start(arguments, format);
    vsnprintf(exchange->complaint, sizeof exchange->complaint, format, arguments);
    va_end(arguments);
}

static bool is(kl_bytes bytes, const char *text)
{
    return bytes.len == strlen(text) && memcmp(bytes.data, text, bytes.len) == 0;
}

/* ---- The query ---- */

static kl__param *find_param(kl__exchange *exchange, const char *name)
{
    for (size_t i = 0; i < exchange->param_count; i++)
        if (is(exchange->params[i].name, name))
            return &exchange->params[i];
    return NULL;
}

/* As text with a zero byte behind; NULL: it is not there, or there is no memory, which is complained of. */
static const char *take_param(kl__exchange *exchange, const char *name, kl_bytes *ret_value)
{
    kl__param *param = find_param(exchange, name);
    if (!param)
        return NULL;
    param->used = true;
    if (kl_arena_copy(exchange->arena, param->value, ret_value))
        return ret_value->data;
    complain(exchange, "there is no memory for the parameter %s; make the request again in a moment", name);
    return NULL;
}

kl_bytes kl__param_text(kl__exchange *exchange, const char *name)
{
    kl_bytes value;
    return take_param(exchange, name, &value) ? value : (kl_bytes){"", 0};
}

static bool parse_int(kl_bytes value, int64_t *ret_number)
{
    char *end;
    const char *text = value.data;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (value.len == 0 || errno || end != text + value.len || isspace((unsigned char)*text) || *text == '+')
        return false;
    *ret_number = number;
    return true;
}

int64_t kl__param_int(kl__exchange *exchange, const char *name, int64_t min, int64_t max, int64_t otherwise)
{
    kl_bytes value;
    int64_t number;
    const char *text = take_param(exchange, name, &value);
    if (!text)
        return otherwise;
    if (parse_int(value, &number) && number >= min && number <= max)
        return number;
    complain(exchange, "the parameter %s is '%.40s'; give it a whole number from %lld to %lld", name, text,
             (long long)min, (long long)max);
    return otherwise;
}

bool kl__param_flag(kl__exchange *exchange, const char *name)
{
    kl_bytes value;
    const char *text = take_param(exchange, name, &value);
    if (!text || is(value, "false") || is(value, "0"))
        return false;
    if (value.len == 0 || is(value, "true") || is(value, "1"))
        return true;
    complain(exchange, "the parameter %s is '%.40s'; give it true or false", name, text);
    return false;
}

/* RFC 3339, a distance from now, or milliseconds. */
static bool parse_time(kl_bytes value, int64_t *ret_ms)
{
    int64_t ms;
    if (memchr(value.data, 0, value.len))
        return false;
    if (!parse_int(value, &ms) && !kl__time_parse(value.data, kl__wall_ms(), &ms))
        return false;
    *ret_ms = ms;
    return ms > 0;
}

int64_t kl__param_time(kl__exchange *exchange, const char *name)
{
    kl_bytes value;
    int64_t ms;
    const char *text = take_param(exchange, name, &value);
    if (!text)
        return 0;
    if (parse_time(value, &ms))
        return ms;
    complain(exchange, "the parameter %s is '%.40s'; give it a time such as 2026-11-15T18:00:00Z or -1h", name, text);
    return 0;
}

int kl__param_choice(kl__exchange *exchange, const char *name, const char *choices)
{
    kl_bytes value;
    int number = 1;
    const char *text = take_param(exchange, name, &value);
    if (!text)
        return 0;
    for (const char *at = choices; at; number++) {
        size_t length = strcspn(at, "|");
        if (value.len == length && memcmp(value.data, at, length) == 0)
            return number;
        at = at[length] ? at + length + 1 : NULL;
    }
    complain(exchange, "the parameter %s is '%.40s'; give it one of %s", name, text, choices);
    return 0;
}

kl_task_id kl__param_id(kl__exchange *exchange, const char *name)
{
    kl_bytes value;
    kl_task_id id = {{0}};
    const char *text = take_param(exchange, name, &value);
    if (text && kl_id_parse(value, &id) != KL_OK)
        complain(exchange,
                 "the parameter %s is '%.40s', which is no id; write its 36 characters, as they were answered", name,
                 text);
    return id;
}

/* Whether one of the same name before it was asked for. */
static bool is_repeat(const kl__exchange *exchange, const kl__param *param)
{
    for (const kl__param *other = exchange->params; other < param; other++)
        if (other->name.len == param->name.len && memcmp(other->name.data, param->name.data, param->name.len) == 0)
            return other->used;
    return false;
}

bool kl__params_refused(kl__exchange *exchange)
{
    for (size_t i = 0; i < exchange->param_count && !exchange->failed; i++) {
        const kl__param *param = &exchange->params[i];
        int length = param->name.len < 40 ? (int)param->name.len : 40;
        if (!param->used && is_repeat(exchange, param))
            complain(exchange, "the parameter %.*s is there twice; keep one of them", length,
                     (const char *)param->name.data);
        else if (!param->used)
            complain(exchange, "there is no parameter '%.*s' here; leave it out, or see /openapi.json", length,
                     (const char *)param->name.data);
    }
    if (!exchange->failed)
        return false;
    kl__reply_problem(exchange, 400, "bad-request", "%s", exchange->complaint);
    return true;
}

/* ---- The body ---- */

bool kl__body_is(const kl__exchange *exchange, const char *type)
{
    kl_bytes value = kl__head_field(&exchange->request->head, "content-type");
    size_t length = strlen(type);
    return value.len >= length && strncasecmp(value.data, type, length) == 0 &&
           (value.len == length || strchr("; \t", ((const char *)value.data)[length]));
}

/* NULL: all of them are known. */
static const char *unknown_field(json_t *object, const char *const *fields, const char **ret_closest)
{
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        const char *closest = NULL;
        const char *const *field = fields;
        for (; *field && strcmp(*field, name) != 0; field++)
            closest = kl__closer(name, closest, *field);
        *ret_closest = closest;
        if (!*field)
            return name;
    }
    return NULL;
}

void kl__body_known(kl__json *from, const char *const *fields)
{
    const char *closest = NULL, *name = fields ? unknown_field(from->object, fields, &closest) : NULL;
    if (!name || from->rc != KL_OK)
        return;
    if (closest)
        from->rc =
            kl__fail(KL_EINVAL, "%s: \"%.40s\" is no field here; did you mean \"%s\"?", from->what, name, closest);
    else if (*fields)
        from->rc = kl__fail(KL_EINVAL, "%s: \"%.40s\" is no field here; see /openapi.json", from->what, name);
    else
        from->rc = kl__fail(KL_EINVAL, "%s: \"%.40s\" is no field here; send no body", from->what, name);
}

static bool check_type(kl__exchange *exchange)
{
    kl_bytes type = kl__head_field(&exchange->request->head, "content-type");
    if (exchange->request->body.len == 0 || type.len == 0 || kl__body_is(exchange, "application/json"))
        return true;
    kl__reply_problem(exchange, 415, "unsupported-type", "the body is said to be %.*s; send Content-Type: %s",
                      (int)(type.len < 80 ? type.len : 80), (const char *)type.data, "application/json");
    return false;
}

bool kl__body_json(kl__exchange *exchange, const char *const *fields, kl__json *ret_body)
{
    kl__json body;
    kl_bytes text = exchange->request->body.len ? exchange->request->body : kl_str("{}");
    if (!check_type(exchange))
        return false;
    kl_rc rc = kl__json_parse_given(text, KL_BODY_DEPTH_MAX, "the body", &body);
    if (rc != KL_OK) {
        kl__reply_rc(exchange, rc);
        return false;
    }
    kl__body_known(&body, fields);
    if (body.rc != KL_OK) {
        kl__reply_rc(exchange, body.rc);
        kl__json_free(&body);
        return false;
    }
    *ret_body = body;
    return true;
}

kl_bytes kl__body_any(kl__json *body, const char *field, kl_arena *arena)
{
    const size_t flags = JSON_COMPACT | JSON_ENCODE_ANY;
    const json_t *value = json_object_get(body->object, field);
    if (!kl__json_has(body, field))
        return (kl_bytes){0};
    if (json_is_string(value) || (json_object_size(value) == 1 && json_object_get(value, "base64")))
        return kl__json_bytes_of(body, value, field, arena);
    size_t length = json_dumpb(value, NULL, 0, flags);
    char *text = kl_arena_alloc(arena, length + 1);
    if (text && length && json_dumpb(value, text, length, flags) == length)
        return (kl_bytes){text, length};
    body->rc = body->rc == KL_OK ? kl__fail_memory() : body->rc;
    return (kl_bytes){0};
}

bool kl__body_refused(kl__exchange *exchange, kl__json *body)
{
    bool failed = body->rc != KL_OK;
    kl__json_free(body);
    if (failed)
        kl__reply_rc(exchange, body->rc);
    return failed;
}

bool kl__body_none(kl__exchange *exchange)
{
    static const char *const none[] = {NULL};
    kl__json body;
    if (kl__params_refused(exchange) || !kl__body_json(exchange, none, &body))
        return false;
    kl__json_free(&body);
    return true;
}

int64_t kl__body_time(kl__json *body, const char *field)
{
    const json_t *value = json_object_get(body->object, field);
    kl_bytes text = {json_string_value(value), json_string_length(value)};
    int64_t ms = json_integer_value(value); /* 0 of anything else */
    if (!kl__json_has(body, field) || ms > 0 || (text.len > 0 && parse_time(text, &ms)))
        return ms;
    kl__json_damaged(body, field, "is no time such as \"2026-11-15T18:00:00Z\" or \"-1h\"");
    return 0;
}

/* ---- The path ---- */

const char *kl__part_text(const kl__exchange *exchange, size_t part) { return exchange->parts[part].data; }

bool kl__part_id(kl__exchange *exchange, size_t part, kl_task_id *ret_id)
{
    if (kl_id_parse(exchange->parts[part], ret_id) == KL_OK)
        return true;
    kl__reply_problem(exchange, 400, "bad-request", "'%.40s' is no id; write its 36 characters, as they were answered",
                      kl__part_text(exchange, part));
    return false;
}
