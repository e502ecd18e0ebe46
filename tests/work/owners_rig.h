/* owners_rig.h - workers of one partition on a store in memory, with a clock that stands until a test moves it.
 *
 * A member does with a change what a worker does, and checks on the way what must hold for every change:
 *   O1  epochs of a shard only grow, over all members; O3  the store refuses lower epochs by the time of the report;
 *   O2  nothing is lost while the lease holds; O5  what was not given back is taken unclean. */
#ifndef TESTS_WORK_OWNERS_RIG_H
#define TESTS_WORK_OWNERS_RIG_H

#include "harness.h"
#include "keyline/store.h"
#include "store/lossy.h"
#include "work/owners.h"

enum { LEASE_MS = 1000, MEMBERS_MAX = 64 };

struct rig {
    kl_store *memory, *store; /* the second loses replies where a test asks for it */
    struct lossy lossy;
    int64_t now_ms;
    kl_layout layout;
    uint32_t partition, shards;
    uint64_t ids;
    uint64_t *last_epoch; /* by shard */
    bool *dirty;          /* by shard: its last holder did not give it back */
};

struct member {
    struct rig *rig;
    kl__owners *owners;
    kl_shards allowed;
    uint64_t *epoch; /* by shard; 0: not held */
    bool *wanted;    /* by shard */
    uint32_t held, asked;
    uint32_t *left;
    size_t left_count;
    kl__owners_report report; /* what the next beat tells, besides `left` and the time */
    kl__owners_change change; /* of the last good beat */
    kl_rc rc;                 /* of the last beat */
    uint64_t clean, unclean;  /* shards taken so far */
    bool alive, gone;
};

void rig_open(struct rig *rig, uint32_t shard_prefix_len);
void rig_open_lossy(struct rig *rig, uint32_t shard_prefix_len, uint64_t seed);
void rig_close(struct rig *rig);

kl__owners_opts rig_opts(struct rig *rig, const char *name);
void rig_join(struct rig *rig, struct member *member, const kl__owners_opts *opts);
void rig_join_plain(struct rig *rig, struct member *member, const char *name);
void member_beat(struct member *member);
void member_leave_idle(struct member *member, uint32_t shard); /* it is idle now, and told with the next beat */
void member_idle(struct member *member);                       /* likewise all that were asked back */
void member_die(struct member *member);

/* Beats all members that are alive in turn, with everything idle at once; time moves on by `step_ms` a round. */
void rig_rounds(struct rig *rig, struct member *members, size_t count, int rounds, int64_t step_ms);

#endif
