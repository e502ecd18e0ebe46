/* fuzz_json.c - bodies: whatever the plain reader (src/net/plain.h) takes, the careful one takes too, and it means the
 * same. */
#include "fuzz.h"
#include "net/plain.h"
#include "queue/json.h"
#include "queue/task_json.h"

enum { DEPTH_MAX = 32, OBJECTS_MAX = 4096 };

static const int64_t now_ms = INT64_C(1793000000000);

/* What the plain reader told of. */
struct plain {
    struct {
        kl__plain_field fields[KL_PLAIN_FIELDS_MAX];
        size_t count;
    } objects[OBJECTS_MAX];
    size_t count;
};

static bool take(void *context, const kl__plain_field *fields, size_t count)
{
    struct plain *plain = context;
    HOLDS(plain->count < OBJECTS_MAX && count <= KL_PLAIN_FIELDS_MAX);
    if (count > 0)
        memcpy(plain->objects[plain->count].fields, fields, count * sizeof *fields);
    plain->objects[plain->count++].count = count;
    return true;
}

static bool equal(kl_bytes a, kl_bytes b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

static void check_field(const kl__plain_field *field, json_t *object)
{
    char name[4096 + 1] = "";
    HOLDS(field->name.len < sizeof name);
    memcpy(name, field->name.data, field->name.len);
    json_t *value = json_object_get(object, name);
    HOLDS(value);
    if (field->text.data)
        HOLDS(json_is_string(value) &&
              equal(field->text, (kl_bytes){json_string_value(value), json_string_length(value)}));
    else if (field->is_number)
        HOLDS(json_is_integer(value) && json_integer_value(value) == field->number);
    else
        HOLDS(json_is_boolean(value) && json_is_true(value) == field->flag);
}

/* A task that was read plainly is the task that is read carefully. */
static void check_task(const kl__plain_field *fields, size_t count, json_t *object)
{
    kl_arena arena = {0};
    kl_put plain, careful = {0};
    char error[KL_LINE_ERROR_BYTES] = "";
    bool taken = kl__task_take(object, now_ms, &arena, &careful, error, sizeof error);
    HOLDS(taken || *error);
    if (kl__plain_task(fields, count, &plain)) {
        HOLDS(taken && equal(plain.key, careful.key) && equal(plain.kind, careful.kind));
        HOLDS(equal(plain.payload, careful.payload) && equal(plain.group, careful.group));
        HOLDS(plain.priority == careful.priority && careful.delay_ms == 0 && careful.due_ms == 0);
        HOLDS(careful.attempts_max == 0 && careful.unique.len == 0 && careful.header_count + careful.tag_count == 0);
    }
    kl_arena_free(&arena);
}

static void check_same(const struct plain *plain, bool many, const char *name, json_t *body)
{
    json_t *list = many ? json_object_get(body, name) : NULL;
    HOLDS(many ? json_object_size(body) == 1 && json_array_size(list) == plain->count : plain->count == 1);
    for (size_t i = 0; i < plain->count; i++) {
        json_t *object = many ? json_array_get(list, i) : body;
        HOLDS(json_is_object(object) && json_object_size(object) == plain->objects[i].count);
        for (size_t j = 0; j < plain->objects[i].count; j++)
            check_field(&plain->objects[i].fields[j], object);
        check_task(plain->objects[i].fields, plain->objects[i].count, object);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct plain plain;
    char *copy = fuzz_copy(data, size), error[KL_LINE_ERROR_BYTES] = "";
    kl_bytes text = {copy, size};
    kl__json body = {0};
    kl_arena arena = {0};
    kl_put task = {0};
    bool many, parsed = kl__json_parse_given(text, DEPTH_MAX, "the body", &body) == KL_OK;
    HOLDS(!parsed || json_is_object(body.object));
    bool read = kl__task_read(text, now_ms, &arena, &task, error);
    HOLDS(read ? parsed || kl__json_is_deeper(text, DEPTH_MAX) : *error != 0);
    const char *names[] = {"tasks", "items"};
    for (size_t i = 0; i < 2; i++) {
        plain.count = 0;
        if (kl__plain_read(text, names[i], take, &plain, &many)) {
            HOLDS(parsed && plain.count <= kl__plain_count(text));
            check_same(&plain, many, names[i], body.object);
        }
    }
    kl__json_free(&body);
    kl_arena_free(&arena);
    free(copy);
    return 0;
}
