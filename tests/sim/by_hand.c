/* by_hand.c - seed 0: what chance comes to too seldom, done on purpose.
 *
 * Steps of a worker while the layout or the lease changes, each with what others may do just then. A pump is driven by
 * hand, by a clock that goes on when it is told to. */
#include <stdio.h>

#include "base/hash.h"
#include "sim/world.h"

enum { LEASE_MS = 1000, STEP_MS = 200, STEPS_MAX = 20, SHARDS = 16 };

struct hand {
    int64_t now_ms;
    kl_store *store;
    kl_queue *queue;
    kl__pump *pump;
    const char *wrong; /* the first thing that was; NULL: all is well */
};

static void must(struct hand *hand, bool holds, const char *wrong)
{
    if (!holds && !hand->wrong)
        hand->wrong = wrong;
}

static int64_t now_of(void *ctx) { return ((const struct hand *)ctx)->now_ms; }

static bool hand_open(struct hand *hand)
{
    *hand = (struct hand){.now_ms = INT64_C(1800000000000)};
    kl_store_opts store_opts = {.size = sizeof store_opts, .now_ms = now_of, .now_ctx = hand};
    kl_queue_opts queue_opts = {.size = sizeof queue_opts, .lease_ms = LEASE_MS};
    if (kl_store_open("memory:", &store_opts, &hand->store) != KL_OK ||
        kl_queue_open(hand->store, "q", &queue_opts, &hand->queue) != KL_OK)
        return false;
    kl__pump_opts opts = {.queue = hand->queue,
                          .worker = {{1}},
                          .worker_name = "by hand",
                          .window_max = KL_WINDOW_MIN,
                          .concurrency = 1,
                          .seed = 1,
                          .local_ms = now_of,
                          .local_ctx = hand};
    return kl__pump_open(&opts, &hand->pump) == KL_OK;
}

static void hand_close(struct hand *hand)
{
    kl__pump_close(hand->pump);
    kl_queue_close(hand->queue);
    kl_store_close(hand->store);
}

static void put_one(struct hand *hand, int64_t delay_ms)
{
    kl_put put = {.key = kl_str("k"), .payload = kl_str("x"), .delay_ms = delay_ms};
    kl_put_result result;
    must(hand, kl_queue_put(hand->queue, &put, 1, (kl_bytes){0}, &result) == KL_OK, "a call fails");
}

static void alter(struct hand *hand)
{
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 2};
    must(hand, kl_queue_alter(hand->queue, &opts) == KL_OK, "a call fails");
}

static void tick(struct hand *hand)
{
    hand->now_ms += STEP_MS;
    must(hand, kl__pump_tick(hand->pump) == KL_OK, "a call fails");
}

static void step(struct hand *hand)
{
    tick(hand);
    must(hand, kl__pump_beat(hand->pump) == KL_OK, "a call fails");
}

static const kl__queue_layout *layout_of(const struct hand *hand, uint64_t number)
{
    const kl__descriptor *descriptor = hand->pump->descriptor;
    for (size_t i = 0; i < descriptor->layout_count; i++)
        if (descriptor->layouts[i].number == number)
            return &descriptor->layouts[i];
    return NULL;
}

static uint64_t waiting_in(struct hand *hand, uint64_t number)
{
    const kl__queue_layout *layout = layout_of(hand, number);
    kl_counts counts = {0};
    must(hand, !layout || kl__layout_count(layout, &counts) == KL_OK, "a call fails");
    return kl__counts_waiting(&counts);
}

static bool is_closed(const struct hand *hand)
{
    return kl__gate_closed(kl__gate_of(hand->pump, 2), kl__key_hash(kl_str("k")));
}

static bool is_known(const struct hand *hand)
{
    const kl__gate *gate = kl__gate_of(hand->pump, 2);
    return gate && !kl__gate_shut(gate);
}

/* Ends what waits in the first layout, as another worker would that has moved it. */
static void empty_first(struct hand *hand)
{
    const kl__queue_layout *layout = layout_of(hand, 1);
    for (uint32_t shard = 0; shard < kl_layout_shards(&layout->layout); shard++) {
        kl_place place = {layout->numbers[0], shard};
        kl_stub stub;
        kl_scan scan = {.place = place, .line = 0, .stubs = &stub, .max = 1};
        kl_fence fence = {.place = place, .epoch = 1000};
        must(hand, kl_store_scan(hand->store, &scan, 1) == KL_OK, "a call fails");
        if (scan.count == 0)
            continue;
        kl_settled settled = {.id = stub.id, .position = stub.position, .outcome = KL_DONE, .attempts = 1};
        kl_settle batch = {.place = place, .epoch = fence.epoch, .tasks = &settled, .count = 1};
        must(hand, kl_store_fence(hand->store, &fence, 1) == KL_OK, "a call fails");
        must(hand, kl_store_settle(hand->store, &batch, 1) == KL_OK, "a call fails");
    }
}

/* What older layouts hold counts once the record was read again: whoever emptied one may have known of a layout that is
 * not known here. */
static void believe_late(struct hand *hand)
{
    put_one(hand, 0);
    alter(hand);
    for (int i = 0; i < STEPS_MAX && !is_known(hand); i++)
        step(hand);
    must(hand, is_known(hand) && is_closed(hand), "a key runs in a newer layout beside an older one");
    empty_first(hand);
    for (int i = 0; i < 3; i++) {
        must(hand, kl__gates_refresh(hand->pump) == KL_OK, "a call fails");
        must(hand, is_closed(hand), "a gate is opened before the record is read again");
    }
    for (int i = 0; i < STEPS_MAX && is_closed(hand); i++)
        step(hand);
    must(hand, !is_closed(hand), "a gate is never opened");
}

/* Who has no lease moves no delayed task: the next owner may be running it. */
static void move_owned(struct hand *hand)
{
    put_one(hand, 3600000);
    for (int i = 0; i < STEPS_MAX && hand->pump->shard_count < SHARDS; i++)
        step(hand);
    must(hand, hand->pump->shard_count == SHARDS, "a worker does not get its shards");
    alter(hand);
    hand->now_ms += LEASE_MS;
    for (int i = 0; i < 5; i++)
        tick(hand);
    must(hand, waiting_in(hand, 1) == 1 && waiting_in(hand, 2) == 0, "a task is moved by one who has no lease");
    for (int i = 0; i < STEPS_MAX && waiting_in(hand, 1) > 0; i++)
        step(hand);
    must(hand, waiting_in(hand, 1) == 0 && waiting_in(hand, 2) == 1, "a task is not moved by its owner");
}

/* Who has taken a shard runs and ends nothing of its due line before the record was read again: the owner before may
 * have known of a newer layout, and have put a copy there. */
static void read_first(struct hand *hand)
{
    put_one(hand, 3600000);
    for (int i = 0; i < STEPS_MAX && hand->pump->shard_count < SHARDS; i++)
        step(hand);
    alter(hand);
    hand->now_ms += LEASE_MS / 2;
    for (int i = 0; i < 2; i++) { /* they are lost, and taken again */
        hand->now_ms += LEASE_MS / 2;
        must(hand, kl__pump_keep(hand->pump) == KL_OK, "a call fails");
    }
    must(hand, hand->pump->shard_count == SHARDS, "a worker does not get its shards");
    for (kl__window *window = hand->pump->partitions->windows; window; window = window->next) {
        must(hand, !kl__window_keeps_due(window), "a delayed task is run where another owner may have moved it from");
        must(hand, !kl__window_clear_due(window), "a delayed task is ended, and a copy of it may be left");
    }
}

static void own_all(struct hand *hand)
{
    uint64_t ready;
    for (int i = 0; i < STEPS_MAX && hand->pump->shard_count < SHARDS; i++)
        step(hand);
    must(hand, hand->pump->shard_count == SHARDS, "a worker does not get its shards");
    for (int i = 0; i < 3; i++)
        must(hand, kl__pump_look(hand->pump, &ready) == KL_OK, "a call fails");
}

/* A lease that is changed holds for those who run. */
static void keep_shards(struct hand *hand)
{
    own_all(hand);
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 20 * LEASE_MS};
    uint64_t epoch = hand->pump->partitions->windows->epoch;
    must(hand, kl_queue_alter(hand->queue, &opts) == KL_OK, "a call fails");
    for (int i = 0; i < 60 * LEASE_MS / STEP_MS && !hand->wrong; i++) {
        step(hand);
        must(hand, hand->pump->shard_count == SHARDS && hand->pump->partitions->windows->epoch == epoch,
             "a worker loses its shards when the lease is made longer");
    }
}

/* Who has lost a shard, and learns that only by the refusal of his settle, answers no request for it. */
static void answer_owned(struct hand *hand)
{
    kl_layout layout = {1, 1};
    kl_record record = {0};
    kl_arena arena = {0};
    char shard[KL_SHARD_NAME_BYTES], name[KL_RECORD_NAME_BYTES], rest[KL_SHARD_NAME_BYTES + 2];
    put_one(hand, 0);
    own_all(hand);
    kl_place place = {hand->pump->partitions->number, kl_shard_of(&layout, kl_str("k"))};
    kl_fence fence = {.place = place, .epoch = 1000};
    kl_shard_name(&layout, place.shard, shard);
    snprintf(rest, sizeof rest, "%s/1", shard);
    kl_write ask = {.name = kl__record_name(name, sizeof name, "ask", "q", rest),
                    .value = kl_str("{\"verb\": \"purge\"}"),
                    .expires_ms = hand->now_ms + 60 * LEASE_MS};
    must(hand, kl_store_fence(hand->store, &fence, 1) == KL_OK, "a call fails");
    must(hand, kl_store_put(hand->store, &ask, 1) == KL_OK, "a call fails");
    tick(hand);
    must(hand, hand->pump->counts.refused == 1, "a stale owner's settle is not refused");
    must(hand, kl_store_get(hand->store, &ask.name, 1, &arena, &record) == KL_OK && record.value.len == ask.value.len,
         "a request is answered by one who has lost the shard");
    kl_arena_free(&arena);
}

struct sim_result sim_by_hand(void *out)
{
    static void (*const scenes[])(struct hand * hand) = {believe_late, move_owned, read_first, keep_shards,
                                                         answer_owned};
    struct sim_result result = {.broken = NULL};
    for (size_t i = 0; i < sizeof scenes / sizeof scenes[0] && !result.broken; i++) {
        struct hand hand;
        must(&hand, hand_open(&hand), "a queue or a worker cannot be opened");
        if (!hand.wrong)
            scenes[i](&hand);
        result.broken = hand.wrong ? "I3" : NULL;
        snprintf(result.why, sizeof result.why, "%s", hand.wrong ? hand.wrong : "");
        hand_close(&hand);
    }
    if (result.broken && out)
        fprintf(out, "%s: %s\nreproduce: build/tests/simulate 0\n", result.broken, result.why);
    return result;
}
