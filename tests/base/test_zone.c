/* test_zone.c - walls all over the world, judged by the C library, which is told each zone by TZ. */
#include <stdlib.h>
#include <time.h>

#include "base/random.h"
#include "base/zone.h"
#include "harness.h"

#define FAR_S INT64_C(16725225600) /* the year 2500 */

/* Summer and winter, the far south, half hours, quarter hours, negative daylight saving time, a day left out, no rule
 * that is left, and one that no rule describes for long. */
static const char *const zones[] = {
    "Europe/Zurich",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Europe/Dublin",
    "Pacific/Apia",
    "America/Sao_Paulo",
    "Africa/Casablanca",
    "America/St_Johns",
    "Pacific/Chatham",
    "America/Nuuk",
    "Asia/Gaza",
    "Africa/Monrovia",
    "Antarctica/Troll",
    "America/Santiago",
    "Asia/Kolkata",
    "Etc/GMT+12",
    "Pacific/Kiritimati",
    "UTC",
};

enum { ZONES = sizeof zones / sizeof zones[0] };

static kl__zone *load(const char *name)
{
    kl__zone *zone = NULL;
    kl_rc rc = kl__zone_load(name, &zone);
    if (rc != KL_OK)
        test_fail(__FILE__, __LINE__, "%s: %s", name, kl_error_text());
    return zone;
}

static int64_t at(int64_t year, int32_t month, int32_t day, int64_t hour, int64_t minute)
{
    return kl__date_to_days((kl__date){year, month, day}) * 86400 + hour * 3600 + minute * 60;
}

static int64_t draw_time(uint64_t *random)
{
    return (int64_t)kl__random_below(random, (uint64_t)(FAR_S + 3000000000)) - 3000000000; /* 1874 to 2500 */
}

/* The C library's answer for the zone in TZ. */
static int64_t library_offset(int64_t utc_s)
{
    time_t when = (time_t)utc_s;
    struct tm tm;
    return localtime_r(&when, &tm) ? tm.tm_gmtoff : INT64_MIN;
}

static void check_against_library(const char *name, const kl__zone *zone, uint64_t *random)
{
    for (uint64_t i = 0; i < test_ops(2000); i++) {
        int64_t utc_s = draw_time(random);
        kl__zone_span span = kl__zone_at(zone, utc_s);
        if (i % 2 && span.until_s < FAR_S) /* on the edge */
            utc_s = span.until_s - (int64_t)kl__random_below(random, 2);
        int64_t offset_s = kl__zone_at(zone, utc_s).offset_s, expected_s = library_offset(utc_s);
        if (offset_s != expected_s) {
            test_fail(__FILE__, __LINE__, "%s at %" PRId64 ": offset %" PRId64 ", expected %" PRId64, name, utc_s,
                      offset_s, expected_s);
            return;
        }
    }
}

TEST(walls_agree_with_the_c_library)
{
    uint64_t random = test_seed();
    for (int i = 0; i < ZONES; i++) {
        kl__zone *zone = load(zones[i]);
        REQUIRE(zone);
        setenv("TZ", zones[i], 1);
        tzset();
        check_against_library(zones[i], zone, &random);
        kl__zone_free(zone);
    }
    unsetenv("TZ");
    tzset();
}

/* What the wall shows at a moment leads back to that moment, as the first or the second of its kind. */
TEST(what_a_wall_shows_leads_back_to_its_moment)
{
    uint64_t random = test_seed();
    for (int i = 0; i < ZONES; i++) {
        kl__zone *zone = load(zones[i]);
        REQUIRE(zone);
        for (uint64_t n = 0; n < test_ops(2000); n++) {
            kl__zone_span span = kl__zone_at(zone, draw_time(&random));
            int64_t edge_s = span.until_s < FAR_S ? span.until_s : draw_time(&random);
            int64_t utc_s = edge_s + (int64_t)kl__random_below(&random, 20000) - 10000;
            kl__zone_moment moment = kl__zone_from_wall(zone, utc_s + kl__zone_at(zone, utc_s).offset_s);
            CHECK(!moment.gap);
            CHECK(moment.first_s == utc_s || (moment.twice && moment.second_s == utc_s));
            CHECK(!moment.twice || moment.first_s < moment.second_s);
        }
        kl__zone_free(zone);
    }
}

TEST(a_time_that_is_stepped_over_leads_to_the_moment_after_the_step)
{
    kl__zone *zurich = load("Europe/Zurich"), *apia = load("Pacific/Apia");
    REQUIRE(zurich && apia);
    int64_t step_s = at(2026, 3, 29, 1, 0);
    for (int64_t minute = 0; minute < 60; minute++) {
        kl__zone_moment moment = kl__zone_from_wall(zurich, at(2026, 3, 29, 2, minute));
        CHECK(moment.gap && !moment.twice);
        CHECK_INT(moment.first_s, step_s);
    }
    CHECK(!kl__zone_from_wall(zurich, at(2026, 3, 29, 1, 59)).gap);
    CHECK(!kl__zone_from_wall(zurich, at(2026, 3, 29, 3, 0)).gap);
    CHECK_INT(kl__zone_from_wall(zurich, at(2026, 3, 29, 3, 0)).first_s, step_s);
    kl__zone_moment day = kl__zone_from_wall(apia, at(2011, 12, 30, 12, 0)); /* Samoa left this day out */
    CHECK(day.gap);
    CHECK_INT(day.first_s, at(2011, 12, 30, 10, 0));
    kl__zone_free(zurich);
    kl__zone_free(apia);
}

TEST(a_time_that_comes_twice_is_told_twice)
{
    kl__zone *zurich = load("Europe/Zurich");
    REQUIRE(zurich);
    kl__zone_moment moment = kl__zone_from_wall(zurich, at(2026, 10, 25, 2, 30));
    CHECK(moment.twice && !moment.gap);
    CHECK_INT(moment.first_s, at(2026, 10, 25, 0, 30));
    CHECK_INT(moment.second_s, at(2026, 10, 25, 1, 30));
    CHECK(!kl__zone_from_wall(zurich, at(2026, 10, 25, 3, 0)).twice);
    CHECK(!kl__zone_from_wall(zurich, at(2026, 10, 25, 1, 59)).twice);
    moment = kl__zone_from_wall(zurich, at(2400, 10, 29, 2, 30)); /* far behind the table */
    CHECK(moment.twice);
    kl__zone_free(zurich);
}

TEST(days_and_dates_lead_to_each_other)
{
    kl__date before = {1599, 12, 31};
    for (int64_t days = kl__date_to_days(before) + 1; days < kl__date_to_days((kl__date){2401, 1, 1}); days++) {
        kl__date date = kl__date_of_days(days);
        CHECK_INT(kl__date_to_days(date), days);
        bool next_day = date.year == before.year && date.month == before.month && date.day == before.day + 1;
        bool next_month = date.year == before.year && date.month == before.month + 1 && date.day == 1;
        bool next_year = date.year == before.year + 1 && date.month == 1 && date.day == 1 && before.month == 12;
        CHECK(next_day || (next_month && before.day >= 28) || (next_year && before.day == 31));
        before = date;
    }
    CHECK_INT(kl__weekday(0), 4);  /* 1970-01-01 was a Thursday */
    CHECK_INT(kl__weekday(-5), 6); /* and five days earlier a Saturday */
    CHECK_INT(kl__date_to_days((kl__date){2000, 3, 1}), 11017);
}

TEST(utc_needs_no_file)
{
    setenv("TZDIR", "/nowhere", 1);
    kl__zone *zone = load("UTC"), *same = load("Etc/UTC"), *other = NULL;
    CHECK_INT(kl__zone_load("Europe/Zurich", &other), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "\"Europe/Zurich\" in /nowhere");
    CHECK_CONTAINS(kl_error_text(), "install the package tzdata");
    unsetenv("TZDIR");
    REQUIRE(zone && same);
    kl__zone_span span = kl__zone_at(zone, 1234567890);
    CHECK(span.from_s == INT64_MIN && span.until_s == INT64_MAX && span.offset_s == 0);
    CHECK_INT(kl__zone_from_wall(same, 1234567890).first_s, 1234567890);
    kl__zone_free(zone);
    kl__zone_free(same);
}

TEST(names_that_lead_elsewhere_are_refused)
{
    static const char *const names[] = {
        "",        "/etc/passwd",    "../zoneinfo/UTC", "Europe/../UTC", "Europe//Zurich",
        "Europe/", "Europe/Zu rich", "posixrules.x",    "Europe\\Zurich"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        kl__zone *zone = NULL;
        CHECK_INT(kl__zone_load(names[i], &zone), KL_EINVAL);
        CHECK_CONTAINS(kl_error_text(), "no name of a time zone");
        CHECK(!zone);
    }
    kl__zone *zone = NULL;
    CHECK_INT(kl__zone_load("Europe", &zone), KL_EINVAL); /* a directory */
    CHECK_CONTAINS(kl_error_text(), "there is no time zone \"Europe\"");
    CHECK_INT(kl__zone_load("Europe/Zurihc", &zone), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "there is no time zone \"Europe/Zurihc\"");
}

/* --- Files made here --- */

struct file {
    uint8_t bytes[8192];
    size_t len;
};

static void put_number(struct file *file, uint64_t value, int bytes)
{
    for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8)
        file->bytes[file->len++] = (uint8_t)(value >> shift);
}

static void put_header(struct file *file, uint32_t leaps, uint32_t times, uint32_t types, uint32_t chars)
{
    memcpy(file->bytes + file->len, "TZif2\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20);
    file->len += 20;
    put_number(file, 0, 8);
    put_number(file, leaps, 4);
    put_number(file, times, 4);
    put_number(file, types, 4);
    put_number(file, chars, 4);
}

/* A file with no table, whose rule holds for all times. */
static kl_rc parse_rule(const char *rule, kl__zone **ret_zone)
{
    struct file file = {.len = 0};
    put_header(&file, 0, 0, 1, 4);
    file.len += 10;
    put_header(&file, 0, 0, 1, 4);
    file.len += 10;
    file.len += (size_t)snprintf((char *)file.bytes + file.len, 200, "\n%s\n", rule);
    return kl__zone_parse("made", (kl_bytes){file.bytes, file.len}, ret_zone);
}

static void check_rule(const char *rule, int64_t utc_s, int64_t offset_s)
{
    kl__zone *zone = NULL;
    CHECK_INT(parse_rule(rule, &zone), KL_OK);
    if (zone)
        CHECK_INT(kl__zone_at(zone, utc_s).offset_s, offset_s);
    kl__zone_free(zone);
}

TEST(rules_of_every_kind_are_understood)
{
    int64_t january = at(2050, 1, 1, 12, 0), july = at(2050, 7, 1, 12, 0);
    check_rule("UTC0", july, 0);
    check_rule("<+0545>-5:45", july, INT64_C(5) * 3600 + INT64_C(45) * 60);
    check_rule("LMT0:44:30", july, -(INT64_C(44) * 60 + 30));
    check_rule("CET-1CEST,M3.5.0,M10.5.0/3", january, 3600);
    check_rule("CET-1CEST,M3.5.0,M10.5.0/3", july, 7200);
    check_rule("AEST-10AEDT,M10.1.0,M4.1.0/3", january, INT64_C(11) * 3600);
    check_rule("AEST-10AEDT,M10.1.0,M4.1.0/3", july, INT64_C(10) * 3600);
    check_rule("IST-1GMT0,M10.5.0,M3.5.0/1", january, 0);
    check_rule("IST-1GMT0,M10.5.0,M3.5.0/1", july, 3600);
    check_rule("XXX3EDT4,0/0,J365/23", january, -INT64_C(4) * 3600); /* daylight saving time all year */
    check_rule("XXX3EDT4,0/0,J365/23", at(2050, 12, 31, 23, 30), -INT64_C(4) * 3600);
    check_rule("XXX3EDT4,0/0,J365/23", at(2051, 1, 1, 3, 0), -INT64_C(4) * 3600);
    check_rule("AAA0BBB,J60,J61", at(2048, 3, 1, 3, 0), 3600);    /* J60 is March 1 in leap years too */
    check_rule("AAA0BBB,59/2,60/2", at(2048, 2, 29, 3, 0), 3600); /* 59 is February 29 then */
    check_rule("<-02>2<-01>,M3.5.0/-1,M10.5.0/0", at(2050, 3, 26, 0, 59), -7200);
    check_rule("<-02>2<-01>,M3.5.0/-1,M10.5.0/0", at(2050, 3, 27, 1, 0), -3600);
}

TEST(malformed_rules_are_refused)
{
    static const char *const rules[] = {"A0",
                                        "CET",
                                        "CET-1CEST",
                                        "CET-25",
                                        "CET-1:60",
                                        "CET-1CEST,M3.5.0",
                                        "CET-1CEST,M13.5.0,M10.5.0",
                                        "CET-1CEST,M3.6.0,M10.5.0",
                                        "CET-1CEST,M3.5.7,M10.5.0",
                                        "CET-1CEST,J0,J5",
                                        "CET-1CEST,366,5",
                                        "CET-1CEST,M3.5.0/168,M10.5.0",
                                        "CET-1CEST,M3.5.0,M10.5.0/3x",
                                        "<+03-3",
                                        "CET99999999999999"};
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        kl__zone *zone = NULL;
        CHECK_INT(parse_rule(rules[i], &zone), KL_EDAMAGED);
        CHECK_CONTAINS(kl_error_text(), "\"made\"");
        CHECK(!zone);
    }
}

static void read_file(const char *name, struct file *ret_file)
{
    char path[128];
    snprintf(path, sizeof path, "/usr/share/zoneinfo/%s", name);
    FILE *stream = fopen(path, "rb");
    ret_file->len = stream ? fread(ret_file->bytes, 1, sizeof ret_file->bytes, stream) : 0;
    if (stream)
        fclose(stream);
}

static kl_rc parse_copy(const struct file *file, size_t len, kl__zone **ret_zone)
{
    uint8_t *copy = malloc(len ? len : 1); /* of its very size, for the address sanitizer */
    memcpy(copy, file->bytes, len);
    kl_rc rc = kl__zone_parse("cut", (kl_bytes){copy, len}, ret_zone);
    free(copy);
    return rc;
}

TEST(a_file_that_is_cut_short_is_refused)
{
    struct file file;
    read_file("Europe/Zurich", &file);
    REQUIRE(file.len > 100);
    for (size_t len = 0; len < file.len; len++) {
        kl__zone *zone = NULL;
        CHECK_INT(parse_copy(&file, len, &zone), KL_EDAMAGED);
        CHECK(!zone);
    }
    kl__zone *zone = NULL;
    CHECK_INT(parse_copy(&file, file.len, &zone), KL_OK);
    kl__zone_free(zone);
}

/* Z2, and that nothing stops the program. */
static void check_spans(const kl__zone *zone, uint64_t *random)
{
    for (int i = 0; i < 20; i++) {
        int64_t utc_s = draw_time(random);
        kl__zone_span span = kl__zone_at(zone, utc_s);
        CHECK(span.from_s <= utc_s && utc_s < span.until_s);
        CHECK(span.offset_s > -KL_ZONE_OFFSET_MAX && span.offset_s < KL_ZONE_OFFSET_MAX);
        CHECK(span.until_s == INT64_MAX || kl__zone_at(zone, span.until_s).from_s == span.until_s);
        (void)kl__zone_from_wall(zone, utc_s);
        (void)kl__zone_from_wall(zone, span.until_s);
    }
}

TEST(a_damaged_file_is_refused_or_harmless)
{
    uint64_t random = test_seed(), refused = 0, taken = 0;
    for (uint64_t n = 0; n < test_ops(20000); n++) {
        struct file file;
        read_file(zones[n % 4], &file);
        REQUIRE(file.len > 100);
        for (uint64_t flips = 1 + kl__random_below(&random, 4); flips > 0; flips--)
            file.bytes[kl__random_below(&random, file.len)] = (uint8_t)kl__random_next(&random);
        kl__zone *zone = NULL;
        kl_rc rc = parse_copy(&file, file.len, &zone);
        CHECK(rc == KL_OK || rc == KL_EDAMAGED);
        refused += rc != KL_OK;
        taken += rc == KL_OK;
        if (zone)
            check_spans(zone, &random);
        kl__zone_free(zone);
    }
    CHECK(refused > 0 && taken > 0);
}

TEST(files_of_another_kind_say_why)
{
    kl__zone *zone = NULL;
    struct file file = {.len = 0};
    put_header(&file, 0, 0, 1, 4);
    file.len += 10;
    file.bytes[4] = 0;
    CHECK_INT(kl__zone_parse("old", (kl_bytes){file.bytes, file.len}, &zone), KL_EDAMAGED);
    CHECK_CONTAINS(kl_error_text(), "version 1");
    file.bytes[4] = '2';
    put_header(&file, 1, 0, 1, 4);
    file.len += 10 + 12;
    CHECK_INT(kl__zone_parse("right", (kl_bytes){file.bytes, file.len}, &zone), KL_EDAMAGED);
    CHECK_CONTAINS(kl_error_text(), "leap seconds");
    CHECK_INT(kl__zone_parse("huge", (kl_bytes){file.bytes, KL_ZONE_FILE_BYTES_MAX + 1}, &zone), KL_EDAMAGED);
    CHECK_CONTAINS(kl_error_text(), "1 MiB");
}

TEST(a_zone_without_memory_says_so)
{
    kl__zone *zone = NULL;
    for (uint64_t n = 1; n <= 2; n++) {
        kl__alloc_fail_at(n);
        CHECK_INT(kl__zone_load("Europe/Zurich", &zone), KL_ENOMEM);
        CHECK(!zone);
    }
    kl__alloc_fail_at(1);
    CHECK_INT(kl__zone_load("UTC", &zone), KL_ENOMEM);
    kl__alloc_fail_at(0);
}
