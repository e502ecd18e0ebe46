/* append.c - appending: one object per shard for all that wait.
 *
 * From: any thread.  To: tasks/<partition>/<shard>/<number>.json.
 *
 *     append -> queue -> [thread: round: all that wait, an object per shard, put at the next number] -> done
 *
 * While a round is under way, later appends queue up and share the next one, so many producers of a process cost no
 * more requests than one. Rounds follow one another, so the order of calls is kept (S2).
 *
 * A number that somebody else had first is answered 412: what stands there is read. If it bears our nonce it is our
 * own, of which the reply was lost; if it is a seal (seal.c), the part is refused; else the next number is tried, and
 * after that one the log is listed.
 *
 * An append to several shards of which one is sealed is refused before anything of it is written. Where that is found
 * out too late, because another process seals it just now, what was stored of it stays if it has a token: whoever asks
 * shard by shard with that token (queue/parts.c) learns what that is, and puts the rest elsewhere. Without a token
 * nobody could ask; then it is taken back, and what an owner has begun in that moment will be run again.
 *
 * A1  A round has no more entries than an object may, so an append never stands in two objects of a shard: the second
 *     would be taken for a repeat of the first.
 * A2  No two appends of a round bear the same token, unless each is for one shard, and these differ (an append that was
 *     split): which of them counts is told by the numbers of their objects. */
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/wait.h"
#include "store/s3/s3.h"

enum {
    WAITING_BYTES_MAX = 256 << 20, /* of appends that wait: 32 of the largest */
    ROUND_BYTES = 16 << 20,
    ROUND_APPENDS = 4096,
    TOKEN_SLOTS = 2 * ROUND_APPENDS,
    CONTENDED_MS = 10,
    LOSSES_MAX = 64
};

/* An append that waits. What it was given is copied behind it. */
struct pending {
    struct pending *next;
    kl_append append;
    kl_token token;
    bool single; /* all of it is for one shard */
    kl_rc rc;
    bool *there; /* of each entry: it stands already, from an earlier try, in a shard that has been sealed since */
    bool ended;  /* nobody is called: whoever waits takes it */
    char error[256];
};

/* What a round puts into one shard. */
struct part {
    kl__s3_shard *shard;
    kl__s3_text body;
    uint32_t count;
    uint64_t nonce;
    uint64_t number;
    int64_t since_ns, asked_ns; /* as of when the number was known to be free; when it was asked for */
    char *name;
    uint64_t lines;
    const struct pending *open; /* whose tasks are being written */
    bool named;                 /* it bears a token */
    bool stored;
    unsigned losses; /* numbers that others had first */
    kl_rc rc;
    char error[200];
};

struct round {
    struct pending *first;
    struct part *parts;
    size_t count, room;
};

struct kl__s3_appender {
    kl__s3 *s3;
    pthread_t thread;
    bool runs;
    pthread_mutex_t mutex;
    pthread_cond_t wakes, ended;
    struct pending *first, **end;
    size_t waiting; /* bytes of those that were not told yet */
    bool closing;
    kl__s3_tried tried;                        /* what earlier tries have left; the thread's */
    const struct pending *tokens[TOKEN_SLOTS]; /* appends of a round that is being taken, by hash of their token */
};

/* --- Queueing --- */

static size_t bytes_of(const kl_append *append)
{
    return sizeof(struct pending) + append->count * (sizeof(kl_entry) + sizeof(bool)) + append->bytes;
}

static bool is_same(kl_place a, kl_place b) { return a.partition == b.partition && a.shard == b.shard; }

static struct pending *copy_append(const kl_append *append)
{
    struct pending *pending = kl__alloc(bytes_of(append));
    if (!pending)
        return NULL;
    *pending = (struct pending){.append = *append, .token = append->token ? *append->token : (kl_token){{0}}};
    kl_entry *entries = (kl_entry *)(void *)(pending + 1);
    pending->there = (bool *)(entries + append->count);
    memset(pending->there, 0, append->count * sizeof(bool));
    char *bytes = (char *)(pending->there + append->count);
    pending->single = true;
    for (size_t i = 0; i < append->count; i++) {
        pending->single &= is_same(append->entries[i].place, append->entries[0].place);
        entries[i] = append->entries[i];
        entries[i].key = kl__memory_copy_to(&bytes, append->entries[i].key);
        entries[i].kind = kl__memory_copy_to(&bytes, append->entries[i].kind);
        entries[i].headers = kl__memory_copy_to(&bytes, append->entries[i].headers);
        entries[i].payload = kl__memory_copy_to(&bytes, append->entries[i].payload);
    }
    pending->append.entries = entries;
    pending->append.token = append->token ? &pending->token : NULL;
    return pending;
}

kl_rc kl__s3_append(void *self, const kl_append *append)
{
    kl__s3 *s3 = self;
    struct kl__s3_appender *appender = s3->appender;
    struct pending *pending = copy_append(append);
    if (!pending)
        return kl__fail_memory();
    pthread_mutex_lock(&appender->mutex);
    if (appender->waiting + bytes_of(append) > WAITING_BYTES_MAX) {
        pthread_mutex_unlock(&appender->mutex);
        kl__free(pending);
        return kl__fail(KL_EBUSY, "%d MiB wait to be appended to S3 already; call again", WAITING_BYTES_MAX >> 20);
    }
    appender->waiting += bytes_of(append);
    *appender->end = pending;
    appender->end = &pending->next;
    pthread_cond_signal(&appender->wakes);
    if (append->done) {
        pthread_mutex_unlock(&appender->mutex);
        return KL_OK;
    }
    while (!pending->ended)
        kl__cond_wait(&appender->ended, &appender->mutex, KL_NEVER);
    pthread_mutex_unlock(&appender->mutex);
    kl_rc rc = pending->rc;
    if (rc != KL_OK)
        (void)kl__fail(rc, "%s", pending->error);
    kl__free(pending);
    return rc;
}

/* --- Bodies --- */

static struct part *part_of(struct round *round, kl__s3_shard *shard)
{
    if (shard->part < round->count && round->parts[shard->part].shard == shard)
        return &round->parts[shard->part];
    if (round->count == round->room)
        return NULL;
    shard->part = round->count;
    struct part *part = &round->parts[round->count++];
    *part = (struct part){.shard = shard, .nonce = kl__s3_nonce()};
    return part;
}

static void write_entry(kl__s3 *s3, struct part *part, const struct pending *pending, const kl_entry *entry)
{
    KL_ASSERT(part->count < KL_S3_ENTRIES_MAX);
    if (part->count == 0)
        kl__s3_text_put(&part->body, "{\"keyline\":%d,\"at\":%lld,\"nonce\":\"%016llx\",\"appends\":[\n", KL_S3_FORMAT,
                        (long long)kl__s3_now(s3), (unsigned long long)part->nonce);
    if (part->open != pending) {
        kl__s3_text_put(&part->body, "%s{", part->open ? "]},\n" : "");
        if (pending->append.token) {
            kl__s3_text_put(&part->body, "\"token\":\"");
            part->named = true;
            kl__s3_put_token(&part->body, pending->append.token);
            kl__s3_text_put(&part->body, "\",");
        }
        kl__s3_text_put(&part->body, "\"tasks\":[\n{");
        part->open = pending;
    } else {
        kl__s3_text_put(&part->body, ",\n{");
    }
    kl__s3_put_entry(&part->body, entry);
    kl__s3_text_put(&part->body, "}");
    part->count++;
    int32_t line = entry->due_ms > 0 ? KL_LINE_DUE : entry->priority;
    part->lines |= UINT64_C(1) << (line - KL_PRIORITY_MIN);
}

static kl_rc write_pending(kl__s3 *s3, struct round *round, const struct pending *pending)
{
    for (size_t i = 0; i < pending->append.count; i++) {
        const kl_entry *entry = &pending->append.entries[i];
        kl__memory_enter(s3->memory);
        kl__s3_shard *shard = kl__s3_shard_make(s3, entry->place);
        kl__memory_leave(s3->memory);
        if (shard && pending->there[i])
            continue;
        struct part *part = shard ? part_of(round, shard) : NULL;
        if (!part)
            return kl__fail_memory();
        write_entry(s3, part, pending, entry);
    }
    return KL_OK;
}

static size_t shards_at_most(const struct pending *first)
{
    size_t entries = 0;
    for (; first; first = first->next)
        entries += first->append.count;
    return entries;
}

static kl_rc write_round(kl__s3 *s3, struct round *round)
{
    round->room = shards_at_most(round->first);
    round->parts = kl__alloc_zeroed(round->room ? round->room : 1, sizeof *round->parts);
    kl_rc rc = round->parts ? KL_OK : kl__fail_memory();
    for (const struct pending *pending = round->first; rc == KL_OK && pending; pending = pending->next)
        rc = write_pending(s3, round, pending);
    for (size_t i = 0; rc == KL_OK && i < round->count; i++) {
        kl__s3_text_put(&round->parts[i].body, "]}]}\n");
        if (round->parts[i].body.failed)
            rc = kl__fail_memory();
    }
    return rc;
}

/* --- Marks: that a line is in use at all --- */

/* A mark that is to be put. */
struct mark {
    struct part *part;
    unsigned line;
};

static void fail_part(struct part *part, kl_rc rc)
{
    part->rc = rc;
    snprintf(part->error, sizeof part->error, "%s", kl_error_text());
}

static kl_rc send_marks(kl__s3 *s3, const struct mark *marks, size_t count)
{
    kl__s3_request *requests = kl__alloc_zeroed(count, sizeof *requests);
    kl_rc rc = requests ? KL_OK : kl__fail_memory();
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        char *name = kl__s3_mark_name(s3, marks[i].part->shard, marks[i].line);
        requests[i] = (kl__s3_request){.kind = KL_S3_PUT, .name = name, .absent = true, .body = {"{}", 2}};
        rc = name ? KL_OK : kl__fail_memory();
    }
    if (rc == KL_OK)
        rc = kl__s3_send(s3->http, requests, count);
    for (size_t i = 0; requests && i < count; i++) {
        if (rc == KL_OK)
            kl__s3_note_marked(s3, marks[i].part->shard, marks[i].line);
        kl__free((char *)requests[i].name);
        kl__s3_request_free(&requests[i]);
    }
    kl__free(requests);
    return rc;
}

static void put_marks(kl__s3 *s3, struct round *round)
{
    struct mark *marks = NULL;
    size_t count = 0, room = 0;
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < round->count; i++) {
        uint64_t missing = kl__s3_unmarked(s3, round->parts[i].shard, round->parts[i].lines);
        for (unsigned line = 0; rc == KL_OK && missing; line++, missing >>= 1) {
            if (!(missing & 1))
                continue;
            struct mark *grown = kl__grow(marks, count, &room, sizeof *marks);
            rc = grown ? KL_OK : kl__fail_memory();
            marks = grown ? grown : marks;
            if (grown)
                marks[count++] = (struct mark){&round->parts[i], line};
        }
    }
    if (rc == KL_OK && count)
        rc = send_marks(s3, marks, count);
    for (size_t i = 0; rc != KL_OK && i < count; i++)
        fail_part(marks[i].part, rc);
    for (size_t i = 0; rc == KL_ENOMEM && i < round->count; i++)
        fail_part(&round->parts[i], rc);
    kl__free(marks);
}

/* --- Numbers --- */

static uint64_t tail_of(kl__s3 *s3, const kl__s3_shard *shard, int64_t *ret_since_ns)
{
    kl__memory_enter(s3->memory);
    uint64_t tail = shard->tail;
    *ret_since_ns = shard->tail_ns;
    kl__memory_leave(s3->memory);
    return tail;
}

/* Where others append to the shard as well, what was known a moment ago is wrong by now: looking first saves a PUT. */
static bool tail_is_known(kl__s3 *s3, const kl__s3_shard *shard)
{
    kl__memory_enter(s3->memory);
    int64_t trust_ms = shard->contended ? CONTENDED_MS : KL_S3_TRUST_MS;
    bool known = shard->tail_ns && kl__monotonic_ns() - shard->tail_ns < trust_ms * 1000000 &&
                 !kl__s3_is_late(s3, shard->tail_ns);
    kl__memory_leave(s3->memory);
    return known;
}

/* A shard to which nobody else has appended since is contended no more. */
static kl_rc look_for_tails(kl__s3 *s3, struct part **parts, kl__s3_shard **shards, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int64_t since_ns;
        shards[i] = parts[i]->shard;
        parts[i]->number = tail_of(s3, shards[i], &since_ns);
    }
    kl_rc rc = kl__s3_find_tails(s3, shards, count);
    kl__memory_enter(s3->memory);
    for (size_t i = 0; i < count; i++)
        shards[i]->contended &= shards[i]->tail != parts[i]->number;
    kl__memory_leave(s3->memory);
    return rc;
}

static void find_tails(kl__s3 *s3, struct round *round)
{
    struct part **parts = kl__alloc_zeroed(round->count, sizeof *parts);
    kl__s3_shard **shards = kl__alloc_zeroed(round->count, sizeof *shards);
    size_t unknown = 0, count = 0;
    for (size_t i = 0; i < round->count; i++)
        unknown += !tail_is_known(s3, round->parts[i].shard);
    if (unknown > 2)
        (void)kl__s3_pulse(s3, KL_S3_POLL_MIN_MS / 10); /* for those that it does not show there are listings */
    for (size_t i = 0; parts && shards && i < round->count; i++)
        if (round->parts[i].rc == KL_OK && !tail_is_known(s3, round->parts[i].shard))
            parts[count++] = &round->parts[i];
    kl_rc rc = !parts || !shards ? kl__fail_memory() : count ? look_for_tails(s3, parts, shards, count) : KL_OK;
    for (size_t i = 0; rc != KL_OK && i < round->count; i++)
        if (!parts || !shards || !tail_is_known(s3, round->parts[i].shard))
            fail_part(&round->parts[i], rc);
    kl__free(parts);
    kl__free(shards);
}

static bool is_open(const struct part *part) { return part->rc == KL_OK && !part->stored; }

/* The part is there, under this number. A replica that stands right before it goes on with it. */
static void note_stored(kl__s3 *s3, struct part *part)
{
    kl__s3_shard *shard = part->shard;
    kl__memory_enter(s3->memory);
    if (part->number > shard->tail) {
        shard->tail = part->number;
        shard->tail_ns = kl__s3_known_since(part->asked_ns);
    }
    if (shard->loaded && shard->taken + 1 == part->number)
        (void)kl__s3_apply_tasks(s3, shard, part->number, &part->body); /* else it is read when it is wanted */
    if (shard->taken < shard->tail)
        shard->ended = false;
    kl__memory_leave(s3->memory);
    atomic_fetch_add(&s3->appended, part->count);
    part->stored = true;
}

static bool bears_token(const struct part *part, const kl_token *token)
{
    char text[64] = "\"token\":\"";
    for (size_t i = 0; i < sizeof token->bytes; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%02x", token->bytes[i]);
    return memmem(part->body.data, part->body.len, text, strlen(text)) != NULL;
}

/* Whether the number was free when the part was put there, by what the checkpoint says: nothing behind `tokens_to` was
 * ever deleted, and up to there it has the tokens of those that were read. */
static bool is_ours(const struct part *part, const json_t *index)
{
    uint64_t tokens_to, number;
    const json_t *tokens = json_object_get(index, "tokens");
    kl_token token;
    bool there;
    if (!kl__s3_get_hex(index, "tokens_to", &tokens_to))
        return false;
    for (size_t i = json_array_size(tokens); tokens_to >= part->number && i-- > 0;) {
        const json_t *item = json_array_get(tokens, i);
        if (kl__s3_get_hex(item, "number", &number) && number == part->number &&
            kl__s3_get_token(item, "token", &token, &there) && there && bears_token(part, &token))
            return true;
    }
    return tokens_to < part->number;
}

/* It was put, but so late that the number may have been used and deleted before. Then nobody might ever read it: it is
 * taken away, and put where the log ends now. (What has no token to know it by stays: rather twice than never.) */
static kl_rc verify(kl__s3 *s3, struct part *part)
{
    kl__s3_request request;
    char *name = kl__s3_name(s3, "index/%s/%s.json", part->shard->partition->name, part->shard->digits);
    kl_rc rc = kl__s3_get_object(s3, name, &request);
    kl__free(name);
    if (rc != KL_OK)
        return rc;
    json_t *index = request.status == 200 ? kl__s3_parse(&request.reply) : NULL;
    bool ours = request.status == 404 || (index && is_ours(part, index));
    if (request.status == 200 && !index)
        rc = kl__fail(KL_EDAMAGED, "index/%s/%s.json cannot be understood; is it of a newer release?",
                      part->shard->partition->name, part->shard->digits);
    json_decref(index);
    kl__s3_request_free(&request);
    if (rc == KL_OK && ours)
        note_stored(s3, part);
    else if (rc == KL_OK && part->named)
        rc = kl__s3_delete(s3, &part->name, 1);
    return rc == KL_OK && !ours ? kl__s3_find_tail(s3, part->shard) : rc;
}

/* The part stands under its number. */
static kl_rc win(kl__s3 *s3, struct part *part)
{
    if (kl__s3_is_late(s3, part->since_ns))
        return verify(s3, part);
    note_stored(s3, part);
    return KL_OK;
}

static bool is_seal(const kl__s3_text *body)
{
    return body->len == strlen(KL_S3_SEAL) && memcmp(body->data, KL_S3_SEAL, body->len) == 0;
}

/* Somebody has the number: another, or we ourselves. The next one may be free still; a listing takes longer. */
static kl_rc lose(kl__s3 *s3, struct part *part)
{
    kl__s3_request request;
    kl__s3_shard *shard = part->shard;
    kl_rc rc = kl__s3_get_object(s3, part->name, &request);
    if (rc != KL_OK)
        return rc;
    bool there = request.status == 200, own = there && kl__s3_has_nonce(&request.reply, part->nonce);
    bool seal = there && is_seal(&request.reply);
    kl__s3_request_free(&request);
    if (own)
        return win(s3, part);
    kl__memory_enter(s3->memory);
    shard->contended = true;
    if (there && shard->tail <= part->number) {
        shard->tail = part->number;
        shard->sealed = seal;
    }
    if (shard->taken < shard->tail)
        shard->ended = false;
    kl__memory_leave(s3->memory);
    if (++part->losses > LOSSES_MAX)
        return kl__fail(KL_EBUSY, "others append to shard %u all the time; call again with the same token",
                        shard->place.shard);
    return part->losses > 1 || !there ? kl__s3_find_tail(s3, shard) : KL_OK;
}

static size_t choose(kl__s3 *s3, struct round *round, kl__s3_request *requests, struct part **chosen)
{
    size_t count = 0;
    for (size_t i = 0; i < round->count; i++) {
        struct part *part = &round->parts[i];
        if (is_open(part) && kl__s3_is_sealed(s3, part->shard))
            fail_part(part, kl__s3_fail_sealed(0, part->shard->place));
        if (!is_open(part))
            continue;
        part->asked_ns = kl__monotonic_ns();
        part->number = tail_of(s3, part->shard, &part->since_ns) + 1;
        kl__free(part->name);
        part->name = kl__s3_log_name(s3, "tasks", part->shard, part->number);
        if (!part->name) {
            fail_part(part, kl__fail_memory());
            continue;
        }
        requests[count] = (kl__s3_request){
            .kind = KL_S3_PUT, .name = part->name, .absent = true, .body = {part->body.data, part->body.len}};
        chosen[count++] = part;
    }
    return count;
}

static void judge(kl__s3 *s3, struct part *part, const kl__s3_request *reply)
{
    bool put = reply->status == 200 || reply->status == 201 || reply->status == 204;
    if (put || reply->status == 412) {
        kl_rc rc = put ? win(s3, part) : lose(s3, part);
        if (rc != KL_OK)
            fail_part(part, rc);
    } else if (reply->status == 0 || reply->status >= 500 || reply->status == 409 || reply->status == 429) {
        fail_part(part, kl__fail(KL_EBUSY, "no answer from S3 to an append; call again with the same token"));
    } else {
        fail_part(part, kl__s3_refused(reply));
    }
}

static void put_parts(kl__s3 *s3, struct round *round)
{
    kl__s3_request *requests = kl__alloc_zeroed(round->count ? round->count : 1, sizeof *requests);
    struct part **chosen = kl__alloc_zeroed(round->count ? round->count : 1, sizeof *chosen);
    size_t count = 0;
    for (size_t i = 0; (!requests || !chosen) && i < round->count; i++)
        fail_part(&round->parts[i], kl__fail_memory());
    while (requests && chosen && (count = choose(s3, round, requests, chosen)) > 0) {
        kl_rc sent = kl__s3_send(s3->http, requests, count); /* each says itself what came of it */
        (void)sent;
        for (size_t i = 0; i < count; i++) {
            judge(s3, chosen[i], &requests[i]);
            kl__s3_request_free(&requests[i]);
        }
    }
    kl__free(requests);
    kl__free(chosen);
}

/* --- Telling --- */

/* What came of it is said in it. */
static void tell(struct kl__s3_appender *appender, struct pending *pending)
{
    pthread_mutex_lock(&appender->mutex);
    appender->waiting -= bytes_of(&pending->append);
    if (pending->append.done) {
        pthread_mutex_unlock(&appender->mutex);
        pending->append.done(pending->append.ctx, pending->rc, pending->error);
        kl__free(pending);
        return;
    }
    pending->ended = true;
    pthread_cond_broadcast(&appender->ended);
    pthread_mutex_unlock(&appender->mutex);
}

/* --- Seals --- */

static bool is_at(const struct part *part, const kl_entry *entry) { return is_same(part->shard->place, entry->place); }

/* Appends of the round that are for sealed shards are refused, or known for repeats. True: so the round is another. */
static bool sort_out(struct kl__s3_appender *appender, struct round *round)
{
    bool sealed = false;
    for (size_t i = 0; i < round->count; i++)
        sealed |= kl__s3_is_sealed(appender->s3, round->parts[i].shard);
    for (struct pending **link = &round->first; sealed && *link;) {
        struct pending *pending = *link;
        pending->rc = kl__s3_judge_sealed(appender->s3, &appender->tried, &pending->append, pending->there);
        if (pending->rc == KL_OK) {
            link = &pending->next;
            continue;
        }
        *link = pending->next;
        snprintf(pending->error, sizeof pending->error, "%s", kl_error_text());
        tell(appender, pending);
    }
    return sealed;
}

/* Positions of an append's entries in a part that is stored. */
static size_t positions_of(const struct round *round, const struct part *part, const struct pending *pending,
                           uint64_t *positions)
{
    uint64_t index = 0;
    size_t count = 0;
    for (const struct pending *each = round->first; each; each = each->next) {
        for (size_t i = 0; i < each->append.count; i++) {
            if (each->there[i] || !is_at(part, &each->append.entries[i]))
                continue;
            if (each == pending)
                positions[count++] = part->number << KL_S3_INDEX_BITS | index;
            index++;
        }
    }
    return count;
}

/* A shard was sealed while parts of the append, which has no token, were put elsewhere: they are taken back. */
static kl_rc take_back(kl__s3 *s3, const struct round *round, const struct pending *pending)
{
    uint64_t *positions = kl__alloc_zeroed(pending->append.count, sizeof *positions);
    kl_rc rc = positions ? KL_OK : kl__fail_memory();
    for (size_t i = 0; rc == KL_OK && i < round->count; i++) {
        const struct part *part = &round->parts[i];
        size_t count = part->stored ? positions_of(round, part, pending, positions) : 0;
        if (count)
            rc = kl__s3_revoke(s3, part->shard, positions, count);
    }
    kl__free(positions);
    return rc;
}

/* --- Rounds --- */

/* The first of its parts that failed, but rather one of which it is not known whether it is there. */
static const struct part *failed_part(const struct round *round, const struct pending *pending, size_t *ret_entry)
{
    const struct part *found = NULL;
    for (size_t i = 0; i < round->count; i++) {
        const struct part *part = &round->parts[i];
        for (size_t j = 0; part->rc != KL_OK && j < pending->append.count; j++) {
            bool other = pending->there[j] || !is_at(part, &pending->append.entries[j]);
            if (other || (found && found->rc != KL_ESEALED))
                continue;
            found = part;
            *ret_entry = j;
            break;
        }
    }
    return found;
}

/* `error` has room for 256 bytes. */
static kl_rc rc_of(struct kl__s3_appender *appender, const struct round *round, struct pending *pending, char *error)
{
    size_t entry = 0;
    const struct part *part = failed_part(round, pending, &entry);
    *error = '\0';
    if (!part)
        return KL_OK;
    if (part->rc != KL_ESEALED) {
        snprintf(error, 256, "%s", part->error);
        return part->rc;
    }
    kl_rc rc = pending->append.token
                   ? kl__s3_judge_sealed(appender->s3, &appender->tried, &pending->append, pending->there)
                   : take_back(appender->s3, round, pending);
    if (rc == KL_OK && !pending->append.token)
        rc = kl__s3_fail_sealed(entry, part->shard->place);
    if (rc != KL_OK)
        snprintf(error, 256, "%s", kl_error_text());
    return rc;
}

static void free_parts(struct round *round)
{
    for (size_t i = 0; i < round->count; i++) {
        kl__s3_text_free(&round->parts[i].body);
        kl__free(round->parts[i].name);
    }
    kl__free(round->parts);
    round->parts = NULL;
    round->count = 0;
}

static void end_round(struct kl__s3_appender *appender, struct round *round, kl_rc rc)
{
    char error[256];
    snprintf(error, sizeof error, "%s", rc == KL_OK ? "" : kl_error_text());
    for (struct pending *pending = round->first; pending; pending = pending->next) {
        pending->rc = rc == KL_OK ? rc_of(appender, round, pending, pending->error) : rc;
        if (rc != KL_OK)
            snprintf(pending->error, sizeof pending->error, "%s", error);
    }
    for (struct pending *pending = round->first, *next; pending; pending = next) {
        next = pending->next;
        tell(appender, pending);
    }
    free_parts(round);
}

/* One round. It is written anew, without them, if some of its appends are for sealed shards. */
static void append_round(struct kl__s3_appender *appender, struct pending *first)
{
    struct round round = {.first = first};
    bool again = true;
    kl_rc rc = KL_OK;
    pthread_mutex_lock(&appender->s3->round_mutex);
    kl__s3_tried_renew(&appender->tried);
    while (rc == KL_OK && again && round.first) {
        free_parts(&round);
        rc = write_round(appender->s3, &round);
        if (rc == KL_OK)
            put_marks(appender->s3, &round);
        if (rc == KL_OK)
            find_tails(appender->s3, &round);
        again = rc == KL_OK && sort_out(appender, &round);
    }
    if (rc == KL_OK && round.first)
        put_parts(appender->s3, &round);
    end_round(appender, &round, rc);
    pthread_mutex_unlock(&appender->s3->round_mutex);
}

/* Whether both may be in one round, although they bear the same token. */
static bool are_apart(const struct pending *a, const struct pending *b)
{
    return a->single && b->single && !is_same(a->append.entries[0].place, b->append.entries[0].place);
}

/* Whether another append of the round bears its token; else it is noted (A2). */
static bool meet_token(struct kl__s3_appender *appender, const struct pending *pending)
{
    if (!pending->append.token)
        return false;
    size_t slot = kl__hash_local((kl_bytes){&pending->token, sizeof pending->token}) % TOKEN_SLOTS;
    for (; appender->tokens[slot]; slot = (slot + 1) % TOKEN_SLOTS)
        if (memcmp(&appender->tokens[slot]->token, &pending->token, sizeof pending->token) == 0 &&
            !are_apart(appender->tokens[slot], pending))
            return true;
    appender->tokens[slot] = pending;
    return false;
}

/* Takes what waits, up to what one round may be. The mutex is held. */
static struct pending *take_some(struct kl__s3_appender *appender)
{
    struct pending *first = appender->first, **link = &appender->first;
    size_t bytes = 0, count = 0, entries = 0;
    memset(appender->tokens, 0, sizeof appender->tokens);
    for (; *link; link = &(*link)->next) {
        bytes += (*link)->append.bytes;
        entries += (*link)->append.count;
        bool fits = bytes < ROUND_BYTES && count < ROUND_APPENDS && entries <= KL_S3_ENTRIES_MAX;
        if ((count > 0 && !fits) || meet_token(appender, *link))
            break;
        count++;
    }
    appender->first = *link;
    if (!*link)
        appender->end = &appender->first;
    *link = NULL;
    return first;
}

static void *run(void *ctx)
{
    struct kl__s3_appender *appender = ctx;
    pthread_mutex_lock(&appender->mutex);
    while (!appender->closing || appender->first) {
        if (!appender->first) {
            kl__cond_wait(&appender->wakes, &appender->mutex, KL_NEVER);
            continue;
        }
        struct pending *some = take_some(appender);
        pthread_mutex_unlock(&appender->mutex);
        append_round(appender, some);
        pthread_mutex_lock(&appender->mutex);
    }
    pthread_mutex_unlock(&appender->mutex);
    return NULL;
}

kl_rc kl__s3_appender_open(kl__s3 *s3)
{
    struct kl__s3_appender *appender = kl__alloc_zeroed(1, sizeof *appender);
    if (!appender)
        return kl__fail_memory();
    appender->s3 = s3;
    appender->end = &appender->first;
    pthread_mutex_init(&appender->mutex, NULL);
    kl__cond_init(&appender->wakes);
    kl__cond_init(&appender->ended);
    s3->appender = appender;
    appender->runs = pthread_create(&appender->thread, NULL, run, appender) == 0;
    return appender->runs ? KL_OK
                          : kl__fail(KL_ESYSTEM, "no thread can be started to append to S3; there are too many");
}

void kl__s3_appender_close(kl__s3 *s3)
{
    struct kl__s3_appender *appender = s3->appender;
    if (!appender)
        return;
    pthread_mutex_lock(&appender->mutex);
    appender->closing = true;
    pthread_cond_signal(&appender->wakes);
    pthread_mutex_unlock(&appender->mutex);
    if (appender->runs)
        pthread_join(appender->thread, NULL);
    kl__s3_tried_free(&appender->tried);
    pthread_cond_destroy(&appender->wakes);
    pthread_cond_destroy(&appender->ended);
    pthread_mutex_destroy(&appender->mutex);
    kl__free(appender);
    s3->appender = NULL;
}
