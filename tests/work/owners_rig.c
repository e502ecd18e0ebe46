/* owners_rig.c - see owners_rig.h. */
#include "work/owners_rig.h"

#include <stdlib.h>

static int64_t now_of(void *ctx) { return ((struct rig *)ctx)->now_ms; }

void rig_open(struct rig *rig, uint32_t shard_prefix_len)
{
    *rig = (struct rig){.now_ms = 1000000};
    kl_store_opts opts = {.size = sizeof opts, .now_ms = now_of, .now_ctx = rig};
    CHECK_INT(kl_store_open("memory:", &opts, &rig->memory), KL_OK);
    CHECK_INT(kl_layout_init(1, shard_prefix_len, &rig->layout), KL_OK);
    CHECK_INT(kl_store_partition(rig->memory, "orders", shard_prefix_len, &rig->partition), KL_OK);
    rig->store = rig->memory;
    rig->shards = kl_layout_shards(&rig->layout);
    rig->last_epoch = calloc(rig->shards, sizeof rig->last_epoch[0]);
    rig->dirty = calloc(rig->shards, sizeof rig->dirty[0]);
}

void rig_open_lossy(struct rig *rig, uint32_t shard_prefix_len, uint64_t seed)
{
    rig_open(rig, shard_prefix_len);
    CHECK_INT(lossy_open(&rig->lossy, rig->memory, seed, &rig->store), KL_OK);
    kl_rc rc;
    do
        rc = kl_store_partition(rig->store, "orders", shard_prefix_len, &rig->partition);
    while (rc == LOSSY_RC);
    CHECK_INT(rc, KL_OK);
}

void rig_close(struct rig *rig)
{
    if (rig->store != rig->memory)
        kl_store_close(rig->store);
    kl_store_close(rig->memory);
    free(rig->last_epoch);
    free(rig->dirty);
}

kl__owners_opts rig_opts(struct rig *rig, const char *name)
{
    kl__owners_opts opts = {.store = rig->store,
                            .partition = rig->partition,
                            .name = "orders",
                            .layout = rig->layout,
                            .worker_name = name,
                            .lease_ms = LEASE_MS,
                            .seed = test_seed() + rig->ids,
                            .concurrency = 4};
    uint64_t id = ++rig->ids;
    memcpy(opts.worker.bytes, &id, sizeof id);
    kl_shards_all(&rig->layout, &opts.allowed);
    return opts;
}

void rig_join(struct rig *rig, struct member *member, const kl__owners_opts *opts)
{
    *member = (struct member){.rig = rig, .alive = true, .allowed = opts->allowed};
    member->report.permits_max = member->report.permits_most = UINT64_MAX;
    member->epoch = calloc(rig->shards, sizeof member->epoch[0]);
    member->wanted = calloc(rig->shards, sizeof member->wanted[0]);
    member->left = calloc(rig->shards, sizeof member->left[0]);
    CHECK_INT(kl__owners_open(opts, &member->owners), KL_OK);
}

void rig_join_plain(struct rig *rig, struct member *member, const char *name)
{
    kl__owners_opts opts = rig_opts(rig, name);
    rig_join(rig, member, &opts);
}

/* O3: what is below is refused, and this is not. */
static void check_fence(const struct rig *rig, const kl__owned *owned)
{
    kl_place place = {rig->partition, owned->shard};
    kl_fence own = {.place = place, .epoch = owned->epoch}, below = {.place = place, .epoch = owned->epoch - 1};
    CHECK_INT(kl_store_fence(rig->memory, &own, 1), KL_OK);
    if (below.epoch > 0)
        CHECK_INT(kl_store_fence(rig->memory, &below, 1), KL_ESTALE);
}

static void take(struct member *member, const kl__owned *owned)
{
    struct rig *rig = member->rig;
    uint32_t shard = owned->shard;
    CHECK_INT(member->epoch[shard], 0);
    CHECK(owned->epoch > rig->last_epoch[shard]);
    CHECK(!rig->dirty[shard] || !owned->clean);
    check_fence(rig, owned);
    rig->last_epoch[shard] = owned->epoch;
    rig->dirty[shard] = true; /* until it is given back */
    member->epoch[shard] = owned->epoch;
    member->held++;
    member->clean += owned->clean;
    member->unclean += !owned->clean;
}

static void apply(struct member *member, bool held_lease)
{
    const kl__owners_change *change = &member->change;
    CHECK(!held_lease || change->lost_count == 0); /* O2 */
    for (size_t i = 0; i < change->lost_count; i++) {
        CHECK(member->epoch[change->lost[i]] != 0);
        member->held -= member->epoch[change->lost[i]] != 0;
        member->epoch[change->lost[i]] = 0;
    }
    for (size_t i = 0; i < change->taken_count; i++)
        take(member, &change->taken[i]);
    memset(member->wanted, 0, member->rig->shards * sizeof member->wanted[0]);
    for (size_t i = 0; i < change->wanted_count; i++) {
        CHECK(member->epoch[change->wanted[i]] != 0);
        member->wanted[change->wanted[i]] = true;
    }
    member->asked = (uint32_t)change->wanted_count;
    member->gone = change->gone;
}

void member_beat(struct member *member)
{
    bool held_lease = kl__owners_holds(member->owners, member->rig->now_ms);
    member->report.local_now_ms = member->rig->now_ms;
    member->report.left = member->left;
    member->report.left_count = member->left_count;
    member->rc = kl__owners_beat(member->owners, &member->report, &member->change);
    member->left_count = 0; /* it is taken in even when the beat fails */
    if (member->rc != KL_OK)
        return;
    apply(member, held_lease);
    kl__owners_renew(member->owners);
}

void member_leave_idle(struct member *member, uint32_t shard)
{
    CHECK(member->epoch[shard] != 0);
    if (member->epoch[shard] == member->rig->last_epoch[shard])
        member->rig->dirty[shard] = false;
    member->epoch[shard] = 0;
    member->held--;
    member->left[member->left_count++] = shard;
}

void member_idle(struct member *member)
{
    for (uint32_t shard = 0; shard < member->rig->shards; shard++)
        if (member->wanted[shard] && member->epoch[shard] != 0)
            member_leave_idle(member, shard);
}

void member_die(struct member *member)
{
    kl__owners_close(member->owners);
    free(member->epoch);
    free(member->wanted);
    free(member->left);
    *member = (struct member){0};
}

void rig_rounds(struct rig *rig, struct member *members, size_t count, int rounds, int64_t step_ms)
{
    for (int round = 0; round < rounds; round++) {
        for (size_t i = 0; i < count; i++) {
            if (!members[i].alive)
                continue;
            member_idle(&members[i]);
            member_beat(&members[i]);
        }
        rig->now_ms += step_ms;
    }
}
