/* tokens_file.h - the file of tokens: reading it whole, and writing it anew. For tokens.c and tests. */
#ifndef KL_NET_TOKENS_FILE_H
#define KL_NET_TOKENS_FILE_H

#include "net/tokens.h"

enum { KL_TOKEN_HASH_BYTES = 32, KL_TOKEN_FILE_MAX = 2 << 20 };

typedef struct kl__token_line {
    kl__token token;
    uint8_t hash[KL_TOKEN_HASH_BYTES];
} kl__token_line;

typedef struct kl__token_set {
    struct kl__token_set *older; /* what it replaced */
    kl_arena arena;              /* everything lies in it */
    kl__token_line *lines;
    size_t count;
} kl__token_set;

/* SHA-256. False: it could not be made (out of memory). */
bool kl__token_hash(kl_bytes token, uint8_t ret_hash[KL_TOKEN_HASH_BYTES]);

/* From text, in which there may be none; `path` is for sentences. Errors as kl__access_open; on success the arena is
 * the caller's to free. Read does not take a file without tokens. */
kl_rc kl__token_set_parse(const char *path, kl_bytes text, kl__token_set *ret_set);
kl_rc kl__token_set_read(const char *path, kl__token_set *ret_set);

#endif
