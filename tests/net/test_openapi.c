/* test_openapi.c - openapi.json says what the route table says, in both directions, and refers to nothing that is not
 * there. */
#include <jansson.h>

#include "harness.h"
#include "net/api.h"
#include "net/openapi.h"
#include "net/tokens.h"

static const kl__route *route_of(const char *name)
{
    for (size_t i = 0; i < kl__route_count; i++)
        if (strcmp(kl__routes[i].name, name) == 0)
            return &kl__routes[i];
    return NULL;
}

TEST(every_route_has_an_operation_and_every_operation_a_route)
{
    json_t *known = kl__openapi_schemas(), *operations = json_object_get(known, "operations"), *operation;
    const char *name;
    REQUIRE(operations);
    for (size_t i = 0; i < kl__route_count; i++) {
        operation = json_object_get(operations, kl__routes[i].name);
        if (!operation)
            test_fail(__FILE__, __LINE__, "openapi-schemas.json has no operation %s", kl__routes[i].name);
        else if (json_object_size(json_object_get(operation, "answers")) == 0)
            test_fail(__FILE__, __LINE__, "the operation %s has no answers", kl__routes[i].name);
    }
    json_object_foreach(operations, name, operation) if (!route_of(name))
        test_fail(__FILE__, __LINE__, "openapi-schemas.json has an operation %s, which is no route", name);
    json_decref(known);
}

/* "/v1/queues/{queue}/tasks/{id}" has two. */
static size_t count_parts(const char *path)
{
    size_t count = 0;
    for (; *path; path++)
        count += *path == '{';
    return count;
}

static void check_operation(const kl__route *route, const json_t *operation)
{
    size_t in_path = 0, i;
    json_t *parameter;
    CHECK_STR(json_string_value(json_object_get(operation, "operationId")), route->name);
    CHECK_STR(json_string_value(json_object_get(operation, "summary")), route->summary);
    CHECK_STR(json_string_value(json_object_get(operation, "x-keyline-role")), kl__role_name(route->role));
    CHECK_INT(json_array_size(json_object_get(operation, "security")), route->role != KL_ROLE_ANYONE);
    json_array_foreach(json_object_get(operation, "parameters"), i, parameter)
    {
        const char *in = json_string_value(json_object_get(parameter, "in"));
        in_path += strcmp(in, "path") == 0;
        CHECK(json_object_get(parameter, "schema"));
    }
    CHECK_INT(in_path, count_parts(route->path));
    json_t *answers = json_object_get(operation, "responses");
    CHECK(json_object_get(answers, "default"));
    CHECK((json_object_get(answers, "401") != NULL) == (route->role != KL_ROLE_ANYONE));
    CHECK((json_object_get(answers, "403") != NULL) == (route->role != KL_ROLE_ANYONE));
    CHECK((json_object_get(answers, "409") != NULL) == (route->method != KL_METHOD_GET));
    if (strcmp(route->name, "claim_tasks") == 0)
        CHECK(json_object_get(answers, "204"));
    if (strcmp(route->name, "submit_job") == 0 || strcmp(route->name, "put_tasks") == 0)
        CHECK(json_object_get(answers, "422"));
}

TEST(openapi_has_the_table_and_nothing_else)
{
    static const char *const methods[] = {[KL_METHOD_GET] = "get",
                                          [KL_METHOD_POST] = "post",
                                          [KL_METHOD_PUT] = "put",
                                          [KL_METHOD_PATCH] = "patch",
                                          [KL_METHOD_DELETE] = "delete"};
    json_t *api = kl__openapi(), *paths = json_object_get(api, "paths"), *path;
    const char *name;
    size_t count = 0;
    REQUIRE(paths);
    CHECK_STR(json_string_value(json_object_get(api, "openapi")), "3.1.0");
    for (size_t i = 0; i < kl__route_count; i++) {
        const json_t *operation =
            json_object_get(json_object_get(paths, kl__routes[i].path), methods[kl__routes[i].method]);
        if (operation)
            check_operation(&kl__routes[i], operation);
        else
            test_fail(__FILE__, __LINE__, "%s is not in openapi.json", kl__routes[i].name);
    }
    json_object_foreach(paths, name, path) count += json_object_size(path);
    CHECK_INT(count, kl__route_count);
    json_decref(api);
}

/* Every "$ref" leads to something; marks which schemas are used. */
static void follow(const json_t *api, const json_t *value, json_t *used)
{
    const char *name;
    json_t *inner;
    size_t i;
    const char *reference = json_string_value(json_object_get(value, "$ref"));
    if (reference) {
        char copy[128];
        const json_t *at = api;
        char *rest = copy, *part;
        snprintf(copy, sizeof copy, "%s", reference + 2);
        while (at && (part = strtok_r(rest, "/", &rest)) != NULL)
            at = json_object_get(at, part);
        if (!at)
            test_fail(__FILE__, __LINE__, "%s leads nowhere", reference);
        json_object_set_new(used, strrchr(reference, '/') + 1, json_true());
    }
    if (json_is_object(value))
        json_object_foreach((json_t *)value, name, inner) follow(api, inner, used);
    else
        json_array_foreach((json_t *)value, i, inner) follow(api, inner, used);
}

TEST(every_reference_leads_somewhere_and_every_schema_is_used)
{
    json_t *api = kl__openapi(), *used = json_object(), *schema;
    const char *name;
    REQUIRE(api);
    follow(api, api, used);
    json_object_foreach(json_object_get(json_object_get(api, "components"), "schemas"), name,
                        schema) if (!json_object_get(used, name))
        test_fail(__FILE__, __LINE__, "nobody uses the schema %s", name);
    json_decref(used);
    json_decref(api);
}

TEST(names_of_routes_are_unique_and_roles_are_stated)
{
    for (size_t i = 0; i < kl__route_count; i++) {
        CHECK(route_of(kl__routes[i].name) == &kl__routes[i]);
        CHECK(kl__routes[i].role >= KL_ROLE_ANYONE && kl__routes[i].role <= KL_ROLE_ADMIN);
        CHECK(kl__routes[i].handler != NULL);
        if (kl__routes[i].method != KL_METHOD_GET && kl__routes[i].role < KL_ROLE_OPERATE)
            test_fail(__FILE__, __LINE__, "%s changes something and may be done by anybody who reads",
                      kl__routes[i].name);
    }
}
