/* fuzz_cron.c - schedules: the fields in the first line, the zone's name in the second. The next time is the next one,
 * seen from anywhere before it, and the last one, seen from behind. */
#include "fuzz.h"
#include "keyline/id.h"
#include "queue/cron.h"

static const int64_t afters_ms[] = {0, INT64_C(1793000000000), INT64_C(4080000000000), KL_ID_MS_MAX};

static void check_from(const char *when, const char *zone_name, int64_t after_ms)
{
    kl__cron_fields fields;
    kl__zone *zone;
    int64_t next_ms = -1, again_ms = -1;
    if (kl_cron_next(when, zone_name, after_ms, &next_ms) != KL_OK) {
        HOLDS(next_ms == -1 && *kl_error_text() != 0);
        return;
    }
    if (next_ms == 0)
        return;
    HOLDS(next_ms > after_ms);
    HOLDS(next_ms - 1 > KL_ID_MS_MAX ||
          (kl_cron_next(when, zone_name, next_ms - 1, &again_ms) == KL_OK && again_ms == next_ms));
    HOLDS(kl__cron_parse(when, &fields) == KL_OK && kl__zone_load(zone_name ? zone_name : "UTC", &zone) == KL_OK);
    HOLDS(kl__cron_last(&fields, zone, after_ms, next_ms) == next_ms);
    HOLDS(kl__cron_last(&fields, zone, after_ms, next_ms - 1) == 0);
    kl__zone_free(zone);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *when = malloc(size + 1);
    HOLDS(when);
    memcpy(when, data, size);
    when[size] = 0;
    char *zone = strchr(when, '\n');
    if (zone)
        *zone++ = 0;
    for (size_t i = 0; i < sizeof afters_ms / sizeof *afters_ms; i++)
        check_from(when, zone, afters_ms[i]);
    free(when);
    return 0;
}
