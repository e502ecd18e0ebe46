/* refresh.c - bring the replica of some shards up to date.
 *
 * From: the calls.  To: replica.c.
 *
 *     index (once) -> journal objects, until there is no next one -> task objects, as many as are wanted
 *
 * Numbers have no gaps until objects are deleted, so the next object is asked for by its name: "there is none" is an
 * answer as good as a listing, and ten times cheaper. It holds only while nothing can have been deleted since the end
 * was last known (E1); after that a listing tells (pulse.c).
 *
 * The mutex is not held while requests are under way. What they bring is applied if it is still the next, and if the
 * shard was not cleared meanwhile: then its checkpoint comes first again. */
#include <stdio.h>
#include <stdlib.h>

#include "store/s3/s3.h"

enum {
    JOURNAL_WIDE = 32,
    READ_AGAIN = 8,
    KEPT_WIDE = 16,
    PROBE_SINGLY = 4,
    FETCH_BYTES = 64 << 20,  /* of task objects that are read at once, going by those before; or one of each shard */
    UNKNOWN_BYTES = 1 << 20, /* where none was read yet */
};

kl_rc kl__s3_get_object(kl__s3 *s3, const char *name, kl__s3_request *request)
{
    *request = (kl__s3_request){.kind = KL_S3_GET, .name = name};
    kl_rc rc = name ? kl__s3_send(s3->http, request, 1) : kl__fail_memory();
    if (rc == KL_OK && request->status != 200 && request->status != 404)
        rc = kl__s3_refused(request);
    if (rc != KL_OK)
        kl__s3_request_free(request);
    return rc;
}

/* --- Several objects at once --- */

/* One object that is asked for. */
struct wanted {
    kl__s3_shard *shard;
    uint64_t number;
};

struct fetch {
    struct wanted *wanted;
    kl__s3_request *requests;
    size_t count, wanted_room, request_room;
};

static void fetch_free(struct fetch *fetch)
{
    for (size_t i = 0; i < fetch->count; i++) {
        kl__free((char *)fetch->requests[i].name);
        kl__s3_request_free(&fetch->requests[i]);
    }
    kl__free(fetch->wanted);
    kl__free(fetch->requests);
    *fetch = (struct fetch){0};
}

/* False: no memory. Takes the name over. */
static bool fetch_add(struct fetch *fetch, kl__s3_shard *shard, uint64_t number, char *name)
{
    struct wanted *wanted = kl__grow(fetch->wanted, fetch->count, &fetch->wanted_room, sizeof *wanted);
    fetch->wanted = wanted ? wanted : fetch->wanted;
    kl__s3_request *requests = kl__grow(fetch->requests, fetch->count, &fetch->request_room, sizeof *requests);
    fetch->requests = requests ? requests : fetch->requests;
    if (!name || !wanted || !requests) {
        kl__free(name);
        return false;
    }
    fetch->wanted[fetch->count] = (struct wanted){shard, number};
    fetch->requests[fetch->count++] = (kl__s3_request){.kind = KL_S3_GET, .name = name};
    return true;
}

static kl_rc fetch_send(kl__s3 *s3, struct fetch *fetch)
{
    kl_rc rc = kl__s3_send(s3->http, fetch->requests, fetch->count);
    for (size_t i = 0; rc == KL_OK && i < fetch->count; i++)
        if (fetch->requests[i].status != 200 && fetch->requests[i].status != 404)
            rc = kl__s3_refused(&fetch->requests[i]);
    return rc;
}

/* --- Shards that are not understood --- */

bool kl__s3_is_broken(kl__s3 *s3, const kl__s3_shard *shard)
{
    kl__memory_enter(s3->memory);
    bool broken = shard->broken;
    kl__memory_leave(s3->memory);
    return broken;
}

/* Other shards go on without it. What was read of it goes, because nobody knows what has become of that. */
static void break_shard(kl__s3 *s3, kl__s3_shard *shard, uint64_t journal)
{
    kl__s3_log(s3, KL_LOG_ERROR, "shard %u of %s is left alone: %s", shard->place.shard, shard->partition->name,
               kl_error_text());
    kl__s3_shard_clear(s3, shard);
    shard->broken = true;
    shard->broken_ns = kl__monotonic_ns();
    shard->damaged = journal;
}

static kl_rc fail_broken(const kl__s3_shard *shard)
{
    if (shard->damaged)
        return kl__s3_fail_damaged(shard, "journal", shard->damaged);
    return kl__fail(KL_EDAMAGED, "index/%s/%s.json cannot be understood; is it of a newer release? Update keyline",
                    shard->partition->name, shard->digits);
}

/* Shards that are not broken, or have been for so long that they are looked at anew. */
static size_t leave_broken_out(kl__s3 *s3, kl__s3_shard *const *shards, size_t count, kl__s3_shard **whole)
{
    size_t used = 0;
    kl__memory_enter(s3->memory);
    for (size_t i = 0; i < count; i++) {
        if (shards[i]->broken && kl__s3_is_fresh(s3, shards[i]->broken_ns, KL_S3_BROKEN_MS))
            continue;
        shards[i]->broken = false;
        whole[used++] = shards[i];
    }
    kl__memory_leave(s3->memory);
    return used;
}

/* --- The checkpoint --- */

static kl_rc take_index(kl__s3 *s3, kl__s3_shard *shard, const kl__s3_request *reply, int64_t asked_ns)
{
    bool there = reply->status == 200;
    if (shard->loaded && there && strcmp(reply->etag, shard->etag) != 0)
        kl__s3_shard_clear(s3, shard); /* others have gone on, and may have deleted what we have not read */
    if (shard->loaded) {
        shard->journal_ns = asked_ns;
        return KL_OK;
    }
    kl_rc rc = there ? kl__s3_apply_index(s3, shard, &reply->reply) : KL_OK;
    if (rc == KL_EDAMAGED) {
        break_shard(s3, shard, 0);
        return KL_OK;
    }
    if (rc != KL_OK) {
        kl__s3_shard_clear(s3, shard);
        return rc;
    }
    snprintf(shard->etag, sizeof shard->etag, "%s", there ? reply->etag : "");
    shard->loaded = true;
    shard->checkpoint_ns = shard->journal_ns = asked_ns;
    return KL_OK;
}

static bool wants_index(kl__s3 *s3, const kl__s3_shard *shard, bool owned_too)
{
    return !shard->loaded ||
           ((owned_too || !shard->owned) && !kl__s3_is_fresh(s3, shard->journal_ns, INT64_C(4) * KL_S3_TRUST_MS));
}

static kl_rc load_indexes(kl__s3 *s3, kl__s3_shard **shards, size_t count, bool owned_too)
{
    struct fetch fetch = {0};
    int64_t now_ns = kl__monotonic_ns();
    bool good = true;
    kl__memory_enter(s3->memory);
    for (size_t i = 0; good && i < count; i++)
        if (wants_index(s3, shards[i], owned_too))
            good = fetch_add(&fetch, shards[i], 0,
                             kl__s3_name(s3, "index/%s/%s.json", shards[i]->partition->name, shards[i]->digits));
    kl__memory_leave(s3->memory);
    kl_rc rc = good ? fetch_send(s3, &fetch) : kl__fail_memory();
    kl__memory_enter(s3->memory);
    for (size_t i = 0; rc == KL_OK && i < fetch.count; i++)
        rc = take_index(s3, fetch.wanted[i].shard, &fetch.requests[i], now_ns);
    kl__memory_leave(s3->memory);
    fetch_free(&fetch);
    return rc;
}

/* --- The journal --- */

static kl_rc ask_journals(kl__s3 *s3, kl__s3_shard **shards, size_t count, uint64_t wide, struct fetch *fetch)
{
    bool good = true;
    kl__memory_enter(s3->memory);
    for (size_t i = 0; good && i < count; i++)
        for (uint64_t j = 1; good && j <= wide; j++)
            good = fetch_add(fetch, shards[i], shards[i]->journal + j,
                             kl__s3_log_name(s3, "journal", shards[i], shards[i]->journal + j));
    kl__memory_leave(s3->memory);
    return good ? fetch_send(s3, fetch) : kl__fail_memory();
}

/* It has been read to its end. It is ours if we fenced it, and nobody has since; also if it was cleared meanwhile. */
static void end_journal(kl__s3_shard *shard, int64_t asked_ns)
{
    shard->followed_ns = shard->journal_ns = asked_ns;
    shard->journal_from = shard->journal_from ? shard->journal_from : shard->journal;
    shard->owned = shard->fenced && shard->fenced == shard->epoch;
}

static kl_rc take_journal(kl__s3 *s3, kl__s3_shard *shard, uint64_t number, const kl__s3_text *body)
{
    kl_rc rc = kl__s3_apply_journal(s3, shard, number, body);
    if (rc == KL_EDAMAGED)
        break_shard(s3, shard, number);
    return rc == KL_EDAMAGED ? KL_OK : rc;
}

/* Applies what came. *left: the shards that may have more, in front. *ret_unsure: a shard was cleared meanwhile; or
 * where it seems to end it was not known to end for so long that what follows may have been deleted. Its checkpoint
 * tells. */
static kl_rc take_journals(kl__s3 *s3, const struct fetch *fetch, uint64_t wide, int64_t asked_ns,
                           kl__s3_shard **shards, size_t *left, bool *ret_unsure)
{
    size_t more = 0;
    kl_rc rc = KL_OK;
    kl__memory_enter(s3->memory);
    for (size_t i = 0; rc == KL_OK && i < fetch->count; i++) {
        kl__s3_shard *shard = fetch->wanted[i].shard;
        bool there = fetch->requests[i].status == 200, next = fetch->wanted[i].number == shard->journal + 1;
        bool unsure = !shard->loaded || (!there && next && kl__s3_is_late(s3, shard->journal_ns));
        *ret_unsure |= unsure && !shard->broken;
        if (unsure)
            continue;
        if (there && next)
            rc = take_journal(s3, shard, fetch->wanted[i].number, &fetch->requests[i].reply);
        else if (next)
            end_journal(shard, asked_ns);
        if ((i + 1) % wide == 0 && there && !shard->broken)
            shards[more++] = shard;
    }
    kl__memory_leave(s3->memory);
    *left = more;
    return rc;
}

static kl_rc follow_journals(kl__s3 *s3, kl__s3_shard **shards, size_t count, bool *ret_unsure)
{
    kl_rc rc = KL_OK;
    for (uint64_t wide = 1; rc == KL_OK && count > 0; wide = wide * 8 < JOURNAL_WIDE ? wide * 8 : JOURNAL_WIDE) {
        struct fetch fetch = {0};
        int64_t now_ns = kl__monotonic_ns();
        rc = ask_journals(s3, shards, count, wide, &fetch);
        if (rc == KL_OK)
            rc = take_journals(s3, &fetch, wide, now_ns, shards, &count, ret_unsure);
        fetch_free(&fetch);
    }
    return rc;
}

/* Of `whole`, those whose journals are to be followed; used up. */
static size_t choose_followed(kl__s3 *s3, kl__s3_shard **whole, size_t count, bool owned_too)
{
    size_t used = 0;
    kl__memory_enter(s3->memory);
    for (size_t i = 0; i < count; i++) {
        kl__s3_shard *shard = whole[i];
        shard->used_ns = kl__monotonic_ns();
        if (!shard->broken &&
            (owned_too || (!shard->owned && !kl__s3_is_fresh(s3, shard->followed_ns, KL_S3_FRESH_MS))))
            whole[used++] = shard;
    }
    kl__memory_leave(s3->memory);
    return used;
}

static kl_rc refresh_once(kl__s3 *s3, kl__s3_shard **shards, size_t count, bool owned_too, bool *ret_unsure)
{
    kl__s3_shard **whole = kl__alloc_zeroed(count ? count : 1, sizeof *whole);
    if (!whole)
        return kl__fail_memory();
    size_t used = leave_broken_out(s3, shards, count, whole);
    kl_rc rc = load_indexes(s3, whole, used, owned_too);
    if (rc == KL_OK)
        rc = follow_journals(s3, whole, choose_followed(s3, whole, used, owned_too), ret_unsure);
    kl__free(whole);
    return rc;
}

static kl_rc find_broken(kl__s3 *s3, kl__s3_shard *const *shards, size_t count)
{
    kl_rc rc = KL_OK;
    kl__memory_enter(s3->memory);
    for (size_t i = 0; rc == KL_OK && i < count; i++)
        rc = shards[i]->broken ? fail_broken(shards[i]) : KL_OK;
    kl__memory_leave(s3->memory);
    return rc;
}

kl_rc kl__s3_refresh(kl__s3 *s3, kl__s3_shard **shards, size_t count, bool owned_too)
{
    bool unsure = true;
    kl_rc rc = KL_OK;
    for (int i = 0; rc == KL_OK && unsure; i++) {
        unsure = false;
        rc = refresh_once(s3, shards, count, owned_too, &unsure);
        if (rc == KL_OK && unsure && i == READ_AGAIN)
            rc = kl__fail(KL_EBUSY, "shards have changed again and again while they were read; call again");
    }
    return rc == KL_OK ? find_broken(s3, shards, count) : rc;
}

/* --- Reading on --- */

/* How many objects to ask for: those that are known to be there, or (to find out) one, and more while they come; but no
 * more than may be in memory at once before they are applied, of so many shards. */
static uint64_t width_of(const kl__s3_shard *shard, size_t want, uint64_t probe, size_t shards)
{
    uint64_t bytes = shard->partition->object_bytes ? shard->partition->object_bytes : UNKNOWN_BYTES;
    uint64_t known = shard->tail > shard->taken ? shard->tail - shard->taken : probe;
    uint64_t wide = want < KL_S3_WIDE ? want : KL_S3_WIDE, most = FETCH_BYTES / bytes / shards;
    wide = wide < most ? wide : most ? most : 1;
    return known < wide ? known : wide;
}

/* As large as the largest of late. */
static void learn_bytes(kl__s3_partition *partition, uint64_t bytes)
{
    uint64_t before = partition->object_bytes - partition->object_bytes / 8;
    partition->object_bytes = bytes > before ? bytes : before;
}

static kl_rc ask_tasks(kl__s3 *s3, kl__s3_more *more, size_t count, uint64_t probe, struct fetch *fetch)
{
    bool good = true;
    kl__memory_enter(s3->memory);
    for (size_t i = 0; good && i < count; i++) {
        kl__s3_shard *shard = more[i].shard;
        uint64_t wide = shard->ended ? 0 : width_of(shard, more[i].want, probe, count);
        for (uint64_t j = 1; good && j <= wide; j++)
            good = fetch_add(fetch, shard, shard->taken + j, kl__s3_log_name(s3, "tasks", shard, shard->taken + j));
    }
    kl__memory_leave(s3->memory);
    return good ? fetch_send(s3, fetch) : kl__fail_memory();
}

/* The end was found: the longer nothing comes, the longer it is good for. */
static void rest(const kl__s3 *s3, kl__s3_shard *shard)
{
    int64_t twice = shard->rest_ms * 2 < s3->poll_ms ? shard->rest_ms * 2 : s3->poll_ms;
    shard->rest_ms = shard->news || twice < KL_S3_REST_MIN_MS ? KL_S3_REST_MIN_MS : twice;
    shard->news = false;
}

/* There is no object of this number: the log ends here, or it was deleted. */
static void meet_gap(kl__s3 *s3, kl__s3_shard *shard, uint64_t number, int64_t asked_ns, bool *ret_unsure)
{
    if (number != shard->taken + 1)
        return;
    if (number > shard->tail && kl__s3_is_fresh(s3, shard->tail_ns, KL_S3_TRUST_MS)) {
        shard->ended = true;
        shard->tail_ns = asked_ns;
        rest(s3, shard);
    } else {
        *ret_unsure = true;
    }
}

/* An object behind `from` that is not loaded, up to what is taken: what the journal says of it is of no more use. */
static kl__s3_object *find_passed(const kl__s3_shard *shard, kl__tree_node *node, uint64_t from)
{
    if (!node)
        return NULL;
    kl__s3_object *object = KL_CONTAINER(node, kl__s3_object, by_number);
    if (object->number <= from)
        return find_passed(shard, node->right, from);
    kl__s3_object *found = find_passed(shard, node->left, from);
    if (found)
        return found;
    if (object->number > shard->taken)
        return NULL;
    return !object->loaded ? object : find_passed(shard, node->right, from);
}

/* Passes over what was deleted. */
static kl_rc step_over(kl__s3 *s3, kl__s3_shard *shard)
{
    kl__s3_page page;
    kl__memory_enter(s3->memory);
    uint64_t from = shard->taken;
    kl__memory_leave(s3->memory);
    int64_t asked_ns = kl__monotonic_ns();
    kl_rc rc = kl__s3_list_tasks(s3, shard, from, &page);
    if (rc != KL_OK)
        return rc;
    kl__memory_enter(s3->memory);
    if (!shard->loaded) {
        kl__memory_leave(s3->memory);
        return KL_OK;
    }
    if (page.first && shard->taken == from) {
        shard->taken = page.first - 1;
        for (kl__s3_object *passed; (passed = find_passed(shard, shard->objects, from));)
            kl__s3_object_free(shard, passed);
    }
    if (!page.first && shard->taken == from && shard->tail <= from) /* else somebody has appended meanwhile */
        shard->ended = true;
    if (page.last > shard->tail) {
        shard->tail = page.last;
        shard->sealed = page.sealed;
    }
    if (!page.more)
        shard->tail_ns = asked_ns;
    kl__memory_leave(s3->memory);
    return KL_OK;
}

static kl_rc take_tasks(kl__s3 *s3, const struct fetch *fetch, int64_t asked_ns, kl__s3_more *more, size_t count)
{
    kl_rc rc = KL_OK;
    for (size_t m = 0, i = 0; rc == KL_OK && m < count; m++) {
        kl__s3_shard *shard = more[m].shard;
        bool unsure = false, gap = false;
        kl__memory_enter(s3->memory);
        for (; rc == KL_OK && i < fetch->count && fetch->wanted[i].shard == shard; i++) {
            uint64_t number = fetch->wanted[i].number;
            if (gap || !shard->loaded || number != shard->taken + 1)
                continue;
            gap = fetch->requests[i].status != 200;
            if (gap) {
                meet_gap(s3, shard, number, asked_ns, &unsure);
            } else {
                learn_bytes(shard->partition, fetch->requests[i].reply.len);
                rc = kl__s3_apply_tasks(s3, shard, number, &fetch->requests[i].reply);
            }
            more[m].want -= !gap && more[m].want > 0;
        }
        kl__memory_leave(s3->memory);
        if (rc == KL_OK && unsure)
            rc = step_over(s3, shard);
    }
    return rc;
}

/* Of its own shards a process looks for more only as often as it looks at the bucket. */
static int64_t good_since(const kl__s3 *s3, const kl__s3_more *more)
{
    int64_t now_ns = kl__monotonic_ns();
    int64_t age_ms = s3->pulse_whole ? s3->pulse_age_ms : more->shard->rest_ms;
    if (more->shard->owned && !more->sure)
        return now_ns - age_ms * 1000000;
    return more->since_ns ? more->since_ns : now_ns;
}

/* Shards that are at their end, have got what was wanted, or were cleared, go. */
static size_t keep_wanting(kl__s3 *s3, kl__s3_more *more, size_t count)
{
    size_t left = 0;
    kl__memory_enter(s3->memory);
    for (size_t i = 0; i < count; i++) {
        kl__s3_shard *shard = more[i].shard;
        if (shard->taken >= shard->tail && (shard->sealed || shard->tail_ns >= good_since(s3, &more[i])))
            shard->ended = true;
        if (!shard->ended && shard->loaded && more[i].want > 0)
            more[left++] = more[i];
    }
    kl__memory_leave(s3->memory);
    return left;
}

/* Where the end is not known, objects are asked for one by one first: what is asked for beyond the end is paid for in
 * vain, and a busy queue of single tasks has some two or three new ones in a shard when it is looked at. */
kl_rc kl__s3_extend(kl__s3 *s3, kl__s3_more *more, size_t count)
{
    kl_rc rc = KL_OK;
    uint64_t probe = 1;
    for (int asked = 1; rc == KL_OK && (count = keep_wanting(s3, more, count)) > 0; asked++) {
        struct fetch fetch = {0};
        int64_t asked_ns = kl__monotonic_ns();
        rc = ask_tasks(s3, more, count, probe, &fetch);
        if (rc == KL_OK)
            rc = take_tasks(s3, &fetch, asked_ns, more, count);
        fetch_free(&fetch);
        if (asked >= PROBE_SINGLY)
            probe = probe * 2 < KL_S3_WIDE ? probe * 2 : KL_S3_WIDE;
    }
    return rc;
}

kl_rc kl__s3_read_all(kl__s3 *s3, kl__s3_shard **shards, size_t count, size_t max, int64_t since_ns)
{
    kl__s3_more *more = kl__alloc_zeroed(count ? count : 1, sizeof *more);
    size_t used = 0;
    kl_rc rc = more ? KL_OK : kl__fail_memory();
    kl__memory_enter(s3->memory);
    for (size_t i = 0; rc == KL_OK && i < count; i++)
        if (!shards[i]->ended && !shards[i]->broken)
            more[used++] = (kl__s3_more){.shard = shards[i], .want = max, .since_ns = since_ns};
    kl__memory_leave(s3->memory);
    if (rc == KL_OK)
        rc = kl__s3_extend(s3, more, used);
    kl__free(more);
    return rc;
}

/* --- What is kept --- */

/* <sort>/<partition>/<shard>/<journal>-<expires>.json: whether all that it has has expired. */
static bool is_expired(const char *name, int64_t now_ms)
{
    const char *expires = strrchr(name, '-');
    return expires && strtoll(expires + 1, NULL, 10) <= now_ms;
}

/* Some of a page of archives at once, from the given one on; *ret_next: the first that is left. */
static kl_rc load_some(kl__s3 *s3, kl__s3_shard *shard, const kl__s3_names *names, size_t from, size_t *left,
                       size_t *ret_next)
{
    struct fetch fetch = {0};
    size_t i = from, most = *left < KL_S3_WIDE ? *left : KL_S3_WIDE;
    int64_t now_ms = kl__s3_now(s3);
    bool good = true;
    for (; good && i < names->count && fetch.count < most; i++)
        if (!is_expired(names->items[i].name, now_ms))
            good = fetch_add(&fetch, shard, 0, kl__s3_name(s3, "%s", names->items[i].name));
    kl_rc rc = good ? fetch_send(s3, &fetch) : kl__fail_memory();
    kl__memory_enter(s3->memory);
    for (size_t j = 0; rc == KL_OK && j < fetch.count; j++)
        if (fetch.requests[j].status == 200)
            rc = kl__s3_apply_kept(s3, shard, &fetch.requests[j].reply);
    kl__memory_leave(s3->memory);
    *left -= fetch.count;
    *ret_next = i;
    fetch_free(&fetch);
    return rc;
}

/* The archives of a page that was listed, and of those behind it; `left` requests at most. */
static kl_rc load_pages(kl__s3 *s3, kl__s3_shard *shard, kl__s3_listing *listing, size_t *left)
{
    char after[KL_S3_NAME_MAX];
    kl__s3_names *names = &listing->names;
    kl_rc rc = KL_OK;
    while (rc == KL_OK) {
        for (size_t i = 0; rc == KL_OK && *left && i < names->count;)
            rc = load_some(s3, shard, names, i, left, &i);
        if (rc != KL_OK || !*left || !names->more || !names->count)
            break;
        snprintf(after, sizeof after, "%s", names->items[names->count - 1].name);
        kl__s3_names_free(names);
        rc = kl__s3_list_page(s3, listing->prefix, after, 0, names);
        --*left;
    }
    return rc;
}

/* Some shards at once: two listings each. */
static kl_rc load_archives(kl__s3 *s3, kl__s3_shard *const *shards, size_t count, size_t *left)
{
    static const char *const sorts[2] = {"done", "dead"};
    char prefixes[2 * KEPT_WIDE][KL_S3_NAME_MAX];
    kl__s3_listing listings[2 * KEPT_WIDE] = {{0}};
    for (size_t i = 0; i < 2 * count; i++) {
        const kl__s3_shard *shard = shards[i / 2];
        snprintf(prefixes[i], sizeof prefixes[i], "%s/%s/%s/", sorts[i % 2], shard->partition->name, shard->digits);
        listings[i].prefix = prefixes[i];
    }
    kl_rc rc = kl__s3_list_pages(s3, listings, 2 * count);
    *left -= 2 * count < *left ? 2 * count : *left;
    for (size_t i = 0; i < 2 * count; i++) {
        if (rc == KL_OK)
            rc = load_pages(s3, shards[i / 2], &listings[i], left);
        kl__s3_names_free(&listings[i].names);
    }
    return rc;
}

/* Whether its archives must be read for such a question; then *ret_generation is noted. */
static bool wants_kept(kl__s3 *s3, kl__s3_shard *shard, bool all, uint64_t *ret_generation)
{
    kl__memory_enter(s3->memory);
    shard->kept_ns = kl__monotonic_ns();
    if (shard->loaded && shard->checkpoint == 0 && !shard->broken)
        shard->kept = KL_S3_KEPT_ALL; /* all of it is in memory, and stays there */
    bool wanted = shard->kept < (all ? KL_S3_KEPT_ALL : KL_S3_KEPT_SOME) && !shard->broken;
    *ret_generation = shard->generation;
    kl__memory_leave(s3->memory);
    return wanted;
}

/* A shard that was cleared meanwhile has lost what had been read by then. */
static void note_kept(kl__s3 *s3, kl__s3_shard *const *shards, const uint64_t *generations, size_t count, bool all)
{
    kl__memory_enter(s3->memory);
    for (size_t i = 0; i < count; i++) {
        if (shards[i]->generation != generations[i])
            continue;
        shards[i]->kept_ns = kl__monotonic_ns(); /* from here on: loading may have taken long */
        shards[i]->kept = all ? KL_S3_KEPT_ALL : KL_S3_KEPT_SOME;
    }
    kl__memory_leave(s3->memory);
}

kl_rc kl__s3_load_kept(kl__s3 *s3, kl__s3_shard **shards, size_t count, size_t max)
{
    kl__s3_shard *wanted[KEPT_WIDE];
    uint64_t generations[KEPT_WIDE];
    kl_rc rc = KL_OK;
    size_t left = max;
    pthread_mutex_lock(&s3->kept_mutex);
    for (size_t i = 0; rc == KL_OK && i < count;) {
        size_t used = 0;
        for (; i < count && used < KEPT_WIDE; i++)
            if (wants_kept(s3, shards[i], max == SIZE_MAX, &generations[used]))
                wanted[used++] = shards[i];
        if (left && used)
            rc = load_archives(s3, wanted, used, &left);
        if (rc == KL_OK)
            note_kept(s3, wanted, generations, used, left > 0);
    }
    pthread_mutex_unlock(&s3->kept_mutex);
    return rc;
}
