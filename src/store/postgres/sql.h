/* sql.h - the schema of the PostgreSQL engine as text: numbered steps, each applied once, in one transaction.
 *
 * The text is C tokens made into a string, so that it reads as SQL. Placeholders: $S the schema's name as an
 * identifier, $C the same as a literal, $L a number that stands for the schema in advisory locks. */
#ifndef KL_STORE_POSTGRES_SQL_H
#define KL_STORE_POSTGRES_SQL_H

#define KL_SQL(...) #__VA_ARGS__

/* The parts of step 1, in this order. */
extern const char kl__pg_sql_tables[], kl__pg_sql_tasks[], kl__pg_sql_settle[], kl__pg_sql_records[],
    kl__pg_sql_upkeep[];

/* Step 2. */
extern const char kl__pg_sql_inbox[];

/* The last part of each step. */
extern const char kl__pg_sql_paths[];

#endif
