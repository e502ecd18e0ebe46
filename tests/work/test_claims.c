/* test_claims.c - tasks that are given out under leases: claims C1 to C6, one by one. */
#include "base/base.h"
#include "claims_rig.h"

enum { LONG_MS = 60000, SHORT_MS = 20 };

/* --- Claim and finish --- */

TEST(a_claimed_task_is_given_with_all_it_carries_and_finish_ends_it)
{
    struct rig rig;
    struct got got;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    kl__claims *claims = claims_of(rig.queue, "giver7");
    kl_header headers[] = {{kl_str("color"), kl_str("red")}};
    kl_task_id id = put_as(rig.queue, &(kl_put){.key = kl_str("k"),
                                                .kind = kl_str("charge"),
                                                .payload = kl_str("done 1"),
                                                .headers = headers,
                                                .header_count = 1,
                                                .traceparent = kl_str("00-abc")});
    int64_t before_ms = kl__wall_ms();
    CHECK_INT(claim(claims, &got, 5, LONG_MS, 7000), 1);
    CHECK_INT(got.rc, KL_OK);
    REQUIRE(got.count == 1);
    const kl__claimed *given = &got.tasks[0];
    char server[24];
    CHECK(memcmp(&given->task->entry.id, &id, sizeof id) == 0);
    CHECK_STR(payload_of(given), "done 1");
    CHECK_INT(given->attempt, 1);
    CHECK_INT(given->lease_ms, 7000);
    CHECK(given->lease_until_ms >= before_ms + 6999 && given->lease_until_ms <= kl__wall_ms() + 7000);
    CHECK_STR(given->partition, "orders");
    REQUIRE(given->extra->header_count == 1);
    CHECK(memcmp(given->extra->headers[0].value.data, "red", 3) == 0);
    CHECK_INT(given->extra->traceparent.len, 6);
    CHECK(kl__claim_token_server(kl_str(given->token), server));
    CHECK_STR(server, "giver7");
    CHECK_INT(kl__claims_counted(claims).running, 1);
    CHECK_INT(say_word(claims, KL_CLAIM_DONE, given->token), KL_OK);
    CHECK_INT(rig_waiting(&rig), 0); /* C3: as soon as it is told */
    CHECK_INT(say_word(claims, KL_CLAIM_DONE, given->token), KL_ENOTFOUND);
    kl__claims_counts counts = kl__claims_counted(claims);
    CHECK_INT(counts.running, 0);
    CHECK_INT(counts.given, 1);
    CHECK_INT(counts.stale, 1);
    CHECK_INT(counts.pump.done, 1);
    got_free(&got);
    kl__claims_close(claims);
    rig_close(&rig);
}

TEST(an_ask_that_does_not_wait_gets_what_was_put_before_it)
{
    struct rig rig;
    struct got got;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    put_task(rig.queue, "k", "first");
    kl__claims *claims = claims_of(rig.queue, "");
    CHECK_INT(claim(claims, &got, 1, 0, 0), 1); /* the very first, too: shards are being taken */
    got_free(&got);
    for (int i = 0; i < 50; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        put_task(rig.queue, key, "x");
        CHECK_INT(claim(claims, &got, 1, 0, 0), 1);
        got_free(&got);
    }
    CHECK_INT(claim(claims, &got, 1, 0, 0), 0);
    CHECK_INT(got.rc, KL_OK);
    got_free(&got);
    kl__claims_close(claims);
    rig_close(&rig);
}

/* C1 */
TEST(a_key_whose_task_is_given_out_gives_no_other)
{
    struct rig rig;
    struct got first, second, third;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    put_task(rig.queue, "a", "a1");
    put_task(rig.queue, "a", "a2");
    put_task(rig.queue, "b", "b1");
    kl__claims *claims = claims_of(rig.queue, "");
    size_t count = claim(claims, &first, 1, LONG_MS, 0);
    count += claim(claims, &second, 1, LONG_MS, 0);
    REQUIRE(count == 2);
    CHECK(strcmp(payload_of(&first.tasks[0]), payload_of(&second.tasks[0])) != 0);
    const char *a1 = payload_of(&first.tasks[0])[0] == 'a' ? first.tasks[0].token : second.tasks[0].token;
    CHECK_INT(claim(claims, &third, 10, 0, 0), 0);
    got_free(&third);
    CHECK_INT(say_word(claims, KL_CLAIM_DONE, a1), KL_OK);
    CHECK_INT(claim(claims, &third, 10, LONG_MS, 0), 1);
    CHECK_STR(payload_of(&third.tasks[0]), "a2");
    got_free(&first);
    got_free(&second);
    got_free(&third);
    kl__claims_close(claims);
    rig_close(&rig);
}

TEST(a_thousand_tasks_are_claimed_and_finished_in_one_batch)
{
    struct rig rig;
    struct got got;
    if (!rig_open(&rig, RIG_DISK, NULL))
        return;
    put_numbers(rig.queue, "k", 1000, 2);
    kl__claims *claims = claims_of(rig.queue, "");
    kl__claim_say *says = calloc(KL_CLAIM_MAX, sizeof *says);
    for (size_t done = 0; done < 2000 && !test_failed();) {
        size_t count = claim(claims, &got, KL_CLAIM_MAX, LONG_MS, 0);
        CHECK(count > 0);
        for (size_t i = 0; i < count; i++)
            says[i] = (kl__claim_say){.word = KL_CLAIM_DONE, .token = kl_str(got.tasks[i].token)};
        CHECK_INT(say_all(claims, says, count), KL_OK);
        for (size_t i = 0; i < count; i++)
            CHECK_INT(says[i].rc, KL_OK);
        done += count;
        got_free(&got);
    }
    CHECK_INT(rig_waiting(&rig), 0);
    free(says);
    kl__claims_close(claims);
    rig_close(&rig);
}

TEST(an_answer_holds_only_so_many_bytes_and_the_rest_stays_for_the_next)
{
    enum { TASKS = 24 };
    static char payload[KL_PAYLOAD_BYTES_MAX];
    struct rig rig;
    struct got got;
    size_t claimed = 0;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    memset(payload, 'x', sizeof payload);
    for (int i = 0; i < TASKS; i++)
        put_as(rig.queue, &(kl_put){.payload = {payload, sizeof payload}});
    kl__claims *claims = claims_of(rig.queue, "");
    while (claimed < TASKS && !test_failed()) {
        size_t count = claim(claims, &got, TASKS, LONG_MS, 0);
        CHECK(count > 0);
        CHECK(count <= KL_CLAIM_BYTES_MAX / KL_PAYLOAD_BYTES_MAX);
        claimed += count;
        for (size_t i = 0; i < count; i++)
            CHECK_INT(say_word(claims, KL_CLAIM_DONE, got.tasks[i].token), KL_OK);
        got_free(&got);
    }
    CHECK_INT(rig_waiting(&rig), 0);
    kl__claims_close(claims);
    rig_close(&rig);
}

/* --- Tokens (C2) --- */

TEST(a_token_is_stale_after_finish_release_and_expiry_and_cannot_be_guessed)
{
    struct rig rig;
    struct got got, again;
    kl_queue_opts opts = {.size = sizeof opts, .backoff_base_ms = 1, .backoff_max_ms = 1};
    char wrong[KL_CLAIM_TOKEN_BYTES], server[24];
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    put_task(rig.queue, "k", "x");
    kl__claims *claims = claims_of(rig.queue, "s");
    REQUIRE(claim(claims, &got, 1, LONG_MS, 0) == 1);
    const char *token = got.tasks[0].token;
    for (size_t i = 0; i < strlen(token); i++) {
        memcpy(wrong, token, sizeof wrong);
        wrong[i] = wrong[i] == 'q' ? 'r' : 'q';
        bool other_server = i == 0; /* that part says where to go, and is for whoever sends it there */
        CHECK_INT(say_word(claims, KL_CLAIM_EXTEND, wrong), other_server ? KL_OK : KL_ENOTFOUND);
    }
    const char *none[] = {"",
                          "s",
                          "-",
                          "s-AAAA",
                          "s-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
                          "s-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA!",
                          "s.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        CHECK_INT(say_word(claims, KL_CLAIM_DONE, none[i]), KL_ENOTFOUND);
    CHECK(!kl__claim_token_server(kl_str("s-AAAA"), server));
    CHECK_INT(say_word(claims, KL_CLAIM_RELEASE, token), KL_OK);
    CHECK_INT(say_word(claims, KL_CLAIM_RELEASE, token), KL_ENOTFOUND);
    REQUIRE(claim(claims, &again, 1, LONG_MS, SHORT_MS) == 1);
    CHECK_INT(again.tasks[0].attempt, 1); /* C4: a release costs none */
    CHECK(strcmp(token, again.tasks[0].token) != 0);
    CHECK_INT(say_word(claims, KL_CLAIM_DONE, token), KL_ENOTFOUND);
    got_free(&got);
    REQUIRE(claim(claims, &got, 1, LONG_MS, 0) == 1); /* when the lease is over */
    CHECK_INT(got.tasks[0].attempt, 2);
    CHECK_INT(say_word(claims, KL_CLAIM_DONE, again.tasks[0].token), KL_ENOTFOUND);
    CHECK_INT(kl__claims_counted(claims).expired, 1);
    CHECK_INT(say_word(claims, KL_CLAIM_DONE, got.tasks[0].token), KL_OK);
    CHECK_INT(say_word(claims, KL_CLAIM_EXTEND, got.tasks[0].token), KL_ENOTFOUND);
    CHECK_INT(rig_waiting(&rig), 0);
    got_free(&got);
    got_free(&again);
    kl__claims_close(claims);
    rig_close(&rig);
}

static void fence_all(struct rig *rig, uint64_t epoch)
{
    uint32_t partition = 0;
    kl_fence fences[16];
    CHECK_INT(kl_store_partition(rig->store, "orders", 1, &partition), KL_OK);
    for (uint32_t i = 0; i < 16; i++)
        fences[i] = (kl_fence){.place = {partition, i}, .epoch = epoch};
    CHECK_INT(kl_store_fence(rig->store, fences, 16), KL_OK);
}

TEST(what_is_said_of_a_task_whose_shard_another_has_taken_is_refused)
{
    struct rig rig;
    struct got got;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    put_task(rig.queue, "k", "x");
    kl__claims *claims = claims_of(rig.queue, "");
    REQUIRE(claim(claims, &got, 1, LONG_MS, 0) == 1);
    fence_all(&rig, 1000);
    CHECK_INT(say_word(claims, KL_CLAIM_DONE, got.tasks[0].token), KL_ESTALE);
    CHECK_INT(say_word(claims, KL_CLAIM_DONE, got.tasks[0].token), KL_ENOTFOUND);
    CHECK_INT(rig_waiting(&rig), 1);
    CHECK_INT(kl__claims_counted(claims).pump.refused, 1);
    got_free(&got);
    kl__claims_close(claims);
    rig_close(&rig);
}

/* --- Durable (C3) --- */

TEST(finished_is_durable_when_it_is_told)
{
    struct rig rig;
    struct got got;
    char copy[WORKDIR_BYTES], url[WORKDIR_BYTES + 16];
    if (!rig_open(&rig, RIG_DISK, NULL) || !workdir_make(copy))
        return;
    put_numbers(rig.queue, "k", 20, 1);
    kl__claims *claims = claims_of(rig.queue, "");
    for (int i = 0; i < 20; i++) {
        REQUIRE(claim(claims, &got, 1, LONG_MS, 0) == 1);
        kl_task_id id = got.tasks[0].task->entry.id;
        CHECK_INT(say_word(claims, KL_CLAIM_DONE, got.tasks[0].token), KL_OK);
        got_free(&got);
        if (i % 5 != 0)
            continue;
        kl_store *store = NULL;
        kl_queue *queue = NULL;
        kl_arena arena = {0};
        kl_found found;
        snprintf(url, sizeof url, "%s/%d", copy, i);
        REQUIRE(workdir_copy(rig.dir, url));
        snprintf(url, sizeof url, "disk:%s/%d", copy, i);
        REQUIRE(kl_store_open(url, NULL, &store) == KL_OK);
        REQUIRE(kl_queue_find(store, "orders", &queue) == KL_OK);
        CHECK_INT(kl_queue_task(queue, &id, &arena, &found), KL_ENOTFOUND); /* ended, and not kept */
        kl_arena_free(&arena);
        kl_queue_close(queue);
        kl_store_close(store);
    }
    kl__claims_close(claims);
    CHECK(workdir_remove(copy));
    rig_close(&rig);
}

/* --- Attempts (C4) --- */

TEST(leases_that_are_over_cost_attempts_until_there_are_none)
{
    struct rig rig;
    struct got got;
    kl_arena arena = {0};
    kl_found found;
    kl_queue_opts opts = {.size = sizeof opts, .attempts_max = 3, .backoff_base_ms = 1, .backoff_max_ms = 1};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    kl_task_id id = put_task(rig.queue, "k", "x");
    kl__claims *claims = claims_of(rig.queue, "");
    for (uint32_t i = 1; i <= 3; i++) {
        REQUIRE(claim(claims, &got, 1, LONG_MS, SHORT_MS) == 1);
        CHECK_INT(got.tasks[0].attempt, i);
        got_free(&got);
    }
    await_state(rig.queue, &id, KL_TASK_DEAD);
    CHECK_INT(kl_queue_task(rig.queue, &id, &arena, &found), KL_OK);
    CHECK(found.task.error.len > 0 && memmem(found.task.error.data, found.task.error.len, "lease of 20 ms", 14));
    kl_arena_free(&arena);
    kl__claims_close(claims);
    rig_close(&rig);
}

TEST(release_and_drain_cost_no_attempt)
{
    struct rig rig;
    struct got got;
    kl_queue_opts opts = {.size = sizeof opts, .attempts_max = 1};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    put_task(rig.queue, "k", "x");
    for (int i = 0; i < 3; i++) {
        kl__claims *claims = claims_of(rig.queue, "");
        REQUIRE(claim(claims, &got, 1, LONG_MS, 0) == 1);
        CHECK_INT(say_word(claims, KL_CLAIM_RELEASE, got.tasks[0].token), KL_OK);
        got_free(&got);
        REQUIRE(claim(claims, &got, 1, LONG_MS, 0) == 1);
        CHECK_INT(got.tasks[0].attempt, 1);
        CHECK_INT(kl__claims_drain(claims, 0), KL_OK);
        CHECK_INT(say_word(claims, KL_CLAIM_DONE, got.tasks[0].token), KL_ENOTFOUND);
        got_free(&got);
        kl__claims_close(claims);
    }
    CHECK_INT(rig_waiting(&rig), 1);
    rig_close(&rig);
}

static void *drain_for_long(void *claims)
{
    CHECK_INT(kl__claims_drain(claims, LONG_MS), KL_OK);
    return NULL;
}

static bool gives_no_more(void *claims)
{
    struct got got;
    bool none = claim(claims, &got, 1, 0, 0) == 0;
    got_free(&got);
    return none;
}

TEST(a_drain_answers_what_waits_and_lets_what_runs_be_finished)
{
    struct rig rig;
    struct got got, waiting;
    pthread_t thread;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    put_task(rig.queue, "k", "x");
    put_task(rig.queue, "k", "y");
    kl__claims *claims = claims_of(rig.queue, "");
    REQUIRE(claim(claims, &got, 1, LONG_MS, 0) == 1);
    got_init(&waiting, 1, LONG_MS, 0);
    kl__claims_ask(claims, &waiting.ask);
    REQUIRE(pthread_create(&thread, NULL, drain_for_long, claims) == 0);
    got_wait(&waiting);
    CHECK_INT(waiting.rc, KL_OK);
    CHECK_INT(waiting.count, 0);
    await_condition("nothing more is given", gives_no_more, claims);
    CHECK_INT(say_word(claims, KL_CLAIM_DONE, got.tasks[0].token), KL_OK);
    pthread_join(thread, NULL);
    CHECK_INT(rig_waiting(&rig), 1);
    CHECK_INT(kl__claims_counted(claims).shards, 0);
    got_free(&got);
    got_free(&waiting);
    kl__claims_close(claims);
    rig_close(&rig);
}

/* --- Failing, extending, time-outs --- */

TEST(a_task_that_fails_is_tried_again_when_its_client_said_and_ends_with_its_error)
{
    struct rig rig;
    struct got got;
    kl_arena arena = {0};
    kl_found found;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    kl_task_id id = put_task(rig.queue, "k", "x");
    kl__claims *claims = claims_of(rig.queue, "");
    REQUIRE(claim(claims, &got, 1, LONG_MS, 0) == 1);
    kl__claim_say retry = {
        .word = KL_CLAIM_RETRY, .token = kl_str(got.tasks[0].token), .error = kl_str("not now"), .retry_after_ms = 1};
    CHECK_INT(say(claims, &retry), KL_OK);
    got_free(&got);
    REQUIRE(claim(claims, &got, 1, LONG_MS, 0) == 1);
    CHECK_INT(got.tasks[0].attempt, 2);
    kl__claim_say dead = {.word = KL_CLAIM_DEAD, .token = kl_str(got.tasks[0].token), .error = kl_str("no use")};
    CHECK_INT(say(claims, &dead), KL_OK);
    CHECK_INT(kl_queue_task(rig.queue, &id, &arena, &found), KL_OK);
    CHECK_INT(found.task.state, KL_TASK_DEAD);
    CHECK(found.task.error.len == 6 && memcmp(found.task.error.data, "no use", 6) == 0);
    got_free(&got);
    kl_arena_free(&arena);
    kl__claims_close(claims);
    rig_close(&rig);
}

TEST(a_lease_that_is_extended_goes_on_but_not_beyond_the_tasks_time_out)
{
    struct rig rig;
    struct got got;
    kl_arena arena = {0};
    kl_found found;
    kl_queue_opts opts = {.size = sizeof opts, .attempts_max = 1};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    kl_task_id id = put_as(rig.queue, &(kl_put){.key = kl_str("k"), .payload = kl_str("x"), .timeout_ms = 100});
    kl__claims *claims = claims_of(rig.queue, "");
    REQUIRE(claim(claims, &got, 1, LONG_MS, LONG_MS) == 1);
    CHECK(got.tasks[0].lease_ms <= 100);
    kl__claim_say extend = {.word = KL_CLAIM_EXTEND, .token = kl_str(got.tasks[0].token), .lease_ms = LONG_MS};
    kl_rc rc = say(claims, &extend);
    CHECK(rc == KL_ENOTFOUND || extend.lease_until_ms <= got.tasks[0].lease_until_ms + 1);
    await_state(rig.queue, &id, KL_TASK_DEAD);
    CHECK_INT(say(claims, &extend), KL_ENOTFOUND);
    CHECK_INT(kl_queue_task(rig.queue, &id, &arena, &found), KL_OK);
    CHECK(found.task.error.len > 0 && memmem(found.task.error.data, found.task.error.len, "longer than 100 ms", 18));
    got_free(&got);
    put_task(rig.queue, "k", "y");
    REQUIRE(claim(claims, &got, 1, LONG_MS, 200) == 1);
    extend = (kl__claim_say){.word = KL_CLAIM_EXTEND, .token = kl_str(got.tasks[0].token), .lease_ms = LONG_MS};
    CHECK_INT(say(claims, &extend), KL_OK);
    CHECK(extend.lease_until_ms > got.tasks[0].lease_until_ms + 10000);
    CHECK(!extend.cancelled);
    CHECK_INT(say_word(claims, KL_CLAIM_DONE, got.tasks[0].token), KL_OK);
    got_free(&got);
    kl_arena_free(&arena);
    kl__claims_close(claims);
    rig_close(&rig);
}

TEST(a_cancelled_task_says_so_when_it_is_extended_and_ends_as_cancelled)
{
    struct rig rig;
    struct got got;
    bool running = false;
    kl_queue_opts opts = {.size = sizeof opts, .keep_done_ms = 3600000};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    kl_task_id id = put_task(rig.queue, "k", "x");
    kl__claims *claims = claims_of(rig.queue, "");
    REQUIRE(claim(claims, &got, 1, LONG_MS, 0) == 1);
    CHECK_INT(kl_task_cancel(rig.queue, &id, &running), KL_OK);
    CHECK(running);
    kl__claim_say extend = {.word = KL_CLAIM_EXTEND, .token = kl_str(got.tasks[0].token)};
    CHECK_INT(say(claims, &extend), KL_OK);
    CHECK(extend.cancelled);
    CHECK_INT(say_word(claims, KL_CLAIM_RETRY, got.tasks[0].token), KL_OK);
    CHECK(await_state(rig.queue, &id, KL_TASK_CANCELLED));
    got_free(&got);
    kl__claims_close(claims);
    rig_close(&rig);
}

TEST(progress_is_shown_by_the_key_and_may_extend)
{
    struct rig rig;
    struct got got;
    kl_arena arena = {0};
    kl_key_status status = {.reason = ""};
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    put_task(rig.queue, "k", "x");
    kl__claims *claims = claims_of(rig.queue, "");
    REQUIRE(claim(claims, &got, 1, LONG_MS, 5000) == 1);
    kl__claim_say progress = {.word = KL_CLAIM_PROGRESS,
                              .token = kl_str(got.tasks[0].token),
                              .percent = 40,
                              .text = kl_str("nearly half"),
                              .lease_ms = LONG_MS};
    CHECK_INT(say(claims, &progress), KL_OK);
    CHECK(progress.lease_until_ms > got.tasks[0].lease_until_ms + 10000);
    CHECK_INT(kl_key_show(rig.queue, kl_str("k"), &arena, &status), KL_OK);
    CHECK_INT(status.percent, 40);
    CHECK_STR(status.progress, "nearly half");
    CHECK_INT(status.why, KL_WHY_RUNNING);
    CHECK_INT(say_word(claims, KL_CLAIM_DONE, got.tasks[0].token), KL_OK);
    got_free(&got);
    kl_arena_free(&arena);
    kl__claims_close(claims);
    rig_close(&rig);
}

/* --- Asks (C6) --- */

TEST(asks_that_wait_are_answered_in_order_when_something_is_put)
{
    struct rig rig;
    struct got first, second;
    if (!rig_open(&rig, RIG_DISK, NULL))
        return;
    kl__claims *claims = claims_of(rig.queue, "");
    got_init(&first, 1, LONG_MS, 0);
    got_init(&second, 1, LONG_MS, 0);
    kl__claims_ask(claims, &first.ask);
    kl__claims_ask(claims, &second.ask);
    CHECK_INT(kl__claims_counted(claims).asks, 2);
    put_task(rig.queue, "a", "1");
    got_wait(&first);
    CHECK_INT(first.count, 1);
    CHECK_INT(second.answers, 0);
    put_task(rig.queue, "b", "2");
    got_wait(&second);
    REQUIRE(second.count == 1 && first.count == 1);
    CHECK_STR(payload_of(&second.tasks[0]), "2");
    got_free(&first);
    got_free(&second);
    kl__claims_close(claims);
    rig_close(&rig);
}

TEST(an_ask_whose_time_is_over_is_answered_with_none)
{
    struct rig rig;
    struct got got;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    kl__claims *claims = claims_of(rig.queue, "");
    CHECK_INT(claim(claims, &got, 1, SHORT_MS, 0), 0);
    CHECK_INT(got.rc, KL_OK);
    got_free(&got);
    const struct {
        size_t max;
        int64_t wait_ms, lease_ms;
    } wrong[] = {{0, 0, 0}, {KL_CLAIM_MAX + 1, 0, 0}, {1, -1, 0}, {1, KL_CLAIM_WAIT_MS_MAX + 1, 0}, {1, 0, -1}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_INT(claim(claims, &got, wrong[i].max, wrong[i].wait_ms, wrong[i].lease_ms), 0);
        CHECK_INT(got.rc, KL_EINVAL);
        got_free(&got);
    }
    kl__claims_close(claims);
    rig_close(&rig);
}

TEST(an_ask_that_is_withdrawn_gets_nothing)
{
    struct rig rig;
    struct got gone, got;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    kl__claims *claims = claims_of(rig.queue, "");
    got_init(&gone, 1, LONG_MS, 0);
    kl__claims_ask(claims, &gone.ask);
    kl__claims_withdraw(claims, &gone.ask);
    got_wait(&gone);
    CHECK_INT(gone.rc, KL_OK);
    CHECK_INT(gone.count, 0);
    kl__claims_withdraw(claims, &gone.ask); /* too late: nothing happens */
    put_task(rig.queue, "k", "x");
    CHECK_INT(claim(claims, &got, 1, LONG_MS, 0), 1);
    CHECK_INT(gone.answers, 1);
    got_free(&gone);
    got_free(&got);
    kl__claims_close(claims);
    rig_close(&rig);
}

TEST(close_answers_all_that_waits)
{
    struct rig rig;
    struct got gots[5];
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    kl__claims *claims = claims_of(rig.queue, "");
    for (int i = 0; i < 5; i++) {
        got_init(&gots[i], 1, LONG_MS, 0);
        kl__claims_ask(claims, &gots[i].ask);
    }
    kl__claims_close(claims);
    for (int i = 0; i < 5; i++) {
        CHECK_INT(gots[i].answers, 1);
        CHECK_INT(gots[i].rc, KL_ECLOSED);
        got_free(&gots[i]);
    }
    rig_close(&rig);
}

TEST(a_paused_queue_gives_nothing_until_it_is_resumed)
{
    struct rig rig;
    struct got got;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    CHECK_INT(kl_queue_pause(rig.queue), KL_OK);
    put_task(rig.queue, "k", "x");
    kl__claims *claims = claims_of(rig.queue, "");
    got_init(&got, 1, LONG_MS, 0);
    kl__claims_ask(claims, &got.ask);
    await_why(&rig, "k", KL_WHY_QUEUE_PAUSED);
    CHECK_INT(got.answers, 0);
    CHECK_INT(kl_queue_resume(rig.queue), KL_OK);
    got_wait(&got);
    CHECK_INT(got.count, 1);
    got_free(&got);
    kl__claims_close(claims);
    rig_close(&rig);
}

TEST(no_more_than_the_queues_concurrency_is_given_out)
{
    struct rig rig;
    struct got got, more;
    kl_queue_opts opts = {.size = sizeof opts, .concurrency = 2};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    put_numbers(rig.queue, "k", 10, 1);
    kl__claims *claims = claims_of(rig.queue, "");
    size_t count = claim(claims, &got, 1, LONG_MS, 0);
    count += claim(claims, &more, 10, LONG_MS, 0);
    REQUIRE(count == 2);
    got_free(&more);
    got_init(&more, 10, LONG_MS, 0);
    kl__claims_ask(claims, &more.ask);
    CHECK_INT(kl__claims_counted(claims).running, 2);
    CHECK_INT(say_word(claims, KL_CLAIM_DONE, got.tasks[0].token), KL_OK);
    got_wait(&more);
    CHECK_INT(more.count, 1);
    got_free(&more);
    got_free(&got);
    kl__claims_close(claims);
    rig_close(&rig);
}
