/* room.c - ready tasks, in the order in which threads get them.
 *
 * From: window.c (taken from their lanes).  To: pump.c (taken by threads).
 *
 * Tasks of the lowest priority value come first; among those, groups take turns, one task each, so that a group that
 * floods the queue gets no more than one that has a single task. This is deficit round robin with a quantum of one
 * task. Tasks without a group are a group of their own. Where tasks are given out by kind, those of which the kind is
 * known and wanted by nobody wait on shelves, one for each kind, and come back before all others when somebody wants
 * them.
 *
 * R1  A group is on the ring of a priority exactly while it has a task of that priority here. */
#include <string.h>

#include "base/compare.h"
#include "work/inside.h"

enum { BUCKETS = 256 };

struct kl__room {
    uint32_t bits; /* bit n: ring n is not empty */
    uint64_t count;
    struct {
        kl__group *first, *last;
    } rings[KL_LANE_PRIORITIES];
    kl__group *groups[BUCKETS];
    uint64_t group_count;
    kl__shelf *shelves;
    size_t shelf_count;
};

kl__room *kl__room_open(void) { return kl__alloc_zeroed(1, sizeof(kl__room)); }

void kl__room_close(kl__room *room)
{
    if (!room)
        return;
    for (int i = 0; i < BUCKETS; i++) {
        while (room->groups[i]) {
            kl__group *group = room->groups[i];
            room->groups[i] = group->next;
            kl__free(group);
        }
    }
    while (room->shelves) {
        kl__shelf *shelf = room->shelves;
        room->shelves = shelf->next;
        kl__free(shelf);
    }
    kl__free(room);
}

/* Groups are kept: there are at most 65,536 of them, half a KiB each. */
kl__group *kl__room_group(kl__room *room, uint16_t number)
{
    kl__group **bucket = &room->groups[number % BUCKETS];
    for (kl__group *group = *bucket; group; group = group->next)
        if (group->number == number)
            return group;
    kl__group *group = kl__alloc_zeroed(1, sizeof *group);
    if (!group)
        return NULL;
    group->number = number;
    group->room = room;
    group->next = *bucket;
    *bucket = group;
    room->group_count++;
    return group;
}

uint64_t kl__group_min(const kl__pump *pump, const kl__group *group)
{
    uint64_t share = (uint64_t)pump->opts.window_max / group->room->group_count;
    return share > KL_GROUP_MIN ? KL_GROUP_MIN : share ? share : 1;
}

static int index_of(const kl__held *held) { return held->lane.mark.priority - KL_LANE_PRIORITY_MIN; }

static void join_ring(kl__room *room, kl__group *group, int index)
{
    struct kl__group_line *line = &group->lines[index];
    line->active = true;
    line->next_active = NULL;
    if (room->rings[index].last)
        room->rings[index].last->lines[index].next_active = group;
    else
        room->rings[index].first = group;
    room->rings[index].last = group;
    room->bits |= 1u << index;
}

static void leave_ring(kl__room *room, kl__group *group, int index)
{
    kl__group **link = &room->rings[index].first, *before = NULL;
    while (*link != group) {
        before = *link;
        link = &before->lines[index].next_active;
    }
    *link = group->lines[index].next_active;
    if (room->rings[index].last == group)
        room->rings[index].last = before;
    group->lines[index].active = false;
    if (!room->rings[index].first)
        room->bits &= ~(1u << index);
}

void kl__room_put(kl__held *held)
{
    kl__room *room = held->group->room;
    int index = index_of(held);
    struct kl__group_line *line = &held->group->lines[index];
    held->state = KL_HELD_ROOM;
    held->next = NULL;
    held->prev = line->last;
    *(line->last ? &line->last->next : &line->first) = held;
    line->last = held;
    room->count++;
    if (!line->active)
        join_ring(room, held->group, index);
}

void kl__room_put_back(kl__held *held)
{
    kl__room *room = held->group->room;
    int index = index_of(held);
    struct kl__group_line *line = &held->group->lines[index];
    held->state = KL_HELD_ROOM;
    held->prev = NULL;
    held->next = line->first;
    *(line->first ? &line->first->prev : &line->last) = held;
    line->first = held;
    room->count++;
    if (!line->active)
        join_ring(room, held->group, index);
}

static void unlink_held(kl__room *room, kl__held *held, int index)
{
    struct kl__group_line *line = &held->group->lines[index];
    *(held->prev ? &held->prev->next : &line->first) = held->next;
    *(held->next ? &held->next->prev : &line->last) = held->prev;
    room->count--;
}

static void leave_shelf(kl__held *held)
{
    kl__shelf *shelf = held->shelf;
    *(held->prev ? &held->prev->next : &shelf->first) = held->next;
    *(held->next ? &held->next->prev : &shelf->last) = held->prev;
    shelf->count--;
    held->shelf = NULL;
}

void kl__room_remove(kl__held *held)
{
    kl__room *room = held->group->room;
    if (held->shelf) {
        leave_shelf(held);
        return;
    }
    int index = index_of(held);
    unlink_held(room, held, index);
    if (!held->group->lines[index].first)
        leave_ring(room, held->group, index);
}

kl__held *kl__room_take(kl__room *room)
{
    if (!room->bits)
        return NULL;
    int index = __builtin_ctz(room->bits);
    kl__group *group = room->rings[index].first;
    kl__held *held = group->lines[index].first;
    unlink_held(room, held, index);
    if (!group->lines[index].first) {
        leave_ring(room, group, index);
    } else if (room->rings[index].last != group) { /* its turn is over */
        leave_ring(room, group, index);
        join_ring(room, group, index);
    }
    return held;
}

uint64_t kl__room_count(const kl__room *room) { return room->count; }

int kl__room_urgency(const kl__room *room) { return room->bits ? __builtin_ctz(room->bits) : KL_LANE_PRIORITIES; }

/* --- Shelves --- */

kl__shelf *kl__room_shelves(const kl__room *room) { return room->shelves; }

kl__shelf *kl__room_shelf(kl__room *room, kl_bytes kind, bool make)
{
    uint16_t hash = kl__owners_kind(kind);
    for (kl__shelf *shelf = room->shelves; shelf; shelf = shelf->next)
        if (shelf->hash == hash && kl__bytes_equal((kl_bytes){shelf->kind, shelf->kind_len}, kind))
            return shelf;
    kl__shelf *shelf =
        make && room->shelf_count < KL_SHELVES_MAX ? kl__alloc_zeroed(1, sizeof *shelf + kind.len) : NULL;
    if (!shelf)
        return NULL;
    shelf->hash = hash;
    shelf->kind_len = kind.len;
    if (kind.len)
        memcpy(shelf->kind, kind.data, kind.len);
    shelf->next = room->shelves;
    room->shelves = shelf;
    room->shelf_count++;
    return shelf;
}

/* Behind those that are as urgent. */
void kl__room_shelve(kl__shelf *shelf, kl__held *held)
{
    kl__held *before = shelf->last;
    while (before && before->lane.mark.priority > held->lane.mark.priority)
        before = before->prev;
    held->state = KL_HELD_ROOM;
    held->shelf = shelf;
    held->prev = before;
    held->next = before ? before->next : shelf->first;
    *(before ? &before->next : &shelf->first) = held;
    *(held->next ? &held->next->prev : &shelf->last) = held;
    shelf->count++;
}

size_t kl__room_unshelve(kl__shelf *shelf, size_t max)
{
    kl__held *last = shelf->first;
    size_t count = last != NULL && max > 0;
    for (; count && count < max && last->next; count++)
        last = last->next;
    for (size_t i = 0; i < count; i++) { /* from the last, so that the first stands first */
        kl__held *before = last->prev;
        leave_shelf(last);
        kl__room_put_back(last);
        last = before;
    }
    return count;
}
