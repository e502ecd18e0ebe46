/* claims_token.c - tokens: who gave a task out, and which.
 *
 *      SERVER - 32 letters of the alphabet of RFC 4648, 5:
 *      index (4 bytes) | serial (6) | partition (2) | random (12), little-endian
 *
 * The index finds the claim at once, the serial says that it is still the same, and the random bytes come from the
 * kernel, so a token cannot be guessed; they are compared in constant time. The partition is for counting what is
 * stale. */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "work/claims_inside.h"

enum { BODY_BYTES = 24, BODY_LETTERS = 32, SERVER_MAX = 22 };

_Static_assert(BODY_BYTES == 4 + 6 + 2 + KL_TOKEN_RANDOM && BODY_LETTERS * 6 == BODY_BYTES * 8,
               "no letter is half used");
_Static_assert(SERVER_MAX + 1 + BODY_LETTERS + 1 <= KL_CLAIM_TOKEN_BYTES, "the longest token fits");

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/* --- Random bytes --- */

kl_rc kl__token_refill(kl__claims *claims)
{
    for (size_t got = 0; got < sizeof claims->random;) {
        ssize_t more = getrandom(claims->random + got, sizeof claims->random - got, 0);
        if (more < 0 && errno != EINTR)
            return kl__fail(KL_ESYSTEM, "the kernel gave no random bytes (%s), and tokens need some", strerror(errno));
        got += more > 0 ? (size_t)more : 0;
    }
    claims->random_used = 0;
    return KL_OK;
}

kl_rc kl__token_random(kl__claims *claims, uint8_t ret_random[KL_TOKEN_RANDOM])
{
    kl_rc rc = KL_OK;
    if (claims->random_used + KL_TOKEN_RANDOM > sizeof claims->random)
        rc = kl__token_refill(claims);
    if (rc != KL_OK)
        return rc;
    memcpy(ret_random, claims->random + claims->random_used, KL_TOKEN_RANDOM);
    claims->random_used += KL_TOKEN_RANDOM;
    return KL_OK;
}

/* --- Writing --- */

static void put_number(uint8_t *bytes, uint64_t number, int count)
{
    for (int i = 0; i < count; i++)
        bytes[i] = (uint8_t)(number >> 8 * i);
}

static uint64_t take_number(const uint8_t *bytes, int count)
{
    uint64_t number = 0;
    for (int i = 0; i < count; i++)
        number |= (uint64_t)bytes[i] << 8 * i;
    return number;
}

void kl__token_write(const char *server, const kl__token *token, char ret_text[KL_CLAIM_TOKEN_BYTES])
{
    uint8_t body[BODY_BYTES];
    size_t length = strlen(server);
    memcpy(ret_text, server, length);
    ret_text[length++] = '-';
    put_number(body, token->index, 4);
    put_number(body + 4, token->serial, 6);
    put_number(body + 10, token->partition, 2);
    memcpy(body + 12, token->random, KL_TOKEN_RANDOM);
    for (int i = 0; i < BODY_BYTES; i += 3) {
        uint32_t three = (uint32_t)body[i] << 16 | (uint32_t)body[i + 1] << 8 | body[i + 2];
        for (int shift = 18; shift >= 0; shift -= 6)
            ret_text[length++] = letters[three >> shift & 63];
    }
    ret_text[length] = '\0';
}

/* --- Reading --- */

static int value_of(char letter)
{
    if (letter >= 'A' && letter <= 'Z')
        return letter - 'A';
    if (letter >= 'a' && letter <= 'z')
        return letter - 'a' + 26;
    if (letter >= '0' && letter <= '9')
        return letter - '0' + 52;
    return letter == '-' ? 62 : letter == '_' ? 63 : -1;
}

/* How long the giver's name is; -1: this is no token. */
static int server_length(kl_bytes text)
{
    const char *at = text.data;
    if (text.len < BODY_LETTERS + 1 || text.len > SERVER_MAX + 1 + BODY_LETTERS)
        return -1;
    int length = (int)(text.len - BODY_LETTERS - 1);
    for (int i = 0; i < length; i++)
        if (value_of(at[i]) < 0 || value_of(at[i]) > 61)
            return -1;
    return at[length] == '-' ? length : -1;
}

bool kl__token_read(kl_bytes text, kl__token *ret_token)
{
    uint8_t body[BODY_BYTES];
    int length = server_length(text);
    if (length < 0)
        return false;
    const char *at = (const char *)text.data + length + 1;
    for (int i = 0; i < BODY_BYTES; i += 3, at += 4) {
        int a = value_of(at[0]), b = value_of(at[1]), c = value_of(at[2]), d = value_of(at[3]);
        if ((a | b | c | d) < 0)
            return false;
        uint32_t three = (uint32_t)a << 18 | (uint32_t)b << 12 | (uint32_t)c << 6 | (uint32_t)d;
        put_number(body + i, (uint64_t)(three >> 16 | (three & 0xff00) | (three & 0xff) << 16), 3);
    }
    ret_token->index = (uint32_t)take_number(body, 4);
    ret_token->serial = take_number(body + 4, 6);
    ret_token->partition = (uint16_t)take_number(body + 10, 2);
    memcpy(ret_token->random, body + 12, KL_TOKEN_RANDOM);
    return true;
}

bool kl__claim_token_server(kl_bytes token, char ret_server[24])
{
    kl__token read;
    if (!kl__token_read(token, &read))
        return false;
    int length = server_length(token);
    memcpy(ret_server, token.data, (size_t)length);
    ret_server[length] = '\0';
    return true;
}

uint32_t kl__claim_token_partition(kl_bytes token)
{
    kl__token read;
    return kl__token_read(token, &read) ? read.partition : UINT32_MAX;
}
