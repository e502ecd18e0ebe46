/* append.c - tasks into the journal.
 *
 * The caller's thread writes the records straight into the group's buffer: each byte of a payload is copied once.
 *
 * Appends take no mutex, so a seal keeps them out by gates: an append looks at the seals and takes its place in the
 * journal inside one. A seal shuts the gates, waits until nobody is inside, and is written behind all who were; those
 * who come meanwhile wait until it is decided (S9 of store.h). Inside nothing is waited for, so a seal waits for
 * moments only. */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/compare.h"
#include "base/hash.h"
#include "base/wait.h"
#include "store/disk/disk.h"

/* What may wait, less what two groups may add before it is counted. */
enum { TASKS_MAX = KL_SLOTS_MAX - (1 << 23) };

static size_t record_bytes(const kl_entry *entry)
{
    size_t bytes =
        sizeof(kl__entry_record) + entry->key.len + entry->kind.len + entry->headers.len + entry->payload.len;
    return kl__round8(bytes + (entry->due_ms ? 8 : 0) + (!kl__id_is_none(&entry->job) ? 16 : 0));
}

static char *put_bytes(char *at, kl_bytes bytes)
{
    if (bytes.len)
        memcpy(at, bytes.data, bytes.len);
    return at + bytes.len;
}

/* Writes the entry's record at `at`; returns its CRC. */
static uint32_t put_entry(const kl_entry *entry, uint64_t sequence, char *at, size_t *ret_bytes)
{
    kl__entry_record *record = (kl__entry_record *)(void *)at;
    char *end = (char *)(record + 1);
    *record = (kl__entry_record){
        .header = {.sequence = sequence,
                   .epoch = entry->group,
                   .type = KL_RECORD_ENTRY,
                   .small = {(uint8_t)(int8_t)entry->priority, (uint8_t)entry->kind.len},
                   .partition = (uint16_t)entry->place.partition,
                   .shard = (uint16_t)entry->place.shard},
        .key_hash = kl__key_hash(entry->key),
        .key_bytes = (uint16_t)entry->key.len,
        .headers_bytes = (uint16_t)entry->headers.len,
        .payload_bytes = (uint32_t)entry->payload.len,
    };
    memcpy(record->id, &entry->id, sizeof record->id);
    if (entry->due_ms) {
        record->header.flags |= KL_ENTRY_DUE;
        memcpy(end, &entry->due_ms, 8);
        end += 8;
    }
    if (!kl__id_is_none(&entry->job)) {
        record->header.flags |= KL_ENTRY_JOB;
        memcpy(end, &entry->job, 16);
        end += 16;
    }
    end = put_bytes(put_bytes(put_bytes(put_bytes(end, entry->key), entry->kind), entry->headers), entry->payload);
    uint32_t crc = kl__record_seal(&record->header, end);
    *ret_bytes = record->header.bytes;
    return crc;
}

static uint32_t put_token(const kl_token *token, uint64_t sequence, char *at)
{
    kl__token_record *record = (kl__token_record *)(void *)at;
    *record = (kl__token_record){.header = {.sequence = sequence, .type = KL_RECORD_TOKEN}};
    memcpy(record->token, token, sizeof record->token);
    return kl__record_seal(&record->header, (char *)(record + 1));
}

static void put_all(const kl_append *append, kl__commit *call, uint64_t *ret_sum)
{
    char *at = call->bytes;
    uint64_t sequence = call->sequence;
    *ret_sum = 0;
    if (append->token) {
        *ret_sum += put_token(append->token, sequence++, at);
        at += sizeof(kl__token_record);
    }
    for (size_t i = 0; i < append->count; i++) {
        size_t bytes;
        *ret_sum += put_entry(&append->entries[i], sequence++, at, &bytes);
        at += bytes;
    }
}

/* ---- Gates ---- */

static kl__gate *my_gate(kl__disk *disk)
{
    static _Atomic(uint32_t) threads;
    static _Thread_local uint32_t number; /* 0: has none yet */
    if (!number)
        number = atomic_fetch_add(&threads, 1) % KL_GATES + 1;
    return &disk->gates[number - 1];
}

/* Each side says first what it does and then looks at what the other does; one of them sees. */
static void enter(kl__disk *disk, kl__gate *gate)
{
    for (;;) {
        atomic_fetch_add(&gate->inside, 1);
        if (KL_LIKELY(!atomic_load(&disk->sealing)))
            return;
        atomic_fetch_sub(&gate->inside, 1);
        pthread_mutex_lock(&disk->state.mutex);
        while (atomic_load(&disk->sealing))
            kl__cond_wait(&disk->unclaimed, &disk->state.mutex, KL_NEVER);
        pthread_mutex_unlock(&disk->state.mutex);
    }
}

static void leave(kl__gate *gate) { atomic_fetch_sub(&gate->inside, 1); }

void kl__gates_shut(kl__disk *disk)
{
    atomic_fetch_add(&disk->sealing, 1);
    for (int i = 0; i < KL_GATES; i++)
        while (atomic_load(&disk->gates[i].inside))
            sched_yield();
}

void kl__gates_open(kl__disk *disk) { atomic_fetch_sub(&disk->sealing, 1); }

/* KL_ESEALED: one of the entries is for a shard that is sealed. */
static kl_rc check_seals(kl__disk *disk, const kl_append *append)
{
    if (KL_LIKELY(!atomic_load(&disk->state.sealed)))
        return KL_OK;
    for (size_t i = 0; i < append->count; i++) {
        kl_place place = append->entries[i].place;
        if (kl__partition_is_sealed(disk->state.partitions[place.partition], place.shard))
            return kl__fail(KL_ESEALED,
                            "entry %zu: shard %u of partition %u is sealed, because its queue has a newer layout; read "
                            "that, and append where it says",
                            i, place.shard, place.partition);
    }
    return KL_OK;
}

/* ---- Without a token ---- */

/* A place behind no seal of its shards. */
static kl_rc take_place(kl__disk *disk, const kl_append *append, size_t bytes, kl__commit *call)
{
    kl__gate *gate = my_gate(disk);
    for (;;) {
        enter(disk, gate);
        kl_rc rc = check_seals(disk, append);
        if (rc == KL_OK)
            rc = kl__journal_try_append(disk->journal, bytes, append->count + (append->token != NULL), call);
        leave(gate);
        if (rc != KL_EBUSY)
            return rc;
        kl__journal_make_room(disk->journal);
    }
}

static kl_rc append_now(kl__disk *disk, const kl_append *append, kl__commit *call)
{
    size_t bytes = append->token ? sizeof(kl__token_record) : 0;
    uint64_t sum;
    if (kl__stubs_count(disk->state.stubs) > TASKS_MAX)
        return kl__fail(KL_EFULL,
                        "%d tasks wait, which is all that a disk store can hold; let them be worked off, or spread "
                        "the queue over more partitions in other stores",
                        TASKS_MAX);
    for (size_t i = 0; i < append->count; i++)
        bytes += record_bytes(&append->entries[i]);
    kl_rc rc = take_place(disk, append, bytes, call);
    if (rc != KL_OK)
        return rc;
    put_all(append, call, &sum);
    kl__journal_publish(disk->journal, call, sum);
    return KL_OK;
}

static kl_rc append_and_wait(kl__disk *disk, const kl_append *append)
{
    kl__commit call = {.done = NULL};
    kl_rc rc = append_now(disk, append, &call);
    return rc == KL_OK ? kl__journal_wait(disk->journal, &call) : rc;
}

static kl_rc append_later(kl__disk *disk, const kl_append *append, kl_appended_fn *done, void *ctx)
{
    kl__commit *call = kl__alloc_zeroed(1, sizeof *call);
    if (!call)
        return kl__fail_memory();
    call->done = done;
    call->ctx = ctx;
    kl_rc rc = append_now(disk, append, call);
    if (rc != KL_OK)
        kl__free(call);
    return rc;
}

/* ---- Tokens ----
 *
 * An append with a token is in flight from the decision that its token is new until it is applied. A repeat that comes
 * meanwhile ends as the first does: it waits, or follows it. */

typedef struct follower {
    kl_appended_fn *done;
    void *ctx;
    struct follower *next;
} follower;

struct kl__flight {
    kl_token token;
    kl__flight *next;
    follower *followers;
    kl__disk *disk; /* the rest is for asynchronous ones, which are on the heap */
    kl_appended_fn *done;
    void *ctx;
};

static kl__flight **flight_link(kl__disk *disk, const kl_token *token)
{
    kl_bytes bytes = {token->bytes, sizeof token->bytes};
    kl__flight **link = &disk->flights[kl__hash_local(bytes) % KL_FLIGHTS];
    while (*link && memcmp(&(*link)->token, token, sizeof *token) != 0)
        link = &(*link)->next;
    return link;
}

/* Decides what an append with a token is: known already, the repeat of one in flight, or new. For a repeat that cannot
 * wait, `follow` is taken. */
typedef enum token_is { TOKEN_NEW, TOKEN_KNOWN, TOKEN_FOLLOWED } token_is;

static token_is take_off(kl__disk *disk, const kl_token *token, kl__flight *flight, follower *follow)
{
    token_is what = TOKEN_NEW;
    pthread_mutex_lock(&disk->state.mutex);
    kl__flight **link;
    for (;;) {
        link = flight_link(disk, token);
        if (kl__tokens_find(disk->state.tokens, token))
            what = TOKEN_KNOWN;
        else if (*link && follow)
            what = TOKEN_FOLLOWED;
        if (what != TOKEN_NEW || !*link)
            break;
        kl__cond_wait(&disk->unclaimed, &disk->state.mutex, KL_NEVER);
    }
    if (what == TOKEN_FOLLOWED) {
        follow->next = (*link)->followers;
        (*link)->followers = follow;
    } else if (what == TOKEN_NEW) {
        flight->token = *token;
        flight->next = NULL;
        flight->followers = NULL;
        *link = flight;
    }
    pthread_mutex_unlock(&disk->state.mutex);
    return what;
}

/* Followers do what they like when they are told, so the sentence is kept for the next of them and for the caller. */
static void land(kl__disk *disk, kl__flight *flight, kl_rc rc, const char *error)
{
    char text[KL_CALL_ERROR_BYTES];
    pthread_mutex_lock(&disk->state.mutex);
    kl__flight **link = flight_link(disk, &flight->token);
    KL_ASSERT(*link == flight);
    *link = flight->next;
    pthread_cond_broadcast(&disk->unclaimed);
    pthread_mutex_unlock(&disk->state.mutex);
    if (!flight->followers)
        return;
    snprintf(text, sizeof text, "%s", error);
    for (follower *next, *follow = flight->followers; follow; follow = next) {
        next = follow->next;
        follow->done(follow->ctx, rc, text);
        kl__free(follow);
    }
    if (rc != KL_OK)
        (void)kl__fail(rc, "%s", text);
}

static void land_later(void *ctx, kl_rc rc, const char *error)
{
    kl__flight *flight = ctx;
    land(flight->disk, flight, rc, error);
    flight->done(flight->ctx, rc, error);
    kl__free(flight);
}

static kl_rc append_token_later(kl__disk *disk, const kl_append *append)
{
    kl__flight *flight = kl__alloc_zeroed(1, sizeof *flight);
    follower *follow = kl__alloc_zeroed(1, sizeof *follow);
    if (!flight || !follow) {
        kl__free(flight);
        kl__free(follow);
        return kl__fail_memory();
    }
    *follow = (follower){append->done, append->ctx, NULL};
    token_is what = take_off(disk, append->token, flight, follow);
    if (what != TOKEN_FOLLOWED)
        kl__free(follow);
    if (what != TOKEN_NEW) {
        kl__free(flight);
        if (what == TOKEN_KNOWN)
            append->done(append->ctx, KL_OK, "");
        return KL_OK;
    }
    flight->disk = disk;
    flight->done = append->done;
    flight->ctx = append->ctx;
    kl_rc rc = append_later(disk, append, land_later, flight);
    if (rc != KL_OK) {
        land(disk, flight, rc, kl_error_text());
        kl__free(flight);
    }
    return rc;
}

static kl_rc append_token_and_wait(kl__disk *disk, const kl_append *append)
{
    kl__flight flight;
    if (take_off(disk, append->token, &flight, NULL) == TOKEN_KNOWN)
        return KL_OK;
    kl_rc rc = append_and_wait(disk, append);
    land(disk, &flight, rc, rc == KL_OK ? "" : kl_error_text());
    return rc;
}

kl_rc kl__disk_append(void *self, const kl_append *append)
{
    if (append->token)
        return append->done ? append_token_later(self, append) : append_token_and_wait(self, append);
    return append->done ? append_later(self, append, append->done, append->ctx) : append_and_wait(self, append);
}
