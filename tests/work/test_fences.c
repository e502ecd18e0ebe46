/* test_fences.c - a worker that takes shards and cannot use them, because the store refuses to write their fences. */
#include "work/hand.h"
#include "work/owners_rig.h"

enum { ROUNDS_MAX = 100 };

static bool fences_fail;

static kl_rc fail_fence(void *self, kl_fence *fences, size_t count)
{
    if (!fences_fail)
        return kl_store_fence(((struct lossy *)self)->inner, fences, count);
    for (size_t i = 0; i < count; i++)
        fences[i].rc = KL_ESYSTEM;
    return kl__fail(KL_ESYSTEM, "no room on the disk");
}

static void open_failing(struct lossy *lossy, kl_store *memory, kl_store **ret_store)
{
    CHECK_INT(lossy_open(lossy, memory, 1, ret_store), KL_OK);
    lossy->replies_lost = lossy->requests_lost = 0;
    lossy->engine.fence = fail_fence;
    fences_fail = true;
}

/* --- Who owns what --- */

static void open_rig(struct rig *rig)
{
    rig_open(rig, 1);
    open_failing(&rig->lossy, rig->memory, &rig->store);
    CHECK_INT(kl_store_partition(rig->store, "orders", 1, &rig->partition), KL_OK);
}

static void join(struct rig *rig, struct member *member, kl_store *store, const char *name)
{
    kl__owners_opts opts = rig_opts(rig, name);
    opts.store = store;
    rig_join(rig, member, &opts);
}

static int rounds_until(struct rig *rig, struct member *members, size_t count, uint32_t who, uint32_t held)
{
    int rounds = 0;
    while (members[who].held != held && rounds < ROUNDS_MAX) {
        rig_rounds(rig, members, count, 1, LEASE_MS / 3);
        rounds++;
    }
    CHECK_INT(members[who].held, held);
    return rounds;
}

TEST(a_worker_whose_fences_fail_leaves_its_shards_to_others)
{
    struct rig rig;
    struct member members[2];
    open_rig(&rig);
    join(&rig, &members[0], rig.store, "cannot");
    rig_rounds(&rig, members, 1, 3, LEASE_MS / 3);
    CHECK_INT(members[0].held, 0);
    CHECK_INT(members[0].change.unfenced_rc, KL_ESYSTEM);
    CHECK_CONTAINS(members[0].change.unfenced_why, "no room on the disk");
    join(&rig, &members[1], rig.memory, "can");
    rounds_until(&rig, members, 2, 1, 16);
    uint64_t clean = members[1].clean;
    CHECK_INT(members[1].unclean, 0); /* nothing was begun in them */
    int held_all = 0;
    for (int i = 0; i < ROUNDS_MAX; i++) { /* it tries again, ever more seldom */
        rig_rounds(&rig, members, 2, 1, LEASE_MS / 3);
        held_all += members[1].held == 16;
        CHECK_INT(members[0].held, 0);
    }
    CHECK(clean >= 16);
    CHECK(held_all > ROUNDS_MAX / 2);
    fences_fail = false;
    rounds_until(&rig, members, 2, 0, 8);
    CHECK_INT(members[0].change.unfenced_rc, KL_OK);
    member_die(&members[0]);
    member_die(&members[1]);
    rig_close(&rig);
}

TEST(a_worker_whose_fences_fail_keeps_the_shards_that_it_has)
{
    struct rig rig;
    struct member members[2];
    open_rig(&rig);
    fences_fail = false;
    join(&rig, &members[0], rig.store, "first");
    join(&rig, &members[1], rig.memory, "second");
    rounds_until(&rig, members, 2, 1, 8);
    rounds_until(&rig, members, 2, 0, 8);
    fences_fail = true;
    for (uint32_t shard = 0; shard < 16 && members[1].held > 4; shard++)
        if (members[1].epoch[shard])
            member_leave_idle(&members[1], shard); /* free for either */
    for (int i = 0; i < ROUNDS_MAX; i++) {
        rig_rounds(&rig, members, 2, 1, LEASE_MS / 3);
        CHECK(members[0].held >= 7); /* one may move for the balance's sake */
    }
    CHECK_INT(members[0].held + members[1].held, 16);
    member_die(&members[0]);
    member_die(&members[1]);
    rig_close(&rig);
}

TEST(of_workers_that_all_cannot_fence_one_goes_on_trying)
{
    struct rig rig;
    struct member members[2];
    open_rig(&rig);
    join(&rig, &members[0], rig.store, "one");
    join(&rig, &members[1], rig.store, "other");
    rig_rounds(&rig, members, 2, ROUNDS_MAX, LEASE_MS / 3);
    fences_fail = false;
    rig_rounds(&rig, members, 2, 2, LEASE_MS / 3);
    CHECK(members[0].held + members[1].held > 0);
    rounds_until(&rig, members, 2, 0, 8);
    rounds_until(&rig, members, 2, 1, 8);
    member_die(&members[0]);
    member_die(&members[1]);
    rig_close(&rig);
}

/* Two slices: nobody else may take the shards, so nothing is gained by waiting ever longer with another try. */
TEST(a_worker_whose_fences_fail_goes_on_trying_where_no_other_may_take_its_shards)
{
    struct rig rig;
    struct member members[2];
    open_rig(&rig);
    for (uint32_t i = 0; i < 2; i++) {
        kl__owners_opts opts = rig_opts(&rig, i ? "can" : "cannot");
        opts.store = i ? rig.memory : rig.store;
        CHECK_INT(kl_shards_slice(&opts.layout, i, 2, &opts.allowed), KL_OK);
        rig_join(&rig, &members[i], &opts);
    }
    rounds_until(&rig, members, 2, 1, 8);
    rig_rounds(&rig, members, 2, 31, LEASE_MS / 3);
    CHECK_INT(members[0].held, 0);
    fences_fail = false;
    rig_rounds(&rig, members, 2, 1, LEASE_MS / 3);
    CHECK_INT(members[0].held, 8);
    member_die(&members[0]);
    member_die(&members[1]);
    rig_close(&rig);
}

/* --- What a worker says --- */

TEST(a_worker_that_cannot_fence_says_so_and_is_not_at_the_end)
{
    struct hand hand;
    struct lossy lossy;
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = LEASE_MS};
    if (!hand_open(&hand, &opts))
        return;
    open_failing(&lossy, hand.memory, &hand.store);
    hand_put(&hand, "k", "one", 0);
    struct hand_pump *pump = hand_pump(&hand, NULL);
    for (int i = 0; i < ROUNDS_MAX; i++) {
        hand.now_ms += HAND_STEP_MS;
        kl_rc rc = kl__pump_beat(pump->pump);
        if (i > 10) { /* between two looks at the owners, too */
            CHECK_INT(rc, KL_ESYSTEM);
            CHECK_CONTAINS(kl_error_text(), "cannot be used");
            CHECK_CONTAINS(kl_error_text(), "no room on the disk");
        }
        hand_looks(pump);
        CHECK(!kl__pump_empty(pump->pump));
    }
    fences_fail = false;
    for (int i = 0; kl__pump_shards(pump->pump) == 0 && i < ROUNDS_MAX; i++) {
        hand.now_ms += HAND_STEP_MS;
        (void)!kl__pump_beat(pump->pump);
    }
    hand_beats(pump, 1, HAND_STEP_MS);
    hand_looks(pump);
    CHECK_STR(hand_start(pump), "one");
    hand_close(&hand);
    kl_store_close(hand.store);
}
