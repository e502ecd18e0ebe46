/* test_http_limits.c - what a connection may not do: be slow, be large, be one too many. And what stops and breaks. */
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness.h"
#include "http_rig.h"

#define HOST "Host: x\r\n"
#define GET  "GET /echo HTTP/1.1\r\n" HOST "\r\n"

static void note_no_more(void *ctx) { (void)ctx; }

/* Says it, and hears this status and the end. */
static void check_refused(struct rig *rig, const char *text, int status)
{
    static struct client client;
    struct reply reply;
    if (!client_open(rig, &client))
        return;
    CHECK(client_say_text(&client, text));
    REQUIRE(client_hear(&client, false, &reply));
    CHECK_INT(reply.status, status);
    CHECK_CONTAINS(reply.head, "Connection: close\r\n");
    CHECK(client_hear_end(&client));
    reply_free(&reply);
    client_close(&client);
}

/* ---- Time ---- */

TEST(a_head_that_does_not_come_in_time_is_refused)
{
    struct rig rig = {.opts.head_ms = 30};
    REQUIRE(rig_open(&rig));
    check_refused(&rig, "GET /echo HTTP/1.1\r\nHo", 408);
    struct client client;
    struct reply reply;
    REQUIRE(client_open(&rig, &client));
    CHECK(client_say_text(&client, GET "GET"));
    for (int i = 0; i < 2; i++) {
        REQUIRE(client_hear(&client, false, &reply));
        CHECK_INT(reply.status, i == 0 ? 200 : 408); /* the second has begun behind the first */
        reply_free(&reply);
    }
    client_close(&client);
    rig_close(&rig);
}

/* Each byte comes well within the time, and all of them do not: it counts from the first byte. */
TEST(bytes_that_trickle_do_not_make_a_head_last_longer)
{
    struct rig rig = {.opts.head_ms = 200};
    struct client client;
    struct reply reply;
    REQUIRE(rig_open(&rig));
    REQUIRE(client_open(&rig, &client));
    const struct timeval moment = {.tv_usec = 10000};
    setsockopt(client.fd, SOL_SOCKET, SO_RCVTIMEO, &moment, sizeof moment);
    CHECK(client_say_text(&client, "GET /echo HTTP/1.1\r\nA: "));
    bool answered = false;
    for (int i = 0; i < 6000 && !answered; i++) {
        client_say_text(&client, "a");
        answered = client_hear(&client, false, &reply);
    }
    REQUIRE(answered);
    CHECK_INT(reply.status, 408);
    reply_free(&reply);
    client_close(&client);
    rig_close(&rig);
}

TEST(a_body_that_does_not_come_in_time_is_refused)
{
    struct rig rig = {.opts.body_ms = 30};
    REQUIRE(rig_open(&rig));
    check_refused(&rig, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhell", 408);
    check_refused(&rig, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5000000\r\n\r\nhell", 408);
    check_refused(&rig, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", 408);
    rig_close(&rig);
}

TEST(a_connection_that_is_idle_for_long_is_closed_without_a_word)
{
    struct rig rig = {.opts.idle_ms = 500};
    struct client client;
    struct reply reply;
    REQUIRE(rig_open(&rig));
    REQUIRE(client_open(&rig, &client));
    CHECK(client_hear_end(&client));
    client_close(&client);
    REQUIRE(client_open(&rig, &client));
    CHECK(client_say_text(&client, GET));
    REQUIRE(client_hear(&client, false, &reply));
    CHECK_INT(reply.status, 200);
    reply_free(&reply);
    CHECK(client_hear_end(&client));
    client_close(&client);
    CHECK_INT(kl__http_counted(rig.http).refused, 0);
    rig_close(&rig);
}

/* A request that waits for its answer is not idle. */
TEST(who_waits_for_an_answer_is_not_closed)
{
    struct rig rig = {.opts.idle_ms = 200, .opts.head_ms = 200, .opts.body_ms = 200, .opts.send_ms = 200};
    struct client waiting, idle;
    struct reply reply;
    REQUIRE(rig_open(&rig));
    REQUIRE(client_open(&rig, &waiting));
    CHECK(client_say_text(&waiting, "GET /hold HTTP/1.1\r\n" HOST "\r\n"));
    CHECK(rig_await_held(&rig, 1));
    for (int i = 0; i < 10; i++) { /* ten times the time after which others are closed */
        REQUIRE(client_open(&rig, &idle));
        CHECK(client_hear_end(&idle));
        client_close(&idle);
    }
    rig_release(&rig, 200);
    REQUIRE(client_hear(&waiting, false, &reply));
    CHECK_STR(reply.body, "released");
    reply_free(&reply);
    client_close(&waiting);
    rig_close(&rig);
}

TEST(a_client_that_does_not_take_its_answer_is_cut_off)
{
    enum { ASKED = 16 };
    struct rig rig = {.opts.send_ms = 50};
    struct client client;
    REQUIRE(rig_open(&rig));
    REQUIRE(client_open(&rig, &client));
    int small = 4096;
    setsockopt(client.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    for (int i = 0; i < ASKED; i++)
        CHECK(client_say_text(&client, "GET /large HTTP/1.1\r\n" HOST "\r\n"));
    CHECK(rig_await_connections(&rig, 0));
    CHECK(kl__http_counted(rig.http).bytes_out < (uint64_t)ASKED * RIG_LARGE);
    client_close(&client);
    rig_close(&rig);
}

/* ---- Size ---- */

static void check_head_of(struct rig *rig, size_t target, size_t field, int status)
{
    static char text[40000];
    int len =
        snprintf(text, sizeof text, "GET /%0*d HTTP/1.1\r\n" HOST "A: %0*d\r\n\r\n", (int)target - 1, 0, (int)field, 0);
    CHECK(len > 0 && (size_t)len < sizeof text);
    if (status == 200)
        check_ask(rig, text, 200, "");
    else
        check_refused(rig, text, status);
}

TEST(heads_and_targets_beyond_their_limits_are_refused)
{
    enum { MAX = 2048 };
    struct rig rig = {.opts.head_bytes_max = MAX};
    const size_t around = strlen("GET  HTTP/1.1\r\nHost: x\r\nA: \r\n\r\n");
    REQUIRE(rig_open(&rig));
    check_head_of(&rig, 10, MAX - around - 10, 200);
    check_head_of(&rig, 10, MAX - around - 9, 431);
    check_head_of(&rig, 10, 30000, 431);
    check_head_of(&rig, MAX / 2, 10, 200);
    check_head_of(&rig, MAX / 2 + 1, 10, 414);
    check_head_of(&rig, 3 * MAX, 10, 414);
    rig_close(&rig);
}

TEST(bodies_beyond_the_limit_are_refused_though_the_client_goes_on_sending)
{
    enum { MAX = 100000, SENT = 3000000 };
    struct rig rig = {.opts.body_bytes_max = MAX};
    static struct client client;
    struct reply reply;
    static char zeros[SENT];
    REQUIRE(rig_open(&rig));
    for (int chunked = 0; chunked < 2; chunked++) {
        char text[128];
        snprintf(text, sizeof text, "POST /echo HTTP/1.1\r\n" HOST "%s\r\n\r\n%s",
                 chunked ? "Transfer-Encoding: chunked" : "Content-Length: 3000000", chunked ? "2dc6c0\r\n" : "");
        REQUIRE(client_open(&rig, &client));
        CHECK(client_say_text(&client, text));
        CHECK(client_say(&client, zeros, SENT)); /* it is taken, and thrown away */
        REQUIRE(client_hear(&client, false, &reply));
        CHECK_INT(reply.status, 413);
        CHECK_CONTAINS(reply.body, "/problems/content-too-large");
        reply_free(&reply);
        CHECK(client_hear_end(&client));
        client_close(&client);
    }
    rig_close(&rig);
}

/* ---- Many ---- */

TEST(one_connection_too_many_takes_the_place_of_the_longest_idle)
{
    enum { MAX = 8 };
    struct rig rig = {.opts.connections_max = MAX};
    static struct client clients[2 * MAX];
    struct reply reply;
    REQUIRE(rig_open(&rig));
    for (int i = 0; i < 2 * MAX; i++) {
        REQUIRE(client_open(&rig, &clients[i]));
        REQUIRE(client_say_text(&clients[i], GET) && client_hear(&clients[i], false, &reply));
        CHECK_INT(reply.status, 200);
        reply_free(&reply);
        if (i >= MAX)
            CHECK(client_hear_end(&clients[i - MAX]));
    }
    for (int i = MAX; i < 2 * MAX; i++) {
        REQUIRE(client_say_text(&clients[i], GET) && client_hear(&clients[i], false, &reply));
        CHECK_INT(reply.status, 200);
        reply_free(&reply);
    }
    CHECK_INT(kl__http_counted(rig.http).connections, MAX);
    for (int i = 0; i < 2 * MAX; i++)
        client_close(&clients[i]);
    rig_close(&rig);
}

TEST(where_all_connections_are_at_work_one_too_many_is_sent_away)
{
    enum { MAX = 4 };
    struct rig rig = {.opts.connections_max = MAX};
    static struct client clients[MAX], late;
    struct reply reply;
    REQUIRE(rig_open(&rig));
    for (int i = 0; i < MAX; i++) {
        REQUIRE(client_open(&rig, &clients[i]));
        CHECK(client_say_text(&clients[i], "GET /hold HTTP/1.1\r\n" HOST "\r\n"));
    }
    CHECK(rig_await_held(&rig, MAX));
    for (int i = 0; i < 3; i++) {
        REQUIRE(client_open(&rig, &late));
        REQUIRE(client_hear(&late, false, &reply));
        CHECK_INT(reply.status, 503);
        CHECK_CONTAINS(reply.head, "Retry-After: 1\r\n");
        reply_free(&reply);
        client_close(&late);
    }
    while (rig.held_count > 0)
        rig_release(&rig, 200);
    for (int i = 0; i < MAX; i++) {
        REQUIRE(client_hear(&clients[i], false, &reply));
        CHECK_INT(reply.status, 200);
        reply_free(&reply);
        client_close(&clients[i]);
    }
    CHECK(rig_await_connections(&rig, 0));
    check_ask(&rig, GET, 200, "");
    rig_close(&rig);
}

/* Idle ones, and ones that stop in the middle of a head; as many as the machine lets one process have. */
TEST(idle_and_slow_connections_do_not_keep_others_from_being_served)
{
    struct rig rig = {0};
    struct rlimit limit;
    static struct client client;
    REQUIRE(rig_open(&rig));
    REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    size_t count = limit.rlim_cur > 9000 ? 4000 : (size_t)limit.rlim_cur / 2 - 100;
    count = (size_t)test_rounds(count);
    int *fds = calloc(count, sizeof *fds);
    REQUIRE(fds);
    for (size_t i = 0; i < count; i++) {
        REQUIRE(client_open(&rig, &client));
        fds[i] = client.fd;
        if (i % 2)
            CHECK(client_say_text(&client, "GET /echo HTTP/1.1\r\nHost:"));
    }
    check_ask(&rig, "POST /later HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello", 200, "hello");
    CHECK(rig_await_connections(&rig, count));
    client.fd = fds[count / 2 | 1];
    struct reply reply;
    CHECK(client_say_text(&client, " x\r\n\r\n"));
    CHECK(client_hear(&client, false, &reply));
    CHECK_INT(reply.status, 200);
    reply_free(&reply);
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
    free(fds);
    CHECK(rig_await_connections(&rig, 0));
    rig_close(&rig);
}

/* Descriptors are given from the lowest: the limit is set so that the client gets the last one. */
TEST(when_descriptors_run_out_those_that_are_served_are_still_served)
{
    struct rig rig = {0};
    static struct client served, late;
    struct reply reply;
    struct rlimit limit, low;
    REQUIRE(rig_open(&rig));
    REQUIRE(client_open(&rig, &served));
    CHECK(client_say_text(&served, "GET /hold HTTP/1.1\r\n" HOST "\r\n"));
    CHECK(rig_await_held(&rig, 1));
    REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    int lowest = dup(served.fd);
    close(lowest);
    low = limit;
    low.rlim_cur = (rlim_t)lowest + 1;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
    bool opened = client_open(&rig, &late);
    CHECK_INT(late.fd, lowest);
    CHECK(opened && client_hear_end(&late)); /* let in and out again */
    setrlimit(RLIMIT_NOFILE, &limit);
    client_close(&late);
    rig_release(&rig, 200);
    REQUIRE(client_hear(&served, false, &reply));
    CHECK_INT(reply.status, 200);
    reply_free(&reply);
    client_close(&served);
    check_ask(&rig, GET, 200, "");
    rig_close(&rig);
}

/* ---- Stopping ---- */

TEST(stop_answers_what_waits_and_closes_what_does_not)
{
    struct rig rig = {.opts.loops = 2, .on_unix = true};
    static struct client idle, waiting, begun;
    struct reply reply;
    REQUIRE(rig_open(&rig));
    REQUIRE(client_open(&rig, &idle) && client_open(&rig, &waiting) && client_open(&rig, &begun));
    CHECK(client_say_text(&begun, "GET /echo HTTP/1.1\r\nHo"));
    CHECK(client_say_text(&waiting, "GET /hold HTTP/1.1\r\n" HOST "\r\n"));
    CHECK(rig_await_held(&rig, 1));
    check_ask(&rig, GET, 200, NULL);
    kl__http_stop(rig.http);
    CHECK(client_hear_end(&idle));
    CHECK(access(rig.address + 5, F_OK) != 0);
    CHECK(client_say_text(&begun, "st: x\r\n\r\n"));
    CHECK(client_hear(&begun, false, &reply));
    CHECK_CONTAINS(reply.head, "Connection: close\r\n");
    reply_free(&reply);
    rig_release(&rig, 200);
    REQUIRE(client_hear(&waiting, false, &reply));
    CHECK_STR(reply.body, "released");
    CHECK_CONTAINS(reply.head, "Connection: close\r\n");
    CHECK(client_hear_end(&waiting));
    reply_free(&reply);
    CHECK(rig_await_connections(&rig, 0));
    client_close(&idle);
    client_close(&waiting);
    client_close(&begun);
    rig_close(&rig);
}

TEST(close_answers_what_nobody_has_answered)
{
    struct rig rig = {0};
    static struct client client;
    struct reply reply;
    REQUIRE(rig_open(&rig));
    REQUIRE(client_open(&rig, &client));
    CHECK(client_say_text(&client, "GET /hold HTTP/1.1\r\n" HOST "\r\n"));
    CHECK(rig_await_held(&rig, 1));
    kl__http_on_gone(rig_take(&rig), NULL, NULL); /* let go of, without an answer */
    rig_close(&rig);
    REQUIRE(client_hear(&client, false, &reply));
    CHECK_INT(reply.status, 503);
    CHECK(client_hear_end(&client));
    reply_free(&reply);
    client_close(&client);
}

/* Whoever asks too late is told at once. */
TEST(who_asks_whether_a_client_goes_learns_that_it_has_gone)
{
    struct rig rig = {0};
    static struct client client;
    REQUIRE(rig_open(&rig));
    REQUIRE(client_open(&rig, &client));
    CHECK(client_say_text(&client, "GET /hold HTTP/1.1\r\n" HOST "\r\n"));
    CHECK(rig_await_held(&rig, 1));
    client_close(&client);
    CHECK(rig_await_gone(&rig, 1));
    kl__request *request = rig_take(&rig);
    CHECK(!kl__http_on_gone(request, note_no_more, NULL));
    kl__http_answer(request, &(kl__answer){.status = 200});
    rig_close(&rig);
}

/* ---- Bodies of all connections ---- */

#define HALF_POST "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 200000\r\n\r\n"

static bool say_many(struct client *client, size_t count)
{
    static char bytes[200000];
    memset(bytes, 'x', sizeof bytes);
    return client_say(client, bytes, count);
}

static void check_heard(struct client *client, int status)
{
    struct reply reply;
    REQUIRE(client_hear(client, false, &reply));
    CHECK_INT(reply.status, status);
    reply_free(&reply);
}

/* One has a buffer of 200,000 bytes, for which it has sent more than half; with another one it would be too much. */
TEST(bodies_have_room_for_so_many_bytes_together)
{
    struct rig rig = {.opts.bodies_bytes_max = 300000};
    static struct client first, second;
    REQUIRE(rig_open(&rig));
    REQUIRE(client_open(&rig, &first));
    CHECK(client_say_text(&first,
                          "POST /echo HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 200000\r\n\r\n"));
    CHECK(client_hear_bytes(&first, "HTTP/1.1 100 Continue\r\n\r\n"));
    CHECK(say_many(&first, 150000));
    CHECK(rig_await_received(&rig, 150000));
    REQUIRE(client_open(&rig, &second));
    CHECK(client_say_text(&second, HALF_POST));
    CHECK(say_many(&second, 199999)); /* less than all, so that nothing of it can be complete */
    check_heard(&second, 503);
    client_close(&second);
    CHECK(say_many(&first, 50000));
    check_heard(&first, 200);
    CHECK(client_say_text(&first, HALF_POST)); /* the room was given back */
    CHECK(say_many(&first, 200000));
    check_heard(&first, 200);
    client_close(&first);
    rig_close(&rig);
}

static bool admit_echo(void *ctx, kl__request *request)
{
    (void)ctx;
    return request->head.path.len == 5;
}

TEST(a_body_that_is_not_wanted_is_not_waited_for)
{
    struct rig rig = {.opts.admit = admit_echo};
    static struct client client;
    struct reply reply;
    REQUIRE(rig_open(&rig));
    REQUIRE(client_open(&rig, &client));
    CHECK(client_say_text(&client, "POST /about HTTP/1.1\r\n" HOST "Content-Length: 200000\r\n\r\nx"));
    REQUIRE(client_hear(&client, false, &reply));
    CHECK_INT(reply.status, 200);
    CHECK_CONTAINS(reply.head, "Connection: close\r\n");
    reply_free(&reply);
    CHECK(client_hear_end(&client));
    client_close(&client);
    REQUIRE(client_open(&rig, &client));
    CHECK(client_say_text(&client, HALF_POST));
    CHECK(say_many(&client, 200000));
    check_heard(&client, 200);
    client_close(&client);
    rig_close(&rig);
}

/* ---- Opening ---- */

static void never(void *ctx, kl__request *request)
{
    (void)ctx;
    (void)request;
}

TEST(addresses_that_cannot_be_listened_on_are_refused_with_a_sentence)
{
    static const struct {
        const char *address;
        kl_rc rc;
        const char *part;
    } rows[] = {
        {"127.0.0.1", KL_EINVAL, "is not an address"},
        {"127.0.0.1:", KL_EINVAL, "is not an address"},
        {"127.0.0.1:99999", KL_EINVAL, "is not an address"},
        {"127.0.0.1:7x", KL_EINVAL, "is not an address"},
        {":7420", KL_EINVAL, "is not an address"},
        {"::1:7420", KL_EINVAL, "is not an address"},
        {"[::1:7420", KL_EINVAL, "is not an address"},
        {"", KL_EINVAL, "is not an address"},
        {"unix:relative", KL_EINVAL, "absolute"},
        {"unix:/", KL_EINVAL, "absolute"},
        {"unix:/nowhere/at/all.sock", KL_ESYSTEM, "/nowhere/at/all.sock"},
        {"192.0.2.1:7420", KL_ESYSTEM, "192.0.2.1:7420"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kl__http_opts opts = {.listen = &rows[i].address, .listen_count = 1, .serve = never};
        kl__http *http = NULL;
        CHECK_INT(kl__http_open(&opts, &http), rows[i].rc);
        CHECK_CONTAINS(kl_error_text(), rows[i].part);
        kl__http_close(http);
    }
}

TEST(an_address_that_is_in_use_is_refused_and_one_that_was_left_is_taken_over)
{
    struct rig rig = {.on_unix = true};
    REQUIRE(rig_open(&rig));
    const char *address = rig.address;
    kl__http_opts opts = {.listen = &address, .listen_count = 1, .serve = never};
    kl__http *http = NULL;
    CHECK_INT(kl__http_open(&opts, &http), KL_ESYSTEM);
    char path[64], left[80];
    snprintf(path, sizeof path, "/tmp/keyline-http-%d-left", (int)getpid());
    CHECK_INT(rename(rig.address + 5, path), 0); /* still listened on, under another name */
    CHECK_INT(kl__http_open(&opts, &http), KL_OK);
    rig_close(&rig); /* which must not remove the other's socket */
    CHECK(access(address + 5, F_OK) == 0);
    kl__http_close(http);
    CHECK(access(address + 5, F_OK) != 0);
    snprintf(left, sizeof left, "unix:%s", path); /* nobody listens on it any more */
    address = left;
    CHECK_INT(kl__http_open(&opts, &http), KL_OK);
    kl__http_close(http);
}

TEST(several_addresses_of_each_kind_are_served)
{
    char path[64];
    snprintf(path, sizeof path, "unix:/tmp/keyline-http-%d-several", (int)getpid());
    const char *addresses[] = {"127.0.0.1:0", "localhost:0", path};
    kl__http_opts opts = {.listen = addresses, .listen_count = 3, .serve = never};
    kl__http *http;
    REQUIRE(kl__http_open(&opts, &http) == KL_OK);
    CHECK(kl__http_port(http, 0) > 0 && kl__http_port(http, 1) > 0);
    CHECK(kl__http_port(http, 0) != kl__http_port(http, 1));
    CHECK_INT(kl__http_port(http, 2), 0);
    CHECK_INT(kl__http_port(http, 3), 0);
    kl__http_close(http);
}

/* ---- Memory ---- */

/* Whatever happens it must not hang: an answer, or the end of the connection. */
static void ask_some(struct rig *rig, const char *path)
{
    static struct client client;
    static char body[100000];
    struct reply reply;
    char text[128];
    if (!client_open(rig, &client))
        return;
    snprintf(text, sizeof text, "POST %s HTTP/1.1\r\n" HOST "Content-Length: %zu\r\n\r\n", path, sizeof body);
    client_say_text(&client, text);
    client_say(&client, body, sizeof body);
    if (client_hear(&client, false, &reply))
        reply_free(&reply);
    client_close(&client);
}

TEST(any_allocation_of_a_request_may_fail)
{
    struct rig rig = {0};
    REQUIRE(rig_open(&rig));
    for (uint64_t n = 1, calm = 0; calm < 3; n++) {
        kl__alloc_fail_at(n);
        ask_some(&rig, n % 2 ? "/later" : "/large");
        CHECK(rig_await_connections(&rig, 0));
        calm = kl__alloc_fail_at(0) >= n ? 0 : calm + 1;
    }
    check_ask(&rig, GET, 200, "");
    rig_close(&rig);
}

TEST(any_allocation_of_open_may_fail)
{
    const char *address = "127.0.0.1:0";
    kl__http_opts opts = {.listen = &address, .listen_count = 1, .serve = never};
    for (uint64_t n = 1, calm = 0; calm < 3; n++) {
        kl__http *http = NULL;
        kl__alloc_fail_at(n);
        kl_rc rc = kl__http_open(&opts, &http);
        bool hit = kl__alloc_fail_at(0) >= n;
        CHECK_INT(rc, hit ? KL_ENOMEM : KL_OK);
        kl__http_close(http);
        calm = hit ? 0 : calm + 1;
    }
}
