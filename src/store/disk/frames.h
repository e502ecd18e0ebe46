/* frames.h - reads a segment: which frames stand in it, and whether what does not is an end or damage. */
#ifndef KL_STORE_FRAMES_H
#define KL_STORE_FRAMES_H

#include "base/base.h"
#include "store/disk/format.h"
#include "store/disk/vfs.h"

/* All of a file in memory, with its header looked at. */
typedef struct kl__segment_image {
    char *bytes;
    size_t size, capacity;
    kl__segment_header header;
} kl__segment_image;

typedef enum kl__header_state {
    KL_HEADER_OK,
    KL_HEADER_BAD,   /* no segment, or damaged */
    KL_HEADER_NEWER, /* of a version that we do not know */
    KL_HEADER_SHORT, /* the file is shorter than it says */
} kl__header_state;

/* Loads into an image that is all zero, or was loaded before and is used again. KL_ENOMEM, KL_ESYSTEM. */
kl_rc kl__image_load(kl__vfs *vfs, kl__file *file, kl__segment_image *image);
void kl__image_free(kl__segment_image *image);

/* Loads a part instead, and leaves the header as it is: offsets in the image count from `offset`. */
kl_rc kl__image_load_piece(kl__vfs *vfs, kl__file *file, uint64_t offset, uint64_t bytes, kl__segment_image *image);

/* number: what the file's name says. */
kl__header_state kl__image_header(const kl__segment_image *image, uint64_t number);

/* The header at `offset` of a frame of which the rest may be damaged, or not in the image; NULL: none stands there. */
const kl__frame *kl__image_frame_header(const kl__segment_image *image, uint64_t offset);

/* The valid frame at `offset`; NULL: none stands there. */
const kl__frame *kl__image_frame(const kl__segment_image *image, uint64_t offset);

/* The first valid frame at or behind `offset`; NULL: none. */
const kl__frame *kl__image_search(const kl__segment_image *image, uint64_t offset, uint64_t *ret_offset);

static inline const kl__record_header *kl__frame_first(const kl__frame *frame)
{
    return (const kl__record_header *)(const void *)(frame + 1);
}

/* Is what the record says of its own lengths true? The CRC is right by then; this keeps a forged file from being
 * believed. */
bool kl__record_is_sound(const kl__record_header *record);

#endif
