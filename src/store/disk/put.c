/* put.c - writing records: what every segment begins with, and how any record is completed. */
#include "store/disk/put.h"

#include <string.h>

uint32_t kl__record_seal(kl__record_header *record, char *end)
{
    size_t bytes = (size_t)(end - (char *)record);
    memset(end, 0, kl__round8(bytes) - bytes);
    record->bytes = (uint32_t)kl__round8(bytes);
    record->crc = kl__record_crc(record);
    return record->crc;
}

char *kl__put_partition(char *at, uint64_t sequence, const char *name, uint32_t shard_prefix_len, uint32_t number,
                        uint64_t *sum)
{
    kl__partition_record *record = (kl__partition_record *)(void *)at;
    size_t name_bytes = strlen(name) + 1;
    *record = (kl__partition_record){
        .header = {.sequence = sequence, .type = KL_RECORD_PARTITION, .small = {(uint8_t)shard_prefix_len}},
        .number = number,
    };
    memcpy(record + 1, name, name_bytes);
    *sum += kl__record_seal(&record->header, (char *)(record + 1) + name_bytes);
    return at + record->header.bytes;
}

uint32_t kl__put_note(char *at, uint64_t sequence, uint64_t history_commits, uint64_t first_needed)
{
    kl__record_header *record = (kl__record_header *)(void *)at;
    *record = (kl__record_header){.sequence = sequence,
                                  .epoch = history_commits,
                                  .type = KL_RECORD_NOTE,
                                  .small = {(uint8_t)first_needed, (uint8_t)(first_needed >> 8)},
                                  .partition = (uint16_t)(first_needed >> 16),
                                  .shard = (uint16_t)(first_needed >> 32)};
    return kl__record_seal(record, (char *)(record + 1));
}

char *kl__put_fences(const kl__partition_state *partition, char *at, uint64_t *sum)
{
    for (uint32_t shard = 0; shard < 1u << (4 * partition->shard_prefix_len); shard++) {
        if (!kl__state_is_fenced(partition, shard))
            continue;
        bool is_sealed = kl__partition_is_sealed(partition, shard);
        kl__record_header *record = (kl__record_header *)(void *)at;
        *record = (kl__record_header){.epoch = partition->shards[shard]->epoch,
                                      .type = KL_RECORD_FENCE,
                                      .flags = KL_RECORD_MOVED | (is_sealed ? KL_FENCE_SEAL : 0),
                                      .partition = (uint16_t)partition->number,
                                      .shard = (uint16_t)shard};
        *sum += kl__record_seal(record, (char *)(record + 1));
        at += record->bytes;
    }
    return at;
}
