/* s3_server.c - see s3_server.h. */
#include "store/s3_server.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "store/check_rc.h"
#include "store/s3/http.h"
#include "store/workdir.h"

static struct {
    char dir[WORKDIR_BYTES];
    char endpoint[S3_URL_BYTES];
    bool tried, started;
    pid_t owner;
    kl_rc rc;
    int places;
} server;

static void run_script(const char *verb, char *ret_line, size_t size)
{
    char command[1024];
    snprintf(command, sizeof command, "RADOSGW_FOR=%d '%s/tools/radosgw' %s '%s'", (int)getpid(), SOURCE_ROOT, verb,
             server.dir);
    FILE *out = popen(command, "re");
    if (size)
        *ret_line = '\0';
    if (!out)
        return;
    if (size && fgets(ret_line, (int)size, out))
        ret_line[strcspn(ret_line, "\n")] = '\0';
    pclose(out);
}

static void stop(void)
{
    if (!server.started || server.owner != getpid())
        return;
    run_script("stop", NULL, 0);
    workdir_remove(server.dir);
}

/* PUT of the bucket, signed like everything else; one that is there already is fine. */
static kl_rc make_bucket(void)
{
    kl__s3_site site = {0};
    kl__s3_http *http = NULL;
    kl__s3_request request = {.kind = KL_S3_PUT};
    site.scheme = strcpy(kl__alloc(8), "http");
    site.host = strcpy(kl__alloc(S3_URL_BYTES), server.endpoint + strlen("http://"));
    site.bucket = strcpy(kl__alloc(64), S3_SERVER_BUCKET);
    site.path_style = true;
    kl_rc rc = kl__s3_credentials(&site);
    if (rc == KL_OK)
        rc = kl__s3_http_open(&site, &http);
    if (rc == KL_OK)
        rc = kl__s3_send(http, &request, 1);
    kl__s3_request_free(&request);
    kl__s3_http_close(http);
    kl__s3_site_free(&site);
    return rc;
}

static kl_rc start(void)
{
    const char *given = getenv("KL_TEST_S3");
    setenv("KEYLINE_S3_TEST", "1", 1); /* ?grace_ms= and ?clock= */
    setenv("AWS_ACCESS_KEY_ID", "keyline", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "keyline-test-secret", 1);
    unsetenv("AWS_SESSION_TOKEN");
    unsetenv("AWS_ENDPOINT_URL");
    unsetenv("AWS_ENDPOINT_URL_S3");
    if (given && *given) {
        snprintf(server.endpoint, sizeof server.endpoint, "%s", given);
        return make_bucket();
    }
    if (!workdir_make(server.dir))
        return kl__fail(KL_ESYSTEM, "no directory is to be made for the server");
    server.owner = getpid();
    server.started = true;
    atexit(stop);
    run_script("start", server.endpoint, sizeof server.endpoint);
    if (strncmp(server.endpoint, "http://", 7) != 0)
        return kl__fail(KL_ESYSTEM, "radosgw does not start; install ceph-mon ceph-osd radosgw ceph-common, or set "
                                    "KL_TEST_S3 to an endpoint");
    return make_bucket();
}

kl_rc s3_server_endpoint(char ret_endpoint[S3_URL_BYTES])
{
    if (!server.tried)
        server.rc = start();
    server.tried = true;
    if (server.rc != KL_OK)
        return *kl_error_text() ? server.rc : kl__fail(server.rc, "radosgw did not start");
    snprintf(ret_endpoint, S3_URL_BYTES, "%s", server.endpoint);
    return KL_OK;
}

kl_rc s3_server_new_place(char ret_where[S3_URL_BYTES])
{
    char endpoint[S3_URL_BYTES];
    kl_rc rc = s3_server_endpoint(endpoint);
    if (rc == KL_OK)
        snprintf(ret_where, S3_URL_BYTES, "//%s/t%d-%d?endpoint=%.200s", S3_SERVER_BUCKET, (int)getpid(),
                 ++server.places, endpoint);
    return rc;
}

bool s3_server_new_url(char ret_url[S3_URL_BYTES])
{
    char where[S3_URL_BYTES];
    kl_rc rc = s3_server_new_place(where);
    CHECK_OK(rc);
    if (rc == KL_OK)
        snprintf(ret_url, S3_URL_BYTES, "s3:%.500s", where);
    return rc == KL_OK;
}
