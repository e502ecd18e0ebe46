/* owners.c - one worker's part in one partition: a beat.
 *
 * From: the pump's beats.  To: owners_plan.c, owners_permits.c, owners_record.c, the store.
 *
 *     report -> read the record -> drop the dead -> compare with our view -> give -> plan -> take -> compare-and-set
 *            -> fence what was taken -> report it
 *
 * What is ours is decided by the record alone, so a lost reply needs no memory of what was tried: whatever the record
 * says is ours and was never reported is fenced and reported, and whatever we hold and the record says is not ours is
 * lost. A group of ours goes through
 *
 *            taken                fence in              all shards left
 *     NONE -------> UNFENCED ----------------> HELD ----------------------> LEFT --> NONE (freed; O5)
 *                      | fence refused           | not ours, lease missed
 *                      v                         v
 *                    STALE --> NONE (freed)    LOST --> NONE (reported; freed unclean if it is still ours)
 *
 * Permits are lowered in two steps. While a beat is under way tasks may still be started, up to what the last beat told
 * (`told`). So the record never grants less than that or than what runs: a beat first tells the smaller number, and the
 * next one writes it. */
#include <stdio.h>

#include "base/hash.h"
#include "base/mutant.h"
#include "base/random.h"
#include "work/owners_inside.h"

enum {
    TRIES_MAX = 16,      /* of a beat against others who change the record */
    REPEATS_MAX = 4,     /* of one call of the store that says KL_EBUSY */
    FENCES_MAX = 4096,   /* in one call */
    MARGIN_PART = 10,    /* of the lease, for clocks that run at different speeds */
    TURN_LEASES = 2,     /* a permit that goes round stays so long with one worker */
    UNFENCED_BEATS = 2,  /* whose fences fail, before others are left to try */
    REST_BEATS_MAX = 16, /* that they are left to */
};

/* --- Open and close --- */

static kl_rc check_opts(const kl__owners_opts *opts)
{
    static const kl_task_id none;
    if (opts->lease_ms < 1 || opts->lease_ms > KL_OWNERS_LEASE_MS_MAX)
        return kl__fail(KL_EINVAL, "lease_ms is %lld; it must be from 1 to %d", (long long)opts->lease_ms,
                        KL_OWNERS_LEASE_MS_MAX);
    if (opts->kind_count > KL_OWNERS_KINDS_MAX)
        return kl__fail(KL_EINVAL, "a worker serves %zu kinds; it may name %d, or none for every kind",
                        opts->kind_count, KL_OWNERS_KINDS_MAX);
    if (memcmp(&opts->worker, &none, sizeof none) == 0)
        return kl__fail(KL_EINVAL, "the worker's id is all zero; it must be 16 random bytes");
    if (opts->allowed.layout.shard_prefix_len != opts->layout.shard_prefix_len)
        return kl__fail(KL_EINVAL, "the allowed shards have %u digits, and the partition's have %u",
                        opts->allowed.layout.shard_prefix_len, opts->layout.shard_prefix_len);
    return KL_OK;
}

static void copy_name(const char *name, char ret_name[KL_OWNERS_NAME_BYTES + 1])
{
    size_t length = name ? strnlen(name, KL_OWNERS_NAME_BYTES) : 0;
    for (size_t i = 0; i < length; i++) {
        bool plain = name[i] >= ' ' && name[i] <= '~' && name[i] != '"' && name[i] != '\\';
        ret_name[i] = '?';
        if (plain)
            ret_name[i] = name[i];
    }
    ret_name[length] = '\0';
}

/* A group may be taken by whoever may take its first shard: so slices of a partition share out its groups as well. */
static kl_rc set_allowed(kl__owners *owners, const kl_shards *allowed)
{
    kl_layout layout = kl__group_layout(&owners->layout);
    kl_shards groups;
    kl_shards_none(&layout, &groups);
    for (uint32_t group = 0; group < owners->group_count; group++)
        if (kl_shards_contains(allowed, group * owners->group_shards)) {
            kl__groups_add(&owners->allowed, group);
            groups.bits[group / 64] |= UINT64_C(1) << (group % 64);
        }
    if (kl_shards_count(&groups) == 0 && kl_shards_count(allowed) > 0)
        return kl__fail(KL_EINVAL,
                        "shards of four digits go in groups of 16, and none of the allowed ones is the first of its "
                        "group: write ranges that begin with a shard ending in 0");
    size_t length = kl_shards_print(&groups, owners->shards, sizeof owners->shards);
    if (length >= sizeof owners->shards)
        return kl__fail(KL_EINVAL, "the allowed shards take %zu bytes to name, and may take %d: write fewer ranges",
                        length, KL_OWNERS_RANGES_BYTES);
    return KL_OK;
}

static kl_rc set_up(kl__owners *owners, const kl__owners_opts *opts)
{
    owners->store = opts->store;
    owners->partition = opts->partition;
    owners->layout = opts->layout;
    owners->worker = opts->worker;
    owners->lease_ms = owners->leased_ms = opts->lease_ms;
    owners->random = opts->seed;
    owners->concurrency = opts->concurrency;
    owners->group_shards = kl__group_shards(&opts->layout);
    owners->group_count = kl_layout_shards(&opts->layout) / owners->group_shards;
    atomic_init(&owners->holds_until_ms, INT64_MIN);
    copy_name(opts->worker_name, owners->worker_name);
    for (size_t i = 0; i < opts->kind_count; i++)
        snprintf(owners->kinds + 4 * i, 5, "%04x", kl__owners_kind(kl_str(opts->kinds[i])));
    kl_rc rc = kl__owners_record_name(opts->name, owners->record_name);
    return rc == KL_OK ? set_allowed(owners, &opts->allowed) : rc;
}

static bool set_up_memory(kl__owners *owners)
{
    uint32_t shards = owners->group_count * owners->group_shards;
    owners->fence_max = shards < FENCES_MAX ? shards : FENCES_MAX;
    owners->groups = kl__alloc_zeroed(owners->group_count, sizeof owners->groups[0]);
    owners->fences = kl__alloc_zeroed(owners->fence_max, sizeof owners->fences[0]);
    owners->taken = kl__alloc_zeroed(shards, sizeof owners->taken[0]);
    owners->lost = kl__alloc_zeroed(shards, sizeof owners->lost[0]);
    owners->wanted = kl__alloc_zeroed(shards, sizeof owners->wanted[0]);
    return owners->groups && owners->fences && owners->taken && owners->lost && owners->wanted;
}

kl_rc kl__owners_open(const kl__owners_opts *opts, kl__owners **ret_owners)
{
    kl_rc rc = check_opts(opts);
    if (rc != KL_OK)
        return rc;
    kl__owners *owners = kl__alloc_zeroed(1, sizeof *owners);
    rc = owners ? set_up(owners, opts) : kl__fail_memory();
    if (rc == KL_OK && !set_up_memory(owners))
        rc = kl__fail_memory();
    if (rc != KL_OK) {
        kl__owners_close(owners);
        return rc;
    }
    *ret_owners = owners;
    return KL_OK;
}

void kl__owners_close(kl__owners *owners)
{
    if (!owners)
        return;
    kl_arena_free(&owners->arena);
    kl__free(owners->groups);
    kl__free(owners->fences);
    kl__free(owners->taken);
    kl__free(owners->lost);
    kl__free(owners->wanted);
    kl__free(owners);
}

bool kl__owners_holds(const kl__owners *owners, int64_t local_now_ms)
{
    return local_now_ms < atomic_load_explicit(&owners->holds_until_ms, memory_order_acquire);
}

int64_t kl__owners_lease_ms(const kl__owners *owners) { return owners->leased_ms; }

/* --- The report, and our view against the record --- */

static int64_t held_until(const kl__owners *owners, int64_t local_now_ms)
{
    return local_now_ms + owners->lease_ms - owners->lease_ms / MARGIN_PART;
}

/* Others go by what the record says: a longer lease counts when it is known to be written, a shorter one before. */
static void take_in_lease(kl__owners *owners, const kl__owners_report *report)
{
    if (report->lease_ms == 0 || report->lease_ms == owners->lease_ms)
        return;
    owners->lease_ms = report->lease_ms;
    int64_t until_ms = held_until(owners, report->local_now_ms);
    if (until_ms < atomic_load_explicit(&owners->holds_until_ms, memory_order_relaxed))
        atomic_store_explicit(&owners->holds_until_ms, until_ms, memory_order_release);
}

static void take_in_left(kl__owners *owners, const kl__owners_report *report)
{
    uint16_t whole = (uint16_t)((UINT32_C(1) << owners->group_shards) - 1);
    for (size_t i = 0; i < report->left_count; i++) {
        uint32_t shard = report->left[i], group = shard / owners->group_shards;
        KL_ASSERT(group < owners->group_count);
        kl__own_group *own = &owners->groups[group];
        if (own->state != KL_GROUP_HELD && own->state != KL_GROUP_LOST)
            continue;
        own->left |= (uint16_t)(1u << shard % owners->group_shards);
        own->unsettled |= !own->clean && report->unsettled && report->unsettled[i];
        if (own->left == whole && own->state == KL_GROUP_HELD)
            own->state = KL_GROUP_LEFT;
    }
}

/* What was held under a lease that is over is lost, whatever the record says: somebody may have it already. */
static void take_in_lapse(kl__owners *owners)
{
    for (uint32_t group = 0; group < owners->group_count; group++)
        if (owners->groups[group].state == KL_GROUP_HELD)
            owners->groups[group].state = KL_GROUP_LOST;
    owners->told = 0;
}

static void forget(kl__own_group *own) { *own = (kl__own_group){.state = KL_GROUP_NONE}; }

static void compare_ours(kl__own_group *own, const kl__record_group *group)
{
    bool same = own->epoch == group->epoch;
    if (own->state == KL_GROUP_LOST || (same && own->state != KL_GROUP_NONE))
        return;
    if (own->state == KL_GROUP_HELD)
        own->state = KL_GROUP_LOST;
    else /* taken by a write whose reply was lost */
        *own = (kl__own_group){.state = KL_GROUP_UNFENCED, .epoch = group->epoch, .clean = !group->unclean};
}

static void compare_others(kl__own_group *own)
{
    if (own->state == KL_GROUP_HELD)
        own->state = KL_GROUP_LOST;
    else if (own->state != KL_GROUP_LOST)
        forget(own);
}

static void compare(kl__owners *owners, const kl__owners_record *record, int me)
{
    for (uint32_t group = 0; group < owners->group_count; group++) {
        if (me >= 0 && record->groups[group].owner == me)
            compare_ours(&owners->groups[group], &record->groups[group]);
        else
            compare_others(&owners->groups[group]);
    }
}

/* --- This worker's entry --- */

static kl_rc enter(kl__owners *owners, kl__owners_record *record, int *me)
{
    if (*me >= 0)
        return KL_OK;
    if (record->worker_count == KL_OWNERS_WORKERS_MAX)
        return kl__fail(KL_EFULL, "%s has %d workers already, which is the most: run fewer, or more partitions",
                        owners->record_name, KL_OWNERS_WORKERS_MAX);
    *me = (int)record->worker_count++;
    record->workers[*me] = (kl__record_worker){.id = owners->worker};
    return KL_OK;
}

static void refresh(kl__owners *owners, kl__record_worker *entry, const kl__owners_report *report, int64_t now_ms)
{
    entry->name = owners->worker_name;
    entry->beat = ++owners->beat;
    entry->seen_ms = now_ms;
    entry->expires_ms = now_ms + owners->lease_ms;
    entry->running = report->running;
    entry->concurrency = owners->concurrency;
    entry->wants = report->permits_wanted;
    entry->leaving = report->leaving || owners->rest > 0;
    entry->full = report->full;
    entry->shards = owners->shards;
    entry->kinds = owners->kinds;
    entry->allowed = owners->allowed;
}

/* --- Giving and taking --- */

/* Which groups go to another worker for the sake of a kind: those reported now, and those already on their way. */
static void note_unserved(kl__owners *owners, const kl__owners_record *record, uint32_t me,
                          const kl__owners_report *report)
{
    for (uint32_t group = 0; group < owners->group_count; group++)
        if (owners->groups[group].left == 0)
            owners->groups[group].handing = 0;
    for (size_t i = 0; i < report->unserved_count; i++) {
        uint32_t group = report->unserved[i] / owners->group_shards;
        KL_ASSERT(group < owners->group_count);
        uint16_t kind = report->unserved_kinds ? report->unserved_kinds[i] : 0;
        kl__own_group *own = &owners->groups[group];
        kind = kind ? kind : KL_KIND_UNKNOWN;
        if (own->state == KL_GROUP_HELD && own->handing == 0 && !kl__record_wish_of(record, group) &&
            kl__owners_able(record, me, group, kind) >= 0)
            own->handing = kind;
    }
}

/* Names the one for whom a group is given back. */
static void wish(kl__owners *owners, kl__owners_record *record, uint32_t me, uint32_t group, int64_t now_ms)
{
    uint16_t kind = owners->groups[group].handing;
    int able = kind ? kl__owners_able(record, me, group, kind) : -1;
    if (able < 0 || record->wish_count == KL_WISHES_MAX || kl__record_wish_of(record, group))
        return;
    record->wishes[record->wish_count++] = (kl__record_wish){group, (uint32_t)able, now_ms + owners->lease_ms};
}

static void give(kl__owners *owners, kl__owners_record *record, uint32_t me, bool leaving, int64_t now_ms)
{
    for (uint32_t group = 0; group < owners->group_count; group++) {
        const kl__own_group *own = &owners->groups[group];
        const kl__record_group *in_record = &record->groups[group];
        if (in_record->owner != (int)me)
            continue;
        if (own->state == KL_GROUP_LEFT) {
            wish(owners, record, me, group, now_ms);
            kl__record_free_group(record, group, own->unsettled);
        } else if (own->state == KL_GROUP_LOST) {
            kl__record_free_group(record, group, true);
        } else if (own->state == KL_GROUP_STALE || (leaving && own->state == KL_GROUP_UNFENCED)) {
            kl__record_free_group(record, group, in_record->unclean); /* nothing was begun here */
        }
    }
}

/* All that a beat takes gets one epoch: it is above all that were given out. */
static kl_rc take(kl__owners *owners, kl__owners_record *record, uint32_t me, const int16_t *goal)
{
    uint64_t epoch = record->epoch + 1;
    epoch = owners->skip < KL_EPOCH_MAX - epoch ? epoch + owners->skip : epoch;
    if (epoch > KL_EPOCH_MAX)
        return kl__fail(KL_EFULL, "the epochs of %s are used up", owners->record_name);
    for (uint32_t group = 0; group < owners->group_count; group++) {
        kl__record_group *in_record = &record->groups[group];
        if (goal[group] == (int)me && in_record->owner < 0) {
            in_record->owner = (int16_t)me;
            in_record->epoch = record->epoch = epoch;
            record->workers[me].held++;
        } else if (goal[group] != (int)me && in_record->owner == (int)me &&
                   owners->groups[group].state == KL_GROUP_UNFENCED) {
            kl__record_free_group(record, group, in_record->unclean);
        }
    }
    return KL_OK;
}

/* --- Permits --- */

/* Sets what the entry grants, and returns what may be told. */
static uint64_t set_permits(const kl__owners *owners, kl__owners_record *record, uint32_t me,
                            const kl__owners_report *report, int64_t now_ms)
{
    kl__record_worker *entry = &record->workers[me];
    if (report->permits_max == UINT64_MAX) {
        entry->permits = report->running;
        return UINT64_MAX;
    }
    uint64_t others = 0;
    for (uint32_t i = 0; i < record->worker_count; i++)
        if (i != me && __builtin_add_overflow(others, record->workers[i].permits, &others))
            others = UINT64_MAX;
    uint64_t spare = others < report->permits_max ? report->permits_max - others : 0;
    uint64_t told = owners->told == UINT64_MAX ? report->running : owners->told; /* there was no limit */
    uint64_t turn = (uint64_t)(now_ms / (TURN_LEASES * owners->lease_ms));
    bool divides = report->permits_most == UINT64_MAX; /* two records that divide may give nobody a share in both */
    uint64_t share = divides ? kl__owners_permits(record, me, report->permits_max, turn) : report->permits_most;
    uint64_t most = spare > told ? spare : told;
    uint64_t tell = share < most ? share : most;
    entry->permits = report->running > told ? report->running : told;
    entry->permits = tell > entry->permits ? tell : entry->permits;
    return tell;
}

/* --- The record --- */

/* What one try of a beat has decided. */
struct draft {
    kl__owners_record record;
    const int16_t *goal;
    int me; /* -1: not in the record any more */
    uint64_t permits;
    bool leaving; /* for good, or to let others do what it cannot */
    bool nothing; /* to be written */
    bool quiet;   /* who owns what is as it was, and there are no permits: others need not read it before their time */
};

static kl_rc read_record(kl__owners *owners, kl__owners_record *ret_record, int64_t *ret_now_ms)
{
    kl_rc rc = KL_EBUSY;
    kl_arena_reset(&owners->arena);
    for (int i = 0; rc == KL_EBUSY && i < REPEATS_MAX; i++)
        rc = kl_store_now(owners->store, ret_now_ms);
    if (rc != KL_OK)
        return rc;
    rc = KL_EBUSY;
    for (int i = 0; rc == KL_EBUSY && i < REPEATS_MAX; i++)
        rc = kl__owners_record_read(owners->store, owners->record_name, &owners->layout, &owners->arena, ret_record);
    return rc;
}

/* Somebody else may take what this worker cannot use. Of several that cannot, the last goes on trying. */
static bool has_others(const kl__owners *owners, const kl__owners_record *record, int me)
{
    bool has = false;
    for (int i = 0; i < (int)record->worker_count; i++)
        for (uint32_t group = 0; i != me && !record->workers[i].leaving && group < record->group_count; group++)
            has |= kl__groups_has(&owners->allowed, group) && kl__groups_has(&record->workers[i].allowed, group);
    return has;
}

static kl_rc draft_rest(kl__owners *owners, const kl__owners_report *report, int64_t now_ms, struct draft *draft)
{
    kl__owners_record *record = &draft->record;
    uint32_t me = (uint32_t)draft->me;
    if (!has_others(owners, record, draft->me))
        owners->rest = 0;
    draft->leaving = report->leaving || owners->rest > 0;
    refresh(owners, &record->workers[me], report, now_ms);
    note_unserved(owners, record, me, report);
    give(owners, record, me, draft->leaving, now_ms);
    draft->goal = kl__owners_plan(owners, record, me);
    if (!draft->goal)
        return kl__fail_memory();
    kl_rc rc = draft->leaving ? KL_OK : take(owners, record, me, draft->goal);
    if (rc != KL_OK)
        return rc;
    draft->permits = set_permits(owners, record, me, report, now_ms);
    if (report->leaving && !report->stays && record->workers[me].held == 0) {
        kl__record_drop_worker(record, me);
        draft->me = -1;
    }
    return KL_OK;
}

/* Who is there and who owns what. */
static uint64_t hash_of(const kl__owners_record *record)
{
    uint64_t hash = record->worker_count;
    for (size_t i = 0; i < record->worker_count; i++) {
        const kl__record_worker *worker = &record->workers[i];
        uint64_t leaving = worker->leaving;
        hash = kl__hash((kl_bytes){&worker->id, sizeof worker->id}, hash ^ leaving << 63);
    }
    for (uint32_t group = 0; group < record->group_count; group++)
        hash = kl__hash((kl_bytes){&record->groups[group].owner, sizeof record->groups[group].owner}, hash);
    return hash;
}

/* Reads the record and decides what it should be. */
static kl_rc make_draft(kl__owners *owners, const kl__owners_report *report, struct draft *draft)
{
    int64_t now_ms;
    *draft = (struct draft){.me = -1};
    kl_rc rc = read_record(owners, &draft->record, &now_ms);
    if (rc != KL_OK)
        return rc;
    uint64_t before = hash_of(&draft->record);
    kl__record_expire(&draft->record, KL_MUTANT(worker_clock) ? report->local_now_ms : now_ms);
    draft->me = kl__record_find(&draft->record, &owners->worker);
    compare(owners, &draft->record, draft->me);
    draft->nothing = report->leaving && draft->me < 0;
    if (draft->nothing)
        return KL_OK;
    rc = enter(owners, &draft->record, &draft->me);
    if (rc == KL_OK)
        rc = draft_rest(owners, report, now_ms, draft);
    draft->quiet = report->permits_max == UINT64_MAX && hash_of(&draft->record) == before;
    return rc;
}

/* A repeat of the same value after a lost reply is KL_OK. */
static kl_rc write_draft(kl__owners *owners, const struct draft *draft)
{
    kl_write write = {.name = kl_str(owners->record_name), .version = draft->record.version, .quiet = draft->quiet};
    kl_rc rc = kl__owners_record_print(&draft->record, &owners->layout, &owners->arena, &write.value);
    if (rc != KL_OK)
        return rc;
    rc = KL_EBUSY;
    for (int i = 0; rc == KL_EBUSY && i < REPEATS_MAX; i++)
        rc = kl_store_put(owners->store, &write, 1);
    return rc;
}

static kl_rc agree(kl__owners *owners, const kl__owners_report *report, struct draft *draft)
{
    for (int i = 0; i < TRIES_MAX; i++) {
        kl_rc rc = make_draft(owners, report, draft);
        if (rc != KL_OK || draft->nothing)
            return rc;
        rc = write_draft(owners, draft);
        if (rc != KL_ECONFLICT)
            return rc;
    }
    return kl__fail(KL_EBUSY, "the record %s was changed by others %d times in a row; beat again", owners->record_name,
                    TRIES_MAX);
}

/* --- After the write --- */

/* What the record says now is our view, but for what is still to be reported. Who only leaves others what it cannot use
 * keeps what it can. */
static void settle_view(kl__owners *owners, const struct draft *draft, bool leaving)
{
    bool rests = draft->leaving && !leaving;
    for (uint32_t group = 0; group < owners->group_count; group++) {
        kl__own_group *own = &owners->groups[group];
        const kl__record_group *in_record = &draft->record.groups[group];
        if (own->state == KL_GROUP_LOST)
            continue;
        if (draft->me < 0 || in_record->owner != draft->me) {
            forget(own);
            continue;
        }
        if (own->epoch != in_record->epoch || own->state == KL_GROUP_NONE)
            *own = (kl__own_group){.state = KL_GROUP_UNFENCED, .epoch = in_record->epoch, .clean = !in_record->unclean};
        bool moves = draft->goal[group] != draft->me && !rests;
        own->wanted = own->state == KL_GROUP_HELD && (leaving || own->left || moves);
    }
}

/* Fences whole groups from `first` on, as many as one call takes; returns where to go on. */
static uint32_t fence_some(kl__owners *owners, uint32_t first)
{
    uint32_t count = 0, end = first;
    for (; end < owners->group_count && count + owners->group_shards <= owners->fence_max; end++) {
        if (owners->groups[end].state != KL_GROUP_UNFENCED)
            continue;
        for (uint32_t i = 0; i < owners->group_shards; i++)
            owners->fences[count++] = (kl_fence){.place = {owners->partition, end * owners->group_shards + i},
                                                 .epoch = owners->groups[end].epoch};
    }
    kl_rc rc = count && !KL_MUTANT(no_fence) ? KL_EBUSY : KL_OK;
    for (int i = 0; rc == KL_EBUSY && i < REPEATS_MAX; i++)
        rc = kl_store_fence(owners->store, owners->fences, count);
    if (rc != KL_OK && rc != KL_ESTALE) {
        owners->unfenced_rc = rc;
        snprintf(owners->unfenced_why, sizeof owners->unfenced_why, "%s", kl_error_text());
    }
    if (rc != KL_OK && rc != KL_ESTALE && rc != KL_EDAMAGED)
        return end; /* stays unfenced: again in the next beat */
    for (uint32_t i = 0; i < count; i++) {
        kl__own_group *own = &owners->groups[owners->fences[i].place.shard / owners->group_shards];
        bool stale = owners->fences[i].rc == KL_ESTALE || own->state == KL_GROUP_STALE;
        own->state = stale ? KL_GROUP_STALE : KL_GROUP_HELD;
        owners->fence_refused = owners->fence_refused || stale;
    }
    for (uint32_t i = 0; i < count; i++) { /* one that is damaged keeps its group waiting, and no other */
        kl__own_group *own = &owners->groups[owners->fences[i].place.shard / owners->group_shards];
        if (own->state == KL_GROUP_HELD && owners->fences[i].rc != KL_OK)
            own->state = KL_GROUP_UNFENCED;
    }
    return end;
}

/* Fences stand above the record's epochs only when the record was lost: then epochs are passed over, twice as many each
 * time, until they are above. */
static void fence_all(kl__owners *owners)
{
    owners->fence_refused = false;
    for (uint32_t group = 0; group < owners->group_count;)
        group = fence_some(owners, group);
    if (!owners->fence_refused)
        owners->skip = 0;
    else if (owners->skip < KL_EPOCH_MAX / 4)
        owners->skip = 2 * owners->skip + 1;
}

/* After the fences. What is damaged is so for every worker. */
static void note_unfenced(kl__owners *owners)
{
    if (owners->unfenced_rc != KL_OK && owners->unfenced_rc != KL_EDAMAGED) {
        if (++owners->unfenced_beats < UNFENCED_BEATS)
            return;
        owners->rest_beats = owners->rest_beats ? 2 * owners->rest_beats : 1;
        owners->rest_beats = owners->rest_beats < REST_BEATS_MAX ? owners->rest_beats : REST_BEATS_MAX;
        owners->rest = owners->rest_beats;
    } else {
        owners->unfenced_beats = owners->rest_beats = 0;
    }
}

static void report_shards(const kl__owners *owners, uint32_t group, uint32_t *shards, size_t *count)
{
    for (uint32_t i = 0; i < owners->group_shards; i++)
        if (!(owners->groups[group].left >> i & 1))
            shards[(*count)++] = group * owners->group_shards + i;
}

static void report_taken(kl__owners *owners, uint32_t group, size_t *count)
{
    const kl__own_group *own = &owners->groups[group];
    for (uint32_t i = 0; i < owners->group_shards; i++)
        owners->taken[(*count)++] = (kl__owned){group * owners->group_shards + i, own->epoch, own->clean};
}

/* Fences what is new and fills the change. */
static void make_change(kl__owners *owners, kl__owners_change *change)
{
    kl__groups before = {{0}};
    bool tries = false;
    for (uint32_t group = 0; group < owners->group_count; group++) {
        if (owners->groups[group].state != KL_GROUP_UNFENCED)
            continue;
        kl__groups_add(&before, group);
        tries = true;
    }
    owners->unfenced_rc = tries || owners->rest == 0 ? KL_OK : owners->unfenced_rc;
    owners->rest -= owners->rest > 0;
    fence_all(owners);
    if (tries)
        note_unfenced(owners);
    change->unfenced_rc = owners->unfenced_rc;
    change->unfenced_why = owners->unfenced_why;
    for (uint32_t group = 0; group < owners->group_count; group++)
        change->unfenced |= owners->groups[group].state == KL_GROUP_UNFENCED;
    for (uint32_t group = 0; group < owners->group_count; group++) {
        kl__own_group *own = &owners->groups[group];
        if (own->state == KL_GROUP_LOST) {
            report_shards(owners, group, owners->lost, &change->lost_count);
            forget(own);
        } else if (own->state == KL_GROUP_HELD && kl__groups_has(&before, group)) {
            report_taken(owners, group, &change->taken_count);
        } else if (own->wanted) {
            report_shards(owners, group, owners->wanted, &change->wanted_count);
        }
    }
}

static bool has_lost(const kl__owners *owners)
{
    for (uint32_t group = 0; group < owners->group_count; group++)
        if (owners->groups[group].state == KL_GROUP_LOST)
            return true;
    return false;
}

void kl__owners_renew(kl__owners *owners)
{
    atomic_store_explicit(&owners->holds_until_ms, owners->until_ms, memory_order_release);
}

kl_rc kl__owners_beat(kl__owners *owners, const kl__owners_report *report, kl__owners_change *ret_change)
{
    struct draft draft;
    take_in_left(owners, report);
    if (!kl__owners_holds(owners, report->local_now_ms))
        take_in_lapse(owners);
    take_in_lease(owners, report);
    kl_rc rc = agree(owners, report, &draft);
    if (rc != KL_OK)
        return rc;
    settle_view(owners, &draft, report->leaving);
    bool gone = draft.me < 0;
    owners->until_ms = gone ? INT64_MIN : held_until(owners, report->local_now_ms);
    owners->leased_ms = owners->lease_ms;
    if (!has_lost(owners) || KL_MUTANT(lease_renewed))
        kl__owners_renew(owners);
    owners->told = gone ? 0 : draft.permits;
    kl__owners_change change = {.taken = owners->taken, .lost = owners->lost, .wanted = owners->wanted};
    make_change(owners, &change);
    change.permits = owners->told;
    change.workers = draft.record.worker_count;
    change.gone = gone;
    *ret_change = change;
    return KL_OK;
}

/* --- For people --- */

static kl__owner show(const kl__record_worker *worker, uint32_t group_shards)
{
    return (kl__owner){.id = worker->id,
                       .name = worker->name,
                       .shards = (uint64_t)worker->held * group_shards,
                       .kinds = worker->kinds,
                       .running = worker->running,
                       .concurrency = worker->concurrency,
                       .permits = worker->permits,
                       .wants = worker->wants,
                       .seen_ms = worker->seen_ms,
                       .expires_ms = worker->expires_ms,
                       .leaving = worker->leaving,
                       .full = worker->full};
}

kl_rc kl__owners_read(kl_store *store, const char *name, const kl_layout *layout, kl_arena *arena,
                      kl__ownership *ret_ownership)
{
    char record_name[KL_OWNERS_RECORD_NAME_BYTES];
    kl__owners_record record;
    int64_t now_ms;
    kl_rc rc = kl__owners_record_name(name, record_name);
    if (rc == KL_OK)
        rc = kl_store_now(store, &now_ms);
    if (rc == KL_OK)
        rc = kl__owners_record_read(store, record_name, layout, arena, &record);
    if (rc != KL_OK)
        return rc;
    kl__record_expire(&record, now_ms);
    kl__owner *workers = kl_arena_alloc(arena, record.worker_count * sizeof workers[0]);
    int16_t *groups = kl_arena_alloc(arena, record.group_count * sizeof groups[0]);
    if (!workers || !groups)
        return kl__fail_memory();
    for (size_t i = 0; i < record.worker_count; i++)
        workers[i] = show(&record.workers[i], kl__group_shards(layout));
    for (uint32_t group = 0; group < record.group_count; group++)
        groups[group] = record.groups[group].owner;
    *ret_ownership = (kl__ownership){workers, record.worker_count, groups, kl__group_shards(layout)};
    return KL_OK;
}

bool kl__ownership_serves(const kl__ownership *ownership, uint16_t kind)
{
    for (size_t i = 0; i < ownership->count; i++)
        if (kl__kinds_serve(ownership->workers[i].kinds, kind))
            return true;
    return false;
}

const kl__owner *kl__ownership_of(const kl__ownership *ownership, uint32_t shard)
{
    int16_t owner = ownership->groups[shard / ownership->group_shards];
    return owner < 0 ? NULL : &ownership->workers[owner];
}
