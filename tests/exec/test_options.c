/* test_options.c - settings: defaults, limits, sizes and the environment. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "exec/support.h"

static kl_exec_opts completed(kl_exec_opts opts)
{
    kl_exec_opts complete = {0};
    kl_rc rc = kl__exec_opts_complete(&opts, &complete);
    if (rc != KL_OK)
        test_fail(__FILE__, __LINE__, "options refused: %s", kl_error_text());
    return complete;
}

static void clear_environment(void)
{
    static const char *const names[] = {"SHARDS",       "THREADS",      "SHARD_CAPACITY", "SUBMIT_TIMEOUT",
                                        "ATTEMPTS_MAX", "BACKOFF_BASE", "BACKOFF_MAX",    "SHARD"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char variable[64];
        snprintf(variable, sizeof variable, "KEYLINE_EXEC_%s", names[i]);
        unsetenv(variable);
    }
}

static int64_t usable_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

TEST(the_defaults_are_those_that_are_promised)
{
    kl_exec_opts opts;
    REQUIRE(kl__exec_opts_complete(NULL, &opts) == KL_OK);
    CHECK_INT(opts.shards, 4);
    CHECK_INT(opts.threads, usable_cores());
    CHECK_INT(opts.shard_capacity, 128);
    CHECK_INT(opts.submit_timeout_ms, 100);
    CHECK_INT(opts.attempts_max, 8);
    CHECK_INT(opts.backoff_base_ms, 100);
    CHECK_INT(opts.backoff_max_ms, 20000);
    CHECK(!opts.retry && !opts.on_failure && !opts.log);
}

TEST(zero_means_the_default_and_anything_else_is_kept)
{
    kl_exec_opts opts = completed(OPTS(.shards = 7, .submit_timeout_ms = KL_NO_WAIT));
    CHECK_INT(opts.shards, 7);
    CHECK_INT(opts.shard_capacity, 128);
    CHECK_INT(opts.submit_timeout_ms, KL_NO_WAIT);
    CHECK_INT(completed(OPTS(.submit_timeout_ms = KL_FOREVER)).submit_timeout_ms, KL_FOREVER);
}

TEST(a_backoff_of_which_one_bound_is_given_beyond_the_other_has_that_as_both)
{
    CHECK_INT(completed(OPTS(.backoff_base_ms = 30000)).backoff_max_ms, 30000);
    CHECK_INT(completed(OPTS(.backoff_base_ms = 20000)).backoff_max_ms, 20000);
    CHECK_INT(completed(OPTS(.backoff_base_ms = 30000, .backoff_max_ms = 40000)).backoff_max_ms, 40000);
    CHECK_INT(completed(OPTS(.backoff_max_ms = 50)).backoff_base_ms, 50);
}

TEST(an_executor_opens_with_all_defaults_and_runs_a_task)
{
    kl_exec *exec = NULL;
    struct tally ran = TALLY;
    CHECK_INT(kl_exec_open(NULL, NULL), KL_EINVAL);
    REQUIRE(kl_exec_open(NULL, &exec) == KL_OK);
    submit(exec, "customer-7", add_one, &ran, NULL);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_INT(tally_read(&ran), 1);
    kl_exec_close(exec);
    kl_exec_close(NULL);
}

TEST(a_setting_out_of_range_is_refused_by_name)
{
    static const struct {
        kl_exec_opts opts;
        const char *name;
    } wrong[] = {
        {{.shards = -1}, "shards is -1"},
        {{.shards = KL_EXEC_SHARDS_MAX + 1}, "shards is 257"},
        {{.threads = -5}, "threads is -5"},
        {{.threads = KL_EXEC_THREADS_MAX + 1}, "threads is 1025"},
        {{.shard_capacity = -1}, "shard_capacity"},
        {{.shard_capacity = KL_EXEC_SHARD_CAPACITY_MAX + 1}, "shard_capacity"},
        {{.submit_timeout_ms = -2}, "submit_timeout_ms is -2"},
        {{.submit_timeout_ms = KL_EXEC_WAIT_MS_MAX + 1}, "submit_timeout_ms"},
        {{.attempts_max = -1}, "attempts_max"},
        {{.attempts_max = KL_EXEC_ATTEMPTS_MAX + 1}, "attempts_max"},
        {{.backoff_base_ms = -1}, "backoff_base_ms"},
        {{.backoff_max_ms = KL_EXEC_WAIT_MS_MAX + 1}, "backoff_max_ms"},
        {{.backoff_base_ms = 300, .backoff_max_ms = 200},
         "backoff_base_ms (300, KEYLINE_EXEC_BACKOFF_BASE) is above backoff_max_ms (200, "},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        kl_exec *exec = NULL;
        kl_exec_opts opts = wrong[i].opts;
        opts.size = sizeof opts;
        CHECK_INT(kl_exec_open(&opts, &exec), KL_EINVAL);
        CHECK_CONTAINS(kl_error_text(), wrong[i].name);
        CHECK(exec == NULL);
    }
}

TEST(the_limits_themselves_are_allowed)
{
    completed(OPTS(.shards = KL_EXEC_SHARDS_MAX, .threads = KL_EXEC_THREADS_MAX,
                   .shard_capacity = KL_EXEC_PLACES_MAX / KL_EXEC_SHARDS_MAX, .attempts_max = KL_EXEC_ATTEMPTS_MAX,
                   .submit_timeout_ms = KL_EXEC_WAIT_MS_MAX, .backoff_base_ms = KL_EXEC_WAIT_MS_MAX,
                   .backoff_max_ms = KL_EXEC_WAIT_MS_MAX));
    completed(OPTS(.shards = 1, .threads = 1, .shard_capacity = 1, .attempts_max = 1, .submit_timeout_ms = 1,
                   .backoff_base_ms = 1, .backoff_max_ms = 1));
    completed(OPTS(.shards = 4, .shard_capacity = KL_EXEC_SHARD_CAPACITY_MAX));
}

TEST(more_places_than_a_machine_may_have_are_refused_by_both_names)
{
    kl_exec *exec = NULL;
    kl_exec_opts opts = OPTS(.shards = KL_EXEC_SHARDS_MAX, .shard_capacity = KL_EXEC_SHARD_CAPACITY_MAX);
    CHECK_INT(kl_exec_open(&opts, &exec), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "shards (256, KEYLINE_EXEC_SHARDS) times shard_capacity (16777216, ");
    CHECK(exec == NULL);
}

TEST(null_is_refused_by_name_wherever_it_is_not_allowed)
{
    kl_exec_task task = {.key = kl_str("k"), .fn = nothing};
    kl_exec_status status;
    kl_key_info info;
    size_t length;
    CHECK_INT(kl_exec_open(NULL, NULL), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "ret_exec is NULL");
    CHECK_INT(kl_exec_opts_from_env(NULL), KL_EINVAL);
    CHECK_INT(kl_exec_submit(NULL, task.key, nothing, NULL, NULL, NULL), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "kl_exec_submit: exec is NULL");
    CHECK_INT(kl_exec_submit_batch(NULL, &task, 1, NULL, NULL), KL_EINVAL);
    CHECK_INT(kl_exec_barrier(NULL, task.key, 0), KL_EINVAL);
    CHECK_INT(kl_exec_cancel(NULL, 1), KL_EINVAL);
    CHECK_INT(kl_exec_status_of(NULL, 1, &status), KL_EINVAL);
    CHECK_INT(kl_exec_key_show(NULL, task.key, &info), KL_EINVAL);
    CHECK_INT(kl_exec_key_pause(NULL, task.key), KL_EINVAL);
    CHECK_INT(kl_exec_key_resume(NULL, task.key), KL_EINVAL);
    CHECK_INT(kl_exec_key_skip(NULL, task.key), KL_EINVAL);
    CHECK_INT(kl_exec_key_drain(NULL, task.key, NULL), KL_EINVAL);
    CHECK_INT(kl_exec_drain(NULL, 0), KL_EINVAL);
    CHECK_INT(kl_exec_abort(NULL), KL_EINVAL);
    CHECK_INT(kl_exec_metrics(NULL, NULL, 0, &length), KL_EINVAL);
    kl_exec_close(NULL);
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_submit_batch(exec, NULL, 1, NULL, NULL), KL_EINVAL);
    CHECK_INT(kl_exec_submit_batch(exec, NULL, 0, NULL, NULL), KL_OK);
    CHECK_INT(kl_exec_status_of(exec, 1, NULL), KL_EINVAL);
    CHECK_INT(kl_exec_key_show(exec, task.key, NULL), KL_EINVAL);
    CHECK_INT(kl_exec_metrics(exec, NULL, 0, NULL), KL_EINVAL);
    CHECK_INT(kl_exec_metrics(exec, NULL, 5, &length), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "buffer is NULL");
    kl_exec_close(exec);
}

TEST(a_struct_without_its_size_or_from_a_newer_header_is_refused)
{
    kl_exec *exec = NULL;
    kl_exec_opts opts = {.shards = 1};
    CHECK_INT(kl_exec_open(&opts, &exec), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "kl_exec_opts.size");
    opts.size = sizeof opts + 8;
    CHECK_INT(kl_exec_open(&opts, &exec), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "kl_exec_opts.size");
    CHECK_INT(kl_exec_opts_from_env(&opts), KL_EINVAL);

    exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    kl_exec_task_opts task = {.priority = 1};
    CHECK_INT(kl_exec_submit(exec, kl_str("k"), nothing, NULL, &task, NULL), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "kl_exec_task_opts.size");
    task.size = sizeof task + 8;
    CHECK_INT(kl_exec_submit(exec, kl_str("k"), nothing, NULL, &task, NULL), KL_EINVAL);
    kl_exec_close(exec);
}

TEST(fields_that_an_older_caller_does_not_know_count_as_zero)
{
    kl_exec_opts opts = {.size = offsetof(kl_exec_opts, threads), .shards = 2, .threads = -77, .shard_capacity = -77};
    kl_exec_opts complete;
    CHECK_INT(kl__exec_opts_complete(&opts, &complete), KL_OK);
    CHECK_INT(complete.shards, 2);
    CHECK_INT(complete.shard_capacity, 128);

    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    kl_exec_task_opts task = {
        .size = offsetof(kl_exec_task_opts, attempts_max), .priority = 3, .attempts_max = -1, .deadline_ms = -1};
    CHECK_INT(kl_exec_submit(exec, kl_str("k"), nothing, NULL, &task, NULL), KL_OK);
    kl_exec_close(exec);
}

TEST(a_tasks_option_out_of_range_is_refused_by_name_and_nothing_is_taken)
{
    static const struct {
        kl_exec_task_opts opts;
        const char *name;
    } wrong[] = {
        {{.priority = KL_PRIORITY_MIN - 1}, "priority is -17"},
        {{.priority = KL_PRIORITY_MAX + 1}, "priority is 16"},
        {{.attempts_max = -1}, "attempts_max"},
        {{.attempts_max = KL_EXEC_ATTEMPTS_MAX + 1}, "attempts_max"},
        {{.delay_ms = -1}, "delay_ms"},
        {{.delay_ms = KL_EXEC_WAIT_MS_MAX + 1}, "delay_ms"},
        {{.deadline_ms = -1}, "deadline_ms"},
        {{.deadline_ms = KL_EXEC_WAIT_MS_MAX + 1}, "deadline_ms"},
        {{.submit_timeout_ms = -2},
         "submit_timeout_ms is -2; it must be from 0 to 3153600000000, KL_NO_WAIT or KL_FOREVER"},
        {{.submit_timeout_ms = KL_EXEC_WAIT_MS_MAX + 1}, "submit_timeout_ms"},
    };
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    for (size_t i = 0; i < COUNT(wrong); i++) {
        kl_exec_task_opts opts = wrong[i].opts;
        kl_exec_id id = 99, ids[2] = {99, 99};
        size_t taken = 99;
        opts.size = sizeof opts;
        CHECK_INT(kl_exec_submit(exec, kl_str("k"), nothing, NULL, &opts, &id), KL_EINVAL);
        CHECK_CONTAINS(kl_error_text(), wrong[i].name);
        CHECK_INT(id, 99);
        kl_exec_task batch[] = {{kl_str("k"), nothing, NULL, NULL}, {kl_str("k"), nothing, NULL, &opts}};
        CHECK_INT(kl_exec_submit_batch(exec, batch, 2, ids, &taken), KL_EINVAL);
        CHECK_CONTAINS(kl_error_text(), "task 2 of 2: ");
        CHECK_CONTAINS(kl_error_text(), wrong[i].name);
        CHECK_INT(taken, 0);
        CHECK(ids[0] == 0 && ids[1] == 0);
    }
    CHECK_INT(info_of(exec, "k").tasks, 0);
    kl_exec_close(exec);
}

TEST(a_task_may_use_the_limits_of_its_options)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "k", nothing, NULL, TASK(.priority = KL_PRIORITY_MIN, .attempts_max = KL_EXEC_ATTEMPTS_MAX));
    submit(exec, "k", nothing, NULL, TASK(.priority = KL_PRIORITY_MAX, .submit_timeout_ms = KL_FOREVER));
    submit(exec, "k", nothing, NULL, TASK(.deadline_ms = KL_EXEC_WAIT_MS_MAX, .submit_timeout_ms = KL_NO_WAIT));
    CHECK_INT(kl_exec_barrier(exec, kl_str("k"), KL_FOREVER), KL_OK);
    kl_exec_id late = submit(exec, "k", nothing, NULL, TASK(.delay_ms = KL_EXEC_WAIT_MS_MAX));
    CHECK_INT(status_of(exec, late).state, KL_EXEC_DELAYED);
    kl_exec_close(exec);
}

TEST(the_environment_fills_what_is_set_and_leaves_the_rest)
{
    kl_exec_opts opts = OPTS(.shards = 3, .attempts_max = 5, .backoff_max_ms = 77);
    clear_environment();
    CHECK_INT(kl_exec_opts_from_env(&opts), KL_OK);
    CHECK(opts.shards == 3 && opts.threads == 0 && opts.attempts_max == 5);
    setenv("KEYLINE_EXEC_SHARDS", "16", 1);
    setenv("KEYLINE_EXEC_THREADS", "2", 1);
    setenv("KEYLINE_EXEC_SHARD_CAPACITY", "1000", 1);
    setenv("KEYLINE_EXEC_SUBMIT_TIMEOUT", "5s", 1);
    setenv("KEYLINE_EXEC_ATTEMPTS_MAX", "10000", 1);
    setenv("KEYLINE_EXEC_BACKOFF_BASE", "250ms", 1);
    CHECK_INT(kl_exec_opts_from_env(&opts), KL_OK);
    CHECK_INT(opts.shards, 16);
    CHECK_INT(opts.threads, 2);
    CHECK_INT(opts.shard_capacity, 1000);
    CHECK_INT(opts.submit_timeout_ms, 5000);
    CHECK_INT(opts.attempts_max, 10000);
    CHECK_INT(opts.backoff_base_ms, 250);
    CHECK_INT(opts.backoff_max_ms, 77);
    clear_environment();
}

TEST(durations_take_units_and_the_submit_timeout_also_none_and_forever)
{
    static const struct {
        const char *text;
        int64_t ms;
    } right[] = {{"1", 1},
                 {"250ms", 250},
                 {"5s", 5000},
                 {"2m", 120000},
                 {"1h", 3600000},
                 {"876000h", INT64_C(876000) * 3600000},
                 {"none", KL_NO_WAIT},
                 {"forever", KL_FOREVER}};
    clear_environment();
    for (size_t i = 0; i < COUNT(right); i++) {
        kl_exec_opts opts = OPTS(.shards = 1);
        setenv("KEYLINE_EXEC_SUBMIT_TIMEOUT", right[i].text, 1);
        CHECK_INT(kl_exec_opts_from_env(&opts), KL_OK);
        CHECK_INT(opts.submit_timeout_ms, right[i].ms);
    }
    clear_environment();
}

TEST(a_bad_value_in_the_environment_is_refused_by_name_and_nothing_is_filled_in)
{
    static const struct {
        const char *variable, *text;
    } wrong[] = {
        {"SHARDS", ""},
        {"SHARDS", "four"},
        {"SHARDS", "4x"},
        {"SHARDS", " 4"},
        {"SHARDS", "4 "},
        {"SHARDS", "-4"},
        {"SHARDS", "+4"},
        {"SHARDS", "0"},
        {"SHARDS", "257"},
        {"SHARDS", "4ms"},
        {"SHARDS", "0x4"},
        {"SHARDS", "99999999999999999999"},
        {"THREADS", "0"},
        {"THREADS", "1025"},
        {"THREADS", "2.5"},
        {"SHARD_CAPACITY", "0"},
        {"SHARD_CAPACITY", "1k"},
        {"ATTEMPTS_MAX", "0"},
        {"ATTEMPTS_MAX", "none"},
        {"SUBMIT_TIMEOUT", "0"},
        {"SUBMIT_TIMEOUT", "-1"},
        {"SUBMIT_TIMEOUT", "s"},
        {"SUBMIT_TIMEOUT", "9223372036854775807"},
        {"SUBMIT_TIMEOUT", "5 s"},
        {"SUBMIT_TIMEOUT", "1.5s"},
        {"BACKOFF_BASE", "none"},
        {"BACKOFF_BASE", "5w"},
        {"BACKOFF_BASE", "forever"},
        {"BACKOFF_MAX", "0ms"},
        {"BACKOFF_MAX", "999999999999h"},
    };
    clear_environment();
    setenv("KEYLINE_EXEC_ATTEMPTS_MAX", "3", 1); /* right, but it must not be filled in either */
    for (size_t i = 0; i < COUNT(wrong); i++) {
        char name[64];
        kl_exec_opts opts = OPTS(.shards = 2);
        snprintf(name, sizeof name, "KEYLINE_EXEC_%s", wrong[i].variable);
        setenv(name, wrong[i].text, 1);
        CHECK_INT(kl_exec_opts_from_env(&opts), KL_EINVAL);
        CHECK_CONTAINS(kl_error_text(), name);
        CHECK_CONTAINS(kl_error_text(), wrong[i].text);
        CHECK_CONTAINS(kl_error_text(), ", from 1 to ");
        CHECK(opts.shards == 2 && opts.threads == 0 && opts.attempts_max == 0);
        unsetenv(name);
        setenv("KEYLINE_EXEC_ATTEMPTS_MAX", "3", 1);
    }
    clear_environment();
}

TEST(an_unknown_variable_of_the_executor_is_refused_by_name)
{
    kl_exec_opts opts = OPTS(.shards = 2);
    clear_environment();
    setenv("KEYLINE_EXEC_SHARD", "4", 1);
    CHECK_INT(kl_exec_opts_from_env(&opts), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "KEYLINE_EXEC_SHARD ");
    CHECK_INT(opts.shards, 2);
    unsetenv("KEYLINE_EXEC_SHARD");
    setenv("KEYLINE_EXEC_SHARDS", "4\033[2J\n", 1); /* what is no text does not reach the terminal */
    CHECK_INT(kl_exec_opts_from_env(&opts), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "KEYLINE_EXEC_SHARDS is '4\\x1b[2J\\x0a'; it must be");
    unsetenv("KEYLINE_EXEC_SHARDS");
    setenv("KEYLINE_OTHER", "4", 1); /* not ours */
    CHECK_INT(kl_exec_opts_from_env(&opts), KL_OK);
    unsetenv("KEYLINE_OTHER");
}

TEST(opening_does_not_read_the_environment)
{
    kl_exec *exec = NULL;
    clear_environment();
    setenv("KEYLINE_EXEC_SHARDS", "nonsense", 1);
    CHECK_INT(kl_exec_open(NULL, &exec), KL_OK);
    kl_exec_close(exec);
    clear_environment();
}

TEST(a_thread_that_cannot_be_started_makes_open_fail_and_leaves_nothing_behind)
{
    int64_t before = live_pieces();
    for (int spared = 0; spared < 4; spared++) {
        kl_exec *exec = NULL;
        kl_exec_opts opts = OPTS(.threads = 4);
        fail_threads(spared, 1, EAGAIN);
        CHECK_INT(kl_exec_open(&opts, &exec), KL_ESYSTEM);
        CHECK_CONTAINS(kl_error_text(), "thread");
        CHECK(exec == NULL);
        CHECK_INT(live_pieces(), before);
    }
    fail_threads(0, 0, 0);
}

static kl_outcome close_inside(kl_run *run, void *ctx)
{
    (void)run;
    kl_exec_close(ctx);
    return KL_DONE;
}

/* In a child, because the program ends. */
TEST(closing_inside_a_task_is_a_broken_promise_and_ends_the_program_also_in_release)
{
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        kl_exec *exec = NULL;
        kl_exec_opts opts = OPTS(.threads = 1);
        if (!freopen("/dev/null", "w", stderr) || kl_exec_open(&opts, &exec) != KL_OK)
            _exit(1);
        signal(SIGABRT, SIG_DFL);
        if (kl_exec_submit(exec, kl_str("k"), close_inside, exec, NULL, NULL) != KL_OK)
            _exit(1);
        _exit(kl_exec_drain(exec, PATIENCE_MS) == KL_OK ? 0 : 2);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

TEST(the_cores_of_a_machine_with_thousands_of_them_are_counted)
{
    kl_exec_opts few, many;
    REQUIRE(kl__exec_opts_complete(NULL, &few) == KL_OK);
    affinity_bytes = 4096;
    REQUIRE(kl__exec_opts_complete(NULL, &many) == KL_OK);
    affinity_bytes = 0;
    CHECK_INT(many.threads, few.threads);
    CHECK(few.threads > 1); /* else this test proves nothing */
}
