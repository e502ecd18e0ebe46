/* test_metrics.c - metrics in Prometheus text, and the log. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

#include "exec/support.h"

enum { TEXT_BYTES = 1 << 16, FAMILIES_MAX = 32 };

static const char *metrics_of(kl_exec *exec)
{
    static char text[TEXT_BYTES];
    size_t length = 0;
    CHECK_INT(kl_exec_metrics(exec, text, sizeof text, &length), KL_OK);
    CHECK_INT(strlen(text), length);
    return text;
}

/* The value of one series, such as `name{shard="0"}`; -1: there is none. */
static double value_of(const char *text, const char *series)
{
    size_t length = strlen(series);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, series, length) == 0 && line[length] == ' ')
            return strtod(line + length + 1, NULL);
        if (!*line)
            break;
    }
    return -1;
}

static int64_t count_of(kl_exec *exec, const char *name, int shard)
{
    char series[128];
    snprintf(series, sizeof series, "keyline_exec_%s{shard=\"%d\"}", name, shard);
    return (int64_t)value_of(metrics_of(exec), series);
}

/* --- Form --- */

static const char *skip_name(const char *at)
{
    if (!isalpha((unsigned char)*at) && *at != '_' && *at != ':')
        return NULL;
    while (isalnum((unsigned char)*at) || *at == '_' || *at == ':')
        at++;
    return at;
}

static const char *skip_labels(const char *at)
{
    if (*at++ != '{')
        return NULL;
    for (;;) {
        if (!(at = skip_name(at)) || *at++ != '=' || *at++ != '"')
            return NULL;
        while (*at && *at != '"' && *at != '\n' && *at != '\\')
            at++;
        if (*at++ != '"')
            return NULL;
        if (*at == '}')
            return at + 1;
        if (*at++ != ',')
            return NULL;
    }
}

struct family {
    char name[64];
    bool histogram;
};

/* Checks one line of exposition text: a HELP, then a TYPE, then the samples of that family, all together. */
static void check_line(const char *line, size_t length, struct family *families, int *count, bool *helped)
{
    char word[64] = "", type[32] = "";
    if (sscanf(line, "# HELP %63s %31s", word, type) == 2) {
        for (int i = 0; i < *count; i++)
            CHECK(strcmp(families[i].name, word) != 0); /* a family comes once */
        REQUIRE(*count < FAMILIES_MAX);
        snprintf(families[(*count)++].name, sizeof families[0].name, "%s", word);
        *helped = true;
        return;
    }
    REQUIRE(*count > 0);
    struct family *family = &families[*count - 1];
    if (sscanf(line, "# TYPE %63s %31s", word, type) == 2) {
        CHECK(*helped && strcmp(word, family->name) == 0);
        CHECK(strcmp(type, "counter") == 0 || strcmp(type, "gauge") == 0 || strcmp(type, "histogram") == 0);
        family->histogram = strcmp(type, "histogram") == 0;
        size_t end = strlen(word);
        CHECK((strcmp(type, "counter") == 0) == (end > 6 && strcmp(word + end - 6, "_total") == 0));
        *helped = false;
        return;
    }
    const char *at = skip_name(line);
    REQUIRE(at && strncmp(line, family->name, strlen(family->name)) == 0);
    CHECK(family->histogram || (size_t)(at - line) == strlen(family->name));
    REQUIRE((at = skip_labels(at)) != NULL);
    CHECK(*at == ' ');
    char *end;
    CHECK(strtod(at + 1, &end) >= 0);
    CHECK(end == line + length);
}

static void check_form(const char *text)
{
    struct family families[FAMILIES_MAX] = {{{0}, false}};
    int count = 0;
    bool helped = false;
    CHECK(text[0] && text[strlen(text) - 1] == '\n');
    for (const char *line = text, *end; (end = strchr(line, '\n')) && !test_failed(); line = end + 1)
        check_line(line, (size_t)(end - line), families, &count, &helped);
    CHECK(count >= 7);
}

static void check_histogram(const char *text, int shard)
{
    char prefix[128];
    double last_bound = -1, last_count = 0, inf = -1;
    int buckets = 0;
    snprintf(prefix, sizeof prefix, "keyline_exec_run_duration_seconds_bucket{shard=\"%d\",le=\"", shard);
    for (const char *at = text; (at = strstr(at, prefix)); buckets++) {
        at += strlen(prefix);
        char *end;
        double bound = strtod(at, &end); /* reads +Inf, too */
        double count = strtod(end + 3, NULL);
        CHECK(bound > last_bound && count >= last_count);
        last_bound = bound;
        last_count = inf = count;
    }
    CHECK(buckets >= 5 && last_bound > 1e300);
    snprintf(prefix, sizeof prefix, "keyline_exec_run_duration_seconds_count{shard=\"%d\"}", shard);
    CHECK(value_of(text, prefix) == inf);
    snprintf(prefix, sizeof prefix, "keyline_exec_run_duration_seconds_sum{shard=\"%d\"}", shard);
    CHECK(value_of(text, prefix) >= 0);
}

TEST(metrics_are_well_formed_with_labels_per_shard)
{
    struct script scripts[] = {{.name = "d", .plan = "d"}, {.name = "r", .plan = "rd"}, {.name = "x", .plan = "x"}};
    kl_exec *exec = open_exec(OPTS(.shards = 3, .backoff_base_ms = 1, .backoff_max_ms = 1));
    REQUIRE(exec != NULL);
    check_form(metrics_of(exec));
    for (int i = 0; i < 300; i++) {
        char key[8];
        snprintf(key, sizeof key, "%d", i);
        submit_script(exec, key, &scripts[i % 3], NULL);
    }
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    const char *text = metrics_of(exec);
    check_form(text);
    for (int shard = 0; shard < 3; shard++)
        check_histogram(text, shard);
    CHECK(value_of(text, "keyline_exec_depth{shard=\"2\"}") == 0);
    CHECK(value_of(text, "keyline_exec_depth{shard=\"3\"}") == -1);
    kl_exec_close(exec);
}

/* --- Numbers --- */

TEST(metrics_count_what_happened_in_each_shard)
{
    enum { KEYS = 60, SHARDS = 3 };
    struct script scripts[] = {{.name = "d", .plan = "d"}, {.name = "r", .plan = "rrd"}, {.name = "x", .plan = "rx"}};
    int64_t submitted[SHARDS] = {0}, retries[SHARDS] = {0}, dead[SHARDS] = {0}, runs[SHARDS] = {0};
    kl_exec *exec = open_exec(OPTS(.shards = SHARDS, .backoff_base_ms = 1, .backoff_max_ms = 1));
    REQUIRE(exec != NULL);
    for (int i = 0; i < KEYS; i++) {
        char key[8];
        uint64_t hash;
        snprintf(key, sizeof key, "%d", i);
        submit_script(exec, key, &scripts[i % 3], NULL);
        uint32_t shard = kl__exec_shard_of(exec, kl_str(key), &hash)->index;
        submitted[shard]++;
        retries[shard] += i % 3 == 1 ? 2 : i % 3 == 2 ? 1 : 0;
        dead[shard] += i % 3 == 2;
        runs[shard] += i % 3 == 1 ? 3 : i % 3 == 2 ? 2 : 1;
    }
    AWAIT(tasks_live(exec) == 0 && atomic_load(&exec->idle_count) == exec->thread_count); /* all is counted by then */
    for (int s = 0; s < SHARDS; s++) {
        CHECK_INT(count_of(exec, "submitted_total", s), submitted[s]);
        CHECK_INT(count_of(exec, "retries_total", s), retries[s]);
        CHECK_INT(count_of(exec, "dead_total", s), dead[s]);
        CHECK_INT(count_of(exec, "done_total", s), submitted[s] - dead[s]);
        CHECK_INT(count_of(exec, "cancelled_total", s), 0);
        CHECK_INT(count_of(exec, "full_total", s), 0);
        CHECK_INT(count_of(exec, "depth", s), 0);
        CHECK_INT(count_of(exec, "run_duration_seconds_count", s), runs[s]);
    }
    kl_exec_close(exec);
}

TEST(metrics_show_depth_full_and_cancelled)
{
    struct gate gate = GATE;
    kl_exec *exec = open_frozen(OPTS(.threads = 2, .shard_capacity = 4, .submit_timeout_ms = KL_NO_WAIT));
    REQUIRE(exec != NULL);
    submit(exec, "k", hold, &gate, NULL);
    gate_await(&gate, 1);
    kl_exec_id id = submit_note(exec, "k", "1");
    submit(exec, "k", nothing, NULL, TASK(.deadline_ms = 10));
    submit_note(exec, "k", "3");
    for (int i = 0; i < 3; i++)
        CHECK_INT(kl_exec_submit(exec, kl_str("k"), nothing, NULL, NULL, NULL), KL_EFULL);
    CHECK_INT(count_of(exec, "depth", 0), 4);
    CHECK_INT(count_of(exec, "full_total", 0), 3);
    CHECK_INT(count_of(exec, "submitted_total", 0), 4);
    CHECK_INT(kl_exec_cancel(exec, id), KL_OK);
    CHECK_INT(count_of(exec, "cancelled_total", 0), 1);
    CHECK_INT(count_of(exec, "depth", 0), 3);
    pass_ms(exec, 10);
    AWAIT(count_of(exec, "dead_total", 0) == 1); /* timed out */
    CHECK_INT(count_of(exec, "depth", 0), 2);
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_INT(count_of(exec, "depth", 0), 0);
    kl_exec_close(exec);
}

static int64_t keys_in(kl_exec *exec, const char *state)
{
    char series[128];
    snprintf(series, sizeof series, "keyline_exec_keys{shard=\"0\",state=\"%s\"}", state);
    return (int64_t)value_of(metrics_of(exec), series);
}

TEST(metrics_count_keys_by_what_they_are_doing)
{
    struct gate gate = GATE;
    struct script again = {.name = "again", .plan = "rd", .after_ms = 100};
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit_script(exec, "retrying", &again, NULL);
    await_key(exec, "retrying", KL_KEY_RETRYING);
    submit(exec, "running", hold, &gate, NULL);
    gate_await(&gate, 1);
    submit_note(exec, "ready 1", "1");
    submit_note(exec, "ready 2", "2");
    submit(exec, "delayed", nothing, NULL, TASK(.delay_ms = 100));
    CHECK_INT(keys_in(exec, "ready"), 2);
    REQUIRE(kl_exec_key_pause(exec, kl_str("paused")) == KL_OK);
    CHECK_INT(keys_in(exec, "retrying"), 1);
    CHECK_INT(keys_in(exec, "running"), 1);
    CHECK_INT(keys_in(exec, "ready"), 2);
    CHECK_INT(keys_in(exec, "delayed"), 1);
    CHECK_INT(keys_in(exec, "paused"), 1);
    CHECK_INT(keys_in(exec, "halted"), 0);
    gate_open(&gate);
    kl_exec_close(exec);
}

TEST(a_barrier_is_not_counted_as_a_task)
{
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "k", hold, &gate, NULL);
    gate_await(&gate, 1);
    CHECK_INT(kl_exec_barrier(exec, kl_str("k"), 0), KL_ETIMEDOUT);
    CHECK_INT(count_of(exec, "submitted_total", 0), 1); /* a counter must not go up and down again */
    gate_open(&gate);
    CHECK_INT(kl_exec_barrier(exec, kl_str("k"), KL_FOREVER), KL_OK);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_INT(count_of(exec, "submitted_total", 0), 1);
    CHECK_INT(count_of(exec, "cancelled_total", 0), 0);
    kl_exec_close(exec);
}

TEST(barriers_are_not_in_the_histogram_of_runs)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    for (int i = 0; i < 5; i++) {
        submit(exec, "k", nothing, NULL, NULL);
        CHECK_INT(kl_exec_barrier(exec, kl_str("k"), KL_FOREVER), KL_OK);
    }
    AWAIT(atomic_load(&exec->idle_count) == 1); /* a run is counted after its end, and before its thread sleeps */
    CHECK_INT(count_of(exec, "run_duration_seconds_count", 0), 5);
    kl_exec_close(exec);
}

static kl_outcome take_4_ms(kl_run *run, void *ctx)
{
    (void)run;
    pass_ms(ctx, 4);
    return KL_DONE;
}

static kl_outcome fail_in_4_ms(kl_run *run, void *exec)
{
    (void)take_4_ms(run, exec);
    return KL_DEAD;
}

static void take_300_ms(void *ctx, const kl_exec_end *end)
{
    (void)end;
    pass_ms(ctx, 300);
}

static int64_t runs_within(kl_exec *exec, const char *seconds)
{
    char series[128];
    snprintf(series, sizeof series, "keyline_exec_run_duration_seconds_bucket{shard=\"0\",le=\"%s\"}", seconds);
    return (int64_t)value_of(metrics_of(exec), series);
}

TEST(the_histogram_has_how_long_a_task_ran_and_not_its_report)
{
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    for (int i = 0; i < 4; i++)
        submit(exec, "k", i < 3 ? take_4_ms : fail_in_4_ms, exec, TASK(.end = take_300_ms, .end_ctx = exec));
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_INT(runs_within(exec, "0.001"), 0);
    CHECK_INT(runs_within(exec, "0.005"), 4);
    CHECK(value_of(metrics_of(exec), "keyline_exec_run_duration_seconds_sum{shard=\"0\"}") == 0.016);
    kl_exec_close(exec);
}

TEST(the_histogram_leaves_out_what_the_report_of_a_deadline_takes)
{
    struct gate gate = GATE;
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "held", hold, &gate, NULL);
    gate_await(&gate, 1);
    submit(exec, "late", nothing, NULL, TASK(.deadline_ms = 10, .end = take_300_ms, .end_ctx = exec));
    submit(exec, "next", nothing, NULL, NULL);
    pass_ms(exec, 10);
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_INT(count_of(exec, "run_duration_seconds_count", 0), 2);
    CHECK(value_of(metrics_of(exec), "keyline_exec_run_duration_seconds_sum{shard=\"0\"}") == 0.01); /* that held */
    kl_exec_close(exec);
}

TEST(an_attempt_that_ends_its_thread_is_in_the_histogram_of_runs)
{
    struct script ends = {.name = "t", .plan = "ed", .after_ms = 1};
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit_script(exec, "k", &ends, NULL);
    journal_await(2);
    AWAIT(tasks_live(exec) == 0 && atomic_load(&exec->idle_count) == 1);
    CHECK_INT(count_of(exec, "retries_total", 0), 1);
    CHECK_INT(count_of(exec, "run_duration_seconds_count", 0), 2);
    kl_exec_close(exec);
}

TEST(metrics_say_how_much_room_they_need)
{
    size_t whole = 0, length = 0;
    char *text = malloc(TEXT_BYTES);
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shards = 2));
    REQUIRE(exec && text);
    CHECK_INT(kl_exec_metrics(exec, NULL, 0, &whole), KL_OK);
    CHECK(whole > 1000 && whole < TEXT_BYTES);
    for (size_t size = 1; size <= whole; size += size < 300 || size > whole - 300 ? 1 : 97) {
        memset(text, '#', TEXT_BYTES);
        CHECK_INT(kl_exec_metrics(exec, text, size, &length), KL_OK);
        CHECK_INT(length, whole);
        CHECK_INT(strlen(text), size - 1);
        CHECK_INT(text[size], '#'); /* nothing is written beyond */
    }
    CHECK_INT(kl_exec_metrics(exec, text, whole + 1, &length), KL_OK);
    CHECK_INT(strlen(text), whole);
    check_form(text);
    free(text);
    kl_exec_close(exec);
}

/* --- The log --- */

static void keep_log(void *ctx, kl_log_level level, const char *text)
{
    static const char *const levels[] = {"error", "warn", "info", "debug"};
    CHECK(!strchr(text, '\n'));
    CHECK(text[0] != '\0');
    journal_add("%s%s:<%s>", (const char *)ctx, levels[level], text);
}

TEST(what_matters_is_logged_line_by_line)
{
    struct script dead = {.name = "t", .plan = "x", .error = "no such account"}, ends = {.name = "t", .plan = "e"};
    kl_exec *exec = open_exec(OPTS(.threads = 1, .log = keep_log, .log_ctx = "log-"));
    REQUIRE(exec != NULL);
    submit_script(exec, "the key", &dead, NULL);
    submit_script(exec, "k", &ends, TASK(.attempts_max = 1));
    AWAIT(strstr(journal_text(), "log-error:<a task ended its thread"));
    CHECK_CONTAINS(journal_text(), "log-warn:<a task of key 'the key'");
    CHECK_CONTAINS(journal_text(), "no such account");
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_CONTAINS(journal_text(), "log-info:<");
    kl_exec_close(exec);
}

TEST(a_drain_is_logged_once_however_often_it_is_called)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1, .log = keep_log, .log_ctx = ""));
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_INT(kl_exec_drain(exec, 0), KL_OK);
    CHECK_STR(journal_text(), "info:<draining 1 shard>");
    kl_exec_close(exec);
    journal_clear();
    exec = open_exec(OPTS(.threads = 1, .log = keep_log, .log_ctx = ""));
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_abort(exec), KL_OK);
    CHECK_INT(kl_exec_drain(exec, 0), KL_OK); /* there is nothing left to drain */
    CHECK_STR(journal_text(), "");
    kl_exec_close(exec);
}

TEST(that_no_thread_can_be_had_in_the_place_of_one_that_ended_is_logged_once)
{
    struct script ends = {.name = "t", .plan = "ed", .after_ms = 1};
    kl_exec *exec = open_exec(OPTS(.threads = 1, .log = keep_log, .log_ctx = ""));
    REQUIRE(exec != NULL);
    fail_threads(0, 3, EAGAIN);
    submit_script(exec, "k", &ends, NULL);
    AWAIT(tasks_live(exec) == 0);
    fail_threads(0, 0, 0);
    const char *told = strstr(journal_text(), "no thread can be started in its place (");
    CHECK(told && !strstr(told + 1, "no thread"));
    kl_exec_close(exec);
}

TEST(a_key_or_an_error_with_a_line_break_does_not_break_the_logs_lines)
{
    struct script dead = {.name = "t", .plan = "x", .error = "first\nsecond"};
    kl_exec *exec = open_exec(OPTS(.threads = 1, .log = keep_log, .log_ctx = ""));
    REQUIRE(exec != NULL);
    submit_script(exec, "a\nforged line", &dead, NULL);
    CHECK_INT(kl_exec_barrier(exec, kl_str("a\nforged line"), PATIENCE_MS), KL_OK);
    CHECK_CONTAINS(journal_text(), "key 'a\\x0aforged line' ended (KL_EDEAD) after 1 attempt: first\\x0asecond");
    CHECK_INT(kl_exec_submit(exec, (kl_bytes){"nul\0inside", 10}, play, &dead, NULL, NULL), KL_OK);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_CONTAINS(journal_text(), "key 'nul\\x00inside' ended");
    kl_exec_close(exec);
}

TEST(a_key_that_is_longer_than_a_line_of_the_log_is_cut_visibly_and_hides_nothing)
{
    char key[KL_KEY_BYTES_MAX + 1];
    struct script dead = {.name = "t", .plan = "x", .error = "why"};
    memset(key, 'k', sizeof key);
    key[KL_KEY_BYTES_MAX] = '\0';
    kl_exec *exec = open_exec(OPTS(.threads = 1, .log = keep_log, .log_ctx = ""));
    REQUIRE(exec != NULL);
    submit_script(exec, key, &dead, NULL);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_CONTAINS(journal_text(), "kkkkkkkk... (512 bytes)' ended (KL_EDEAD) after 1 attempt: why");
    kl_exec_close(exec);
}
