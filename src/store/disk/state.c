/* state.c - applies the journal's records to memory; see state.h. */
#include "store/disk/state.h"

#include <string.h>

#include "base/wait.h"

enum { RECENT_BYTES = 32 << 20 }; /* 115,000 tasks of 200 bytes: so far behind, workers need not read files */
enum { LINE_DUE = KL_LINE_DUE - KL_PRIORITY_MIN, LINE_RETRY = KL_LINE_RETRY - KL_PRIORITY_MIN };

_Static_assert(KL_SEGMENT_BYTES_MAX / 8 <= 1 << KL_SLOT_OFFSET_BITS, "a slot can name any place in a segment");

static void forget_token(void *ctx, const kl__token_info *forgotten);

kl_rc kl__state_open(kl__state *state)
{
    memset(state, 0, sizeof *state);
    pthread_mutex_init(&state->mutex, NULL);
    kl__cond_init(&state->appended);
    kl__cond_init(&state->kept_changed);
    state->first_segment = 1;
    state->stubs = kl__stubs_open();
    state->tokens = kl__tokens_open(forget_token, state);
    state->recent = kl__recent_open(RECENT_BYTES);
    return state->stubs && state->tokens && state->recent ? KL_OK : kl__fail_memory();
}

static void free_shard(kl__shard_state *shard)
{
    if (!shard)
        return;
    for (int i = 0; i < KL_STATE_LINES; i++) {
        if (shard->lines[i])
            kl__line_free(shard->lines[i]);
        kl__free(shard->lines[i]);
    }
    kl__free(shard);
}

static uint32_t shards_of(const kl__partition_state *partition) { return 1u << (4 * partition->shard_prefix_len); }

void kl__state_close(kl__state *state)
{
    for (uint32_t number = 1; number <= state->partition_count; number++) {
        kl__partition_state *partition = state->partitions[number];
        for (uint32_t i = 0; i < shards_of(partition); i++)
            free_shard(partition->shards[i]);
        kl__free(partition->shards);
        kl__free((void *)partition->seals);
        kl__free(partition);
    }
    kl__records_free(&state->records);
    kl__recent_close(state->recent);
    kl__tokens_close(state->tokens);
    kl__stubs_close(state->stubs);
    kl__free(state->segments);
    kl__free(state->kept);
    pthread_cond_destroy(&state->appended);
    pthread_cond_destroy(&state->kept_changed);
    pthread_mutex_destroy(&state->mutex);
}

/* ---- Segments ---- */

kl__segment *kl__state_segment(const kl__state *state, uint64_t number)
{
    uint64_t index = number - state->first_segment;
    return number >= state->first_segment && index < state->segment_count ? state->segments[index] : NULL;
}

bool kl__state_add_segment(kl__state *state, kl__segment *segment)
{
    if (state->segment_count == state->segment_capacity) {
        size_t capacity = state->segment_capacity ? state->segment_capacity * 2 : 16;
        kl__segment **segments = kl__alloc(capacity * sizeof(*segments));
        if (!segments)
            return false;
        if (state->segment_count)
            memcpy(segments, state->segments, state->segment_count * sizeof(*segments));
        kl__free(state->segments);
        state->segments = segments;
        state->segment_capacity = capacity;
    }
    segment->part_live = kl__alloc_zeroed(segment->bytes / KL_PART_BYTES + 1, sizeof *segment->part_live);
    if (!segment->part_live)
        return false;
    if (state->segment_count == 0)
        state->first_segment = segment->number;
    KL_ASSERT(segment->number == state->first_segment + state->segment_count);
    if (state->segment_count)
        state->closed_bytes += state->segments[state->segment_count - 1]->bytes;
    state->segments[state->segment_count++] = segment;
    return true;
}

void kl__segment_free(kl__segment *segment)
{
    if (segment)
        kl__free(segment->part_live);
    kl__free(segment);
}

kl__segment *kl__state_drop_segment(kl__state *state)
{
    kl__segment *segment = state->segments[0];
    KL_ASSERT(segment->live == 0 && segment->pins == 0 && segment->readers == 0);
    KL_ASSERT(!kl__segment_has_live(segment, 0, segment->bytes));
    state->segment_count--;
    memmove(state->segments, state->segments + 1, state->segment_count * sizeof(*state->segments));
    state->first_segment++;
    state->closed_bytes -= segment->bytes;
    return segment;
}

uint64_t kl__state_first_needed(const kl__state *state, uint64_t described)
{
    for (size_t i = 0; i < state->segment_count; i++) {
        const kl__segment *its = state->segments[i];
        if (its->number >= described || its->live || its->pins || its->readers)
            return its->number;
    }
    return 0;
}

/* The last is never among them: it is the one being written. */
size_t kl__state_droppable(const kl__state *state)
{
    if (state->segment_count <= 1)
        return 0;
    uint64_t first_needed = kl__state_first_needed(state, state->described), first = state->segments[0]->number;
    return first_needed > first ? first_needed - first : 0;
}

bool kl__state_may_drop(const kl__state *state)
{
    return kl__state_droppable(state) > 0 && state->segments[0]->number < state->first_noted &&
           state->history_noted >= state->history_needed;
}

void kl__state_noted(kl__state *state, uint64_t history_commits, uint64_t first_needed)
{
    if (history_commits > state->history_noted)
        state->history_noted = history_commits;
    if (first_needed > state->first_noted)
        state->first_noted = first_needed;
}

uint64_t kl__state_needed_bytes(const kl__state *state)
{
    uint64_t bytes = state->closed_bytes;
    for (size_t droppable = kl__state_droppable(state); droppable > 0; droppable--)
        bytes -= state->segments[droppable - 1]->bytes;
    return bytes;
}

bool kl__state_must_compact(const kl__state *state, uint64_t slack)
{
    return state->segment_count > 1 && kl__state_needed_bytes(state) > 2 * state->live + slack;
}

/* Of a token. It is in memory whole, so that it does not matter where in the segment it is. */
static kl__segment *add_token_live(kl__state *state, uint64_t segment, uint32_t bytes)
{
    kl__segment *its = kl__state_segment(state, segment);
    KL_ASSERT(its);
    its->live += bytes;
    state->live += bytes;
    return its;
}

static kl__segment *end_token_live(kl__state *state, uint64_t segment, uint32_t bytes)
{
    kl__segment *its = kl__state_segment(state, segment);
    KL_ASSERT(its && its->live >= bytes);
    its->live -= bytes;
    state->live -= bytes;
    return its;
}

/* Of anything else. */
static void add_live(kl__state *state, kl__where where, uint32_t bytes)
{
    kl__segment *its = add_token_live(state, where.segment, bytes);
    KL_ASSERT(where.offset < its->bytes);
    its->part_live[where.offset / KL_PART_BYTES] += bytes;
}

static void end_live(kl__state *state, kl__where where, uint32_t bytes)
{
    kl__segment *its = end_token_live(state, where.segment, bytes);
    KL_ASSERT(its->part_live[where.offset / KL_PART_BYTES] >= bytes);
    its->part_live[where.offset / KL_PART_BYTES] -= bytes;
}

bool kl__segment_has_live(const kl__segment *segment, uint64_t from, uint64_t to)
{
    for (uint64_t part = from / KL_PART_BYTES; part * KL_PART_BYTES < to; part++)
        if (segment->part_live[part])
            return true;
    return false;
}

static void forget_token(void *ctx, const kl__token_info *forgotten)
{
    (void)end_token_live(ctx, forgotten->segment, sizeof(kl__token_record));
}

/* ---- Partitions, shards, lines ---- */

kl__partition_state *kl__state_partition(const kl__state *state, uint32_t number)
{
    return number >= 1 && number <= state->partition_count ? state->partitions[number] : NULL;
}

kl__shard_state *kl__state_shard(const kl__state *state, kl_place place)
{
    kl__partition_state *partition = kl__state_partition(state, place.partition);
    return partition && place.shard < shards_of(partition) ? partition->shards[place.shard] : NULL;
}

bool kl__state_is_fenced(const kl__partition_state *partition, uint32_t shard)
{
    const kl__shard_state *its = partition->shards[shard];
    return (its && its->epoch) || kl__partition_is_sealed(partition, shard);
}

/* NULL: out of memory. The place is known to exist. */
static kl__shard_state *make_shard(kl__state *state, kl_place place)
{
    kl__partition_state *partition = kl__state_partition(state, place.partition);
    KL_ASSERT(partition && place.shard < shards_of(partition));
    if (!partition->shards[place.shard])
        partition->shards[place.shard] = kl__alloc_zeroed(1, sizeof(kl__shard_state));
    return partition->shards[place.shard];
}

static uint64_t position_of(const void *ctx, uint32_t slot)
{
    return kl__stubs_slot(((const kl__state *)ctx)->stubs, slot)->position;
}

static kl__line_ties ties_of(const kl__state *state) { return (kl__line_ties){.position = position_of, .ctx = state}; }

static uint64_t order_of(const kl__slot *slot) { return slot->line == LINE_DUE ? slot->due_ms : slot->position; }

static kl_place place_of(const kl__slot *slot) { return (kl_place){slot->partition, slot->shard}; }

/* Puts the slot into the line that it names. */
static bool enter_line(kl__state *state, uint32_t number)
{
    kl__slot *slot = kl__stubs_slot(state->stubs, number);
    kl__shard_state *shard = make_shard(state, place_of(slot));
    if (!shard)
        return false;
    if (!shard->lines[slot->line])
        shard->lines[slot->line] = kl__alloc_zeroed(1, sizeof(kl__line));
    if (!shard->lines[slot->line])
        return false;
    kl__line_ties ties = ties_of(state);
    return kl__line_insert(shard->lines[slot->line], &ties, order_of(slot), slot->position, number);
}

static void leave_line(kl__state *state, const kl__slot *slot)
{
    kl__line_ties ties = ties_of(state);
    kl__shard_state *shard = kl__state_shard(state, place_of(slot));
    kl__line_remove(shard->lines[slot->line], &ties, order_of(slot), slot->position);
}

static void fill_stub(const kl__slot *slot, kl_stub *stub)
{
    *stub = (kl_stub){
        .id = slot->id,
        .position = slot->position,
        .key_hash = slot->key_hash,
        .due_ms = slot->line == LINE_DUE || slot->line == LINE_RETRY ? (int64_t)slot->due_ms : 0,
        .bytes = slot->bytes,
        .attempts = (uint16_t)slot->attempts,
        .group = (uint16_t)slot->group,
        .priority = (int8_t)((int)slot->priority + KL_PRIORITY_MIN),
    };
}

/* The slot of the element some places further on in the same block of the line. */
static void prefetch_ahead(const kl__state *state, const kl__line *line, const kl__line_at *at)
{
    enum { AHEAD = 8 };
    const kl__line_block *block = line->blocks[line->first + at->block];
    if (at->index + AHEAD < block->end)
        kl__stubs_prefetch_number(state->stubs, block->slot[at->index + AHEAD]);
}

void kl__state_scan(kl__state *state, kl_scan *scan)
{
    scan->count = 0;
    kl__shard_state *shard = kl__state_shard(state, scan->place);
    kl__line *line = shard ? shard->lines[scan->line - KL_PRIORITY_MIN] : NULL;
    kl__line_ties ties = ties_of(state);
    bool by_due = scan->line == KL_LINE_DUE;
    kl__line_at at;
    if (!line)
        return;
    const kl_stub *after = scan->after;
    bool more =
        after ? kl__line_after(line, &ties, by_due ? (uint64_t)after->due_ms : after->position, after->position, &at)
              : kl__line_first(line, &at);
    for (; more && scan->count < scan->max; more = kl__line_next(line, &at)) {
        if (by_due && (int64_t)kl__line_order(line, &at) > scan->until_ms)
            return;
        prefetch_ahead(state, line, &at);
        fill_stub(kl__stubs_slot(state->stubs, kl__line_slot(line, &at)), &scan->stubs[scan->count++]);
    }
}

/* ---- Entries ---- */

uint32_t kl__slot_record_bytes(const kl__slot *slot)
{
    size_t bytes = sizeof(kl__entry_record) + slot->bytes;
    bytes += slot->record_flags & KL_ENTRY_DUE ? 8 : 0;
    bytes += slot->record_flags & KL_ENTRY_JOB ? 16 : 0;
    bytes += slot->record_flags & KL_ENTRY_TRIED ? 16 : 0;
    return (uint32_t)kl__round8(bytes);
}

/* The number's high bits are those of the first segment, or one more when the low bits have wrapped since. */
kl__where kl__slot_where(const kl__state *state, const kl__slot *slot)
{
    uint32_t ahead = slot->segment - (uint32_t)state->first_segment;
    return (kl__where){state->first_segment + ahead, (uint64_t)slot->offset8 * 8};
}

static void set_where(kl__slot *slot, kl__where where)
{
    slot->segment = (uint32_t)where.segment;
    KL_ASSERT(where.offset < KL_SEGMENT_BYTES_MAX);
    slot->offset8 = where.offset / 8 & ((UINT64_C(1) << KL_SLOT_OFFSET_BITS) - 1);
}

static uint32_t content_bytes(const kl__entry_record *entry)
{
    return entry->key_bytes + entry->header.small[1] + entry->headers_bytes + entry->payload_bytes;
}

/* What stands behind the fixed part of an entry. */
typedef struct entry_more {
    uint64_t due_ms, not_before_ms;
    uint16_t attempts;
} entry_more;

static entry_more more_of(const kl__entry_record *entry)
{
    entry_more more = {0};
    const char *at = (const char *)(entry + 1);
    if (entry->header.flags & KL_ENTRY_DUE) {
        memcpy(&more.due_ms, at, 8);
        at += 8;
    }
    if (entry->header.flags & KL_ENTRY_JOB)
        at += 16;
    if (entry->header.flags & KL_ENTRY_TRIED) {
        memcpy(&more.attempts, at, 2);
        memcpy(&more.not_before_ms, at + 8, 8);
    }
    return more;
}

static void fill_slot(kl__slot *slot, const kl__entry_record *entry, kl__where where)
{
    entry_more more = more_of(entry);
    bool is_tried = entry->header.flags & KL_ENTRY_TRIED;
    slot->key_hash = entry->key_hash;
    slot->position = entry->header.sequence & ((UINT64_C(1) << 48) - 1);
    slot->priority = (unsigned)(kl__entry_priority(entry) - KL_PRIORITY_MIN) & 31;
    slot->line = is_tried ? LINE_RETRY : more.due_ms ? LINE_DUE : slot->priority;
    slot->due_ms = (is_tried ? more.not_before_ms : more.due_ms) & ((UINT64_C(1) << 44) - 1);
    slot->attempts = more.attempts;
    slot->record_flags = entry->header.flags & 15;
    set_where(slot, where);
    slot->bytes = content_bytes(entry) & ((UINT64_C(1) << KL_SLOT_BYTES_BITS) - 1); /* sound: it is less */
    slot->group = entry->header.epoch & UINT16_MAX;
    slot->partition = entry->header.partition;
    slot->shard = entry->header.shard;
}

/* A task that was here is at another place of the journal now. A repeat of its append may have been read first, at a
 * later position: what was moved knows better. */
static bool move_slot(kl__state *state, uint32_t number, const kl__entry_record *entry, kl__where where)
{
    kl__slot *slot = kl__stubs_slot(state->stubs, number);
    end_live(state, kl__slot_where(state, slot), kl__slot_record_bytes(slot));
    kl__slot moved = *slot;
    fill_slot(&moved, entry, where);
    bool stays = moved.shard == slot->shard && moved.line == slot->line && moved.position == slot->position &&
                 order_of(&moved) == order_of(slot);
    if (!stays)
        leave_line(state, slot);
    *slot = moved;
    add_live(state, where, kl__slot_record_bytes(slot));
    return stays || enter_line(state, number);
}

static kl_rc apply_entry(kl__state *state, const kl__entry_record *entry, kl__where where)
{
    kl_task_id id;
    memcpy(&id, entry->id, sizeof id);
    uint32_t number = kl__stubs_find(state->stubs, entry->header.partition, &id);
    if (number != KL_SLOT_NONE) {
        bool is_repeat = !(entry->header.flags & KL_RECORD_MOVED); /* of an append: it is waiting already */
        return is_repeat || move_slot(state, number, entry, where) ? KL_OK : KL_ENOMEM;
    }
    number = kl__stubs_add(state->stubs, entry->header.partition, &id);
    if (number == KL_SLOT_NONE)
        return KL_ENOMEM;
    kl__slot *slot = kl__stubs_slot(state->stubs, number);
    fill_slot(slot, entry, where);
    if (!enter_line(state, number)) {
        kl__stubs_remove(state->stubs, number);
        return KL_ENOMEM;
    }
    add_live(state, where, entry->header.bytes);
    state->partitions[slot->partition]->appended++;
    return KL_OK;
}

/* ---- Settling ---- */

static bool reserve_kept(kl__state *state, size_t more)
{
    if (state->kept_count + more <= state->kept_capacity)
        return true;
    size_t capacity = state->kept_capacity ? state->kept_capacity * 2 : 1024;
    while (capacity < state->kept_count + more)
        capacity *= 2;
    kl__kept *kept = kl__alloc(capacity * sizeof(*kept));
    if (!kept)
        return false;
    for (size_t i = 0; state->kept_capacity && i < state->kept_count; i++)
        kept[i] = state->kept[(state->kept_first + i) % state->kept_capacity];
    kl__free(state->kept);
    state->kept = kept;
    state->kept_first = 0;
    state->kept_capacity = capacity;
    return true;
}

/* Hands a settled task on to history, or of a retry the attempt's error. A retry's entry may be moved before history
 * has the error, and then the SETTLE would be read before its task: so the segment where that stands now is pinned. */
static void keep(kl__state *state, const kl__slot *slot, bool is_finished, kl__kept kept)
{
    kept.entry = kl__slot_where(state, slot);
    if (is_finished)
        kept.entry_bytes = kl__slot_record_bytes(slot);
    else
        kl__state_segment(state, kept.entry.segment)->pins++;
    kl__state_segment(state, kept.settle.segment)->pins++;
    state->kept[(state->kept_first + state->kept_count++) % state->kept_capacity] = kept;
}

void kl__state_kept_done(kl__state *state, size_t count, uint64_t sequence)
{
    for (size_t i = 0; i < count; i++) {
        const kl__kept *kept = &state->kept[state->kept_first];
        if (kept->entry_bytes)
            end_live(state, kept->entry, kept->entry_bytes);
        else
            kl__state_segment(state, kept->entry.segment)->pins--;
        kl__state_segment(state, kept->settle.segment)->pins--;
        state->kept_first = (state->kept_first + 1) % state->kept_capacity;
        state->kept_count--;
    }
    state->kept_sequence = sequence;
    state->history_needed = atomic_load(&state->history_commits);
}

static bool retry(kl__state *state, uint32_t number, const kl__settled_item *item)
{
    kl__slot *slot = kl__stubs_slot(state->stubs, number);
    kl__settled its;
    (void)kl__settled_read(item, SIZE_MAX, &its);
    if (slot->line != LINE_RETRY) {
        leave_line(state, slot);
        slot->line = LINE_RETRY;
        if (!enter_line(state, number))
            return false;
    }
    slot->due_ms = (uint64_t)its.not_before_ms & ((UINT64_C(1) << 44) - 1);
    slot->attempts = item->attempts;
    return true;
}

static bool settle_one(kl__state *state, const kl__settled_item *item, kl_place place, kl__kept kept)
{
    kl_task_id id;
    memcpy(&id, item->id, sizeof id);
    uint32_t number = kl__stubs_find(state->stubs, place.partition, &id);
    if (number == KL_SLOT_NONE)
        return true; /* finished before: passed over */
    kl__slot *slot = kl__stubs_slot(state->stubs, number);
    if (slot->shard != place.shard)
        return true;
    bool is_kept = item->flags & KL_SETTLED_KEPT && kept.sequence > state->kept_sequence;
    if (item->outcome == KL_RETRY) {
        if (is_kept)
            keep(state, slot, false, kept);
        return retry(state, number, item);
    }
    leave_line(state, slot);
    if (is_kept)
        keep(state, slot, true, kept);
    else
        end_live(state, kl__slot_where(state, slot), kl__slot_record_bytes(slot));
    kl__stubs_remove(state->stubs, number);
    return true;
}

static const kl__settled_item *next_item(const kl__settled_item *item)
{
    kl__settled its;
    return (const void *)((const char *)item + kl__settled_read(item, SIZE_MAX, &its));
}

static kl_rc apply_settle(kl__state *state, const kl__settle_record *settle, kl__where where, int64_t now_ms)
{
    enum { AHEAD = 8, FAR_AHEAD = 2 * AHEAD };
    kl_place place = {settle->header.partition, settle->header.shard};
    if (!reserve_kept(state, settle->count))
        return KL_ENOMEM;
    const kl__settled_item *item = (const void *)(settle + 1), *ahead = item, *far = item;
    uint32_t fetched = 0, fetched_far = 0;
    for (uint32_t i = 0; i < settle->count; i++) {
        for (; fetched_far < settle->count && fetched_far < i + FAR_AHEAD; fetched_far++, far = next_item(far))
            kl__stubs_prefetch(state->stubs, (const kl_task_id *)(const void *)far->id);
        for (; fetched < settle->count && fetched < i + AHEAD; fetched++, ahead = next_item(ahead))
            kl__stubs_prefetch_slot(state->stubs, (const kl_task_id *)(const void *)ahead->id);
        kl__kept kept = {.sequence = settle->header.sequence,
                         .settle = where,
                         .settle_bytes = settle->header.bytes,
                         .item = (uint32_t)((const char *)item - (const char *)settle),
                         .now_ms = now_ms};
        if (!settle_one(state, item, place, kept))
            return KL_ENOMEM;
        item = next_item(item);
    }
    return KL_OK;
}

/* ---- Fences, partitions, tokens, records ---- */

static void seal_shard(kl__state *state, kl__partition_state *partition, uint32_t shard)
{
    if (kl__partition_is_sealed(partition, shard))
        return;
    atomic_fetch_or(&partition->seals[shard / 64], UINT64_C(1) << shard % 64);
    atomic_fetch_add(&state->sealed, 1);
}

/* Each segment begins with the fences and seals that are known, so none has to be kept for their sake. */
static kl_rc apply_fence(kl__state *state, const kl__record_header *fence)
{
    kl__partition_state *partition = kl__state_partition(state, fence->partition);
    kl__shard_state *shard = make_shard(state, (kl_place){fence->partition, fence->shard});
    if (!shard)
        return KL_ENOMEM;
    bool was_named = kl__state_is_fenced(partition, fence->shard);
    if (fence->epoch > shard->epoch)
        shard->epoch = fence->epoch;
    if (fence->flags & KL_FENCE_SEAL)
        seal_shard(state, partition, fence->shard);
    state->fenced += !was_named && kl__state_is_fenced(partition, fence->shard);
    return KL_OK;
}

static kl_rc apply_partition(kl__state *state, const kl__partition_record *record)
{
    if (kl__state_partition(state, record->number))
        return KL_OK; /* each segment begins with those that are known */
    KL_ASSERT(record->number == state->partition_count + 1 && record->number <= KL_DISK_PARTITIONS_MAX);
    kl__partition_state *partition = kl__alloc_zeroed(1, sizeof *partition);
    if (!partition)
        return KL_ENOMEM;
    partition->number = record->number;
    partition->shard_prefix_len = record->header.small[0];
    memcpy(partition->name, record + 1, strlen((const char *)(record + 1)) + 1); /* not what fills it up */
    partition->shards = kl__alloc_zeroed(shards_of(partition), sizeof(*partition->shards));
    partition->seals = kl__alloc_zeroed((shards_of(partition) + 63) / 64, sizeof(*partition->seals));
    if (!partition->shards || !partition->seals) {
        kl__free(partition->shards);
        kl__free((void *)partition->seals);
        kl__free(partition);
        return KL_ENOMEM;
    }
    state->partitions[record->number] = partition;
    state->partition_count++;
    return KL_OK;
}

static kl_rc apply_token(kl__state *state, const kl__token_record *record, kl__where where)
{
    kl_token token;
    memcpy(&token, record->token, sizeof token);
    kl__token_info *known = kl__tokens_find(state->tokens, &token);
    kl__token_info info = {token, record->header.sequence, where.segment};
    if (known) {
        (void)end_token_live(state, known->segment, sizeof *record);
        known->segment = where.segment;
        if (info.sequence > known->sequence) /* the journal is read: it was forgotten, and used again */
            known->sequence = info.sequence;
    } else if (!kl__tokens_add(state->tokens, &info)) {
        return KL_ENOMEM;
    }
    (void)add_token_live(state, where.segment, sizeof *record);
    return KL_OK;
}

static void forget_record(kl__state *state, kl__held_record *held)
{
    end_live(state, held->where, held->bytes);
    kl__records_remove(&state->records, held);
}

bool kl__state_sweep(kl__state *state, int64_t now_ms, size_t max)
{
    kl__held_record *held = NULL;
    while (max-- > 0 && (held = kl__records_expired(&state->records, now_ms)) != NULL)
        forget_record(state, held);
    return held != NULL;
}

static kl_rc apply_write(kl__state *state, const kl__write_record *write, kl__where where)
{
    kl__held_record *held = kl__records_find(&state->records, (kl_bytes){write + 1, write->name_bytes});
    if (write->header.flags & KL_WRITE_REMOVE) {
        if (held)
            forget_record(state, held);
        return KL_OK;
    }
    if (held)
        end_live(state, held->where, held->bytes);
    if (!kl__records_set(&state->records, write, where))
        return KL_ENOMEM;
    add_live(state, where, write->header.bytes);
    return KL_OK;
}

/* ---- All types ---- */

kl_rc kl__state_check(const kl__state *state, const kl__record_header *record)
{
    const kl__partition_record *named = (const void *)record;
    if (record->type == KL_RECORD_PARTITION)
        return named->number >= 1 && named->number <= state->partition_count + 1 &&
                       named->number <= KL_DISK_PARTITIONS_MAX
                   ? KL_OK
                   : KL_EINVAL;
    if (record->type != KL_RECORD_ENTRY && record->type != KL_RECORD_SETTLE && record->type != KL_RECORD_FENCE)
        return KL_OK;
    const kl__partition_state *partition = kl__state_partition(state, record->partition);
    return partition && record->shard < shards_of(partition) ? KL_OK : KL_EINVAL;
}

kl_rc kl__state_apply(kl__state *state, const kl__record_header *record, kl__where where, int64_t now_ms)
{
    state->described = where.segment;
    switch ((kl__record_type)record->type) {
    case KL_RECORD_ENTRY:
        return apply_entry(state, (const void *)record, where);
    case KL_RECORD_SETTLE:
        return apply_settle(state, (const void *)record, where, now_ms);
    case KL_RECORD_FENCE:
        return apply_fence(state, record);
    case KL_RECORD_PARTITION:
        return apply_partition(state, (const void *)record);
    case KL_RECORD_TOKEN:
        return apply_token(state, (const void *)record, where);
    case KL_RECORD_WRITE:
        return apply_write(state, (const void *)record, where);
    case KL_RECORD_NOTE:
        kl__state_noted(state, record->epoch, kl__note_first(record));
        break;
    case KL_RECORD_CLOSE:
    case KL_RECORD_TYPES:
        break;
    }
    return KL_OK;
}

kl_rc kl__state_apply_all(kl__state *state, const kl__record_header *record, size_t records, kl__where where,
                          int64_t now_ms, bool is_in_doubt)
{
    enum { AHEAD = 8 };
    const kl__record_header *ahead = record;
    size_t fetched = 0;
    kl_rc rc = KL_OK;
    for (size_t i = 0; i < records && rc == KL_OK; i++) {
        for (; fetched < records && fetched < i + AHEAD; fetched++, ahead = kl__record_next(ahead))
            kl__state_prefetch(state, ahead);
        if (is_in_doubt)
            rc = kl__state_check(state, record);
        if (rc == KL_OK)
            rc = kl__state_apply(state, record, where, now_ms);
        where.offset += record->bytes;
        record = kl__record_next(record);
    }
    return rc;
}

void kl__state_prefetch(const kl__state *state, const kl__record_header *record)
{
    if (record->type == KL_RECORD_ENTRY)
        kl__stubs_prefetch(state->stubs, (const kl_task_id *)(const void *)((const kl__entry_record *)record)->id);
}

void kl__state_prefetch_slot(const kl__state *state, const kl__record_header *record)
{
    if (record->type == KL_RECORD_ENTRY)
        kl__stubs_prefetch_slot(state->stubs, (const kl_task_id *)(const void *)((const kl__entry_record *)record)->id);
}

static kl__slot *slot_of(kl__state *state, const kl__entry_record *entry)
{
    kl_task_id id;
    memcpy(&id, entry->id, sizeof id);
    uint32_t number = kl__stubs_find(state->stubs, entry->header.partition, &id);
    return number == KL_SLOT_NONE ? NULL : kl__stubs_slot(state->stubs, number);
}

bool kl__state_is_live(kl__state *state, const kl__record_header *record, kl__where where, int64_t now_ms)
{
    kl_token token;
    switch ((kl__record_type)record->type) {
    case KL_RECORD_ENTRY: {
        const kl__slot *slot = slot_of(state, (const void *)record);
        kl__where at = slot ? kl__slot_where(state, slot) : (kl__where){0, 0};
        return slot && at.segment == where.segment && at.offset == where.offset;
    }
    case KL_RECORD_TOKEN: {
        memcpy(&token, ((const kl__token_record *)record)->token, sizeof token);
        const kl__token_info *known = kl__tokens_find(state->tokens, &token);
        return known && known->segment == where.segment;
    }
    case KL_RECORD_WRITE: {
        const kl__write_record *write = (const void *)record;
        kl__held_record *held = kl__records_find(&state->records, (kl_bytes){write + 1, write->name_bytes});
        if (!held || held->where.segment != where.segment || held->where.offset != where.offset)
            return false;
        if (!kl__held_expired(held, now_ms))
            return true;
        forget_record(state, held);
        return false;
    }
    case KL_RECORD_NOTE: /* this, fences and partitions stand at the beginning of each segment */
    case KL_RECORD_FENCE:
    case KL_RECORD_SETTLE:
    case KL_RECORD_PARTITION:
    case KL_RECORD_CLOSE:
    case KL_RECORD_TYPES:
        break;
    }
    return false;
}

/* The entry as it stands now: tried or not, with its attempts. */
static void copy_entry(const kl__slot *slot, const kl__entry_record *entry, kl__entry_record *out)
{
    const char *from = (const char *)(entry + 1);
    char *to = (char *)(out + 1);
    size_t fixed = (entry->header.flags & KL_ENTRY_DUE ? 8 : 0) + (entry->header.flags & KL_ENTRY_JOB ? 16 : 0);
    *out = *entry;
    memcpy(to, from, fixed);
    from += fixed + (entry->header.flags & KL_ENTRY_TRIED ? 16 : 0);
    to += fixed;
    if (slot->line == LINE_RETRY) {
        uint64_t tried[2] = {slot->attempts, slot->due_ms};
        memcpy(to, tried, sizeof tried);
        to += sizeof tried;
        out->header.flags |= KL_ENTRY_TRIED;
    }
    memcpy(to, from, content_bytes(entry)); /* none, when it is lost */
    to += content_bytes(entry);
    size_t bytes = (size_t)(to - (char *)out);
    memset(to, 0, kl__round8(bytes) - bytes);
    out->header.bytes = (uint32_t)kl__round8(bytes);
}

void kl__state_copy(kl__state *state, const kl__record_header *record, kl__record_header *out)
{
    if (record->type == KL_RECORD_ENTRY)
        copy_entry(slot_of(state, (const void *)record), (const void *)record, (void *)out);
    else
        memcpy(out, record, record->bytes);
    out->flags |= KL_RECORD_MOVED;
}
