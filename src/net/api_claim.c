/* api_claim.c - tasks that are run elsewhere: claimed, and finished, failed, extended or released with their token.
 *
 * From: routes.c (on a loop's thread). To: claims.h (work), which answers when there are tasks or outcomes are durable.
 *
 * A claim waits without a thread (long poll). A token names the server that gave the task out; what is said of a task
 * of another server goes there (forward.c). */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "net/forward.h"
#include "net/plain.h"
#include "net/routes.h"
#include "net/write.h"

/* SERVERS_MAX: whose tasks may be in one batch. */
enum { SERVERS_MAX = 16, LEASE_MS_MAX = 43200000 };

static const char raw_type[] = "application/octet-stream";

/* ---- Claim ---- */

struct claim {
    kl__claim_ask ask;
    kl__exchange *exchange;
    _Atomic(kl__claims *) claims; /* NULL: they are being started */
    bool raw;                     /* the answer is one payload, and the rest stands in its headers */
    _Atomic(bool) gone;           /* nobody reads the answer */
    pthread_t told;               /* the thread that was told so */
    kl_bytes kinds[KL_CLAIM_KINDS_MAX];
};

static void write_field(kl__writer *writer, const char *name, kl_bytes bytes)
{
    kl__write(writer, name);
    kl__write_bytes(writer, bytes);
}

/* As kl__shape_bytes. */
static void write_or_null(kl__writer *writer, const char *name, kl_bytes bytes)
{
    kl__write(writer, name);
    if (bytes.len)
        kl__write_bytes(writer, bytes);
    else
        kl__write(writer, "null");
}

static void write_lists(kl__writer *writer, const kl_task_extra *extra)
{
    for (size_t i = 0; i < extra->header_count; i++) {
        write_field(writer, i ? ",{\"name\":" : ",\"headers\":[{\"name\":", extra->headers[i].name);
        write_field(writer, ",\"value\":", extra->headers[i].value);
        kl__write(writer, "}");
    }
    kl__write(writer, extra->header_count ? "]" : "");
    for (size_t i = 0; i < extra->tag_count; i++)
        write_field(writer, i ? "," : ",\"tags\":[", extra->tags[i]);
    kl__write(writer, extra->tag_count ? "]" : "");
}

/* What a handler needs: the same names as everywhere. */
static void write_claimed(kl__writer *writer, const kl__exchange *exchange, const kl__claimed *claimed)
{
    const kl_entry *entry = &claimed->task->entry;
    const kl_task_extra *extra = claimed->extra;
    write_field(writer, "{\"token\":", kl_str(claimed->token));
    kl__write(writer, ",\"id\":");
    kl__write_id(writer, &entry->id);
    write_field(writer, ",\"queue\":", kl_str(exchange->open->name));
    write_field(writer, ",\"partition\":", kl_str(claimed->partition));
    write_or_null(writer, ",\"key\":", entry->key);
    write_or_null(writer, ",\"kind\":", entry->kind);
    kl__write(writer, ",\"priority\":");
    kl__write_int(writer, entry->priority);
    kl__write(writer, ",\"attempt\":");
    kl__write_int(writer, claimed->attempt);
    kl__write(writer, ",\"lease_until\":");
    kl__write_time(writer, claimed->lease_until_ms);
    kl__write(writer, ",\"lease_ms\":");
    kl__write_int(writer, claimed->lease_ms);
    if (extra->group.len)
        write_field(writer, ",\"group\":", extra->group);
    if (extra->traceparent.len)
        write_field(writer, ",\"traceparent\":", extra->traceparent);
    write_lists(writer, extra);
    write_field(writer, ",\"payload\":", entry->payload);
    kl__write(writer, "}");
}

static kl_bytes text_of(kl__exchange *exchange, int64_t number)
{
    char text[24];
    kl_bytes copy = {0};
    int len = snprintf(text, sizeof text, "%lld", (long long)number);
    return kl_arena_copy(exchange->arena, (kl_bytes){text, (size_t)len}, &copy) ? copy : (kl_bytes){0};
}

/* Headers hold visible ASCII alone: all else, and the sign itself, as %XX. */
static kl_bytes escape(kl_bytes bytes, kl_arena *arena)
{
    char *text = kl_arena_alloc(arena, bytes.len * 3 + 1);
    size_t len = 0;
    for (size_t i = 0; text && i < bytes.len; i++) {
        unsigned char c = ((const unsigned char *)bytes.data)[i];
        if (c > ' ' && c < 0x7f && c != '%')
            text[len++] = (char)c;
        else
            len += (size_t)snprintf(text + len, 4, "%%%02X", c);
    }
    return (kl_bytes){text, len};
}

static void answer_raw(kl__exchange *exchange, const kl__claimed *claimed)
{
    char id[KL_ID_TEXT_BYTES];
    kl_id_print(&claimed->task->entry.id, id);
    kl__field fields[] = {
        {kl_str("keyline-token"), kl_str(claimed->token)},
        {kl_str("keyline-task-id"), kl_str(id)},
        {kl_str("keyline-attempt"), text_of(exchange, claimed->attempt)},
        {kl_str("keyline-lease-ms"), text_of(exchange, claimed->lease_ms)},
        {kl_str("keyline-key"), escape(claimed->task->entry.key, exchange->arena)},
        {kl_str("keyline-kind"), escape(claimed->task->entry.kind, exchange->arena)},
        {kl_str("traceparent"), escape(claimed->extra->traceparent, exchange->arena)},
    };
    kl__exchange_answer(exchange, &(kl__answer){.status = 200,
                                                .type = "application/octet-stream",
                                                .body = claimed->task->entry.payload,
                                                .fields = fields,
                                                .field_count = sizeof fields / sizeof *fields});
}

/* Nobody will run them: they are given back at once. */
static void give_back_answered(kl__claim_says *says, kl_rc rc)
{
    (void)rc;
    kl__free(says);
}

static void give_back(struct claim *claim, const kl__claimed *tasks, size_t count)
{
    kl__claim_says *says = kl__alloc_zeroed(1, sizeof *says + count * (sizeof *says->says + KL_CLAIM_TOKEN_BYTES));
    if (!says)
        return; /* their leases end */
    says->says = (kl__claim_say *)(says + 1);
    says->count = count;
    says->answer = give_back_answered;
    char *texts = (char *)(says->says + count);
    for (size_t i = 0; i < count; i++, texts += KL_CLAIM_TOKEN_BYTES) {
        memcpy(texts, tasks[i].token, KL_CLAIM_TOKEN_BYTES);
        says->says[i] = (kl__claim_say){.word = KL_CLAIM_RELEASE, .token = kl_str(texts)};
    }
    kl__claims_say(atomic_load(&claim->claims), says);
}

static void answer_tasks(struct claim *claim, const kl__claimed *tasks, size_t count)
{
    kl__exchange *exchange = claim->exchange;
    kl__writer writer = {.arena = exchange->arena};
    kl__write(&writer, "{\"items\":[");
    for (size_t i = 0; i < count; i++) {
        kl__write(&writer, i ? "," : "");
        write_claimed(&writer, exchange, &tasks[i]);
    }
    kl__write(&writer, "],\"cursor\":null}");
    if (writer.failed && count)
        give_back(claim, tasks, count);
    kl__queues_claims_leave(exchange->open);
    kl__reply_written(exchange, 200, &writer);
}

static void answer_stopping(kl__exchange *exchange)
{
    kl__reply_problem(exchange, 503, "stopping", "the server is stopping; claim again in a moment, or elsewhere");
}

/* Nobody is told any more that the client is gone: whoever is just being told is waited for, unless that is this
 * call. */
static void stop_watching(struct claim *claim)
{
    if (!atomic_load(&claim->gone) || !pthread_equal(claim->told, pthread_self()))
        kl__http_on_gone(claim->exchange->request, NULL, NULL);
}

static void answer_claim(kl__claim_ask *ask, kl_rc rc, const kl__claimed *tasks, size_t count)
{
    struct claim *claim = ask->ctx;
    kl__exchange *exchange = claim->exchange;
    stop_watching(claim);
    if (rc == KL_OK && count && atomic_load(&claim->gone)) {
        give_back(claim, tasks, count);
        count = 0;
    }
    if (count)
        kl__metrics_claimed(exchange->open->metrics, tasks, count, kl__monotonic_ns() - exchange->request->began_ns);
    if (rc == KL_OK && !claim->raw) {
        answer_tasks(claim, tasks, count);
        return;
    }
    kl__queues_claims_leave(exchange->open);
    if (rc == KL_ECLOSED)
        answer_stopping(exchange);
    else if (rc != KL_OK)
        kl__reply_rc(exchange, rc);
    else if (count == 0)
        kl__reply_none(exchange);
    else
        answer_raw(exchange, &tasks[0]);
}

static void client_gone(void *context)
{
    struct claim *claim = context;
    claim->told = pthread_self();
    atomic_store(&claim->gone, true);
    kl__claims *claims = atomic_load(&claim->claims);
    if (!claims)
        return; /* ask_on_pool will see it */
    kl__open_queue *open = claim->exchange->open;
    kl__queues_hold(open); /* the answer may be made inside, and the exchange is gone then */
    kl__claims_withdraw(claims, &claim->ask);
    kl__queues_let_go(open);
}

static void ask(struct claim *claim)
{
    kl__open_queue *open = claim->exchange->open;
    kl__queues_hold(open); /* as in client_gone */
    kl__claims_ask(atomic_load(&claim->claims), &claim->ask);
    kl__queues_let_go(open);
}

/* Claims of this queue are not there yet, or the queue is not open: that may block. */
static void ask_on_pool(kl__exchange *exchange)
{
    struct claim *claim = exchange->serving;
    kl__claims *claims = NULL;
    kl_rc rc = kl__exchange_open(exchange);
    if (rc == KL_OK)
        rc = kl__queues_claims(exchange->open, exchange, ask_on_pool, &claims);
    if (rc == KL_OK && !claims)
        return; /* somebody else starts them, and comes back */
    atomic_store(&claim->claims, claims);
    if (rc == KL_OK && atomic_load(&claim->gone))
        answer_claim(&claim->ask, KL_OK, NULL, 0);
    else if (rc == KL_OK)
        ask(claim);
    if (rc == KL_OK)
        return;
    stop_watching(claim);
    if (rc == KL_ECLOSED)
        kl__reply_problem(exchange, 503, "stopping", "%s", kl_error_text());
    else
        kl__reply_rc(exchange, rc);
}

static bool read_kinds(struct claim *claim, kl__json *body)
{
    json_t *kinds = kl__json_has(body, "kinds") ? kl__json_array_of(body, "kinds", KL_CLAIM_KINDS_MAX) : NULL;
    for (size_t i = 0; i < json_array_size(kinds); i++)
        claim->kinds[i] = kl__json_bytes_of(body, json_array_get(kinds, i), "kinds", claim->exchange->arena);
    claim->ask.kinds = claim->kinds;
    claim->ask.kind_count = json_array_size(kinds);
    return body->rc == KL_OK;
}

static bool accepts_raw(const kl__request *request)
{
    kl_bytes accept = kl__head_field(&request->head, "accept");
    return accept.len == strlen(raw_type) && strncasecmp(accept.data, raw_type, accept.len) == 0;
}

static bool read_claim(struct claim *claim)
{
    static const char *const fields[] = {"max", "wait_ms", "lease_ms", "kinds", NULL};
    kl__exchange *exchange = claim->exchange;
    kl__json body;
    if (kl__params_refused(exchange) || !kl__body_json(exchange, fields, &body))
        return false;
    claim->raw = accepts_raw(exchange->request);
    claim->ask.max = (size_t)kl__json_int_or(&body, "max", 1, claim->raw ? 1 : KL_CLAIM_MAX, 1);
    claim->ask.wait_ms = kl__json_int_or(&body, "wait_ms", 0, 60000, 0);
    claim->ask.lease_ms = kl__json_int_or(&body, "lease_ms", 1000, LEASE_MS_MAX, KL_CLAIM_LEASE_MS);
    bool ok = read_kinds(claim, &body);
    ok = !kl__body_refused(exchange, &body) && ok;
    kl__json_free(&body);
    return ok;
}

void kl__api_claim_tasks(kl__exchange *exchange)
{
    struct claim *claim = kl_arena_alloc(exchange->arena, sizeof *claim);
    if (!claim) {
        kl__reply_rc(exchange, kl__fail_memory());
        return;
    }
    memset(claim, 0, sizeof *claim);
    claim->exchange = exchange;
    claim->ask.arena = exchange->arena;
    claim->ask.answer = answer_claim;
    claim->ask.ctx = claim;
    if (atomic_load(&exchange->api->stopping)) {
        answer_stopping(exchange);
        return;
    }
    if (!read_claim(claim))
        return;
    exchange->serving = claim;
    kl__claims *claims = exchange->open ? kl__queues_claims_known(exchange->open) : NULL;
    atomic_init(&claim->claims, claims);
    if (!kl__http_on_gone(exchange->request, client_gone, claim))
        atomic_store(&claim->gone, true);
    if (!claims)
        kl__pool_push(exchange->api->pool, exchange, ask_on_pool);
    else if (atomic_load(&claim->gone))
        answer_claim(&claim->ask, KL_OK, NULL, 0);
    else
        ask(claim);
}

/* ---- Finish, fail, extend, release, progress ---- */

struct say {
    kl__claim_says says;
    kl__exchange *exchange;
    kl__claims *claims;
    kl__claim_word word;
    bool many;      /* the answer is a list */
    size_t total;   /* with those that were forwarded, which stand behind says.count */
    size_t *places; /* of each, where it stood in the request; NULL: where it stands */
};

static bool is_stale(kl_rc rc) { return rc == KL_ENOTFOUND || rc == KL_ESTALE; }

/* What became of the task; "halted" is a retry that waits for an operator. */
static const char *end_of(const kl__claim_say *one)
{
    static const char *const ends[] = {
        [KL_DONE] = "done", [KL_RETRY] = "retry", [KL_DEAD] = "dead", [KL_CANCELLED] = "cancelled"};
    return one->outcome == KL_RETRY && one->halted ? "halted" : ends[one->outcome];
}

/* The server that gave it out did not answer: whether it was heard is not known, and it is to be said again. */
static bool is_unreached(const kl__claim_say *one) { return one->rc == KL_EBUSY && one->ran_ns == 0; }

/* unsettled: the store failed; the outcome is kept and sent again until it is there or the shard is lost. Its token has
 * gone with it, so that saying it again is of no use. */
static const char *outcome_of(const kl__claim_say *one)
{
    if (is_unreached(one))
        return "unknown";
    if (one->rc != KL_OK)
        return is_stale(one->rc) ? "stale" : one->rc == KL_EINVAL ? "refused" : "unsettled";
    switch (one->word) {
    case KL_CLAIM_RELEASE:
        return "released";
    case KL_CLAIM_EXTEND:
        return "extended";
    case KL_CLAIM_PROGRESS:
        return "told";
    default:
        return end_of(one);
    }
}

static void write_said(kl__writer *writer, const kl__claim_say *one)
{
    write_field(writer, "{\"token\":", one->token);
    write_field(writer, ",\"outcome\":", kl_str(outcome_of(one)));
    if (one->rc == KL_OK && (one->word == KL_CLAIM_EXTEND || one->word == KL_CLAIM_PROGRESS)) {
        kl__write(writer, ",\"lease_until\":");
        kl__write_time(writer, one->lease_until_ms);
        kl__write(writer, one->cancelled ? ",\"cancelled\":true" : ",\"cancelled\":false");
    }
    kl__write(writer, "}");
}

static void answer_stale(kl__exchange *exchange)
{
    kl__reply_problem(
        exchange, 409, "stale-token",
        "the token is no longer the task's: its lease ran out, it was settled or released, or its shard has "
        "another owner; nothing was changed: drop what was done, and claim again");
}

/* What went wrong with a single one. */
static void answer_refused(kl__exchange *exchange, const kl__claim_say *one)
{
    if (is_stale(one->rc))
        answer_stale(exchange);
    else if (one->rc == KL_EINVAL && one->word == KL_CLAIM_DONE)
        kl__reply_problem(
            exchange, 400, "bad-request",
            "the result has %zu bytes, and %u is the most; store it elsewhere and finish with its address. "
            "Nothing was changed",
            one->result.len, KL_RESULT_BYTES_MAX);
    else if (one->rc == KL_EINVAL)
        kl__reply_problem(exchange, 400, "bad-request",
                          "retry_after_ms or lease_ms is longer than is allowed; nothing was changed");
    else if (is_unreached(one))
        kl__reply_problem(
            exchange, 503, "unreached",
            "the server that gave the task out does not answer, and whether it has heard this is not known; send it "
            "again with the same token in a moment");
    else
        kl__reply_problem(
            exchange, 503, "unsettled",
            "the store does not take outcomes just now; the server keeps this one and goes on sending it, so do not "
            "send it again: read the task to see what became of it");
}

/* Another server gave it out and has found the token stale. */
static bool counted_elsewhere(const kl__api *api, const kl__claim_say *one)
{
    char server[24];
    return one->rc == KL_ESTALE && kl__forward_foreign(api, one->token, server);
}

static void count_said(kl__exchange *exchange, const kl__claim_say *says, size_t count, size_t *ret_stale,
                       size_t *ret_refused)
{
    *ret_stale = *ret_refused = 0;
    for (size_t i = 0; i < count; i++) {
        *ret_stale += is_stale(says[i].rc);
        if (is_stale(says[i].rc) && !counted_elsewhere(exchange->api, &says[i]))
            kl__metrics_stale(exchange->open->metrics, exchange->queue, kl__claim_token_partition(says[i].token));
        *ret_refused += says[i].rc != KL_OK;
        if (says[i].rc == KL_OK && says[i].word <= KL_CLAIM_DEAD && says[i].ran_ns > 0) /* given out here */
            kl__metrics_ran(exchange->open->metrics, says[i].partition, says[i].ran_ns);
    }
    if (*ret_stale)
        kl__api_log(exchange->api, KL_LOG_INFO, "queue %s: %zu of %zu tokens of %s (%s, %s) are stale",
                    exchange->open->name, *ret_stale, count, exchange->route->name, exchange->who,
                    exchange->request->peer);
}

static void swap(struct say *say, size_t a, size_t b)
{
    kl__claim_say kept = say->says.says[a];
    size_t place = say->places[a];
    say->says.says[a] = say->says.says[b];
    say->places[a] = say->places[b];
    say->says.says[b] = kept;
    say->places[b] = place;
}

/* Whoever asked may pair answers with items by their order. */
static void put_in_order(struct say *say)
{
    for (size_t i = 0; say->places && i < say->total; i++)
        while (say->places[i] != i)
            swap(say, i, say->places[i]);
}

static void answer_said(struct say *say)
{
    kl__exchange *exchange = say->exchange;
    const kl__claim_say *says = say->says.says;
    size_t stale, refused, count = say->total;
    bool many = say->many;
    put_in_order(say);
    count_said(exchange, says, count, &stale, &refused);
    if (!many && refused) {
        answer_refused(exchange, &says[0]);
        return;
    }
    kl__writer writer = {.arena = exchange->arena};
    kl__write(&writer, many ? "{\"items\":[" : "");
    for (size_t i = 0; i < count; i++) {
        kl__write(&writer, i ? "," : "");
        write_said(&writer, &says[i]);
    }
    kl__write(&writer, many ? "],\"cursor\":null}" : "");
    kl__reply_written(exchange, stale == 0 || stale < count ? 200 : 409, &writer);
}

static void said(kl__claim_says *says, kl_rc rc)
{
    struct say *say = says->ctx;
    kl__exchange *exchange = say->exchange;
    kl__queues_claims_leave(exchange->open);
    if (rc != KL_OK) {
        kl__reply_rc(exchange, rc);
        return;
    }
    if (say->word <= KL_CLAIM_DEAD)
        kl__metrics_settled(exchange->open->metrics, says->says, says->count,
                            kl__monotonic_ns() - exchange->request->began_ns);
    answer_said(say);
}

static void read_one(struct say *say, kl__json *from, kl__claim_say *one)
{
    kl_arena *arena = say->exchange->arena;
    *one = (kl__claim_say){.word = say->word, .retry_after_ms = -1, .percent = -1};
    one->token = kl__json_bytes(from, "token", arena);
    switch (say->word) {
    case KL_CLAIM_DONE:
        one->result = kl__body_any(from, "result", arena);
        break;
    case KL_CLAIM_RETRY:
        one->error = kl__json_bytes_or(from, "error", arena, (kl_bytes){0});
        one->retry_after_ms = kl__json_int_or(from, "retry_after_ms", 0, INT64_C(31536000000), -1);
        one->word = kl__json_bool_or(from, "dead", false) ? KL_CLAIM_DEAD : KL_CLAIM_RETRY;
        break;
    case KL_CLAIM_EXTEND: /* without lease_ms: as long as it was given for */
        one->lease_ms = kl__json_int_or(from, "lease_ms", 1000, LEASE_MS_MAX, 0);
        break;
    case KL_CLAIM_PROGRESS:
        one->lease_ms = kl__json_int_or(from, "lease_ms", 1000, LEASE_MS_MAX, 0);
        one->percent = (int)kl__json_int_or(from, "percent", 0, 100, -1);
        one->text = kl__json_bytes_or(from, "text", arena, (kl_bytes){0});
        break;
    default:
        break;
    }
}

static const char *const *fields_of(kl__claim_word word)
{
    static const char *const done[] = {"items", "token", "result", NULL};
    static const char *const failed[] = {"items", "token", "error", "retry_after_ms", "dead", NULL};
    static const char *const extended[] = {"items", "token", "lease_ms", NULL};
    static const char *const released[] = {"items", "token", NULL};
    static const char *const told[] = {"items", "token", "lease_ms", "percent", "text", NULL};
    switch (word) {
    case KL_CLAIM_DONE:
        return done;
    case KL_CLAIM_RETRY:
        return failed;
    case KL_CLAIM_EXTEND:
        return extended;
    case KL_CLAIM_RELEASE:
        return released;
    default:
        return told;
    }
}

/* Those of an item are all but the first. */
static void read_item(struct say *say, kl__json *body, json_t *items, size_t index)
{
    char sentence[256];
    kl__json item = kl__json_item(body, items, index);
    kl__body_known(&item, fields_of(say->word) + 1);
    read_one(say, &item, &say->says.says[index]);
    body->rc = item.rc;
    if (item.rc != KL_EINVAL)
        return;
    snprintf(sentence, sizeof sentence, "%s", kl_error_text());
    body->rc = kl__fail(KL_EINVAL, "item %zu of %s", index + 1, sentence);
}

static bool read_items(struct say *say, kl__json *body)
{
    json_t *items = kl__json_has(body, "items") ? kl__json_array_of(body, "items", KL_PUT_MAX) : NULL;
    size_t count = items ? json_array_size(items) : 1;
    say->many = kl__json_has(body, "items");
    if (body->rc == KL_OK && count == 0)
        kl__json_damaged(body, "items", "is empty; send 1 to 10000 of them, or one by itself");
    say->says.says = kl_arena_alloc(say->exchange->arena, (count + 1) * sizeof *say->says.says);
    if (say->says.says)
        memset(say->says.says, 0, (count + 1) * sizeof *say->says.says);
    else
        body->rc = kl__fail_memory();
    if (body->rc == KL_OK && say->many && json_object_size(body->object) > 1)
        kl__json_damaged(body, "items", "has fields beside it, which belong into the items");
    for (size_t i = 0; items && body->rc == KL_OK && i < count; i++)
        read_item(say, body, items, i);
    if (!items && body->rc == KL_OK)
        read_one(say, body, &say->says.says[0]);
    say->says.count = count;
    return body->rc == KL_OK;
}

/* The inverse of read_one: for another server. */
static bool write_one(json_t *items, const kl__claim_say *one)
{
    json_t *object = kl__json_object();
    bool ok = kl__json_set_bytes(object, "token", one->token);
    if (one->word == KL_CLAIM_DONE)
        ok = ok && kl__json_set_bytes(object, "result", one->result);
    if (one->word == KL_CLAIM_RETRY || one->word == KL_CLAIM_DEAD)
        ok = ok && kl__json_set_bytes(object, "error", one->error) &&
             kl__json_set_bool(object, "dead", one->word == KL_CLAIM_DEAD) &&
             (one->retry_after_ms < 0 || kl__json_set_int(object, "retry_after_ms", one->retry_after_ms));
    if (one->lease_ms)
        ok = ok && kl__json_set_int(object, "lease_ms", one->lease_ms);
    if (one->word == KL_CLAIM_PROGRESS)
        ok = ok && kl__json_set_bytes(object, "text", one->text) &&
             (one->percent < 0 || kl__json_set_int(object, "percent", one->percent));
    if (ok)
        return kl__json_append(items, object);
    json_decref(object);
    return false;
}

static kl_rc forward(kl__exchange *exchange, const char *server, kl__claim_say *says, size_t count)
{
    kl_bytes text = {0};
    json_t *items = kl__json_array(), *body = kl__json_object();
    bool ok = true;
    for (size_t i = 0; i < count; i++)
        ok = ok && write_one(items, &says[i]);
    ok = kl__json_set(body, "items", items) && ok;
    kl_rc rc = ok ? kl__json_print(body, exchange->arena, &text) : kl__fail_memory();
    json_decref(body);
    return rc == KL_OK ? kl__forward_send(exchange, server, text, says, count) : rc;
}

/* Moves what the server of the first foreign one gave out, or what any other server did, to the end of says[0..count);
 * returns how many are left. */
static size_t gather(struct say *say, size_t count, bool any, char server[24])
{
    const kl__claim_say *says = say->says.says;
    char other[24];
    size_t left = 0;
    *server = 0;
    for (size_t i = 0; i < count && !*server; i++)
        if (!kl__forward_foreign(say->exchange->api, says[i].token, server))
            *server = 0;
    for (size_t i = 0; *server && i < count; i++)
        if (!kl__forward_foreign(say->exchange->api, says[i].token, other) || (!any && strcmp(other, server) != 0))
            swap(say, left++, i);
    return *server ? left : count;
}

static void send_says(struct say *say)
{
    say->says.answer = said;
    say->says.ctx = say;
    say->claims = say->says.count ? kl__queues_claims_known(say->exchange->open) : NULL;
    if (say->claims) {
        kl__claims_say(say->claims, &say->says);
        return;
    }
    for (size_t i = 0; i < say->says.count; i++) /* what this server gave out was settled or released */
        say->says.says[i].rc = KL_ENOTFOUND;
    answer_said(say);
}

static bool note_places(struct say *say)
{
    say->places = kl_arena_alloc(say->exchange->arena, say->total * sizeof *say->places);
    for (size_t i = 0; say->places && i < say->total; i++)
        say->places[i] = i;
    return say->places != NULL;
}

/* Other servers first, one after the other; then what is left here. */
static void forward_on_pool(kl__exchange *exchange)
{
    struct say *say = exchange->serving;
    char server[24];
    if (!note_places(say)) {
        kl__reply_rc(exchange, kl__fail_memory());
        return;
    }
    for (int servers = 0; servers <= SERVERS_MAX; servers++) {
        size_t count = say->says.count;
        say->says.count = gather(say, count, servers == SERVERS_MAX, server);
        if (!*server)
            break;
        kl__claim_say *theirs = &say->says.says[say->says.count];
        kl_rc rc = servers < SERVERS_MAX ? forward(exchange, server, theirs, count - say->says.count) : KL_EBUSY;
        for (size_t i = 0; rc != KL_OK && i < count - say->says.count; i++)
            theirs[i].rc = KL_EBUSY; /* unknown: the others are said all the same */
    }
    send_says(say);
}

static kl_bytes forwarded_to(const kl__exchange *exchange)
{
    return kl__head_field(&exchange->request->head, "keyline-forwarded");
}

/* Another server means a third one: two of them have the same url. What this one says of the tokens would be wrong. */
static bool misdirected(kl__exchange *exchange)
{
    kl_bytes meant = forwarded_to(exchange);
    const char *name = exchange->api->name;
    if (meant.len == 0 || (meant.len == strlen(name) && memcmp(meant.data, name, meant.len) == 0))
        return false;
    kl__reply_problem(
        exchange, 421, "misdirected",
        "this is another server than the one that gave the tasks out; start each server of a store with a "
        "--url of its own, under which the others reach it");
    return true;
}

static bool any_foreign(const struct say *say)
{
    char server[24];
    if (forwarded_to(say->exchange).len)
        return false; /* it comes from another server: never a second time */
    for (size_t i = 0; i < say->says.count; i++)
        if (kl__forward_foreign(say->exchange->api, say->says.says[i].token, server))
            return true;
    return false;
}

/* The result as it is, and the token in a header. */
static bool read_raw(struct say *say)
{
    const kl__request *request = say->exchange->request;
    kl__claim_say *one = kl_arena_alloc(say->exchange->arena, sizeof *one);
    if (!one) {
        kl__reply_rc(say->exchange, kl__fail_memory());
        return false;
    }
    *one = (kl__claim_say){.word = KL_CLAIM_DONE, .retry_after_ms = -1, .percent = -1, .result = request->body};
    one->token = kl__head_field(&request->head, "keyline-token");
    say->says.says = one;
    say->says.count = 1;
    return true;
}

/* Plain finishes: a token, and perhaps a result. */
static bool take_plain(void *context, const kl__plain_field *fields, size_t count)
{
    struct say *say = context;
    kl__claim_say *one = &say->says.says[say->says.count++];
    *one = (kl__claim_say){.word = say->word, .retry_after_ms = -1, .percent = -1};
    for (size_t i = 0; i < count; i++)
        if (fields[i].text.data && kl__plain_is(&fields[i], "token"))
            one->token = fields[i].text;
        else if (fields[i].text.data && kl__plain_is(&fields[i], "result"))
            one->result = fields[i].text;
        else
            return false;
    return one->token.len > 0;
}

/* False: it was not plain, and nothing was read. */
static bool read_plain(struct say *say)
{
    kl_bytes body = say->exchange->request->body;
    size_t count = kl__plain_count(body);
    if (count == 0 || count > KL_PUT_MAX + 1)
        return false;
    say->says.says = kl_arena_alloc(say->exchange->arena, count * sizeof *say->says.says);
    if (say->says.says && kl__plain_read(body, "items", take_plain, say, &say->many) && say->says.count > 0 &&
        say->says.count <= KL_PUT_MAX)
        return true;
    say->says.count = 0;
    say->many = false;
    return false;
}

static bool read_says(struct say *say)
{
    kl__exchange *exchange = say->exchange;
    kl__json body;
    if (kl__params_refused(exchange))
        return false;
    if (say->word == KL_CLAIM_DONE && kl__body_is(exchange, raw_type))
        return read_raw(say);
    if (say->word == KL_CLAIM_DONE && kl__body_is(exchange, "application/json") && read_plain(say))
        return true;
    if (!kl__body_json(exchange, fields_of(say->word), &body))
        return false;
    bool ok = read_items(say, &body);
    ok = !kl__body_refused(exchange, &body) && ok;
    kl__json_free(&body);
    return ok;
}

static void serve_says(kl__exchange *exchange, kl__claim_word word)
{
    struct say *say = kl_arena_alloc(exchange->arena, sizeof *say);
    if (!say) {
        kl__reply_rc(exchange, kl__fail_memory());
        return;
    }
    *say = (struct say){.exchange = exchange, .word = word};
    if (misdirected(exchange) || !read_says(say))
        return;
    exchange->serving = say;
    say->total = say->says.count;
    if (any_foreign(say))
        kl__pool_push(exchange->api->forward_pool, exchange, forward_on_pool);
    else
        send_says(say);
}

void kl__api_finish_tasks(kl__exchange *exchange) { serve_says(exchange, KL_CLAIM_DONE); }
void kl__api_fail_tasks(kl__exchange *exchange) { serve_says(exchange, KL_CLAIM_RETRY); }
void kl__api_extend_tasks(kl__exchange *exchange) { serve_says(exchange, KL_CLAIM_EXTEND); }
void kl__api_release_tasks(kl__exchange *exchange) { serve_says(exchange, KL_CLAIM_RELEASE); }
void kl__api_progress_tasks(kl__exchange *exchange) { serve_says(exchange, KL_CLAIM_PROGRESS); }
