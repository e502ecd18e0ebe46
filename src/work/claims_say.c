/* claims_say.c - tasks that are given out, and what is said of them.
 *
 * From: net (says), and the clock (leases that are over). To: pump.c (finish, untake); settle.c tells when it is
 * durable.
 *
 *      given ---> done, retry, dead ---> outcome: its say is answered when that is settled
 *        |------> released ------------> in line again
 *        +------> its time is over ----> an attempt less
 *
 * A say that waits is in the list `waiting`; the one outcome of it that is settled last moves it to `answered`. */
#include <stdio.h>
#include <string.h>

#include "work/claims_inside.h"

/* --- The heap: whose time is over first --- */

static void set_place(kl__claims *claims, kl__claim *claim, uint64_t place)
{
    claims->heap[place] = claim;
    claim->place = (uint32_t)place;
}

static void rise(kl__claims *claims, kl__claim *claim, uint64_t place)
{
    while (place > 0 && claims->heap[(place - 1) / 2]->until_ns > claim->until_ns) {
        set_place(claims, claims->heap[(place - 1) / 2], place);
        place = (place - 1) / 2;
    }
    set_place(claims, claim, place);
}

static void sink(kl__claims *claims, kl__claim *claim, uint64_t place)
{
    for (uint64_t child = place * 2 + 1; child < claims->running; child = place * 2 + 1) {
        if (child + 1 < claims->running && claims->heap[child + 1]->until_ns < claims->heap[child]->until_ns)
            child++;
        if (claims->heap[child]->until_ns >= claim->until_ns)
            break;
        set_place(claims, claims->heap[child], place);
        place = child;
    }
    set_place(claims, claim, place);
}

void kl__claim_lease(kl__claims *claims, kl__claim *claim, int64_t until_ns)
{
    claim->until_ns = until_ns < claim->deadline_ns ? until_ns : claim->deadline_ns;
    rise(claims, claim, claim->place);
    sink(claims, claim, claim->place);
    if (claim->until_ns < claims->wait_until_ns) /* its thread would wait longer than that */
        pthread_cond_signal(&claims->worker->ready);
}

/* --- Claims --- */

static bool grow_lists(kl__claims *claims)
{
    size_t room = claims->block_room ? claims->block_room * 2 : 4;
    kl__claim **blocks = kl__alloc_zeroed(room, sizeof *blocks);
    kl__claim **heap = kl__alloc_zeroed(room * KL_CLAIM_BLOCK, sizeof *heap);
    if (!blocks || !heap) {
        kl__free(blocks);
        kl__free(heap);
        return false;
    }
    if (claims->block_count) {
        memcpy(blocks, claims->blocks, claims->block_count * sizeof *blocks);
        memcpy(heap, claims->heap, claims->running * sizeof *heap);
    }
    kl__free(claims->blocks);
    kl__free(claims->heap);
    claims->blocks = blocks;
    claims->heap = heap;
    claims->block_room = room;
    return true;
}

static bool add_block(kl__claims *claims)
{
    if (claims->block_count == claims->block_room && !grow_lists(claims))
        return false;
    kl__claim *block = kl__alloc_zeroed(KL_CLAIM_BLOCK, sizeof *block);
    if (!block)
        return false;
    for (size_t i = KL_CLAIM_BLOCK; i-- > 0;) {
        block[i].index = (uint32_t)(claims->block_count * KL_CLAIM_BLOCK + i);
        block[i].next_free = claims->free;
        claims->free = &block[i];
    }
    claims->blocks[claims->block_count++] = block;
    return true;
}

kl_rc kl__claim_new(kl__claims *claims, kl__claim **ret_claim)
{
    if (!claims->free && !add_block(claims))
        return kl__fail_memory();
    kl__claim *claim = claims->free;
    kl_rc rc = kl__token_random(claims, claim->random);
    if (rc != KL_OK)
        return rc;
    claims->free = claim->next_free;
    claim->serial = ++claims->serial;
    claim->progress.percent = -1;
    claim->given_ns = kl__monotonic_ns();
    claim->until_ns = claim->deadline_ns = KL_NEVER;
    set_place(claims, claim, claims->running++);
    *ret_claim = claim;
    return KL_OK;
}

void kl__claim_free(kl__claims *claims, kl__claim *claim)
{
    kl__claim *last = claims->heap[--claims->running];
    if (last != claim) {
        set_place(claims, last, claim->place);
        rise(claims, last, last->place);
        sink(claims, last, last->place);
    }
    claim->held = NULL;
    claim->serial = 0;
    claim->next_free = claims->free;
    claims->free = claim;
    if (claims->running == 0) {
        claims->busy_ns = kl__monotonic_ns();
        if (claims->ending)
            pthread_cond_broadcast(&claims->worker->changed);
    }
}

static bool same_random(const uint8_t *a, const uint8_t *b)
{
    uint8_t difference = 0;
    for (int i = 0; i < KL_TOKEN_RANDOM; i++)
        difference |= a[i] ^ b[i];
    return difference == 0;
}

kl__claim *kl__claim_find(const kl__claims *claims, const kl__token *token)
{
    if (token->index / KL_CLAIM_BLOCK >= claims->block_count || token->serial == 0)
        return NULL;
    kl__claim *claim = &claims->blocks[token->index / KL_CLAIM_BLOCK][token->index % KL_CLAIM_BLOCK];
    if (!claim->held || claim->serial != token->serial || claim->held->window->partition->index != token->partition)
        return NULL;
    return same_random(claim->random, token->random) ? claim : NULL;
}

/* --- Ends --- */

void kl__claim_give_back(kl__claims *claims, kl__claim *claim)
{
    kl__pump_tell(claims->pump, claim->held, NULL);
    kl__pump_give_up(claims->pump, claim->held, claim->keep_ms);
    kl__claim_free(claims, claim);
}

void kl__claims_release_all(kl__claims *claims)
{
    while (claims->running)
        kl__claim_give_back(claims, claims->heap[claims->running - 1]);
    if (kl__worker_has_outcomes(claims->worker))
        pthread_cond_signal(&claims->worker->outcomes);
}

/* The say is told of the outcome; NULL: nobody is. False: the shard is lost, and it counts for nothing. */
static bool finish(kl__claims *claims, kl__claim *claim, const kl__verdict *verdict, kl__claim_say *say)
{
    kl__held *held = claim->held;
    bool lost = atomic_load(&held->window->lost);
    kl__pump_tell(claims->pump, held, NULL);
    kl__pump_finish(claims->pump, held, verdict);
    if (!lost && say) {
        held->waiter = say;
        bool drains = held->halted && held->draining; /* it is dead together with the rest of its line */
        say->outcome = drains ? KL_DEAD : (kl_outcome)held->outcome;
        say->halted = held->halted && !drains;
    }
    kl__claim_free(claims, claim);
    return !lost;
}

void kl__claims_expire(kl__claims *claims, int64_t now_ns)
{
    char error[128];
    uint64_t before = claims->expired;
    while (claims->running && claims->heap[0]->until_ns <= now_ns) {
        kl__claim *claim = claims->heap[0];
        bool timed_out = claim->deadline_ns <= now_ns;
        if (timed_out)
            snprintf(error, sizeof error, "it ran longer than %lld ms", (long long)claim->timeout_ms);
        else
            snprintf(error, sizeof error, "its lease of %lld ms is over: the client neither finished nor extended it",
                     (long long)claim->lease_ms);
        kl__verdict verdict = {.outcome = KL_RETRY,
                               .retry_after_ms = -1,
                               .error = kl_str(error),
                               .attempts_max = claim->attempts_max,
                               .keep_ms = claim->keep_ms};
        uint32_t partition = claim->held->window->partition->index;
        finish(claims, claim, &verdict, NULL);
        claims->expired++;
        if (claims->lapsed)
            claims->lapsed(claims->told_ctx, partition);
    }
    if (claims->expired > before)
        kl__pump_log(claims->pump, KL_LOG_INFO, "queue %s: %llu leases ran out, and their tasks are tried again",
                     claims->worker->served[0].queue->name, (unsigned long long)(claims->expired - before));
    if (claims->expired > before && kl__worker_has_outcomes(claims->worker))
        pthread_cond_signal(&claims->worker->outcomes);
}

/* --- Says --- */

static kl_rc check_lease(int64_t lease_ms)
{
    if (lease_ms >= 0 && lease_ms <= KL_CLAIM_LEASE_MS_MAX)
        return KL_OK;
    return kl__fail(KL_EINVAL, "a lease of %lld ms was asked for; ask for up to 12 hours", (long long)lease_ms);
}

static kl_rc check_say(const kl__claim_say *say)
{
    if (say->result.len > KL_RESULT_BYTES_MAX)
        return kl__fail(KL_EINVAL,
                        "the result has %zu bytes; up to %u are kept, so store it elsewhere and name it here",
                        say->result.len, KL_RESULT_BYTES_MAX);
    if (say->word == KL_CLAIM_RETRY && say->retry_after_ms > KL_EXEC_WAIT_MS_MAX)
        return kl__fail(KL_EINVAL, "a retry after %lld ms was asked for; ask for up to %lld",
                        (long long)say->retry_after_ms, (long long)KL_EXEC_WAIT_MS_MAX);
    return check_lease(say->lease_ms);
}

static void end(kl__claims *claims, kl__claim *claim, kl__claim_say *say)
{
    static const kl_outcome outcomes[] = {
        [KL_CLAIM_DONE] = KL_DONE, [KL_CLAIM_RETRY] = KL_RETRY, [KL_CLAIM_DEAD] = KL_DEAD};
    kl__verdict verdict = {.outcome = outcomes[say->word],
                           .retry_after_ms = say->retry_after_ms < 0 ? -1 : say->retry_after_ms,
                           .error = say->error,
                           .result = say->result,
                           .attempts_max = claim->attempts_max,
                           .keep_ms = claim->keep_ms};
    if (finish(claims, claim, &verdict, say))
        say->says->pending++;
    else
        say->rc = KL_ESTALE;
}

static void extend(kl__claims *claims, kl__claim *claim, kl__claim_say *say, int64_t now_ns)
{
    if (say->lease_ms)
        claim->lease_ms = say->lease_ms;
    if (say->word == KL_CLAIM_EXTEND || say->lease_ms)
        kl__claim_lease(claims, claim, kl__claims_until_ns(now_ns, claim->lease_ms));
    say->cancelled = kl__pump_unwanted(claim->held);
    say->lease_until_ms = kl__wall_ms() + (claim->until_ns - now_ns) / 1000000;
}

static void show_progress(kl__claims *claims, kl__claim *claim, const kl__claim_say *say)
{
    kl__progress *progress = &claim->progress;
    size_t length = say->text.len < sizeof progress->text ? say->text.len : sizeof progress->text - 1;
    progress->percent = say->percent < 0 ? -1 : say->percent > 100 ? 100 : say->percent;
    if (length)
        memcpy(progress->text, say->text.data, length);
    progress->text[length] = '\0';
    kl__pump_tell(claims->pump, claim->held, progress);
}

static void hear(kl__claims *claims, kl__claim_say *say, int64_t now_ns)
{
    kl__token token;
    kl__claim *claim = kl__token_read(say->token, &token) ? kl__claim_find(claims, &token) : NULL;
    say->rc = KL_OK;
    if (!claim || claim->until_ns <= now_ns) { /* the second: its thread has not come to it yet */
        claims->stale++;
        say->rc = KL_ENOTFOUND;
        return;
    }
    say->ran_ns = now_ns - claim->given_ns;
    say->partition = claim->held->window->partition->index;
    if ((say->rc = check_say(say)) != KL_OK)
        return;
    if (atomic_load(&claim->held->window->lost)) {
        kl__claim_give_back(claims, claim);
        say->rc = KL_ESTALE;
        return;
    }
    switch (say->word) {
    case KL_CLAIM_DONE:
    case KL_CLAIM_RETRY:
    case KL_CLAIM_DEAD:
        end(claims, claim, say);
        break;
    case KL_CLAIM_RELEASE:
        kl__claim_give_back(claims, claim);
        break;
    case KL_CLAIM_PROGRESS:
        show_progress(claims, claim, say);
        extend(claims, claim, say, now_ns);
        break;
    case KL_CLAIM_EXTEND:
        extend(claims, claim, say, now_ns);
        break;
    }
}

/* --- Answers --- */

static void wait_for_outcomes(kl__claims *claims, kl__claim_says *says, int64_t now_ns)
{
    says->until_ns = kl__claims_until_ns(now_ns, KL_SAY_ERROR_MS);
    says->previous = NULL;
    says->next = claims->waiting;
    if (claims->waiting)
        claims->waiting->previous = says;
    claims->waiting = says;
}

static void leave_waiting(kl__claims *claims, kl__claim_says *says)
{
    *(says->previous ? &says->previous->next : &claims->waiting) = says->next;
    if (says->next)
        says->next->previous = says->previous;
    says->next = NULL;
}

/* What was said may have let others go on, and is to be sent. */
static void pass_on(kl__claims *claims)
{
    if (kl__worker_has_outcomes(claims->worker))
        pthread_cond_signal(&claims->worker->outcomes);
    if (claims->first)
        kl__worker_wake(claims->worker, kl__pump_ready(claims->pump));
}

void kl__claims_say(kl__claims *claims, kl__claim_says *says)
{
    kl_worker *worker = claims->worker;
    pthread_mutex_lock(&worker->mutex);
    bool closed = claims->closed;
    int64_t now_ns = kl__monotonic_ns();
    says->pending = 0;
    for (size_t i = 0; i < says->count && !closed; i++) {
        says->says[i].says = says;
        hear(claims, &says->says[i], now_ns);
    }
    bool waits = says->pending > 0;
    if (waits)
        wait_for_outcomes(claims, says, now_ns);
    if (!closed)
        pass_on(claims);
    pthread_mutex_unlock(&worker->mutex);
    if (!waits)
        says->answer(says, closed ? kl__fail(KL_ECLOSED, "the queue's claims are closed; ask again") : KL_OK);
}

bool kl__claims_settled(void *context, void *waiter, kl_rc rc)
{
    kl__claims *claims = context;
    kl__claim_say *say = waiter;
    kl__claim_says *says = say->says;
    if (rc != KL_OK && rc != KL_ESTALE && kl__monotonic_ns() < says->until_ns)
        return false; /* it is sent again */
    say->rc = rc;
    if (--says->pending > 0)
        return true;
    leave_waiting(claims, says);
    *(claims->answered ? &claims->answered_last->next : &claims->answered) = says;
    claims->answered_last = says;
    return true;
}

void kl__claims_deliver(kl__claims *claims)
{
    kl__claim_says *next, *says = claims->answered;
    if (!says)
        return;
    claims->answered = claims->answered_last = NULL;
    pthread_mutex_unlock(&claims->worker->mutex);
    for (; says; says = next) {
        next = says->next;
        says->answer(says, KL_OK);
    }
    pthread_mutex_lock(&claims->worker->mutex);
}

/* While outcomes wait the thread that sends them has better things to do. */
void kl__claims_after(void *context)
{
    kl__claims *claims = context;
    if (claims->answered && claims->started && !claims->closed && kl__worker_has_outcomes(claims->worker))
        pthread_cond_signal(&claims->worker->ready);
    else
        kl__claims_deliver(claims);
}
