/* settle.c - what came of tasks: settle, fence, forget. Each is one object of the shard's journal.
 *
 * From: workers.  To: journal/<partition>/<shard>/<number>.json.
 *
 *     read the journal to its end -> write what follows from that -> put it at the next number
 *                 ^------------------------ 412: somebody was first ------+
 *
 * Whoever puts a number has read all before it, so a settle whose epoch was fenced off never gets one (E3). A shard
 * that this process owns needs no reading first: if its journal has gone on, the number is taken, and that is found
 * out. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "store/s3/s3.h"

enum { READ_AGAIN = 16, LOSSES_MAX = 64 };

/* What is to be written to one shard. */
struct commit {
    kl__s3_shard *shard;
    kl_settle *settle; /* one of these four */
    kl_fence *fence;
    const kl_task_id *forget;
    const uint64_t *revoke; /* positions */
    size_t forget_count, revoke_count;

    kl__s3_text body; /* empty: there is nothing to write */
    uint64_t number, nonce;
    uint64_t generation;        /* of the shard, when it was read for this */
    int64_t since_ns, asked_ns; /* as of when the number was known to be free; when it was asked for */
    size_t repeats;             /* of the shard's, how many are in the body */
    char *name;
    bool done, doubted;
    unsigned losses; /* numbers that others had first */
    kl_rc rc;
};

/* --- Bodies --- */

static void begin_body(kl__s3 *s3, struct commit *commit, uint64_t epoch)
{
    commit->body.len = 0;
    commit->nonce = kl__s3_nonce();
    kl__s3_text_put(&commit->body, "{\"keyline\":%d,\"at\":%lld,\"nonce\":\"%016llx\",\"epoch\":\"%llx\"", KL_S3_FORMAT,
                    (long long)s3->memory->now_ms, (unsigned long long)commit->nonce, (unsigned long long)epoch);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Positions as runs, sorted. */
static void put_runs(kl__s3_text *body, uint64_t *positions, size_t count, bool *first)
{
    qsort(positions, count, sizeof *positions, by_value);
    for (size_t i = 0; i < count; i++) {
        uint64_t from = positions[i];
        while (i + 1 < count && positions[i + 1] == positions[i] + 1 &&
               positions[i + 1] >> KL_S3_INDEX_BITS == from >> KL_S3_INDEX_BITS)
            i++;
        kl__s3_text_put(body, "%s", *first ? "\n" : ",\n");
        kl__s3_put_run(body, from >> KL_S3_INDEX_BITS, (uint32_t)(from & (KL_S3_ENTRIES_MAX - 1)),
                       (uint32_t)(positions[i] & (KL_S3_ENTRIES_MAX - 1)));
        *first = false;
    }
}

static void put_retry(kl__s3_text *body, const kl_settled *settled, int64_t expires_ms)
{
    kl__s3_retry retry = {.position = settled->position, .attempts = settled->attempts, .due_ms = settled->due_ms};
    bool leaves = settled->keep_ms > 0 && settled->error.len > 0;
    kl__memory_left *left =
        leaves ? kl__s3_left_make(settled->attempts, expires_ms, settled->error, (kl_bytes){0}) : NULL;
    if (leaves && !left)
        body->failed = true;
    retry.left = left;
    kl__s3_put_retry(body, &retry);
    kl__free(left);
}

static kl_task_state state_after(kl_outcome outcome)
{
    return outcome == KL_DONE ? KL_TASK_DONE : outcome == KL_DEAD ? KL_TASK_DEAD : KL_TASK_CANCELLED;
}

static void put_kept(const kl__s3 *s3, kl__s3_text *body, const kl__memory_task *task, const kl_settled *settled,
                     int64_t expires_ms)
{
    kl__s3_end end = {.position = settled->position,
                      .entry = &task->entry,
                      .state = state_after(settled->outcome),
                      .attempts = settled->attempts,
                      .finished_ms = s3->memory->now_ms,
                      .expires_ms = expires_ms,
                      .error = settled->error,
                      .result = settled->result,
                      .left = task->left,
                      .left_at_ms = s3->memory->now_ms};
    kl__s3_put_end(body, &end);
}

/* One task's part. Positions of those that end without a trace are collected. */
static void put_settled(kl__s3 *s3, struct commit *commit, const kl_settled *settled, uint64_t *plain,
                        size_t *plain_count, bool *first)
{
    kl__memory_shard *lines = kl__memory_shard_of(s3->memory, commit->shard->place);
    kl__memory_task *task = lines ? kl__memory_waiting(lines, &settled->id) : NULL;
    if (!task || task->position != settled->position || task->next) /* next: it ended earlier in this batch */
        return;
    int64_t keep_ms = settled->keep_ms < s3->opts.history_ms_max ? settled->keep_ms : s3->opts.history_ms_max;
    int64_t expires_ms = s3->memory->now_ms + keep_ms;
    if (settled->outcome != KL_RETRY)
        task->next = task;
    if (settled->outcome != KL_RETRY && keep_ms <= 0) {
        plain[(*plain_count)++] = settled->position;
        return;
    }
    kl__s3_text_put(&commit->body, "%s", *first ? "\n" : ",\n");
    *first = false;
    if (settled->outcome == KL_RETRY)
        put_retry(&commit->body, settled, expires_ms);
    else
        put_kept(s3, &commit->body, task, settled, expires_ms);
}

static void unmark(kl__s3 *s3, const struct commit *commit)
{
    kl__memory_shard *lines = kl__memory_shard_of(s3->memory, commit->shard->place);
    for (size_t i = 0; lines && i < commit->settle->count; i++) {
        kl__memory_task *task = kl__memory_waiting(lines, &commit->settle->tasks[i].id);
        if (task)
            task->next = NULL;
    }
}

static kl_rc write_settle(kl__s3 *s3, struct commit *commit)
{
    const kl_settle *batch = commit->settle;
    kl__s3_shard *shard = commit->shard;
    size_t plain_count = 0;
    bool first = true;
    if (batch->epoch < shard->epoch)
        return kl__fail(
            KL_ESTALE,
            "shard %u of partition %u is fenced at epoch %llu, above %llu; another owner has taken it over, "
            "so drop what was taken from it",
            shard->place.shard, shard->place.partition, (unsigned long long)shard->epoch,
            (unsigned long long)batch->epoch);
    uint64_t *plain = kl__alloc_zeroed(batch->count + shard->repeat_count + 1, sizeof *plain);
    if (!plain)
        return kl__fail_memory();
    begin_body(s3, commit, batch->epoch);
    kl__s3_text_put(&commit->body, ",\"items\":[");
    for (size_t i = 0; i < batch->count; i++)
        put_settled(s3, commit, &batch->tasks[i], plain, &plain_count, &first);
    unmark(s3, commit);
    commit->repeats = plain_count || !first ? shard->repeat_count : 0;
    for (size_t i = 0; i < commit->repeats; i++)
        plain[plain_count++] = shard->repeats[i];
    put_runs(&commit->body, plain, plain_count, &first);
    kl__s3_text_put(&commit->body, "]}\n");
    kl__free(plain);
    if (commit->body.failed)
        return kl__fail_memory();
    if (first)
        commit->body.len = 0;
    return KL_OK;
}

static kl_rc write_fence(kl__s3 *s3, struct commit *commit)
{
    uint64_t epoch = commit->fence->epoch;
    if (epoch < commit->shard->epoch && !commit->fence->seal)
        return kl__fail(
            KL_ESTALE,
            "shard %u of partition %u is fenced at epoch %llu already, above %llu; another owner has taken it "
            "over",
            commit->shard->place.shard, commit->shard->place.partition, (unsigned long long)commit->shard->epoch,
            (unsigned long long)epoch);
    commit->body.len = 0;
    if (epoch <= commit->shard->epoch)
        return KL_OK;
    begin_body(s3, commit, epoch);
    kl__s3_text_put(&commit->body, ",\"fence\":\"%llx\",\"items\":[]}\n", (unsigned long long)epoch);
    return commit->body.failed ? kl__fail_memory() : KL_OK;
}

/* Whether the task may wait still. Of what is not loaded nobody knows; ending it twice does no harm. */
static bool may_wait(kl__s3_shard *shard, uint64_t position)
{
    uint32_t index = position & (KL_S3_ENTRIES_MAX - 1);
    const kl__s3_object *object = kl__s3_object_of(shard, position >> KL_S3_INDEX_BITS);
    if (!object || !object->loaded)
        return position >> KL_S3_INDEX_BITS > shard->taken;
    return index < object->count && object->tasks[index];
}

static kl_rc write_revoke(kl__s3 *s3, struct commit *commit)
{
    uint64_t *plain = kl__alloc_zeroed(commit->revoke_count + 1, sizeof *plain);
    size_t count = 0;
    bool first = true;
    if (!plain)
        return kl__fail_memory();
    for (size_t i = 0; i < commit->revoke_count; i++)
        if (may_wait(commit->shard, commit->revoke[i]))
            plain[count++] = commit->revoke[i];
    begin_body(s3, commit, 0);
    kl__s3_text_put(&commit->body, ",\"items\":[");
    put_runs(&commit->body, plain, count, &first);
    kl__s3_text_put(&commit->body, "]}\n");
    kl__free(plain);
    if (commit->body.failed)
        return kl__fail_memory();
    if (first)
        commit->body.len = 0;
    return KL_OK;
}

static kl_rc write_forget(kl__s3 *s3, struct commit *commit)
{
    long long until_ms = s3->memory->now_ms + s3->opts.history_ms_max;
    begin_body(s3, commit, 0);
    kl__s3_text_put(&commit->body, ",\"items\":[");
    for (size_t i = 0; i < commit->forget_count; i++) {
        kl__s3_text_put(&commit->body, "%s{", i ? ",\n" : "\n");
        kl__s3_put_id(&commit->body, "forget", &commit->forget[i]);
        kl__s3_text_put(&commit->body, ",\"until_ms\":%lld}", until_ms);
    }
    kl__s3_text_put(&commit->body, "]}\n");
    return commit->body.failed ? kl__fail_memory() : KL_OK;
}

/* --- Committing --- */

/* Those that were noted since the body was written stay. */
static void drop_repeats(kl__s3_shard *shard, size_t count)
{
    if (count == 0 || count > shard->repeat_count)
        return;
    shard->repeat_count -= count;
    memmove(shard->repeats, shard->repeats + count, shard->repeat_count * sizeof *shard->repeats);
}

/* The journal's object is there. A replica that has been cleared meanwhile reads it when it is wanted. */
static void apply_written(kl__s3 *s3, kl__s3_shard *shard, struct commit *commit)
{
    if (shard->generation != commit->generation)
        return;
    shard->journal_ns = shard->followed_ns = kl__s3_known_since(commit->asked_ns);
    drop_repeats(shard, commit->repeats);
    if (shard->journal + 1 == commit->number && kl__s3_apply_journal(s3, shard, commit->number, &commit->body) != KL_OK)
        kl__s3_shard_clear(s3, shard); /* it is there all the same: what is in memory is read anew */
}

static void note_written(kl__s3 *s3, struct commit *commit)
{
    kl__s3_shard *shard = commit->shard;
    commit->done = true;
    if (commit->settle)
        atomic_fetch_add(&s3->settled, commit->settle->count);
    kl__memory_enter(s3->memory);
    apply_written(s3, shard, commit);
    shard->written_ns = kl__monotonic_ns();
    shard->written = commit->number;
    bool due = shard->journal >= shard->checkpoint + s3->checkpoint_every;
    kl__memory_leave(s3->memory);
    if (due)
        kl__s3_upkeep_wake(s3);
}

/* It was put, but so late that the number may have been used and deleted before. Behind the checkpoint it counts for
 * nothing: then everything is read anew, and it is tried again or refused. */
static kl_rc verify(kl__s3 *s3, struct commit *commit)
{
    kl__s3_request request;
    uint64_t journal = 0;
    char *name = kl__s3_name(s3, "index/%s/%s.json", commit->shard->partition->name, commit->shard->digits);
    kl_rc rc = kl__s3_get_object(s3, name, &request);
    kl__free(name);
    if (rc != KL_OK)
        return rc;
    json_t *root = request.status == 200 ? kl__s3_parse(&request.reply) : NULL;
    bool good = request.status == 404 || (root && kl__s3_get_hex(root, "journal", &journal));
    json_decref(root);
    kl__s3_request_free(&request);
    if (good && journal < commit->number) {
        note_written(s3, commit);
        return KL_OK;
    }
    kl__memory_enter(s3->memory);
    kl__s3_shard_clear(s3, commit->shard);
    kl__memory_leave(s3->memory);
    return kl__s3_refresh(s3, &commit->shard, 1, true);
}

/* The body stands under its number. */
static kl_rc win(kl__s3 *s3, struct commit *commit)
{
    if (kl__s3_is_late(s3, commit->since_ns))
        return verify(s3, commit);
    note_written(s3, commit);
    return KL_OK;
}

/* The number is taken: by us, or the journal has gone on. */
static kl_rc lose(kl__s3 *s3, struct commit *commit)
{
    kl__s3_request request;
    kl_rc rc = kl__s3_get_object(s3, commit->name, &request);
    if (rc != KL_OK)
        return rc;
    bool own = request.status == 200 && kl__s3_has_nonce(&request.reply, commit->nonce);
    kl__s3_request_free(&request);
    if (own)
        return win(s3, commit);
    if (++commit->losses > LOSSES_MAX)
        return kl__fail(KL_EBUSY, "others write to the journal of shard %u all the time; call again",
                        commit->shard->place.shard);
    return kl__s3_refresh(s3, &commit->shard, 1, true);
}

static kl_rc write_body(kl__s3 *s3, struct commit *commit)
{
    return commit->settle   ? write_settle(s3, commit)
           : commit->fence  ? write_fence(s3, commit)
           : commit->revoke ? write_revoke(s3, commit)
                            : write_forget(s3, commit);
}

/* The body and its number, from one and the same state of the replica. False: that is not what was read for it. */
static bool prepare(kl__s3 *s3, struct commit *commit)
{
    const kl__s3_shard *shard = commit->shard;
    kl__memory_enter(s3->memory);
    bool good = shard->loaded && shard->generation == commit->generation;
    if (good) {
        commit->rc = write_body(s3, commit);
        commit->number = shard->journal + 1;
        commit->since_ns = shard->journal_ns;
        commit->asked_ns = kl__monotonic_ns();
    }
    kl__memory_leave(s3->memory);
    return good;
}

/* Writes the bodies of all that are not done, one for each shard. *ret_again: there are some whose shard must be read
 * again first. */
static size_t choose(kl__s3 *s3, struct commit *commits, size_t count, kl__s3_request *requests, struct commit **chosen,
                     bool *ret_again)
{
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        struct commit *commit = &commits[i];
        bool taken = false;
        for (size_t j = 0; j < used; j++)
            taken |= chosen[j]->shard == commit->shard;
        if (commit->done || taken)
            continue;
        if (!prepare(s3, commit)) {
            *ret_again = true;
            continue;
        }
        kl__free(commit->name);
        commit->name = kl__s3_log_name(s3, "journal", commit->shard, commit->number);
        if (commit->rc == KL_OK && !commit->name)
            commit->rc = kl__fail_memory();
        commit->done = commit->rc != KL_OK || commit->body.len == 0;
        if (commit->done)
            continue;
        requests[used] = (kl__s3_request){
            .kind = KL_S3_PUT, .name = commit->name, .absent = true, .body = {commit->body.data, commit->body.len}};
        chosen[used++] = commit;
    }
    return used;
}

static void judge(kl__s3 *s3, struct commit *commit, const kl__s3_request *reply)
{
    if (reply->status >= 200 && reply->status < 300)
        commit->rc = win(s3, commit);
    else if (reply->status == 412)
        commit->rc = lose(s3, commit);
    else if (reply->status == 0 || reply->status >= 500 || reply->status == 409 || reply->status == 429)
        commit->rc = kl__fail(KL_EBUSY, "no answer from S3 to a settle; call again");
    else
        commit->rc = kl__s3_refused(reply);
    commit->done |= commit->rc != KL_OK;
}

/* Journals of all shards are read to their ends, unless they are ours. */
static kl_rc read_journals(kl__s3 *s3, const struct commit *commits, size_t count, bool owned_too)
{
    kl__s3_shard **shards = kl__alloc_zeroed(count, sizeof *shards);
    size_t used = 0;
    if (!shards)
        return kl__fail_memory();
    for (size_t i = 0; i < count; i++) {
        bool known = false;
        for (size_t j = 0; j < used; j++)
            known |= shards[j] == commits[i].shard;
        if (!known)
            shards[used++] = commits[i].shard;
    }
    kl_rc rc = kl__s3_refresh(s3, shards, used, owned_too);
    kl__free(shards);
    return rc;
}

/* Of the task objects that it is about; 0: of none. */
static uint64_t last_number(const struct commit *commit)
{
    uint64_t last = 0;
    for (size_t i = 0; commit->settle && i < commit->settle->count; i++)
        last = commit->settle->tasks[i].position > last ? commit->settle->tasks[i].position : last;
    return last >> KL_S3_INDEX_BITS;
}

/* Tasks that are settled must be in the replica. */
static kl_rc read_tasks(kl__s3 *s3, const struct commit *commits, size_t count)
{
    kl__s3_more *more = kl__alloc_zeroed(count, sizeof *more);
    size_t used = 0;
    if (!more)
        return kl__fail_memory();
    kl__memory_enter(s3->memory);
    for (size_t i = 0; i < count; i++) {
        kl__s3_shard *shard = commits[i].shard;
        uint64_t last = last_number(&commits[i]);
        if (!commits[i].done && last > shard->taken) {
            shard->ended = false;
            shard->tail_ns = last > shard->tail ? 0 : shard->tail_ns; /* whoever saw the task knows more than we do */
            more[used++] = (kl__s3_more){.shard = shard, .want = (size_t)(last - shard->taken)};
        }
    }
    kl__memory_leave(s3->memory);
    kl_rc rc = kl__s3_extend(s3, more, used);
    kl__free(more);
    return rc;
}

/* Others go on without those whose shard is broken. */
static void leave_broken_out(kl__s3 *s3, struct commit *commits, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (commits[i].done || !kl__s3_is_broken(s3, commits[i].shard))
            continue;
        commits[i].rc = KL_EDAMAGED; /* the sentence stands already */
        commits[i].done = true;
    }
}

/* Reads what bodies are made from. */
static kl_rc read_all(kl__s3 *s3, struct commit *commits, size_t count, bool owned_too)
{
    kl__memory_enter(s3->memory);
    for (size_t i = 0; i < count; i++)
        commits[i].generation = commits[i].shard->generation;
    kl__memory_leave(s3->memory);
    kl_rc rc = read_journals(s3, commits, count, owned_too);
    if (rc == KL_EDAMAGED) {
        leave_broken_out(s3, commits, count);
        rc = KL_OK;
    }
    return rc == KL_OK ? read_tasks(s3, commits, count) : rc;
}

static void send_all(kl__s3 *s3, kl__s3_request *requests, struct commit **chosen, size_t count)
{
    kl_rc sent = kl__s3_send(s3->http, requests, count); /* each says itself what came of it */
    (void)sent;
    for (size_t i = 0; i < count; i++) {
        judge(s3, chosen[i], &requests[i]);
        kl__s3_request_free(&requests[i]);
    }
}

/* Commits all, of which everything has been read. Each says itself what came of it, unless the call fails as a
 * whole. */
static kl_rc commit_all(kl__s3 *s3, struct commit *commits, size_t count)
{
    kl__s3_request *requests = kl__alloc_zeroed(count ? count : 1, sizeof *requests);
    struct commit **chosen = kl__alloc_zeroed(count ? count : 1, sizeof *chosen);
    kl_rc rc = requests && chosen ? KL_OK : kl__fail_memory();
    bool again = true;
    size_t used = 0;
    for (int reads = 0; rc == KL_OK && (again || used > 0); reads += again) {
        again = false;
        used = choose(s3, commits, count, requests, chosen, &again);
        send_all(s3, requests, chosen, used);
        if (again && reads == READ_AGAIN)
            rc = kl__fail(KL_EBUSY, "a shard has changed again and again while it was read; call again");
        else if (again)
            rc = read_all(s3, commits, count, false);
    }
    kl__free(requests);
    kl__free(chosen);
    return rc;
}

static struct commit *open_commits(size_t count) { return kl__alloc_zeroed(count ? count : 1, sizeof(struct commit)); }

static void close_commits(struct commit *commits, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        kl__s3_text_free(&commits[i].body);
        kl__free(commits[i].name);
    }
    kl__free(commits);
}

static kl__s3_shard *shard_at(kl__s3 *s3, kl_place place)
{
    kl__memory_enter(s3->memory);
    kl__s3_shard *shard = kl__s3_shard_make(s3, place);
    kl__memory_leave(s3->memory);
    return shard;
}

/* --- The calls --- */

/* A busy process settles in batches: the longer the call takes, the more is there for the next one. Nothing is held
 * meanwhile, so takeovers do not wait for it. */
static void pace(kl__s3 *s3)
{
    int64_t settled_ns = s3->settled_ns, wait_ns = settled_ns + s3->settle_ms * 1000000 - kl__monotonic_ns();
    if (settled_ns && wait_ns > 0) {
        struct timespec wait = {.tv_sec = wait_ns / 1000000000, .tv_nsec = wait_ns % 1000000000};
        nanosleep(&wait, NULL);
    }
}

/* Its journal has been read to the end since it was last cleared. */
static bool is_followed(const kl__s3_shard *shard) { return shard->loaded && shard->followed_ns != 0; }

/* A shard of ours whose journal we have not touched for long is looked at like another's before it is written to: what
 * follows in it may have been written, and deleted, by a later owner. */
static void doubt(kl__s3 *s3, struct commit *commits, size_t count, bool ends)
{
    int64_t limit_ns = kl__monotonic_ns() - INT64_C(4) * KL_S3_TRUST_MS * 1000000;
    kl__memory_enter(s3->memory);
    for (size_t i = 0; i < count; i++) {
        kl__s3_shard *shard = commits[i].shard;
        if (ends && commits[i].doubted)
            shard->owned = is_followed(shard) && shard->epoch <= commits[i].settle->epoch;
        if (ends || !shard->owned || (shard->journal_ns >= limit_ns && !kl__s3_is_late(s3, shard->journal_ns)))
            continue;
        commits[i].doubted = true;
        shard->owned = false;
    }
    kl__memory_leave(s3->memory);
}

/* Somebody else has fenced it; not so if it was this process, since. */
static void disown(kl__s3 *s3, kl__s3_shard *shard, uint64_t epoch)
{
    kl__memory_enter(s3->memory);
    if (shard->fenced <= epoch) {
        shard->owned = false;
        shard->fenced = 0;
    }
    kl__memory_leave(s3->memory);
}

kl_rc kl__s3_settle(void *self, kl_settle *batches, size_t count)
{
    kl__s3 *s3 = self;
    kl_rc first = KL_OK;
    struct commit *commits = open_commits(count);
    kl_rc rc = commits ? KL_OK : kl__fail_memory();
    pace(s3);
    pthread_mutex_lock(&s3->journal_mutex);
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        commits[i] = (struct commit){.shard = shard_at(s3, batches[i].place), .settle = &batches[i]};
        rc = commits[i].shard ? KL_OK : kl__fail_memory();
    }
    if (rc == KL_OK) {
        doubt(s3, commits, count, false);
        rc = read_all(s3, commits, count, false);
        doubt(s3, commits, count, true);
    }
    if (rc == KL_OK)
        rc = commit_all(s3, commits, count);
    s3->settled_ns = kl__monotonic_ns();
    pthread_mutex_unlock(&s3->journal_mutex);
    for (size_t i = 0; i < count; i++) {
        batches[i].rc = rc != KL_OK ? rc : commits[i].rc;
        first = first != KL_OK ? first : batches[i].rc;
        if (batches[i].rc == KL_ESTALE)
            disown(s3, commits[i].shard, batches[i].epoch);
    }
    if (first == KL_ESTALE)
        (void)kl__fail(KL_ESTALE,
                       "a batch is for a shard that is fenced above its epoch; another owner has taken it over, "
                       "so drop what was taken from it");
    close_commits(commits, commits ? count : 0);
    return first;
}

/* Fenced by us, so it is ours; if it has been cleared meanwhile it is read like another's to its end first. */
static void take_over(kl__s3_shard *shard, uint64_t epoch)
{
    shard->partition->worked = true;
    shard->fenced = epoch;
    shard->owned = is_followed(shard);
}

static kl_rc seal_all(kl__s3 *s3, kl_fence *fences, const struct commit *commits, size_t count)
{
    kl_rc first = KL_OK;
    size_t seals = 0;
    for (size_t i = 0; i < count; i++)
        seals += fences[i].seal;
    if (seals > KL_S3_PROBES)
        (void)kl__s3_pulse(s3, 0); /* tells where logs end, if it shows all of them */
    for (size_t i = 0; i < count; i++) {
        if (!fences[i].seal || fences[i].rc != KL_OK)
            continue;
        fences[i].rc = kl__s3_seal(s3, commits[i].shard);
        first = first != KL_OK ? first : fences[i].rc;
    }
    return first;
}

kl_rc kl__s3_fence(void *self, kl_fence *fences, size_t count)
{
    kl__s3 *s3 = self;
    kl_rc first = KL_OK;
    struct commit *commits = open_commits(count);
    kl_rc rc = commits ? KL_OK : kl__fail_memory();
    pthread_mutex_lock(&s3->journal_mutex);
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        commits[i] = (struct commit){.shard = shard_at(s3, fences[i].place), .fence = &fences[i]};
        rc = commits[i].shard ? KL_OK : kl__fail_memory();
    }
    if (rc == KL_OK)
        rc = read_all(s3, commits, count, true);
    if (rc == KL_OK)
        rc = commit_all(s3, commits, count);
    kl__memory_enter(s3->memory);
    for (size_t i = 0; i < count; i++) {
        fences[i].rc = rc != KL_OK ? rc : commits[i].rc;
        first = first != KL_OK ? first : fences[i].rc;
        if (fences[i].rc == KL_OK && !fences[i].seal)
            take_over(commits[i].shard, fences[i].epoch);
    }
    kl__memory_leave(s3->memory);
    pthread_mutex_unlock(&s3->journal_mutex);
    if (rc == KL_OK)
        rc = seal_all(s3, fences, commits, count);
    first = first != KL_OK ? first : rc;
    if (first == KL_ESTALE)
        (void)kl__fail(KL_ESTALE,
                       "a shard is fenced above the epoch that was asked for; another owner has taken it over");
    close_commits(commits, commits ? count : 0);
    return first;
}

/* Commits one. */
static kl_rc commit_one(kl__s3 *s3, struct commit *commit)
{
    if (!commit->shard)
        return kl__fail_memory();
    pthread_mutex_lock(&s3->journal_mutex);
    kl_rc rc = read_all(s3, commit, 1, false);
    if (rc == KL_OK)
        rc = commit_all(s3, commit, 1);
    pthread_mutex_unlock(&s3->journal_mutex);
    rc = rc == KL_OK ? commit->rc : rc;
    kl__s3_text_free(&commit->body);
    kl__free(commit->name);
    return rc;
}

kl_rc kl__s3_forget(void *self, kl_place place, const kl_task_id *ids, size_t count)
{
    struct commit commit = {.shard = shard_at(self, place), .forget = ids, .forget_count = count};
    return commit_one(self, &commit);
}

kl_rc kl__s3_revoke(kl__s3 *s3, kl__s3_shard *shard, const uint64_t *positions, size_t count)
{
    struct commit commit = {.shard = shard, .revoke = positions, .revoke_count = count};
    return commit_one(s3, &commit);
}
