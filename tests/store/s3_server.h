/* s3_server.h - an S3 server of a test program's own: Ceph's radosgw, in memory, on loopback, gone with the program.
 *
 * It starts when it is first asked for (tools/radosgw) and ends with the program. KL_TEST_S3 may name the endpoint of
 * one that is to be used instead (http://127.0.0.1:7480), with the keys of tools/radosgw. */
#ifndef TESTS_STORE_S3_SERVER_H
#define TESTS_STORE_S3_SERVER_H

#include <stdbool.h>

#include "keyline/error.h"

enum { S3_URL_BYTES = 512 };

/* The endpoint, and a bucket that is there. Sets the credentials in the environment. KL_ESYSTEM: there is no server,
 * and the sentence says what to install or look at. */
KL_MUST_USE kl_rc s3_server_endpoint(char ret_endpoint[S3_URL_BYTES]);

/* "//BUCKET/PREFIX?endpoint=...", with a prefix that no other call has got. */
KL_MUST_USE kl_rc s3_server_new_place(char ret_where[S3_URL_BYTES]);

/* The same as a URL. False: there is none, and a failure is recorded. */
bool s3_server_new_url(char ret_url[S3_URL_BYTES]);

#define S3_SERVER_BUCKET "keyline-test"

#endif
