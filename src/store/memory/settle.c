/* settle.c - how tasks end in memory: outcomes under a shard's epoch.
 *
 * Three passes over the batches, under one mutex: which of them are stale; what must be allocated for the others; then
 * the change, which cannot fail. So a batch is applied whole or not at all. */
#include "store/memory/memory.h"

static uint64_t epoch_of(kl__memory *memory, kl_place place)
{
    const kl__memory_shard *shard = kl__memory_shard_of(memory, place);
    return shard ? shard->epoch : 0;
}

/* --- Fences --- */

static kl_rc raise_fences(kl__memory *memory, kl_fence *fences, size_t count)
{
    kl_rc first = KL_OK;
    for (size_t i = 0; i < count; i++) {
        kl__memory_shard *shard = kl__memory_shard_of(memory, fences[i].place);
        bool rises = fences[i].epoch >= shard->epoch;
        fences[i].rc = rises || fences[i].seal ? KL_OK : KL_ESTALE;
        shard->sealed |= fences[i].seal;
        if (rises)
            shard->epoch = fences[i].epoch;
        else if (fences[i].rc != KL_OK && first == KL_OK)
            first = kl__fail(KL_ESTALE,
                             "fence %zu: shard %u of partition %u is fenced at epoch %llu already, above %llu; another "
                             "owner has taken it over",
                             i, fences[i].place.shard, fences[i].place.partition, (unsigned long long)shard->epoch,
                             (unsigned long long)fences[i].epoch);
    }
    return first;
}

kl_rc kl__memory_fence(void *self, kl_fence *fences, size_t count)
{
    bool made = true;
    kl__memory_enter(self);
    for (size_t i = 0; made && i < count; i++)
        made = kl__memory_shard_make(self, fences[i].place) != NULL;
    kl_rc rc = made ? raise_fences(self, fences, count) : kl__fail_memory();
    for (size_t i = 0; !made && i < count; i++)
        fences[i].rc = rc;
    kl__memory_leave(self);
    return rc;
}

/* --- Which batches count --- */

static kl_rc judge(kl__memory *memory, kl_settle *batches, size_t count)
{
    kl_rc first = KL_OK;
    for (size_t i = 0; i < count; i++) {
        uint64_t epoch = epoch_of(memory, batches[i].place);
        batches[i].rc = batches[i].epoch >= epoch ? KL_OK : KL_ESTALE;
        if (batches[i].rc != KL_OK && first == KL_OK)
            first = kl__fail(KL_ESTALE,
                             "batch %zu: shard %u of partition %u is fenced at epoch %llu, above %llu; another owner "
                             "has taken it over, so drop what was taken from it",
                             i, batches[i].place.shard, batches[i].place.partition, (unsigned long long)epoch,
                             (unsigned long long)batches[i].epoch);
    }
    return first;
}

/* --- What must be allocated --- */

static bool leaves_something(const kl_settled *settled)
{
    return settled->keep_ms > 0 &&
           (settled->error.len > 0 || (settled->outcome != KL_RETRY && settled->result.len > 0));
}

static kl__memory_left *make_left(const kl_settled *settled)
{
    size_t result_len = settled->outcome == KL_RETRY ? 0 : settled->result.len;
    kl__memory_left *left = kl__alloc(sizeof *left + settled->error.len + result_len);
    if (!left)
        return NULL;
    *left = (kl__memory_left){.attempts = settled->attempts};
    left->error = (kl_bytes){left->bytes, settled->error.len};
    left->result = (kl_bytes){left->bytes + settled->error.len, result_len};
    if (settled->error.len > 0)
        memcpy(left->bytes, settled->error.data, settled->error.len);
    if (result_len > 0)
        memcpy(left->bytes + settled->error.len, settled->result.data, result_len);
    return left;
}

static void free_left(kl__memory_left *left)
{
    for (kl__memory_left *next; left; left = next) {
        next = left->next;
        kl__free(left);
    }
}

/* What the batches that count leave behind, in the order of their tasks. False: out of memory. */
static bool make_all_left(const kl_settle *batches, size_t count, kl__memory_left **ret_left)
{
    kl__memory_left *first = NULL, **end = &first;
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; batches[i].rc == KL_OK && j < batches[i].count; j++) {
            if (!leaves_something(&batches[i].tasks[j]))
                continue;
            *end = make_left(&batches[i].tasks[j]);
            if (!*end) {
                free_left(first);
                return false;
            }
            end = &(*end)->next;
        }
    }
    *ret_left = first;
    return true;
}

/* --- The change --- */

/* Adds what an attempt left, if anything, and drops what need not be kept longer; what is there when the task finishes
 * is kept as long as the task. A retry that is settled again, after a lost reply, leaves what it left before. */
static void leave(kl__memory *memory, kl__memory_task *task, kl_outcome outcome, kl__memory_left *left)
{
    kl__memory_left **link = &task->left;
    while (*link) {
        kl__memory_left *old = *link;
        bool again = left && outcome == KL_RETRY && old->attempts == left->attempts;
        if (again || old->expires_ms <= memory->now_ms) {
            *link = old->next;
            kl__free(old);
        } else {
            link = &old->next;
        }
    }
    if (left) {
        left->next = task->left;
        task->left = left;
    }
}

static kl_task_state state_after(kl_outcome outcome)
{
    return outcome == KL_DONE ? KL_TASK_DONE : outcome == KL_DEAD ? KL_TASK_DEAD : KL_TASK_CANCELLED;
}

static void settle_one(kl__memory *memory, kl__memory_task *task, const kl_settled *settled, kl__memory_left *left)
{
    int64_t keep_ms = settled->keep_ms < memory->opts.history_ms_max ? settled->keep_ms : memory->opts.history_ms_max;
    int64_t expires_ms = memory->now_ms + keep_ms;
    if (left)
        left->expires_ms = expires_ms;
    leave(memory, task, settled->outcome, left);
    kl__memory_take_out(task);
    task->attempts = settled->attempts;
    if (settled->outcome == KL_RETRY) {
        task->not_before_ms = settled->due_ms;
        kl__memory_put_in_line(task, KL_LINE_RETRY);
    } else if (keep_ms > 0) {
        task->state = state_after(settled->outcome);
        task->finished_ms = memory->now_ms;
        task->expires_ms = expires_ms;
        task->result = left ? left->result : (kl_bytes){"", 0};
        kl__memory_keep(memory, task);
    } else {
        kl__memory_task_free(task);
    }
}

static void apply(kl__memory *memory, const kl_settle *batch, kl__memory_left **left)
{
    kl__memory_shard *shard = kl__memory_shard_of(memory, batch->place);
    for (size_t i = 0; i < batch->count; i++) {
        const kl_settled *settled = &batch->tasks[i];
        kl__memory_left *own = NULL;
        if (leaves_something(settled)) {
            own = *left;
            *left = own->next;
        }
        kl__memory_task *task = shard ? kl__memory_waiting(shard, &settled->id) : NULL;
        if (task && task->position == settled->position) /* else it was settled before, and perhaps appended again */
            settle_one(memory, task, settled, own);
        else
            kl__free(own);
    }
}

kl_rc kl__memory_settle(void *self, kl_settle *batches, size_t count)
{
    kl__memory *memory = self;
    kl__memory_left *left = NULL;
    kl__memory_enter(memory);
    kl_rc rc = judge(memory, batches, count);
    if (!make_all_left(batches, count, &left)) {
        rc = kl__fail_memory();
        for (size_t i = 0; i < count; i++)
            batches[i].rc = rc;
    }
    for (size_t i = 0; i < count; i++)
        if (batches[i].rc == KL_OK)
            apply(memory, &batches[i], &left);
    KL_ASSERT(!left);
    kl__memory_finished_drop(memory, memory->now_ms);
    kl__memory_leave(memory);
    return rc;
}
