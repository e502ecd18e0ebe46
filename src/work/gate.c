/* gate.c - keys whose tasks in older layouts come first.
 *
 * From: beat.c.  To: window.c, which leaves such keys out.
 *
 * Older layouts are sealed, so what they hold only becomes less: a key that is not in the set never will be, and the
 * set may be read at leisure. While an older layout is not sealed, or holds more than KEYS_MAX tasks, the gate is shut
 * and nothing of the newer layout is run: it is being drained first, which is what most changes of layout look like.
 * Each layout is read once for all that are newer, and one line of many shards at a time: where a call is a journey, a
 * hundred shards with one task must not take a hundred of them.
 *
 * What was read is applied once the record has been read again. A delayed task of layout 1 may have a copy in layout 2,
 * of a move that was broken off; when there is a layout 3, it is moved there, and is gone from layout 1. Who saw that,
 * and did not know of layout 3 yet, would run the copy in layout 2, while another worker runs the one in layout 3.
 *
 * Copies of tasks without a key are known by their ids, which follow from those that they have in the older layout: a
 * task that stays there, because nobody runs its kind or its bytes are damaged, must hold up nothing but its copy. */
#include <string.h>

#include "base/hash.h"
#include "base/mutant.h"
#include "queue/put.h"
#include "work/inside.h"

enum { KEYS_MAX = 1 << 20, SCANS = 64, FEW = 16, STUBS = 256 }; /* FEW: of each line, where many are read at once */

/* What older layouts hold. */
struct findings {
    int64_t looked_ms; /* when that was begun to be read, on the store's clock */
    bool shut;
    kl__keyset *keys;
    kl__keyset *copies; /* of what is delayed there and has no key: ids here, hashed */
};

struct kl__gate {
    uint64_t layout_number;
    struct findings now;
    struct findings read; /* and yet to be applied, if it has keys, */
    uint64_t read_at;     /* after so many refreshes of the pump had been begun */
    kl__gate *next;
};

bool kl__gate_shut(const kl__gate *gate) { return !KL_MUTANT(gate_open) && gate && gate->now.shut; }

bool kl__gate_closed(const kl__gate *gate, uint64_t key_hash)
{
    return !KL_MUTANT(gate_open) && gate && (gate->now.shut || (key_hash && kl__keyset_has(gate->now.keys, key_hash)));
}

/* 0 stands for nothing in a set. */
static uint64_t hash_of(const kl_task_id *id) { return kl__hash((kl_bytes){id->bytes, sizeof id->bytes}, 0) | 1; }

bool kl__gate_moves(const kl__gate *gate, const kl_task_id *id)
{
    return gate && (gate->now.shut || kl__keyset_has(gate->now.copies, hash_of(id)));
}

kl__gate *kl__gate_of(const kl__pump *pump, uint64_t layout_number)
{
    kl__gate *gate = pump->gates;
    while (gate && gate->layout_number != layout_number)
        gate = gate->next;
    return gate;
}

bool kl__gate_looked(const kl__gate *gate, int64_t since_ms) { return !gate || gate->now.looked_ms > since_ms; }

static void free_findings(struct findings *findings)
{
    kl__keyset_free(findings->keys);
    kl__keyset_free(findings->copies);
    *findings = (struct findings){0};
}

static void remove_gate(kl__pump *pump, uint64_t layout_number)
{
    kl__gate **link = &pump->gates;
    while (*link && (*link)->layout_number != layout_number)
        link = &(*link)->next;
    if (!*link)
        return;
    kl__gate *gate = *link;
    *link = gate->next;
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next)
        if (partition->gate == gate)
            partition->gate = NULL;
    free_findings(&gate->now);
    free_findings(&gate->read);
    kl__free(gate);
}

void kl__gates_free(kl__pump *pump)
{
    while (pump->gates)
        remove_gate(pump, pump->gates->layout_number);
}

/* --- Reading older layouts; the mutex is not held --- */

/* A reading of all layouts, the oldest first. */
struct reading {
    bool shut;        /* in those that were read so far, */
    kl__keyset *keys; /* likewise, */
    kl_task_id *ids;  /* and of what is delayed there without a key, as it has them in the layout that comes next */
    size_t id_count, id_room;
    uint64_t tasks;
    kl_scan scans[SCANS];
    kl_stub stubs[SCANS][FEW];
};

static bool add_id(struct reading *reading, const kl_task_id *id)
{
    if (reading->id_count == reading->id_room) {
        size_t room = reading->id_room ? 2 * reading->id_room : 64;
        kl_task_id *ids = kl__alloc(room * sizeof *ids);
        if (!ids)
            return false;
        if (reading->id_count)
            memcpy(ids, reading->ids, reading->id_count * sizeof *ids);
        kl__free(reading->ids);
        reading->ids = ids;
        reading->id_room = room;
    }
    reading->ids[reading->id_count++] = *id;
    return true;
}

static kl_rc add_stubs(struct reading *reading, const kl_scan *scan)
{
    for (size_t i = 0; i < scan->count; i++) {
        const kl_stub *stub = &scan->stubs[i];
        bool added = true;
        if (stub->key_hash)
            added = kl__keyset_add(reading->keys, stub->key_hash);
        else if (scan->line == KL_LINE_DUE)
            added = add_id(reading, &stub->id);
        if (!added)
            return kl__fail_memory();
    }
    return KL_OK;
}

/* The rest of a line, of which the first were read. */
static kl_rc add_rest(struct reading *reading, kl_store *store, const kl_scan *first)
{
    kl_stub stubs[STUBS], last = first->stubs[first->count - 1];
    kl_scan scan = *first;
    scan.stubs = stubs;
    scan.max = STUBS;
    scan.after = &last;
    do {
        kl_rc rc = kl_store_scan(store, &scan, 1);
        if (rc == KL_OK)
            rc = add_stubs(reading, &scan);
        if (rc != KL_OK)
            return rc;
        if (scan.count > 0)
            last = stubs[scan.count - 1];
    } while (scan.count == STUBS);
    return KL_OK;
}

/* Shards of a partition. */
struct range {
    kl_store *store;
    uint32_t partition, from, to;
};

/* One line of each. */
static kl_rc add_line(struct reading *reading, const struct range *range, int32_t line)
{
    for (uint32_t from = range->from; from < range->to; from += SCANS) {
        uint32_t count = range->to - from < SCANS ? range->to - from : SCANS;
        for (uint32_t i = 0; i < count; i++)
            reading->scans[i] = (kl_scan){.place = {range->partition, from + i},
                                          .line = line,
                                          .until_ms = KL_ID_MS_MAX,
                                          .stubs = reading->stubs[i],
                                          .max = FEW};
        kl_rc rc = kl_store_scan(range->store, reading->scans, count);
        for (uint32_t i = 0; rc == KL_OK && i < count; i++) {
            const kl_scan *scan = &reading->scans[i];
            rc = add_stubs(reading, scan);
            if (rc == KL_OK && scan->count == scan->max)
                rc = add_rest(reading, range->store, scan);
        }
        if (rc != KL_OK)
            return rc;
    }
    return KL_OK;
}

static kl_rc add_lines(struct reading *reading, const struct range *range, const kl_counts *counts)
{
    kl_rc rc = KL_OK;
    for (uint32_t lines = counts->priorities; lines && rc == KL_OK; lines &= lines - 1)
        rc = add_line(reading, range, __builtin_ctz(lines) + KL_PRIORITY_MIN);
    if (rc == KL_OK && (counts->due || counts->at_least))
        rc = add_line(reading, range, KL_LINE_DUE);
    return rc == KL_OK ? add_line(reading, range, KL_LINE_RETRY) : rc; /* last: others may go there meanwhile */
}

/* One by one; *left: tasks of them so far. */
static kl_rc add_shards(struct reading *reading, const struct range *range, uint64_t *left)
{
    kl_rc rc = KL_OK;
    for (uint32_t s = range->from; rc == KL_OK && s < range->to && reading->tasks + *left <= KEYS_MAX; s++) {
        struct range one = {range->store, range->partition, s, s + 1};
        kl_counts counts;
        rc = kl_store_counts(range->store, (kl_place){range->partition, s}, NULL, &counts);
        if (rc != KL_OK || (kl__counts_waiting(&counts) == 0 && !counts.at_least))
            continue;
        *left += kl__counts_waiting(&counts);
        rc = add_lines(reading, &one, &counts);
    }
    return rc;
}

/* Where not all is counted, shards are looked at one by one, even if the partition seems to hold nothing. */
static kl_rc add_partition(struct reading *reading, const struct range *range)
{
    kl_counts counts;
    uint64_t left = 0;
    kl_rc rc = kl_store_counts(range->store, (kl_place){range->partition, KL_ALL_SHARDS}, NULL, &counts);
    if (rc != KL_OK)
        return rc;
    uint64_t waiting = kl__counts_waiting(&counts);
    if (reading->tasks + waiting <= KEYS_MAX && counts.at_least)
        rc = add_shards(reading, range, &left);
    else if (reading->tasks + waiting <= KEYS_MAX && waiting > 0)
        rc = add_lines(reading, range, &counts);
    reading->tasks += waiting > left ? waiting : left;
    return rc;
}

static kl_rc add_layout(struct reading *reading, const kl__queue_layout *layout)
{
    kl_rc rc = KL_OK;
    if (layout->drained)
        return KL_OK;
    reading->shut |= !layout->sealed;
    for (uint32_t p = 0; rc == KL_OK && p < layout->layout.partitions && !reading->shut; p++) {
        struct range all = {layout->stores[p], kl__layout_number(layout, p), 0, kl_layout_shards(&layout->layout)};
        rc = add_partition(reading, &all);
        reading->shut |= reading->tasks > KEYS_MAX;
    }
    return rc;
}

/* What was read of layouts up to `from` gets the ids that it has in the next one. */
static void move_ids(struct reading *reading, const kl_layout *from, const kl_layout *to)
{
    for (size_t i = 0; i < reading->id_count; i++) {
        const kl_entry entry = {.id = reading->ids[i]};
        reading->ids[i] = kl__id_moved(from, to, kl__move_shard(from, to, &entry), &entry.id);
    }
}

static bool has_older(const kl__descriptor *descriptor, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (!descriptor->layouts[i].drained)
            return true;
    return false;
}

static kl__gate *make_gate(kl__pump *pump, uint64_t layout_number)
{
    kl__gate *gate = kl__alloc_zeroed(1, sizeof *gate);
    if (!gate)
        return NULL;
    gate->layout_number = layout_number;
    gate->now.shut = true;
    gate->next = pump->gates;
    pump->gates = gate;
    return gate;
}

kl_rc kl__gates_add(kl__pump *pump)
{
    const kl__descriptor *descriptor = pump->descriptor;
    for (size_t i = 0; i < descriptor->layout_count; i++) {
        const kl__queue_layout *layout = &descriptor->layouts[i];
        if (!layout->drained && has_older(descriptor, i) && !kl__gate_of(pump, layout->number) &&
            !make_gate(pump, layout->number))
            return kl__fail_memory();
    }
    return KL_OK;
}

/* False: the record has not been read since. */
static bool apply(const kl__pump *pump, kl__gate *gate)
{
    if (!gate->read.keys)
        return true;
    if (gate->read_at >= pump->refreshed)
        return false;
    free_findings(&gate->now);
    gate->now = gate->read;
    gate->read = (struct findings){0};
    return true;
}

static bool is_served(const kl__pump *pump, uint64_t layout_number)
{
    const kl__partition *partition = pump->partitions;
    while (partition && partition->layout_number != layout_number)
        partition = partition->next;
    return partition != NULL;
}

/* The gates whose turn it is, by layout of the descriptor; NULL: none. */
static kl_rc choose_gates(kl__pump *pump, const kl__descriptor *descriptor, kl__gate **gates)
{
    for (size_t i = 0; i < descriptor->layout_count; i++) {
        uint64_t number = descriptor->layouts[i].number;
        kl__gate *gate = kl__gate_of(pump, number);
        gates[i] = NULL;
        if (!has_older(descriptor, i) || descriptor->layouts[i].drained)
            remove_gate(pump, number);
        else if (!is_served(pump, number)) /* one who stands in serves but one */
            continue;
        else if (!gate && !(gate = make_gate(pump, number)))
            return kl__fail_memory();
        else if (apply(pump, gate))
            gates[i] = gate;
    }
    return KL_OK;
}

static bool copy_findings(const struct reading *from, struct findings *ret_copy)
{
    struct findings copy = {0, from->shut, kl__keyset_open(), kl__keyset_open()};
    bool copied = copy.keys && copy.copies;
    for (uint64_t i = 0; copied && i < kl__keyset_capacity(from->keys); i++)
        copied = !kl__keyset_at(from->keys, i) || kl__keyset_add(copy.keys, kl__keyset_at(from->keys, i));
    for (size_t i = 0; copied && i < from->id_count; i++)
        copied = kl__keyset_add(copy.copies, hash_of(&from->ids[i]));
    if (!copied)
        free_findings(&copy);
    *ret_copy = copy;
    return copied;
}

static void close_reading(struct reading *reading)
{
    if (!reading)
        return;
    kl__keyset_free(reading->keys);
    kl__free(reading->ids);
    kl__free(reading);
}

/* Each layout once; a gate is told of all before its own. Up to the first that cannot be read. */
static kl_rc read_older(const kl__descriptor *descriptor, kl__gate *const *gates, struct findings *ret_read)
{
    struct reading *reading = kl__alloc_zeroed(1, sizeof *reading);
    const kl__queue_layout *layouts = descriptor->layouts;
    size_t last = descriptor->layout_count;
    kl_rc rc = KL_OK;
    if (!reading || !(reading->keys = kl__keyset_open()))
        rc = kl__fail_memory();
    while (last > 0 && !gates[last - 1])
        last--;
    for (size_t i = 0; rc == KL_OK && i < last; i++) {
        if (i > 0)
            move_ids(reading, &layouts[i - 1].layout, &layouts[i].layout);
        if (gates[i] && !copy_findings(reading, &ret_read[i]))
            rc = kl__fail_memory();
        else if (i + 1 < last)
            rc = add_layout(reading, &layouts[i]);
    }
    close_reading(reading);
    return rc;
}

kl_rc kl__gates_refresh(kl__pump *pump)
{
    kl__descriptor *descriptor = pump->descriptor;
    kl__gate *gates[KL_LAYOUTS_MAX];
    struct findings read[KL_LAYOUTS_MAX] = {0};
    int64_t looked_ms = kl__pump_now(pump);
    atomic_fetch_add(&descriptor->references, 1);
    kl_rc rc = choose_gates(pump, descriptor, gates);
    if (rc == KL_OK) {
        kl__pump_leave(pump);
        rc = read_older(descriptor, gates, read);
        kl__pump_enter(pump);
    }
    for (size_t i = 0; i < descriptor->layout_count; i++) {
        if (!read[i].keys)
            continue;
        gates[i]->read = read[i];
        gates[i]->read.looked_ms = looked_ms;
        gates[i]->read_at = KL_MUTANT(gate_early) ? 0 : pump->refreshes;
        if (KL_MUTANT(gate_early))
            apply(pump, gates[i]);
    }
    kl__descriptor_release(descriptor);
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next)
        partition->gate = kl__gate_of(pump, partition->layout_number);
    return rc;
}
