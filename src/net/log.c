/* log.c - see log.h. */
#include "net/log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/times.h"

enum { LINE_BYTES = 2048 }; /* of one line; the rest of a longer text is cut off */

/* As it may stand in a line: control characters as a blank; for JSON quotes with a backslash, and what is not ASCII,
 * and so perhaps no UTF-8, as a question mark. */
static size_t put_text(char *to, size_t room, const char *text, bool json)
{
    size_t len = 0;
    for (; *text && len + 2 < room; text++) {
        if (json && (*text == '"' || *text == '\\'))
            to[len++] = '\\';
        bool foreign = json && (unsigned char)*text > 127;
        bool control = (unsigned char)*text < ' ' || *text == 127;
        to[len] = *text;
        if (foreign || control)
            to[len] = foreign ? '?' : ' ';
        len++;
    }
    return len;
}

void kl__log_line(void *ctx, kl_log_level level, const char *text)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    const kl__log *log = ctx;
    char line[LINE_BYTES], time[KL_TIME_TEXT_BYTES];
    if (level > log->most)
        return;
    kl__time_print(kl__wall_ms(), time);
    int len = snprintf(line, sizeof line, log->json ? "{\"time\":\"%s\",\"level\":\"%s\",\"text\":\"" : "%s %s ", time,
                       names[level]);
    size_t end = (size_t)len + put_text(line + len, sizeof line - (size_t)len - 4, text, log->json);
    memcpy(line + end, log->json ? "\"}\n" : "\n", log->json ? 3 : 1);
    end += log->json ? 3 : 1;
    if (write(log->fd, line, end) < 0)
        return; /* there is nobody left to tell */
}
