/* json_memory.c - see json_memory.h. */
#include "base/json_memory.h"

#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/base.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;

static _Thread_local bool refused;

static void *allocate(size_t size)
{
    void *memory = kl__alloc(size);
    if (!memory)
        refused = true;
    return memory;
}

/* The functions are one pair for the whole process. Base's memory comes from malloc, so what was made before this is
 * freed rightly after it. */
static void set_memory(void)
{
    json_malloc_t taking;
    json_free_t freeing;
    json_get_alloc_funcs(&taking, &freeing);
    if (taking == malloc && freeing == free)
        json_set_alloc_funcs(allocate, kl__free);
}

void kl__json_memory_begin(void)
{
    pthread_once(&once, set_memory);
    refused = false;
}

bool kl__json_memory_refused(void) { return refused; }
