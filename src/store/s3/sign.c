/* sign.c - AWS signature version 4.
 *
 * Our own, because libcurl's is wrong for unsorted queries, slashes in query values and raw `=@:` in names. */
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "store/s3/http.h"

enum { HASH_BYTES = 32, HEX_BYTES = 2 * HASH_BYTES + 1, DATE_BYTES = 24 };

static void to_hex(const unsigned char *bytes, size_t len, char *ret_hex)
{
    for (size_t i = 0; i < len; i++)
        snprintf(ret_hex + 2 * i, 3, "%02x", bytes[i]);
}

static bool hash(const void *bytes, size_t len, char ret_hex[HEX_BYTES])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    if (!EVP_Digest(bytes ? bytes : "", len, digest, &size, EVP_sha256(), NULL))
        return false;
    to_hex(digest, HASH_BYTES, ret_hex);
    return true;
}

static bool hmac(const void *key, size_t key_len, const char *text, unsigned char ret_mac[HASH_BYTES])
{
    unsigned size = 0;
    return HMAC(EVP_sha256(), key, (int)key_len, (const unsigned char *)text, strlen(text), ret_mac, &size) != NULL;
}

void kl__s3_encode(kl__s3_text *text, kl_bytes bytes, bool keep_slash)
{
    const unsigned char *at = bytes.data;
    for (size_t i = 0; i < bytes.len; i++) {
        unsigned char c = at[i];
        bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
                     c == '.' || c == '_' || c == '~' || (keep_slash && c == '/');
        if (plain)
            kl__s3_text_add(text, &c, 1);
        else
            kl__s3_text_put(text, "%%%02X", c);
    }
}

static void add_header(kl__s3_signed *ret_signed, const char *name, const char *value)
{
    KL_ASSERT(ret_signed->count < KL_S3_SIGNED_HEADERS);
    snprintf(ret_signed->headers[ret_signed->count++], KL_S3_HEADER_BYTES, "%s: %s", name, value);
}

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

/* The headers, sorted by name: "name:value\n" each, and "name;name" for the list. */
static void canonical_headers(const kl__s3_signed *headers, kl__s3_text *lines, kl__s3_text *names)
{
    for (size_t i = 0; i < headers->count; i++) {
        const char *header = headers->headers[i], *colon = strchr(header, ':');
        kl__s3_text_put(lines, "%.*s:%s\n", (int)(colon - header), header, colon + 2);
        kl__s3_text_put(names, "%s%.*s", i ? ";" : "", (int)(colon - header), header);
    }
}

static bool derive_key(const kl__s3_site *site, const char *day, const char *service, unsigned char key[HASH_BYTES])
{
    char first[256];
    snprintf(first, sizeof first, "AWS4%s", site->secret_key);
    return hmac(first, strlen(first), day, key) && hmac(key, HASH_BYTES, site->region, key) &&
           hmac(key, HASH_BYTES, service, key) && hmac(key, HASH_BYTES, "aws4_request", key);
}

/* The text whose MAC is the signature. */
static bool string_to_sign(const kl__s3_signing *what, const kl__s3_signed *headers, const char *body_hash,
                           const char *date, const char *scope, kl__s3_text *names, kl__s3_text *ret_text)
{
    kl__s3_text request = {0}, lines = {0};
    char digest[HEX_BYTES] = "";
    canonical_headers(headers, &lines, names);
    kl__s3_text_put(&request, "%s\n%s\n%s\n%s\n%s\n%s", what->method, what->path, what->query,
                    lines.data ? lines.data : "", names->data ? names->data : "", body_hash);
    bool good = !request.failed && !lines.failed && hash(request.data, request.len, digest);
    kl__s3_text_put(ret_text, "AWS4-HMAC-SHA256\n%s\n%s\n%s", date, scope, digest);
    kl__s3_text_free(&request);
    kl__s3_text_free(&lines);
    return good && !ret_text->failed;
}

static bool sign(const kl__s3_site *site, const kl__s3_signing *what, const char *date, const char *body_hash,
                 kl__s3_signed *headers)
{
    char scope[128], signature[HEX_BYTES];
    unsigned char key[HASH_BYTES];
    kl__s3_text names = {0}, text = {0};
    snprintf(scope, sizeof scope, "%.8s/%s/%s/aws4_request", date, site->region, what->service);
    char day[9];
    snprintf(day, sizeof day, "%.8s", date);
    bool good = string_to_sign(what, headers, body_hash, date, scope, &names, &text) &&
                derive_key(site, day, what->service, key) && hmac(key, HASH_BYTES, text.data, key);
    if (good) {
        to_hex(key, HASH_BYTES, signature);
        snprintf(headers->headers[headers->count++], KL_S3_HEADER_BYTES,
                 "authorization: AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s", site->access_key,
                 scope, names.data, signature);
    }
    kl__s3_text_free(&names);
    kl__s3_text_free(&text);
    return good;
}

kl_rc kl__s3_sign(const kl__s3_site *site, const kl__s3_signing *what, kl__s3_signed *ret_signed)
{
    char date[DATE_BYTES], body_hash[HEX_BYTES], host[300];
    time_t seconds = (time_t)(what->now_ms / 1000);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    strftime(date, sizeof date, "%Y%m%dT%H%M%SZ", &tm);
    ret_signed->count = 0;
    if (!hash(what->body.data, what->body.len, body_hash))
        return kl__fail(KL_ESYSTEM, "the crypto library has no SHA-256; check its installation");
    if (site->path_style || !*site->bucket)
        snprintf(host, sizeof host, "%s", site->host);
    else
        snprintf(host, sizeof host, "%s.%s", site->bucket, site->host);
    add_header(ret_signed, "host", host);
    add_header(ret_signed, "x-amz-content-sha256", body_hash);
    add_header(ret_signed, "x-amz-date", date);
    if (site->session_token)
        add_header(ret_signed, "x-amz-security-token", site->session_token);
    for (size_t i = 0; i < 4 && what->extra[i]; i++)
        snprintf(ret_signed->headers[ret_signed->count++], KL_S3_HEADER_BYTES, "%s", what->extra[i]);
    qsort(ret_signed->headers, ret_signed->count, KL_S3_HEADER_BYTES, by_name);
    if (!sign(site, what, date, body_hash, ret_signed))
        return kl__fail(KL_ESYSTEM, "a request could not be signed; the crypto library refuses HMAC-SHA256");
    return KL_OK;
}
