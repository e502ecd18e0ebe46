/* test_control_args.c - what calls of control.h are given: pointers that may be NULL and those that may not, and where
 * answers lie; and a job whose task is moved. */
#include <string.h>

#include "keyline/job.h"
#include "support.h"

static bool open_one(struct rig *rig)
{
    return rig_open(rig, RIG_MEMORY, &(kl_queue_opts){.size = sizeof(kl_queue_opts)});
}

TEST(a_call_without_a_queue_is_refused)
{
    kl_task_id id = {{1}};
    kl_arena arena = {0};
    kl_key_status status;
    kl_worker_status worker;
    size_t count;
    kl_bytes key = kl_str("k");
    CHECK_INT(kl_task_cancel(NULL, &id, NULL), KL_EINVAL);
    CHECK_INT(kl_task_retry(NULL, &id, NULL), KL_EINVAL);
    CHECK_INT(kl_task_move(NULL, &id, NULL, NULL), KL_EINVAL);
    CHECK_INT(kl_queue_purge(NULL, NULL), KL_EINVAL);
    CHECK_INT(kl_key_show(NULL, key, &arena, &status), KL_EINVAL);
    CHECK_INT(kl_key_places(NULL, key, NULL, 1, &arena, &status, &count), KL_EINVAL);
    CHECK_INT(kl_key_list(NULL, KL_KEYS_UNSET, 0, 1, &arena, &status, &count), KL_EINVAL);
    CHECK_INT(kl_key_pause(NULL, key), KL_EINVAL);
    CHECK_INT(kl_key_resume(NULL, key), KL_EINVAL);
    CHECK_INT(kl_key_retry(NULL, key, NULL), KL_EINVAL);
    CHECK_INT(kl_key_skip(NULL, key, NULL, NULL), KL_EINVAL);
    CHECK_INT(kl_key_drain(NULL, key, NULL, false, NULL), KL_EINVAL);
    CHECK_INT(kl_queue_workers(NULL, 1, &arena, &worker, &count), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "NULL");
    kl_arena_free(&arena);
}

TEST(a_call_without_room_for_its_answer_is_refused)
{
    struct rig rig;
    kl_arena arena = {0};
    kl_key_status status;
    kl_worker_status worker;
    size_t count;
    kl_bytes key = kl_str("k"), nothing = {NULL, 1};
    if (!open_one(&rig))
        return;
    CHECK_INT(kl_task_cancel(rig.queue, NULL, NULL), KL_EINVAL);
    CHECK_INT(kl_task_retry(rig.queue, NULL, NULL), KL_EINVAL);
    CHECK_INT(kl_task_move(rig.queue, NULL, rig.queue, NULL), KL_EINVAL);
    CHECK_INT(kl_key_show(rig.queue, key, NULL, &status), KL_EINVAL);
    CHECK_INT(kl_key_show(rig.queue, key, &arena, NULL), KL_EINVAL);
    CHECK_INT(kl_key_places(rig.queue, key, NULL, 1, NULL, &status, &count), KL_EINVAL);
    CHECK_INT(kl_key_places(rig.queue, key, NULL, 1, &arena, NULL, &count), KL_EINVAL);
    CHECK_INT(kl_key_places(rig.queue, key, NULL, 1, &arena, &status, NULL), KL_EINVAL);
    CHECK_INT(kl_key_list(rig.queue, KL_KEYS_UNSET, 0, 1, NULL, &status, &count), KL_EINVAL);
    CHECK_INT(kl_key_list(rig.queue, KL_KEYS_UNSET, 0, 1, &arena, NULL, &count), KL_EINVAL);
    CHECK_INT(kl_key_list(rig.queue, KL_KEYS_UNSET, 0, 1, &arena, &status, NULL), KL_EINVAL);
    CHECK_INT(kl_queue_workers(rig.queue, 1, NULL, &worker, &count), KL_EINVAL);
    CHECK_INT(kl_queue_workers(rig.queue, 1, &arena, NULL, &count), KL_EINVAL);
    CHECK_INT(kl_queue_workers(rig.queue, 1, &arena, &worker, NULL), KL_EINVAL);
    CHECK_INT(kl_key_pause(rig.queue, nothing), KL_EINVAL);
    CHECK_INT(kl_key_skip(rig.queue, nothing, NULL, NULL), KL_EINVAL);
    kl_arena_free(&arena);
    rig_close(&rig);
}

TEST(who_does_not_want_to_know_what_was_done_leaves_it_out)
{
    struct rig rig;
    kl_queue *to;
    if (!open_one(&rig))
        return;
    REQUIRE(kl_queue_open(rig.store, "elsewhere", NULL, &to) == KL_OK);
    kl_task_id ids[3];
    for (int i = 0; i < 3; i++)
        ids[i] = put_task(rig.queue, "", "done");
    for (int i = 0; i < 3; i++)
        put_task(rig.queue, "k", "done");
    CHECK_INT(kl_task_cancel(rig.queue, &ids[0], NULL), KL_OK);
    CHECK_INT(kl_task_retry(rig.queue, &ids[1], NULL), KL_OK);
    CHECK_INT(kl_task_move(rig.queue, &ids[1], to, NULL), KL_OK);
    CHECK_INT(kl_key_skip(rig.queue, kl_str("k"), NULL, NULL), KL_OK);
    CHECK_INT(kl_key_drain(rig.queue, kl_str("k"), NULL, false, NULL), KL_OK);
    CHECK_INT(rig_waiting(&rig), 1);
    CHECK_INT(kl_queue_purge(rig.queue, NULL), KL_OK);
    CHECK_INT(rig_waiting(&rig), 0);
    kl_queue_close(to);
    rig_close(&rig);
}

TEST(a_keys_status_outlives_the_callers_bytes)
{
    struct rig rig;
    kl_arena arena = {0};
    kl_key_status status;
    char key[] = "k";
    if (!open_one(&rig))
        return;
    put_task(rig.queue, key, "done");
    CHECK_INT(kl_key_show(rig.queue, kl_str(key), &arena, &status), KL_OK);
    key[0] = 'x';
    CHECK(status.key.len == 1 && memcmp(status.key.data, "k", 1) == 0);
    kl_arena_free(&arena);
    rig_close(&rig);
}

TEST(a_job_does_not_wait_for_a_task_that_was_moved)
{
    struct rig rig;
    kl_queue *to;
    kl_arena arena = {0};
    kl_put puts[2] = {{.payload = kl_str("done one")}, {.payload = kl_str("done two")}};
    kl_job_spec spec = {.size = sizeof spec, .tasks = puts, .count = 2};
    kl_job_answer answer;
    kl_job_info info;
    kl_found found[2];
    kl_bytes cursor;
    size_t count;
    kl_task_id moved;
    if (!open_one(&rig))
        return;
    REQUIRE(kl_queue_open(rig.store, "elsewhere", NULL, &to) == KL_OK);
    CHECK_INT(kl_job_submit(rig.queue, &spec, &answer, NULL), KL_OK);
    CHECK_INT(kl_queue_waiting(rig.queue, &(kl_waiting){.max = 2}, &arena, found, &count, &cursor), KL_OK);
    CHECK_INT(kl_task_move(rig.queue, &found[0].task.entry.id, to, &moved), KL_OK);
    CHECK_INT(kl_job_show(rig.queue, &answer.job, &arena, &info), KL_OK);
    CHECK(info.tasks == 1 && info.waiting == 1);
    CHECK_INT(kl_task_cancel(rig.queue, &found[1].task.entry.id, NULL), KL_OK);
    CHECK_INT(kl_job_show(rig.queue, &answer.job, &arena, &info), KL_OK); /* it is kept, as the job says */
    CHECK_INT(info.state, KL_JOB_FINISHED);
    CHECK_INT(kl_queue_task(to, &moved, &arena, &found[0]), KL_OK);
    CHECK(found[0].extra.keep_ms == 0 && found[0].extra.job_run == 0);
    kl_arena_free(&arena);
    kl_queue_close(to);
    rig_close(&rig);
}
