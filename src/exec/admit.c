/* admit.c - how much of a shard may be taken up by what cannot run, and what those are told who get no place.
 *
 * The tasks of a key that waits for its retry, or is paused, keep their places for as long as that takes, and so does a
 * task that is not due. A producer that goes on submitting such tasks would fill the shard, and its other keys would
 * wait after all. So blocked keys get a quarter as many as there are places together, which is what can be lent for
 * them (shard.c), so that the others have all places for themselves; and a key of them what the others leave of that:
 *
 *      tasks of this key + tasks of all blocked keys  <  capacity / 4
 *
 * One key alone gets an eighth, two a twelfth each, and there is always some left for one more. Tasks that are not due
 * get what blocked keys leave of half of the places, by the same rule. What a key had in line before it was blocked
 * stays, whatever it was. Between being admitted and claiming a place there is no mutex, so of several threads that
 * submit at the same moment each may be one too many.
 *
 * Hardly a submit comes here: the lanes show signs of blocked keys, which producers look at without the mutex. And
 * whoever goes on submitting to a blocked key is answered without it, too: threads that run short tasks hold it most of
 * the time, and to count for each submit what is on the way would drain the inbox. Counted is once, and of that is
 * known:
 *
 *      admitted  tasks of this key and of all blocked keys, to which those are added that are admitted since
 *      refused   so is the next, without a sentence unless he asks
 *
 * That holds until a key has become blocked or the shard has been relieved of something stuck, which the lanes count; a
 * task that has become due counts when a thread comes by, as one that is done in a long hand does (hand.c takes those
 * of blocked keys alone). */
#include "exec/submit.h"

#include <stdio.h>

#include "base/text.h"
#include "base/wait.h"

enum { KEY_SHOWN_BYTES = 64, KEYS_TOLD_MAX = 1024 };

/* Tasks that cannot run: of an applicant's key, and those that he shares with: of all blocked keys if it is one of
 * them, and else all. */
struct stuck {
    bool blocked; /* his key is */
    uint64_t own, all;
};

/* --- Answers that still hold --- */

kl_rc kl__answers_open(kl__answer_table *table, uint32_t capacity)
{
    uint32_t keys = KL_ANSWERS;
    while (keys < capacity && keys < KEYS_TOLD_MAX)
        keys *= 2;
    table->mask = keys / KL_ANSWERS - 1;
    table->buckets = kl__alloc_aligned(KL_CACHE_LINE, table->mask + 1, sizeof *table->buckets);
    return table->buckets ? KL_OK : KL_ENOMEM;
}

/* What stands for a refusal of the key since the last change. Like the stores, it tells keys apart by 64 bits. */
static uint64_t refused_mark(const kl__shard *shard, uint64_t hash)
{
    uint64_t changes = atomic_load_explicit(&shard->signs->changes, memory_order_relaxed);
    return hash + (changes + 1) * 0x9e3779b97f4a7c15u;
}

static uint64_t admitted_mark(const kl__shard *shard, uint64_t hash) { return ~refused_mark(shard, hash); }

/* The marks in a cache line: keys that share a place would undo each other's. */
static kl__answers *bucket_of(const kl__shard *shard, uint64_t hash)
{
    return &shard->answers.buckets[hash & shard->answers.mask];
}

/* Where in the bucket the mark is, or KL_ANSWERS. */
static uint32_t find_mark(const kl__answers *bucket, uint64_t mark)
{
    uint32_t found = KL_ANSWERS;
    for (uint32_t i = 0; i < KL_ANSWERS; i++) /* all of them: where it stands cannot be foretold */
        found = atomic_load_explicit(&bucket->marks[i], memory_order_acquire) == mark ? i : found;
    return found;
}

bool kl__shard_refuses(const kl__shard *shard, uint64_t hash)
{
    return find_mark(bucket_of(shard, hash), refused_mark(shard, hash)) < KL_ANSWERS;
}

static uint64_t share_of_blocked(const kl__shard *shard) { return shard->inbox.capacity / KL_EXEC_SPARE_SHARE; }

/* Admits one more task of a key of which one was, if there is room for it for sure. Without the mutex. */
static bool is_admitted_again(kl__shard *shard, uint64_t hash)
{
    kl__answers *bucket = bucket_of(shard, hash);
    uint32_t i = find_mark(bucket, admitted_mark(shard, hash));
    if (i == KL_ANSWERS)
        return false;
    uint64_t own = atomic_fetch_add_explicit(&bucket->tasks[i], 1, memory_order_relaxed);
    uint64_t all = atomic_fetch_add_explicit(&shard->admitted, 1, memory_order_relaxed);
    return own + all < share_of_blocked(shard);
}

/* With the mutex held: writes the mark, and what it stands for, in place of the key's other one, or of some older. */
static void note_mark(kl__answers *bucket, uint64_t mark, uint32_t tasks)
{
    uint32_t i = find_mark(bucket, ~mark);
    if (i == KL_ANSWERS && (i = find_mark(bucket, mark)) == KL_ANSWERS)
        i = bucket->next++ % KL_ANSWERS;
    atomic_store_explicit(&bucket->marks[i], 0, memory_order_relaxed);
    atomic_store_explicit(&bucket->tasks[i], tasks, memory_order_release);
    atomic_store_explicit(&bucket->marks[i], mark, memory_order_release);
}

static void note_refused(kl__shard *shard, uint64_t hash)
{
    note_mark(bucket_of(shard, hash), refused_mark(shard, hash), 0);
}

/* With the mutex held, when all is counted but the task that is about to come in. Who was admitted without it since the
 * counting began (`before`) may have been counted or not: he is added, for the answer that is the safer one. */
static void note_admitted(kl__shard *shard, const struct stuck *stuck, uint64_t before, uint64_t hash)
{
    atomic_fetch_add_explicit(&shard->admitted, stuck->all + 1 - before, memory_order_relaxed);
    note_mark(bucket_of(shard, hash), admitted_mark(shard, hash), (uint32_t)stuck->own + 1);
}

/* With the mutex held: the shard is about to be shut, and those who were refused are to be told that instead. */
void kl__answers_forget(kl__shard *shard)
{
    for (uint64_t i = 0; i < (shard->answers.mask + 1) * KL_ANSWERS; i++)
        atomic_store_explicit(&shard->answers.buckets[i / KL_ANSWERS].marks[i % KL_ANSWERS], 0, memory_order_relaxed);
}

/* --- Admitting --- */

static struct stuck count_stuck(const kl__shard *shard, const kl__lane_key *key)
{
    const kl__lane *lane = kl__lanes_find(shard->lanes, key);
    bool blocked = lane && kl__lane_blocked(lane), keyed = key->bytes.len > 0;
    return (struct stuck){.blocked = blocked,
                          .own = lane && keyed ? kl__lane_stuck(lane) : 0,
                          .all = blocked ? kl__lanes_blocked(shard->lanes) : kl__lanes_stuck(shard->lanes)};
}

/* Adds what is published behind a place that is not yet, or for which there is no memory: it cannot be drained, and
 * whoever was interrupted while he published may not go on for long. */
static void add_undrained(kl__shard *shard, const kl__lane_key *key, struct stuck *stuck)
{
    kl__inbox *inbox = &shard->inbox;
    for (uint64_t number = kl__inbox_drained(inbox), end = kl__inbox_claimed(inbox); number < end; number++) {
        uint64_t slot = kl__inbox_peek(inbox, number);
        if (!slot)
            continue;
        const kl__exec_task *task = &shard->tasks[slot & KL_INBOX_INDEX_MASK];
        const kl__task_extra *extra = kl__extra_of(task);
        kl__lane_key other;
        other.bytes = kl__slot_key(task, slot, &other.hash);
        const kl__lane *lane = kl__lanes_find(shard->lanes, &other);
        if (!(lane && kl__lane_blocked(lane)) && (stuck->blocked || !(extra && extra->delayed)))
            continue;
        stuck->all++;
        stuck->own += key->bytes.len > 0 && other.hash == key->hash;
    }
}

/* Whether one more task of the key may come in. */
static bool has_share(const kl__shard *shard, const struct stuck *stuck, bool delayed)
{
    if (!stuck->blocked && !delayed)
        return true;
    uint64_t share = stuck->blocked ? share_of_blocked(shard) : shard->inbox.capacity / 2;
    return stuck->all == 0 || stuck->own + stuck->all < share;
}

/* The same, when all is known: what is due by now, and what is still on the way. What is done and still in a thread's
 * hand is of no blocked key. A key that is not blocked, and only has the signs of one that is, need not know. */
static bool is_admitted(kl__shard *shard, const kl__lane_key *key, bool delayed, struct stuck *ret_stuck)
{
    int64_t now_ns = kl__exec_now_ns(shard->exec);
    *ret_stuck = count_stuck(shard, key);
    if (!has_share(shard, ret_stuck, delayed)) {
        kl__lanes_advance(shard->lanes, kl__ns_to_ms(now_ns));
        *ret_stuck = count_stuck(shard, key);
        if (!has_share(shard, ret_stuck, delayed))
            return false;
    }
    if (!ret_stuck->blocked && !delayed)
        return true;
    kl__shard_drain_inbox(shard, UINT64_MAX, now_ns); /* as far as it goes */
    *ret_stuck = count_stuck(shard, key);
    add_undrained(shard, key, ret_stuck);
    return has_share(shard, ret_stuck, delayed);
}

kl_rc kl__shard_admit(kl__shard *shard, const kl__applicant *who, bool *ret_blocked)
{
    kl_rc rc;
    uint64_t before;
    struct stuck stuck;
    kl__lane_key key = {who->key, (uint32_t)who->hash};
    if (!who->until_ns && kl__shard_refuses(shard, who->hash)) {
        *ret_blocked = true;
        return KL_EFULL;
    }
    if (!who->delayed && who->key.len > 0 && is_admitted_again(shard, who->hash))
        return KL_OK;
    pthread_mutex_lock(&shard->mutex);
    for (;;) {
        before = atomic_load_explicit(&shard->admitted, memory_order_relaxed);
        bool admitted = is_admitted(shard, &key, who->delayed, &stuck);
        rc = admitted ? KL_OK : kl__inbox_is_shut(&shard->inbox) ? KL_ECLOSED : KL_EFULL;
        int64_t now_ns = kl__monotonic_ns(), look_ns = now_ns + KL_EXEC_LOOK_NS;
        if (rc != KL_EFULL || now_ns >= who->until_ns)
            break;
        kl__shard_offer(shard);
        kl__cond_wait(&shard->room, &shard->mutex, who->until_ns < look_ns ? who->until_ns : look_ns);
    }
    *ret_blocked = stuck.blocked;
    if (rc == KL_EFULL && stuck.blocked)
        note_refused(shard, who->hash);
    else if (rc == KL_OK && stuck.blocked)
        note_admitted(shard, &stuck, before, who->hash);
    kl__shard_offer(shard); /* what came in needs a thread */
    if (rc == KL_EFULL)
        atomic_store_explicit(&shard->told_length, (uint32_t)kl__inbox_length(&shard->inbox), memory_order_relaxed);
    pthread_mutex_unlock(&shard->mutex);
    return rc;
}

/* --- What is said --- */

struct facts {
    kl_exec_full full;
    uint16_t key_len; /* of all of it */
    char key[KEY_SHOWN_BYTES];
};

_Static_assert(sizeof(struct facts) <= KL_FACTS_BYTES_MAX, "they are kept for the thread");

static _Thread_local kl_exec_full last_full;

kl_exec_full kl_exec_last_full(void) { return last_full; }

static size_t bytes_shown(size_t key_len) { return key_len < KEY_SHOWN_BYTES ? key_len : KEY_SHOWN_BYTES; }

static void say_full(const void *facts, char *text, size_t bytes)
{
    const struct facts *f = facts;
    snprintf(text, bytes, "shard %u is full (%u of %u tasks); submit again later, or raise shard_capacity",
             f->full.shard, f->full.length, f->full.capacity);
}

static void say_delayed(const void *facts, char *text, size_t bytes)
{
    const struct facts *f = facts;
    snprintf(
        text, bytes,
        "tasks that cannot run yet have taken up all that they may of shard %u, half of its %u places; submit this "
        "one when it is due, or raise shard_capacity",
        f->full.shard, f->full.capacity);
}

static void say_blocked(const void *facts, char *text, size_t bytes)
{
    const struct facts *f = facts;
    char key[4 * KEY_SHOWN_BYTES + 1];
    kl__text_quote((kl_bytes){f->key, bytes_shown(f->key_len)}, key, sizeof key);
    snprintf(
        text, bytes,
        "key '%s%s' is blocked: it is paused, or a task of it has failed and none been done since; it has all that it "
        "may of shard %u, where blocked keys share a quarter of %u places; submit again when it runs, or resume, skip "
        "or drain it",
        key, f->key_len > KEY_SHOWN_BYTES ? "..." : "", f->full.shard, f->full.capacity);
}

/* Counts a submit that got no place. The first threads that do have a counter each: to share one takes a locked
 * instruction, which waits for all that was written before, and that may be on another core. */
static void count_full(kl__shard *shard)
{
    static _Atomic(uint32_t) threads;
    static _Thread_local uint32_t number;
    if (KL_UNLIKELY(number == 0))
        number = atomic_fetch_add(&threads, 1) + 1;
    _Atomic(uint64_t) *count = &shard->full[number < KL_FULL_COUNTS ? number : 0].count;
    if (KL_LIKELY(number < KL_FULL_COUNTS))
        atomic_store_explicit(count, atomic_load_explicit(count, memory_order_relaxed) + 1, memory_order_relaxed);
    else
        atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
}

uint64_t kl__shard_full_count(kl__shard *shard)
{
    uint64_t full = 0;
    for (int i = 0; i < KL_FULL_COUNTS; i++)
        full += atomic_load(&shard->full[i].count);
    return full;
}

/* Where they lie they are read again only if somebody asks: what is read just after it was written in other pieces
 * waits until all has been written. */
static struct facts *note_full(kl__shard *shard, uint64_t length, kl__say_fn *say)
{
    struct facts *facts = kl__fail_facts(say);
    uint32_t capacity = (uint32_t)shard->inbox.capacity;
    count_full(shard);
    facts->full.shard = last_full.shard = shard->index;
    facts->full.length = last_full.length = length < capacity ? (uint32_t)length : capacity;
    facts->full.capacity = last_full.capacity = capacity;
    facts->full.blocked = last_full.blocked = say != say_full;
    return facts;
}

kl_rc kl__shard_fail_full(kl__shard *shard)
{
    note_full(shard, kl__inbox_length(&shard->inbox), say_full);
    return KL_EFULL;
}

/* How full it is was seen when a key was last refused under the mutex: to look again would take lines that others
 * need. */
kl_rc kl__shard_fail_refused(kl__shard *shard, kl_bytes key, bool blocked)
{
    uint32_t length = atomic_load_explicit(&shard->told_length, memory_order_relaxed);
    struct facts *facts = note_full(shard, length, blocked ? say_blocked : say_delayed);
    facts->key_len = (uint16_t)key.len;
    kl__key_copy(facts->key, (kl_bytes){key.data, bytes_shown(key.len)});
    return KL_EFULL;
}
