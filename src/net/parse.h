/* parse.h - a strict reader of HTTP/1.1 requests: pure, without a socket, so that a fuzzer can feed it.
 *
 * R1  Lines end with CR LF. A bare LF or CR, a NUL, any control character in a line, and a folded line are refused.
 * R2  At most one Content-Length, of digits alone; Transfer-Encoding is exactly "chunked", once; never both. Chunk
 *     sizes are 1 to 8 hex digits without extensions; trailers are refused.
 * R3  The request line is METHOD SP target SP HTTP/1.1 (or 1.0, which closes and has no chunks), one space each; the
 *     target begins with "/", or with "http://" or "https://" and a name; it has no fragment, and bytes beyond visible
 *     ASCII are refused.
 * R4  Names of fields are tokens directly before the colon. Exactly one Host (1.1). Expect is 100-continue or refused;
 *     Host has no byte that a name, an address and a port do not have.
 * R5  Where the target is a whole address, its name and port are Host's, letter by letter. */
#ifndef KL_NET_PARSE_H
#define KL_NET_PARSE_H

#include <stdbool.h>
#include <stdint.h>

#include "keyline/bytes.h"

typedef enum kl__method {
    KL_METHOD_GET,
    KL_METHOD_HEAD,
    KL_METHOD_POST,
    KL_METHOD_PUT,
    KL_METHOD_PATCH,
    KL_METHOD_DELETE,
    KL_METHOD_OPTIONS,
    KL_METHOD_OTHER, /* never of a request: other methods are refused with 501 */
} kl__method;

typedef struct kl__field {
    kl_bytes name;  /* lower case, in requests */
    kl_bytes value; /* without blanks around it */
} kl__field;

enum { KL_FIELDS_MAX = 64 };

typedef struct kl__head {
    kl__method method;
    kl_bytes target, path, query; /* as sent, still escaped; query without its "?" */
    kl_bytes authority;           /* of a target that is a whole address, and then the same as Host */
    kl__field fields[KL_FIELDS_MAX];
    size_t field_count;
    int minor;       /* HTTP/1.minor */
    bool keep_alive; /* as version and Connection say */
    bool chunked;
    bool expects_continue;
    int64_t content_length; /* -1: none */
} kl__head;

typedef enum kl__parsed {
    KL_PARSED_MORE, /* not complete yet */
    KL_PARSED_DONE,
    KL_PARSED_REFUSED, /* refused->status and ->reason say why */
} kl__parsed;

typedef struct kl__refused {
    int status;         /* 400, 413, 417, 431, 501, 505 */
    const char *reason; /* a sentence, static */
} kl__refused;

/* Reads a head from bytes[0..len); names are made lower case in place, and everything in *ret_head points into
 * `bytes`. *ret_used: bytes of the head. To be called again with more bytes after MORE, from the same start; `from` is
 * how many bytes were there at the last call (0 at first), so that the search for the end goes on there. */
kl__parsed kl__parse_head(char *bytes, size_t len, size_t from, kl__head *ret_head, size_t *ret_used,
                          kl__refused *ret_refused);

/* The value of a field, by its name in lower case; no bytes when it is not there. */
kl_bytes kl__head_field(const kl__head *head, const char *name);

/* A chunked body, read in place: *io_from is where unread bytes begin, *io_to where decoded ones end (both 0 at first,
 * and io_to never passes io_from). DONE: bytes[0..*io_to) is the body, and what follows *io_from the next
 * request's. */
kl__parsed kl__parse_chunks(char *bytes, size_t len, size_t body_max, size_t *io_from, size_t *io_to,
                            kl__refused *ret_refused);

/* The next "name=value" of a query, both unescaped (%41, +) in place in `query`'s own memory, which it moves on.
 * False: none is left, or (*ret_bad) an escape is wrong. */
bool kl__query_next(kl_bytes *io_query, kl_bytes *ret_name, kl_bytes *ret_value, bool *ret_bad);

/* Unescapes one part of a path in place; "+" stays. Keys may hold any byte, so %2F and %00 are fine. False: an escape
 * is wrong. */
bool kl__path_unescape(kl_bytes *io_part);

#endif
