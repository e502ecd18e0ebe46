/* selftest.c - can this server keep our promises? Asked before anything is written.
 *
 * Everything rests on two conditions: put if there is none of this name, and put over this ETag and no other. A server
 * that ignores them would let two owners settle one task, so it is refused, never worked around. What was found out
 * stands in keyline.json, and is asked again only when the store is reached by another address. */
#include <stdio.h>

#include "store/s3/s3.h"

enum { TRIES = 10 };

/* Names of the test, and what stands under them. */
struct test {
    kl__s3 *s3;
    uint64_t nonce;
    char name[KL_S3_NAME_MAX]; /* the last one asked about */
    char etag[KL_S3_ETAG_BYTES];
    int status;
    bool unclear; /* a conditional PUT was sent twice: what it was answered proves nothing */
};

static const char *name_of(struct test *test, const char *which)
{
    snprintf(test->name, sizeof test->name, "%sindex/selftest-%016llx/%s", test->s3->prefix,
             (unsigned long long)test->nonce, which);
    return test->name;
}

static kl_rc refuse(const struct test *test, const char *what)
{
    return kl__fail(KL_EINVAL,
                    "the server at %s cannot hold a store: %s (it answered %d). Keyline needs conditional writes; see "
                    "docs/stores/s3.md for servers that have them",
                    test->s3->site.host, what, test->status);
}

/* A PUT under a condition; the answer is in test->status, whatever it is. Only no answer at all is an error. */
static kl_rc put(struct test *test, const char *which, const char *body, bool absent, const char *if_match)
{
    kl__s3_request request = {
        .kind = KL_S3_PUT, .name = name_of(test, which), .body = kl_str(body), .absent = absent, .if_match = if_match};
    kl_rc rc = kl__s3_send(test->s3->http, &request, 1);
    test->status = request.status;
    test->unclear |= request.sends > 1;
    if (request.status >= 200 && request.status < 300)
        snprintf(test->etag, sizeof test->etag, "%s", request.etag);
    kl__s3_request_free(&request);
    bool no_bucket = test->status == 404 && !if_match;
    bool answered = test->status >= 300 && test->status != 401 && test->status != 403 && !no_bucket;
    return answered ? KL_OK : rc;
}

static bool was_done(const struct test *test) { return test->status >= 200 && test->status < 300; }

/* --- The conditions --- */

static kl_rc test_absent(struct test *test)
{
    kl_rc rc = put(test, "once", "first", true, NULL);
    if (rc != KL_OK)
        return rc;
    if (!was_done(test))
        return refuse(test, "it does not take If-None-Match: * where nothing is");
    char etag[KL_S3_ETAG_BYTES];
    snprintf(etag, sizeof etag, "%s", test->etag);
    rc = put(test, "once", "second", true, NULL);
    if (rc == KL_OK && was_done(test))
        rc = refuse(test, "it ignores If-None-Match: *, and overwrites what is there");
    else if (rc == KL_OK && test->status != 412)
        rc = refuse(test, "it does not answer 412 where If-None-Match: * should fail");
    snprintf(test->etag, sizeof test->etag, "%s", etag);
    return rc;
}

static kl_rc test_read(struct test *test)
{
    kl__s3_request request;
    kl_rc rc = kl__s3_get_object(test->s3, name_of(test, "once"), &request);
    if (rc != KL_OK)
        return rc;
    test->status = request.status;
    bool same = request.status == 200 && request.reply.len == 5 && memcmp(request.reply.data, "first", 5) == 0;
    bool tagged = *request.etag != '\0';
    kl__s3_request_free(&request);
    if (!same)
        return refuse(test, "what was written is not what is read at once");
    return tagged ? KL_OK : refuse(test, "it gives no ETags");
}

/* An ETag that nothing has must be refused, in quotes and without. */
static kl_rc test_stale(struct test *test)
{
    static const char *const never[] = {"\"0123456789abcdef0123456789abcdef\"", "0123456789abcdef0123456789abcdef"};
    for (int i = 0; i < 2; i++) {
        char etag[KL_S3_ETAG_BYTES];
        snprintf(etag, sizeof etag, "%s", test->etag);
        kl_rc rc = put(test, "once", "wrong", false, never[i]);
        if (rc != KL_OK)
            return rc;
        if (was_done(test))
            return refuse(test, "it ignores If-Match, and overwrites what is there");
        snprintf(test->etag, sizeof test->etag, "%s", etag);
    }
    return KL_OK;
}

/* The right ETag must be taken in one of the two forms; then the old one must be refused in that form. */
static kl_rc test_fresh(struct test *test)
{
    char old[KL_S3_ETAG_BYTES], bare[KL_S3_ETAG_BYTES];
    snprintf(old, sizeof old, "%s", test->etag);
    kl__s3_condition(old, true, bare);
    kl_rc rc = put(test, "once", "third", false, old);
    test->s3->unquoted = rc == KL_OK && !was_done(test);
    if (test->s3->unquoted)
        rc = put(test, "once", "third", false, bare);
    if (rc != KL_OK)
        return rc;
    if (!was_done(test))
        return refuse(test, "it does not take If-Match with the ETag that it gave");
    rc = put(test, "once", "fourth", false, test->s3->unquoted ? bare : old);
    return rc == KL_OK && was_done(test) ? refuse(test, "it takes an ETag that was overwritten") : rc;
}

/* --- Listings --- */

/* The end of a log is found by listings that begin behind a name and stop after one. */
static kl_rc test_start(struct test *test, const char *prefix, const char *after, const char *expected)
{
    kl__s3_names listed;
    kl_rc rc = kl__s3_list_page(test->s3, prefix, after, 1, &listed);
    if (rc != KL_OK)
        return rc;
    bool right = listed.count == 1 && strcmp(listed.items[0].name, expected) == 0;
    kl__s3_names_free(&listed);
    return right ? KL_OK : refuse(test, "it does not heed start-after or max-keys in a listing");
}

static kl_rc test_list(struct test *test)
{
    static const char *const names[] = {"b", "a", "c-"};
    char prefix[128], expected[3][160];
    kl__s3_names listed;
    kl_rc rc = KL_OK;
    for (int i = 0; rc == KL_OK && i < 3; i++)
        rc = put(test, names[i], "x", false, NULL);
    snprintf(prefix, sizeof prefix, "index/selftest-%016llx/", (unsigned long long)test->nonce);
    if (rc == KL_OK)
        rc = kl__s3_list_page(test->s3, prefix, NULL, 0, &listed);
    if (rc != KL_OK)
        return rc;
    snprintf(expected[0], sizeof expected[0], "%sa", prefix);
    snprintf(expected[1], sizeof expected[1], "%sb", prefix);
    snprintf(expected[2], sizeof expected[2], "%sc-", prefix);
    bool right = listed.count == 4;
    for (size_t i = 0; right && i < 3; i++)
        right = strcmp(listed.items[i].name, expected[i]) == 0;
    kl__s3_names_free(&listed);
    return right ? test_start(test, prefix, expected[0], expected[1])
                 : refuse(test, "a listing does not show in order what was just written");
}

static void clean_up(struct test *test)
{
    static const char *const names[] = {"once", "a", "b", "c-"};
    char *all[4];
    size_t count = 0;
    for (int i = 0; i < 4; i++)
        if ((all[count] =
                 kl__s3_name(test->s3, "index/selftest-%016llx/%s", (unsigned long long)test->nonce, names[i])))
            count++;
    (void)kl__s3_delete(test->s3, all, count); /* what stays does no harm */
    for (size_t i = 0; i < count; i++)
        kl__free(all[i]);
}

/* --- keyline.json --- */

static kl_rc read_marker(kl__s3 *s3, bool *ret_tested)
{
    kl__s3_request request;
    char *name = kl__s3_name(s3, "keyline.json");
    kl_rc rc = kl__s3_get_object(s3, name, &request);
    kl__free(name);
    *ret_tested = false;
    if (rc != KL_OK)
        return rc;
    json_t *root = request.status == 200
                       ? json_loadb(request.reply.data ? request.reply.data : "", request.reply.len, 0, NULL)
                       : NULL;
    json_int_t format = json_integer_value(json_object_get(root, "keyline"));
    const char *host = json_string_value(json_object_get(root, "endpoint"));
    *ret_tested = format == KL_S3_FORMAT && host && strcmp(host, s3->site.host) == 0;
    if (*ret_tested)
        s3->unquoted = json_is_true(json_object_get(root, "unquoted_etags"));
    if (s3->caller_time)
        s3->floor_ms = json_integer_value(json_object_get(root, "floor_ms"));
    if (format > KL_S3_FORMAT)
        rc = kl__fail(KL_EINVAL, "this store is of a newer release (format %lld, and %d is known here); update keyline",
                      (long long)format, KL_S3_FORMAT);
    json_decref(root);
    kl__s3_request_free(&request);
    return rc;
}

static kl_rc write_marker(kl__s3 *s3)
{
    kl__s3_text body = {0};
    char *name = kl__s3_name(s3, "keyline.json");
    kl__s3_text_put(&body, "{\"keyline\":%d,\"endpoint\":", KL_S3_FORMAT);
    kl__s3_put_string(&body, kl_str(s3->site.host));
    kl__s3_text_put(&body, ",\"unquoted_etags\":%s,\"floor_ms\":%lld}\n", s3->unquoted ? "true" : "false",
                    (long long)s3->floor_ms);
    kl__s3_request request = {.kind = KL_S3_PUT, .name = name, .body = {body.data, body.len}};
    kl_rc rc = body.failed || !name ? kl__fail_memory() : kl__s3_send(s3->http, &request, 1);
    kl__s3_request_free(&request);
    kl__s3_text_free(&body);
    kl__free(name);
    return rc;
}

void kl__s3_save_floor(kl__s3 *s3) { (void)!write_marker(s3); }

static kl_rc test_once(kl__s3 *s3, bool *ret_unclear)
{
    struct test test = {.s3 = s3, .nonce = kl__s3_nonce()};
    char error[400];
    kl_rc rc = test_absent(&test);
    if (rc == KL_OK)
        rc = test_read(&test);
    if (rc == KL_OK)
        rc = test_stale(&test);
    if (rc == KL_OK)
        rc = test_fresh(&test);
    if (rc == KL_OK)
        rc = test_list(&test);
    snprintf(error, sizeof error, "%s", rc == KL_OK ? "" : kl_error_text());
    clean_up(&test);
    *ret_unclear = test.unclear;
    return rc == KL_OK ? KL_OK : kl__fail(rc, "%s", error);
}

/* Leases are judged by the server's clock. */
static kl_rc test_clock(kl__s3 *s3)
{
    if (kl__s3_http_now(s3->http) != 0)
        return KL_OK;
    return kl__fail(
        KL_EINVAL,
        "the server at %s cannot hold a store: its answers have no Date, and leases are judged by that; if a "
        "proxy takes it away, let it pass",
        s3->site.host);
}

kl_rc kl__s3_selftest(kl__s3 *s3)
{
    bool tested, unclear = true;
    kl_rc rc = read_marker(s3, &tested);
    if (rc != KL_OK)
        return rc;
    if (tested)
        return test_clock(s3);
    rc = KL_EINVAL;
    for (int i = 0; rc == KL_EINVAL && unclear && i < TRIES; i++)
        rc = test_once(s3, &unclear);
    if (rc == KL_EINVAL && unclear)
        return kl__fail(KL_EBUSY,
                        "the network loses too many answers to tell whether this server can hold a store; try again");
    if (rc == KL_OK)
        rc = test_clock(s3);
    return rc == KL_OK ? write_marker(s3) : rc;
}
