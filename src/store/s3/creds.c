/* creds.c - who asks: keys and region from where AWS's tools take them.
 *
 * In this order: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (with AWS_SESSION_TOKEN), then the profile AWS_PROFILE, or
 * `default`, of AWS_SHARED_CREDENTIALS_FILE, or ~/.aws/credentials. The region: the URL's, AWS_REGION,
 * AWS_DEFAULT_REGION, else us-east-1. The file is read again when the server takes the keys no more: whoever gets a
 * token for some hours writes the next one there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "store/s3/http.h"

enum { LINE_BYTES = KL_S3_SESSION_MAX + 128, PATH_BYTES = 1024 };

static char *copy_text(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = kl__alloc(size);
    if (copy)
        memcpy(copy, text, size);
    return copy;
}

/* Secrets are not left in memory. */
static void forget(char *secret)
{
    if (secret)
        explicit_bzero(secret, strlen(secret));
    kl__free(secret);
}

void kl__s3_keys_free(kl__s3_site *site)
{
    forget(site->access_key);
    forget(site->secret_key);
    forget(site->session_token);
    site->access_key = site->secret_key = site->session_token = NULL;
}

static const char *given(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

void kl__s3_site_free(kl__s3_site *site)
{
    kl__free(site->scheme);
    kl__free(site->host);
    kl__free(site->region);
    kl__free(site->bucket);
    kl__s3_keys_free(site);
    *site = (kl__s3_site){0};
}

/* "name = value": the value, or NULL. */
static char *value_of(char *line, const char *name)
{
    size_t len = strlen(name);
    if (strncmp(line, name, len) != 0)
        return NULL;
    char *at = line + len + strspn(line + len, " \t");
    if (*at != '=')
        return NULL;
    at += 1 + strspn(at + 1, " \t");
    at[strcspn(at, " \t\r\n")] = '\0';
    return at;
}

static bool take(char **field, const char *value)
{
    if (!value || *field)
        return true;
    *field = copy_text(value);
    return *field != NULL;
}

static bool read_profile(kl__s3_site *site, FILE *file, const char *profile)
{
    char line[LINE_BYTES], wanted[PATH_BYTES];
    bool inside = false, good = true;
    snprintf(wanted, sizeof wanted, "[%s]", profile);
    while (good && fgets(line, sizeof line, file)) {
        char *at = line + strspn(line, " \t");
        if (*at == '[') {
            inside = strncmp(at, wanted, strlen(wanted)) == 0;
            continue;
        }
        if (inside)
            good = take(&site->access_key, value_of(at, "aws_access_key_id")) &&
                   take(&site->secret_key, value_of(at, "aws_secret_access_key")) &&
                   take(&site->session_token, value_of(at, "aws_session_token"));
    }
    explicit_bzero(line, sizeof line);
    return good;
}

static bool read_file(kl__s3_site *site)
{
    char path[PATH_BYTES];
    const char *file_name = given("AWS_SHARED_CREDENTIALS_FILE"), *home = given("HOME"),
               *profile = given("AWS_PROFILE");
    if (file_name)
        snprintf(path, sizeof path, "%s", file_name);
    else
        snprintf(path, sizeof path, "%s/.aws/credentials", home ? home : "");
    FILE *file = fopen(path, "re");
    if (!file)
        return true;
    bool good = read_profile(site, file, profile ? profile : "default");
    fclose(file);
    return good;
}

static bool read_environment(kl__s3_site *site)
{
    if (!given("AWS_ACCESS_KEY_ID") || !given("AWS_SECRET_ACCESS_KEY"))
        return true;
    return take(&site->access_key, given("AWS_ACCESS_KEY_ID")) &&
           take(&site->secret_key, given("AWS_SECRET_ACCESS_KEY")) &&
           take(&site->session_token, given("AWS_SESSION_TOKEN"));
}

kl_rc kl__s3_read_keys(kl__s3_site *site)
{
    if (!read_environment(site) || (!site->access_key && !read_file(site)))
        return kl__fail_memory();
    if (!site->access_key || !site->secret_key)
        return kl__fail(
            KL_EINVAL,
            "there are no credentials for S3; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them "
            "to ~/.aws/credentials");
    if (strlen(site->secret_key) > KL_S3_SECRET_MAX || strlen(site->access_key) > KL_S3_SECRET_MAX)
        return kl__fail(KL_EINVAL,
                        "the keys for S3 may have %d bytes each; check AWS_ACCESS_KEY_ID and "
                        "AWS_SECRET_ACCESS_KEY, or the credentials file",
                        KL_S3_SECRET_MAX);
    if (site->session_token && strlen(site->session_token) > KL_S3_SESSION_MAX)
        return kl__fail(KL_EINVAL, "the session token has %zu bytes, and at most %d are taken; use keys without one",
                        strlen(site->session_token), KL_S3_SESSION_MAX);
    return KL_OK;
}

kl_rc kl__s3_credentials(kl__s3_site *site)
{
    const char *region = given("AWS_REGION") ? given("AWS_REGION") : given("AWS_DEFAULT_REGION");
    kl_rc rc = kl__s3_read_keys(site);
    if (rc == KL_OK && !take(&site->region, region ? region : "us-east-1"))
        rc = kl__fail_memory();
    if (rc == KL_OK && strlen(site->region) > KL_S3_REGION_MAX)
        rc = kl__fail(KL_EINVAL, "the region may have %d characters; check AWS_REGION and the store's URL",
                      KL_S3_REGION_MAX);
    return rc;
}
