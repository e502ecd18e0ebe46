/* fuzz_journal.c - a segment of the journal, read as when a store is opened. Checksums are set right before, wherever
 * lengths allow it: they keep accidents away, and here it is about what a forged file can do. */
#include "base/wait.h"
#include "fuzz.h"
#include "store/disk/frames.h"
#include "store/disk/recover.h"

enum { JOURNAL = 7 };

/* ---- The one file that there is ---- */

struct kl__file {
    char *bytes;
    size_t size;
};

static struct kl__file file;

static int open_file(kl__vfs *vfs, const char *path, kl__open_mode mode, kl__file **ret_file)
{
    (void)vfs, (void)path, (void)mode;
    *ret_file = &file;
    return 0;
}

static void close_file(kl__vfs *vfs, kl__file *which) { (void)vfs, (void)which; }

static ssize_t read_file(kl__vfs *vfs, kl__file *from, void *bytes, size_t count, uint64_t offset)
{
    (void)vfs;
    size_t rest = offset < from->size ? from->size - offset : 0;
    count = count < rest ? count : rest;
    if (count > 0)
        memcpy(bytes, from->bytes + offset, count);
    return (ssize_t)count;
}

static int refresh_file(kl__vfs *vfs, kl__file *which) { return (void)vfs, (void)which, 0; }

static int size_file(kl__vfs *vfs, kl__file *of, uint64_t *ret_size)
{
    (void)vfs;
    *ret_size = of->size;
    return 0;
}

static int list_files(kl__vfs *vfs, const char *path, kl__name_fn *visit, void *ctx)
{
    (void)vfs, (void)path;
    visit(ctx, "0000000000000001.seg");
    return 0;
}

static int sync_dir(kl__vfs *vfs, const char *path) { return (void)vfs, (void)path, 0; }

/* ---- Checksums ---- */

static uint64_t seal_records(char *at, const char *end, uint32_t count)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        kl__record_header *record = (void *)at;
        if ((size_t)(end - at) < sizeof *record || record->bytes < sizeof *record || record->bytes % 8 != 0 ||
            record->bytes > (size_t)(end - at))
            break;
        record->crc = kl__record_crc(record);
        sum += record->crc;
        at += record->bytes;
    }
    return sum;
}

static void seal(char *bytes, size_t size)
{
    kl__segment_header *header = (void *)bytes;
    if (size < sizeof *header)
        return;
    *header = (kl__segment_header){.version = 1, .number = 1, .journal = JOURNAL, .bytes = size};
    memcpy(header->magic, KL_SEGMENT_MAGIC, sizeof header->magic);
    header->crc = kl__segment_crc(header);
    for (size_t at = sizeof *header; size - at >= sizeof(kl__frame);) {
        kl__frame *frame = (void *)(bytes + at);
        at += sizeof *frame;
        if (frame->bytes > size - at || frame->bytes % 8 != 0)
            break;
        frame->magic = KL_FRAME_MAGIC;
        frame->segment = 1;
        frame->journal = JOURNAL;
        frame->sum = seal_records((char *)(frame + 1), bytes + at + frame->bytes, frame->records);
        frame->crc = kl__frame_crc(frame);
        at += frame->bytes;
    }
}

/* ---- Reading ---- */

/* What is needed of a frame is copied before its segment is dropped, and a copy is sound too. Returns its bytes. */
static uint64_t copy_live(kl__state *state, const kl__frame *frame, uint64_t offset)
{
    const kl__record_header *record = kl__frame_first(frame);
    uint64_t live = 0;
    for (uint32_t i = 0; i < frame->records; i++, record = kl__record_next(record)) {
        kl__where where = {1, offset + (uint64_t)((const char *)record - (const char *)frame)};
        if (!kl__state_is_live(state, record, where, frame->now_ms))
            continue;
        kl__record_header *copy = malloc(record->bytes + KL_MOVED_MORE);
        HOLDS(copy);
        kl__state_copy(state, record, copy);
        HOLDS(copy->bytes <= record->bytes + KL_MOVED_MORE && kl__record_is_sound(copy));
        live += record->bytes;
        free(copy);
    }
    return live;
}

static void check_state(kl__state *state, const kl__segments *segments)
{
    HOLDS(state->segment_count == 1 && segments->active == state->segments[0]);
    const kl__segment *segment = state->segments[0];
    HOLDS(segment->end >= KL_SEGMENT_HEADER && segment->end <= segment->bytes && segment->live <= segment->end);
    kl__segment_image image = {.bytes = file.bytes, .size = file.size};
    uint64_t live = 0;
    memcpy(&image.header, file.bytes, sizeof image.header);
    for (uint64_t at = KL_SEGMENT_HEADER; at < segment->end;) {
        const kl__frame *frame = kl__image_frame(&image, at);
        HOLDS(frame);
        live += copy_live(state, frame, at);
        at += KL_FRAME_HEADER + frame->bytes;
    }
    HOLDS(state->live == segment->live && live <= state->live);
}

static void recover(void)
{
    static kl__state state;
    static kl__segments segments;
    kl__vfs vfs = {.open = open_file,
                   .close = close_file,
                   .read = read_file,
                   .refresh = refresh_file,
                   .size = size_file,
                   .list = list_files,
                   .sync_dir = sync_dir};
    kl__recovered recovered;
    segments = (kl__segments){.vfs = &vfs, .dir = "journal", .state = &state};
    pthread_mutex_init(&segments.files, NULL);
    pthread_mutex_init(&segments.mutex, NULL);
    kl__cond_init(&segments.changed);
    HOLDS(kl__state_open(&state) == KL_OK);
    kl_rc rc = kl__recover(&segments, &state, &recovered);
    HOLDS(rc == KL_OK || (rc == KL_EDAMAGED && *kl_error_text() != 0));
    if (rc == KL_OK)
        check_state(&state, &segments);
    kl__segments_close(&segments);
    kl__state_close(&state);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    file = (struct kl__file){fuzz_copy(data, size), size};
    recover();
    seal(file.bytes, size);
    recover();
    free(file.bytes);
    return 0;
}
