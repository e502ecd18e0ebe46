/* http.h - requests to an S3 server: signed, sent in parallel, sent again when that may help.
 *
 * One thread drives libcurl's multi interface, so connections are kept and shared by all callers. A caller hands over
 * any number of requests and waits for all of them. */
#ifndef KL_STORE_S3_HTTP_H
#define KL_STORE_S3_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "keyline/bytes.h"
#include "keyline/error.h"
#include "keyline/log.h"
#include "store/away.h"

enum {
    KL_S3_NAME_MAX = 1024,     /* bytes of an object's name: what S3 takes */
    KL_S3_ETAG_BYTES = 96,     /* an ETag with its quotes and a zero byte */
    KL_S3_PARALLEL = 32,       /* connections */
    KL_S3_PATIENCE_MS = 20000, /* how long a request is sent again while the server is out of order */
    KL_S3_REPLY_MAX = 1 << 30, /* bytes: an archive has what 64 settles of 8 MiB keep, and that once again for JSON */
};

/* Where the server is, and who asks. */
typedef struct kl__s3_site {
    char *scheme; /* "http" or "https" */
    char *host;   /* with its port */
    char *region;
    char *bucket;
    bool path_style;
    char *access_key, *secret_key, *session_token; /* token NULL: none */
} kl__s3_site;

/* Bytes that grow. When memory runs out, `failed` is set and the rest is passed over. */
typedef struct kl__s3_text {
    char *data;
    size_t len, room;
    bool failed;
} kl__s3_text;

void kl__s3_text_free(kl__s3_text *text);
void kl__s3_text_add(kl__s3_text *text, const void *bytes, size_t len);
void kl__s3_text_put(kl__s3_text *text, const char *format, ...) KL_PRINTF(2, 3);

/* What kinds of requests are counted: those that are billed alike stand together. */
typedef enum kl__s3_kind { KL_S3_PUT, KL_S3_GET, KL_S3_LIST, KL_S3_DELETE, KL_S3_KINDS } kl__s3_kind;

/* One request and its answer. Zero it, set what is asked, and free the answer with kl__s3_request_free. */
typedef struct kl__s3_request {
    kl__s3_kind kind;
    const char *name;     /* of the object; NULL: the bucket itself */
    const char *query;    /* in canonical form (sorted, encoded); NULL: none */
    kl_bytes body;        /* PUT, and POST of a list of names to delete */
    bool absent;          /* PUT only if there is none of this name */
    const char *if_match; /* PUT only over this ETag; NULL: whatever is there */

    int status; /* 200, 404, 412, ...; 0: no answer */
    kl__s3_text reply;
    char etag[KL_S3_ETAG_BYTES]; /* as the server wrote it */
    int64_t date_ms;             /* of the answer; 0: it had none */
    unsigned sends;              /* more than one: an earlier one may have taken effect */
    unsigned keys;               /* which of them it was signed with, counted from 0 */
    char problem[128];           /* when status is 0 */
    bool unreached;              /* and the server's address has nobody who answers, or does not exist */
    bool skewed;                 /* it was refused once because of its time */

    /* the thread's */
    struct kl__s3_request *next;
    void *easy, *headers;
    int64_t due_ns, until_ns;
    size_t sent;
    uint64_t backoff_ms;
    struct kl__s3_wait *wait;
} kl__s3_request;

void kl__s3_request_free(kl__s3_request *request);

typedef struct kl__s3_http kl__s3_http;

/* The site must outlive it. Its keys are used until the server takes them no more and others are to be had
 * (kl__s3_read_keys). KL_ENOMEM, KL_ESYSTEM. */
KL_MUST_USE kl_rc kl__s3_http_open(const kl__s3_site *site, kl__s3_http **ret_http);
void kl__s3_http_close(kl__s3_http *http);

/* From now on `away` is told when the server does not answer, and when it does; it must outlive the http. */
void kl__s3_http_tell(kl__s3_http *http, kl__away *away);

/* Sends all and waits for the answers. 5xx, 429, 409 and lost connections are sent again for KL_S3_PATIENCE_MS. KL_OK:
 * each has an answer below 500. KL_EBUSY: one has none. KL_ENOMEM. */
KL_MUST_USE kl_rc kl__s3_send(kl__s3_http *http, kl__s3_request *requests, size_t count);
KL_MUST_USE kl_rc kl__s3_send_each(kl__s3_http *http, kl__s3_request **requests, size_t count);

/* The server's clock in ms, as its answers tell; never stepping back. 0: no answer has come yet. */
int64_t kl__s3_http_now(kl__s3_http *http);

/* When (on the monotonic clock) the server's clock last turned out to have gone further than ours, which stands still
 * while a machine is suspended: what was known before that is older than it seems. 0: never. */
int64_t kl__s3_http_jumped(kl__s3_http *http);

/* How many requests were sent, repeats included, and how many bytes went out and came in. */
typedef struct kl__s3_bill {
    uint64_t requests[KL_S3_KINDS];
    uint64_t repeats;
    uint64_t bytes_out, bytes_in;
} kl__s3_bill;

kl__s3_bill kl__s3_http_bill(kl__s3_http *http);

/* --- answer.c --- */

bool kl__s3_is_post(const kl__s3_request *request);
const char *kl__s3_method(const kl__s3_request *request);

/* An ETag as If-Match takes it, with its quotes or without. */
void kl__s3_condition(const char *etag, bool unquoted, char ret_condition[KL_S3_ETAG_BYTES]);

/* May the same request be answered otherwise in a moment? */
bool kl__s3_goes_again(int status);

/* KL_ESYSTEM: an answer that should not have come, with what to do. */
KL_MUST_USE kl_rc kl__s3_refused(const kl__s3_request *request);

/* KL_OK: each has an answer that its caller can use. Else what kl__s3_send fails with, of the first that has none. */
KL_MUST_USE kl_rc kl__s3_judge(const kl__s3_site *site, kl__s3_request *const *requests, size_t count);

/* --- sign.c --- */

enum {
    KL_S3_SIGNED_HEADERS = 10,
    KL_S3_HEADER_BYTES = 4096,
    KL_S3_SESSION_MAX = 4000, /* bytes of a token, */
    KL_S3_SECRET_MAX = 200,   /* of a key, */
    KL_S3_REGION_MAX = 64,    /* of a region's name, */
    KL_S3_HOST_MAX = 200,     /* and of the endpoint's host */
};

/* Headers of a signed request, each "name: value". */
typedef struct kl__s3_signed {
    char headers[KL_S3_SIGNED_HEADERS][KL_S3_HEADER_BYTES];
    size_t count;
} kl__s3_signed;

/* What is signed. `path` is encoded already, `query` canonical or "". */
typedef struct kl__s3_signing {
    const char *method, *path, *query;
    const char
        *extra[4]; /* headers to sign beside host, date, hash and session, "name: value", lower case names, sorted */
    const char *service; /* "s3" */
    kl_bytes body;
    int64_t now_ms;
} kl__s3_signing;

/* Signature version 4. KL_ESYSTEM: the crypto library refuses. */
KL_MUST_USE kl_rc kl__s3_sign(const kl__s3_site *site, const kl__s3_signing *what, kl__s3_signed *ret_signed);

/* Encodes as URLs in S3 want it: A-Z a-z 0-9 - . _ ~ stay, and `/` if so said. */
void kl__s3_encode(kl__s3_text *text, kl_bytes bytes, bool keep_slash);

/* --- creds.c --- */

/* Fills in keys, token and (if NULL) region from the environment and the files that AWS tools use. KL_EINVAL: there are
 * none, and the sentence says where they are looked for. */
KL_MUST_USE kl_rc kl__s3_credentials(kl__s3_site *site);
KL_MUST_USE kl_rc kl__s3_read_keys(kl__s3_site *site); /* keys and token alone, of a site that has none */
void kl__s3_keys_free(kl__s3_site *site);
void kl__s3_site_free(kl__s3_site *site);

#endif
