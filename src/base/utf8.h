/* utf8.h - whether bytes are text. */
#ifndef KL_UTF8_H
#define KL_UTF8_H

#include <stdbool.h>
#include <stdint.h>

#include "keyline/bytes.h"

/* The length of the character at the beginning of bytes[0..len), by RFC 3629; 0: there is none. */
static inline size_t kl__utf8_char(const unsigned char *bytes, size_t len)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (bytes[0] < 0x80)
        return 1;
    size_t count = bytes[0] >= 0xf0 ? 4 : bytes[0] >= 0xe0 ? 3 : 2;
    if (bytes[0] < 0xc2 || bytes[0] > 0xf4 || count > len)
        return 0;
    uint32_t code = bytes[0] & (0x7fu >> count);
    for (size_t i = 1; i < count; i++) {
        if ((bytes[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (bytes[i] & 0x3f);
    }
    bool valid = code >= least[count] && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
    return valid ? count : 0;
}

/* Eight bytes at once: none is below 0x20, above 0x7e, a quote or a backslash. */
static inline bool kl__ascii_is_plain8(uint64_t eight)
{
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    uint64_t quote = eight ^ (ones * '"'), slash = eight ^ (ones * '\\');
    uint64_t low = (eight - ones * 0x20) | (quote - ones) | (slash - ones) | (eight + ones);
    return ((low | eight) & high) == 0;
}

/* UTF-8 that stands in JSON as it is: no control character, quote or backslash. */
static inline bool kl__utf8_is_plain(kl_bytes text)
{
    const unsigned char *at = text.data, *end = at + text.len;
    while (at < end) {
        uint64_t eight;
        if (end - at >= 8) {
            memcpy(&eight, at, 8);
            if (kl__ascii_is_plain8(eight)) {
                at += 8;
                continue;
            }
        }
        size_t len = *at < 0x20 || *at == '"' || *at == '\\' ? 0 : kl__utf8_char(at, (size_t)(end - at));
        if (len == 0)
            return false;
        at += len;
    }
    return true;
}

#endif
