/* text.c - see text.h. */
#include "base/text.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/base.h"

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
