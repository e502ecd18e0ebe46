/* suggest.c - see suggest.h. */
#include "base/suggest.h"

#include <stdint.h>
#include <string.h>

enum { WORD_MAX = 47 }; /* longer words get no suggestion */

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* How many letters must be put in, left out, changed or swapped with their neighbour to make one word the other. */
static size_t distance(const char *a, const char *b)
{
    size_t cost[WORD_MAX + 1][WORD_MAX + 1], rows = strlen(a), columns = strlen(b);
    if (rows > WORD_MAX || columns > WORD_MAX)
        return SIZE_MAX;
    for (size_t i = 0; i <= rows; i++) {
        for (size_t j = 0; j <= columns; j++) {
            if (i == 0 || j == 0) {
                cost[i][j] = i + j;
                continue;
            }
            cost[i][j] = least(cost[i - 1][j - 1] + (a[i - 1] != b[j - 1]), least(cost[i - 1][j], cost[i][j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                cost[i][j] = least(cost[i][j], cost[i - 2][j - 2] + 1);
        }
    }
    return cost[rows][columns];
}

const char *kl__closer(const char *word, const char *best, const char *candidate)
{
    size_t far = 1 + strlen(candidate) / 3; /* two slips in `queue`, three in `version` */
    far = far < 5 ? far : 5;
    size_t candidate_distance = distance(word, candidate);
    if (candidate_distance >= strlen(candidate)) /* nothing of it is left */
        return best;
    if (candidate_distance > 1 && candidate_distance * 2 >= strlen(word))
        return best; /* half of the letters are others: `nope` is no slip of `move` */
    if (candidate_distance > far || (best && distance(word, best) <= candidate_distance))
        return best;
    return candidate;
}
