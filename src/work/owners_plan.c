/* owners_plan.c - who should own what: every group has an owner that may take it, and loads are even.
 *
 * From: owners.c.  To: nothing; it only reads the record.
 *
 * A plan is made anew in each beat, for all workers, and of it a worker carries out its own part: it takes the free
 * groups that the plan gives it, and gives back those of its own that the plan gives to others.
 *
 *     what is owned stays -> wishes -> free groups to the lightest load -> even out
 *
 * Evening out moves a group from a worker to one that may take it and has at least two fewer. Each move lowers the sum
 * of the squared loads, so it ends, and a plan made from its own result moves nothing: shards do not wander. At the end
 * two workers with the same restriction differ by at most one, and a group is without an owner only when nobody alive
 * may take it. Where restrictions only overlap, neighbours in the chain of overlaps differ by at most one; moving along
 * whole chains would be more even still, and is not worth a flow problem in each beat.
 *
 * A share computed as the sum of 1 / (workers that may take the shard) was rejected: its rounding can leave a shard
 * that only one worker may take, and that worker is full; and a worker with few shards to choose from gets the
 * fewest. */
#include "base/random.h"
#include "work/owners_inside.h"

struct plan {
    const kl__owners_record *record;
    uint32_t me;
    uint32_t workers;
    int16_t *goal;     /* by group */
    uint32_t *load;    /* by worker */
    uint32_t *order;   /* workers, the lightest first */
    bool *takes;       /* by worker: it is not leaving */
    kl__groups *holds; /* by worker: groups whose goal it is */
    kl__groups pinned; /* stay where they are */
    kl__groups barred; /* not for this worker, now */
    kl__groups free;   /* moved at no cost: owned by nobody, */
    kl__groups quick;  /* or by this worker, which has not begun with them */
    kl__groups begun;  /* by this worker, and it was asked to give them back */
};

static bool make(struct plan *plan, kl_arena *arena)
{
    size_t workers = plan->workers;
    plan->goal = kl_arena_alloc(arena, plan->record->group_count * sizeof plan->goal[0]);
    plan->load = kl_arena_alloc(arena, workers * sizeof plan->load[0]);
    plan->order = kl_arena_alloc(arena, workers * sizeof plan->order[0]);
    plan->takes = kl_arena_alloc(arena, workers * sizeof plan->takes[0]);
    plan->holds = kl_arena_alloc(arena, workers * sizeof plan->holds[0]);
    if (!plan->goal || !plan->load || !plan->order || !plan->takes || !plan->holds)
        return false;
    memset(plan->load, 0, workers * sizeof plan->load[0]);
    memset(plan->holds, 0, workers * sizeof plan->holds[0]);
    for (uint32_t i = 0; i < workers; i++) {
        plan->takes[i] = !plan->record->workers[i].leaving;
        plan->order[i] = i;
    }
    return true;
}

static void assign(struct plan *plan, uint32_t group, int worker)
{
    plan->goal[group] = (int16_t)worker;
    if (worker < 0)
        return;
    plan->load[worker]++;
    kl__groups_add(&plan->holds[worker], group);
}

static void move(struct plan *plan, uint32_t group, uint32_t worker)
{
    uint32_t from = (uint32_t)plan->goal[group];
    plan->load[from]--;
    kl__groups_remove(&plan->holds[from], group);
    assign(plan, group, (int)worker);
}

static bool may_take(const struct plan *plan, uint32_t worker, uint32_t group)
{
    return plan->takes[worker] && kl__groups_has(&plan->record->workers[worker].allowed, group) &&
           !(worker == plan->me && kl__groups_has(&plan->barred, group));
}

/* --- What is owned, and wishes --- */

static void look_at_own(struct plan *plan, const kl__own_group *own, uint32_t group)
{
    if (own->state == KL_GROUP_LOST)
        kl__groups_add(&plan->barred, group);
    if (own->state == KL_GROUP_UNFENCED)
        kl__groups_add(&plan->quick, group);
    if (own->wanted)
        kl__groups_add(&plan->begun, group);
}

static void start(struct plan *plan, const kl__owners *owners)
{
    for (uint32_t group = 0; group < plan->record->group_count; group++) {
        look_at_own(plan, &owners->groups[group], group);
        assign(plan, group, plan->record->groups[group].owner);
        if (plan->goal[group] < 0)
            kl__groups_add(&plan->free, group);
    }
}

static void pin(struct plan *plan, uint32_t group, uint32_t worker)
{
    if (plan->goal[group] < 0)
        assign(plan, group, (int)worker);
    else
        move(plan, group, worker);
    kl__groups_add(&plan->pinned, group);
}

static void follow_wishes(struct plan *plan, const kl__owners *owners)
{
    for (size_t i = 0; i < plan->record->wish_count; i++) {
        const kl__record_wish *wish = &plan->record->wishes[i];
        int goal = plan->goal[wish->group];
        if (may_take(plan, wish->worker, wish->group) && (goal < 0 || goal == (int)wish->worker))
            pin(plan, wish->group, wish->worker);
    }
    for (uint32_t group = 0; group < plan->record->group_count; group++) {
        const kl__own_group *own = &owners->groups[group];
        int able = own->handing && plan->goal[group] == (int)plan->me
                       ? kl__owners_able(plan->record, plan->me, group, own->handing)
                       : -1;
        if (able >= 0)
            pin(plan, group, (uint32_t)able);
    }
}

/* Whether it serves a kind that the other does not. */
static bool serves_more(const char *kinds, const char *other)
{
    for (const char *at = kinds; *at; at += 4) {
        unsigned kind = 0;
        for (int i = 0; i < 4; i++)
            kind = kind << 4 | (unsigned)(at[i] <= '9' ? at[i] - '0' : (at[i] | 0x20) - 'a' + 10);
        if (!kl__kinds_serve(other, (uint16_t)kind))
            return true;
    }
    return *kinds == '\0' && *other != '\0';
}

int kl__owners_able(const kl__owners_record *record, uint32_t me, uint32_t group, uint16_t kind)
{
    int best = -1;
    for (uint32_t i = 0; i < record->worker_count; i++) {
        const kl__record_worker *worker = &record->workers[i];
        if (i == me || worker->leaving || !kl__groups_has(&worker->allowed, group))
            continue;
        bool serves = kind == KL_KIND_UNKNOWN ? serves_more(worker->kinds, record->workers[me].kinds)
                                              : kl__kinds_serve(worker->kinds, kind);
        if (serves && (best < 0 || worker->held < record->workers[best].held))
            best = (int)i;
    }
    return best;
}

/* --- Free groups --- */

/* Who may take it and has the lightest load: this worker, if several have. */
static int lightest(const struct plan *plan, uint32_t group)
{
    int best = may_take(plan, plan->me, group) ? (int)plan->me : -1;
    for (uint32_t i = 0; i < plan->workers; i++)
        if (may_take(plan, i, group) && (best < 0 || plan->load[i] < plan->load[best]))
            best = (int)i;
    return best;
}

/* In random order, so that workers which beat at the same moment seldom want the same ones. */
static bool share_free(struct plan *plan, kl_arena *arena, uint64_t *random)
{
    uint32_t *unowned = kl_arena_alloc(arena, plan->record->group_count * sizeof unowned[0]), count = 0;
    if (!unowned)
        return false;
    for (uint32_t group = 0; group < plan->record->group_count; group++)
        if (plan->goal[group] < 0)
            unowned[count++] = group;
    for (; count > 0; count--) {
        uint32_t pick = (uint32_t)kl__random_below(random, count), group = unowned[pick];
        unowned[pick] = unowned[count - 1];
        assign(plan, group, lightest(plan, group));
    }
    return true;
}

/* --- Evening out --- */

/* A group of a's that b may take and that is in `among` (NULL: any); -1: none. */
static int find_common(const struct plan *plan, uint32_t a, uint32_t b, const kl__groups *among)
{
    const kl__groups *allowed = &plan->record->workers[b].allowed;
    for (uint32_t word = 0; word * 64 < plan->record->group_count; word++) {
        uint64_t bits = plan->holds[a].bits[word] & allowed->bits[word] & ~plan->pinned.bits[word];
        if (b == plan->me)
            bits &= ~plan->barred.bits[word];
        if (among)
            bits &= among->bits[word];
        if (bits)
            return (int)(word * 64) + __builtin_ctzll(bits);
    }
    return -1;
}

/* The one that costs least to move; what was asked back already rather than another. */
static int choose(const struct plan *plan, uint32_t a, uint32_t b)
{
    int group = find_common(plan, a, b, &plan->free);
    if (group < 0 && a == plan->me)
        group = find_common(plan, a, b, &plan->quick);
    if (group < 0 && a == plan->me)
        group = find_common(plan, a, b, &plan->begun);
    return group < 0 ? find_common(plan, a, b, NULL) : group;
}

/* Nearly sorted at every call but the first, so this is cheap. */
static void sort(struct plan *plan)
{
    for (uint32_t i = 1; i < plan->workers; i++) {
        uint32_t worker = plan->order[i], at = i;
        for (; at > 0; at--) {
            uint32_t before = plan->order[at - 1];
            if (plan->load[before] < plan->load[worker] ||
                (before < worker && plan->load[before] == plan->load[worker]))
                break;
            plan->order[at] = before;
        }
        plan->order[at] = worker;
    }
}

/* Moves one group from the heaviest to the lightest that it can go to; false: there is none to move. */
static bool even_out(struct plan *plan)
{
    sort(plan);
    for (uint32_t i = plan->workers; i-- > 0;) {
        uint32_t heavy = plan->order[i];
        for (uint32_t k = 0; plan->takes[heavy] && k < i; k++) {
            uint32_t light = plan->order[k];
            if (plan->load[heavy] - plan->load[light] < 2)
                break;
            int group = plan->takes[light] ? choose(plan, heavy, light) : -1;
            if (group >= 0) {
                move(plan, (uint32_t)group, light);
                return true;
            }
        }
    }
    return false;
}

const int16_t *kl__owners_plan(kl__owners *owners, const kl__owners_record *record, uint32_t me)
{
    struct plan plan = {.record = record, .me = me, .workers = (uint32_t)record->worker_count};
    if (!make(&plan, &owners->arena))
        return NULL;
    start(&plan, owners);
    follow_wishes(&plan, owners);
    if (!share_free(&plan, &owners->arena, &owners->random))
        return NULL;
    while (even_out(&plan))
        ;
    return plan.goal;
}
