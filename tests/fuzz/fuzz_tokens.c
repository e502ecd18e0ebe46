/* fuzz_tokens.c - the file of tokens: what is taken from it is what may stand in it. */
#include "fuzz.h"
#include "net/tokens_file.h"

/* A pattern of the scope, made a name by leaving away its star, is within the scope. */
static void check_scope(const char *scope)
{
    char name[KL_TOKEN_SCOPE_MAX + 1];
    HOLDS(strlen(scope) >= 1 && strlen(scope) <= KL_TOKEN_SCOPE_MAX);
    for (const char *from = scope; from; from = strchr(from, ',') ? strchr(from, ',') + 1 : NULL) {
        size_t len = strcspn(from, ",*");
        snprintf(name, sizeof name, "%.*s", (int)len, from);
        HOLDS(len > 0 || *from == '*');
        HOLDS(kl__token_may(scope, name));
    }
    HOLDS(!kl__token_may_all(scope) || kl__token_may(scope, "anything"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kl__token_set set;
    char *copy = fuzz_copy(data, size);
    if (kl__token_set_parse("tokens", (kl_bytes){copy, size}, &set) == KL_OK) {
        HOLDS(set.count <= KL_TOKENS_MAX);
        for (size_t i = 0; i < set.count; i++) {
            const kl__token *token = &set.lines[i].token;
            HOLDS(strlen(token->name) >= 1 && strlen(token->name) <= KL_TOKEN_NAME_MAX);
            HOLDS(token->role >= KL_ROLE_READ && token->role <= KL_ROLE_ADMIN);
            check_scope(token->scope);
            for (size_t j = 0; j < i; j++)
                HOLDS(strcmp(set.lines[j].token.name, token->name) != 0);
        }
        kl_arena_free(&set.arena);
    } else {
        HOLDS(*kl_error_text() != 0);
    }
    free(copy);
    return 0;
}
