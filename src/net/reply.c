/* reply.c - answers: JSON, bytes, and problems (RFC 9457). See api.h.
 *
 * From: every handler, routes.c.  To: kl__exchange_answer (routes.c), which sends it and lets go of the exchange.
 *
 * A problem has a name that stays the same (its type), a title that goes with the name, and a sentence about this one
 * that says what to do. Where there is no memory to write one, a static one stands in. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "net/problems.h"
#include "net/server.h"
#include "store/quick.h"

#define PROBLEM_TYPE "application/problem+json"

const kl__problem kl__problems[] = {
    {"bad-request", 400, "The request is not valid"},
    {"unauthorized", 401, "A token is needed"},
    {"forbidden", 403, "This token may not do that"},
    {"not-found", 404, "There is no such queue, task, job or schedule"},
    {"no-route", 404, "There is nothing at this path"},
    {"method-not-allowed", 405, "The path has no such method"},
    {"busy", 409, "It cannot be done just now"},
    {"conflict", 409, "Somebody else was first"},
    {"exists", 409, "It is there already"},
    {"in-flight", 409, "The same request is under way"},
    {"stale-token", 409, "The task was given to somebody else, or has ended"},
    {"unsupported-type", 415, "The body is of another type"},
    {"misdirected", 421, "The request was meant for another server"},
    {"mismatch", 422, "It is there already, and is something else"},
    {"upgrade-required", 426, "The path is for another protocol"},
    {"damaged", 500, "What is stored is damaged"},
    {"internal", 500, "The server could not do it"},
    {"not-implemented", 501, "The method is not known"},
    {"not-ready", 503, "The server cannot put and give out tasks just now"},
    {"out-of-memory", 503, "The server has no memory for it just now"},
    {"stopping", 503, "The server is stopping"},
    {"too-many-streams", 503, "As many streams are open as may be"},
    {"unreached", 503, "The server that gave the task out does not answer"},
    {"unsettled", 503, "The outcome is kept, and not stored yet"},
    {"timed-out", 504, "No answer came in time"},
    {"full", 507, "The store has no room"},
};
const size_t kl__problem_count = sizeof kl__problems / sizeof *kl__problems;

static const char no_memory[] =
    "{\"type\":\"/problems/out-of-memory\",\"title\":\"The server has no memory for it just "
    "now\",\"status\":503,\"detail\":\"make the same request again in a moment\"}";

/* ---- Bodies ---- */

static void answer_no_memory(kl__exchange *exchange)
{
    static const kl__field later = {{"Retry-After", 11}, {"1", 1}};
    kl__exchange_answer(exchange, &(kl__answer){.status = 503,
                                                .type = PROBLEM_TYPE,
                                                .body = {no_memory, sizeof no_memory - 1},
                                                .fields = &later,
                                                .field_count = 1});
}

/* Numbers that are not whole have so many digits that 0.1 stays 0.1. */
static kl_rc print(const json_t *object, kl_arena *arena, kl_bytes *ret_text)
{
    const size_t flags = JSON_COMPACT | JSON_REAL_PRECISION(12);
    size_t length = object ? json_dumpb(object, NULL, 0, flags) : 0;
    char *text = length > 0 ? kl_arena_alloc(arena, length) : NULL;
    if (!text || json_dumpb(object, text, length, flags) != length)
        return kl__fail_memory();
    *ret_text = (kl_bytes){text, length};
    return KL_OK;
}

/* Takes the object over. It is printed into the request's arena, from where it is sent. */
static void answer_json(kl__exchange *exchange, int status, const char *type, json_t *object, const kl__field *fields,
                        size_t count)
{
    kl_bytes text;
    kl_rc rc = print(object, exchange->arena, &text);
    json_decref(object);
    if (rc == KL_OK)
        kl__exchange_answer(
            exchange,
            &(kl__answer){.status = status, .type = type, .body = text, .fields = fields, .field_count = count});
    else
        answer_no_memory(exchange);
}

void kl__reply_with(kl__exchange *exchange, int status, json_t *body, const kl__field *fields, size_t count)
{
    answer_json(exchange, status, "application/json", body, fields, count);
}

void kl__reply(kl__exchange *exchange, int status, json_t *body) { kl__reply_with(exchange, status, body, NULL, 0); }

void kl__reply_none(kl__exchange *exchange) { kl__exchange_answer(exchange, &(kl__answer){.status = 204}); }

/* Bytes that somebody else stored must not be taken for a page by a browser, whatever they look like. */
void kl__reply_bytes(kl__exchange *exchange, int status, const char *type, kl_bytes bytes)
{
    static const kl__field plain = {{"X-Content-Type-Options", 22}, {"nosniff", 7}};
    kl__exchange_answer(
        exchange, &(kl__answer){.status = status, .type = type, .body = bytes, .fields = &plain, .field_count = 1});
}

/* ---- Problems ---- */

static const char *title_of(const char *name)
{
    for (size_t i = 0; i < kl__problem_count; i++)
        if (strcmp(kl__problems[i].name, name) == 0)
            return kl__problems[i].title;
    return name;
}

/* Sentences quote what was sent, which may be no UTF-8, or be cut in the middle of a character. */
static json_t *text_value(char *text)
{
    json_t *value = json_string(text);
    for (char *at = text; !value && *at; at++)
        if ((unsigned char)*at < ' ' || (unsigned char)*at > '~')
            *at = '?';
    return value ? value : json_string(text);
}

static json_t *make_problem(int status, const char *name, char *detail)
{
    char type[64];
    json_t *problem = kl__json_object();
    snprintf(type, sizeof type, "/problems/%s", name);
    if (kl__json_set_text(problem, "type", type) && kl__json_set_text(problem, "title", title_of(name)) &&
        kl__json_set_int(problem, "status", status) && kl__json_set(problem, "detail", text_value(detail)))
        return problem;
    json_decref(problem);
    return NULL;
}

/* What may work later says when to try. */
static void answer_problem(kl__exchange *exchange, int status, const char *name, char *detail, int retry_s)
{
    char seconds[16];
    snprintf(seconds, sizeof seconds, "%d", retry_s);
    const kl__field later = {{"Retry-After", 11}, kl_str(seconds)};
    answer_json(exchange, status, PROBLEM_TYPE, make_problem(status, name, detail), &later, retry_s > 0);
}

void kl__reply_problem(kl__exchange *exchange, int status, const char *name, const char *format, ...)
{
    char detail[KL_DETAIL_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(detail, sizeof detail, format, arguments);
    va_end(arguments);
    answer_problem(exchange, status, name, detail, status == 503 || strcmp(name, "in-flight") == 0);
}

void kl__reply_problem_with(kl__exchange *exchange, int status, const char *name, const kl__field *field,
                            const char *detail)
{
    char copy[KL_DETAIL_BYTES];
    snprintf(copy, sizeof copy, "%s", detail);
    answer_json(exchange, status, PROBLEM_TYPE, make_problem(status, name, copy), field, 1);
}

/* ---- Codes of the library ---- */

static const struct {
    kl_rc rc;
    int status;
    const char *name;
    int retry_s;
} codes[] = {
    {KL_EINVAL, 400, "bad-request", 0}, {KL_ENOTFOUND, 404, "not-found", 0}, {KL_EBUSY, 409, "busy", 1},
    {KL_ECONFLICT, 409, "conflict", 1}, {KL_ESEALED, 409, "busy", 1},        {KL_ESTALE, 409, "stale-token", 0},
    {KL_EMISMATCH, 422, "mismatch", 0}, {KL_EDAMAGED, 500, "damaged", 0},    {KL_ENOMEM, 503, "out-of-memory", 1},
    {KL_ECLOSED, 503, "stopping", 1},   {KL_ETIMEDOUT, 504, "timed-out", 0}, {KL_EFULL, 507, "full", 0},
};

void kl__reply_rc(kl__exchange *exchange, kl_rc rc)
{
    char detail[KL_DETAIL_BYTES];
    snprintf(detail, sizeof detail, "%s", *kl_error_text() ? kl_error_text() : kl_rc_text(rc));
    if (rc == KL_EBUSY && kl__store_is_away(exchange->api->store)) {
        answer_problem(exchange, 503, "not-ready", detail, 1);
        return;
    }
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        if (codes[i].rc != rc)
            continue;
        answer_problem(exchange, codes[i].status, codes[i].name, detail, codes[i].retry_s);
        return;
    }
    answer_problem(exchange, 500, "internal", detail, 0);
}
