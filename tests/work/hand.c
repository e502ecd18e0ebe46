/* hand.c - see hand.h. */
#include "work/hand.h"

static int64_t now_of(void *ctx) { return ((struct hand *)ctx)->now_ms; }

bool hand_open(struct hand *hand, const kl_queue_opts *opts)
{
    enum { BEFORE_MS = 3600000 };
    *hand = (struct hand){.now_ms = kl__wall_ms() - BEFORE_MS}; /* ids come later than what is due */
    kl_store_opts store = {.size = sizeof store, .now_ms = now_of, .now_ctx = hand};
    if (kl_store_open("memory:", &store, &hand->memory) == KL_OK &&
        kl_queue_open(hand->memory, "q", opts, &hand->queue) == KL_OK)
        return true;
    test_fail(__FILE__, __LINE__, "%s", kl_error_text());
    hand_close(hand);
    return false;
}

void hand_close(struct hand *hand)
{
    for (size_t i = 0; i < hand->pump_count; i++) {
        struct hand_pump *pump = &hand->pumps[i];
        while (pump->running_count > 0)
            kl__pump_untake(pump->pump, pump->running[--pump->running_count]);
        kl__pump_close(pump->pump);
        kl_queue_close(pump->queue);
        kl_arena_free(&pump->arena);
    }
    kl_queue_close(hand->queue);
    kl_store_close(hand->memory);
}

struct hand_pump *hand_pump(struct hand *hand, const char *kind)
{
    KL_ASSERT(hand->pump_count < HAND_PUMPS_MAX);
    struct hand_pump *pump = &hand->pumps[hand->pump_count++];
    *pump = (struct hand_pump){.hand = hand, .handler = {.kind = kind}};
    CHECK_INT(kl_queue_open(hand->store ? hand->store : hand->memory, "q", NULL, &pump->queue), KL_OK);
    kl__pump_opts opts = {.queue = pump->queue,
                          .worker = {{(uint8_t)hand->pump_count}},
                          .worker_name = "by hand",
                          .handlers = &pump->handler,
                          .handler_count = 1,
                          .window_max = 1024,
                          .concurrency = 8,
                          .seed = hand->pump_count,
                          .local_ms = now_of,
                          .local_ctx = hand};
    CHECK_INT(kl__pump_open(&opts, &pump->pump), KL_OK);
    return pump;
}

void hand_beats(struct hand_pump *pump, int count, int64_t step_ms)
{
    for (int i = 0; i < count; i++) {
        pump->hand->now_ms += step_ms;
        CHECK_INT(kl__pump_beat(pump->pump), KL_OK);
    }
}

void hand_looks(struct hand_pump *pump)
{
    enum { LOOKS = 8, LOOK_MS = 25 };
    for (int i = 0; i < LOOKS; i++) {
        uint64_t ready;
        pump->hand->now_ms += LOOK_MS;
        CHECK_INT(kl__pump_look(pump->pump, &ready), KL_OK);
    }
}

void hand_own(struct hand_pump *pump)
{
    hand_beats(pump, 4, HAND_STEP_MS);
    CHECK_INT(kl__pump_shards(pump->pump), HAND_SHARDS);
    hand_looks(pump);
}

const char *hand_start(struct hand_pump *pump)
{
    kl_task task;
    kl_task_extra extra;
    const kl_handler *handler;
    kl__held *held;
    size_t run = 0;
    if (kl__pump_take(pump->pump, &held, 1) == 0)
        return "";
    CHECK_INT(kl__pump_load(pump->pump, &held, 1, &pump->arena, &task, &extra, &handler, &run), KL_OK);
    if (run == 0)
        return "";
    KL_ASSERT(pump->running_count < HAND_RUNS_MAX);
    pump->running[pump->running_count++] = held;
    char *payload = kl_arena_alloc(&pump->arena, task.entry.payload.len + 1);
    KL_ASSERT(payload);
    memcpy(payload, task.entry.payload.data, task.entry.payload.len);
    payload[task.entry.payload.len] = '\0';
    return payload;
}

kl__held *hand_running(const struct hand_pump *pump, size_t number)
{
    return pump->running[pump->running_count - 1 - number];
}

void hand_end(struct hand_pump *pump, kl__held *held, kl_outcome outcome)
{
    size_t i = 0;
    while (pump->running[i] != held)
        i++;
    for (pump->running_count--; i < pump->running_count; i++)
        pump->running[i] = pump->running[i + 1];
    kl__pump_finish(pump->pump, held, &(kl__verdict){.outcome = outcome, .retry_after_ms = -1});
}

void hand_settle(struct hand_pump *pump)
{
    uint64_t sent = 1;
    while (sent > 0)
        CHECK_INT(kl__pump_settle(pump->pump, &sent), KL_OK);
}

void hand_key(uint32_t shard, int number, char ret_key[32])
{
    kl_layout layout = {1, 1};
    int tries = 0;
    do
        snprintf(ret_key, 32, "key-%d-%d", number, tries++);
    while (kl_shard_of(&layout, kl_str(ret_key)) != shard);
}

kl_task_id hand_put(struct hand *hand, const char *key, const char *payload, int priority)
{
    kl_put put = {.key = kl_str(key), .payload = kl_str(payload), .priority = priority};
    kl_put_result result = {0};
    CHECK_INT(kl_queue_put(hand->queue, &put, 1, (kl_bytes){0}, &result), KL_OK);
    return result.id;
}

uint64_t hand_waiting(struct hand *hand)
{
    kl_arena arena = {0};
    kl_queue_info info = {0};
    CHECK_INT(kl_queue_show(hand->queue, &arena, &info), KL_OK);
    kl_arena_free(&arena);
    return info.counts.ready + info.counts.due + info.counts.retry;
}
