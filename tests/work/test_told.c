/* test_told.c - what a worker tells when its store fails. */
#include "store/lossy.h"
#include "support.h"
#include "work/worker_inside.h"

#define MS INT64_C(1000000)

static const kl__told_words words = {"the store fails", "the store works again"};

/* Fails ten times a second: how often that is told. */
static int told_within(kl__told *told, kl_rc rc, const char *sentence, int64_t from_ms, int64_t until_ms, char *text)
{
    int times = 0;
    for (int64_t ms = from_ms; ms < until_ms; ms += 100)
        times += kl__told_failure(told, &words, rc, sentence, ms * MS, text);
    return times;
}

static bool works_at(kl__told *told, int64_t ms, char *text) { return kl__told_success(told, &words, ms * MS, text); }

TEST(a_failure_is_told_at_once_and_then_at_intervals_that_double_up_to_five_minutes)
{
    kl__told told = {0};
    char text[KL_TOLD_BYTES];
    CHECK(kl__told_failure(&told, &words, KL_ESYSTEM, "refused", 5 * MS, text));
    CHECK_STR(text, "the store fails; trying again: refused"); /* a disk may have lost something */
    CHECK_INT(told_within(&told, KL_ESYSTEM, "refused", 100, 10000, text), 0);
    CHECK_INT(told_within(&told, KL_ESYSTEM, "refused", 10000, 30000, text), 1);
    CHECK_STR(text, "the store fails, for 10 s now, and was tried 102 times: refused");
    CHECK_INT(told_within(&told, KL_ESYSTEM, "refused", 30000, 70000, text), 1);
    CHECK_INT(told_within(&told, KL_ESYSTEM, "refused", 70000, 630000, text), 4); /* at 70, 150, 310 and 610 s */
    CHECK_INT(told_within(&told, KL_ESYSTEM, "refused", 630000, 920000, text), 1);
    CHECK_INT(told_within(&told, KL_ESYSTEM, "refused", 920000, 1220000, text), 1);
}

TEST(sentences_of_a_store_that_is_busy_have_one_cause_and_others_each_their_own)
{
    kl__told told = {0};
    char text[KL_TOLD_BYTES];
    CHECK_INT(told_within(&told, KL_EBUSY, "the connection was lost", 0, 100, text), 1);
    CHECK_STR(text, "the store fails; trying again, nothing is lost: the connection was lost");
    CHECK_INT(told_within(&told, KL_EBUSY, "refused", 100, 10000, text), 0);
    CHECK_INT(told_within(&told, KL_EINVAL, "no such user", 1000, 1100, text), 1);
    CHECK_INT(told_within(&told, KL_EINVAL, "no such database", 1100, 1200, text), 1);
    CHECK_INT(told_within(&told, KL_EINVAL, "no such user", 1200, 11000, text), 0);
    CHECK_INT(told_within(&told, KL_EBUSY, "starting", 10000, 10100, text), 1);
    CHECK_CONTAINS(text, ": starting");
}

TEST(of_more_causes_than_are_remembered_none_is_lost)
{
    kl__told told = {0};
    char sentence[16], text[KL_TOLD_BYTES];
    for (int i = 0; i < 3 * KL_TOLD_MAX; i++) {
        snprintf(sentence, sizeof sentence, "number %d", i);
        CHECK(kl__told_failure(&told, &words, KL_ESYSTEM, sentence, i * MS, text));
        CHECK(!kl__told_failure(&told, &words, KL_ESYSTEM, sentence, i * MS, text));
    }
}

TEST(that_it_works_again_is_told_once_when_it_has_for_a_second_with_how_long_it_did_not)
{
    kl__told told = {0};
    char text[KL_TOLD_BYTES];
    CHECK(!works_at(&told, 0, text));
    CHECK_INT(told_within(&told, KL_EBUSY, "refused", 1000, 61000, text), 3);
    CHECK(!works_at(&told, 61300, text));
    CHECK(!works_at(&told, 62200, text));
    CHECK(works_at(&told, 62300, text));
    CHECK_STR(text, "the store works again, after 60.3 s in which it failed 600 times");
    CHECK(!works_at(&told, 63000, text));
    CHECK_INT(told_within(&told, KL_EBUSY, "refused", 200000, 200100, text), 1); /* that is news */
    CHECK_CONTAINS(text, "trying again");
    CHECK(!works_at(&told, 200100, text));
    CHECK(works_at(&told, 201100, text));
    CHECK_STR(text, "the store works again, after 0.1 s in which it failed 1 time");
}

TEST(what_fails_and_works_by_turns_is_told_ever_more_seldom)
{
    kl__told told = {0};
    char text[KL_TOLD_BYTES];
    int times[2] = {0};
    for (int64_t ms = 0; ms < 3600000; ms += 100) { /* an hour: every 3 s it fails for a moment */
        bool works = ms % 3000 != 0;
        times[ms >= 1800000] +=
            works ? works_at(&told, ms, text) : kl__told_failure(&told, &words, KL_EBUSY, "refused", ms * MS, text);
    }
    CHECK(times[0] > 1 && times[0] < 20);
    CHECK(times[1] > 1 && times[1] <= 6);
}

/* --- A worker --- */

struct heard {
    struct lossy lossy;
    atomic_uint failed, again;
};

static void hear(void *ctx, kl_log_level level, const char *text)
{
    struct heard *heard = ctx;
    heard->failed += level == KL_LOG_ERROR;
    heard->again += level == KL_LOG_WARN && strstr(text, "works again") != NULL;
}

static bool has_lost_many(void *ctx) { return ((struct heard *)ctx)->lossy.lost_requests >= 60; }

static bool has_told_again(void *ctx) { return ((struct heard *)ctx)->again > 0; }

/* A worker whose store is down until it has lost many calls; then it works again. */
static void work_through(struct heard *heard, bool tells)
{
    struct rig rig;
    struct runs runs;
    kl_store *store = NULL;
    kl_queue *queue = NULL;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    runs_init(&runs);
    REQUIRE(lossy_open(&heard->lossy, rig.store, test_seed(), &store) == KL_OK);
    heard->lossy.replies_lost = heard->lossy.requests_lost = 0;
    heard->lossy.tells = tells;
    REQUIRE(kl_queue_open(store, "orders", NULL, &queue) == KL_OK);
    kl_handler handler = {.fn = runs_handle, .ctx = &runs};
    kl_worker_queue served = {.queue = queue, .handlers = &handler, .handler_count = 1};
    kl_worker_opts opts = {.size = sizeof opts, .log = hear, .log_ctx = heard};
    kl_worker *worker = NULL;
    CHECK_INT(kl_worker_start(&served, 1, &opts, &worker), KL_OK);
    put_task(queue, "k", "done");
    runs_wait(&runs, 1);
    CHECK_INT(heard->failed, 0);
    heard->lossy.down = true;
    await_condition("the store has refused many calls", has_lost_many, heard);
    CHECK_INT(heard->failed, tells ? 0 : 1);
    CHECK_INT(heard->again, 0);
    heard->lossy.down = false;
    put_task(queue, "k", "done 2");
    runs_wait_for(&runs, "done 2", 1);
    if (!tells)
        await_condition("the worker says that it works again", has_told_again, heard);
    drain_and_close(worker);
    CHECK_INT(heard->failed, tells ? 0 : 1);
    CHECK_INT(heard->again, tells ? 0 : 1);
    kl_queue_close(queue);
    kl_store_close(store);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(a_worker_whose_store_refuses_it_says_so_once_for_all_that_it_does_and_when_it_works_again)
{
    static struct heard heard;
    work_through(&heard, false);
}

TEST(a_worker_leaves_it_to_a_store_that_tells_of_itself)
{
    static struct heard heard;
    work_through(&heard, true);
}

/* It has failed, and did not fail for long since. */
static void recover(bool stopping, struct heard *heard)
{
    kl_worker worker = {.opts = {.log = hear, .log_ctx = heard}, .stopping = stopping};
    worker.failing = 1u << KL_DOING_BEAT;
    worker.told = (kl__told){.failing = true, .times = 1, .since_ns = 1, .worked_ns = 2, .calm_ns = 3};
    kl__worker_worked(&worker, KL_DOING_BEAT);
}

TEST(a_worker_that_stops_does_not_say_that_what_failed_works_again)
{
    struct heard works = {0}, stops = {0};
    recover(false, &works);
    CHECK_INT(works.again, 1);
    recover(true, &stops);
    CHECK_INT(stops.again, 0);
}

TEST(a_number_in_a_path_makes_no_other_failure)
{
    kl__told told = {0};
    char text[KL_TOLD_BYTES];
    CHECK(kl__told_failure(&told, &words, KL_ESYSTEM, "no room for base/16385/24617.1 of orders__p1", 1, text));
    CHECK(!kl__told_failure(&told, &words, KL_ESYSTEM, "no room for base/16385/31999.1 of orders__p1", 2, text));
    CHECK(kl__told_failure(&told, &words, KL_ESYSTEM, "no room for base/16385/24617.1 of orders__p2", 3, text));
}
