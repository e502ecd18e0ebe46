/* test_told.c - what a worker tells when its store fails. */
#include "store/lossy.h"
#include "support.h"
#include "work/worker_inside.h"

#define MS INT64_C(1000000)

/* Asked ten times a second for so long: how often it is told. */
static int told_within(kl__told *told, const char *sentence, int64_t from_ms, int64_t until_ms)
{
    int times = 0;
    for (int64_t ms = from_ms; ms < until_ms; ms += 100)
        times += kl__told_anew(told, kl_str(sentence), ms * MS);
    return times;
}

TEST(a_sentence_is_told_at_intervals_that_double_up_to_a_minute)
{
    kl__told told[KL_TOLD_MAX] = {{0}};
    CHECK_INT(told_within(told, "refused", 0, 1000), 1);
    CHECK_INT(told_within(told, "refused", 1000, 3000), 1);
    CHECK_INT(told_within(told, "refused", 3000, 7000), 1);
    CHECK_INT(told_within(told, "refused", 7000, 63000), 3); /* at 7, 15 and 31 s */
    CHECK_INT(told_within(told, "refused", 63000, 123000), 1);
    CHECK_INT(told_within(told, "refused", 123000, 183000), 1);
}

TEST(another_sentence_is_told_at_once_and_one_that_was_away_is_new)
{
    kl__told told[KL_TOLD_MAX] = {{0}};
    CHECK_INT(told_within(told, "refused", 0, 10000), 4);
    CHECK(kl__told_anew(told, kl_str("no memory"), 10000 * MS));
    CHECK(!kl__told_anew(told, kl_str("refused"), 10000 * MS)); /* before 15 s */
    CHECK(!kl__told_anew(told, kl_str("no memory"), 10100 * MS));
    CHECK_INT(told_within(told, "refused", 100000, 104000), 3);
}

TEST(of_more_sentences_than_are_remembered_none_is_lost)
{
    kl__told told[KL_TOLD_MAX] = {{0}};
    char sentence[16];
    for (int i = 0; i < 3 * KL_TOLD_MAX; i++) {
        snprintf(sentence, sizeof sentence, "number %d", i);
        CHECK(kl__told_anew(told, kl_str(sentence), i * MS));
        CHECK(!kl__told_anew(told, kl_str(sentence), i * MS));
    }
}

/* --- A worker --- */

struct heard {
    struct lossy lossy;
    atomic_uint failed, repeated, again;
    char first[256];
};

static void hear(void *ctx, kl_log_level level, const char *text)
{
    struct heard *heard = ctx;
    if (level == KL_LOG_ERROR && heard->failed++ == 0)
        snprintf(heard->first, sizeof heard->first, "%s", text);
    else
        heard->repeated += strcmp(text, heard->first) == 0;
    heard->again += level == KL_LOG_WARN && strstr(text, "works again") != NULL;
}

/* And has failed for so long that it says when it works again. */
static bool has_lost_many(void *ctx)
{
    const struct heard *heard = ctx;
    return heard->lossy.lost_requests >= 60 && heard->repeated > 0;
}

static bool has_told_again(void *ctx) { return ((struct heard *)ctx)->again > 0; }

TEST(a_worker_whose_store_refuses_it_says_so_now_and_then_and_when_it_works_again)
{
    static struct heard heard;
    struct rig rig;
    struct runs runs;
    kl_store *store = NULL;
    kl_queue *queue = NULL;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    runs_init(&runs);
    REQUIRE(lossy_open(&heard.lossy, rig.store, test_seed(), &store) == KL_OK);
    heard.lossy.replies_lost = heard.lossy.requests_lost = 0;
    REQUIRE(kl_queue_open(store, "orders", NULL, &queue) == KL_OK);
    kl_handler handler = {.fn = runs_handle, .ctx = &runs};
    kl_worker_queue served = {.queue = queue, .handlers = &handler, .handler_count = 1};
    kl_worker_opts opts = {.size = sizeof opts, .log = hear, .log_ctx = &heard};
    kl_worker *worker = NULL;
    CHECK_INT(kl_worker_start(&served, 1, &opts, &worker), KL_OK);
    put_task(queue, "k", "done");
    runs_wait(&runs, 1);
    CHECK_INT(heard.failed, 0);
    heard.lossy.down = true;
    await_condition("the store has refused many calls", has_lost_many, &heard);
    CHECK(heard.failed > 0 && heard.failed < 20);
    CHECK_INT(heard.again, 0);
    heard.lossy.down = false;
    put_task(queue, "k", "done 2");
    runs_wait_for(&runs, "done 2", 1);
    await_condition("the worker says that it works again", has_told_again, &heard);
    CHECK_INT(heard.again, 1);
    drain_and_close(worker);
    kl_queue_close(queue);
    kl_store_close(store);
    runs_free(&runs);
    rig_close(&rig);
}
