/* completion.c - `keyline completion`: scripts for shells, made from the tables of commands and options.
 *
 * The scripts know commands, their sub-commands, options and choices; where a FILE or DIR is asked for they offer
 * files. They ask nothing of the program while one types, so they are quick and work on any machine. */
#include <string.h>

#include "cli/cli.h"

typedef struct completion_opts {
    const char *shell;
} completion_opts;

static const char shell_names[] = "bash|zsh|fish";

enum { VALUED_MAX = 256 };

/* ---- What all scripts need ---- */

/* Calls `visit` for each command that takes words: "push", "queue create". */
typedef void command_fn(void *ctx, const kl__command *command, const char *name);

static void visit_commands(command_fn *visit, void *ctx)
{
    char name[128];
    for (const kl__command *const *command = kl__commands; *command; command++) {
        if (!(*command)->subs)
            visit(ctx, *command, (*command)->name);
        for (const kl__command *const *sub = (*command)->subs; sub && *sub; sub++) {
            snprintf(name, sizeof name, "%s %s", (*command)->name, (*sub)->name);
            visit(ctx, *sub, name);
        }
    }
}

static void print_names(const kl__command *const *commands)
{
    for (const char *blank = ""; *commands; commands++, blank = " ")
        printf("%s%s", blank, (*commands)->name);
}

static bool takes_files(const char *value_name)
{
    return strncmp(value_name, "FILE", 4) == 0 || strncmp(value_name, "DIR", 3) == 0;
}

/* The words that an option may be said with: "--[no-]progress" is --progress and --no-progress. */
static void print_option_names(const kl__option *option, const char *form)
{
    static const char mark[] = "--[no-]";
    char name[80];
    if (strncmp(option->name, mark, sizeof mark - 1) != 0) {
        printf(form, option->name);
        return;
    }
    snprintf(name, sizeof name, "--%s", option->name + sizeof mark - 1);
    printf(form, name);
    snprintf(name, sizeof name, "--no-%s", option->name + sizeof mark - 1);
    printf(form, name);
}

/* a|b|c as a b c. */
static void print_choices(const char *choices)
{
    for (; *choices; choices++)
        putchar(*choices == '|' ? ' ' : *choices);
}

struct valued {
    const char *names[VALUED_MAX];
    size_t count;
};

static void note_valued(void *ctx, const kl__option *option)
{
    struct valued *valued = ctx;
    size_t i = 0;
    while (i < valued->count && strcmp(valued->names[i], option->name) != 0)
        i++;
    if (option->value_name && i == valued->count && i < VALUED_MAX)
        valued->names[valued->count++] = option->name;
}

static void note_command(void *ctx, const kl__command *command, const char *name)
{
    (void)name;
    kl__options_visit(command, note_valued, ctx);
}

/* The options whose value is the next word: they may stand before the command, too. */
static void print_valued(const char *between)
{
    struct valued valued = {.count = 0};
    visit_commands(note_command, &valued);
    for (size_t i = 0; i < valued.count; i++)
        printf("%s%s", i ? between : "", valued.names[i]);
}

/* The commands whose name has a second word. */
static void print_two_worded(const char *between)
{
    for (const kl__command *const *command = kl__commands; *command; command++) {
        if ((*command)->subs)
            printf("%s%s", (*command)->name, between);
    }
    fputs("help", stdout);
}

/* ---- bash ---- */

static void print_bash_option(void *ctx, const kl__option *option)
{
    (void)ctx;
    if (option->help)
        print_option_names(option, " %s");
}

static void print_bash_command(void *ctx, const kl__command *command, const char *name)
{
    (void)ctx;
    printf("    '%s') words='", name);
    if (command == &kl__completion_command)
        print_choices(shell_names);
    kl__options_visit(command, print_bash_option, NULL);
    fputs(" --help' ;;\n", stdout);
}

static void print_bash_value(void *ctx, const kl__option *option)
{
    const char *name = ctx;
    if (!option->value_name || !option->help)
        return;
    printf("    '%s %s') ", name, option->name);
    if (kl__kind_of(option) == KL_CHOICE) {
        fputs("words='", stdout);
        print_choices(option->value_name);
        fputs("' ;;\n", stdout);
    } else {
        puts(takes_files(option->value_name) ? "files=1 ;;" : "return ;;");
    }
}

static void print_bash_values(void *ctx, const kl__command *command, const char *name)
{
    (void)ctx;
    char copy[128];
    snprintf(copy, sizeof copy, "%s", name);
    kl__options_visit(command, print_bash_value, copy);
}

static void print_bash_subs(void)
{
    for (const kl__command *const *command = kl__commands; *command; command++) {
        if (!(*command)->subs)
            continue;
        printf("    %s) words='", (*command)->name);
        print_names((*command)->subs);
        fputs("' ;;\n", stdout);
        printf("    'help %s') words='", (*command)->name);
        print_names((*command)->subs);
        fputs("' ;;\n", stdout);
    }
}

static void print_bash(void)
{
    puts("# bash completion for keyline, made by `keyline completion bash`.\n"
         "_keyline()\n"
         "{\n"
         "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} name='' words='' files='' i\n"
         "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "        case ${COMP_WORDS[i]} in\n"
         "        --) return ;;");
    fputs("        ", stdout);
    print_valued(" | ");
    puts(") [ \"${COMP_WORDS[i + 1]}\" != = ] && ((i += 1)) || ((i += 2)) ;;\n"
         "        -*) ;;\n"
         "        *)");
    fputs("            case $name in\n            '') name=${COMP_WORDS[i]} ;;\n            ", stdout);
    print_two_worded(" | ");
    puts(") name=\"$name ${COMP_WORDS[i]}\" ;;\n"
         "            esac\n"
         "            ;;\n"
         "        esac\n"
         "    done\n"
         "    [ \"$before\" != = ] || before=${COMP_WORDS[COMP_CWORD - 2]}\n"
         "    [ \"$word\" != = ] || word=''\n"
         "    case \"$name $before\" in");
    visit_commands(print_bash_values, NULL);
    puts("    *)\n"
         "        case $name in");
    fputs("    '') words='", stdout);
    print_names(kl__commands);
    puts("' ;;");
    print_bash_subs();
    visit_commands(print_bash_command, NULL);
    puts("        esac");
    fputs("        [ \"$name\" != help ] || words='", stdout);
    print_names(kl__commands);
    puts("'\n"
         "        ;;\n"
         "    esac\n"
         "    mapfile -t COMPREPLY < <(compgen ${files:+-f} -W \"$words\" -- \"$word\")\n"
         "}\n"
         "complete -o default -F _keyline keyline");
}

/* ---- zsh ---- */

/* Inside '...' and a description's brackets. */
static void print_zsh_text(const char *text)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", stdout);
        else if (strchr("[]:\\", *text))
            printf("\\%c", *text);
        else
            putchar(*text);
    }
}

static void print_zsh_name(const kl__option *option, const char *name)
{
    printf("        '%s%s[", kl__kind_of(option) == KL_TEXTS ? "*" : "", name);
    print_zsh_text(option->help);
    putchar(']');
    if (option->value_name && kl__kind_of(option) == KL_CHOICE) {
        fputs(":value:(", stdout);
        print_choices(option->value_name);
        putchar(')');
    } else if (option->value_name) {
        fputs(":", stdout);
        print_zsh_text(option->value_name);
        fputs(takes_files(option->value_name) ? ":_files" : ": ", stdout);
    }
    puts("' \\");
}

static void print_zsh_option(void *ctx, const kl__option *option)
{
    static const char mark[] = "--[no-]";
    char name[80];
    (void)ctx;
    if (!option->help)
        return;
    bool both = strncmp(option->name, mark, sizeof mark - 1) == 0;
    snprintf(name, sizeof name, "%s%s", both ? "--" : "", option->name + (both ? sizeof mark - 1 : 0));
    print_zsh_name(option, name);
    if (!both)
        return;
    snprintf(name, sizeof name, "--no-%s", option->name + sizeof mark - 1);
    print_zsh_name(option, name);
}

static void print_zsh_command(void *ctx, const kl__command *command, const char *name)
{
    (void)ctx;
    printf("    '%s')\n        _arguments \\\n", name);
    kl__options_visit(command, print_zsh_option, NULL);
    fputs("        '--help[explain the command]' \\\n        ", stdout);
    if (command == &kl__completion_command) {
        fputs("'*:shell:(", stdout);
        print_choices(shell_names);
        puts(")' ;;");
    } else {
        puts("'*: :_files' ;;");
    }
}

static void print_zsh_list(const kl__command *const *commands)
{
    puts("        commands=(");
    for (; *commands; commands++) {
        printf("            '%s:", (*commands)->name);
        print_zsh_text((*commands)->summary);
        puts("'");
    }
    puts("        )\n"
         "        ;;");
}

static void print_zsh(void)
{
    fputs("#compdef keyline\n"
          "# zsh completion for keyline, made by `keyline completion zsh`.\n"
          "_keyline()\n"
          "{\n"
          "    local name='' i\n"
          "    local -a commands\n"
          "    for ((i = 2; i < CURRENT; i++)); do\n"
          "        case ${words[i]} in\n"
          "        --)\n"
          "            _files\n"
          "            return\n"
          "            ;;\n"
          "        ",
          stdout);
    print_valued(" | ");
    fputs(") ((i++)) ;;\n"
          "        -*) ;;\n"
          "        *)\n"
          "            case $name in\n"
          "            '') name=${words[i]} ;;\n"
          "            ",
          stdout);
    print_two_worded(" | ");
    puts(") name=\"$name ${words[i]}\" ;;\n"
         "            esac\n"
         "            ;;\n"
         "        esac\n"
         "    done\n"
         "    case $name in\n"
         "    '' | help)");
    print_zsh_list(kl__commands);
    for (const kl__command *const *command = kl__commands; *command; command++) {
        if (!(*command)->subs)
            continue;
        printf("    %s | 'help %s')\n", (*command)->name, (*command)->name);
        print_zsh_list((*command)->subs);
    }
    puts("    esac\n"
         "    if (($#commands)); then\n"
         "        _describe command commands\n"
         "        return\n"
         "    fi\n"
         "    case $name in");
    visit_commands(print_zsh_command, NULL);
    puts("    esac\n}\n_keyline \"$@\"");
}

/* ---- fish ---- */

static void print_fish_text(const char *text)
{
    for (; *text; text++)
        printf(*text == '\'' || *text == '\\' ? "\\%c" : "%c", *text);
}

static void print_fish_option(void *ctx, const kl__option *option)
{
    const char *condition = ctx;
    static const char mark[] = "--[no-]";
    if (!option->help)
        return;
    bool both = strncmp(option->name, mark, sizeof mark - 1) == 0;
    const char *name = option->name + (both ? sizeof mark - 1 : 2);
    for (int sense = 0; sense < (both ? 2 : 1); sense++) {
        printf("complete -c keyline -n '%s' -l %s%s", condition, sense ? "no-" : "", name);
        if (option->value_name)
            fputs(takes_files(option->value_name) ? " -r -F" : " -x", stdout);
        if (option->value_name && kl__kind_of(option) == KL_CHOICE) {
            fputs(" -a '", stdout);
            print_choices(option->value_name);
            putchar('\'');
        }
        fputs(" -d '", stdout);
        print_fish_text(option->help);
        puts("'");
    }
}

static void print_fish_command(void *ctx, const kl__command *command, const char *name)
{
    char condition[160];
    (void)ctx;
    snprintf(condition, sizeof condition, "__keyline_at %s", name);
    kl__options_visit(command, print_fish_option, condition);
    printf("complete -c keyline -n '%s' -l help -d 'explain the command'\n", condition);
    if (command != &kl__completion_command)
        return;
    printf("complete -c keyline -f -n '%s' -a '", condition);
    print_choices(shell_names);
    puts("'");
}

static void print_fish_names(const kl__command *const *commands, const char *condition)
{
    for (; *commands; commands++) {
        printf("complete -c keyline -f -n '%s' -a %s -d '", condition, (*commands)->name);
        print_fish_text((*commands)->summary);
        puts("'");
    }
}

static void print_fish(void)
{
    char condition[160];
    fputs("# fish completion for keyline, made by `keyline completion fish`.\n"
          "function __keyline_at --description 'Whether these words are the command so far'\n"
          "    set -l name\n"
          "    set -l value no\n"
          "    for word in (commandline -opc)[2..]\n"
          "        if test $value = yes\n"
          "            set value no\n"
          "            continue\n"
          "        end\n"
          "        switch $word\n"
          "            case --\n"
          "                return 1\n"
          "            case ",
          stdout);
    print_valued(" ");
    fputs("\n"
          "                set value yes\n"
          "            case '-*'\n"
          "            case '*'\n"
          "                switch \"$name\"\n"
          "                    case ''\n"
          "                        set name $word\n"
          "                    case ",
          stdout);
    print_two_worded(" ");
    puts("\n"
         "                        set name \"$name $word\"\n"
         "                end\n"
         "        end\n"
         "    end\n"
         "    test \"$name\" = \"$argv\"\n"
         "end");
    print_fish_names(kl__commands, "__keyline_at");
    print_fish_names(kl__commands, "__keyline_at help");
    for (const kl__command *const *command = kl__commands; *command; command++) {
        if (!(*command)->subs)
            continue;
        snprintf(condition, sizeof condition, "__keyline_at %s", (*command)->name);
        print_fish_names((*command)->subs, condition);
        snprintf(condition, sizeof condition, "__keyline_at help %s", (*command)->name);
        print_fish_names((*command)->subs, condition);
    }
    visit_commands(print_fish_command, NULL);
}

/* ---- The command ---- */

static const kl__argument completion_arguments[] = {
    {"SHELL", offsetof(completion_opts, shell), KL_NEEDED, "the shell: bash, zsh or fish"},
    {NULL, 0, 0, NULL},
};

static int run_completion(kl__call *call)
{
    static const kl__option shells = {"the shell", shell_names, NULL, 0, 0, 0};
    static void (*const print[])(void) = {print_bash, print_zsh, print_fish};
    const completion_opts *opts = call->values;
    int64_t shell;
    if (!kl__value_parse(&shells, shells.name, opts->shell, 0, &shell))
        return KL_EXIT_USAGE;
    print[shell - 1]();
    return KL_EXIT_OK;
}

const kl__command kl__completion_command = {
    .name = "completion",
    .summary = "print a completion script for bash, zsh or fish",
    .about = "Prints a script that completes commands, options and their values. To use it now and later:\n"
             "\n"
             "  bash   source <(keyline completion bash)      in ~/.bashrc\n"
             "  zsh    keyline completion zsh >_keyline       in a directory of $fpath\n"
             "  fish   keyline completion fish >~/.config/fish/completions/keyline.fish\n",
    .arguments = completion_arguments,
    .values_size = sizeof(completion_opts),
    .run = run_completion,
};
