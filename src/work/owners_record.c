/* owners_record.c - the record `owners/PARTITION`: its bytes, and the few changes that every reader makes alike.
 *
 * From: owners.c.  To: queue/json.c, the store.
 *
 *     {"shard_prefix_len": 2, "epoch": 9,
 *      "workers": [{"id": "<32 hex digits>", "name": "host:4711", "beat": 88, "seen_ms": 1, "expires_ms": 2,
 *                   "running": 3, "concurrency": 8, "permits": 5, "wants": 4, "leaving": false,
 *                   "shards": "00-3f", "kinds": "07d1f20c", "full": true}],
 *      "groups": "0:7*64,-*190,0:9!,-!",
 *      "wishes": [{"group": 1, "worker": 0, "until_ms": 3}]}
 *
 * full: tasks wait because it runs as many of the partition as it may; else left out.
 *
 * groups: runs of neighbours that are alike, OWNER:EPOCH in hex, or - for none; `!` when the owner before did not give
 * them back; *COUNT in decimal when there are more than one.
 *
 * Size, so that 65,536 shards and any 64 workers fit into KL_RECORD_BYTES_MAX = 262,144:
 *
 *     groups  4,096 of 2 + 1 + 16 + 1 + 1 bytes                       86,016
 *     workers 64 of 32 (id) + 64 (name) + 1,024 (shards) + 1,024
 *             (kinds) + 7 numbers of 20 + 150 (the rest)             155,776
 *     wishes  256 of 60                                               15,360
 *     head                                                               128 */
#include <stdio.h>

#include "base/hash.h"
#include "base/layout.h"
#include "base/text.h"
#include "queue/json.h"
#include "work/owners_inside.h"

enum {
    GROUP_BYTES = 21,
    WORKER_BYTES = 32 + KL_OWNERS_NAME_BYTES + KL_OWNERS_RANGES_BYTES + 4 * KL_OWNERS_KINDS_MAX + 7 * 20 + 150,
    WISH_BYTES = 60,
    HEAD_BYTES = 128,
    WORKERS_SURE = 64,
    KIND_SEED = 4,
};

_Static_assert(KL_GROUPS_MAX *GROUP_BYTES + WORKERS_SURE * WORKER_BYTES + KL_WISHES_MAX * WISH_BYTES + HEAD_BYTES <=
                   KL_RECORD_BYTES_MAX,
               "64 workers of any kind fit");

kl_rc kl__owners_record_name(const char *partition, char ret_name[KL_OWNERS_RECORD_NAME_BYTES])
{
    size_t length = partition ? strlen(partition) : 0;
    if (length == 0 || length > KL_PARTITION_BYTES_MAX)
        return kl__fail(KL_EINVAL, "a partition's name has %zu bytes; it must have 1 to %d", length,
                        KL_PARTITION_BYTES_MAX);
    snprintf(ret_name, KL_OWNERS_RECORD_NAME_BYTES, "owners/%s", partition);
    return KL_OK;
}

/* --- Kinds --- */

uint16_t kl__owners_kind(kl_bytes kind)
{
    uint64_t hash = kl__hash((kl_bytes){kind.len ? kind.data : "", kind.len}, KIND_SEED);
    return (uint16_t)(1 + (hash >> 48) % (KL_KIND_UNKNOWN - 1));
}

bool kl__kinds_serve(const char *kinds, uint16_t kind)
{
    char wanted[8];
    snprintf(wanted, sizeof wanted, "%04x", kind);
    for (const char *at = kinds; *at; at += 4)
        if (memcmp(at, wanted, 4) == 0)
            return true;
    return *kinds == '\0';
}

/* --- Changes --- */

void kl__record_free_group(kl__owners_record *record, uint32_t group, bool unclean)
{
    kl__record_group *freed = &record->groups[group];
    KL_ASSERT(freed->owner >= 0);
    record->workers[freed->owner].held--;
    *freed = (kl__record_group){.owner = -1, .unclean = unclean};
}

static void drop_wish(kl__owners_record *record, size_t wish)
{
    record->wishes[wish] = record->wishes[--record->wish_count];
}

void kl__record_drop_worker(kl__owners_record *record, size_t worker)
{
    for (uint32_t group = 0; group < record->group_count; group++) {
        if (record->groups[group].owner == (int)worker)
            kl__record_free_group(record, group, true);
        else if (record->groups[group].owner > (int)worker)
            record->groups[group].owner--;
    }
    for (size_t i = record->wish_count; i-- > 0;) {
        if (record->wishes[i].worker == worker)
            drop_wish(record, i);
        else if (record->wishes[i].worker > worker)
            record->wishes[i].worker--;
    }
    record->worker_count--;
    memmove(&record->workers[worker], &record->workers[worker + 1],
            (record->worker_count - worker) * sizeof record->workers[0]);
}

void kl__record_expire(kl__owners_record *record, int64_t now_ms)
{
    for (size_t i = record->worker_count; i-- > 0;)
        if (record->workers[i].expires_ms <= now_ms)
            kl__record_drop_worker(record, i);
    for (size_t i = record->wish_count; i-- > 0;)
        if (record->wishes[i].until_ms <= now_ms)
            drop_wish(record, i);
}

int kl__record_find(const kl__owners_record *record, const kl_task_id *id)
{
    for (size_t i = 0; i < record->worker_count; i++)
        if (memcmp(&record->workers[i].id, id, sizeof *id) == 0)
            return (int)i;
    return -1;
}

const kl__record_wish *kl__record_wish_of(const kl__owners_record *record, uint32_t group)
{
    for (size_t i = 0; i < record->wish_count; i++)
        if (record->wishes[i].group == group)
            return &record->wishes[i];
    return NULL;
}

/* --- Writing --- */

/* Numbers in JSON have a sign. */
static int64_t fit(uint64_t number) { return number > INT64_MAX ? INT64_MAX : (int64_t)number; }

static void print_id(const kl_task_id *id, char ret_text[33])
{
    for (size_t i = 0; i < sizeof id->bytes; i++)
        snprintf(ret_text + 2 * i, 3, "%02x", id->bytes[i]);
}

static json_t *print_worker(const kl__record_worker *worker)
{
    char id[33];
    json_t *object = kl__json_object();
    print_id(&worker->id, id);
    if (kl__json_set_text(object, "id", id) && kl__json_set_text(object, "name", worker->name) &&
        kl__json_set_int(object, "beat", fit(worker->beat)) && kl__json_set_int(object, "seen_ms", worker->seen_ms) &&
        kl__json_set_int(object, "expires_ms", worker->expires_ms) &&
        kl__json_set_int(object, "running", fit(worker->running)) &&
        kl__json_set_int(object, "concurrency", fit(worker->concurrency)) &&
        kl__json_set_int(object, "permits", fit(worker->permits)) &&
        kl__json_set_int(object, "wants", fit(worker->wants)) &&
        kl__json_set_bool(object, "leaving", worker->leaving) && kl__json_set_text(object, "shards", worker->shards) &&
        kl__json_set_text(object, "kinds", worker->kinds) && (!worker->full || kl__json_set_bool(object, "full", true)))
        return object;
    json_decref(object);
    return NULL;
}

static json_t *print_workers(const kl__owners_record *record)
{
    json_t *array = kl__json_array();
    for (size_t i = 0; array && i < record->worker_count; i++)
        if (!kl__json_append(array, print_worker(&record->workers[i]))) {
            json_decref(array);
            return NULL;
        }
    return array;
}

static json_t *print_wish(const kl__record_wish *wish)
{
    json_t *object = kl__json_object();
    if (kl__json_set_int(object, "group", wish->group) && kl__json_set_int(object, "worker", wish->worker) &&
        kl__json_set_int(object, "until_ms", wish->until_ms))
        return object;
    json_decref(object);
    return NULL;
}

static json_t *print_wishes(const kl__owners_record *record)
{
    json_t *array = kl__json_array();
    for (size_t i = 0; array && i < record->wish_count; i++)
        if (!kl__json_append(array, print_wish(&record->wishes[i]))) {
            json_decref(array);
            return NULL;
        }
    return array;
}

static bool alike(const kl__record_group *a, const kl__record_group *b)
{
    return a->owner == b->owner && a->epoch == b->epoch && a->unclean == b->unclean;
}

/* NULL: out of memory. */
static const char *print_groups(const kl__owners_record *record, kl_arena *arena)
{
    kl__text text = {.size = (size_t)record->group_count * (GROUP_BYTES + 1) + 1};
    text.buffer = kl_arena_alloc(arena, text.size);
    if (!text.buffer)
        return NULL;
    text.buffer[0] = '\0';
    for (uint32_t first = 0, end; first < record->group_count; first = end) {
        const kl__record_group *group = &record->groups[first];
        for (end = first + 1; end < record->group_count && alike(&record->groups[end], group);)
            end++;
        kl__text_put(&text, "%s", first ? "," : "");
        if (group->owner < 0)
            kl__text_put(&text, "-");
        else
            kl__text_put(&text, "%x:%llx", (unsigned)group->owner, (unsigned long long)group->epoch);
        kl__text_put(&text, "%s", group->unclean ? "!" : "");
        if (end - first > 1)
            kl__text_put(&text, "*%u", (unsigned)(end - first));
    }
    KL_ASSERT(text.length < text.size);
    return text.buffer;
}

static kl_rc print_all(const kl__owners_record *record, const kl_layout *layout, const char *groups, kl_arena *arena,
                       kl_bytes *ret_value)
{
    json_t *object = kl__json_object();
    bool set = kl__json_set_int(object, "shard_prefix_len", layout->shard_prefix_len) &&
               kl__json_set_int(object, "epoch", fit(record->epoch)) &&
               kl__json_set(object, "workers", print_workers(record)) && kl__json_set_text(object, "groups", groups) &&
               kl__json_set(object, "wishes", print_wishes(record));
    kl_rc rc = set ? kl__json_print(object, arena, ret_value) : kl__fail_memory();
    json_decref(object);
    return rc;
}

kl_rc kl__owners_record_print(const kl__owners_record *record, const kl_layout *layout, kl_arena *arena,
                              kl_bytes *ret_value)
{
    kl_bytes value = {0};
    const char *groups = print_groups(record, arena);
    kl_rc rc = groups ? print_all(record, layout, groups, arena, &value) : kl__fail_memory();
    if (rc != KL_OK)
        return rc;
    if (value.len > KL_RECORD_BYTES_MAX)
        return kl__fail(KL_EFULL,
                        "%zu workers of one partition would need a record of %zu bytes, and it may have %u: run fewer "
                        "of them, with fewer kinds and longer ranges of shards",
                        record->worker_count, value.len, KL_RECORD_BYTES_MAX);
    *ret_value = value;
    return KL_OK;
}

/* --- Reading --- */

static bool parse_id(const char *text, kl_task_id *ret_id)
{
    if (strlen(text) != 32)
        return false;
    for (size_t i = 0; i < sizeof ret_id->bytes; i++) {
        int high = kl__hex_digit(text[2 * i]), low = kl__hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        ret_id->bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static bool parse_allowed(const char *text, const kl_layout *layout, kl__groups *ret_allowed)
{
    kl_layout groups = kl__group_layout(layout);
    kl_shards set;
    if (kl_shards_parse(&groups, kl_str(text), &set) != KL_OK)
        return false;
    memcpy(ret_allowed, set.bits, sizeof *ret_allowed);
    return true;
}

static bool kinds_valid(const char *kinds)
{
    size_t length = strlen(kinds);
    for (size_t i = 0; i < length; i++)
        if (kl__hex_digit(kinds[i]) < 0)
            return false;
    return length % 4 == 0;
}

static void parse_worker(kl__json *from, const kl_layout *layout, kl_arena *arena, kl__record_worker *ret_worker)
{
    *ret_worker = (kl__record_worker){
        .name = kl__json_text(from, "name", arena),
        .beat = (uint64_t)kl__json_int(from, "beat", 0, INT64_MAX),
        .seen_ms = kl__json_int(from, "seen_ms", 0, INT64_MAX),
        .expires_ms = kl__json_int(from, "expires_ms", 0, INT64_MAX),
        .running = (uint64_t)kl__json_int(from, "running", 0, INT64_MAX),
        .concurrency = (uint64_t)kl__json_int(from, "concurrency", 0, INT64_MAX),
        .permits = (uint64_t)kl__json_int(from, "permits", 0, INT64_MAX),
        .wants = (uint64_t)kl__json_int(from, "wants", 0, INT64_MAX),
        .leaving = kl__json_bool(from, "leaving"),
        .shards = kl__json_text(from, "shards", arena),
        .kinds = kl__json_text(from, "kinds", arena),
        .full = kl__json_bool_or(from, "full", false),
    };
    const char *id = kl__json_text(from, "id", arena);
    if (from->rc != KL_OK)
        return;
    if (!parse_id(id, &ret_worker->id))
        kl__json_damaged(from, "id", "is not 32 hex digits");
    else if (!parse_allowed(ret_worker->shards, layout, &ret_worker->allowed))
        kl__json_damaged(from, "shards", "is no list of shards of this layout");
    else if (!kinds_valid(ret_worker->kinds))
        kl__json_damaged(from, "kinds", "is not four hex digits for each kind");
}

/* With room for one who joins. */
static bool make_workers(kl__owners_record *record, size_t count, kl_arena *arena)
{
    record->workers = kl_arena_alloc(arena, (count + 1) * sizeof record->workers[0]);
    return record->workers != NULL;
}

static void parse_workers(kl__json *from, const kl_layout *layout, kl_arena *arena, kl__owners_record *record)
{
    json_t *array = kl__json_array_of(from, "workers", KL_OWNERS_WORKERS_MAX);
    if (from->rc == KL_OK && !make_workers(record, json_array_size(array), arena))
        from->rc = kl__fail_memory();
    for (size_t i = 0; from->rc == KL_OK && i < json_array_size(array); i++) {
        kl__json item = kl__json_item(from, array, i);
        parse_worker(&item, layout, arena, &record->workers[i]);
        from->rc = item.rc;
        if (from->rc == KL_OK && kl__record_find(record, &record->workers[i].id) >= 0)
            kl__json_damaged(from, "workers", "names one worker twice");
        record->worker_count++;
    }
}

/* Reads digits of a base up to 16; false: there are none, or the number is over max. */
static bool parse_number(const char **at, unsigned base, uint64_t max, uint64_t *ret_number)
{
    const char *start = *at;
    uint64_t number = 0;
    for (int digit; (digit = kl__hex_digit(**at)) >= 0 && (unsigned)digit < base; ++*at) {
        if ((unsigned)digit > max || number > (max - (unsigned)digit) / base)
            return false;
        number = number * base + (unsigned)digit;
    }
    *ret_number = number;
    return *at > start;
}

/* One run; false: it is none. */
static bool parse_run(const char **at, const kl__owners_record *record, uint32_t room, kl__record_group *ret_group,
                      uint32_t *ret_count)
{
    uint64_t owner, epoch, count = 1;
    kl__record_group group = {.owner = -1};
    if (**at == '-') {
        ++*at;
    } else {
        if (record->worker_count == 0 || !parse_number(at, 16, record->worker_count - 1, &owner) || *(*at)++ != ':' ||
            !parse_number(at, 16, record->epoch, &epoch) || epoch == 0)
            return false;
        group = (kl__record_group){.owner = (int16_t)owner, .epoch = epoch};
    }
    if (**at == '!') {
        group.unclean = true;
        ++*at;
    }
    if (**at == '*') {
        ++*at;
        if (!parse_number(at, 10, room, &count) || count == 0)
            return false;
    }
    *ret_group = group;
    *ret_count = (uint32_t)count;
    return count <= room;
}

static bool parse_groups(const char *at, kl__owners_record *record)
{
    for (uint32_t filled = 0; filled < record->group_count;) {
        kl__record_group group;
        uint32_t count;
        if (filled > 0 && *at++ != ',')
            return false;
        if (!parse_run(&at, record, record->group_count - filled, &group, &count))
            return false;
        if (group.owner >= 0)
            record->workers[group.owner].held += count;
        for (; count > 0; count--)
            record->groups[filled++] = group;
    }
    return *at == '\0';
}

static void parse_wishes(kl__json *from, kl__owners_record *record)
{
    json_t *array = kl__json_array_of(from, "wishes", KL_WISHES_MAX);
    for (size_t i = 0; from->rc == KL_OK && i < json_array_size(array); i++) {
        kl__json item = kl__json_item(from, array, i);
        record->wishes[record->wish_count++] = (kl__record_wish){
            .group = (uint32_t)kl__json_int(&item, "group", 0, record->group_count - 1),
            .worker = (uint32_t)kl__json_int(&item, "worker", 0, (int64_t)record->worker_count - 1),
            .until_ms = kl__json_int(&item, "until_ms", 0, INT64_MAX),
        };
        from->rc = item.rc;
    }
}

static kl_rc parse_record(kl__json *from, const kl_layout *layout, kl_arena *arena, kl__owners_record *record)
{
    int64_t len = kl__json_int(from, "shard_prefix_len", 1, KL_SHARD_PREFIX_LEN_MAX);
    if (from->rc == KL_OK && len != layout->shard_prefix_len)
        return kl__fail(KL_EINVAL,
                        "the record %s is of a partition whose shards have %d digits, and this one's have %u: use the "
                        "layout of the queue's record",
                        from->what, (int)len, layout->shard_prefix_len);
    record->epoch = (uint64_t)kl__json_int(from, "epoch", 0, (int64_t)KL_EPOCH_MAX);
    parse_workers(from, layout, arena, record);
    const char *groups = kl__json_text(from, "groups", arena);
    if (from->rc == KL_OK && !parse_groups(groups, record))
        kl__json_damaged(from, "groups", "does not say of every group of shards who owns it");
    if (from->rc == KL_OK)
        parse_wishes(from, record);
    return from->rc;
}

static bool make_empty(const kl_layout *layout, kl_arena *arena, kl__owners_record *record)
{
    *record = (kl__owners_record){.group_count = kl_layout_shards(layout) / kl__group_shards(layout)};
    record->groups = kl_arena_alloc(arena, record->group_count * sizeof record->groups[0]);
    if (!record->groups || !make_workers(record, 0, arena))
        return false;
    for (uint32_t group = 0; group < record->group_count; group++)
        record->groups[group] = (kl__record_group){.owner = -1};
    return true;
}

kl_rc kl__owners_record_read(kl_store *store, const char *name, const kl_layout *layout, kl_arena *arena,
                             kl__owners_record *ret_record)
{
    kl__owners_record record;
    kl__json from;
    kl_record stored;
    kl_bytes asked = kl_str(name);
    kl_rc rc = kl_store_get(store, &asked, 1, arena, &stored);
    if (rc == KL_OK && !make_empty(layout, arena, &record))
        rc = kl__fail_memory();
    if (rc == KL_OK && stored.version != 0) {
        rc = kl__json_parse(stored.value, name, &from);
        if (rc == KL_OK) {
            rc = parse_record(&from, layout, arena, &record);
            kl__json_free(&from);
        }
    }
    if (rc != KL_OK)
        return rc;
    record.version = stored.version;
    *ret_record = record;
    return KL_OK;
}
