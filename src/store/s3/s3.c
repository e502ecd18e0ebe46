/* s3.c - the S3 engine: opening, closing, its clock and its partitions.
 *
 * Reading order: s3.h -> http.c, sign.c -> body.c -> append.c -> settle.c -> replica.c -> refresh.c -> tasks.c ->
 * records.c -> upkeep.c -> selftest.c. */
#include "store/s3/s3.h"

#include <ctype.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_memory.h"
#include "base/layout.h"
#include "base/random.h"
#include "base/wait.h"
#include "store/engines.h"

enum { LOG_BYTES = 512, PARTITION_TRIES = 64 };

/* --- Small things --- */

void kl__s3_log(const kl__s3 *s3, kl_log_level level, const char *format, ...)
{
    char text[LOG_BYTES];
    if (!s3->opts.log)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    s3->opts.log(s3->opts.log_ctx, level, text);
}

char *kl__s3_name(const kl__s3 *s3, const char *format, ...)
{
    char rest[KL_S3_NAME_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(rest, sizeof rest, format, arguments);
    va_end(arguments);
    size_t head = strlen(s3->prefix), tail = strlen(rest) + 1;
    char *name = kl__alloc(head + tail);
    if (!name)
        return NULL;
    memcpy(name, s3->prefix, head);
    memcpy(name + head, rest, tail);
    return name;
}

char *kl__s3_log_name(const kl__s3 *s3, const char *log, const kl__s3_shard *shard, uint64_t number)
{
    return kl__s3_name(s3, "%s/%s/%s/%016llx.json", log, shard->partition->name, shard->digits,
                       (unsigned long long)number);
}

uint64_t kl__s3_nonce(void)
{
    static _Thread_local uint64_t state;
    if (state == 0)
        state = kl__random_seed();
    uint64_t nonce = kl__random_next(&state);
    return nonce ? nonce : 1;
}

bool kl__s3_is_late(kl__s3 *s3, int64_t since_ns)
{
    bool long_ago = kl__monotonic_ns() - since_ns > INT64_C(5) * KL_S3_TRUST_MS * 1000000;
    return long_ago || since_ns < kl__s3_http_jumped(s3->http);
}

int64_t kl__s3_known_since(int64_t asked_ns)
{
    int64_t now_ns = kl__monotonic_ns();
    return now_ns - asked_ns < INT64_C(1000000000) ? now_ns : asked_ns;
}

/* --- The clock --- */

/* The memory engine asks for it, too, and never lets it step back. */
static int64_t clock_ms(void *ctx)
{
    kl__s3 *s3 = ctx;
    int64_t now_ms = s3->caller_time ? s3->opts.now_ms(s3->opts.now_ctx) : kl__s3_http_now(s3->http);
    return now_ms > s3->floor_ms ? now_ms : s3->floor_ms;
}

int64_t kl__s3_now(kl__s3 *s3)
{
    int64_t now_ms = kl__memory_enter(s3->memory);
    kl__memory_leave(s3->memory);
    return now_ms;
}

static kl_rc now(void *self, int64_t *ret_ms)
{
    *ret_ms = kl__s3_now(self);
    return KL_OK;
}

/* --- The URL: //BUCKET/PREFIX?endpoint=URL&region=NAME&path_style=on --- */

static char *copy_bytes(kl_bytes bytes)
{
    char *copy = kl__alloc(bytes.len + 1);
    if (!copy)
        return NULL;
    memcpy(copy, bytes.data, bytes.len);
    copy[bytes.len] = '\0';
    return copy;
}

/* A port that no host has is told at once, where curl would be asked again and again. */
static bool has_bad_port(const char *host, size_t len)
{
    const char *colon = memrchr(host, ':', len);
    if (!colon || memchr(colon, ']', len - (size_t)(colon - host)))
        return false;
    size_t digits = len - (size_t)(colon + 1 - host);
    unsigned long port = 0;
    for (size_t i = 1; i <= digits && port <= UINT16_MAX; i++)
        port = colon[i] >= '0' && colon[i] <= '9' ? port * 10 + (unsigned long)(colon[i] - '0') : UINT16_MAX + 1;
    return digits == 0 || port == 0 || port > UINT16_MAX;
}

/* "http://host:port", as it is or with its colon and slashes encoded. */
static kl_rc set_endpoint(kl__s3 *s3, kl_bytes value)
{
    char quoted[KL_QUOTE_BYTES];
    const char *text = value.data;
    size_t scheme = value.len > 8 && strncmp(text, "https://", 8) == 0  ? 8
                    : value.len > 7 && strncmp(text, "http://", 7) == 0 ? 7
                                                                        : 0;
    size_t len = value.len;
    while (len > scheme && text[len - 1] == '/')
        len--;
    if (scheme == 0 || len == scheme || len - scheme > KL_S3_HOST_MAX || memchr(text + scheme, '/', len - scheme) ||
        has_bad_port(text + scheme, len - scheme))
        return kl__fail(KL_EINVAL, "endpoint is %s; it must be http://HOST:PORT or https://HOST, of up to %d bytes",
                        kl__quote(value, quoted), KL_S3_HOST_MAX);
    kl__free(s3->site.scheme);
    kl__free(s3->site.host);
    s3->site.scheme = copy_bytes((kl_bytes){text, scheme - 3});
    s3->site.host = copy_bytes((kl_bytes){text + scheme, len - scheme});
    return s3->site.scheme && s3->site.host ? KL_OK : kl__fail_memory();
}

static kl_rc set_flag(const char *name, kl_bytes value, bool *flag)
{
    char quoted[KL_QUOTE_BYTES];
    bool on = kl__bytes_equal(value, kl_str("on")) || kl__bytes_equal(value, kl_str("true"));
    bool off = kl__bytes_equal(value, kl_str("off")) || kl__bytes_equal(value, kl_str("false"));
    if (!on && !off)
        return kl__fail(KL_EINVAL, "%s is %s; it must be on or off", name, kl__quote(value, quoted));
    *flag = on;
    return KL_OK;
}

static kl_rc set_number(const char *name, kl_bytes value, int64_t min, int64_t max, int64_t *number)
{
    char quoted[KL_QUOTE_BYTES], *end;
    long long parsed = strtoll(value.data, &end, 10);
    if (value.len == 0 || end != (const char *)value.data + value.len || parsed < min || parsed > max)
        return kl__fail(KL_EINVAL, "%s is %s; it must be from %lld to %lld", name, kl__quote(value, quoted),
                        (long long)min, (long long)max);
    *number = parsed;
    return KL_OK;
}

/* What would lose tasks anywhere else (E1). False: it is none of these. */
static bool take_test_param(kl__s3 *s3, kl_bytes param, kl_rc *ret_rc)
{
    kl_bytes value;
    if (kl__url_param(param, "grace_ms", &value)) {
        *ret_rc = set_number("grace_ms", value, 0, INT64_C(86400000), &s3->grace_ms);
        return true;
    }
    bool caller = kl__url_param(param, "clock", &value) && kl__bytes_equal(value, kl_str("caller"));
    s3->caller_time |= caller;
    *ret_rc = KL_OK;
    return caller;
}

static kl_rc take_param(kl__s3 *s3, kl_bytes param, bool *path_style_set)
{
    kl_bytes value;
    char quoted[KL_QUOTE_BYTES];
    int64_t number = s3->checkpoint_every;
    kl_rc rc;
    if (kl__url_param(param, "endpoint", &value))
        return set_endpoint(s3, value);
    if (kl__url_param(param, "region", &value)) {
        kl__free(s3->site.region);
        s3->site.region = copy_bytes(value);
        return s3->site.region ? KL_OK : kl__fail_memory();
    }
    if (kl__url_param(param, "path_style", &value)) {
        *path_style_set = true;
        return set_flag("path_style", value, &s3->site.path_style);
    }
    if (kl__url_param(param, "poll_ms", &value))
        return set_number("poll_ms", value, KL_S3_POLL_MIN_MS, 60000, &s3->poll_ms);
    if (kl__url_param(param, "settle_ms", &value))
        return set_number("settle_ms", value, 0, 10000, &s3->settle_ms);
    if (kl__url_param(param, "import_digits", &value))
        return set_number("import_digits", value, 1, KL_SHARD_PREFIX_LEN_MAX, &s3->import_digits);
    if (kl__url_param(param, "import", &value)) {
        kl__free(s3->import);
        s3->import = copy_bytes(value);
        return s3->import ? KL_OK : kl__fail_memory();
    }
    if (kl__url_param(param, "checkpoint", &value)) {
        rc = set_number("checkpoint", value, 1, 10000, &number);
        s3->checkpoint_every = (uint32_t)number;
        return rc;
    }
    if (getenv("KEYLINE_S3_TEST") && take_test_param(s3, param, &rc))
        return rc;
    return kl__fail(KL_EINVAL,
                    "%s is no parameter of an S3 store; it may have endpoint, region, path_style, poll_ms, settle_ms, "
                    "checkpoint, import and import_digits",
                    kl__quote(param, quoted));
}

/* Without an endpoint it is Amazon's; AWS_ENDPOINT_URL_S3 and AWS_ENDPOINT_URL name another. */
static kl_rc complete_site(kl__s3 *s3, bool path_style_set)
{
    const char *endpoint = getenv("AWS_ENDPOINT_URL_S3");
    char host[300];
    endpoint = endpoint && *endpoint ? endpoint : getenv("AWS_ENDPOINT_URL");
    kl_rc rc = kl__s3_credentials(&s3->site);
    if (rc == KL_OK && !s3->site.host && endpoint && *endpoint)
        rc = set_endpoint(s3, kl_str(endpoint));
    if (rc != KL_OK)
        return rc;
    if (!path_style_set)
        s3->site.path_style = s3->site.host != NULL;
    if (s3->site.host)
        return KL_OK;
    snprintf(host, sizeof host, "https://s3.%s.amazonaws.com", s3->site.region);
    return set_endpoint(s3, kl_str(host));
}

static kl_rc read_where(kl__s3 *s3, const char *where, size_t len)
{
    char quoted[KL_QUOTE_BYTES];
    const char *bucket = where + 2, *end = where + len;
    if (len < 2 || strncmp(where, "//", 2) != 0)
        return kl__fail(KL_EINVAL, "%s stands behind s3: and should begin with //; write %s",
                        kl__quote(kl_str(where), quoted), kl__engine_s3.usage);
    const char *slash = memchr(bucket, '/', (size_t)(end - bucket));
    size_t bucket_len = (size_t)((slash ? slash : end) - bucket);
    const char *prefix = slash ? slash + 1 : end;
    while (end > prefix && end[-1] == '/')
        end--;
    size_t prefix_len = (size_t)(end - prefix);
    if (bucket_len < 3 || bucket_len > 63 || prefix_len > 200)
        return kl__fail(KL_EINVAL, "%s has no bucket of 3 to 63 characters and prefix of at most 200; write %s",
                        kl__quote(kl_str(where), quoted), kl__engine_s3.usage);
    for (size_t i = 0; i < bucket_len; i++)
        if (bucket[i] != '.' && bucket[i] != '-' && bucket[i] != '_' && !isalnum((unsigned char)bucket[i]))
            return kl__fail(KL_EINVAL,
                            "the bucket's name has a '%c'; it may have letters, digits, '-', '.' and '_'. Keys "
                            "do not stand in the URL, but in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or "
                            "~/.aws/credentials",
                            bucket[i] >= ' ' && bucket[i] <= '~' ? bucket[i] : '?');
    s3->site.bucket = copy_bytes((kl_bytes){bucket, bucket_len});
    s3->prefix = kl__alloc(prefix_len + 2);
    if (!s3->site.bucket || !s3->prefix)
        return kl__fail_memory();
    snprintf(s3->prefix, prefix_len + 2, "%.*s%s", (int)prefix_len, prefix, prefix_len ? "/" : "");
    return KL_OK;
}

static kl_rc read_url(kl__s3 *s3, const char *where)
{
    size_t base = strcspn(where, "?");
    bool path_style_set = false;
    kl_rc rc = read_where(s3, where, base);
    for (const char *at = where + base; rc == KL_OK && *at;) {
        size_t len = strcspn(++at, "&");
        if (len > 0)
            rc = take_param(s3, (kl_bytes){at, len}, &path_style_set);
        at += len;
    }
    return rc == KL_OK ? complete_site(s3, path_style_set) : rc;
}

/* --- Shards --- */

kl__s3_shard *kl__s3_shard_make(kl__s3 *s3, kl_place place)
{
    kl__s3_partition *partition = s3->partitions[place.partition - 1];
    kl__s3_shard **shard = &partition->shards[place.shard];
    if (*shard || !(*shard = kl__alloc_zeroed(1, sizeof **shard)))
        return *shard;
    (*shard)->place = place;
    (*shard)->partition = partition;
    snprintf((*shard)->digits, sizeof(*shard)->digits, "%0*x", (int)partition->shard_prefix_len, place.shard);
    return *shard;
}

static void drop_finished(kl__s3 *s3, kl__s3_shard *shard)
{
    const kl__memory_shard *lines = kl__memory_shard_of(s3->memory, shard->place);
    while (lines && lines->finished)
        kl__memory_drop(s3->memory, KL_CONTAINER(lines->finished, kl__memory_task, by_id));
}

void kl__s3_shard_clear(kl__s3 *s3, kl__s3_shard *shard)
{
    bool told = shard->loaded; /* something: of others nobody has seen anything */
    while (shard->objects)
        kl__s3_object_free(shard, KL_CONTAINER(shard->objects, kl__s3_object, by_number));
    kl__s3_tokens_free(shard);
    while (shard->forgotten)
        kl__s3_forgotten_free(shard, KL_CONTAINER(shard->forgotten, kl__s3_forgotten, by_id));
    drop_finished(s3, shard);
    kl__free(shard->repeats);
    kl__s3_shard fresh = {.generation = shard->generation + 1,
                          .tail = shard->tail,
                          .tail_ns = shard->tail_ns,
                          .sealed = shard->sealed,
                          .fenced = shard->fenced,
                          .marks_old = shard->marks_old,
                          .marks_young = shard->marks_young,
                          .marks_look = shard->marks_look,
                          .marked = shard->marked,
                          .marked_period = shard->marked_period,
                          .marked_ns = shard->marked_ns,
                          .unmarked_ns = shard->unmarked_ns,
                          .written_ns = shard->written_ns,
                          .written = shard->written};
    size_t head = offsetof(kl__s3_shard, generation); /* what others read without the mutex */
    memcpy((char *)shard + head, (const char *)&fresh + head, sizeof fresh - head);
    atomic_fetch_add(&s3->clears, told);
}

/* --- Partitions --- */

static void put_partition_name(kl__s3_text *text, kl_bytes name)
{
    const unsigned char *at = name.data;
    for (size_t i = 0; i < name.len; i++) {
        unsigned char c = at[i];
        bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' ||
                     c == '_' || (c == '.' && i > 0);
        if (plain)
            kl__s3_text_add(text, &c, 1);
        else
            kl__s3_text_put(text, "=%02x", c);
    }
}

static kl__s3_partition *make_partition(uint32_t number, kl_bytes name, uint32_t shard_prefix_len)
{
    kl_layout layout = {1, shard_prefix_len};
    kl__s3_partition *partition = kl__alloc_zeroed(1, sizeof *partition);
    kl__s3_text text = {0};
    if (!partition)
        return NULL;
    put_partition_name(&text, name);
    partition->number = number;
    partition->shard_prefix_len = shard_prefix_len;
    partition->shard_count = kl_layout_shards(&layout);
    partition->shards = kl__alloc_zeroed(partition->shard_count, sizeof *partition->shards);
    partition->name = text.data;
    if (partition->shards && !text.failed && text.data)
        return partition;
    kl__free(partition->shards);
    kl__s3_text_free(&text);
    kl__free(partition);
    return NULL;
}

static void free_partition(kl__s3_partition *partition)
{
    if (!partition)
        return;
    kl__free(partition->shards);
    kl__free(partition->name);
    kl__free(partition);
}

/* Makes partition number partition_count + 1 known here and to the replica. */
static kl_rc learn_partition(kl__s3 *s3, const char *name, uint32_t shard_prefix_len)
{
    uint32_t number = s3->partition_count + 1, own = 0;
    if (number > KL_S3_PARTITIONS)
        return kl__fail(KL_EFULL, "a store on S3 takes %d partitions; use another prefix", KL_S3_PARTITIONS);
    kl__s3_partition *partition = make_partition(number, kl_str(name), shard_prefix_len);
    kl_rc rc = partition ? kl__engine_memory.partition(s3->memory, name, shard_prefix_len, &own) : kl__fail_memory();
    if (rc == KL_OK && own != number)
        rc = kl__fail(KL_EDAMAGED, "partitions.json has the partition '%s' twice; restore it from a backup", name);
    if (rc != KL_OK) {
        free_partition(partition);
        return rc;
    }
    kl__memory_enter(s3->memory);
    s3->partitions[number - 1] = partition;
    s3->partition_count = number;
    kl__memory_leave(s3->memory);
    kl__s3_pulse_renew(s3); /* earlier looks passed its tasks over */
    return KL_OK;
}

/* Learns those of the list that are not known yet, and looks for the name. */
static kl_rc search(kl__s3 *s3, const json_t *list, const char *name, uint32_t *ret_number, uint32_t *ret_len)
{
    kl_rc rc = KL_OK;
    *ret_number = 0;
    for (size_t i = 0; rc == KL_OK && i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const char *its = json_string_value(json_object_get(item, "name"));
        json_int_t len = json_integer_value(json_object_get(item, "shard_prefix_len"));
        if (!its || len < 1 || len > KL_SHARD_PREFIX_LEN_MAX)
            return kl__fail(KL_EDAMAGED, "partitions.json cannot be understood; is it of a newer release?");
        if (i >= s3->partition_count)
            rc = learn_partition(s3, its, (uint32_t)len);
        if (strcmp(its, name) == 0) {
            *ret_number = (uint32_t)i + 1;
            *ret_len = (uint32_t)len;
        }
    }
    return rc;
}

static kl_rc add_partition(kl__s3 *s3, const char *object, const kl__s3_document *old, json_t *list, const char *name,
                           uint32_t shard_prefix_len)
{
    char etag[KL_S3_ETAG_BYTES];
    kl__json_memory_begin();
    json_t *item = json_pack("{s:s, s:i}", "name", name, "shard_prefix_len", (int)shard_prefix_len);
    char *text = item && json_array_append_new(list, item) == 0 ? json_dumps(list, JSON_COMPACT) : NULL;
    if (!text || kl__json_memory_refused()) {
        kl__free(text);
        return kl__json_memory_refused()
                   ? kl__fail_memory()
                   : kl__fail(KL_EINVAL, "the partition's name is not UTF-8; the S3 engine takes no other");
    }
    kl__s3_document made = {.version = kl__s3_nonce(), .value = kl_str(text)};
    kl_rc rc = kl__s3_document_put(s3, object, old, &made, etag);
    free(text);
    return rc;
}

static kl_rc find_or_make(kl__s3 *s3, const char *object, const char *name, uint32_t shard_prefix_len,
                          uint32_t *ret_number, uint32_t *ret_len)
{
    kl_arena arena = {0};
    kl__s3_document document;
    kl_rc rc = kl__s3_document_get(s3, object, &arena, &document);
    kl__json_memory_begin();
    json_t *list =
        rc == KL_OK && document.version ? json_loadb(document.value.data, document.value.len, 0, NULL) : json_array();
    if (rc == KL_OK && kl__json_memory_refused())
        rc = kl__fail_memory();
    if (rc == KL_OK && !json_is_array(list))
        rc = kl__fail(KL_EDAMAGED, "partitions.json cannot be understood; is it of a newer release?");
    if (rc == KL_OK)
        rc = search(s3, list, name, ret_number, ret_len);
    if (rc == KL_OK && *ret_number == 0) {
        rc = add_partition(s3, object, &document, list, name, shard_prefix_len);
        rc = rc == KL_OK ? KL_ECONFLICT : rc; /* it is read back: another may have been first */
    }
    json_decref(list);
    kl_arena_free(&arena);
    return rc;
}

static kl_rc partition_of(void *self, const char *name, uint32_t shard_prefix_len, uint32_t *ret_partition)
{
    kl__s3 *s3 = self;
    uint32_t number = 0, len = 0;
    char *object = kl__s3_name(s3, "partitions.json");
    kl_rc rc = object ? KL_ECONFLICT : kl__fail_memory();
    pthread_mutex_lock(&s3->partition_mutex);
    for (int i = 0; rc == KL_ECONFLICT && i < PARTITION_TRIES; i++)
        rc = find_or_make(s3, object, name, shard_prefix_len, &number, &len);
    pthread_mutex_unlock(&s3->partition_mutex);
    kl__free(object);
    if (rc == KL_ECONFLICT)
        return kl__fail(KL_EBUSY, "too many others make partitions; call again");
    if (rc == KL_OK && len != shard_prefix_len)
        return kl__fail(KL_EINVAL,
                        "partition '%s' has shard_prefix_len %u, and %u was asked for; a layout is the queue's, so use "
                        "what it has",
                        name, len, shard_prefix_len);
    if (rc == KL_OK)
        *ret_partition = number;
    return rc;
}

/* --- Open and close --- */

static void free_partitions(kl__s3 *s3)
{
    for (uint32_t i = 0; i < s3->partition_count; i++) {
        kl__s3_partition *partition = s3->partitions[i];
        for (uint32_t j = 0; j < partition->shard_count; j++) {
            if (!partition->shards[j])
                continue;
            kl__s3_shard_clear(s3, partition->shards[j]);
            kl__free(partition->shards[j]);
        }
        free_partition(partition);
    }
    kl__free(s3->partitions);
}

static void close_s3(void *self)
{
    kl__s3 *s3 = self;
    kl__s3_appender_close(s3);
    kl__s3_upkeep_stop(s3);
    if (s3->since_ms && kl__s3_now(s3) - s3->since_ms >= KL_S3_BILLED_MS && !s3->caller_time)
        kl__s3_bill_save(s3);
    if (s3->caller_time && s3->http && s3->memory) {
        s3->floor_ms = kl__s3_now(s3);
        kl__s3_save_floor(s3);
    }
    kl__s3_records_close(s3);
    if (s3->memory) {
        kl__memory_enter(s3->memory);
        free_partitions(s3);
        kl__memory_leave(s3->memory);
        kl__engine_memory.close(s3->memory);
    }
    kl__s3_http_close(s3->http);
    kl__away_close(&s3->away);
    pthread_mutex_destroy(&s3->journal_mutex);
    pthread_mutex_destroy(&s3->partition_mutex);
    pthread_mutex_destroy(&s3->kept_mutex);
    pthread_mutex_destroy(&s3->round_mutex);
    pthread_mutex_destroy(&s3->pulse_mutex);
    pthread_mutex_destroy(&s3->upkeep_mutex);
    pthread_cond_destroy(&s3->upkeep_wakes);
    kl__s3_site_free(&s3->site);
    kl__free(s3->prefix);
    kl__free(s3->import);
    kl__free(s3);
}

static kl_rc open_replica(kl__s3 *s3)
{
    kl_store_opts opts = s3->opts;
    void *memory = NULL;
    opts.now_ms = clock_ms;
    opts.now_ctx = s3;
    kl_rc rc = kl__engine_memory.open("", &opts, &memory);
    s3->memory = memory;
    s3->partitions = kl__alloc_zeroed(KL_S3_PARTITIONS, sizeof *s3->partitions);
    return rc == KL_OK && !s3->partitions ? kl__fail_memory() : rc;
}

static const kl__told_words words = {"the S3 server cannot be used", "the S3 server can be used again"};

static kl_rc open_s3(const char *where, const kl_store_opts *opts, void **ret_self)
{
    kl__s3 *s3 = kl__alloc_zeroed(1, sizeof *s3);
    if (!s3)
        return kl__fail_memory();
    pthread_mutex_init(&s3->journal_mutex, NULL);
    pthread_mutex_init(&s3->partition_mutex, NULL);
    pthread_mutex_init(&s3->kept_mutex, NULL);
    pthread_mutex_init(&s3->round_mutex, NULL);
    pthread_mutex_init(&s3->pulse_mutex, NULL);
    pthread_mutex_init(&s3->upkeep_mutex, NULL);
    kl__cond_init(&s3->upkeep_wakes);
    s3->opts = *opts;
    kl__away_open(&s3->away, &words, opts);
    s3->checkpoint_every = KL_S3_CHECKPOINT;
    s3->settle_ms = KL_S3_SETTLE_MS;
    s3->poll_ms = KL_S3_POLL_MAX_MS;
    s3->grace_ms = KL_S3_GRACE_MS;
    s3->import_digits = 1;
    s3->pulse_age_ms = KL_S3_POLL_MIN_MS;
    kl_rc rc = read_url(s3, where);
    if (rc == KL_OK)
        rc = kl__s3_http_open(&s3->site, &s3->http);
    if (rc == KL_OK)
        rc = kl__s3_selftest(s3);
    if (rc == KL_OK)
        rc = open_replica(s3);
    if (rc == KL_OK)
        rc = kl__s3_records_open(s3);
    if (rc == KL_OK)
        rc = kl__s3_appender_open(s3);
    if (rc == KL_OK)
        rc = kl__s3_upkeep_start(s3);
    if (rc == KL_OK) {
        kl__s3_http_tell(s3->http, &s3->away);
        s3->since_ms = kl__s3_now(s3);
        s3->bill_nonce = kl__s3_nonce();
        *ret_self = s3;
        return KL_OK;
    }
    s3->caller_time = false;
    char error[500];
    snprintf(error, sizeof error, "%s", kl_error_text());
    close_s3(s3);
    return kl__fail(rc, "%s", error);
}

static bool is_away(void *self) { return kl__away_is_told(&((kl__s3 *)self)->away); }

const kl_engine kl__engine_s3 = {
    .size = sizeof(kl_engine),
    .scheme = "s3",
    .usage = "s3://BUCKET/PREFIX",
    .can = KL_STORE_DURABLE | KL_STORE_KEY_HASH | KL_STORE_ASYNC | KL_STORE_SHARED | KL_STORE_ORDERED | KL_STORE_GROUP |
           KL_STORE_SEAL | KL_STORE_INBOX | KL_STORE_BILLED,
    .open = open_s3,
    .close = close_s3,
    .now = now,
    .partition = partition_of,
    .append = kl__s3_append,
    .scan = kl__s3_scan,
    .read = kl__s3_read,
    .settle = kl__s3_settle,
    .fence = kl__s3_fence,
    .counts = kl__s3_counts,
    .wait = kl__s3_wait,
    .results = kl__s3_results,
    .find = kl__s3_find,
    .forget = kl__s3_forget,
    .get = kl__s3_get,
    .put = kl__s3_put,
    .list = kl__s3_list,
    .take_in = kl__s3_take_in,
    .lines = kl__s3_lines,
    .is_away = is_away,
};
