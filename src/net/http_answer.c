/* http_answer.c - answers as bytes: written into the request's arena by whoever answers, so that the loop only sends.
 *
 * From: any thread, and http_connection.c for what http refuses itself.  To: http_connection.c.
 *
 *     HTTP/1.1 200 OK
 *     Date: Sun, 15 Nov 2026 12:00:00 GMT      the same text for a second, kept by each thread
 *     Content-Type: application/json
 *     Content-Length: 2                        none with 204 and 304
 *     Connection: close                        when it is
 *
 * A body of up to KL_HTTP_COPY_MAX bytes is copied behind its head and goes out with it in one piece. */
#include <ctype.h>
#include <stdio.h>
#include <time.h>

#include "base/arena.h"
#include "net/http_inside.h"

enum { DATE_BYTES = 32, HEAD_BYTES = 256 }; /* HEAD_BYTES: all that is not of the caller's length */

const char *kl__status_text(int status)
{
    static const struct {
        int status;
        const char *text;
    } rows[] = {
        {101, "Switching Protocols"},
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {207, "Multi-Status"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {410, "Gone"},
        {411, "Length Required"},
        {412, "Precondition Failed"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {422, "Unprocessable Content"},
        {426, "Upgrade Required"},
        {428, "Precondition Required"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {507, "Insufficient Storage"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].status == status)
            return rows[i].text;
    return "Status";
}

/* ---- Writing ---- */

static char *put_bytes(char *to, const void *bytes, size_t len)
{
    if (len > 0)
        memcpy(to, bytes, len);
    return to + len;
}

static char *put_text(char *to, const char *text) { return put_bytes(to, text, strlen(text)); }

static char *put_number(char *to, uint64_t number)
{
    char digits[24], *at = digits + sizeof digits;
    do
        *--at = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    return put_bytes(to, at, (size_t)(digits + sizeof digits - at));
}

static char *put_date(char *to)
{
    static _Thread_local time_t of;
    static _Thread_local char text[DATE_BYTES];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    if (now.tv_sec != of || !text[0]) {
        static const char days[][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
        static const char months[][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
        struct tm tm;
        gmtime_r(&now.tv_sec, &tm);
        snprintf(text, sizeof text, "%s, %02d %s %d %02d:%02d:%02d GMT", days[tm.tm_wday], tm.tm_mday,
                 months[tm.tm_mon], (tm.tm_year + 1900) % 10000, tm.tm_hour, tm.tm_min, tm.tm_sec);
        of = now.tv_sec;
    }
    return put_text(put_text(put_text(to, "\r\nDate: "), text), "\r\n");
}

static char *put_status(char *to, int status)
{
    to = put_number(put_text(to, "HTTP/1.1 "), (uint64_t)status);
    *to++ = ' ';
    return put_date(put_text(to, kl__status_text(status)));
}

/* What a value is made of may come from anywhere; a line break in it becomes a blank, and never another field. */
static char *put_field(char *to, kl_bytes name, kl_bytes value)
{
    to = put_text(put_bytes(to, name.data, name.len), ": ");
    const char *from = value.data;
    for (size_t i = 0; i < value.len; i++)
        *to++ = (char)((unsigned char)from[i] < 0x20 ? ' ' : from[i]);
    return put_text(to, "\r\n");
}

static size_t fields_size(const kl__answer *answer)
{
    size_t size = answer->type ? strlen(answer->type) : 0;
    for (size_t i = 0; i < answer->field_count; i++)
        size += answer->fields[i].name.len + answer->fields[i].value.len + strlen(": \r\n");
    return size;
}

static char *put_head(char *to, const kl__turn *turn, const kl__answer *answer)
{
    to = put_status(to, answer->status);
    if (answer->type)
        to = put_field(to, kl_str("Content-Type"), kl_str(answer->type));
    for (size_t i = 0; i < answer->field_count; i++)
        to = put_field(to, answer->fields[i].name, answer->fields[i].value);
    if (answer->status != 204 && answer->status != 304)
        to = put_text(put_number(put_text(to, "Content-Length: "), answer->body.len), "\r\n");
    if (turn->close)
        to = put_text(to, "Connection: close\r\n");
    return put_text(to, "\r\n");
}

bool kl__answer_format(kl__turn *turn, const kl__answer *answer)
{
    kl_bytes body = answer->body;
    turn->close = answer->close || !turn->request.head.keep_alive ||
                  atomic_load_explicit(&turn->connection->loop->http->stopping, memory_order_relaxed);
    if (turn->request.head.method == KL_METHOD_HEAD || answer->status == 204 || answer->status == 304)
        body = (kl_bytes){0};
    bool stays = body.len > KL_HTTP_COPY_MAX && kl__arena_holds(turn->request.arena, body.data);
    char *text = kl_arena_alloc(turn->request.arena, HEAD_BYTES + fields_size(answer) + (stays ? 0 : body.len));
    if (!text)
        return false;
    char *end = put_head(text, turn, answer);
    if (!stays)
        end = put_bytes(end, body.data, body.len);
    turn->sending.pieces[0] = (kl_bytes){text, (size_t)(end - text)};
    turn->sending.pieces[1] = stays ? body : (kl_bytes){0};
    return true;
}

bool kl__answer_format_head(kl__turn *turn, int status, const kl__field *fields, size_t count)
{
    const kl__answer sized = {.fields = fields, .field_count = count};
    char *text = kl_arena_alloc(turn->request.arena, HEAD_BYTES + fields_size(&sized));
    if (!text)
        return false;
    char *end = put_status(text, status);
    for (size_t i = 0; i < count; i++)
        end = put_field(end, fields[i].name, fields[i].value);
    end = put_text(end, "\r\n");
    turn->sending.pieces[0] = (kl_bytes){text, (size_t)(end - text)};
    turn->sending.pieces[1] = (kl_bytes){0};
    return true;
}

/* ---- What http refuses itself ---- */

/* "Content Too Large" -> "content-too-large" */
static void put_name(const char *text, char *name, size_t room)
{
    size_t i = 0;
    for (; text[i] && i + 1 < room; i++) {
        name[i] = (char)tolower((unsigned char)text[i]);
        if (name[i] == ' ')
            name[i] = '-';
    }
    name[i] = '\0';
}

/* Reasons are sentences of our own without quotes, so they need no escapes. */
bool kl__answer_refusal(kl__turn *turn, int status, const char *reason)
{
    enum { BODY_BYTES = 512 };
    char body[BODY_BYTES], name[64];
    put_name(kl__status_text(status), name, sizeof name);
    int len =
        snprintf(body, sizeof body, "{\"type\":\"/problems/%s\",\"title\":\"%s\",\"status\":%d,\"detail\":\"%s\"}\n",
                 name, kl__status_text(status), status, reason);
    KL_ASSERT(len > 0 && (size_t)len < sizeof body);
    const kl__field retry = {kl_str("Retry-After"), kl_str("1")};
    kl__answer answer = {.status = status,
                         .type = "application/problem+json",
                         .body = {body, (size_t)len},
                         .fields = &retry,
                         .field_count = status == 503,
                         .close = true};
    return kl__answer_format(turn, &answer);
}

void kl__http_answer(kl__request *request, const kl__answer *answer)
{
    kl__turn *turn = (kl__turn *)(void *)request;
    turn->posted = KL_POSTED_ANSWER;
    if (!kl__answer_format(turn, answer))
        turn->sending = (kl__sending){0};
    kl__loop_post(turn);
}
