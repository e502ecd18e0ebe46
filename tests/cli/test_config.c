/* test_config.c - the table of settings is sound, commands' tables are, and words are read by them. */
#include "cli/config.h"
#include "harness.h"
#include "keyline/exec.h"

TEST(no_two_settings_share_a_name_a_variable_or_an_option)
{
    for (int i = 0; i < KL_SETTINGS; i++) {
        CHECK(kl__settings[i].name && kl__settings[i].variable && kl__settings[i].option.help);
        CHECK(kl__settings[i].standard[0] || kl__settings[i].otherwise[0]);
        CHECK(strncmp(kl__settings[i].variable, "KEYLINE_", 8) == 0);
        for (int j = 0; j < i; j++) {
            CHECK(strcmp(kl__settings[i].name, kl__settings[j].name) != 0);
            CHECK(strcmp(kl__settings[i].variable, kl__settings[j].variable) != 0);
            CHECK(strcmp(kl__settings[i].option.name, kl__settings[j].option.name) != 0);
        }
    }
}

/* ---- Commands ---- */

struct names {
    const char *seen[128];
    int count;
};

static void check_option(void *ctx, const kl__option *option)
{
    struct names *names = ctx;
    for (int i = 0; i < names->count; i++)
        if (strcmp(names->seen[i], option->name) == 0)
            test_fail(__FILE__, __LINE__, "%s is there twice", option->name);
    CHECK(strncmp(option->name, "--", 2) == 0);
    if (names->count < 128)
        names->seen[names->count++] = option->name;
}

static size_t value_size(const kl__option *option)
{
    switch (kl__kind_of(option)) {
    case KL_TEXT:
        return sizeof(const char *);
    case KL_TEXTS:
        return sizeof(kl__texts);
    default:
        return sizeof(int64_t);
    }
}

static void check_command(const kl__command *command)
{
    struct names names = {.count = 0};
    CHECK(command->name && command->summary && command->about);
    CHECK_INT((command->run != NULL) + (command->run_alone != NULL) + (command->subs != NULL), 1);
    CHECK(command->about[strlen(command->about) - 1] == '\n');
    kl__options_visit(command, check_option, &names);
    for (const kl__option *option = command->options; command->run && option && option->name; option++)
        CHECK(option->offset + value_size(option) <= command->values_size);
    for (const kl__argument *argument = command->arguments; command->run && argument && argument->name; argument++)
        CHECK(argument->offset + sizeof(const char *) <= command->values_size && argument->help);
    for (const kl__command *const *sub = command->subs; sub && *sub; sub++)
        check_command(*sub);
}

TEST(commands_are_complete_and_no_option_hides_another)
{
    for (const kl__command *const *command = kl__commands; *command; command++)
        check_command(*command);
}

/* ---- Words ---- */

typedef struct words_opts {
    const char *queue, *rest, *text;
    int64_t flag, number, duration, choice;
    kl__texts several, behind;
} words_opts;

static const kl__argument arguments[] = {
    {"QUEUE", offsetof(words_opts, queue), KL_NEEDED, "the queue"},
    {"REST", offsetof(words_opts, rest), KL_OPTIONAL, "the rest"},
    {"CMD", offsetof(words_opts, behind), KL_BEHIND, "the command"},
    {NULL, 0, 0, NULL},
};

static const kl__option options[] = {
    {"--[no-]flag", NULL, "a flag", offsetof(words_opts, flag), 0, 0},
    {"--number", "N", "a number", offsetof(words_opts, number), -5, 5},
    {"--duration", "DURATION", "a duration", offsetof(words_opts, duration), 0, 0},
    {"--choice", "a|b", "a choice", offsetof(words_opts, choice), 0, 0},
    {"--text", "TEXT", "a text", offsetof(words_opts, text), 0, 0},
    {"--several", "TEXT...", "texts", offsetof(words_opts, several), 0, 0},
    {NULL, NULL, NULL, 0, 0, 0},
};

static const kl__command command = {.name = "test",
                                    .arguments = arguments,
                                    .options = options,
                                    .values_size = sizeof(words_opts),
                                    .takes = KL_TAKES_JSON | KL_TAKES_STORE};

enum { WORDS_MAX = 12 };

static bool parse(kl_arena *ret_arena, kl__config *ret_config, words_opts *ret_opts, char **words)
{
    int count = 0;
    while (words[count])
        count++;
    *ret_opts = (words_opts){0};
    *ret_config = (kl__config){0};
    kl__call call = {.command = &command, .name = "test", .values = ret_opts, .config = ret_config};
    bool parsed = kl__call_parse(&call, count, words);
    *ret_arena = call.arena;
    return parsed;
}

TEST(words_are_read_in_any_order_and_form)
{
    kl_arena arena;
    kl__config config;
    words_opts opts;
    CHECK(parse(&arena, &config, &opts,
                (char *[]){"test", "--no-flag", "orders", "--number", "-3", "--duration=5s", "--choice", "b", "-",
                           "--several", "x", "--several=y", "--json", "--store", "memory:", "--", "cmd", "--flag",
                           NULL}));
    CHECK_INT(opts.flag, -1);
    CHECK_INT(opts.number, -3);
    CHECK_INT(opts.duration, 5000);
    CHECK_INT(opts.choice, 2);
    CHECK_STR(opts.queue, "orders");
    CHECK_STR(opts.rest, "-");
    CHECK_INT(opts.several.count, 2);
    CHECK_STR(opts.several.items[1], "y");
    CHECK_INT(opts.behind.count, 2);
    CHECK_STR(opts.behind.items[1], "--flag");
    CHECK_INT(config.json, 1);
    CHECK_STR(config.values[KL_SET_STORE].text, "memory:");
    CHECK_STR(config.values[KL_SET_STORE].origin, "flag --store");
    kl_arena_free(&arena);
}

TEST(words_that_are_wrong_are_refused)
{
    static char *const lines[][WORDS_MAX] = {
        {"test", NULL},
        {"test", "q", "r", "s", NULL},
        {"test", "q", "--number", "6", NULL},
        {"test", "q", "--number", NULL},
        {"test", "q", "--flag=1", NULL},
        {"test", "q", "--choice", "c", NULL},
        {"test", "q", "--duration", "5", NULL},
        {"test", "q", "--text", NULL},
        {"test", "q", "--unknown", NULL},
        {"test", "q", "--no-number", "3", NULL},
        {"test", "q", "--lease", "5s", NULL}, /* a setting that this command does not take */
        {"test", "q", "-x", NULL},
        {"test", "--", "cmd", NULL},
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        kl_arena arena;
        kl__config config;
        words_opts opts;
        char *words[WORDS_MAX];
        memcpy(words, lines[i], sizeof words);
        if (parse(&arena, &config, &opts, words))
            test_fail(__FILE__, __LINE__, "line %zu is accepted", i);
        kl_arena_free(&arena);
    }
}

/* ---- What is stated for a queue ---- */

TEST(only_what_is_stated_reaches_a_queue)
{
    kl_arena arena = {0};
    kl__config config = {.file = "/dev/null"};
    kl_queue_opts opts;
    char *environment[] = {"KEYLINE_SHARD_PREFIX_LEN=2", "KEYLINE_TIMEOUT=none", "KEYLINE_KEEP_DONE=none", "HOME=/",
                           NULL};
    CHECK(kl__config_set_flag(&config, KL_SET_PARTITIONS, "--partitions", "4", &arena));
    CHECK(kl__config_set_flag(&config, KL_SET_HEAD_POLICY, "--head-policy", "halt", &arena));
    REQUIRE(kl__config_complete(&config, environment, &arena));
    REQUIRE(kl__config_queue_opts(&config, "orders", false, &arena, &opts) == KL_OK);
    CHECK_INT(opts.partitions, 4);
    CHECK_INT(opts.shard_prefix_len, 2);
    CHECK_INT(opts.timeout_ms, KL_FOREVER);
    CHECK_INT(opts.keep_done_ms, KL_NO_WAIT);
    CHECK_INT(opts.head_policy, KL_HEAD_HALT);
    CHECK_INT(opts.attempts_max, 0);
    CHECK_INT(opts.rate, 0);
    CHECK_STR(opts.origin, "--partitions and KEYLINE_SHARD_PREFIX_LEN");
    REQUIRE(kl__config_queue_opts(&config, "orders", true, &arena, &opts) == KL_OK);
    CHECK_INT(opts.partitions, 4);
    CHECK_INT(opts.shard_prefix_len, 0);
    CHECK_INT(opts.timeout_ms, 0);
    kl_arena_free(&arena);
}
