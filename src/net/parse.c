/* parse.c - requests, read byte by byte under rules that leave one reading of them (R1 to R5).
 *
 * From: http_connection.c, and tests/fuzz.  To: nobody; it is pure.
 *
 * A head is read in two steps. `find_end` goes over new bytes once, refuses what no line may hold, and finds the empty
 * line; so a head that can no longer become valid is refused at once and not when its time is over. Only then are the
 * lines taken apart, and each of them is known to end with CR LF.
 *
 * What is said here of a request depends on its bytes alone and never on how they were split on the way: a test cuts
 * each request at every place. */
#include "net/parse.h"

#include <strings.h>

#include "base/base.h"

enum { LENGTH_DIGITS_MAX = 18, CHUNK_DIGITS_MAX = 8 };

/* Bytes of a token (RFC 9110, 5.6.2), as lower case; 0 elsewhere. */
static const unsigned char token_bytes[256] = {
    ['!'] = '!', ['#'] = '#', ['$'] = '$', ['%'] = '%', ['&'] = '&', ['\''] = '\'', ['*'] = '*', ['+'] = '+',
    ['-'] = '-', ['.'] = '.', ['^'] = '^', ['_'] = '_', ['`'] = '`', ['|'] = '|',   ['~'] = '~', ['0'] = '0',
    ['1'] = '1', ['2'] = '2', ['3'] = '3', ['4'] = '4', ['5'] = '5', ['6'] = '6',   ['7'] = '7', ['8'] = '8',
    ['9'] = '9', ['a'] = 'a', ['b'] = 'b', ['c'] = 'c', ['d'] = 'd', ['e'] = 'e',   ['f'] = 'f', ['g'] = 'g',
    ['h'] = 'h', ['i'] = 'i', ['j'] = 'j', ['k'] = 'k', ['l'] = 'l', ['m'] = 'm',   ['n'] = 'n', ['o'] = 'o',
    ['p'] = 'p', ['q'] = 'q', ['r'] = 'r', ['s'] = 's', ['t'] = 't', ['u'] = 'u',   ['v'] = 'v', ['w'] = 'w',
    ['x'] = 'x', ['y'] = 'y', ['z'] = 'z', ['A'] = 'a', ['B'] = 'b', ['C'] = 'c',   ['D'] = 'd', ['E'] = 'e',
    ['F'] = 'f', ['G'] = 'g', ['H'] = 'h', ['I'] = 'i', ['J'] = 'j', ['K'] = 'k',   ['L'] = 'l', ['M'] = 'm',
    ['N'] = 'n', ['O'] = 'o', ['P'] = 'p', ['Q'] = 'q', ['R'] = 'r', ['S'] = 's',   ['T'] = 't', ['U'] = 'u',
    ['V'] = 'v', ['W'] = 'w', ['X'] = 'x', ['Y'] = 'y', ['Z'] = 'z',
};

static kl__parsed refuse(kl__refused *ret_refused, int status, const char *reason)
{
    *ret_refused = (kl__refused){status, reason};
    return KL_PARSED_REFUSED;
}

static bool is_word(kl_bytes bytes, const char *word)
{
    size_t len = strlen(word);
    return bytes.len == len && memcmp(bytes.data, word, len) == 0;
}

static bool is_word_in_any_case(kl_bytes bytes, const char *word)
{
    const unsigned char *data = bytes.data;
    for (size_t i = 0; i < bytes.len; i++)
        if (!word[i] || token_bytes[data[i]] != (unsigned char)word[i])
            return false;
    return word[bytes.len] == '\0';
}

/* ---- The end of a head ---- */

/* The first of these bytes that is a control character: eight at a time, since nearly all are not. */
static size_t find_control(const char *bytes, size_t from, size_t len)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones * 0x80;
    for (; len - from >= sizeof(uint64_t); from += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, bytes + from, sizeof word);
        uint64_t deletes = word ^ (ones * 0x7f);
        if ((((word - ones * 0x20) & ~word) | ((deletes - ones) & ~deletes)) & tops)
            break;
    }
    while (from < len && (unsigned char)bytes[from] >= 0x20 && bytes[from] != 0x7f)
        from++;
    return from;
}

/* *ret_end: behind the empty line. */
static kl__parsed find_end(const char *bytes, size_t len, size_t from, size_t *ret_end, kl__refused *ret_refused)
{
    for (size_t i = from > 3 ? from - 3 : 0; (i = find_control(bytes, i, len)) < len; i++) {
        if (bytes[i] == '\t')
            continue;
        if (bytes[i] == '\n' && (i == 0 || bytes[i - 1] != '\r'))
            return refuse(ret_refused, 400, "A line ends with LF alone; end lines with CR LF.");
        if (bytes[i] == '\n') {
            if (i == 1)
                return refuse(ret_refused, 400, "The request begins with an empty line.");
            if (i < 3 || bytes[i - 2] != '\n')
                continue;
            *ret_end = i + 1;
            return KL_PARSED_DONE;
        }
        if (bytes[i] != '\r')
            return refuse(ret_refused, 400, "There is a control character in the head of the request.");
        if (i + 1 < len && bytes[i + 1] != '\n')
            return refuse(ret_refused, 400, "There is a CR that no LF follows.");
    }
    return KL_PARSED_MORE;
}

/* ---- The request line ---- */

static bool find_method(kl_bytes name, kl__method *ret_method)
{
    static const char *const names[] = {
        [KL_METHOD_GET] = "GET",         [KL_METHOD_HEAD] = "HEAD",   [KL_METHOD_POST] = "POST",
        [KL_METHOD_PUT] = "PUT",         [KL_METHOD_PATCH] = "PATCH", [KL_METHOD_DELETE] = "DELETE",
        [KL_METHOD_OPTIONS] = "OPTIONS",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (is_word(name, names[i])) {
            *ret_method = (kl__method)i;
            return true;
        }
    }
    return false;
}

static bool is_token(kl_bytes bytes)
{
    const unsigned char *data = bytes.data;
    for (size_t i = 0; i < bytes.len; i++)
        if (!token_bytes[data[i]])
            return false;
    return bytes.len > 0;
}

static bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }

static kl__parsed read_version(const char *text, size_t len, kl__head *head, kl__refused *ret_refused)
{
    bool named = len == strlen("HTTP/1.1") && memcmp(text, "HTTP/", 5) == 0 && text[6] == '.';
    if (!named || !is_digit(text[5]) || !is_digit(text[7]))
        return refuse(ret_refused, 400, "The request line is not METHOD, one space, target, one space, HTTP/1.1.");
    if (text[5] != '1' || text[7] > '1')
        return refuse(ret_refused, 505, "Only HTTP/1.1 and HTTP/1.0 are spoken here.");
    head->minor = text[7] - '0';
    head->keep_alive = head->minor == 1;
    return KL_PARSED_DONE;
}

/* How long "http://NAME:PORT" in front of a path is; 0: the target does not begin so. */
static size_t authority_end(const char *text, size_t len, kl_bytes *ret_authority)
{
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < 2; i++) {
        size_t from = strlen(schemes[i]), at = from;
        if (len <= from || strncasecmp(text, schemes[i], from) != 0)
            continue;
        while (at < len && text[at] != '/' && text[at] != '?')
            at++;
        *ret_authority = (kl_bytes){text + from, at - from};
        return at;
    }
    return 0;
}

static kl__parsed read_target(const char *text, size_t len, kl__head *head, kl__refused *ret_refused)
{
    size_t from = authority_end(text, len, &head->authority);
    if (from == 0 && (len == 0 || text[0] != '/'))
        return refuse(ret_refused, 400,
                      "The target of a request begins with a slash, or is a whole address: /v1, http://HOST/v1.");
    for (size_t i = 0; i < len; i++)
        if (text[i] <= ' ' || (unsigned char)text[i] >= 0x7f || text[i] == '#')
            return refuse(ret_refused, 400, "The target holds a byte that must be escaped with %.");
    const char *mark = memchr(text, '?', len), *end = mark ? mark : text + len, *path = text + from;
    head->target = (kl_bytes){text, len};
    head->path = (kl_bytes){path, (size_t)(end - path)};
    if (path == end) /* an address alone: its path is a slash, and one stands before the name */
        head->path = (kl_bytes){(const char *)head->authority.data - 1, 1};
    head->query = mark ? (kl_bytes){mark + 1, (size_t)(text + len - mark - 1)} : (kl_bytes){0};
    return KL_PARSED_DONE;
}

static kl__parsed read_request_line(const char *line, size_t len, kl__head *head, kl__refused *ret_refused)
{
    const char *space = memchr(line, ' ', len);
    const char *last = space ? memrchr(line, ' ', len) : NULL;
    if (!space || last == space || !is_token((kl_bytes){line, (size_t)(space - line)}))
        return refuse(ret_refused, 400, "The request line is not METHOD, one space, target, one space, HTTP/1.1.");
    kl__parsed parsed = read_version(last + 1, len - (size_t)(last + 1 - line), head, ret_refused);
    if (parsed == KL_PARSED_DONE)
        parsed = read_target(space + 1, (size_t)(last - space - 1), head, ret_refused);
    if (parsed != KL_PARSED_DONE)
        return parsed;
    if (!find_method((kl_bytes){line, (size_t)(space - line)}, &head->method))
        return refuse(ret_refused, 501, "This method is not known here; /openapi.json lists the routes.");
    return KL_PARSED_DONE;
}

/* ---- Fields that say how a request is to be read ---- */

static kl__parsed read_length(kl_bytes value, kl__head *head, kl__refused *ret_refused)
{
    const char *text = value.data;
    if (head->content_length >= 0)
        return refuse(ret_refused, 400, "There are two Content-Length fields.");
    if (value.len == 0 || value.len > LENGTH_DIGITS_MAX)
        return refuse(ret_refused, 400, "Content-Length is not a number of at most 18 digits.");
    int64_t length = 0;
    for (size_t i = 0; i < value.len; i++) {
        if (!is_digit(text[i]))
            return refuse(ret_refused, 400, "Content-Length is not a number of at most 18 digits.");
        length = length * 10 + (text[i] - '0');
    }
    head->content_length = length;
    return KL_PARSED_DONE;
}

static kl__parsed read_transfer(kl_bytes value, kl__head *head, kl__refused *ret_refused)
{
    if (head->chunked)
        return refuse(ret_refused, 400, "There are two Transfer-Encoding fields.");
    if (!is_word_in_any_case(value, "chunked"))
        return refuse(ret_refused, 400, "Transfer-Encoding is something else than chunked.");
    head->chunked = true;
    return KL_PARSED_DONE;
}

/* Letters, digits and what else a name, an address and a port are made of. */
static kl__parsed read_host(kl_bytes value, bool *io_seen, kl__refused *ret_refused)
{
    const char *text = value.data;
    if (*io_seen)
        return refuse(ret_refused, 400, "There are two Host fields.");
    *io_seen = true;
    for (size_t i = 0; i < value.len; i++)
        if (text[i] <= ' ' || (unsigned char)text[i] >= 0x7f || memchr("\"#,/<>?@\\^`{|}", text[i], 14))
            return refuse(ret_refused, 400, "Host is not a name or an address.");
    return KL_PARSED_DONE;
}

static kl__parsed read_expect(kl_bytes value, kl__head *head, kl__refused *ret_refused)
{
    if (!is_word_in_any_case(value, "100-continue"))
        return refuse(ret_refused, 417, "Expect is something else than 100-continue.");
    head->expects_continue = head->minor == 1;
    return KL_PARSED_DONE;
}

/* A list of words; the one that matters is close. */
static void read_connection(kl_bytes value, kl__head *head)
{
    const char *text = value.data, *end = text + value.len;
    while (text < end) {
        const char *comma = memchr(text, ',', (size_t)(end - text));
        const char *stop = comma ? comma : end, *next = comma ? comma + 1 : end;
        while (text < stop && (*text == ' ' || *text == '\t'))
            text++;
        while (stop > text && (stop[-1] == ' ' || stop[-1] == '\t'))
            stop--;
        if (is_word_in_any_case((kl_bytes){text, (size_t)(stop - text)}, "close"))
            head->keep_alive = false;
        text = next;
    }
}

static kl__parsed heed_field(const kl__field *field, kl__head *head, bool *io_host, kl__refused *ret_refused)
{
    switch (field->name.len) {
    case 4:
        return is_word(field->name, "host") ? read_host(field->value, io_host, ret_refused) : KL_PARSED_DONE;
    case 6:
        return is_word(field->name, "expect") ? read_expect(field->value, head, ret_refused) : KL_PARSED_DONE;
    case 10:
        if (is_word(field->name, "connection"))
            read_connection(field->value, head);
        return KL_PARSED_DONE;
    case 14:
        return is_word(field->name, "content-length") ? read_length(field->value, head, ret_refused) : KL_PARSED_DONE;
    case 17:
        return is_word(field->name, "transfer-encoding") ? read_transfer(field->value, head, ret_refused)
                                                         : KL_PARSED_DONE;
    default:
        return KL_PARSED_DONE;
    }
}

/* ---- Lines ---- */

/* A line without its CR LF; the name becomes lower case. */
static kl__parsed read_field(char *line, size_t len, kl__field *ret_field, kl__refused *ret_refused)
{
    size_t colon = 0;
    for (unsigned char lower; colon < len && (lower = token_bytes[(unsigned char)line[colon]]) != 0; colon++)
        line[colon] = (char)lower;
    if (colon == 0 && (line[0] == ' ' || line[0] == '\t'))
        return refuse(ret_refused, 400, "A line of the head begins with a blank.");
    if (colon == 0 || colon == len || line[colon] != ':')
        return refuse(ret_refused, 400, "A line of the head is not a name that a colon follows at once.");
    size_t from = colon + 1, to = len;
    while (from < to && (line[from] == ' ' || line[from] == '\t'))
        from++;
    while (to > from && (line[to - 1] == ' ' || line[to - 1] == '\t'))
        to--;
    *ret_field = (kl__field){{line, colon}, {line + from, to - from}};
    return KL_PARSED_DONE;
}

/* Of two fields that say who asks, from where, or what for, it would be open which counts. */
static bool is_given_twice(const kl__head *head, const kl__field *field)
{
    static const char *const single[] = {"authorization", "content-type", "idempotency-key",
                                         "keyline-token", "origin",       "sec-fetch-site"};
    for (size_t i = 0; i < sizeof single / sizeof *single; i++) {
        if (!is_word(field->name, single[i]))
            continue;
        for (size_t other = 0; other < head->field_count; other++)
            if (is_word(head->fields[other].name, single[i]))
                return true;
    }
    return false;
}

/* What Host is compared with elsewhere holds for the address as well (R5). */
static kl__parsed check_authority(const kl__head *head, kl__refused *ret_refused)
{
    kl_bytes host = kl__head_field(head, "host");
    if (!head->authority.data)
        return KL_PARSED_DONE;
    if (host.len > 0 && head->authority.len == host.len && strncasecmp(head->authority.data, host.data, host.len) == 0)
        return KL_PARSED_DONE;
    return refuse(ret_refused, 400, "The address in the request line is not the one in Host; send the same in both.");
}

static kl__parsed read_fields(char *line, char *end, kl__head *head, kl__refused *ret_refused)
{
    bool host = false;
    for (char *stop; line < end; line = stop + 2) {
        stop = memchr(line, '\r', (size_t)(end - line));
        if (head->field_count == KL_FIELDS_MAX)
            return refuse(ret_refused, 431, "There are more than 64 fields in the head of the request; send fewer.");
        kl__field *field = &head->fields[head->field_count];
        kl__parsed parsed = read_field(line, (size_t)(stop - line), field, ret_refused);
        if (parsed == KL_PARSED_DONE)
            parsed = heed_field(field, head, &host, ret_refused);
        if (parsed == KL_PARSED_DONE && is_given_twice(head, field))
            parsed = refuse(ret_refused, 400, "A field that may be there once is there twice; send one of them.");
        if (parsed != KL_PARSED_DONE)
            return parsed;
        head->field_count++;
    }
    if (!host && head->minor == 1)
        return refuse(ret_refused, 400, "There is no Host field; send the name or address of the server.");
    return check_authority(head, ret_refused);
}

/* What may each be right by itself, and not together (R2). */
static kl__parsed check_framing(const kl__head *head, kl__refused *ret_refused)
{
    if (head->chunked && head->content_length >= 0)
        return refuse(ret_refused, 400, "There are both Content-Length and Transfer-Encoding.");
    if (head->chunked && head->minor == 0)
        return refuse(ret_refused, 400, "HTTP/1.0 has no Transfer-Encoding.");
    return KL_PARSED_DONE;
}

kl__parsed kl__parse_head(char *bytes, size_t len, size_t from, kl__head *ret_head, size_t *ret_used,
                          kl__refused *ret_refused)
{
    size_t end;
    kl__parsed parsed = find_end(bytes, len, from, &end, ret_refused);
    if (parsed != KL_PARSED_DONE)
        return parsed;
    ret_head->field_count = 0;
    ret_head->chunked = ret_head->expects_continue = false;
    ret_head->content_length = -1;
    ret_head->authority = (kl_bytes){0};
    char *line_end = memchr(bytes, '\r', end);
    parsed = read_request_line(bytes, (size_t)(line_end - bytes), ret_head, ret_refused);
    if (parsed == KL_PARSED_DONE)
        parsed = read_fields(line_end + 2, bytes + end - 2, ret_head, ret_refused);
    if (parsed == KL_PARSED_DONE)
        parsed = check_framing(ret_head, ret_refused);
    if (parsed == KL_PARSED_DONE)
        *ret_used = end;
    return parsed;
}

kl_bytes kl__head_field(const kl__head *head, const char *name)
{
    for (size_t i = 0; i < head->field_count; i++)
        if (is_word(head->fields[i].name, name))
            return head->fields[i].value;
    return (kl_bytes){0};
}

/* ---- Chunks ---- */

static int hex_digit(char byte)
{
    if (is_digit(byte))
        return byte - '0';
    if (byte >= 'a' && byte <= 'f')
        return byte - 'a' + 10;
    return byte >= 'A' && byte <= 'F' ? byte - 'A' + 10 : -1;
}

/* Whether CR LF stands at `at`: DONE, or MORE when the bytes end before that is known. */
static kl__parsed read_crlf(const char *bytes, size_t len, size_t at, const char *reason, kl__refused *ret_refused)
{
    if ((at < len && bytes[at] != '\r') || (at + 1 < len && bytes[at + 1] != '\n'))
        return refuse(ret_refused, 400, reason);
    return at + 1 < len ? KL_PARSED_DONE : KL_PARSED_MORE;
}

/* *io_at: where the line begins, and then where the chunk's bytes do. */
static kl__parsed read_size(const char *bytes, size_t len, size_t *io_at, size_t *ret_size, kl__refused *ret_refused)
{
    size_t at = *io_at, size = 0, digits = 0;
    for (int digit; at < len && (digit = hex_digit(bytes[at])) >= 0; at++) {
        if (++digits > CHUNK_DIGITS_MAX)
            return refuse(ret_refused, 400, "The size of a chunk has more than 8 digits.");
        size = size * 16 + (size_t)digit;
    }
    if (at < len && digits == 0)
        return refuse(ret_refused, 400, "The size of a chunk is not a hexadecimal number.");
    kl__parsed parsed =
        read_crlf(bytes, len, at, "The size of a chunk is followed by something else than CR LF.", ret_refused);
    if (parsed == KL_PARSED_DONE) {
        *io_at = at + 2;
        *ret_size = size;
    }
    return parsed;
}

/* One chunk: MORE until all of it is there, so that no state is needed beside where it begins. */
static kl__parsed read_chunk(char *bytes, size_t len, size_t body_max, size_t *io_from, size_t *io_to, bool *ret_last,
                             kl__refused *ret_refused)
{
    size_t at = *io_from, size;
    kl__parsed parsed = read_size(bytes, len, &at, &size, ret_refused);
    if (parsed != KL_PARSED_DONE)
        return parsed;
    if (size > body_max - *io_to)
        return refuse(ret_refused, 413, "The body is larger than allowed.");
    if (size > len - at)
        return KL_PARSED_MORE;
    parsed = read_crlf(bytes, len, at + size,
                       size ? "A chunk is longer than its size." : "There are trailers behind the body.", ret_refused);
    if (parsed != KL_PARSED_DONE)
        return parsed;
    memmove(bytes + *io_to, bytes + at, size);
    *io_to += size;
    *io_from = at + size + 2;
    *ret_last = size == 0;
    return KL_PARSED_DONE;
}

kl__parsed kl__parse_chunks(char *bytes, size_t len, size_t body_max, size_t *io_from, size_t *io_to,
                            kl__refused *ret_refused)
{
    for (bool last = false; !last;) {
        kl__parsed parsed = read_chunk(bytes, len, body_max, io_from, io_to, &last, ret_refused);
        if (parsed != KL_PARSED_DONE)
            return parsed;
    }
    return KL_PARSED_DONE;
}

/* ---- Escapes ---- */

static bool unescape(kl_bytes *io_part, bool plus_is_blank)
{
    char *text = (char *)io_part->data;
    size_t to = 0;
    for (size_t from = 0; from < io_part->len; from++, to++) {
        text[to] = text[from];
        if (plus_is_blank && text[from] == '+')
            text[to] = ' ';
        if (text[from] != '%')
            continue;
        if (io_part->len - from < 3 || hex_digit(text[from + 1]) < 0 || hex_digit(text[from + 2]) < 0)
            return false;
        text[to] = (char)(hex_digit(text[from + 1]) * 16 + hex_digit(text[from + 2]));
        from += 2;
    }
    io_part->len = to;
    return true;
}

bool kl__query_next(kl_bytes *io_query, kl_bytes *ret_name, kl_bytes *ret_value, bool *ret_bad)
{
    *ret_bad = false;
    const char *text = io_query->data, *end = text ? text + io_query->len : NULL;
    while (text < end && *text == '&')
        text++;
    if (text == end) {
        *io_query = (kl_bytes){0};
        return false;
    }
    const char *amp = memchr(text, '&', (size_t)(end - text)), *stop = amp ? amp : end;
    const char *sign = memchr(text, '=', (size_t)(stop - text)), *name_end = sign ? sign : stop;
    kl_bytes name = {text, (size_t)(name_end - text)};
    kl_bytes value = sign ? (kl_bytes){sign + 1, (size_t)(stop - sign - 1)} : (kl_bytes){stop, 0};
    *io_query = (kl_bytes){stop, (size_t)(end - stop)};
    *ret_bad = !unescape(&name, true) || !unescape(&value, true);
    *ret_name = name;
    *ret_value = value;
    return !*ret_bad;
}

bool kl__path_unescape(kl_bytes *io_part) { return unescape(io_part, false); }
