/* test_disk_format.c - the journal's bytes: what is written is read, what is damaged or forged is not believed.
 *
 * A segment is put together in memory, in an allocation of exactly its size, so that a sanitizer sees every byte read
 * outside of it. */
#include <stddef.h>
#include <stdlib.h>

#include "base/random.h"
#include "harness.h"
#include "keyline/store.h"
#include "store/disk/frames.h"
#include "store/disk/journal.h"
#include "store/disk/state.h"

enum { SEGMENT = 7, JOURNAL = 4711, SIZE_MAX_ = 16 << 10, FRAMES_MAX = 24, FORGED = 200000 };

struct image {
    kl__segment_image segment;
    uint64_t random, sequence, frames[FRAMES_MAX];
    size_t count, end;
};

/* ---- Making records ---- */

static uint64_t below(struct image *image, uint64_t bound) { return kl__random_below(&image->random, bound); }

static char *put_noise(struct image *image, char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = (char)kl__random_next(&image->random);
    return at + bytes;
}

static char *make_entry(struct image *image, char *at)
{
    kl__entry_record *entry = (kl__entry_record *)(void *)at;
    uint8_t flags = (uint8_t)below(image, 16);
    *entry = (kl__entry_record){.header = {.type = KL_RECORD_ENTRY,
                                           .flags = flags,
                                           .epoch = below(image, UINT16_MAX + 1),
                                           .small = {(uint8_t)below(image, 16), 3},
                                           .partition = 1},
                                .id = {(uint8_t)below(image, 32)},
                                .key_bytes = (uint16_t)below(image, 20),
                                .headers_bytes = (uint16_t)below(image, 9),
                                .payload_bytes = (uint32_t)below(image, 100)};
    size_t more =
        (flags & KL_ENTRY_DUE ? 8u : 0) + (flags & KL_ENTRY_JOB ? 16u : 0) + (flags & KL_ENTRY_TRIED ? 16u : 0);
    return put_noise(image, (char *)(entry + 1),
                     more + 3u + entry->key_bytes + entry->headers_bytes + entry->payload_bytes);
}

static char *make_settle(struct image *image, char *at)
{
    kl__settle_record *settle = (kl__settle_record *)(void *)at;
    *settle =
        (kl__settle_record){.header = {.type = KL_RECORD_SETTLE, .partition = 1}, .count = (uint32_t)below(image, 5)};
    at = (char *)(settle + 1);
    for (uint32_t i = 0; i < settle->count; i++) {
        kl__settled_item item = {
            .id = {(uint8_t)below(image, 32)}, .outcome = (uint8_t)below(image, 4), .flags = (uint8_t)below(image, 4)};
        uint64_t error_bytes = below(image, 30);
        item.result_bytes = item.flags & KL_SETTLED_KEPT ? (uint32_t)below(image, 30) : 0;
        memcpy(at, &item, sizeof item);
        char *end = at + sizeof item + (item.flags & KL_SETTLED_DUE ? 8 : 0);
        memset(at + sizeof item, 0, (size_t)(end - at) - sizeof item);
        if (item.flags & KL_SETTLED_KEPT) {
            memset(end, 0, 8);
            memcpy(end + 8, &error_bytes, 8);
            end = put_noise(image, end + 16, error_bytes + item.result_bytes);
        }
        size_t bytes = kl__round8((size_t)(end - at));
        memset(end, 0, bytes - (size_t)(end - at));
        at += bytes;
    }
    return at;
}

static char *make_partition(char *at, uint32_t number)
{
    kl__partition_record *partition = (kl__partition_record *)(void *)at;
    *partition = (kl__partition_record){.header = {.type = KL_RECORD_PARTITION, .small = {1}}, .number = number};
    return (char *)(partition + 1) + sprintf((char *)(partition + 1), "partition %u", number) + 1;
}

static char *make_write(struct image *image, char *at)
{
    kl__write_record *write = (kl__write_record *)(void *)at;
    *write = (kl__write_record){.header = {.type = KL_RECORD_WRITE, .flags = (uint8_t)below(image, 2)},
                                .version = image->sequence,
                                .name_bytes = 1,
                                .value_bytes = (uint32_t)below(image, 50)};
    *(char *)(write + 1) = (char)('a' + below(image, 4));
    return put_noise(image, (char *)(write + 1) + 1, write->value_bytes);
}

static char *make_small(struct image *image, char *at, kl__record_type type)
{
    size_t bytes = type == KL_RECORD_TOKEN ? sizeof(kl__token_record) : sizeof(kl__record_header);
    put_noise(image, at, bytes);
    kl__record_header *record = (kl__record_header *)(void *)at;
    *record = (kl__record_header){.type = (uint8_t)type, .partition = 1, .epoch = below(image, 1000)};
    return at + bytes;
}

static char *make_record(struct image *image, char *at, kl__record_type type)
{
    kl__record_header *record = (kl__record_header *)(void *)at;
    char *end = NULL;
    switch (type) {
    case KL_RECORD_ENTRY:
        end = make_entry(image, at);
        break;
    case KL_RECORD_SETTLE:
        end = make_settle(image, at);
        break;
    case KL_RECORD_PARTITION:
        end = make_partition(at, 1);
        break;
    case KL_RECORD_WRITE:
        end = make_write(image, at);
        break;
    default:
        end = make_small(image, at, type);
        break;
    }
    record->sequence = image->sequence++;
    kl__record_seal(record, end);
    return at + record->bytes;
}

/* ---- Making frames ---- */

/* Sets what the header says of the records that stand behind it. */
static void seal_frame(kl__frame *frame)
{
    const kl__record_header *record = kl__frame_first(frame);
    frame->sum = 0;
    for (uint32_t i = 0; i < frame->records; i++, record = kl__record_next(record))
        frame->sum += record->crc;
    frame->crc = kl__frame_crc(frame);
}

static void add_frame(struct image *image, uint32_t records)
{
    kl__frame *frame = (kl__frame *)(void *)(image->segment.bytes + image->end);
    char *at = (char *)(frame + 1);
    *frame = (kl__frame){.magic = KL_FRAME_MAGIC,
                         .segment = SEGMENT,
                         .number = image->count + 1,
                         .journal = JOURNAL,
                         .sequence = image->sequence,
                         .records = records};
    if (image->count == 0)
        at = make_record(image, at, KL_RECORD_PARTITION);
    for (uint32_t i = image->count == 0; i < records; i++)
        at = make_record(image, at, (kl__record_type)(1 + below(image, KL_RECORD_TYPES - 1)));
    frame->bytes = (uint32_t)(at - (char *)(frame + 1));
    seal_frame(frame);
    image->frames[image->count++] = image->end;
    image->end += KL_FRAME_HEADER + frame->bytes;
}

static void image_make(struct image *image, uint64_t seed, size_t frames)
{
    *image = (struct image){.random = seed, .sequence = 1, .end = KL_SEGMENT_HEADER};
    image->segment.bytes = calloc(1, SIZE_MAX_);
    image->segment.size = SIZE_MAX_;
    image->segment.header = (kl__segment_header){.magic = KL_SEGMENT_MAGIC,
                                                 .version = KL_FORMAT_VERSION,
                                                 .number = SEGMENT,
                                                 .journal = JOURNAL,
                                                 .bytes = SIZE_MAX_};
    for (size_t i = 0; i < frames && image->end < SIZE_MAX_ * 3 / 4; i++)
        add_frame(image, 1 + (uint32_t)below(image, 4));
    /* Not a byte more than what is used. */
    char *bytes = malloc(image->end);
    memcpy(bytes, image->segment.bytes, image->end);
    free(image->segment.bytes);
    image->segment.bytes = bytes;
    image->segment.size = image->end;
}

static void image_end(struct image *image) { free(image->segment.bytes); }

static kl__frame *frame_at(struct image *image, size_t index)
{
    return (kl__frame *)(void *)(image->segment.bytes + image->frames[index]);
}

/* ---- Reading ---- */

TEST(every_frame_that_was_written_is_read)
{
    for (uint64_t i = 0; i < test_ops(300); i++) {
        struct image image;
        image_make(&image, test_seed() + i, FRAMES_MAX);
        for (size_t j = 0; j < image.count; j++)
            CHECK(kl__image_frame(&image.segment, image.frames[j]) == frame_at(&image, j));
        CHECK(!kl__image_frame(&image.segment, image.end));
        image_end(&image);
    }
}

TEST(a_flipped_bit_anywhere_in_a_frame_is_noticed)
{
    struct image image;
    image_make(&image, test_seed(), 8);
    for (size_t byte = KL_SEGMENT_HEADER; byte < image.end; byte++) {
        size_t index = 0;
        while (index + 1 < image.count && image.frames[index + 1] <= byte)
            index++;
        image.segment.bytes[byte] ^= (char)(1 << byte % 8);
        CHECK(!kl__image_frame(&image.segment, image.frames[index]));
        image.segment.bytes[byte] ^= (char)(1 << byte % 8);
    }
    image_end(&image);
}

TEST(the_next_good_frame_is_found_behind_a_bad_one)
{
    struct image image;
    uint64_t found = 0;
    image_make(&image, test_seed(), 8);
    frame_at(&image, 2)->now_ms ^= 1;
    CHECK(!kl__image_frame(&image.segment, image.frames[2]));
    CHECK(kl__image_search(&image.segment, image.frames[2], &found) == frame_at(&image, 3));
    CHECK_INT(found, image.frames[3]);
    frame_at(&image, image.count - 1)->bytes ^= 8;
    CHECK(!kl__image_search(&image.segment, image.frames[image.count - 1], &found));
    image_end(&image);
}

TEST(a_frame_of_another_segment_or_journal_is_left_over_and_not_read)
{
    struct image image;
    image_make(&image, test_seed(), 4);
    kl__frame *frame = frame_at(&image, 1);
    frame->segment--;
    seal_frame(frame);
    CHECK(!kl__image_frame(&image.segment, image.frames[1]));
    frame->segment++;
    frame->journal++;
    seal_frame(frame);
    CHECK(!kl__image_frame(&image.segment, image.frames[1]));
    frame->journal--;
    seal_frame(frame);
    CHECK(kl__image_frame(&image.segment, image.frames[1]) == frame);
    image_end(&image);
}

TEST(a_record_left_over_from_before_cannot_pass_for_one_of_the_frame)
{
    struct image image;
    image_make(&image, test_seed(), 4);
    kl__record_header *record = (kl__record_header *)kl__frame_first(frame_at(&image, 1));
    record->sequence ^= 1;
    record->crc = kl__record_crc(record); /* as good a record as any */
    CHECK(kl__record_is_sound(record));
    CHECK(!kl__image_frame(&image.segment, image.frames[1]));
    image_end(&image);
}

/* ---- Forging ---- */

/* Changes some bytes of a frame; returns the frame. */
static kl__frame *spoil(struct image *image)
{
    size_t index = below(image, image->count);
    kl__frame *frame = frame_at(image, index);
    size_t bytes = (index + 1 < image->count ? image->frames[index + 1] : image->end) - image->frames[index];
    for (uint64_t i = 1 + below(image, 3); i > 0; i--) {
        size_t at = below(image, 4) ? below(image, bytes) : 48 + below(image, 8);
        uint8_t value = below(image, 2) ? (uint8_t)kl__random_next(&image->random) : (uint8_t)(below(image, 3) - 1);
        ((uint8_t *)frame)[at] = value;
    }
    return frame;
}

/* Makes every checksum of the frame right again, as far as its lengths can be followed. */
static void forge(struct image *image, kl__frame *frame)
{
    char *at = (char *)(frame + 1), *limit = image->segment.bytes + image->segment.size;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < frame->records && (size_t)(limit - at) >= sizeof(kl__record_header); i++) {
        kl__record_header *record = (kl__record_header *)(void *)at;
        if (record->bytes < sizeof *record || record->bytes % 8 || record->bytes > (size_t)(limit - at))
            break;
        record->crc = kl__record_crc(record);
        sum += record->crc;
        at += record->bytes;
    }
    frame->magic = KL_FRAME_MAGIC;
    frame->segment = SEGMENT;
    frame->journal = JOURNAL;
    frame->sum = sum;
    frame->crc = kl__frame_crc(frame);
}

/* Takes up what reads as a journal, as opening a store does. Returns how many records were. */
static uint64_t believe(const struct image *image)
{
    kl__state state;
    kl__segment segment = {.number = SEGMENT, .bytes = SIZE_MAX_};
    uint64_t offset = KL_SEGMENT_HEADER, taken = 0;
    const kl__frame *frame;
    CHECK_INT(kl__state_open(&state), KL_OK);
    CHECK(kl__state_add_segment(&state, &segment));
    while ((frame = kl__image_frame(&image->segment, offset)) != NULL) {
        const kl__record_header *record = kl__frame_first(frame);
        for (uint32_t i = 0; i < frame->records; i++, record = kl__record_next(record), taken++) {
            kl__where where = {SEGMENT, offset + (uint64_t)((const char *)record - (const char *)frame)};
            if (kl__state_check(&state, record) != KL_OK)
                goto end;
            CHECK_INT(kl__state_apply(&state, record, where, frame->now_ms), KL_OK);
        }
        offset += KL_FRAME_HEADER + frame->bytes;
    }
end:
    CHECK(segment.live <= image->end);
    kl__free(segment.part_live);
    kl__state_close(&state);
    return taken;
}

TEST(a_forged_frame_is_refused_or_does_no_harm)
{
    uint64_t believed = 0, refused = 0, seed = test_seed();
    for (uint64_t i = 0, count = test_ops(FORGED) / 100; i < count && !test_failed(); i++) {
        struct image image;
        image_make(&image, seed + i, 6);
        size_t bytes = image.segment.size;
        char *good = malloc(bytes);
        memcpy(good, image.segment.bytes, bytes);
        for (int j = 0; j < 100; j++) {
            forge(&image, spoil(&image));
            if (j % 10 == 0)
                believed += believe(&image) > 0;
            refused += !kl__image_frame(&image.segment, image.frames[below(&image, image.count)]);
            if (j % 5 == 0)
                memcpy(image.segment.bytes, good, bytes);
        }
        free(good);
        image_end(&image);
    }
    CHECK(believed > 0);
    CHECK(refused > 0);
}

/* A slot in memory has no room for more (stubs.h). */
TEST(an_entry_over_the_limits_of_the_contract_is_not_believed)
{
    static uint64_t room[(sizeof(kl__entry_record) + KL_PAYLOAD_BYTES_MAX + 16) / 8];
    kl__entry_record *entry = (void *)room;
    for (uint32_t over = 0; over < 2; over++) {
        *entry = (kl__entry_record){.header = {.type = KL_RECORD_ENTRY, .epoch = UINT16_MAX + over}};
        entry->header.bytes = sizeof *entry;
        CHECK_INT(kl__record_is_sound(&entry->header), !over);
        *entry = (kl__entry_record){.header = {.type = KL_RECORD_ENTRY}, .payload_bytes = KL_PAYLOAD_BYTES_MAX + over};
        entry->header.bytes = (uint32_t)kl__round8(sizeof *entry + entry->payload_bytes);
        CHECK_INT(kl__record_is_sound(&entry->header), !over);
        *entry =
            (kl__entry_record){.header = {.type = KL_RECORD_ENTRY}, .key_bytes = (uint16_t)(KL_KEY_BYTES_MAX + over)};
        entry->header.bytes = (uint32_t)kl__round8(sizeof *entry + entry->key_bytes);
        CHECK_INT(kl__record_is_sound(&entry->header), !over);
    }
}

TEST(a_write_over_the_limits_of_the_contract_is_not_believed)
{
    static uint64_t room[(sizeof(kl__write_record) + KL_RECORD_NAME_MAX + KL_RECORD_BYTES_MAX + 16) / 8];
    kl__write_record *write = (void *)room;
    for (uint32_t over = 0; over < 2; over++) {
        *write = (kl__write_record){.header = {.type = KL_RECORD_WRITE},
                                    .name_bytes = (uint16_t)(KL_RECORD_NAME_MAX + over)};
        write->header.bytes = (uint32_t)kl__round8(sizeof *write + write->name_bytes);
        CHECK_INT(kl__record_is_sound(&write->header), !over);
        *write = (kl__write_record){.header = {.type = KL_RECORD_WRITE}, .value_bytes = KL_RECORD_BYTES_MAX + over};
        write->header.bytes = (uint32_t)kl__round8(sizeof *write + write->value_bytes);
        CHECK_INT(kl__record_is_sound(&write->header), !over);
    }
}

/* History takes no more. */
TEST(an_outcome_over_the_limits_of_the_contract_is_not_believed)
{
    struct kept {
        kl__settle_record record;
        kl__settled_item item;
        int64_t until_ms;
        uint64_t error_bytes;
    };
    static uint64_t room[(sizeof(struct kept) + KL_ERROR_BYTES_MAX + KL_RESULT_BYTES_MAX + 16) / 8];
    struct kept *kept = (void *)room;
    *kept = (struct kept){.record = {.header = {.type = KL_RECORD_SETTLE}, .count = 1},
                          .item = {.outcome = KL_DEAD, .flags = KL_SETTLED_KEPT, .attempts = KL_ATTEMPTS_MAX}};
    for (uint32_t over = 0; over < 2; over++) {
        kept->item.result_bytes = 0;
        kept->error_bytes = KL_ERROR_BYTES_MAX + over;
        kept->record.header.bytes = (uint32_t)kl__round8(sizeof *kept + kept->error_bytes);
        CHECK_INT(kl__record_is_sound(&kept->record.header), !over);
        kept->error_bytes = 0;
        kept->item.result_bytes = KL_RESULT_BYTES_MAX + over;
        kept->record.header.bytes = (uint32_t)kl__round8(sizeof *kept + kept->item.result_bytes);
        CHECK_INT(kl__record_is_sound(&kept->record.header), !over);
    }
}

TEST(bytes_that_mean_nothing_are_no_frame)
{
    uint64_t random = test_seed(), found;
    for (uint64_t i = 0, count = test_ops(2000); i < count && !test_failed(); i++) {
        size_t size = kl__random_below(&random, 600);
        kl__segment_image image = {.bytes = malloc(size ? size : 1), .size = size, .header = {.number = 1}};
        for (size_t at = 0; at < size; at++)
            image.bytes[at] = (char)kl__random_next(&random);
        if (size >= 64 && i % 2)
            memcpy(image.bytes, &(uint32_t){KL_FRAME_MAGIC}, 4);
        CHECK(!kl__image_search(&image, 0, &found));
        free(image.bytes);
    }
}

TEST(records_and_frames_have_the_bytes_that_the_format_names)
{
    CHECK_INT(offsetof(kl__segment_header, number), 16);
    CHECK_INT(offsetof(kl__segment_header, bytes), 32);
    CHECK_INT(offsetof(kl__frame, segment), 8);
    CHECK_INT(offsetof(kl__frame, sum), 40);
    CHECK_INT(offsetof(kl__frame, sequence), 56);
    CHECK_INT(offsetof(kl__record_header, type), 24);
    CHECK_INT(offsetof(kl__record_header, shard), 30);
    CHECK_INT(offsetof(kl__entry_record, id), 32);
    CHECK_INT(offsetof(kl__entry_record, payload_bytes), 60);
    CHECK_INT(offsetof(kl__settled_item, result_bytes), 20);
    CHECK_INT(offsetof(kl__write_record, value_bytes), 52);
    CHECK_INT(kl__round8(0), 0);
    CHECK_INT(kl__round8(1), 8);
    CHECK_INT(kl__round8(16), 16);
    CHECK_INT(KL_SEGMENT_HEADER + KL_FRAME_HEADER, 128);
    CHECK(memcmp(&(uint32_t){KL_FRAME_MAGIC}, "KLF1", 4) == 0);
}
