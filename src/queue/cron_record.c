/* cron_record.c - a schedule as its record keeps it, and what may stand in one.
 *
 * From: cron.c.  To: json.c.
 *
 *     cron/QUEUE/NAME   {"when": "0 3 * * *", "zone": "Europe/Zurich", "catch_up": "one", "paused": false,
 *                        "next_ms": n, "last_ms": n, "behind": n,
 *                        "firing": {"tick_ms": n, "layout": n, "id": "...", "since_ms": n, "nonce": n},
 *                        "task": {"key": ..., "kind": ..., "payload": ..., "headers": [{"name": ..., "value": ...}],
 *                                 "tags": [...], ...}}
 *
 * "firing" is there only while a tick is being fired. What a task does not state is left out. */
#include <stdio.h>

#include "base/layout.h"
#include "keyline/exec.h" /* KL_FOREVER */
#include "queue/cron.h"
#include "queue/json.h"
#include "queue/put.h"

static const char *const catch_ups[] = {"", "none", "one", "all"};

enum { CATCH_UPS = sizeof catch_ups / sizeof catch_ups[0] };

/* The bytes of a task that a schedule keeps. */
static const struct {
    const char *name;
    size_t offset;
    size_t max;
} parts[] = {
    {"key", offsetof(kl_put, key), KL_KEY_BYTES_MAX},
    {"kind", offsetof(kl_put, kind), KL_KIND_BYTES_MAX},
    {"payload", offsetof(kl_put, payload), KL_PAYLOAD_BYTES_MAX},
    {"group", offsetof(kl_put, group), KL_GROUP_BYTES_MAX},
    {"traceparent", offsetof(kl_put, traceparent), KL_HEADERS_BYTES_MAX},
};

/* Its numbers; 0: not stated. */
static const struct {
    const char *name;
    size_t offset;
    int64_t min, max;
} numbers[] = {
    {"priority", offsetof(kl_put, priority), KL_PRIORITY_MIN, KL_PRIORITY_MAX},
    {"attempts_max", offsetof(kl_put, attempts_max), 0, KL_ATTEMPTS_MAX},
    {"timeout_ms", offsetof(kl_put, timeout_ms), 0, KL_FOREVER},
    {"keep_ms", offsetof(kl_put, keep_ms), 0, KL_ID_MS_MAX},
};

enum { PARTS = sizeof parts / sizeof parts[0], NUMBERS = sizeof numbers / sizeof numbers[0] };

static kl_bytes *part_of(kl_put *task, size_t i) { return (kl_bytes *)(void *)((char *)task + parts[i].offset); }

static int64_t *number_of(kl_put *task, size_t i) { return (int64_t *)(void *)((char *)task + numbers[i].offset); }

/* --- Checking --- */

static bool is_name(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    size_t length = name ? strlen(name) : 0;
    return length > 0 && length <= KL_CRON_NAME_MAX && strspn(name, letters) > 0 &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == length;
}

kl_rc kl__cron_check_name(const char *name)
{
    char quoted[KL_QUOTE_BYTES];
    if (is_name(name))
        return KL_OK;
    return kl__fail(KL_EINVAL,
                    "%s is no name for a schedule: write 1 to %d letters, digits, '.', '_' and '-', beginning with a "
                    "letter or digit",
                    kl__quote(kl_str(name), quoted), KL_CRON_NAME_MAX);
}

/* Fields that are not used may say anything. Room for the two headers that a task gets is left. */
static kl_rc check_task(const char *name, const kl_put *task)
{
    char why[512];
    kl_put used = *task;
    used.delay_ms = used.due_ms = used.unique_ms = used.job_run = 0;
    used.unique = (kl_bytes){"", 0};
    kl_rc rc = kl__put_check(&used);
    if (rc == KL_OK && task->header_count > KL_HEADERS_MAX - KL_CRON_HEADERS)
        rc = kl__fail(KL_EINVAL, "header_count is %zu; write 0 to %d, for it gets %d more", task->header_count,
                      KL_HEADERS_MAX - KL_CRON_HEADERS, KL_CRON_HEADERS);
    if (rc == KL_OK)
        return KL_OK;
    snprintf(why, sizeof why, "%s", kl_error_text());
    return kl__fail(rc, "the task of the schedule %s: %s", name, why);
}

kl_rc kl__cron_check(const kl_cron *cron)
{
    kl_rc rc = kl__cron_check_name(cron->name);
    if (rc != KL_OK)
        return rc;
    if ((unsigned)cron->catch_up >= CATCH_UPS)
        return kl__fail(KL_EINVAL, "the schedule %s: catch_up is %d; write one of KL_CATCH_UP_NONE, ONE and ALL",
                        cron->name, (int)cron->catch_up);
    return check_task(cron->name, &cron->task);
}

/* --- Writing --- */

static json_t *print_headers(const kl_put *task)
{
    json_t *array = kl__json_array();
    for (size_t i = 0; i < task->header_count; i++) {
        json_t *header = kl__json_object();
        bool set = kl__json_set_bytes(header, "name", task->headers[i].name) &&
                   kl__json_set_bytes(header, "value", task->headers[i].value);
        if (!kl__json_append(array, header) || !set) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static json_t *print_tags(const kl_put *task)
{
    json_t *array = kl__json_array();
    for (size_t i = 0; i < task->tag_count; i++) {
        if (!kl__json_append(array, kl__json_bytes_value(task->tags[i]))) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static json_t *print_task(const kl_put *task)
{
    json_t *object = kl__json_object();
    kl_put copy = *task;
    bool set = object != NULL;
    for (size_t i = 0; set && i < PARTS; i++)
        if (part_of(&copy, i)->len > 0)
            set = kl__json_set_bytes(object, parts[i].name, *part_of(&copy, i));
    for (size_t i = 0; set && i < NUMBERS; i++)
        if (*number_of(&copy, i) != 0)
            set = kl__json_set_int(object, numbers[i].name, *number_of(&copy, i));
    if (set && task->header_count > 0)
        set = kl__json_set(object, "headers", print_headers(task));
    if (set && task->tag_count > 0)
        set = kl__json_set(object, "tags", print_tags(task));
    if (set)
        return object;
    json_decref(object);
    return NULL;
}

static json_t *print_firing(const kl__firing *firing)
{
    json_t *object = kl__json_object();
    if (kl__json_set_int(object, "tick_ms", firing->tick_ms) &&
        kl__json_set_int(object, "layout", (int64_t)firing->layout) && kl__json_set_id(object, "id", &firing->id) &&
        kl__json_set_int(object, "since_ms", firing->since_ms) && kl__json_set_int(object, "nonce", firing->nonce))
        return object;
    json_decref(object);
    return NULL;
}

static bool print_schedule(json_t *object, const kl__schedule *schedule)
{
    const kl_cron *cron = &schedule->cron;
    bool set =
        kl__json_set_text(object, "when", cron->when) && kl__json_set_text(object, "zone", cron->zone) &&
        kl__json_set_text(object, "catch_up", catch_ups[cron->catch_up]) &&
        kl__json_set_bool(object, "paused", cron->paused) && kl__json_set_int(object, "next_ms", cron->next_ms) &&
        kl__json_set_int(object, "last_ms", cron->last_ms) && kl__json_set_int(object, "behind", schedule->behind);
    if (set && schedule->firing.tick_ms != 0)
        set = kl__json_set(object, "firing", print_firing(&schedule->firing));
    return set && kl__json_set(object, "task", print_task(&cron->task));
}

kl_rc kl__schedule_encode(const kl__schedule *schedule, kl_arena *arena, kl_bytes *ret_value)
{
    json_t *object = kl__json_object();
    kl_rc rc = print_schedule(object, schedule) ? kl__json_print(object, arena, ret_value) : kl__fail_memory();
    json_decref(object);
    return rc;
}

/* --- Reading --- */

static void read_headers(kl__json *from, kl_arena *arena, kl_put *task)
{
    json_t *array = kl__json_array_of(from, "headers", KL_HEADERS_MAX - KL_CRON_HEADERS);
    size_t count = json_array_size(array);
    kl_header *headers = kl_arena_alloc(arena, (count + 1) * sizeof *headers);
    if (!headers) {
        from->rc = kl__fail_memory();
        return;
    }
    for (size_t i = 0; from->rc == KL_OK && i < count; i++) {
        kl__json item = kl__json_item(from, array, i);
        headers[i].name = kl__json_bytes(&item, "name", arena);
        headers[i].value = kl__json_bytes(&item, "value", arena);
        from->rc = item.rc;
    }
    task->headers = headers;
    task->header_count = count;
}

static void read_tags(kl__json *from, kl_arena *arena, kl_put *task)
{
    json_t *array = kl__json_array_of(from, "tags", KL_TAGS_MAX);
    size_t count = json_array_size(array);
    kl_bytes *tags = kl_arena_alloc(arena, (count + 1) * sizeof *tags);
    if (!tags) {
        from->rc = kl__fail_memory();
        return;
    }
    for (size_t i = 0; i < count; i++)
        tags[i] = kl__json_bytes_of(from, json_array_get(array, i), "tags", arena);
    task->tags = tags;
    task->tag_count = count;
}

static kl_rc read_task(kl__json *from, kl_arena *arena, kl_put *task)
{
    for (size_t i = 0; i < PARTS; i++) {
        *part_of(task, i) = kl__json_bytes_or(from, parts[i].name, arena, (kl_bytes){"", 0});
        if (part_of(task, i)->len > parts[i].max)
            return kl__json_damaged(from, parts[i].name, "is too long");
    }
    for (size_t i = 0; i < NUMBERS; i++)
        *number_of(task, i) = kl__json_int_or(from, numbers[i].name, numbers[i].min, numbers[i].max, 0);
    if (from->rc == KL_OK && kl__json_has(from, "headers"))
        read_headers(from, arena, task);
    if (from->rc == KL_OK && kl__json_has(from, "tags"))
        read_tags(from, arena, task);
    return from->rc;
}

static kl_rc read_firing(kl__json *from, kl__firing *firing)
{
    kl__json inner = kl__json_inner(from, "firing");
    firing->tick_ms = kl__json_int(&inner, "tick_ms", 1, KL_ID_MS_MAX);
    firing->layout = (uint64_t)kl__json_int(&inner, "layout", 1, INT64_MAX);
    firing->id = kl__json_id(&inner, "id");
    firing->since_ms = kl__json_int(&inner, "since_ms", 0, KL_ID_MS_MAX);
    firing->nonce = kl__json_int(&inner, "nonce", 0, INT64_MAX);
    return inner.rc;
}

static kl_catch_up read_catch_up(kl__json *from, kl_arena *arena)
{
    const char *text = kl__json_text(from, "catch_up", arena);
    for (int i = KL_CATCH_UP_NONE; i < CATCH_UPS; i++)
        if (strcmp(text, catch_ups[i]) == 0)
            return (kl_catch_up)i;
    if (from->rc == KL_OK)
        from->rc = kl__json_damaged(from, "catch_up", "is none of none, one and all");
    return KL_CATCH_UP_ONE;
}

static kl_rc read_schedule(kl__json *from, kl_arena *arena, kl__schedule *schedule)
{
    kl_cron *cron = &schedule->cron;
    cron->when = kl__json_text(from, "when", arena);
    cron->zone = kl__json_text(from, "zone", arena);
    cron->catch_up = read_catch_up(from, arena);
    cron->paused = kl__json_bool(from, "paused");
    cron->next_ms = kl__json_int(from, "next_ms", 0, KL_ID_MS_MAX);
    cron->last_ms = kl__json_int(from, "last_ms", 0, KL_ID_MS_MAX);
    schedule->behind = kl__json_int(from, "behind", 0, KL_CRON_CATCH_UP_MAX);
    if (from->rc == KL_OK && kl__json_has(from, "firing"))
        from->rc = read_firing(from, &schedule->firing);
    if (from->rc != KL_OK)
        return from->rc;
    kl__json task = kl__json_inner(from, "task");
    return task.rc == KL_OK ? read_task(&task, arena, &cron->task) : task.rc;
}

kl_rc kl__schedule_decode(const kl_record *record, size_t prefix_len, kl_arena *arena, kl__schedule *ret_schedule)
{
    kl__schedule schedule = {.cron = {.size = sizeof(kl_cron)}, .version = record->version};
    kl_bytes name;
    kl__json from;
    if (!kl_arena_copy(arena, record->name, &name))
        return kl__fail_memory();
    kl_rc rc = kl__json_parse(record->value, name.data, &from);
    if (rc != KL_OK)
        return rc;
    schedule.cron.name = (const char *)name.data + prefix_len;
    rc = read_schedule(&from, arena, &schedule);
    kl__json_free(&from);
    if (rc == KL_OK)
        *ret_schedule = schedule;
    return rc;
}
