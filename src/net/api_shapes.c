/* api_shapes.c - how things look in JSON. See api.h.
 *
 * Names and values are those that `keyline ... --json` prints: one thing has one name everywhere. */
#include <string.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/times.h"
#include "net/api.h"
#include "queue/inside.h"
#include "queue/task_json.h"

static json_t *made_or_freed(json_t *object, bool made)
{
    if (made)
        return object;
    json_decref(object);
    return NULL;
}

/* ---- Values ---- */

json_t *kl__shape_time(int64_t ms)
{
    char text[KL_TIME_TEXT_BYTES];
    if (ms == 0 || ms == KL_NEVER)
        return json_null();
    kl__time_print(ms, text);
    return json_string(text);
}

json_t *kl__shape_id(const kl_task_id *id)
{
    static const kl_task_id none;
    char text[KL_ID_TEXT_BYTES];
    if (memcmp(id, &none, sizeof none) == 0)
        return json_null();
    kl_id_print(id, text);
    return json_string(text);
}

json_t *kl__shape_bytes(kl_bytes bytes) { return bytes.len ? kl__json_bytes_value(bytes) : json_null(); }

json_t *kl__shape_text(const char *text) { return kl__shape_bytes(kl_str(text)); }

json_t *kl__shape_number(int64_t number) { return number ? json_integer(number) : json_null(); }

/* ---- Tasks ---- */

static json_t *shape_header(const kl_header *header)
{
    json_t *object = kl__json_object();
    return made_or_freed(object, kl__json_set_bytes(object, "name", header->name) &&
                                     kl__json_set_bytes(object, "value", header->value));
}

static json_t *shape_headers(const kl_task_extra *extra)
{
    json_t *headers = extra->header_count ? kl__json_array() : json_null();
    bool made = headers != NULL;
    for (size_t i = 0; made && i < extra->header_count; i++)
        made = kl__json_append(headers, shape_header(&extra->headers[i]));
    return made_or_freed(headers, made);
}

static json_t *shape_tags(const kl_task_extra *extra)
{
    json_t *tags = extra->tag_count ? kl__json_array() : json_null();
    bool made = tags != NULL;
    for (size_t i = 0; made && i < extra->tag_count; i++)
        made = kl__json_append(tags, kl__json_bytes_value(extra->tags[i]));
    return made_or_freed(tags, made);
}

static bool set_extra(json_t *object, const kl_task_extra *extra)
{
    return kl__json_set(object, "attempts_max", kl__shape_number(extra->attempts_max)) &&
           kl__json_set(object, "timeout_ms", kl__shape_number(extra->timeout_ms)) &&
           kl__json_set(object, "origin", kl__shape_id(&extra->origin)) &&
           kl__json_set(object, "unique", kl__shape_bytes(extra->unique)) &&
           kl__json_set(object, "group", kl__shape_bytes(extra->group)) &&
           kl__json_set(object, "headers", shape_headers(extra)) && kl__json_set(object, "tags", shape_tags(extra)) &&
           kl__json_set(object, "traceparent", kl__shape_bytes(extra->traceparent));
}

json_t *kl__shape_task(const kl_found *found)
{
    const kl_task *task = &found->task;
    const kl_entry *entry = &task->entry;
    json_t *object = kl__json_object();
    bool made = kl__json_set_id(object, "id", &entry->id) && kl__json_set_text(object, "queue", found->queue) &&
                kl__json_set_text(object, "partition", found->partition) &&
                kl__json_set_text(object, "state", kl__task_state_name(task)) &&
                kl__json_set(object, "key", kl__shape_bytes(entry->key)) &&
                kl__json_set(object, "kind", kl__shape_bytes(entry->kind)) &&
                kl__json_set_int(object, "priority", entry->priority) &&
                kl__json_set_int(object, "attempts", task->attempts) &&
                kl__json_set(object, "made", kl__shape_time(found->made_ms)) &&
                kl__json_set(object, "due", kl__shape_time(task->not_before_ms)) &&
                kl__json_set(object, "finished", kl__shape_time(task->finished_ms)) &&
                kl__json_set(object, "job", kl__shape_id(&entry->job)) && set_extra(object, &found->extra) &&
                kl__json_set(object, "error", kl__shape_bytes(task->error)) &&
                kl__json_set(object, "result", kl__shape_bytes(task->result)) &&
                kl__json_set_bytes(object, "payload", entry->payload);
    return made_or_freed(object, made);
}

bool kl__shape_put(json_t *object, int64_t now_ms, kl_arena *arena, kl_put *ret_task, char *complaint, size_t room)
{
    kl_put task = {0};
    if (!kl__task_take(object, now_ms, arena, &task, complaint, room))
        return false;
    *ret_task = task;
    return true;
}

/* ---- Accounts and pages ---- */

json_t *kl__shape_account(const kl_account *account)
{
    json_t *object = kl__json_object();
    return made_or_freed(object, kl__json_set_int(object, "seen", (int64_t)account->seen) &&
                                     kl__json_set_int(object, "done", (int64_t)account->done) &&
                                     kl__json_set_int(object, "failed", (int64_t)account->failed) &&
                                     kl__json_set(object, "error", kl__shape_text(account->error)));
}

/* Cursors are text that needs no escape in a query. */
json_t *kl__shape_page(json_t *items, kl_bytes cursor)
{
    json_t *page = kl__json_object();
    bool made = kl__json_set(page, "items", items);
    return made_or_freed(page, made && kl__json_set(page, "cursor", kl__shape_bytes(cursor)));
}

json_t *kl__shape_tasks(const kl_found *found, size_t count, kl_bytes cursor)
{
    json_t *items = kl__json_array();
    bool made = items != NULL;
    for (size_t i = 0; made && i < count; i++)
        made = kl__json_append(items, kl__shape_task(&found[i]));
    return kl__shape_page(made_or_freed(items, made), cursor);
}
