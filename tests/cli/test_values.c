/* test_values.c - what words may say, and how it is printed. */
#include "cli/cli.h"
#include "harness.h"

static int64_t duration(const char *text)
{
    int64_t ms;
    return kl__duration_parse(text, &ms) ? ms : -1;
}

TEST(durations_have_a_unit)
{
    CHECK_INT(duration("250ms"), 250);
    CHECK_INT(duration("5s"), 5000);
    CHECK_INT(duration("2m"), 120000);
    CHECK_INT(duration("1h"), 3600000);
    CHECK_INT(duration("7d"), 604800000);
    CHECK_INT(duration("0s"), 0);
    static const char *const wrong[] = {"",
                                        "5",
                                        "s",
                                        "-5s",
                                        "+5s",
                                        " 5s",
                                        "5 s",
                                        "5.5s",
                                        "5sec",
                                        "5S",
                                        "1h30m",
                                        "99999999999999999999s",
                                        "9223372036854775807d"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CHECK_INT(duration(wrong[i]), -1);
}

TEST(durations_are_printed_in_the_largest_unit_and_read_back)
{
    static const struct {
        int64_t ms;
        const char *text;
    } cases[] = {{0, "0s"},     {1, "1ms"},     {1000, "1s"},    {1500, "1500ms"},
                 {60000, "1m"}, {90000, "90s"}, {3600000, "1h"}, {2592000000, "30d"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[KL_DURATION_TEXT_BYTES];
        kl__duration_print(cases[i].ms, text);
        CHECK_STR(text, cases[i].text);
        CHECK_INT(duration(text), cases[i].ms);
    }
}

static int64_t moment(const char *text)
{
    int64_t ms;
    return kl__time_parse(text, 1000000, &ms) ? ms : -1;
}

TEST(times_are_rfc_3339_or_count_from_now)
{
    CHECK_INT(moment("1970-01-01T00:00:01Z"), 1000);
    CHECK_INT(moment("2026-11-15T18:00:00Z"), INT64_C(1794765600000));
    CHECK_INT(moment("2026-11-15T19:00:00+01:00"), INT64_C(1794765600000));
    CHECK_INT(moment("2026-11-15 12:30:00.250-05:30"), INT64_C(1794765600250));
    CHECK_INT(moment("2024-02-29T00:00:00Z"), INT64_C(1709164800000));
    CHECK_INT(moment("+5m"), 1300000);
    CHECK_INT(moment("-10s"), 990000);
    static const char *const wrong[] = {"",
                                        "now",
                                        "2026-11-15",
                                        "2026-11-15T18:00:00",
                                        "2026-02-30T00:00:00Z",
                                        "2026-13-01T00:00:00Z",
                                        "2026-11-15T24:00:00Z",
                                        "2026-11-15T18:00:00Zx",
                                        "2026-11-15T18:00:00+25:00",
                                        "2026-11-15T18:00:00.Z",
                                        "+5",
                                        "-",
                                        "5m",
                                        "+9223372036854775807ms"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CHECK_INT(moment(wrong[i]), -1);
}

TEST(times_are_printed_in_utc_and_read_back)
{
    uint64_t state = test_seed();
    for (int i = 0; i < 1000; i++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
        int64_t ms = (int64_t)(state >> 22), back;
        char text[KL_TIME_TEXT_BYTES];
        kl__time_print(ms, text);
        back = moment(text);
        if (back != ms)
            test_fail(__FILE__, __LINE__, "%s is read as %" PRId64 ", printed from %" PRId64, text, back, ms);
    }
}

TEST(an_options_value_name_says_what_it_takes)
{
    static const struct {
        const char *name;
        kl__kind kind;
    } cases[] = {{NULL, KL_FLAG},
                 {"N", KL_NUMBER},
                 {"N|none", KL_NUMBER},
                 {"DURATION", KL_DURATION},
                 {"DURATION|none", KL_DURATION},
                 {"TIME", KL_TIME},
                 {"a|b", KL_CHOICE},
                 {"NAME", KL_TEXT},
                 {"TAG...", KL_TEXTS}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kl__option option = {"--x", cases[i].name, NULL, 0, 0, 0};
        CHECK_INT(kl__kind_of(&option), cases[i].kind);
    }
}

TEST(choices_are_numbered_from_one)
{
    kl__option option = {"--x", "continue|halt|drain", NULL, 0, 0, 0};
    int64_t value = 0;
    CHECK(kl__value_parse(&option, "--x", "halt", 0, &value));
    CHECK_INT(value, 2);
    char name[KL_CHOICE_BYTES_MAX];
    kl__choice_name("continue|halt|drain", 3, name);
    CHECK_STR(name, "drain");
    kl__choice_name("continue|halt|drain", 4, name);
    CHECK_STR(name, "");
    kl__complain_in_json(false);
    CHECK(!kl__value_parse(&option, "--x", "hal", 0, &value));
    CHECK(!kl__value_parse(&option, "--x", "", 0, &value));
}

TEST(exit_statuses_follow_the_codes)
{
    CHECK_INT(kl__exit_of(KL_OK), 0);
    CHECK_INT(kl__exit_of(KL_ENOTFOUND), 3);
    CHECK_INT(kl__exit_of(KL_ECONFLICT), 4);
    CHECK_INT(kl__exit_of(KL_EMISMATCH), 4);
    CHECK_INT(kl__exit_of(KL_EBUSY), 75);
    CHECK_INT(kl__exit_of(KL_EFULL), 75);
    CHECK_INT(kl__exit_of(KL_ETIMEDOUT), 75);
    CHECK_INT(kl__exit_of(KL_ENOMEM), 75);
    CHECK_INT(kl__exit_of(KL_EINVAL), 1);
    CHECK_INT(kl__exit_of(KL_EDAMAGED), 1);
}
