/* test_cron_fields.c - the fields mean what cron's mean, also when the clocks are changed.
 *
 * The judge goes through time minute by minute, with the C library's calendar and fields that are read by other code.
 * It knows the rules for changed clocks in other words: a schedule with fixed hours fires when the wall's clock comes
 * to, or steps over, a time that it has not been at before. */
#include <stdlib.h>
#include <time.h>

#include "base/random.h"
#include "harness.h"
#include "queue/cron.h"

#define MINUTE_MS INT64_C(60000)
#define HOUR_MS   (60 * MINUTE_MS)

static int64_t utc(int64_t year, int32_t month, int32_t day, int64_t hour, int64_t minute)
{
    return (kl__date_to_days((kl__date){year, month, day}) * 1440 + hour * 60 + minute) * MINUTE_MS;
}

static int64_t next(const char *when, const char *zone, int64_t after_ms)
{
    int64_t next_ms = -1;
    kl_rc rc = kl_cron_next(when, zone, after_ms, &next_ms);
    if (rc != KL_OK)
        test_fail(__FILE__, __LINE__, "%s in %s: %s", when, zone ? zone : "UTC", kl_error_text());
    return next_ms;
}

/* The times after the first one, in UTC's minutes and ending with 0. */
static void check_times(const char *when, const char *zone, int64_t after_ms, const int64_t *expected_ms)
{
    for (; *expected_ms; expected_ms++) {
        int64_t next_ms = next(when, zone, after_ms);
        if (next_ms != *expected_ms) {
            test_fail(__FILE__, __LINE__, "%s: %" PRId64 " min after %" PRId64 ", expected %" PRId64, when,
                      (next_ms - after_ms) / MINUTE_MS, after_ms, (*expected_ms - after_ms) / MINUTE_MS);
            return;
        }
        after_ms = next_ms;
    }
}

#define TIMES(when, zone, after_ms, ...) check_times(when, zone, after_ms, (const int64_t[]){__VA_ARGS__, 0})

TEST(fields_name_the_times_that_they_say)
{
    int64_t sunday = utc(2026, 11, 15, 0, 0);
    TIMES("* * * * *", NULL, sunday, sunday + MINUTE_MS, sunday + 2 * MINUTE_MS);
    TIMES("* * * * *", NULL, sunday + 1, sunday + MINUTE_MS);
    TIMES("* * * * *", NULL, sunday - 1, sunday);
    TIMES("*/20 * * * *", "UTC", sunday, sunday + 20 * MINUTE_MS, sunday + 40 * MINUTE_MS, sunday + 60 * MINUTE_MS);
    TIMES("10-40/15,59 3 * * *", NULL, sunday, utc(2026, 11, 15, 3, 10), utc(2026, 11, 15, 3, 25),
          utc(2026, 11, 15, 3, 40), utc(2026, 11, 15, 3, 59), utc(2026, 11, 16, 3, 10));
    TIMES("0 0 * * mon-wed,FRI", NULL, sunday, utc(2026, 11, 16, 0, 0), utc(2026, 11, 17, 0, 0),
          utc(2026, 11, 18, 0, 0), utc(2026, 11, 20, 0, 0), utc(2026, 11, 23, 0, 0));
    TIMES("0 12 * * 7", NULL, sunday, utc(2026, 11, 15, 12, 0), utc(2026, 11, 22, 12, 0));
    TIMES("0 12 * * 0", NULL, sunday, utc(2026, 11, 15, 12, 0), utc(2026, 11, 22, 12, 0));
    TIMES("0 12 * * 6-7", NULL, sunday, utc(2026, 11, 15, 12, 0), utc(2026, 11, 21, 12, 0));
    TIMES("0 0 31 Jan,apr-may *", NULL, sunday, utc(2027, 1, 31, 0, 0), utc(2027, 5, 31, 0, 0));
    TIMES("\t0  0 1 1 *  ", NULL, sunday, utc(2027, 1, 1, 0, 0));
    TIMES("0 0 29 2 *", NULL, sunday, utc(2028, 2, 29, 0, 0), utc(2032, 2, 29, 0, 0));
    TIMES("0 0 29 2 *", NULL, utc(2096, 2, 29, 0, 0), utc(2104, 2, 29, 0, 0));
}

TEST(days_fit_either_field_when_both_are_restricted)
{
    int64_t sunday = utc(2026, 11, 15, 0, 0);
    TIMES("0 0 17 * fri", NULL, sunday, utc(2026, 11, 17, 0, 0), utc(2026, 11, 20, 0, 0), utc(2026, 11, 27, 0, 0));
    TIMES("0 0 */2 * mon", NULL, sunday, utc(2026, 11, 23, 0, 0), utc(2026, 12, 7, 0, 0)); /* odd, and a Monday */
    TIMES("0 0 1-7 * */7", NULL, sunday, utc(2026, 12, 6, 0, 0), utc(2027, 1, 3, 0, 0));   /* first Sundays */
}

TEST(words_stand_for_fields)
{
    int64_t sunday = utc(2026, 11, 15, 0, 0);
    TIMES("@hourly", NULL, sunday, utc(2026, 11, 15, 1, 0), utc(2026, 11, 15, 2, 0));
    TIMES("@daily", NULL, sunday, utc(2026, 11, 16, 0, 0), utc(2026, 11, 17, 0, 0));
    TIMES("@midnight", NULL, sunday, utc(2026, 11, 16, 0, 0), utc(2026, 11, 17, 0, 0));
    TIMES("@weekly", NULL, sunday, utc(2026, 11, 22, 0, 0));
    TIMES("@monthly", NULL, sunday, utc(2026, 12, 1, 0, 0), utc(2027, 1, 1, 0, 0));
    TIMES("@yearly", NULL, sunday, utc(2027, 1, 1, 0, 0), utc(2028, 1, 1, 0, 0));
    TIMES("@annually", NULL, sunday, utc(2027, 1, 1, 0, 0), utc(2028, 1, 1, 0, 0));
}

TEST(times_that_never_come_are_told)
{
    CHECK_INT(next("0 0 30 2 *", NULL, 0), 0);
    CHECK_INT(next("0 0 31 4,6,9,11 *", "Europe/Zurich", utc(2026, 1, 1, 0, 0)), 0);
    CHECK(next("0 0 30 2 mon", NULL, 0) != 0);
    CHECK_INT(next("* * * * *", NULL, KL_ID_MS_MAX), 0);
}

TEST(what_is_no_schedule_is_refused_with_its_field)
{
    static const char *const cases[][2] = {
        {"", "five fields"},
        {"* * * *", "five fields"},
        {"* * * * * *", "five fields"},
        {"@reboot", "five fields"},
        {"@hourly ", "five fields"},
        {"60 * * * *", "the minute field \"60\" is out of range: write *, numbers from 0 to 59"},
        {"* 24 * * *", "the hour field \"24\" is out of range"},
        {"* * 0 * *", "the day-of-month field \"0\" is out of range"},
        {"* * 32 * *", "the day-of-month field \"32\" is out of range"},
        {"* * * 13 *", "the month field \"13\" is out of range"},
        {"* * * * 8", "the day-of-week field \"8\" is out of range"},
        {"* * * monday *", "the month field \"monday\" is not understood"},
        {"* * * * monday", "the day-of-week field \"monday\" is not understood"},
        {"* * * * fri-mon", "ends before it begins"},
        {"*/0 * * * *", "a step that is 0"},
        {"*/60 * * * *", "larger than the field"},
        {"5/10 * * * *", "a step behind a single value"},
        {"*/ * * * *", "no number behind its slash"},
        {"1,,2 * * * *", "the minute field \"1,,2\" is not understood"},
        {"1, * * * *", "is not understood"},
        {"-5 * * * *", "is not understood"},
        {"1- * * * *", "is not understood"},
        {"** * * * *", "is not understood"},
        {"? * * * *", "is not understood"},
        {"* * L * *", "is not understood"},
        {"99999999999999999999 * * * *", "is out of range"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t next_ms = 7;
        CHECK_INT(kl_cron_next(cases[i][0], NULL, 0, &next_ms), KL_EINVAL);
        CHECK_CONTAINS(kl_error_text(), cases[i][1]);
        CHECK_INT(next_ms, 7);
    }
}

TEST(bad_calls_say_why)
{
    int64_t next_ms = 7;
    char lengthy[KL_CRON_WHEN_MAX + 20] = "";
    while (strlen(lengthy) <= KL_CRON_WHEN_MAX - 8)
        strcat(lengthy, "1,2,3,4,");
    strcat(lengthy, "1,2,3,4,5 * * * *");
    CHECK_INT(kl_cron_next(lengthy, NULL, 0, &next_ms), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "at most 256 bytes");
    CHECK_INT(kl_cron_next(NULL, NULL, 0, &next_ms), KL_EINVAL);
    CHECK_INT(kl_cron_next("* * * * *", "Mars/Olympus", 0, &next_ms), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "Mars/Olympus");
    CHECK_INT(kl_cron_next("* * * * *", NULL, -1, &next_ms), KL_EINVAL);
    CHECK_INT(kl_cron_next("* * * * *", NULL, INT64_MAX, &next_ms), KL_EINVAL);
    CHECK_INT(next_ms, 7);
}

/* In Zurich, 2026-03-29 goes from 01:59 to 03:00 (01:00 in UTC). */
TEST(a_time_that_is_stepped_over_fires_once_after_the_step)
{
    const char *zone = "Europe/Zurich";
    int64_t before = utc(2026, 3, 28, 12, 0), step = utc(2026, 3, 29, 1, 0);
    TIMES("30 2 * * *", zone, before, step, utc(2026, 3, 30, 0, 30), utc(2026, 3, 31, 0, 30));
    TIMES("*/10 2 * * *", zone, before, step, utc(2026, 3, 30, 0, 0), utc(2026, 3, 30, 0, 10));
    TIMES("0,30 2,3 * * *", zone, before, step, step + 30 * MINUTE_MS, utc(2026, 3, 30, 0, 0));
    TIMES("0 4 * * *", zone, before, utc(2026, 3, 29, 2, 0), utc(2026, 3, 30, 2, 0));
}

/* In Zurich, 2026-10-25 goes from 02:59 back to 02:00 (01:00 in UTC). */
TEST(a_time_that_comes_twice_fires_the_first_time_only)
{
    const char *zone = "Europe/Zurich";
    int64_t before = utc(2026, 10, 24, 12, 0);
    TIMES("30 2 * * *", zone, before, utc(2026, 10, 25, 0, 30), utc(2026, 10, 26, 1, 30));
    TIMES("0,30 2-3 * * *", zone, before, utc(2026, 10, 25, 0, 0), utc(2026, 10, 25, 0, 30), utc(2026, 10, 25, 2, 0),
          utc(2026, 10, 25, 2, 30), utc(2026, 10, 26, 1, 0));
    TIMES("30 2 * * *", zone, utc(2026, 10, 25, 1, 0), utc(2026, 10, 26, 1, 30)); /* asked in between */
}

TEST(a_schedule_for_every_hour_follows_the_real_clock)
{
    for (int i = 0; i < 2; i++) {
        int64_t from = i ? utc(2026, 3, 29, 0, 30) : utc(2026, 10, 24, 22, 30);
        for (int64_t hour = 0; hour < 6; hour++, from += HOUR_MS)
            CHECK_INT(next("30 * * * *", "Europe/Zurich", from), from + HOUR_MS);
    }
    TIMES("@hourly", "Europe/Zurich", utc(2026, 10, 25, 0, 0), utc(2026, 10, 25, 1, 0), utc(2026, 10, 25, 2, 0));
    TIMES("15 * * * *", "Australia/Lord_Howe", utc(2026, 10, 3, 14, 45),
          utc(2026, 10, 3, 16, 15)); /* 02:15 was left out */
}

TEST(a_day_that_is_left_out_fires_at_the_beginning_of_the_next)
{
    TIMES("0 9 * * *", "Pacific/Apia", utc(2011, 12, 29, 12, 0), utc(2011, 12, 29, 19, 0), utc(2011, 12, 30, 10, 0),
          utc(2011, 12, 30, 19, 0), utc(2011, 12, 31, 19, 0));
}

/* --- Against the judge --- */

/* One field as a set, and as text. */
struct set {
    bool has[64];
    bool star;
    char text[128];
};

static void add_item(struct set *set, int min, int max, uint64_t *random)
{
    int span = max - min + 1, first = min + (int)kl__random_below(random, (uint64_t)span), last = first, step = 1;
    char item[32];
    switch (kl__random_below(random, 4)) {
    case 0:
        step = 1 + (int)kl__random_below(random, (uint64_t)(max < 20 ? max : 20));
        first = min, last = max;
        snprintf(item, sizeof item, "*/%d", step);
        set->star |= set->text[0] == '\0';
        break;
    case 1:
        last = first + (int)kl__random_below(random, (uint64_t)max - (uint64_t)first + 1);
        snprintf(item, sizeof item, "%d-%d", first, last);
        break;
    case 2:
        last = first + (int)kl__random_below(random, (uint64_t)max - (uint64_t)first + 1);
        step = 1 + (int)kl__random_below(random, 5);
        snprintf(item, sizeof item, "%d-%d/%d", first, last, step);
        break;
    default:
        snprintf(item, sizeof item, "%d", first);
    }
    for (int value = first; value <= last; value += step)
        set->has[value] = true;
    if (set->text[0])
        strcat(set->text, ",");
    strcat(set->text, item);
}

static void draw_set(struct set *set, int min, int max, uint64_t star_of_10, uint64_t *random)
{
    *set = (struct set){.star = kl__random_below(random, 10) < star_of_10};
    if (set->star) {
        memset(set->has, 1, sizeof set->has);
        strcpy(set->text, "*");
        return;
    }
    for (uint64_t items = 1 + kl__random_below(random, 3); items > 0; items--)
        add_item(set, min, max, random);
}

struct schedule {
    struct set minute, hour, day, month, weekday;
    char when[KL_CRON_WHEN_MAX];
};

static void draw_schedule(struct schedule *schedule, uint64_t *random)
{
    draw_set(&schedule->minute, 0, 59, 2, random);
    draw_set(&schedule->hour, 0, 23, 3, random);
    draw_set(&schedule->day, 1, 31, 6, random);
    draw_set(&schedule->month, 1, 12, 6, random);
    draw_set(&schedule->weekday, 0, 7, 6, random);
    schedule->weekday.has[0] |= schedule->weekday.has[7];
    snprintf(schedule->when, sizeof schedule->when, "%.40s %.40s %.40s %.40s %.40s", schedule->minute.text,
             schedule->hour.text, schedule->day.text, schedule->month.text, schedule->weekday.text);
}

static bool names_day(const struct schedule *schedule, const struct tm *wall)
{
    bool day = schedule->day.has[wall->tm_mday], weekday = schedule->weekday.has[wall->tm_wday];
    bool both = schedule->day.star || schedule->weekday.star;
    return schedule->month.has[wall->tm_mon + 1] && (both ? day && weekday : day || weekday);
}

/* wall: minutes since 1970 as if the wall showed UTC. */
static bool names(const struct schedule *schedule, int64_t wall)
{
    time_t seconds = (time_t)(wall * 60);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    return schedule->minute.has[tm.tm_min] && schedule->hour.has[tm.tm_hour] && names_day(schedule, &tm);
}

static bool every_hour(const struct schedule *schedule)
{
    bool all = true;
    for (int hour = 0; hour < 24; hour++)
        all &= schedule->hour.has[hour];
    return all;
}

/* What the wall of the zone in TZ shows. */
static int64_t wall_of(int64_t minute)
{
    time_t seconds = (time_t)(minute * 60);
    struct tm tm;
    localtime_r(&seconds, &tm);
    return minute + tm.tm_gmtoff / 60;
}

/* Whether it fires at this minute; furthest: where the wall has been before. */
static bool fires(const struct schedule *schedule, int64_t minute, int64_t furthest)
{
    int64_t wall = wall_of(minute);
    if (every_hour(schedule))
        return names(schedule, wall);
    for (int64_t reached = furthest + 1; reached <= wall; reached++)
        if (names(schedule, reached))
            return true;
    return false;
}

/* True: they agree on every minute of [from, until). */
static bool judge(const struct schedule *schedule, const char *zone_name, const kl__zone *zone, int64_t from,
                  int64_t until)
{
    kl__cron_fields fields;
    if (kl__cron_parse(schedule->when, &fields) != KL_OK) {
        test_fail(__FILE__, __LINE__, "%s: %s", schedule->when, kl_error_text());
        return false;
    }
    int64_t furthest = INT64_MIN, next_ms = kl__cron_next(&fields, zone, from * MINUTE_MS - 1);
    for (int64_t minute = from - INT64_C(2880); minute < from; minute++)
        furthest = wall_of(minute) > furthest ? wall_of(minute) : furthest;
    for (int64_t minute = from; minute < until; minute++) {
        bool expected = fires(schedule, minute, furthest);
        if (expected != (next_ms == minute * MINUTE_MS)) {
            test_fail(__FILE__, __LINE__, "\"%s\" in %s at minute %" PRId64 ": it should%s fire; next is %" PRId64,
                      schedule->when, zone_name, minute, expected ? "" : " not", next_ms / MINUTE_MS);
            return false;
        }
        if (expected)
            next_ms = kl__cron_next(&fields, zone, next_ms);
        furthest = wall_of(minute) > furthest ? wall_of(minute) : furthest;
    }
    return true;
}

static const char *const zones[] = {"Europe/Zurich",     "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca",
                                    "America/Sao_Paulo", "Pacific/Chatham",  "Antarctica/Troll",    "Asia/Kathmandu"};

/* Some days around each change of the clocks, and anywhere: months on end with one schedule in a few zones are
 * below. */
TEST(random_fields_agree_with_the_judge_around_changes)
{
    uint64_t random = test_seed();
    for (uint64_t n = 0; n < test_rounds(150); n++) {
        const char *name = zones[n % (sizeof zones / sizeof zones[0])];
        kl__zone *zone = NULL;
        REQUIRE(kl__zone_load(name, &zone) == KL_OK);
        setenv("TZ", name, 1);
        tzset();
        struct schedule schedule;
        draw_schedule(&schedule, &random);
        int64_t start = utc(1995, 1, 1, 0, 0) / 1000 + (int64_t)kl__random_below(&random, UINT64_C(86400) * 365 * 60);
        kl__zone_span span = kl__zone_at(zone, start);
        int64_t change = span.until_s < INT64_C(4102444800) ? span.until_s : start;
        bool agree = judge(&schedule, name, zone, change / 60 - 1440, change / 60 + 1440);
        kl__zone_free(zone);
        if (!agree)
            break;
    }
    unsetenv("TZ");
    tzset();
}

TEST(random_fields_agree_with_the_judge_for_months)
{
    uint64_t random = test_seed();
    enum { LOOK_DAYS = 100 };
    for (uint64_t n = 0; n < test_rounds(10); n++) {
        const char *name = zones[kl__random_below(&random, sizeof zones / sizeof zones[0])];
        kl__zone *zone = NULL;
        REQUIRE(kl__zone_load(name, &zone) == KL_OK);
        setenv("TZ", name, 1);
        tzset();
        struct schedule schedule;
        draw_schedule(&schedule, &random);
        int64_t from =
            utc(1996, 1, 1, 0, 0) / MINUTE_MS + (int64_t)kl__random_below(&random, UINT64_C(1440) * 365 * 60);
        bool agree = judge(&schedule, name, zone, from, from + (int64_t)1440 * LOOK_DAYS);
        kl__zone_free(zone);
        if (!agree)
            break;
    }
    unsetenv("TZ");
    tzset();
}

TEST(the_last_time_is_the_one_before_the_next)
{
    uint64_t random = test_seed();
    kl__zone *zone = NULL;
    REQUIRE(kl__zone_load("Europe/Zurich", &zone) == KL_OK);
    for (uint64_t n = 0; n < test_ops(500); n++) {
        struct schedule schedule;
        kl__cron_fields fields;
        draw_schedule(&schedule, &random);
        REQUIRE(kl__cron_parse(schedule.when, &fields) == KL_OK);
        int64_t from = utc(2020, 1, 1, 0, 0) + (int64_t)kl__random_below(&random, UINT64_C(94608000000));
        int64_t until = from + (int64_t)kl__random_below(&random, UINT64_C(259200000));
        int64_t expected = 0;
        for (int64_t at = kl__cron_next(&fields, zone, from); at != 0 && at <= until;
             at = kl__cron_next(&fields, zone, at))
            expected = at;
        CHECK_INT(kl__cron_last(&fields, zone, from, until), expected);
    }
    kl__zone_free(zone);
}
