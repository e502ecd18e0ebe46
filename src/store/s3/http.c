/* http.c - see http.h.
 *
 * From: the calls of the engine.  To: an S3 server.
 *
 *     send: list of new ones -> [thread: lines of writes and reads -> curl_multi] -> answered | waits to be sent again
 *
 * Only as many as there are connections are with curl, because its time-outs count from when it gets them. Writes go
 * first: a heartbeat does not wait for a backlog to be read.
 *
 * What is sent again: whatever got no answer, 5xx, 429 and 409. A conditional write whose first reply was lost then
 * meets itself and is answered 412; callers look at what is there and tell their own by its nonce, so it is always safe
 * to send again. The wait doubles and is spread at random. */
#include "store/s3/http.h"

#include <curl/curl.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "base/base.h"
#include "base/random.h"
#include "base/wait.h"
#include "store/s3/clock.h"

enum {
    CONNECT_MS = 5000,
    STALLED_S = 10,        /* less than a byte a second for so long: given up, and sent again */
    TOTAL_MS = 60000,      /* and as long as the body takes: */
    SLOWEST_BYTES_MS = 64, /* 11 MB, the largest that may not come late, are there long before KL_S3_GRACE_MS is over */
    READ_MS = 600000,      /* an archive may be large, and one that stalls is given up before */
    FIRST_MS = 3000,       /* a server that never answered and cannot be reached is tried for so long */
    BACKOFF_MS = 20,
    BACKOFF_MAX_MS = 2000,
    ILL_SENDS = 6, /* that fail one after the other take about a second */
    POLL_MS = 1000,
    TEXT_MIN = 256,
};

/* Who waits for a set of requests. */
struct kl__s3_wait {
    size_t left;
};

struct line {
    kl__s3_request *first, **end; /* end NULL: it was never used */
};

struct kl__s3_http {
    const kl__s3_site *site;
    CURLM *multi;
    pthread_t thread;
    bool runs;

    pthread_mutex_t mutex; /* holds for all that follows */
    pthread_cond_t answered;
    kl__s3_request *fresh, **fresh_end;
    bool closing;
    kl__away *away; /* NULL: nobody is told */
    kl__s3_clock clock;
    kl__s3_bill bill;

    /* the thread's */
    struct line writes, reads; /* wait for a connection */
    size_t under_way;          /* with curl */
    int64_t heard_ns;          /* when an answer last came */
    kl__s3_request *later;     /* to be sent again */
    void *idle[KL_S3_PARALLEL];
    size_t idle_count;
    uint64_t random;
    kl__s3_site signer; /* the site, with its keys or with newer ones */
    unsigned keys;      /* how often they were renewed */
};

/* --- Text --- */

void kl__s3_text_free(kl__s3_text *text)
{
    kl__free(text->data);
    *text = (kl__s3_text){0};
}

static bool make_room(kl__s3_text *text, size_t more)
{
    if (text->failed)
        return false;
    if (text->room - text->len > more)
        return true;
    size_t room = text->room ? text->room * 2 : TEXT_MIN;
    while (room - text->len <= more)
        room *= 2;
    char *grown = kl__alloc(room);
    if (!grown) {
        text->failed = true;
        return false;
    }
    if (text->len)
        memcpy(grown, text->data, text->len);
    kl__free(text->data);
    text->data = grown;
    text->room = room;
    return true;
}

void kl__s3_text_add(kl__s3_text *text, const void *bytes, size_t len)
{
    if (!make_room(text, len))
        return;
    if (len)
        memcpy(text->data + text->len, bytes, len);
    text->len += len;
    text->data[text->len] = '\0';
}

void kl__s3_text_put(kl__s3_text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int len = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (len < 0 || !make_room(text, (size_t)len))
        return;
    va_start(arguments, format);
    vsnprintf(text->data + text->len, (size_t)len + 1, format, arguments);
    va_end(arguments);
    text->len += (size_t)len;
}

void kl__s3_request_free(kl__s3_request *request) { kl__s3_text_free(&request->reply); }

/* --- The clock --- */

int64_t kl__s3_http_now(kl__s3_http *http)
{
    pthread_mutex_lock(&http->mutex);
    int64_t now_ms = kl__s3_clock_now(&http->clock);
    pthread_mutex_unlock(&http->mutex);
    return now_ms;
}

int64_t kl__s3_http_jumped(kl__s3_http *http)
{
    pthread_mutex_lock(&http->mutex);
    int64_t jumped_ns = http->clock.jumped_ns;
    pthread_mutex_unlock(&http->mutex);
    return jumped_ns;
}

kl__s3_bill kl__s3_http_bill(kl__s3_http *http)
{
    pthread_mutex_lock(&http->mutex);
    kl__s3_bill bill = http->bill;
    pthread_mutex_unlock(&http->mutex);
    return bill;
}

/* --- One request --- */

static size_t take_body(char *bytes, size_t size, size_t count, void *ctx)
{
    kl__s3_request *request = ctx;
    if (request->reply.len + size * count > KL_S3_REPLY_MAX)
        request->reply.failed = true;
    kl__s3_text_add(&request->reply, bytes, size * count);
    return request->reply.failed ? 0 : size * count;
}

static size_t give_body(char *to, size_t size, size_t count, void *ctx)
{
    kl__s3_request *request = ctx;
    size_t left = request->body.len - request->sent, len = size * count < left ? size * count : left;
    if (len)
        memcpy(to, (const char *)request->body.data + request->sent, len);
    request->sent += len;
    return len;
}

/* libcurl sends again by itself when a kept connection turns out to be dead: that counts, too. */
static int seek_body(void *ctx, curl_off_t offset, int origin)
{
    kl__s3_request *request = ctx;
    if (origin != SEEK_SET)
        return CURL_SEEKFUNC_CANTSEEK;
    request->sends++;
    request->sent = (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

static size_t take_header(char *bytes, size_t size, size_t count, void *ctx)
{
    kl__s3_request *request = ctx;
    size_t len = size * count, end = len;
    while (end > 0 && (bytes[end - 1] == '\r' || bytes[end - 1] == '\n'))
        end--;
    if (len > 6 && strncasecmp(bytes, "etag: ", 6) == 0 && end - 6 < sizeof request->etag) {
        memcpy(request->etag, bytes + 6, end - 6);
        request->etag[end - 6] = '\0';
    }
    if (len > 6 && strncasecmp(bytes, "date: ", 6) == 0 && end < 64) {
        char date[64];
        snprintf(date, sizeof date, "%.*s", (int)(end - 6), bytes + 6);
        time_t seconds = curl_getdate(date, NULL);
        request->date_ms = seconds > 0 ? (int64_t)seconds * 1000 : 0;
    }
    return len;
}

/* The MD5 that a list of deletes must carry. False: there is none, as where FIPS rules. */
static bool add_md5(const kl__s3_request *request, char *ret_header, size_t size)
{
    unsigned char digest[EVP_MAX_MD_SIZE], text[64];
    unsigned len = 0;
    if (EVP_Digest(request->body.data, request->body.len, digest, &len, EVP_md5(), NULL) != 1)
        return false;
    EVP_EncodeBlock(text, digest, (int)len);
    snprintf(ret_header, size, "content-md5: %s", (const char *)text);
    return true;
}

static void encode_path(const kl__s3_http *http, const kl__s3_request *request, kl__s3_text *path)
{
    kl__s3_text_put(path, "/");
    if (http->site->path_style) {
        kl__s3_encode(path, kl_str(http->site->bucket), false);
        if (request->name)
            kl__s3_text_put(path, "/");
    }
    if (request->name)
        kl__s3_encode(path, kl_str(request->name), true);
}

static int64_t signing_ms(kl__s3_http *http)
{
    pthread_mutex_lock(&http->mutex);
    int64_t now_ms = http->clock.is_set ? kl__s3_clock_shows(&http->clock) : kl__wall_ms();
    pthread_mutex_unlock(&http->mutex);
    return now_ms;
}

static bool add_headers(kl__s3_http *http, kl__s3_request *request, const char *path)
{
    kl__s3_signed *signed_ = kl__alloc(sizeof *signed_);
    char condition[KL_S3_ETAG_BYTES + 32], md5[96];
    kl__s3_signing what = {.method = kl__s3_method(request),
                           .path = path,
                           .query = request->query ? request->query : "",
                           .service = "s3",
                           .body = request->body,
                           .now_ms = signing_ms(http)};
    size_t extra = 0;
    struct curl_slist *list = NULL;
    if (!signed_)
        return false;
    if (kl__s3_is_post(request) && !add_md5(request, md5, sizeof md5)) {
        snprintf(request->problem, sizeof request->problem, "OpenSSL has no MD5 here, which S3 wants with deletes");
        kl__free(signed_);
        return false;
    }
    if (kl__s3_is_post(request))
        what.extra[extra++] = md5;
    if (request->if_match)
        snprintf(condition, sizeof condition, "if-match: %s", request->if_match);
    else
        snprintf(condition, sizeof condition, "if-none-match: *");
    if (request->if_match || request->absent)
        what.extra[extra++] = condition;
    bool good = kl__s3_sign(&http->signer, &what, signed_) == KL_OK;
    request->keys = http->keys;
    static const char *const plain[] = {"Expect:", "Content-Type:"};
    for (size_t i = 0; good && i < signed_->count + 2; i++) {
        struct curl_slist *longer = curl_slist_append(list, i < 2 ? plain[i] : signed_->headers[i - 2]);
        good = longer != NULL;
        list = longer ? longer : list;
    }
    kl__free(signed_);
    request->headers = list;
    return good;
}

static void set_method(CURL *easy, kl__s3_request *request)
{
    bool has_body = request->kind == KL_S3_PUT || kl__s3_is_post(request);
    if (has_body) {
        curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(easy, CURLOPT_READFUNCTION, give_body);
        curl_easy_setopt(easy, CURLOPT_READDATA, request);
        curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, seek_body);
        curl_easy_setopt(easy, CURLOPT_SEEKDATA, request);
        curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)request->body.len);
    }
    if (!has_body || kl__s3_is_post(request))
        curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, kl__s3_method(request));
}

/* How long the whole of one try may take. */
static long patience_ms(const kl__s3_request *request)
{
    bool reads = request->kind == KL_S3_GET && request->name;
    return reads ? READ_MS : (long)(TOTAL_MS + request->body.len / SLOWEST_BYTES_MS);
}

static bool set_up(kl__s3_http *http, kl__s3_request *request, CURL *easy)
{
    kl__s3_text path = {0}, url = {0};
    encode_path(http, request, &path);
    const kl__s3_site *site = http->site;
    bool good = !path.failed && add_headers(http, request, path.data);
    kl__s3_text_put(&url, "%s://%s%s%s%s%s%s", site->scheme, site->path_style ? "" : site->bucket,
                    site->path_style ? "" : ".", site->host, path.data ? path.data : "", request->query ? "?" : "",
                    request->query ? request->query : "");
    good = good && !url.failed && curl_easy_setopt(easy, CURLOPT_URL, url.data) == CURLE_OK;
    kl__s3_text_free(&path);
    kl__s3_text_free(&url);
    if (!good)
        return false;
    request->reply.len = request->sent = 0;
    request->reply.failed = false;
    request->etag[0] = '\0';
    request->date_ms = 0;
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)STALLED_S);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, patience_ms(request));
    curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, request);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, request);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, request->headers);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, request);
    set_method(easy, request);
    return true;
}

/* --- The thread --- */

static void release(kl__s3_http *http, kl__s3_request *request)
{
    if (request->easy && http->idle_count < KL_S3_PARALLEL) {
        curl_easy_reset(request->easy);
        http->idle[http->idle_count++] = request->easy;
    } else if (request->easy) {
        curl_easy_cleanup(request->easy);
    }
    curl_slist_free_all(request->headers);
    request->easy = request->headers = NULL;
}

static void finish(kl__s3_http *http, kl__s3_request *request)
{
    pthread_mutex_lock(&http->mutex);
    if (--request->wait->left == 0)
        pthread_cond_broadcast(&http->answered);
    pthread_mutex_unlock(&http->mutex);
}

/* An endpoint that is written wrong is not worth as much patience as a server that is out of order. */
static int64_t patience_ends_ns(kl__s3_http *http, const kl__s3_request *request)
{
    pthread_mutex_lock(&http->mutex);
    bool known = http->clock.is_set;
    pthread_mutex_unlock(&http->mutex);
    int64_t less_ms = known || !request->unreached ? 0 : KL_S3_PATIENCE_MS - FIRST_MS;
    return request->until_ns - less_ms * 1000000;
}

static void send_later(kl__s3_http *http, kl__s3_request *request)
{
    int64_t now_ns = kl__monotonic_ns();
    if (now_ns >= patience_ends_ns(http, request)) {
        finish(http, request);
        return;
    }
    request->backoff_ms = request->backoff_ms ? request->backoff_ms * 2 : BACKOFF_MS;
    if (request->backoff_ms > BACKOFF_MAX_MS)
        request->backoff_ms = BACKOFF_MAX_MS;
    uint64_t wait_ms = request->backoff_ms / 2 + kl__random_below(&http->random, request->backoff_ms / 2 + 1);
    request->due_ns = now_ns + (int64_t)wait_ms * 1000000;
    request->next = http->later;
    http->later = request;
}

static void start(kl__s3_http *http, kl__s3_request *request)
{
    request->status = 0;
    if (request->sends == 0)
        request->until_ns = kl__monotonic_ns() + KL_S3_PATIENCE_MS * INT64_C(1000000);
    request->easy = http->idle_count ? http->idle[--http->idle_count] : curl_easy_init();
    snprintf(request->problem, sizeof request->problem, "out of memory");
    if (!request->easy || !set_up(http, request, request->easy) ||
        curl_multi_add_handle(http->multi, request->easy) != CURLM_OK) {
        release(http, request);
        finish(http, request);
        return;
    }
    pthread_mutex_lock(&http->mutex);
    http->bill.requests[request->kind]++;
    http->bill.repeats += request->sends > 0;
    http->bill.bytes_out += request->body.len;
    pthread_mutex_unlock(&http->mutex);
    request->sends++;
    http->under_way++;
}

/* A server that finds our clock wrong says so with its own time: the next signature bears that, once. */
static bool is_skewed(const kl__s3_request *request)
{
    return request->status == 403 && !request->skewed && request->reply.len > 0 &&
           strstr(request->reply.data, "RequestTimeTooSkewed");
}

static bool is_other(const char *a, const char *b) { return a && b ? strcmp(a, b) != 0 : a != b; }

static void free_renewed(kl__s3_http *http)
{
    if (http->keys > 0)
        kl__s3_keys_free(&http->signer);
}

/* Whether there are other keys than the request was signed with. */
static bool renew_keys(kl__s3_http *http, const kl__s3_request *request)
{
    kl__s3_site fresh = {0};
    if (request->keys != http->keys)
        return true;
    kl_rc rc = kl__s3_read_keys(&fresh);
    bool renewed = rc == KL_OK && (is_other(fresh.access_key, http->signer.access_key) ||
                                   is_other(fresh.secret_key, http->signer.secret_key) ||
                                   is_other(fresh.session_token, http->signer.session_token));
    if (!renewed) {
        kl__s3_keys_free(&fresh);
        return false;
    }
    free_renewed(http);
    http->signer.access_key = fresh.access_key;
    http->signer.secret_key = fresh.secret_key;
    http->signer.session_token = fresh.session_token;
    http->keys++;
    return true;
}

/* Keys that were good and are no more: those of a session end after some hours, others are replaced. */
static bool wants_keys(const kl__s3_request *request)
{
    static const char *const codes[] = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId",
                                        "SignatureDoesNotMatch"};
    bool wants = false;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        wants |= request->reply.len > 0 && strstr(request->reply.data, codes[i]);
    return wants && (request->status == 403 || request->status == 400);
}

/* A server that is busy for a moment is nothing to tell. */
static void tell(kl__away *away, const kl__s3_request *request)
{
    char text[sizeof request->problem + 64];
    bool is_ill = request->status >= 500 && request->status != 501;
    if (!away || (is_ill && request->sends < ILL_SENDS))
        return;
    if (request->status == 0)
        snprintf(text, sizeof text, "there is no answer (%s)", request->problem);
    else
        snprintf(text, sizeof text, "it answers %d, %u times in a row", request->status, request->sends);
    if (request->status == 0 || is_ill)
        kl__away_failed(away, KL_EBUSY, text);
    else
        kl__away_worked(away);
}

static void take_answer(kl__s3_http *http, CURLMsg *message)
{
    kl__s3_request *request = NULL;
    long status = 0;
    CURLcode code = message->data.result;
    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&request);
    if (code == CURLE_OK)
        curl_easy_getinfo(message->easy_handle, CURLINFO_RESPONSE_CODE, &status);
    else
        snprintf(request->problem, sizeof request->problem, "%s", curl_easy_strerror(code));
    curl_multi_remove_handle(http->multi, message->easy_handle);
    http->under_way--;
    if (status)
        http->heard_ns = kl__monotonic_ns();
    request->status = (int)status;
    request->unreached = code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST;
    release(http, request);
    pthread_mutex_lock(&http->mutex);
    http->bill.bytes_in += request->reply.len;
    kl__away *away = http->away;
    bool skewed = is_skewed(request);
    if (request->date_ms && skewed)
        kl__s3_clock_set(&http->clock, request->date_ms); /* whatever was thought before is wrong */
    else if (request->date_ms)
        kl__s3_clock_learn(&http->clock, request->date_ms);
    pthread_mutex_unlock(&http->mutex);
    tell(away, request);
    request->skewed |= skewed;
    if (kl__s3_goes_again(request->status) || skewed || (wants_keys(request) && renew_keys(http, request)))
        send_later(http, request);
    else
        finish(http, request);
}

static void line_up(kl__s3_http *http, kl__s3_request *request)
{
    struct line *line = request->kind == KL_S3_GET || request->kind == KL_S3_LIST ? &http->reads : &http->writes;
    if (!line->first)
        line->end = &line->first;
    request->next = NULL;
    *line->end = request;
    line->end = &request->next;
}

/* Nobody answers: whoever has waited for those before him as long as they have need not be tried as well. */
static bool is_hopeless(const kl__s3_http *http, const kl__s3_request *request)
{
    int64_t now_ns = kl__monotonic_ns();
    return request->sends == 0 && now_ns >= request->until_ns &&
           now_ns - http->heard_ns >= KL_S3_PATIENCE_MS * INT64_C(1000000);
}

static void start_line(kl__s3_http *http, struct line *line)
{
    while (line->first && http->under_way < KL_S3_PARALLEL) {
        kl__s3_request *request = line->first;
        line->first = request->next;
        if (!is_hopeless(http, request)) {
            start(http, request);
            continue;
        }
        snprintf(request->problem, sizeof request->problem, "others before it had none either");
        finish(http, request);
    }
}

static void line_up_due(kl__s3_http *http)
{
    int64_t now_ns = kl__monotonic_ns();
    kl__s3_request *waiting = http->later;
    http->later = NULL;
    for (kl__s3_request *next; waiting; waiting = next) {
        next = waiting->next;
        if (waiting->due_ns <= now_ns) {
            line_up(http, waiting);
        } else {
            waiting->next = http->later;
            http->later = waiting;
        }
    }
}

static int next_poll_ms(const kl__s3_http *http)
{
    int64_t now_ns = kl__monotonic_ns(), wait_ms = POLL_MS;
    for (const kl__s3_request *request = http->later; request; request = request->next) {
        int64_t ms = (request->due_ns - now_ns) / 1000000 + 1;
        wait_ms = ms < wait_ms ? (ms > 0 ? ms : 0) : wait_ms;
    }
    return (int)wait_ms;
}

static bool can_start(const kl__s3_http *http)
{
    return (http->writes.first || http->reads.first) && http->under_way < KL_S3_PARALLEL;
}

static bool take_fresh(kl__s3_http *http, kl__s3_request **ret_fresh)
{
    pthread_mutex_lock(&http->mutex);
    *ret_fresh = http->fresh;
    http->fresh = NULL;
    http->fresh_end = &http->fresh;
    bool closing = http->closing;
    pthread_mutex_unlock(&http->mutex);
    return !closing;
}

static void *run(void *ctx)
{
    kl__s3_http *http = ctx;
    kl__s3_request *fresh;
    int running = 0, left;
    while (take_fresh(http, &fresh)) {
        for (kl__s3_request *next; fresh; fresh = next) {
            next = fresh->next;
            line_up(http, fresh);
        }
        line_up_due(http);
        start_line(http, &http->writes);
        start_line(http, &http->reads);
        curl_multi_perform(http->multi, &running);
        for (CURLMsg *message; (message = curl_multi_info_read(http->multi, &left));)
            if (message->msg == CURLMSG_DONE)
                take_answer(http, message);
        if (!can_start(http))
            curl_multi_poll(http->multi, NULL, 0, next_poll_ms(http), NULL);
    }
    return NULL;
}

/* --- Open, close, send --- */

static void begin(void) { curl_global_init(CURL_GLOBAL_DEFAULT); }

kl_rc kl__s3_http_open(const kl__s3_site *site, kl__s3_http **ret_http)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin);
    kl__s3_http *http = kl__alloc_zeroed(1, sizeof *http);
    if (!http)
        return kl__fail_memory();
    pthread_mutex_init(&http->mutex, NULL);
    kl__cond_init(&http->answered);
    http->site = site;
    http->signer = *site;
    http->fresh_end = &http->fresh;
    http->random = kl__random_seed();
    http->multi = curl_multi_init();
    if (http->multi) {
        curl_multi_setopt(http->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)KL_S3_PARALLEL);
        curl_multi_setopt(http->multi, CURLMOPT_MAXCONNECTS, (long)KL_S3_PARALLEL);
        http->runs = pthread_create(&http->thread, NULL, run, http) == 0;
    }
    if (!http->runs) {
        kl__s3_http_close(http);
        return kl__fail(KL_ESYSTEM, "no thread can be started for requests to S3; there are too many, or no memory");
    }
    *ret_http = http;
    return KL_OK;
}

void kl__s3_http_tell(kl__s3_http *http, kl__away *away)
{
    pthread_mutex_lock(&http->mutex);
    http->away = away;
    pthread_mutex_unlock(&http->mutex);
}

void kl__s3_http_close(kl__s3_http *http)
{
    if (!http)
        return;
    pthread_mutex_lock(&http->mutex);
    http->closing = true;
    pthread_mutex_unlock(&http->mutex);
    if (http->runs) {
        curl_multi_wakeup(http->multi);
        pthread_join(http->thread, NULL);
    }
    while (http->idle_count)
        curl_easy_cleanup(http->idle[--http->idle_count]);
    curl_multi_cleanup(http->multi);
    free_renewed(http);
    pthread_cond_destroy(&http->answered);
    pthread_mutex_destroy(&http->mutex);
    kl__free(http);
}

kl_rc kl__s3_send_each(kl__s3_http *http, kl__s3_request **requests, size_t count)
{
    struct kl__s3_wait wait = {count};
    int64_t until_ns = kl__monotonic_ns() + (int64_t)KL_S3_PATIENCE_MS * 1000000;
    if (count == 0)
        return KL_OK;
    pthread_mutex_lock(&http->mutex);
    for (size_t i = 0; i < count; i++) {
        requests[i]->wait = &wait;
        requests[i]->until_ns = until_ns;
        requests[i]->next = NULL;
        *http->fresh_end = requests[i];
        http->fresh_end = &requests[i]->next;
    }
    pthread_mutex_unlock(&http->mutex);
    curl_multi_wakeup(http->multi);
    pthread_mutex_lock(&http->mutex);
    while (wait.left > 0)
        kl__cond_wait(&http->answered, &http->mutex, KL_NEVER);
    pthread_mutex_unlock(&http->mutex);
    return kl__s3_judge(http->site, requests, count);
}

kl_rc kl__s3_send(kl__s3_http *http, kl__s3_request *requests, size_t count)
{
    kl__s3_request **each = kl__alloc_zeroed(count ? count : 1, sizeof *each);
    if (!each)
        return kl__fail_memory();
    for (size_t i = 0; i < count; i++)
        each[i] = &requests[i];
    kl_rc rc = kl__s3_send_each(http, each, count);
    kl__free(each);
    return rc;
}
