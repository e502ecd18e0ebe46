/* text.c - see text.h. */
#include "base/text.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/utf8.h"

void kl__text_put(kl__text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    bool room = text->length < text->size;
    int written =
        vsnprintf(room ? text->buffer + text->length : NULL, room ? text->size - text->length : 0, format, arguments);
    va_end(arguments);
    KL_ASSERT(written >= 0);
    text->length += (size_t)written;
}

/* The length of the printable character at the beginning; 0: there is none. */
static size_t printable_char(const unsigned char *bytes, size_t len)
{
    bool control = bytes[0] < ' ' || bytes[0] == 0x7f || (bytes[0] == 0xc2 && len > 1 && bytes[1] < 0xa0);
    return control || bytes[0] == '\\' ? 0 : kl__utf8_char(bytes, len);
}

const char *kl__text_quote(kl_bytes bytes, char *buffer, size_t size)
{
    enum { ESCAPE = 4, TAIL = 32 }; /* "\\xNN" and "... (18446744073709551615 bytes)" */
    const unsigned char *at = bytes.data;
    kl__text text = {buffer, size, 0};
    size_t done = 0, cut = 0; /* where the tail would stand, and what would then be left of the text */
    KL_ASSERT(size >= KL_QUOTE_MIN);
    buffer[0] = '\0';
    while (done < bytes.len) {
        size_t len = printable_char(at + done, bytes.len - done), shown = len ? len : ESCAPE;
        if (text.length + shown < size - TAIL)
            cut = text.length + shown;
        if (text.length + shown >= size) {
            text.length = cut;
            kl__text_put(&text, "... (%zu bytes)", bytes.len);
            break;
        }
        if (len) {
            memcpy(buffer + text.length, at + done, len);
            buffer[text.length += len] = '\0';
        } else {
            kl__text_put(&text, "\\x%02x", at[done]);
        }
        done += len ? len : 1;
    }
    return buffer;
}
