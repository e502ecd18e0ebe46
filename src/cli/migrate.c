/* migrate.c - `keyline migrate`: brings the schema of a PostgreSQL store up to date, or says what it is at.
 *
 * From: main.c.  To: store/postgres/migrate.h. */
#include "cli/cli.h"
#include "cli/config.h"
#include "cli/output.h"

#include "store/postgres/migrate.h"

typedef struct migrate_opts {
    int64_t check;
} migrate_opts;

static const char about[] =
    "Makes the schema of a PostgreSQL store, or brings it up to date, in one transaction. Opening a\n"
    "store does the same, unless its URL says migrate=off: then whoever may change the database\n"
    "calls this before a new release is started, and nobody else needs to be allowed to.\n"
    "\n"
    "With --check nothing is changed, and the exit status is 1 if something would be.\n"
    "Other stores have nothing to migrate.\n";

static const kl__option options[] = {
    {"--check", NULL, "only say what would be done", offsetof(migrate_opts, check), 0, 0},
    {0},
};

static const kl__column columns[] = {{"schema", 0}, {"before", 0}, {"after", 0}, {"known", 0}, {NULL, 0}};

static int tell(kl__call *call, const kl__pg_versions *versions)
{
    const kl__cell cells[] = {kl__cell_text(versions->schema), kl__cell_number(versions->before),
                              kl__cell_number(versions->after), kl__cell_number(versions->known)};
    if (versions->before == versions->known)
        return kl__out_done(call, columns, cells, "schema %s is at version %d, as it should be", versions->schema,
                            versions->after);
    if (versions->after == versions->known)
        return kl__out_done(call, columns, cells, "schema %s was at version %d and is at %d now", versions->schema,
                            versions->before, versions->after);
    int status = kl__out_done(call, columns, cells, "schema %s is at version %d; call `keyline migrate` to make it %d",
                              versions->schema, versions->before, versions->known);
    return status == KL_EXIT_OK ? KL_EXIT_FAILURE : status;
}

static int run_migrate(kl__call *call)
{
    const migrate_opts *opts = call->values;
    const char *url = call->config->values[KL_SET_STORE].text;
    kl__pg_versions versions;
    if (!kl__pg_is_url(url)) {
        kl__complain("the store is %s, which has nothing to migrate; --store postgres://... names one that has", url);
        return KL_EXIT_USAGE;
    }
    kl_rc rc = kl__pg_migrate(url, opts->check > 0, &versions);
    return rc == KL_OK ? tell(call, &versions) : kl__fail_given(rc);
}

const kl__command kl__migrate_command = {
    .name = "migrate",
    .summary = "bring the schema of a PostgreSQL store up to date",
    .about = about,
    .options = options,
    .values_size = sizeof(migrate_opts),
    .takes = KL_TAKES_JSON | KL_TAKES_STORE,
    .run = run_migrate,
};
