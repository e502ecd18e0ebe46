/* json_memory.h - whether jansson ran out of memory: it does not always say so, and may then give half of what it
 * read. */
#ifndef KL_JSON_MEMORY_H
#define KL_JSON_MEMORY_H

#include <stdbool.h>

/* Before a document is read or made, in the thread that does it. From the first call on jansson takes the memory of
 * base.h, for the whole process; an application that has given it other functions keeps them. */
void kl__json_memory_begin(void);

/* Whether memory has run out in this thread since then. */
bool kl__json_memory_refused(void);

#endif
