/* tokens.c - a ring of tokens, oldest first; chains through it find one by its hash.
 *
 * When the journal is read, a token that was moved comes later than younger ones. So they are collected first, up to
 * twice as many as are kept, and put in order when that is full and at the end. */
#include "store/disk/tokens.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"

enum { BUCKETS = 1 << 16, ROOM = 2 * KL_TOKENS_KEPT, NONE = 0 };

struct kl__tokens {
    kl__forgotten_fn *forgotten;
    void *ctx;
    bool is_recovered;
    kl__token_info *ring; /* NULL before the first; KL_TOKENS_KEPT, or ROOM while the journal is read */
    uint32_t *next;       /* of the same bucket; places count from 1, NONE ends a chain */
    uint32_t *buckets;
    uint32_t count, at; /* `at` is the next place to fill, from 0 */
};

kl__tokens *kl__tokens_open(kl__forgotten_fn *forgotten, void *ctx)
{
    kl__tokens *tokens = kl__alloc_zeroed(1, sizeof *tokens);
    if (tokens) {
        tokens->forgotten = forgotten;
        tokens->ctx = ctx;
    }
    return tokens;
}

static void free_arrays(kl__tokens *tokens)
{
    kl__free(tokens->ring);
    kl__free(tokens->next);
    kl__free(tokens->buckets);
    tokens->ring = NULL;
    tokens->next = NULL;
    tokens->buckets = NULL;
}

void kl__tokens_close(kl__tokens *tokens)
{
    if (!tokens)
        return;
    free_arrays(tokens);
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

const kl__token_info *kl__tokens_next(const kl__tokens *tokens, uint64_t segment, uint32_t *place)
{
    while (*place < tokens->count) {
        const kl__token_info *info = &tokens->ring[(*place)++];
        if (info->segment == segment)
            return info;
    }
    return NULL;
}

/* All three or none. Only the buckets are read before they are written; the rest costs no memory until it is used. */
static bool make(kl__tokens *tokens)
{
    tokens->ring = kl__alloc(ROOM * sizeof(*tokens->ring));
    tokens->next = kl__alloc(ROOM * sizeof(*tokens->next));
    tokens->buckets = kl__alloc_zeroed(BUCKETS, sizeof(*tokens->buckets));
    if (tokens->ring && tokens->next && tokens->buckets)
        return true;
    free_arrays(tokens);
    return false;
}

static void chain(kl__tokens *tokens, uint32_t place)
{
    uint32_t *bucket = bucket_of(tokens, &tokens->ring[place - 1].token);
    tokens->next[place - 1] = *bucket;
    *bucket = place;
}

static int by_sequence(const void *a, const void *b)
{
    const kl__token_info *left = a, *right = b;
    return (left->sequence > right->sequence) - (left->sequence < right->sequence);
}

/* Puts them in order, and leaves the youngest. */
static void sort(kl__tokens *tokens)
{
    uint32_t over = tokens->count > KL_TOKENS_KEPT ? tokens->count - KL_TOKENS_KEPT : 0;
    qsort(tokens->ring, tokens->count, sizeof(*tokens->ring), by_sequence);
    for (uint32_t i = 0; i < over; i++)
        tokens->forgotten(tokens->ctx, &tokens->ring[i]);
    tokens->count -= over;
    memmove(tokens->ring, tokens->ring + over, tokens->count * sizeof(*tokens->ring));
    memset(tokens->buckets, 0, BUCKETS * sizeof(*tokens->buckets));
    for (uint32_t place = 1; place <= tokens->count; place++)
        chain(tokens, place);
    tokens->at = tokens->count;
}

void kl__tokens_recovered(kl__tokens *tokens)
{
    tokens->is_recovered = true;
    if (tokens->ring)
        sort(tokens);
    tokens->at %= KL_TOKENS_KEPT;
}

static void forget(kl__tokens *tokens, uint32_t place)
{
    uint32_t *link = bucket_of(tokens, &tokens->ring[place - 1].token);
    while (*link != place)
        link = &tokens->next[*link - 1];
    *link = tokens->next[place - 1];
    tokens->forgotten(tokens->ctx, &tokens->ring[place - 1]);
}

bool kl__tokens_add(kl__tokens *tokens, const kl__token_info *info)
{
    if (!tokens->ring && !make(tokens))
        return false;
    if (!tokens->is_recovered && tokens->count == ROOM)
        sort(tokens);
    uint32_t place = tokens->at + 1;
    if (tokens->is_recovered && tokens->count == KL_TOKENS_KEPT)
        forget(tokens, place);
    else
        tokens->count++;
    tokens->ring[place - 1] = *info;
    chain(tokens, place);
    tokens->at = tokens->is_recovered ? place % KL_TOKENS_KEPT : place;
    return true;
}
