/* s3_bucket.c - see s3_bucket.h. */
#include "store/s3_bucket.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "harness.h"
#include "store/check_rc.h"

enum { PATIENCE_MS = 60000 };

bool bucket_open(struct bucket *bucket, const char *url)
{
    *bucket = (struct bucket){0};
    CHECK_OK(s3_server_endpoint(bucket->endpoint));
    bucket->site = (kl__s3_site){.scheme = (char *)"http",
                                 .host = bucket->endpoint + strlen("http://"),
                                 .region = (char *)"us-east-1",
                                 .bucket = (char *)S3_SERVER_BUCKET,
                                 .path_style = true,
                                 .access_key = (char *)"keyline",
                                 .secret_key = (char *)"keyline-test-secret"};
    const char *from = strstr(url, S3_SERVER_BUCKET "/") + strlen(S3_SERVER_BUCKET "/");
    snprintf(bucket->prefix, sizeof bucket->prefix, "%.*s", (int)strcspn(from, "?"), from);
    CHECK_OK(kl__s3_http_open(&bucket->site, &bucket->http));
    return bucket->http != NULL;
}

void bucket_close(struct bucket *bucket) { kl__s3_http_close(bucket->http); }

int bucket_ask(struct bucket *bucket, kl__s3_kind kind, const char *name, const char *body)
{
    char whole[256];
    snprintf(whole, sizeof whole, "%s/%s", bucket->prefix, name);
    kl__s3_request request = {.kind = kind, .name = whole, .body = kl_str(body)};
    CHECK_OK(kl__s3_send(bucket->http, &request, 1));
    kl__s3_request_free(&request);
    return request.status;
}

bool bucket_has(struct bucket *bucket, const char *name) { return bucket_ask(bucket, KL_S3_GET, name, "") == 200; }

void bucket_wait(struct bucket *bucket, const char *name, bool there)
{
    int64_t until_ns = kl__monotonic_ns() + (int64_t)PATIENCE_MS * 1000000;
    while (bucket_has(bucket, name) != there && !test_failed() && kl__monotonic_ns() < until_ns)
        sched_yield();
    CHECK(bucket_has(bucket, name) == there);
}
