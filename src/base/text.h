/* text.h - text that is written piece by piece into a buffer, and measured when there is none. */
#ifndef KL_TEXT_H
#define KL_TEXT_H

#include <stddef.h>

#include "keyline/bytes.h"
#include "keyline/error.h"

/* length is that of the whole text, also of what did not fit into size bytes. */
typedef struct kl__text {
    char *buffer;
    size_t size;
    size_t length;
} kl__text;

void kl__text_put(kl__text *text, const char *format, ...) KL_PRINTF(2, 3);

/* Bytes as one line of text in a buffer of `size` bytes, which is returned: what is not printable, and a backslash,
 * stands as \xNN, and what does not fit is cut off, with "... (N bytes)" in its stead. At least KL_QUOTE_MIN. */
enum { KL_QUOTE_MIN = 40 };
const char *kl__text_quote(kl_bytes bytes, char *buffer, size_t size);

#endif
