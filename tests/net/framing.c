/* framing.c - requests that are refused and requests that are fine, byte by byte, for the parser and for the server. */
#include "framing.h"

#include <string.h>

#define REFUSED(name_, status_, bytes_)                                                                                \
    {                                                                                                                  \
        .name = (name_), .bytes = (bytes_), .len = sizeof(bytes_) - 1, .status = (status_)                             \
    }
#define FINE(name_, bytes_, body_, rest_)                                                                              \
    {                                                                                                                  \
        .name = (name_), .bytes = (bytes_), .len = sizeof(bytes_) - 1, .body = (body_), .body_len = sizeof(body_) - 1, \
        .rest = (rest_)                                                                                                \
    }

#define POST    "POST /a HTTP/1.1\r\nHost: x\r\n"
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"
#define EIGHT   "a:\r\na:\r\na:\r\na:\r\na:\r\na:\r\na:\r\na:\r\n"

const struct framing_vector framing_vectors[] = {
    /* How long is the body? */
    REFUSED("length and chunks", 400, POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    REFUSED("chunks and length", 400, POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
    REFUSED("two different lengths", 400, POST "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
    REFUSED("the same length twice", 400, POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
    REFUSED("a list of lengths", 400, POST "Content-Length: 5, 5\r\n\r\nhello"),
    REFUSED("a length with a plus", 400, POST "Content-Length: +5\r\n\r\nhello"),
    REFUSED("a negative length", 400, POST "Content-Length: -5\r\n\r\nhello"),
    REFUSED("a hexadecimal length", 400, POST "Content-Length: 0x5\r\n\r\nhello"),
    REFUSED("a length with an exponent", 400, POST "Content-Length: 5e0\r\n\r\nhello"),
    REFUSED("a length with a fraction", 400, POST "Content-Length: 5.0\r\n\r\nhello"),
    REFUSED("a length with a parameter", 400, POST "Content-Length: 5;a=b\r\n\r\nhello"),
    REFUSED("an empty length", 400, POST "Content-Length:\r\n\r\nhello"),
    REFUSED("a blank length", 400, POST "Content-Length: \t \r\n\r\nhello"),
    REFUSED("two numbers as length", 400, POST "Content-Length: 5 5\r\n\r\nhello"),
    REFUSED("a length in quotes", 400, POST "Content-Length: \"5\"\r\n\r\nhello"),
    REFUSED("a length of 19 digits", 400, POST "Content-Length: 1000000000000000000\r\n\r\nhello"),
    REFUSED("a length that wraps around", 400, POST "Content-Length: 18446744073709551621\r\n\r\nhello"),
    REFUSED("a length of many zeros", 400, POST "Content-Length: 000000000000000000000005\r\n\r\nhello"),
    REFUSED("a length in other digits", 400, POST "Content-Length: \xd9\xa5\r\n\r\nhello"),
    REFUSED("a length beyond the limit", 413, POST "Content-Length: 1001\r\n\r\nhello"),
    REFUSED("a blank before the colon", 400, POST "Content-Length : 5\r\n\r\nhello"),
    REFUSED("a tab before the colon", 400, POST "Content-Length\t: 5\r\n\r\nhello"),
    REFUSED("chunked twice", 400, POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    REFUSED("chunked and identity", 400,
            POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n"),
    REFUSED("gzip and chunked", 400, POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    REFUSED("chunked and chunked", 400, POST "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    REFUSED("chunked and nothing", 400, POST "Transfer-Encoding: chunked,\r\n\r\n0\r\n\r\n"),
    REFUSED("something like chunked", 400, POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    REFUSED("chunked with a parameter", 400, POST "Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n"),
    REFUSED("chunked in quotes", 400, POST "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n"),
    REFUSED("identity", 400, POST "Transfer-Encoding: identity\r\n\r\n0\r\n\r\n"),
    REFUSED("an empty transfer encoding", 400, POST "Transfer-Encoding:\r\n\r\n0\r\n\r\n"),
    REFUSED("a vertical tab before chunked", 400, POST "Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n"),
    REFUSED("a blank before the colon of chunked", 400, POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
    REFUSED("chunks in HTTP/1.0", 400, "POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),

    /* Where does a line end? */
    REFUSED("LF alone everywhere", 400, "POST /a HTTP/1.1\nHost: x\nContent-Length: 0\n\n"),
    REFUSED("LF alone after the request line", 400, "GET /a HTTP/1.1\nHost: x\r\n\r\n"),
    REFUSED("LF alone after a field", 400, POST "A: b\nContent-Length: 0\r\n\r\n"),
    REFUSED("LF alone as the empty line", 400, POST "Content-Length: 0\r\n\n"),
    REFUSED("LF CR", 400, POST "Content-Length: 0\n\r\n\r"),
    REFUSED("CR alone in a value", 400, POST "A: b\rX: c\r\nContent-Length: 0\r\n\r\n"),
    REFUSED("CR alone in a name", 400, POST "A\rB: c\r\nContent-Length: 0\r\n\r\n"),
    REFUSED("CR alone in the target", 400, "GET /a\rb HTTP/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("CR CR LF", 400, POST "Content-Length: 0\r\r\n\r\n"),
    REFUSED("CR CR as the empty line", 400, POST "Content-Length: 0\r\r"),
    REFUSED("NUL in a value", 400, POST "A: b\0c\r\nContent-Length: 0\r\n\r\n"),
    REFUSED("NUL in a name", 400, POST "A\0: b\r\nContent-Length: 0\r\n\r\n"),
    REFUSED("NUL in the target", 400, "GET /a\0b HTTP/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("NUL in the method", 400, "G\0ET /a HTTP/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("a control character in a value", 400, POST "A: b\x01\r\n\r\n"),
    REFUSED("an escape in a value", 400, POST "A: \x1b[2J\r\n\r\n"),
    REFUSED("a form feed in a value", 400, POST "A: b\fc\r\n\r\n"),
    REFUSED("DEL in a value", 400, POST "A: b\x7f\r\n\r\n"),
    REFUSED("a folded line", 400, POST "A: b\r\n c\r\nContent-Length: 0\r\n\r\n"),
    REFUSED("a line folded with a tab", 400, POST "A: b\r\n\tc\r\nContent-Length: 0\r\n\r\n"),
    REFUSED("a folded transfer encoding", 400, POST "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
    REFUSED("a folded line of nothing", 400, POST "A: b\r\n \r\nContent-Length: 0\r\n\r\n"),
    REFUSED("a blank before the first field", 400, "GET /a HTTP/1.1\r\n Host: x\r\n\r\n"),
    REFUSED("an empty line at first", 400, "\r\nGET /a HTTP/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("LF at first", 400, "\nGET /a HTTP/1.1\r\nHost: x\r\n\r\n"),

    /* What is the request line? */
    REFUSED("a blank at first", 400, " GET /a HTTP/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("two blanks before the target", 400, "GET  /a HTTP/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("two blanks behind the target", 400, "GET /a  HTTP/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("a blank at the end", 400, "GET /a HTTP/1.1 \r\nHost: x\r\n\r\n"),
    REFUSED("a tab for a blank", 400, "GET\t/a HTTP/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("a blank in the target", 400, "GET /a b HTTP/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("no version", 400, "GET /a\r\nHost: x\r\n\r\n"),
    REFUSED("no target", 400, "GET HTTP/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("an empty target", 400, "GET  HTTP/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("only a word", 400, "hello\r\n\r\n"),
    REFUSED("HTTP/1.2", 505, "GET /a HTTP/1.2\r\nHost: x\r\n\r\n"),
    REFUSED("HTTP/2.0", 505, "PRI /a HTTP/2.0\r\nHost: x\r\n\r\n"),
    REFUSED("HTTP/0.9", 505, "GET /a HTTP/0.9\r\nHost: x\r\n\r\n"),
    REFUSED("HTTP/1.10", 400, "GET /a HTTP/1.10\r\nHost: x\r\n\r\n"),
    REFUSED("HTTP/1", 400, "GET /a HTTP/1\r\nHost: x\r\n\r\n"),
    REFUSED("http in lower case", 400, "GET /a http/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("another protocol", 400, "GET /a ICAP/1.0\r\nHost: x\r\n\r\n"),
    REFUSED("a whole address and another Host", 400, "GET http://x/a HTTP/1.1\r\nHost: y\r\n\r\n"),
    REFUSED("a whole address and no Host", 400, "GET http://x/a HTTP/1.0\r\n\r\n"),
    REFUSED("a whole address without a name", 400, "GET http:///a HTTP/1.1\r\nHost:\r\n\r\n"),
    REFUSED("a name and password in the address", 400, "GET http://u:p@x/a HTTP/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("an address of another scheme", 400, "GET ftp://x/a HTTP/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("a target that is a host", 400, "CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("a star for a target", 400, "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("a fragment", 400, "GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("bytes beyond ASCII in the target", 400, "GET /\xc3\xa4 HTTP/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("a method that is no token", 400, "GE(T /a HTTP/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("a method in lower case", 501, "get /a HTTP/1.1\r\nHost: x\r\n\r\n"),
    REFUSED("a method that is not known", 501, "TRACE /a HTTP/1.1\r\nHost: x\r\n\r\n"),

    /* Which host, which fields? */
    REFUSED("no host", 400, "GET /a HTTP/1.1\r\nAccept: x\r\n\r\n"),
    REFUSED("no field at all", 400, "GET /a HTTP/1.1\r\n\r\n"),
    REFUSED("two hosts", 400, "GET /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"),
    REFUSED("the same host twice", 400, "GET /a HTTP/1.1\r\nHost: x\r\nhost: x\r\n\r\n"),
    REFUSED("two hosts in HTTP/1.0", 400, "GET /a HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n"),
    REFUSED("two bearers", 400,
            "GET /a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n"),
    REFUSED("two kinds of content", 400,
            "GET /a HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Type: application/json\r\n\r\n"),
    REFUSED("two idempotency keys", 400,
            "GET /a HTTP/1.1\r\nHost: x\r\nIdempotency-Key: a\r\nIdempotency-Key: a\r\n\r\n"),
    REFUSED("a list of hosts", 400, "GET /a HTTP/1.1\r\nHost: x, y\r\n\r\n"),
    REFUSED("a host with a path", 400, "GET /a HTTP/1.1\r\nHost: x/y\r\n\r\n"),
    REFUSED("a host with a user", 400, "GET /a HTTP/1.1\r\nHost: y@x\r\n\r\n"),
    REFUSED("a host with a blank", 400, "GET /a HTTP/1.1\r\nHost: x y\r\n\r\n"),
    REFUSED("a host beyond ASCII", 400, "GET /a HTTP/1.1\r\nHost: \xc3\xa4\r\n\r\n"),
    REFUSED("a field without a name", 400, POST ": b\r\n\r\n"),
    REFUSED("a field without a colon", 400, POST "abc\r\nContent-Length: 0\r\n\r\n"),
    REFUSED("a name with a blank", 400, POST "A B: c\r\n\r\n"),
    REFUSED("a name with a bracket", 400, POST "A(: c\r\n\r\n"),
    REFUSED("a name beyond ASCII", 400, POST "\xc3\xa4: c\r\n\r\n"),
    REFUSED("65 fields", 431, POST EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT "\r\n"),
    REFUSED("an expectation that is not known", 417, POST "Expect: a-miracle\r\nContent-Length: 0\r\n\r\n"),

    /* Where does a chunk end? */
    REFUSED("a size that is no number", 400, CHUNKED "xyz\r\nhello\r\n0\r\n\r\n"),
    REFUSED("no size", 400, CHUNKED "\r\nhello\r\n0\r\n\r\n"),
    REFUSED("LF alone around chunks", 400, CHUNKED "5\nhello\n0\n\n"),
    REFUSED("LF alone behind a size", 400, CHUNKED "5\nhello\r\n0\r\n\r\n"),
    REFUSED("LF alone behind a chunk", 400, CHUNKED "5\r\nhello\n0\r\n\r\n"),
    REFUSED("LF alone at the end", 400, CHUNKED "5\r\nhello\r\n0\r\n\n"),
    REFUSED("CR alone behind a size", 400, CHUNKED "5\rhello\r\n0\r\n\r\n"),
    REFUSED("CR and something behind a size", 400, CHUNKED "5\r\rhello\r\n0\r\n\r\n"),
    REFUSED("an extension", 400, CHUNKED "5;a=b\r\nhello\r\n0\r\n\r\n"),
    REFUSED("an extension with NUL", 400, CHUNKED "5;a=\0\r\nhello\r\n0\r\n\r\n"),
    REFUSED("an extension with LF", 400, CHUNKED "5;a\nb\r\nhello\r\n0\r\n\r\n"),
    REFUSED("a blank before a size", 400, CHUNKED " 5\r\nhello\r\n0\r\n\r\n"),
    REFUSED("a blank behind a size", 400, CHUNKED "5 \r\nhello\r\n0\r\n\r\n"),
    REFUSED("a size with 0x", 400, CHUNKED "0x5\r\nhello\r\n0\r\n\r\n"),
    REFUSED("a size with a plus", 400, CHUNKED "+5\r\nhello\r\n0\r\n\r\n"),
    REFUSED("a negative size", 400, CHUNKED "-5\r\nhello\r\n0\r\n\r\n"),
    REFUSED("a size of nine digits", 400, CHUNKED "000000005\r\nhello\r\n0\r\n\r\n"),
    REFUSED("a size that wraps around", 400, CHUNKED "10000000000000005\r\nhello\r\n0\r\n\r\n"),
    REFUSED("a chunk that is longer than its size", 400, CHUNKED "4\r\nhello\r\n0\r\n\r\n"),
    REFUSED("a chunk that is shorter than its size", 400, CHUNKED "6\r\nhello\r\n0\r\n\r\n"),
    REFUSED("a trailer", 400, CHUNKED "5\r\nhello\r\n0\r\nA: b\r\n\r\n"),
    REFUSED("a length as trailer", 400, CHUNKED "0\r\nContent-Length: 5\r\n\r\nhello"),
    REFUSED("a chunk beyond the limit", 413, CHUNKED "3e9\r\nhello"),
    REFUSED("chunks that add up beyond the limit", 413, CHUNKED "5\r\nhello\r\n3e4\r\nhello"),

    /* And these are fine. */
    FINE("a GET", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "", 0),
    FINE("a HEAD with a query", "HEAD /a?b=c&d=%20 HTTP/1.1\r\nHost: x\r\n\r\n", "", 0),
    FINE("a whole address", "GET http://x:7420/a?b HTTP/1.1\r\nHost: X:7420\r\n\r\n", "", 0),
    FINE("a whole address without a path", "GET HTTPS://x HTTP/1.1\r\nHost: x\r\n\r\n", "", 0),
    FINE("no host in HTTP/1.0", "GET / HTTP/1.0\r\n\r\n", "", 0),
    FINE("an empty host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", "", 0),
    FINE("an address with a port", "GET / HTTP/1.1\r\nHost: [::1]:7420\r\n\r\n", "", 0),
    FINE("a body", POST "Content-Length: 5\r\n\r\nhello", "hello", 0),
    FINE("a length with zeros and blanks", POST "Content-Length: \t005 \t\r\n\r\nhello", "hello", 0),
    FINE("an empty body", POST "Content-Length: 0\r\n\r\n", "", 0),
    FINE("a body of any bytes", POST "Content-Length: 7\r\n\r\n\0\r\n\r\n\n\xff", "\0\r\n\r\n\n\xff", 0),
    FINE("one request behind another", POST "Content-Length: 2\r\n\r\nokGET / HTTP/1.1\r\n", "ok", 16),
    FINE("names in any case", "POST /a HTTP/1.1\r\nhOST: x\r\ncOnTeNt-LeNgTh: 2\r\n\r\nok", "ok", 0),
    FINE("chunks", CHUNKED "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", "hello world", 0),
    FINE("a chunk with bytes behind", CHUNKED "2\r\nok\r\n0\r\n\r\nGET", "ok", 3),
    FINE("no chunks", CHUNKED "0\r\n\r\n", "", 0),
    FINE("sizes in any case, with zeros", CHUNKED "0000000A\r\n0123456789\r\na\r\n0123456789\r\n00\r\n\r\n",
         "01234567890123456789", 0),
    FINE("chunks of any bytes", CHUNKED "4\r\n\r\n\0\n\r\n0\r\n\r\n", "\r\n\0\n", 0),
    FINE("chunked in any case", POST "Transfer-Encoding: Chunked\r\n\r\n0\r\n\r\n", "", 0),
    FINE("a value with tabs and bytes beyond ASCII", POST "A: \tb\tc \xc3\xa4\xff\t\r\n\r\n", "", 0),
    FINE("a field without a value", POST "A:\r\nB: \r\n\r\n", "", 0),
    FINE("64 fields", POST EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT "b:\r\nb:\r\nb:\r\nb:\r\nb:\r\nb:\r\nb:\r\n\r\n",
         "", 0),
};

const size_t framing_count = sizeof framing_vectors / sizeof framing_vectors[0];

/* ---- Reading ---- */

static kl__parsed read_length(const struct framing_result *result, size_t have, size_t *ret_len,
                              kl__refused *ret_refused)
{
    size_t length = result->head.content_length > 0 ? (size_t)result->head.content_length : 0;
    if (length > FRAMING_BODY_MAX) {
        *ret_refused = (kl__refused){413, ""};
        return KL_PARSED_REFUSED;
    }
    *ret_len = length;
    return have < length ? KL_PARSED_MORE : KL_PARSED_DONE;
}

static int status_of(kl__parsed parsed, const kl__refused *refused)
{
    return parsed == KL_PARSED_DONE ? 0 : parsed == KL_PARSED_MORE ? -1 : refused->status;
}

struct framing_result framing_read(char *bytes, size_t len, size_t split)
{
    struct framing_result result = {0};
    kl__refused refused = {0};
    size_t head_len = 0, have = split, seen = 0, from = 0, to = 0;
    kl__parsed parsed;
    while ((parsed = kl__parse_head(bytes, have, seen, &result.head, &head_len, &refused)) == KL_PARSED_MORE &&
           have < len) {
        seen = have;
        have = len;
    }
    if (parsed != KL_PARSED_DONE) {
        result.status = status_of(parsed, &refused);
        return result;
    }
    char *body = bytes + head_len;
    for (;; have = len) {
        if (result.head.chunked)
            parsed = kl__parse_chunks(body, have - head_len, FRAMING_BODY_MAX, &from, &to, &refused);
        else
            parsed = read_length(&result, have - head_len, &to, &refused);
        if (parsed != KL_PARSED_MORE || have == len)
            break;
    }
    result.status = status_of(parsed, &refused);
    result.body = (kl_bytes){body, to};
    result.used = head_len + (result.head.chunked ? from : to);
    return result;
}
