/* openapi.c - see openapi.h.
 *
 * Paths, methods, names, summaries and roles come from the route table, so they cannot be forgotten. What goes in and
 * comes out stands in openapi-schemas.json, which is compiled in (src/meson.build); tests/net/test_openapi.c compares
 * the two:
 *
 *     "operations": {"submit_job": {"query": [names], "headers": [names], "body": [schemas or types],
 *                                   "answers": {"201": schema or type}}}
 *
 * A word with a slash in it is a content type of bytes that have no schema. */
#include "net/openapi.h"

#include <string.h>

#include "net/routes.h"
#include "net/tokens.h"

static const char schemas[] =
#include "openapi-schemas.inc"
    ;

json_t *kl__openapi_schemas(void)
{
    json_error_t error;
    json_decref(kl__json_object()); /* sets up its memory */
    return json_loads(schemas, JSON_REJECT_DUPLICATES, &error);
}

/* ---- Contents ---- */

/* {"application/json": {"schema": {"$ref": ...}}}, or the type with nothing. */
static bool add_content(json_t *contents, const char *word)
{
    if (strchr(word, '/'))
        return kl__json_set(contents, word, kl__json_object());
    return kl__json_set(contents, "application/json",
                        json_pack("{s:{s:s+}}", "schema", "$ref", "#/components/schemas/", word));
}

static json_t *made_or_freed(json_t *value, bool made)
{
    if (made)
        return value;
    json_decref(value);
    return NULL;
}

static json_t *make_body(const json_t *words)
{
    json_t *contents = kl__json_object();
    bool made = contents != NULL;
    for (size_t i = 0; made && i < json_array_size(words); i++)
        made = add_content(contents, json_string_value(json_array_get(words, i)));
    contents = made_or_freed(contents, made);
    return contents ? json_pack("{s:o}", "content", contents) : NULL;
}

/* ---- Answers ---- */

/* As what it can be had, words with a blank between; "": there is no body. */
static json_t *make_answer(const char *words)
{
    json_t *answer = json_pack("{s:s}", "description", "It was done");
    json_t *contents = *words ? kl__json_object() : NULL;
    if (!*words)
        return answer;
    bool made = true;
    for (size_t len; made && *words; words += len + (words[len] == ' ')) {
        char word[64];
        len = strcspn(words, " ");
        snprintf(word, sizeof word, "%.*s", (int)len, words);
        made = add_content(contents, word);
    }
    return made_or_freed(answer, kl__json_set(answer, "content", contents) && made);
}

/* Problems that this route can meet, the common ones by their status. What changes something may find that somebody
 * else does, and what makes something that it is there already and is something else. */
static bool add_problems(json_t *answers, const kl__route *route)
{
    const struct {
        const char *status;
        bool is;
    } rows[] = {{"400", true},
                {"401", route->role > KL_ROLE_ANYONE},
                {"403", route->role > KL_ROLE_ANYONE},
                {"404", kl__route_has_queue(route)},
                {"409", route->method != KL_METHOD_GET && route->role > KL_ROLE_ANYONE},
                {"422", route->flags & KL_ROUTE_OPENS || route->handler == kl__api_create_queue},
                {"default", true}};
    bool made = true;
    for (size_t i = 0; made && i < sizeof rows / sizeof *rows; i++)
        if (rows[i].is)
            made = kl__json_set(answers, rows[i].status, json_pack("{s:s}", "$ref", "#/components/responses/Problem"));
    return made;
}

static json_t *make_answers(const kl__route *route, json_t *given)
{
    json_t *answers = kl__json_object();
    const char *status;
    json_t *word;
    bool made = answers != NULL;
    json_object_foreach(given, status, word) made =
        made && kl__json_set(answers, status, make_answer(json_string_value(word)));
    return made_or_freed(answers, made && add_problems(answers, route));
}

/* ---- Parameters ---- */

static bool add_path_parameter(json_t *to, const char *from, size_t len)
{
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)len, from);
    return kl__json_append(
        to, json_pack("{s:s,s:s,s:b,s:{s:s}}", "name", name, "in", "path", "required", 1, "schema", "type", "string"));
}

static bool add_path_parameters(json_t *to, const char *path)
{
    bool made = true;
    for (const char *at = strchr(path, '{'); made && at; at = strchr(at + 1, '{'))
        made = add_path_parameter(to, at + 1, strcspn(at + 1, "}"));
    return made;
}

/* Those that the operation names, as `known` describes them. */
static bool add_parameters(json_t *to, const json_t *names, const json_t *known, const char *in)
{
    bool made = true;
    for (size_t i = 0; made && i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        json_t *parameter = json_pack("{s:s,s:s}", "name", name, "in", in);
        made = parameter && json_object_update(parameter, json_object_get(known, name)) == 0;
        made = kl__json_append(to, parameter) && made;
    }
    return made;
}

static json_t *make_parameters(const kl__route *route, const json_t *operation, const json_t *known)
{
    json_t *parameters = kl__json_array();
    bool made =
        parameters && add_path_parameters(parameters, route->path) &&
        add_parameters(parameters, json_object_get(operation, "query"), json_object_get(known, "query"), "query") &&
        add_parameters(parameters, json_object_get(operation, "headers"), json_object_get(known, "headers"), "header");
    return made_or_freed(parameters, made);
}

/* ---- Operations ---- */

/* What it is about: the part behind {queue}, or the first one. */
static void find_tag(const char *path, char ret_tag[32])
{
    const char *from = strncmp(path, KL__QUEUE "/", sizeof KL__QUEUE) == 0 ? path + sizeof KL__QUEUE : NULL;
    if (!from)
        from = strncmp(path, "/v1/queues", 10) == 0 ? "queues" : "server";
    snprintf(ret_tag, 32, "%.*s", (int)strcspn(from, "/"), from);
}

static json_t *make_operation(const kl__route *route, const json_t *known)
{
    const json_t *operation = json_object_get(json_object_get(known, "operations"), route->name);
    const json_t *body = json_object_get(operation, "body");
    char tag[32];
    find_tag(route->path, tag);
    json_t *made = json_pack("{s:s,s:s,s:[s],s:s}", "operationId", route->name, "summary", route->summary, "tags", tag,
                             "x-keyline-role", kl__role_name(route->role));
    json_t *security = route->role == KL_ROLE_ANYONE ? json_pack("[]") : json_pack("[{s:[]}]", "token");
    bool ok = kl__json_set(made, "security", security) &&
              kl__json_set(made, "parameters", make_parameters(route, operation, known)) &&
              (!body || kl__json_set(made, "requestBody", make_body(body))) &&
              kl__json_set(made, "responses", make_answers(route, json_object_get(operation, "answers")));
    return made_or_freed(made, ok);
}

static const char *method_name(kl__method method)
{
    static const char *const names[] = {
        [KL_METHOD_GET] = "get",        [KL_METHOD_HEAD] = "head",   [KL_METHOD_POST] = "post",
        [KL_METHOD_PUT] = "put",        [KL_METHOD_PATCH] = "patch", [KL_METHOD_DELETE] = "delete",
        [KL_METHOD_OPTIONS] = "options"};
    return names[method];
}

static json_t *make_paths(const json_t *known)
{
    json_t *paths = kl__json_object();
    bool made = paths != NULL;
    for (size_t i = 0; made && i < kl__route_count; i++) {
        const kl__route *route = &kl__routes[i];
        json_t *path = json_object_get(paths, route->path);
        if (!path && kl__json_set(paths, route->path, kl__json_object()))
            path = json_object_get(paths, route->path);
        made = path && kl__json_set(path, method_name(route->method), make_operation(route, known));
    }
    return made_or_freed(paths, made);
}

static json_t *make_components(const json_t *known)
{
    return json_pack("{s:O,s:{s:{s:s,s:{s:{s:{s:s}}}}},s:{s:{s:s,s:s}}}", "schemas", json_object_get(known, "schemas"),
                     "responses", "Problem", "description", "It was not done", "content", "application/problem+json",
                     "schema", "$ref", "#/components/schemas/Problem", "securitySchemes", "token", "type", "http",
                     "scheme", "bearer");
}

json_t *kl__openapi(void)
{
    json_t *known = kl__openapi_schemas();
    json_t *api = known ? json_pack("{s:s,s:{s:s,s:s,s:s}}", "openapi", "3.1.0", "info", "title", "Keyline", "version",
                                    KEYLINE_VERSION, "description",
                                    "Tasks in order per key, in parallel across keys. See docs/http.md.")
                        : NULL;
    bool made = kl__json_set(api, "paths", known ? make_paths(known) : NULL) &&
                kl__json_set(api, "components", known ? make_components(known) : NULL);
    json_decref(known);
    return made_or_freed(api, made);
}
