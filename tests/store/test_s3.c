/* test_s3.c - the S3 engine beyond the contract: signatures, servers that cannot, networks that fail, workers that die.
 *
 * The server is radosgw (s3_server.h); between it and the store stands, where a test wants that, fault_proxy.c. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/random.h"
#include "harness.h"
#include "keyline/keyline.h"
#include "keyline/store.h"
#include "store/check_rc.h"
#include "store/fault_proxy.h"
#include "store/quick.h"
#include "store/s3/bill.h"
#include "store/s3_server.h"
#include "store/workdir.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- Signatures: the examples of Amazon's own documentation ---- */

static void check_signature(const kl__s3_signing *what, const char *signature)
{
    kl__s3_site site = {.scheme = (char *)"https",
                        .host = (char *)"s3.amazonaws.com",
                        .region = (char *)"us-east-1",
                        .bucket = (char *)"examplebucket",
                        .access_key = (char *)"AKIAIOSFODNN7EXAMPLE",
                        .secret_key = (char *)"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
    kl__s3_signed signed_;
    CHECK_OK(kl__s3_sign(&site, what, &signed_));
    CHECK_CONTAINS(signed_.headers[signed_.count - 1], signature);
}

enum { MAY_24_2013 = 1369353600 };

TEST(requests_are_signed_as_amazon_says)
{
    kl__s3_signing what = {.method = "GET",
                           .path = "/test.txt",
                           .query = "",
                           .extra = {"range: bytes=0-9"},
                           .service = "s3",
                           .now_ms = MAY_24_2013 * INT64_C(1000)};
    check_signature(&what, "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
    what =
        (kl__s3_signing){.method = "GET", .path = "/", .query = "lifecycle=", .service = "s3", .now_ms = what.now_ms};
    check_signature(&what, "Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
    what.query = "max-keys=2&prefix=J";
    check_signature(&what, "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

/* ---- Opening ---- */

TEST(whoever_signs_with_a_wrong_key_is_refused)
{
    char url[S3_URL_BYTES];
    kl_store *store = NULL;
    if (!s3_server_new_url(url))
        return;
    setenv("AWS_SECRET_ACCESS_KEY", "not the one", 1);
    CHECK_RC(kl_store_open(url, NULL, &store), KL_ESYSTEM);
    CHECK_CONTAINS(kl_error_text(), "AWS_SECRET_ACCESS_KEY");
    setenv("AWS_SECRET_ACCESS_KEY", "keyline-test-secret", 1);
    CHECK_OK(kl_store_open(url, NULL, &store));
    kl_store_close(store);
}

/* Keys of a session, in a file as AWS's tools write it. */
static void write_keys(const char *path, const char *token)
{
    FILE *file = fopen(path, "w");
    REQUIRE(file);
    fprintf(file,
            "[other]\naws_access_key_id = wrong\n[default]\naws_access_key_id = key\n"
            "aws_secret_access_key=secret\naws_session_token = %s\n",
            token);
    fclose(file);
}

static kl_rc put_one(kl__s3_http *http, int *ret_status)
{
    kl__s3_request request = {.kind = KL_S3_PUT, .name = "x", .body = kl_str("x")};
    kl_rc rc = kl__s3_send(http, &request, 1);
    *ret_status = request.status;
    kl__s3_request_free(&request);
    return rc;
}

TEST(keys_that_have_expired_are_read_again_from_their_file)
{
    char path[] = "/tmp/keyline-keys-XXXXXX", host[64], url[S3_URL_BYTES];
    kl__s3_http *http = NULL;
    int status = 0, fd = mkstemp(path);
    struct fault_proxy *server = fault_proxy_fake(FAKE_EXPIRES);
    REQUIRE(fd >= 0 && server);
    close(fd);
    (void)s3_server_new_url(url); /* it sets other keys, which are put back in the end */
    unsetenv("AWS_ACCESS_KEY_ID");
    setenv("AWS_SHARED_CREDENTIALS_FILE", path, 1);
    write_keys(path, "young");
    snprintf(host, sizeof host, "127.0.0.1:%d", fault_proxy_port(server));
    kl__s3_site site = {.scheme = (char *)"http", .host = host, .bucket = (char *)"bucket", .path_style = true};
    CHECK_OK(kl__s3_credentials(&site));
    CHECK_OK(kl__s3_http_open(&site, &http));
    CHECK_OK(put_one(http, &status));
    kl__s3_http_close(http);
    kl__s3_keys_free(&site);
    write_keys(path, "old");
    CHECK_OK(kl__s3_read_keys(&site));
    CHECK_OK(kl__s3_http_open(&site, &http));
    CHECK_RC(put_one(http, &status), KL_ESYSTEM);
    CHECK_CONTAINS(kl_error_text(), "expired");
    write_keys(path, "new");
    CHECK_OK(put_one(http, &status));
    CHECK_INT(status, 200);
    CHECK_INT(kl__s3_http_bill(http).requests[KL_S3_PUT], 3);
    kl__s3_http_close(http);
    kl__s3_keys_free(&site);
    kl__free(site.region);
    setenv("AWS_ACCESS_KEY_ID", "keyline", 1);
    unsetenv("AWS_SHARED_CREDENTIALS_FILE");
    unlink(path);
    fault_proxy_stop(server);
}

TEST(what_cannot_be_opened_is_named)
{
    char url[S3_URL_BYTES];
    kl_store *store = NULL;
    if (!s3_server_new_url(url))
        return;
    char *endpoint = strstr(url, "?endpoint="), elsewhere[S3_URL_BYTES];
    REQUIRE(endpoint);
    snprintf(elsewhere, sizeof elsewhere, "s3://not-made-yet/x%s", endpoint);
    CHECK_RC(kl_store_open(elsewhere, NULL, &store), KL_ESYSTEM);
    CHECK_CONTAINS(kl_error_text(), "no bucket not-made-yet");
    CHECK_RC(kl_store_open("s3://bucket/x?endpoint=http://127.0.0.1:1", NULL, &store), KL_EBUSY);
    CHECK_CONTAINS(kl_error_text(), "http://127.0.0.1:1");
}

TEST(a_url_that_is_not_right_is_refused_with_what_should_be_there)
{
    static const struct {
        const char *url, *says;
    } cases[] = {{"s3:bucket", "//"},
                 {"s3://b", "bucket"},
                 {"s3://bucket/x?endpoint=somewhere", "http://"},
                 {"s3://bucket/x?endpoint=http://a/b", "http://"},
                 {"s3://bucket/x?path_style=perhaps", "on or off"},
                 {"s3://bucket/x?poll_ms=1", "poll_ms"},
                 {"s3://bucket/x?colour=blue", "colour"},
                 {"s3://bucket/x?endpoint=http://127.0.0.1:99999", "http://HOST:PORT"},
                 {"s3://bucket/x?endpoint=http://127.0.0.1:", "http://HOST:PORT"},
                 {"s3://key:secret@bucket/x", "AWS_ACCESS_KEY_ID"}};
    kl_store *store = NULL;
    char url[S3_URL_BYTES];
    (void)s3_server_new_url(url); /* there are credentials */
    for (size_t i = 0; i < COUNT(cases); i++) {
        CHECK_RC(kl_store_open(cases[i].url, NULL, &store), KL_EINVAL);
        CHECK_CONTAINS(kl_error_text(), cases[i].says);
        CHECK(!strstr(kl_error_text(), "secret@"));
    }
    unsetenv("KEYLINE_S3_TEST");
    CHECK_RC(kl_store_open("s3://bucket/x?grace_ms=0", NULL, &store), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "is no parameter");
    setenv("KEYLINE_S3_TEST", "1", 1);
}

static void check_fake(enum fake fake, const char *says)
{
    char url[S3_URL_BYTES];
    kl_store *store = NULL;
    struct fault_proxy *server = fault_proxy_fake(fake);
    REQUIRE(server);
    (void)s3_server_new_url(url);
    snprintf(url, sizeof url, "s3://bucket/x?endpoint=http://127.0.0.1:%d", fault_proxy_port(server));
    CHECK_RC(kl_store_open(url, NULL, &store), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), says);
    fault_proxy_stop(server);
}

TEST(a_server_that_ignores_conditions_is_refused_with_the_reason) { check_fake(FAKE_IGNORES, "ignores If-None-Match"); }

TEST(a_server_that_does_not_know_conditions_is_refused_with_the_reason)
{
    check_fake(FAKE_REFUSES, "does not take If-None-Match");
}

/* ---- Networks that fail ---- */

enum { PRODUCERS = 3, EACH = 20, SHARDS = 4, PATIENCE_NS_MS = 60000 };

static const kl_layout layout = {1, 1};

struct run {
    kl_store *store;
    kl_idgen *ids;
    uint32_t partition;
    kl_task_id made[PRODUCERS][EACH];
    atomic_int next;
};

static void *produce(void *ctx)
{
    struct run *run = ctx;
    int self = atomic_fetch_add(&run->next, 1);
    for (int i = 0; i < EACH && !test_failed(); i++) {
        kl_entry entry = {.place = {run->partition, (uint32_t)(i % SHARDS)}, .payload = kl_str("x")};
        kl_token token;
        kl_rc rc;
        CHECK_OK(kl_idgen_next(run->ids, entry.place.shard, 0, &entry.id));
        memcpy(token.bytes, entry.id.bytes, sizeof token.bytes);
        run->made[self][i] = entry.id;
        do {
            rc = kl_store_append(run->store, &entry, 1, &token);
        } while (rc == KL_EBUSY);
        CHECK_OK(rc);
    }
    return NULL;
}

/* Each task once, settled once: another store, with no faults in between, has the last word. */
static void check_all_waiting(kl_store *store, const struct run *run)
{
    static kl_stub stubs[SHARDS][PRODUCERS * EACH + 1];
    kl_scan scans[SHARDS];
    size_t found = 0;
    for (uint32_t i = 0; i < SHARDS; i++)
        scans[i] = (kl_scan){.place = {run->partition, i}, .stubs = stubs[i], .max = COUNT(stubs[i])};
    CHECK_OK(kl_store_scan(store, scans, SHARDS));
    for (int p = 0; p < PRODUCERS; p++) {
        uint64_t last[SHARDS] = {0};
        for (int i = 0; i < EACH; i++) {
            const kl_scan *scan = &scans[i % SHARDS];
            size_t at = 0;
            while (at < scan->count && kl_id_compare(&scan->stubs[at].id, &run->made[p][i]) != 0)
                at++;
            CHECK(at < scan->count);
            CHECK(at < scan->count && scan->stubs[at].position > last[i % SHARDS]); /* S2 */
            last[i % SHARDS] = at < scan->count ? scan->stubs[at].position : 0;
            found++;
        }
    }
    CHECK_INT(scans[0].count + scans[1].count + scans[2].count + scans[3].count, found);
}

static kl_rc patiently(kl_rc (*call)(struct run *run), struct run *run)
{
    kl_rc rc;
    do {
        rc = call(run);
    } while (rc == KL_EBUSY);
    return rc;
}

static kl_rc open_partition(struct run *run) { return kl_store_partition(run->store, "faults", 1, &run->partition); }

static kl_rc settle_all(struct run *run)
{
    static kl_stub stubs[SHARDS][PRODUCERS * EACH];
    static kl_settled tasks[SHARDS][PRODUCERS * EACH];
    kl_scan scans[SHARDS];
    kl_settle batches[SHARDS];
    for (uint32_t i = 0; i < SHARDS; i++)
        scans[i] = (kl_scan){.place = {run->partition, i}, .stubs = stubs[i], .max = COUNT(stubs[i])};
    kl_rc rc = kl_store_scan(run->store, scans, SHARDS);
    if (rc != KL_OK)
        return rc;
    for (uint32_t i = 0; i < SHARDS; i++) {
        for (size_t j = 0; j < scans[i].count; j++)
            tasks[i][j] = (kl_settled){.id = stubs[i][j].id,
                                       .position = stubs[i][j].position,
                                       .attempts = 1,
                                       .keep_ms = 3600000,
                                       .result = kl_str("done")};
        batches[i] = (kl_settle){.place = scans[i].place, .epoch = 1, .tasks = tasks[i], .count = scans[i].count};
    }
    return kl_store_settle(run->store, batches, SHARDS);
}

static kl_rc fence_all(struct run *run)
{
    kl_fence fences[SHARDS];
    for (uint32_t i = 0; i < SHARDS; i++)
        fences[i] = (kl_fence){.place = {run->partition, i}, .epoch = 1};
    return kl_store_fence(run->store, fences, SHARDS);
}

/* Counts in one record, as often as it is told that it has. */
static void count_up(struct run *run, int times)
{
    kl_bytes name = kl_str("counter");
    for (int i = 0; i < times && !test_failed();) {
        char value[32], unique[64];
        kl_arena arena = {0};
        kl_record record = {0};
        kl_rc rc = kl_store_get(run->store, &name, 1, &arena, &record);
        snprintf(value, sizeof value, "%.*s", (int)record.value.len,
                 record.version ? (const char *)record.value.data : "");
        snprintf(unique, sizeof unique, "%d %d", atoi(value) + 1, i);
        kl_write write = {.name = name, .version = record.version, .value = kl_str(unique)};
        while (rc == KL_OK && (rc = kl_store_put(run->store, &write, 1)) == KL_EBUSY)
            ;
        CHECK(rc == KL_OK || rc == KL_EBUSY);
        i += rc == KL_OK;
        kl_arena_free(&arena);
    }
}

static void run_with_faults(struct run *run, kl_store *direct)
{
    enum { TIMES = 25 };
    pthread_t threads[PRODUCERS];
    CHECK_OK(patiently(open_partition, run));
    for (int i = 0; i < PRODUCERS; i++)
        if (pthread_create(&threads[i], NULL, produce, run) != 0)
            abort();
    count_up(run, TIMES);
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(threads[i], NULL);
    uint32_t partition;
    CHECK_OK(kl_store_partition(direct, "faults", 1, &partition));
    check_all_waiting(direct, run);
    CHECK_OK(patiently(fence_all, run));
    CHECK_OK(patiently(settle_all, run));
    kl_counts counts = {0};
    CHECK_OK(kl_store_counts(direct, (kl_place){partition, KL_ALL_SHARDS}, NULL, &counts));
    CHECK_INT(counts.ready, 0);
    CHECK_INT(counts.done, PRODUCERS * EACH);
    kl_arena arena = {0};
    kl_record record = {0};
    kl_bytes name = kl_str("counter");
    CHECK_OK(kl_store_get(direct, &name, 1, &arena, &record));
    CHECK(record.version && atoi(record.value.data) == TIMES);
    kl_arena_free(&arena);
}

TEST(nothing_is_lost_or_doubled_on_a_network_that_fails)
{
    char url[S3_URL_BYTES], faulty[S3_URL_BYTES], endpoint[S3_URL_BYTES];
    static struct run run;
    kl_store *direct = NULL;
    if (!s3_server_new_url(url) || s3_server_endpoint(endpoint) != KL_OK)
        return;
    struct fault_proxy *proxy = fault_proxy_start(atoi(strrchr(endpoint, ':') + 1), test_seed(), 15);
    REQUIRE(proxy);
    run = (struct run){0};
    snprintf(faulty, sizeof faulty, "%.*sendpoint=http://127.0.0.1:%d&settle_ms=0",
             (int)(strstr(url, "endpoint=") - url), url, fault_proxy_port(proxy));
    CHECK_OK(kl_idgen_open(&layout, NULL, &run.ids));
    CHECK_OK(kl_store_open(url, NULL, &direct));
    kl_rc rc;
    while ((rc = kl_store_open(faulty, NULL, &run.store)) == KL_EBUSY)
        ;
    CHECK_OK(rc);
    if (rc == KL_OK && direct)
        run_with_faults(&run, direct);
    for (int i = FAULT_REPLY_LOST; i < FAULTS; i++)
        CHECK(fault_proxy_count(proxy, (enum fault)i) > 0);
    kl_store_close(run.store);
    kl_store_close(direct);
    kl_idgen_close(run.ids);
    fault_proxy_stop(proxy);
}

/* ---- Appends that share a round ---- */

enum { LARGE = 40000 };

/* Appends that are made while the appender's thread tells of another one: it finds them all when it goes on. */
struct together {
    kl_store *store;
    const kl_entry *entries[2];
    size_t counts[2];
    kl_token tokens[2];
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    int left;
};

static void end_one(void *ctx, kl_rc rc, const char *error)
{
    struct together *together = ctx;
    CHECK_INT(rc, KL_OK);
    CHECK_STR(error, "");
    pthread_mutex_lock(&together->mutex);
    together->left--;
    pthread_cond_signal(&together->ended);
    pthread_mutex_unlock(&together->mutex);
}

static void append_both(void *ctx, kl_rc rc, const char *error)
{
    struct together *together = ctx;
    for (int i = 0; i < 2; i++)
        CHECK_OK(kl_store_append_async(together->store, together->entries[i], together->counts[i], &together->tokens[i],
                                       end_one, together));
    end_one(ctx, rc, error);
}

static void append_together(struct together *together, const kl_entry *first)
{
    together->left = 3;
    pthread_mutex_init(&together->mutex, NULL);
    pthread_cond_init(&together->ended, NULL);
    CHECK_OK(kl_store_append_async(together->store, first, 1, NULL, append_both, together));
    pthread_mutex_lock(&together->mutex);
    while (together->left > 0 && !test_failed())
        pthread_cond_wait(&together->ended, &together->mutex);
    pthread_mutex_unlock(&together->mutex);
    pthread_mutex_destroy(&together->mutex);
    pthread_cond_destroy(&together->ended);
}

/* `counts` tasks of one shard, in two appends of one round behind an append of one task; how many of them wait. */
static uint64_t count_together(const size_t counts[2], const kl_token tokens[2])
{
    char url[S3_URL_BYTES];
    struct together together = {.counts = {counts[0], counts[1]}, .tokens = {tokens[0], tokens[1]}};
    kl_idgen *ids = NULL;
    kl_store *other = NULL;
    kl_counts waiting = {0};
    uint32_t partition;
    kl_entry *entries = calloc(counts[0] + counts[1] + 1, sizeof *entries);
    if (!entries || !s3_server_new_url(url))
        abort();
    CHECK_OK(kl_idgen_open(&layout, NULL, &ids));
    CHECK_OK(kl_store_open(url, NULL, &together.store));
    CHECK_OK(kl_store_partition(together.store, "rounds", 1, &partition));
    for (size_t i = 0; i <= counts[0] + counts[1]; i++) {
        entries[i] = (kl_entry){.place = {partition, 0}, .payload = kl_str("x")};
        CHECK_OK(kl_idgen_next(ids, 0, 0, &entries[i].id));
    }
    together.entries[0] = entries + 1;
    together.entries[1] = entries + 1 + counts[0];
    append_together(&together, entries);
    CHECK_OK(kl_store_open(url, NULL, &other));
    CHECK_OK(kl_store_partition(other, "rounds", 1, &partition));
    CHECK_OK(kl_store_counts(other, (kl_place){partition, 0}, NULL, &waiting));
    kl_store_close(other);
    kl_store_close(together.store);
    kl_idgen_close(ids);
    free(entries);
    return waiting.ready;
}

TEST(appends_that_fill_more_than_an_object_lose_nothing)
{
    static const size_t counts[2] = {LARGE, LARGE};
    static const kl_token tokens[2] = {{{1}}, {{2}}};
    CHECK_INT(count_together(counts, tokens), 1 + 2 * LARGE);
}

TEST(of_two_appends_with_one_token_the_first_counts_even_if_they_are_made_at_once)
{
    static const size_t counts[2] = {3, 2};
    static const kl_token tokens[2] = {{{7}}, {{7}}};
    CHECK_INT(count_together(counts, tokens), 1 + 3);
}

/* ---- Deletes that have no effect ---- */

/* Writes to the journal, so that it is looked after, until the counter is above this. */
static void write_until(kl_store *store, kl_place place, uint64_t (*counter)(const struct fault_proxy *proxy),
                        const struct fault_proxy *proxy, uint64_t above)
{
    kl_task_id id = {{0}};
    while (counter(proxy) <= above && !test_failed())
        CHECK_OK(kl_store_forget(store, place, &id, 1));
}

/* Objects of a task each. */
static void append_some(kl_store *store, kl_place place, int count)
{
    kl_idgen *ids = NULL;
    CHECK_OK(kl_idgen_open(&layout, NULL, &ids));
    for (int i = 0; i < count; i++) {
        kl_entry entry = {.place = place, .payload = kl_str("x")};
        kl_token token;
        CHECK_OK(kl_idgen_next(ids, place.shard, 0, &entry.id));
        memcpy(token.bytes, entry.id.bytes, sizeof token.bytes);
        CHECK_OK(kl_store_append(store, &entry, 1, &token));
    }
    kl_idgen_close(ids);
}

/* Settles [from, to) of the tasks that wait, of which there are `all`. */
static void settle_some(kl_store *store, kl_place place, size_t all, size_t from, size_t to)
{
    kl_stub stubs[8];
    kl_settled settled[8];
    kl_fence fence = {.place = place, .epoch = 1};
    kl_scan scan = {.place = place, .stubs = stubs, .max = COUNT(stubs)};
    kl_settle batch = {.place = place, .epoch = 1, .tasks = settled};
    CHECK_OK(kl_store_fence(store, &fence, 1));
    CHECK_OK(kl_store_scan(store, &scan, 1));
    CHECK_INT(scan.count, all);
    for (size_t i = from; i < to && i < scan.count; i++)
        settled[batch.count++] = (kl_settled){.id = stubs[i].id, .position = stubs[i].position, .attempts = 1};
    CHECK_OK(kl_store_settle(store, &batch, 1));
}

static void check_waiting(const char *url, const char *name, uint64_t expected)
{
    kl_store *store = NULL;
    kl_counts counts = {0};
    uint32_t partition = 0;
    CHECK_OK(kl_store_open(url, NULL, &store));
    CHECK_OK(kl_store_partition(store, name, 1, &partition));
    CHECK_OK(kl_store_counts(store, (kl_place){partition, 0}, NULL, &counts));
    CHECK_INT(counts.ready, expected);
    kl_store_close(store);
}

/* A store whose requests go through the proxy. */
static void open_told(const char *url, const struct fault_proxy *proxy, const char *params, const kl_store_opts *opts,
                      kl_store **ret_store)
{
    char watched[S3_URL_BYTES + 100];
    snprintf(watched, sizeof watched, "%.*sendpoint=http://127.0.0.1:%d%s", (int)(strstr(url, "endpoint=") - url), url,
             fault_proxy_port(proxy), params);
    CHECK_OK(kl_store_open(watched, opts, ret_store));
}

static void open_watched(const char *url, const struct fault_proxy *proxy, const char *params, kl_store **ret_store)
{
    open_told(url, proxy, params, NULL, ret_store);
}

struct heard {
    struct fault_proxy *proxy;
    atomic_int failed, again;
};

/* The server comes back as soon as it is missed. */
static void hear(void *ctx, kl_log_level level, const char *text)
{
    struct heard *heard = ctx;
    if (level == KL_LOG_ERROR && strstr(text, "the S3 server cannot be used")) {
        atomic_fetch_add(&heard->failed, 1);
        fault_proxy_cut_off(heard->proxy, false);
    }
    if (level == KL_LOG_WARN && strstr(text, "the S3 server can be used again, after"))
        atomic_fetch_add(&heard->again, 1);
}

TEST(that_the_server_is_away_is_told_while_a_call_still_tries_and_when_it_is_back)
{
    char url[S3_URL_BYTES], endpoint[S3_URL_BYTES];
    kl_store *store = NULL;
    uint32_t partition = 0;
    if (!s3_server_new_url(url) || s3_server_endpoint(endpoint) != KL_OK)
        return;
    struct heard heard = {.proxy = fault_proxy_start(atoi(strrchr(endpoint, ':') + 1), test_seed(), 0)};
    REQUIRE(heard.proxy);
    open_told(url, heard.proxy, "", &(kl_store_opts){.size = sizeof(kl_store_opts), .log = hear, .log_ctx = &heard},
              &store);
    CHECK_OK(kl_store_partition(store, "told", 1, &partition));
    CHECK(!kl__store_is_away(store));
    fault_proxy_cut_off(heard.proxy, true);
    append_some(store, (kl_place){partition, 0}, 1);
    CHECK_INT(heard.failed, 1);
    CHECK(kl__store_is_away(store));
    CHECK_INT(heard.again, 0);
    while (heard.again == 0 && !test_failed())
        append_some(store, (kl_place){partition, 0}, 1);
    CHECK(!kl__store_is_away(store));
    CHECK_INT(heard.failed, 1);
    kl_store_close(store);
    fault_proxy_stop(heard.proxy);
}

TEST(a_settled_task_stays_settled_if_its_object_is_not_deleted)
{
    char url[S3_URL_BYTES], endpoint[S3_URL_BYTES];
    kl_store *store = NULL;
    uint32_t partition = 0;
    if (!s3_server_new_url(url) || s3_server_endpoint(endpoint) != KL_OK)
        return;
    struct fault_proxy *proxy = fault_proxy_start(atoi(strrchr(endpoint, ':') + 1), test_seed(), 0);
    REQUIRE(proxy);
    fault_proxy_refuse_deletes(proxy);
    open_watched(url, proxy, "&settle_ms=0&checkpoint=1&grace_ms=0", &store);
    CHECK_OK(kl_store_partition(store, "deletes", 1, &partition));
    kl_place place = {partition, 0};
    append_some(store, place, 3);
    settle_some(store, place, 3, 1, 2);
    fault_proxy_watch(proxy, "PUT ", "/index/");
    write_until(store, place, fault_proxy_refused, proxy, 0);
    write_until(store, place, fault_proxy_watched, proxy, fault_proxy_watched(proxy) + 2);
    kl_store_close(store);
    check_waiting(url, "deletes", 2);
    fault_proxy_stop(proxy);
}

/* ---- A process that stood still ---- */

/* How it finds out that it did: by the server's clock, or because its signature is refused for the time that it
 * names. */
typedef void wake_fn(struct fault_proxy *proxy, int seconds);

/* It goes on with a number that was free when it looked, and has been used and deleted since. */
static void append_late(wake_fn *wake)
{
    char url[S3_URL_BYTES], endpoint[S3_URL_BYTES];
    kl_store *stopped = NULL, *store = NULL;
    uint32_t partition = 0;
    if (!s3_server_new_url(url) || s3_server_endpoint(endpoint) != KL_OK)
        return;
    int port = atoi(strrchr(endpoint, ':') + 1);
    struct fault_proxy *slow = fault_proxy_start(port, test_seed(), 0),
                       *proxy = fault_proxy_start(port, test_seed(), 0);
    REQUIRE(proxy && slow);
    open_watched(url, slow, "", &stopped);
    CHECK_OK(kl_store_partition(stopped, "late", 1, &partition));
    append_some(stopped, (kl_place){partition, 0}, 1);
    open_watched(url, proxy, "&settle_ms=0&checkpoint=1&grace_ms=0", &store);
    CHECK_OK(kl_store_partition(store, "late", 1, &partition));
    kl_place place = {partition, 0};
    append_some(store, place, 3);
    settle_some(store, place, 4, 0, 3);
    fault_proxy_watch(proxy, "POST ", "delete");
    write_until(store, place, fault_proxy_watched, proxy, 0);
    fault_proxy_watch(slow, "PUT ", "/tasks/");
    wake(slow, 60);
    append_some(stopped, place, 1);
    CHECK(fault_proxy_watched(slow) > 0); /* in vain first, unless a look has come in between, and behind the others */
    kl_store_close(stopped);
    kl_store_close(store);
    check_waiting(url, "late", 2);
    fault_proxy_stop(proxy);
    fault_proxy_stop(slow);
}

TEST(an_append_that_comes_too_late_is_put_where_the_log_ends) { append_late(fault_proxy_jump); }

TEST(an_append_that_comes_too_late_to_be_signed_is_put_where_the_log_ends) { append_late(fault_proxy_skew); }

/* Its journal has gone on, and so far that the next number is free again; by the same owner, as far as it knows, or by
 * another one. What it settles then counts, or is refused. */
static void settle_late(bool taken_over, wake_fn *wake)
{
    char url[S3_URL_BYTES], endpoint[S3_URL_BYTES];
    kl_store *stopped = NULL, *store = NULL;
    uint32_t partition = 0;
    kl_stub stub = {.position = 0};
    if (!s3_server_new_url(url) || s3_server_endpoint(endpoint) != KL_OK)
        return;
    int port = atoi(strrchr(endpoint, ':') + 1);
    struct fault_proxy *slow = fault_proxy_start(port, test_seed(), 0),
                       *proxy = fault_proxy_start(port, test_seed(), 0);
    REQUIRE(proxy && slow);
    open_watched(url, slow, "&settle_ms=0", &stopped);
    CHECK_OK(kl_store_partition(stopped, "late", 1, &partition));
    kl_place place = {partition, 0};
    append_some(stopped, place, 2);
    kl_fence fence = {.place = place, .epoch = 1};
    CHECK_OK(kl_store_fence(stopped, &fence, 1));
    kl_scan scan = {.place = place, .stubs = &stub, .max = 1};
    CHECK_OK(kl_store_scan(stopped, &scan, 1));
    open_watched(url, proxy, "&settle_ms=0&checkpoint=1&grace_ms=0", &store);
    CHECK_OK(kl_store_partition(store, "late", 1, &place.partition));
    fence = (kl_fence){.place = place, .epoch = taken_over ? 2 : 1};
    CHECK_OK(kl_store_fence(store, &fence, 1));
    fault_proxy_watch(proxy, "POST ", "delete");
    write_until(store, place, fault_proxy_watched, proxy, 2); /* the second one has our number */
    wake(slow, 60);
    kl_settled settled = {.id = stub.id, .position = stub.position, .attempts = 1};
    kl_settle batch = {.place = {partition, 0}, .epoch = 1, .tasks = &settled, .count = 1};
    CHECK_RC(kl_store_settle(stopped, &batch, 1), taken_over ? KL_ESTALE : KL_OK);
    kl_store_close(stopped);
    kl_store_close(store);
    check_waiting(url, "late", taken_over ? 2 : 1);
    fault_proxy_stop(proxy);
    fault_proxy_stop(slow);
}

TEST(a_settle_that_comes_too_late_is_written_where_the_journal_ends) { settle_late(false, fault_proxy_jump); }

TEST(a_settle_that_comes_too_late_is_refused_if_another_has_taken_over) { settle_late(true, fault_proxy_jump); }

TEST(a_settle_that_comes_too_late_to_be_signed_is_refused_if_another_has_taken_over)
{
    settle_late(true, fault_proxy_skew);
}
