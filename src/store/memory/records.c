/* records.c - records in memory: small values with a version.
 *
 * Versions come from one counter of the store, so none is ever used again, also not for a record that was removed and
 * made anew: whoever still holds the old version loses. */
#include "store/memory/memory.h"

static kl__memory_record *by_name(const kl__tree_node *node) { return KL_CONTAINER(node, kl__memory_record, by_name); }

static kl__memory_record *by_expiry(const kl__tree_node *node)
{
    return KL_CONTAINER(node, kl__memory_record, by_expiry);
}

static bool less_name(const kl__tree_node *a, const kl__tree_node *b)
{
    return kl__bytes_compare(by_name(a)->name, by_name(b)->name) < 0;
}

static bool less_expiry(const kl__tree_node *a, const kl__tree_node *b)
{
    const kl__memory_record *first = by_expiry(a), *second = by_expiry(b);
    return first->expires_ms != second->expires_ms ? first->expires_ms < second->expires_ms
                                                   : (uintptr_t)first < (uintptr_t)second;
}

static kl__memory_record *find_record(const kl__memory *memory, kl_bytes name)
{
    kl__memory_record probe = {.name = name};
    kl__tree_node *node = kl__memory_find_node(memory->records, &probe.by_name, less_name);
    return node ? by_name(node) : NULL;
}

void kl__memory_record_drop(kl__memory *memory, kl__memory_record *record)
{
    kl__tree_remove(&memory->records, &record->by_name, less_name);
    if (record->expires_ms != 0)
        kl__tree_remove(&memory->expiring_records, &record->by_expiry, less_expiry);
    kl__free(record);
}

void kl__memory_records_drop(kl__memory *memory, int64_t now_ms)
{
    kl__tree_node *node;
    while ((node = kl__tree_first(memory->expiring_records)) && by_expiry(node)->expires_ms <= now_ms)
        kl__memory_record_drop(memory, by_expiry(node));
}

/* --- Reading --- */

static bool show(const kl__memory_record *record, kl_arena *arena, kl_record *ret_record)
{
    ret_record->version = record->version;
    ret_record->expires_ms = record->expires_ms;
    return kl_arena_copy(arena, record->name, &ret_record->name) &&
           kl_arena_copy(arena, record->value, &ret_record->value);
}

kl_rc kl__memory_get(void *self, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records)
{
    bool copied = true;
    kl__memory_enter(self);
    for (size_t i = 0; copied && i < count; i++) {
        const kl__memory_record *record = find_record(self, names[i]);
        ret_records[i] = (kl_record){.name = {"", 0}, .value = {"", 0}};
        if (record)
            copied = show(record, arena, &ret_records[i]);
    }
    kl__memory_leave(self);
    return copied ? KL_OK : kl__fail_memory();
}

static bool begins_with(kl_bytes name, kl_bytes prefix)
{
    return name.len >= prefix.len && (prefix.len == 0 || memcmp(name.data, prefix.data, prefix.len) == 0);
}

kl_rc kl__memory_list(void *self, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena, kl_record *ret_records,
                      size_t *ret_count)
{
    kl__memory *memory = self;
    bool copied = true;
    size_t count = 0;
    kl__memory_record from = {.name = prefix}, behind = {.name = after};
    bool goes_on = after.len > 0 && kl__bytes_compare(after, prefix) >= 0;
    kl__memory_enter(memory);
    kl__tree_node *node = goes_on ? kl__memory_after(memory->records, &behind.by_name, less_name)
                                  : kl__memory_from(memory->records, &from.by_name, less_name);
    while (copied && node && count < max && begins_with(by_name(node)->name, prefix)) {
        copied = show(by_name(node), arena, &ret_records[count++]);
        node = kl__memory_after(memory->records, node, less_name);
    }
    kl__memory_leave(memory);
    if (!copied)
        return kl__fail_memory();
    *ret_count = count;
    return KL_OK;
}

/* --- Writing --- */

static kl__memory_record *make_record(const kl_write *write)
{
    kl__memory_record *record = kl__alloc(sizeof *record + write->name.len + write->value.len);
    if (!record)
        return NULL;
    *record = (kl__memory_record){.expires_ms = write->expires_ms};
    record->name = (kl_bytes){record->bytes, write->name.len};
    record->value = (kl_bytes){record->bytes + write->name.len, write->value.len};
    memcpy(record->bytes, write->name.data, write->name.len);
    if (write->value.len > 0)
        memcpy(record->bytes + write->name.len, write->value.data, write->value.len);
    return record;
}

/* A record for each write that is no remove, linked in their order. False: out of memory. */
static bool make_all(const kl_write *writes, size_t count, kl__memory_record **ret_records)
{
    kl__memory_record *first = NULL, **end = &first;
    for (size_t i = 0; i < count; i++) {
        if (writes[i].remove)
            continue;
        *end = make_record(&writes[i]);
        if (!*end) {
            for (kl__memory_record *next; first; first = next) {
                next = first->next;
                kl__free(first);
            }
            return false;
        }
        end = &(*end)->next;
    }
    *ret_records = first;
    return true;
}

static kl_rc refuse(const kl_write *write, size_t index, uint64_t version)
{
    return kl__fail(KL_ECONFLICT,
                    "write %zu: the record '%.*s' is at version %llu, not %llu; read it again and decide anew", index,
                    (int)(write->name.len < 80 ? write->name.len : 80), (const char *)write->name.data,
                    (unsigned long long)version, (unsigned long long)write->version);
}

static bool is_repeat(const kl__memory_record *there, const kl__memory_record *made)
{
    return there && there->expires_ms == made->expires_ms && kl__bytes_equal(there->value, made->value);
}

static void put_in(kl__memory *memory, kl__memory_record *made)
{
    made->version = ++memory->version;
    kl__tree_insert(&memory->records, &made->by_name, less_name);
    if (made->expires_ms != 0)
        kl__tree_insert(&memory->expiring_records, &made->by_expiry, less_expiry);
}

/* `made` is the record of a put, and NULL of a remove. True: it was written, or had been. */
static bool write_one(kl__memory *memory, kl_write *write, kl__memory_record *made)
{
    kl__memory_record *there = find_record(memory, write->name);
    uint64_t version = there ? there->version : 0;
    bool changes = version == write->version;
    bool passes = changes || (made ? is_repeat(there, made) : !there);
    write->rc = passes ? KL_OK : KL_ECONFLICT;
    write->new_version = passes && made ? version : 0;
    if (changes && there)
        kl__memory_record_drop(memory, there);
    if (changes && made) {
        put_in(memory, made);
        write->new_version = made->version;
        kl__memory_records_drop(memory, memory->now_ms); /* it may have expired before it came */
    } else {
        kl__free(made);
    }
    return passes;
}

static kl_rc write_all(kl__memory *memory, kl_write *writes, size_t count, kl__memory_record *made)
{
    kl_rc first = KL_OK;
    for (size_t i = 0; i < count; i++) {
        kl__memory_record *own = writes[i].remove ? NULL : made;
        if (own)
            made = own->next;
        if (!write_one(memory, &writes[i], own) && first == KL_OK) {
            const kl__memory_record *there = find_record(memory, writes[i].name);
            first = refuse(&writes[i], i, there ? there->version : 0);
        }
    }
    return first;
}

kl_rc kl__memory_put(void *self, kl_write *writes, size_t count)
{
    kl__memory_record *made = NULL;
    kl_rc rc;
    kl__memory_enter(self);
    if (make_all(writes, count, &made)) {
        rc = write_all(self, writes, count, made);
    } else {
        rc = kl__fail_memory();
        for (size_t i = 0; i < count; i++)
            writes[i].rc = rc;
    }
    kl__memory_leave(self);
    return rc;
}
