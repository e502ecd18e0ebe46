/* journal.c - groups of calls, and the one who leads; see journal.h. */
#include "store/disk/journal.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/cores.h"
#include "base/futex.h"

enum { PAGE = 4096, SPINS = 200 };

/* Callers wait for one another (struct patience) up to this part of what the last sync took, a crowd for all of that,
 * and not longer than this. When they did not all come more than so many times in a row, nobody waits for a while: in
 * the 2^n - 1 commits that follow, with n up to this. */
enum { GATHER_PART = 4, GATHER_NS_MAX = 250000, GATHER_MISSES_FREE = 3, GATHER_REST_MAX = 6 };

/* So many callers for each core are a crowd. Where a sync takes less than this they stay awake for so many of them at
 * most: the one under way, their own, and what is between. */
enum { CROWD_A_CORE = 2, CROWD_SYNC_NS_MAX = 300000, CROWD_SYNCS = 3 };

/* A yield that takes so long, and so much more for each caller, has given the core to somebody else for a slice of
 * time; then nobody yields for so long. */
enum { DEAR_NS = 500000, DEAR_CALL_NS = 5000, DEAR_REST_NS = 20000000 };

/* A group's reservations in one word: bytes in eighths, records, calls, and whether it still takes any. */
#define BYTES_BITS       28
#define RECORDS_BITS     22
#define CALLS_BITS       13
#define CLOSED           (UINT64_C(1) << 63)

#define BYTES_OF(word)   ((size_t)((word) & ((UINT64_C(1) << BYTES_BITS) - 1)) * 8)
#define RECORDS_OF(word) ((size_t)((word) >> BYTES_BITS & ((UINT64_C(1) << RECORDS_BITS) - 1)))
#define CALLS_OF(word)   ((size_t)((word) >> (BYTES_BITS + RECORDS_BITS) & ((UINT64_C(1) << CALLS_BITS) - 1)))
#define WORD_OF(bytes, records, calls)                                                                                 \
    ((uint64_t)(bytes) / 8 | (uint64_t)(records) << BYTES_BITS | (uint64_t)(calls) << (BYTES_BITS + RECORDS_BITS))

_Static_assert(BYTES_BITS + RECORDS_BITS + CALLS_BITS == 63, "they fill the word beside CLOSED");
_Static_assert(KL_GROUP_BYTES / 8 < 1u << BYTES_BITS && KL_GROUP_CALLS_MAX < 1 << CALLS_BITS, "each fits its bits");

struct kl__group {
    _Atomic(uint64_t) reserved;
    _Atomic(uint64_t) sum;       /* of the published records' CRCs */
    _Atomic(uint32_t) published; /* calls whose records are written */
    _Atomic(uint32_t) ended;     /* the last generation that is durable, or failed */
    _Atomic(uint32_t) kick;      /* changes when those who wait should look again */
    _Atomic(uint32_t) sleepers;
    uint32_t generation;
    uint64_t first_sequence;
    char *frame; /* its header, then the records */
    kl__commit *calls[KL_GROUP_CALLS_MAX];
};

struct kl__journal {
    kl__state *state;
    kl__segments *segments;
    kl_now_ms_fn *now_ms;
    void *now_ctx;

    _Atomic(kl__group *) current; /* takes reservations, unless it is closed */
    _Atomic(uint32_t) opened;     /* changes when another group becomes current */
    _Atomic(uint32_t) opened_sleepers;
    kl__group groups[2];

    pthread_mutex_t leader;   /* whoever holds it writes */
    _Atomic(uint32_t) wanted; /* so many wait for it who do not try again: nobody takes it before them */
    uint64_t last_frame;
    _Atomic(size_t) expected;       /* calls that the next group may get, of those who make one after the other */
    _Atomic(int64_t) sync_ns;       /* what the last sync took */
    uint32_t gather_misses;         /* commits in a row for which not all had come */
    _Atomic(uint32_t) gather_rest;  /* and so many for which nobody waits */
    _Atomic(int64_t) told_ns;       /* when the last group was */
    size_t crowd;                   /* so many callers are one */
    _Atomic(int64_t) dear_until_ns; /* before this time nobody yields */

    _Atomic(bool) is_broken;
    char broken_text[KL_CALL_ERROR_BYTES]; /* set before is_broken */

    /* The thread that leads for asynchronous calls, and calls their `done`. */
    pthread_t committer;
    _Atomic(uint32_t) committer_work; /* changes when there is something for it to do */
    _Atomic(bool) committer_sleeps;
    _Atomic(uint64_t) async_published;
    _Atomic(bool) stopping;
    pthread_mutex_t ended_mutex;
    kl__commit *ended_first, **ended_link; /* calls whose `done` is to be called, in order */
};

/* ---- Failing ---- */

static kl_rc fail_broken(const kl__journal *journal) { return kl__fail(KL_ESYSTEM, "%s", journal->broken_text); }

kl_rc kl__journal_check(const kl__journal *journal)
{
    return atomic_load_explicit(&journal->is_broken, memory_order_acquire) ? fail_broken(journal) : KL_OK;
}

/* Nothing more is written from now on (J4). Called by the leader. */
static void stop_for(kl__journal *journal, const char *why)
{
    if (journal->is_broken)
        return;
    snprintf(journal->broken_text, sizeof journal->broken_text, "%s", why);
    atomic_store(&journal->is_broken, true);
    kl__segments_log(journal->segments, KL_LOG_ERROR, "%s", journal->broken_text);
}

static kl_rc break_down(kl__journal *journal, const char *what, const char *why)
{
    char text[KL_CALL_ERROR_BYTES];
    snprintf(text, sizeof text,
             "%s failed (%s), so nothing more is accepted; what was acknowledged is safe: close the store, "
             "see to the disk, and open it again",
             what, why);
    stop_for(journal, text);
    return fail_broken(journal);
}

/* ---- Writing frames; all of this is done by the leader ---- */

/* What a frame's header is made of, beside what the journal knows. */
typedef struct frame_info {
    size_t bytes, records; /* of its records */
    uint64_t sum;          /* of their CRCs */
    uint64_t sequence;     /* of the first */
    int64_t now_ms;
    bool is_upkeep; /* by which room is made: it may take the last of it */
} frame_info;

/* Soon after a segment was begun, the next should be there: most of this one is then left for outcomes when the disk
 * turns out to be full (G3 of segments.h). Upkeep is given a while to make it of one that is dropped. */
static void see_to_next(kl__segments *segments)
{
    const kl__segment *active = segments->active;
    if (atomic_load_explicit(&segments->has_next, memory_order_relaxed) || atomic_load(&segments->next_error))
        return;
    if (active->end > active->bytes / 8)
        (void)kl__segments_prepare(segments); /* if it fails, appends are refused from now on */
    else if (active->end > active->bytes / 32)
        kl__segments_want_next(segments);
}

/* The disk was full before all of a frame was written: what was must not be read as one. */
static kl_rc take_back(kl__journal *journal, char *bytes)
{
    kl__segments *segments = journal->segments;
    memset(bytes, 0, KL_FRAME_HEADER);
    int error = kl__vfs_write(segments->vfs, segments->active->file, bytes, KL_FRAME_HEADER, segments->active->end);
    if (error && !kl__vfs_is_full(error))
        return break_down(journal, "writing the journal", strerror(-error));
    return kl__fail(KL_EFULL, "the disk is full; nothing was stored; make room and call again");
}

static kl_rc write_frame(kl__journal *journal, char *bytes, const frame_info *info)
{
    kl__segments *segments = journal->segments;
    kl__segment *active = segments->active;
    size_t total = KL_FRAME_HEADER + info->bytes;
    kl__frame *frame = (kl__frame *)(void *)bytes;
    *frame = (kl__frame){.magic = KL_FRAME_MAGIC,
                         .segment = active->number,
                         .number = journal->last_frame + 1,
                         .journal = segments->journal,
                         .now_ms = info->now_ms,
                         .sum = info->sum,
                         .bytes = (uint32_t)info->bytes,
                         .records = (uint32_t)info->records,
                         .sequence = info->sequence};
    frame->crc = kl__frame_crc(frame);
    /* The rest of the last page is written as zeros: a page that is written whole need not be read first. */
    size_t rest = (PAGE - (active->end + total) % PAGE) % PAGE;
    if (active->end + total + rest > active->bytes)
        rest = 0;
    memset(bytes + total, 0, rest);
    int error = kl__vfs_write(segments->vfs, active->file, bytes, total + rest, active->end);
    if (kl__vfs_is_full(error))
        return take_back(journal, bytes);
    if (error)
        return break_down(journal, "writing the journal", strerror(-error));
    int64_t began_ns = kl__monotonic_ns();
    error = segments->vfs->sync(segments->vfs, active->file);
    if (error)
        return break_down(journal, "syncing the journal", strerror(-error));
    atomic_store_explicit(&journal->sync_ns, kl__monotonic_ns() - began_ns, memory_order_relaxed);
    active->end += total;
    atomic_store_explicit(&segments->last_synced, ++journal->last_frame, memory_order_release);
    see_to_next(segments);
    return KL_OK;
}

/* What the first frame of a segment takes at most. */
static size_t first_frame_bytes(const kl__state *state)
{
    size_t named = kl__round8(sizeof(kl__partition_record) + KL_PARTITION_BYTES_MAX + 1);
    return KL_FRAME_HEADER + (1 + (size_t)state->fenced) * sizeof(kl__record_header) + state->partition_count * named;
}

/* The first frame of a segment: the partitions, the fences and seals, and the note, so that it can be read without
 * those before it. */
static kl_rc write_partitions(kl__journal *journal, uint64_t sequence, int64_t now_ms)
{
    kl__state *state = journal->state;
    char *bytes = kl__alloc(first_frame_bytes(state) + PAGE);
    if (!bytes)
        return kl__fail_memory();
    frame_info info = {.records = 1 + state->partition_count + state->fenced, .sequence = sequence, .now_ms = now_ms};
    char *at = bytes + KL_FRAME_HEADER;
    uint64_t commits = atomic_load(&state->history_commits);
    pthread_mutex_lock(&state->mutex);
    uint64_t first_needed = kl__state_first_needed(state, journal->segments->active->number);
    pthread_mutex_unlock(&state->mutex);
    info.sum = kl__put_note(at, sequence, commits, first_needed);
    at += sizeof(kl__record_header);
    for (uint32_t number = 1; number <= state->partition_count; number++) {
        const kl__partition_state *its = state->partitions[number];
        at = kl__put_partition(at, 0, its->name, its->shard_prefix_len, number, &info.sum);
    }
    for (uint32_t number = 1; number <= state->partition_count; number++)
        at = kl__put_fences(state->partitions[number], at, &info.sum);
    info.bytes = (size_t)(at - bytes) - KL_FRAME_HEADER;
    kl_rc rc = write_frame(journal, bytes, &info);
    kl__free(bytes);
    if (rc != KL_OK)
        return rc;
    pthread_mutex_lock(&state->mutex);
    kl__state_noted(state, commits, first_needed);
    pthread_mutex_unlock(&state->mutex);
    return KL_OK;
}

/* Goes to the next segment when the frame does not fit in this one. A segment can be without its first frame also when
 * a kill, a full disk or a want of memory came in between; it gets that before it is left, or it would look like one
 * that has lost its frames when those before it are gone. Partitions are only added by the leader, so their number can
 * be read without the state's mutex. */
static kl_rc make_place(kl__journal *journal, const frame_info *info)
{
    kl__segments *segments = journal->segments;
    const kl__segment *active = segments->active;
    size_t partitions = first_frame_bytes(journal->state);
    size_t total = KL_FRAME_HEADER + info->bytes;
    size_t before = active && active->end == KL_SEGMENT_HEADER ? partitions : 0;
    bool is_kept_back = active && !info->is_upkeep && atomic_load(&segments->is_full);
    size_t behind = is_kept_back ? active->bytes / 8 : 0;
    if (!active || active->end + before + total + behind > active->bytes) {
        if (KL_SEGMENT_HEADER + partitions + total > KL_SEGMENT_BYTES_MAX)
            return kl__fail(KL_EFULL,
                            "%u shards are fenced, more than a segment of the journal can name; nothing was "
                            "stored: spread the queues over several stores",
                            journal->state->fenced);
        kl_rc rc = KL_OK;
        if (before && active->end + before <= active->bytes)
            rc = write_partitions(journal, info->sequence, info->now_ms);
        if (rc == KL_OK)
            rc = kl__segments_roll(segments, KL_SEGMENT_HEADER + partitions + total, info->is_upkeep);
        if (rc == KL_ESYSTEM)
            return break_down(journal, "going to the next segment", kl_error_text());
        if (rc != KL_OK)
            return rc;
    }
    if (segments->active->end > KL_SEGMENT_HEADER)
        return KL_OK;
    return write_partitions(journal, info->sequence, info->now_ms);
}

static void keep_recent(kl__journal *journal, const char *bytes, size_t count, uint64_t offset)
{
    kl__state *state = journal->state;
    pthread_mutex_lock(&state->mutex);
    kl__recent_claim(state->recent, journal->segments->active->number, offset, count);
    pthread_mutex_unlock(&state->mutex);
    kl__recent_fill(state->recent, bytes, count);
}

/* What was written becomes visible. `offset` is that of the records in the segment. */
static kl_rc apply(kl__journal *journal, const char *bytes, const frame_info *info, uint64_t offset)
{
    kl__state *state = journal->state;
    kl__where where = {journal->segments->active->number, offset};
    keep_recent(journal, bytes, info->bytes, offset);
    pthread_mutex_lock(&state->mutex);
    size_t kept = state->kept_count;
    kl_rc rc = kl__state_apply_all(state, (const void *)bytes, info->records, where, info->now_ms, false);
    bool wants_upkeep = kl__segments_need_upkeep(journal->segments);
    if (state->waiters)
        pthread_cond_broadcast(&state->appended);
    if (state->kept_count > kept)
        pthread_cond_broadcast(&state->kept_changed);
    pthread_mutex_unlock(&state->mutex);
    if (wants_upkeep)
        kl__segments_want_upkeep(journal->segments);
    return rc == KL_OK ? KL_OK : break_down(journal, "taking up what was written", "out of memory");
}

static kl_rc write_and_apply(kl__journal *journal, char *frame, frame_info info)
{
    if (journal->is_broken)
        return fail_broken(journal);
    info.now_ms = journal->now_ms(journal->now_ctx);
    kl_rc rc = make_place(journal, &info);
    if (rc != KL_OK)
        return rc;
    uint64_t offset = journal->segments->active->end + KL_FRAME_HEADER;
    rc = write_frame(journal, frame, &info);
    return rc == KL_OK ? apply(journal, frame + KL_FRAME_HEADER, &info, offset) : rc;
}

/* All that a closed group has collected. */
static kl_rc write_group(kl__journal *journal, kl__group *group, uint64_t word)
{
    frame_info info = {.bytes = BYTES_OF(word),
                       .records = RECORDS_OF(word),
                       .sum = atomic_load(&group->sum),
                       .sequence = group->first_sequence};
    return write_and_apply(journal, group->frame, info);
}

/* ---- Groups ---- */

/* Makes a group that is at rest the current one. */
static void open_group(kl__journal *journal, kl__group *group, uint64_t first_sequence)
{
    group->generation++;
    group->first_sequence = first_sequence;
    atomic_store_explicit(&group->sum, 0, memory_order_relaxed);
    atomic_store_explicit(&group->published, 0, memory_order_relaxed);
    atomic_store(&group->reserved, 0);
    atomic_store(&journal->current, group);
    atomic_fetch_add(&journal->opened, 1);
    if (atomic_load(&journal->opened_sleepers))
        kl__futex_wake_all(&journal->opened);
}

static void await_open(kl__journal *journal, uint32_t opened)
{
    for (int i = 0; i < SPINS; i++)
        if (atomic_load_explicit(&journal->opened, memory_order_acquire) != opened)
            return;
    atomic_fetch_add(&journal->opened_sleepers, 1);
    kl__futex_wait(&journal->opened, opened);
    atomic_fetch_sub(&journal->opened_sleepers, 1);
}

static kl__group *other_group(kl__journal *journal, const kl__group *group)
{
    return group == &journal->groups[0] ? &journal->groups[1] : &journal->groups[0];
}

/* Have all come who may? */
static bool is_gathered(const kl__journal *journal, const kl__group *group)
{
    return CALLS_OF(atomic_load_explicit(&group->reserved, memory_order_relaxed)) >=
           atomic_load_explicit(&journal->expected, memory_order_relaxed);
}

/* Before the group is closed for which callers have waited: was it worth that? */
static void note_gathered(kl__journal *journal, const kl__group *group)
{
    uint32_t rest = atomic_load_explicit(&journal->gather_rest, memory_order_relaxed);
    bool all = is_gathered(journal, group);
    if (rest > 0) {
        atomic_store_explicit(&journal->gather_rest, all ? rest : rest - 1, memory_order_relaxed);
        return;
    }
    journal->gather_misses = all ? 0 : journal->gather_misses + 1;
    if (journal->gather_misses <= GATHER_MISSES_FREE)
        return;
    uint32_t n = journal->gather_misses - GATHER_MISSES_FREE;
    rest = (1u << (n < GATHER_REST_MAX ? n : GATHER_REST_MAX)) - 1;
    atomic_store_explicit(&journal->gather_rest, rest, memory_order_relaxed);
}

/* Whoever was in this group, and whoever has come while it was written, may be in one group the next time. Asynchronous
 * calls come when they like. */
static void expect(kl__journal *journal, const kl__group *group, size_t calls, bool has_async)
{
    const kl__group *next = atomic_load_explicit(&journal->current, memory_order_relaxed);
    size_t come = next == group ? 0 : CALLS_OF(atomic_load_explicit(&next->reserved, memory_order_relaxed));
    atomic_store_explicit(&journal->expected, has_async ? 0 : calls + come, memory_order_relaxed);
}

/* No more reservations; waits until what is reserved has been written. Returns the final word. */
static uint64_t close_group(kl__group *group)
{
    uint64_t word = atomic_fetch_or(&group->reserved, CLOSED);
    while (atomic_load_explicit(&group->published, memory_order_acquire) != CALLS_OF(word))
        sched_yield();
    return word;
}

static void wake_committer(kl__journal *journal)
{
    atomic_fetch_add(&journal->committer_work, 1);
    if (atomic_load(&journal->committer_sleeps))
        kl__futex_wake_one(&journal->committer_work);
}

/* Tells everybody in the group. After this its blocking calls are gone. */
static void end_group(kl__journal *journal, kl__group *group, size_t calls, kl_rc rc)
{
    bool has_async = false;
    for (size_t i = 0; i < calls; i++) {
        kl__commit *call = group->calls[i];
        call->rc = rc;
        call->error[0] = 0;
        if (rc != KL_OK)
            snprintf(call->error, sizeof call->error, "%s", kl_error_text());
        if (!call->done)
            continue;
        has_async = true;
        call->next = NULL;
        pthread_mutex_lock(&journal->ended_mutex);
        *journal->ended_link = call;
        journal->ended_link = &call->next;
        pthread_mutex_unlock(&journal->ended_mutex);
    }
    expect(journal, group, calls, has_async);
    atomic_store_explicit(&journal->told_ns, kl__monotonic_ns(), memory_order_relaxed);
    atomic_store(&group->ended, group->generation);
    atomic_fetch_add(&group->kick, 1);
    if (atomic_load(&group->sleepers))
        kl__futex_wake_all(&group->kick);
    if (has_async)
        wake_committer(journal);
}

/* Writes what the current group has collected. Only for the leader. */
static void commit(kl__journal *journal)
{
    kl__group *group = atomic_load(&journal->current);
    if (CALLS_OF(atomic_load(&group->reserved)) == 0)
        return;
    uint64_t word = atomic_fetch_or(&group->reserved, CLOSED);
    open_group(journal, other_group(journal, group), group->first_sequence + RECORDS_OF(word));
    close_group(group);
    kl_rc rc = write_group(journal, group, word);
    end_group(journal, group, CALLS_OF(word), rc);
}

/* Gives up the lead. Whoever waits in the group that has collected since is woken to take it. */
static void step_down(kl__journal *journal)
{
    kl__group *group = atomic_load(&journal->current);
    pthread_mutex_unlock(&journal->leader);
    if (CALLS_OF(atomic_load(&group->reserved)) == 0)
        return;
    atomic_fetch_add(&group->kick, 1);
    if (atomic_load(&group->sleepers))
        kl__futex_wake_one(&group->kick);
}

/* For those who do not wait for a call. */
static void take_lead(kl__journal *journal)
{
    atomic_fetch_add(&journal->wanted, 1);
    pthread_mutex_lock(&journal->leader);
    atomic_fetch_sub(&journal->wanted, 1);
}

/* With this group, or with none if somebody has led with it meanwhile. */
static void lead_once(kl__journal *journal, const kl__group *group)
{
    take_lead(journal);
    if (atomic_load(&journal->current) == group)
        commit(journal);
    step_down(journal);
}

/* ---- Calls ---- */

static bool fits(uint64_t word, size_t bytes, size_t records)
{
    return KL_FRAME_HEADER + BYTES_OF(word) + bytes <= KL_GROUP_BYTES && CALLS_OF(word) < KL_GROUP_CALLS_MAX &&
           RECORDS_OF(word) + records < (1u << RECORDS_BITS);
}

kl_rc kl__journal_try_reserve(kl__journal *journal, size_t bytes, size_t records, kl__commit *call)
{
    KL_ASSERT(bytes % 8 == 0 && fits(0, bytes, records));
    if (atomic_load_explicit(&journal->is_broken, memory_order_acquire))
        return fail_broken(journal);
    kl__group *group = atomic_load(&journal->current);
    uint64_t word = atomic_load(&group->reserved);
    do {
        if (word & CLOSED || !fits(word, bytes, records))
            return KL_EBUSY;
    } while (!atomic_compare_exchange_weak(&group->reserved, &word, word + WORD_OF(bytes, records, 1)));
    call->group = group;
    call->generation = group->generation;
    call->bytes = group->frame + KL_FRAME_HEADER + BYTES_OF(word);
    call->sequence = group->first_sequence + RECORDS_OF(word);
    group->calls[CALLS_OF(word)] = call;
    return KL_OK;
}

void kl__journal_make_room(kl__journal *journal)
{
    uint32_t opened = atomic_load(&journal->opened);
    kl__group *group = atomic_load(&journal->current);
    if (atomic_load(&group->reserved) & CLOSED)
        await_open(journal, opened);
    else
        lead_once(journal, group);
}

kl_rc kl__journal_try_append(kl__journal *journal, size_t bytes, size_t records, kl__commit *call)
{
    if (atomic_load_explicit(&journal->segments->is_full, memory_order_relaxed))
        return kl__fail(KL_EFULL,
                        "the disk is full: tasks are refused until there is room again, outcomes are accepted; "
                        "make room, or let what waits be worked off");
    return kl__journal_try_reserve(journal, bytes, records, call);
}

kl_rc kl__journal_reserve(kl__journal *journal, size_t bytes, size_t records, kl__commit *call)
{
    kl_rc rc;
    while ((rc = kl__journal_try_reserve(journal, bytes, records, call)) == KL_EBUSY)
        kl__journal_make_room(journal);
    return rc;
}

void kl__journal_publish(kl__journal *journal, kl__commit *call, uint64_t sum)
{
    bool is_async = call->done != NULL; /* once it is published, an asynchronous call may be gone at any time */
    atomic_fetch_add_explicit(&call->group->sum, sum, memory_order_relaxed);
    atomic_fetch_add_explicit(&call->group->published, 1, memory_order_release);
    if (is_async) {
        atomic_fetch_add(&journal->async_published, 1);
        wake_committer(journal);
    }
}

static bool has_ended(const kl__commit *call)
{
    return (int32_t)(atomic_load_explicit(&call->group->ended, memory_order_acquire) - call->generation) >= 0;
}

/* How long a caller stays awake.
 *
 * Those of the group before have just been told and are about to call again. If the first who came led at once, a
 * commit would serve one half of them and the next the other. So they wait for one another, and usually the last to
 * come leads: it is awake, and has the core.
 *
 * To wake a thread and switch to it takes a core 2 to 3 us. A crowd that slept while a quick disk synced would take
 * longer to get up, one after the other, than the sync, in which the cores had nothing to do. So it stays awake and
 * yields in turn. */
struct patience {
    int64_t came_ns, now_ns;
    int64_t gather_ns; /* so long it waits for the others, */
    int64_t until_ns;  /* and until then it stays awake */
    bool is_crowd;
};

static struct patience take_patience(const kl__journal *journal)
{
    int64_t sync_ns = atomic_load_explicit(&journal->sync_ns, memory_order_relaxed), now_ns = kl__monotonic_ns();
    bool is_crowd =
        atomic_load_explicit(&journal->expected, memory_order_relaxed) >= journal->crowd && sync_ns < CROWD_SYNC_NS_MAX;
    int64_t gather_ns = is_crowd ? sync_ns : sync_ns / GATHER_PART;
    gather_ns = gather_ns < GATHER_NS_MAX ? gather_ns : GATHER_NS_MAX;
    return (struct patience){.came_ns = now_ns,
                             .now_ns = now_ns,
                             .gather_ns = gather_ns,
                             .until_ns = now_ns + (is_crowd ? CROWD_SYNCS * sync_ns : gather_ns),
                             .is_crowd = is_crowd};
}

/* Not while others are about to come: from when the last group was told, or it came. */
static bool may_lead(const kl__journal *journal, const kl__group *group, const struct patience *patience)
{
    if (is_gathered(journal, group) || atomic_load_explicit(&journal->gather_rest, memory_order_relaxed) > 0 ||
        patience->now_ns >= patience->until_ns)
        return true;
    int64_t told_ns = atomic_load_explicit(&journal->told_ns, memory_order_relaxed);
    return patience->now_ns >= (told_ns > patience->came_ns ? told_ns : patience->came_ns) + patience->gather_ns;
}

static bool are_yields_dear(const kl__journal *journal, int64_t now_ns)
{
    return now_ns < atomic_load_explicit(&journal->dear_until_ns, memory_order_relaxed);
}

/* False: the caller's patience is at its end. */
static bool yield(kl__journal *journal, struct patience *patience)
{
    if (are_yields_dear(journal, patience->now_ns))
        patience->until_ns = patience->now_ns;
    if (patience->now_ns >= patience->until_ns)
        return false;
    int64_t before_ns = patience->now_ns;
    size_t callers = atomic_load_explicit(&journal->expected, memory_order_relaxed);
    sched_yield();
    patience->now_ns = kl__monotonic_ns();
    if (patience->now_ns - before_ns > DEAR_NS + (int64_t)callers * DEAR_CALL_NS)
        atomic_store_explicit(&journal->dear_until_ns, patience->now_ns + DEAR_REST_NS, memory_order_relaxed);
    return true;
}

/* The call is in the current group: only a leader closes one. */
static void commit_own(kl__journal *journal, const kl__commit *call, int64_t now_ns)
{
    if (has_ended(call))
        return;
    if (!are_yields_dear(journal, now_ns)) /* else nobody has waited */
        note_gathered(journal, call->group);
    commit(journal);
}

kl_rc kl__journal_wait(kl__journal *journal, kl__commit *call)
{
    kl__group *group = call->group;
    struct patience patience = take_patience(journal);
    while (!has_ended(call)) {
        uint32_t kick = atomic_load(&group->kick);
        bool leads = may_lead(journal, group, &patience);
        if (leads && !atomic_load(&journal->wanted) && pthread_mutex_trylock(&journal->leader) == 0) {
            commit_own(journal, call, patience.now_ns);
            step_down(journal);
            continue;
        }
        if (has_ended(call))
            break;
        if (((patience.is_crowd || !leads) && yield(journal, &patience)) || !leads)
            continue;
        atomic_fetch_add(&group->sleepers, 1);
        kl__futex_wait(&group->kick, kick);
        atomic_fetch_sub(&group->sleepers, 1);
        patience = take_patience(journal);
    }
    return call->rc == KL_OK ? KL_OK : kl__fail(call->rc, "%s", call->error);
}

kl_rc kl__journal_exclusive(kl__journal *journal, kl__fill_fn *fill, void *ctx)
{
    take_lead(journal);
    kl__group *group = atomic_load(&journal->current), *other = other_group(journal, group);
    uint64_t word = close_group(group);
    if (CALLS_OF(word))
        end_group(journal, group, CALLS_OF(word), write_group(journal, group, word));
    frame_info info = {.sequence = group->first_sequence + RECORDS_OF(word), .is_upkeep = true};
    info.records = fill(ctx, other->frame + KL_FRAME_HEADER, info.sequence, &info.bytes, &info.sum);
    kl_rc rc = info.records ? write_and_apply(journal, other->frame, info) : KL_OK;
    open_group(journal, other, info.sequence + info.records);
    step_down(journal);
    return rc;
}

void kl__journal_break(kl__journal *journal, const char *why)
{
    take_lead(journal);
    stop_for(journal, why);
    step_down(journal);
}

/* ---- The committer ---- */

static void tell_ended(kl__journal *journal)
{
    pthread_mutex_lock(&journal->ended_mutex);
    kl__commit *call = journal->ended_first;
    journal->ended_first = NULL;
    journal->ended_link = &journal->ended_first;
    pthread_mutex_unlock(&journal->ended_mutex);
    while (call) {
        kl__commit *next = call->next;
        call->done(call->ctx, call->rc, call->error);
        kl__free(call);
        call = next;
    }
}

static void *run_committer(void *ctx)
{
    kl__journal *journal = ctx;
    uint64_t seen = 0;
    for (;;) {
        uint32_t work = atomic_load(&journal->committer_work);
        uint64_t published = atomic_load(&journal->async_published);
        bool stopping = atomic_load(&journal->stopping);
        if (published != seen) {
            seen = published;
            lead_once(journal, atomic_load(&journal->current));
        }
        tell_ended(journal);
        if (atomic_load(&journal->committer_work) != work)
            continue;
        if (stopping)
            return NULL;
        atomic_store(&journal->committer_sleeps, true);
        kl__futex_wait(&journal->committer_work, work);
        atomic_store(&journal->committer_sleeps, false);
    }
}

/* ---- Open and close ---- */

static void *take_buffer(void)
{
    void *memory =
        mmap(NULL, KL_GROUP_BYTES + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void free_journal(kl__journal *journal)
{
    for (int i = 0; i < 2; i++)
        if (journal->groups[i].frame)
            munmap(journal->groups[i].frame, KL_GROUP_BYTES + PAGE);
    pthread_mutex_destroy(&journal->leader);
    pthread_mutex_destroy(&journal->ended_mutex);
    kl__free(journal);
}

kl_rc kl__journal_open(kl__state *state, kl__segments *segments, kl_now_ms_fn *now_ms, void *now_ctx,
                       uint64_t last_frame, uint64_t last_sequence, kl__journal **ret_journal)
{
    kl__journal *journal = kl__alloc_zeroed(1, sizeof *journal);
    if (!journal)
        return kl__fail_memory();
    journal->state = state;
    journal->segments = segments;
    journal->now_ms = now_ms;
    journal->now_ctx = now_ctx;
    journal->last_frame = last_frame;
    atomic_store(&segments->last_synced, last_frame);
    journal->ended_link = &journal->ended_first;
    journal->crowd = (size_t)kl__cores() * CROWD_A_CORE;
    pthread_mutex_init(&journal->leader, NULL);
    pthread_mutex_init(&journal->ended_mutex, NULL);
    for (int i = 0; i < 2; i++) {
        journal->groups[i].frame = take_buffer();
        journal->groups[i].reserved = CLOSED;
    }
    if (!journal->groups[0].frame || !journal->groups[1].frame) {
        free_journal(journal);
        return kl__fail_memory();
    }
    open_group(journal, &journal->groups[0], last_sequence + 1);
    if (pthread_create(&journal->committer, NULL, run_committer, journal) != 0) {
        free_journal(journal);
        return kl__fail(KL_ESYSTEM, "a thread could not be started; raise the limit of processes");
    }
    *ret_journal = journal;
    return KL_OK;
}

static size_t fill_close(void *ctx, char *bytes, uint64_t sequence, size_t *ret_bytes, uint64_t *ret_sum)
{
    (void)ctx;
    kl__record_header *record = (kl__record_header *)(void *)bytes;
    *record = (kl__record_header){.sequence = sequence, .type = KL_RECORD_CLOSE};
    *ret_sum = kl__record_seal(record, (char *)(record + 1));
    *ret_bytes = record->bytes;
    return 1;
}

void kl__journal_close(kl__journal *journal)
{
    if (!journal)
        return;
    lead_once(journal, atomic_load(&journal->current));
    atomic_store(&journal->stopping, true);
    wake_committer(journal);
    pthread_join(journal->committer, NULL);
    tell_ended(journal);
    if (!journal->is_broken)
        (void)kl__journal_exclusive(journal, fill_close, NULL); /* without it the next open only looks more closely */
    free_journal(journal);
}
