/* valid.c - checks the invariants of lanes.c, for tests. */
#include <string.h>

#include "lanes/inside.h"

/* Every node between the two that it must stand between, of which either may be missing, and below a heavier one. */
static uint64_t count_between(const kl__tree_node *root, kl__tree_less *less, const kl__tree_node *low,
                              const kl__tree_node *high, bool *ok)
{
    if (!root)
        return 0;
    *ok &= (!low || less(low, root)) && (!high || less(root, high));
    *ok &= !root->left || kl__tree_weight(root) >= kl__tree_weight(root->left);
    *ok &= !root->right || kl__tree_weight(root) >= kl__tree_weight(root->right);
    return 1 + count_between(root->left, less, low, root, ok) + count_between(root->right, less, root, high, ok);
}

static uint64_t tree_size(const kl__tree_node *root, kl__tree_less *less, bool *ok)
{
    return count_between(root, less, NULL, NULL, ok);
}

/* What is seen of a lane's tasks, one by one. */
struct seen {
    const kl__lane *lane;
    const kl__lane_task *first; /* the one that would run; NULL: none would */
    int64_t now_ms;
    bool ok;
};

static void see(struct seen *seen, const kl__lane_task *task, kl__lane_place place)
{
    bool in_line = place == KL_PLACE_LINE || place == KL_PLACE_EARLY;
    seen->ok &= task->mark.place == place && task->lane == seen->lane;
    seen->ok &= !in_line || !seen->first || seen->first == seen->lane->head || !runs_before(task, seen->first); /* L2 */
    seen->ok &= !in_line || task->due_ms <= seen->now_ms;                                                       /* L7 */
}

static void see_tree(struct seen *seen, const kl__tree_node *root, kl__lane_place place)
{
    if (!root)
        return;
    see(seen, task_at(root), place);
    see_tree(seen, root->left, place);
    see_tree(seen, root->right, place);
}

/* L2 and L7 for those that can be reached from the lane. */
static bool tasks_valid(const kl__lanes *lanes, const kl__lane *lane)
{
    struct seen seen = {.lane = lane, .now_ms = lanes->now_ms, .ok = true};
    kl__lane_task *first = NULL;
    if (judge(lane, lanes->now_ms, &first) == KL_LANE_READY)
        seen.first = first;
    for (const kl__lane_task *task = lane->first; task; task = task->next)
        see(&seen, task, KL_PLACE_LINE);
    see_tree(&seen, lane->early, KL_PLACE_EARLY);
    see_tree(&seen, lane->later, KL_PLACE_LATER);
    return seen.ok;
}

static bool on_list(const kl__lanes *lanes, const kl__lane *lane)
{
    for (int i = 0; i < KL_LANE_PRIORITIES; i++)
        for (const kl__lane *at = lanes->ready[i].first; at; at = at->next)
            if (at == lane)
                return i == lane->ready_priority - KL_LANE_PRIORITY_MIN;
    return false;
}

static bool lane_valid(const kl__lanes *lanes, const kl__lane *lane)
{
    bool ok = true, crowd = lane->odd & ODD_CROWD;
    uint64_t waiting = tree_size(lane->early, early_less, &ok) + tree_size(lane->later, later_less, &ok);
    for (const kl__lane_task *task = lane->first; task; task = task->next, waiting++)
        ok &= task->mark.place == KL_PLACE_LINE && task->lane == lane &&
              (task->next ? task->next->prev == task && runs_before(task, task->next) : task == lane->last);
    kl__lane_task *first = NULL;
    kl__lane_state state = judge(lane, lanes->now_ms, &first);
    bool headed = lane->head && lane->head->mark.place != KL_PLACE_OUT;
    uint64_t accounted = waiting + lane->out + headed + (crowd ? lanes->crowd_running : 0);
    ok &= accounted == lane->entry.tasks;
    ok &= state == lane->state || /* else only time has passed since */
          (lane->wake_ms <= lanes->now_ms && lane->state == KL_LANE_RETRYING);
    ok &= (lane->state == KL_LANE_READY) == on_list(lanes, lane);                                           /* L3, L4 */
    ok &= lane->state != KL_LANE_READY || lane->ready_priority == first->mark.priority;                     /* L4 */
    ok &= crowd ? !lane->resting : lane->resting || lane->entry.tasks > 0 || lane->odd & ODD_PAUSED;        /* L5 */
    ok &= lane->wake_ms == wake_time(lane, (kl__lane_state)lane->state);                                    /* L6 */
    ok &= !lane->head || (lane->head->lane == lane && !crowd);                                              /* L1 */
    ok &= lane->later_count == tree_size(lane->later, later_less, &ok) && lane->stuck == count_stuck(lane); /* L8 */
    ok &= (lane->odd & ODD_BLOCKED) ? lane->entry.tasks > 0 || is_blocking(state) : !is_blocking(state);    /* L8 */
    ok &= (!lane->early || lane->odd & ODD_EARLY) && (!lane->later || lane->odd & ODD_LATER);
    ok &= (!lane->barriers || lane->odd & ODD_BARRIER) && (!lane->out || lane->odd & ODD_OUT);
    return ok && (lane->wake_ms == KL_NEVER || lane->wake_ms >= lanes->next_due);
}

/* Adds what cannot run of a lane, and its signs if it is blocked. */
static void see_signs(const kl__lane *lane, uint64_t *stuck, uint64_t *of_blocked, uint32_t *keys, uint32_t *blocked)
{
    *stuck += lane->stuck;
    if (!kl__lane_blocked(lane))
        return;
    *of_blocked += lane->stuck;
    *keys += 1;
    for (int i = 0; i < KL_LANE_SIGNS_EACH; i++)
        blocked[kl__lane_sign(lane->entry.hash, i)]++;
}

/* L8 for all lanes together. */
static bool signs_valid(const kl__lanes *lanes)
{
    uint64_t stuck = 0, of_blocked = 0;
    uint32_t keys = 0, blocked[KL_LANE_SIGNS] = {0};
    bool ok = true;
    see_signs(&lanes->crowd, &stuck, &of_blocked, &keys, blocked);
    for (uint32_t i = 0; i < lanes->table.buckets; i++) {
        for (kl__keytable_entry *entry = kl__keytable_at(&lanes->table, i)->first; entry; entry = entry->next)
            see_signs((const kl__lane *)entry, &stuck, &of_blocked, &keys, blocked);
    }
    for (uint32_t i = 0; i < KL_LANE_SIGNS; i++)
        ok &= blocked[i] == lanes->blocked_by_sign[i] && kl__lane_sign_is_set(&lanes->signs, i) == (blocked[i] > 0);
    return ok && stuck == lanes->stuck && of_blocked == lanes->blocked &&
           keys == atomic_load(&lanes->signs.blocked_keys);
}

bool kl__lanes_valid(const kl__lanes *lanes)
{
    bool ok = lane_valid(lanes, &lanes->crowd) && tasks_valid(lanes, &lanes->crowd);
    kl__lane_counts counts = kl__lanes_counts(lanes);
    uint64_t keys[KL_LANE_STATES] = {0}, entries = 0, timers = lanes->crowd.wake_ms != KL_NEVER, all = 0;
    keys[lanes->crowd.state] += lanes->crowd.state != KL_LANE_IDLE;
    for (uint32_t i = 0; i < lanes->table.buckets; i++) {
        for (kl__keytable_entry *entry = kl__keytable_at(&lanes->table, i)->first; entry;
             entry = entry->next, entries++) {
            const kl__lane *lane = (const kl__lane *)entry;
            ok &= kl__keytable_bucket_of(&lanes->table, entry->hash) == kl__keytable_at(&lanes->table, i);
            ok &= kl__keytable_first(&lanes->table, entry->hash) != NULL;
            ok &= lane_valid(lanes, lane) && tasks_valid(lanes, lane);
            timers += lane->wake_ms != KL_NEVER;
            all += lane->entry.tasks;
            keys[lane->state] += !(lane->head && lane->head->mark.place == KL_PLACE_OUT);
        }
    }
    keys[KL_LANE_IDLE] = 0;
    ok &= lanes->table.mask >= lanes->table.buckets - 1 && lanes->table.mask / 2 < lanes->table.buckets - 1;
    ok &= entries == lanes->table.entries && all + lanes->crowd.entry.tasks == lanes->tasks;
    ok &= timers == tree_size(lanes->timers, timer_less, &ok);
    ok &= lanes->next_due == (lanes->timers ? lane_of(kl__tree_first(lanes->timers))->wake_ms : KL_NEVER);
    for (int i = 0; i < KL_LANE_PRIORITIES; i++)
        ok &= ((lanes->ready_bits >> i) & 1) == (lanes->ready[i].first != NULL);
    return ok && signs_valid(lanes) && memcmp(keys, counts.keys, sizeof keys) == 0;
}
