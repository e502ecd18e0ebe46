/* api_jobs.c - jobs: many tasks submitted together. See keyline/job.h.
 *
 * Idempotency-Key (a text of 1 to 256 bytes, with or without quotes) makes a submit repeatable: the answer of the first
 * one is made of what the store keeps of it, so a repeat gets the same status and the same bytes, with
 * Idempotent-Replayed: true. What is compared is the hash of path and body, byte for byte; two tokens may use one key,
 * since the token's name is part of it. */
#include <openssl/evp.h>
#include <string.h>

#include "base/clock.h"
#include "base/times.h"
#include "keyline/job.h"
#include "net/filters.h"
#include "net/routes.h"
#include "net/server.h"
#include "queue/put.h"

#define DURATION_MS_MAX (INT64_C(86400000) * 100000) /* 100000d, as of a task */

/* ---- Shapes ---- */

static const char *state_name(kl_job_state state)
{
    static const char *const names[] = {"running", "finished", "cancelled"};
    return names[state <= KL_JOB_CANCELLED ? state : 0];
}

static json_t *shape_job(const kl_job_info *info)
{
    json_t *job = kl__json_object();
    if (kl__json_set_id(job, "job", &info->id) && kl__json_set(job, "name", kl__shape_text(info->name)) &&
        kl__json_set_text(job, "state", state_name(info->state)) &&
        kl__json_set_int(job, "tasks", (int64_t)info->tasks) && kl__json_set_int(job, "done", (int64_t)info->done) &&
        kl__json_set_int(job, "dead", (int64_t)info->dead) &&
        kl__json_set_int(job, "cancelled", (int64_t)info->cancelled) &&
        kl__json_set_int(job, "waiting", (int64_t)info->waiting) && kl__json_set_int(job, "run", (int64_t)info->run) &&
        kl__json_set(job, "created", kl__shape_time(info->created_ms)) &&
        kl__json_set(job, "due", kl__shape_time(info->due_ms)))
        return job;
    json_decref(job);
    return NULL;
}

/* {"job", "done", "tasks"}; tasks < 0: null. */
static void reply_done(kl__exchange *exchange, const kl_task_id *id, const char *done, int64_t tasks)
{
    json_t *body = kl__json_object();
    if (!kl__json_set_id(body, "job", id) || !kl__json_set_text(body, "done", done) ||
        !kl__json_set(body, "tasks", tasks < 0 ? json_null() : json_integer(tasks))) {
        json_decref(body);
        body = NULL;
    }
    kl__reply(exchange, 200, body);
}

/* ---- Tasks of a body ---- */

/* Tasks of the array, in the arena. False: it has answered, and freed the body. */
static bool read_tasks(kl__exchange *exchange, kl__json *body, size_t max, kl_put **ret_tasks, size_t *ret_count)
{
    char complaint[256];
    int64_t now_ms = kl__wall_ms();
    json_t *array = kl__json_has(body, "tasks") ? kl__json_array_of(body, "tasks", max) : NULL;
    size_t count = json_array_size(array);
    kl_put *tasks = kl_arena_alloc(exchange->arena, (count + 1) * sizeof *tasks);
    if (!tasks)
        body->rc = kl__fail_memory();
    if (body->rc != KL_OK)
        return !kl__body_refused(exchange, body);
    for (size_t i = 0; i < count; i++) {
        tasks[i] = (kl_put){.queue = NULL};
        if (kl__shape_put(json_array_get(array, i), now_ms, exchange->arena, &tasks[i], complaint, sizeof complaint))
            continue;
        kl__json_free(body);
        kl__reply_problem(exchange, 400, "bad-request", "task %zu: %s", i + 1, complaint);
        return false;
    }
    *ret_tasks = tasks;
    *ret_count = count;
    return true;
}

static int64_t read_duration(kl__json *body, const char *field, kl_arena *arena)
{
    int64_t ms = 0;
    if (!kl__json_has(body, field))
        return 0;
    if (!kl__duration_parse(kl__json_text(body, field, arena), &ms) || ms <= 0)
        kl__json_damaged(body, field, "is no duration such as \"5s\", \"2m\", \"1h\" or \"7d\"");
    else if (ms > DURATION_MS_MAX)
        kl__json_damaged(body, field, "is longer than 100000d");
    return ms;
}

/* ---- Submit ---- */

/* The text of Idempotency-Key without its quotes. False: it has answered. */
static bool read_key(kl__exchange *exchange, kl_bytes *ret_key)
{
    kl_bytes key = kl__head_field(&exchange->request->head, "idempotency-key");
    const char *text = key.data;
    if (key.len >= 2 && text[0] == '"' && text[key.len - 1] == '"')
        key = (kl_bytes){text + 1, key.len - 2};
    if (key.len <= KL_IDEMPOTENCY_KEY_MAX && (key.len > 0 || text == NULL)) {
        *ret_key = key;
        return true;
    }
    kl__reply_problem(exchange, 400, "bad-request", "Idempotency-Key has %zu bytes; send 1 to %d, or leave it away",
                      key.len, KL_IDEMPOTENCY_KEY_MAX);
    return false;
}

/* SHA-256 of path and body. */
static bool make_fingerprint(const kl__request *request, uint8_t ret_hash[EVP_MAX_MD_SIZE], unsigned *ret_len)
{
    EVP_MD_CTX *sha = EVP_MD_CTX_new();
    bool made = sha && EVP_DigestInit_ex(sha, EVP_sha256(), NULL) == 1 &&
                EVP_DigestUpdate(sha, request->head.path.data, request->head.path.len) == 1 &&
                EVP_DigestUpdate(sha, "\n", 1) == 1 &&
                (request->body.len == 0 || EVP_DigestUpdate(sha, request->body.data, request->body.len) == 1) &&
                EVP_DigestFinal_ex(sha, ret_hash, ret_len) == 1;
    EVP_MD_CTX_free(sha);
    return made;
}

/* False: it has answered, and freed the body. */
static bool read_spec(kl__exchange *exchange, kl__json *body, kl_job_spec *spec)
{
    kl_put *tasks;
    const char *name = kl__json_text_or(body, "name", exchange->arena, NULL);
    int64_t in_ms = read_duration(body, "in", exchange->arena), at_ms = kl__body_time(body, "at");
    spec->name = name;
    spec->keep_ms = read_duration(body, "keep", exchange->arena);
    if (at_ms > KL_ID_MS_MAX)
        kl__json_damaged(body, "at", "is after the year 2527");
    if (in_ms && at_ms)
        kl__json_damaged(body, "in", "and \"at\" both say when; keep one of the two");
    if (body->rc != KL_OK)
        return !kl__body_refused(exchange, body);
    spec->delay_ms = in_ms;
    spec->due_ms = at_ms;
    if (!read_tasks(exchange, body, KL_JOB_TASKS_MAX, &tasks, &spec->count))
        return false;
    spec->tasks = tasks;
    kl__json_free(body);
    return true;
}

static void reply_submitted(kl__exchange *exchange, const kl_job_answer *answer)
{
    static const kl__field replayed = {{"Idempotent-Replayed", 19}, {"true", 4}};
    json_t *body = kl__json_object();
    if (!kl__json_set_id(body, "job", &answer->job) || !kl__json_set_text(body, "queue", kl__part_text(exchange, 0)) ||
        !kl__json_set_int(body, "tasks", (int64_t)answer->tasks)) {
        json_decref(body);
        body = NULL;
    }
    kl__reply_with(exchange, 201, body, &replayed, answer->replayed);
}

static void submit(kl__exchange *exchange, kl_job_spec *spec)
{
    uint8_t hash[EVP_MAX_MD_SIZE];
    unsigned len = 0;
    int64_t retry_ms = 0;
    kl_job_answer answer;
    if (spec->idempotency_key.len > 0 && !make_fingerprint(exchange->request, hash, &len)) {
        kl__reply_rc(exchange, kl__fail_memory());
        return;
    }
    spec->fingerprint = (kl_bytes){hash, len};
    kl_rc rc = KL_OK;
    for (size_t i = 0; !exchange->open && rc == KL_OK && i < spec->count; i++)
        rc = kl__put_check(&spec->tasks[i]); /* before the queue is made */
    if (rc == KL_OK)
        rc = kl__exchange_open(exchange);
    if (rc == KL_OK)
        rc = kl_job_submit(exchange->queue, spec, &answer, &retry_ms);
    if (rc == KL_OK && !answer.replayed)
        kl__metrics_put(exchange->open->metrics, exchange->queue, spec->tasks, NULL, spec->count,
                        kl__monotonic_ns() - exchange->request->began_ns);
    if (rc == KL_OK)
        reply_submitted(exchange, &answer);
    else if (rc == KL_EBUSY && retry_ms > 0)
        kl__reply_problem(exchange, 409, "in-flight", "%s", kl_error_text());
    else if (rc == KL_ECLOSED)
        kl__reply_problem(exchange, 409, "conflict", "%s", kl_error_text());
    else
        kl__reply_rc(exchange, rc);
}

void kl__api_submit_job(kl__exchange *exchange)
{
    static const char *const fields[] = {"name", "tasks", "in", "at", "keep", NULL};
    kl_job_spec spec = {.size = sizeof spec, .scope = exchange->who};
    kl__json body;
    if (kl__params_refused(exchange) || !read_key(exchange, &spec.idempotency_key) ||
        !kl__body_json(exchange, fields, &body) || !read_spec(exchange, &body, &spec))
        return;
    submit(exchange, &spec);
}

/* ---- Looking ---- */

static json_t *shape_jobs(const kl_job_info *jobs, size_t count)
{
    json_t *items = kl__json_array();
    for (size_t i = 0; items && i < count; i++)
        if (!kl__json_append(items, shape_job(&jobs[i]))) {
            json_decref(items);
            items = NULL;
        }
    return items;
}

void kl__api_list_jobs(kl__exchange *exchange)
{
    static const kl_task_id none;
    char last[KL_ID_TEXT_BYTES] = "";
    size_t count = 0, max = (size_t)kl__param_int(exchange, "max", 1, KL_PAGE_MAX, KL_PAGE_STANDARD);
    kl_task_id after = kl__param_id(exchange, "cursor");
    if (kl__params_refused(exchange))
        return;
    kl_job_info *jobs = kl_arena_alloc(exchange->arena, max * sizeof *jobs);
    bool first = kl_id_compare(&after, &none) == 0;
    kl_rc rc = jobs ? kl_job_list(exchange->queue, first ? NULL : &after, max, exchange->arena, jobs, &count)
                    : kl__fail_memory();
    if (rc != KL_OK) {
        kl__reply_rc(exchange, rc);
        return;
    }
    if (count == max)
        kl_id_print(&jobs[count - 1].id, last);
    kl__reply(exchange, 200, kl__shape_page(shape_jobs(jobs, count), kl_str(last)));
}

void kl__api_show_job(kl__exchange *exchange)
{
    kl_task_id id;
    kl_job_info info;
    if (kl__params_refused(exchange) || !kl__part_id(exchange, 1, &id))
        return;
    kl_rc rc = kl_job_show(exchange->queue, &id, exchange->arena, &info);
    if (rc == KL_OK)
        kl__reply(exchange, 200, shape_job(&info));
    else
        kl__reply_rc(exchange, rc);
}

void kl__api_list_results(kl__exchange *exchange)
{
    kl_task_id id;
    kl_bytes next = {0};
    size_t count = 0, max = (size_t)kl__param_int(exchange, "max", 1, KL_PAGE_MAX, KL_PAGE_STANDARD);
    kl_bytes cursor = kl__param_text(exchange, "cursor");
    if (kl__params_refused(exchange) || !kl__part_id(exchange, 1, &id))
        return;
    kl_found *found = kl_arena_alloc(exchange->arena, max * sizeof *found);
    kl_rc rc = found ? kl_job_results(exchange->queue, &id, cursor, max, exchange->arena, found, &count, &next, NULL)
                     : kl__fail_memory();
    if (rc == KL_OK)
        kl__reply(exchange, 200, kl__shape_tasks(found, count, next));
    else
        kl__reply_rc(exchange, rc);
}

/* ---- Changing ---- */

static json_t *shape_results(const kl_put_result *results, size_t count)
{
    json_t *items = kl__json_array();
    for (size_t i = 0; items && i < count; i++) {
        json_t *item = kl__json_object();
        bool made =
            kl__json_set_id(item, "id", &results[i].id) && kl__json_set_bool(item, "duplicate", results[i].duplicate);
        if (kl__json_append(items, item) && made)
            continue;
        json_decref(items);
        items = NULL;
    }
    return items;
}

static void add(kl__exchange *exchange, const kl_task_id *id, const kl_put *tasks, size_t count, kl_bytes token)
{
    kl_put_result *results = kl_arena_alloc(exchange->arena, (count + 1) * sizeof *results);
    kl_rc rc = results ? kl_job_add(exchange->queue, id, tasks, count, token, results) : kl__fail_memory();
    json_t *body = rc == KL_OK ? kl__json_object() : NULL;
    if (rc == KL_OK)
        kl__metrics_put(exchange->open->metrics, exchange->queue, tasks, results, count,
                        kl__monotonic_ns() - exchange->request->began_ns);
    if (rc == KL_ECLOSED)
        kl__reply_problem(exchange, 409, "conflict", "%s", kl_error_text());
    else if (rc != KL_OK)
        kl__reply_rc(exchange, rc);
    else if (kl__json_set_id(body, "job", id) && kl__json_set(body, "items", shape_results(results, count)) &&
             kl__json_set(body, "cursor", json_null()))
        kl__reply(exchange, 201, body);
    else {
        json_decref(body);
        kl__reply(exchange, 201, NULL);
    }
}

void kl__api_add_to_job(kl__exchange *exchange)
{
    static const char *const fields[] = {"tasks", NULL};
    kl_task_id id;
    kl__json body;
    kl_bytes token;
    kl_put *tasks;
    size_t count;
    if (kl__params_refused(exchange) || !kl__part_id(exchange, 1, &id) || !read_key(exchange, &token) ||
        !kl__body_json(exchange, fields, &body) || !read_tasks(exchange, &body, KL_PUT_MAX, &tasks, &count))
        return;
    kl__json_free(&body);
    add(exchange, &id, tasks, count, token);
}

void kl__api_rerun_job(kl__exchange *exchange)
{
    static const char *const fields[] = {"failed", NULL};
    kl_task_id id;
    kl__json body;
    uint64_t count;
    if (kl__params_refused(exchange) || !kl__part_id(exchange, 1, &id) || !kl__body_json(exchange, fields, &body))
        return;
    bool failed_only = kl__json_bool_or(&body, "failed", false);
    if (kl__body_refused(exchange, &body))
        return;
    kl_rc rc = kl_job_rerun(exchange->queue, &id, failed_only, &count);
    if (rc == KL_OK)
        reply_done(exchange, &id, "runs again", (int64_t)count);
    else
        kl__reply_rc(exchange, rc);
}

static void act(kl__exchange *exchange, kl_rc (*action)(kl_queue *queue, const kl_task_id *job), const char *done)
{
    kl_task_id id;
    if (!kl__body_none(exchange) || !kl__part_id(exchange, 1, &id))
        return;
    kl_rc rc = action(exchange->queue, &id);
    if (rc == KL_OK)
        reply_done(exchange, &id, done, -1);
    else
        kl__reply_rc(exchange, rc);
}

void kl__api_cancel_job(kl__exchange *exchange) { act(exchange, kl_job_cancel, "cancelled"); }
void kl__api_remove_job(kl__exchange *exchange) { act(exchange, kl_job_remove, "removed"); }
