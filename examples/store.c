/* store.c - tasks that outlive the process: append them, look at what waits, settle what came of it.
 *
 *     cc store.c $(pkg-config --cflags --libs keyline) -o store && ./store
 *
 * The tasks are on disk, in ./keyline-data, when append returns. If the program ends before it settles them, its next
 * run shows them first. */
#include <keyline/keyline.h>
#include <stdio.h>

enum { INVOICES = 3, PAGE = 16, KEEP_MS = 3600 * 1000 };

/* Appends invoices of one customer. The second call is what one makes after a lost reply: the token is known by then,
 * and nothing is stored twice. */
static kl_rc put(kl_store *store, kl_place place, kl_bytes customer, kl_idgen *idgen)
{
    static const char *const payloads[INVOICES] = {"invoice 1", "invoice 2", "invoice 3"};
    kl_entry entries[INVOICES];
    kl_token token;
    kl_rc rc = KL_OK;
    for (int i = 0; i < INVOICES && rc == KL_OK; i++) {
        entries[i] = (kl_entry){.place = place, .key = customer, .payload = kl_str(payloads[i])};
        rc = kl_idgen_next(idgen, place.shard, kl_lane_of(customer), &entries[i].id);
    }
    if (rc != KL_OK)
        return rc;
    memcpy(token.bytes, entries[0].id.bytes, sizeof token.bytes);
    rc = kl_store_append(store, entries, INVOICES, &token);
    return rc == KL_OK ? kl_store_append(store, entries, INVOICES, &token) : rc;
}

/* Shows what waits, in order, and settles it. Where several may work, a shard's owner fences it before it looks. */
static kl_rc work(kl_store *store, kl_place place, kl_arena *arena)
{
    kl_stub stubs[PAGE];
    kl_ref refs[PAGE];
    kl_task tasks[PAGE];
    kl_settled settled[PAGE];
    kl_scan scan = {.place = place, .line = 0, .stubs = stubs, .max = PAGE};
    kl_settle batch = {.place = place, .tasks = settled};
    kl_rc rc = kl_store_scan(store, &scan, 1);
    if (rc != KL_OK || scan.count == 0)
        return rc;
    for (size_t i = 0; i < scan.count; i++)
        refs[i] = (kl_ref){.place = place, .id = stubs[i].id, .position = stubs[i].position};
    rc = kl_store_read(store, refs, scan.count, arena, tasks, &batch.count);
    for (size_t i = 0; rc == KL_OK && i < batch.count; i++) {
        const kl_entry *entry = &tasks[i].entry;
        printf("%.*s: %.*s\n", (int)entry->key.len, (const char *)entry->key.data, (int)entry->payload.len,
               (const char *)entry->payload.data);
        settled[i] = (kl_settled){.id = entry->id,
                                  .position = tasks[i].position,
                                  .outcome = KL_DONE,
                                  .attempts = tasks[i].attempts + 1,
                                  .keep_ms = KEEP_MS,
                                  .result = kl_str("paid")};
    }
    return rc == KL_OK ? kl_store_settle(store, &batch, 1) : rc;
}

static kl_rc run(kl_store *store, kl_arena *arena)
{
    kl_bytes customer = kl_str("customer-7");
    kl_layout layout;
    kl_place place;
    kl_idgen *idgen;
    kl_counts counts;
    kl_rc rc = kl_layout_init(1, 1, &layout); /* one partition of 16 shards */
    if (rc == KL_OK)
        rc = kl_store_partition(store, "invoices", layout.shard_prefix_len, &place.partition);
    if (rc == KL_OK)
        rc = kl_idgen_open(&layout, NULL, &idgen);
    if (rc != KL_OK)
        return rc;
    place.shard = kl_shard_of(&layout, customer);
    rc = put(store, place, customer, idgen);
    if (rc == KL_OK)
        rc = work(store, place, arena);
    if (rc == KL_OK)
        rc = kl_store_counts(store, place, NULL, &counts);
    if (rc == KL_OK)
        printf("waiting: %d\n", (int)counts.ready);
    kl_idgen_close(idgen);
    return rc;
}

int main(int argc, char **argv)
{
    kl_arena arena = {0};
    kl_store *store = NULL;
    kl_rc rc = kl_store_open(argc > 1 ? argv[1] : "disk:", NULL, &store);
    if (rc == KL_OK)
        rc = run(store, &arena);
    if (rc != KL_OK)
        fprintf(stderr, "%s\n", kl_error_text());
    kl_store_close(store);
    kl_arena_free(&arena);
    return rc == KL_OK ? 0 : 1;
}
