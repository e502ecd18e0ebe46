/* names.c - names of records as names of objects.
 *
 * Bytes outside [0-9A-Za-z._/-] are written as a sign and two hex digits; the sign is chosen so that the order of bytes
 * is kept. Names that would become too long are written in base32, behind "~~": they stand apart from the others. */
#include "store/s3/s3.h"

enum { ENCODED_MAX = 700 };

static bool is_plain(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' || c == '.' ||
           c == '/' || c == '_';
}

static char sign_of(unsigned char c)
{
    static const struct {
        unsigned char below;
        char sign;
    } signs[] = {{'-', '!'}, {'A', ':'}, {'_', '['}, {'a', '`'}};
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++)
        if (c < signs[i].below)
            return signs[i].sign;
    return '~';
}

static void encode_base32(kl__s3_text *text, kl_bytes name)
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuv";
    const unsigned char *at = name.data;
    unsigned bits = 0, have = 0;
    kl__s3_text_put(text, "~~");
    for (size_t i = 0; i < name.len; i++) {
        bits = bits << 8 | at[i];
        for (have += 8; have >= 5; have -= 5)
            kl__s3_text_add(text, &digits[bits >> (have - 5) & 31], 1);
    }
    if (have)
        kl__s3_text_add(text, &digits[bits << (5 - have) & 31], 1);
}

void kl__s3_encode_plainly(kl__s3_text *text, kl_bytes name)
{
    const unsigned char *at = name.data;
    for (size_t i = 0; i < name.len; i++) {
        if (is_plain(at[i]))
            kl__s3_text_add(text, &at[i], 1);
        else
            kl__s3_text_put(text, "%c%02x", sign_of(at[i]), at[i]);
    }
}

static void encode_name(kl__s3_text *text, kl_bytes name)
{
    size_t before = text->len;
    kl__s3_encode_plainly(text, name);
    if (text->len - before <= ENCODED_MAX || text->failed)
        return;
    text->len = before;
    encode_base32(text, name);
}

static int base32_of(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'v' ? c - 'a' + 10 : -1; }

/* Into room for as many bytes as it has characters. False: it is no name of ours. */
bool kl__s3_decode_name(const char *text, char *ret_bytes, size_t *ret_len)
{
    size_t len = 0;
    if (strncmp(text, "~~", 2) == 0) {
        unsigned bits = 0, have = 0;
        for (text += 2; *text; text++) {
            int digit = base32_of(*text);
            if (digit < 0)
                return false;
            bits = bits << 5 | (unsigned)digit;
            if ((have += 5) >= 8)
                ret_bytes[len++] = (char)(bits >> (have -= 8));
        }
        *ret_len = len;
        return true;
    }
    for (; *text; text++) {
        if (is_plain((unsigned char)*text)) {
            ret_bytes[len++] = *text;
            continue;
        }
        int high = kl__s3_hex_digit(text[1]), low = high < 0 ? -1 : kl__s3_hex_digit(text[2]);
        if (low < 0)
            return false;
        ret_bytes[len++] = (char)(high << 4 | low);
        text += 2;
    }
    *ret_len = len;
    return true;
}

char *kl__s3_record_object(const kl__s3 *s3, kl_bytes name)
{
    kl__s3_text text = {0};
    kl__s3_text_put(&text, "%srecords/", s3->prefix);
    encode_name(&text, name);
    if (text.failed)
        kl__s3_text_free(&text);
    return text.data;
}
