/* tokens.h - the tokens of the last appends, so that a repeat is recognised: a ring of them, and a table over the ring.
 * */
#ifndef KL_STORE_TOKENS_H
#define KL_STORE_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#include "keyline/store.h"
#include "store/engines.h"

typedef struct kl__tokens kl__tokens;

/* What is known of a token. */
typedef struct kl__token_info {
    kl_token token;
    uint64_t sequence; /* of its append, also when it was moved: tokens are forgotten in this order */
    uint64_t segment;  /* where it is written */
} kl__token_info;

/* Told of each token that is forgotten. */
typedef void kl__forgotten_fn(void *ctx, const kl__token_info *forgotten);

/* NULL: out of memory. Memory is taken with the first token. */
kl__tokens *kl__tokens_open(kl__forgotten_fn *forgotten, void *ctx);
void kl__tokens_close(kl__tokens *tokens);

kl__token_info *kl__tokens_find(kl__tokens *tokens, const kl_token *token); /* NULL: not known */

/* The first at or behind *place, which counts from 0 and is moved behind it, that is written in this segment; NULL:
 * there is none. Only when the journal has been read: from then on a token stays at its place. */
const kl__token_info *kl__tokens_next(const kl__tokens *tokens, uint64_t segment, uint32_t *place);

/* Remembers a token that is not known, and forgets the oldest when there are too many. While the journal is read, they
 * come in any order, and there may be twice as many. False: out of memory. */
bool kl__tokens_add(kl__tokens *tokens, const kl__token_info *info);

/* The journal has been read: from now on tokens come in order. */
void kl__tokens_recovered(kl__tokens *tokens);

#endif
