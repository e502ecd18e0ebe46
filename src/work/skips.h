/* skips.h - keys of which a window has left tasks out, and from where: a hash table of 32-byte entries. Nearly every
 * key that is looked for is not there, so each entry has a tag, in a table of bytes that is small enough to stay in the
 * processor's cache.
 *
 * A key that has an entry is not to be read from the line beyond `from` until a side look, which begins there, has
 * caught up: otherwise a later task could overtake an earlier one. Tasks without a key are entered by group. */
#ifndef KL_SKIPS_H
#define KL_SKIPS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct kl__skip {
    uint64_t key;  /* its hash, or KL_SKIP_KEYLESS | group; 0: no entry */
    uint64_t from; /* position of the first task left out */
    int64_t floor; /* its time, or a little before */
    uint16_t group;
    int8_t priority; /* of one that is left out of the due line */
    bool wanting;    /* a side look is to bring more of it */
} kl__skip;

#define KL_SKIP_KEYLESS UINT64_C(0xffffffffffff0000)
#define KL_SKIPS_MAX    (1u << 20) /* entries of one line: 66 MiB at most, for a million keys with more than fits */

/* All zero: empty. */
typedef struct kl__skips {
    kl__skip *slots;
    uint8_t *tags;     /* behind the slots: of each; 0: no entry */
    uint32_t capacity; /* a power of two, or 0 */
    uint32_t count;
} kl__skips;

kl__skip *kl__skips_find(const kl__skips *skips, uint64_t key); /* NULL: not there */
kl__skip *kl__skips_add(kl__skips *skips, uint64_t key);        /* must not be there; NULL: full, or out of memory */
void kl__skips_remove(kl__skips *skips, kl__skip *skip);        /* other pointers into the table are no longer valid */
void kl__skips_free(kl__skips *skips);

#endif
