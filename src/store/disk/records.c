/* records.c - trees of records, by name and by when they expire. */
#include "store/disk/records.h"

#include <string.h>

#include "base/compare.h"

static kl__held_record *record_of(kl__tree_node *node) { return KL_CONTAINER(node, kl__held_record, node); }

static bool less(const kl__tree_node *a, const kl__tree_node *b)
{
    return kl__bytes_compare(kl__held_name(record_of((kl__tree_node *)a)),
                             kl__held_name(record_of((kl__tree_node *)b))) < 0;
}

static kl__held_record *expiring_of(const kl__tree_node *node)
{
    return KL_CONTAINER((kl__tree_node *)node, kl__held_record, expiry);
}

static bool expires_before(const kl__tree_node *a, const kl__tree_node *b)
{
    int64_t left = expiring_of(a)->expires_ms, right = expiring_of(b)->expires_ms;
    return left != right ? left < right : (uintptr_t)a < (uintptr_t)b;
}

kl__held_record *kl__records_expired(const kl__records *records, int64_t now_ms)
{
    kl__tree_node *first = kl__tree_first(records->expiring);
    return first && kl__held_expired(expiring_of(first), now_ms) ? expiring_of(first) : NULL;
}

kl__held_record *kl__records_after(const kl__records *records, kl_bytes name, bool or_equal)
{
    kl__tree_node *best = NULL;
    for (kl__tree_node *node = records->root; node;) {
        int order = kl__bytes_compare(kl__held_name(record_of(node)), name);
        if (order > 0 || (order == 0 && or_equal)) {
            best = node;
            node = node->left;
        } else {
            node = node->right;
        }
    }
    return best ? record_of(best) : NULL;
}

kl__held_record *kl__records_find(const kl__records *records, kl_bytes name)
{
    kl__held_record *record = kl__records_after(records, name, true);
    return record && kl__bytes_compare(kl__held_name(record), name) == 0 ? record : NULL;
}

kl__held_record *kl__records_set(kl__records *records, const kl__write_record *write, kl__where where)
{
    kl__held_record *record = kl__alloc(sizeof *record + write->name_bytes + write->value_bytes);
    if (!record)
        return NULL;
    record->version = write->version;
    record->expires_ms = write->expires_ms;
    record->where = where;
    record->bytes = write->header.bytes;
    record->name_bytes = write->name_bytes;
    record->value_bytes = write->value_bytes;
    memcpy(record->text, write + 1, (size_t)write->name_bytes + write->value_bytes);
    kl__held_record *old = kl__records_find(records, kl__held_name(record));
    if (old)
        kl__records_remove(records, old);
    kl__tree_insert(&records->root, &record->node, less);
    if (record->expires_ms)
        kl__tree_insert(&records->expiring, &record->expiry, expires_before);
    records->count++;
    return record;
}

void kl__records_remove(kl__records *records, kl__held_record *record)
{
    kl__tree_remove(&records->root, &record->node, less);
    if (record->expires_ms)
        kl__tree_remove(&records->expiring, &record->expiry, expires_before);
    kl__free(record);
    records->count--;
}

void kl__records_free(kl__records *records)
{
    while (records->root)
        kl__records_remove(records, record_of(records->root));
}
