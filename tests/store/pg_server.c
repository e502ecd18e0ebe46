/* pg_server.c - see pg_server.h.
 *
 * The server refuses to run as root, so it and initdb run as the user `postgres`, or `nobody`, when the tests are root.
 * The kernel ends it when the test program dies without a word (PR_SET_PDEATHSIG). */
#include "store/pg_server.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <libpq-fe.h>
#include <poll.h>
#include <pthread.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "harness.h"
#include "store/workdir.h"

enum { PATH_BYTES = 256, STARTS_IN_MS = 30000, PING_MS = 10 };

static struct {
    char dir[WORKDIR_BYTES];
    char bin[PATH_BYTES];
    pid_t pid, bouncer, standby;
    kl_rc rc; /* KL_OK: it runs */
    bool tried;
    int schemas;
} server;

/* One connection for all statements of the tests, made again when the server was restarted. */
static struct {
    pthread_mutex_t mutex;
    PGconn *conn;
} speaker = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static kl_rc fail(const char *what)
{
    return kl__fail(KL_ESYSTEM, "%s; install the package postgresql, or set KL_TEST_POSTGRES to a server's URL", what);
}

/* --- Processes --- */

/* In the child: becomes a user that PostgreSQL runs as. */
static bool drop_root(void)
{
    const struct passwd *user = getpwnam("postgres");
    if (geteuid() != 0)
        return true;
    if (!user)
        user = getpwnam("nobody");
    return user && setgroups(0, NULL) == 0 && setgid(user->pw_gid) == 0 && setuid(user->pw_uid) == 0;
}

static pid_t start(const char *program, char *const *arguments, const char *log)
{
    char path[PATH_BYTES + 16];
    pid_t parent = getpid(), pid = fork();
    if (pid != 0)
        return pid;
    snprintf(path, sizeof path, "%s%s%s", *program == '/' ? "" : server.bin, *program == '/' ? "" : "/", program);
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (out < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0 || !drop_root() || chdir("/") != 0)
        _exit(126);
    prctl(PR_SET_PDEATHSIG, SIGQUIT); /* after setuid, which clears it */
    if (getppid() != parent)
        _exit(126);
    execv(path, arguments);
    _exit(127);
}

static bool run(const char *program, char *const *arguments, const char *log)
{
    int status = -1;
    pid_t pid = start(program, arguments, log);
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* --- The server --- */

static bool find_programs(void)
{
    glob_t found = {0};
    bool there = false;
    static const char *const places[] = {"/usr/lib/postgresql/*/bin/initdb", "/usr/pgsql-*/bin/initdb",
                                         "/usr/local/pgsql/bin/initdb", "/usr/bin/initdb"};
    for (size_t i = 0; !there && i < sizeof places / sizeof places[0]; i++) {
        if (glob(places[i], 0, NULL, &found) == 0 && found.gl_pathc > 0) {
            const char *last = found.gl_pathv[found.gl_pathc - 1];
            snprintf(server.bin, sizeof server.bin, "%.*s", (int)(strrchr(last, '/') - last), last);
            there = true;
        }
        globfree(&found);
    }
    return there;
}

static bool make_directory(void)
{
    const struct passwd *user = getpwnam("postgres");
    if (!workdir_make(server.dir))
        return false;
    if (geteuid() != 0)
        return true;
    if (!user)
        user = getpwnam("nobody");
    return user && chown(server.dir, user->pw_uid, user->pw_gid) == 0;
}

static void server_url(char ret_url[PG_URL_BYTES])
{
    snprintf(ret_url, PG_URL_BYTES, "postgres:///postgres?host=%s&user=postgres", server.dir);
}

/* The server has no event for this: its own pg_ctl asks in a loop, too. */
static bool await_start(const char *url, pid_t pid)
{
    for (int waited = 0; waited < STARTS_IN_MS; waited += PING_MS) {
        if (PQping(url) == PQPING_OK)
            return true;
        if (waitpid(pid, NULL, WNOHANG) != 0)
            break;
        poll(NULL, 0, PING_MS);
    }
    return false;
}

static void stop(void)
{
    PQfinish(speaker.conn);
    if (server.bouncer > 0) {
        kill(server.bouncer, SIGKILL);
        waitpid(server.bouncer, NULL, 0);
    }
    if (server.standby > 0) {
        kill(server.standby, SIGQUIT);
        waitpid(server.standby, NULL, 0);
    }
    if (server.pid > 0) {
        kill(server.pid, SIGQUIT); /* at once: nobody wants its data any more */
        waitpid(server.pid, NULL, 0);
    }
    if (*server.dir)
        workdir_remove(server.dir);
}

static bool run_server(const char *log)
{
    char data[PATH_BYTES], sockets[PATH_BYTES];
    snprintf(data, sizeof data, "%s/data", server.dir);
    snprintf(sockets, sizeof sockets, "unix_socket_directories=%s", server.dir);
    /* Without fsync: the tests end its process, not the machine. */
    char *arguments[] = {"postgres", "-D", data,        "-c", "listen_addresses=",  "-c",
                         sockets,    "-c", "fsync=off", "-c", "max_connections=60", NULL};
    server.pid = start("postgres", arguments, log);
    char url[PG_URL_BYTES];
    server_url(url);
    return server.pid > 0 && await_start(url, server.pid);
}

static kl_rc start_server(void)
{
    char data[PATH_BYTES], log[PATH_BYTES];
    if (!find_programs())
        return fail("there is no initdb on this machine");
    if (!make_directory())
        return fail("no directory is to be made for the server");
    atexit(stop);
    snprintf(data, sizeof data, "%s/data", server.dir);
    snprintf(log, sizeof log, "%s.log", server.dir);
    char *init[] = {"initdb", "-D",        data,          "-U", "postgres", "-A",
                    "trust",  "--no-sync", "--no-locale", "-E", "UTF8",     NULL};
    if (!run("initdb", init, log) || !run_server(log))
        return kl__fail(KL_ESYSTEM, "PostgreSQL does not start; %s says why", log);
    unlink(log);
    return KL_OK;
}

bool pg_server_crash(void)
{
    if (server.pid <= 0)
        return false;
    kill(server.pid, SIGQUIT);
    waitpid(server.pid, NULL, 0);
    CHECK(run_server("/dev/null"));
    return true;
}

kl_rc pg_server_url(char ret_url[PG_URL_BYTES])
{
    const char *given = getenv("KL_TEST_POSTGRES");
    if (given && *given) {
        snprintf(ret_url, PG_URL_BYTES, "%s", given);
        return KL_OK;
    }
    if (!server.tried)
        server.rc = start_server();
    server.tried = true;
    if (server.rc != KL_OK)
        return *kl_error_text() ? server.rc : fail("PostgreSQL did not start");
    server_url(ret_url);
    return KL_OK;
}

kl_rc pg_server_new_schema(char ret_url[PG_URL_BYTES], char ret_schema[64])
{
    char url[PG_URL_BYTES];
    kl_rc rc = pg_server_url(url);
    if (rc != KL_OK)
        return rc;
    snprintf(ret_schema, 64, "keyline_test_%d_%d", (int)getpid(), ++server.schemas);
    snprintf(ret_url, PG_URL_BYTES, "%.300s%cschema=%s&application_name=%s", url, strchr(url, '?') ? '&' : '?',
             ret_schema, ret_schema);
    return KL_OK;
}

bool pg_server_call(const char *program, char *const *arguments)
{
    return server.pid > 0 && run(program, arguments, "/dev/null");
}

/* --- PgBouncer --- */

static bool write_config(const char *path, int connections)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return false;
    fprintf(file,
            "[databases]\nsingle = host=%s user=postgres dbname=postgres pool_size=1\n* = host=%s user=postgres\n"
            "[pgbouncer]\nlisten_addr =\nlisten_port = 6432\nunix_socket_dir = %s\nauth_type = any\n"
            "pool_mode = transaction\ndefault_pool_size = %d\nmax_client_conn = 200\n",
            server.dir, server.dir, server.dir, connections);
    return fclose(file) == 0;
}

kl_rc pg_bouncer_url(int connections, char ret_url[PG_URL_BYTES])
{
    char config[PATH_BYTES], *arguments[] = {"pgbouncer", "-q", config, NULL};
    kl_rc rc = pg_server_url(ret_url);
    if (rc != KL_OK || server.pid <= 0)
        return rc != KL_OK ? rc : fail("PgBouncer is started beside a server of the tests' own only");
    snprintf(config, sizeof config, "%s/bouncer.ini", server.dir);
    if (server.bouncer == 0 && write_config(config, connections))
        server.bouncer = start("/usr/sbin/pgbouncer", arguments, "/dev/null");
    snprintf(ret_url, PG_URL_BYTES, "postgres:///postgres?host=%s&port=6432&user=postgres", server.dir);
    return server.bouncer > 0 && await_start(ret_url, server.bouncer) ? KL_OK : fail("PgBouncer does not start");
}

void pg_bouncer_stop(bool stop) { CHECK(server.bouncer > 0 && kill(server.bouncer, stop ? SIGSTOP : SIGCONT) == 0); }

/* --- A standby --- */

kl_rc pg_standby_url(char ret_url[PG_URL_BYTES])
{
    char data[PATH_BYTES], sockets[PATH_BYTES];
    kl_rc rc = pg_server_url(ret_url);
    if (rc != KL_OK || server.pid <= 0)
        return rc != KL_OK ? rc : fail("a standby is made of a server of the tests' own only");
    snprintf(data, sizeof data, "%s/standby", server.dir);
    snprintf(sockets, sizeof sockets, "unix_socket_directories=%s", server.dir);
    char *copy[] = {"pg_basebackup", "-D", data,       "-R", "-X",       "stream", "-c",
                    "fast",          "-h", server.dir, "-U", "postgres", NULL};
    char *arguments[] = {"postgres",  "-D", data,        "-c", "listen_addresses=",  "-c",
                         sockets,     "-c", "fsync=off", "-c", "max_connections=60", "-c",
                         "port=5433", NULL};
    if (server.standby == 0 && run("pg_basebackup", copy, "/dev/null"))
        server.standby = start("postgres", arguments, "/dev/null");
    snprintf(ret_url, PG_URL_BYTES, "postgres:///postgres?host=%s&port=5433&user=postgres", server.dir);
    return server.standby > 0 && await_start(ret_url, server.standby) ? KL_OK : fail("the standby does not start");
}

/* --- Statements --- */

PGconn *pg_server_connect(void)
{
    char url[PG_URL_BYTES];
    PGconn *conn = pg_server_url(url) == KL_OK ? PQconnectdb(url) : NULL;
    if (conn)
        PQclear(PQexec(conn, "SET client_min_messages = error"));
    return conn;
}

static PGresult *ask(const char *sql)
{
    PGresult *rows = NULL;
    pthread_mutex_lock(&speaker.mutex);
    for (int tries = 0; tries < 2; tries++) {
        if (PQstatus(speaker.conn) != CONNECTION_OK) {
            PQfinish(speaker.conn);
            speaker.conn = pg_server_connect();
        }
        PQclear(rows);
        rows = PQexec(speaker.conn, sql);
        if (PQstatus(speaker.conn) == CONNECTION_OK)
            break;
    }
    ExecStatusType status = PQresultStatus(rows);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        test_fail(__FILE__, __LINE__, "%s: %s", sql, speaker.conn ? PQerrorMessage(speaker.conn) : kl_error_text());
    pthread_mutex_unlock(&speaker.mutex);
    return rows;
}

void pg_server_run(const char *sql) { PQclear(ask(sql)); }

long long pg_server_number(const char *sql)
{
    PGresult *rows = ask(sql);
    bool there = PQresultStatus(rows) == PGRES_TUPLES_OK && PQntuples(rows) > 0 && !PQgetisnull(rows, 0, 0);
    long long number = there ? strtoll(PQgetvalue(rows, 0, 0), NULL, 10) : -1;
    CHECK(there);
    PQclear(rows);
    return number;
}
