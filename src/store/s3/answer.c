/* answer.c - what an S3 server's answer means: another try, or a code and a sentence that says what to do.
 *
 * From: http.c, when a request is answered or given up.  To: the calls of the engine. */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "store/s3/http.h"

bool kl__s3_is_post(const kl__s3_request *request) { return request->kind == KL_S3_DELETE && request->query; }

const char *kl__s3_method(const kl__s3_request *request)
{
    if (kl__s3_is_post(request))
        return "POST";
    return request->kind == KL_S3_PUT ? "PUT" : request->kind == KL_S3_DELETE ? "DELETE" : "GET";
}

void kl__s3_condition(const char *etag, bool unquoted, char ret_condition[KL_S3_ETAG_BYTES])
{
    size_t len = strlen(etag);
    if (unquoted && len >= 2 && etag[0] == '"')
        snprintf(ret_condition, KL_S3_ETAG_BYTES, "%.*s", (int)len - 2, etag + 1);
    else
        snprintf(ret_condition, KL_S3_ETAG_BYTES, "%s", etag);
}

/* 501 is not a moment's weakness. */
bool kl__s3_goes_again(int status)
{
    return status == 0 || (status >= 500 && status != 501) || status == 429 || status == 409;
}

/* Such a one meets no object: what is not there is the bucket. */
static bool is_plain_put(const kl__s3_request *request) { return request->kind == KL_S3_PUT && !request->if_match; }

/* What stands in the first element of this name in the server's answer, an <Error> in XML; "": there is none. */
static const char *answer_says(const kl__s3_request *request, const char *element, char *ret_text, size_t size)
{
    char tag[32];
    snprintf(tag, sizeof tag, "<%s>", element);
    const char *at = request->reply.len ? strstr(request->reply.data, tag) : NULL;
    at = at ? at + strlen(tag) : "";
    snprintf(ret_text, size, "%.*s", (int)strcspn(at, "<"), at);
    return ret_text;
}

static kl_rc fail_not_allowed(const kl__s3_request *request)
{
    static const struct {
        const char *code, *what;
    } known[] = {
        {"InvalidAccessKeyId", "it knows no such access key; check AWS_ACCESS_KEY_ID or the credentials file, and the "
                               "endpoint"},
        {"SignatureDoesNotMatch", "the secret key is not the access key's; check AWS_SECRET_ACCESS_KEY or the "
                                  "credentials file"},
        {"ExpiredToken", "the session token has expired; get new credentials"},
        {"AccessDenied",
         "the keys may not do that; they need GetObject, PutObject, DeleteObject and ListBucket in this "
         "bucket"},
    };
    char code[64];
    const char *what = "check the keys, and what they may do in the bucket";
    answer_says(request, "Code", code, sizeof code);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(code, known[i].code) == 0)
            what = known[i].what;
    return kl__fail(KL_ESYSTEM, "S3 refuses a %s of %.200s (%d %s): %s", kl__s3_method(request),
                    request->name ? request->name : "the bucket", request->status, code, what);
}

static kl_rc fail_not_there(const kl__s3_request *request)
{
    char bucket[80];
    bool named = *answer_says(request, "BucketName", bucket, sizeof bucket);
    return kl__fail(KL_ESYSTEM, "S3 has no bucket%s%s (404); make it, or mend the store's URL",
                    named ? " " : " of this name", bucket);
}

kl_rc kl__s3_refused(const kl__s3_request *request)
{
    const char *name = request->name ? request->name : "the bucket";
    int status = request->status;
    char code[64], text[200];
    if (status == 403 || status == 401)
        return fail_not_allowed(request);
    if (status == 404)
        return fail_not_there(request);
    if (status == 301 || status == 307)
        return kl__fail(KL_ESYSTEM, "S3 has the bucket elsewhere (%d %s); mend region or endpoint in the store's URL",
                        status, answer_says(request, "Endpoint", text, sizeof text));
    if (status == 413)
        return kl__fail(KL_ESYSTEM, "S3 takes no object as large as %s (413); put fewer or smaller tasks at once",
                        name);
    return kl__fail(KL_ESYSTEM, "S3 answers %d %s to a %s of %.200s, which no server should: %s; check the endpoint",
                    status, answer_says(request, "Code", code, sizeof code), kl__s3_method(request), name,
                    answer_says(request, "Message", text, sizeof text));
}

kl_rc kl__s3_judge(const kl__s3_site *site, kl__s3_request *const *requests, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const kl__s3_request *request = requests[i];
        if (request->reply.failed)
            return kl__fail_memory();
        if (request->status == 0)
            return kl__fail(KL_EBUSY, "no answer from %s://%.200s: %.100s; check the endpoint, or call again",
                            site->scheme, site->host, request->problem);
        if (kl__s3_goes_again(request->status))
            return kl__fail(KL_EBUSY, "S3 answered %d to %u tries; call again", request->status, request->sends);
        bool not_us = request->status == 403 || request->status == 401;
        bool not_so = request->status == 400 || request->status == 501;
        if (not_us || not_so || (request->status == 404 && (!request->name || is_plain_put(request))))
            return kl__s3_refused(request);
    }
    return KL_OK;
}
