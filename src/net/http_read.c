/* http_read.c - a request's head and body, read as bytes come, within limits.
 *
 * From: http_connection.c.  To: parse.c, and serve or refuse in http_connection.c.
 *
 *     in:  | head | body | the next request ... |
 *                        ^ in_next              ^ in_len
 *
 * A body that fits stays behind its head, where it was read. A larger one gets a buffer of its own, which begins at
 * KL_HTTP_BODY_FIRST and doubles as bytes really come: a length that is only announced costs nothing.
 *
 * D1  A body in its own buffer is never read past its end by more than fits behind the head in `in`, so that what a
 *     client sends ahead has a place. (A length says where the end is; of chunks not more than that room is read at
 *     once.)
 * D2  One connection reads at most KL_HTTP_READS_MAX times in a round: others are waiting.
 * D3  Buffers of bodies have bodies_bytes_max together; a body whose buffer cannot grow is refused with 503. */
#include <stdio.h>

#include "net/http_inside.h"

/* ---- Heads ---- */

static void begin_body(kl__connection *connection, size_t head_len);

static void refuse_target(kl__connection *connection)
{
    char reason[128];
    snprintf(reason, sizeof reason, "The target of the request is longer than %zu bytes; send what it says in a body.",
             connection->loop->http->opts.head_bytes_max / 2);
    kl__connection_refuse(connection, 414, reason);
}

/* A head that has no end within the limit: its first line is too long, or all of it. */
static void refuse_long(kl__connection *connection, size_t len)
{
    char reason[128];
    snprintf(reason, sizeof reason, "The head of the request is longer than %zu bytes; send fewer or shorter fields.",
             connection->loop->http->opts.head_bytes_max);
    if (memchr(connection->in, '\n', len))
        kl__connection_refuse(connection, 431, reason);
    else
        refuse_target(connection);
}

/* False: the head is not complete. */
static bool parse_head(kl__connection *connection)
{
    size_t len = connection->in_len, max = connection->loop->http->opts.head_bytes_max, used;
    kl__turn *turn = kl__turn_take(connection);
    if (!turn) {
        kl__connection_close(connection);
        return true;
    }
    kl__refused refused;
    len = len < max ? len : max;
    kl__parsed parsed = kl__parse_head(connection->in, len, connection->in_seen, &turn->request.head, &used, &refused);
    if (parsed == KL_PARSED_MORE && len < max) {
        kl__turn_give(connection->loop, turn);
        connection->in_seen = len;
        return false;
    }
    connection->turn = turn;
    if (parsed == KL_PARSED_MORE)
        refuse_long(connection, len);
    else if (parsed == KL_PARSED_REFUSED)
        kl__connection_refuse(connection, refused.status, refused.reason);
    else if (turn->request.head.target.len > max / 2)
        refuse_target(connection);
    else
        begin_body(connection, used);
    return true;
}

/* More bytes into `in`. False: the connection is no longer read from. */
static bool read_more(kl__connection *connection)
{
    size_t len = 0;
    if (!connection->in && !(connection->in = kl__buffer_take(connection->loop))) {
        kl__connection_close(connection);
        return false;
    }
    kl__io io = kl__connection_read(connection, connection->in + connection->in_len,
                                    kl__buffer_size(connection->loop->http) - connection->in_len, &len);
    connection->in_len += len;
    if (io == KL_IO_BROKEN || (io == KL_IO_END && connection->in_len == 0)) {
        kl__connection_close(connection);
        return false;
    }
    if (io == KL_IO_END) {
        kl__connection_refuse(connection, 400, "The connection was closed in the middle of the head of a request.");
        return false;
    }
    return true;
}

void kl__connection_read_head(kl__connection *connection)
{
    for (;;) {
        if (connection->in_len > connection->in_seen && parse_head(connection))
            return;
        if (!connection->readable)
            break;
        if (!read_more(connection))
            return;
    }
    if (connection->in_len > 0) {
        if (connection->timer != KL_TIMER_HEAD)
            kl__timer_set(connection, KL_TIMER_HEAD);
    } else if (connection->in) {
        kl__buffer_give(connection->loop, connection->in);
        connection->in = NULL;
    }
}

/* ---- Bodies ---- */

/* `used` bytes from where the body begins were read for it; what follows is the next request's. */
static void end_body(kl__connection *connection, size_t body_len, size_t used)
{
    kl__turn *turn = connection->turn;
    turn->request.body = (kl_bytes){turn->body, body_len};
    if (turn->body_apart) {
        connection->in_next = connection->in_len;
        memcpy(connection->in + connection->in_len, turn->body + used, turn->body_len - used);
        connection->in_len += turn->body_len - used;
    } else {
        connection->in_next = (size_t)(turn->body - connection->in) + used;
    }
    kl__connection_serve(connection);
}

static void refuse_large(kl__connection *connection)
{
    char reason[128];
    snprintf(reason, sizeof reason,
             "The body is larger than %zu bytes, the server's --body-max; send it in parts, or have that raised.",
             connection->loop->http->opts.body_bytes_max);
    kl__connection_refuse(connection, 413, reason);
}

static bool parse_chunks(kl__connection *connection)
{
    kl__turn *turn = connection->turn;
    kl__refused refused;
    kl__parsed parsed = kl__parse_chunks(turn->body, turn->body_len, connection->loop->http->opts.body_bytes_max,
                                         &turn->chunk_from, &turn->chunk_to, &refused);
    if (parsed == KL_PARSED_REFUSED && refused.status == 413)
        refuse_large(connection);
    else if (parsed == KL_PARSED_REFUSED)
        kl__connection_refuse(connection, refused.status, refused.reason);
    else if (parsed == KL_PARSED_DONE)
        end_body(connection, turn->chunk_to, turn->chunk_from);
    return parsed != KL_PARSED_MORE;
}

/* False: the body is not complete. */
static bool parse_body(kl__connection *connection)
{
    const kl__turn *turn = connection->turn;
    if (turn->request.head.chunked)
        return parse_chunks(connection);
    size_t length = (size_t)turn->request.head.content_length;
    if (turn->body_len < length)
        return false;
    end_body(connection, length, length);
    return true;
}

/* D3. */
static bool take_bytes(kl__http *http, size_t more)
{
    if (atomic_fetch_add(&http->bodies_bytes, more) + more <= http->opts.bodies_bytes_max)
        return true;
    atomic_fetch_sub(&http->bodies_bytes, more);
    return false;
}

/* A larger buffer of its own. */
static bool grow_body(kl__connection *connection)
{
    kl__turn *turn = connection->turn;
    size_t size = turn->body_len < KL_HTTP_BODY_FIRST / 2 ? KL_HTTP_BODY_FIRST : turn->body_len * 2;
    int64_t length = turn->request.head.content_length;
    if (length >= 0 && (size_t)length < size)
        size = (size_t)length;
    kl__http *http = connection->loop->http;
    size_t more = turn->body_apart ? size - turn->body_size : size;
    if (!take_bytes(http, more))
        return false;
    char *larger = kl__alloc(size);
    if (!larger) {
        atomic_fetch_sub(&http->bodies_bytes, more);
        return false;
    }
    memcpy(larger, turn->body, turn->body_len);
    if (turn->body_apart)
        kl__free(turn->body);
    else
        connection->in_len = (size_t)(turn->body - connection->in);
    turn->body = larger;
    turn->body_size = size;
    turn->body_apart = true;
    return true;
}

/* Moves what was not decoded down to what was. */
static void close_gap(kl__connection *connection)
{
    kl__turn *turn = connection->turn;
    size_t gap = turn->chunk_from - turn->chunk_to;
    memmove(turn->body + turn->chunk_to, turn->body + turn->chunk_from, turn->body_len - turn->chunk_from);
    turn->chunk_from = turn->chunk_to;
    turn->body_len -= gap;
    if (!turn->body_apart)
        connection->in_len -= gap;
}

static bool is_full(const kl__turn *turn) { return turn->body_size - turn->body_len <= turn->body_size / 8; }

/* How much may be read behind what is there: more than nothing, or there is no memory (0). */
static size_t body_room(kl__connection *connection)
{
    kl__turn *turn = connection->turn;
    const kl__head *head = &turn->request.head;
    if (is_full(turn) && turn->chunk_from > turn->chunk_to)
        close_gap(connection);
    bool full = is_full(turn);
    bool too_small =
        head->chunked ? full : turn->body_size < (size_t)head->content_length && (full || !turn->body_apart);
    if (too_small && !grow_body(connection))
        return 0;
    size_t room = turn->body_size - turn->body_len;
    size_t ahead = kl__buffer_size(connection->loop->http) - connection->in_len;
    return turn->body_apart && head->chunked && room > ahead ? ahead : room; /* D1 */
}

/* False: the connection is no longer read from. */
static bool read_more_body(kl__connection *connection)
{
    kl__turn *turn = connection->turn;
    size_t room = body_room(connection), len = 0;
    if (room == 0) {
        kl__connection_refuse(connection, 503,
                              "There is no room for the body of the request now. Try again in a moment.");
        return false;
    }
    kl__io io = kl__connection_read(connection, turn->body + turn->body_len, room, &len);
    turn->body_len += len;
    if (!turn->body_apart)
        connection->in_len += len;
    if (io == KL_IO_END)
        kl__connection_refuse(connection, 400, "The connection was closed in the middle of the body of a request.");
    else if (io == KL_IO_BROKEN)
        kl__connection_close(connection);
    return io != KL_IO_END && io != KL_IO_BROKEN;
}

void kl__connection_read_body(kl__connection *connection)
{
    for (int i = 0; i < KL_HTTP_READS_MAX && connection->readable; i++) /* D2 */
        if (!read_more_body(connection) || parse_body(connection))
            return;
    if (connection->readable)
        kl__loop_again(connection);
}

/* So few bytes find room, unless the client does not read what it was sent before. */
static bool say_continue(kl__connection *connection)
{
    static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    kl__sending sending = {{{text, sizeof text - 1}, {0}}};
    if (kl__connection_send(connection, &sending) && kl__sending_left(&sending) == 0)
        return true;
    kl__connection_close(connection);
    return false;
}

static void begin_body(kl__connection *connection, size_t head_len)
{
    kl__turn *turn = connection->turn;
    const kl__head *head = &turn->request.head;
    if (head->content_length > 0 && (size_t)head->content_length > connection->loop->http->opts.body_bytes_max) {
        refuse_large(connection);
        return;
    }
    turn->body = connection->in + head_len;
    turn->body_size = kl__buffer_size(connection->loop->http) - head_len;
    turn->body_len = connection->in_len - head_len;
    if (!head->chunked && head->content_length <= 0) {
        end_body(connection, 0, 0);
        return;
    }
    connection->state = KL_CONN_BODY;
    if (parse_body(connection))
        return;
    if (!kl__connection_admits(connection)) {
        kl__connection_serve_unread(connection);
        return;
    }
    if (head->expects_continue && !say_continue(connection))
        return;
    kl__timer_set(connection, KL_TIMER_BODY);
    kl__connection_read_body(connection);
}
