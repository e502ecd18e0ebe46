/* crash_load.c - the process that is killed; see crash.h. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/random.h"
#include "crash.h"
#include "store/calls.h"

enum { PAYLOAD_USUAL = 400, PAYLOAD_LARGE = 40 << 10, PAYLOAD_HUGE = 300 << 10, FAR_MS = 3600 * 1000 };
enum { ASYNC_MAX = 64, STRAGGLERS_OF_100 = 6, WAITING_MAX = 4000, IDLE_MS = 5 };

static const kl_layout layout = {1, 1};

/* ---- What follows from a number ---- */

uint64_t crash_hash(uint64_t a, uint64_t b)
{
    uint64_t state = a * 0x9e3779b97f4a7c15u ^ b;
    return kl__random_next(&state);
}

uint64_t crash_serial(const kl_task_id *id) { return (uint64_t)kl_id_ms(&layout, id); }

uint32_t crash_shard(uint64_t serial) { return (uint32_t)(crash_hash(serial, 1) % CRASH_SHARDS); }

kl_task_id crash_id(uint64_t serial)
{
    kl_id_parts parts = {.shard = crash_shard(serial),
                         .ms = (int64_t)serial,
                         .random = (uint32_t)crash_hash(serial, 2) & KL_ID_RANDOM_MAX};
    kl_task_id id;
    if (kl_id_pack(&layout, &parts, &id) != KL_OK)
        abort();
    return id;
}

kl_token crash_token(uint64_t serial)
{
    kl_token token;
    uint64_t words[2] = {crash_hash(serial, 3), serial};
    memcpy(token.bytes, words, sizeof token.bytes);
    return token;
}

static kl_bytes fill(char **room, size_t bytes, uint64_t seed)
{
    kl_bytes filled = {*room, bytes};
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = crash_hash(seed, at);
        memcpy(*room + at, &word, bytes - at < 8 ? bytes - at : 8);
    }
    *room += bytes;
    return filled;
}

static size_t payload_bytes(uint64_t hash)
{
    uint64_t sort = hash % 1000, size = hash / 1000;
    return size % (sort == 0 ? PAYLOAD_HUGE : sort < 20 ? PAYLOAD_LARGE : PAYLOAD_USUAL);
}

void crash_entry(const struct crash_ledger *ledger, uint64_t serial, char *room, kl_entry *ret_entry)
{
    uint64_t hash = crash_hash(serial, 4), when = crash_hash(serial, 5);
    *ret_entry = (kl_entry){.place = {ledger->partition, crash_shard(serial)},
                            .id = crash_id(serial),
                            .group = (uint16_t)crash_hash(serial, 7)};
    if (hash % 4 == 0)
        ret_entry->priority = (int32_t)(hash / 4 % 5) - 2;
    if (when % 10 == 0)
        ret_entry->due_ms = ledger->base_ms + (int64_t)(when / 10 % 20000);
    else if (when % 50 == 1)
        ret_entry->due_ms = ledger->base_ms + 24 * (int64_t)FAR_MS + (int64_t)(when / 50 % FAR_MS);
    if (hash % 3 == 0)
        ret_entry->job = crash_id(1 + hash / 3 % 7);
    if (hash % 10)
        ret_entry->key = fill(&room, 4 + hash / 10 % 20, crash_hash(hash / 10 % 64, 6));
    ret_entry->kind = fill(&room, hash / 16 % 12, 7);
    ret_entry->headers = fill(&room, hash % 5 ? 0 : hash / 5 % 64, crash_hash(serial, 8));
    ret_entry->payload = fill(&room, payload_bytes(crash_hash(serial, 9)), crash_hash(serial, 10));
}

kl_settled crash_settled(uint64_t serial, uint32_t attempt, char *room)
{
    uint64_t hash = crash_hash(serial, 100 + attempt), kind = hash % 16;
    kl_settled settled = {.id = crash_id(serial), .attempts = attempt, .outcome = KL_DONE};
    if (kind < 5 && attempt < CRASH_ATTEMPTS_MAX)
        settled.outcome = KL_RETRY;
    else if (kind < 7)
        settled.outcome = KL_DEAD;
    else if (kind == 7)
        settled.outcome = KL_CANCELLED;
    if (settled.outcome == KL_RETRY && hash / 16 % 4 == 0)
        settled.due_ms = 1 + (int64_t)(hash / 64 % 1000);
    if (hash / 4096 % 3 == 0)
        settled.keep_ms = FAR_MS;
    if (settled.outcome != KL_DONE && hash / 16384 % 4)
        settled.error = (kl_bytes){
            room, (size_t)snprintf(room, 128, "attempt %u of %llu went wrong", attempt, (unsigned long long)serial)};
    else if (settled.outcome == KL_DONE && hash / 16384 % 2)
        settled.result = (kl_bytes){room, (size_t)snprintf(room, 128, "%llu came of it", (unsigned long long)hash)};
    return settled;
}

bool crash_value(uint64_t seed, uint32_t record, uint64_t writes, char *room, kl_bytes *ret_value)
{
    uint64_t hash = crash_hash(crash_hash(seed, record), writes);
    if (writes == 0 || hash % 8 == 0)
        return false;
    char *at = room + snprintf(room, 64, "record %u, write %llu ", record, (unsigned long long)writes);
    fill(&at, hash / 8 % (hash % 8 == 1 ? CRASH_VALUE_BYTES - 64 : 200), hash);
    *ret_value = (kl_bytes){room, (size_t)(at - room)};
    return true;
}

kl_bytes crash_name(uint32_t record, char room[16])
{
    return (kl_bytes){room, (size_t)snprintf(room, 16, "record/%02u", record)};
}

/* ---- One of the threads ---- */

struct hand {
    struct crash_ledger *ledger;
    kl_store *store;
    uint32_t number;
    uint64_t random;
    char *rooms; /* of the entries of one call */
    _Atomic int async;
};

static _Noreturn void give_up(struct crash_ledger *ledger, const char *format, ...)
{
    if (!atomic_exchange(&ledger->has_failed, true)) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(ledger->failure, sizeof ledger->failure, format, arguments);
        va_end(arguments);
    }
    _exit(3);
}

static void expect(struct hand *hand, kl_rc rc, const char *what)
{
    if (rc != KL_OK)
        give_up(hand->ledger, "%s failed in the running process: %s", what, kl_error_text());
}

static void count_call(struct crash_ledger *ledger) { atomic_fetch_add(&ledger->calls, 1); }

static uint64_t below(struct hand *hand, uint64_t bound) { return kl__random_below(&hand->random, bound); }

static void idle(void)
{
    struct timespec pause = {.tv_nsec = IDLE_MS * 1000000};
    nanosleep(&pause, NULL);
}

static struct crash_task *task_of(struct crash_ledger *ledger, uint64_t serial)
{
    return &ledger->tasks[serial % CRASH_SLOTS];
}

/* ---- Producers ---- */

/* Notes up to `count` new tasks as one call; fewer, or none, when slots run out. */
static uint32_t note_tasks(struct hand *hand, uint32_t count, uint64_t *ret_serials)
{
    struct crash_ledger *ledger = hand->ledger;
    uint32_t at = atomic_fetch_add(&ledger->free_next, count);
    if (at >= ledger->free_count) {
        atomic_fetch_sub(&ledger->free_next, count);
        return 0;
    }
    if (count > ledger->free_count - at)
        count = ledger->free_count - at;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = ledger->free_slots[at + i];
        struct crash_task *task = &ledger->tasks[slot];
        uint64_t use = atomic_fetch_add(&ledger->uses, 1) + 1;
        task->order = ++ledger->orders[hand->number];
        task->serial = use * CRASH_SLOTS + slot;
        ret_serials[i] = task->serial;
        task->call = ret_serials[0];
        task->call_size = (uint16_t)count;
        task->producer = (uint8_t)hand->number;
        atomic_store(&task->settling, 0);
        atomic_store(&task->settled, 0);
    }
    for (uint32_t i = 0; i < count; i++)
        atomic_store(&task_of(ledger, ret_serials[i])->appended, CRASH_ATTEMPTED);
    return count;
}

static void acknowledge(struct crash_ledger *ledger, const uint64_t *serials, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        atomic_store(&task_of(ledger, serials[i])->appended, CRASH_ACKNOWLEDGED);
    count_call(ledger);
}

/* May so many tasks be added? Not while the settlers are behind. */
static bool is_wanted(struct hand *hand, uint32_t count)
{
    if (atomic_load(&hand->ledger->waiting) > WAITING_MAX) {
        idle();
        return false;
    }
    atomic_fetch_add(&hand->ledger->waiting, count);
    return true;
}

static void make_entries(struct hand *hand, const uint64_t *serials, uint32_t count, kl_entry *entries)
{
    for (uint32_t i = 0; i < count; i++)
        crash_entry(hand->ledger, serials[i], hand->rooms + (size_t)i * CRASH_ENTRY_BYTES, &entries[i]);
}

static void append_plain(struct hand *hand, uint32_t count)
{
    uint64_t serials[CRASH_CALL_MAX];
    kl_entry entries[CRASH_CALL_MAX];
    if ((count = note_tasks(hand, count, serials)) == 0)
        return;
    make_entries(hand, serials, count, entries);
    expect(hand, kl_store_append(hand->store, entries, count, NULL), "append");
    acknowledge(hand->ledger, serials, count);
}

/* The call under way is noted before it begins, and as the last one told once it has ended. */
static void append_token(struct hand *hand, uint32_t count)
{
    struct crash_ledger *ledger = hand->ledger;
    struct crash_call *telling = &ledger->telling[hand->number], *told = &ledger->told[hand->number];
    kl_entry entries[CRASH_CALL_MAX];
    if ((telling->count = note_tasks(hand, count, telling->serials)) == 0)
        return;
    make_entries(hand, telling->serials, telling->count, entries);
    kl_token token = crash_token(telling->serials[0]);
    atomic_store(&telling->state, CRASH_ATTEMPTED);
    for (uint64_t times = below(hand, 3) == 0 ? 2 : 1; times > 0; times--)
        expect(hand, kl_store_append(hand->store, entries, telling->count, &token), "append with a token");
    acknowledge(ledger, telling->serials, telling->count);
    atomic_store(&told->state, CRASH_NONE);
    told->count = telling->count;
    memcpy(told->serials, telling->serials, sizeof told->serials);
    atomic_store(&told->state, CRASH_ACKNOWLEDGED);
    atomic_store(&telling->state, CRASH_NONE);
}

struct later {
    struct hand *hand;
    uint32_t count;
    uint64_t serials[CRASH_CALL_MAX];
};

static void appended(void *ctx, kl_rc rc, const char *error)
{
    struct later *later = ctx;
    if (rc != KL_OK)
        give_up(later->hand->ledger, "an asynchronous append failed in the running process: %s", error);
    acknowledge(later->hand->ledger, later->serials, later->count);
    atomic_fetch_sub(&later->hand->async, 1);
    free(later);
}

static void append_async(struct hand *hand, uint32_t count)
{
    kl_entry entries[CRASH_CALL_MAX];
    struct later *later = calloc(1, sizeof *later);
    if (!later)
        abort();
    later->hand = hand;
    if (atomic_load(&hand->async) >= ASYNC_MAX || (later->count = note_tasks(hand, count, later->serials)) == 0) {
        free(later);
        return;
    }
    make_entries(hand, later->serials, later->count, entries);
    kl_token token = crash_token(later->serials[0]);
    atomic_fetch_add(&hand->async, 1);
    expect(hand,
           kl_store_append_async(hand->store, entries, later->count, below(hand, 2) ? &token : NULL, appended, later),
           "append_async");
}

static void *produce(void *ctx)
{
    struct hand *hand = ctx;
    for (;;) {
        uint64_t what = below(hand, 100);
        uint32_t count = below(hand, 4) ? 1 : 2 + (uint32_t)below(hand, CRASH_CALL_MAX - 1);
        if (!is_wanted(hand, count))
            continue;
        if (what < 55)
            append_plain(hand, count);
        else if (what < 75)
            append_token(hand, count);
        else
            append_async(hand, count);
    }
    return NULL;
}

/* ---- Settlers: each has its own shards ---- */

static bool is_straggler(const struct crash_ledger *ledger, uint64_t serial)
{
    return crash_hash(serial, ledger->round / 4) % 100 < STRAGGLERS_OF_100;
}

/* Notes what will be settled; the tasks of the ledger are as scanned, for nobody else settles this shard. */
static uint32_t choose(struct hand *hand, const kl_stub *stubs, size_t count, kl_settled *settled, char *room)
{
    struct crash_ledger *ledger = hand->ledger;
    struct crash_call *call = &ledger->settles[hand->number];
    call->count = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t serial = crash_serial(&stubs[i].id);
        struct crash_task *task = task_of(ledger, serial);
        if (task->serial != serial)
            give_up(ledger, "task %llu is shown, which nobody appended", (unsigned long long)serial);
        if (stubs[i].attempts != atomic_load(&task->settled))
            give_up(ledger, "task %llu was settled %u times and is shown with %u", (unsigned long long)serial,
                    atomic_load(&task->settled), stubs[i].attempts);
        if (is_straggler(ledger, serial))
            continue;
        settled[call->count] = crash_settled(serial, stubs[i].attempts + 1u, room);
        settled[call->count].position = stubs[i].position;
        room += CRASH_SETTLED_BYTES;
        call->attempts[call->count] = (uint8_t)(stubs[i].attempts + 1);
        call->serials[call->count++] = serial;
    }
    atomic_store(&call->state, CRASH_ATTEMPTED);
    for (uint32_t i = 0; i < call->count; i++)
        atomic_fetch_add(&task_of(ledger, call->serials[i])->settling, 1);
    return call->count;
}

static void settle_stubs(struct hand *hand, kl_place place, const kl_stub *stubs, size_t count)
{
    struct crash_ledger *ledger = hand->ledger;
    struct crash_call *call = &ledger->settles[hand->number];
    kl_settled settled[CRASH_CALL_MAX];
    uint32_t chosen = choose(hand, stubs, count, settled, hand->rooms);
    if (chosen) {
        kl_settle batch = {
            .place = place, .epoch = atomic_load(&ledger->fenced[place.shard]), .tasks = settled, .count = chosen};
        expect(hand, kl_store_settle(hand->store, &batch, 1), "settle");
        for (uint32_t i = 0; i < chosen; i++) {
            atomic_fetch_add(&task_of(ledger, call->serials[i])->settled, 1);
            atomic_fetch_sub(&ledger->waiting, settled[i].outcome != KL_RETRY);
        }
        count_call(ledger);
    }
    atomic_store(&call->state, CRASH_NONE);
}

static void settle_line(struct hand *hand, kl_place place, int32_t line)
{
    kl_stub stubs[CRASH_CALL_MAX];
    kl_scan scan = {.place = place, .line = line, .max = 1 + below(hand, CRASH_CALL_MAX)};
    size_t count;
    expect(hand, kl_store_now(hand->store, &scan.until_ms), "now");
    if (below(hand, 20) == 0)
        scan.until_ms = KL_ID_MS_MAX;
    expect(hand, scan_one(hand->store, &scan, stubs, &count), "scan");
    while (count) {
        settle_stubs(hand, place, stubs, count);
        kl_stub last = stubs[count - 1];
        scan.after = &last;
        expect(hand, scan_one(hand->store, &scan, stubs, &count), "scan");
    }
}

static void raise_fence(struct hand *hand, kl_place place)
{
    struct crash_ledger *ledger = hand->ledger;
    uint64_t epoch = atomic_load(&ledger->fenced[place.shard]) + 1 + below(hand, 3);
    kl_fence fence = {.place = place, .epoch = epoch};
    atomic_store(&ledger->fencing[place.shard], epoch);
    expect(hand, kl_store_fence(hand->store, &fence, 1), "fence");
    atomic_store(&ledger->fenced[place.shard], epoch);
    count_call(ledger);
}

/* An owner that was fenced off tries to settle what it once scanned. */
static void settle_late(struct hand *hand, kl_place place)
{
    uint64_t epoch = atomic_load(&hand->ledger->fenced[place.shard]);
    kl_scan scan = {.place = place, .line = 0, .max = 1};
    kl_stub stub;
    size_t count;
    expect(hand, scan_one(hand->store, &scan, &stub, &count), "scan");
    if (epoch == 0 || count == 0)
        return;
    kl_settled settled = {.id = stub.id, .position = stub.position, .outcome = KL_DONE, .attempts = 9};
    kl_settle batch = {.place = place, .epoch = epoch - 1, .tasks = &settled, .count = 1};
    if (kl_store_settle(hand->store, &batch, 1) != KL_ESTALE)
        give_up(hand->ledger, "a settle of shard %u at epoch %llu is accepted, which is fenced at %llu", place.shard,
                (unsigned long long)epoch - 1, (unsigned long long)epoch);
}

static void *settle(void *ctx)
{
    struct hand *hand = ctx;
    for (uint64_t seen = 0;;) {
        for (uint32_t shard = hand->number; shard < CRASH_SHARDS; shard += CRASH_SETTLERS) {
            kl_place place = {hand->ledger->partition, shard};
            for (int32_t line = KL_LINE_RETRY; line >= KL_PRIORITY_MIN; line--)
                if (line >= KL_LINE_DUE || (line >= -2 && line <= 2))
                    settle_line(hand, place, line);
            if (below(hand, 8) == 0)
                raise_fence(hand, place);
            if (below(hand, 8) == 0)
                settle_late(hand, place);
        }
        expect(hand, kl_store_wait(hand->store, hand->ledger->partition, IDLE_MS, &seen), "wait");
    }
    return NULL;
}

/* ---- The writer of records, who also seals ---- */

kl_task_id crash_sealed_id(uint32_t shard)
{
    static const kl_layout sealed = {1, CRASH_SEALS_PREFIX_LEN};
    kl_id_parts parts = {.shard = shard, .ms = 1};
    kl_task_id id;
    if (kl_id_pack(&sealed, &parts, &id) != KL_OK)
        abort();
    return id;
}

static void seal_next(struct hand *hand)
{
    struct crash_ledger *ledger = hand->ledger;
    uint32_t shard = atomic_load(&ledger->sealed), partition;
    if (shard == CRASH_SEALS)
        return;
    expect(hand, kl_store_partition(hand->store, CRASH_SEALS_NAME, CRASH_SEALS_PREFIX_LEN, &partition), "partition");
    kl_fence fence = {.place = {partition, shard}, .seal = true};
    atomic_store(&ledger->sealing, shard + 1);
    expect(hand, kl_store_fence(hand->store, &fence, 1), "seal");
    atomic_store(&ledger->sealed, shard + 1);
    kl_entry late = {.place = fence.place, .id = crash_sealed_id(shard)};
    if (kl_store_append(hand->store, &late, 1, NULL) != KL_ESEALED)
        give_up(ledger, "shard %u was sealed, and takes a task", shard);
    count_call(ledger);
}

static void write_record(struct hand *hand, uint32_t record, char *room)
{
    struct crash_ledger *ledger = hand->ledger;
    char name[16];
    uint64_t writes = atomic_load(&ledger->written[record]) + 1;
    kl_write write = {.name = crash_name(record, name), .version = atomic_load(&ledger->versions[record])};
    write.remove = !crash_value(ledger->seed, record, writes, room, &write.value);
    if (!write.remove && writes % 5 == 0)
        write.expires_ms = KL_ID_MS_MAX - 1;
    atomic_store(&ledger->writing[record], writes);
    expect(hand, kl_store_put(hand->store, &write, 1), "put");
    atomic_store(&ledger->versions[record], write.new_version);
    atomic_store(&ledger->written[record], writes);
    count_call(ledger);
}

static void *write_records(void *ctx)
{
    struct hand *hand = ctx;
    for (;;) {
        write_record(hand, (uint32_t)below(hand, CRASH_RECORDS), hand->rooms);
        if (below(hand, 16) == 0)
            seal_next(hand);
    }
    return NULL;
}

/* ---- The process ---- */

static void start(struct crash_ledger *ledger, kl_store *store, uint32_t number, uint64_t part, void *(*run)(void *))
{
    struct hand *hand = calloc(1, sizeof *hand);
    char *rooms = malloc((size_t)CRASH_CALL_MAX * CRASH_ENTRY_BYTES);
    pthread_t thread;
    if (!hand || !rooms)
        abort();
    *hand = (struct hand){.ledger = ledger, .store = store, .number = number, .rooms = rooms};
    hand->random = crash_hash(crash_hash(ledger->seed, ledger->round), part * 100 + number);
    if (pthread_create(&thread, NULL, run, hand) != 0)
        abort();
    pthread_detach(thread);
}

void crash_load(struct crash_ledger *ledger, const char *dir)
{
    kl_store *store;
    uint32_t partition;
    if (crash_open(dir, &store) != KL_OK)
        give_up(ledger, "open failed: %s", kl_error_text());
    if (kl_store_partition(store, "crash", layout.shard_prefix_len, &partition) != KL_OK || partition != 1)
        give_up(ledger, "the partition was not 1, or failed: %s", kl_error_text());
    atomic_store(&ledger->is_open, true);
    for (uint32_t i = 0; i < CRASH_PRODUCERS; i++)
        start(ledger, store, i, 1, produce);
    for (uint32_t i = 0; i < CRASH_SETTLERS; i++)
        start(ledger, store, i, 2, settle);
    start(ledger, store, 0, 3, write_records);
    for (;;)
        pause();
}
