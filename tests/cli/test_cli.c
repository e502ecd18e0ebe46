/* test_cli.c - the demo's watch notices what it is there to notice; options and suggestions. */
#include "cli/cli.h"
#include "cli/demo.h"
#include "harness.h"

TEST(tasks_that_run_one_by_one_and_in_order_are_no_violation)
{
    kl__demo_watch watch = {0};
    for (uint32_t number = 0; number < 3; number++) {
        for (int attempt = 0; attempt < 2; attempt++) {
            kl__demo_watch_enter(&watch, number);
            kl__demo_watch_leave(&watch);
        }
        kl__demo_watch_end(&watch);
    }
    CHECK_INT(watch.order_violations, 0);
    CHECK_INT(watch.overlaps, 0);
}

TEST(a_task_that_overtakes_is_an_order_violation)
{
    kl__demo_watch watch = {0};
    kl__demo_watch_enter(&watch, 1);
    kl__demo_watch_leave(&watch);
    CHECK_INT(watch.order_violations, 1);
    CHECK_INT(watch.overlaps, 0);
}

TEST(a_task_that_runs_again_after_its_end_is_an_order_violation)
{
    kl__demo_watch watch = {0};
    kl__demo_watch_enter(&watch, 0);
    kl__demo_watch_leave(&watch);
    kl__demo_watch_end(&watch);
    kl__demo_watch_enter(&watch, 0);
    CHECK_INT(watch.order_violations, 1);
}

TEST(two_tasks_of_a_key_at_once_are_an_overlap)
{
    kl__demo_watch watch = {0};
    kl__demo_watch_enter(&watch, 0);
    kl__demo_watch_enter(&watch, 0);
    CHECK_INT(watch.overlaps, 1);
    kl__demo_watch_leave(&watch);
    kl__demo_watch_leave(&watch);
    kl__demo_watch_enter(&watch, 0);
    CHECK_INT(watch.overlaps, 1);
}

static const char *closest(const char *word)
{
    const char *best = kl__closer(word, kl__closer(word, NULL, "demo"), "version");
    best = kl__closer(word, best, "help");
    return best ? best : "nothing";
}

TEST(a_slip_is_answered_with_the_closest_name)
{
    CHECK_STR(closest("dmeo"), "demo");
    CHECK_STR(closest("dem"), "demo");
    CHECK_STR(closest("verison"), "version");
    CHECK_STR(closest("hepl"), "help");
}

TEST(a_word_unlike_all_names_gets_no_suggestion)
{
    CHECK_STR(closest(""), "nothing");
    CHECK_STR(closest("frobnicate"), "nothing");
    CHECK_STR(closest("here"), "nothing");
    CHECK_STR(closest("a-word-so-long-that-it-is-no-slip-of-any-name-there-is"), "nothing");
}

/* Parses up to three words after the command's name. */
static bool parse(char *first, char *second, char *third, kl__demo_opts *ret_opts)
{
    char *words[] = {"demo", first, second, third};
    int count = 1;
    while (count < 4 && words[count])
        count++;
    *ret_opts = (kl__demo_opts){.seconds = 10};
    return kl__options_parse(kl__demo_options, count, words, ret_opts);
}

TEST(options_are_taken_in_both_forms)
{
    kl__demo_opts opts;
    CHECK(parse(NULL, NULL, NULL, &opts));
    CHECK_INT(opts.seconds, 10);
    CHECK(parse("--seconds", "3", "--plain", &opts));
    CHECK_INT(opts.seconds, 3);
    CHECK_INT(opts.plain, 1);
    CHECK(parse("--plain", "--seed=7", NULL, &opts));
    CHECK_INT(opts.seed, 7);
}

TEST(wrong_options_are_refused)
{
    kl__demo_opts opts;
    CHECK(!parse("--seconds", NULL, NULL, &opts));
    CHECK(!parse("--seconds", "", NULL, &opts));
    CHECK(!parse("--seconds=", NULL, NULL, &opts));
    CHECK(!parse("--seconds", "0", NULL, &opts));
    CHECK(!parse("--seconds", "61", NULL, &opts));
    CHECK(!parse("--seconds", "3s", NULL, &opts));
    CHECK(!parse("--seconds", "99999999999999999999", NULL, &opts));
    CHECK(!parse("--plain=1", NULL, NULL, &opts));
    CHECK(!parse("--second", "3", NULL, &opts));
    CHECK(!parse("3", NULL, NULL, &opts));
}
