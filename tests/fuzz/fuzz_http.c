/* fuzz_http.c - any bytes as a request: read whole and read in two pieces they must come to the same, and what is
 * taken for a request must keep to R1 to R4 (src/net/parse.h). */
#include "fuzz.h"
#include "net/framing.h"

/* Somewhere in it, the same for the same bytes; inputs stay plain requests that people can read. */
static size_t choose_split(const uint8_t *data, size_t size)
{
    size_t sum = 0;
    for (size_t i = 0; i < size; i++)
        sum = sum * 31 + data[i];
    return sum % (size + 1);
}

static void check_inside(kl_bytes part, const char *bytes, size_t size)
{
    const char *data = part.data;
    HOLDS(part.len == 0 || (data >= bytes && data + part.len <= bytes + size));
}

static void check_field(const kl__field *field)
{
    const unsigned char *name = field->name.data, *value = field->value.data;
    HOLDS(field->name.len > 0);
    for (size_t i = 0; i < field->name.len; i++)
        HOLDS(name[i] > ' ' && name[i] < 0x7f && name[i] != ':' && (name[i] < 'A' || name[i] > 'Z'));
    for (size_t i = 0; i < field->value.len; i++)
        HOLDS((value[i] >= ' ' && value[i] != 0x7f) || value[i] == '\t');
}

static size_t count_fields(const kl__head *head, const char *name)
{
    size_t count = 0;
    for (size_t i = 0; i < head->field_count; i++)
        count += head->fields[i].name.len == strlen(name) && memcmp(head->fields[i].name.data, name, strlen(name)) == 0;
    return count;
}

static void check_request(const struct framing_result *result, const char *bytes, size_t size)
{
    const kl__head *head = &result->head;
    HOLDS(head->method < KL_METHOD_OTHER && head->minor <= 1 && head->field_count <= KL_FIELDS_MAX);
    HOLDS(result->used <= size && result->body.len <= FRAMING_BODY_MAX);
    HOLDS(head->path.len > 0 && ((const char *)head->path.data)[0] == '/');
    check_inside(head->target, bytes, size);
    check_inside(head->path, bytes, size);
    check_inside(head->authority, bytes, size);
    check_inside(result->body, bytes, size);
    for (size_t i = 0; i < head->field_count; i++) {
        check_inside(head->fields[i].name, bytes, size);
        check_inside(head->fields[i].value, bytes, size);
        check_field(&head->fields[i]);
    }
    size_t lengths = count_fields(head, "content-length"), transfers = count_fields(head, "transfer-encoding");
    HOLDS(lengths + transfers <= 1 && (lengths == 1) == (head->content_length >= 0) &&
          (transfers == 1) == head->chunked);
    HOLDS(count_fields(head, "host") <= 1 && (head->minor == 0 || count_fields(head, "host") == 1));
}

static void read_query(struct framing_result *result)
{
    kl_bytes query = result->head.query, name, value;
    bool bad = false;
    while (kl__query_next(&query, &name, &value, &bad))
        HOLDS(name.len + value.len < result->head.target.len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *whole = fuzz_copy(data, size), *split = fuzz_copy(data, size);
    struct framing_result one = framing_read(whole, size, size);
    struct framing_result two = framing_read(split, size, choose_split(data, size));
    HOLDS(one.status == two.status);
    if (one.status == 0) {
        HOLDS(one.used == two.used && one.body.len == two.body.len);
        HOLDS(one.body.len == 0 || memcmp(one.body.data, two.body.data, one.body.len) == 0);
        check_request(&one, whole, size);
        read_query(&one);
        kl__path_unescape(&two.head.path);
    }
    free(whole);
    free(split);
    return 0;
}
