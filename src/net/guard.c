/* guard.c - see guard.h. */
#include "net/guard.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { HOST_MAX = 255 };

struct host {
    char name[HOST_MAX + 1]; /* without port, brackets and a dot at the end */
};

/* An address, IPv4 ones as ::ffff:a.b.c.d, so that two can be compared. */
struct address {
    bool is; /* it is one */
    struct in6_addr value;
};

/* ---- Names and addresses ---- */

/* "name:port", "[::1]:port" or "::1" without its port. False: too long, or no such thing. */
static bool take_host(kl_bytes text, struct host *ret_host)
{
    const char *from = text.data;
    size_t len = text.len;
    const char *colon = len ? memrchr(from, ':', len) : NULL;
    if (len > 0 && *from == '[') {
        const char *end = memchr(from, ']', len);
        if (!end)
            return false;
        len = (size_t)(end - from) - 1;
        from++;
    } else if (colon && memchr(from, ':', len) == colon) {
        len = (size_t)(colon - from);
    }
    if (len > 0 && from[len - 1] == '.')
        len--;
    if (len == 0 || len > HOST_MAX || memchr(from, 0, len))
        return false;
    snprintf(ret_host->name, sizeof ret_host->name, "%.*s", (int)len, from);
    return true;
}

static struct address address_of(const char *name)
{
    struct address address = {0};
    struct in_addr four;
    if (inet_pton(AF_INET, name, &four) == 1) {
        address.is = true;
        address.value.s6_addr[10] = address.value.s6_addr[11] = 0xff;
        memcpy(&address.value.s6_addr[12], &four, 4);
    } else {
        address.is = inet_pton(AF_INET6, name, &address.value) == 1;
    }
    return address;
}

static bool is_loopback(const struct address *address)
{
    if (IN6_IS_ADDR_V4MAPPED(&address->value))
        return address->value.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&address->value);
}

static bool is_wildcard(const struct address *address)
{
    static const uint8_t none[4];
    return IN6_IS_ADDR_UNSPECIFIED(&address->value) ||
           (IN6_IS_ADDR_V4MAPPED(&address->value) && memcmp(&address->value.s6_addr[12], none, 4) == 0);
}

static bool is_unix(const char *listen) { return strncmp(listen, "unix:", 5) == 0; }

bool kl__guard_loopback(const char *listen)
{
    struct host host;
    if (is_unix(listen))
        return true;
    if (!take_host(kl_str(listen), &host))
        return false;
    struct address address = address_of(host.name);
    return address.is ? is_loopback(&address) : strcasecmp(host.name, "localhost") == 0;
}

/* ---- Host ---- */

/* Where every address is listened on, any address will do: what is rebound is a name. */
static bool is_listened(const kl__guard *guard, const char *name, const struct address *address)
{
    for (size_t i = 0; i < guard->listen_count; i++) {
        struct host host;
        if (is_unix(guard->listen[i]) || !take_host(kl_str(guard->listen[i]), &host))
            continue;
        if (strcasecmp(host.name, name) == 0)
            return true;
        if (!address->is)
            continue;
        struct address other = address_of(host.name);
        if (other.is && (is_wildcard(&other) || memcmp(&other.value, &address->value, sizeof other.value) == 0))
            return true;
    }
    return false;
}

static bool may_host(const kl__guard *guard, const char *name)
{
    struct address address = address_of(name);
    if (address.is ? is_loopback(&address) : strcasecmp(name, "localhost") == 0)
        return true;
    for (size_t i = 0; i < guard->host_count; i++)
        if (strcasecmp(guard->hosts[i], name) == 0)
            return true;
    return is_listened(guard, name, &address);
}

/* ---- Sec-Fetch-Site and Origin ---- */

static bool says(kl_bytes value, const char *text)
{
    return value.len == strlen(text) && strncasecmp(value.data, text, value.len) == 0;
}

static bool changes(const kl__head *head)
{
    return head->method != KL_METHOD_GET && head->method != KL_METHOD_HEAD && head->method != KL_METHOD_OPTIONS;
}

/* "https://name:port" names the Host itself, port included. */
static bool is_own_origin(kl_bytes origin, kl_bytes host)
{
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < 2; i++) {
        size_t len = strlen(schemes[i]);
        if (origin.len == len + host.len && strncasecmp(origin.data, schemes[i], len) == 0)
            return strncasecmp((const char *)origin.data + len, host.data, host.len) == 0;
    }
    return false;
}

/* Somebody follows a link: what is answered is shown, and the page that has the link cannot read it. */
static bool is_visit(const kl__head *head)
{
    return head->method == KL_METHOD_GET && says(kl__head_field(head, "sec-fetch-mode"), "navigate") &&
           says(kl__head_field(head, "sec-fetch-dest"), "document");
}

static const char *check_site(const kl__head *head, kl_bytes host)
{
    static const char sentence[] =
        "this request was made by a page of another site; send it from a program, or from a page of "
        "this server";
    kl_bytes site = kl__head_field(head, "sec-fetch-site"), origin = kl__head_field(head, "origin");
    if (is_visit(head))
        return NULL;
    if (says(site, "cross-site") || (changes(head) && says(site, "same-site")))
        return sentence;
    if (site.len > 0 && !says(site, "same-origin") && !says(site, "same-site") && !says(site, "none"))
        return "Sec-Fetch-Site has a value that is not known; leave it away";
    if (site.len == 0 && origin.len > 0 && changes(head) && !is_own_origin(origin, host))
        return sentence;
    return NULL;
}

const char *kl__guard_check(const kl__guard *guard, const kl__head *head)
{
    struct host host;
    kl_bytes field = kl__head_field(head, "host");
    /* Only HTTP/1.0 is without Host, and browsers do not speak it. */
    if (field.len > 0 && (!take_host(field, &host) || !may_host(guard, host.name)))
        return "Host is a name that this server is not called by; use its address, or allow the name with --hosts";
    return check_site(head, field);
}

/* ---- Authorization ---- */

kl_bytes kl__guard_bearer(const kl__head *head)
{
    static const char scheme[] = "bearer ";
    kl_bytes value = kl__head_field(head, "authorization");
    const char *from = value.data;
    size_t skip = sizeof scheme - 1;
    if (value.len <= skip || strncasecmp(from, scheme, skip) != 0)
        return (kl_bytes){0};
    while (skip < value.len && from[skip] == ' ')
        skip++;
    return (kl_bytes){from + skip, value.len - skip};
}
