/* partitions.c - which partitions of the queue there are, and which of their shards this worker owns.
 *
 * From: beat.c.  To: owners.c (the record), window.c (a window for each owned shard).
 *
 *      taken -> a window is opened        wanted -> nothing more is taken from it; when it is idle it is dropped and
 *      lost  -> it is dropped                       given back with the next beat */
#include <string.h>

#include "base/hash.h"
#include "base/mutant.h"
#include "store/quick.h"
#include "work/inside.h"

enum { UNOWNED_LEASES = 2 };

/* --- As the descriptor says --- */

static kl__partition *find(const kl__pump *pump, uint64_t layout_number, const char *name)
{
    kl__partition *partition = pump->partitions;
    while (partition && (partition->layout_number != layout_number || strcmp(partition->name, name) != 0))
        partition = partition->next;
    return partition;
}

/* The same part of a layout with another number of digits: a shard's name keeps its first ones. */
static void carry_over(const kl_shards *from, const kl_layout *layout, kl_shards *ret_shards)
{
    uint32_t digits = from->layout.shard_prefix_len, new_digits = layout->shard_prefix_len;
    uint32_t more = new_digits > digits ? 4 * (new_digits - digits) : 0,
             fewer = digits > new_digits ? 4 * (digits - new_digits) : 0;
    kl_shards_none(layout, ret_shards);
    for (int64_t shard = kl_shards_next(from, 0); shard >= 0; shard = kl_shards_next(from, shard + 1)) {
        for (uint64_t i = 0; i < UINT64_C(1) << more; i++) {
            uint64_t carried = ((uint64_t)shard >> fewer << more) + i;
            ret_shards->bits[carried / 64] |= UINT64_C(1) << carried % 64;
        }
    }
}

static kl_rc allowed_shards(const kl__pump *pump, const kl_layout *layout, kl_shards *ret_shards)
{
    const kl__pump_opts *opts = &pump->opts;
    if (opts->slices > 0)
        return kl_shards_slice(layout, opts->slice, opts->slices, ret_shards);
    if (pump->given)
        carry_over(pump->given, layout, ret_shards);
    else
        kl_shards_all(layout, ret_shards);
    return KL_OK;
}

static kl_rc open_owners(kl__pump *pump, kl__partition *partition)
{
    kl__owners_opts *opts = kl__alloc_zeroed(1, sizeof *opts); /* 8 KiB of shards */
    const char *kinds[KL_HANDLERS_MAX];
    size_t kind_count = 0;
    bool any = pump->opts.handler_count == 0;
    if (!opts)
        return kl__fail_memory();
    for (size_t i = 0; i < pump->opts.handler_count; i++) {
        if (pump->opts.handlers[i].kind)
            kinds[kind_count++] = pump->opts.handlers[i].kind;
        else
            any = true;
    }
    *opts = (kl__owners_opts){.store = partition->store,
                              .partition = partition->number,
                              .name = partition->name,
                              .layout = partition->layout,
                              .worker = pump->opts.worker,
                              .worker_name = pump->opts.worker_name,
                              .lease_ms = pump->descriptor->settings.lease_ms,
                              .seed = pump->opts.seed ^ partition->number,
                              .kinds = kinds,
                              .kind_count = any ? 0 : kind_count,
                              .concurrency = (uint64_t)pump->opts.concurrency};
    kl_rc rc = allowed_shards(pump, &partition->layout, &opts->allowed);
    partition->allowed_count = rc == KL_OK ? kl_shards_count(&opts->allowed) : 0;
    if (rc == KL_OK)
        rc = kl__owners_open(opts, &partition->owners);
    kl__free(opts);
    return rc;
}

static void free_partition(kl__partition *partition)
{
    while (partition->windows)
        kl__window_drop(partition->windows);
    kl__owners_close(partition->owners);
    kl__capacity_leave(partition->pump, partition->capacity);
    kl__free(partition->unopened);
    kl__free(partition->by_shard);
    kl__free(partition);
}

bool kl__partition_is_away(const kl__partition *partition)
{
    return partition->store != partition->pump->queue->store && kl__store_is_away(partition->store);
}

/* The one of the layout that all workers can reach while they can do anything: the first in the store that has the
 * queue's record. There need not be one, and then it is the first of all. */
static uint32_t granting(const kl__pump *pump, const kl__queue_layout *layout)
{
    uint32_t index = 0;
    while (index < layout->layout.partitions && layout->stores[index] != pump->queue->store)
        index++;
    return index < layout->layout.partitions ? index : 0;
}

/* Its store is away: the next refresh tries again. Where the queue's concurrency is shared out in its record, nobody
 * knows how much the others may run until then. */
static kl_rc note_away(kl__pump *pump, const kl__queue_layout *layout, uint32_t index)
{
    char name[KL_TOLD_PARTITION_BYTES], why[512];
    bool all = index == granting(pump, layout) && pump->descriptor->settings.concurrency != KL_FOREVER;
    snprintf(why, sizeof why, "%s", kl_error_text());
    kl_rc rc = kl__layout_tell_partition(pump->queue, pump->descriptor, layout, index, name);
    if (rc != KL_OK)
        return rc;
    pump->away++;
    if (!pump->away_told)
        kl__pump_log(pump, KL_LOG_WARN, "queue %s: partition %s is not worked on until its store answers; %s: %s",
                     pump->queue->name, name,
                     all ? "neither are the others, because the queue's concurrency is shared out there"
                         : "the others are",
                     why);
    pump->away_told = true;
    return KL_OK;
}

/* Every partition has been asked. One that is worked on may have gone away since. */
static void note_all_asked(kl__pump *pump)
{
    const kl__partition *partition = pump->partitions;
    while (partition && !kl__partition_is_away(partition))
        partition = partition->next;
    if (!pump->away_told || pump->away > 0 || partition)
        return;
    kl__pump_log(pump, KL_LOG_WARN, "queue %s: the stores of all partitions answer, and all are worked on",
                 pump->queue->name);
    pump->away_told = false;
}

static kl_rc add(kl__pump *pump, const kl__queue_layout *layout, uint32_t index)
{
    char name[KL_PARTITION_NAME_BYTES], plain[KL_PARTITION_NAME_BYTES];
    kl_rc rc = kl__layout_partition_name(pump->queue, layout, index, name);
    if (rc == KL_OK)
        rc = kl_partition_name(&layout->layout, pump->queue->name, index, sizeof plain, plain);
    if (rc != KL_OK || find(pump, layout->number, name) ||
        (pump->opts.partition && strcmp(pump->opts.partition, name) != 0))
        return rc;
    kl__pump_leave(pump);
    uint32_t number = kl__layout_number(layout, index);
    kl__pump_enter(pump);
    if (number == KL_PARTITION_AWAY) {
        return note_away(pump, layout, index);
    }
    kl__partition *partition = kl__alloc_zeroed(1, sizeof *partition);
    if (!partition)
        return kl__fail_memory();
    partition->pump = pump;
    partition->store = layout->stores[index];
    partition->number = number;
    partition->index = index;
    partition->layout = layout->layout;
    partition->layout_number = layout->number;
    partition->grants = index == granting(pump, layout);
    partition->permits = UINT64_MAX; /* until its first beat tells: a store that is away stops no other layout */
    memcpy(partition->name, name, sizeof name);
    memcpy(partition->plain, plain, sizeof plain);
    partition->gate = kl__gate_of(pump, layout->number);
    partition->unopened = kl__alloc_zeroed((kl_layout_shards(&partition->layout) + 63) / 64, sizeof(uint64_t));
    partition->by_shard = kl__alloc_zeroed(kl_layout_shards(&partition->layout), sizeof *partition->by_shard);
    partition->room = pump->room;
    if (pump->opts.per_partition && (partition->capacity = kl__capacity_join(pump, index)))
        partition->room = partition->capacity->room;
    bool made = partition->unopened && partition->by_shard && (partition->capacity || !pump->opts.per_partition);
    rc = made ? open_owners(pump, partition) : kl__fail_memory();
    if (rc != KL_OK) {
        free_partition(partition);
        return rc;
    }
    kl__partition **link = &pump->partitions; /* oldest layouts first */
    while (*link)
        link = &(*link)->next;
    *link = partition;
    pump->beat_now = true; /* its shards have no owner, and older layouts may be drained long before the next beat */
    return KL_OK;
}

static const kl__queue_layout *layout_of(const kl__descriptor *descriptor, uint64_t number)
{
    for (size_t i = 0; i < descriptor->layout_count; i++)
        if (descriptor->layouts[i].number == number)
            return &descriptor->layouts[i];
    return NULL;
}

kl_rc kl__partitions_sync(kl__pump *pump)
{
    kl__descriptor *descriptor = pump->descriptor;
    kl_rc rc = KL_MUTANT(gates_late)
                   ? KL_OK
                   : kl__gates_add(pump); /* before anything of a new layout is owned, whatever else fails */
    if (rc != KL_OK)
        return rc;
    pump->all_shards = 0;
    pump->away = 0;
    for (size_t i = 0; i < descriptor->layout_count; i++) {
        const kl__queue_layout *layout = &descriptor->layouts[i];
        if (layout->drained)
            continue;
        pump->all_shards += (uint64_t)layout->layout.partitions * kl_layout_shards(&layout->layout);
        for (uint32_t p = 0; p < layout->layout.partitions && rc == KL_OK; p++)
            if (!pump->stopping)
                rc = add(pump, layout, p); /* one that stops comes to nothing new: once gone, it stays gone */
    }
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next) {
        const kl__queue_layout *layout = layout_of(descriptor, partition->layout_number);
        partition->ending = !layout || layout->drained;
    }
    if (rc == KL_OK && !pump->stopping) /* else some were not */
        note_all_asked(pump);
    return rc;
}

/* --- Giving back --- */

/* Tasks that wait for a thread go back into their lines; what runs goes on. */
static void begin_leaving(kl__window *window)
{
    window->leaving = window->unlooked = true;
    kl__window_clear_room(window);
}

static bool is_idle(const kl__window *window) { return window->out == 0 && !window->finished; }

static size_t leave_unopened(kl__partition *partition, uint32_t *left, bool *unsettled)
{
    size_t count = 0;
    for (uint32_t word = 0; word < (kl_layout_shards(&partition->layout) + 63) / 64; word++)
        for (; partition->unopened[word]; partition->unopened[word] &= partition->unopened[word] - 1) {
            unsettled[count] = true;
            left[count++] = word * 64 + (uint32_t)__builtin_ctzll(partition->unopened[word]);
        }
    return count;
}

/* Drops the windows that are to be given back and are idle, and lists their shards. */
static size_t leave_idle(kl__partition *partition, uint32_t *left, bool *unsettled)
{
    size_t count = leave_unopened(partition, left, unsettled);
    kl__window *next;
    for (kl__window *window = partition->windows; window; window = next) {
        next = window->next;
        if (!window->leaving && !partition->ending && !partition->pump->stopping)
            continue;
        if (!window->leaving)
            begin_leaving(window);
        if (!is_idle(window))
            continue;
        unsettled[count] = kl__window_is_suspect(window);
        left[count++] = window->place.shard;
        kl__window_drop(window);
    }
    return count;
}

/* Each with every kind that is known of it, and with 0 where there are more. NULL: how many that are. */
static size_t list_unserved(const kl__partition *partition, uint32_t *unserved, uint16_t *kinds)
{
    size_t count = 0;
    for (const kl__window *window = partition->windows; window; window = window->next) {
        for (uint8_t i = 0; !window->leaving && i < window->unserved_count + window->unserved_more; i++, count++) {
            if (!unserved)
                continue;
            kinds[count] = i < window->unserved_count ? window->unserved[i] : 0;
            unserved[count] = window->place.shard;
        }
    }
    return count;
}

/* --- A beat --- */

static kl_rc apply(kl__pump *pump, kl__partition *partition, const kl__owners_change *change)
{
    kl_rc rc = KL_OK;
    for (size_t i = 0; i < change->lost_count; i++) {
        kl__window *window = partition->by_shard[change->lost[i]];
        if (window && !KL_MUTANT(lost_kept))
            kl__window_drop(window);
    }
    for (kl__window *window = partition->windows; window; window = window->next) {
        window->lapsed = false;
        if (!pump->stopping && !partition->ending)
            window->leaving = false; /* what is not among the wanted may be kept */
    }
    for (size_t i = 0; i < change->wanted_count; i++) {
        kl__window *window = partition->by_shard[change->wanted[i]];
        if (window && !window->leaving)
            begin_leaving(window);
    }
    for (size_t i = 0; i < change->taken_count; i++) {
        const kl__owned *owned = &change->taken[i];
        KL_ASSERT(!partition->by_shard[owned->shard]);
        if (kl__window_open(partition, owned->shard, owned->epoch, owned->clean))
            continue;
        partition->unopened[owned->shard / 64] |= UINT64_C(1) << owned->shard % 64;
        pump->beat_now = true;
        rc = kl__fail_memory();
    }
    if (change->wanted_count)
        pump->beat_now = true;
    for (kl__window *window = partition->windows; window; window = window->next)
        kl__window_ready(window);
    return rc;
}

/* Tasks that run or could run now. */
static uint64_t wanted_permits(const kl__pump *pump)
{
    uint64_t wanted = pump->running + kl__pump_startable(pump), most = (uint64_t)pump->opts.concurrency;
    return wanted < most ? wanted : most;
}

/* The queue's concurrency is shared out in the record of one partition of each layout that may hold tasks, and
 * what all of these grant holds. Whoever runs something stands in the record of the oldest such layout, whether he has
 * heard of newer ones or not: so the limit holds there. In the record of a newer one nobody is granted more than in the
 * older ones, so that it holds there too by the time when the older are drained. */
static bool shares_permits(const kl__partition *partition)
{
    return partition->grants && !partition->ending && !partition->gone;
}

/* What the records of layouts before this one grant. */
static uint64_t permits_before(const kl__pump *pump, uint64_t layout_number)
{
    uint64_t least = UINT64_MAX;
    for (const kl__partition *partition = pump->partitions; partition; partition = partition->next)
        if (shares_permits(partition) && partition->layout_number < layout_number && partition->permits < least)
            least = partition->permits;
    return least;
}

static void set_permits(kl__pump *pump)
{
    const kl__partition *partition = pump->partitions;
    while (partition && !shares_permits(partition))
        partition = partition->next;
    uint64_t least = partition ? permits_before(pump, UINT64_MAX) : 0;
    bool is_told = least != UINT64_MAX || pump->descriptor->settings.concurrency == KL_FOREVER;
    pump->permits = is_told ? least : 0;
}

/* Those of a lease that is over others may have by now. */
uint64_t kl__partitions_permits(const kl__pump *pump)
{
    int64_t local_ms = pump->opts.local_ms(pump->opts.local_ctx);
    bool holds = pump->descriptor->settings.concurrency == KL_FOREVER;
    for (const kl__partition *partition = pump->partitions; partition && !holds; partition = partition->next)
        holds = shares_permits(partition) && kl__owners_holds(partition->owners, local_ms);
    return holds ? pump->permits : 0;
}

/* Where permits are scarce first. */
static bool governs_permits(const kl__pump *pump, const kl__partition *partition)
{
    return shares_permits(partition) && permits_before(pump, partition->layout_number) == UINT64_MAX;
}

static kl_rc beat(kl__pump *pump, kl__partition *partition, bool *ret_gone)
{
    size_t shards = kl_layout_shards(&partition->layout), unserved = list_unserved(partition, NULL, NULL);
    uint32_t *lists =
        kl__alloc(shards * (sizeof *lists + sizeof(bool)) + unserved * (sizeof *lists + sizeof(uint16_t)));
    if (!lists)
        return kl__fail_memory();
    uint16_t *kinds = (uint16_t *)(lists + shards + unserved);
    bool *unsettled = (bool *)(kinds + unserved);
    int64_t local_ms = pump->opts.local_ms(pump->opts.local_ctx);
    const kl_queue_opts *settings = &pump->descriptor->settings;
    kl__owners_report report = {
        .local_now_ms = local_ms,
        .lease_ms = KL_MUTANT(lease_kept) ? 0 : settings->lease_ms,
        .running = pump->running,
        .leaving = pump->stopping || partition->ending,
        .stays = pump->running > 0 && settings->concurrency != KL_FOREVER && shares_permits(partition),
        .left = lists,
        .unsettled = unsettled,
        .left_count = leave_idle(partition, lists, unsettled),
        .unserved = lists + shards,
        .unserved_kinds = kinds,
        .unserved_count = list_unserved(partition, lists + shards, kinds),
        .permits_wanted = wanted_permits(pump),
        .full = kl__capacity_used_up(pump, partition->capacity) && kl__room_count(partition->room) > 0,
        .permits_max = settings->concurrency == KL_FOREVER ? UINT64_MAX : (uint64_t)settings->concurrency,
        .permits_most = permits_before(pump, partition->layout_number),
    };
    kl__owners_change change;
    kl__pump_leave(pump);
    kl_rc rc = kl__owners_beat(partition->owners, &report, &change);
    kl__pump_enter(pump);
    kl__free(lists);
    if (rc != KL_OK)
        return rc;
    partition->permits = change.permits;
    partition->unfenced = change.unfenced;
    partition->unfenced_rc = change.unfenced_rc;
    snprintf(partition->unfenced_why, sizeof partition->unfenced_why, "%s", change.unfenced_why);
    if (governs_permits(pump, partition))
        pump->wants_told = report.permits_wanted;
    set_permits(pump);
    *ret_gone = change.gone;
    rc = apply(pump, partition, &change);
    kl__owners_renew(partition->owners);
    return rc;
}

int64_t kl__partitions_lease_ms(const kl__pump *pump)
{
    int64_t least_ms = pump->descriptor->settings.lease_ms;
    for (const kl__partition *partition = pump->partitions; partition; partition = partition->next) {
        int64_t lease_ms = partition->gone ? least_ms : kl__owners_lease_ms(partition->owners);
        least_ms = lease_ms < least_ms ? lease_ms : least_ms;
    }
    return least_ms;
}

/* --- Between beats --- */

/* Workers and owners, but not their heartbeats: those would make every worker beat because another did. */
static uint64_t hash_of(const kl__ownership *ownership)
{
    uint64_t hash = ownership->count;
    for (size_t i = 0; i < ownership->count; i++) {
        const kl__owner *owner = &ownership->workers[i];
        uint64_t leaving = owner->leaving;
        hash = kl__hash((kl_bytes){&owner->id, sizeof owner->id}, hash ^ leaving << 63);
        hash = kl__hash((kl_bytes){&owner->shards, sizeof owner->shards}, hash);
    }
    return hash;
}

/* Permits go where they are wanted at once, and not with the next beat of each worker: who has some to spare lowers its
 * share when another wants more, in two beats, because it may start tasks while the first is under way; and who wants
 * more takes what has become free. */
static bool permits_stir(const kl__pump *pump, const kl__partition *partition, const kl__ownership *ownership)
{
    uint64_t max = (uint64_t)pump->descriptor->settings.concurrency, sum = 0, mine = 0, wanted = wanted_permits(pump);
    bool wanting = false;
    if (pump->descriptor->settings.concurrency == KL_FOREVER || !governs_permits(pump, partition))
        return false;
    for (size_t i = 0; i < ownership->count; i++) {
        const kl__owner *owner = &ownership->workers[i];
        bool me = kl_id_compare(&owner->id, &pump->opts.worker) == 0;
        sum += owner->permits;
        mine = me ? owner->permits : mine;
        wanting |= !me && owner->wants > owner->permits;
    }
    return (wanting && mine > wanted) || (wanted > pump->permits && sum < max);
}

bool kl__partitions_starve(const kl__pump *pump)
{
    return pump->descriptor->settings.concurrency != KL_FOREVER && pump->wants_told <= pump->permits &&
           wanted_permits(pump) > pump->permits;
}

static void note_unowned(kl__partition *partition, const kl__ownership *ownership)
{
    bool unowned = false;
    for (uint32_t shard = 0; shard < kl_layout_shards(&partition->layout) && !unowned; shard += ownership->group_shards)
        unowned = !kl__ownership_of(ownership, shard);
    if (unowned && !partition->unowned)
        partition->unowned_ms = partition->pump->now_ms;
    partition->unowned = unowned;
    partition->unowned_told &= unowned;
}

/* A worker that may take every shard does. So where some have had none for long, those who run may not. */
static void tell_unowned(kl__partition *partition)
{
    const kl__pump *pump = partition->pump;
    int64_t lease_ms = pump->descriptor->settings.lease_ms;
    bool limited = partition->allowed_count < kl_layout_shards(&partition->layout);
    if (!partition->unowned || partition->unowned_told || !limited || partition->gone ||
        pump->now_ms - partition->unowned_ms < UNOWNED_LEASES * lease_ms)
        return;
    partition->unowned_told = true;
    kl__pump_log(
        pump, KL_LOG_WARN,
        "queue %s: some shards of partition %s have no worker, and what is put there waits; start one that may take "
        "them, without --shards or --slice or with others",
        pump->queue->name, partition->plain);
}

kl_rc kl__partitions_watch(kl__pump *pump)
{
    kl_arena arena = {0};
    kl_rc first = KL_OK;
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next) {
        kl__ownership ownership;
        if (partition->gone || !kl__pump_has_news(pump, partition->store, &partition->watch))
            continue;
        kl_arena_reset(&arena);
        kl__pump_leave(pump);
        kl_rc rc = kl__owners_read(partition->store, partition->name, &partition->layout, &arena, &ownership);
        kl__pump_enter(pump);
        first = first != KL_OK ? first : rc;
        if (rc != KL_OK)
            partition->watch = (kl__reader){0};
        uint64_t hash = rc == KL_OK ? hash_of(&ownership) : partition->watched;
        pump->beat_now |= hash != partition->watched || (rc == KL_OK && permits_stir(pump, partition, &ownership));
        partition->watched = hash;
        if (rc == KL_OK)
            note_unowned(partition, &ownership);
    }
    kl_arena_free(&arena);
    return first;
}

kl_rc kl__partitions_beat(kl__pump *pump)
{
    kl_rc first = KL_OK;
    kl__partition **link = &pump->partitions;
    while (*link) {
        kl__partition *partition = *link;
        bool gone = false;
        kl_rc rc = partition->gone ? KL_OK : beat(pump, partition, &gone);
        tell_unowned(partition);
        first = first != KL_OK ? first : rc;
        partition->gone |= gone;
        if (partition->gone && !partition->windows_alive && !pump->looking && !pump->ticking &&
            !kl__pump_settling(pump)) {
            *link = partition->next;
            free_partition(partition);
        } else {
            link = &partition->next;
        }
    }
    return first;
}

/* Who stands in for a moment has no use for the sentence about a damaged shard: he asks for another. */
kl_rc kl__partitions_fenced(const kl__pump *pump)
{
    bool stands_in = pump->opts.handler_count == 0;
    for (const kl__partition *partition = pump->partitions; partition; partition = partition->next)
        if (partition->unfenced_rc != KL_OK && !(stands_in && partition->unfenced_rc == KL_EDAMAGED))
            return kl__fail(partition->unfenced_rc,
                            "shards of %s cannot be used, because their fence cannot be written: %s", partition->plain,
                            partition->unfenced_why);
    return KL_OK;
}

void kl__partitions_close(kl__pump *pump)
{
    while (pump->partitions) {
        kl__partition *partition = pump->partitions;
        pump->partitions = partition->next;
        free_partition(partition);
    }
}
