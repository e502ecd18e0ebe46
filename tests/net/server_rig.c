/* server_rig.c - see server_rig.h. */
#include "server_rig.h"

#include <curl/curl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness.h"

enum { PATIENCE_S = 60 };

bool server_open(struct server *server, const kl__api_opts *opts)
{
    static const char *const listen[] = {"127.0.0.1:0"};
    kl__api_opts all = opts ? *opts : (kl__api_opts){0};
    *server = (struct server){0};
    all.store_url = "memory:";
    all.listen = listen;
    all.listen_count = 1;
    kl_rc rc = kl_store_open("memory:", NULL, &server->store);
    all.store = server->store;
    if (rc == KL_OK)
        rc = kl__api_open(&all, &server->api);
    if (rc != KL_OK) {
        test_fail(__FILE__, __LINE__, "the server does not start: %s", kl_error_text());
        kl_store_close(server->store);
        return false;
    }
    snprintf(server->url, sizeof server->url, "http://127.0.0.1:%d", kl__api_port(server->api, 0));
    return true;
}

void server_close(struct server *server)
{
    kl__api_close(server->api);
    kl_store_close(server->store);
}

/* ---- Asking ---- */

struct call {
    struct answer answer;
    answer_fn *more; /* NULL: a stream ends with its head */
    void *ctx;
    bool enough; /* the client ended it */
};

static bool is_stream(const struct call *call) { return strcasestr(call->answer.headers, "text/event-stream") != NULL; }

static size_t take_body(char *bytes, size_t size, size_t count, void *context)
{
    struct call *call = context;
    struct answer *answer = &call->answer;
    char *body = realloc(answer->body, answer->len + size * count + 1);
    if (!body)
        return 0;
    memcpy(body + answer->len, bytes, size * count);
    answer->body = body;
    answer->len += size * count;
    body[answer->len] = 0;
    call->enough = call->more && !call->more(call->ctx, body);
    return call->enough ? 0 : size * count;
}

static size_t take_header(char *bytes, size_t size, size_t count, void *context)
{
    struct call *call = context;
    struct answer *answer = &call->answer;
    size_t len = strlen(answer->headers);
    snprintf(answer->headers + len, sizeof answer->headers - len, "%.*s", (int)(size * count), bytes);
    bool last = size * count == 2;
    call->enough = last && !call->more && is_stream(call);
    return call->enough ? 0 : size * count;
}

static void set_up(CURL *curl, struct call *call, const char *method, kl_bytes body, struct curl_slist *lines)
{
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, lines);
    if (body.data) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, (const char *)body.data);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, (long)body.len);
    }
    curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, call);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, call);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)PATIENCE_S);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
}

static void perform(CURL *curl, struct call *call, const char *method, const char *path)
{
    struct answer *answer = &call->answer;
    CURLcode code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &answer->status);
    if (code != CURLE_OK && !call->enough)
        test_fail(__FILE__, __LINE__, "%s %s: %s", method, path, curl_easy_strerror(code));
    if (answer->body)
        answer->json = json_loadb(answer->body, answer->len, JSON_ALLOW_NUL, NULL);
}

static struct answer ask(struct server *server, const char *method, const char *path, kl_bytes body,
                         const char *const *fields, struct call *call)
{
    struct curl_slist *lines = NULL;
    char url[2048];
    CURL *curl = curl_easy_init();
    snprintf(url, sizeof url, "%s%s", server->url, path);
    bool typed = false;
    for (; fields && *fields; fields++) {
        lines = curl_slist_append(lines, *fields);
        typed |= strncmp(*fields, "Content-Type:", 13) == 0;
    }
    lines = curl_slist_append(lines, "Expect:");
    if (!typed)
        lines = curl_slist_append(lines, "Content-Type: application/json");
    curl_easy_setopt(curl, CURLOPT_URL, url);
    set_up(curl, call, method, body, lines);
    perform(curl, call, method, path);
    curl_slist_free_all(lines);
    curl_easy_cleanup(curl);
    return call->answer;
}

struct answer server_ask(struct server *server, const char *method, const char *path, const char *body,
                         const char *const *fields)
{
    struct call call = {.more = NULL};
    return ask(server, method, path, kl_str(body), fields, &call);
}

struct answer server_follow(struct server *server, const char *path, const char *const *fields, answer_fn *more,
                            void *ctx)
{
    struct call call = {.more = more, .ctx = ctx};
    return ask(server, "GET", path, (kl_bytes){0}, fields, &call);
}

static char *hear_all(int fd)
{
    size_t len = 0, room = 65536;
    char *text = calloc(1, room);
    ssize_t got = 0;
    while (text && len + 1 < room && (got = recv(fd, text + len, room - len - 1, 0)) > 0)
        len += (size_t)got;
    return text;
}

/* Held back until all is said, so that an end comes with the bytes. */
static int dial(struct server *server, const char *text, bool ends)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)kl__api_port(server->api, 0)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1, off = 0;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
    bool said = connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
                send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text);
    if (ends)
        shutdown(fd, SHUT_WR);
    setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off);
    if (said)
        return fd;
    test_fail(__FILE__, __LINE__, "a connection failed");
    close(fd);
    return -1;
}

int server_dial(struct server *server, const char *text) { return dial(server, text, false); }

char *server_say(struct server *server, const char *text, bool ends)
{
    int fd = dial(server, text, ends);
    char *heard = fd >= 0 ? hear_all(fd) : NULL;
    if (fd >= 0)
        close(fd);
    return heard;
}

void answer_free(struct answer *answer)
{
    json_decref(answer->json);
    free(answer->body);
    *answer = (struct answer){0};
}

const char *answer_text(const struct answer *answer, const char *field)
{
    const char *text = json_string_value(json_object_get(answer->json, field));
    return text ? text : "";
}

int64_t answer_number(const struct answer *answer, const char *field)
{
    const json_t *value = json_object_get(answer->json, field);
    return json_is_integer(value) ? json_integer_value(value) : -1;
}

void server_do(struct server *server, const char *method, const char *path, const char *body, int status)
{
    struct answer answer = server_ask(server, method, path, body, NULL);
    if (answer.status != status)
        test_fail(__FILE__, __LINE__, "%s %s is answered with %ld, expected %d: %s", method, path, answer.status,
                  status, answer.body ? answer.body : "");
    answer_free(&answer);
}

const char *answer_header(const struct answer *answer, const char *name, char *buffer, size_t size)
{
    char line[80];
    snprintf(line, sizeof line, "\n%s: ", name);
    const char *at = strcasestr(answer->headers, line);
    at = at ? at + strlen(line) : "";
    snprintf(buffer, size, "%.*s", (int)strcspn(at, "\r\n"), at);
    return buffer;
}

/* ---- Question after question ---- */

bool asking_open(struct asking *rig, const kl__api_opts *opts)
{
    rig->answer = (struct answer){0};
    return server_open(&rig->server, opts);
}

void asking_close(struct asking *rig)
{
    answer_free(&rig->answer);
    kl__api_stop(rig->server.api, 0);
    server_close(&rig->server);
}

long asking_send(struct asking *rig, const char *method, const char *path, const char *type, kl_bytes body)
{
    char line[128];
    const char *fields[] = {line, NULL};
    struct call call = {.more = NULL};
    snprintf(line, sizeof line, "Content-Type:%s%s", *type ? " " : "", type);
    answer_free(&rig->answer);
    rig->answer = ask(&rig->server, method, path, body, fields, &call);
    return rig->answer.status;
}

long asking_say(struct asking *rig, const char *method, const char *path, const char *body)
{
    return asking_send(rig, method, path, "application/json", kl_str(body));
}

const char *asking_field(const struct asking *rig, const char *path)
{
    static char number[32];
    const json_t *value = rig->answer.json;
    while (value && *path) {
        char name[64];
        size_t length = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)length, path);
        value = json_is_array(value) ? json_array_get(value, (size_t)atoi(name)) : json_object_get(value, name);
        path += length + (path[length] != 0);
    }
    if (json_is_string(value))
        return json_string_value(value);
    if (json_is_integer(value)) {
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
        return number;
    }
    return json_is_null(value) ? "null" : json_is_true(value) ? "true" : json_is_false(value) ? "false" : "";
}

void check_problem(const struct asking *rig, const char *file, int line, const char *name, const char *part)
{
    char type[64];
    snprintf(type, sizeof type, "/problems/%s", name);
    char header[64];
    const char *kind = answer_header(&rig->answer, "Content-Type", header, sizeof header);
    const char *got = asking_field(rig, "type");
    if (strcmp(got, type) != 0 || strcmp(kind, "application/problem+json") != 0)
        test_fail(file, line, "expected %s, got %ld %s: %s", type, rig->answer.status, kind,
                  rig->answer.body ? rig->answer.body : "");
    else if (!strstr(asking_field(rig, "detail"), part))
        test_fail(file, line, "\"%s\" does not contain \"%s\"", asking_field(rig, "detail"), part);
    if (atol(asking_field(rig, "status")) != rig->answer.status)
        test_fail(file, line, "the problem says %s and the answer %ld", asking_field(rig, "status"),
                  rig->answer.status);
}
