/* frames.c - finds and checks frames in a segment; see format.h for the bytes. */
#include "store/disk/frames.h"

#include <errno.h>
#include <string.h>

#include "keyline/store.h"

static kl_rc make_room(kl__segment_image *image, uint64_t size)
{
    if (size <= image->capacity)
        return KL_OK;
    kl__free(image->bytes);
    image->capacity = image->size = 0;
    image->bytes = kl__alloc(size);
    if (!image->bytes)
        return kl__fail_memory();
    image->capacity = size;
    return KL_OK;
}

kl_rc kl__image_load_piece(kl__vfs *vfs, kl__file *file, uint64_t offset, uint64_t bytes, kl__segment_image *image)
{
    image->size = 0;
    kl_rc rc = make_room(image, bytes);
    if (rc != KL_OK)
        return rc;
    int error = kl__vfs_read(vfs, file, image->bytes, bytes, offset, &image->size);
    if (error)
        return kl__fail(KL_ESYSTEM, "a segment of the journal could not be read: %s", strerror(-error));
    return KL_OK;
}

kl_rc kl__image_load(kl__vfs *vfs, kl__file *file, kl__segment_image *image)
{
    uint64_t size = 0;
    image->size = 0;
    memset(&image->header, 0, sizeof image->header);
    int error = vfs->size(vfs, file, &size);
    if (error)
        return kl__fail(KL_ESYSTEM, "a segment of the journal could not be read: %s", strerror(-error));
    kl_rc rc = kl__image_load_piece(vfs, file, 0, size, image);
    if (rc == KL_OK && image->size >= KL_SEGMENT_HEADER)
        memcpy(&image->header, image->bytes, KL_SEGMENT_HEADER);
    return rc;
}

void kl__image_free(kl__segment_image *image)
{
    kl__free(image->bytes);
    memset(image, 0, sizeof *image);
}

kl__header_state kl__image_header(const kl__segment_image *image, uint64_t number)
{
    const kl__segment_header *header = &image->header;
    if (image->size < KL_SEGMENT_HEADER || memcmp(header->magic, KL_SEGMENT_MAGIC, sizeof header->magic) != 0)
        return KL_HEADER_BAD;
    if (header->crc != kl__segment_crc(header) || header->number != number || header->version == 0)
        return KL_HEADER_BAD;
    if (header->version > KL_FORMAT_VERSION)
        return KL_HEADER_NEWER;
    return image->size < header->bytes ? KL_HEADER_SHORT : KL_HEADER_OK;
}

/* ---- Records ----
 *
 * Sound is what the contract allows: what applies records, copies them and hands them to history counts on its
 * limits. */

/* No more than this has a place, so these need not be compared. */
_Static_assert(KL_KIND_BYTES_MAX == UINT8_MAX, "an entry's kind");
_Static_assert(KL_HEADERS_BYTES_MAX == UINT16_MAX, "an entry's headers");
_Static_assert(KL_ATTEMPTS_MAX == UINT16_MAX, "attempts");

static bool is_sound_entry(const kl__entry_record *entry)
{
    size_t bytes = sizeof *entry + entry->key_bytes + entry->header.small[1] + entry->headers_bytes;
    bytes += (size_t)entry->payload_bytes + (entry->header.flags & KL_ENTRY_DUE ? 8 : 0);
    bytes += (entry->header.flags & KL_ENTRY_JOB ? 16 : 0) + (entry->header.flags & KL_ENTRY_TRIED ? 16 : 0);
    int priority = kl__entry_priority(entry);
    return kl__round8(bytes) == entry->header.bytes && priority >= KL_PRIORITY_MIN && priority <= KL_PRIORITY_MAX &&
           entry->key_bytes <= KL_KEY_BYTES_MAX && entry->payload_bytes <= KL_PAYLOAD_BYTES_MAX &&
           entry->header.epoch <= UINT16_MAX;
}

static bool is_sound_settle(const kl__settle_record *settle)
{
    const char *at = (const char *)(settle + 1), *end = (const char *)settle + settle->header.bytes;
    for (uint32_t i = 0; i < settle->count; i++) {
        kl__settled its;
        size_t bytes = kl__settled_read(at, (size_t)(end - at), &its);
        if (bytes == 0 || its.item->outcome > KL_CANCELLED || its.error.len > KL_ERROR_BYTES_MAX ||
            its.result.len > KL_RESULT_BYTES_MAX)
            return false;
        at += bytes;
    }
    return at == end;
}

static bool is_sound_partition(const kl__partition_record *record)
{
    size_t room = record->header.bytes - sizeof *record;
    return record->header.bytes > sizeof *record && room <= KL_PARTITION_BYTES_MAX + 8 && memchr(record + 1, 0, room) &&
           strlen((const char *)(record + 1)) <= KL_PARTITION_BYTES_MAX && record->header.small[0] >= 1 &&
           record->header.small[0] <= KL_SHARD_PREFIX_LEN_MAX;
}

static bool is_sound_write(const kl__write_record *write)
{
    return write->name_bytes <= KL_RECORD_NAME_MAX && write->value_bytes <= KL_RECORD_BYTES_MAX &&
           kl__round8(sizeof *write + write->name_bytes + write->value_bytes) == write->header.bytes;
}

bool kl__record_is_sound(const kl__record_header *record)
{
    switch ((kl__record_type)record->type) {
    case KL_RECORD_ENTRY:
        return record->bytes >= sizeof(kl__entry_record) && is_sound_entry((const void *)record);
    case KL_RECORD_SETTLE:
        return record->bytes >= sizeof(kl__settle_record) && is_sound_settle((const void *)record);
    case KL_RECORD_FENCE:
    case KL_RECORD_CLOSE:
    case KL_RECORD_NOTE:
        return record->bytes == sizeof(kl__record_header);
    case KL_RECORD_PARTITION:
        return record->bytes >= sizeof(kl__partition_record) && is_sound_partition((const void *)record);
    case KL_RECORD_TOKEN:
        return record->bytes == sizeof(kl__token_record);
    case KL_RECORD_WRITE:
        return record->bytes >= sizeof(kl__write_record) && is_sound_write((const void *)record);
    case KL_RECORD_TYPES:
        break;
    }
    return false;
}

/* ---- Frames ---- */

/* Are the records those that the header was written with? */
static bool has_its_records(const kl__frame *frame)
{
    const char *at = (const char *)(frame + 1), *end = at + frame->bytes;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < frame->records; i++) {
        const kl__record_header *record = (const void *)at;
        if ((size_t)(end - at) < sizeof *record || record->bytes < sizeof *record || record->bytes % 8 != 0 ||
            record->bytes > (size_t)(end - at) || record->crc != kl__record_crc(record) || !kl__record_is_sound(record))
            return false;
        sum += record->crc;
        at += record->bytes;
    }
    return at == end && sum == frame->sum;
}

const kl__frame *kl__image_frame_header(const kl__segment_image *image, uint64_t offset)
{
    if (offset % 8 != 0 || offset + KL_FRAME_HEADER > image->size)
        return NULL;
    const kl__frame *frame = (const kl__frame *)(const void *)(image->bytes + offset);
    if (frame->magic != KL_FRAME_MAGIC || frame->segment != image->header.number ||
        frame->journal != image->header.journal || frame->crc != kl__frame_crc(frame) ||
        offset + KL_FRAME_HEADER + frame->bytes > KL_SEGMENT_BYTES_MAX)
        return NULL;
    return frame;
}

const kl__frame *kl__image_frame(const kl__segment_image *image, uint64_t offset)
{
    const kl__frame *frame = kl__image_frame_header(image, offset);
    if (!frame || frame->bytes > image->size - offset - KL_FRAME_HEADER)
        return NULL;
    return has_its_records(frame) ? frame : NULL;
}

const kl__frame *kl__image_search(const kl__segment_image *image, uint64_t offset, uint64_t *ret_offset)
{
    for (; offset + KL_FRAME_HEADER <= image->size; offset += 8) {
        const kl__frame *frame = kl__image_frame(image, offset);
        if (frame) {
            *ret_offset = offset;
            return frame;
        }
    }
    return NULL;
}
