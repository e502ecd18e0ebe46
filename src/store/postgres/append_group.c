/* append_group.c - appends that threads make at the same time become one transaction.
 *
 * From: append.c, for appends that name themselves.  To: append.c again, with all of a group.
 *
 *     a caller:   into the line ──► somebody leads? ──yes──► waits ──► done, or has to do it alone
 *                                        └──no──► leads: takes the line ──► one append ──► tells the others
 *
 * One group is under way at a time; what comes meanwhile goes with the next. Callers that put again as soon as they are
 * answered would take turns for ever, in two halves; so whoever comes waits for a moment for as many as were there when
 * the last group ended, unless that was in vain of late.
 *
 * A group is all or nothing, and each of its calls has its own token. Where it did not work out, for whatever reason,
 * every caller makes his call alone: the token tells whether it was made, and the failure, if it is still one, is his.
 * It may have been committed and not yet be on disk then, so a call that is made alone for this reason flushes.
 *
 * A1  Who leads holds no mutex while the store is called, and ends the group whatever happens.
 * A2  A call that waits is in the line, or in the group that is under way. It leaves the line by itself after a while,
 *     so nobody waits for long behind a group that has to wait for a shard. */
#include "base/wait.h"
#include "store/postgres/append.h"

enum {
    GROUP_ENTRIES = 400,
    GROUP_BYTES = 1 << 18,
    LARGE_ENTRIES = 128, /* one that has more is better off alone */
    LINGER_NS = 200000,
    PATIENCE_MS = 20,
    VAIN_MAX = 63,
};

typedef enum member_state { IN_LINE, CARRIED, DONE, ALONE } member_state;

struct kl__pg_member {
    const kl_append *append;
    kl__pg_member *next;
    member_state state;
    kl_rc rc;
};

void kl__pg_groups_open(kl__pg_groups *groups)
{
    pthread_mutex_init(&groups->mutex, NULL);
    kl__cond_init(&groups->ended);
}

void kl__pg_groups_close(kl__pg_groups *groups)
{
    pthread_mutex_destroy(&groups->mutex);
    pthread_cond_destroy(&groups->ended);
}

/* --- The line; the mutex is held --- */

static void enter(kl__pg_groups *groups, kl__pg_member *member)
{
    kl__pg_member **link = &groups->line;
    while (*link)
        link = &(*link)->next;
    *link = member;
    groups->count++;
}

static void leave(kl__pg_groups *groups, const kl__pg_member *member)
{
    kl__pg_member **link = &groups->line;
    while (*link != member)
        link = &(*link)->next;
    *link = member->next;
    groups->count--;
}

/* Waits for those who were there when the last group ended; the last of them leads, and need not be woken. True: look
 * again. False: it is time to lead. */
static bool linger(kl__pg_groups *groups, const kl__pg_member *member)
{
    int64_t until_ns = groups->ended_ns + LINGER_NS;
    bool all = groups->count >= groups->expected;
    if (all && groups->lingering > 0)
        groups->vain = 0;
    if (all || kl__monotonic_ns() >= until_ns)
        return false;
    if (groups->rests > 0) {
        groups->rests--;
        return false;
    }
    groups->lingering++;
    bool woken = kl__cond_wait(&groups->ended, &groups->mutex, until_ns);
    groups->lingering--;
    if (woken || groups->under_way || member->state != IN_LINE) /* who wakes late may have been carried meanwhile */
        return true;
    groups->vain = 2 * groups->vain + 1 < VAIN_MAX ? 2 * groups->vain + 1 : VAIN_MAX;
    groups->rests = groups->vain;
    return false;
}

/* The first of the line, as many as may go together: at least one. */
static kl__pg_member *take(kl__pg_groups *groups, size_t *ret_count)
{
    kl__pg_member *first = groups->line, **link = &groups->line;
    size_t entries = 0, bytes = 0, count = 0;
    while (*link) {
        const kl_append *append = (*link)->append;
        entries += append->count;
        bytes += append->bytes;
        if (count > 0 && (entries > GROUP_ENTRIES || bytes > GROUP_BYTES))
            break;
        (*link)->state = CARRIED;
        link = &(*link)->next;
        count++;
    }
    groups->line = *link;
    *link = NULL;
    groups->count -= (uint32_t)count;
    *ret_count = count;
    return first;
}

/* --- A group --- */

static kl_rc append_members(kl__pg *pg, const kl__pg_member *first, size_t count)
{
    kl_append whole = {0};
    size_t tokens_used = 0;
    for (const kl__pg_member *member = first; member; member = member->next) {
        whole.count += member->append->count;
        whole.bytes += member->append->bytes;
    }
    kl_entry *entries = kl__alloc_zeroed(whole.count, sizeof *entries), *to = entries;
    kl_token *tokens = kl__alloc_zeroed(count, sizeof *tokens);
    for (const kl__pg_member *member = first; entries && tokens && member; member = member->next) {
        memcpy(to, member->append->entries, member->append->count * sizeof *to);
        to += member->append->count;
        tokens[tokens_used++] = *member->append->token;
    }
    whole.entries = entries;
    whole.token = tokens;
    kl_rc rc = entries && tokens ? kl__pg_append_together(pg, &whole, tokens, count) : kl__fail_memory();
    kl__free(entries);
    kl__free(tokens);
    return rc;
}

/* The mutex is held, and left meanwhile. */
static void lead(kl__pg *pg, const kl__pg_member *leader)
{
    kl__pg_groups *groups = &pg->groups;
    size_t count = 0;
    groups->under_way = true;
    kl__pg_member *first = take(groups, &count);
    bool single = first == leader && count == 1;
    pthread_mutex_unlock(&groups->mutex);
    kl_rc rc = single ? kl__pg_append_alone(pg, leader->append, false) : append_members(pg, first, count);
    pthread_mutex_lock(&groups->mutex);
    for (kl__pg_member *member = first, *next; member; member = next) {
        next = member->next; /* whoever is told may be gone at once */
        member->rc = rc;
        member->state = single || rc == KL_OK ? DONE : ALONE;
    }
    groups->under_way = false;
    groups->ended_ns = kl__monotonic_ns();
    groups->expected = (uint32_t)count + groups->count;
    pthread_cond_broadcast(&groups->ended);
}

kl_rc kl__pg_append_grouped(kl__pg *pg, const kl_append *append)
{
    kl__pg_groups *groups = &pg->groups;
    kl__pg_member member = {.append = append};
    int64_t until_ns = kl__deadline_ns(PATIENCE_MS);
    if (append->count > LARGE_ENTRIES || append->bytes > GROUP_BYTES / 2)
        return kl__pg_append_alone(pg, append, false);
    pthread_mutex_lock(&groups->mutex);
    enter(groups, &member);
    while (member.state == IN_LINE || member.state == CARRIED) {
        if (member.state == IN_LINE && !groups->under_way) {
            if (!linger(groups, &member))
                lead(pg, &member);
        } else if (!kl__cond_wait(&groups->ended, &groups->mutex, member.state == CARRIED ? KL_NEVER : until_ns) &&
                   member.state == IN_LINE && groups->under_way) {
            leave(groups, &member);
            pthread_mutex_unlock(&groups->mutex);
            return kl__pg_append_alone(pg, append, false);
        }
    }
    pthread_mutex_unlock(&groups->mutex);
    return member.state == DONE ? member.rc : kl__pg_append_alone(pg, append, true);
}
