/* problems.h - the names of all problems that the API answers with; docs/http.md lists them. */
#ifndef KL_NET_PROBLEMS_H
#define KL_NET_PROBLEMS_H

#include <stddef.h>

enum { KL_DETAIL_BYTES = 1024 }; /* of a problem's sentence; the rest is cut off */

/* The name stays the same for as long as the API is v1; the title may be written better. */
typedef struct kl__problem {
    const char *name;
    int status;
    const char *title;
} kl__problem;

extern const kl__problem kl__problems[];
extern const size_t kl__problem_count;

#endif
