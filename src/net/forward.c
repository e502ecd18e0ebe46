/* forward.c - several servers on one store: what is said of a task goes to the server that gave it out.
 *
 * Each server has a record, server/NAME, with the address under which the others reach it and a secret that admits
 * them; whoever can read the store may know both. The record is renewed by the keeper and expires by itself, and a
 * token of a server whose record is gone is stale: that server has ended, and its tasks have other owners.
 *
 * A forwarded request names the server that it is meant for, since two of them may have written down the same address
 * (127.0.0.1, or one proxy's): another one refuses it (421), and it counts as not heard.
 *
 * Only what is said of claimed tasks is forwarded: puts go to the store from any server, and claims come from the
 * shards that the asked server owns. */
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/times.h"
#include "net/forward.h"
#include "queue/record.h"

enum { RECORD_MS = 30000, CONNECT_MS = 3000, CALL_MS = 30000, TOLD_MS = 10000, AWAY_MS = 1000, AWAY_MAX = 8 };

/* A server that did not answer: until then nobody waits for it. */
struct away {
    char server[24];
    int64_t until_ns;
};

struct kl__forward {
    char url[512];
    _Atomic(bool) written;     /* its record is there */
    _Atomic(int64_t) quiet_ns; /* until then the log is told of no other server that does not answer */
    pthread_mutex_t mutex;     /* of what follows */
    struct away away[AWAY_MAX];
    size_t away_next; /* the one that is overwritten next */
};

static kl_bytes name_of(const char *server, char *buffer)
{
    return kl__record_name(buffer, KL_RECORD_NAME_BYTES, "server", server, NULL);
}

/* ---- This server's record ---- */

static bool random_text(char *text, size_t bytes)
{
    static const char digits[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    unsigned char raw[64];
    if (bytes - 1 > sizeof raw || getrandom(raw, bytes - 1, 0) != (ssize_t)(bytes - 1))
        return false;
    for (size_t i = 0; i + 1 < bytes; i++)
        text[i] = digits[raw[i] % 36];
    text[bytes - 1] = 0;
    return true;
}

kl_rc kl__forward_open(kl__api *api)
{
    api->forward = kl__alloc_zeroed(1, sizeof *api->forward);
    if (!api->forward)
        return kl__fail_memory();
    pthread_mutex_init(&api->forward->mutex, NULL);
    if (!random_text(api->name, 13) || !random_text(api->secret, sizeof api->secret))
        return kl__fail(KL_ESYSTEM, "the kernel gives no random bytes");
    return KL_OK;
}

void kl__forward_close(kl__api *api)
{
    char name[KL_RECORD_NAME_BYTES];
    if (api->forward && atomic_load(&api->forward->written) &&
        kl__records_clear(api->store, name_of(api->name, name)) != KL_OK)
        api->opts.log(api->opts.log_ctx, KL_LOG_WARN, kl_error_text());
    if (api->forward)
        pthread_mutex_destroy(&api->forward->mutex);
    kl__free(api->forward);
    api->forward = NULL;
}

void kl__forward_reachable(kl__api *api, const char *url)
{
    snprintf(api->forward->url, sizeof api->forward->url, "%s", url);
}

kl_rc kl__forward_renew(kl__api *api)
{
    char name[KL_RECORD_NAME_BYTES];
    kl_arena arena = {0};
    kl_record record;
    int64_t now_ms = 0;
    json_t *value = kl__json_object();
    kl_rc rc = kl__json_set_text(value, "url", api->forward->url) && kl__json_set_text(value, "secret", api->secret)
                   ? kl_store_now(api->store, &now_ms)
                   : kl__fail_memory();
    if (rc == KL_OK)
        rc = kl__record_get(api->store, name_of(api->name, name), &arena, &record);
    if (rc == KL_OK)
        rc = kl__record_write(api->store, name_of(api->name, name), record.version, value, now_ms + RECORD_MS, NULL);
    if (rc == KL_OK)
        atomic_store(&api->forward->written, true);
    json_decref(value);
    kl_arena_free(&arena);
    return rc;
}

bool kl__forward_is(const kl__api *api, kl_bytes bearer)
{
    unsigned char differs = bearer.len != strlen(api->secret);
    for (size_t i = 0; i < bearer.len && i < sizeof api->secret; i++)
        differs |= (unsigned char)(((const char *)bearer.data)[i] ^ api->secret[i]);
    return !differs;
}

/* ---- Another server ---- */

bool kl__forward_foreign(const kl__api *api, kl_bytes token, char ret_server[24])
{
    return kl__claim_token_server(token, ret_server) && *ret_server && strcmp(ret_server, api->name) != 0;
}

struct reply {
    kl_arena *arena;
    char *text;
    size_t len, room;
};

static size_t receive(char *bytes, size_t size, size_t count, void *context)
{
    struct reply *reply = context;
    size_t len = size * count;
    if (reply->len + len + 1 > reply->room) {
        size_t room = (reply->len + len + 1) * 2;
        char *text = kl_arena_alloc(reply->arena, room);
        if (!text)
            return 0;
        if (reply->len)
            memcpy(text, reply->text, reply->len);
        reply->text = text;
        reply->room = room;
    }
    memcpy(reply->text + reply->len, bytes, len);
    reply->len += len;
    return len;
}

static bool add_header(struct curl_slist **headers, const char *line)
{
    struct curl_slist *longer = curl_slist_append(*headers, line);
    if (longer)
        *headers = longer;
    return longer != NULL;
}

/* KL_OK with a status, or KL_EBUSY: it cannot be reached. */
static kl_rc post(const char *url, const char *server, const char *secret, kl_bytes body, struct reply *reply,
                  long *ret_status)
{
    char bearer[128], meant[64];
    CURL *curl = curl_easy_init();
    struct curl_slist *headers = NULL;
    snprintf(bearer, sizeof bearer, "Authorization: Bearer %s", secret);
    snprintf(meant, sizeof meant, "Keyline-Forwarded: %s", server);
    bool ok = curl && add_header(&headers, "Content-Type: application/json") && add_header(&headers, meant) &&
              add_header(&headers, bearer);
    if (!ok) {
        curl_slist_free_all(headers);
        curl_easy_cleanup(curl);
        return kl__fail_memory();
    }
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, (const char *)body.data);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body.len);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, receive);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, reply);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)CALL_MS);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROXY, "");
    if (getenv("KEYLINE_CA"))
        curl_easy_setopt(curl, CURLOPT_CAINFO, getenv("KEYLINE_CA"));
    CURLcode code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, ret_status);
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    return code == CURLE_OK ? KL_OK
                            : kl__fail(KL_EBUSY,
                                       "the server at %s that gave the task out cannot be reached (%s); see its --url, "
                                       "and with TLS the KEYLINE_CA of this one",
                                       url, curl_easy_strerror(code));
}

static void stale(kl__claim_say *says, size_t count)
{
    for (size_t i = 0; i < count; i++)
        says[i].rc = KL_ENOTFOUND;
}

/* What an outcome of the other server's answer means; all words but these say that it counted. */
static kl_rc code_of(const char *outcome)
{
    static const struct {
        const char *word;
        kl_rc rc;
    } codes[] = {{"stale", KL_ESTALE}, /* and counted there */
                 {"refused", KL_EINVAL},
                 {"unsettled", KL_ETIMEDOUT}, /* it keeps the outcome */
                 {"unknown", KL_EBUSY},
                 {"", KL_EBUSY}};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (strcmp(outcome, codes[i].word) == 0)
            return codes[i].rc;
    return KL_OK;
}

static void read_end(const char *outcome, kl__claim_say *say)
{
    say->halted = strcmp(outcome, "halted") == 0;
    say->outcome = strcmp(outcome, "done") == 0        ? KL_DONE
                   : strcmp(outcome, "dead") == 0      ? KL_DEAD
                   : strcmp(outcome, "cancelled") == 0 ? KL_CANCELLED
                                                       : KL_RETRY;
}

/* What the other server answered, item by item. */
static kl_rc read_reply(kl_bytes text, kl__claim_say *says, size_t count)
{
    kl__json body;
    kl_rc rc = kl__json_parse(text, "the other server's answer", &body);
    if (rc != KL_OK)
        return rc;
    json_t *items = kl__json_array_of(&body, "items", count);
    for (size_t i = 0; i < json_array_size(items); i++) {
        json_t *item = json_array_get(items, i);
        const char *outcome = json_string_value(json_object_get(item, "outcome"));
        const char *until = json_string_value(json_object_get(item, "lease_until"));
        says[i].rc = code_of(outcome ? outcome : "");
        read_end(outcome ? outcome : "", &says[i]);
        says[i].cancelled = json_is_true(json_object_get(item, "cancelled"));
        if (!until || !kl__time_parse(until, 0, &says[i].lease_until_ms))
            says[i].lease_until_ms = 0;
    }
    rc = body.rc == KL_OK && json_array_size(items) != count
             ? kl__fail(KL_EBUSY, "the server that gave the tasks out answered for some only; send them again")
             : body.rc;
    kl__json_free(&body);
    return rc;
}

static kl_rc find_server(kl__api *api, const char *server, kl_arena *arena, const char **ret_url,
                         const char **ret_secret)
{
    char name[KL_RECORD_NAME_BYTES];
    kl__json value;
    kl_record record;
    kl_rc rc = kl__record_read(api->store, name_of(server, name), arena, &value, &record);
    if (rc != KL_OK)
        return rc;
    *ret_url = kl__json_text(&value, "url", arena);
    *ret_secret = kl__json_text(&value, "secret", arena);
    rc = value.rc;
    kl__json_free(&value);
    return rc;
}

static void note_away(struct kl__forward *forward, const char *server)
{
    pthread_mutex_lock(&forward->mutex);
    struct away *away = &forward->away[forward->away_next++ % AWAY_MAX];
    snprintf(away->server, sizeof away->server, "%s", server);
    away->until_ns = kl__deadline_ns(AWAY_MS);
    pthread_mutex_unlock(&forward->mutex);
}

static bool is_away(struct kl__forward *forward, const char *server)
{
    bool away = false;
    int64_t now_ns = kl__monotonic_ns();
    pthread_mutex_lock(&forward->mutex);
    for (size_t i = 0; i < AWAY_MAX; i++)
        away |= forward->away[i].until_ns > now_ns && strcmp(forward->away[i].server, server) == 0;
    pthread_mutex_unlock(&forward->mutex);
    return away;
}

static kl_rc send_to(kl__exchange *exchange, const char *server, kl_bytes body, kl__claim_say *says, size_t count)
{
    const char *url, *secret;
    char whole[1024];
    long status = 0;
    struct reply reply = {.arena = exchange->arena};
    if (is_away(exchange->api->forward, server))
        return kl__fail(KL_EBUSY, "the server that gave the task out did not answer a moment ago; send it again");
    kl_rc rc = find_server(exchange->api, server, exchange->arena, &url, &secret);
    if (rc == KL_ENOTFOUND) {
        stale(says, count);
        return KL_OK;
    }
    if (rc != KL_OK)
        return rc;
    if (!*url)
        return kl__fail(KL_EBUSY, "the server that gave the task out listens on a socket alone; start it with --url");
    kl_bytes path = exchange->request->head.path;
    snprintf(whole, sizeof whole, "%s%.*s", url, (int)path.len, (const char *)path.data);
    rc = post(whole, server, secret, body, &reply, &status);
    if (rc == KL_EBUSY)
        note_away(exchange->api->forward, server);
    if (rc != KL_OK)
        return rc;
    if (status == 421 || status == 401 || status == 403)
        return kl__fail(
            KL_EBUSY,
            "at %s is another server than the one that gave the task out; start each server of a store with "
            "a --url of its own, under which the others reach it",
            url);
    if (status != 200 && status != 409)
        return kl__fail(KL_EBUSY, "the server at %s answered %ld; send it again in a moment", url, status);
    return read_reply((kl_bytes){reply.text, reply.len}, says, count);
}

/* Clients are told that it is so, operators why: once in a while, since each client tries again. */
static void log_failure(kl__api *api)
{
    int64_t now_ns = kl__monotonic_ns(), quiet_ns = atomic_load(&api->forward->quiet_ns);
    if (now_ns >= quiet_ns &&
        atomic_compare_exchange_strong(&api->forward->quiet_ns, &quiet_ns, kl__deadline_ns(TOLD_MS)))
        api->opts.log(api->opts.log_ctx, KL_LOG_WARN, kl_error_text());
}

kl_rc kl__forward_send(kl__exchange *exchange, const char *server, kl_bytes body, kl__claim_say *says, size_t count)
{
    kl_rc rc = send_to(exchange, server, body, says, count);
    if (rc != KL_OK)
        log_failure(exchange->api);
    return rc;
}
