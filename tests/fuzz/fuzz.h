/* fuzz.h - what a fuzz target needs: libFuzzer calls it with bytes, and it aborts where something does not hold.
 *
 * To add a target: a file fuzz_NAME.c with this function, a row in meson.build that names the sources it is about, and
 * a directory corpus/NAME with a few inputs. `make fuzz NAME=...` runs it for long, tests/check-fuzz briefly. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HOLDS(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                              \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* A copy without a byte to spare, so that the address sanitizer sees a step too far. To be freed. */
static inline char *fuzz_copy(const uint8_t *data, size_t size)
{
    char *copy = malloc(size ? size : 1);
    HOLDS(copy);
    if (size > 0)
        memcpy(copy, data, size);
    return copy;
}

#endif
