/* told.c - see told.h. */
#include "base/told.h"

#include "base/hash.h"

enum { LONGEST_MS = 60000 };

/* A sentence that has not come for as long as it was kept back is new. */
bool kl__told_anew(kl__told told[KL_TOLD_MAX], kl_bytes sentence, int64_t now_ns)
{
    uint64_t hash = kl__hash(sentence, 0);
    kl__told *slot = &told[0];
    for (int i = 0; i < KL_TOLD_MAX && slot->sentence != hash; i++)
        if (told[i].sentence == hash || told[i].until_ns < slot->until_ns)
            slot = &told[i];
    bool known = slot->sentence == hash && slot->rest_ns > 0;
    if (known && now_ns < slot->until_ns)
        return false;
    bool again = known && now_ns - slot->until_ns <= slot->rest_ns;
    int64_t longest_ns = LONGEST_MS * INT64_C(1000000),
            rest_ns = again ? 2 * slot->rest_ns : KL_TOLD_FIRST_MS * INT64_C(1000000);
    rest_ns = rest_ns < longest_ns ? rest_ns : longest_ns;
    *slot = (kl__told){hash, now_ns + rest_ns, rest_ns};
    return true;
}
