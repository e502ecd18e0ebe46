/* capacity.c - at most so many tasks of one partition at a time in this worker.
 *
 * From: partitions.c (which partitions there are), pump.c (take, come back).  To: room.c.
 *
 * Where there is such a limit, ready tasks of each partition wait in a room of its own, and it has its own part of the
 * memory: so those of a partition that is at its limit stand in nobody's way. The most urgent come first, and among
 * partitions that have such, each in turn. While a queue has two layouts, the partitions of one number share a limit.
 * Without a limit none of this is there, and all wait in the pump's room.
 *
 * C1  running counts the tasks of the partition that were taken and have not come back, and never exceeds the limit. */
#include "base/mutant.h"
#include "work/inside.h"

kl__capacity *kl__capacity_join(kl__pump *pump, uint32_t index)
{
    kl__capacity *capacity = pump->capacities;
    while (capacity && capacity->index != index)
        capacity = capacity->next;
    if (!capacity) {
        if (!(capacity = kl__alloc_zeroed(1, sizeof *capacity)))
            return NULL;
        if (!(capacity->room = kl__room_open())) {
            kl__free(capacity);
            return NULL;
        }
        capacity->index = index;
        capacity->next = pump->capacities;
        pump->capacities = capacity;
        pump->capacity_count++;
    }
    capacity->users++;
    return capacity;
}

void kl__capacity_leave(kl__pump *pump, kl__capacity *capacity)
{
    kl__capacity **link = &pump->capacities;
    if (!capacity || --capacity->users > 0)
        return;
    KL_ASSERT(capacity->held == 0 && (capacity->running == 0 || KL_MUTANT(capacity_leaks)));
    while (*link != capacity)
        link = &(*link)->next;
    *link = capacity->next;
    pump->capacity_count--;
    kl__room_close(capacity->room);
    kl__free(capacity);
}

static uint64_t left(const kl__pump *pump, const kl__capacity *capacity)
{
    uint64_t limit = (uint64_t)pump->opts.per_partition;
    return limit > capacity->running ? limit - capacity->running : 0;
}

bool kl__capacity_used_up(const kl__pump *pump, const kl__capacity *capacity)
{
    return capacity && left(pump, capacity) == 0;
}

/* It becomes the last in turn. */
kl__room *kl__capacity_next(kl__pump *pump)
{
    kl__capacity **best = NULL, **link = &pump->capacities;
    for (; *link; link = &(*link)->next) {
        if (kl__room_count((*link)->room) == 0 || (left(pump, *link) == 0 && !KL_MUTANT(partition_unlimited)))
            continue;
        if (!best || kl__room_urgency((*link)->room) < kl__room_urgency((*best)->room))
            best = link;
    }
    if (!best)
        return NULL;
    kl__capacity *capacity = *best;
    *best = capacity->next;
    *(link == &capacity->next ? best : link) = capacity;
    capacity->next = NULL;
    return capacity->room;
}

uint64_t kl__pump_startable(const kl__pump *pump)
{
    uint64_t sum = 0;
    if (!pump->capacities)
        return kl__room_count(pump->room);
    for (const kl__capacity *capacity = pump->capacities; capacity; capacity = capacity->next) {
        uint64_t count = kl__room_count(capacity->room), most = left(pump, capacity);
        sum += count < most ? count : most;
    }
    return sum;
}

/* Less is ready than `enough`, and half of the memory is free: with limits, in some partition's part. */
bool kl__pump_has_space(const kl__pump *pump, uint64_t enough)
{
    uint64_t half = (uint64_t)pump->opts.window_max / 2;
    if (!pump->capacities)
        return kl__room_count(pump->room) < enough && pump->held < half;
    for (const kl__capacity *capacity = pump->capacities; capacity; capacity = capacity->next)
        if (kl__room_count(capacity->room) < enough && capacity->held * pump->capacity_count < half)
            return true;
    return false;
}
