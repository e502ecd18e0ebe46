/* script.c - makes up a run of calls, and applies them to the model.
 *
 * Few places, records and jobs meet often. One task in nine is a straggler that is settled only rarely, so that
 * segments stay partly alive and must be compacted; big payloads fill segments quickly. */
#include "script.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/hash.h"
#include "base/random.h"

enum {
    NOISE_BYTES = 1 << 20,
    WAITING_MANY = 110,
    WAITING_FEW = 30,
    BATCH_TASKS = 8,
    SETTLED_TASKS = 6,
    TOKEN_MS = 9 * 60 * 1000,
};

static const uint32_t shards[SCRIPT_SHARDS] = {0x3, 0xc};
static const kl_layout layout = {1, 1};

struct maker {
    struct script *script;
    struct model model;
    uint64_t random;
    int64_t now_ms;
};

static uint64_t below(struct maker *m, uint64_t bound) { return kl__random_below(&m->random, bound); }
static bool one_in(struct maker *m, uint64_t n) { return below(m, n) == 0; }

static kl_bytes take_noise(struct maker *m, size_t count)
{
    KL_ASSERT(count < NOISE_BYTES);
    return (kl_bytes){m->script->noise + below(m, NOISE_BYTES - count), count};
}

kl_bytes script_record_name(uint32_t record)
{
    static const char *const names[SCRIPT_RECORDS] = {"a",     "queue/orders", "queue/bills", "owner/1", "owner/2",
                                                      "job/1", "job/2",        "job/22",      "z",       "worker/7"};
    return kl_str(names[record]);
}

const char *script_partition_name(uint32_t partition)
{
    static const char *const names[SCRIPT_PARTITIONS] = {"orders", "orders__p1", "bills"};
    return names[partition];
}

bool script_can_be_sealed(uint32_t place) { return place % SCRIPT_SHARDS == 1; }

/* ---- Tasks ---- */

static size_t payload_bytes(struct maker *m)
{
    if (one_in(m, 300))
        return 70000 + below(m, 30000); /* more than a segment */
    if (one_in(m, 12))
        return 3000 + below(m, 20000);
    return one_in(m, 10) ? 0 : 20 + below(m, 600);
}

/* The number of the task stands in its id. */
static kl_task_id make_id(struct maker *m, uint32_t shard, kl_bytes key, uint32_t number)
{
    kl_id_parts parts = {.shard = shard,
                         .sequence = number,
                         .ms = m->now_ms,
                         .lane = key.len ? kl_lane_of(key) : 0,
                         .random = (uint32_t)below(m, KL_ID_RANDOM_MAX)};
    kl_task_id id;
    kl_rc rc = kl_id_pack(&layout, &parts, &id);
    KL_ASSERT(rc == KL_OK);
    return id;
}

uint32_t script_find(const struct script *script, const kl_task_id *id)
{
    uint32_t number = kl_id_sequence(&layout, id);
    bool same = number < script->task_count && kl_id_compare(&script->tasks[number].entry.id, id) == 0;
    return same ? number : SCRIPT_TASKS_MAX;
}

enum { NOBODY = SCRIPT_TASKS_MAX + 1 };

kl_task_id script_nobody(const struct script *script, uint32_t place)
{
    kl_id_parts parts = {.shard = script->places[place].shard, .sequence = NOBODY, .ms = 1};
    kl_task_id id;
    kl_rc rc = kl_id_pack(&layout, &parts, &id);
    KL_ASSERT(rc == KL_OK);
    return id;
}

bool script_is_nobody(const kl_task_id *id) { return kl_id_sequence(&layout, id) == NOBODY; }

static void make_task(struct maker *m, uint32_t partitions)
{
    static const char *const keys[] = {"", "customer-1", "customer-2", "k",
                                       "a rather long key of some customer or other"};
    static const char *const kinds[] = {"", "mail", "invoice"};
    struct script *script = m->script;
    uint32_t number = script->task_count++;
    struct script_task *task = &script->tasks[number];
    do {
        task->place = (uint32_t)below(m, partitions * SCRIPT_SHARDS);
    } while (m->model.seals[task->place]);
    kl_entry *entry = &task->entry;
    entry->place = script->places[task->place];
    entry->key = kl_str(keys[below(m, 5)]);
    entry->kind = kl_str(kinds[below(m, 3)]);
    entry->id = make_id(m, entry->place.shard, entry->key, number);
    if (one_in(m, 3))
        entry->job = script->jobs[below(m, SCRIPT_JOBS)];
    if (one_in(m, 5))
        entry->due_ms = m->now_ms + 1 + (int64_t)below(m, one_in(m, 2) ? 100 : 86400000);
    if (one_in(m, 4))
        entry->priority = KL_PRIORITY_MIN + (int32_t)below(m, 32);
    if (one_in(m, 2))
        entry->group = (uint16_t)below(m, UINT16_MAX + 1);
    if (one_in(m, 3))
        entry->headers = take_noise(m, 1 + below(m, 90));
    entry->payload = take_noise(m, payload_bytes(m));
}

/* ---- Calls ---- */

static uint32_t partitions_made(const struct model *model)
{
    uint32_t count = 0;
    while (count < SCRIPT_PARTITIONS && model->partitions[count])
        count++;
    return count;
}

static bool plan_partition(struct maker *m, struct script_call *call)
{
    call->kind = CALL_PARTITION;
    call->first = partitions_made(&m->model);
    return call->first < SCRIPT_PARTITIONS;
}

static bool plan_append(struct maker *m, struct script_call *call)
{
    call->kind = CALL_APPEND;
    call->first = m->script->task_count;
    call->count = one_in(m, 2) ? 1 : 1 + (uint32_t)below(m, BATCH_TASKS);
    if (call->first + call->count > SCRIPT_TASKS_MAX)
        return false;
    for (uint32_t i = 0; i < call->count; i++)
        make_task(m, partitions_made(&m->model));
    call->has_token = one_in(m, 2);
    for (size_t i = 0; i < sizeof call->token.bytes; i++)
        call->token.bytes[i] = (uint8_t)below(m, 256);
    return true;
}

/* The same append again, with its token. */
static bool plan_repeat(struct maker *m, struct script_call *call)
{
    const struct script_call *old = &m->script->calls[below(m, m->script->call_count)];
    if (old->kind != CALL_APPEND || !old->has_token || m->now_ms - old->now_ms > TOKEN_MS)
        return false;
    int64_t now_ms = call->now_ms;
    *call = *old;
    call->now_ms = now_ms;
    call->repeat = true;
    return true;
}

static void plan_item(struct maker *m, uint32_t number)
{
    static const int64_t keeps_ms[] = {5000, 60000, 86400000, 86400000};
    struct script_item *item = &m->script->items[m->script->item_count++];
    const struct model_task *task = &m->model.tasks[number];
    uint64_t dice = below(m, 100);
    *item = (struct script_item){.task = number, .attempts = task->attempts + 1};
    item->outcome = dice < 60 ? KL_DONE : dice < 82 ? KL_RETRY : dice < 94 ? KL_DEAD : KL_CANCELLED;
    if (item->outcome == KL_RETRY && one_in(m, 2))
        item->due_ms = m->now_ms + 1 + (int64_t)below(m, 5000);
    if (item->outcome == KL_DEAD || one_in(m, 2))
        item->keep_ms = item->outcome == KL_RETRY ? keeps_ms[3] : keeps_ms[below(m, 4)];
    if (item->keep_ms && item->outcome != KL_DONE)
        item->error = take_noise(m, 1 + below(m, one_in(m, 20) ? KL_ERROR_BYTES_MAX : 100));
    if (item->keep_ms && item->outcome == KL_DONE && one_in(m, 2))
        item->result = take_noise(m, 1 + below(m, one_in(m, 20) ? 9000 : 200));
}

/* Tasks of the place that wait, from a random one on; now and then one that does not wait any more. */
static uint32_t plan_items(struct maker *m, uint32_t place, uint32_t most)
{
    const struct script *script = m->script;
    uint32_t tasks = m->model.task_count, start = (uint32_t)below(m, tasks), count = 0;
    for (uint32_t i = 0; i < tasks && count < most; i++) {
        uint32_t number = (start + i) % tasks;
        const struct model_task *task = &m->model.tasks[number];
        bool straggler = number % 9 == 0 && !one_in(m, 12);
        bool finished = task->state != KL_TASK_WAITING && task->position && one_in(m, 60);
        if (script->tasks[number].place != place || straggler || script->item_count == SCRIPT_ITEMS_MAX)
            continue;
        if (task->state == KL_TASK_WAITING || finished) {
            plan_item(m, number);
            count++;
        }
    }
    return count;
}

static bool plan_settle(struct maker *m, struct script_call *call)
{
    call->kind = CALL_SETTLE;
    uint32_t places = partitions_made(&m->model) * SCRIPT_SHARDS, place = (uint32_t)below(m, places);
    uint32_t batches = one_in(m, 4) ? 2 : 1;
    for (uint32_t i = 0; m->model.task_count && i < batches; i++, place = (place + 1) % places) {
        struct script_step *step = &call->steps[call->step_count];
        *step = (struct script_step){.place = place, .first_item = m->script->item_count};
        step->items = plan_items(m, place, 1 + (uint32_t)below(m, SETTLED_TASKS));
        step->epoch = m->model.epochs[place];
        if (step->epoch && one_in(m, 12)) {
            step->stale = true;
            step->epoch -= 1;
        }
        call->step_count += step->items > 0;
    }
    return call->step_count > 0;
}

/* A seal is never too late, whatever its epoch. */
static void plan_seal(struct maker *m, struct script_step *step)
{
    if (!script_can_be_sealed(step->place) || !one_in(m, 6))
        return;
    step->seal = true;
    step->stale = false;
    if (one_in(m, 2))
        step->epoch = 0;
}

static bool plan_fence(struct maker *m, struct script_call *call)
{
    call->kind = CALL_FENCE;
    uint32_t places = partitions_made(&m->model) * SCRIPT_SHARDS, place = (uint32_t)below(m, places);
    call->step_count = 1 + (uint32_t)below(m, 2);
    for (uint32_t i = 0; i < call->step_count; i++, place = (place + 1) % places) {
        uint64_t epoch = m->model.epochs[place];
        call->steps[i] = (struct script_step){.place = place, .epoch = epoch + 1 + below(m, 3)};
        if (epoch > 1 && one_in(m, 6)) {
            call->steps[i].stale = true;
            call->steps[i].epoch = epoch - 1;
        }
        plan_seal(m, &call->steps[i]);
    }
    return true;
}

bool model_record_there(const struct model *model, uint32_t record)
{
    const struct model_record *r = &model->records[record];
    return r->there && (r->expires_ms == 0 || r->expires_ms > model->now_ms);
}

static bool plan_put(struct maker *m, struct script_call *call)
{
    call->kind = CALL_PUT;
    call->step_count = 1 + (uint32_t)below(m, 3);
    uint32_t record = (uint32_t)below(m, SCRIPT_RECORDS);
    for (uint32_t i = 0; i < call->step_count; i++, record = (record + 1) % SCRIPT_RECORDS) {
        struct script_step *step = &call->steps[i];
        *step = (struct script_step){.record = record, .remove = one_in(m, 4)};
        step->stale = !step->remove && one_in(m, 10);
        if (!step->remove) {
            step->value = take_noise(m, 8 + below(m, one_in(m, 10) ? 6000 : 200));
            step->expires_ms = one_in(m, 3) ? m->now_ms + 500 + (int64_t)below(m, 4000) : 0;
        }
    }
    return true;
}

/* Finished tasks of one place; a task that waits is passed over by the store, and so is not asked for. */
static bool plan_forget(struct maker *m, struct script_call *call)
{
    call->kind = CALL_FORGET;
    uint32_t tasks = m->model.task_count, start = tasks ? (uint32_t)below(m, tasks) : 0,
             most = 1 + (uint32_t)below(m, 3);
    for (uint32_t i = 0; i < tasks && call->step_count < most; i++) {
        uint32_t number = (start + i) % tasks;
        uint32_t place = m->script->tasks[number].place;
        if (m->model.tasks[number].state <= KL_TASK_WAITING || (call->step_count && place != call->steps[0].place))
            continue;
        call->steps[call->step_count++] = (struct script_step){.place = place, .task = number};
    }
    return call->step_count > 0;
}

static uint32_t waiting(const struct model *model)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < model->task_count; i++)
        count += model->tasks[i].state == KL_TASK_WAITING;
    return count;
}

static bool plan(struct maker *m, struct script_call *call)
{
    uint32_t made = partitions_made(&m->model), many = waiting(&m->model);
    if (made == 0 || (made < SCRIPT_PARTITIONS && one_in(m, 20)))
        return plan_partition(m, call);
    uint64_t dice = below(m, 100);
    if (dice < 5)
        return plan_fence(m, call);
    if (dice < 17)
        return plan_put(m, call);
    if (dice < 21)
        return plan_forget(m, call);
    if (dice < 24)
        return plan_repeat(m, call);
    if (dice < 26) {
        call->kind = CALL_REOPEN;
        return true;
    }
    uint64_t settles = many > WAITING_MANY ? 90 : many < WAITING_FEW ? 15 : 50;
    return below(m, 100) < settles ? plan_settle(m, call) : plan_append(m, call);
}

/* Positions are learned from stores; here it only matters that a task has one. */
static void pretend_positions(struct model *model)
{
    for (uint32_t i = 0; i < model->task_count; i++)
        model->tasks[i].position = i + 1;
}

struct script *script_make(uint64_t seed, uint32_t calls)
{
    struct maker *m = calloc(1, sizeof *m);
    struct script *script = calloc(1, sizeof *script);
    KL_ASSERT(m && script);
    script->noise = malloc(NOISE_BYTES);
    KL_ASSERT(script->noise);
    script->seed = m->random = seed;
    m->script = script;
    m->now_ms = SCRIPT_START_MS;
    for (size_t i = 0; i < NOISE_BYTES; i++)
        script->noise[i] = (uint8_t)(' ' + below(m, 95));
    for (uint32_t i = 0; i < SCRIPT_PLACES; i++)
        script->places[i] = (kl_place){1 + i / SCRIPT_SHARDS, shards[i % SCRIPT_SHARDS]};
    for (uint32_t i = 0; i < SCRIPT_JOBS; i++)
        script->jobs[i] = make_id(m, 0, kl_str("job"), i + 1);
    while (script->call_count < calls && script->call_count < SCRIPT_CALLS_MAX) {
        struct script_call *call = &script->calls[script->call_count];
        *call = (struct script_call){.now_ms = m->now_ms += 1 + (int64_t)below(m, one_in(m, 50) ? 30000 : 40)};
        model_begin(script, &m->model, call);
        if (!plan(m, call))
            continue;
        model_call(script, &m->model, call);
        pretend_positions(&m->model);
        script->call_count++;
    }
    free(m);
    return script;
}

void script_free(struct script *script)
{
    if (!script)
        return;
    free(script->noise);
    free(script);
}

uint32_t script_steps(const struct script_call *call) { return call->step_count ? call->step_count : 1; }

void script_describe(const struct script *script, uint32_t number, char *ret_text, size_t size)
{
    static const char *const names[] = {"partition", "append", "settle", "fence", "put", "forget", "reopen"};
    if (number >= script->call_count) {
        snprintf(ret_text, size, "the end");
        return;
    }
    const struct script_call *call = &script->calls[number];
    snprintf(ret_text, size, "call %u: %s, %u task(s) from %u%s%s, %u step(s)", number, names[call->kind], call->count,
             call->first, call->has_token ? ", token" : "", call->repeat ? ", repeated" : "", call->step_count);
}

/* ---- The model ---- */

/* Whatever has expired may be trimmed at any time, and so may what is over the most rows; once trimmed it stays
 * away, even when others are forgotten later. */
static void grow_old(struct model *model)
{
    uint32_t finished[SCRIPT_TASKS_MAX], count = 0;
    for (uint32_t i = 0; i < model->task_count; i++)
        if (model->tasks[i].state > KL_TASK_WAITING)
            finished[count++] = i;
    for (uint32_t i = 0; i < count; i++) {
        struct model_task *task = &model->tasks[finished[i]];
        uint32_t later = 0;
        for (uint32_t j = 0; j < count && !task->maybe_gone; j++)
            later += model->tasks[finished[j]].finished_ms >= task->finished_ms;
        task->maybe_gone |= task->expires_ms <= model->now_ms || later > SCRIPT_HISTORY_ROWS;
    }
}

void model_begin(const struct script *script, struct model *model, const struct script_call *call)
{
    (void)script;
    model->now_ms = call->now_ms;
    grow_old(model);
}

static void apply_append(const struct script *script, struct model *model, const struct script_call *call)
{
    if (call->repeat)
        return;
    for (uint32_t i = call->first; i < call->first + call->count; i++)
        model->tasks[i] = (struct model_task){.state = KL_TASK_WAITING,
                                              .not_before_ms = script->tasks[i].entry.due_ms,
                                              .error = NO_ITEM,
                                              .result = NO_ITEM};
    model->task_count = call->first + call->count;
}

static void apply_item(const struct script *script, struct model *model, uint32_t number)
{
    static const kl_task_state states[] = {
        [KL_DONE] = KL_TASK_DONE, [KL_DEAD] = KL_TASK_DEAD, [KL_CANCELLED] = KL_TASK_CANCELLED};
    const struct script_item *item = &script->items[number];
    struct model_task *task = &model->tasks[item->task];
    if (task->state != KL_TASK_WAITING)
        return;
    task->attempts = item->attempts;
    if (item->keep_ms && item->error.len)
        task->error = number;
    if (item->outcome == KL_RETRY) {
        task->tried = true;
        task->not_before_ms = item->due_ms;
        return;
    }
    task->state = item->keep_ms ? (uint8_t)states[item->outcome] : KL_TASK_UNKNOWN;
    task->finished_ms = model->now_ms;
    task->expires_ms = model->now_ms + item->keep_ms;
    if (item->result.len)
        task->result = number;
}

static void apply_put(struct model *model, const struct script_step *step)
{
    struct model_record *record = &model->records[step->record];
    if (!step->stale)
        *record = (struct model_record){!step->remove, step->value, step->expires_ms, 0};
}

void model_step(const struct script *script, struct model *model, const struct script_call *call, uint32_t number)
{
    const struct script_step *step = &call->steps[number];
    switch (call->kind) {
    case CALL_PARTITION:
        model->partitions[call->first] = true;
        break;
    case CALL_APPEND:
        apply_append(script, model, call);
        break;
    case CALL_SETTLE:
        for (uint32_t i = 0; !step->stale && i < step->items; i++)
            apply_item(script, model, step->first_item + i);
        break;
    case CALL_FENCE:
        if (!step->stale && step->epoch > model->epochs[step->place])
            model->epochs[step->place] = step->epoch;
        model->seals[step->place] |= step->seal;
        break;
    case CALL_PUT:
        apply_put(model, step);
        break;
    case CALL_FORGET:
        model->tasks[step->task].state = KL_TASK_UNKNOWN;
        break;
    case CALL_REOPEN:
        break;
    }
    grow_old(model);
}

void model_call(const struct script *script, struct model *model, const struct script_call *call)
{
    for (uint32_t i = 0; i < script_steps(call); i++)
        model_step(script, model, call, i);
}
