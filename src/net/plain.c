/* plain.c - a reader of plain bodies. See plain.h. */
#include "net/plain.h"

#include "base/utf8.h"

struct reader {
    const char *at, *end;
};

static void skip_blanks(struct reader *reader)
{
    while (reader->at < reader->end &&
           (*reader->at == ' ' || *reader->at == '\n' || *reader->at == '\r' || *reader->at == '\t'))
        reader->at++;
}

/* The next sign that is not blank, if it is this one. */
static bool take_sign(struct reader *reader, char sign)
{
    skip_blanks(reader);
    if (reader->at == reader->end || *reader->at != sign)
        return false;
    reader->at++;
    return true;
}

static bool take_string(struct reader *reader, kl_bytes *ret_text)
{
    if (!take_sign(reader, '"'))
        return false;
    const char *from = reader->at, *quote = memchr(from, '"', (size_t)(reader->end - from));
    if (!quote)
        return false;
    *ret_text = (kl_bytes){from, (size_t)(quote - from)};
    reader->at = quote + 1;
    return kl__utf8_is_plain(*ret_text);
}

/* Up to 15 digits: more may not be exact in every reader. */
static bool take_number(struct reader *reader, int64_t *ret_number)
{
    bool negative = take_sign(reader, '-');
    const char *from = reader->at;
    int64_t number = 0;
    while (reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9' && reader->at - from < 15)
        number = number * 10 + (*reader->at++ - '0');
    size_t digits = (size_t)(reader->at - from);
    if (digits == 0 || (*from == '0' && digits > 1))
        return false;
    if (reader->at < reader->end && strchr(".eE0123456789", *reader->at))
        return false;
    *ret_number = negative ? -number : number;
    return true;
}

static bool take_word(struct reader *reader, const char *word)
{
    size_t len = strlen(word);
    skip_blanks(reader);
    if ((size_t)(reader->end - reader->at) < len || memcmp(reader->at, word, len) != 0)
        return false;
    reader->at += len;
    return true;
}

static bool take_value(struct reader *reader, kl__plain_field *field)
{
    skip_blanks(reader);
    if (reader->at == reader->end)
        return false;
    if (*reader->at == '"')
        return take_string(reader, &field->text);
    if (take_word(reader, "true"))
        return field->flag = true;
    if (take_word(reader, "false"))
        return true;
    return field->is_number = take_number(reader, &field->number);
}

static bool is_twice(const kl__plain_field *fields, size_t count)
{
    for (size_t i = 0; i + 1 < count; i++)
        if (fields[i].name.len == fields[count - 1].name.len &&
            memcmp(fields[i].name.data, fields[count - 1].name.data, fields[i].name.len) == 0)
            return true;
    return false;
}

static bool take_object(struct reader *reader, kl__plain_fn *take, void *ctx)
{
    kl__plain_field fields[KL_PLAIN_FIELDS_MAX];
    size_t count = 0;
    if (!take_sign(reader, '{'))
        return false;
    if (!take_sign(reader, '}'))
        do {
            if (count == KL_PLAIN_FIELDS_MAX)
                return false;
            fields[count] = (kl__plain_field){.number = 0};
            if (!take_string(reader, &fields[count].name) || !take_sign(reader, ':') ||
                !take_value(reader, &fields[count]))
                return false;
            if (is_twice(fields, ++count))
                return false;
        } while (take_sign(reader, ','));
    return (count == 0 || take_sign(reader, '}')) && take(ctx, fields, count);
}

/* {"name": [ ... ]} */
static bool take_list(struct reader *reader, const char *name, kl__plain_fn *take, void *ctx)
{
    kl__plain_field list = {.number = 0};
    if (!take_sign(reader, '{') || !take_string(reader, &list.name) || !kl__plain_is(&list, name) ||
        !take_sign(reader, ':') || !take_sign(reader, '['))
        return false;
    do
        if (!take_object(reader, take, ctx))
            return false;
    while (take_sign(reader, ','));
    return take_sign(reader, ']') && take_sign(reader, '}');
}

/* Whether the first field is the list. */
static bool is_list(struct reader reader, const char *name)
{
    kl__plain_field first = {.number = 0};
    return take_sign(&reader, '{') && take_string(&reader, &first.name) && kl__plain_is(&first, name);
}

bool kl__plain_read(kl_bytes body, const char *name, kl__plain_fn *take, void *ctx, bool *ret_many)
{
    struct reader reader = {body.data, (const char *)body.data + body.len};
    bool many = body.len && is_list(reader, name);
    bool ok = body.len && (many ? take_list(&reader, name, take, ctx) : take_object(&reader, take, ctx));
    skip_blanks(&reader);
    *ret_many = many;
    return ok && reader.at == reader.end;
}

size_t kl__plain_count(kl_bytes body)
{
    size_t count = 0;
    for (const char *at = body.data, *end = at + body.len; at && at < end; count++) {
        at = memchr(at, '{', (size_t)(end - at));
        if (!at)
            break;
        at++;
    }
    return count;
}

/* Where the text of a field goes; NULL: to none of those that most tasks have. */
static kl_bytes *text_of(const kl__plain_field *field, kl_put *task)
{
    return kl__plain_is(field, "key")       ? &task->key
           : kl__plain_is(field, "payload") ? &task->payload
           : kl__plain_is(field, "kind")    ? &task->kind
           : kl__plain_is(field, "group")   ? &task->group
                                            : NULL;
}

bool kl__plain_task(const kl__plain_field *fields, size_t count, kl_put *ret_task)
{
    kl_put task = {.queue = NULL};
    for (size_t i = 0; i < count; i++) {
        const kl__plain_field *field = &fields[i];
        kl_bytes *text = field->text.data ? text_of(field, &task) : NULL;
        bool counts = field->is_number && field->number >= KL_PRIORITY_MIN && field->number <= KL_PRIORITY_MAX &&
                      kl__plain_is(field, "priority");
        if (text)
            *text = field->text;
        else if (counts)
            task.priority = field->number;
        else
            return false;
    }
    *ret_task = task;
    return true;
}
