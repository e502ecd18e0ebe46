/* workdir.h - a directory of a test's own: made, measured, copied and removed. */
#ifndef TESTS_STORE_WORKDIR_H
#define TESTS_STORE_WORKDIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WORKDIR_BYTES = 128 };

/* A new directory under TMPDIR. False: it cannot be made. */
bool workdir_make(char ret_path[WORKDIR_BYTES]);

/* With everything in it. False: something stays. */
bool workdir_remove(const char *path);

/* Every file of `from`, as it is at the moment of reading, into the new directory `to`: what a crash might leave. Names
 * that vanish meanwhile are left out. False: something could not be read or written. */
bool workdir_copy(const char *from, const char *to);

/* What stands in one directory, not below it. */
struct workdir_files {
    size_t count;
    uint64_t bytes;
    uint64_t largest;
};

/* Only names that end with `ending`. All zero: none, or no such directory. */
struct workdir_files workdir_files(const char *path, const char *ending);

#endif
