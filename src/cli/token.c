/* token.c - `keyline token`: who may use a server. The file is the one that `keyline serve --tokens` reads. */
#include <string.h>

#include "base/base.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "cli/output.h"
#include "net/tokens.h"

typedef struct token_opts {
    const char *name, *queues, *tokens;
    int64_t role;
} token_opts;

/* The file of tokens. NULL: none is named, and it has complained. */
static const char *path_of(const kl__call *call)
{
    const token_opts *opts = call->values;
    const char *path = opts->tokens ? opts->tokens : call->config->values[KL_SET_SERVER_TOKENS].text;
    if (*path)
        return path;
    kl__complain("there is no file of tokens; name it with --tokens FILE, KEYLINE_TOKENS, or tokens under [server] in "
                 "keyline.toml");
    return NULL;
}

static int run_add(kl__call *call)
{
    static const kl__column columns[] = {{"name", 0}, {"role", 0}, {"queues", 0}, {"token", 0}, {NULL, 0}};
    const token_opts *opts = call->values;
    const char *path = path_of(call);
    char text[KL_TOKEN_BYTES];
    kl__token token = {.name = opts->name,
                       .role = opts->role ? (kl__role)opts->role : KL_ROLE_OPERATE,
                       .scope = opts->queues ? opts->queues : "*"};
    if (!path)
        return KL_EXIT_USAGE;
    kl_rc rc = kl__access_add(path, &token, text);
    if (rc != KL_OK)
        return kl__fail_given(rc);
    if (!kl__call_json(call))
        fprintf(stderr, "keyline: this is the only time that the token is shown; a server that runs reads the file "
                        "again on SIGHUP\n");
    return kl__out_done(call, columns,
                        (kl__cell[]){kl__cell_text(token.name), kl__cell_text(kl__role_name(token.role)),
                                     kl__cell_text(token.scope), kl__cell_text(text)},
                        "%s", text);
}

static int run_ls(kl__call *call)
{
    static const kl__column columns[] = {
        {"name", KL_COLUMN_WHOLE}, {"role", 0}, {"queues", KL_COLUMN_WHOLE}, {NULL, 0}};
    const char *path = path_of(call);
    kl__access *tokens;
    kl__token token;
    kl__out out;
    if (!path)
        return KL_EXIT_USAGE;
    kl_rc rc = kl__access_open(path, &tokens);
    if (rc != KL_OK)
        return kl__fail_given(rc);
    kl__out_begin(&out, call, columns);
    for (size_t i = 0; kl__access_at(tokens, i, &token); i++)
        kl__out_row(&out, (kl__cell[]){kl__cell_text(token.name), kl__cell_text(kl__role_name(token.role)),
                                       kl__cell_text(token.scope)});
    int status = kl__out_end(&out);
    kl__access_close(tokens);
    return status;
}

static int run_rm(kl__call *call)
{
    static const kl__column columns[] = {{"name", 0}, {"done", 0}, {NULL, 0}};
    const token_opts *opts = call->values;
    const char *path = path_of(call);
    if (!path)
        return KL_EXIT_USAGE;
    kl_rc rc = kl__access_remove(path, opts->name);
    if (rc != KL_OK)
        return kl__fail_given(rc);
    return kl__out_done(call, columns, (kl__cell[]){kl__cell_text(opts->name), kl__cell_text("removed")},
                        "token %s removed; a server that runs knows it until SIGHUP", opts->name);
}

/* ---- Tables ---- */

static const kl__argument name_argument[] = {
    {"NAME", offsetof(token_opts, name), KL_NEEDED, "whose it is, for lists and logs"},
    {NULL, 0, 0, NULL},
};

#define FILE_OPTION                                                                                                    \
    {                                                                                                                  \
        "--tokens", "FILE", "the file of tokens (what the setting server.tokens says)", offsetof(token_opts, tokens),  \
            0, 0                                                                                                       \
    }

static const kl__option file_option[] = {FILE_OPTION, {NULL, NULL, NULL, 0, 0, 0}};

/* The choices are numbered as the roles are. */
static const kl__option add_options[] = {
    {"--role", "read|operate|admin",
     "look; also put, claim and steer tasks; also make, alter and remove queues (operate)", offsetof(token_opts, role),
     0, 0},
    {"--queues", "LIST", "only these queues, with commas between; a * at the end of a name stands for any end (*)",
     offsetof(token_opts, queues), 0, 0},
    FILE_OPTION,
    {NULL, NULL, NULL, 0, 0, 0},
};

_Static_assert(KL_ROLE_READ == 1 && KL_ROLE_OPERATE == 2 && KL_ROLE_ADMIN == 3, "choices of --role are numbered so");

#define TOKEN_COMMAND(variable, name_, summary_, about_, arguments_, options_, run_)                                   \
    static const kl__command variable = {.name = (name_),                                                              \
                                         .summary = (summary_),                                                        \
                                         .about = (about_),                                                            \
                                         .arguments = (arguments_),                                                    \
                                         .options = (options_),                                                        \
                                         .values_size = sizeof(token_opts),                                            \
                                         .takes = KL_TAKES_JSON,                                                       \
                                         .run = (run_)}

TOKEN_COMMAND(add, "add", "make a token",
              "Makes a token, prints it once, and writes its hash to the file of tokens, which is made when it is\n"
              "not there.\n"
              "\n"
              "  keyline token add shop --tokens /etc/keyline/tokens --role operate --queues 'orders,mail*'\n",
              name_argument, add_options, run_add);
TOKEN_COMMAND(ls, "ls", "list the tokens", "Lists names, roles and queues of the tokens in the file.\n", NULL,
              file_option, run_ls);
TOKEN_COMMAND(rm, "rm", "remove a token", "Takes a token out of the file.\n", name_argument, file_option, run_rm);

static const kl__command *const subs[] = {&add, &ls, &rm, NULL};

const kl__command kl__token_command = {
    .name = "token",
    .summary = "make, list and remove tokens of a server",
    .about = "Manages the tokens that `keyline serve` asks for.\n",
    .subs = subs,
};
