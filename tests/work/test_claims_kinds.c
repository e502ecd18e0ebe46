/* test_claims_kinds.c - what a claim does not want keeps its place for one that does (C5). */
#include "claims_rig.h"

enum { LONG_MS = 60000, MANY = 600 };

static void put_kind(kl_queue *queue, const char *key, const char *kind, const char *payload)
{
    put_as(queue, &(kl_put){.key = kl_str(key), .kind = kl_str(kind), .payload = kl_str(payload)});
}

static void finish(kl__claims *claims, struct got *got)
{
    for (size_t i = 0; i < got->count; i++)
        CHECK_INT(say_word(claims, KL_CLAIM_DONE, got->tasks[i].token), KL_OK);
    got_free(got);
}

TEST(a_claim_gets_only_the_kinds_that_it_named)
{
    struct rig rig;
    struct got got;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    put_kind(rig.queue, "k", "a", "a1");
    put_kind(rig.queue, "k", "b", "b1");
    put_kind(rig.queue, "other", "b", "b2");
    put_kind(rig.queue, NULL, "", "none");
    kl__claims *claims = claims_of(rig.queue, "");
    REQUIRE(claim_kind(claims, &got, 10, LONG_MS, "b") == 1);
    CHECK_STR(payload_of(&got.tasks[0]), "b2");
    finish(claims, &got);
    REQUIRE(claim_kind(claims, &got, 10, LONG_MS, "") == 1);
    CHECK_STR(payload_of(&got.tasks[0]), "none");
    finish(claims, &got);
    CHECK_INT(claim_kind(claims, &got, 10, 0, "b"), 0); /* it stands behind a1, of the same key */
    got_free(&got);
    REQUIRE(claim_kind(claims, &got, 10, LONG_MS, "a") == 1);
    CHECK_STR(payload_of(&got.tasks[0]), "a1");
    finish(claims, &got);
    REQUIRE(claim_kind(claims, &got, 10, LONG_MS, "b") == 1);
    CHECK_STR(payload_of(&got.tasks[0]), "b1");
    finish(claims, &got);
    CHECK_INT(rig_waiting(&rig), 0);
    kl__claims_close(claims);
    rig_close(&rig);
}

TEST(a_claim_of_any_kind_gets_what_waited_by_its_kind)
{
    struct rig rig;
    struct got got;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    for (int i = 0; i < 5; i++)
        put_kind(rig.queue, NULL, "a", "x");
    kl__claims *claims = claims_of(rig.queue, "");
    put_kind(rig.queue, NULL, "b", "y");
    REQUIRE(claim_kind(claims, &got, 10, LONG_MS, "b") == 1);
    finish(claims, &got);
    size_t count = 0;
    while (count < 5 && !test_failed()) {
        count += claim(claims, &got, 10, LONG_MS, 0);
        finish(claims, &got);
    }
    CHECK_INT(count, 5);
    kl__claims_close(claims);
    rig_close(&rig);
}

TEST(an_ask_that_waits_for_a_kind_holds_up_nobody_behind_it)
{
    struct rig rig;
    struct got waits, got;
    kl_bytes kinds[] = {kl_str("x"), kl_str("rare")};
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    kl__claims *claims = claims_of(rig.queue, "");
    got_init(&waits, 1, LONG_MS, 0);
    waits.ask.kinds = kinds;
    waits.ask.kind_count = 2;
    kl__claims_ask(claims, &waits.ask);
    for (int i = 0; i < 10; i++) {
        put_kind(rig.queue, "k", "common", "c");
        REQUIRE(claim(claims, &got, 1, LONG_MS, 0) == 1);
        finish(claims, &got);
    }
    CHECK_INT(waits.answers, 0);
    put_kind(rig.queue, "k", "rare", "r");
    got_wait(&waits);
    REQUIRE(waits.count == 1);
    finish(claims, &waits);
    kl__claims_close(claims);
    rig_close(&rig);
}

static bool is_unserved(void *claims) { return kl__claims_counted(claims).pump.unserved > 0; }

/* Each ask for another kind reads on, past what nobody wants. */
static bool reads_past(void *claims)
{
    struct got got;
    CHECK_INT(claim_kind(claims, &got, 1, 0, "asked"), 0);
    got_free(&got);
    return is_unserved(claims);
}

/* More of one kind than a shelf holds stand before the one that is wanted. */
TEST(kinds_that_nobody_asks_for_keep_no_other_from_being_given)
{
    struct rig rig;
    struct got got;
    char key[16];
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof key, "k%d", i);
        put_kind(rig.queue, i % 2 ? key : NULL, "unasked", "u");
        put_kind(rig.queue, i % 2 ? key : NULL, "unasked", "v");
    }
    put_kind(rig.queue, NULL, "asked", "a");
    kl__claims *claims = claims_of(rig.queue, "");
    REQUIRE(claim_kind(claims, &got, 1, LONG_MS, "asked") == 1);
    finish(claims, &got);
    await_condition("more wait than a shelf holds", reads_past, claims);
    size_t count = 0;
    while (count < 2 * (size_t)MANY && !test_failed()) {
        size_t more = claim_kind(claims, &got, 100, LONG_MS, "unasked");
        CHECK(more > 0);
        count += more;
        finish(claims, &got);
    }
    CHECK_INT(count, 2 * (size_t)MANY);
    CHECK_INT(rig_waiting(&rig), 0);
    kl__claims_close(claims);
    rig_close(&rig);
}

TEST(what_nobody_asks_for_goes_to_a_worker_that_runs_it)
{
    struct rig rig;
    struct got got;
    struct runs runs;
    char key[16];
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 1000};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    for (int i = 0; i < 40; i++) {
        snprintf(key, sizeof key, "k%d", i);
        put_kind(rig.queue, key, "local", "done");
    }
    put_kind(rig.queue, NULL, "remote", "r");
    kl__claims *claims = claims_of(rig.queue, "");
    REQUIRE(claim_kind(claims, &got, 1, LONG_MS, "remote") == 1);
    finish(claims, &got);
    CHECK_INT(claim_kind(claims, &got, 1, 0, "remote"), 0); /* now all of the other kind have been read */
    got_free(&got);
    await_condition("the kind is unserved", is_unserved, claims);
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .kind = "local"});
    runs_wait(&runs, 40);
    await_waiting(&rig, 0);
    drain_and_close(worker);
    kl__claims_close(claims);
    runs_free(&runs);
    rig_close(&rig);
}
