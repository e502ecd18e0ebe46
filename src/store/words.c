/* words.c - words in errors. */
#include "store/words.h"

static unsigned char lower(unsigned char c) { return (unsigned char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); }

static bool in_word(unsigned char c)
{
    return (lower(c) >= 'a' && lower(c) <= 'z') || (c >= '0' && c <= '9') || c >= 0x80;
}

/* Takes the next word off the text. False: there is none. */
static bool next_word(kl_bytes *text, kl_bytes *ret_word)
{
    const unsigned char *at = text->data, *end = at + text->len;
    while (at < end && !in_word(*at))
        at++;
    const unsigned char *first = at;
    while (at < end && in_word(*at))
        at++;
    *ret_word = (kl_bytes){first, (size_t)(at - first)};
    *text = (kl_bytes){at, (size_t)(end - at)};
    return at > first;
}

static bool same_word(kl_bytes a, kl_bytes b)
{
    const unsigned char *p = a.data, *q = b.data;
    bool same = a.len == b.len;
    for (size_t i = 0; same && i < a.len; i++)
        same = lower(p[i]) == lower(q[i]);
    return same;
}

static bool has_word(kl_bytes text, kl_bytes word)
{
    for (kl_bytes other; next_word(&text, &other);)
        if (same_word(other, word))
            return true;
    return false;
}

bool kl__has_words(kl_bytes text, kl_bytes words)
{
    for (kl_bytes word; next_word(&words, &word);)
        if (!has_word(text, word))
            return false;
    return true;
}
