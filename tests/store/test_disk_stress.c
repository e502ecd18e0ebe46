/* test_disk_stress.c - appends, tokens, outcomes, records and fences from many threads while segments are copied and
 * dropped all the time; then the store must be what the threads remember, now and opened again.
 *
 * Each thread has tasks, a record and a shard to fence of its own, so that it knows exactly what must be there. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/random.h"
#include "disk_rig.h"

enum { THREADS = 6, TASKS = 6000, STEPS = 3000, SEGMENT = 64 << 10, BATCH = 24, ATTEMPTS_MAX = 3, VALUE_MAX = 2000 };

enum task_is { NEVER, WAITING, KEPT, GONE };

struct owner {
    struct rig *rig;
    uint64_t index, random;
    uint8_t is[TASKS], attempts[TASKS];
    uint64_t next; /* not appended yet */
    uint64_t version, writes, epoch;
    size_t value_bytes;
    uint64_t token_first, token_count; /* of the last append that had one */
};

static uint64_t below(struct owner *owner, uint64_t bound) { return kl__random_below(&owner->random, bound); }

/* Most are small; stragglers of some size make copying worth while. */
static size_t bytes_of(uint64_t number) { return number % 50 == 0 ? 3000 : 20 + number % 300; }

static uint64_t number_of(const struct owner *owner, uint64_t task) { return owner->index * TASKS + task; }

/* ---- Steps ---- */

static kl_token token_of(const struct owner *owner, uint64_t task)
{
    kl_token token = {{0}};
    uint64_t words[2] = {number_of(owner, task) * 0x9e3779b97f4a7c15u, number_of(owner, task)};
    memcpy(token.bytes, words, sizeof token.bytes);
    return token;
}

static void fill(const struct owner *owner, uint64_t first, uint64_t count, kl_entry *entries)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t number = number_of(owner, first + i);
        entries[i] = rig_entry(owner->rig, number, bytes_of(number));
        if (number % 7 == 0)
            entries[i].due_ms = 1 + (int64_t)(number % 1000);
        entries[i].priority = (int32_t)(number % 3) - 1;
    }
}

static void append(struct owner *owner)
{
    kl_entry entries[BATCH];
    uint64_t count = 1 + below(owner, BATCH), first = owner->next;
    bool has_token = below(owner, 2);
    kl_token token = token_of(owner, first);
    if (first + count > TASKS)
        return;
    fill(owner, first, count, entries);
    for (uint64_t times = has_token && below(owner, 4) == 0 ? 2 : 1; times > 0; times--)
        CHECK_OK(kl_store_append(owner->rig->store, entries, count, has_token ? &token : NULL));
    for (uint64_t i = 0; i < count; i++)
        owner->is[first + i] = WAITING;
    owner->next += count;
    if (has_token) {
        owner->token_first = first;
        owner->token_count = count;
    }
}

static kl_settled settled_of(struct owner *owner, uint64_t task)
{
    uint64_t what = below(owner, 10);
    bool ends = what >= 3 || owner->attempts[task] == ATTEMPTS_MAX;
    kl_settled settled = {.id = rig_id(number_of(owner, task)),
                          .outcome = !ends       ? KL_RETRY
                                     : what == 9 ? KL_DEAD
                                                 : KL_DONE,
                          .attempts = owner->attempts[task] + 1u,
                          .error = {"no luck", 7}};
    if (what % 3 == 0)
        settled.keep_ms = 100000000;
    return settled;
}

/* Some tasks of one shard, from near the last appended; what is passed by becomes a straggler. */
static void settle(struct owner *owner)
{
    kl_settled settled[BATCH];
    uint64_t tasks[BATCH], shard = below(owner, RIG_SHARDS);
    kl_settle batch = {.place = {owner->rig->partition, (uint32_t)shard}, .epoch = KL_EPOCH_MAX, .tasks = settled};
    uint64_t from = below(owner, 8) == 0 ? 0 : owner->next > 1000 ? owner->next - 1000 : 0;
    for (uint64_t task = from; task < owner->next && batch.count < BATCH; task++) {
        if (owner->is[task] != WAITING || number_of(owner, task) % RIG_SHARDS != shard ||
            number_of(owner, task) % 31 == 0)
            continue;
        settled[batch.count] = settled_of(owner, task);
        tasks[batch.count++] = task;
    }
    if (!batch.count)
        return;
    CHECK_OK(rig_set_positions(owner->rig, batch.place, settled, batch.count));
    CHECK_OK(kl_store_settle(owner->rig->store, &batch, 1));
    for (size_t i = 0; i < batch.count; i++) {
        owner->attempts[tasks[i]]++;
        if (settled[i].outcome != KL_RETRY)
            owner->is[tasks[i]] = settled[i].keep_ms ? KEPT : GONE;
    }
}

static kl_bytes value_of(const struct owner *owner, char *room)
{
    memset(room, (int)('a' + owner->index), VALUE_MAX);
    memcpy(room, &owner->writes, sizeof owner->writes);
    return (kl_bytes){room, owner->value_bytes};
}

static void put(struct owner *owner)
{
    char value[VALUE_MAX], name[16];
    kl_write write = {.name = {name, (size_t)snprintf(name, sizeof name, "owner-%u", (unsigned)owner->index)},
                      .version = owner->version};
    owner->writes++;
    owner->value_bytes = 8 + below(owner, VALUE_MAX - 8);
    write.value = value_of(owner, value);
    CHECK_OK(kl_store_put(owner->rig->store, &write, 1));
    owner->version = write.new_version;
}

static void fence(struct owner *owner)
{
    kl_fence fences = {.place = {owner->rig->partition, (uint32_t)owner->index}, .epoch = ++owner->epoch};
    CHECK_OK(kl_store_fence(owner->rig->store, &fences, 1));
}

static void *act(void *ctx)
{
    struct owner *owner = ctx;
    for (uint64_t i = 0, steps = test_ops(STEPS); i < steps && !test_failed(); i++) {
        uint64_t what = below(owner, 100);
        if (what < 40)
            append(owner);
        else if (what < 80)
            settle(owner);
        else if (what < 95)
            put(owner);
        else
            fence(owner);
    }
    return NULL;
}

/* ---- Comparing ---- */

static void check_task(struct owner *owner, uint64_t task)
{
    uint64_t number = number_of(owner, task);
    kl_entry expected = rig_entry(owner->rig, number, bytes_of(number));
    kl_task found;
    size_t count;
    kl_arena_reset(&owner->rig->arena);
    CHECK_OK(read_some(owner->rig->store, expected.place, &expected.id, 1, &owner->rig->arena, &found, &count));
    REQUIRE(count == 1);
    if (owner->is[task] == WAITING) {
        CHECK_INT(found.state, KL_TASK_WAITING);
        CHECK_INT(found.attempts, owner->attempts[task]);
        CHECK(found.entry.payload.len == bytes_of(number) &&
              memcmp(found.entry.payload.data, expected.payload.data, bytes_of(number)) == 0);
    } else if (owner->is[task] == KEPT) {
        CHECK(found.state == KL_TASK_DONE || found.state == KL_TASK_DEAD);
        CHECK_INT(found.attempts, owner->attempts[task]);
    } else {
        CHECK_INT(found.state, KL_TASK_UNKNOWN);
    }
}

static void check_values(struct owner *owner)
{
    char name[16], value[VALUE_MAX];
    kl_bytes named = {name, (size_t)snprintf(name, sizeof name, "owner-%u", (unsigned)owner->index)};
    kl_bytes expected = value_of(owner, value);
    kl_record record;
    CHECK_OK(kl_store_get(owner->rig->store, &named, 1, &owner->rig->arena, &record));
    CHECK_INT(record.version, owner->version);
    CHECK(!owner->version ||
          (record.value.len == expected.len && memcmp(record.value.data, expected.data, expected.len) == 0));
    if (!owner->epoch)
        return;
    kl_settled nobody = {.id = rig_id(1000000 * RIG_SHARDS + owner->index), .position = 1, .attempts = 1};
    kl_settle late = {.place = {owner->rig->partition, (uint32_t)owner->index},
                      .epoch = owner->epoch - 1,
                      .tasks = &nobody,
                      .count = 1};
    CHECK_INT(kl_store_settle(owner->rig->store, &late, 1), KL_ESTALE);
    late.epoch = owner->epoch;
    CHECK_OK(kl_store_settle(owner->rig->store, &late, 1));
}

/* The last append with a token is repeated first, so that what it might store twice is found. */
static void compare(struct owner *owners)
{
    uint64_t waiting = 0, kept = 0;
    kl_counts counts;
    for (int i = 0; i < THREADS; i++) {
        struct owner *owner = &owners[i];
        kl_entry entries[BATCH];
        kl_token token = token_of(owner, owner->token_first);
        fill(owner, owner->token_first, owner->token_count, entries);
        if (owner->token_count)
            CHECK_OK(kl_store_append(owner->rig->store, entries, owner->token_count, &token));
        for (uint64_t task = 0; task < owner->next; task++) {
            check_task(owner, task);
            waiting += owner->is[task] == WAITING;
            kept += owner->is[task] == KEPT;
        }
        check_values(owner);
    }
    CHECK_OK(kl_store_counts(owners->rig->store, (kl_place){owners->rig->partition, KL_ALL_SHARDS}, NULL, &counts));
    CHECK_INT(counts.ready + counts.due + counts.retry, waiting);
    CHECK_INT(counts.done + counts.dead, kept);
}

TEST(nothing_is_lost_while_segments_are_copied_and_dropped)
{
    struct rig rig;
    struct owner *owners = calloc(THREADS, sizeof *owners);
    pthread_t threads[THREADS];
    REQUIRE(rig_begin(&rig, SEGMENT));
    for (uint64_t i = 0; i < THREADS; i++) {
        owners[i].rig = &rig;
        owners[i].index = i;
        owners[i].random = test_seed() + i;
        CHECK(pthread_create(&threads[i], NULL, act, &owners[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int life = 0; life < 3 && rig.store; life++) {
        compare(owners);
        rig_reopen(&rig);
    }
    free(owners);
    rig_end(&rig);
}

/* ---- Threads that are cancelled ---- */

enum { CANCELLED = 50 };

static _Atomic(uint64_t) begun;

static void *append_for_ever(void *ctx)
{
    for (;;) {
        kl_entry entry = rig_entry(ctx, atomic_fetch_add(&begun, 1), 100);
        CHECK_OK(kl_store_append(((struct rig *)ctx)->store, &entry, 1, NULL));
        pthread_testcancel();
    }
    return NULL;
}

TEST(a_cancelled_thread_holds_up_nobody_elses_appends)
{
    struct rig rig;
    REQUIRE(rig_begin(&rig, SEGMENT));
    for (int i = 0; i < CANCELLED && !test_failed(); i++) {
        pthread_t thread;
        uint64_t before = atomic_load(&begun);
        REQUIRE(pthread_create(&thread, NULL, append_for_ever, &rig) == 0);
        while (atomic_load(&begun) < before + 3)
            sched_yield();
        pthread_cancel(thread);
        pthread_join(thread, NULL);
    }
    uint64_t before = rig_waiting(&rig);
    rig_append(&rig, atomic_load(&begun), 1, 100);
    CHECK_INT(rig_waiting(&rig), before + 1);
    rig_end(&rig);
}
