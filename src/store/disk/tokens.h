/* tokens.h - the tokens of the last appends, so that a repeat is recognised: a ring of them, and a table over the ring. */
#ifndef KL_STORE_TOKENS_H
#define KL_STORE_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#include "keyline/store.h"

enum { KL_TOKENS_KEPT = 1 << 16 };

typedef struct kl__tokens kl__tokens;

kl__tokens *kl__tokens_open(void); /* NULL: out of memory. Memory is taken with the first token. */
void kl__tokens_close(kl__tokens *tokens);

/* What is known of a token. */
typedef struct kl__token_info {
    kl_token token;
    uint64_t segment; /* where it is written */
} kl__token_info;

kl__token_info *kl__tokens_find(kl__tokens *tokens, const kl_token *token); /* NULL: not known */

/* Remembers a token that is not known, and forgets the oldest when there are KL_TOKENS_KEPT already: *ret_forgotten is
 * then its segment, else 0. False: out of memory. */
bool kl__tokens_add(kl__tokens *tokens, const kl_token *token, uint64_t segment, uint64_t *ret_forgotten);

#endif
