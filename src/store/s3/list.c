/* list.c - listings and deletes: the little of XML that S3 speaks.
 *
 * Our own names need no escapes; those of others that do are read back as they were. Pages go on behind the last name
 * (start-after), which every server knows, so nothing is left open between them. */
#include <stdio.h>
#include <stdlib.h>

#include "store/s3/s3.h"

enum { PAGE = 1000 };

/* --- XML --- */

/* What stands between <tag> and </tag> in [*at, end), and moves *at behind it. */
static bool next_element(const char **at, const char *end, const char *tag, kl_bytes *ret_inner)
{
    char open[64], close[64];
    snprintf(open, sizeof open, "<%s>", tag);
    snprintf(close, sizeof close, "</%s>", tag);
    const char *from = memmem(*at, (size_t)(end - *at), open, strlen(open));
    if (!from)
        return false;
    from += strlen(open);
    const char *to = memmem(from, (size_t)(end - from), close, strlen(close));
    if (!to)
        return false;
    *ret_inner = (kl_bytes){from, (size_t)(to - from)};
    *at = to + strlen(close);
    return true;
}

static bool element(kl_bytes outer, const char *tag, kl_bytes *ret_inner)
{
    const char *at = outer.data;
    return next_element(&at, at + outer.len, tag, ret_inner);
}

/* Decodes &amp; and its like in place of the copy. */
static void unescape(char *text)
{
    static const struct {
        const char *name;
        char c;
    } entities[] = {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}, {"&#34;", '"'}};
    char *to = text;
    for (const char *from = text; *from;) {
        size_t i = 0, count = sizeof entities / sizeof entities[0];
        while (i < count && (*from != '&' || strncmp(from, entities[i].name, strlen(entities[i].name)) != 0))
            i++;
        *to = *from;
        if (i < count)
            *to = entities[i].c;
        to++;
        from += i < count ? strlen(entities[i].name) : 1;
    }
    *to = '\0';
}

static char *copy_text(kl_bytes bytes)
{
    char *copy = kl__alloc(bytes.len + 1);
    if (!copy)
        return NULL;
    memcpy(copy, bytes.data, bytes.len);
    copy[bytes.len] = '\0';
    unescape(copy);
    return copy;
}

/* 2026-11-15T18:30:00.123Z */
static int64_t time_of(kl_bytes text)
{
    int year, month, day, hour, minute;
    double second;
    char copy[40];
    snprintf(copy, sizeof copy, "%.*s", (int)(text.len < 39 ? text.len : 39), (const char *)text.data);
    if (sscanf(copy, "%d-%d-%dT%d:%d:%lf", &year, &month, &day, &hour, &minute, &second) != 6)
        return 0;
    struct tm tm = {.tm_year = year - 1900, .tm_mon = month - 1, .tm_mday = day, .tm_hour = hour, .tm_min = minute};
    return (int64_t)timegm(&tm) * 1000 + (int64_t)(second * 1000);
}

/* --- Listing --- */

void kl__s3_names_free(kl__s3_names *names)
{
    for (size_t i = 0; i < names->count; i++)
        kl__free(names->items[i].name);
    kl__free(names->items);
    *names = (kl__s3_names){0};
}

static bool make_room(kl__s3_names *names)
{
    kl__s3_listed *items = kl__grow(names->items, names->count, &names->room, sizeof *items);
    names->items = items ? items : names->items;
    return items;
}

static bool add_name(const kl__s3 *s3, kl_bytes contents, kl__s3_names *names)
{
    kl_bytes key, etag = {"", 0}, modified, size;
    size_t skip = strlen(s3->prefix);
    if (!element(contents, "Key", &key))
        return true;
    char *name = make_room(names) ? copy_text(key) : NULL;
    if (!name)
        return false;
    if (strncmp(name, s3->prefix, skip) != 0) {
        kl__free(name);
        return true;
    }
    memmove(name, name + skip, strlen(name + skip) + 1);
    kl__s3_listed *item = &names->items[names->count++];
    *item = (kl__s3_listed){.name = name};
    if (element(contents, "ETag", &etag) && etag.len < sizeof item->etag) {
        memcpy(item->etag, etag.data, etag.len);
        item->etag[etag.len] = '\0';
        unescape(item->etag);
    }
    item->modified_ms = element(contents, "LastModified", &modified) ? time_of(modified) : 0;
    item->size = element(contents, "Size", &size) ? strtoull(size.data, NULL, 10) : 0; /* it ends at the next < */
    return true;
}

static kl_rc read_page(const kl__s3 *s3, const kl__s3_text *reply, kl__s3_names *ret_names)
{
    kl_bytes all = {reply->data ? reply->data : "", reply->len}, contents, truncated;
    const char *at = all.data, *end = at + all.len;
    if (!element(all, "IsTruncated", &truncated))
        return kl__fail(KL_ESYSTEM, "what S3 lists is not understood: %.100s", (const char *)all.data);
    while (next_element(&at, end, "Contents", &contents))
        if (!add_name(s3, contents, ret_names))
            return kl__fail_memory();
    ret_names->more = truncated.len == 4 && memcmp(truncated.data, "true", 4) == 0;
    return KL_OK;
}

static void put_query(const kl__s3 *s3, const char *prefix, const char *after, unsigned max, kl__s3_text *query)
{
    kl__s3_text_put(query, "list-type=2&max-keys=%u&prefix=", max ? max : PAGE);
    kl__s3_encode(query, kl_str(s3->prefix), false);
    kl__s3_encode(query, kl_str(prefix), false);
    if (!after)
        return;
    kl__s3_text_put(query, "&start-after=");
    kl__s3_encode(query, kl_str(s3->prefix), false);
    kl__s3_encode(query, kl_str(after), false);
}

static kl_rc read_pages(kl__s3 *s3, kl__s3_listing *listings, const kl__s3_request *requests, size_t count)
{
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < count; i++)
        rc = requests[i].status == 200 ? read_page(s3, &requests[i].reply, &listings[i].names)
                                       : kl__s3_refused(&requests[i]);
    return rc;
}

kl_rc kl__s3_list_pages(kl__s3 *s3, kl__s3_listing *listings, size_t count)
{
    kl__s3_text *queries = kl__alloc_zeroed(count ? count : 1, sizeof *queries);
    kl__s3_request *requests = kl__alloc_zeroed(count ? count : 1, sizeof *requests);
    kl_rc rc = queries && requests ? KL_OK : kl__fail_memory();
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        put_query(s3, listings[i].prefix, listings[i].after, listings[i].max, &queries[i]);
        requests[i] = (kl__s3_request){.kind = KL_S3_LIST, .query = queries[i].data};
        rc = queries[i].failed ? kl__fail_memory() : KL_OK;
    }
    if (rc == KL_OK)
        rc = kl__s3_send(s3->http, requests, count);
    if (rc == KL_OK)
        rc = read_pages(s3, listings, requests, count);
    for (size_t i = 0; queries && requests && i < count; i++) {
        kl__s3_text_free(&queries[i]);
        kl__s3_request_free(&requests[i]);
    }
    kl__free(queries);
    kl__free(requests);
    return rc;
}

kl_rc kl__s3_list_page(kl__s3 *s3, const char *prefix, const char *after, unsigned max, kl__s3_names *ret_names)
{
    kl__s3_listing listing = {.prefix = prefix, .after = after, .max = max};
    kl_rc rc = kl__s3_list_pages(s3, &listing, 1);
    *ret_names = listing.names;
    if (rc != KL_OK)
        kl__s3_names_free(ret_names);
    return rc;
}

/* --- Deleting --- */

static void put_escaped(kl__s3_text *text, const char *name)
{
    for (; *name; name++) {
        const char *entity = *name == '&' ? "&amp;" : *name == '<' ? "&lt;" : *name == '>' ? "&gt;" : NULL;
        if (entity)
            kl__s3_text_put(text, "%s", entity);
        else
            kl__s3_text_add(text, name, 1);
    }
}

/* A delete is answered 200 even if objects are still there: they are named. */
static kl_rc find_undeleted(const kl__s3_text *reply)
{
    kl_bytes error, key = {"", 0}, code = {"", 0};
    const char *at = reply->data ? reply->data : "", *end = at + reply->len;
    while (next_element(&at, end, "Error", &error)) {
        if (element(error, "Code", &code) && code.len == 9 && memcmp(code.data, "NoSuchKey", 9) == 0)
            continue;
        (void)element(error, "Key", &key);
        return kl__fail(KL_ESYSTEM, "S3 does not delete %.*s (%.*s); is s3:DeleteObject allowed?", (int)key.len,
                        (const char *)key.data, (int)code.len, (const char *)code.data);
    }
    return KL_OK;
}

static kl_rc delete_page(kl__s3 *s3, char **names, size_t count)
{
    kl__s3_text body = {0};
    kl__s3_text_put(&body, "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Quiet>true</Quiet>");
    for (size_t i = 0; i < count; i++) {
        kl__s3_text_put(&body, "<Object><Key>");
        put_escaped(&body, names[i]);
        kl__s3_text_put(&body, "</Key></Object>");
    }
    kl__s3_text_put(&body, "</Delete>");
    kl__s3_request request = {.kind = KL_S3_DELETE, .query = "delete=", .body = {body.data, body.len}};
    kl_rc rc = body.failed ? kl__fail_memory() : kl__s3_send(s3->http, &request, 1);
    if (rc == KL_OK && request.status != 200)
        rc = kl__fail(KL_ESYSTEM, "S3 answers %d to a delete; is s3:DeleteObject allowed?", request.status);
    if (rc == KL_OK)
        rc = find_undeleted(&request.reply);
    kl__s3_text_free(&body);
    kl__s3_request_free(&request);
    return rc;
}

kl_rc kl__s3_delete(kl__s3 *s3, char **names, size_t count)
{
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < count; i += PAGE)
        rc = delete_page(s3, names + i, count - i < PAGE ? count - i : PAGE);
    return rc;
}
