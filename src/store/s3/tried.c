/* tried.c - what earlier tries of an append have left in shards that were sealed meanwhile.
 *
 * From: append.c (an append that meets a seal).
 *
 * An append to several shards whose reply was lost is made again, under the same token. If some of its shards have been
 * sealed in between, each of those has its part from the earlier try, or never will: so if all of them have it the rest
 * is written, and if one has not, the append is refused. What is there of it stays: an owner may have run it. Whoever
 * asks shard by shard, with the same token, learns what that is (KL_STORE_ATOMIC_APPEND is not among what this store
 * can).
 *
 * Tokens last ten minutes, so the log of a shard is read backwards from its end, as far as that; what the checkpoint
 * and the replica know of it is not read again. */
#include <stdio.h>
#include <stdlib.h>

#include "store/s3/s3.h"

enum { WIDE = 32, FIRST_WIDE = 4 }; /* objects at once */

/* --- Tokens --- */

static bool add_token(kl__s3_recent *recent, const kl_token *token)
{
    kl_token *tokens = kl__grow(recent->tokens, recent->count, &recent->room, sizeof *tokens);
    if (!tokens)
        return false;
    recent->tokens = tokens;
    recent->tokens[recent->count++] = *token;
    return true;
}

/* Quotes in payloads are escaped, so what looks like a token is one. */
static bool add_tokens(kl__s3_recent *recent, const kl__s3_text *body)
{
    static const char mark[] = "\"token\":\"";
    if (body->len == 0)
        return true;
    const char *at = body->data, *end = body->data + body->len;
    while ((at = memmem(at, (size_t)(end - at), mark, sizeof mark - 1))) {
        char digits[33] = "";
        kl_token token;
        at += sizeof mark - 1;
        memcpy(digits, at, (size_t)(end - at) < 32 ? (size_t)(end - at) : 32);
        if (kl__s3_read_16(digits, token.bytes) && !add_token(recent, &token))
            return false;
    }
    return true;
}

/* Clocks of those that append are the server's, give or take what a request takes. */
static bool is_older(kl__s3 *s3, const kl__s3_text *body)
{
    long long at_ms;
    return body->len && sscanf(body->data, "{\"keyline\":%*d,\"at\":%lld", &at_ms) == 1 &&
           at_ms < kl__s3_now(s3) - KL_S3_TOKEN_MS - KL_S3_TRUST_MS;
}

/* Objects up to `last`, backwards. *ret_older: one of them is so old that those before it need not be looked at. */
static kl_rc read_some(kl__s3 *s3, kl__s3_recent *recent, uint64_t last, size_t count, bool *ret_older)
{
    kl__s3_request requests[WIDE] = {{0}};
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        requests[i] =
            (kl__s3_request){.kind = KL_S3_GET, .name = kl__s3_log_name(s3, "tasks", recent->shard, last - i)};
        rc = requests[i].name ? KL_OK : kl__fail_memory();
    }
    if (rc == KL_OK)
        rc = kl__s3_send(s3->http, requests, count);
    for (size_t i = 0; i < count; i++) {
        bool there = requests[i].status == 200;
        if (rc == KL_OK && !there && requests[i].status != 404)
            rc = kl__s3_refused(&requests[i]);
        if (rc == KL_OK && there && !add_tokens(recent, &requests[i].reply))
            rc = kl__fail_memory();
        *ret_older |= there && is_older(s3, &requests[i].reply);
        kl__free((char *)requests[i].name);
        kl__s3_request_free(&requests[i]);
    }
    return rc;
}

/* What the replica knows, how far that goes, and where the log ends. False: no memory. */
static bool copy_known(kl__s3 *s3, kl__s3_recent *recent, uint64_t *ret_known, uint64_t *ret_tail)
{
    const kl__s3_shard *shard = recent->shard;
    bool good = true;
    recent->count = 0;
    kl__memory_enter(s3->memory);
    *ret_known = !shard->loaded ? 0 : shard->taken > shard->tokens_to ? shard->taken : shard->tokens_to;
    *ret_tail = shard->tail;
    for (const kl__s3_token *token = shard->oldest_token; good && token; token = token->next)
        good = add_token(recent, &token->token);
    kl__memory_leave(s3->memory);
    return good;
}

/* Reads what was put in the last ten minutes. The shard is sealed, so nothing comes any more. */
static kl_rc read_recent(kl__s3 *s3, kl__s3_recent *recent)
{
    size_t wide = FIRST_WIDE;
    bool older = false;
    kl_rc rc = kl__s3_refresh(s3, &recent->shard, 1, true);
    if (rc == KL_EDAMAGED) /* then the log alone tells */
        rc = KL_OK;
    uint64_t known = 0, last = 0;
    if (rc == KL_OK && !copy_known(s3, recent, &known, &last))
        rc = kl__fail_memory();
    for (; rc == KL_OK && last > known && !older; wide = WIDE) {
        size_t count = last - known < wide ? (size_t)(last - known) : wide;
        rc = read_some(s3, recent, last, count, &older);
        last -= count;
    }
    recent->read = rc == KL_OK;
    return rc;
}

static bool bears(const kl__s3_recent *recent, const kl_token *token)
{
    for (size_t i = 0; i < recent->count; i++)
        if (memcmp(&recent->tokens[i], token, sizeof *token) == 0)
            return true;
    return false;
}

/* --- Appends, shard by shard --- */

/* An append's entries of one shard. */
struct group {
    kl__s3_shard *shard;
    const kl_entry **entries;
    size_t count;
    bool sealed;
    bool there; /* from an earlier try */
};

/* An append, shard by shard. */
struct division {
    const kl_entry **entries;
    struct group *groups;
    size_t count;
};

static int by_place(const void *a, const void *b)
{
    const kl_entry *x = *(const kl_entry *const *)a, *y = *(const kl_entry *const *)b;
    if (x->place.partition != y->place.partition)
        return x->place.partition < y->place.partition ? -1 : 1;
    if (x->place.shard != y->place.shard)
        return x->place.shard < y->place.shard ? -1 : 1;
    return (x > y) - (x < y);
}

static void division_free(struct division *division)
{
    kl__free(division->entries);
    kl__free(division->groups);
}

/* Which of them are sealed is looked at once: more may be while they are judged. False: no memory. */
static bool divide(kl__s3 *s3, const kl_append *append, struct division *ret_division)
{
    size_t count = append->count;
    struct division division = {.entries = kl__alloc_zeroed(count, sizeof *division.entries),
                                .groups = kl__alloc_zeroed(count, sizeof *division.groups)};
    if (!division.entries || !division.groups) {
        division_free(&division);
        return false;
    }
    for (size_t i = 0; i < count; i++)
        division.entries[i] = &append->entries[i];
    qsort(division.entries, count, sizeof *division.entries, by_place);
    kl__memory_enter(s3->memory);
    for (size_t i = 0; i < count; i++) {
        kl__s3_shard *shard = kl__s3_shard_of(s3, division.entries[i]->place);
        if (division.count == 0 || division.groups[division.count - 1].shard != shard)
            division.groups[division.count++] =
                (struct group){.shard = shard, .entries = &division.entries[i], .sealed = shard->sealed};
        division.groups[division.count - 1].count++;
    }
    kl__memory_leave(s3->memory);
    *ret_division = division;
    return true;
}

static bool make_room(kl__s3_tried *tried)
{
    kl__s3_recent *items = kl__grow(tried->items, tried->count, &tried->room, sizeof *items);
    tried->items = items ? items : tried->items;
    return items;
}

void kl__s3_tried_renew(kl__s3_tried *tried)
{
    if (kl__monotonic_ns() - tried->used_ns > INT64_C(1000000) * KL_S3_TRUST_MS)
        kl__s3_tried_free(tried);
}

void kl__s3_tried_free(kl__s3_tried *tried)
{
    for (size_t i = 0; i < tried->count; i++)
        kl__free(tried->items[i].tokens);
    kl__free(tried->items);
    *tried = (kl__s3_tried){0};
}

/* What is known of the shard; NULL: no memory. */
static kl__s3_recent *recent_of(kl__s3_tried *tried, kl__s3_shard *shard)
{
    for (size_t i = 0; i < tried->count; i++)
        if (tried->items[i].shard == shard)
            return &tried->items[i];
    if (!make_room(tried))
        return NULL;
    tried->items[tried->count] = (kl__s3_recent){.shard = shard};
    return &tried->items[tried->count++];
}

/* --- Judging --- */

kl_rc kl__s3_fail_sealed(size_t entry, kl_place place)
{
    return kl__fail(
        KL_ESEALED,
        "entry %zu: shard %u of partition %u is sealed, because its queue has a newer layout; read that, and "
        "append where it says",
        entry, place.shard, place.partition);
}

/* Looks for the group's part from an earlier try. A shard is read once for all appends. */
static kl_rc find_part(kl__s3 *s3, kl__s3_tried *tried, const kl_append *append, struct group *group)
{
    if (!append->token)
        return KL_OK;
    kl__s3_recent *recent = recent_of(tried, group->shard);
    if (!recent)
        return kl__fail_memory();
    kl_rc rc = recent->read ? KL_OK : read_recent(s3, recent);
    tried->used_ns = kl__monotonic_ns();
    group->there = rc == KL_OK && bears(recent, append->token);
    return rc;
}

static void note_there(const kl_append *append, bool *there, const struct division *division)
{
    for (size_t i = 0; i < division->count; i++)
        for (size_t j = 0; division->groups[i].sealed && j < division->groups[i].count; j++)
            there[division->groups[i].entries[j] - append->entries] = true;
}

kl_rc kl__s3_judge_sealed(kl__s3 *s3, kl__s3_tried *tried, const kl_append *append, bool *there)
{
    struct division division;
    const kl_entry *missing = NULL;
    kl_rc rc = KL_OK;
    if (!divide(s3, append, &division))
        return kl__fail_memory();
    for (size_t i = 0; rc == KL_OK && i < division.count; i++) {
        struct group *group = &division.groups[i];
        if (group->sealed)
            rc = find_part(s3, tried, append, group);
        if (group->sealed && !group->there && (!missing || group->entries[0] < missing))
            missing = group->entries[0];
    }
    if (rc == KL_OK && missing)
        rc = kl__s3_fail_sealed((size_t)(missing - append->entries), missing->place);
    else if (rc == KL_OK)
        note_there(append, there, &division);
    division_free(&division);
    return rc;
}
