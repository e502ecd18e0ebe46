/* fuzz_zone.c - a zone's file (TZif): spans follow on each other, and times on the wall are found again. */
#include "base/zone.h"
#include "fuzz.h"

static void check_at(const kl__zone *zone, int64_t utc_s)
{
    kl__zone_span span = kl__zone_at(zone, utc_s);
    HOLDS(span.from_s <= utc_s && utc_s < span.until_s);
    HOLDS(span.offset_s >= -KL_ZONE_OFFSET_MAX && span.offset_s <= KL_ZONE_OFFSET_MAX);
    kl__zone_moment moment = kl__zone_from_wall(zone, utc_s + span.offset_s);
    HOLDS(!moment.gap && (moment.first_s <= utc_s));
    HOLDS(!moment.twice || moment.first_s < moment.second_s);
    HOLDS(moment.twice || moment.first_s == utc_s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kl__zone *zone = NULL;
    char *copy = fuzz_copy(data, size);
    if (kl__zone_parse("A/Zone", (kl_bytes){copy, size}, &zone) == KL_OK) {
        for (int64_t utc_s = 0; utc_s < INT64_C(17000000000); utc_s += 37 * 86400 + 4321)
            check_at(zone, utc_s);
    } else {
        HOLDS(*kl_error_text() != 0);
    }
    kl__zone_free(zone);
    free(copy);
    return 0;
}
