/* tokens.c - the tokens in force. See tokens.h; tokens_file.c reads and writes their file. */
#include "net/tokens.h"

#include <openssl/crypto.h>
#include <stdatomic.h>
#include <string.h>

#include "net/tokens_file.h"

struct kl__access {
    _Atomic(kl__token_set *) set; /* NULL: there is no file */
    kl_bytes path;
    kl_arena arena; /* of the path */
};

static const char *const role_names[] = {
    [KL_ROLE_ANYONE] = "anyone", [KL_ROLE_READ] = "read", [KL_ROLE_OPERATE] = "operate", [KL_ROLE_ADMIN] = "admin"};

const char *kl__role_name(kl__role role) { return role_names[role <= KL_ROLE_ADMIN ? role : KL_ROLE_ANYONE]; }

bool kl__role_parse(const char *text, kl__role *ret_role)
{
    for (kl__role role = KL_ROLE_READ; role <= KL_ROLE_ADMIN; role++)
        if (strcmp(text, role_names[role]) == 0) {
            *ret_role = role;
            return true;
        }
    return false;
}

/* ---- Scopes ---- */

/* One name of a list, `end` being behind its last byte. */
static bool matches(const char *from, const char *end, const char *queue)
{
    size_t len = (size_t)(end - from);
    if (len > 0 && end[-1] == '*')
        return strncmp(from, queue, len - 1) == 0;
    return strlen(queue) == len && memcmp(from, queue, len) == 0;
}

bool kl__token_may(const char *scope, const char *queue)
{
    if (!scope)
        return true;
    for (const char *from = scope;; from++) {
        const char *end = from + strcspn(from, ",");
        if (matches(from, end, queue))
            return true;
        if (!*end)
            return false;
        from = end;
    }
}

bool kl__token_may_all(const char *scope)
{
    if (!scope)
        return true;
    for (const char *from = scope;; from++) {
        const char *end = from + strcspn(from, ",");
        if (end - from == 1 && *from == '*')
            return true;
        if (!*end)
            return false;
        from = end;
    }
}

/* ---- The tokens in force ---- */

static void free_sets(kl__token_set *set)
{
    while (set) {
        kl__token_set *older = set->older;
        kl_arena_free(&set->arena);
        kl__free(set);
        set = older;
    }
}

static kl_rc read_set(const char *path, kl__token_set **ret_set)
{
    kl__token_set *set = kl__alloc_zeroed(1, sizeof *set);
    if (!set)
        return kl__fail_memory();
    kl_rc rc = kl__token_set_read(path, set);
    if (rc == KL_OK)
        *ret_set = set;
    else
        kl__free(set);
    return rc;
}

kl_rc kl__access_open(const char *path, kl__access **ret_tokens)
{
    kl__token_set *set = NULL;
    kl__access *tokens = kl__alloc_zeroed(1, sizeof *tokens);
    if (!tokens)
        return kl__fail_memory();
    kl_rc rc = kl_arena_copy(&tokens->arena, kl_str(path), &tokens->path) ? KL_OK : kl__fail_memory();
    if (rc == KL_OK && path)
        rc = read_set(path, &set);
    atomic_init(&tokens->set, set);
    if (rc == KL_OK)
        *ret_tokens = tokens;
    else
        kl__access_close(tokens);
    return rc;
}

void kl__access_close(kl__access *tokens)
{
    if (!tokens)
        return;
    free_sets(atomic_load(&tokens->set));
    kl_arena_free(&tokens->arena);
    kl__free(tokens);
}

static bool same_line(const kl__token_line *a, const kl__token_line *b)
{
    return strcmp(a->token.name, b->token.name) == 0 && a->token.role == b->token.role &&
           strcmp(a->token.scope, b->token.scope) == 0 && memcmp(a->hash, b->hash, sizeof a->hash) == 0;
}

static bool same_set(const kl__token_set *a, const kl__token_set *b)
{
    bool same = a->count == b->count;
    for (size_t i = 0; same && i < a->count; i++)
        same = same_line(&a->lines[i], &b->lines[i]);
    return same;
}

kl_rc kl__access_reload(kl__access *tokens)
{
    kl__token_set *set = NULL, *older = atomic_load(&tokens->set);
    if (!older)
        return KL_OK;
    kl_rc rc = read_set(tokens->path.data, &set);
    if (rc != KL_OK)
        return rc;
    if (same_set(set, older)) {
        free_sets(set);
        return KL_OK;
    }
    set->older = older;
    atomic_store_explicit(&tokens->set, set, memory_order_release);
    return KL_OK;
}

static const kl__token_set *set_of(const kl__access *tokens)
{
    return tokens ? atomic_load_explicit(&tokens->set, memory_order_acquire) : NULL;
}

bool kl__access_any(const kl__access *tokens) { return set_of(tokens) != NULL; }

/* All are compared, also behind the one that fits, so that time says nothing about which it was. */
static const kl__token_line *find(const kl__token_set *set, const uint8_t hash[KL_TOKEN_HASH_BYTES])
{
    const kl__token_line *found = NULL;
    for (size_t i = 0; i < set->count; i++)
        if (CRYPTO_memcmp(set->lines[i].hash, hash, KL_TOKEN_HASH_BYTES) == 0)
            found = &set->lines[i];
    return found;
}

bool kl__access_check(const kl__access *tokens, kl_bytes presented, kl__token *ret_token)
{
    uint8_t hash[KL_TOKEN_HASH_BYTES];
    const kl__token_set *set = set_of(tokens);
    if (!set || presented.len == 0 || !kl__token_hash(presented, hash))
        return false;
    const kl__token_line *line = find(set, hash);
    if (line)
        *ret_token = line->token;
    return line != NULL;
}

bool kl__access_holds(const kl__access *tokens, const char *name)
{
    const kl__token_set *now = set_of(tokens);
    const kl__token_line *line = NULL;
    for (const kl__token_set *set = now; set && !line; set = set->older) /* T3 */
        for (size_t i = 0; i < set->count && !line; i++)
            line = set->lines[i].token.name == name ? &set->lines[i] : NULL;
    bool holds = !line;
    for (size_t i = 0; !holds && i < now->count; i++)
        holds = same_line(&now->lines[i], line);
    return holds;
}

bool kl__access_at(const kl__access *tokens, size_t index, kl__token *ret_token)
{
    const kl__token_set *set = set_of(tokens);
    if (!set || index >= set->count)
        return false;
    *ret_token = set->lines[index].token;
    return true;
}
