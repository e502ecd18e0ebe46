/* tried.c - what earlier tries of an append have left in shards that were sealed meanwhile, or that were not.
 *
 * From: append.c (an append that meets a seal).  To: settle.c, for what is to be taken back.
 *
 * An append to several shards whose reply was lost is made again, under the same token. If some of its shards have been sealed
 * in between, each of those has its part from the earlier try, or never will: so if all of them have it the rest is written,
 * and if one has not, the append is refused, and what is there of it is taken back first, wherever it is.
 *
 * Tokens last ten minutes, so the log of a shard is read backwards from its end, as far as that; what the checkpoint and the
 * replica know of it is not read again. */
#include <stdio.h>
#include <stdlib.h>

#include "store/s3/s3.h"

enum { WIDE = 32, FIRST_WIDE = 4 }; /* objects at once */

/* --- What bears which token --- */

static bool add_bearer(kl__s3_recent *recent, const kl_token *token, uint64_t number)
{
    kl__s3_bearer *bearers = kl__grow(recent->bearers, recent->count, &recent->room, sizeof *bearers);
    if (!bearers)
        return false;
    recent->bearers = bearers;
    recent->bearers[recent->count++] = (kl__s3_bearer){*token, number};
    return true;
}

/* Quotes in payloads are escaped, so what looks like a token is one. */
static bool add_tokens(kl__s3_recent *recent, const kl__s3_text *body, uint64_t number)
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
        if (kl__s3_read_16(digits, token.bytes) && !add_bearer(recent, &token, number))
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
        if (rc == KL_OK && there && !add_tokens(recent, &requests[i].reply, last - i))
            rc = kl__fail_memory();
        *ret_older |= there && is_older(s3, &requests[i].reply);
        kl__free((char *)requests[i].name);
        kl__s3_request_free(&requests[i]);
    }
    return rc;
}

/* What the replica knows, and how far that goes. False: no memory. */
static bool copy_known(kl__s3 *s3, kl__s3_recent *recent)
{
    const kl__s3_shard *shard = recent->shard;
    bool good = true;
    kl__memory_enter(s3->memory);
    recent->to = !shard->loaded ? 0 : shard->taken > shard->tokens_to ? shard->taken : shard->tokens_to;
    for (const kl__s3_token *token = shard->oldest_token; good && token; token = token->next)
        good = add_bearer(recent, &token->token, token->number);
    kl__memory_leave(s3->memory);
    return good;
}

/* Where the log ends, as of some time since then. */
static kl_rc look_for_end(kl__s3 *s3, kl__s3_recent *recent, int64_t since_ns, uint64_t *ret_tail)
{
    kl__s3_shard *shard = recent->shard;
    kl__memory_enter(s3->memory);
    bool known = shard->sealed || shard->tail_ns >= since_ns;
    kl__memory_leave(s3->memory);
    kl_rc rc = known ? KL_OK : kl__s3_find_tail(s3, shard);
    kl__memory_enter(s3->memory);
    recent->sealed = shard->sealed;
    *ret_tail = shard->tail;
    kl__memory_leave(s3->memory);
    return rc;
}

/* Reads what has come since it was last read; the first time, of the last ten minutes. */
static kl_rc read_recent(kl__s3 *s3, kl__s3_recent *recent, int64_t since_ns)
{
    uint64_t tail = 0;
    size_t wide = FIRST_WIDE;
    bool older = false;
    int64_t now_ns = kl__monotonic_ns();
    kl_rc rc = recent->read_ns ? KL_OK : kl__s3_refresh(s3, &recent->shard, 1, false);
    if (rc == KL_OK && !recent->read_ns && !copy_known(s3, recent))
        rc = kl__fail_memory();
    if (rc == KL_OK)
        rc = look_for_end(s3, recent, since_ns, &tail);
    for (uint64_t last = tail; rc == KL_OK && last > recent->to && !older; wide = WIDE) {
        size_t count = last - recent->to < wide ? (size_t)(last - recent->to) : wide;
        rc = read_some(s3, recent, last, count, &older);
        last -= count;
    }
    if (rc != KL_OK)
        return rc;
    recent->to = tail > recent->to ? tail : recent->to;
    recent->read_ns = now_ns;
    return KL_OK;
}

/* The first object that bears it; 0: there is none. */
static uint64_t bearer_of(const kl__s3_recent *recent, const kl_token *token)
{
    uint64_t first = 0;
    for (size_t i = 0; i < recent->count; i++)
        if (memcmp(&recent->bearers[i].token, token, sizeof *token) == 0 &&
            (!first || recent->bearers[i].number < first))
            first = recent->bearers[i].number;
    return first;
}

/* Positions of what the object says under the token; *ret_count of them. */
static kl_rc positions_of(const json_t *appends, const kl_token *token, uint64_t number, uint64_t *positions,
                          size_t *ret_count)
{
    size_t index = 0;
    *ret_count = 0;
    for (size_t i = 0; i < json_array_size(appends); i++) {
        const json_t *append = json_array_get(appends, i);
        size_t tasks = json_array_size(json_object_get(append, "tasks"));
        kl_token own;
        bool there;
        if (!kl__s3_get_token(append, "token", &own, &there))
            return KL_EDAMAGED;
        for (size_t j = 0; j < tasks && index < KL_S3_ENTRIES_MAX; j++, index++)
            if (there && memcmp(&own, token, sizeof own) == 0)
                positions[(*ret_count)++] = number << KL_S3_INDEX_BITS | index;
    }
    return KL_OK;
}

/* Ends what that object says under the token. */
static kl_rc revoke_token(kl__s3 *s3, kl__s3_shard *shard, uint64_t number, const kl_token *token)
{
    kl__s3_request request;
    json_t *root = NULL;
    size_t count = 0;
    char *name = kl__s3_log_name(s3, "tasks", shard, number);
    kl_rc rc = kl__s3_get_object(s3, name, &request);
    kl__free(name);
    if (rc != KL_OK)
        return rc;
    uint64_t *positions = kl__alloc_zeroed(KL_S3_ENTRIES_MAX, sizeof *positions);
    if (!positions)
        rc = kl__fail_memory();
    if (rc == KL_OK && request.status == 200)
        rc = kl__s3_parse_json(&request.reply, &root);
    if (rc == KL_OK && root)
        rc = positions_of(json_object_get(root, "appends"), token, number, positions, &count);
    if (rc == KL_EDAMAGED)
        (void)kl__fail(rc, "a task object of shard %u cannot be understood; is it of a newer release?",
                       shard->place.shard);
    if (rc == KL_OK && count)
        rc = kl__s3_revoke(s3, shard, positions, count);
    kl__free(positions);
    json_decref(root);
    kl__s3_request_free(&request);
    return rc;
}

/* --- Appends, shard by shard --- */

/* An append's entries of one shard. */
struct group {
    kl__s3_shard *shard;
    const kl_entry **entries;
    size_t count;
    bool sealed;
    uint64_t bearer; /* the object that has them from an earlier try; 0: there is none */
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
    int64_t now_ns = kl__monotonic_ns();
    if (now_ns - tried->since_ns > INT64_C(1000000) * KL_S3_TRUST_MS)
        kl__s3_tried_free(tried);
    if (tried->count == 0 || tried->used)
        tried->since_ns = now_ns;
    tried->used = false;
    tried->looked_ns = now_ns;
}

void kl__s3_tried_free(kl__s3_tried *tried)
{
    for (size_t i = 0; i < tried->count; i++)
        kl__free(tried->items[i].bearers);
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

static bool is_known(const kl__s3_tried *tried, const kl__s3_recent *recent)
{
    return recent->read_ns && (recent->sealed || recent->read_ns >= tried->looked_ns);
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

/* Looks for the group's part from an earlier try. A shard is read once for all appends of a round. */
static kl_rc find_bearer(kl__s3 *s3, kl__s3_tried *tried, const kl_append *append, struct group *group)
{
    kl_rc rc = KL_OK;
    if (!append->token)
        return KL_OK;
    kl__s3_recent *recent = recent_of(tried, group->shard);
    if (!recent)
        return kl__fail_memory();
    tried->used = true;
    if (!is_known(tried, recent))
        rc = read_recent(s3, recent, tried->looked_ns);
    group->bearer = rc == KL_OK ? bearer_of(recent, append->token) : 0;
    return rc;
}

/* One look at the bucket tells where many logs end, if it shows all of them. */
static void look_at_ends(kl__s3 *s3, kl__s3_tried *tried, const struct division *division)
{
    size_t unknown = 0;
    for (size_t i = 0; i < division->count; i++) {
        const kl__s3_recent *recent = division->groups[i].sealed ? NULL : recent_of(tried, division->groups[i].shard);
        unknown += recent && !is_known(tried, recent);
    }
    if (unknown > KL_S3_PROBES)
        (void)kl__s3_pulse(s3, 0);
}

/* The append is to be refused: what is there of it goes. */
static kl_rc take_back_tried(kl__s3 *s3, kl__s3_tried *tried, const kl_append *append, struct division *division)
{
    kl_rc rc = KL_OK;
    if (append->token)
        look_at_ends(s3, tried, division);
    for (size_t i = 0; rc == KL_OK && i < division->count; i++) {
        struct group *group = &division->groups[i];
        if (!group->sealed)
            rc = find_bearer(s3, tried, append, group);
        if (rc == KL_OK && group->bearer)
            rc = revoke_token(s3, group->shard, group->bearer, append->token);
    }
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
            rc = find_bearer(s3, tried, append, group);
        if (group->sealed && !group->bearer && (!missing || group->entries[0] < missing))
            missing = group->entries[0];
    }
    if (rc == KL_OK && missing) {
        rc = take_back_tried(s3, tried, append, &division);
        rc = rc == KL_OK ? kl__s3_fail_sealed((size_t)(missing - append->entries), missing->place) : rc;
    } else if (rc == KL_OK) {
        note_there(append, there, &division);
    }
    division_free(&division);
    return rc;
}
