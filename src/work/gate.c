/* gate.c - keys whose tasks in older layouts come first.
 *
 * From: beat.c.  To: window.c, which leaves such keys out.
 *
 * Older layouts are sealed, so what they hold only becomes less: a key that is not in the set never will be, and the set
 * may be read at leisure. While an older layout is not sealed, or holds more than KEYS_MAX tasks, the gate is shut and
 * nothing of the newer layout is run: it is being drained first, which is what most changes of layout look like.
 *
 * What was read is applied once the record has been read again. A delayed task of layout 1 may have a copy in layout 2, of
 * a move that was broken off; when there is a layout 3, it is moved there, and is gone from layout 1. Who saw that, and did
 * not know of layout 3 yet, would run the copy in layout 2, while another worker runs the one in layout 3. */
#include "base/mutant.h"
#include "work/inside.h"

enum { KEYS_MAX = 1 << 20, SCANS = 64, STUBS = 256 };

/* What older layouts hold. */
struct findings {
    bool shut;
    bool due; /* one has tasks in its due lines, which are being moved here */
    kl__keyset *keys;
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

bool kl__gate_due(const kl__gate *gate) { return gate && (gate->now.shut || gate->now.due); }

kl__gate *kl__gate_of(const kl__pump *pump, uint64_t layout_number)
{
    kl__gate *gate = pump->gates;
    while (gate && gate->layout_number != layout_number)
        gate = gate->next;
    return gate;
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
    kl__keyset_free(gate->now.keys);
    kl__keyset_free(gate->read.keys);
    kl__free(gate);
}

void kl__gates_free(kl__pump *pump)
{
    while (pump->gates)
        remove_gate(pump, pump->gates->layout_number);
}

/* --- Reading older layouts; the mutex is not held --- */

static kl_rc add_line(kl_store *store, kl_place place, int32_t line, kl__keyset *keys)
{
    kl_stub stubs[STUBS];
    kl_scan scan = {.place = place, .line = line, .until_ms = KL_ID_MS_MAX, .stubs = stubs, .max = STUBS};
    kl_stub last;
    do {
        kl_rc rc = kl_store_scan(store, &scan, 1);
        if (rc != KL_OK)
            return rc;
        for (size_t i = 0; i < scan.count; i++)
            if (stubs[i].key_hash && !kl__keyset_add(keys, stubs[i].key_hash))
                return kl__fail_memory();
        if (scan.count > 0)
            last = stubs[scan.count - 1];
        scan.after = &last;
    } while (scan.count == STUBS);
    return KL_OK;
}

static kl_rc add_shard(kl_store *store, kl_place place, kl__keyset *keys, uint64_t *tasks, bool *due)
{
    kl_counts counts;
    kl_rc rc = kl_store_counts(store, place, NULL, &counts);
    if (rc != KL_OK)
        return rc;
    *tasks += kl__counts_waiting(&counts);
    *due |= counts.due > 0 || counts.at_least;
    for (uint32_t lines = counts.priorities; lines && rc == KL_OK; lines &= lines - 1)
        rc = add_line(store, place, __builtin_ctz(lines) + KL_PRIORITY_MIN, keys);
    if (rc == KL_OK && (counts.due || counts.at_least))
        rc = add_line(store, place, KL_LINE_DUE, keys);
    return rc == KL_OK ? add_line(store, place, KL_LINE_RETRY, keys) : rc; /* last: others may go there meanwhile */
}

/* A partition of which not all is counted is looked at shard by shard, even if it seems to hold nothing. */
static kl_rc add_layout(const kl__queue_layout *layout, kl__keyset *keys, uint64_t *tasks, bool *due)
{
    uint32_t shards = kl_layout_shards(&layout->layout);
    for (uint32_t p = 0; p < layout->layout.partitions; p++) {
        kl_counts counts;
        kl_rc rc =
            kl_store_counts(layout->stores[p], (kl_place){kl__layout_number(layout, p), KL_ALL_SHARDS}, NULL, &counts);
        if (rc != KL_OK)
            return rc;
        uint64_t waiting = kl__counts_waiting(&counts), left = 0;
        bool any = waiting > 0 || counts.at_least;
        *due |= counts.due > 0;
        for (uint32_t s = 0; s < shards && any && *tasks + waiting <= KEYS_MAX && *tasks + left <= KEYS_MAX; s++) {
            rc = add_shard(layout->stores[p], (kl_place){kl__layout_number(layout, p), s}, keys, &left, due);
            if (rc != KL_OK)
                return rc;
        }
        *tasks += waiting > left ? waiting : left;
    }
    return KL_OK;
}

/* The keys of all layouts before number `index` of the descriptor. */
static kl_rc read_older(const kl__descriptor *descriptor, size_t index, kl__keyset *keys, bool *ret_shut, bool *ret_due)
{
    uint64_t tasks = 0;
    *ret_shut = *ret_due = false;
    for (size_t i = 0; i < index; i++) {
        const kl__queue_layout *layout = &descriptor->layouts[i];
        if (layout->drained)
            continue;
        *ret_shut |= !layout->sealed;
        kl_rc rc = *ret_shut ? KL_OK : add_layout(layout, keys, &tasks, ret_due);
        if (rc != KL_OK)
            return rc;
        *ret_shut |= tasks > KEYS_MAX;
    }
    return KL_OK;
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
    kl__keyset_free(gate->now.keys);
    gate->now = gate->read;
    gate->read = (struct findings){0};
    return true;
}

static kl_rc refresh_gate(kl__pump *pump, kl__descriptor *descriptor, size_t index)
{
    uint64_t number = descriptor->layouts[index].number;
    kl__gate *gate = kl__gate_of(pump, number);
    if (!gate && !(gate = make_gate(pump, number)))
        return kl__fail_memory();
    if (!apply(pump, gate))
        return KL_OK;
    struct findings read = {.shut = true, .due = true, .keys = kl__keyset_open()};
    if (!read.keys)
        return kl__fail_memory();
    kl__pump_leave(pump);
    kl_rc rc = read_older(descriptor, index, read.keys, &read.shut, &read.due);
    kl__pump_enter(pump);
    if (rc != KL_OK) {
        kl__keyset_free(read.keys);
        return rc;
    }
    gate->read = read;
    gate->read_at = KL_MUTANT(gate_early) ? 0 : pump->refreshes;
    if (KL_MUTANT(gate_early))
        apply(pump, gate);
    return KL_OK;
}

static bool is_served(const kl__pump *pump, uint64_t layout_number)
{
    const kl__partition *partition = pump->partitions;
    while (partition && partition->layout_number != layout_number)
        partition = partition->next;
    return partition != NULL;
}

kl_rc kl__gates_refresh(kl__pump *pump)
{
    kl__descriptor *descriptor = pump->descriptor;
    kl_rc rc = KL_OK;
    atomic_fetch_add(&descriptor->references, 1);
    for (size_t i = 0; i < descriptor->layout_count && rc == KL_OK; i++) {
        if (!has_older(descriptor, i) || descriptor->layouts[i].drained)
            remove_gate(pump, descriptor->layouts[i].number);
        else if (is_served(pump, descriptor->layouts[i].number)) /* one who stands in serves but one */
            rc = refresh_gate(pump, descriptor, i);
    }
    kl__descriptor_release(descriptor);
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next)
        partition->gate = kl__gate_of(pump, partition->layout_number);
    return rc;
}
