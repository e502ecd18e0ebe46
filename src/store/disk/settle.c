/* settle.c - outcomes and fences into the journal.
 *
 * Records in the journal are facts, so it is decided here, before writing, whether a settle comes too late. A fence is
 * claimed from the decision until it is applied, and settles of its shard wait for that; so a settle is decided on a
 * state that nothing under way can change, and takes its place in the journal before the mutex is released: a fence
 * that comes later stands behind it (S3 of store.h).
 *
 * So it is with tasks that do not wait any more, or wait again at another position: they are left out of the record. To
 * compare positions when the record is applied would not do: who reads the journal from a later segment on may find a
 * task at the position of an append's repeat. A task was scanned at its position, so whether it still waits there the
 * state knows, but for settles under way; an append that stands behind one of those, and before this settle, began
 * before the task was settled, and counts as a repeat. */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/wait.h"
#include "store/disk/disk.h"

enum { RELIEF_NS = 2000000, RELIEFS = 500 }; /* about a second */

/* ---- Claims ---- */

void kl__claim_add(kl__claims *claims, uint64_t hash)
{
    claims->bits[hash / 64 % KL_CLAIM_WORDS] |= UINT64_C(1) << hash % 64;
}

bool kl__claims_meet(const kl__claims *a, const kl__claims *b)
{
    for (int i = 0; i < KL_CLAIM_WORDS; i++)
        if (a->bits[i] & b->bits[i])
            return true;
    return false;
}

void kl__claim(kl__disk *disk, kl__claims *claimed, const kl__claims *wanted)
{
    while (kl__claims_meet(claimed, wanted))
        kl__cond_wait(&disk->unclaimed, &disk->state.mutex, KL_NEVER);
    for (int i = 0; i < KL_CLAIM_WORDS; i++)
        claimed->bits[i] |= wanted->bits[i];
}

void kl__unclaim(kl__disk *disk, kl__claims *claimed, const kl__claims *wanted)
{
    pthread_mutex_lock(&disk->state.mutex);
    for (int i = 0; i < KL_CLAIM_WORDS; i++)
        claimed->bits[i] &= ~wanted->bits[i];
    pthread_cond_broadcast(&disk->unclaimed);
    pthread_mutex_unlock(&disk->state.mutex);
}

static void claim_place(kl__claims *claims, kl_place place)
{
    kl__claim_add(claims, kl__hash_local((kl_bytes){&place, sizeof place}));
}

static uint64_t epoch_of(const kl__disk *disk, kl_place place)
{
    const kl__shard_state *shard = kl__state_shard(&disk->state, place);
    return shard ? shard->epoch : 0;
}

static kl_rc fail_stale(kl_place place, uint64_t epoch, uint64_t fenced)
{
    return kl__fail(KL_ESTALE,
                    "shard %u of partition %u is fenced at epoch %llu, and this is epoch %llu; another owner has "
                    "taken it over: stop working on it",
                    place.shard, place.partition, (unsigned long long)fenced, (unsigned long long)epoch);
}

/* ---- Settle ---- */

static size_t item_bytes(const kl_settled *task)
{
    size_t bytes = sizeof(kl__settled_item) + (task->outcome == KL_RETRY && task->due_ms ? 8 : 0);
    return task->keep_ms ? kl__round8(bytes + 16 + task->error.len + task->result.len) : bytes;
}

static size_t batch_bytes(const kl_settle *batch, const bool *waits)
{
    size_t bytes = sizeof(kl__settle_record);
    for (size_t i = 0; i < batch->count; i++)
        bytes += waits[i] ? item_bytes(&batch->tasks[i]) : 0;
    return bytes;
}

static char *put_kept(const kl_settled *task, int64_t now_ms, char *at)
{
    int64_t until = task->keep_ms < KL_ID_MS_MAX - now_ms ? now_ms + task->keep_ms : KL_ID_MS_MAX;
    uint64_t error_bytes = task->error.len;
    memcpy(at, &until, 8);
    memcpy(at + 8, &error_bytes, 8);
    at += 16;
    if (task->error.len)
        memcpy(at, task->error.data, task->error.len);
    at += task->error.len;
    if (task->result.len)
        memcpy(at, task->result.data, task->result.len);
    return at + task->result.len;
}

static char *put_item(const kl_settled *task, int64_t now_ms, char *at)
{
    kl__settled_item item = {.outcome = (uint8_t)task->outcome, .attempts = (uint16_t)task->attempts};
    char *end = at + sizeof item;
    memcpy(item.id, &task->id, sizeof item.id);
    if (task->outcome == KL_RETRY && task->due_ms) {
        item.flags |= KL_SETTLED_DUE;
        memcpy(end, &task->due_ms, 8);
        end += 8;
    }
    if (task->keep_ms) {
        item.flags |= KL_SETTLED_KEPT;
        item.result_bytes = (uint32_t)task->result.len;
        end = put_kept(task, now_ms, end);
        size_t over = (size_t)(end - at) % 8;
        memset(end, 0, over ? 8 - over : 0);
        end += over ? 8 - over : 0;
    }
    memcpy(at, &item, sizeof item);
    return end;
}

static char *put_batch(const kl_settle *batch, const bool *waits, uint64_t sequence, int64_t now_ms, char *at,
                       uint64_t *sum)
{
    kl__settle_record *record = (kl__settle_record *)(void *)at;
    *record = (kl__settle_record){.header = {.sequence = sequence,
                                             .epoch = batch->epoch,
                                             .type = KL_RECORD_SETTLE,
                                             .partition = (uint16_t)batch->place.partition,
                                             .shard = (uint16_t)batch->place.shard}};
    char *end = (char *)(record + 1);
    for (size_t i = 0; i < batch->count; i++) {
        if (!waits[i])
            continue;
        end = put_item(&batch->tasks[i], now_ms, end);
        record->count++;
    }
    *sum += kl__record_seal(&record->header, end);
    return end;
}

static bool is_waiting(const kl__disk *disk, kl_place place, const kl_settled *task)
{
    uint32_t number = kl__stubs_find(disk->state.stubs, place.partition, &task->id);
    if (number == KL_SLOT_NONE)
        return false;
    const kl__slot *slot = kl__stubs_slot(disk->state.stubs, number);
    return slot->shard == place.shard && slot->position == task->position;
}

/* Which of the batch's tasks wait where they were scanned? With the mutex held. */
static void find_waiting(const kl__disk *disk, const kl_settle *batch, bool *ret_waits)
{
    enum { AHEAD = 8, FAR_AHEAD = 2 * AHEAD };
    for (size_t i = 0; i < batch->count + FAR_AHEAD; i++) {
        if (i < batch->count)
            kl__stubs_prefetch(disk->state.stubs, &batch->tasks[i].id);
        if (i >= AHEAD && i - AHEAD < batch->count)
            kl__stubs_prefetch_slot(disk->state.stubs, &batch->tasks[i - AHEAD].id);
        if (i >= FAR_AHEAD)
            ret_waits[i - FAR_AHEAD] = is_waiting(disk, batch->place, &batch->tasks[i - FAR_AHEAD]);
    }
}

/* Decides on each batch, and takes a place in the journal for those that are in time. `waits` has a place for each task
 * of all batches. With the mutex held. KL_EBUSY: there is no room in the journal just now. */
static kl_rc decide(kl__disk *disk, kl_settle *batches, size_t count, bool *waits, kl__commit *call,
                    size_t *ret_accepted)
{
    size_t bytes = 0;
    kl_rc first = KL_OK;
    *ret_accepted = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t epoch = epoch_of(disk, batches[i].place);
        batches[i].rc = batches[i].epoch < epoch ? fail_stale(batches[i].place, batches[i].epoch, epoch) : KL_OK;
        if (batches[i].rc == KL_OK) {
            find_waiting(disk, &batches[i], waits);
            bytes += batch_bytes(&batches[i], waits);
            ++*ret_accepted;
        } else if (first == KL_OK) {
            first = batches[i].rc;
        }
        waits += batches[i].count;
    }
    kl_rc rc = *ret_accepted ? kl__journal_try_reserve(disk->journal, bytes, *ret_accepted, call) : KL_OK;
    return rc == KL_OK ? first : rc;
}

static void put_batches(kl__disk *disk, const kl_settle *batches, size_t count, const bool *waits, kl__commit *call)
{
    uint64_t sum = 0, sequence = call->sequence;
    int64_t now_ms = kl__disk_now(disk);
    char *at = call->bytes;
    for (size_t i = 0; i < count; i++) {
        if (batches[i].rc == KL_OK)
            at = put_batch(&batches[i], waits, sequence++, now_ms, at, &sum);
        waits += batches[i].count;
    }
    kl__journal_publish(disk->journal, call, sum);
}

static void refuse(kl_settle *batches, size_t count, kl_rc rc)
{
    for (size_t i = 0; i < count; i++)
        if (batches[i].rc != KL_ESTALE)
            batches[i].rc = rc;
}

static bool keeps_any(const kl_settle *batches, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < batches[i].count; j++)
            if (batches[i].tasks[j].keep_ms)
                return true;
    return false;
}

/* As decide, once nothing stands in the way. */
static kl_rc decide_when_free(kl__disk *disk, kl_settle *batches, size_t count, bool *waits, kl__commit *call,
                              size_t *ret_accepted)
{
    kl__claims places = {{0}};
    kl_rc rc = KL_OK;
    *ret_accepted = 0;
    for (size_t i = 0; i < count; i++) {
        claim_place(&places, batches[i].place);
        batches[i].rc = KL_OK;
    }
    pthread_mutex_lock(&disk->state.mutex);
    if (keeps_any(batches, count))
        rc = kl__keeper_make_room(disk);
    while (kl__claims_meet(&disk->claimed_fences, &places))
        kl__cond_wait(&disk->unclaimed, &disk->state.mutex, KL_NEVER);
    if (rc == KL_OK)
        rc = decide(disk, batches, count, waits, call, ret_accepted);
    pthread_mutex_unlock(&disk->state.mutex);
    return rc;
}

static kl_rc settle_once(kl__disk *disk, kl_settle *batches, size_t count, bool *waits)
{
    kl__commit call = {.done = NULL};
    size_t accepted;
    kl_rc rc;
    while ((rc = decide_when_free(disk, batches, count, waits, &call, &accepted)) == KL_EBUSY)
        kl__journal_make_room(disk->journal);
    if (rc != KL_OK && rc != KL_ESTALE) {
        refuse(batches, count, rc);
        return rc;
    }
    if (!accepted)
        return rc;
    put_batches(disk, batches, count, waits, &call);
    kl_rc written = kl__journal_wait(disk->journal, &call);
    if (written != KL_OK)
        refuse(batches, count, written);
    return written == KL_OK ? rc : written;
}

/* The disk is full, but upkeep is about to give back what settles before have freed. */
static bool await_relief(kl__disk *disk)
{
    pthread_mutex_lock(&disk->state.mutex);
    bool is_coming = kl__segments_need_upkeep(&disk->segments);
    pthread_mutex_unlock(&disk->state.mutex);
    if (!is_coming)
        return false;
    kl__segments_want_upkeep(&disk->segments);
    nanosleep(&(struct timespec){.tv_nsec = RELIEF_NS}, NULL);
    return true;
}

static kl_rc settle_patiently(kl__disk *disk, kl_settle *batches, size_t count, bool *waits)
{
    kl_rc rc = settle_once(disk, batches, count, waits);
    for (int i = 0; i < RELIEFS && rc == KL_EFULL && await_relief(disk); i++)
        rc = settle_once(disk, batches, count, waits);
    for (int i = 0; i < KL_FULL_TRIES && rc == KL_EFULL; i++) /* relief may also have come before it was looked for */
        rc = settle_once(disk, batches, count, waits);
    return rc;
}

kl_rc kl__disk_settle(void *self, kl_settle *batches, size_t count)
{
    size_t tasks = 0;
    for (size_t i = 0; i < count; i++)
        tasks += batches[i].count;
    bool *waits = kl__alloc(tasks + 1);
    if (waits) {
        kl_rc rc = settle_patiently(self, batches, count, waits);
        kl__free(waits);
        return rc;
    }
    for (size_t i = 0; i < count; i++)
        batches[i].rc = KL_ENOMEM;
    return kl__fail_memory();
}

/* ---- Fence ---- */

static void put_fence(const kl_fence *fence, uint64_t sequence, char *at, uint64_t *sum)
{
    kl__record_header *record = (kl__record_header *)(void *)at;
    *record = (kl__record_header){.sequence = sequence,
                                  .epoch = fence->epoch,
                                  .type = KL_RECORD_FENCE,
                                  .flags = fence->seal ? KL_FENCE_SEAL : 0,
                                  .partition = (uint16_t)fence->place.partition,
                                  .shard = (uint16_t)fence->place.shard};
    *sum += kl__record_seal(record, (char *)(record + 1));
}

/* Must the fence's seal be written? */
static bool seals(const kl__disk *disk, const kl_fence *fence)
{
    const kl__partition_state *partition = kl__state_partition(&disk->state, fence->place.partition);
    return fence->seal && !kl__partition_is_sealed(partition, fence->place.shard);
}

/* Which fences are to be written: those that are above what is there, and new seals. Equal ones are there already. */
static kl_rc decide_fences(kl__disk *disk, kl_fence *fences, size_t count, bool *writes, size_t *ret_accepted)
{
    kl_rc first = KL_OK;
    *ret_accepted = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t epoch = epoch_of(disk, fences[i].place);
        bool is_stale = fences[i].epoch < epoch && !fences[i].seal;
        fences[i].rc = is_stale ? fail_stale(fences[i].place, fences[i].epoch, epoch) : KL_OK;
        writes[i] = fences[i].epoch > epoch || seals(disk, &fences[i]);
        *ret_accepted += writes[i];
        if (first == KL_OK)
            first = fences[i].rc;
    }
    return first;
}

static kl_rc write_fences_once(kl__disk *disk, const kl_fence *fences, size_t count, const bool *writes,
                               size_t accepted)
{
    kl__commit call = {.done = NULL};
    uint64_t sum = 0, sequence;
    kl_rc rc = kl__journal_reserve(disk->journal, accepted * sizeof(kl__record_header), accepted, &call);
    if (rc != KL_OK)
        return rc;
    char *at = call.bytes;
    sequence = call.sequence;
    for (size_t i = 0; i < count; i++) {
        if (!writes[i])
            continue;
        put_fence(&fences[i], sequence++, at, &sum);
        at += sizeof(kl__record_header);
    }
    kl__journal_publish(disk->journal, &call, sum);
    return kl__journal_wait(disk->journal, &call);
}

static kl_rc write_fences(kl__disk *disk, const kl_fence *fences, size_t count, const bool *writes, size_t accepted)
{
    kl_rc rc = write_fences_once(disk, fences, count, writes, accepted);
    for (int i = 0; i < KL_FULL_TRIES && rc == KL_EFULL; i++)
        rc = write_fences_once(disk, fences, count, writes, accepted);
    return rc;
}

static bool any_seals(const kl_fence *fences, size_t count, const bool *writes)
{
    for (size_t i = 0; i < count; i++)
        if (writes[i] && fences[i].seal)
            return true;
    return false;
}

/* Seals stand behind every append that did not see them. The caller wakes the appends that wait. */
static kl_rc write_seals(kl__disk *disk, const kl_fence *fences, size_t count, const bool *writes, size_t accepted)
{
    kl__gates_shut(disk);
    kl_rc rc = write_fences(disk, fences, count, writes, accepted);
    kl__gates_open(disk);
    return rc;
}

/* The claim is held until the fence is applied; then settles of its shards are decided anew. */
static kl_rc fence_claimed(kl__disk *disk, kl_fence *fences, size_t count, bool *writes)
{
    size_t accepted;
    kl_rc written = KL_OK;
    pthread_mutex_lock(&disk->state.mutex);
    kl_rc rc = decide_fences(disk, fences, count, writes, &accepted);
    pthread_mutex_unlock(&disk->state.mutex);
    if (accepted && any_seals(fences, count, writes))
        written = write_seals(disk, fences, count, writes, accepted);
    else if (accepted)
        written = write_fences(disk, fences, count, writes, accepted);
    if (written == KL_OK)
        return rc;
    for (size_t i = 0; i < count; i++)
        if (writes[i])
            fences[i].rc = written;
    return written;
}

kl_rc kl__disk_fence(void *self, kl_fence *fences, size_t count)
{
    kl__disk *disk = self;
    kl__claims places = {{0}};
    bool *writes = kl__alloc_zeroed(count, sizeof(*writes));
    for (size_t i = 0; i < count; i++) {
        claim_place(&places, fences[i].place);
        fences[i].rc = writes ? KL_OK : KL_ENOMEM;
    }
    if (!writes)
        return kl__fail_memory();
    pthread_mutex_lock(&disk->state.mutex);
    kl__claim(disk, &disk->claimed_fences, &places);
    pthread_mutex_unlock(&disk->state.mutex);
    kl_rc rc = fence_claimed(disk, fences, count, writes);
    kl__unclaim(disk, &disk->claimed_fences, &places);
    kl__free(writes);
    return rc;
}
