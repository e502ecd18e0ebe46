/* simpages.h - the bytes of one simulated file, in pages that copies share until one of them writes.
 *
 * A page that is NULL is a hole: it reads as zeros and takes no room. */
#ifndef TESTS_SIMPAGES_H
#define TESTS_SIMPAGES_H

#include <stddef.h>
#include <stdint.h>

enum { SIM_PAGE_BYTES = 4096 };

struct sim_page;

/* All zero is an empty file. */
struct sim_pages {
    uint64_t size;
    struct sim_page **pages;
    size_t count;
};

/* `to` must be empty. */
void sim_pages_copy(struct sim_pages *to, const struct sim_pages *from);
void sim_pages_free(struct sim_pages *pages);

/* Reads up to the end of the file and returns how much that was. */
size_t sim_pages_read(const struct sim_pages *pages, void *bytes, size_t count, uint64_t offset);
void sim_pages_write(struct sim_pages *pages, const void *bytes, size_t count, uint64_t offset);
void sim_pages_truncate(struct sim_pages *pages, uint64_t size);

/* How many of the bytes from `offset` can be written while no more than `room` holes are filled. */
size_t sim_pages_fit(const struct sim_pages *pages, size_t count, uint64_t offset, uint64_t room);
uint64_t sim_pages_held(const struct sim_pages *pages); /* that are not holes */

void *sim_alloc(size_t size); /* zeroed; there is always memory, or the test ends */

#endif
