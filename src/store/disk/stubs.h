/* stubs.h - what is kept in memory of each waiting task: 56 bytes in a slot, found by number or by id.
 *
 * With its share of the table of ids (6 to 8 bytes) and its place in a line (12), a waiting task takes less than 80
 * bytes; its payload stays on disk. Slots never move. */
#ifndef KL_STORE_STUBS_H
#define KL_STORE_STUBS_H

#include <stdbool.h>
#include <stdint.h>

#include "keyline/task.h"

enum { KL_SLOT_BITS = 28, KL_SLOT_NONE = 0, KL_SLOTS_MAX = (1 << KL_SLOT_BITS) - 1 };
enum { KL_SLOT_OFFSET_BITS = 27, KL_SLOT_BYTES_BITS = 21 };

_Static_assert(KL_KEY_BYTES_MAX + KL_KIND_BYTES_MAX + KL_HEADERS_BYTES_MAX + KL_PAYLOAD_BYTES_MAX <
                   1 << KL_SLOT_BYTES_BITS,
               "the largest task's bytes fit");

/* The waiting task's record in the journal is that of its first writing or of its last move. */
typedef struct kl__slot {
    kl_task_id id;
    uint64_t key_hash;
    uint64_t position : 48; /* the sequence number of its first writing */
    uint64_t line : 8;      /* a line of task.h, less KL_PRIORITY_MIN */
    uint64_t priority : 8;  /* less KL_PRIORITY_MIN */
    uint64_t due_ms : 44;   /* due line: its place; retry line: not before */
    uint64_t attempts : 16;
    uint64_t record_flags : 4;              /* of its record: KL_ENTRY_* and KL_RECORD_MOVED */
    uint64_t offset8 : KL_SLOT_OFFSET_BITS; /* where its record is in its segment, in eighths */
    uint64_t bytes : KL_SLOT_BYTES_BITS;    /* of key, kind, headers and payload */
    uint64_t group : 16;
    uint32_t segment; /* the low bits of the segment's number */
    uint16_t partition;
    uint16_t shard;
} kl__slot;
_Static_assert(sizeof(kl__slot) == 56, "every waiting task pays for this");

typedef struct kl__stubs kl__stubs;

kl__stubs *kl__stubs_open(void); /* NULL: out of memory */
void kl__stubs_close(kl__stubs *stubs);

kl__slot *kl__stubs_slot(const kl__stubs *stubs, uint32_t slot);

/* A slot for the partition's task of that id, which must not be there yet; only these two are set. KL_SLOT_NONE: out of
 * memory, or KL_SLOTS_MAX are taken. */
uint32_t kl__stubs_add(kl__stubs *stubs, uint32_t partition, const kl_task_id *id);
uint32_t kl__stubs_find(const kl__stubs *stubs, uint32_t partition, const kl_task_id *id); /* KL_SLOT_NONE: no */
void kl__stubs_remove(kl__stubs *stubs, uint32_t slot);

/* Tells the processor to fetch what looking for the id will touch: its element, and, when that has come, its slot. */
void kl__stubs_prefetch(const kl__stubs *stubs, const kl_task_id *id);
void kl__stubs_prefetch_slot(const kl__stubs *stubs, const kl_task_id *id);
void kl__stubs_prefetch_number(const kl__stubs *stubs, uint32_t slot); /* the slot of that number */

/* The first slot in use from *number on, which is then behind it; 1 is the first of all. NULL: none before `end`, or
 * none at all. */
kl__slot *kl__stubs_next(const kl__stubs *stubs, uint32_t *number, uint32_t end);
uint32_t kl__stubs_end(const kl__stubs *stubs); /* behind the last that was ever in use */

uint64_t kl__stubs_count(const kl__stubs *stubs);

#endif
