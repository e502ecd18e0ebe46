/* test_owners_random.c - workers that join, leave and die at random; when they calm down, all is owned and even.
 *
 * owners_rig.c checks O1, O2, O3 and O5 at every change. Here:
 *   - two workers whose leases hold never have one shard at a time (O1);
 *   - the tasks of all workers that run under a lease never exceed the limit (O6);
 *   - after calm, every shard that somebody may take is owned, workers with one restriction differ by at most one
 *     group, and nothing moves any more. */
#include <stdlib.h>

#include "base/random.h"
#include "work/owners_rig.h"

enum {
    CREW_MAX = 20,
    LIMIT = 7,
    STEP_MS = LEASE_MS / 40,
    STEPS_TO_LAPSE = 1000
}; /* in so many steps a lease surely lapses */

struct crew {
    struct rig rig;
    struct member members[CREW_MAX];
    uint64_t random;
    bool restricted;
    uint64_t joined, died, left, lapsed;
};

static uint64_t draw(struct crew *crew, uint64_t bound) { return kl__random_below(&crew->random, bound); }

/* One of four: everything, the lower half, the upper three quarters, or every other shard. */
static void restrict_to(struct crew *crew, kl_shards *allowed)
{
    uint64_t which = crew->restricted ? draw(crew, 4) : 0;
    uint32_t shards = crew->rig.shards;
    for (uint32_t shard = 0; shard < shards; shard++)
        if ((which == 1 && shard >= shards / 2) || (which == 2 && shard < shards / 4) || (which == 3 && shard % 2))
            allowed->bits[shard / 64] &= ~(UINT64_C(1) << shard % 64);
}

static void join(struct crew *crew, struct member *member)
{
    kl__owners_opts opts = rig_opts(&crew->rig, "w");
    static const char *const kinds[] = {"mail", "print"};
    opts.seed = draw(crew, UINT64_MAX);
    opts.kind_count = draw(crew, 3); /* every kind, mail, or both */
    opts.kinds = kinds;
    restrict_to(crew, &opts.allowed);
    rig_join(&crew->rig, member, &opts);
    member->report.permits_max = LIMIT;
    crew->joined++;
}

static bool holds(const struct crew *crew, const struct member *member)
{
    return member->alive && kl__owners_holds(member->owners, crew->rig.now_ms);
}

static void check_crew(struct crew *crew)
{
    uint64_t running = 0;
    for (size_t i = 0; i < CREW_MAX; i++)
        running += holds(crew, &crew->members[i]) ? crew->members[i].report.running : 0;
    CHECK(running <= LIMIT);
    for (uint32_t shard = 0; shard < crew->rig.shards; shard++) {
        int owners = 0;
        for (size_t i = 0; i < CREW_MAX; i++)
            owners += holds(crew, &crew->members[i]) && crew->members[i].epoch[shard] != 0;
        CHECK(owners <= 1);
    }
}

/* A worker whose lease is over has dropped everything. */
static void run_tasks(struct crew *crew, struct member *member)
{
    kl__owners_report *report = &member->report;
    if (!holds(crew, member)) {
        report->running = 0;
        report->permits_wanted = draw(crew, 6);
        return;
    }
    uint64_t most = member->change.permits < 4 ? member->change.permits : 4;
    if (report->running > 0 && draw(crew, 2) == 0)
        report->running -= 1 + draw(crew, report->running);
    if (report->running < most && draw(crew, 2) == 0)
        report->running += draw(crew, most - report->running + 1);
    report->permits_wanted = report->running + draw(crew, 4);
}

/* Now and then it meets a task that it has no handler for. */
static void meet_kinds(struct crew *crew, struct member *member)
{
    static uint32_t shard;
    static uint16_t kind;
    shard = (uint32_t)draw(crew, crew->rig.shards);
    kind = (uint16_t)(draw(crew, 2) ? kl__owners_kind(kl_str("print")) : 0);
    member->report.unserved = &shard;
    member->report.unserved_kinds = &kind;
    member->report.unserved_count = member->epoch[shard] != 0 && draw(crew, 4) == 0;
}

static void become_idle(struct crew *crew, struct member *member)
{
    for (uint32_t shard = 0; shard < crew->rig.shards; shard++) {
        bool may = member->wanted[shard] || member->report.leaving;
        if (may && member->epoch[shard] && draw(crew, 3) == 0)
            member_leave_idle(member, shard);
    }
}

static void beat(struct crew *crew, struct member *member)
{
    crew->lapsed += !holds(crew, member);
    member_beat(member);
    CHECK(member->rc == KL_OK || member->rc == KL_EBUSY);
    if (member->rc == KL_OK && member->gone) {
        crew->left++;
        member_die(member);
    } else {
        run_tasks(crew, member); /* what it starts now, the others do not know yet */
    }
}

static void step(struct crew *crew, size_t want)
{
    struct member *member = &crew->members[draw(crew, CREW_MAX)];
    uint64_t dice = draw(crew, 1000);
    if (!member->alive) {
        if (member - crew->members < (ptrdiff_t)want && dice < 100)
            join(crew, member);
    } else if (dice < 4) {
        crew->died++;
        member_die(member);
    } else if (dice < 12) {
        member->report.leaving = true;
    } else if (dice < 990) {
        run_tasks(crew, member);
        meet_kinds(crew, member);
        if (holds(crew, member))
            become_idle(crew, member);
        beat(crew, member);
    } else {
        crew->rig.now_ms += (int64_t)draw(crew, LEASE_MS);
    }
    crew->rig.now_ms += (int64_t)draw(crew, STEP_MS);
    check_crew(crew);
}

/* Beats all until the leases of the dead are over and everything has moved. */
static void calm_down(struct crew *crew, int rounds)
{
    for (int round = 0; round < rounds; round++) {
        for (size_t i = 0; i < CREW_MAX; i++) {
            struct member *member = &crew->members[i];
            if (!member->alive)
                continue;
            member->report.running = holds(crew, member) ? member->report.running : 0;
            member->report.unserved_count = 0;
            member_idle(member);
            for (int again = 0; again < 50; again++) {
                member_beat(member);
                if (member->rc == KL_OK)
                    break;
            }
        }
        crew->rig.now_ms += LEASE_MS / 5;
    }
}

static bool same(const struct member *a, const struct member *b)
{
    return memcmp(a->allowed.bits, b->allowed.bits, sizeof a->allowed.bits) == 0;
}

static void check_calm(struct crew *crew)
{
    for (uint32_t shard = 0; shard < crew->rig.shards; shard++) {
        int owners = 0, may = 0;
        for (size_t i = 0; i < CREW_MAX; i++) {
            owners += crew->members[i].alive && crew->members[i].epoch[shard] != 0;
            may += crew->members[i].alive && kl_shards_contains(&crew->members[i].allowed, shard);
        }
        CHECK_INT(owners, may > 0);
    }
    for (size_t i = 0; i < CREW_MAX; i++)
        for (size_t k = 0; k < i; k++) {
            const struct member *a = &crew->members[i], *b = &crew->members[k];
            if (a->alive && b->alive && same(a, b))
                CHECK(a->held <= b->held + 1 && b->held <= a->held + 1);
        }
}

/* Everything that could move in the next rounds. */
static uint64_t moves(struct crew *crew)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < CREW_MAX; i++)
        if (crew->members[i].alive)
            sum += crew->members[i].clean + crew->members[i].unclean + crew->members[i].asked;
    return sum;
}

static void settle(struct crew *crew)
{
    for (size_t i = 0; i < CREW_MAX; i++)
        if (crew->members[i].alive && crew->members[i].report.leaving)
            member_die(&crew->members[i]);
    calm_down(crew, 24);
    check_calm(crew);
    uint64_t before = moves(crew);
    calm_down(crew, 10);
    check_calm(crew);
    CHECK_INT(moves(crew), before);
}

static void run(uint32_t shard_prefix_len, bool restricted, bool lossy, uint64_t steps)
{
    struct crew *crew = calloc(1, sizeof *crew);
    crew->random = test_seed() + shard_prefix_len;
    crew->restricted = restricted;
    if (lossy)
        rig_open_lossy(&crew->rig, shard_prefix_len, crew->random);
    else
        rig_open(&crew->rig, shard_prefix_len);
    for (int part = 0; part < 8 && !test_failed(); part++) {
        size_t want = 1 + draw(crew, CREW_MAX);
        for (uint64_t i = 0; i < steps / 8 && !test_failed(); i++)
            step(crew, want);
        settle(crew);
    }
    CHECK(crew->joined > 0 && (crew->lapsed > 0 || steps < STEPS_TO_LAPSE));
    for (size_t i = 0; i < CREW_MAX; i++)
        if (crew->members[i].alive)
            member_die(&crew->members[i]);
    rig_close(&crew->rig);
    free(crew);
}

TEST(workers_that_come_and_go_end_up_even) { run(1, false, false, test_ops(4000)); }
TEST(many_shards_end_up_even) { run(2, false, false, test_ops(1500)); }
TEST(restricted_workers_own_all_that_they_may) { run(1, true, false, test_ops(4000)); }
TEST(restricted_workers_of_many_shards_own_all_that_they_may) { run(2, true, false, test_ops(1500)); }
TEST(lost_replies_break_nothing) { run(1, false, true, test_ops(4000)); }
TEST(lost_replies_and_restrictions_break_nothing) { run(2, true, true, test_ops(1500)); }
