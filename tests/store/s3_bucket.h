/* s3_bucket.h - objects of a store on S3, behind its back. */
#ifndef TESTS_STORE_S3_BUCKET_H
#define TESTS_STORE_S3_BUCKET_H

#include "store/s3/http.h"
#include "store/s3_server.h"

struct bucket {
    kl__s3_site site;
    char endpoint[S3_URL_BYTES], prefix[64];
    kl__s3_http *http;
};

bool bucket_open(struct bucket *bucket, const char *url); /* of a store; false: the test has failed */
void bucket_close(struct bucket *bucket);

/* One request for the object of this name below the store's prefix; the status of its answer. */
int bucket_ask(struct bucket *bucket, kl__s3_kind kind, const char *name, const char *body);
bool bucket_has(struct bucket *bucket, const char *name);
void bucket_wait(struct bucket *bucket, const char *name, bool there); /* until an object comes, or goes */

#endif
