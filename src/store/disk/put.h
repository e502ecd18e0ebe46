/* put.h - writes single records of the journal at a place in memory that has room for them. */
#ifndef KL_STORE_PUT_H
#define KL_STORE_PUT_H

#include "store/disk/format.h"
#include "store/disk/state.h"

/* Writes a PARTITION, adds its CRC to *sum, and returns where it ends. */
char *kl__put_partition(char *at, uint64_t sequence, const char *name, uint32_t shard_prefix_len, uint32_t number,
                        uint64_t *sum);

/* Writes a FENCE for each shard of the partition that is fenced or sealed, adds their CRCs to *sum, and returns where
 * they end. The state's `fenced` is how many there are in all partitions. */
char *kl__put_fences(const kl__partition_state *partition, char *at, uint64_t *sum);

/* Writes a NOTE; returns its CRC. */
uint32_t kl__put_note(char *at, uint64_t sequence, uint64_t history_commits, uint64_t first_needed);

/* Completes a record's header: bytes from `record` on are written, up to `end`; fills up to a multiple of 8. Returns
 * its CRC. */
uint32_t kl__record_seal(kl__record_header *record, char *end);

#endif
