/* records.h - the records of store.h in memory: by name, with their values; and those that expire by when they do. */
#ifndef KL_STORE_RECORDS_H
#define KL_STORE_RECORDS_H

#include "base/base.h"
#include "base/tree.h"
#include "store/disk/format.h"

typedef struct kl__held_record {
    kl__tree_node node;   /* by name */
    kl__tree_node expiry; /* by expires_ms, when that is not 0 */
    uint64_t version;
    int64_t expires_ms; /* 0: never */
    kl__where where;    /* it is written */
    uint32_t bytes;     /* of its WRITE in the journal */
    uint32_t value_bytes;
    uint16_t name_bytes;
    char text[]; /* name, then value */
} kl__held_record;

typedef struct kl__records {
    kl__tree_node *root;
    kl__tree_node *expiring;
    uint64_t count;
} kl__records;

static inline kl_bytes kl__held_name(const kl__held_record *record)
{
    return (kl_bytes){record->text, record->name_bytes};
}

static inline kl_bytes kl__held_value(const kl__held_record *record)
{
    return (kl_bytes){record->text + record->name_bytes, record->value_bytes};
}

static inline bool kl__held_expired(const kl__held_record *record, int64_t now_ms)
{
    return record->expires_ms != 0 && record->expires_ms <= now_ms;
}

/* By its name, expired or not; NULL: there is none. */
kl__held_record *kl__records_find(const kl__records *records, kl_bytes name);

/* The first whose name is behind `name`, or not before it when `or_equal`; NULL: there is none. */
kl__held_record *kl__records_after(const kl__records *records, kl_bytes name, bool or_equal);

/* The first to expire, when it has; NULL: none has. */
kl__held_record *kl__records_expired(const kl__records *records, int64_t now_ms);

/* Takes up what a WRITE says, in place of what has its name. NULL: out of memory, nothing changed. */
kl__held_record *kl__records_set(kl__records *records, const kl__write_record *write, kl__where where);

void kl__records_remove(kl__records *records, kl__held_record *record);
void kl__records_free(kl__records *records);

#endif
