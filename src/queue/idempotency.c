/* idempotency.c - a submit that may be repeated: the first call does it, the others get its answer.
 *
 * From: kl_job_submit.  To: job_submit.c, between claiming and committing.
 *
 *     record idempotency/QUEUE/HASH of scope and key
 *
 *                claim             commit                    answer_ms
 *     (none) ------------> claimed --------> committed ---------------> (none)
 *                           |   ^               | repeat: the answer
 *        lease over:        |   |               | other fingerprint: KL_EMISMATCH
 *        taken over by CAS  +---+
 *        lease holds: KL_EBUSY
 *
 * I1  The claim has the job's id and all that its tasks' ids follow from, so whoever takes it over continues the same
 *     job.
 * I2  Every step is a compare-and-set on the version that was read, and every claim has a nonce: of two callers one
 *     goes on, and a caller whose reply was lost finds its own write.
 * I3  A claim is renewed after each batch, and says how far the tasks were put. What lies behind that is looked for
 *     before it is put (job_submit.c), so a takeover puts nothing twice.
 * I4  A call that fails gives its claim back when it still can, so that its repeat need not wait for the lease.
 *
 * Leases are judged on the store's clock. */
#include <openssl/evp.h>
#include <stdio.h>

#include "base/compare.h"
#include "base/mutant.h"
#include "queue/job.h"
#include "queue/put.h"

enum {
    CLAIM_TRIES = 16,                        /* changes of the record by others that one call bears */
    CLAIM_EXPIRES_MS = 20 * KL_JOB_LEASE_MS, /* at least: a claim must outlast its lease to be taken over */
    RETRY_MS = 1000,                         /* when to ask again while another call is at it */
};

struct claim {
    char name[KL_RECORD_NAME_BYTES];
    char fingerprint[KL_SHA256_TEXT_BYTES];
    uint64_t version; /* 0: there is no record */
    bool committed;
    int64_t until_ms; /* claimed: the lease */
    kl__job job;      /* id, layout, shard_prefix_len, created_ms and tasks are kept in the claim */
    uint64_t put;
};

/* --- SHA-256 --- */

static bool feed(EVP_MD_CTX *sha, const void *data, size_t len)
{
    return len == 0 || EVP_DigestUpdate(sha, data, len) == 1;
}

static bool feed_number(EVP_MD_CTX *sha, int64_t number)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)number >> (56 - 8 * i));
    return feed(sha, bytes, sizeof bytes);
}

/* With its length, so that no two rows of texts are fed as the same bytes. */
static bool feed_bytes(EVP_MD_CTX *sha, kl_bytes bytes)
{
    return feed_number(sha, (int64_t)bytes.len) && feed(sha, bytes.data, bytes.len);
}

static bool feed_task(EVP_MD_CTX *sha, const kl_put *task)
{
    bool fed = feed_bytes(sha, kl_str(task->partition)) && feed_bytes(sha, task->key) && feed_bytes(sha, task->kind) &&
               feed_bytes(sha, task->payload) && feed_number(sha, task->priority) && feed_number(sha, task->delay_ms) &&
               feed_number(sha, task->due_ms) && feed_number(sha, task->attempts_max) &&
               feed_number(sha, task->timeout_ms) && feed_bytes(sha, task->group) &&
               feed_bytes(sha, task->traceparent) && feed_number(sha, (int64_t)task->header_count) &&
               feed_number(sha, (int64_t)task->tag_count);
    for (size_t i = 0; fed && i < task->header_count; i++)
        fed = feed_bytes(sha, task->headers[i].name) && feed_bytes(sha, task->headers[i].value);
    for (size_t i = 0; fed && i < task->tag_count; i++)
        fed = feed_bytes(sha, task->tags[i]);
    return fed;
}

static bool feed_spec(EVP_MD_CTX *sha, const kl_job_spec *spec)
{
    if (spec->fingerprint.len > 0)
        return feed(sha, spec->fingerprint.data, spec->fingerprint.len);
    /* A delay is what a negative time would be: every other spec is fed as it was before there were delays. */
    bool fed = feed_bytes(sha, kl_str(spec->name)) &&
               feed_number(sha, spec->delay_ms ? -spec->delay_ms : spec->due_ms) && feed_number(sha, spec->keep_ms) &&
               feed_number(sha, (int64_t)spec->count);
    for (size_t i = 0; fed && i < spec->count; i++)
        fed = feed_task(sha, &spec->tasks[i]);
    return fed;
}

static bool feed_key(EVP_MD_CTX *sha, const kl_job_spec *spec)
{
    return feed_bytes(sha, kl_str(spec->scope)) && feed_bytes(sha, spec->idempotency_key);
}

/* The hash of what `feeds` feeds, in hex. */
static kl_rc hash(bool (*feeds)(EVP_MD_CTX *, const kl_job_spec *), const kl_job_spec *spec,
                  char ret_text[KL_SHA256_TEXT_BYTES])
{
    uint8_t bytes[KL_SHA256_BYTES];
    EVP_MD_CTX *sha = EVP_MD_CTX_new();
    bool made = sha && EVP_DigestInit_ex(sha, EVP_sha256(), NULL) == 1 && feeds(sha, spec) &&
                EVP_DigestFinal_ex(sha, bytes, NULL) == 1;
    EVP_MD_CTX_free(sha);
    if (!made)
        return kl__fail_memory();
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(ret_text + 2 * i, 3, "%02x", bytes[i]);
    return KL_OK;
}

/* --- The record --- */

static kl_rc parse_claim(kl__json *from, kl_arena *arena, struct claim *claim)
{
    claim->committed = strcmp(kl__json_text(from, "state", arena), "committed") == 0;
    claim->until_ms = kl__json_int(from, "until_ms", 0, INT64_MAX);
    claim->put = (uint64_t)kl__json_int(from, "put", 0, KL_JOB_TASKS_MAX);
    snprintf(claim->fingerprint, sizeof claim->fingerprint, "%s", kl__json_text(from, "fingerprint", arena));
    claim->job = (kl__job){
        .id = kl__json_id(from, "job"),
        .layout = (uint64_t)kl__json_int(from, "layout", 1, INT64_MAX),
        .shard_prefix_len = (uint32_t)kl__json_int(from, "shard_prefix_len", 1, KL_SHARD_PREFIX_LEN_MAX),
        .created_ms = kl__json_int(from, "created_ms", 0, KL_ID_MS_MAX),
        .tasks = (uint64_t)kl__json_int(from, "tasks", 0, KL_JOB_TASKS_MAX),
    };
    return from->rc;
}

/* claim->name is set, the rest is read; version 0: there is none. */
static kl_rc read_claim(kl_queue *queue, kl_arena *arena, struct claim *claim)
{
    kl__json from;
    kl_record record;
    kl_rc rc = kl__record_read(queue->store, kl_str(claim->name), arena, &from, &record);
    claim->version = 0;
    if (rc == KL_ENOTFOUND && record.version == 0)
        return KL_OK;
    if (rc != KL_OK)
        return rc;
    rc = parse_claim(&from, arena, claim);
    kl__json_free(&from);
    if (rc == KL_OK)
        claim->version = record.version;
    return rc;
}

static kl_rc write_claim(kl_queue *queue, struct claim *claim, int64_t expires_ms)
{
    char nonce[KL_NONCE_BYTES];
    json_t *to = kl__json_object();
    const kl__job *job = &claim->job;
    kl__nonce(nonce);
    bool made = kl__json_set_text(to, "state", claim->committed ? "committed" : "claimed") &&
                kl__json_set_id(to, "job", &job->id) && kl__json_set_text(to, "fingerprint", claim->fingerprint) &&
                kl__json_set_int(to, "until_ms", claim->until_ms) && kl__json_set_int(to, "put", (int64_t)claim->put) &&
                kl__json_set_int(to, "layout", (int64_t)job->layout) &&
                kl__json_set_int(to, "shard_prefix_len", job->shard_prefix_len) &&
                kl__json_set_int(to, "created_ms", job->created_ms) &&
                kl__json_set_int(to, "tasks", (int64_t)job->tasks) && kl__json_set_text(to, "nonce", nonce);
    kl_rc rc =
        made ? kl__record_write(queue->store, kl_str(claim->name), claim->version, to, expires_ms, &claim->version)
             : kl__fail_memory();
    json_decref(to);
    return rc;
}

/* Takes the claim, or renews it, from the submit's time on. */
static kl_rc take(const kl__submit *submit, struct claim *claim)
{
    int64_t keep_ms = submit->spec.answer_ms > CLAIM_EXPIRES_MS ? submit->spec.answer_ms : CLAIM_EXPIRES_MS;
    claim->until_ms = submit->now_ms + KL_JOB_LEASE_MS;
    return write_claim(submit->queue, claim, submit->now_ms + keep_ms);
}

/* --- The steps --- */

static kl_rc fail_under_way(int64_t left_ms, int64_t *retry_ms)
{
    *retry_ms = left_ms < RETRY_MS ? (left_ms < 1 ? 1 : left_ms) : RETRY_MS;
    return kl__fail(KL_EBUSY, "the first submit with this idempotency key is still under way; ask again in %lld ms",
                    (long long)*retry_ms);
}

static kl_rc check_same(const struct claim *claim, const char *fingerprint, uint64_t tasks)
{
    if (strcmp(claim->fingerprint, fingerprint) == 0 && claim->job.tasks == tasks)
        return KL_OK;
    return kl__fail(KL_EMISMATCH, "this idempotency key was used for another submit; repeat that one as it was, or use "
                                  "a new key");
}

/* The claim becomes ours, or its answer is there already (claim->committed). KL_ECONFLICT: look again. */
static kl_rc try_to_claim(kl__submit *submit, const char *fingerprint, kl_arena *arena, struct claim *claim,
                          int64_t *retry_ms)
{
    kl_rc rc = read_claim(submit->queue, arena, claim);
    if (rc == KL_OK)
        KL_ASK(rc, kl_store_now(submit->queue->store, &submit->now_ms));
    if (rc != KL_OK)
        return rc;
    if (claim->version == 0) {
        memcpy(claim->fingerprint, fingerprint, sizeof claim->fingerprint);
        claim->committed = false;
        claim->put = 0;
        rc = kl__job_begin(submit, &claim->job);
        return rc == KL_OK ? take(submit, claim) : rc;
    }
    rc = check_same(claim, fingerprint, submit->spec.count);
    if (rc != KL_OK || claim->committed)
        return rc;
    if (claim->until_ms > submit->now_ms)
        return fail_under_way(claim->until_ms - submit->now_ms, retry_ms);
    submit->careful = true;
    submit->put = claim->put;
    if (KL_MUTANT(claim_other_job) && kl__job_begin(submit, &claim->job) != KL_OK)
        return KL_EBUSY;
    return take(submit, claim);
}

static kl_rc claim_it(kl__submit *submit, const char *fingerprint, kl_arena *arena, struct claim *claim,
                      int64_t *retry_ms)
{
    kl_rc rc = KL_ECONFLICT;
    for (int i = 0; i < CLAIM_TRIES && rc == KL_ECONFLICT; i++)
        rc = try_to_claim(submit, fingerprint, arena, claim, retry_ms);
    return rc == KL_ECONFLICT ? fail_under_way(RETRY_MS, retry_ms) : rc;
}

/* I3 */
static kl_rc renew(kl__submit *submit)
{
    struct claim *claim = submit->claim;
    kl_rc rc;
    KL_ASK(rc, kl_store_now(submit->queue->store, &submit->now_ms));
    claim->put = submit->put;
    return rc == KL_OK ? take(submit, claim) : rc;
}

/* I4: repeats may go on at once. The sentence of what went wrong stays. */
static kl_rc give_back(const kl__submit *submit, struct claim *claim, kl_rc rc)
{
    char why[512];
    snprintf(why, sizeof why, "%s", kl_error_text());
    claim->until_ms = 0;
    claim->job.tasks = submit->spec.count;
    kl_rc given = write_claim(submit->queue, claim, submit->now_ms + submit->spec.answer_ms + CLAIM_EXPIRES_MS);
    return kl__fail(rc, "%s%s", why, given == KL_OK ? "" : "; a repeat goes on with it in 30 s");
}

/* The record is not as we left it: somebody took the claim over, and may have finished, or the job was removed. */
static kl_rc learn(const kl__submit *submit, struct claim *claim, kl_arena *arena, int64_t *retry_ms)
{
    kl_task_id job = claim->job.id;
    kl_rc rc = read_claim(submit->queue, arena, claim);
    if (rc != KL_OK)
        return rc;
    if (claim->version == 0 || kl_id_compare(&claim->job.id, &job) != 0)
        return kl__fail(KL_ECLOSED,
                        "the job was removed while it was submitted; submit it again if it is still wanted");
    return claim->committed ? KL_OK : fail_under_way(RETRY_MS, retry_ms);
}

static kl_rc commit(const kl__submit *submit, struct claim *claim, kl_arena *arena, int64_t *retry_ms)
{
    if (KL_MUTANT(commit_lost))
        return kl__record_remove(submit->queue->store, kl_str(claim->name), claim->version);
    claim->committed = true;
    claim->put = claim->job.tasks = submit->spec.count; /* what was added meanwhile is none of the answer */
    kl_rc rc = write_claim(submit->queue, claim, submit->now_ms + submit->spec.answer_ms);
    if (rc == KL_ECONFLICT)
        return learn(submit, claim, arena, retry_ms);
    if (rc != KL_OK)
        claim->committed = false;
    return rc;
}

static kl_rc carry_out(kl__submit *submit, struct claim *claim, kl_arena *arena, int64_t *retry_ms)
{
    submit->claim = claim;
    submit->renew = renew;
    claim->job.idempotency = claim->name;
    kl_rc rc = kl__job_put_all(submit, &claim->job, arena);
    if (rc == KL_OK)
        rc = commit(submit, claim, arena, retry_ms);
    else if (rc == KL_ECONFLICT)
        return learn(submit, claim, arena, retry_ms);
    if (rc != KL_OK && rc != KL_ECLOSED && *retry_ms == 0)
        rc = give_back(submit, claim, rc);
    return rc;
}

kl_rc kl__idempotent_submit(kl__submit *submit, kl_job_answer *ret_answer, int64_t *ret_retry_ms)
{
    char key[KL_SHA256_TEXT_BYTES], fingerprint[KL_SHA256_TEXT_BYTES];
    kl_arena arena = {0};
    struct claim claim;
    int64_t retry_ms = 0;
    bool replayed = false;
    kl_rc rc = hash(feed_key, &submit->spec, key);
    if (rc == KL_OK)
        rc = hash(feed_spec, &submit->spec, fingerprint);
    if (rc == KL_OK) {
        kl__record_name(claim.name, sizeof claim.name, "idempotency", submit->queue->name, key);
        rc = claim_it(submit, fingerprint, &arena, &claim, &retry_ms);
    }
    if (rc == KL_OK) {
        replayed = claim.committed;
        if (!replayed)
            rc = carry_out(submit, &claim, &arena, &retry_ms);
    }
    kl_arena_free(&arena);
    *ret_retry_ms = retry_ms;
    if (rc == KL_OK)
        *ret_answer = (kl_job_answer){claim.job.id, claim.job.tasks, replayed};
    return rc;
}

kl_rc kl__idempotency_forget(kl_queue *queue, const char *name, const kl_task_id *job)
{
    kl_arena arena = {0};
    struct claim claim;
    if (!*name)
        return KL_OK;
    snprintf(claim.name, sizeof claim.name, "%s", name);
    kl_rc rc = KL_ECONFLICT;
    for (int i = 0; i < CLAIM_TRIES && rc == KL_ECONFLICT; i++) {
        rc = read_claim(queue, &arena, &claim);
        if (rc != KL_OK || claim.version == 0 || kl_id_compare(&claim.job.id, job) != 0)
            break;
        rc = kl__record_remove(queue->store, kl_str(claim.name), claim.version);
    }
    kl_arena_free(&arena);
    return rc;
}
