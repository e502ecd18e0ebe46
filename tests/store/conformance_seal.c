/* conformance_seal.c - S9: a sealed shard takes no more appends, for ever, and nothing slips in while it is sealed. */
#include <sched.h>
#include <stdlib.h>

#include "base/random.h"
#include "store/conformance.h"

struct reply {
    struct tally tally;
    kl_rc rc;
};

static void take_reply(void *ctx, kl_rc rc, const char *error)
{
    struct reply *reply = ctx;
    CHECK((rc == KL_OK) == (*error == '\0'));
    reply->rc = rc;
    tally_add(&reply->tally, 1);
}

/* What comes of an append without waiting: refused at once, or when it has ended. */
static kl_rc append_async(struct trial *t, const kl_entry *entries, size_t count, const kl_token *token)
{
    struct reply reply = {.tally = TALLY, .rc = KL_EDEAD};
    kl_rc rc = kl_store_append_async(t->store, entries, count, token, take_reply, &reply);
    if (rc == KL_OK && tally_await(&reply.tally, 1))
        return reply.rc;
    return rc;
}

/* Whoever appends to the place, by whichever call, is refused with a sentence. */
static void check_sealed(struct trial *t, kl_place place)
{
    kl_entry late = make_entry(t, place, "k", "late");
    kl_token token = make_token();
    forget_error();
    CHECK_RC(kl_store_append(t->store, &late, 1, NULL), KL_ESEALED);
    CHECK(new_error());
    CHECK_RC(kl_store_append(t->store, &late, 1, &token), KL_ESEALED);
    CHECK_RC(append_async(t, &late, 1, NULL), KL_ESEALED);
    CHECK_RC(append_async(t, &late, 1, &token), KL_ESEALED);
    CHECK_INT(state_of(t, place, &late.id), KL_TASK_UNKNOWN);
}

#define SEAL_CLAIM(name)                                                                                               \
    static void name##_if_it_can(struct trial *t);                                                                     \
    CLAIM(name)                                                                                                        \
    {                                                                                                                  \
        if (can(t, KL_STORE_SEAL))                                                                                     \
            name##_if_it_can(t);                                                                                       \
    }                                                                                                                  \
    static void name##_if_it_can(struct trial *t)

CLAIM(a_store_that_cannot_seal_says_so)
{
    if (can(t, KL_STORE_SEAL))
        return;
    CHECK_REFUSED(seal(t, order_place(t, 4), 7));
    kl_task_id id = append_one(t, order_place(t, 4), "x");
    CHECK_LINE(t, order_place(t, 4), 0, &id, 1);
    CHECK_OK(fence(t, order_place(t, 4), 1));
}

SEAL_CLAIM(a_sealed_shard_takes_no_more_appends)
{
    kl_place place = order_place(t, 4);
    kl_task_id ids[3];
    append_many(t, place, ids, COUNT(ids));
    CHECK_OK(seal(t, place, 0));
    BOTH_LIVES(t)
    {
        check_sealed(t, place);
        CHECK_LINE(t, place, 0, ids, COUNT(ids));
    }
    CHECK_INT(kl_rc_class(KL_ESEALED), KL_CLASS_RETRY);
}

SEAL_CLAIM(a_shard_where_nothing_ever_was_can_be_sealed)
{
    CHECK_OK(seal(t, bill_place(t, 255), 0));
    BOTH_LIVES(t)
    check_sealed(t, bill_place(t, 255));
}

SEAL_CLAIM(other_shards_are_not_sealed)
{
    CHECK_OK(seal(t, order_place(t, 4), 0));
    CHECK_OK(seal(t, bill_place(t, 64), 0));
    BOTH_LIVES(t)
    {
        static const uint32_t bills[] = {0, 4, 63, 65, 128, 192};
        for (uint32_t shard = 0; shard < 16; shard++)
            if (shard != 4)
                append_one(t, order_place(t, shard), "x");
        for (size_t i = 0; i < COUNT(bills); i++)
            append_one(t, bill_place(t, bills[i]), "x");
        CHECK_INT(counts_of(t, order_place(t, 4)).ready, 0);
    }
}

SEAL_CLAIM(an_append_is_refused_whole_when_one_of_its_shards_is_sealed)
{
    CHECK_OK(seal(t, order_place(t, 4), 0));
    kl_entry entries[3] = {make_entry(t, order_place(t, 3), "k", "x"), make_entry(t, order_place(t, 4), "k", "x"),
                           make_entry(t, bill_place(t, 4), "k", "x")};
    CHECK_RC(kl_store_append(t->store, entries, COUNT(entries), NULL), KL_ESEALED);
    CHECK_CONTAINS(kl_error_text(), "entry 1");
    CHECK_RC(append_async(t, entries, COUNT(entries), NULL), KL_ESEALED);
    CHECK_INT(counts_of(t, whole(t->orders)).ready, 0);
    CHECK_INT(counts_of(t, whole(t->bills)).ready, 0);
}

SEAL_CLAIM(what_waits_in_a_sealed_shard_is_worked_off)
{
    kl_place place = order_place(t, 4);
    kl_task_id ids[2];
    append_many(t, place, ids, COUNT(ids));
    CHECK_OK(seal(t, place, 3));
    kl_settled late = outcome_of(t, place, &ids[0], KL_DONE);
    CHECK_RC(settle(t, place, 2, &late, 1), KL_ESTALE);
    kl_settled tasks[2] = {outcome_of(t, place, &ids[0], KL_RETRY), outcome_of(t, place, &ids[1], KL_DONE)};
    tasks[1].keep_ms = KEEP_MS;
    CHECK_OK(settle(t, place, 3, tasks, COUNT(tasks)));
    BOTH_LIVES(t)
    {
        CHECK_INT(line_of(t, place, &ids[0]), KL_LINE_RETRY);
        CHECK_INT(state_of(t, place, &ids[1]), KL_TASK_DONE);
    }
    tasks[0] = outcome_of(t, place, &ids[0], KL_DONE);
    CHECK_OK(settle(t, place, 3, tasks, 1));
    CHECK_INT(line_of(t, place, &ids[0]), NOWHERE);
    check_sealed(t, place);
}

/* ---- Tokens ---- */

SEAL_CLAIM(an_append_from_before_the_seal_may_be_repeated_with_its_token)
{
    kl_entry entries[2] = {make_entry(t, order_place(t, 4), "k", "x"), make_entry(t, order_place(t, 5), "k", "x")};
    kl_token token = make_token();
    CHECK_OK(kl_store_append(t->store, entries, COUNT(entries), &token));
    CHECK_OK(seal(t, order_place(t, 4), 0));
    finish(t, entries[1].place, &entries[1].id, KL_DONE, 0, NULL, NULL);
    BOTH_LIVES(t)
    {
        CHECK_OK(kl_store_append(t->store, entries, COUNT(entries), &token));
        CHECK_OK(append_async(t, entries, COUNT(entries), &token));
        CHECK_RC(kl_store_append(t->store, entries, COUNT(entries), NULL), KL_ESEALED);
        CHECK_LINE(t, order_place(t, 4), 0, &entries[0].id, 1);
        CHECK_LINE(t, order_place(t, 5), 0, NULL, 0);
    }
}

SEAL_CLAIM(the_token_of_an_append_to_a_sealed_shard_is_not_spent)
{
    kl_token token = make_token();
    kl_entry refused = make_entry(t, order_place(t, 4), "k", "x"), entry = make_entry(t, order_place(t, 5), "k", "x");
    CHECK_OK(seal(t, order_place(t, 4), 0));
    for (int i = 0; i < 2; i++)
        CHECK_RC(kl_store_append(t->store, &refused, 1, &token), KL_ESEALED);
    CHECK_OK(kl_store_append(t->store, &entry, 1, &token));
    BOTH_LIVES(t)
    CHECK_LINE(t, entry.place, 0, &entry.id, 1);
}

/* ---- Epochs ---- */

SEAL_CLAIM(a_seal_raises_the_fence_or_leaves_it_and_is_never_too_late)
{
    static const struct {
        uint64_t fenced, sealed, after;
    } cases[] = {{0, 0, 0}, {5, 0, 5}, {5, 3, 5}, {5, 5, 5}, {5, 9, 9}, {0, 7, 7}};
    for (uint32_t i = 0; i < COUNT(cases); i++) {
        if (cases[i].fenced)
            CHECK_OK(fence(t, order_place(t, i), cases[i].fenced));
        CHECK_OK(seal(t, order_place(t, i), cases[i].sealed));
    }
    BOTH_LIVES(t)
    for (uint32_t i = 0; i < COUNT(cases); i++) {
        kl_settled nobody = {.id = make_id(t, order_place(t, i), kl_str(NULL)), .position = 1, .attempts = 1};
        check_sealed(t, order_place(t, i));
        CHECK_OK(settle(t, order_place(t, i), cases[i].after, &nobody, 1));
        if (cases[i].after)
            CHECK_RC(settle(t, order_place(t, i), cases[i].after - 1, &nobody, 1), KL_ESTALE);
    }
}

SEAL_CLAIM(nothing_takes_a_seal_back)
{
    kl_place place = order_place(t, 4);
    CHECK_OK(seal(t, place, 5));
    BOTH_LIVES(t)
    {
        CHECK_OK(seal(t, place, 5));
        CHECK_OK(seal(t, place, 0));
        CHECK_OK(fence(t, place, 5));
        CHECK_RC(fence(t, place, 4), KL_ESTALE);
        check_sealed(t, place);
    }
    CHECK_OK(fence(t, place, 9));
    BOTH_LIVES(t)
    {
        CHECK_RC(fence(t, place, 8), KL_ESTALE);
        check_sealed(t, place);
    }
}

SEAL_CLAIM(one_call_seals_some_shards_and_fences_others_each_for_itself)
{
    kl_fence fences[16];
    CHECK_OK(fence(t, order_place(t, 3), 100));
    CHECK_OK(fence(t, order_place(t, 4), 100));
    for (uint32_t i = 0; i < 16; i++)
        fences[i] = (kl_fence){.place = order_place(t, i), .epoch = 10, .seal = i % 2 == 0, .rc = KL_EDEAD};
    CHECK_RC(kl_store_fence(t->store, fences, COUNT(fences)), KL_ESTALE);
    BOTH_LIVES(t)
    for (uint32_t i = 0; i < 16; i++) {
        CHECK_INT(fences[i].rc, i == 3 ? KL_ESTALE : KL_OK);
        if (i % 2 == 0)
            check_sealed(t, order_place(t, i));
        else
            append_one(t, order_place(t, i), "x");
        CHECK_RC(fence(t, order_place(t, i), 9), KL_ESTALE);
    }
}

SEAL_CLAIM(a_seal_out_of_range_is_refused_and_seals_nothing)
{
    kl_fence fences[2] = {{.place = order_place(t, 4), .seal = true}, {.place = order_place(t, 5), .seal = true}};
    fences[1].epoch = KL_EPOCH_MAX + 1;
    CHECK_REFUSED(kl_store_fence(t->store, fences, 2));
    fences[1] = (kl_fence){.place = whole(t->orders), .seal = true};
    CHECK_REFUSED(kl_store_fence(t->store, fences, 2));
    append_one(t, order_place(t, 4), "x");
    append_one(t, order_place(t, 5), "x");
}

/* ---- Everything at once ---- */

enum { PRODUCERS = 6, SHARDS = 16, ENTRIES_MAX = 3, EACH = 100 };

/* One append of a producer, and what came of it. */
struct attempt {
    kl_task_id ids[ENTRIES_MAX];
    uint32_t shards[ENTRIES_MAX];
    int count;
    _Atomic int rc; /* PENDING until it is told */
    struct tally *told;
};

enum { PENDING = 1 };

struct producer {
    struct rush *rush;
    int number;
    struct attempt *attempts;
    size_t made;
    struct tally told;
    int64_t under_way;
};

/* Producers append to random shards while these are sealed one after the other. Between two seals each makes up to EACH
 * appends, and then waits for the next. */
struct rush {
    struct trial *t;
    uint64_t seed;
    _Atomic size_t sealed; /* shards, so far */
    _Atomic size_t made;   /* appends of all producers */
    struct producer producers[PRODUCERS];
    kl_task_id *seen[SHARDS]; /* what was there right behind the seal */
    size_t seen_count[SHARDS];
};

static void note_end(void *ctx, kl_rc rc, const char *error)
{
    struct attempt *attempt = ctx;
    CHECK((rc == KL_OK) == (*error == '\0'));
    atomic_store(&attempt->rc, rc);
    tally_add(attempt->told, 1);
}

static void attempt_once(struct producer *producer, uint64_t *random)
{
    struct rush *rush = producer->rush;
    struct attempt *attempt = &producer->attempts[producer->made++];
    kl_entry entries[ENTRIES_MAX];
    kl_token token = make_token();
    attempt->count = 1 + (int)kl__random_below(random, ENTRIES_MAX);
    for (int i = 0; i < attempt->count; i++) {
        attempt->shards[i] = (uint32_t)kl__random_below(random, SHARDS);
        entries[i] = make_entry(rush->t, order_place(rush->t, attempt->shards[i]), "k", "x");
        attempt->ids[i] = entries[i].id;
    }
    size_t count = (size_t)attempt->count;
    const kl_token *named = kl__random_below(random, 2) ? &token : NULL;
    kl_rc rc;
    if (kl__random_below(random, 2)) {
        rc = kl_store_append(rush->t->store, entries, count, named);
        atomic_store(&attempt->rc, rc);
    } else {
        atomic_store(&attempt->rc, PENDING);
        attempt->told = &producer->told;
        rc = kl_store_append_async(rush->t->store, entries, count, named, note_end, attempt);
        producer->under_way += rc == KL_OK;
        if (rc != KL_OK)
            atomic_store(&attempt->rc, rc);
    }
    CHECK(rc == KL_OK || rc == KL_ESEALED);
    atomic_fetch_add(&rush->made, 1);
}

static void *produce(void *ctx)
{
    struct producer *producer = ctx;
    uint64_t random = producer->rush->seed + (uint64_t)producer->number;
    for (size_t sealed; (sealed = atomic_load(&producer->rush->sealed)) < SHARDS && !test_failed();) {
        if (producer->made < (sealed + 1) * EACH)
            attempt_once(producer, &random);
        else
            sched_yield();
    }
    tally_await(&producer->told, producer->under_way);
    return NULL;
}

static int by_id(const void *a, const void *b) { return kl_id_compare(a, b); }

/* Seals the shard and looks at once at what is there: that must be all, then and later. */
static void seal_and_look(struct rush *rush, uint32_t shard)
{
    size_t count;
    CHECK_OK(seal(rush->t, order_place(rush->t, shard), 0));
    kl_stub *stubs = scan_line(rush->t, order_place(rush->t, shard), 0, &count);
    rush->seen[shard] = calloc(count + 1, sizeof(kl_task_id));
    REQUIRE(rush->seen[shard]);
    for (size_t i = 0; i < count; i++)
        rush->seen[shard][i] = stubs[i].id;
    qsort(rush->seen[shard], count, sizeof(kl_task_id), by_id);
    rush->seen_count[shard] = count;
}

/* What was accepted was there behind the seal; what was refused never was. */
static void check_attempts(struct rush *rush, uint64_t *ret_stored, uint64_t *ret_refused)
{
    size_t stored[SHARDS] = {0};
    for (int i = 0; i < PRODUCERS; i++) {
        for (size_t j = 0; j < rush->producers[i].made; j++) {
            const struct attempt *attempt = &rush->producers[i].attempts[j];
            int rc = atomic_load(&attempt->rc);
            CHECK(rc == KL_OK || rc == KL_ESEALED);
            ++*(rc == KL_OK ? ret_stored : ret_refused);
            for (int k = 0; k < attempt->count; k++) {
                uint32_t shard = attempt->shards[k];
                bool seen = bsearch(&attempt->ids[k], rush->seen[shard], rush->seen_count[shard], sizeof(kl_task_id),
                                    by_id) != NULL;
                CHECK(seen == (rc == KL_OK));
                stored[shard] += rc == KL_OK;
            }
        }
    }
    for (uint32_t shard = 0; shard < SHARDS; shard++)
        CHECK_INT(rush->seen_count[shard], stored[shard]);
}

static void start(struct rush *rush, pthread_t threads[PRODUCERS])
{
    for (int i = 0; i < PRODUCERS; i++) {
        struct producer *producer = &rush->producers[i];
        *producer = (struct producer){.rush = rush, .number = i, .told = TALLY};
        producer->attempts = calloc(SHARDS * EACH, sizeof *producer->attempts);
        if (!producer->attempts || pthread_create(&threads[i], NULL, produce, producer) != 0)
            abort();
    }
}

SEAL_CLAIM(an_append_under_way_is_there_before_the_seal_or_is_refused)
{
    static struct rush rush;
    pthread_t threads[PRODUCERS];
    uint64_t stored = 0, refused = 0;
    rush = (struct rush){.t = t, .seed = test_seed()};
    start(&rush, threads);
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        AWAIT(atomic_load(&rush.made) > shard * EACH * PRODUCERS || test_failed()); /* they are at it */
        seal_and_look(&rush, shard);
        atomic_fetch_add(&rush.sealed, 1);
    }
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(threads[i], NULL);
    if (!test_failed())
        check_attempts(&rush, &stored, &refused);
    CHECK(stored > 0 && refused > 0);
    BOTH_LIVES(t)
    for (uint32_t shard = 0; shard < SHARDS && !test_failed(); shard++)
        CHECK_INT(counts_of(t, order_place(t, shard)).ready, rush.seen_count[shard]);
    for (uint32_t shard = 0; shard < SHARDS; shard++)
        free(rush.seen[shard]);
    for (int i = 0; i < PRODUCERS; i++)
        free(rush.producers[i].attempts);
}
