/* asking.c - see asking.h. */
#include "net/asking.h"

#include <stdlib.h>

#include "harness.h"

bool asking_open(struct asking *rig, const kl__api_opts *opts)
{
    static const char *const listen[] = {"127.0.0.1:0"};
    kl__api_opts all = opts ? *opts : (kl__api_opts){0};
    memset(rig, 0, sizeof *rig);
    if (kl_store_open("memory:", NULL, &rig->store) != KL_OK) {
        test_fail(__FILE__, __LINE__, "no store: %s", kl_error_text());
        return false;
    }
    all.store = rig->store;
    all.store_url = "memory:";
    all.listen = listen;
    all.listen_count = 1;
    if (kl__api_open(&all, &rig->server) != KL_OK) {
        test_fail(__FILE__, __LINE__, "no server: %s", kl_error_text());
        kl_store_close(rig->store);
        return false;
    }
    rig->curl = curl_easy_init();
    return true;
}

void asking_close(struct asking *rig)
{
    curl_slist_free_all(rig->headers);
    curl_easy_cleanup(rig->curl);
    kl__api_stop(rig->server, 0);
    kl__api_close(rig->server);
    kl_store_close(rig->store);
    json_decref(rig->json);
    free(rig->text);
}

static size_t take(char *bytes, size_t size, size_t count, void *context)
{
    struct asking *rig = context;
    char *text = realloc(rig->text, rig->len + size * count + 1);
    if (!text)
        return 0;
    memcpy(text + rig->len, bytes, size * count);
    rig->text = text;
    rig->len += size * count;
    rig->text[rig->len] = 0;
    return size * count;
}

static size_t take_header(char *bytes, size_t size, size_t count, void *context)
{
    struct asking *rig = context;
    static const char name[] = "retry-after: ";
    if (count >= sizeof name && strncasecmp(bytes, name, sizeof name - 1) == 0)
        snprintf(rig->retry_after, sizeof rig->retry_after, "%.*s", (int)(count - sizeof name - 1),
                 bytes + sizeof name - 1);
    return size * count;
}

static void forget(struct asking *rig)
{
    json_decref(rig->json);
    free(rig->text);
    rig->json = NULL;
    rig->text = NULL;
    rig->len = 0;
    rig->status = 0;
    rig->type[0] = rig->retry_after[0] = '\0';
}

long asking_send(struct asking *rig, const char *method, const char *path, const char *type, kl_bytes body)
{
    char url[1024], type_line[128], *got = NULL;
    struct curl_slist *headers = NULL;
    CURL *curl = rig->curl;
    forget(rig);
    snprintf(url, sizeof url, "http://127.0.0.1:%d%s", kl__api_port(rig->server, 0), path);
    snprintf(type_line, sizeof type_line, "Content-Type:%s%s", *type ? " " : "", type);
    headers = curl_slist_append(headers, type_line);
    for (const struct curl_slist *more = rig->headers; more; more = more->next)
        headers = curl_slist_append(headers, more->data);
    curl_easy_reset(curl);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, rig);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, rig);
    curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
    if (body.data) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, (const char *)body.data);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, (long)body.len);
    }
    CURLcode code = curl_easy_perform(curl);
    if (code != CURLE_OK)
        test_fail(__FILE__, __LINE__, "%s %s: %s", method, path, curl_easy_strerror(code));
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &rig->status);
    curl_easy_getinfo(curl, CURLINFO_CONTENT_TYPE, &got);
    snprintf(rig->type, sizeof rig->type, "%s", got ? got : "");
    curl_slist_free_all(headers);
    if (rig->text && strstr(rig->type, "json"))
        rig->json = json_loadb(rig->text, rig->len, JSON_ALLOW_NUL, NULL);
    return rig->status;
}

long asking_say(struct asking *rig, const char *method, const char *path, const char *body)
{
    return asking_send(rig, method, path, "application/json", kl_str(body));
}

const char *asking_field(const struct asking *rig, const char *path)
{
    static char number[32];
    const json_t *value = rig->json;
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
    const char *got = asking_field(rig, "type");
    if (strcmp(got, type) != 0 || strcmp(rig->type, "application/problem+json") != 0)
        test_fail(file, line, "expected %s, got %ld %s: %s", type, rig->status, rig->type, rig->text ? rig->text : "");
    else if (!strstr(asking_field(rig, "detail"), part))
        test_fail(file, line, "\"%s\" does not contain \"%s\"", asking_field(rig, "detail"), part);
    if (atol(asking_field(rig, "status")) != rig->status)
        test_fail(file, line, "the problem says %s and the answer %ld", asking_field(rig, "status"), rig->status);
}
