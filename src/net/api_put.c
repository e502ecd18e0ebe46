/* api_put.c - tasks that are put: what came while the last ones were made durable is put together in one call.
 *
 * From: routes.c (on a loop's thread: the body is read here).  To: kl_queue_put, on a thread of its own.
 *
 * Bodies: one task as an object, many as {"tasks": [...]}, a task per line (application/x-ndjson), or the payload
 * itself (application/octet-stream, the rest in the query).
 *
 * T1  Requests are put in the order in which they came, and each is answered when its own tasks are durable.
 * T2  A request that is not valid does not harm those that came with it: when a common put is refused, each of them is
 *     put by itself. A put is refused before anything is stored, so nothing is stored twice.
 * T3  A store that hangs holds up no puts to others: queues whose partitions lie in stores of their own have another
 *     thread than those that lie in the server's store.
 * T4  Whoever names a token (Idempotency-Key) or has tasks with a unique is put alone, on the pool: those may wait. */
#include <string.h>

#include "base/clock.h"
#include "base/wait.h"
#include "net/plain.h"
#include "net/routes.h"
#include "net/server.h"
#include "net/write.h"
#include "queue/put.h"

enum { TRACE_BYTES = 55 }; /* of a traceparent: version, trace, span and flags */

/* One request's tasks. Lies in its arena. */
typedef struct putting {
    struct putting *next;
    kl__exchange *exchange;
    kl_put *tasks;
    kl_put_result *results;
    size_t count, bytes;
    kl_bytes token;
    bool alone; /* T4 */
    bool many;  /* the answer is a list */
} putting;

struct kl__puts {
    pthread_mutex_t mutex;
    pthread_cond_t came;
    putting *first, **last;
    bool closing, sleeping;
    pthread_t thread;
    kl_put tasks[KL_PUT_MAX]; /* of one call */
    kl_put_result results[KL_PUT_MAX];
};

/* ---- Bodies ---- */

static bool make_room(putting *put, size_t count)
{
    put->tasks = kl_arena_alloc(put->exchange->arena, count * sizeof *put->tasks + 1);
    put->results = kl_arena_alloc(put->exchange->arena, count * sizeof *put->results + 1);
    if (put->tasks && put->results)
        return true;
    kl__reply_rc(put->exchange, kl__fail_memory());
    return false;
}

static bool refuse(putting *put, size_t index, const char *complaint)
{
    if (put->many)
        kl__reply_problem(put->exchange, 400, "bad-request", "task %zu: %s", index + 1, complaint);
    else
        kl__reply_problem(put->exchange, 400, "bad-request", "%s", complaint);
    return false;
}

static bool refuse_count(putting *put, size_t count)
{
    kl__reply_problem(put->exchange, 400, "bad-request", "%zu tasks in one put; send 1 to %d", count, KL_PUT_MAX);
    return false;
}

static bool read_task(putting *put, json_t *object, size_t index)
{
    char complaint[256];
    kl_put *task = &put->tasks[index];
    *task = (kl_put){.queue = NULL};
    if (!kl__shape_put(object, kl__wall_ms(), put->exchange->arena, task, complaint, sizeof complaint))
        return refuse(put, index, complaint);
    put->count = index + 1;
    return true;
}

/* {"tasks": [...]}, or one task. */
static bool read_object(putting *put, json_t *body)
{
    json_t *tasks = json_object_get(body, "tasks");
    size_t count = tasks ? json_array_size(tasks) : 1;
    if (tasks && !json_is_array(tasks))
        return refuse(put, 0, "\"tasks\" is no list; write {\"tasks\": [{...}, ...]}, or one task by itself");
    put->many = tasks != NULL;
    if (count == 0 || count > KL_PUT_MAX)
        return refuse_count(put, count);
    if (tasks && json_object_size(body) > 1) {
        kl__reply_problem(put->exchange, 400, "bad-request", "beside tasks there is another field; leave it out");
        return false;
    }
    if (!make_room(put, count))
        return false;
    for (size_t i = 0; i < count; i++)
        if (!read_task(put, tasks ? json_array_get(tasks, i) : body, i))
            return false;
    return true;
}

static size_t count_lines(kl_bytes body)
{
    size_t count = 0;
    const char *at = body.data, *end = at + body.len;
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        count++;
        at = newline ? newline + 1 : end;
    }
    return count;
}

static bool read_line(putting *put, const char *line, size_t len)
{
    kl__json object;
    if (kl__json_parse_given((kl_bytes){line, len}, KL_BODY_DEPTH_MAX, "the line", &object) != KL_OK)
        return refuse(put, put->count, kl_error_text());
    bool ok = read_task(put, object.object, put->count);
    kl__json_free(&object);
    return ok;
}

static bool read_lines(putting *put)
{
    kl_bytes body = put->exchange->request->body;
    size_t lines = count_lines(body);
    put->many = true;
    if (lines == 0 || lines > (size_t)KL_PUT_MAX * 2) /* some may be empty */
        return refuse_count(put, lines);
    if (!make_room(put, lines))
        return false;
    for (const char *at = body.data, *end = at + body.len; at < end;) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t len = (size_t)((newline ? newline : end) - at);
        if (len > 0 && !read_line(put, at, len))
            return false;
        at = newline ? newline + 1 : end;
    }
    return put->count > 0 && put->count <= KL_PUT_MAX ? true : refuse_count(put, put->count);
}

/* Whole numbers are those of priority and attempts; all else is text. */
static bool set_param(json_t *object, const kl__param *param)
{
    char name[32] = "", value[24] = "", *end = value;
    memcpy(name, param->name.data, param->name.len < sizeof name ? param->name.len : sizeof name - 1);
    memcpy(value, param->value.data, param->value.len < sizeof value ? param->value.len : sizeof value - 1);
    int64_t number = strtoll(value, &end, 10);
    bool counts = strcmp(name, "priority") == 0 || strcmp(name, "attempts") == 0;
    return counts && *value && !*end && param->value.len < sizeof value
               ? kl__json_set_int(object, name, number)
               : kl__json_set_bytes(object, name, param->value);
}

/* The payload as it is; what else there is to say stands in the query, under the same names. */
static bool read_raw(putting *put)
{
    kl__exchange *exchange = put->exchange;
    if (!make_room(put, 1))
        return false;
    json_t *object = kl__json_object();
    bool ok = object != NULL;
    for (size_t i = 0; ok && i < exchange->param_count; i++) {
        kl__param *param = &exchange->params[i];
        size_t before = json_object_size(object);
        ok = set_param(object, param);
        param->used = json_object_size(object) > before;
    }
    if (!ok)
        kl__reply_rc(exchange, kl__fail_memory());
    ok = ok && !kl__params_refused(exchange) && read_task(put, object, 0);
    json_decref(object);
    if (ok)
        put->tasks[0].payload = exchange->request->body;
    return ok;
}

static bool take_plain(void *context, const kl__plain_field *fields, size_t count)
{
    putting *put = context;
    return kl__plain_task(fields, count, &put->tasks[put->count++]);
}

/* False: it was not plain, and nothing was read; or there is no memory, which the careful way finds out too. */
static bool read_plain(putting *put)
{
    kl_bytes body = put->exchange->request->body;
    size_t count = kl__plain_count(body);
    if (count == 0 || count > KL_PUT_MAX + 1)
        return false;
    put->tasks = kl_arena_alloc(put->exchange->arena, count * sizeof *put->tasks);
    put->results = kl_arena_alloc(put->exchange->arena, count * sizeof *put->results);
    bool ok = put->tasks && put->results && kl__plain_read(body, "tasks", take_plain, put, &put->many);
    if (ok && put->count > 0 && put->count <= KL_PUT_MAX)
        return true;
    put->count = 0;
    put->many = false;
    return false;
}

static bool read_body(putting *put)
{
    kl__exchange *exchange = put->exchange;
    kl__json body;
    if (kl__body_is(exchange, "application/octet-stream"))
        return read_raw(put);
    if (kl__params_refused(exchange))
        return false;
    if (exchange->request->body.len == 0)
        return refuse(put, 0,
                      "the body is empty; send a task, such as {\"payload\": \"...\"}, or {} for one of nothing");
    if (kl__body_is(exchange, "application/x-ndjson"))
        return read_lines(put);
    if (kl__body_is(exchange, "application/json") && read_plain(put))
        return true;
    if (!kl__body_json(exchange, NULL, &body))
        return false;
    bool ok = read_object(put, body.object);
    kl__json_free(&body);
    return ok;
}

/* ---- Answers ---- */

static void write_result(kl__writer *writer, const kl_put_result *result)
{
    kl__write(writer, "{\"id\":");
    kl__write_id(writer, &result->id);
    kl__write(writer, result->duplicate ? ",\"duplicate\":true}" : ",\"duplicate\":false}");
}

static void answer(putting *put, kl_rc rc)
{
    kl__exchange *exchange = put->exchange;
    if (rc == KL_ENOTFOUND)
        kl__queues_forget(exchange->open);
    if (rc == KL_EMISMATCH && put->token.len) {
        kl__reply_problem(exchange, 422, "mismatch",
                          "the Idempotency-Key was used for another put within the last hour; give each put its own");
        return;
    }
    if (rc != KL_OK) {
        kl__reply_rc(exchange, rc);
        return;
    }
    kl__metrics_put(exchange->open->metrics, exchange->queue, put->tasks, put->results, put->count,
                    kl__monotonic_ns() - exchange->request->began_ns);
    kl__writer writer = {.arena = exchange->arena};
    kl__write(&writer, put->many ? "{\"items\":[" : "");
    for (size_t i = 0; i < put->count; i++) {
        kl__write(&writer, i ? "," : "");
        write_result(&writer, &put->results[i]);
    }
    kl__write(&writer, put->many ? "],\"cursor\":null}" : "");
    kl__reply_written(exchange, 201, &writer);
}

/* ---- Together ---- */

static void put_alone(putting *put)
{
    answer(put, kl_queue_put(put->exchange->queue, put->tasks, put->count, put->token, put->results));
}

static void answer_all(struct kl__puts *puts, putting *first, size_t requests, kl_rc rc)
{
    const kl_put_result *results = puts->results;
    for (putting *put = first, *next; requests-- > 0; put = next) {
        next = put->next;
        if (rc == KL_OK)
            memcpy(put->results, results, put->count * sizeof *results);
        results += put->count;
        if (rc == KL_EINVAL) /* of one of them: nothing was stored (T2) */
            put_alone(put);
        else
            answer(put, rc);
    }
}

/* A call is stored whole or not at all: it goes to one store, which can. */
static bool stored_whole(const kl__exchange *exchange)
{
    return kl_store_info_of(exchange->api->store).can & KL_STORE_ATOMIC_APPEND && !kl__queues_apart(exchange->open);
}

/* Of one queue, so that what is wrong with one queue or its store is told to nobody else. */
static bool goes_with(const putting *first, const putting *put, size_t count, size_t bytes)
{
    return put->exchange->queue == first->exchange->queue && count + put->count <= KL_PUT_MAX &&
           bytes + put->bytes <= KL_BATCH_BYTES_MAX;
}

/* Puts as many of the first ones as one call takes; returns the next. */
static putting *put_together(struct kl__puts *puts, putting *first)
{
    size_t count = 0, bytes = 0, requests = 0;
    putting *put = first;
    bool more = first->next && stored_whole(first->exchange);
    for (; put && (requests == 0 || (more && goes_with(first, put, count, bytes))); put = put->next, requests++) {
        memcpy(&puts->tasks[count], put->tasks, put->count * sizeof *put->tasks);
        count += put->count;
        bytes += put->bytes;
    }
    kl_rc rc = kl_queue_put(first->exchange->queue, puts->tasks, count, (kl_bytes){0}, puts->results);
    answer_all(puts, first, requests, rc);
    return put;
}

static putting *take(struct kl__puts *puts)
{
    pthread_mutex_lock(&puts->mutex);
    while (!puts->first && !puts->closing) {
        puts->sleeping = true;
        kl__cond_wait(&puts->came, &puts->mutex, KL_NEVER);
        puts->sleeping = false;
    }
    putting *first = puts->first;
    puts->first = NULL;
    puts->last = &puts->first;
    pthread_mutex_unlock(&puts->mutex);
    return first;
}

static void *put_all(void *context)
{
    struct kl__puts *puts = context;
    putting *put;
    while ((put = take(puts)) != NULL)
        while (put)
            put = put_together(puts, put);
    return NULL;
}

static void push(struct kl__puts *puts, putting *put)
{
    pthread_mutex_lock(&puts->mutex);
    *puts->last = put;
    puts->last = &put->next;
    if (puts->sleeping)
        pthread_cond_signal(&puts->came);
    pthread_mutex_unlock(&puts->mutex);
}

/* The caller's trace, as W3C writes it, for tasks that name none. Not with a token: made again, a put has another trace
 * and must be the same put. */
static void take_trace(putting *put)
{
    kl_bytes trace = kl__head_field(&put->exchange->request->head, "traceparent");
    for (size_t i = 0; trace.len == TRACE_BYTES && !put->token.len && i < put->count; i++)
        if (put->tasks[i].traceparent.len == 0)
            put->tasks[i].traceparent = trace;
}

static void weigh(putting *put)
{
    put->token = kl__head_field(&put->exchange->request->head, "idempotency-key");
    put->alone |= put->token.len > 0;
    take_trace(put);
    for (size_t i = 0; i < put->count; i++) {
        const kl_put *task = &put->tasks[i];
        put->bytes += task->key.len + task->kind.len + task->payload.len + task->group.len + task->traceparent.len;
        for (size_t h = 0; h < task->header_count; h++)
            put->bytes += task->headers[h].name.len + task->headers[h].value.len;
        put->alone |= task->unique.len > 0;
    }
}

/* What is wrong with a task is found before its queue is made. */
static void put_on_pool(kl__exchange *exchange)
{
    const putting *put = exchange->serving;
    kl_rc rc = KL_OK;
    for (size_t i = 0; !exchange->open && rc == KL_OK && i < put->count; i++)
        rc = kl__put_check(&put->tasks[i]);
    if (rc == KL_OK)
        rc = kl__exchange_open(exchange);
    if (rc == KL_OK)
        put_alone(exchange->serving);
    else
        kl__reply_rc(exchange, rc);
}

void kl__api_put_tasks(kl__exchange *exchange)
{
    putting *put = kl_arena_alloc(exchange->arena, sizeof *put);
    if (!put) {
        kl__reply_rc(exchange, kl__fail_memory());
        return;
    }
    *put = (putting){.exchange = exchange};
    if (atomic_load(&exchange->api->stopping)) {
        kl__reply_problem(exchange, 503, "stopping", "the server is stopping; put it again in a moment, or elsewhere");
        return;
    }
    if (!read_body(put))
        return;
    weigh(put);
    exchange->serving = put;
    if (put->alone || !exchange->open)
        kl__pool_push(exchange->api->pool, exchange, put_on_pool);
    else
        push(kl__queues_apart(exchange->open) ? exchange->api->puts_apart : exchange->api->puts, put);
}

kl_rc kl__puts_open(struct kl__puts **ret_puts)
{
    struct kl__puts *puts = kl__alloc_zeroed(1, sizeof *puts);
    if (!puts)
        return kl__fail_memory();
    pthread_mutex_init(&puts->mutex, NULL);
    kl__cond_init(&puts->came);
    puts->last = &puts->first;
    if (pthread_create(&puts->thread, NULL, put_all, puts) != 0) {
        kl__free(puts);
        return kl__fail(KL_ESYSTEM, "no thread for puts could be started; see ulimit -u");
    }
    *ret_puts = puts;
    return KL_OK;
}

void kl__puts_close(struct kl__puts *puts)
{
    if (!puts)
        return;
    pthread_mutex_lock(&puts->mutex);
    puts->closing = true;
    pthread_cond_signal(&puts->came);
    pthread_mutex_unlock(&puts->mutex);
    pthread_join(puts->thread, NULL);
    pthread_cond_destroy(&puts->came);
    pthread_mutex_destroy(&puts->mutex);
    kl__free(puts);
}
