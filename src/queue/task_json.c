/* task_json.c - a task to be put, from JSON. See task_json.h for its fields.
 *
 * A field that is not known is a mistake and not passed over: `"prioritiy": 1` would be lost in silence. */
#include "queue/task_json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/suggest.h"
#include "base/times.h"
#include "queue/json.h"

/* Longer ones are a mistake: this is some 270 years. */
enum { DAYS_MAX = 100000 };
#define DURATION_MS_MAX (INT64_C(86400000) * DAYS_MAX)

/* The object while it is read. */
struct reading {
    kl_arena *arena;
    kl_put *task;
    int64_t now_ms;
    kl_bytes payload; /* its text in the line, or empty: not known */
    const char *field;
    char *error;
    size_t error_room;
};

KL_PRINTF(2, 3) static bool refuse(const struct reading *reading, const char *format, ...)
{
    char clause[KL_LINE_ERROR_BYTES / 2];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(clause, sizeof clause, format, arguments);
    va_end(arguments);
    snprintf(reading->error, reading->error_room, "\"%.40s\" %s", reading->field, clause);
    return false;
}

/* ---- Values ---- */

static bool is_base64(const json_t *value)
{
    return json_is_object(value) && json_object_size(value) == 1 && json_is_string(json_object_get(value, "base64"));
}

static bool read_bytes(const struct reading *reading, const json_t *value, kl_bytes *ret_bytes)
{
    kl_bytes copy;
    if (json_is_string(value)) {
        if (!kl_arena_copy(reading->arena, (kl_bytes){json_string_value(value), json_string_length(value)}, &copy))
            return refuse(reading, "is too much for the memory there is");
        *ret_bytes = copy;
        return true;
    }
    if (!is_base64(value))
        return refuse(reading, "is no text; write \"...\", or {\"base64\": \"...\"} for other bytes");
    kl__json from = {.what = "the task"};
    copy = kl__json_bytes_of(&from, value, reading->field, reading->arena);
    if (from.rc != KL_OK)
        return refuse(reading, "is no base64; use the alphabet of RFC 4648 with its padding");
    *ret_bytes = copy;
    return true;
}

/* Texts in which a zero byte would hide the rest. */
static bool read_text(const struct reading *reading, const json_t *value, const char **ret_text)
{
    kl_bytes bytes;
    if (!read_bytes(reading, value, &bytes))
        return false;
    if (bytes.len && memchr(bytes.data, 0, bytes.len))
        return refuse(reading, "has a zero byte in it; take it out");
    *ret_text = bytes.len ? bytes.data : "";
    return true;
}

/* Text is the payload itself; anything else is stored as the JSON that it is, as it was written where that is known:
 * printed anew, 2.50 would be 2.5 and a long number another one. */
static bool read_payload(const struct reading *reading, const json_t *value, kl_bytes *ret_payload)
{
    if (json_is_string(value) || is_base64(value))
        return read_bytes(reading, value, ret_payload);
    if (reading->payload.len)
        return kl_arena_copy(reading->arena, reading->payload, ret_payload) ||
               refuse(reading, "is too much for the memory there is");
    size_t length = json_dumpb(value, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);
    char *text = kl_arena_alloc(reading->arena, length + 1);
    if (!text || json_dumpb(value, text, length, JSON_COMPACT | JSON_ENCODE_ANY) != length)
        return refuse(reading, "is too much for the memory there is");
    *ret_payload = (kl_bytes){text, length};
    return true;
}

static bool read_number(const struct reading *reading, const json_t *value, int64_t min, int64_t max, int64_t *ret)
{
    if (!json_is_integer(value) || json_integer_value(value) < min || json_integer_value(value) > max)
        return refuse(reading, "must be a whole number from %lld to %lld", (long long)min, (long long)max);
    *ret = json_integer_value(value);
    return true;
}

static bool read_duration(const struct reading *reading, const json_t *value, int64_t *ret_ms)
{
    int64_t ms;
    if (!json_is_string(value) || !kl__duration_parse(json_string_value(value), &ms) || ms == 0)
        return refuse(reading, "must be a duration such as \"250ms\", \"5s\", \"2m\", \"1h\" or \"7d\"");
    if (ms > DURATION_MS_MAX)
        return refuse(reading, "is longer than %dd; make it shorter", DAYS_MAX);
    *ret_ms = ms;
    return true;
}

/* "+5m" stays a delay, so that the same call made again is the same one. */
static bool read_time(const struct reading *reading, const json_t *value, kl_put *task)
{
    int64_t ms = json_integer_value(value); /* 0 of anything else */
    bool text = json_is_string(value) && kl__time_parse(json_string_value(value), reading->now_ms, &ms);
    if ((!text && !json_is_integer(value)) || ms <= 0)
        return refuse(reading,
                      "must be a time such as \"2026-11-15T18:00:00Z\" or \"+5m\", or milliseconds since 1970");
    if (ms > KL_ID_MS_MAX)
        return refuse(reading, "is after the year 2527; make it earlier");
    task->delay_ms = 0;
    bool delayed = text && kl__time_from_now(json_string_value(value), &task->delay_ms);
    task->due_ms = delayed ? 0 : ms;
    return true;
}

static bool read_headers(const struct reading *reading, json_t *value)
{
    const char *name;
    json_t *text;
    size_t count = 0;
    if (!json_is_object(value))
        return refuse(reading, "must be an object of texts: {\"name\": \"value\"}");
    kl_header *headers = kl_arena_alloc(reading->arena, (json_object_size(value) + 1) * sizeof *headers);
    if (!headers)
        return refuse(reading, "is too much for the memory there is");
    json_object_foreach(value, name, text)
    {
        if (!kl_arena_copy(reading->arena, kl_str(name), &headers[count].name))
            return refuse(reading, "is too much for the memory there is");
        if (!json_is_string(text) && !is_base64(text))
            return refuse(reading, "has values that are no texts; write {\"name\": \"value\"}");
        if (!read_bytes(reading, text, &headers[count].value))
            return false;
        count++;
    }
    reading->task->headers = headers;
    reading->task->header_count = count;
    return true;
}

static bool read_tags(const struct reading *reading, const json_t *value)
{
    if (!json_is_array(value))
        return refuse(reading, "must be an array of texts: [\"a\", \"b\"]");
    kl_bytes *tags = kl_arena_alloc(reading->arena, (json_array_size(value) + 1) * sizeof *tags);
    if (!tags)
        return refuse(reading, "is too much for the memory there is");
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!read_bytes(reading, json_array_get(value, i), &tags[i]))
            return false;
    reading->task->tags = tags;
    reading->task->tag_count = json_array_size(value);
    return true;
}

/* ---- Fields ---- */

enum field {
    KEY,
    KIND,
    GROUP,
    UNIQUE,
    TRACEPARENT,
    PAYLOAD,
    PRIORITY,
    ATTEMPTS,
    IN,
    AT,
    TIMEOUT,
    UNIQUE_FOR,
    HEADERS,
    TAGS,
    PARTITION,
    FIELDS
};

static const char *const names[FIELDS] = {
    [KEY] = "key",
    [KIND] = "kind",
    [GROUP] = "group",
    [UNIQUE] = "unique",
    [TRACEPARENT] = "traceparent",
    [PAYLOAD] = "payload",
    [PRIORITY] = "priority",
    [ATTEMPTS] = "attempts",
    [IN] = "in",
    [AT] = "at",
    [TIMEOUT] = "timeout",
    [UNIQUE_FOR] = "unique_for",
    [HEADERS] = "headers",
    [TAGS] = "tags",
    [PARTITION] = "partition",
};

static enum field find_field(const char *name)
{
    int field = 0;
    while (field < FIELDS && strcmp(names[field], name) != 0)
        field++;
    return (enum field)field;
}

static bool refuse_field(const struct reading *reading)
{
    const char *closest = NULL;
    for (int i = 0; i < FIELDS; i++)
        closest = kl__closer(reading->field, closest, names[i]);
    if (closest)
        return refuse(reading, "is no field of a task; did you mean \"%s\"?", closest);
    return refuse(reading, "is no field of a task; there are key, payload, kind, priority, in, at and others");
}

static bool read_field(const struct reading *reading, enum field field, json_t *value)
{
    kl_put *task = reading->task;
    switch (field) {
    case KEY:
        return read_bytes(reading, value, &task->key);
    case KIND:
        return read_bytes(reading, value, &task->kind);
    case GROUP:
        return read_bytes(reading, value, &task->group);
    case UNIQUE:
        return read_bytes(reading, value, &task->unique);
    case TRACEPARENT:
        return read_bytes(reading, value, &task->traceparent);
    case PAYLOAD:
        return read_payload(reading, value, &task->payload);
    case PRIORITY:
        return read_number(reading, value, KL_PRIORITY_MIN, KL_PRIORITY_MAX, &task->priority);
    case ATTEMPTS:
        return read_number(reading, value, 1, KL_ATTEMPTS_MAX, &task->attempts_max);
    case IN:
        task->due_ms = 0;
        return read_duration(reading, value, &task->delay_ms);
    case AT:
        return read_time(reading, value, task);
    case TIMEOUT:
        return read_duration(reading, value, &task->timeout_ms);
    case UNIQUE_FOR:
        return read_duration(reading, value, &task->unique_ms);
    case HEADERS:
        return read_headers(reading, value);
    case TAGS:
        return read_tags(reading, value);
    case PARTITION:
        return read_text(reading, value, &task->partition);
    default:
        return refuse_field(reading);
    }
}

static bool is_given(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return value && !json_is_null(value);
}

static bool read_fields(struct reading *reading, json_t *object)
{
    const char *name;
    json_t *value;
    if (is_given(object, "in") && is_given(object, "at")) {
        reading->field = "in";
        return refuse(reading, "and \"at\" both say when; keep one of the two");
    }
    json_object_foreach(object, name, value)
    {
        enum field field = find_field(name);
        reading->field = name;
        if (json_is_null(value) && field != PAYLOAD && field != FIELDS)
            continue; /* as it is shown where there is none */
        if (!read_field(reading, field, value))
            return false;
    }
    reading->field = "unique_for";
    if (reading->task->unique_ms > 0 && reading->task->unique.len == 0)
        return refuse(reading, "says for how long, but there is no \"unique\"; add that, or leave both out");
    return true;
}

static bool refuse_form(char *error, size_t room, const char *reason)
{
    snprintf(error, room, "it is not one JSON object such as {\"key\": \"a\", \"payload\": \"b\"}%s%s",
             *reason ? ": " : "", reason);
    return false;
}

static bool take(json_t *object, int64_t now_ms, kl_bytes payload, kl_arena *arena, kl_put *task, char *ret_error,
                 size_t room)
{
    struct reading reading = {
        .arena = arena, .task = task, .now_ms = now_ms, .payload = payload, .error = ret_error, .error_room = room};
    return json_is_object(object) ? read_fields(&reading, object) : refuse_form(ret_error, room, "");
}

bool kl__task_take(json_t *object, int64_t now_ms, kl_arena *arena, kl_put *task, char *ret_error, size_t room)
{
    return take(object, now_ms, (kl_bytes){0}, arena, task, ret_error, room);
}

/* ---- Lines ---- */

/* Behind the string that begins here, or the line's end. */
static const char *pass_string(const char *at, const char *end)
{
    for (at++; at < end && *at != '"'; at++)
        at += *at == '\\' && at + 1 < end;
    return at < end ? at + 1 : end;
}

/* Behind the value that begins here: at the comma or bracket that ends it, blanks before that included. */
static const char *pass_value(const char *at, const char *end)
{
    size_t depth = 0;
    while (at < end) {
        if (*at == '"') {
            at = pass_string(at, end);
            continue;
        }
        if (depth == 0 && (*at == ',' || *at == '}'))
            break;
        depth += *at == '{' || *at == '[';
        depth -= (*at == '}' || *at == ']') && depth > 0;
        at++;
    }
    return at;
}

static const char *pass_blanks(const char *at, const char *end)
{
    while (at < end && memchr(" \t\r\n", *at, 4))
        at++;
    return at;
}

/* Where the value of the field "payload" stands in a line that may be no JSON at all; empty: not found. */
static kl_bytes find_payload(kl_bytes line)
{
    static const char name[] = "\"payload\"";
    const char *at = line.data, *end = at + line.len;
    at = pass_blanks(at, end);
    while (at < end && (*at == '{' || *at == ',')) {
        const char *key = pass_blanks(at + 1, end);
        if (key == end || *key != '"')
            break;
        const char *behind = pass_string(key, end), *colon = pass_blanks(behind, end);
        if (colon == end || *colon != ':')
            break;
        const char *value = pass_blanks(colon + 1, end);
        at = pass_value(value, end);
        if ((size_t)(behind - key) != sizeof name - 1 || memcmp(key, name, sizeof name - 1) != 0)
            continue;
        const char *last = at;
        while (last > value && memchr(" \t\r\n", last[-1], 4))
            last--;
        return (kl_bytes){value, (size_t)(last - value)};
    }
    return (kl_bytes){0};
}

enum { LOAD_FLAGS = JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES | JSON_DECODE_ANY };

/* A line with numbers that no integer holds, which is fine inside a payload: that is checked by itself, and the rest
 * without it. NULL: the line is wrong. */
static json_t *load_around(kl_bytes line, kl_bytes payload, json_error_t *wrong)
{
    size_t from = payload.len ? (size_t)((const char *)payload.data - (const char *)line.data) : 0;
    char *copy = payload.len ? kl__alloc(line.len) : NULL;
    if (!copy)
        return NULL;
    json_t *alone = json_loadb(payload.data, payload.len, LOAD_FLAGS | JSON_DECODE_INT_AS_REAL, wrong);
    memcpy(copy, line.data, line.len);
    memset(copy + from, ' ', payload.len);
    copy[from] = '0';
    json_t *object = alone ? json_loadb(copy, line.len, LOAD_FLAGS, wrong) : NULL;
    json_decref(alone);
    kl__free(copy);
    return object;
}

bool kl__task_read(kl_bytes line, int64_t now_ms, kl_arena *arena, kl_put *task, char ret_error[KL_LINE_ERROR_BYTES])
{
    json_error_t wrong;
    if (line.len > KL_LINE_BYTES_MAX) {
        snprintf(ret_error, KL_LINE_ERROR_BYTES, "it has more than %d bytes, which is the most that a line may have",
                 KL_LINE_BYTES_MAX);
        return false;
    }
    kl_bytes payload = find_payload(line);
    json_t *object = json_loadb(line.data, line.len, LOAD_FLAGS, &wrong);
    if (!object && json_error_code(&wrong) == json_error_numeric_overflow)
        object = load_around(line, payload, &wrong);
    bool read = object ? take(object, now_ms, payload, arena, task, ret_error, KL_LINE_ERROR_BYTES)
                       : refuse_form(ret_error, KL_LINE_ERROR_BYTES, wrong.text);
    json_decref(object);
    return read;
}
