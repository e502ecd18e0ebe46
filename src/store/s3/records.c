/* records.c - records: small values with a version, each an object that is put by its ETag.
 *
 *     records/<name>     {"keyline":1,"version":"...","expires_ms":...,"value":"..."}
 *
 * The version is a random number inside the object, so it is never used again, makes every ETag unique, and tells our
 * own write from another's when a reply was lost. A removed record stays as an object that says so: servers ignore
 * If-Match on DELETE, so nothing else is safe.
 *
 * What is read over and over (a worker's looks at its queue) is answered from memory while the last look at the bucket
 * (refresh.c: the pulse) showed the same ETags; that look may be up to KL_S3_POLL_MAX_MS old when nothing happens.
 * Whatever was not asked for within POLLED_MS is asked of the server, and so is everything after a lost race. Lists may
 * be LISTED_MS old. What this process writes it sees at once. What nobody has used for a while is forgotten. */
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "store/s3/s3.h"

enum { POLLED_MS = 10000, LISTED_MS = 500, TRIES = 64, UNREAD_MAX = 1000 };

/* A record as far as it is known. */
struct known {
    kl__tree_node by_name;
    kl_bytes name;
    char etag[KL_S3_ETAG_BYTES]; /* of the object; empty: there is none */
    bool read;                   /* what follows is what the object says */
    bool removed;
    uint64_t version;
    int64_t expires_ms;
    kl_bytes value;
    int64_t fresh_ns;   /* when the ETag was known to be this */
    int64_t asked_ns;   /* when somebody last asked for it */
    int64_t used_ns;    /* the same, and when it was listed or written */
    int64_t changed_ns; /* when this process wrote it or read it: older listings say nothing about it */
    char bytes[];       /* of the name */
};

/* A prefix that somebody lists again and again. */
struct polled {
    struct polled *next;
    int64_t asked_ns;
    int64_t listed_ns; /* when its names were last listed to the end, where a look does not show all; 0: never */
    size_t len;
    char prefix[];
};

enum { STRIPES = 64 };

struct kl__s3_records {
    pthread_mutex_t stripes[STRIPES]; /* of names: one request at a time reads or writes a record. Taken in order. */
    pthread_mutex_t mutex;            /* holds for what follows */
    kl__tree_node *known;
    struct polled *polled;
    int64_t whole_ns; /* a listing that began then showed all records */
    int64_t long_ns;  /* and this one all whose names are in base32 */
};

static bool is_within(int64_t since_ns, int64_t ms) { return since_ns && kl__monotonic_ns() - since_ns < ms * 1000000; }

/* --- Documents --- */

static void put_document(kl__s3_text *text, const kl__s3_document *document)
{
    kl__s3_text_put(text, "{\"keyline\":%d,\"version\":\"%016llx\"", KL_S3_FORMAT,
                    (unsigned long long)document->version);
    if (document->expires_ms)
        kl__s3_text_put(text, ",\"expires_ms\":%lld", (long long)document->expires_ms);
    if (document->removed)
        kl__s3_text_put(text, ",\"removed\":true");
    kl__s3_put_bytes(text, "value", document->value);
    kl__s3_text_put(text, "}\n");
}

/* What stood in the arena before goes. */
static kl_rc read_document(const kl__s3_request *request, kl_arena *arena, kl__s3_document *ret_document)
{
    json_t *root = NULL;
    *ret_document = (kl__s3_document){.value = {"", 0}};
    if (request->status == 404)
        return KL_OK;
    kl_rc rc = kl__s3_parse_json(&request->reply, &root);
    if (rc == KL_OK && !kl__s3_reserve(arena, request->reply.len))
        rc = KL_ENOMEM;
    bool good = rc == KL_OK && kl__s3_get_hex(root, "version", &ret_document->version) && ret_document->version &&
                kl__s3_get_int(root, "expires_ms", &ret_document->expires_ms) &&
                kl__s3_get_bytes(root, "value", arena, &ret_document->value);
    ret_document->removed = json_is_true(json_object_get(root, "removed"));
    snprintf(ret_document->etag, sizeof ret_document->etag, "%s", request->etag);
    json_decref(root);
    if (rc == KL_ENOMEM)
        return kl__fail_memory();
    return good ? KL_OK
                : kl__fail(KL_EDAMAGED, "the object %s is not understood; is it of a newer release?", request->name);
}

kl_rc kl__s3_document_get(kl__s3 *s3, const char *name, kl_arena *arena, kl__s3_document *ret_document)
{
    kl__s3_request request;
    kl_rc rc = kl__s3_get_object(s3, name, &request);
    if (rc != KL_OK)
        return rc;
    rc = read_document(&request, arena, ret_document);
    kl__s3_request_free(&request);
    return rc;
}

kl_rc kl__s3_document_put(kl__s3 *s3, const char *name, const kl__s3_document *old, const kl__s3_document *new_,
                          char ret_etag[KL_S3_ETAG_BYTES])
{
    char condition[KL_S3_ETAG_BYTES];
    kl__s3_text body = {0};
    put_document(&body, new_);
    kl__s3_condition(old->etag, s3->unquoted, condition);
    kl__s3_request request = {.kind = KL_S3_PUT,
                              .name = name,
                              .body = {body.data, body.len},
                              .absent = !*condition,
                              .if_match = *condition ? condition : NULL};
    kl_rc rc = body.failed ? kl__fail_memory() : kl__s3_send(s3->http, &request, 1);
    if (rc == KL_OK && (request.status == 412 || request.status == 404))
        rc = KL_ECONFLICT;
    else if (rc == KL_OK && request.status >= 300)
        rc = kl__s3_refused(&request);
    snprintf(ret_etag, KL_S3_ETAG_BYTES, "%s", request.etag);
    kl__s3_text_free(&body);
    kl__s3_request_free(&request);
    return rc;
}

/* --- What is known. The mutex is held. --- */

static struct known *by_name(const kl__tree_node *node) { return KL_CONTAINER(node, struct known, by_name); }

static bool less_name(const kl__tree_node *a, const kl__tree_node *b)
{
    return kl__bytes_compare(by_name(a)->name, by_name(b)->name) < 0;
}

static struct known *find_known(const struct kl__s3_records *records, kl_bytes name)
{
    struct known probe = {.name = name};
    kl__tree_node *node = kl__memory_find_node(records->known, &probe.by_name, less_name);
    return node ? by_name(node) : NULL;
}

static struct known *make_known(struct kl__s3_records *records, kl_bytes name)
{
    struct known *known = find_known(records, name);
    if (known || !(known = kl__alloc_zeroed(1, sizeof *known + name.len)))
        return known;
    memcpy(known->bytes, name.data, name.len);
    known->name = (kl_bytes){known->bytes, name.len};
    kl__tree_insert(&records->known, &known->by_name, less_name);
    return known;
}

static void forget_value(struct known *known)
{
    kl__free((void *)known->value.data);
    known->value = (kl_bytes){0};
    known->read = false;
}

/* False: no memory; then what it says is to be read. */
static bool learn(struct kl__s3_records *records, kl_bytes name, const kl__s3_document *document, int64_t asked_ns)
{
    struct known *known = make_known(records, name);
    if (!known)
        return false;
    forget_value(known);
    snprintf(known->etag, sizeof known->etag, "%s", document->etag);
    known->fresh_ns = asked_ns;
    known->used_ns = known->changed_ns = kl__monotonic_ns();
    char *value = kl__alloc(document->value.len + 1);
    if (!value)
        return false;
    if (document->value.len)
        memcpy(value, document->value.data, document->value.len);
    known->value = (kl_bytes){value, document->value.len};
    known->read = true;
    known->removed = document->removed || document->version == 0;
    known->version = document->version;
    known->expires_ms = document->expires_ms;
    return true;
}

/* False: no memory. */
static bool see_listed(struct kl__s3_records *records, const kl__s3_listed *item, int64_t seen_ns)
{
    char bytes[KL_S3_NAME_MAX];
    size_t len = 0;
    if (strlen(item->name) >= sizeof bytes || !kl__s3_decode_name(item->name + strlen("records/"), bytes, &len) ||
        len == 0)
        return true;
    struct known *known = make_known(records, (kl_bytes){bytes, len});
    if (!known || known->changed_ns > seen_ns)
        return known;
    if (strcmp(known->etag, item->etag) != 0) {
        forget_value(known);
        snprintf(known->etag, sizeof known->etag, "%s", item->etag);
    }
    known->fresh_ns = seen_ns;
    return true;
}

/* What a whole listing did not show is not there. */
static void see_absent(kl__tree_node *node, int64_t seen_ns)
{
    if (!node)
        return;
    struct known *known = by_name(node);
    see_absent(node->left, seen_ns);
    see_absent(node->right, seen_ns);
    if (known->fresh_ns == seen_ns || known->changed_ns > seen_ns)
        return;
    forget_value(known);
    known->etag[0] = '\0';
    known->version = 0;
    known->removed = known->read = true;
    known->fresh_ns = seen_ns;
}

kl_rc kl__s3_records_seen(kl__s3 *s3, const kl__s3_names *names, bool whole, int64_t seen_ns)
{
    struct kl__s3_records *records = s3->records;
    bool good = true;
    pthread_mutex_lock(&records->mutex);
    for (size_t i = 0; good && i < names->count; i++)
        if (strncmp(names->items[i].name, "records/", 8) == 0)
            good = see_listed(records, &names->items[i], seen_ns);
    if (good && whole) {
        see_absent(records->known, seen_ns);
        records->whole_ns = seen_ns;
    }
    pthread_mutex_unlock(&records->mutex);
    return good ? KL_OK : kl__fail_memory();
}

kl_rc kl__s3_records_open(kl__s3 *s3)
{
    s3->records = kl__alloc_zeroed(1, sizeof *s3->records);
    if (!s3->records)
        return kl__fail_memory();
    pthread_mutex_init(&s3->records->mutex, NULL);
    for (int i = 0; i < STRIPES; i++)
        pthread_mutex_init(&s3->records->stripes[i], NULL);
    return KL_OK;
}

static void free_known(struct kl__s3_records *records, struct known *known)
{
    kl__tree_remove(&records->known, &known->by_name, less_name);
    forget_value(known);
    kl__free(known);
}

static void forget_polled(struct kl__s3_records *records, int64_t age_ms)
{
    for (struct polled **link = &records->polled, *one; (one = *link);) {
        if (is_within(one->asked_ns, age_ms)) {
            link = &one->next;
            continue;
        }
        *link = one->next;
        kl__free(one);
    }
}

size_t kl__s3_records_forget(kl__s3 *s3, int64_t age_ms)
{
    struct kl__s3_records *records = s3->records;
    size_t left = 0;
    pthread_mutex_lock(&records->mutex);
    for (kl__tree_node *node = kl__tree_first(records->known), *next; node; node = next) {
        struct known *known = by_name(node);
        next = kl__memory_after(records->known, node, less_name);
        bool used = is_within(known->used_ns, age_ms), seen = is_within(known->fresh_ns, age_ms);
        if (!used && seen)
            forget_value(known); /* a list that was made of what was seen may need its name */
        else if (!used)
            free_known(records, known);
        left += used || seen;
    }
    forget_polled(records, age_ms);
    pthread_mutex_unlock(&records->mutex);
    return left;
}

void kl__s3_records_close(kl__s3 *s3)
{
    struct kl__s3_records *records = s3->records;
    if (!records)
        return;
    while (records->known)
        free_known(records, by_name(records->known));
    forget_polled(records, 0);
    pthread_mutex_destroy(&records->mutex);
    for (int i = 0; i < STRIPES; i++)
        pthread_mutex_destroy(&records->stripes[i]);
    kl__free(records);
    s3->records = NULL;
}

/* --- Reading --- */

static bool is_there(const struct known *known, int64_t now_ms)
{
    return known->read && known->version && !known->removed && (known->expires_ms == 0 || known->expires_ms > now_ms);
}

/* A look at the bucket has shown another object than the one that was read, or none was read yet. */
static bool is_unread(const struct known *known) { return !known->read && *known->etag; }

static bool show(const struct known *known, kl_arena *arena, kl_record *ret_record)
{
    ret_record->version = known->version;
    ret_record->expires_ms = known->expires_ms;
    return kl_arena_copy(arena, known->name, &ret_record->name) &&
           kl_arena_copy(arena, known->value, &ret_record->value);
}

static uint64_t stripes_of(const kl_bytes *names, size_t count)
{
    uint64_t stripes = 0;
    for (size_t i = 0; i < count; i++)
        stripes |= UINT64_C(1) << kl__hash_local(names[i]) % STRIPES;
    return stripes;
}

static void lock_stripes(kl__s3 *s3, uint64_t stripes)
{
    for (int i = 0; i < STRIPES; i++)
        if (stripes >> i & 1)
            pthread_mutex_lock(&s3->records->stripes[i]);
}

static void unlock_stripes(kl__s3 *s3, uint64_t stripes)
{
    for (int i = 0; i < STRIPES; i++)
        if (stripes >> i & 1)
            pthread_mutex_unlock(&s3->records->stripes[i]);
}

/* Reads the objects of these names, all at once, and learns what they say. Their stripes are held. */
static kl_rc fetch_held(kl__s3 *s3, const kl_bytes *names, size_t count)
{
    kl__s3_request *requests = kl__alloc_zeroed(count ? count : 1, sizeof *requests);
    int64_t asked_ns = kl__monotonic_ns();
    kl_arena arena = {0};
    kl_rc rc = requests ? KL_OK : kl__fail_memory();
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        requests[i] = (kl__s3_request){.kind = KL_S3_GET, .name = kl__s3_record_object(s3, names[i])};
        rc = requests[i].name ? KL_OK : kl__fail_memory();
    }
    if (rc == KL_OK)
        rc = kl__s3_send(s3->http, requests, count);
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        kl__s3_document document;
        rc = read_document(&requests[i], &arena, &document);
        pthread_mutex_lock(&s3->records->mutex);
        if (rc == KL_OK && !learn(s3->records, names[i], &document, asked_ns))
            rc = kl__fail_memory();
        pthread_mutex_unlock(&s3->records->mutex);
    }
    for (size_t i = 0; requests && i < count; i++) {
        kl__free((char *)requests[i].name);
        kl__s3_request_free(&requests[i]);
    }
    kl__free(requests);
    kl_arena_free(&arena);
    return rc;
}

static kl_rc fetch(kl__s3 *s3, const kl_bytes *names, size_t count)
{
    uint64_t stripes = stripes_of(names, count);
    lock_stripes(s3, stripes);
    kl_rc rc = fetch_held(s3, names, count);
    unlock_stripes(s3, stripes);
    return rc;
}

/* Whether what is known of a name may be given as the answer. */
static bool answers(const struct known *known, int64_t age_ms)
{
    return known && known->read && is_within(known->fresh_ns, age_ms);
}

static bool all_polled(const struct kl__s3_records *records, const kl_bytes *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct known *known = find_known(records, names[i]);
        if (!known || !is_within(known->asked_ns, POLLED_MS))
            return false;
    }
    return true;
}

/* The names that must be asked for. */
static size_t stale_names(kl__s3 *s3, const kl_bytes *names, size_t count, bool polled, kl_bytes *ret_stale)
{
    size_t stale = 0;
    pthread_mutex_lock(&s3->records->mutex);
    for (size_t i = 0; i < count; i++) {
        struct known *known = make_known(s3->records, names[i]);
        if (known)
            known->used_ns = known->asked_ns = kl__monotonic_ns();
        if (!polled || !answers(known, s3->pulse_age_ms + 1000))
            ret_stale[stale++] = names[i];
    }
    pthread_mutex_unlock(&s3->records->mutex);
    return stale;
}

/* Gives what is known of these names. *ret_stale: those of which that is not enough, by now. */
static kl_rc give_known(kl__s3 *s3, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records,
                        kl_bytes *stale, size_t *ret_stale)
{
    int64_t now_ms = kl__s3_now(s3);
    bool copied = true;
    *ret_stale = 0;
    pthread_mutex_lock(&s3->records->mutex);
    for (size_t i = 0; copied && i < count; i++) {
        const struct known *known = find_known(s3->records, names[i]);
        ret_records[i] = (kl_record){.name = {"", 0}, .value = {"", 0}};
        if (known && is_unread(known))
            stale[(*ret_stale)++] = names[i];
        else if (known && is_there(known, now_ms))
            copied = show(known, arena, &ret_records[i]);
    }
    pthread_mutex_unlock(&s3->records->mutex);
    return copied ? KL_OK : kl__fail_memory();
}

static kl_rc fail_busy(void) { return kl__fail(KL_EBUSY, "too many others write these records; call again"); }

kl_rc kl__s3_get(void *self, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records)
{
    kl__s3 *s3 = self;
    kl_bytes *stale = kl__alloc_zeroed(count, sizeof *stale);
    if (!stale)
        return kl__fail_memory();
    pthread_mutex_lock(&s3->records->mutex);
    bool polled = all_polled(s3->records, names, count);
    pthread_mutex_unlock(&s3->records->mutex);
    kl_rc rc = polled ? kl__s3_pulse(s3, -1) : KL_OK;
    size_t stale_count = rc == KL_OK ? stale_names(s3, names, count, polled, stale) : 0;
    for (int i = 0; rc == KL_OK && (i == 0 || stale_count > 0); i++) {
        rc = i < TRIES ? fetch(s3, stale, stale_count) : fail_busy();
        if (rc == KL_OK)
            rc = give_known(s3, names, count, arena, ret_records, stale, &stale_count);
    }
    kl__free(stale);
    return rc;
}

/* --- Lists --- */

static bool begins_with(kl_bytes name, kl_bytes prefix)
{
    return name.len >= prefix.len && (prefix.len == 0 || memcmp(name.data, prefix.data, prefix.len) == 0);
}

static struct polled *find_polled(const struct kl__s3_records *records, kl_bytes prefix)
{
    struct polled *one = records->polled;
    while (one && !kl__bytes_equal((kl_bytes){one->prefix, one->len}, prefix))
        one = one->next;
    return one;
}

/* Whether the prefix was listed a moment ago, too. *ret_listed: and so that its names are known to the end. */
static bool poll_prefix(kl__s3 *s3, kl_bytes prefix, bool *ret_listed)
{
    struct kl__s3_records *records = s3->records;
    bool polled = false;
    pthread_mutex_lock(&records->mutex);
    struct polled *one = find_polled(records, prefix);
    *ret_listed = one && is_within(one->listed_ns, s3->pulse_age_ms);
    if (one) {
        polled = is_within(one->asked_ns, POLLED_MS);
    } else if ((one = kl__alloc(sizeof *one + prefix.len + 1))) {
        one->len = prefix.len;
        one->listed_ns = 0;
        if (prefix.len)
            memcpy(one->prefix, prefix.data, prefix.len);
        one->next = records->polled;
        records->polled = one;
    }
    if (one)
        one->asked_ns = kl__monotonic_ns();
    pthread_mutex_unlock(&records->mutex);
    return polled;
}

static kl__tree_node *first_behind(const struct kl__s3_records *records, kl_bytes prefix, kl_bytes after)
{
    struct known from = {.name = prefix}, behind = {.name = after};
    bool goes_on = after.len > 0 && kl__bytes_compare(after, prefix) >= 0;
    return goes_on ? kl__memory_after(records->known, &behind.by_name, less_name)
                   : kl__memory_from(records->known, &from.by_name, less_name);
}

/* A list that is being made. */
struct listing {
    kl_bytes prefix, after;
    kl_bytes until; /* no further than this name; empty: to the end */
    size_t max;
    kl_arena *arena;    /* NULL: they are only counted */
    kl_record *records; /* in the arena */
    size_t count;       /* records that are there */
    kl_arena scratch;
    kl_bytes *names; /* room for UNREAD_MAX, in scratch: those that must be read before */
    size_t unread;
};

static bool goes_on(const struct listing *listing, const kl__tree_node *node)
{
    return node && listing->count + listing->unread < listing->max && listing->unread < UNREAD_MAX &&
           begins_with(by_name(node)->name, listing->prefix) &&
           (listing->until.len == 0 || kl__bytes_compare(by_name(node)->name, listing->until) <= 0);
}

/* Goes through what is known until there are `max` records that are there; the unread ones may be. */
static kl_rc walk(kl__s3 *s3, struct listing *listing)
{
    bool copied = true;
    int64_t now_ms = kl__s3_now(s3);
    listing->count = listing->unread = 0;
    kl_arena_reset(&listing->scratch);
    pthread_mutex_lock(&s3->records->mutex);
    kl__tree_node *node = first_behind(s3->records, listing->prefix, listing->after);
    for (; copied && goes_on(listing, node); node = kl__memory_after(s3->records->known, node, less_name)) {
        struct known *known = by_name(node);
        known->used_ns = kl__monotonic_ns();
        if (is_unread(known))
            copied = kl_arena_copy(&listing->scratch, known->name, &listing->names[listing->unread++]);
        else if (is_there(known, now_ms) && ++listing->count && listing->arena)
            copied = show(known, listing->arena, &listing->records[listing->count - 1]);
    }
    pthread_mutex_unlock(&s3->records->mutex);
    return copied ? KL_OK : kl__fail_memory();
}

/* Reads what must be read until the list is whole, as far as names are known. */
static kl_rc walk_read(kl__s3 *s3, struct listing *listing)
{
    kl_rc rc = walk(s3, listing);
    while (rc == KL_OK && listing->unread > 0) {
        rc = fetch(s3, listing->names, listing->unread);
        if (rc == KL_OK)
            rc = walk(s3, listing);
    }
    return rc;
}

/* One page of names behind *at, which moves on. */
static kl_rc see_page(kl__s3 *s3, const char *start, kl__s3_text *at, bool *ret_more)
{
    kl__s3_names names = {0};
    int64_t asked_ns = kl__monotonic_ns();
    kl_rc rc = at->failed ? kl__fail_memory() : kl__s3_list_page(s3, start, at->len ? at->data : NULL, 0, &names);
    if (rc == KL_OK)
        rc = kl__s3_records_seen(s3, &names, false, asked_ns);
    if (rc != KL_OK) {
        kl__s3_names_free(&names);
        return rc;
    }
    *ret_more = names.more && names.count > 0;
    at->len = names.count ? 0 : at->len;
    if (names.count)
        kl__s3_text_put(at, "%s", names.items[names.count - 1].name);
    kl__s3_names_free(&names);
    return at->failed ? kl__fail_memory() : KL_OK;
}

/* Names in base32 stand apart from those that they would stand among. */
static kl_rc list_long_names(kl__s3 *s3, bool polled)
{
    kl__s3_text at = {0};
    int64_t asked_ns = kl__monotonic_ns();
    kl_rc rc = KL_OK;
    pthread_mutex_lock(&s3->records->mutex);
    bool more = !polled || !is_within(s3->records->long_ns, s3->pulse_age_ms);
    pthread_mutex_unlock(&s3->records->mutex);
    if (!more)
        return KL_OK;
    while (rc == KL_OK && more)
        rc = see_page(s3, "records/~~", &at, &more);
    kl__s3_text_free(&at);
    pthread_mutex_lock(&s3->records->mutex);
    s3->records->long_ns = rc == KL_OK ? asked_ns : 0;
    pthread_mutex_unlock(&s3->records->mutex);
    return rc;
}

/* All names of the prefix are known, as of then. */
static void note_listed(kl__s3 *s3, kl_bytes prefix, int64_t asked_ns)
{
    pthread_mutex_lock(&s3->records->mutex);
    struct polled *one = find_polled(s3->records, prefix);
    if (one)
        one->listed_ns = asked_ns;
    pthread_mutex_unlock(&s3->records->mutex);
}

/* Where there are more records than one listing shows: pages of this prefix, from `after` on, until enough of what they
 * show is there. Removed ones are shown, too. */
static kl_rc list_pages(kl__s3 *s3, const struct listing *whole, bool polled)
{
    int64_t asked_ns = kl__monotonic_ns();
    struct listing listing = *whole;
    kl__s3_text start = {0}, at = {0};
    char until[KL_S3_NAME_MAX];
    bool more = true;
    kl_rc rc = list_long_names(s3, polled);
    kl__s3_text_put(&start, "records/");
    kl__s3_encode_plainly(&start, listing.prefix);
    if (listing.after.len && kl__bytes_compare(listing.after, listing.prefix) >= 0) {
        kl__s3_text_put(&at, "records/");
        kl__s3_encode_plainly(&at, listing.after);
    }
    listing.arena = NULL;
    listing.until.data = until;
    while (rc == KL_OK && more && listing.count < listing.max) {
        rc = start.failed ? kl__fail_memory() : see_page(s3, start.data, &at, &more);
        if (rc == KL_OK && more && strlen(at.data) < sizeof until &&
            kl__s3_decode_name(at.data + strlen("records/"), until, &listing.until.len) && listing.until.len > 0)
            rc = walk_read(s3, &listing);
    }
    if (rc == KL_OK && !more && listing.after.len == 0)
        note_listed(s3, listing.prefix, asked_ns);
    kl_arena_free(&listing.scratch);
    kl__s3_text_free(&start);
    kl__s3_text_free(&at);
    return rc;
}

kl_rc kl__s3_list(void *self, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena, kl_record *ret_records,
                  size_t *ret_count)
{
    kl__s3 *s3 = self;
    bool listed, polled = poll_prefix(s3, prefix, &listed);
    struct listing listing = {.prefix = prefix, .after = after, .max = max, .arena = arena, .records = ret_records};
    listing.names = kl__alloc_zeroed(UNREAD_MAX, sizeof *listing.names);
    kl_rc rc = listing.names ? kl__s3_pulse(s3, polled ? -1 : LISTED_MS) : kl__fail_memory();
    pthread_mutex_lock(&s3->records->mutex);
    bool whole = s3->records->whole_ns && s3->records->whole_ns == s3->pulse_ns;
    pthread_mutex_unlock(&s3->records->mutex);
    if (rc == KL_OK && !whole && !(polled && listed))
        rc = list_pages(s3, &listing, polled);
    if (rc == KL_OK)
        rc = walk_read(s3, &listing);
    kl__free(listing.names);
    kl_arena_free(&listing.scratch);
    if (rc == KL_OK)
        *ret_count = listing.count;
    return rc;
}

/* --- Writing --- */

/* What is there: from memory, or as the server has it. */
static kl_rc current(kl__s3 *s3, kl_bytes name, bool ask, kl_arena *arena, kl__s3_document *ret_document)
{
    bool copied = true, unread = true;
    for (int i = 0; ask && unread; i++) {
        kl_rc rc = i < TRIES ? fetch_held(s3, &name, 1) : fail_busy();
        if (rc != KL_OK)
            return rc;
        pthread_mutex_lock(&s3->records->mutex);
        const struct known *read = find_known(s3->records, name);
        unread = read && is_unread(read);
        pthread_mutex_unlock(&s3->records->mutex);
    }
    *ret_document = (kl__s3_document){.value = {"", 0}};
    pthread_mutex_lock(&s3->records->mutex);
    const struct known *known = find_known(s3->records, name);
    if (known && known->read) {
        ret_document->version = known->version;
        ret_document->removed = known->removed;
        ret_document->expires_ms = known->expires_ms;
        snprintf(ret_document->etag, sizeof ret_document->etag, "%s", known->etag);
        copied = kl_arena_copy(arena, known->value, &ret_document->value);
    }
    pthread_mutex_unlock(&s3->records->mutex);
    return copied ? KL_OK : kl__fail_memory();
}

static uint64_t version_of(kl__s3 *s3, const kl__s3_document *document)
{
    bool there =
        document->version && !document->removed && (document->expires_ms == 0 || document->expires_ms > kl__s3_now(s3));
    return there ? document->version : 0;
}

static kl_rc conflict(kl_write *write, size_t index, uint64_t version)
{
    write->rc = KL_ECONFLICT;
    return kl__fail(KL_ECONFLICT,
                    "write %zu: the record '%.*s' is at version %llx, not %llx; read it again and decide anew", index,
                    (int)(write->name.len < 80 ? write->name.len : 80), (const char *)write->name.data,
                    (unsigned long long)version, (unsigned long long)write->version);
}

/* Whether what is there makes the write needless: it is its own repeat. */
static bool is_repeat(const kl_write *write, const kl__s3_document *there, uint64_t version)
{
    if (write->remove)
        return version == 0;
    return version && there->expires_ms == write->expires_ms && kl__bytes_equal(there->value, write->value);
}

/* Puts `made` over `old`. *ret_done false: something else is there by now, and was read. */
static kl_rc try_write(kl__s3 *s3, kl_write *write, const char *name, kl__s3_document *old, kl__s3_document *made,
                       kl_arena *arena, bool *ret_done)
{
    int64_t asked_ns = kl__monotonic_ns();
    kl_rc rc = kl__s3_document_put(s3, name, old, made, made->etag);
    *ret_done = rc == KL_OK;
    if (rc == KL_ECONFLICT) {
        rc = current(s3, write->name, true, arena, old);
        *ret_done = rc == KL_OK && old->version == made->version; /* ours, and its reply was lost */
        if (*ret_done)
            snprintf(made->etag, sizeof made->etag, "%s", old->etag);
    }
    if (rc == KL_OK && *ret_done) {
        pthread_mutex_lock(&s3->records->mutex);
        bool learned = learn(s3->records, write->name, made, asked_ns);
        pthread_mutex_unlock(&s3->records->mutex);
        if (!learned)
            kl__s3_pulse_renew(s3); /* the next look at the bucket shows it, and nobody is content with the last */
    }
    return rc;
}

static kl_rc write_one(kl__s3 *s3, kl_write *write, size_t index)
{
    kl__s3_document old, made = {.version = kl__s3_nonce(),
                                 .expires_ms = write->remove ? 0 : write->expires_ms,
                                 .removed = write->remove,
                                 .value = write->remove ? (kl_bytes){"", 0} : write->value};
    kl_arena arena = {0};
    char *name = kl__s3_record_object(s3, write->name);
    bool done = false, asked = false;
    kl_rc rc = name ? current(s3, write->name, false, &arena, &old) : kl__fail_memory();
    write->new_version = 0;
    for (int i = 0; rc == KL_OK && !done && i < TRIES; i++) {
        uint64_t version = version_of(s3, &old);
        if (version == write->version && !(write->remove && version == 0)) {
            rc = try_write(s3, write, name, &old, &made, &arena, &done);
            write->new_version = done && !write->remove ? made.version : 0;
            asked = true;
        } else if (!asked) { /* memory may be behind */
            rc = current(s3, write->name, true, &arena, &old);
            asked = true;
        } else if (is_repeat(write, &old, version)) {
            write->new_version = write->remove ? 0 : version;
            done = true;
        } else {
            rc = conflict(write, index, version);
        }
    }
    if (rc == KL_OK && !done)
        rc = kl__fail(KL_EBUSY, "write %zu: too many others write this record; call again", index);
    write->rc = rc;
    kl__free(name);
    kl_arena_free(&arena);
    return rc;
}

kl_rc kl__s3_put(void *self, kl_write *writes, size_t count)
{
    kl_rc first = KL_OK;
    char error[300] = "";
    for (size_t i = 0; i < count; i++) {
        uint64_t stripe = stripes_of(&writes[i].name, 1);
        lock_stripes(self, stripe);
        kl_rc rc = write_one(self, &writes[i], i);
        unlock_stripes(self, stripe);
        if (rc != KL_OK && first == KL_OK) {
            first = rc;
            snprintf(error, sizeof error, "%s", kl_error_text());
        }
    }
    return first == KL_OK ? KL_OK : kl__fail(first, "%s", error);
}
