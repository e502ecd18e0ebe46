/* tokens_file.c - the file of tokens, a line each. See tokens.h for its form. */
#include "net/tokens_file.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FIELDS = 4, LINE_BYTES_MAX = KL_TOKEN_NAME_MAX + KL_TOKEN_SCOPE_MAX + 128, SECRET_BYTES = 32 };

bool kl__token_hash(kl_bytes token, uint8_t ret_hash[KL_TOKEN_HASH_BYTES])
{
    return EVP_Digest(token.data, token.len, ret_hash, NULL, EVP_sha256(), NULL) == 1;
}

/* ---- What a field may be ---- */

static bool is_plain(char c, const char *more)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr(more, c));
}

static bool is_name(const char *text)
{
    size_t len = strlen(text);
    for (size_t i = 0; i < len; i++)
        if (!is_plain(text[i], "._-@"))
            return false;
    return len > 0 && len <= KL_TOKEN_NAME_MAX;
}

/* Names of queues, each possibly with a * at its end. */
static bool is_scope(const char *text)
{
    size_t len = 0; /* of the name that is being read */
    if (strlen(text) > KL_TOKEN_SCOPE_MAX)
        return false;
    for (const char *at = text; *at; at++) {
        bool last = at[1] == 0 || at[1] == ',';
        if (*at == ',' ? len == 0 || !at[1] : !(is_plain(*at, "._-") || (*at == '*' && last)))
            return false;
        len = *at == ',' ? 0 : len + 1;
        if (len > KL_QUEUE_NAME_MAX + 1)
            return false;
    }
    return len > 0;
}

static bool read_hash(const char *text, uint8_t ret_hash[KL_TOKEN_HASH_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    if (strlen(text) != (size_t)2 * KL_TOKEN_HASH_BYTES)
        return false;
    for (size_t i = 0; text[i]; i++) {
        const char *digit = strchr(digits, text[i] >= 'A' && text[i] <= 'F' ? text[i] + ('a' - 'A') : text[i]);
        if (!digit)
            return false;
        ret_hash[i / 2] = (uint8_t)(ret_hash[i / 2] << 4 | (uint8_t)(digit - digits));
    }
    return true;
}

/* NULL: it is fine; else what is wrong with it. */
static const char *check_token(const char *name, const char *scope)
{
    if (!is_name(name))
        return "its name must be 1 to 64 letters, digits, '.', '_', '-' or '@'";
    if (!is_scope(scope))
        return "its queues must be names with commas between, each possibly with a * at its end, or * alone for all";
    return NULL;
}

/* ---- Reading ---- */

/* Splits at blanks; more than FIELDS are counted as one more. */
static size_t split(char *line, char *fields[FIELDS])
{
    size_t count = 0;
    for (char *rest = line, *word; (word = strtok_r(rest, " \t\r", &rest)) != NULL; count++) {
        if (count == FIELDS)
            return FIELDS + 1;
        fields[count] = word;
    }
    return count;
}

static const kl__token_line *find_name(const kl__token_set *set, const char *name)
{
    for (size_t i = 0; i < set->count; i++)
        if (strcmp(set->lines[i].token.name, name) == 0)
            return &set->lines[i];
    return NULL;
}

/* NULL: it was taken, or says nothing; else what is wrong with it. */
static const char *take_line(kl__token_set *set, char *line)
{
    char *fields[FIELDS];
    kl__token_line *to = &set->lines[set->count];
    size_t count = split(line, fields);
    if (count == 0 || fields[0][0] == '#')
        return NULL;
    if (count != FIELDS)
        return "a line is NAME ROLE QUEUES SHA256; `keyline token add` writes one";
    const char *wrong = check_token(fields[0], fields[2]);
    if (wrong)
        return wrong;
    if (!kl__role_parse(fields[1], &to->token.role))
        return "its role must be read, operate or admin";
    if (!read_hash(fields[3], to->hash))
        return "its last word must be the 64 hex digits of a SHA-256";
    if (find_name(set, fields[0]))
        return "its name stands on an earlier line too; remove one of them";
    if (set->count == KL_TOKENS_MAX)
        return "there may be 1000 tokens and no more";
    to->token.name = fields[0];
    to->token.scope = fields[2];
    set->count++;
    return NULL;
}

static kl_rc parse(const char *path, char *text, size_t len, kl__token_set *set)
{
    size_t number = 1;
    for (char *line = text, *end; line < text + len; line = end + 1, number++) {
        end = memchr(line, '\n', (size_t)(text + len - line));
        end = end ? end : text + len;
        *end = 0;
        const char *wrong = strlen(line) != (size_t)(end - line) ? "it has a zero byte in it" : take_line(set, line);
        if (wrong)
            return kl__fail(KL_EINVAL, "%s:%zu: %s", path, number, wrong);
    }
    return KL_OK;
}

kl_rc kl__token_set_parse(const char *path, kl_bytes text, kl__token_set *ret_set)
{
    kl__token_set set = {0};
    char *copy = kl_arena_alloc(&set.arena, text.len + 1);
    set.lines = kl_arena_alloc(&set.arena, (KL_TOKENS_MAX + 1) * sizeof *set.lines);
    kl_rc rc = copy && set.lines ? KL_OK : kl__fail_memory();
    if (rc == KL_OK) {
        memset(set.lines, 0, (KL_TOKENS_MAX + 1) * sizeof *set.lines);
        if (text.len)
            memcpy(copy, text.data, text.len);
        copy[text.len] = 0;
        rc = parse(path, copy, text.len, &set);
    }
    if (rc == KL_OK)
        *ret_set = set;
    else
        kl_arena_free(&set.arena);
    return rc;
}

/* Whoever can write to the file can give himself a token. That others can read it does no harm: hashes of random bytes
 * tell nothing. */
static kl_rc check_file(const char *path, const struct stat *about)
{
    if (!S_ISREG(about->st_mode))
        return kl__fail(KL_EINVAL, "%s is not a plain file; name one that holds tokens", path);
    if (about->st_mode & (S_IWGRP | S_IWOTH))
        return kl__fail(KL_EINVAL, "%s may be written to by others than its owner; run chmod go-w on it", path);
    if (about->st_uid != 0 && about->st_uid != geteuid())
        return kl__fail(KL_EINVAL, "%s belongs to another user; it must be this one's or root's", path);
    if (about->st_size > KL_TOKEN_FILE_MAX)
        return kl__fail(KL_EINVAL, "%s has more than 2 MiB, which no file of 1000 tokens has", path);
    return KL_OK;
}

static kl_rc fail_file(const char *path, const char *what)
{
    return kl__fail(KL_ESYSTEM, "the file of tokens %s cannot be %s: %s; `keyline token add` makes one", path, what,
                    strerror(errno));
}

/* All of the file. */
static kl_rc read_text(const char *path, kl_arena *arena, kl_bytes *ret_text)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_file(path, "read");
    kl_rc rc = fstat(fd, &about) == 0 ? check_file(path, &about) : fail_file(path, "read");
    size_t len = 0, room = rc == KL_OK ? (size_t)about.st_size : 0;
    char *text = kl_arena_alloc(arena, room + 1);
    if (rc == KL_OK && !text)
        rc = kl__fail_memory();
    while (rc == KL_OK && len < room) {
        ssize_t got = read(fd, text + len, room - len);
        if (got < 0 && errno != EINTR)
            rc = fail_file(path, "read");
        if (got == 0)
            break;
        len += got > 0 ? (size_t)got : 0;
    }
    close(fd);
    if (rc == KL_OK)
        *ret_text = (kl_bytes){text, len};
    return rc;
}

kl_rc kl__token_set_read(const char *path, kl__token_set *ret_set)
{
    kl_arena arena = {0};
    kl_bytes text;
    kl_rc rc = read_text(path, &arena, &text);
    if (rc == KL_OK)
        rc = kl__token_set_parse(path, text, ret_set);
    kl_arena_free(&arena);
    if (rc != KL_OK || ret_set->count > 0)
        return rc;
    kl_arena_free(&ret_set->arena);
    return kl__fail(KL_EINVAL, "%s has no token in it; add one with `keyline token add`, or name no file of tokens",
                    path);
}

/* ---- Writing ---- */

static bool write_all(int fd, kl_bytes text)
{
    size_t done = 0;
    while (done < text.len) {
        ssize_t put = write(fd, (const char *)text.data + done, text.len - done);
        if (put < 0 && errno != EINTR)
            return false;
        done += put > 0 ? (size_t)put : 0;
    }
    return fsync(fd) == 0;
}

/* Whoever could read the old file can read the new one: a service may run as another user than whoever adds a token. A
 * file that others could write to is refused before (check_file). */
static bool keep_readers(const char *path, int fd)
{
    struct stat old, new;
    if (stat(path, &old) != 0)
        return errno == ENOENT;
    if (fstat(fd, &new) != 0)
        return false;
    bool same = old.st_uid == new.st_uid &&old.st_gid == new.st_gid;
    return (same || fchown(fd, old.st_uid, old.st_gid) == 0) && fchmod(fd, old.st_mode & 0644) == 0;
}

/* T2 */
static kl_rc replace(const char *path, kl_bytes text)
{
    char beside[4096];
    if (snprintf(beside, sizeof beside, "%s.new", path) >= (int)sizeof beside)
        return kl__fail(KL_EINVAL, "the path of the file of tokens is too long");
    int fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return fail_file(beside, "written");
    bool written = keep_readers(path, fd) && write_all(fd, text);
    written = close(fd) == 0 && written;
    if (written && rename(beside, path) == 0)
        return KL_OK;
    kl_rc rc = fail_file(path, "written");
    unlink(beside);
    return rc;
}

/* "kl_" and base64url of random bytes, without padding. */
static kl_rc make_text(char ret_text[KL_TOKEN_BYTES])
{
    uint8_t secret[SECRET_BYTES];
    char base64[48];
    if (RAND_bytes(secret, sizeof secret) != 1)
        return kl__fail(KL_ESYSTEM, "the system has no random bytes to give; try again");
    EVP_EncodeBlock((uint8_t *)base64, secret, sizeof secret);
    for (char *at = base64; *at; at++) {
        if (*at == '+')
            *at = '-';
        if (*at == '/')
            *at = '_';
    }
    memcpy(ret_text, "kl_", 3);
    memcpy(ret_text + 3, base64, KL_TOKEN_BYTES - 4);
    ret_text[KL_TOKEN_BYTES - 1] = 0;
    OPENSSL_cleanse(secret, sizeof secret);
    OPENSSL_cleanse(base64, sizeof base64);
    return KL_OK;
}

static kl_rc make_line(const kl__token *token, const char *text, char line[LINE_BYTES_MAX])
{
    uint8_t hash[KL_TOKEN_HASH_BYTES];
    if (!kl__token_hash(kl_str(text), hash))
        return kl__fail_memory();
    int len = snprintf(line, LINE_BYTES_MAX, "%s %s %s ", token->name, kl__role_name(token->role), token->scope);
    for (size_t i = 0; i < sizeof hash; i++)
        len += snprintf(line + len, LINE_BYTES_MAX - (size_t)len, "%02x", hash[i]);
    snprintf(line + len, LINE_BYTES_MAX - (size_t)len, "\n");
    return KL_OK;
}

/* The file as it is; none is an empty one. */
static kl_rc read_for_add(const char *path, kl_arena *arena, kl_bytes *ret_text, kl__token_set *ret_set)
{
    struct stat about;
    *ret_text = (kl_bytes){"", 0};
    *ret_set = (kl__token_set){0};
    if (stat(path, &about) != 0 && errno == ENOENT)
        return KL_OK;
    kl_rc rc = read_text(path, arena, ret_text);
    return rc == KL_OK ? kl__token_set_parse(path, *ret_text, ret_set) : rc;
}

static kl_rc add(const char *path, const kl__token *token, kl_arena *arena, char ret_text[KL_TOKEN_BYTES])
{
    char line[LINE_BYTES_MAX];
    kl_bytes text;
    kl__token_set set;
    kl_rc rc = read_for_add(path, arena, &text, &set);
    if (rc != KL_OK)
        return rc;
    bool taken = find_name(&set, token->name) != NULL, full = set.count == KL_TOKENS_MAX;
    kl_arena_free(&set.arena);
    if (taken)
        return kl__fail(KL_ECONFLICT, "there is a token '%s' already; remove it first, or choose another name",
                        token->name);
    if (full)
        return kl__fail(KL_EINVAL, "%s has 1000 tokens, which is the most that it may have", path);
    if ((rc = make_text(ret_text)) != KL_OK || (rc = make_line(token, ret_text, line)) != KL_OK)
        return rc;
    const char *old = text.data;
    bool open_end = text.len > 0 && old[text.len - 1] != '\n';
    char *whole = kl_arena_alloc(arena, text.len + LINE_BYTES_MAX + 2);
    if (!whole)
        return kl__fail_memory();
    int len =
        snprintf(whole, text.len + LINE_BYTES_MAX + 2, "%.*s%s%s", (int)text.len, old, open_end ? "\n" : "", line);
    return replace(path, (kl_bytes){whole, (size_t)len});
}

kl_rc kl__access_add(const char *path, const kl__token *token, char ret_text[KL_TOKEN_BYTES])
{
    kl_arena arena = {0};
    const char *wrong = check_token(token->name, token->scope);
    if (wrong)
        return kl__fail(KL_EINVAL, "the token cannot be added: %s", wrong);
    kl_rc rc = add(path, token, &arena, ret_text);
    kl_arena_free(&arena);
    return rc;
}

/* Whether a line is that of the name. */
static bool is_line_of(const char *line, size_t len, const char *name)
{
    size_t from = 0, name_len = strlen(name);
    while (from < len && (line[from] == ' ' || line[from] == '\t'))
        from++;
    return len - from > name_len && memcmp(line + from, name, name_len) == 0 &&
           (line[from + name_len] == ' ' || line[from + name_len] == '\t');
}

/* The text without the line of the name. */
static size_t leave_out(kl_bytes text, const char *name, char *to)
{
    size_t kept = 0;
    for (const char *line = text.data, *stop = line + text.len; line < stop;) {
        const char *end = memchr(line, '\n', (size_t)(stop - line));
        size_t len = (size_t)((end ? end + 1 : stop) - line);
        if (!is_line_of(line, len, name)) {
            memcpy(to + kept, line, len);
            kept += len;
        }
        line += len;
    }
    return kept;
}

kl_rc kl__access_remove(const char *path, const char *name)
{
    kl_arena arena = {0};
    kl__token_set set = {0};
    kl_bytes text;
    kl_rc rc = read_text(path, &arena, &text);
    if (rc == KL_OK)
        rc = kl__token_set_parse(path, text, &set);
    if (rc == KL_OK && !find_name(&set, name))
        rc = kl__fail(KL_ENOTFOUND, "there is no token '%s'; `keyline token ls` lists them", name);
    if (rc == KL_OK && set.count == 1)
        rc = kl__fail(KL_EINVAL, "'%s' is the last token; remove %s instead, or add another one first", name, path);
    char *kept = rc == KL_OK ? kl_arena_alloc(&arena, text.len + 1) : NULL;
    if (rc == KL_OK && !kept)
        rc = kl__fail_memory();
    if (rc == KL_OK)
        rc = replace(path, (kl_bytes){kept, leave_out(text, name, kept)});
    kl_arena_free(&set.arena);
    kl_arena_free(&arena);
    return rc;
}
