/* tokens.h - who may: tokens with a role and, if wanted, only some queues.
 *
 * A token is 32 random bytes as text, "kl_" and 43 letters. Its file has a line for each and never the token itself:
 *
 *     # name     role     queues         SHA-256 of the token, in hex
 *     shop       operate  orders,mail*   9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
 *     grafana    read     *              60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752
 *
 * A plain hash is right here: passwords need a slow one because they can be guessed, and 256 random bits cannot. The
 * hash of what was presented is compared with that of every line, in constant time.
 *
 * T1  A file that is wrong, has no token, or that others may write to is refused as a whole; after a reload the tokens
 *     before it stay in force.
 * T2  The file is replaced as a whole (rename), so a reader never sees half of a change.
 * T3  Tokens that a reload replaced stay in memory until close, because requests under way point to them. A file that
 *     says the same as before replaces nothing. */
#ifndef KL_NET_TOKENS_H
#define KL_NET_TOKENS_H

#include "net/api.h"

enum {
    KL_TOKEN_NAME_MAX = 64,
    KL_TOKEN_SCOPE_MAX = 1024, /* bytes of a list of queues */
    KL_TOKEN_BYTES = 47,       /* of a token's text, with its terminator */
    KL_TOKENS_MAX = 1000,      /* of one file */
};

typedef struct kl__access kl__access;

typedef struct kl__token {
    const char *name; /* letters, digits, '.', '_', '-' and '@' */
    kl__role role;
    const char *scope; /* "*", or names of queues with commas between; a trailing * stands for any end of a name */
} kl__token;

/* Reads the file; path NULL: there are no tokens, and none is needed. KL_EINVAL: a line is wrong (the sentence has its
 * number), the file has no token, or others may write to it. KL_ESYSTEM: it cannot be read. KL_ENOMEM. */
KL_MUST_USE kl_rc kl__access_open(const char *path, kl__access **ret_tokens);
void kl__access_close(kl__access *tokens); /* NULL is fine; no request may be under way */

/* Reads the file again, while others check; without a file it does nothing. Errors as open; then nothing changes (T1).
 * One thread at a time. */
KL_MUST_USE kl_rc kl__access_reload(kl__access *tokens);

bool kl__access_any(const kl__access *tokens); /* a token is needed; NULL: none is */

/* Whose this is; its texts last until close. False: nobody's. Any thread. */
bool kl__access_check(const kl__access *tokens, kl_bytes presented, kl__token *ret_token);

/* Whether the token whose name this is, the very pointer that check gave, still stands in the file with the same role
 * and queues. What is no token's name ("socket") always does. Any thread. */
bool kl__access_holds(const kl__access *tokens, const char *name);

/* The i-th of the file; false: there is none. */
bool kl__access_at(const kl__access *tokens, size_t index, kl__token *ret_token);

/* Whether a scope includes this queue, and whether it includes every queue there is. NULL: includes all. */
bool kl__token_may(const char *scope, const char *queue);
bool kl__token_may_all(const char *scope);

const char *kl__role_name(kl__role role);                  /* "anyone", "read", "operate", "admin" */
bool kl__role_parse(const char *text, kl__role *ret_role); /* one that a token may have: not "anyone" */

/* Makes a token and writes its line behind the others of the file, which is made for its owner alone when it is not
 * there. ret_text: the only time that it is seen. KL_EINVAL: a name or list that cannot be, or a file that is wrong.
 * KL_ECONFLICT: the name is taken. KL_ESYSTEM: the file cannot be written. KL_ENOMEM. */
KL_MUST_USE kl_rc kl__access_add(const char *path, const kl__token *token, char ret_text[KL_TOKEN_BYTES]);

/* Takes one out of the file; comments stay. KL_ENOTFOUND: none has that name. KL_EINVAL: it is the last one (remove the
 * file instead), or the file is wrong. KL_ESYSTEM, KL_ENOMEM. */
KL_MUST_USE kl_rc kl__access_remove(const char *path, const char *name);

#endif
