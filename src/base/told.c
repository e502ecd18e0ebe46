/* told.c - see told.h. */
#include "base/told.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "keyline/bytes.h"

#define MS INT64_C(1000000)

static double seconds(int64_t ns) { return (double)ns / 1e9; }

static int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

/* What comes back soon has to work longer each time. */
static void begin(kl__told *told, int64_t now_ns)
{
    bool soon = told->ended_ns != 0 && now_ns - told->ended_ns < KL_TOLD_RESTLESS_MS * MS;
    int64_t calm_ns = soon ? lesser(2 * told->calm_ns, KL_TOLD_RESTLESS_MS * MS) : KL_TOLD_CALM_MS * MS;
    *told = (kl__told){.failing = true, .since_ns = now_ns, .calm_ns = calm_ns};
}

/* Its place, or of the others the one that is due first. */
static kl__told_cause *find(kl__told *told, uint64_t hash)
{
    kl__told_cause *cause = &told->causes[0];
    for (int i = 0; i < KL_TOLD_MAX && cause->hash != hash; i++)
        if (told->causes[i].hash == hash || told->causes[i].until_ns < cause->until_ns)
            cause = &told->causes[i];
    return cause;
}

/* A number that is part of a path, such as that of a table's file, may be another each time. */
static uint64_t hash_of_sentence(const char *sentence)
{
    uint64_t hash = 0;
    for (const char *at = sentence, *end; *at; at = end + strspn(end, "0123456789")) {
        for (end = at; *end && (end == at || end[-1] != '/' || !isdigit((unsigned char)*end)); end++)
            ;
        hash = kl__hash((kl_bytes){at, (size_t)(end - at)}, hash + 1);
    }
    return hash;
}

static uint64_t hash_of(kl_rc rc, const char *sentence)
{
    uint64_t hash = rc == KL_EBUSY ? 1 : hash_of_sentence(sentence);
    return hash ? hash : 1;
}

bool kl__told_failure(kl__told *told, const kl__told_words *words, kl_rc rc, const char *sentence, int64_t now_ns,
                      char text[KL_TOLD_BYTES])
{
    if (!told->failing)
        begin(told, now_ns);
    told->times++;
    told->worked_ns = 0;
    uint64_t hash = hash_of(rc, sentence);
    kl__told_cause *cause = find(told, hash);
    bool known = cause->hash == hash;
    if (known && now_ns < cause->until_ns)
        return false;
    int64_t rest_ns = known ? lesser(2 * cause->rest_ns, KL_TOLD_LONGEST_MS * MS) : KL_TOLD_FIRST_MS * MS;
    *cause = (kl__told_cause){hash, now_ns + rest_ns, rest_ns};
    if (known)
        snprintf(text, KL_TOLD_BYTES, "%s, for %.0f s now, and was tried %llu times: %s", words->fails,
                 seconds(now_ns - told->since_ns), (unsigned long long)told->times, sentence);
    else
        snprintf(text, KL_TOLD_BYTES, "%s; trying again%s: %s", words->fails,
                 kl_rc_class(rc) == KL_CLASS_RETRY ? ", nothing is lost" : "", sentence);
    return true;
}

bool kl__told_success(kl__told *told, const kl__told_words *words, int64_t now_ns, char text[KL_TOLD_BYTES])
{
    if (!told->failing)
        return false;
    if (told->worked_ns == 0)
        told->worked_ns = now_ns;
    if (now_ns - told->worked_ns < told->calm_ns)
        return false;
    snprintf(text, KL_TOLD_BYTES, "%s, after %.1f s in which it failed %llu time%s", words->works,
             seconds(told->worked_ns - told->since_ns), (unsigned long long)told->times, told->times == 1 ? "" : "s");
    *told = (kl__told){.calm_ns = told->calm_ns, .ended_ns = now_ns};
    return true;
}
