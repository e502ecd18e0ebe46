/* test_named.c - keys whose tasks were put into partitions by name: each partition has a line of its own. */
#include <string.h>

#include "base/hash.h"
#include "support.h"

enum { PARTITIONS = 3, PLACES = 8 };

struct stage {
    struct rig rig;
    struct runs runs;
    kl_worker *worker;         /* NULL: none */
    const char *own, *foreign; /* partitions: the one that the key says, and another */
};

static const char *const names[PARTITIONS] = {"orders", "orders__p1", "orders__p2"};

/* On both engines, with a worker and with none. */
enum { STAGES = 4 };

static bool stage_open(struct stage *stage, int number)
{
    kl_queue_opts opts = {
        .size = sizeof opts, .partitions = PARTITIONS, .keep_done_ms = 3600000, .backoff_base_ms = 600000};
    kl_layout layout = {PARTITIONS, 1};
    uint32_t own = kl_partition_of(&layout, kl_str("k"));
    *stage = (struct stage){.own = names[own], .foreign = names[(own + 1) % PARTITIONS]};
    if (!rig_open(&stage->rig, number & 1 ? RIG_DISK : RIG_MEMORY, &opts))
        return false;
    runs_init(&stage->runs);
    if (number & 2) {
        stage->worker = start_worker(stage->rig.queue, &(struct start){.fn = runs_handle, .ctx = &stage->runs});
        await_shards(stage->worker, (uint64_t)PARTITIONS * 16);
    }
    return true;
}

static void stage_close(struct stage *stage)
{
    runs_open(&stage->runs, true);
    drain_and_close(stage->worker);
    runs_free(&stage->runs);
    rig_close(&stage->rig);
}

static kl_task_id put_into(struct stage *stage, const char *partition, const char *payload)
{
    return put_as(stage->rig.queue, &(kl_put){.key = kl_str("k"), .partition = partition, .payload = kl_str(payload)});
}

static bool is_id(const kl_task_id *a, const kl_task_id *b) { return memcmp(a, b, sizeof *a) == 0; }

/* --- What is shown --- */

struct wish {
    struct stage *stage;
    kl_why why;
    size_t places;
};

static size_t show(struct stage *stage, const char *partition, kl_arena *arena, kl_key_status places[PLACES])
{
    size_t count = 0;
    CHECK_INT(kl_key_places(stage->rig.queue, kl_str("k"), partition, PLACES, arena, places, &count), KL_OK);
    return count;
}

static bool is_so_everywhere(void *ctx)
{
    const struct wish *wish = ctx;
    kl_arena arena = {0};
    kl_key_status places[PLACES];
    size_t count = show(wish->stage, NULL, &arena, places), good = 0;
    for (size_t i = 0; i < count; i++)
        good += places[i].why == wish->why;
    kl_arena_free(&arena);
    return count == wish->places && good == count;
}

static void await_everywhere(struct stage *stage, kl_why why, size_t places)
{
    await_condition("each partition says why", is_so_everywhere, &(struct wish){stage, why, places});
}

static void check_place(struct stage *stage, const char *partition, uint64_t waiting, const kl_task_id *head)
{
    kl_arena arena = {0};
    kl_key_status places[PLACES];
    CHECK_INT(show(stage, partition, &arena, places), 1);
    CHECK_STR(places[0].partition, partition);
    CHECK_INT(places[0].layout, 1);
    CHECK_INT(places[0].waiting, waiting);
    CHECK(!head || is_id(&places[0].head, head));
    kl_arena_free(&arena);
}

/* --- Claims --- */

static void reach(int number)
{
    struct stage stage;
    kl_task_id skipped;
    uint64_t count = 0;
    kl_key_status places[PLACES];
    kl_arena arena = {0};
    if (!stage_open(&stage, number))
        return;
    kl_task_id first = put_into(&stage, stage.foreign, "fail first");
    put_into(&stage, stage.foreign, "done second");
    kl_task_id third = put_into(&stage, stage.foreign, "done third");
    await_everywhere(&stage, stage.worker ? KL_WHY_RETRYING : KL_WHY_NO_WORKER, 1);
    CHECK_INT(show(&stage, NULL, &arena, places), 1);
    CHECK_STR(places[0].partition, stage.foreign);
    CHECK_INT(places[0].waiting, 3);
    CHECK(is_id(&places[0].head, &first));
    CHECK_INT(kl_key_retry(stage.rig.queue, kl_str("k"), NULL), KL_OK);
    if (stage.worker)
        runs_wait_for(&stage.runs, "fail first", 2);
    await_everywhere(&stage, stage.worker ? KL_WHY_RETRYING : KL_WHY_NO_WORKER, 1);
    CHECK_INT(kl_key_pause(stage.rig.queue, kl_str("k")), KL_OK);
    await_everywhere(&stage, KL_WHY_PAUSED, 1);
    CHECK_INT(kl_key_skip(stage.rig.queue, kl_str("k"), NULL, &skipped), KL_OK);
    CHECK(is_id(&skipped, &first));
    CHECK_INT(kl_key_skip(stage.rig.queue, kl_str("k"), stage.own, &skipped), KL_ENOTFOUND);
    CHECK_CONTAINS(kl_error_text(), stage.own);
    CHECK_INT(kl_key_skip(stage.rig.queue, kl_str("k"), stage.foreign, &skipped), KL_OK);
    check_place(&stage, stage.foreign, 1, &third);
    CHECK_INT(kl_key_drain(stage.rig.queue, kl_str("k"), NULL, false, &count), KL_OK);
    CHECK_INT(count, 1);
    CHECK_INT(kl_key_drain(stage.rig.queue, kl_str("k"), NULL, false, &count), KL_ENOTFOUND);
    CHECK_INT(rig_waiting(&stage.rig), 0);
    CHECK_INT(runs_of(&stage.runs, "done second") + runs_of(&stage.runs, "done third"), 0);
    kl_arena_free(&arena);
    stage_close(&stage);
}

TEST(a_key_is_reached_in_the_partition_that_its_tasks_were_put_into_by_name)
{
    for (int i = 0; i < STAGES; i++)
        reach(i);
}

static void reach_both(int number)
{
    struct stage stage;
    kl_task_id skipped;
    uint64_t count = 0;
    if (!stage_open(&stage, number))
        return;
    kl_task_id here = put_into(&stage, NULL, "fail here");
    kl_task_id there = put_into(&stage, stage.foreign, "fail there");
    put_into(&stage, stage.foreign, "done there");
    await_everywhere(&stage, stage.worker ? KL_WHY_RETRYING : KL_WHY_NO_WORKER, 2);
    check_place(&stage, stage.own, 1, &here);
    check_place(&stage, stage.foreign, 2, &there);
    CHECK_INT(kl_key_retry(stage.rig.queue, kl_str("k"), NULL), KL_OK);
    if (stage.worker) {
        runs_wait_for(&stage.runs, "fail here", 2);
        runs_wait_for(&stage.runs, "fail there", 2);
        await_everywhere(&stage, KL_WHY_RETRYING, 2);
        CHECK_INT(kl_key_retry(stage.rig.queue, kl_str("k"), stage.foreign), KL_OK);
        runs_wait_for(&stage.runs, "fail there", 3);
        await_everywhere(&stage, KL_WHY_RETRYING, 2);
        CHECK_INT(runs_of(&stage.runs, "fail here"), 2);
    }
    CHECK_INT(kl_key_skip(stage.rig.queue, kl_str("k"), NULL, &skipped), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), stage.own);
    CHECK_CONTAINS(kl_error_text(), stage.foreign);
    CHECK_INT(kl_key_pause(stage.rig.queue, kl_str("k")), KL_OK);
    await_everywhere(&stage, KL_WHY_PAUSED, 2);
    CHECK_INT(kl_key_skip(stage.rig.queue, kl_str("k"), stage.foreign, &skipped), KL_OK);
    CHECK(is_id(&skipped, &there));
    check_place(&stage, stage.own, 1, &here);
    CHECK_INT(kl_key_drain(stage.rig.queue, kl_str("k"), stage.own, false, &count), KL_OK);
    CHECK_INT(count, 1);
    check_place(&stage, stage.own, 0, NULL);
    check_place(&stage, stage.foreign, 1, NULL);
    put_into(&stage, NULL, "done here");
    CHECK_INT(kl_key_drain(stage.rig.queue, kl_str("k"), NULL, false, &count), KL_OK);
    CHECK_INT(count, 2);
    stage_close(&stage);
}

TEST(a_key_in_two_partitions_is_shown_and_steered_in_both_or_in_the_one_that_is_named)
{
    for (int i = 0; i < STAGES; i++)
        reach_both(i);
}

static void resume_both(rig_kind kind)
{
    struct stage stage;
    if (!stage_open(&stage, kind == RIG_DISK ? 3 : 2))
        return;
    put_into(&stage, NULL, "fail here");
    put_into(&stage, stage.foreign, "fail there");
    await_everywhere(&stage, KL_WHY_RETRYING, 2);
    CHECK_INT(kl_key_pause(stage.rig.queue, kl_str("k")), KL_OK);
    await_everywhere(&stage, KL_WHY_PAUSED, 2);
    CHECK_INT(kl_key_resume(stage.rig.queue, kl_str("k")), KL_OK);
    runs_wait_for(&stage.runs, "fail here", 2);
    runs_wait_for(&stage.runs, "fail there", 2);
    stage_close(&stage);
}

TEST(a_resumed_key_goes_on_in_each_of_its_partitions)
{
    resume_both(RIG_MEMORY);
    resume_both(RIG_DISK);
}

static void reach_layouts(int number)
{
    struct stage stage;
    kl_arena arena = {0};
    kl_key_status places[PLACES];
    kl_task_id skipped;
    uint64_t count = 0;
    if (!stage_open(&stage, number))
        return;
    CHECK_INT(kl_key_pause(stage.rig.queue, kl_str("k")), KL_OK); /* so that the older layout keeps its tasks */
    await_everywhere(&stage, KL_WHY_PAUSED, 1);
    kl_task_id old = put_into(&stage, stage.foreign, "done old");
    put_into(&stage, stage.foreign, "done old");
    CHECK_INT(kl_queue_alter(stage.rig.queue, &(kl_queue_opts){.size = sizeof(kl_queue_opts), .partitions = 2}), KL_OK);
    put_into(&stage, NULL, "done new");
    await_everywhere(&stage, KL_WHY_PAUSED, 2);
    CHECK_INT(show(&stage, NULL, &arena, places), 2);
    CHECK_STR(places[0].partition, stage.foreign);
    CHECK_INT(places[0].layout, 1);
    CHECK_INT(places[0].waiting, 2);
    CHECK_INT(places[1].layout, 2);
    CHECK_INT(places[1].waiting, 1);
    CHECK_INT(kl_key_skip(stage.rig.queue, kl_str("k"), NULL, &skipped), KL_OK); /* the older layout comes first */
    CHECK(is_id(&skipped, &old));
    CHECK_INT(kl_key_drain(stage.rig.queue, kl_str("k"), NULL, false, &count), KL_OK);
    CHECK_INT(count, 2);
    kl_arena_free(&arena);
    stage_close(&stage);
}

TEST(a_key_is_reached_by_name_in_a_layout_that_is_being_drained)
{
    for (int i = 0; i < STAGES; i++)
        reach_layouts(i);
}

TEST(a_partition_that_there_is_not_is_refused_with_those_that_there_are)
{
    struct stage stage;
    kl_arena arena = {0};
    kl_key_status place;
    size_t count;
    if (!stage_open(&stage, 0))
        return;
    put_into(&stage, NULL, "done");
    CHECK_INT(kl_key_places(stage.rig.queue, kl_str("k"), "orders__p7", 1, &arena, &place, &count), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "orders__p1 to orders__p2");
    CHECK_INT(kl_key_places(stage.rig.queue, kl_str("k"), NULL, 0, &arena, &place, &count), KL_EINVAL);
    kl_arena_free(&arena);
    stage_close(&stage);
}
