/* tell.c - what lanes say of a key, of all keys and of themselves. Nothing here changes anything. */
#include <string.h>

#include "lanes/inside.h"

static kl__lane_info info_of(const kl__lane *lane)
{
    kl__lane_task *head = lane->head ? lane->head : first_in_line(lane);
    int64_t until = lane->state == KL_LANE_RETRYING || lane->state == KL_LANE_DELAYED ? lane->wake_ms : KL_NEVER;
    return (kl__lane_info){key_of(lane), (kl__lane_state)lane->state, lane->entry.tasks, until, head};
}

kl__lane_info kl__lanes_show(const kl__lanes *lanes, const kl__lane_key *key)
{
    const kl__lane *lane = kl__lanes_find(lanes, key);
    return lane ? info_of(lane) : (kl__lane_info){key->bytes, KL_LANE_IDLE, 0, KL_NEVER, NULL};
}

void kl__lanes_each(const kl__lanes *lanes, void (*visit)(void *ctx, const kl__lane_info *info), void *ctx)
{
    for (uint32_t i = 0; i < lanes->table.buckets; i++) {
        for (kl__keytable_entry *entry = kl__keytable_at(&lanes->table, i)->first; entry; entry = entry->next) {
            kl__lane_info info = info_of((kl__lane *)entry);
            if (info.state != KL_LANE_IDLE)
                visit(ctx, &info);
        }
    }
}

kl__lane_task *kl__lane_head(const kl__lane *lane) { return lane->head; }
uint64_t kl__lane_tasks(const kl__lane *lane) { return lane->entry.tasks; }

bool kl__lane_has_after(const kl__lane *lane, const kl__lane_task *task)
{
    return lane->early || (lane->last && runs_before(task, lane->last));
}

bool kl__lane_task_before(const kl__lane_task *task, const kl__lane_task *other) { return runs_before(task, other); }

kl__lane_state kl__lane_state_of(const kl__lane *lane) { return (kl__lane_state)lane->state; }

int64_t kl__lanes_next_due(const kl__lanes *lanes) { return lanes->next_due; }
bool kl__lanes_ready(const kl__lanes *lanes) { return lanes->ready_bits != 0; }
kl_bytes kl__lane_task_key(const kl__lane_task *task) { return key_of(task->lane); }
bool kl__lanes_prioritized(const kl__lanes *lanes) { return lanes->ready_bits & ~(1u << -KL_LANE_PRIORITY_MIN); }
uint64_t kl__lanes_stuck(const kl__lanes *lanes) { return lanes->stuck; }
uint64_t kl__lanes_blocked(const kl__lanes *lanes) { return lanes->blocked; }
uint64_t kl__lane_stuck(const kl__lane *lane) { return lane->stuck; }
bool kl__lane_blocked(const kl__lane *lane) { return lane->odd & ODD_BLOCKED; }
bool kl__lane_goes_alone(const kl__lane *lane) { return lane->odd & (ODD_BLOCKED | ODD_BARRIER); }
const kl__lane_signs *kl__lanes_signs(const kl__lanes *lanes) { return &lanes->signs; }

kl__lane_counts kl__lanes_counts(const kl__lanes *lanes)
{
    kl__lane_counts counts = {.tasks = lanes->tasks, .running = lanes->running};
    memcpy(counts.keys, lanes->waiting_keys, sizeof counts.keys);
    counts.keys[KL_LANE_IDLE] = 0; /* an idle key is no key */
    counts.keys[KL_LANE_READY] = lanes->ready_keys;
    counts.keys[KL_LANE_RUNNING] = lanes->running - lanes->crowd_running; /* not those being reported */
    return counts;
}
