/* test_layouts.c - layouts of a queue: names, stores, sealing, draining, and ids that move with their tasks. */
#include <unistd.h>

#include "base/random.h"
#include "queue/inside.h"
#include "queue/tasks.h"
#include "store/lossy.h"

static kl_rc alter_to(kl_queue *queue, int64_t partitions, int64_t shard_prefix_len)
{
    kl_queue_opts opts = {.size = sizeof opts, .partitions = partitions, .shard_prefix_len = shard_prefix_len};
    return kl_queue_alter(queue, &opts);
}

/* Appends a task to one shard of a layout of the queue, without looking which is the newest. */
static kl_rc append_to(kl_queue *queue, size_t index, uint32_t partition, uint32_t shard)
{
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    const kl__queue_layout *layout = &descriptor->layouts[index];
    kl_entry entry = {.place = {layout->numbers[partition], shard}};
    kl_rc rc = kl_idgen_next(layout->idgen, shard, 0, &entry.id);
    if (rc == KL_OK)
        rc = kl_store_append(layout->stores[partition], &entry, 1, NULL);
    kl__descriptor_release(descriptor);
    return rc;
}

static void settle_shard(kl_queue *queue, size_t index, uint32_t partition, uint32_t shard)
{
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    const kl__queue_layout *layout = &descriptor->layouts[index];
    kl_stub stub;
    kl_scan scan = {.place = {layout->numbers[partition], shard}, .stubs = &stub, .max = 1};
    CHECK_INT(kl_store_scan(layout->stores[partition], &scan, 1), KL_OK);
    CHECK_INT(scan.count, 1);
    kl_settled settled = {.id = stub.id, .position = stub.position, .attempts = 1};
    kl_settle batch = {.place = scan.place, .tasks = &settled, .count = 1};
    CHECK_INT(kl_store_settle(layout->stores[partition], &batch, 1), KL_OK);
    kl__descriptor_release(descriptor);
}

static kl_queue_info show(struct rig *rig, kl_queue *queue)
{
    kl_queue_info info = {0};
    CHECK_INT(kl_queue_show(queue, &rig->arena, &info), KL_OK);
    return info;
}

/* --- Names --- */

CLAIM_IN_MEMORY(partitions_of_later_layouts_bear_its_number)
{
    static const struct {
        uint64_t number;
        uint32_t partition;
        const char *name;
    } cases[] = {{1, 0, "orders"}, {1, 3, "orders__p3"}, {2, 0, "orders@2"}, {17, 3, "orders__p3@17"}};
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 4);
    REQUIRE(queue);
    char name[KL_PARTITION_NAME_BYTES];
    for (size_t i = 0; i < COUNT(cases); i++) {
        kl__queue_layout layout = {.number = cases[i].number, .layout = {4, 1}};
        CHECK_INT(kl__layout_partition_name(queue, &layout, cases[i].partition, name), KL_OK);
        CHECK_STR(name, cases[i].name);
    }
    kl__queue_layout layout = {.number = 1, .layout = {4, 1}};
    CHECK_INT(kl__layout_partition_name(queue, &layout, 4, name), KL_EINVAL);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(the_longest_name_of_a_partition_has_room)
{
    kl_queue *queue = OPEN(rig->store, "x23456789012345678901234567890123456789012345678901234567890123x", .rate = 1);
    REQUIRE(queue);
    char name[KL_PARTITION_NAME_BYTES];
    kl__queue_layout layout = {.number = INT64_MAX / 2, .layout = {KL_PARTITIONS_MAX, 1}};
    CHECK_INT(kl__layout_partition_name(queue, &layout, KL_PARTITIONS_MAX - 1, name), KL_OK);
    CHECK_CONTAINS(name, "x__p1023@4611686018427387903");
    kl_queue_close(queue);
}

/* --- A new layout --- */

CLAIM(a_new_layout_takes_tasks_and_the_old_one_takes_none)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    CHECK_INT(append_to(queue, 0, 1, 5), KL_OK);
    CHECK_INT(alter_to(queue, 3, 2), KL_OK);
    for (uint32_t partition = 0; partition < 2; partition++)
        for (uint32_t shard = 0; shard < 16; shard++)
            CHECK_INT(append_to(queue, 0, partition, shard), KL_ESEALED);
    CHECK_INT(append_to(queue, 1, 2, 255), KL_OK);
    kl_queue_info info = show(rig, queue);
    CHECK_INT(info.layout_number, 2);
    CHECK_INT(info.layouts_draining, 1);
    CHECK_INT(info.counts.ready, 2);
    CHECK_INT(info.settings.partitions, 3);
    CHECK_INT(info.settings.shard_prefix_len, 2);
    settle_shard(queue, 0, 1, 5);
    CHECK_INT(show(rig, queue).layouts_draining, 0);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    CHECK(descriptor->layouts[0].sealed);
    CHECK(!descriptor->layouts[0].drained);
    CHECK(!descriptor->layouts[1].sealed);
    kl__descriptor_release(descriptor);
    kl_queue_close(queue);
}

static kl_rc count_nothing(void *self, kl_place place, const kl_task_id *job, kl_counts *ret_counts)
{
    (void)self, (void)place, (void)job, (void)ret_counts;
    return kl__fail(KL_EBUSY, "it is away");
}

static kl_rc fence_nothing(void *self, kl_fence *fences, size_t count)
{
    (void)self, (void)fences, (void)count;
    return kl__fail(KL_EBUSY, "it is away");
}

CLAIM_IN_MEMORY(a_setting_is_altered_while_partitions_are_away)
{
    struct lossy away;
    kl_store *store = NULL;
    REQUIRE(lossy_open(&away, rig->store, 1, &store) == KL_OK);
    away.replies_lost = away.requests_lost = 0;
    kl_queue *queue = OPEN(store, "orders", .partitions = 1);
    REQUIRE(queue);
    CHECK_INT(append_to(queue, 0, 0, 5), KL_OK);
    CHECK_INT(alter_to(queue, 2, 1), KL_OK);
    away.engine.counts = count_nothing;
    away.engine.fence = fence_nothing;
    kl__queue_sleep_by(sleep_not);
    CHECK_INT(kl_queue_alter(queue, &(kl_queue_opts){.size = sizeof(kl_queue_opts), .rate = 7}), KL_OK);
    CHECK_FAILS(alter_to(queue, 3, 1), KL_EBUSY, "it is away");
    kl__queue_sleep_by(NULL);
    kl_queue *direct = OPEN(rig->store, "orders");
    REQUIRE(direct);
    CHECK_INT(show(rig, direct).settings.rate, 7);
    kl_queue_close(direct);
    kl_queue_close(queue);
    kl_store_close(store);
}

CLAIM(the_layout_that_is_there_opens_no_new_one)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2, .shard_prefix_len = 2);
    REQUIRE(queue);
    CHECK_INT(alter_to(queue, 2, 2), KL_OK);
    CHECK_INT(alter_to(queue, 0, 2), KL_OK);
    CHECK_INT(show(rig, queue).layout_number, 1);
    CHECK_INT(append_to(queue, 0, 0, 0), KL_OK);
    kl_queue_close(queue);
}

CLAIM(a_handle_that_did_not_alter_learns_of_the_layout)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2), *other = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue && other);
    kl__descriptor *old = kl__queue_descriptor(other);
    CHECK_INT(alter_to(queue, 4, 0), KL_OK);
    CHECK_INT(append_to(other, 0, 0, 0), KL_ESEALED);
    CHECK_INT(kl__queue_refresh(other), KL_OK);
    CHECK_INT(append_to(other, 1, 3, 0), KL_OK);
    kl__descriptor *new = kl__queue_descriptor(other);
    CHECK(old != new && old->layout_count == 1 && new->layout_count == 2);
    CHECK(old->layouts[0].idgen == new->layouts[0].idgen);
    CHECK(old->layouts[0].numbers == new->layouts[0].numbers);
    CHECK(new->layouts[0].idgen != new->layouts[1].idgen);
    kl__descriptor_release(new);
    kl_queue_close(other);
    CHECK_INT(old->layouts[0].layout.partitions, 2); /* a snapshot lasts as long as its reference */
    kl__descriptor_release(old);
    kl_queue_close(queue);
}

static kl_rc add_layout(kl__descriptor *draft, void *ctx)
{
    (void)ctx;
    return kl__draft_layout(draft, (kl_layout){3, 1}, NULL, "test");
}

CLAIM(whoever_comes_after_a_crash_seals_what_is_not_sealed)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    CHECK_INT(kl__queue_change(queue, add_layout, NULL), KL_OK); /* and here the process that altered it ends */
    CHECK_INT(append_to(queue, 0, 0, 0), KL_OK);
    CHECK_INT(kl__queue_seal(queue), KL_OK);
    CHECK_INT(append_to(queue, 0, 0, 0), KL_ESEALED);
    CHECK_INT(append_to(queue, 1, 0, 0), KL_OK);
    CHECK_INT(kl__queue_seal(queue), KL_OK);
    CHECK_INT(append_to(queue, 1, 0, 0), KL_OK);
    kl_queue_close(queue);
}

CLAIM(all_shards_of_four_digits_are_sealed)
{
    kl_queue *queue = OPEN(rig->store, "orders", .shard_prefix_len = 4);
    REQUIRE(queue);
    CHECK_INT(alter_to(queue, 1, 1), KL_OK);
    static const uint32_t shards[] = {0, 1, 4095, 4096, 4097, 40000, 61439, 61440, 65535};
    for (size_t i = 0; i < COUNT(shards); i++)
        CHECK_INT(append_to(queue, 0, 0, shards[i]), KL_ESEALED);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(a_store_that_cannot_seal_keeps_its_layout)
{
    struct lossy plain;
    kl_store *store = NULL;
    CHECK_INT(lossy_open(&plain, rig->store, 1, &store), KL_OK);
    REQUIRE(store);
    plain.replies_lost = plain.requests_lost = 0;
    plain.engine.can &= ~(uint32_t)KL_STORE_SEAL;
    kl_queue *queue = OPEN(store, "orders", .partitions = 2);
    REQUIRE(queue);
    CHECK_FAILS(alter_to(queue, 3, 0), KL_EINVAL, "its partition 0 lies in a lossy store, which cannot seal shards");
    CHECK_INT(show(rig, queue).layout_number, 1);
    CHECK_INT(append_to(queue, 0, 0, 0), KL_OK);
    kl_queue_close(queue);
    kl_store_close(store);
}

/* --- Drained ones --- */

CLAIM(a_layout_is_drained_when_it_is_sealed_and_empty)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    CHECK_INT(append_to(queue, 0, 1, 5), KL_OK);
    CHECK_FAILS(kl__queue_drained(queue, 1), KL_EINVAL, "layout 1 of queue orders is not sealed");
    CHECK_INT(alter_to(queue, 3, 0), KL_OK);
    CHECK_FAILS(kl__queue_drained(queue, 1), KL_EBUSY, "layout 1 of queue orders still holds tasks, 1 in number");
    CHECK_FAILS(kl__queue_drained(queue, 2), KL_EINVAL, "layout 2 of queue orders is not sealed");
    settle_shard(queue, 0, 1, 5);
    CHECK_INT(kl__queue_drained(queue, 1), KL_OK);
    CHECK_INT(kl__queue_drained(queue, 1), KL_OK);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    CHECK(descriptor->layouts[0].drained);
    kl__descriptor_release(descriptor);
    kl_queue_close(queue);
}

CLAIM(there_are_sixteen_layouts_and_drained_ones_are_forgotten_first)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    REQUIRE(queue);
    for (size_t i = 1; i < KL_LAYOUTS_MAX; i++) {
        CHECK_INT(append_to(queue, i - 1, 0, 0), KL_OK);
        CHECK_INT(alter_to(queue, 1 + (int64_t)i % 2, 0), KL_OK);
    }
    CHECK_INT(show(rig, queue).layouts_draining, KL_LAYOUTS_MAX - 1);
    CHECK_FAILS(alter_to(queue, 5, 0), KL_EBUSY, "16 layouts of this queue still hold tasks");
    CHECK_INT(show(rig, queue).layout_number, KL_LAYOUTS_MAX);
    settle_shard(queue, 3, 0, 0);
    CHECK_INT(kl__queue_drained(queue, 4), KL_OK);
    CHECK_INT(alter_to(queue, 5, 0), KL_OK);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    CHECK_INT(descriptor->layout_count, KL_LAYOUTS_MAX);
    CHECK_INT(descriptor->layouts[2].number, 3);
    CHECK_INT(descriptor->layouts[3].number, 5);
    CHECK_INT(kl__newest_layout(descriptor)->number, KL_LAYOUTS_MAX + 1);
    kl__descriptor_release(descriptor);
    CHECK_INT(kl__queue_drained(queue, 4), KL_OK); /* forgotten */
    kl_queue_close(queue);
}

/* Layout 1 has a task, layout 2 has fewer digits, and all others have as many as the first. */
CLAIM(a_layout_through_which_ids_pass_on_their_way_is_not_forgotten)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1, .shard_prefix_len = 2);
    REQUIRE(queue);
    CHECK_INT(append_to(queue, 0, 0, 0), KL_OK);
    for (int64_t i = 1; i < KL_LAYOUTS_MAX; i++)
        CHECK_INT(alter_to(queue, 1 + i % 2, i == 1 ? 1 : 2), KL_OK);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    const kl__queue_layout *first = &descriptor->layouts[0];
    kl_entry entry = {.place = {first->numbers[0], 0}};
    CHECK_INT(kl_idgen_next(first->idgen, 0x37, 0, &entry.id), KL_OK);
    kl_task_id before = kl__id_on_its_way(descriptor, 1, KL_LAYOUTS_MAX, &first->layout, &entry);
    kl__descriptor_release(descriptor);
    CHECK_INT(alter_to(queue, 3, 2), KL_OK);
    descriptor = kl__queue_descriptor(queue);
    first = &descriptor->layouts[0];
    kl_task_id after = kl__id_on_its_way(descriptor, 1, KL_LAYOUTS_MAX, &first->layout, &entry);
    CHECK_INT(descriptor->layout_count, KL_LAYOUTS_MAX);
    CHECK_INT(descriptor->layouts[1].number, 2);
    CHECK_INT(descriptor->layouts[2].number, 4);
    CHECK_INT(kl_id_compare(&before, &after), 0);
    kl__descriptor_release(descriptor);
    kl_queue_close(queue);
}

CLAIM(an_empty_queue_may_change_its_layout_any_number_of_times_without_a_worker)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    REQUIRE(queue);
    for (int64_t i = 1; i <= 2 * KL_LAYOUTS_MAX; i++)
        CHECK_INT(alter_to(queue, 1 + i % 2, 0), KL_OK);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    for (size_t i = 0; i + 1 < descriptor->layout_count; i++)
        CHECK(descriptor->layouts[i].drained);
    kl__descriptor_release(descriptor);
    kl_queue_close(queue);
}

CLAIM(a_layout_that_has_become_empty_makes_room_for_the_next)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    REQUIRE(queue);
    for (size_t i = 1; i < KL_LAYOUTS_MAX; i++) {
        CHECK_INT(append_to(queue, i - 1, 0, 0), KL_OK);
        CHECK_INT(alter_to(queue, 1 + (int64_t)i % 2, 0), KL_OK);
    }
    settle_shard(queue, 3, 0, 0);
    CHECK_INT(alter_to(queue, 5, 0), KL_OK);
    kl_queue_close(queue);
}

/* Settles what waits in a shard as a dead letter. */
static void bury(kl_queue *queue, size_t index)
{
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    const kl__queue_layout *layout = &descriptor->layouts[index];
    kl_stub stub;
    kl_scan scan = {.place = {layout->numbers[0], 0}, .stubs = &stub, .max = 1};
    CHECK_INT(kl_store_scan(layout->stores[0], &scan, 1), KL_OK);
    CHECK_INT(scan.count, 1);
    kl_settled settled = {.id = stub.id,
                          .position = stub.position,
                          .outcome = KL_DEAD,
                          .attempts = 1,
                          .keep_ms = 100000000,
                          .error = {"it broke", 8}};
    kl_settle batch = {.place = scan.place, .tasks = &settled, .count = 1};
    CHECK_INT(kl_store_settle(layout->stores[0], &batch, 1), KL_OK);
    kl__descriptor_release(descriptor);
}

CLAIM(a_layout_with_dead_letters_is_not_forgotten)
{
    kl_account account;
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    REQUIRE(queue);
    for (size_t i = 0; i < KL_LAYOUTS_MAX - 1; i++) { /* a letter in the first two, and in the last */
        bool dies = i < 2 || i == KL_LAYOUTS_MAX - 2;
        CHECK_INT(dies ? append_to(queue, i, 0, 0) : KL_OK, KL_OK);
        if (dies)
            bury(queue, i);
        CHECK_INT(alter_to(queue, 1 + (int64_t)(i + 1) % 2, 0), KL_OK);
    }
    for (int64_t i = 0; i < KL_LAYOUTS_MAX; i++) /* those between are forgotten */
        CHECK_INT(alter_to(queue, 1 + i % 2, 0), KL_OK);
    CHECK_INT(show(rig, queue).counts.dead, 3);
    CHECK_INT(kl_dead_retry(queue, &(kl_redrive){.rate = 0}, &account), KL_OK);
    CHECK_INT(account.done, 3);
    CHECK_INT(show(rig, queue).counts.dead, 0);
    kl_queue_close(queue);
}

CLAIM(a_layout_too_many_is_refused_while_all_hold_dead_letters)
{
    kl_account account;
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    REQUIRE(queue);
    for (size_t i = 0; i < KL_LAYOUTS_MAX - 1; i++) {
        CHECK_INT(append_to(queue, i, 0, 0), KL_OK);
        bury(queue, i);
        CHECK_INT(alter_to(queue, 1 + (int64_t)(i + 1) % 2, 0), KL_OK);
    }
    CHECK_FAILS(alter_to(queue, 3, 0), KL_EBUSY, "retry, move or purge its dead letters");
    CHECK_INT(show(rig, queue).counts.dead, KL_LAYOUTS_MAX - 1);
    CHECK_INT(kl_dead_purge(queue, &(kl_redrive){.rate = 0}, &account), KL_OK);
    CHECK_INT(alter_to(queue, 3, 0), KL_OK);
    kl_queue_close(queue);
}

/* --- Stores --- */

CLAIM(partitions_may_lie_in_several_stores)
{
    char one[WORKDIR_BYTES + 16], two[WORKDIR_BYTES + 16];
    snprintf(one, sizeof one, "disk:%s/one", rig->path);
    snprintf(two, sizeof two, "disk:%s/two", rig->path);
    const char *const urls[] = {"", one, two, one};
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 4, .stores = urls, .store_count = 4);
    kl_queue *again = OPEN(rig->store, "orders", .partitions = 4, .stores = urls, .store_count = 4);
    kl_queue *bills = OPEN(rig->store, "bills", .partitions = 4, .stores = urls, .store_count = 4);
    REQUIRE(queue && again && bills);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    kl_store **stores = descriptor->layouts[0].stores;
    CHECK(stores[0] == rig->store && stores[1] == stores[3] && stores[1] != stores[2] && stores[2] != rig->store);
    kl__descriptor_release(descriptor);
    for (uint32_t i = 0; i < 4; i++)
        CHECK_INT(append_to(queue, 0, i, i), KL_OK);
    kl_queue_info info = show(rig, again);
    CHECK_INT(info.counts.ready, 4);
    CHECK_INT(info.settings.store_count, 4);
    CHECK_STR(info.settings.stores[0], "");
    CHECK_STR(info.settings.stores[2], two);
    CHECK_INT(show(rig, bills).counts.ready, 0);
    kl_queue_close(queue);
    kl_queue_close(again);
    kl_queue_close(bills);
    kl_queue *later = OPEN(rig->store, "orders", .partitions = 4); /* the stores were closed with the last queue */
    REQUIRE(later);
    CHECK_INT(show(rig, later).counts.ready, 4);
    kl_queue_close(later);
}

/* Another process may have another current directory. */
CLAIM_IN_MEMORY(a_relative_store_is_the_same_for_everybody)
{
    static const char *const urls[] = {"", "disk:./other"}, *const again[] = {"", "disk:other"};
    char here[4096], whole[4096 + 16];
    REQUIRE(getcwd(here, sizeof here) && chdir(rig->path) == 0);
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2, .stores = urls, .store_count = 2);
    REQUIRE(queue);
    REQUIRE(getcwd(whole + 5, 4096));
    memcpy(whole, "disk:", 5);
    strcat(whole, "/other");
    CHECK_STR(show(rig, queue).settings.stores[1], whole);
    kl_queue *same = OPEN(rig->store, "orders", .stores = again, .store_count = 2);
    CHECK(same != NULL);
    kl_queue_close(same);
    CHECK_INT(append_to(queue, 0, 1, 0), KL_OK);
    kl_queue_close(queue);
    REQUIRE(chdir(here) == 0);
    kl_queue *elsewhere = OPEN(rig->store, "orders");
    REQUIRE(elsewhere);
    CHECK_INT(show(rig, elsewhere).counts.ready, 1);
    kl_queue_opts opts = {.size = sizeof opts, .stores = urls, .store_count = 2}; /* which is another directory here */
    CHECK_FAILS(kl_queue_open(rig->store, "orders", &opts, &queue), KL_EMISMATCH, "partition 1");
    kl_queue_close(elsewhere);
}

CLAIM(stores_of_a_queue_can_be_changed)
{
    char one[WORKDIR_BYTES + 16];
    snprintf(one, sizeof one, "disk:%s/one", rig->path);
    const char *const urls[] = {"", one, one};
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    CHECK_INT(append_to(queue, 0, 1, 0), KL_OK);
    kl_queue_opts opts = {.size = sizeof opts, .stores = urls, .store_count = 2};
    CHECK_INT(kl_queue_alter(queue, &opts), KL_OK);
    CHECK_INT(show(rig, queue).layout_number, 2);
    CHECK_INT(append_to(queue, 1, 1, 0), KL_OK);
    CHECK_INT(show(rig, queue).counts.ready, 2);
    CHECK_INT(alter_to(queue, 0, 2), KL_OK); /* each partition stays where it is */
    CHECK_STR(show(rig, queue).settings.stores[1], one);
    CHECK_FAILS(alter_to(queue, 3, 0), KL_EINVAL, "name the store of each of the 3 that it shall have");
    opts.partitions = 3;
    CHECK_FAILS(kl_queue_alter(queue, &opts), KL_EINVAL, "would have 3 partitions, and store_count is 2");
    opts.store_count = 3;
    CHECK_INT(kl_queue_alter(queue, &opts), KL_OK);
    CHECK_INT(show(rig, queue).layout_number, 4);
    kl_queue_close(queue);
}

CLAIM(a_store_that_does_not_open_is_named_and_nothing_is_written)
{
    static const char *const urls[] = {"", "dusk:nowhere"};
    kl_queue *queue = NULL;
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 2, .stores = urls, .store_count = 2};
    CHECK_FAILS(kl_queue_open(rig->store, "orders", &opts, &queue), KL_EINVAL, "partition 1 of queue orders: \"dusk:");
    CHECK(!queue);
    CHECK(!record_text(rig, "queue/orders"));
    queue = OPEN(rig->store, "orders", .shard_prefix_len = 3); /* no partition was made with other shards */
    REQUIRE(queue);
    CHECK_FAILS(kl_queue_alter(queue, &opts), KL_EINVAL, "partition 1 of queue orders: \"dusk:");
    CHECK_INT(show(rig, queue).layout_number, 1);
    CHECK_INT(append_to(queue, 0, 0, 0), KL_OK);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(a_queue_lies_in_sixteen_other_stores_at_most)
{
    char texts[KL_QUEUE_STORES_MAX + 1][WORKDIR_BYTES + 16];
    const char *urls[KL_QUEUE_STORES_MAX + 1];
    for (int i = 0; i <= KL_QUEUE_STORES_MAX; i++) {
        snprintf(texts[i], sizeof texts[i], "disk:%s/%d", rig->path, i);
        urls[i] = texts[i];
    }
    kl_queue *queue = NULL;
    kl_queue_opts opts = {.size = sizeof opts, .partitions = KL_QUEUE_STORES_MAX + 1, .stores = urls};
    opts.store_count = KL_QUEUE_STORES_MAX + 1;
    CHECK_FAILS(kl_queue_open(rig->store, "orders", &opts, &queue), KL_EINVAL, "stores[16] is one store too many");
    opts.partitions = 2, opts.store_count = 2;
    CHECK_INT(kl_queue_open(rig->store, "orders", &opts, &queue), KL_OK);
    REQUIRE(queue);
    opts.stores = urls + 2, opts.partitions = 15, opts.store_count = 15; /* and the old layout has two others */
    CHECK_FAILS(kl_queue_alter(queue, &opts), KL_EINVAL, "17 different stores, those of older layouts included");
    CHECK_INT(show(rig, queue).layout_number, 1);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(sixteen_layouts_of_a_thousand_partitions_fit_into_the_record)
{
    const char *urls[KL_PARTITIONS_MAX];
    for (int i = 0; i < KL_PARTITIONS_MAX; i++)
        urls[i] = "memory:";
    kl_queue *queue =
        OPEN(rig->store, "orders", .partitions = KL_PARTITIONS_MAX, .stores = urls, .store_count = KL_PARTITIONS_MAX);
    REQUIRE(queue);
    for (int i = 1; i < KL_LAYOUTS_MAX; i++)
        CHECK_INT(alter_to(queue, 0, 1 + i % 2), KL_OK);
    CHECK_INT(show(rig, queue).layout_number, KL_LAYOUTS_MAX);
    kl_queue_close(queue);
}

/* --- Ids --- */

static void check_moves(kl_layout from, kl_layout to, uint64_t *random)
{
    enum { IDS = 2000 };
    static kl_task_id ids[IDS];
    kl_idgen *idgen = NULL;
    uint32_t lanes[IDS], shard = (uint32_t)kl__random_below(random, kl_layout_shards(&from));
    uint32_t target = (uint32_t)kl__random_below(random, kl_layout_shards(&to));
    CHECK_INT(kl_idgen_open(&from, NULL, &idgen), KL_OK);
    for (int i = 0; i < IDS; i++)
        lanes[i] = 77;
    CHECK_INT(kl_idgen_batch(idgen, shard, lanes, IDS, ids), KL_OK);
    kl_idgen_close(idgen);
    kl_task_id last = {{0}};
    for (int i = 0; i < IDS; i++) {
        kl_task_id moved = kl__id_moved(&from, &to, target, &ids[i]);
        kl_task_id again = kl__id_moved(&from, &to, target, &ids[i]);
        kl_id_parts before = kl_id_unpack(&from, &ids[i]), after = kl_id_unpack(&to, &moved);
        CHECK(kl_id_compare(&moved, &again) == 0);
        CHECK_INT(after.shard, target);
        CHECK_INT(after.ms, before.ms);
        CHECK_INT(after.lane, before.lane);
        CHECK(kl_id_compare(&last, &moved) < 0); /* in order, hence all different */
        last = moved;
    }
}

TEST(ids_of_one_key_move_in_order_and_stay_different)
{
    uint64_t random = test_seed();
    for (uint32_t from = 1; from <= 4; from++)
        for (uint32_t to = 1; to <= 4; to++)
            check_moves((kl_layout){2, from}, (kl_layout){3, to}, &random);
}

/* Moved from each layout to the next, or at once from an older one to the newest. */
static void check_ways(struct rig *rig, const int64_t digits[3], const char *key)
{
    char name[16];
    snprintf(name, sizeof name, "q%d%d%d%s", (int)digits[0], (int)digits[1], (int)digits[2], key);
    kl_queue *queue = OPEN(rig->store, name, .partitions = 2, .shard_prefix_len = digits[0]);
    REQUIRE(queue);
    kl__descriptor *known[3] = {kl__queue_descriptor(queue)};
    for (int i = 1; i < 3; i++) {
        CHECK_INT(alter_to(queue, 2 + i, digits[i]), KL_OK);
        known[i] = kl__queue_descriptor(queue);
    }
    const kl__queue_layout *first = &known[2]->layouts[0], *second = &known[2]->layouts[1];
    for (int i = 0; i < 100; i++) {
        kl_entry entry = {.key = kl_str(key)};
        kl_store *store = NULL;
        uint32_t shard = *key ? kl_shard_of(&first->layout, entry.key) : (uint32_t)i % 16;
        CHECK_INT(kl_idgen_next(first->idgen, shard, *key ? kl_lane_of(entry.key) : 0, &entry.id), KL_OK);
        kl_entry half = kl__entry_moved(known[1], 1, &first->layout, &entry, &store);
        kl_entry whole = kl__entry_moved(known[2], 2, &second->layout, &half, &store);
        kl_entry at_once = kl__entry_moved(known[2], 1, &first->layout, &entry, &store);
        CHECK(kl_id_compare(&whole.id, &at_once.id) == 0);
        CHECK_INT(at_once.place.partition, whole.place.partition);
        CHECK_INT(at_once.place.shard, whole.place.shard);
    }
    for (int i = 0; i < 3; i++)
        kl__descriptor_release(known[i]);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(copies_of_a_task_in_several_older_layouts_move_to_one_place)
{
    static const int64_t digits[][3] = {{1, 2, 2}, {2, 1, 2}, {1, 2, 1}, {1, 1, 1}, {3, 1, 2}, {2, 4, 1}};
    for (size_t i = 0; i < sizeof digits / sizeof digits[0]; i++) {
        check_ways(rig, digits[i], "");
        check_ways(rig, digits[i], "k");
    }
}
