/* test_model.c - lanes against a naive model, by random operations.
 *
 * The model keeps every task in one array and answers each question by looking at all of them. It shares no idea with
 * lanes.c but the rules. Few keys, few priorities and a clock that jumps make collisions of all kinds frequent; key
 * hashes are cut to two bits so that chains of the key table are walked. */
#include <stdlib.h>

#include "base/random.h"
#include "harness.h"
#include "lanes/lanes.h"

enum { KEYS = 9, TASKS = 160, BARRIERS = 8 }; /* key 0 is no key */

struct task {
    kl__lane_task lane;
    int key;
    int64_t due_ms;
    enum { FREE, WAITING, RUNNING, HELD, OUT } is;
    bool holds; /* OUT, and its key waits for its end */
};

struct key {
    bool paused, halted, blocked;
    bool ready; /* and since when, for the turns */
    int8_t priority;
    int64_t turn;
};

/* A barrier, and the positions that must end before it is reached. */
struct barrier {
    kl__lane_barrier lane;
    uint64_t after[TASKS];
    int after_count, key;
    bool used, reached;
};

struct model {
    uint64_t random;
    int64_t now_ms;
    uint64_t position;
    int64_t first_turn, turn;
    kl__lanes *lanes;
    struct task tasks[TASKS];
    struct key keys[KEYS];
    struct barrier barriers[BARRIERS];
    uint64_t taken, ended, reached, started, held, evicted;
};

static uint64_t below(struct model *m, uint64_t bound) { return kl__random_below(&m->random, bound); }

static const kl__lane_key *key_named(int key)
{
    static const char *names[KEYS] = {"",
                                      "a",
                                      "b",
                                      "customer-17",
                                      "0123456789012345678901234567890123456789",
                                      "f",
                                      "g",
                                      "h",
                                      "a key that is too long to be kept inside of its lane itself"};
    static kl__lane_key keys[KEYS];
    keys[key] = (kl__lane_key){kl_str(names[key]), (uint32_t)key & 3};
    return &keys[key];
}

static bool before(const struct task *a, const struct task *b)
{
    if (a->lane.mark.priority != b->lane.mark.priority)
        return a->lane.mark.priority < b->lane.mark.priority;
    if (a->due_ms != b->due_ms)
        return a->due_ms < b->due_ms;
    return a->lane.position < b->lane.position;
}

/* The task of the key that should start next, or NULL with the reason. */
static struct task *next_of(struct model *m, int key, kl__lane_state *ret_state)
{
    struct task *first = NULL;
    bool later = false;
    *ret_state = KL_LANE_IDLE;
    for (int i = 0; key && i < TASKS; i++) {
        struct task *task = &m->tasks[i];
        if (task->key != key || (task->is != RUNNING && task->is != HELD && !(task->is == OUT && task->holds)))
            continue;
        *ret_state = task->is != HELD           ? KL_LANE_RUNNING
                     : m->keys[key].halted      ? KL_LANE_HALTED
                     : m->keys[key].paused      ? KL_LANE_PAUSED
                     : task->due_ms > m->now_ms ? KL_LANE_RETRYING
                                                : KL_LANE_READY;
        return *ret_state == KL_LANE_READY ? task : NULL;
    }
    for (int i = 0; i < TASKS; i++) {
        struct task *task = &m->tasks[i];
        if (task->key != key || task->is != WAITING)
            continue;
        if (task->due_ms > m->now_ms)
            later = true;
        else if (!first || before(task, first))
            first = task;
    }
    *ret_state = m->keys[key].paused ? KL_LANE_PAUSED : first ? KL_LANE_READY : later ? KL_LANE_DELAYED : KL_LANE_IDLE;
    return *ret_state == KL_LANE_READY ? first : NULL;
}

static uint64_t count_live(const struct model *m, int key)
{
    uint64_t live = 0;
    for (int i = 0; i < TASKS; i++)
        live += m->tasks[i].key == key && m->tasks[i].is != FREE;
    return live;
}

/* Turns: a key that becomes ready, or whose first task's priority changes, goes to the end of that priority's round. */
static void stamp_turn(struct model *m, int key, int64_t turn)
{
    kl__lane_state state;
    struct task *first = next_of(m, key, &state);
    struct key *k = &m->keys[key];
    if (first && (!k->ready || k->priority != first->lane.mark.priority)) {
        k->turn = turn;
        k->priority = first->lane.mark.priority;
    }
    k->ready = first != NULL;
    if (state == KL_LANE_RETRYING || state == KL_LANE_PAUSED || state == KL_LANE_HALTED)
        k->blocked = true;
    else if (count_live(m, key) == 0)
        k->blocked = false;
}

static void update_turn(struct model *m, int key) { stamp_turn(m, key, ++m->turn); }

/* A task of the key was taken and not run: it is the first whose turn it is. */
static void return_turn(struct model *m, int key)
{
    update_turn(m, key);
    m->keys[key].turn = --m->first_turn;
}

static int free_slot(struct model *m)
{
    for (int i = 0; i < TASKS; i++)
        if (m->tasks[i].is == FREE)
            return i;
    return -1;
}

static struct task *pick(struct model *m, int is)
{
    int start = (int)below(m, TASKS);
    for (int i = 0; i < TASKS; i++) {
        struct task *task = &m->tasks[(start + i) % TASKS];
        if ((int)task->is == is)
            return task;
    }
    return NULL;
}

static void reached(kl__lane_barrier *barrier) { KL_CONTAINER(barrier, struct barrier, lane)->reached = true; }

/* A task has ended: a barrier has been reached exactly when all that it waits for has. */
static void check_barriers(struct model *m, uint64_t position)
{
    for (int i = 0; i < BARRIERS; i++) {
        struct barrier *barrier = &m->barriers[i];
        if (!barrier->used)
            continue;
        for (int j = 0; j < barrier->after_count; j++)
            if (barrier->after[j] == position)
                barrier->after[j] = barrier->after[--barrier->after_count];
        CHECK_INT(barrier->reached, barrier->after_count == 0);
        barrier->used = !barrier->reached;
        m->reached += barrier->reached;
    }
}

static void model_end(struct model *m, struct task *task)
{
    task->is = FREE;
    m->ended++;
    kl__lanes_end(m->lanes, &task->lane, m->now_ms);
    check_barriers(m, task->lane.position);
    update_turn(m, task->key);
}

/* A new task, and its key's lane; NULL: there are enough. */
static struct task *make(struct model *m, kl__lane **ret_lane)
{
    int slot = free_slot(m);
    if (slot < 0)
        return NULL;
    struct task *task = &m->tasks[slot];
    *task = (struct task){.key = (int)below(m, KEYS), .is = WAITING};
    task->due_ms = m->now_ms - 3 + (int64_t)below(m, below(m, 3) ? 4 : 40);
    task->lane = (kl__lane_task){.due_ms = task->due_ms, .position = ++m->position};
    task->lane.mark.priority = (int8_t)(below(m, 3) ? 0 : (int)below(m, 5) - 2);
    *ret_lane = kl__lanes_lane(m->lanes, key_named(task->key)->bytes, key_named(task->key)->hash);
    CHECK(*ret_lane != NULL);
    return *ret_lane ? task : NULL;
}

static void do_add(struct model *m)
{
    kl__lane *lane;
    struct task *task = make(m, &lane);
    if (!task)
        return;
    kl__lanes_add(m->lanes, lane, &task->lane, m->now_ms);
    update_turn(m, task->key);
}

/* Started at once, or else added: it may be only if it would have been the one to be taken, and has no priority. */
static void do_start(struct model *m)
{
    kl__lane *lane;
    kl__lane_state state;
    bool others = false;
    struct task *task = make(m, &lane);
    if (!task)
        return;
    task->lane.mark.priority = below(m, 8) ? 0 : 1;
    task->due_ms = task->lane.due_ms = m->now_ms - (int64_t)below(m, 3);
    for (int key = 0; key < KEYS; key++)
        others |= key != task->key && next_of(m, key, &state);
    if (!kl__lanes_start(m->lanes, lane, &task->lane)) {
        kl__lanes_add(m->lanes, lane, &task->lane, m->now_ms);
        update_turn(m, task->key);
        return;
    }
    CHECK(!others && next_of(m, task->key, &state) == task && task->lane.mark.priority == 0);
    task->is = RUNNING;
    m->keys[task->key].ready = false;
    update_turn(m, task->key);
    m->started++;
}

/* It has started elsewhere: it is the first of its key, unless another has. */
static void do_hold(struct model *m)
{
    kl__lane *lane;
    struct task *task = make(m, &lane);
    if (!task)
        return;
    bool holds = task->key != 0;
    for (int i = 0; i < TASKS; i++)
        holds &= m->tasks[i].key != task->key || m->tasks[i].is == FREE || m->tasks[i].is == WAITING ||
                 (m->tasks[i].is == OUT && !m->tasks[i].holds);
    task->is = holds ? HELD : WAITING;
    kl__lanes_hold(m->lanes, lane, &task->lane, m->now_ms);
    CHECK(!holds || kl__lane_head(lane) == &task->lane);
    update_turn(m, task->key);
    m->held += holds;
}

static bool has_barrier(const struct model *m, int key)
{
    for (int i = 0; i < BARRIERS; i++)
        if (m->barriers[i].used && m->barriers[i].key == key)
            return true;
    return false;
}

/* All that waits is gone, without an end; so nobody must wait for it. */
static void do_evict(struct model *m)
{
    int key = (int)below(m, KEYS);
    kl__lane *lane = kl__lanes_find(m->lanes, key_named(key));
    if (!lane || has_barrier(m, key))
        return;
    for (kl__lane_task *got = kl__lanes_evict(m->lanes, lane); got; got = got->next, m->evicted++) {
        struct task *task = KL_CONTAINER(got, struct task, lane);
        CHECK(task->key == key && task->is == WAITING);
        task->is = FREE;
    }
    for (int i = 0; i < TASKS; i++)
        CHECK(m->tasks[i].key != key || m->tasks[i].is != WAITING);
    update_turn(m, key);
}

static void do_barrier(struct model *m)
{
    struct barrier *barrier = &m->barriers[below(m, BARRIERS)];
    int key = (int)below(m, KEYS);
    if (barrier->used)
        return;
    *barrier = (struct barrier){.key = key, .lane = {.position = m->position + 1, .reached = reached}};
    for (int i = 0; i < TASKS; i++)
        if (m->tasks[i].is != FREE && m->tasks[i].key == key)
            barrier->after[barrier->after_count++] = m->tasks[i].lane.position;
    barrier->used = kl__lanes_await(m->lanes, key_named(key), &barrier->lane);
    CHECK_INT(barrier->used, barrier->after_count > 0);
    if (barrier->used && below(m, 4) == 0) {
        kl__lanes_forget(m->lanes, key_named(key), &barrier->lane);
        barrier->used = false;
    }
}

/* Whether key a must have its turn before key b. */
static bool goes_before(const struct key *a, const struct key *b)
{
    return a->priority != b->priority ? a->priority < b->priority : a->turn < b->turn;
}

/* The task that was taken next; NULL: none was. */
static void check_taken(struct model *m, struct task *task)
{
    kl__lane_state state;
    if (task)
        CHECK(next_of(m, task->key, &state) == task);
    for (int key = 0; key < KEYS; key++)
        if (next_of(m, key, &state))
            CHECK(task && !goes_before(&m->keys[key], &m->keys[task->key]));
    if (!task)
        return;
    task->is = RUNNING;
    m->keys[task->key].ready = false;
    update_turn(m, task->key);
    m->taken++;
}

static void do_take(struct model *m)
{
    enum { MOST = 5 };
    kl__lane_task *got[MOST];
    uint32_t most = 1 + (uint32_t)(below(m, 4) ? 0 : below(m, MOST)), count = 0;
    count = kl__lanes_take(m->lanes, got, most, m->now_ms);
    for (uint32_t i = 0; i < count; i++)
        check_taken(m, KL_CONTAINER(got[i], struct task, lane));
    if (count < most)
        check_taken(m, NULL);
}

static void do_settle(struct model *m)
{
    struct task *task = pick(m, RUNNING);
    if (!task)
        return;
    switch (below(m, 15)) {
    case 0:
    case 1:
    case 3:
        task->due_ms = m->now_ms - 1 + (int64_t)below(m, 20);
        task->is = task->key ? HELD : WAITING;
        kl__lanes_retry(m->lanes, &task->lane, task->due_ms, m->now_ms);
        update_turn(m, task->key);
        break;
    case 4:
    case 5: {
        bool started = below(m, 2);
        task->is = started && task->key ? HELD : WAITING;
        kl__lanes_untake(m->lanes, &task->lane, started, m->now_ms);
        return_turn(m, task->key);
        break;
    }
    case 2:
        if (task->key) {
            task->is = HELD;
            m->keys[task->key].halted = true;
            task->due_ms = m->now_ms;
            kl__lanes_halt(m->lanes, &task->lane, m->now_ms);
            update_turn(m, task->key);
            break;
        } /* fall through */
    default:
        if (below(m, 2))
            kl__lanes_fail(&task->lane);
        else
            m->keys[task->key].blocked = false;
        model_end(m, task);
    }
}

static void model_withdrawn(struct model *m, struct task *task)
{
    task->holds = task->is == HELD;
    if (task->holds)
        m->keys[task->key].halted = false;
    task->is = OUT;
}

static void do_withdraw(struct model *m)
{
    struct task *task = pick(m, below(m, 2) ? WAITING : HELD);
    if (!task)
        return;
    kl__lanes_withdraw(m->lanes, &task->lane, m->now_ms);
    CHECK_INT(kl__lane_task_key(&task->lane).len, key_named(task->key)->bytes.len);
    model_withdrawn(m, task);
    update_turn(m, task->key);
}

static void model_resumed(struct model *m, int key)
{
    m->keys[key].paused = m->keys[key].halted = false;
    for (int i = 0; key && i < TASKS; i++)
        if (m->tasks[i].key == key && m->tasks[i].is == HELD && m->tasks[i].due_ms > m->now_ms)
            m->tasks[i].due_ms = m->now_ms;
}

/* Those that become ready at one moment share a turn, as in do_time. */
static void do_all(struct model *m)
{
    uint64_t waiting = 0;
    if (below(m, 2)) {
        kl__lanes_resume_all(m->lanes, m->now_ms);
        for (int key = 0; key < KEYS; key++)
            if (m->keys[key].paused || m->keys[key].halted)
                model_resumed(m, key);
    } else {
        for (int i = 0; i < TASKS; i++)
            waiting += m->tasks[i].is == WAITING || m->tasks[i].is == HELD;
        for (kl__lane_task *got = kl__lanes_drain_all(m->lanes, m->now_ms); got; got = got->next, waiting--)
            model_withdrawn(m, KL_CONTAINER(got, struct task, lane));
        CHECK_INT(waiting, 0);
    }
    m->turn++;
    for (int key = 0; key < KEYS; key++)
        stamp_turn(m, key, m->turn);
}

static void do_key(struct model *m)
{
    int key = (int)below(m, KEYS);
    struct key *k = &m->keys[key];
    switch (below(m, 12)) {
    case 0:
        CHECK(kl__lanes_pause(m->lanes, key_named(key), m->now_ms) == KL_OK);
        k->paused = true;
        break;
    case 1: {
        bool running;
        kl__lane_task *got = kl__lanes_skip(m->lanes, key_named(key), m->now_ms, &running);
        for (int i = 0; i < TASKS; i++) {
            struct task *other = &m->tasks[i];
            if (got && other->key == key && &other->lane != got && other->is == WAITING && other->due_ms <= m->now_ms)
                CHECK(KL_CONTAINER(got, struct task, lane)->is == HELD ||
                      before(KL_CONTAINER(got, struct task, lane), other));
            if (key && other->key == key &&
                (other->is == RUNNING || (&other->lane != got && other->is == OUT && other->holds)))
                CHECK(running && !got);
        }
        if (got)
            model_withdrawn(m, KL_CONTAINER(got, struct task, lane));
        break;
    }
    case 2: {
        uint64_t waiting = 0;
        for (int i = 0; i < TASKS; i++)
            waiting += m->tasks[i].key == key && (m->tasks[i].is == WAITING || m->tasks[i].is == HELD);
        for (kl__lane_task *got = kl__lanes_drain(m->lanes, key_named(key), m->now_ms); got; got = got->next, waiting--)
            model_withdrawn(m, KL_CONTAINER(got, struct task, lane));
        CHECK_INT(waiting, 0);
        break;
    }
    default:
        kl__lanes_resume(m->lanes, key_named(key), m->now_ms);
        model_resumed(m, key);
    }
    update_turn(m, key);
}

/* Keys that wake at one moment may take their turns in any order, so they share a turn here. Lanes notice the time when
 * they are asked for a task. */
static void do_time(struct model *m)
{
    m->now_ms += 1 + (int64_t)below(m, 3);
    m->turn++;
    for (int key = 0; key < KEYS; key++)
        stamp_turn(m, key, m->turn);
    if (kl__lanes_next_due(m->lanes) <= m->now_ms)
        do_take(m);
    kl__lanes_advance(m->lanes, m->now_ms - 50); /* a clock that lags behind changes nothing: L7 */
}

static void check_keys(struct model *m)
{
    uint64_t live = 0, running = 0;
    bool prioritized = false;
    for (int i = 0; i < TASKS; i++) {
        live += m->tasks[i].is != FREE;
        running += m->tasks[i].is == RUNNING;
    }
    CHECK_INT(kl__lanes_counts(m->lanes).tasks, live);
    CHECK_INT(kl__lanes_counts(m->lanes).running, running);
    for (int key = 0; key < KEYS; key++) {
        kl__lane_state state;
        const struct task *next = next_of(m, key, &state);
        prioritized |= next && next->lane.mark.priority != 0;
        CHECK_INT(kl__lanes_show(m->lanes, key_named(key)).state, state);
        const kl__lane *lane = kl__lanes_find(m->lanes, key_named(key));
        CHECK_INT(lane && kl__lane_blocked(lane), m->keys[key].blocked);
        if (lane && m->keys[key].blocked)
            CHECK_INT(kl__lane_stuck(lane), count_live(m, key));
    }
    CHECK_INT(kl__lanes_prioritized(m->lanes), prioritized);
    CHECK(kl__lanes_valid(m->lanes));
}

TEST(lanes_agree_with_a_naive_model)
{
    struct model *m = calloc(1, sizeof *m);
    uint64_t operations = test_ops(1000000);
    m->random = test_seed();
    m->now_ms = 1000;
    m->lanes = kl__lanes_open();
    REQUIRE(m->lanes != NULL);
    for (uint64_t i = 0; i < operations && !test_failed(); i++) {
        uint64_t dice = below(m, 100);
        struct task *out;
        bool is_calm = i / 2048 % 2; /* from time to time nothing is ready, and a task may start at once */
        if (dice < 17)
            is_calm ? do_take(m) : do_add(m);
        else if (dice < 24)
            do_start(m);
        else if (dice < 27)
            do_hold(m);
        else if (dice < 52)
            do_take(m);
        else if (dice < 76)
            do_settle(m);
        else if (dice < 78)
            do_withdraw(m);
        else if (dice < 81)
            do_key(m);
        else if (dice < 82)
            do_barrier(m);
        else if (dice < 83)
            below(m, 8) ? do_evict(m) : do_all(m);
        else if (dice < 90)
            do_time(m);
        else if ((out = pick(m, OUT)))
            model_end(m, out);
        if (i % 64 == 0 || operations < 10000)
            check_keys(m);
    }
    printf("# %" PRIu64 " operations, %" PRIu64 " taken, %" PRIu64 " ended, %" PRIu64 " barriers reached\n", operations,
           m->taken, m->ended, m->reached);
    printf("# %" PRIu64 " started, %" PRIu64 " held, %" PRIu64 " evicted\n", m->started, m->held, m->evicted);
    CHECK(m->taken > operations / 20 && m->ended > operations / 20 && m->reached > operations / 2000);
    CHECK(m->started > operations / 1000 && m->held > operations / 1000 && m->evicted > operations / 1000);
    kl__lanes_close(m->lanes);
    free(m);
}
