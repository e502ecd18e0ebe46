/* tokens.c - a ring of tokens in order of arrival; chains through the ring find one by its hash. */
#include "store/disk/tokens.h"

#include <string.h>

#include "base/base.h"

enum { BUCKETS = KL_TOKENS_KEPT, NONE = 0 };

struct kl__tokens {
    kl__token_info *ring; /* NULL before the first */
    uint32_t *next;       /* of the same bucket, older; places count from 1, NONE ends a chain */
    uint32_t *buckets;
    uint32_t count, at; /* `at` is the next place to fill, from 0 */
};

kl__tokens *kl__tokens_open(void) { return kl__alloc_zeroed(1, sizeof(kl__tokens)); }

void kl__tokens_close(kl__tokens *tokens)
{
    if (!tokens)
        return;
    kl__free(tokens->ring);
    kl__free(tokens->next);
    kl__free(tokens->buckets);
    kl__free(tokens);
}

/* Tokens are random, or ids, whose last bytes are. */
static uint32_t *bucket_of(const kl__tokens *tokens, const kl_token *token)
{
    uint64_t low, high;
    memcpy(&low, token->bytes, 8);
    memcpy(&high, token->bytes + 8, 8);
    uint64_t hash = (low ^ (high << 32 | high >> 32)) * 0x9e3779b97f4a7c15u;
    return &tokens->buckets[(hash >> 40) % BUCKETS];
}

kl__token_info *kl__tokens_find(kl__tokens *tokens, const kl_token *token)
{
    if (!tokens->ring)
        return NULL;
    for (uint32_t place = *bucket_of(tokens, token); place != NONE; place = tokens->next[place - 1])
        if (memcmp(&tokens->ring[place - 1].token, token, sizeof *token) == 0)
            return &tokens->ring[place - 1];
    return NULL;
}

/* All three or none. */
static bool make(kl__tokens *tokens)
{
    tokens->ring = kl__alloc_zeroed(KL_TOKENS_KEPT, sizeof(*tokens->ring));
    tokens->next = kl__alloc_zeroed(KL_TOKENS_KEPT, sizeof(*tokens->next));
    tokens->buckets = kl__alloc_zeroed(BUCKETS, sizeof(*tokens->buckets));
    if (tokens->ring && tokens->next && tokens->buckets)
        return true;
    kl__free(tokens->ring);
    kl__free(tokens->next);
    kl__free(tokens->buckets);
    *tokens = (kl__tokens){0};
    return false;
}

/* The oldest of its bucket is the last of its chain. */
static uint64_t forget(kl__tokens *tokens, uint32_t place)
{
    uint32_t *link = bucket_of(tokens, &tokens->ring[place - 1].token);
    while (*link != place)
        link = &tokens->next[*link - 1];
    *link = NONE;
    return tokens->ring[place - 1].segment;
}

bool kl__tokens_add(kl__tokens *tokens, const kl_token *token, uint64_t segment, uint64_t *ret_forgotten)
{
    if (!tokens->ring && !make(tokens))
        return false;
    uint32_t place = tokens->at + 1;
    *ret_forgotten = 0;
    if (tokens->count == KL_TOKENS_KEPT)
        *ret_forgotten = forget(tokens, place);
    else
        tokens->count++;
    uint32_t *bucket = bucket_of(tokens, token);
    tokens->ring[place - 1] = (kl__token_info){.token = *token, .segment = segment};
    tokens->next[place - 1] = *bucket;
    *bucket = place;
    tokens->at = place % KL_TOKENS_KEPT;
    return true;
}
