/* cores.c - counting the processors in the thread's affinity mask. */
#include "base/cores.h"

#include <sched.h>
#include <stddef.h>

/* Of up to `most` possible ones; 0: the machine may have more of them. */
static int count_cores(size_t most)
{
    cpu_set_t *set = CPU_ALLOC(most);
    size_t size = CPU_ALLOC_SIZE(most);
    int count = set && sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    return count;
}

int kl__cores(void)
{
    enum { POSSIBLE_MAX = 1 << 17 };
    int count = 0;
    for (size_t most = CPU_SETSIZE; count == 0 && most <= POSSIBLE_MAX; most *= 2)
        count = count_cores(most);
    return count < 1 ? 1 : count;
}
