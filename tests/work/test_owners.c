/* test_owners.c - ownership, claim by claim. */
#include <stdlib.h>

#include "base/base.h"
#include "work/owners_inside.h"
#include "work/owners_rig.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { BEAT_MS = LEASE_MS / 4 };

/* --- Taking, giving, expiry --- */

TEST(a_lone_worker_takes_everything_at_once)
{
    struct rig rig;
    struct member alone;
    for (uint32_t len = 1; len <= 4; len++) {
        rig_open(&rig, len);
        rig_join_plain(&rig, &alone, "alone");
        CHECK(!kl__owners_holds(alone.owners, rig.now_ms));
        member_beat(&alone);
        CHECK_INT(alone.rc, KL_OK);
        CHECK_INT(alone.held, rig.shards);
        CHECK_INT(alone.clean, rig.shards);
        CHECK_INT(alone.change.workers, 1);
        CHECK(alone.change.permits == UINT64_MAX);
        member_die(&alone);
        rig_close(&rig);
    }
}

TEST(a_second_worker_gets_nothing_until_it_is_given)
{
    struct rig rig;
    struct member members[2];
    rig_open(&rig, 1);
    rig_join_plain(&rig, &members[0], "first");
    rig_join_plain(&rig, &members[1], "second");
    member_beat(&members[0]);
    for (int i = 0; i < 20; i++) {
        rig.now_ms += BEAT_MS;
        member_beat(&members[1]);
        member_beat(&members[0]);
        CHECK_INT(members[1].held, 0);
        CHECK_INT(members[0].held, 16);
        CHECK_INT(members[0].asked, 8);
    }
    uint32_t given = 0;
    while (!members[0].wanted[given])
        given++;
    member_leave_idle(&members[0], given);
    member_beat(&members[0]);
    CHECK_INT(members[0].asked, 7);
    member_beat(&members[1]);
    CHECK_INT(members[1].held, 1);
    CHECK_INT(members[1].clean, 1);
    CHECK(members[1].epoch[given] != 0);
    rig_rounds(&rig, members, 2, 3, BEAT_MS);
    CHECK_INT(members[0].held, 8);
    CHECK_INT(members[1].held, 8);
    CHECK_INT(members[1].unclean, 0);
    member_die(&members[0]);
    member_die(&members[1]);
    rig_close(&rig);
}

TEST(what_is_asked_back_stays_the_same_until_it_is_given)
{
    struct rig rig;
    struct member members[3];
    rig_open(&rig, 2);
    for (size_t i = 0; i < COUNT(members); i++)
        rig_join_plain(&rig, &members[i], "w");
    member_beat(&members[0]);
    member_beat(&members[1]);
    member_beat(&members[0]);
    CHECK_INT(members[0].asked, 128);
    bool asked[256];
    memcpy(asked, members[0].wanted, sizeof asked);
    member_beat(&members[2]);
    member_beat(&members[0]);
    CHECK_INT(members[0].asked, 170);
    for (int shard = 0; shard < 256; shard++)
        CHECK(!asked[shard] || members[0].wanted[shard]);
    for (size_t i = 0; i < COUNT(members); i++)
        member_die(&members[i]);
    rig_close(&rig);
}

TEST(a_dead_workers_shards_are_taken_after_its_lease_and_unclean)
{
    struct rig rig;
    struct member members[2];
    rig_open(&rig, 1);
    rig_join_plain(&rig, &members[0], "dies");
    rig_join_plain(&rig, &members[1], "lives");
    rig_rounds(&rig, members, 2, 4, BEAT_MS);
    CHECK_INT(members[1].held, 8);
    member_beat(&members[0]);
    member_die(&members[0]);
    for (int64_t passed = 0; passed < LEASE_MS; passed += BEAT_MS) {
        member_beat(&members[1]);
        CHECK_INT(members[1].held, 8);
        rig.now_ms += BEAT_MS;
    }
    member_beat(&members[1]);
    CHECK_INT(members[1].held, 16);
    CHECK_INT(members[1].clean, 8);
    CHECK_INT(members[1].unclean, 8);
    CHECK_INT(members[1].change.workers, 1);
    member_die(&members[1]);
    rig_close(&rig);
}

TEST(an_unclean_shard_is_clean_again_once_it_was_given_back)
{
    struct rig rig;
    struct member member;
    rig_open(&rig, 1);
    rig_join_plain(&rig, &member, "dies");
    member_beat(&member);
    member_die(&member);
    rig.now_ms += LEASE_MS;
    rig_join_plain(&rig, &member, "finds them");
    member_beat(&member);
    CHECK_INT(member.unclean, 16);
    for (uint32_t shard = 0; shard < 16; shard++)
        member_leave_idle(&member, shard);
    member.report.leaving = true;
    member_beat(&member);
    CHECK(member.gone);
    member_die(&member);
    rig_join_plain(&rig, &member, "third");
    member_beat(&member);
    CHECK_INT(member.clean, 16);
    member_die(&member);
    rig_close(&rig);
}

/* --- Leaving --- */

TEST(a_worker_that_leaves_idle_is_gone_after_one_beat)
{
    struct rig rig;
    struct member members[2];
    rig_open(&rig, 1);
    rig_join_plain(&rig, &members[0], "leaves");
    rig_join_plain(&rig, &members[1], "stays");
    rig_rounds(&rig, members, 2, 4, BEAT_MS);
    for (uint32_t shard = 0; shard < 16; shard++)
        if (members[0].epoch[shard])
            member_leave_idle(&members[0], shard);
    members[0].report.leaving = true;
    member_beat(&members[0]);
    CHECK(members[0].gone);
    CHECK_INT(members[0].change.workers, 1);
    CHECK(!kl__owners_holds(members[0].owners, rig.now_ms));
    member_beat(&members[1]);
    CHECK_INT(members[1].held, 16);
    CHECK_INT(members[1].unclean, 0);
    member_beat(&members[0]); /* does not come back */
    CHECK(members[0].gone);
    CHECK_INT(members[0].change.workers, 1);
    member_die(&members[0]);
    member_die(&members[1]);
    rig_close(&rig);
}

TEST(a_leaving_worker_keeps_what_still_runs_and_takes_nothing)
{
    struct rig rig;
    struct member members[2];
    rig_open(&rig, 1);
    rig_join_plain(&rig, &members[0], "leaves");
    member_beat(&members[0]);
    members[0].report.leaving = true;
    for (uint32_t shard = 1; shard < 16; shard++)
        member_leave_idle(&members[0], shard);
    member_beat(&members[0]);
    CHECK(!members[0].gone);
    CHECK_INT(members[0].held, 1);
    CHECK_INT(members[0].asked, 1);
    rig_join_plain(&rig, &members[1], "comes");
    member_beat(&members[1]);
    CHECK_INT(members[1].held, 15);
    member_leave_idle(&members[0], 0);
    member_beat(&members[0]);
    CHECK(members[0].gone);
    member_beat(&members[1]);
    CHECK_INT(members[1].held, 16);
    CHECK_INT(members[1].unclean, 0);
    member_die(&members[0]);
    member_die(&members[1]);
    rig_close(&rig);
}

/* --- The lease --- */

TEST(the_lease_holds_for_nine_tenths_from_the_start_of_a_beat)
{
    struct rig rig;
    struct member member;
    rig_open(&rig, 1);
    rig_join_plain(&rig, &member, "w");
    member_beat(&member);
    CHECK(kl__owners_holds(member.owners, rig.now_ms + LEASE_MS - LEASE_MS / 10 - 1));
    CHECK(!kl__owners_holds(member.owners, rig.now_ms + LEASE_MS - LEASE_MS / 10));
    member_die(&member);
    rig_close(&rig);
}

TEST(a_missed_lease_loses_everything_and_takes_it_anew_a_beat_later)
{
    struct rig rig;
    struct member member;
    static const int64_t late[] = {LEASE_MS - LEASE_MS / 10, LEASE_MS, 5 * LEASE_MS};
    for (size_t i = 0; i < COUNT(late); i++) {
        rig_open(&rig, 1);
        rig_join_plain(&rig, &member, "late");
        member_beat(&member);
        rig.now_ms += late[i];
        member_beat(&member);
        CHECK_INT(member.change.lost_count, 16);
        CHECK_INT(member.held, 0);
        CHECK(kl__owners_holds(member.owners, rig.now_ms));
        member_beat(&member);
        CHECK_INT(member.held, 16);
        CHECK_INT(member.unclean, 16);
        member_die(&member);
        rig_close(&rig);
    }
}

TEST(a_worker_that_was_dropped_reports_its_shards_as_lost)
{
    struct rig rig;
    struct member members[2];
    rig_open(&rig, 1);
    rig_join_plain(&rig, &members[0], "sleeps");
    rig_join_plain(&rig, &members[1], "lives");
    member_beat(&members[0]);
    rig.now_ms += LEASE_MS;
    member_beat(&members[1]);
    CHECK_INT(members[1].unclean, 16);
    member_beat(&members[0]);
    CHECK_INT(members[0].rc, KL_OK);
    CHECK_INT(members[0].change.lost_count, 16);
    CHECK_INT(members[0].held, 0);
    rig_rounds(&rig, members, 2, 4, BEAT_MS);
    CHECK_INT(members[0].held, 8);
    CHECK_INT(members[1].held, 8);
    member_die(&members[0]);
    member_die(&members[1]);
    rig_close(&rig);
}

/* --- Restrictions --- */

TEST(workers_take_only_what_they_may)
{
    static const char *const texts[] = {"0-3", "2-9", "9"};
    struct rig rig;
    struct member members[COUNT(texts)];
    rig_open(&rig, 1);
    for (size_t i = 0; i < COUNT(texts); i++) {
        kl__owners_opts opts = rig_opts(&rig, texts[i]);
        REQUIRE(kl_shards_parse(&rig.layout, kl_str(texts[i]), &opts.allowed) == KL_OK);
        rig_join(&rig, &members[i], &opts);
    }
    rig_rounds(&rig, members, COUNT(texts), 6, BEAT_MS);
    for (uint32_t shard = 0; shard < 16; shard++) {
        int owners = 0;
        for (size_t i = 0; i < COUNT(texts); i++) {
            owners += members[i].epoch[shard] != 0;
            CHECK(!members[i].epoch[shard] || kl_shards_contains(&members[i].allowed, shard));
        }
        CHECK_INT(owners, shard <= 9);
    }
    CHECK_INT(members[0].held, 4);
    CHECK_INT(members[1].held, 5);
    CHECK_INT(members[2].held, 1);
    for (size_t i = 0; i < COUNT(texts); i++)
        member_die(&members[i]);
    rig_close(&rig);
}

TEST(slices_of_a_partition_with_four_digits_cover_it)
{
    enum { SLICES = 3 };
    struct rig rig;
    struct member members[SLICES];
    uint32_t sum = 0;
    rig_open(&rig, 4);
    for (int i = 0; i < SLICES; i++) {
        kl__owners_opts opts = rig_opts(&rig, "slice");
        REQUIRE(kl_shards_slice(&rig.layout, i, SLICES, &opts.allowed) == KL_OK);
        rig_join(&rig, &members[i], &opts);
        member_beat(&members[i]);
        sum += members[i].held;
    }
    CHECK_INT(sum, 65536);
    for (int i = 0; i < SLICES; i++)
        member_die(&members[i]);
    rig_close(&rig);
}

TEST(a_group_of_shards_is_given_back_when_all_of_it_was_left)
{
    struct rig rig;
    struct member members[2];
    rig_open(&rig, 4);
    rig_join_plain(&rig, &members[0], "gives");
    rig_join_plain(&rig, &members[1], "gets");
    member_beat(&members[0]);
    member_beat(&members[1]);
    member_beat(&members[0]);
    CHECK_INT(members[0].asked, 32768);
    uint32_t first = 0;
    while (!members[0].wanted[first])
        first++;
    CHECK_INT(first % 16, 0);
    for (uint32_t i = 0; i < 15; i++)
        member_leave_idle(&members[0], first + i);
    member_beat(&members[0]);
    CHECK_INT(members[0].asked, 32768 - 15);
    CHECK(members[0].wanted[first + 15]);
    member_beat(&members[1]);
    CHECK_INT(members[1].held, 0);
    members[1].report.leaving = true; /* nobody wants it any more, but most of it was dropped: it has to go */
    member_beat(&members[1]);
    member_beat(&members[0]);
    CHECK_INT(members[0].asked, 1);
    CHECK(members[0].wanted[first + 15]);
    members[1].report.leaving = false;
    member_beat(&members[1]);
    member_leave_idle(&members[0], first + 15);
    member_beat(&members[0]);
    member_beat(&members[1]);
    CHECK_INT(members[1].held, 16);
    CHECK(members[1].epoch[first] && members[1].epoch[first + 15]);
    member_die(&members[0]);
    member_die(&members[1]);
    rig_close(&rig);
}

/* --- Kinds --- */

static void join_kind(struct rig *rig, struct member *member, const char *kind)
{
    kl__owners_opts opts = rig_opts(rig, kind);
    opts.kinds = &kind;
    opts.kind_count = 1;
    rig_join(rig, member, &opts);
}

TEST(a_shard_with_an_unserved_kind_goes_to_a_worker_that_serves_it_once_a_lease)
{
    struct rig rig;
    struct member members[3];
    rig_open(&rig, 1);
    join_kind(&rig, &members[0], "mail");
    join_kind(&rig, &members[1], "print");
    join_kind(&rig, &members[2], "charge");
    rig_rounds(&rig, members, 3, 4, BEAT_MS);
    uint32_t shard = 0;
    while (!members[0].epoch[shard])
        shard++;
    uint16_t kind = kl__owners_kind(kl_str("charge"));
    members[0].report.unserved = &shard;
    members[0].report.unserved_kinds = &kind;
    members[0].report.unserved_count = 1;
    member_beat(&members[0]);
    CHECK(members[0].wanted[shard]);
    member_idle(&members[0]);
    members[0].report.unserved_count = 0;
    member_beat(&members[0]);
    member_beat(&members[1]);
    CHECK(!members[1].epoch[shard]);
    member_beat(&members[2]);
    CHECK(members[2].epoch[shard]);
    kind = kl__owners_kind(kl_str("mail")); /* and the other way, but not in the same lease */
    members[2].report = members[0].report;
    members[2].report.unserved_count = 1;
    for (int64_t passed = 0; passed < LEASE_MS; passed += BEAT_MS) {
        rig_rounds(&rig, members, 3, 1, BEAT_MS);
        CHECK(members[2].epoch[shard]);
        CHECK(!members[2].wanted[shard]);
    }
    rig_rounds(&rig, members, 3, 1, BEAT_MS);
    CHECK(members[2].wanted[shard]);
    for (size_t i = 0; i < COUNT(members); i++)
        member_die(&members[i]);
    rig_close(&rig);
}

TEST(a_kind_that_nobody_serves_moves_nothing)
{
    struct rig rig;
    struct member members[2];
    rig_open(&rig, 1);
    join_kind(&rig, &members[0], "mail");
    join_kind(&rig, &members[1], "print");
    rig_rounds(&rig, members, 2, 4, BEAT_MS);
    uint32_t shard = 0;
    while (!members[0].epoch[shard])
        shard++;
    uint16_t kind = kl__owners_kind(kl_str("paint"));
    members[0].report.unserved = &shard;
    members[0].report.unserved_kinds = &kind;
    members[0].report.unserved_count = 1;
    member_beat(&members[0]);
    CHECK_INT(members[0].asked, 0);
    members[0].report.unserved_kinds = NULL; /* not known: the other serves a kind that this one does not */
    member_beat(&members[0]);
    CHECK_INT(members[0].asked, 1);
    member_die(&members[0]);
    member_die(&members[1]);
    rig_close(&rig);
}

/* --- Permits --- */

static uint64_t permits_of(const struct member *members, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += members[i].alive ? members[i].change.permits : 0;
    return sum;
}

static void set_limit(struct member *members, size_t count, uint64_t max, uint64_t wanted)
{
    for (size_t i = 0; i < count; i++) {
        members[i].report.permits_max = max;
        members[i].report.permits_wanted = wanted;
    }
}

TEST(permits_follow_shards_and_demand_and_never_exceed_the_limit)
{
    struct rig rig;
    struct member members[4];
    rig_open(&rig, 1);
    for (size_t i = 0; i < 4; i++)
        rig_join_plain(&rig, &members[i], "w");
    set_limit(members, 4, 10, 100);
    for (int i = 0; i < 20; i++) {
        rig_rounds(&rig, members, 4, 1, BEAT_MS);
        CHECK(permits_of(members, 4) <= 10);
    }
    CHECK_INT(permits_of(members, 4), 10);
    for (size_t i = 0; i < 4; i++)
        CHECK(members[i].change.permits >= 2 && members[i].change.permits <= 3);
    for (size_t i = 1; i < 4; i++)
        members[i].report.permits_wanted = 0;
    rig_rounds(&rig, members, 4, 6, BEAT_MS);
    CHECK_INT(members[0].change.permits, 10);
    for (size_t i = 0; i < 4; i++)
        member_die(&members[i]);
    rig_close(&rig);
}

TEST(with_fewer_permits_than_workers_each_has_one_in_turn)
{
    struct rig rig;
    struct member members[5];
    uint64_t turns[5] = {0};
    rig_open(&rig, 1);
    for (size_t i = 0; i < 5; i++)
        rig_join_plain(&rig, &members[i], "w");
    set_limit(members, 5, 2, 7);
    for (int i = 0; i < 200; i++) {
        rig_rounds(&rig, members, 5, 1, BEAT_MS);
        CHECK(permits_of(members, 5) <= 2);
        for (size_t k = 0; k < 5; k++)
            turns[k] += members[k].change.permits;
    }
    for (size_t k = 0; k < 5; k++)
        CHECK(turns[k] > 40); /* of 80 each, less what changing hands takes */
    for (size_t i = 0; i < 5; i++)
        member_die(&members[i]);
    rig_close(&rig);
}

TEST(a_permit_is_granted_anew_only_a_beat_after_it_was_taken_back)
{
    struct rig rig;
    struct member members[2];
    rig_open(&rig, 1);
    for (size_t i = 0; i < 2; i++)
        rig_join_plain(&rig, &members[i], "w");
    set_limit(members, 2, 8, 8);
    member_beat(&members[0]);
    CHECK_INT(members[0].change.permits, 8);
    for (int i = 0; i < 10; i++) {
        uint64_t before = members[0].change.permits; /* it may start so many while its beat is under way */
        member_idle(&members[0]);
        member_beat(&members[0]);
        member_beat(&members[1]);
        CHECK(before + members[1].change.permits <= 8);
    }
    CHECK_INT(members[1].change.permits, 4);
    member_die(&members[0]);
    member_die(&members[1]);
    rig_close(&rig);
}

TEST(a_lowered_limit_is_reached_as_tasks_end)
{
    struct rig rig;
    struct member members[2];
    rig_open(&rig, 1);
    for (size_t i = 0; i < 2; i++)
        rig_join_plain(&rig, &members[i], "w");
    set_limit(members, 2, 8, 8);
    rig_rounds(&rig, members, 2, 6, BEAT_MS);
    for (size_t i = 0; i < 2; i++) {
        CHECK_INT(members[i].change.permits, 4);
        members[i].report.running = 4;
    }
    set_limit(members, 2, 3, 8);
    rig_rounds(&rig, members, 2, 3, BEAT_MS);
    CHECK(permits_of(members, 2) <= 3); /* nothing is started */
    members[0].report.running = 1;
    rig_rounds(&rig, members, 2, 3, BEAT_MS);
    CHECK(members[0].change.permits <= 1 + 1);
    members[1].report.running = 1;
    uint64_t most = 0;
    for (int i = 0; i < 8; i++) {
        rig_rounds(&rig, members, 2, 1, BEAT_MS);
        most = permits_of(members, 2) > most ? permits_of(members, 2) : most;
    }
    CHECK_INT(most, 3);
    for (size_t i = 0; i < 2; i++)
        member_die(&members[i]);
    rig_close(&rig);
}

/* --- Replies that are lost, fences that are refused --- */

static int puts_lost, fences_lost;

static kl_rc lose_put(void *self, kl_write *writes, size_t count)
{
    kl_rc rc = kl_store_put(((struct lossy *)self)->inner, writes, count);
    if (puts_lost == 0)
        return rc;
    puts_lost--;
    for (size_t i = 0; i < count; i++)
        writes[i].rc = LOSSY_RC;
    return kl__fail(LOSSY_RC, "no answer has come");
}

static kl_rc lose_fence(void *self, kl_fence *fences, size_t count)
{
    if (fences_lost == 0)
        return kl_store_fence(((struct lossy *)self)->inner, fences, count);
    fences_lost--;
    for (size_t i = 0; i < count; i++)
        fences[i].rc = LOSSY_RC;
    return kl__fail(LOSSY_RC, "no answer has come");
}

/* Loses nothing but what a test asks for. */
static void open_losing(struct rig *rig)
{
    rig_open(rig, 1);
    CHECK_INT(lossy_open(&rig->lossy, rig->memory, 1, &rig->store), KL_OK);
    rig->lossy.replies_lost = rig->lossy.requests_lost = 0;
    rig->lossy.engine.put = lose_put;
    rig->lossy.engine.fence = lose_fence;
    CHECK_INT(kl_store_partition(rig->store, "orders", 1, &rig->partition), KL_OK);
    puts_lost = fences_lost = 0;
}

TEST(a_shard_is_reported_only_after_its_fence)
{
    struct rig rig;
    struct member member;
    open_losing(&rig);
    rig_join_plain(&rig, &member, "w");
    fences_lost = 100;
    member_beat(&member);
    CHECK_INT(member.rc, KL_OK);
    CHECK_INT(member.held, 0);
    member_beat(&member);
    CHECK_INT(member.held, 0);
    fences_lost = 1;
    member_beat(&member); /* repeats the fence that was lost */
    CHECK_INT(member.held, 16);
    CHECK_INT(member.clean, 16);
    CHECK_INT(member.epoch[0], 1); /* owned under it since the first beat */
    member_die(&member);
    rig_close(&rig);
}

TEST(what_was_never_reported_is_given_back_at_once)
{
    struct rig rig;
    struct member member;
    open_losing(&rig);
    rig_join_plain(&rig, &member, "w");
    fences_lost = 100;
    member_beat(&member);
    member.report.leaving = true;
    member_beat(&member);
    CHECK(member.gone);
    member_die(&member);
    fences_lost = 0;
    rig_join_plain(&rig, &member, "next");
    member_beat(&member);
    CHECK_INT(member.clean, 16);
    member_die(&member);
    rig_close(&rig);
}

TEST(a_lost_reply_is_repeated_and_a_lost_beat_made_up_for)
{
    struct rig rig;
    struct member member;
    open_losing(&rig);
    rig_join_plain(&rig, &member, "w");
    puts_lost = 1;
    member_beat(&member);
    CHECK_INT(member.rc, KL_OK);
    CHECK_INT(member.held, 16);
    for (uint32_t shard = 0; shard < 16; shard++)
        member_leave_idle(&member, shard);
    member.report.leaving = true;
    puts_lost = 100;
    member_beat(&member);
    CHECK_INT(member.rc, KL_EBUSY);
    puts_lost = 0;
    member_beat(&member);
    CHECK_INT(member.rc, KL_OK);
    CHECK(member.gone);
    CHECK_INT(member.change.lost_count, 0);
    member_die(&member);
    rig_join_plain(&rig, &member, "next");
    puts_lost = 100;
    member_beat(&member);
    CHECK_INT(member.rc, KL_EBUSY);
    CHECK_INT(member.held, 0);
    puts_lost = 0;
    member_beat(&member);
    CHECK_INT(member.held, 16);
    CHECK_INT(member.clean, 16);
    member_die(&member);
    rig_close(&rig);
}

TEST(a_refused_fence_is_no_ownership_until_the_epochs_are_above_it)
{
    struct rig rig;
    struct member member;
    rig_open(&rig, 1);
    kl_fence fence = {.place = {rig.partition, 7}, .epoch = 1000};
    CHECK_INT(kl_store_fence(rig.store, &fence, 1), KL_OK);
    rig_join_plain(&rig, &member, "w");
    member_beat(&member);
    CHECK_INT(member.held, 15);
    for (int i = 0; i < 40 && member.held < 16; i++)
        member_beat(&member);
    CHECK_INT(member.held, 16);
    CHECK(member.epoch[7] >= 1000);
    member_die(&member);
    rig_close(&rig);
}

/* --- The record --- */

static void put_record(struct rig *rig, const char *value)
{
    kl_bytes name = kl_str("owners/orders");
    kl_arena arena = {0};
    kl_record record;
    CHECK_INT(kl_store_get(rig->memory, &name, 1, &arena, &record), KL_OK);
    kl_write write = {.name = name, .version = record.version, .value = kl_str(value)};
    CHECK_INT(kl_store_put(rig->memory, &write, 1), KL_OK);
    kl_arena_free(&arena);
}

#define WORKER                                                                                                         \
    "{\"id\":\"00112233445566778899aabbccddeeff\",\"name\":\"w\",\"beat\":1,\"seen_ms\":1,\"expires_ms\":9000000,"     \
    "\"running\":0,\"concurrency\":1,\"permits\":0,\"wants\":0,\"leaving\":false,\"shards\":\"0-f\",\"kinds\":\"\"}"
#define RECORD(len, epoch, workers, groups, wishes)                                                                    \
    "{\"shard_prefix_len\":" len ",\"epoch\":" epoch ",\"workers\":[" workers "],\"groups\":\"" groups                 \
    "\",\"wishes\":[" wishes "]}"

TEST(a_damaged_record_is_named_with_its_field)
{
    static const struct {
        const char *value, *says;
    } cases[] = {
        {"", "owners/orders"},
        {"[]", "owners/orders"},
        {"{}", "shard_prefix_len"},
        {RECORD("1", "-1", "", "-*16", ""), "epoch"},
        {RECORD("1", "1", "7", "-*16", ""), "no object"},
        {RECORD("1", "1", "{}", "-*16", ""), "name"},
        {RECORD("1", "1", WORKER "," WORKER, "-*16", ""), "twice"},
        {RECORD("1", "1", WORKER, "", ""), "groups"},
        {RECORD("1", "1", WORKER, "-*15", ""), "groups"},
        {RECORD("1", "1", WORKER, "-*17", ""), "groups"},
        {RECORD("1", "1", WORKER, "-*0,-*16", ""), "groups"},
        {RECORD("1", "1", WORKER, "-*16,", ""), "groups"},
        {RECORD("1", "1", WORKER, "-*99999999999999999999", ""), "groups"},
        {RECORD("1", "1", WORKER, "1:1,-*15", ""), "groups"},
        {RECORD("1", "1", WORKER, "0:0,-*15", ""), "groups"},
        {RECORD("1", "1", WORKER, "0:2,-*15", ""), "groups"},
        {RECORD("1", "1", WORKER, "0,-*15", ""), "groups"},
        {RECORD("1", "1", "", "0:1*16", ""), "groups"},
        {RECORD("1", "1", WORKER, "-*16", "{\"group\":16,\"worker\":0,\"until_ms\":1}"), "group"},
        {RECORD("1", "1", WORKER, "-*16", "{\"group\":1,\"worker\":1,\"until_ms\":1}"), "worker"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct rig rig;
        struct member member;
        kl_arena arena = {0};
        kl__ownership ownership;
        rig_open(&rig, 1);
        put_record(&rig, cases[i].value);
        rig_join_plain(&rig, &member, "w");
        member_beat(&member);
        CHECK_INT(member.rc, KL_EDAMAGED);
        CHECK_CONTAINS(kl_error_text(), cases[i].says);
        CHECK_CONTAINS(kl_error_text(), "owners/orders");
        CHECK_INT(kl__owners_read(rig.store, "orders", &rig.layout, &arena, &ownership), KL_EDAMAGED);
        if (test_failed())
            printf("# case %zu: %s\n", i, cases[i].value);
        kl_arena_free(&arena);
        member_die(&member);
        rig_close(&rig);
    }
}

TEST(fields_of_a_worker_are_checked)
{
    static const char *const changes[][2] = {{"00112233445566778899aabbccddeeff", "0011"},
                                             {"00112233445566778899aabbccddeeff", "0011223344556677x899aabbccddeeff"},
                                             {"0-f", "00-ff"},
                                             {"\"kinds\":\"\"", "\"kinds\":\"12345\""},
                                             {"\"kinds\":\"\"", "\"kinds\":\"123x\""},
                                             {"\"beat\":1", "\"beat\":-1"}};
    static const char *const fields[] = {"id", "id", "shards", "kinds", "kinds", "beat"};
    static const char good[] = RECORD("1", "1", WORKER, "0:1*16", "");
    for (size_t i = 0; i < COUNT(changes); i++) {
        struct rig rig;
        struct member member;
        char value[2048];
        const char *at = strstr(good, changes[i][0]);
        snprintf(value, sizeof value, "%.*s%s%s", (int)(at - good), good, changes[i][1], at + strlen(changes[i][0]));
        rig_open(&rig, 1);
        put_record(&rig, value);
        rig_join_plain(&rig, &member, "w");
        member_beat(&member);
        CHECK_INT(member.rc, KL_EDAMAGED);
        CHECK_CONTAINS(kl_error_text(), fields[i]);
        put_record(&rig, good);
        member_beat(&member);
        CHECK_INT(member.rc, KL_OK);
        CHECK_INT(member.change.workers, 2);
        CHECK_INT(member.held, 0);
        member_die(&member);
        rig_close(&rig);
    }
}

TEST(a_record_of_another_layout_is_refused_with_both_named)
{
    struct rig rig;
    struct member member;
    rig_open(&rig, 1);
    put_record(&rig, RECORD("2", "1", "", "-*256", ""));
    rig_join_plain(&rig, &member, "w");
    member_beat(&member);
    CHECK_INT(member.rc, KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "2 digits");
    CHECK_CONTAINS(kl_error_text(), "have 1");
    member_die(&member);
    rig_close(&rig);
}

/* Everything as long as it can be. */
static void fill_record(kl__owners_record *record, char shards[KL_OWNERS_RANGES_BYTES + 1],
                        char kinds[4 * KL_OWNERS_KINDS_MAX + 1])
{
    static const char name[] = "a-name-of-exactly-sixty-four-bytes-which-is-as-long-as-it-may-be";
    char *at = shards;
    for (int i = 0; i < KL_OWNERS_RANGES_BYTES / 8; i++)
        at += snprintf(at, 9, "%03x-%03x,", i * 4, i * 4 + 1);
    at[-1] = '\0';
    memset(kinds, 'a', 4 * KL_OWNERS_KINDS_MAX);
    kinds[4 * KL_OWNERS_KINDS_MAX] = '\0';
    for (size_t i = 0; i < record->worker_count; i++) {
        kl__record_worker *worker = &record->workers[i];
        *worker = (kl__record_worker){.name = name,
                                      .beat = INT64_MAX,
                                      .seen_ms = INT64_MAX,
                                      .expires_ms = INT64_MAX,
                                      .running = UINT64_MAX,
                                      .concurrency = UINT64_MAX,
                                      .permits = UINT64_MAX,
                                      .wants = UINT64_MAX,
                                      .shards = shards,
                                      .kinds = kinds};
        memset(&worker->id, (int)i + 1, sizeof worker->id);
    }
    record->epoch = KL_EPOCH_MAX;
    for (uint32_t group = 0; group < record->group_count; group++)
        record->groups[group] = (kl__record_group){(int16_t)(record->worker_count - 1 - group % 2), true, KL_EPOCH_MAX};
    for (record->wish_count = 0; record->wish_count < KL_WISHES_MAX; record->wish_count++)
        record->wishes[record->wish_count] =
            (kl__record_wish){KL_GROUPS_MAX - 1, (uint32_t)record->worker_count - 1, INT64_MAX};
}

TEST(sixty_five_thousand_shards_and_sixty_four_workers_fit_into_a_record)
{
    static kl__record_worker workers[64];
    static kl__record_group groups[KL_GROUPS_MAX];
    static char shards[KL_OWNERS_RANGES_BYTES + 1], kinds[4 * KL_OWNERS_KINDS_MAX + 1];
    kl__owners_record record = {.workers = workers, .worker_count = 64, .groups = groups, .group_count = KL_GROUPS_MAX};
    kl__owners_record again;
    struct rig rig;
    kl_arena arena = {0};
    kl_bytes value;
    rig_open(&rig, 4);
    fill_record(&record, shards, kinds);
    REQUIRE(kl__owners_record_print(&record, &rig.layout, &arena, &value) == KL_OK);
    CHECK(value.len > KL_RECORD_BYTES_MAX * 9 / 10 && value.len <= KL_RECORD_BYTES_MAX);
    put_record(&rig, value.data);
    REQUIRE(kl__owners_record_read(rig.store, "owners/orders", &rig.layout, &arena, &again) == KL_OK);
    CHECK_INT(again.worker_count, 64);
    CHECK_INT(again.workers[63].held, KL_GROUPS_MAX / 2);
    CHECK(memcmp(&again.workers[5].id, &workers[5].id, sizeof workers[5].id) == 0);
    CHECK_INT(again.groups[4095].owner, 62);
    CHECK(again.groups[4095].epoch == KL_EPOCH_MAX && again.groups[4095].unclean);
    CHECK_INT(again.wish_count, KL_WISHES_MAX);
    kl_arena_free(&arena);
    rig_close(&rig);
}

TEST(more_workers_than_fit_are_refused)
{
    struct rig rig;
    struct member member = {0};
    rig_open(&rig, 1);
    for (int i = 0; i < KL_OWNERS_WORKERS_MAX; i++) {
        rig_join_plain(&rig, &member, "one of many");
        member_beat(&member);
        CHECK_INT(member.rc, KL_OK);
        member_die(&member);
    }
    rig_join_plain(&rig, &member, "one too many");
    member_beat(&member);
    CHECK_INT(member.rc, KL_EFULL);
    CHECK_CONTAINS(kl_error_text(), "512 workers");
    rig.now_ms += LEASE_MS;
    member_beat(&member);
    CHECK_INT(member.rc, KL_OK);
    CHECK_INT(member.held, 16);
    member_die(&member);
    rig_close(&rig);
}

/* --- Settings, people, memory --- */

TEST(settings_out_of_range_are_refused)
{
    struct rig rig;
    kl__owners *owners = NULL;
    char long_name[KL_PARTITION_BYTES_MAX + 2];
    memset(long_name, 'n', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    rig_open(&rig, 4);
    const kl__owners_opts good = rig_opts(&rig, "w");
#define REFUSED(change, says)                                                                                          \
    do {                                                                                                               \
        kl__owners_opts opts = good;                                                                                   \
        change;                                                                                                        \
        CHECK_INT(kl__owners_open(&opts, &owners), KL_EINVAL);                                                         \
        CHECK_CONTAINS(kl_error_text(), says);                                                                         \
        CHECK(owners == NULL);                                                                                         \
    } while (0)
    REFUSED(opts.lease_ms = 0, "lease_ms");
    REFUSED(opts.lease_ms = KL_OWNERS_LEASE_MS_MAX + 1, "lease_ms");
    REFUSED(opts.kind_count = KL_OWNERS_KINDS_MAX + 1, "257 kinds");
    REFUSED(memset(&opts.worker, 0, sizeof opts.worker), "16 random bytes");
    REFUSED(opts.name = "", "name");
    REFUSED(opts.name = long_name, "129 bytes");
    REFUSED(opts.layout.shard_prefix_len = 2, "digits");
    REFUSED(CHECK_INT(kl_shards_parse(&rig.layout, kl_str("0001-000f"), &opts.allowed), KL_OK), "groups of 16");
    REFUSED(for (uint32_t i = 0; i < COUNT(opts.allowed.bits); i += 2) opts.allowed.bits[i] = 0, "fewer ranges");
#undef REFUSED
    kl__owners_close(NULL);
    rig_close(&rig);
}

TEST(people_see_who_owns_what)
{
    struct rig rig;
    struct member members[2];
    kl_arena arena = {0};
    kl__ownership seen;
    rig_open(&rig, 2);
    CHECK_INT(kl__owners_read(rig.store, "orders", &rig.layout, &arena, &seen), KL_OK);
    CHECK_INT(seen.count, 0);
    CHECK(kl__ownership_of(&seen, 255) == NULL);
    rig_join_plain(&rig, &members[0], "host:1");
    rig_join_plain(&rig, &members[1], "quote\" back\\ \xc3\xa9");
    members[0].report.running = 3;
    rig_rounds(&rig, members, 2, 4, BEAT_MS);
    CHECK_INT(kl__owners_read(rig.store, "orders", &rig.layout, &arena, &seen), KL_OK);
    REQUIRE(seen.count == 2);
    CHECK_STR(seen.workers[0].name, "host:1");
    CHECK_STR(seen.workers[1].name, "quote? back? ??");
    CHECK_INT(seen.workers[0].running, 3);
    CHECK_INT(seen.workers[0].concurrency, 4);
    CHECK_INT(seen.workers[0].shards, 128);
    CHECK_INT(seen.workers[0].seen_ms, rig.now_ms - BEAT_MS);
    for (uint32_t shard = 0; shard < 256; shard++)
        CHECK(kl__ownership_of(&seen, shard) == &seen.workers[members[1].epoch[shard] != 0]);
    rig.now_ms += LEASE_MS;
    CHECK_INT(kl__owners_read(rig.store, "orders", &rig.layout, &arena, &seen), KL_OK);
    CHECK_INT(seen.count, 0);
    CHECK(kl__ownership_of(&seen, 0) == NULL);
    kl_arena_free(&arena);
    member_die(&members[0]);
    member_die(&members[1]);
    rig_close(&rig);
}

/* One story with the n-th allocation of the library refused; false: it was never reached. */
static bool run_short_of_memory(uint64_t n)
{
    struct rig rig;
    struct member members[2];
    rig_open(&rig, 1);
    rig_join_plain(&rig, &members[0], "w");
    rig_join_plain(&rig, &members[1], "v");
    member_beat(&members[1]);
    kl__alloc_fail_at(n);
    for (int i = 0; i < 4; i++) {
        member_idle(&members[i % 2]);
        member_beat(&members[i % 2]);
        if (members[i % 2].rc != KL_OK)
            CHECK_INT(members[i % 2].rc, KL_ENOMEM);
    }
    uint64_t made = kl__alloc_fail_at(0);
    rig_rounds(&rig, members, 2, 3, BEAT_MS);
    CHECK_INT(members[0].held, 8);
    CHECK_INT(members[1].held, 8);
    CHECK_INT(members[0].unclean + members[1].unclean, 0);
    member_die(&members[0]);
    member_die(&members[1]);
    rig_close(&rig);
    return made >= n;
}

TEST(a_beat_survives_every_failed_allocation)
{
    uint64_t n = 1;
    while (run_short_of_memory(n) && !test_failed())
        n++;
    CHECK(n > 50);
    struct rig rig;
    rig_open(&rig, 1);
    kl__owners_opts opts = rig_opts(&rig, "w");
    for (uint64_t k = 1; k <= 6; k++) {
        kl__owners *owners = NULL;
        kl__alloc_fail_at(k);
        CHECK_INT(kl__owners_open(&opts, &owners), KL_ENOMEM);
        CHECK(owners == NULL);
    }
    kl__alloc_fail_at(0);
    rig_close(&rig);
}
