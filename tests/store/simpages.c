/* simpages.c - reference-counted pages: copying a disk costs one pointer for each page. */
#include "simpages.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

struct sim_page {
    atomic_int refs;
    uint8_t bytes[SIM_PAGE_BYTES];
};

void *sim_alloc(size_t size)
{
    void *memory = calloc(1, size ? size : 1);
    KL_ASSERT(memory);
    return memory;
}

static void drop(struct sim_page *page)
{
    if (page && atomic_fetch_sub(&page->refs, 1) == 1)
        free(page);
}

void sim_pages_copy(struct sim_pages *to, const struct sim_pages *from)
{
    KL_ASSERT(!to->pages);
    *to = *from;
    to->pages = sim_alloc(from->count * sizeof *to->pages);
    for (size_t i = 0; i < from->count; i++) {
        to->pages[i] = from->pages[i];
        if (to->pages[i])
            atomic_fetch_add(&to->pages[i]->refs, 1);
    }
}

void sim_pages_free(struct sim_pages *pages)
{
    for (size_t i = 0; i < pages->count; i++)
        drop(pages->pages[i]);
    free(pages->pages);
    *pages = (struct sim_pages){0};
}

/* The part of [offset, offset + count) that lies in one page. */
static size_t part_of(uint64_t offset, size_t count)
{
    size_t left = SIM_PAGE_BYTES - (size_t)(offset % SIM_PAGE_BYTES);
    return count < left ? count : left;
}

size_t sim_pages_read(const struct sim_pages *pages, void *bytes, size_t count, uint64_t offset)
{
    if (offset >= pages->size)
        return 0;
    if (count > pages->size - offset)
        count = (size_t)(pages->size - offset);
    for (size_t done = 0, part; done < count; done += part) {
        uint64_t at = offset + done;
        size_t index = (size_t)(at / SIM_PAGE_BYTES);
        part = part_of(at, count - done);
        if (index < pages->count && pages->pages[index])
            memcpy((char *)bytes + done, pages->pages[index]->bytes + at % SIM_PAGE_BYTES, part);
        else
            memset((char *)bytes + done, 0, part);
    }
    return count;
}

static void grow(struct sim_pages *pages, size_t count)
{
    if (count <= pages->count)
        return;
    pages->pages = realloc(pages->pages, count * sizeof *pages->pages);
    KL_ASSERT(pages->pages);
    memset(pages->pages + pages->count, 0, (count - pages->count) * sizeof *pages->pages);
    pages->count = count;
}

/* A page of our own, with what the shared one held. */
static struct sim_page *own(struct sim_pages *pages, size_t index)
{
    struct sim_page *old = pages->pages[index];
    if (old && atomic_load(&old->refs) == 1)
        return old;
    struct sim_page *page = sim_alloc(sizeof *page);
    atomic_init(&page->refs, 1);
    if (old)
        memcpy(page->bytes, old->bytes, SIM_PAGE_BYTES);
    drop(old);
    return pages->pages[index] = page;
}

void sim_pages_write(struct sim_pages *pages, const void *bytes, size_t count, uint64_t offset)
{
    if (count == 0)
        return;
    grow(pages, (size_t)((offset + count - 1) / SIM_PAGE_BYTES) + 1);
    for (size_t done = 0, part; done < count; done += part) {
        uint64_t at = offset + done;
        part = part_of(at, count - done);
        struct sim_page *page = own(pages, (size_t)(at / SIM_PAGE_BYTES));
        memcpy(page->bytes + at % SIM_PAGE_BYTES, (const char *)bytes + done, part);
    }
    if (offset + count > pages->size)
        pages->size = offset + count;
}

void sim_pages_truncate(struct sim_pages *pages, uint64_t size)
{
    if (size < pages->size) {
        size_t keep = (size_t)((size + SIM_PAGE_BYTES - 1) / SIM_PAGE_BYTES);
        for (size_t i = keep; i < pages->count; i++) {
            drop(pages->pages[i]);
            pages->pages[i] = NULL;
        }
        pages->count = keep < pages->count ? keep : pages->count;
        size_t tail = (size_t)(size % SIM_PAGE_BYTES);
        if (tail && keep <= pages->count && pages->pages[keep - 1])
            memset(own(pages, keep - 1)->bytes + tail, 0, SIM_PAGE_BYTES - tail);
    }
    pages->size = size;
}

size_t sim_pages_fit(const struct sim_pages *pages, size_t count, uint64_t offset, uint64_t room)
{
    size_t done = 0;
    for (size_t part; done < count; done += part) {
        size_t index = (size_t)((offset + done) / SIM_PAGE_BYTES);
        bool hole = index >= pages->count || !pages->pages[index];
        if (hole && room-- == 0)
            break;
        part = part_of(offset + done, count - done);
    }
    return done;
}

uint64_t sim_pages_held(const struct sim_pages *pages)
{
    uint64_t held = 0;
    for (size_t i = 0; i < pages->count; i++)
        held += pages->pages[i] != NULL;
    return held;
}
