/* framing.h - requests that are refused and requests that are fine, byte by byte, for the parser and for the server.
 *
 * From: test_parse.c, test_http.c, and tests/fuzz/fuzz_http.c, which reads requests in the same way. */
#ifndef TESTS_NET_FRAMING_H
#define TESTS_NET_FRAMING_H

#include <stddef.h>

#include "net/parse.h"

enum { FRAMING_BODY_MAX = 1000 };

struct framing_vector {
    const char *name;
    const char *bytes;
    size_t len;
    int status;       /* that it is refused with; 0: it is fine */
    const char *body; /* of one that is fine */
    size_t body_len;
    size_t rest; /* bytes behind it, which are the next request's */
};

extern const struct framing_vector framing_vectors[];
extern const size_t framing_count;

/* What came of a request: status 0 is a whole one, -1 one that is not complete. */
struct framing_result {
    int status;
    kl__head head; /* points into the bytes that were read */
    kl_bytes body;
    size_t used;
};

/* Reads a request from bytes[0..len), which it changes, as if only `split` of them had come at first. */
struct framing_result framing_read(char *bytes, size_t len, size_t split);

#endif
