/* test_put.c - producers: every limit has its sentence, every key its line, and a task is stored once or not at all. */
#include <pthread.h>

#include "base/compare.h"
#include "base/random.h"
#include "keyline/job.h"
#include "queue/tasks.h"

static kl_bytes none(void) { return (kl_bytes){NULL, 0}; }

static kl_rc put_one(kl_queue *queue, kl_put task, kl_put_result *ret_result)
{
    return kl_queue_put(queue, &task, 1, none(), ret_result);
}

/* --- Limits --- */

#define REFUSED(queue, part, ...)                                                                                      \
    do {                                                                                                               \
        kl_put tasks_[3] = {{.payload = kl_str("a")}, {.payload = kl_str("b")}, {__VA_ARGS__}};                        \
        CHECK_FAILS(kl_queue_put(queue, tasks_, 3, none(), NULL), KL_EINVAL, "task 3 of 3: ");                         \
        CHECK_CONTAINS(kl_error_text(), part);                                                                         \
    } while (0)

CLAIM_IN_MEMORY(a_task_over_a_limit_is_named_and_nothing_is_stored)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    static char long_bytes[KL_PAYLOAD_BYTES_MAX + 1];
    kl_header headers[KL_HEADERS_MAX + 1] = {{{"h", 1}, {"v", 1}}, {{"", 0}, {"v", 1}}};
    kl_bytes tags[KL_TAGS_MAX + 1] = {{"t", 1}, {"", 0}}, long_tag = {long_bytes, KL_TAG_BYTES_MAX + 1};
    REFUSED(queue, "key has 513 bytes; make it 512 or fewer", .key = {long_bytes, KL_KEY_BYTES_MAX + 1});
    REFUSED(queue, "pointer to them is NULL", .key = {NULL, 3});
    REFUSED(queue, "kind has 256 bytes", .kind = {long_bytes, KL_KIND_BYTES_MAX + 1});
    REFUSED(queue, "payload has 1048577 bytes", .payload = {long_bytes, KL_PAYLOAD_BYTES_MAX + 1});
    REFUSED(queue, "priority is 16; write -16 to 15", .priority = KL_PRIORITY_MAX + 1);
    REFUSED(queue, "delay_ms is -1", .delay_ms = -1);
    REFUSED(queue, "due_ms is", .due_ms = KL_ID_MS_MAX + 1);
    REFUSED(queue, "both delay_ms (1) and due_ms (2)", .delay_ms = 1, .due_ms = 2);
    REFUSED(queue, "attempts_max is 65536", .attempts_max = KL_ATTEMPTS_MAX + 1);
    REFUSED(queue, "timeout_ms is -1", .timeout_ms = KL_NO_WAIT);
    REFUSED(queue, "unique has 257 bytes", .unique = {long_bytes, KL_UNIQUE_BYTES_MAX + 1});
    REFUSED(queue, "it has no unique", .unique_ms = 5);
    REFUSED(queue, "group has 129 bytes", .group = {long_bytes, KL_GROUP_BYTES_MAX + 1});
    REFUSED(queue, "header_count is 65", .headers = headers, .header_count = KL_HEADERS_MAX + 1);
    REFUSED(queue, "header 2 has no name", .headers = headers, .header_count = 2);
    REFUSED(queue, "tag_count is 17", .tags = tags, .tag_count = KL_TAGS_MAX + 1);
    REFUSED(queue, "tag 2 is empty", .tags = tags, .tag_count = 2);
    REFUSED(queue, "tag has 65 bytes", .tags = &long_tag, .tag_count = 1);
    REFUSED(queue, "take 65542 bytes", .traceparent = {long_bytes, KL_HEADERS_BYTES_MAX}, .group = kl_str("g"));
    REFUSED(queue, "no partition orders__p2; it has orders and orders__p1", .partition = "orders__p2");
    CHECK_INT(scan_tasks(queue, &rig->arena).count, 0);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(a_call_over_a_limit_is_refused)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    REQUIRE(queue);
    static char bytes[KL_PAYLOAD_BYTES_MAX];
    static kl_put many[KL_PUT_MAX + 1];
    kl_put large[9];
    for (int i = 0; i < 9; i++)
        large[i] = (kl_put){.payload = {bytes, sizeof bytes}};
    CHECK_FAILS(kl_queue_put(NULL, many, 1, none(), NULL), KL_EINVAL, "kl_queue_open");
    CHECK_FAILS(kl_queue_put(queue, NULL, 1, none(), NULL), KL_EINVAL, "pass the tasks");
    CHECK_FAILS(kl_queue_put(queue, many, KL_PUT_MAX + 1, none(), NULL), KL_EINVAL, "up to 10000 at a time");
    CHECK_FAILS(kl_queue_put(queue, many, 1, (kl_bytes){bytes, 257}, NULL), KL_EINVAL, "token has 257 bytes");
    CHECK_FAILS(kl_queue_put(queue, large, 9, none(), NULL), KL_EINVAL, "task 9 of 9: with it the call has 9437184");
    CHECK_INT(kl_queue_put(queue, large, 8, none(), NULL), KL_OK);
    CHECK_INT(kl_queue_put(queue, NULL, 0, none(), NULL), KL_OK);
    CHECK_INT(scan_tasks(queue, &rig->arena).count, 8);
    kl_queue_close(queue);
}

/* --- What is stored --- */

CLAIM(what_is_put_is_what_is_stored)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 3, .shard_prefix_len = 2);
    REQUIRE(queue);
    kl_header header = {kl_str("h"), kl_str("v")};
    kl_bytes tag = kl_str("t");
    kl_put task = {.key = kl_str("customer-7"),
                   .kind = kl_str("charge"),
                   .payload = kl_str("12.00"),
                   .priority = -3,
                   .attempts_max = 5,
                   .timeout_ms = 1234,
                   .group = kl_str("g"),
                   .traceparent = kl_str("tp"),
                   .headers = &header,
                   .header_count = 1,
                   .tags = &tag,
                   .tag_count = 1,
                   .job = {{9}}};
    kl_put_result result = {.duplicate = true};
    CHECK_INT(put_one(queue, task, &result), KL_OK);
    CHECK(!result.duplicate);
    struct tasks tasks = scan_tasks(queue, &rig->arena);
    REQUIRE(tasks.count == 1);
    const kl_entry *entry = &tasks.tasks[0].entry;
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    const kl__queue_layout *layout = kl__newest_layout(descriptor);
    CHECK_INT(entry->place.partition, layout->numbers[kl_partition_of(&layout->layout, task.key)]);
    CHECK_INT(entry->place.shard, kl_shard_of(&layout->layout, task.key));
    kl__descriptor_release(descriptor);
    CHECK(kl_id_compare(&entry->id, &result.id) == 0);
    CHECK_INT(kl_id_lane(&entry->id), kl_lane_of(task.key));
    CHECK(same_bytes(entry->key, "customer-7") && same_bytes(entry->kind, "charge"));
    CHECK(same_bytes(entry->payload, "12.00"));
    CHECK_INT(entry->priority, -3);
    CHECK_INT(entry->due_ms, 0);
    CHECK_INT(entry->group, kl__group_hash(task.group));
    CHECK(kl_id_compare(&entry->job, &task.job) == 0);
    kl_task_extra extra;
    REQUIRE(kl__envelope_decode(entry->headers, &rig->arena, &extra) == KL_OK);
    CHECK(extra.attempts_max == 5 && extra.timeout_ms == 1234 && same_bytes(extra.group, "g"));
    CHECK(same_bytes(extra.traceparent, "tp") && extra.header_count == 1 && extra.tag_count == 1);
    kl_queue_close(queue);
}

TEST(a_group_has_a_hash_that_is_never_none)
{
    CHECK_INT(kl__group_hash(none()), 0);
    for (uint32_t i = 0; i < 200000; i++)
        if (kl__group_hash((kl_bytes){&i, sizeof i}) == 0)
            test_fail(__FILE__, __LINE__, "group %u has hash 0", i);
}

CLAIM(a_delay_is_counted_on_the_store_s_clock)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    REQUIRE(queue);
    int64_t now_ms = atomic_load(&rig->clock_ms);
    CHECK_INT(put_one(queue, (kl_put){.delay_ms = 5000, .kind = kl_str("delay")}, NULL), KL_OK);
    CHECK_INT(put_one(queue, (kl_put){.due_ms = 77, .kind = kl_str("past")}, NULL), KL_OK);
    CHECK_FAILS(put_one(queue, (kl_put){.delay_ms = KL_ID_MS_MAX}, NULL), KL_EINVAL, "delay_ms is");
    struct tasks tasks = scan_tasks(queue, &rig->arena);
    REQUIRE(tasks.count == 2);
    for (size_t i = 0; i < 2; i++)
        CHECK_INT(tasks.tasks[i].entry.due_ms, same_bytes(tasks.tasks[i].entry.kind, "past") ? 77 : now_ms + 5000);
    kl_queue_close(queue);
}

/* --- Order --- */

enum { KEYS = 97, BATCH = 10000 };

struct numbered {
    char key[16];
    uint32_t key_number, number;
};

static void number_tasks(struct numbered *numbers, kl_put *tasks, size_t count, uint32_t first, uint64_t *random)
{
    for (size_t i = 0; i < count; i++) {
        numbers[i].key_number = (uint32_t)kl__random_below(random, KEYS);
        numbers[i].number = first + (uint32_t)i;
        snprintf(numbers[i].key, sizeof numbers[i].key, "key-%u", numbers[i].key_number);
        tasks[i] = (kl_put){.key = kl_str(numbers[i].key), .payload = {&numbers[i].number, 4}};
    }
}

/* Every key's numbers ascend, and so do the ids of each shard. */
static void check_order(struct tasks tasks, size_t expected)
{
    uint32_t last[KEYS] = {0};
    CHECK_INT(tasks.count, expected);
    for (size_t i = 0; i < tasks.count && !test_failed(); i++) {
        const kl_entry *entry = &tasks.tasks[i].entry;
        uint32_t key = 0, number;
        char name[16] = "";
        REQUIRE(entry->key.len < sizeof name && entry->payload.len == 4);
        memcpy(name, entry->key.data, entry->key.len);
        REQUIRE(sscanf(name, "key-%u", &key) == 1 && key < KEYS);
        memcpy(&number, entry->payload.data, 4);
        CHECK(number > last[key]);
        last[key] = number;
        const kl_entry *before = i > 0 ? &tasks.tasks[i - 1].entry : entry;
        if (i > 0 && memcmp(&before->place, &entry->place, sizeof before->place) == 0)
            CHECK(kl_id_compare(&before->id, &entry->id) < 0);
    }
}

CLAIM(keys_keep_their_order_inside_a_call_and_from_call_to_call)
{
    static struct numbered numbers[BATCH];
    static kl_put tasks[BATCH];
    static kl_put_result results[BATCH];
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2, .shard_prefix_len = 1);
    uint64_t random = test_seed();
    uint32_t first = 1;
    REQUIRE(queue);
    static const size_t sizes[] = {BATCH, 1, 16, 17, 700, 3, 1};
    for (size_t i = 0; i < COUNT(sizes); first += (uint32_t)sizes[i++]) {
        number_tasks(numbers, tasks, sizes[i], first, &random);
        CHECK_INT(kl_queue_put(queue, tasks, sizes[i], none(), results), KL_OK);
    }
    check_order(scan_tasks(queue, &rig->arena), first - 1);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(tasks_without_a_key_are_spread_over_all_shards)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 4);
    kl_put tasks[256] = {{.priority = 0}};
    uint32_t cells[16][16] = {{0}};
    REQUIRE(queue);
    CHECK_INT(kl_queue_put(queue, tasks, 256, none(), NULL), KL_OK);
    struct tasks stored = scan_tasks(queue, &rig->arena);
    CHECK_INT(stored.count, 256);
    for (size_t i = 0; i < stored.count; i++) {
        CHECK_INT(kl_id_lane(&stored.tasks[i].entry.id), 0);
        cells[stored.tasks[i].entry.place.partition % 16][stored.tasks[i].entry.place.shard]++;
    }
    for (int p = 0; p < 16; p++)
        for (int s = 0; s < 16; s++)
            CHECK(cells[p][s] == 0 || cells[p][s] == 4);
    for (int i = 0; i < 400; i++)
        CHECK_INT(put_one(queue, tasks[0], NULL), KL_OK);
    stored = scan_tasks(queue, &rig->arena);
    kl_counts counts = {0};
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    const kl__queue_layout *layout = kl__newest_layout(descriptor);
    for (uint32_t p = 0; p < 4; p++) {
        CHECK_INT(kl_store_counts(rig->store, (kl_place){layout->numbers[p], KL_ALL_SHARDS}, NULL, &counts), KL_OK);
        CHECK(counts.ready > 64 + 40); /* of 164 on average; the chance of fewer is below 1e-13 */
    }
    kl__descriptor_release(descriptor);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(a_task_goes_to_the_partition_that_it_names)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 3);
    REQUIRE(queue);
    kl_put tasks[4] = {{.partition = "orders", .key = kl_str("k")},
                       {.partition = "orders__p2", .key = kl_str("k")},
                       {.partition = "orders__p2"},
                       {.partition = "orders__p1", .key = kl_str("k")}};
    CHECK_INT(kl_queue_put(queue, tasks, 4, none(), NULL), KL_OK);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    const kl__queue_layout *layout = kl__newest_layout(descriptor);
    struct tasks stored = scan_tasks(queue, &rig->arena);
    size_t expected[] = {1, 1, 2};
    for (size_t p = 0; p < 3; p++) {
        size_t count = 0;
        for (size_t i = 0; i < stored.count; i++)
            count += stored.tasks[i].entry.place.partition == layout->numbers[p];
        CHECK_INT(count, expected[p]);
    }
    kl__descriptor_release(descriptor);
    kl_queue_close(queue);
}

static bool by_name(kl_queue *queue)
{
    CHECK_INT(kl__queue_refresh(queue), KL_OK);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    bool marked = kl__newest_layout(descriptor)->by_name;
    kl__descriptor_release(descriptor);
    return marked;
}

static void put_by_job(kl_queue *queue, const kl_put *put)
{
    kl_job_answer answer;
    kl_job_spec spec = {.size = sizeof spec, .tasks = put, .count = 1};
    CHECK_INT(kl_job_submit(queue, &spec, &answer, NULL), KL_OK);
}

/* Q4: who looks for a key looks into all partitions only where that is of use. */
CLAIM_IN_MEMORY(the_record_says_when_a_key_has_tasks_in_another_partition_than_its_own)
{
    enum { PLAINLY, WITH_A_TOKEN, BY_A_JOB, WAYS };
    for (int way = 0; way < WAYS; way++) {
        char name[16], own[32], foreign[32];
        kl_layout layout = {3, 1};
        uint32_t partition = kl_partition_of(&layout, kl_str("k"));
        snprintf(name, sizeof name, "orders%d", way);
        CHECK_INT(kl_partition_name(&layout, name, partition, sizeof own, own), KL_OK);
        CHECK_INT(kl_partition_name(&layout, name, (partition + 1) % 3, sizeof foreign, foreign), KL_OK);
        kl_queue *queue = OPEN(rig->store, name, .partitions = 3), *other = OPEN(rig->store, name);
        REQUIRE(queue && other);
        kl_put harmless[] = {{.key = kl_str("k")}, {.key = kl_str("k"), .partition = own}, {.partition = foreign}};
        kl_put put = {.key = kl_str("k"), .partition = foreign};
        CHECK_INT(kl_queue_put(queue, harmless, 3, none(), NULL), KL_OK);
        CHECK(!by_name(other));
        if (way == BY_A_JOB)
            put_by_job(queue, &put);
        else
            CHECK_INT(kl_queue_put(queue, &put, 1, kl_str(way == WITH_A_TOKEN ? "once" : ""), NULL), KL_OK);
        CHECK(by_name(other));
        CHECK_INT(kl_queue_alter(queue, &(kl_queue_opts){.size = sizeof(kl_queue_opts), .partitions = 2}), KL_OK);
        CHECK(!by_name(other));
        kl_queue_close(other);
        kl_queue_close(queue);
    }
}

/* --- Several queues, stores and layouts --- */

CLAIM(tasks_of_one_call_may_go_to_several_queues)
{
    enum { QUEUES = 7, TASKS = 70 };
    kl_queue *queues[QUEUES];
    kl_put tasks[TASKS];
    for (int i = 0; i < QUEUES; i++) {
        char name[16];
        snprintf(name, sizeof name, "queue-%d", i);
        queues[i] = OPEN(rig->store, name, .partitions = i + 1);
        REQUIRE(queues[i]);
    }
    for (int i = 0; i < TASKS; i++)
        tasks[i] = (kl_put){.queue = i % QUEUES ? queues[i % QUEUES] : NULL, .key = kl_str("k")};
    CHECK_INT(kl_queue_put(queues[0], tasks, TASKS, none(), NULL), KL_OK);
    for (int i = 0; i < QUEUES; i++) {
        CHECK_INT(scan_tasks(queues[i], &rig->arena).count, TASKS / QUEUES);
        kl_queue_close(queues[i]);
    }
}

CLAIM(partitions_in_other_stores_get_their_tasks)
{
    static struct numbered numbers[500];
    static kl_put tasks[500];
    char url[WORKDIR_BYTES + 16];
    uint64_t random = test_seed();
    snprintf(url, sizeof url, "disk:%s/other", rig->path);
    const char *stores[] = {"", url};
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2, .stores = stores, .store_count = 2);
    REQUIRE(queue);
    for (uint32_t i = 0; i < 3; i++) {
        number_tasks(numbers, tasks, 500, 1 + 500 * i, &random);
        CHECK_INT(kl_queue_put(queue, tasks, 500, i == 2 ? kl_str("token") : none(), NULL), KL_OK);
    }
    CHECK_INT(kl_queue_put(queue, tasks, 500, kl_str("token"), NULL), KL_OK);
    check_order(scan_tasks(queue, &rig->arena), 1500);
    kl_queue_close(queue);
}

CLAIM(a_producer_that_knows_an_old_layout_finds_the_new_one)
{
    kl_queue *producer = OPEN(rig->store, "orders", .partitions = 1);
    kl_queue *other = OPEN(rig->store, "orders", .partitions = 0);
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 4, .shard_prefix_len = 2};
    REQUIRE(producer && other);
    CHECK_INT(put_one(producer, (kl_put){.key = kl_str("k")}, NULL), KL_OK);
    CHECK_INT(kl_queue_alter(other, &opts), KL_OK);
    kl_put tasks[40] = {{.key = kl_str("k")}, {.key = kl_str("k"), .unique = kl_str("u")}};
    kl_put_result results[40];
    CHECK_INT(kl_queue_put(producer, tasks, 40, none(), results), KL_OK);
    kl__descriptor *descriptor = kl__queue_descriptor(other);
    const kl__queue_layout *layout = kl__newest_layout(descriptor);
    for (int i = 0; i < 2; i++)
        CHECK_INT(kl_id_shard(&layout->layout, &results[i].id), kl_shard_of(&layout->layout, kl_str("k")));
    kl__descriptor_release(descriptor);
    CHECK_INT(scan_tasks(other, &rig->arena).count, 41);
    kl_queue_close(producer);
    kl_queue_close(other);
}

/* --- Faults --- */

CLAIM_IN_MEMORY(lost_replies_double_nothing_and_lose_nothing)
{
    struct lossy lossy;
    kl_store *wire;
    kl_queue *queue = NULL;
    uint64_t random = test_seed(), puts = test_ops(400), expected = 0;
    kl__queue_sleep_by(sleep_not);
    REQUIRE(lossy_open(&lossy, rig->store, random, &wire) == KL_OK);
    while (kl_queue_open(wire, "orders", NULL, &queue) == KL_EBUSY)
        ;
    REQUIRE(queue);
    for (uint64_t i = 0; i < puts; i++) {
        kl_put tasks[20];
        char unique[24];
        size_t count = 1 + kl__random_below(&random, 20);
        snprintf(unique, sizeof unique, "%d", (int)i);
        for (size_t j = 0; j < count; j++)
            tasks[j] = (kl_put){.payload = kl_str("p")};
        tasks[0].unique = kl_str(i % 3 == 0 ? unique : "");
        kl_bytes token = kl_str(i % 3 == 1 ? unique : "");
        kl_rc rc = kl_queue_put(queue, tasks, count, token, NULL);
        CHECK(rc == KL_OK);
        expected += count;
    }
    kl_queue_close(queue);
    kl_store_close(wire);
    kl__queue_sleep_by(NULL);
    queue = OPEN(rig->store, "orders", .partitions = 0);
    REQUIRE(queue);
    CHECK_INT(scan_tasks(queue, &rig->arena).count, expected);
    kl_queue_close(queue);
}

static kl_rc put_in_want(kl_queue *queue, uint64_t n)
{
    char unique[24];
    kl_header header = {kl_str("h"), kl_str("v")};
    kl_put tasks[20] = {{.headers = &header, .header_count = 1}};
    snprintf(unique, sizeof unique, "%d", (int)n);
    tasks[3].unique = kl_str(unique);
    kl__alloc_fail_at(n);
    return kl_queue_put(queue, tasks, 20, n % 2 ? kl_str(unique) : none(), NULL);
}

CLAIM_IN_MEMORY(a_put_that_finds_no_memory_says_so_and_can_be_made_again)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    REQUIRE(queue);
    uint64_t n = 1, failed = 0;
    int64_t calm = 0;
    for (; calm < 4 && n < 2000 && !test_failed(); n++) {
        size_t before = settle_tasks(queue, KL_DONE, 0, NULL);
        (void)before;
        kl_rc rc = put_in_want(queue, n);
        bool hit = kl__alloc_fail_at(0) >= n;
        CHECK(rc == KL_OK || rc == KL_ENOMEM);
        calm = hit ? 0 : calm + 1;
        failed += rc == KL_ENOMEM;
        if (rc == KL_OK)
            CHECK_INT(scan_tasks(queue, &rig->arena).count, 20);
        kl_arena_reset(&rig->arena);
    }
    CHECK(failed > 10 && calm == 4);
    kl_queue_close(queue);
}

/* --- Threads --- */

struct producer {
    kl_queue *queue;
    uint32_t number;
};

static void *produce(void *ctx)
{
    const struct producer *producer = ctx;
    struct numbered numbers[50];
    kl_put tasks[50];
    for (uint32_t call = 0; call < 20; call++) {
        for (uint32_t i = 0; i < 50; i++) {
            numbers[i].number = 1 + call * 50 + i;
            snprintf(numbers[i].key, sizeof numbers[i].key, "key-%u", producer->number);
            tasks[i] = (kl_put){.key = kl_str(numbers[i].key), .payload = {&numbers[i].number, 4}};
        }
        CHECK_INT(kl_queue_put(producer->queue, tasks, 50, none(), NULL), KL_OK);
    }
    return NULL;
}

CLAIM(each_thread_s_calls_keep_their_order)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    struct producer producers[THREADS];
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    for (uint32_t i = 0; i < THREADS; i++) {
        producers[i] = (struct producer){queue, i};
        REQUIRE(pthread_create(&threads[i], NULL, produce, &producers[i]) == 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    check_order(scan_tasks(queue, &rig->arena), THREADS * 1000);
    kl_queue_close(queue);
}
