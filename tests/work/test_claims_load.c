/* test_claims_load.c - claims by many clients at once: order per key, nothing lost, no memory lost. */
#include "base/base.h"
#include "base/random.h"
#include "claims_rig.h"

enum { LONG_MS = 60000, CLIENTS = 6, KEYS = 60, EACH = 25 };

struct load {
    kl__claims *claims[2];
    atomic_int holder[KEYS], next[KEYS];
    atomic_int done;
    int wanted;
    uint64_t seed;
    bool expires;
};

struct client {
    struct load *load;
    int number;
};

/* "KEY NUMBER", as put_numbers makes them. */
static void begin_task(struct load *load, const kl__claimed *given, int *ret_key, int *ret_number)
{
    REQUIRE(sscanf(payload_of(given), "%d %d", ret_key, ret_number) == 2);
    CHECK_INT(atomic_fetch_add(&load->holder[*ret_key], 1), 0); /* two clients hold a task of one key */
    CHECK_INT(atomic_load(&load->next[*ret_key]), *ret_number);
}

static kl__claim_word choose(uint64_t *random)
{
    uint64_t dice = kl__random_below(random, 20);
    return dice == 0 ? KL_CLAIM_RETRY : dice == 1 ? KL_CLAIM_RELEASE : KL_CLAIM_DONE;
}

/* What is said becomes true for others before the answer comes, so it is noted before it is said. */
static void end_tasks(struct load *load, kl__claims *claims, struct got *got, uint64_t *random)
{
    kl__claim_say says[16];
    for (size_t i = 0; i < got->count; i++) {
        int key = 0, number = 0;
        begin_task(load, &got->tasks[i], &key, &number);
        says[i] = (kl__claim_say){.word = choose(random), .token = kl_str(got->tasks[i].token), .retry_after_ms = 1};
        if (says[i].word == KL_CLAIM_DONE)
            atomic_store(&load->next[key], number + 1);
        atomic_fetch_sub(&load->holder[key], 1);
    }
    CHECK_INT(say_all(claims, says, got->count), KL_OK);
    for (size_t i = 0; i < got->count; i++) {
        CHECK_INT(says[i].rc, KL_OK);
        atomic_fetch_add(&load->done, says[i].word == KL_CLAIM_DONE);
    }
}

static void *be_client(void *context)
{
    struct client *client = context;
    struct load *load = client->load;
    uint64_t random = load->seed + (uint64_t)client->number;
    kl__claims *claims = load->claims[load->claims[1] ? client->number % 2 : 0];
    struct got got;
    while (atomic_load(&load->done) < load->wanted && !test_failed()) {
        claim(claims, &got, client->number % 2 ? 1 : 16, client->number % 3 ? 20 : 0, 0);
        CHECK_INT(got.rc, KL_OK);
        if (got.count)
            end_tasks(load, claims, &got, &random);
        got_free(&got);
    }
    return NULL;
}

static void run_clients(struct load *load)
{
    pthread_t threads[CLIENTS];
    struct client clients[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (struct client){load, i};
        CHECK_INT(pthread_create(&threads[i], NULL, be_client, &clients[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(threads[i], NULL);
}

static void run_load(rig_kind kind, bool two)
{
    struct rig rig;
    kl_queue_opts opts = {.size = sizeof opts, .attempts_max = KL_ATTEMPTS_MAX};
    if (!rig_open(&rig, kind, &opts))
        return;
    struct load *load = calloc(1, sizeof *load);
    load->wanted = KEYS * EACH;
    load->seed = test_seed();
    put_numbers(rig.queue, "k", KEYS, EACH);
    load->claims[0] = claims_of(rig.queue, "a");
    load->claims[1] = two ? claims_of(rig.queue, "b") : NULL;
    run_clients(load);
    for (int i = 0; i < KEYS; i++)
        CHECK_INT(load->next[i], EACH);
    CHECK_INT(rig_waiting(&rig), 0);
    kl__claims_close(load->claims[0]);
    kl__claims_close(load->claims[1]);
    free(load);
    rig_close(&rig);
}

TEST(order_per_key_holds_with_many_clients) { run_load(RIG_DISK, false); }
TEST(order_per_key_holds_with_two_that_give_out_and_share_the_shards) { run_load(RIG_MEMORY, true); }

/* --- Withdrawing and closing under load --- */

static void *ask_and_withdraw(void *context)
{
    struct load *load = context;
    for (int i = 0; i < 200 && !test_failed(); i++) {
        struct got got;
        got_init(&got, 4, LONG_MS, 0);
        kl__claims_ask(load->claims[0], &got.ask);
        kl__claims_withdraw(load->claims[0], &got.ask);
        got_wait(&got);
        CHECK_INT(got.answers, 1);
        for (size_t t = 0; t < got.count; t++)
            CHECK_INT(say_word(load->claims[0], KL_CLAIM_RELEASE, got.tasks[t].token), KL_OK);
        got_free(&got);
    }
    return NULL;
}

TEST(asks_that_are_withdrawn_while_they_are_served_lose_no_task)
{
    struct rig rig;
    struct load load = {0};
    struct got got;
    pthread_t threads[3];
    if (!rig_open(&rig, RIG_DISK, NULL))
        return;
    put_numbers(rig.queue, "k", 20, 1);
    load.claims[0] = claims_of(rig.queue, "");
    for (int i = 0; i < 3; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, ask_and_withdraw, &load), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    for (size_t count = 0; count < 20 && !test_failed(); got_free(&got)) {
        count += claim(load.claims[0], &got, 20, LONG_MS, 0);
        for (size_t t = 0; t < got.count; t++)
            CHECK_INT(got.tasks[t].attempt, 1);
    }
    CHECK_INT(kl__claims_counted(load.claims[0]).running, 20);
    kl__claims_close(load.claims[0]);
    CHECK_INT(rig_waiting(&rig), 20);
    rig_close(&rig);
}

/* --- Memory --- */

static void ignore(void *ctx, kl_log_level level, const char *text) { (void)ctx, (void)level, (void)text; }

/* Everything once: claims of one and of several, a retry, a kind that waits, a finish. True: all is done. */
static bool finish_all(kl__claims *claims)
{
    for (int tries = 0; tries < 5000; tries++) {
        struct got got;
        size_t count = tries % 3 == 2 ? claim_kind(claims, &got, 3, 1, "b") : claim(claims, &got, 2, 1, 0);
        CHECK(got.rc == KL_OK || got.rc == KL_ENOMEM);
        for (size_t i = 0; i < count; i++) {
            kl_rc rc = say_word(claims, KL_CLAIM_DONE, got.tasks[i].token);
            CHECK(rc == KL_OK || rc == KL_ENOTFOUND || rc == KL_ENOMEM);
        }
        got_free(&got);
        if (kl__claims_counted(claims).pump.done >= 8)
            return true;
    }
    return false;
}

TEST(claims_survive_any_one_failed_allocation)
{
    uint64_t step = 1 + 400 / (test_rounds(40) + 1), failed = 0;
    bool calm = false;
    for (uint64_t n = 1; !calm && n < 100000 && !test_failed(); n += step) {
        struct rig rig;
        kl__claims *claims = NULL;
        if (!rig_open(&rig, RIG_MEMORY, NULL))
            return;
        for (int i = 0; i < 8; i++)
            put_as(rig.queue, &(kl_put){.key = kl_str(i % 2 ? "k" : "l"), .kind = kl_str(i % 3 ? "a" : "b")});
        kl__claims_opts opts = {.queue = rig.queue, .log = ignore};
        kl__alloc_fail_at(n);
        kl_rc rc = kl__claims_open(&opts, &claims);
        if (rc == KL_OK)
            CHECK(finish_all(claims));
        else
            CHECK_INT(rc, KL_ENOMEM);
        failed += rc != KL_OK;
        calm = kl__alloc_fail_at(0) < n;
        kl__claims_close(claims);
        if (rc == KL_OK)
            CHECK_INT(rig_waiting(&rig), 0);
        rig_close(&rig);
        if (test_failed())
            fprintf(stderr, "# allocation %" PRIu64 "\n", n);
    }
    CHECK(failed > 0);
}
