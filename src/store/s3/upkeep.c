/* upkeep.c - checkpoints, and deleting what nobody needs any more.
 *
 * From: settle.c, and time.  To: index/, done/, dead/.
 *
 *     kept tasks -> done/ and dead/ -> index (if nobody else was first) -> much later: objects that it covers are
 *     deleted
 *
 * None of it is needed for the promises: a shard without a checkpoint is read from its logs. What a checkpoint says is
 * what the journal says up to its number, whoever writes it; it is put over the one that was read, so it never goes
 * back. Deletes are by name, without conditions: nothing that is deleted is ever looked for again (E1, E4). */
#include <stdio.h>
#include <stdlib.h>

#include "base/wait.h"
#include "store/s3/s3.h"

enum {
    LOOK_MS = 5000,
    IDLE_MS = 20000,
    KEPT_MS = 60000,
    RECORD_MS = 60000, /* a worker uses those that it watches more often; lists need what was seen within poll_ms */
    UNSWEPT_MS = 60000,
    DELETES_MAX = 10000,
    UNUSED_OBJECTS = 64,
    LOOKED_AT = 4 * KL_S3_CHECKPOINT /* journal objects that are followed before a checkpoint is read again */
};

static bool is_over(int64_t since_ns, int64_t ms) { return kl__monotonic_ns() - since_ns >= ms * 1000000; }

/* --- What is kept --- */

typedef void each_fn(kl__memory_task *task, void *ctx);

static void each_finished(kl__tree_node *node, each_fn *each, void *ctx)
{
    if (!node)
        return;
    kl__tree_node *right = node->right;
    each_finished(node->left, each, ctx);
    each_finished(right, each, ctx);
    each(KL_CONTAINER(node, kl__memory_task, by_id), ctx);
}

struct archive {
    kl__s3_text body;
    size_t count;
    int64_t expires_ms; /* of the last one */
    bool dead;          /* dead and cancelled ones, or done ones */
};

static void archive_one(kl__memory_task *task, void *ctx)
{
    struct archive *archive = ctx;
    if (task->line != KL_S3_IN_JOURNAL || (task->state != KL_TASK_DONE) != archive->dead)
        return;
    kl__s3_end end = {.position = task->position,
                      .entry = &task->entry,
                      .state = task->state,
                      .attempts = task->attempts,
                      .finished_ms = task->finished_ms,
                      .expires_ms = task->expires_ms,
                      .result = task->result,
                      .left = task->left};
    kl__s3_text_put(&archive->body, "%s", archive->count++ ? ",\n" : "\n");
    kl__s3_put_end(&archive->body, &end);
    task->line = KL_S3_BEING_ARCHIVED;
    if (task->expires_ms > archive->expires_ms)
        archive->expires_ms = task->expires_ms;
}

static void write_archive(kl__s3 *s3, const kl__s3_shard *shard, struct archive *archive)
{
    const kl__memory_shard *lines = kl__memory_shard_of(s3->memory, shard->place);
    kl__s3_text_put(&archive->body, "{\"keyline\":%d,\"items\":[", KL_S3_FORMAT);
    if (lines)
        each_finished(lines->finished, archive_one, archive);
    kl__s3_text_put(&archive->body, "]}\n");
}

struct ending {
    int32_t line; /* what those that were being archived become */
    bool drops;
    kl__memory_task *dropped;
};

static void end_one(kl__memory_task *task, void *ctx)
{
    struct ending *ending = ctx;
    if (task->line == KL_S3_BEING_ARCHIVED)
        task->line = ending->line;
    if (ending->drops && task->line == KL_S3_ARCHIVED) {
        task->next = ending->dropped;
        ending->dropped = task;
    }
}

/* What was archived: memory has no use for it, unless somebody here asks for finished tasks. */
static void end_archive(kl__s3 *s3, kl__s3_shard *shard, bool archived)
{
    const kl__memory_shard *lines = kl__memory_shard_of(s3->memory, shard->place);
    struct ending ending = {.line = archived ? KL_S3_ARCHIVED : KL_S3_IN_JOURNAL,
                            .drops = archived && shard->kept == KL_S3_KEPT_NONE};
    if (lines)
        each_finished(lines->finished, end_one, &ending);
    for (kl__memory_task *task = ending.dropped, *next; task; task = next) {
        next = task->next;
        task->next = NULL;
        kl__memory_drop(s3->memory, task);
    }
}

/* Nobody has asked for finished tasks for a while. */
static void drop_kept(kl__s3 *s3, kl__s3_shard *shard)
{
    pthread_mutex_lock(&s3->kept_mutex);
    kl__memory_enter(s3->memory);
    if (shard->kept != KL_S3_KEPT_NONE && is_over(shard->kept_ns, KEPT_MS)) {
        shard->kept = KL_S3_KEPT_NONE;
        atomic_fetch_add(&s3->clears, 1); /* who is about to answer from it begins anew */
        end_archive(s3, shard, true);
    }
    kl__memory_leave(s3->memory);
    pthread_mutex_unlock(&s3->kept_mutex);
}

/* --- The checkpoint --- */

static void put_separator(kl__s3_text *text, bool *first)
{
    kl__s3_text_put(text, "%s", *first ? "\n" : ",\n");
    *first = false;
}

/* Everything behind `first`: what is settled, and what is to be tried again. */
static void put_objects(kl__s3_text *text, const kl__tree_node *node, uint64_t behind, bool *first)
{
    if (!node)
        return;
    const kl__s3_object *object = KL_CONTAINER(node, kl__s3_object, by_number);
    put_objects(text, node->left, behind, first);
    if (object->number > behind) {
        size_t before = text->len;
        bool was_first = *first;
        put_separator(text, first);
        if (!kl__s3_put_settled(text, object)) {
            text->len = before;
            *first = was_first;
        }
        for (const kl__s3_retry *retry = object->retries; retry; retry = retry->next) {
            put_separator(text, first);
            kl__s3_put_retry(text, retry);
        }
    }
    put_objects(text, node->right, behind, first);
}

static void put_retry_line(kl__s3_text *text, const kl__tree_node *node, bool *first)
{
    if (!node)
        return;
    const kl__memory_task *task = KL_CONTAINER(node, kl__memory_task, in_order);
    kl__s3_retry retry = {
        .position = task->position, .attempts = task->attempts, .due_ms = task->not_before_ms, .left = task->left};
    put_retry_line(text, node->left, first);
    put_separator(text, first);
    kl__s3_put_retry(text, &retry);
    put_retry_line(text, node->right, first);
}

/* The first object that has tasks that wait, or may have. */
static const kl__s3_object *first_live(const kl__tree_node *node)
{
    if (!node)
        return NULL;
    const kl__s3_object *object = KL_CONTAINER(node, kl__s3_object, by_number), *found = first_live(node->left);
    if (found)
        return found;
    return !object->loaded || object->live ? object : first_live(node->right);
}

static uint64_t first_of(const kl__s3_shard *shard)
{
    const kl__s3_object *live = first_live(shard->objects);
    return live && live->number <= shard->taken ? live->number - 1 : shard->taken;
}

static void put_tokens(kl__s3_text *text, const kl__s3_shard *shard)
{
    kl__s3_text_put(text, "],\"tokens\":[");
    for (const kl__s3_token *token = shard->oldest_token; token; token = token->next) {
        kl__s3_text_put(text, "%s{\"token\":\"", token == shard->oldest_token ? "\n" : ",\n");
        kl__s3_put_token(text, &token->token);
        kl__s3_text_put(text, "\",\"number\":\"%llx\",\"at\":%lld}", (unsigned long long)token->number,
                        (long long)token->at_ms);
    }
    kl__s3_text_put(text, "],\"forgotten\":[");
}

static void put_forgotten(kl__s3_text *text, const kl__tree_node *node, bool *first)
{
    if (!node)
        return;
    const kl__s3_forgotten *one = KL_CONTAINER(node, kl__s3_forgotten, by_id);
    put_forgotten(text, node->left, first);
    put_separator(text, first);
    kl__s3_text_put(text, "{");
    kl__s3_put_id(text, "forget", &one->id);
    kl__s3_text_put(text, ",\"until_ms\":%lld}", (long long)one->until_ms);
    put_forgotten(text, node->right, first);
}

/* One that has been forgotten for long enough; NULL: none. */
static kl__s3_forgotten *find_expired(const kl__s3 *s3, kl__tree_node *node)
{
    if (!node || KL_CONTAINER(node, kl__s3_forgotten, by_id)->until_ms <= s3->memory->now_ms)
        return node ? KL_CONTAINER(node, kl__s3_forgotten, by_id) : NULL;
    kl__s3_forgotten *found = find_expired(s3, node->left);
    return found ? found : find_expired(s3, node->right);
}

/* It never goes back: nothing behind it was ever deleted. */
static uint64_t tokens_to(const kl__s3_shard *shard)
{
    return shard->taken > shard->tokens_to ? shard->taken : shard->tokens_to;
}

static void write_index(kl__s3 *s3, kl__s3_shard *shard, uint64_t nonce, uint64_t first_number, kl__s3_text *text)
{
    const kl__memory_shard *lines = kl__memory_shard_of(s3->memory, shard->place);
    bool first = true;
    kl__s3_text_put(
        text,
        "{\"keyline\":%d,\"at\":%lld,\"nonce\":\"%016llx\",\"journal\":\"%llx\",\"epoch\":\"%llx\",\"first\":"
        "\"%llx\",\"tail\":\"%llx\",\"sealed\":%s,\"tokens_to\":\"%llx\",\"swept\":\"%llx\",\"tasks_swept\":\"%llx\","
        "\"items\":[",
        KL_S3_FORMAT, (long long)s3->memory->now_ms, (unsigned long long)nonce, (unsigned long long)shard->journal,
        (unsigned long long)shard->epoch, (unsigned long long)first_number, (unsigned long long)shard->tail,
        shard->sealed ? "true" : "false", (unsigned long long)tokens_to(shard), (unsigned long long)shard->swept,
        (unsigned long long)shard->tasks_swept);
    put_objects(text, shard->objects, first_number, &first);
    if (lines)
        put_retry_line(text, lines->lines[KL_LINE_RETRY - KL_PRIORITY_MIN], &first);
    put_tokens(text, shard);
    for (kl__s3_forgotten *one; (one = find_expired(s3, shard->forgotten));)
        kl__s3_forgotten_free(shard, one);
    first = true;
    put_forgotten(text, shard->forgotten, &first);
    kl__s3_text_put(text, "]}\n");
}

struct checkpoint {
    struct archive archives[2];
    kl__s3_text index;
    uint64_t journal, first, tokens_to, nonce;
    uint64_t generation; /* of the shard, when it was written */
    char etag[KL_S3_ETAG_BYTES];
};

static kl_rc put_archive(kl__s3 *s3, const kl__s3_shard *shard, const struct checkpoint *checkpoint, int which)
{
    const struct archive *archive = &checkpoint->archives[which];
    if (archive->count == 0)
        return KL_OK;
    char *name = kl__s3_name(s3, "%s/%s/%s/%016llx-%lld.json", archive->dead ? "dead" : "done", shard->partition->name,
                             shard->digits, (unsigned long long)checkpoint->journal, (long long)archive->expires_ms);
    kl__s3_request request = {.kind = KL_S3_PUT, .name = name, .body = {archive->body.data, archive->body.len}};
    kl_rc rc = name ? kl__s3_send(s3->http, &request, 1) : kl__fail_memory();
    if (rc == KL_OK && request.status >= 300)
        rc = kl__s3_refused(&request);
    kl__s3_request_free(&request);
    kl__free(name);
    return rc;
}

/* KL_ECONFLICT: somebody else has written one meanwhile. */
static kl_rc put_index(kl__s3 *s3, kl__s3_shard *shard, struct checkpoint *checkpoint)
{
    char condition[KL_S3_ETAG_BYTES];
    char *name = kl__s3_name(s3, "index/%s/%s.json", shard->partition->name, shard->digits);
    kl__s3_condition(checkpoint->etag, s3->unquoted, condition);
    kl__s3_request request = {.kind = KL_S3_PUT,
                              .name = name,
                              .body = {checkpoint->index.data, checkpoint->index.len},
                              .if_match = *condition ? condition : NULL,
                              .absent = !*condition};
    kl_rc rc = name ? kl__s3_send(s3->http, &request, 1) : kl__fail_memory();
    if (rc == KL_OK && request.status == 412)
        rc = KL_ECONFLICT;
    else if (rc == KL_OK && request.status == 404 && *condition)
        rc = kl__fail(KL_ESYSTEM, "%s is no longer there: it was deleted, but not by keyline; restore it from a backup",
                      name);
    else if (rc == KL_OK && request.status >= 300)
        rc = kl__s3_refused(&request);
    snprintf(checkpoint->etag, sizeof checkpoint->etag, "%s", request.etag);
    kl__s3_request_free(&request);
    kl__free(name);
    return rc;
}

static bool prepare(kl__s3 *s3, kl__s3_shard *shard, struct checkpoint *checkpoint)
{
    checkpoint->journal = shard->journal;
    checkpoint->first = first_of(shard);
    checkpoint->tokens_to = tokens_to(shard);
    checkpoint->generation = shard->generation;
    checkpoint->archives[1].dead = true;
    snprintf(checkpoint->etag, sizeof checkpoint->etag, "%s", shard->etag);
    for (int i = 0; i < 2; i++)
        write_archive(s3, shard, &checkpoint->archives[i]);
    write_index(s3, shard, checkpoint->nonce, checkpoint->first, &checkpoint->index);
    return !checkpoint->archives[0].body.failed && !checkpoint->archives[1].body.failed && !checkpoint->index.failed;
}

/* Somebody has written an index: we ourselves, and the reply was lost; or another. If that is no further than we have
 * read it may be written over the next time; else what we know is too old. */
static kl_rc meet_index(kl__s3 *s3, kl__s3_shard *shard, struct checkpoint *checkpoint, bool *ret_own)
{
    kl__s3_request request = {0};
    uint64_t journal = 0, nonce = 0, tokens = 0;
    char *name = kl__s3_name(s3, "index/%s/%s.json", shard->partition->name, shard->digits);
    kl_rc rc = kl__s3_get_object(s3, name, &request);
    json_t *root = rc == KL_OK && request.status == 200 ? kl__s3_parse(&request.reply) : NULL;
    bool good = root && kl__s3_get_hex(root, "journal", &journal) && kl__s3_get_hex(root, "nonce", &nonce) &&
                kl__s3_get_hex(root, "tokens_to", &tokens);
    *ret_own = good && nonce == checkpoint->nonce;
    kl__memory_enter(s3->memory);
    bool same = shard->generation == checkpoint->generation; /* else it is read anew in any case */
    if (*ret_own) {
        snprintf(checkpoint->etag, sizeof checkpoint->etag, "%s", request.etag);
    } else if (same && good && journal <= shard->journal && tokens <= tokens_to(shard)) {
        snprintf(shard->etag, sizeof shard->etag, "%s", request.etag);
        shard->checkpoint = journal;
        shard->checkpoint_ns = kl__monotonic_ns(); /* it may have been written just now: grace counts from here */
    } else if (same && rc == KL_OK) {
        kl__s3_shard_clear(s3, shard);
    }
    kl__memory_leave(s3->memory);
    json_decref(root);
    kl__free(name);
    if (rc == KL_OK)
        kl__s3_request_free(&request);
    return rc;
}

/* It counts: what it covers is noted, to be deleted later. */
static void note_checkpoint(kl__s3_shard *shard, const struct checkpoint *checkpoint)
{
    shard->checkpoint = checkpoint->journal;
    shard->first = checkpoint->first;
    shard->tokens_to = checkpoint->tokens_to;
    shard->checkpoint_ns = kl__monotonic_ns();
    snprintf(shard->etag, sizeof shard->etag, "%s", checkpoint->etag);
    if (shard->old_ns == 0) {
        shard->old_checkpoint = shard->checkpoint;
        shard->old_first = shard->first;
        shard->old_ns = kl__monotonic_ns();
    }
}

kl_rc kl__s3_checkpoint(kl__s3 *s3, kl__s3_shard *shard)
{
    struct checkpoint checkpoint = {.nonce = kl__s3_nonce()};
    bool own = true;
    pthread_mutex_lock(&s3->kept_mutex);
    kl__memory_enter(s3->memory);
    kl_rc rc = !shard->loaded ? KL_ECONFLICT : prepare(s3, shard, &checkpoint) ? KL_OK : kl__fail_memory();
    kl__memory_leave(s3->memory);
    for (int i = 0; rc == KL_OK && i < 2; i++)
        rc = put_archive(s3, shard, &checkpoint, i);
    if (rc == KL_OK)
        rc = put_index(s3, shard, &checkpoint);
    if (rc == KL_ECONFLICT)
        rc = meet_index(s3, shard, &checkpoint, &own);
    kl__memory_enter(s3->memory);
    bool counts = rc == KL_OK && own && shard->loaded && shard->generation == checkpoint.generation;
    if (counts)
        note_checkpoint(shard, &checkpoint);
    end_archive(s3, shard, counts);
    kl__memory_leave(s3->memory);
    pthread_mutex_unlock(&s3->kept_mutex);
    for (int i = 0; i < 2; i++)
        kl__s3_text_free(&checkpoint.archives[i].body);
    kl__s3_text_free(&checkpoint.index);
    return rc;
}

/* --- Deleting --- */

/* What is to be deleted, and what the shard will be like when it is. Until that is certain nothing is forgotten: an
 * index that says nothing of a settled object that is still there would let its tasks wait again. */
struct doomed {
    char **names;
    uint64_t *dead; /* numbers of task objects that go although older ones do not */
    size_t count, dead_count;
    bool failed;
    uint64_t generation, swept, tasks_swept;
    bool all; /* of what the old checkpoint covers */
};

/* False: there is no room for it, or no memory. */
static bool doom(kl__s3 *s3, struct doomed *doomed, const char *log, const kl__s3_shard *shard, uint64_t number)
{
    if (doomed->count == DELETES_MAX || doomed->failed)
        return false;
    char *name = kl__s3_log_name(s3, log, shard, number);
    doomed->failed = !name;
    if (name)
        doomed->names[doomed->count++] = name;
    return name;
}

/* Objects that are settled, although older ones are not. */
static void doom_dead(kl__s3 *s3, struct doomed *doomed, const kl__s3_shard *shard, const kl__tree_node *node)
{
    if (!node)
        return;
    const kl__s3_object *object = KL_CONTAINER(node, kl__s3_object, by_number);
    doom_dead(s3, doomed, shard, node->left);
    doom_dead(s3, doomed, shard, node->right);
    if (!object->loaded || object->live || object->number > shard->tokens_to || object->number >= shard->tail ||
        !is_over(object->dead_ns, s3->grace_ms))
        return;
    if (doom(s3, doomed, "tasks", shard, object->number))
        doomed->dead[doomed->dead_count++] = object->number;
}

static void doom_shard(kl__s3 *s3, struct doomed *doomed, const kl__s3_shard *shard)
{
    doomed->generation = shard->generation;
    doomed->swept = shard->swept;
    doomed->tasks_swept = shard->tasks_swept;
    doom_dead(s3, doomed, shard, shard->objects);
    if (shard->old_ns == 0 || !is_over(shard->old_ns, s3->grace_ms))
        return;
    uint64_t tasks_to = shard->old_first < shard->tail ? shard->old_first : shard->tail - (shard->tail > 0);
    bool room = true;
    for (uint64_t n = shard->tasks_swept + 1; room && n <= tasks_to; n++)
        if ((room = doom(s3, doomed, "tasks", shard, n)))
            doomed->tasks_swept = n;
    for (uint64_t n = shard->swept + 1; room && n < shard->old_checkpoint; n++)
        if ((room = doom(s3, doomed, "journal", shard, n)))
            doomed->swept = n;
    doomed->all = room;
}

/* All of it is gone. */
static void note_swept(const struct doomed *doomed, kl__s3_shard *shard)
{
    shard->unswept_ns = 0;
    if (shard->generation != doomed->generation)
        return;
    for (size_t i = 0; i < doomed->dead_count; i++) {
        kl__s3_object *object = kl__s3_object_of(shard, doomed->dead[i]);
        if (object)
            kl__s3_object_free(shard, object);
    }
    shard->swept = doomed->swept;
    shard->tasks_swept = doomed->tasks_swept;
    if (!doomed->all)
        return;
    shard->old_checkpoint = shard->checkpoint;
    shard->old_first = shard->first;
    shard->old_ns = shard->checkpoint_ns;
}

static kl_rc sweep(kl__s3 *s3, kl__s3_shard *shard)
{
    struct doomed doomed = {.names = kl__alloc_zeroed(DELETES_MAX, sizeof(char *)),
                            .dead = kl__alloc_zeroed(DELETES_MAX, sizeof(uint64_t))};
    kl_rc rc = doomed.names && doomed.dead ? KL_OK : kl__fail_memory();
    kl__memory_enter(s3->memory);
    if (rc == KL_OK)
        doom_shard(s3, &doomed, shard);
    kl__memory_leave(s3->memory);
    if (rc == KL_OK)
        rc = kl__s3_delete(s3, doomed.names, doomed.count);
    kl__memory_enter(s3->memory);
    if (rc == KL_OK)
        note_swept(&doomed, shard);
    else
        shard->unswept_ns = kl__monotonic_ns();
    kl__memory_leave(s3->memory);
    for (size_t i = 0; i < doomed.count; i++)
        kl__free(doomed.names[i]);
    kl__free(doomed.names);
    kl__free(doomed.dead);
    return rc;
}

/* --- The thread --- */

/* What this process writes it also clears away, after a while without writes for the last time; unless somebody else
 * has written since, who does. */
bool kl__s3_wants_checkpoint(const kl__s3 *s3, const kl__s3_shard *shard)
{
    uint64_t behind = shard->journal > shard->checkpoint ? shard->journal - shard->checkpoint : 0;
    return shard->loaded && shard->written_ns && behind > 0 && (shard->owned || shard->journal == shard->written) &&
           (behind >= s3->checkpoint_every || is_over(shard->written_ns, IDLE_MS));
}

/* Nobody has looked at it for a while, and it is not ours: what was read of it, for the sake of one task perhaps, goes
 * (E5). */
static void drop_unused(kl__s3 *s3, kl__s3_shard *shard)
{
    int64_t unused_ms = s3->grace_ms < KEPT_MS ? s3->grace_ms : KEPT_MS;
    kl__memory_enter(s3->memory);
    if (shard->loaded && !shard->owned && !kl__s3_wants_checkpoint(s3, shard) &&
        shard->taken > shard->first + UNUSED_OBJECTS && is_over(shard->used_ns, unused_ms))
        kl__s3_shard_clear(s3, shard);
    kl__memory_leave(s3->memory);
}

/* What a process that only looks has read, and will not be asked for: objects of which nothing waits, up to the first
 * that has something. What the journal says of finished tasks is in archives by now; it cannot be told how much of it,
 * so all of the shard is read anew from its checkpoint (E5), unless somebody asks for finished tasks. */
static void trim_looked_at(kl__s3 *s3, kl__s3_shard *shard)
{
    kl__memory_enter(s3->memory);
    const kl__memory_shard *lines = kl__memory_shard_of(s3->memory, shard->place);
    bool looks = shard->loaded && !shard->owned && !shard->written_ns;
    uint64_t first = looks ? first_of(shard) : 0;
    for (kl__tree_node *node; looks && (node = kl__tree_first(shard->objects));) {
        kl__s3_object *object = KL_CONTAINER(node, kl__s3_object, by_number);
        if (object->number > first || object->number >= shard->taken)
            break;
        kl__s3_object_free(shard, object);
    }
    for (kl__s3_forgotten *one; looks && (one = find_expired(s3, shard->forgotten));)
        kl__s3_forgotten_free(shard, one);
    if (looks && shard->kept == KL_S3_KEPT_NONE && lines && lines->finished && shard->journal_from &&
        shard->journal - shard->journal_from >= LOOKED_AT)
        kl__s3_shard_clear(s3, shard);
    kl__memory_leave(s3->memory);
}

static kl__s3_shard *next_shard(kl__s3 *s3, uint32_t *partition, uint32_t *number)
{
    kl__s3_shard *found = NULL;
    kl__memory_enter(s3->memory);
    for (; !found && *partition < s3->partition_count; ++*partition, *number = 0) {
        const kl__s3_partition *at = s3->partitions[*partition];
        while (!found && *number < at->shard_count)
            found = at->shards[(*number)++];
        if (found)
            break;
    }
    kl__memory_leave(s3->memory);
    return found;
}

static void look_after(kl__s3 *s3)
{
    uint32_t partition = 0, number = 0;
    for (kl__s3_shard *shard; (shard = next_shard(s3, &partition, &number));) {
        kl_rc rc = KL_OK;
        kl__memory_enter(s3->memory);
        bool wanted = kl__s3_wants_checkpoint(s3, shard);
        bool sweeps = shard->written_ns && shard->old_ns && is_over(shard->old_ns, s3->grace_ms) &&
                      (shard->unswept_ns == 0 || is_over(shard->unswept_ns, UNSWEPT_MS));
        kl__memory_leave(s3->memory);
        if (wanted)
            rc = kl__s3_checkpoint(s3, shard);
        drop_kept(s3, shard);
        drop_unused(s3, shard);
        trim_looked_at(s3, shard);
        if (rc == KL_OK && sweeps)
            rc = sweep(s3, shard);
        if (rc == KL_OK)
            rc = kl__s3_unmark(s3, shard);
        if (rc != KL_OK)
            kl__s3_log(s3, KL_LOG_WARN, "upkeep of %s/%s: %s", shard->partition->name, shard->digits, kl_error_text());
    }
}

static void *run(void *ctx)
{
    kl__s3 *s3 = ctx;
    pthread_mutex_lock(&s3->upkeep_mutex);
    while (!s3->closing) {
        kl__cond_wait(&s3->upkeep_wakes, &s3->upkeep_mutex, kl__deadline_ns(LOOK_MS));
        if (s3->closing)
            break;
        pthread_mutex_unlock(&s3->upkeep_mutex);
        look_after(s3);
        (void)kl__s3_records_forget(s3, 2 * s3->poll_ms > RECORD_MS ? 2 * s3->poll_ms : RECORD_MS);
        if (s3->billed_ns == 0)
            s3->billed_ns = kl__monotonic_ns();
        if (is_over(s3->billed_ns, KL_S3_BILL_EVERY_MS) && !s3->caller_time) {
            kl__s3_bill_save(s3);
            s3->billed_ns = kl__monotonic_ns();
        }
        pthread_mutex_lock(&s3->upkeep_mutex);
    }
    pthread_mutex_unlock(&s3->upkeep_mutex);
    return NULL;
}

kl_rc kl__s3_upkeep_start(kl__s3 *s3)
{
    s3->upkeep_runs = pthread_create(&s3->upkeep, NULL, run, s3) == 0;
    return s3->upkeep_runs ? KL_OK
                           : kl__fail(KL_ESYSTEM, "no thread can be started to look after S3; there are too many");
}

void kl__s3_upkeep_wake(kl__s3 *s3)
{
    pthread_mutex_lock(&s3->upkeep_mutex);
    pthread_cond_broadcast(&s3->upkeep_wakes);
    pthread_mutex_unlock(&s3->upkeep_mutex);
}

void kl__s3_upkeep_stop(kl__s3 *s3)
{
    pthread_mutex_lock(&s3->upkeep_mutex);
    s3->closing = true;
    pthread_cond_broadcast(&s3->upkeep_wakes);
    pthread_mutex_unlock(&s3->upkeep_mutex);
    if (s3->upkeep_runs)
        pthread_join(s3->upkeep, NULL);
    s3->upkeep_runs = false;
}
