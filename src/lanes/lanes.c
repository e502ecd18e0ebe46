/* lanes.c - choose the next task that may run.
 *
 * From: exec/shard.c (tasks that were submitted) or work/window.c (tasks that were read from a store). To: the same
 * again, for a thread to run.
 *
 * A key is on a ready list exactly while it has a due task and none of its tasks is running. Taking it off to run and
 * putting it back when the task is settled is the whole of per-key order.
 *
 *                  add                take                 end
 *      (no lane) ------> READY | DELAYED ------> RUNNING -------> READY | DELAYED | (lane freed)
 *                          ^                       |  retry
 *                          +---- due ---- RETRYING <--+
 *
 * Inside a lane, tasks that are due stand in line in the order (priority, due, position). Nearly all arrive in that
 * order and are appended to a list; one that belongs before the list's last goes to a tree instead (`early`), and the
 * first in line is the better of the two heads. Tasks that are not due stand in a second tree (`later`) and join the
 * line when they are. Keys that become ready by themselves are in one tree by time.
 *
 * Tasks without a key share one lane, the crowd: it works like any other but running holds nobody.
 *
 * L1  At most one task of a key is running.
 * L2  The task taken is the first of its key by (priority, due, position) among those due, but a task that has started
 *     stays first until it ends.
 * L3  A retrying, delayed, paused or halted key is on no list that others wait behind.
 * L4  A key is on the ready list of its first task's priority exactly while its state is READY, and ready keys of one
 *     priority are taken in turn.
 * L5  A key without tasks costs nothing: its lane is freed, unless it is paused or one of the at most RESTING_MAX that
 *     rest. They do because a key that was busy a moment ago often is again. The memory of up to SPARE_MAX lanes that
 *     were freed is kept for the next ones.
 * L6  A lane is in the timer tree exactly while its wake time is not KL_NEVER, and next_due is the least of them.
 * L7  Time does not run backwards: a call with an earlier now sees the latest one.
 * L8  A lane is blocked while it is retrying, paused or halted, and from then on until a task of it ends well or it has
 *     none; `stuck` counts the tasks of blocked lanes and of the others those that are not due, `blocked` the former. A
 *     sign is set exactly while a blocked key has it. */
#include "lanes/lanes.h"

#include "lanes/inside.h"

/* --- A lane's own tasks --- */

static void join_line(kl__lane *lane, kl__lane_task *task)
{
    if (KL_UNLIKELY(lane->last && runs_before(task, lane->last))) {
        task->mark.place = KL_PLACE_EARLY;
        lane->odd |= ODD_EARLY;
        kl__tree_insert(&lane->early, &task->node, early_less);
        return;
    }
    task->mark.place = KL_PLACE_LINE;
    task->next = NULL;
    task->prev = lane->last;
    *(lane->last ? &lane->last->next : &lane->first) = task;
    lane->last = task;
}

static void leave_line(kl__lane *lane, kl__lane_task *task)
{
    if (KL_UNLIKELY(task->mark.place == KL_PLACE_EARLY)) {
        kl__tree_remove(&lane->early, &task->node, early_less);
        return;
    }
    *(task->prev ? &task->prev->next : &lane->first) = task->next;
    *(task->next ? &task->next->prev : &lane->last) = task->prev;
}

static void insert(kl__lane *lane, kl__lane_task *task, int64_t now_ms)
{
    if (KL_LIKELY(task->due_ms <= now_ms)) {
        join_line(lane, task);
    } else {
        task->mark.place = KL_PLACE_LATER;
        lane->odd |= ODD_LATER;
        lane->later_count++;
        kl__tree_insert(&lane->later, &task->node, later_less);
    }
}

static void leave_later(kl__lane *lane, kl__lane_task *task)
{
    lane->later_count--;
    kl__tree_remove(&lane->later, &task->node, later_less);
}

/* Tasks that have become due join the line. */
static void promote(kl__lane *lane, int64_t now_ms)
{
    kl__tree_node *node;
    while (KL_UNLIKELY((node = kl__tree_first(lane->later)) && task_of(node)->due_ms <= now_ms)) {
        leave_later(lane, task_of(node));
        join_line(lane, task_of(node));
    }
}

/* --- Where a lane stands --- */

static inline void append(struct lane_list *list, kl__lane *lane)
{
    lane->next = NULL;
    lane->prev = list->last;
    *(list->last ? &list->last->next : &list->first) = lane;
    list->last = lane;
}

static inline void unlink_lane(struct lane_list *list, kl__lane *lane)
{
    *(lane->prev ? &lane->prev->next : &list->first) = lane->next;
    *(lane->next ? &lane->next->prev : &list->last) = lane->prev;
}

static void leave_ready(kl__lanes *lanes, kl__lane *lane)
{
    int index = lane->ready_priority - KL_LANE_PRIORITY_MIN;
    unlink_lane(&lanes->ready[index], lane);
    lanes->ready_keys--;
    if (!lanes->ready[index].first)
        lanes->ready_bits &= ~(1u << index);
}

static void join_ready(kl__lanes *lanes, kl__lane *lane, int8_t priority)
{
    int index = priority - KL_LANE_PRIORITY_MIN;
    lane->ready_priority = priority;
    append(&lanes->ready[index], lane);
    lanes->ready_bits |= 1u << index;
    lanes->ready_keys++;
}

/* For a ready key whose turn had come already. */
static void go_first(kl__lanes *lanes, kl__lane *lane)
{
    struct lane_list *list = &lanes->ready[lane->ready_priority - KL_LANE_PRIORITY_MIN];
    unlink_lane(list, lane);
    lane->prev = NULL;
    lane->next = list->first;
    *(list->first ? &list->first->prev : &list->last) = lane;
    list->first = lane;
}

static void set_state(kl__lanes *lanes, kl__lane *lane, kl__lane_state state)
{
    lanes->waiting_keys[lane->state]--;
    lanes->waiting_keys[state]++;
    lane->state = (uint8_t)state;
}

static void set_wake(kl__lanes *lanes, kl__lane *lane, int64_t wake_ms)
{
    if (KL_LIKELY(lane->wake_ms == wake_ms))
        return;
    if (lane->wake_ms != KL_NEVER)
        kl__tree_remove(&lanes->timers, &lane->timer, timer_less);
    lane->wake_ms = wake_ms;
    if (wake_ms != KL_NEVER)
        kl__tree_insert(&lanes->timers, &lane->timer, timer_less);
    lanes->next_due = lanes->timers ? lane_of(kl__tree_first(lanes->timers))->wake_ms : KL_NEVER;
}

/* Forgets marks whose reason has gone. */
static void clear_marks(kl__lane *lane)
{
    if (!lane->early)
        lane->odd &= (uint8_t)~ODD_EARLY;
    if (!lane->later)
        lane->odd &= (uint8_t)~ODD_LATER;
    if (!lane->barriers)
        lane->odd &= (uint8_t)~ODD_BARRIER;
    if (!lane->out)
        lane->odd &= (uint8_t)~ODD_OUT;
}

static void count_sign(kl__lanes *lanes, uint32_t sign, bool blocked)
{
    uint32_t *count = &lanes->blocked_by_sign[sign];
    _Atomic(uint64_t) *bits = &lanes->signs.bits[sign / 64];
    uint64_t bit = UINT64_C(1) << sign % 64, others = atomic_load_explicit(bits, memory_order_relaxed) & ~bit;
    *count += blocked ? 1 : -1u;
    atomic_store_explicit(bits, *count ? others | bit : others, memory_order_relaxed);
}

/* Something that producers may have been told about blocked keys holds no more. */
static void note_change(kl__lanes *lanes)
{
    _Atomic(uint64_t) *changes = &lanes->signs.changes;
    atomic_store_explicit(changes, atomic_load_explicit(changes, memory_order_relaxed) + 1, memory_order_relaxed);
}

/* A key has become blocked, or is not any more. */
static void set_blocked(kl__lanes *lanes, kl__lane *lane, bool blocked)
{
    _Atomic(uint32_t) *keys = &lanes->signs.blocked_keys;
    lane->odd ^= ODD_BLOCKED;
    lanes->blocked += blocked ? lane->stuck : -(uint64_t)lane->stuck;
    atomic_store_explicit(keys, atomic_load_explicit(keys, memory_order_relaxed) + (blocked ? 1 : -1u),
                          memory_order_relaxed);
    for (int i = 0; i < KL_LANE_SIGNS_EACH; i++)
        count_sign(lanes, kl__lane_sign(lane->entry.hash, i), blocked);
    note_change(lanes);
}

/* Sees to L8 for a lane that is about to be in this state. */
static void count_blocked(kl__lanes *lanes, kl__lane *lane, kl__lane_state state)
{
    bool was = lane->odd & ODD_BLOCKED, is = is_blocking(state) || (was && lane->entry.tasks > 0);
    if (KL_UNLIKELY(was != is))
        set_blocked(lanes, lane, is);
    uint32_t stuck = count_stuck(lane);
    if (KL_UNLIKELY(stuck < lane->stuck))
        note_change(lanes);
    lanes->stuck += (uint64_t)stuck - lane->stuck;
    lanes->blocked += is ? (uint64_t)stuck - lane->stuck : 0;
    lane->stuck = stuck;
}

/* Puts a lane where it now belongs. Every change of a lane ends here, except on the short ways of add, take and end. */
static void settle_lane(kl__lanes *lanes, kl__lane *lane)
{
    kl__lane_task *first = NULL;
    promote(lane, lanes->now_ms);
    clear_marks(lane);
    kl__lane_state state = judge(lane, lanes->now_ms, &first);
    if (lane->state == KL_LANE_READY && (state != KL_LANE_READY || lane->ready_priority != first->mark.priority)) {
        leave_ready(lanes, lane);
        set_state(lanes, lane, KL_LANE_IDLE);
    }
    if (state == KL_LANE_READY && lane->state != KL_LANE_READY)
        join_ready(lanes, lane, first->mark.priority);
    set_state(lanes, lane, state);
    count_blocked(lanes, lane, state);
    set_wake(lanes, lane, wake_time(lane, state));
    if (state == KL_LANE_IDLE && lane->entry.tasks == 0 && !(lane->odd & ODD_CROWD))
        rest(lanes, lane);
}

/* --- The life of a task --- */

static inline void advance(kl__lanes *lanes, int64_t now_ms)
{
    if (now_ms > lanes->now_ms)
        lanes->now_ms = now_ms;
}

void kl__lanes_add(kl__lanes *lanes, kl__lane *lane, kl__lane_task *task, int64_t now_ms)
{
    KL_ASSERT(task->mark.priority >= KL_LANE_PRIORITY_MIN && task->mark.priority <= KL_LANE_PRIORITY_MAX);
    advance(lanes, now_ms);
    task->lane = lane;
    lane->entry.tasks++;
    lanes->tasks++;
    insert(lane, task, lanes->now_ms);
    if (KL_LIKELY(lane->odd == 0)) { /* the short way */
        if (lane->state == KL_LANE_IDLE) {
            lane->state = KL_LANE_READY;
            join_ready(lanes, lane, task->mark.priority);
        }
        return;
    }
    settle_lane(lanes, lane);
}

bool kl__lanes_start(kl__lanes *lanes, kl__lane *lane, kl__lane_task *task)
{
    if (lane->odd || lane->state != KL_LANE_IDLE || lanes->ready_bits || task->mark.priority != 0)
        return false;
    task->lane = lane;
    task->mark.place = KL_PLACE_RUNNING;
    lane->head = task;
    lane->state = KL_LANE_RUNNING;
    lane->entry.tasks = 1;
    lanes->tasks++;
    lanes->running++;
    return true;
}

void kl__lanes_hold(kl__lanes *lanes, kl__lane *lane, kl__lane_task *task, int64_t now_ms)
{
    if (lane->head || (lane->odd & ODD_CROWD)) {
        kl__lanes_add(lanes, lane, task, now_ms);
        return;
    }
    advance(lanes, now_ms);
    task->lane = lane;
    task->mark.place = KL_PLACE_HELD;
    lane->head = task;
    lane->entry.tasks++;
    lanes->tasks++;
    settle_lane(lanes, lane);
}

kl__lane_task *kl__lanes_evict(kl__lanes *lanes, kl__lane *lane)
{
    kl__lane_task *chain = NULL, **end = &chain, *task;
    while ((task = first_in_line(lane)) || (lane->later && (task = task_of(kl__tree_first(lane->later))))) {
        if (task->mark.place == KL_PLACE_LATER)
            leave_later(lane, task);
        else
            leave_line(lane, task);
        task->mark.place = KL_PLACE_NONE;
        task->next = NULL;
        lane->entry.tasks--;
        lanes->tasks--;
        *end = task;
        end = &task->next;
    }
    settle_lane(lanes, lane);
    return chain;
}

void kl__lanes_advance(kl__lanes *lanes, int64_t now_ms)
{
    advance(lanes, now_ms);
    while (KL_UNLIKELY(lanes->next_due <= lanes->now_ms))
        settle_lane(lanes, lane_of(kl__tree_first(lanes->timers)));
}

static kl__lane_task *take_long(kl__lanes *lanes, kl__lane *lane)
{
    kl__lane_task *task = lane->head;
    if (!task) {
        task = first_in_line(lane);
        leave_line(lane, task);
    }
    task->mark.place = KL_PLACE_RUNNING;
    leave_ready(lanes, lane);
    lane->state = KL_LANE_RUNNING;
    if (lane->odd & ODD_CROWD) {
        lane->state = KL_LANE_IDLE;
        lanes->crowd_running++;
        settle_lane(lanes, lane);
    } else {
        lane->head = task;
        set_wake(lanes, lane, KL_NEVER);
    }
    return task;
}

static inline kl__lane_task *take_first(kl__lanes *lanes)
{
    int index = __builtin_ctz(lanes->ready_bits);
    struct lane_list *ready = &lanes->ready[index];
    kl__lane *lane = ready->first;
    if (KL_UNLIKELY(lane->odd || lane->head))
        return take_long(lanes, lane);
    kl__lane_task *task = lane->first; /* the short way: the first of the first */
    lane->first = task->next;
    *(task->next ? &task->next->prev : &lane->last) = NULL;
    task->mark.place = KL_PLACE_RUNNING;
    lane->head = task;
    lane->state = KL_LANE_RUNNING;
    lanes->ready_keys--;
    ready->first = lane->next;
    *(lane->next ? &lane->next->prev : &ready->last) = NULL;
    if (!ready->first)
        lanes->ready_bits &= ~(1u << index);
    return task;
}

uint32_t kl__lanes_take(kl__lanes *lanes, kl__lane_task **ret_tasks, uint32_t most, int64_t now_ms)
{
    uint32_t count = 0;
    kl__lanes_advance(lanes, now_ms);
    while (count < most && lanes->ready_bits != 0)
        ret_tasks[count++] = take_first(lanes);
    lanes->running += count;
    return count;
}

/* A task of the lane has ended: barriers behind it wait for one task less. */
static void count_down_barriers(kl__lane *lane, uint64_t position)
{
    kl__lane_barrier **link = &lane->barriers, *barrier;
    while ((barrier = *link)) {
        if (position >= barrier->position || --barrier->waits > 0) {
            link = &barrier->next;
            continue;
        }
        *link = barrier->next;
        barrier->reached(barrier);
    }
}

static void end_long(kl__lanes *lanes, kl__lane *lane, kl__lane_task *task)
{
    if (task->mark.place == KL_PLACE_RUNNING || task->mark.place == KL_PLACE_FAILED) {
        lanes->running--;
        lanes->crowd_running -= lane->odd & ODD_CROWD ? 1 : 0;
        if (task->mark.place == KL_PLACE_RUNNING && (lane->odd & ODD_BLOCKED))
            set_blocked(lanes, lane, false); /* unless it is paused */
    } else {
        KL_ASSERT(task->mark.place == KL_PLACE_OUT);
        lane->out--;
    }
    if (lane->head == task)
        lane->head = NULL;
    if (lane->barriers)
        count_down_barriers(lane, task->position);
    settle_lane(lanes, lane);
}

void kl__lanes_end(kl__lanes *lanes, kl__lane_task *task, int64_t now_ms)
{
    kl__lane *lane = task->lane;
    advance(lanes, now_ms);
    lane->entry.tasks--;
    lanes->tasks--;
    if (KL_UNLIKELY(lane->odd || lane->head != task || task->mark.place != KL_PLACE_RUNNING)) {
        end_long(lanes, lane, task);
        return;
    }
    lanes->running--;
    lane->head = NULL;
    if (lane->first) { /* the short way */
        lane->state = KL_LANE_READY;
        join_ready(lanes, lane, lane->first->mark.priority);
    } else if (lane->entry.tasks == 0) {
        rest(lanes, lane);
    }
}

void kl__lanes_fail(kl__lane_task *task)
{
    KL_ASSERT(task->mark.place == KL_PLACE_RUNNING);
    task->mark.place = KL_PLACE_FAILED;
}

void kl__lanes_untake(kl__lanes *lanes, kl__lane_task *task, bool started, int64_t now_ms)
{
    KL_ASSERT(task->mark.place == KL_PLACE_RUNNING);
    kl__lane *lane = task->lane;
    advance(lanes, now_ms);
    bool crowd = lane->odd & ODD_CROWD;
    lanes->running--;
    lanes->crowd_running -= crowd;
    if (started && !crowd) {
        task->mark.place = KL_PLACE_HELD;
    } else {
        lane->head = NULL;
        insert(lane, task, lanes->now_ms);
    }
    settle_lane(lanes, lane);
    if (lane->state == KL_LANE_READY)
        go_first(lanes, lane);
}

void kl__lanes_retry(kl__lanes *lanes, kl__lane_task *task, int64_t due_ms, int64_t now_ms)
{
    KL_ASSERT(task->mark.place == KL_PLACE_RUNNING);
    kl__lane *lane = task->lane;
    advance(lanes, now_ms);
    lanes->running--;
    task->due_ms = due_ms;
    if (lane->odd & ODD_CROWD) {
        lanes->crowd_running--;
        insert(lane, task, lanes->now_ms);
    } else {
        task->mark.place = KL_PLACE_HELD;
    }
    settle_lane(lanes, lane);
}

void kl__lanes_halt(kl__lanes *lanes, kl__lane_task *task, int64_t now_ms)
{
    KL_ASSERT(task->mark.place == KL_PLACE_RUNNING && !(task->lane->odd & ODD_CROWD));
    advance(lanes, now_ms);
    lanes->running--;
    task->due_ms = lanes->now_ms;
    task->mark.place = KL_PLACE_HELD;
    task->lane->odd |= ODD_HALTED;
    settle_lane(lanes, task->lane);
}

static void take_out(kl__lane *lane, kl__lane_task *task)
{
    switch ((kl__lane_place)task->mark.place) {
    case KL_PLACE_LINE:
    case KL_PLACE_EARLY:
        leave_line(lane, task);
        break;
    case KL_PLACE_LATER:
        leave_later(lane, task);
        break;
    case KL_PLACE_HELD: /* and stays the head, so that nothing of its key starts before it has been reported */
        lane->odd &= (uint8_t)~ODD_HALTED;
        break;
    default:
        KL_ASSERT(!"only a task that waits can be taken out");
    }
    task->mark.place = KL_PLACE_OUT;
    task->next = NULL;
    lane->out++;
    lane->odd |= ODD_OUT;
}

void kl__lanes_withdraw(kl__lanes *lanes, kl__lane_task *task, int64_t now_ms)
{
    advance(lanes, now_ms);
    take_out(task->lane, task);
    settle_lane(lanes, task->lane);
}

bool kl__lanes_await(kl__lanes *lanes, const kl__lane_key *key, kl__lane_barrier *barrier)
{
    kl__lane *lane = kl__lanes_find(lanes, key);
    if (!lane || lane->entry.tasks == 0)
        return false;
    barrier->waits = lane->entry.tasks;
    barrier->next = lane->barriers;
    lane->barriers = barrier;
    lane->odd |= ODD_BARRIER;
    return true;
}

void kl__lanes_forget(kl__lanes *lanes, const kl__lane_key *key, kl__lane_barrier *barrier)
{
    kl__lane *lane = kl__lanes_find(lanes, key);
    for (kl__lane_barrier **link = lane ? &lane->barriers : NULL; link && *link; link = &(*link)->next) {
        if (*link == barrier) {
            *link = barrier->next;
            break;
        }
    }
}

/* --- One key --- */

kl_rc kl__lanes_pause(kl__lanes *lanes, const kl__lane_key *key, int64_t now_ms)
{
    kl__lane *lane = kl__lanes_find(lanes, key);
    if (!lane && !(lane = kl__lanes_make(lanes, key, NULL)))
        return KL_ENOMEM;
    advance(lanes, now_ms);
    lane->odd |= ODD_PAUSED;
    settle_lane(lanes, lane);
    return KL_OK;
}

static void resume_lane(kl__lanes *lanes, kl__lane *lane)
{
    lane->odd &= (uint8_t) ~(ODD_PAUSED | ODD_HALTED);
    if (lane->head && lane->head->mark.place == KL_PLACE_HELD && lane->head->due_ms > lanes->now_ms)
        lane->head->due_ms = lanes->now_ms;
    settle_lane(lanes, lane);
}

void kl__lanes_resume(kl__lanes *lanes, const kl__lane_key *key, int64_t now_ms)
{
    kl__lane *lane = kl__lanes_find(lanes, key);
    advance(lanes, now_ms);
    if (lane)
        resume_lane(lanes, lane);
}

kl__lane_task *kl__lanes_skip(kl__lanes *lanes, const kl__lane_key *key, int64_t now_ms, bool *ret_running)
{
    kl__lane *lane = kl__lanes_find(lanes, key);
    advance(lanes, now_ms);
    *ret_running = lane && lane->head && lane->head->mark.place != KL_PLACE_HELD;
    if (!lane || *ret_running)
        return NULL;
    promote(lane, lanes->now_ms);
    kl__lane_task *task = lane->head ? lane->head : first_in_line(lane);
    if (!task && lane->later)
        task = task_of(kl__tree_first(lane->later));
    if (task)
        take_out(lane, task);
    settle_lane(lanes, lane);
    return task;
}

/* Withdraws everything that waits in the lane, appends it to the chain that ends at *end, and returns its new end. The
 * lane stays, because withdrawn tasks still count. */
static kl__lane_task **drain_lane(kl__lanes *lanes, kl__lane *lane, kl__lane_task **end)
{
    for (;;) {
        kl__lane_task *task = lane->head && lane->head->mark.place == KL_PLACE_HELD ? lane->head : first_in_line(lane);
        if (!task && lane->later)
            task = task_of(kl__tree_first(lane->later));
        if (!task)
            break;
        take_out(lane, task);
        *end = task;
        end = &task->next;
    }
    settle_lane(lanes, lane);
    return end;
}

kl__lane_task *kl__lanes_drain(kl__lanes *lanes, const kl__lane_key *key, int64_t now_ms)
{
    kl__lane_task *chain = NULL;
    kl__lane *lane = kl__lanes_find(lanes, key);
    advance(lanes, now_ms);
    if (lane)
        drain_lane(lanes, lane, &chain);
    return chain;
}

/* Calls `change` for the crowd and every lane. None is freed meanwhile. */
static void change_all(kl__lanes *lanes, void (*change)(kl__lanes *lanes, kl__lane *lane, void *ctx), void *ctx)
{
    lanes->visiting = true;
    change(lanes, &lanes->crowd, ctx);
    for (uint32_t i = 0; i < lanes->table.buckets; i++)
        for (kl__keytable_entry *entry = kl__keytable_at(&lanes->table, i)->first; entry; entry = entry->next)
            change(lanes, (kl__lane *)entry, ctx);
    lanes->visiting = false;
    while (lanes->resting_count > lanes->resting_max)
        kl__lanes_make_room(lanes);
}

static void drain_one(kl__lanes *lanes, kl__lane *lane, void *ctx)
{
    kl__lane_task ***end = ctx;
    *end = drain_lane(lanes, lane, *end);
}

kl__lane_task *kl__lanes_drain_all(kl__lanes *lanes, int64_t now_ms)
{
    kl__lane_task *chain = NULL, **end = &chain;
    advance(lanes, now_ms);
    change_all(lanes, drain_one, &end);
    return chain;
}

static void resume_one(kl__lanes *lanes, kl__lane *lane, void *ctx)
{
    (void)ctx;
    if (lane->odd & (ODD_PAUSED | ODD_HALTED))
        resume_lane(lanes, lane);
}

void kl__lanes_resume_all(kl__lanes *lanes, int64_t now_ms)
{
    advance(lanes, now_ms);
    change_all(lanes, resume_one, NULL);
}
