/* test_http.c - a server and its clients: what is answered, in which order, by whom, and what is refused. */
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "framing.h"
#include "harness.h"
#include "http_rig.h"

#define HOST "Host: x\r\n"

/* ---- Framing ---- */

/* Says the vector, at once or byte by byte, and hears how it ends. */
static void check_vector(struct rig *rig, const struct framing_vector *vector, bool slowly)
{
    struct client client;
    struct reply reply;
    if (!client_open(rig, &client))
        return;
    for (size_t i = 0; i < vector->len && client_say(&client, vector->bytes + i, slowly ? 1 : vector->len); i++)
        if (!slowly)
            break;
    if (!client_hear(&client, vector->bytes[0] == 'H', &reply)) {
        test_fail(__FILE__, __LINE__, "%s: no answer", vector->name);
        client_close(&client);
        return;
    }
    if (reply.status != (vector->status ? vector->status : 200))
        test_fail(__FILE__, __LINE__, "%s: status %d", vector->name, reply.status);
    bool is_head = vector->bytes[0] == 'H';
    if (!vector->status && !is_head &&
        (reply.body_len != vector->body_len || memcmp(reply.body, vector->body, vector->body_len) != 0))
        test_fail(__FILE__, __LINE__, "%s: another body came back", vector->name);
    if (vector->status && (!strstr(reply.head, "Connection: close\r\n") || !client_hear_end(&client)))
        test_fail(__FILE__, __LINE__, "%s: the connection was not closed", vector->name);
    reply_free(&reply);
    client_close(&client);
}

static void check_vectors(struct rig *rig, bool slowly)
{
    uint64_t refused = 0;
    for (size_t i = 0; i < framing_count; i++) {
        check_vector(rig, &framing_vectors[i], slowly);
        refused += framing_vectors[i].status != 0;
    }
    CHECK(refused >= 60);
    CHECK(kl__http_counted(rig->http).refused >= refused);
}

TEST(what_can_be_read_in_two_ways_is_refused_and_the_connection_closed)
{
    struct rig rig = {.opts.body_bytes_max = FRAMING_BODY_MAX};
    if (rig_open(&rig)) {
        check_vectors(&rig, false);
        rig_close(&rig);
    }
}

TEST(and_that_also_when_it_comes_byte_by_byte)
{
    struct rig rig = {.opts.body_bytes_max = FRAMING_BODY_MAX, .on_unix = true};
    if (rig_open(&rig)) {
        check_vectors(&rig, true);
        rig_close(&rig);
    }
}

TEST(a_refusal_says_what_is_wrong)
{
    struct rig rig = {0};
    struct client client;
    struct reply reply;
    REQUIRE(rig_open(&rig));
    if (client_open(&rig, &client)) {
        CHECK(client_say_text(&client, "GET / HTTP/1.1\r\n\r\n"));
        if (client_hear(&client, false, &reply)) {
            CHECK_CONTAINS(reply.head, "Content-Type: application/problem+json\r\n");
            CHECK_CONTAINS(reply.body, "{\"type\":\"/problems/bad-request\",\"title\":\"Bad Request\",\"status\":400,");
            CHECK_CONTAINS(reply.body, "There is no Host field;");
            reply_free(&reply);
        }
        client_close(&client);
    }
    rig_close(&rig);
}

/* ---- Answers ---- */

TEST(an_answer_has_a_date_a_type_a_length_and_its_fields)
{
    struct rig rig = {0};
    struct client client;
    struct reply reply;
    REQUIRE(rig_open(&rig));
    if (client_open(&rig, &client)) {
        CHECK(client_say_text(&client, "PUT /about HTTP/1.1\r\n" HOST "\r\n"));
        if (client_hear(&client, false, &reply)) {
            CHECK_INT(strncmp(reply.head, "HTTP/1.1 200 OK\r\nDate: ", 23), 0);
            CHECK_CONTAINS(reply.head, " GMT\r\nContent-Type: text/plain\r\nX-Peer: 127.0.0.1:");
            CHECK_CONTAINS(reply.head, "X-Sly: a  X-Evil: b\r\n");
            CHECK(!strstr(reply.head, "Connection:"));
            CHECK_STR(reply.body, "3 /about 1 0 0");
            reply_free(&reply);
        }
        client_close(&client);
    }
    rig_close(&rig);
}

TEST(head_and_204_have_no_body)
{
    struct rig rig = {0};
    struct client client;
    struct reply reply;
    REQUIRE(rig_open(&rig));
    if (client_open(&rig, &client)) {
        CHECK(client_say_text(&client, "HEAD /about HTTP/1.1\r\n" HOST "\r\nHEAD /large HTTP/1.1\r\n" HOST "\r\n"
                                       "GET /hold HTTP/1.1\r\n" HOST "\r\nPOST /echo HTTP/1.1\r\n" HOST
                                       "Content-Length: 2\r\n\r\nok"));
        REQUIRE(client_hear(&client, true, &reply));
        CHECK_CONTAINS(reply.head, "Content-Length: 14\r\n");
        reply_free(&reply);
        REQUIRE(client_hear(&client, true, &reply));
        CHECK_CONTAINS(reply.head, "Content-Length: 2097152\r\n");
        reply_free(&reply);
        CHECK(rig_await_held(&rig, 1));
        rig_release(&rig, 204);
        REQUIRE(client_hear(&client, true, &reply));
        CHECK_INT(reply.status, 204);
        CHECK(!strstr(reply.head, "Content-Length"));
        reply_free(&reply);
        REQUIRE(client_hear(&client, false, &reply));
        CHECK_STR(reply.body, "ok");
        reply_free(&reply);
        client_close(&client);
    }
    rig_close(&rig);
}

TEST(a_connection_is_used_again_and_again)
{
    struct rig rig = {0};
    struct client client;
    struct reply reply;
    REQUIRE(rig_open(&rig));
    if (client_open(&rig, &client)) {
        for (int i = 0; i < 100; i++) {
            char text[128], body[16];
            int len = snprintf(body, sizeof body, "n%d", i);
            snprintf(text, sizeof text, "POST %s HTTP/1.1\r\n" HOST "Content-Length: %d\r\n\r\n%s",
                     i % 2 ? "/later" : "/echo", len, body);
            REQUIRE(client_say_text(&client, text) && client_hear(&client, false, &reply));
            CHECK_INT(reply.status, 200);
            CHECK_STR(reply.body, body);
            reply_free(&reply);
        }
        client_close(&client);
    }
    CHECK_INT(kl__http_counted(rig.http).requests, 100);
    CHECK(rig_await_connections(&rig, 0));
    rig_close(&rig);
}

/* As many as fit several buffers, in pieces that end anywhere. */
TEST(requests_that_are_sent_ahead_are_answered_in_order)
{
    enum { COUNT = 1000 };
    struct rig rig = {0};
    struct client client;
    struct reply reply;
    static char text[COUNT * 100];
    size_t len = 0, said = 0;
    for (int i = 0; i < COUNT; i++)
        len += (size_t)snprintf(text + len, sizeof text - len,
                                i % 3 ? "POST %s HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\n%04d"
                                      : "POST %s HTTP/1.1\r\n" HOST
                                        "Transfer-Encoding: chunked\r\n\r\n4\r\n%04d\r\n0\r\n\r\n",
                                i % 2 ? "/later" : "/echo", i);
    REQUIRE(rig_open(&rig));
    REQUIRE(client_open(&rig, &client));
    for (int i = 0; i < COUNT; i++) {
        size_t piece = len - said < 777 ? len - said : 777;
        CHECK(client_say(&client, text + said, piece));
        said += piece;
        if (said < len && i < 60)
            continue; /* the client is far ahead when it begins to listen */
        for (int heard = 0; said == len && heard < COUNT; heard++) {
            char body[24];
            snprintf(body, sizeof body, "%04d", heard);
            REQUIRE(client_hear(&client, false, &reply));
            CHECK_STR(reply.body, body);
            reply_free(&reply);
        }
        if (said == len)
            break;
    }
    client_close(&client);
    rig_close(&rig);
}

TEST(answers_come_from_any_thread_to_many_connections)
{
    enum { CLIENTS = 32, ROUNDS = 200 };
    struct rig rig = {.opts.loops = 3};
    static struct client clients[CLIENTS];
    struct reply reply;
    REQUIRE(rig_open(&rig));
    for (int i = 0; i < CLIENTS; i++)
        REQUIRE(client_open(&rig, &clients[i]));
    int rounds = (int)test_rounds(ROUNDS);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < CLIENTS; i++) {
            char text[128];
            snprintf(text, sizeof text, "POST /later HTTP/1.1\r\n" HOST "Content-Length: 6\r\n\r\n%03d%03d", round, i);
            CHECK(client_say_text(&clients[i], text));
        }
        for (int i = 0; i < CLIENTS; i++) {
            char body[24];
            snprintf(body, sizeof body, "%03d%03d", round, i);
            REQUIRE(client_hear(&clients[i], false, &reply));
            CHECK_STR(reply.body, body);
            reply_free(&reply);
        }
    }
    CHECK_INT(kl__http_counted(rig.http).requests, (int64_t)rounds * CLIENTS);
    for (int i = 0; i < CLIENTS; i++)
        client_close(&clients[i]);
    rig_close(&rig);
}

TEST(a_large_answer_goes_to_a_client_that_takes_its_time)
{
    struct rig rig = {0};
    struct client client;
    struct reply reply;
    REQUIRE(rig_open(&rig));
    REQUIRE(client_open(&rig, &client));
    for (int round = 0; round < 3; round++) {
        CHECK(client_say_text(&client, "GET /large HTTP/1.1\r\n" HOST "\r\nGET /echo HTTP/1.1\r\n" HOST "\r\n"));
        REQUIRE(client_hear(&client, false, &reply));
        CHECK_INT(reply.body_len, RIG_LARGE);
        bool same = true;
        for (size_t i = 0; i < reply.body_len; i++)
            same &= reply.body[i] == (char)('a' + i % 23);
        CHECK(same);
        reply_free(&reply);
        REQUIRE(client_hear(&client, false, &reply));
        CHECK_INT(reply.body_len, 0);
        reply_free(&reply);
    }
    client_close(&client);
    rig_close(&rig);
}

/* ---- Bodies ---- */

static void fill(char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        bytes[i] = (char)(i * 7 + i / 251);
}

/* Sent and sent back, with a second request at once behind it. */
static void check_body(struct rig *rig, const char *bytes, size_t len, size_t chunk)
{
    static struct client client;
    struct reply reply;
    char text[128];
    if (!client_open(rig, &client))
        return;
    if (chunk == 0) {
        snprintf(text, sizeof text, "POST /later HTTP/1.1\r\n" HOST "Content-Length: %zu\r\n\r\n", len);
        CHECK(client_say_text(&client, text) && client_say(&client, bytes, len));
    } else {
        CHECK(client_say_text(&client, "POST /later HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"));
        for (size_t at = 0; at < len; at += chunk) {
            size_t some = len - at < chunk ? len - at : chunk;
            snprintf(text, sizeof text, "%zx\r\n", some);
            CHECK(client_say_text(&client, text) && client_say(&client, bytes + at, some));
            CHECK(client_say_text(&client, "\r\n"));
        }
        CHECK(client_say_text(&client, "0\r\n\r\n"));
    }
    CHECK(client_say_text(&client, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nnext"));
    REQUIRE(client_hear(&client, false, &reply));
    CHECK_INT(reply.body_len, len);
    CHECK(reply.body_len == len && memcmp(reply.body, bytes, len) == 0);
    reply_free(&reply);
    REQUIRE(client_hear(&client, false, &reply));
    CHECK_STR(reply.body, "next");
    reply_free(&reply);
    client_close(&client);
}

TEST(bodies_of_any_size_come_whole)
{
    enum { LARGEST = 3 << 20 };
    static const size_t sizes[] = {1, 4000, 16000, 20000, 20479, 20480, 20481, 65535, 65536, 65537, 200000, LARGEST};
    struct rig rig = {0};
    char *bytes = malloc(LARGEST);
    REQUIRE(bytes && rig_open(&rig));
    fill(bytes, LARGEST);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        check_body(&rig, bytes, sizes[i], 0);
        check_body(&rig, bytes, sizes[i], 1 + sizes[i] / 7);
        check_body(&rig, bytes, sizes[i], sizes[i]);
    }
    check_body(&rig, bytes, 20000, 1);
    check_body(&rig, bytes, 100000, 13);
    free(bytes);
    rig_close(&rig);
}

TEST(a_client_that_expects_to_be_told_to_go_on_is_told)
{
    struct rig rig = {.opts.body_bytes_max = 1000};
    struct client client;
    struct reply reply;
    REQUIRE(rig_open(&rig));
    REQUIRE(client_open(&rig, &client));
    CHECK(client_say_text(&client, "POST /echo HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"));
    CHECK(client_hear_bytes(&client, "HTTP/1.1 100 Continue\r\n\r\n"));
    CHECK(client_say_text(&client, "hello"));
    REQUIRE(client_hear(&client, false, &reply));
    CHECK_STR(reply.body, "hello");
    reply_free(&reply);
    CHECK(
        client_say_text(&client, "POST /echo HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 2\r\n\r\nok"));
    REQUIRE(client_hear(&client, false, &reply));
    CHECK_INT(reply.status, 200); /* the body was there: there was nothing to be told */
    reply_free(&reply);
    CHECK(client_say_text(&client,
                          "POST /echo HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 1001\r\n\r\n"));
    REQUIRE(client_hear(&client, false, &reply));
    CHECK_INT(reply.status, 413);
    reply_free(&reply);
    client_close(&client);
    rig_close(&rig);
}

/* ---- Ends ---- */

TEST(a_connection_is_closed_when_the_client_or_its_version_asks_for_it)
{
    static const char *const texts[] = {"GET /echo HTTP/1.0\r\n\r\n",
                                        "GET /later HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n"};
    struct rig rig = {0};
    struct client client;
    struct reply reply;
    REQUIRE(rig_open(&rig));
    for (int i = 0; i < 2; i++) {
        REQUIRE(client_open(&rig, &client));
        CHECK(client_say_text(&client, texts[i]));
        REQUIRE(client_hear(&client, false, &reply));
        CHECK_CONTAINS(reply.head, "Connection: close\r\n");
        CHECK(client_hear_end(&client));
        reply_free(&reply);
        client_close(&client);
    }
    CHECK(rig_await_connections(&rig, 0));
    rig_close(&rig);
}

TEST(a_client_that_has_shut_down_its_side_still_gets_its_answers)
{
    struct rig rig = {0};
    struct client client;
    struct reply reply;
    REQUIRE(rig_open(&rig));
    REQUIRE(client_open(&rig, &client));
    CHECK(client_say_text(&client, "GET /large HTTP/1.1\r\n" HOST "\r\nPOST /later HTTP/1.1\r\n" HOST
                                   "Content-Length: 2\r\n\r\nok"));
    shutdown(client.fd, SHUT_WR);
    REQUIRE(client_hear(&client, false, &reply));
    CHECK_INT(reply.body_len, RIG_LARGE);
    reply_free(&reply);
    REQUIRE(client_hear(&client, false, &reply));
    CHECK_STR(reply.body, "ok");
    reply_free(&reply);
    CHECK(client_hear_end(&client));
    client_close(&client);
    rig_close(&rig);
}

TEST(a_request_that_ends_in_the_middle_is_refused)
{
    static const char *const texts[] = {
        "GET /echo HTTP/1.1\r\n", "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhell",
        "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"};
    struct rig rig = {0};
    struct client client;
    struct reply reply;
    REQUIRE(rig_open(&rig));
    for (int i = 0; i < 3; i++) {
        REQUIRE(client_open(&rig, &client));
        CHECK(client_say_text(&client, texts[i]));
        shutdown(client.fd, SHUT_WR);
        REQUIRE(client_hear(&client, false, &reply));
        CHECK_INT(reply.status, 400);
        CHECK(client_hear_end(&client));
        reply_free(&reply);
        client_close(&client);
    }
    CHECK_INT(kl__http_counted(rig.http).requests, 0);
    rig_close(&rig);
}

TEST(who_holds_a_request_is_told_when_its_client_goes)
{
    struct rig rig = {0};
    struct client client;
    REQUIRE(rig_open(&rig));
    for (int i = 0; i < 4; i++) {
        rig.on_unix = false;
        REQUIRE(client_open(&rig, &client));
        CHECK(client_say_text(&client, i == 2 ? "GET /hold HTTP/1.1\r\n" HOST "\r\nGET /echo"
                                              : "GET /hold HTTP/1.1\r\n" HOST "\r\n"));
        CHECK(rig_await_held(&rig, (size_t)i + 1));
        if (i == 3) { /* a reset */
            const struct linger abort_it = {.l_onoff = 1};
            setsockopt(client.fd, SOL_SOCKET, SO_LINGER, &abort_it, sizeof abort_it);
        }
        client_close(&client);
        CHECK(rig_await_gone(&rig, (size_t)i + 1));
    }
    while (rig.held_count > 0)
        rig_release(&rig, 200);
    CHECK(rig_await_connections(&rig, 0));
    check_ask(&rig, "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    rig_close(&rig);
}

TEST(nobody_is_told_of_a_client_that_goes_after_its_answer)
{
    struct rig rig = {0};
    struct client client;
    struct reply reply;
    REQUIRE(rig_open(&rig));
    REQUIRE(client_open(&rig, &client));
    CHECK(client_say_text(&client, "GET /hold HTTP/1.1\r\n" HOST "\r\n"));
    CHECK(rig_await_held(&rig, 1));
    rig_release(&rig, 200);
    REQUIRE(client_hear(&client, false, &reply));
    CHECK_STR(reply.body, "released");
    reply_free(&reply);
    client_close(&client);
    CHECK(rig_await_connections(&rig, 0));
    CHECK_INT(rig.gone, 0);
    rig_close(&rig);
}
