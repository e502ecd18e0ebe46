/* make_store.c - makes disk stores for tests/check-doctor, and shows what is in them.
 *
 *     make-store closed DIR     200 tasks over several segments, of which every tenth is done and kept; closed in order
 *     make-store killed DIR     the same, and the process ends without closing it
 *     make-store errors DIR     as closed, and what is kept has failed, each task with an error
 *     make-store held DIR       opens it, prints a line, and keeps it open until standard input ends
 *     make-store list DIR       prints the numbers of the tasks that wait, in order */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calls.h"
#include "keyline/store.h"

enum { TASKS = 200, DONE_OF = 10, SHARDS = 16, PAYLOAD_BYTES = 1500 };

static const kl_layout layout = {1, 1};

static void must(kl_rc rc)
{
    if (rc == KL_OK)
        return;
    fprintf(stderr, "make-store: %s\n", kl_error_text());
    exit(1);
}

static kl_entry make_entry(uint32_t partition, uint32_t task)
{
    static char payload[PAYLOAD_BYTES];
    kl_id_parts parts = {.shard = task % SHARDS, .ms = task + 1};
    kl_entry entry = {.place = {partition, parts.shard}, .payload = {payload, sizeof payload}};
    must(kl_id_pack(&layout, &parts, &entry.id));
    return entry;
}

static void settle(kl_store *store, kl_entry entry, kl_bytes error)
{
    kl_settled settled = {.id = entry.id,
                          .outcome = error.len ? KL_DEAD : KL_DONE,
                          .attempts = 1,
                          .keep_ms = INT64_C(1) << 40,
                          .error = error};
    kl_settle batch = {.place = entry.place, .tasks = &settled, .count = 1};
    kl_stub stubs[TASKS];
    size_t count;
    must(scan_one(store, &(kl_scan){.place = entry.place, .max = TASKS}, stubs, &count));
    for (size_t i = 0; i < count; i++)
        if (kl_id_compare(&stubs[i].id, &entry.id) == 0)
            settled.position = stubs[i].position;
    must(kl_store_settle(store, &batch, 1));
}

/* What is done is little of every segment, so that none is copied and each task stands where it was written first. */
static void fill(kl_store *store, uint32_t partition, kl_bytes error)
{
    for (uint32_t task = 0; task < TASKS; task++) {
        kl_entry entry = make_entry(partition, task);
        must(kl_store_append(store, &entry, 1, NULL));
    }
    for (uint32_t task = 0; task < TASKS; task += DONE_OF)
        settle(store, make_entry(partition, task), error);
    kl_counts counts; /* when this returns, history has what was settled */
    must(kl_store_counts(store, (kl_place){partition, KL_ALL_SHARDS}, NULL, &counts));
}

static void list(kl_store *store, uint32_t partition)
{
    bool waits[TASKS] = {false};
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        kl_stub stubs[TASKS];
        size_t count;
        must(scan_one(store, &(kl_scan){.place = {partition, shard}, .max = TASKS}, stubs, &count));
        for (size_t i = 0; i < count; i++)
            waits[(kl_id_ms(&layout, &stubs[i].id) - 1) % TASKS] = true;
    }
    for (int task = 0; task < TASKS; task++)
        if (waits[task])
            printf("%d\n", task);
}

static void hold(void)
{
    puts("open");
    fflush(stdout);
    while (getchar() != EOF)
        ;
}

int main(int argc, char **argv)
{
    char url[4200];
    kl_store *store;
    uint32_t partition;
    kl_store_opts opts = {.size = sizeof opts, .segment_bytes = 64 << 10};
    if (argc != 3) {
        fputs("usage: make-store closed|killed|errors|held|list DIR\n", stderr);
        return 2;
    }
    snprintf(url, sizeof url, "disk:%s", argv[2]);
    must(kl_store_open(url, &opts, &store));
    must(kl_store_partition(store, "orders", 1, &partition));
    if (strcmp(argv[1], "list") == 0)
        list(store, partition);
    else if (strcmp(argv[1], "held") == 0)
        hold();
    else
        fill(store, partition, kl_str(strcmp(argv[1], "errors") == 0 ? "it broke" : ""));
    if (strcmp(argv[1], "killed") == 0)
        _exit(0);
    kl_store_close(store);
    return 0;
}
