/* settings.c - the table of all settings. See config.h.
 *
 * Text of a default goes through the same parser as what people write, so it cannot be out of range. */
#include "cli/config.h"
#include "keyline/exec.h"
#include "keyline/layout.h"
#include "keyline/worker.h"

#define SECOND        INT64_C(1000)
#define MINUTE        (60 * SECOND)
#define HOUR          (60 * MINUTE)
#define DAY           (24 * HOUR)
#define LIMIT_MAX     INT64_C(1000000000)

#define FIELD(member) offsetof(kl_queue_opts, member)

/* clang-format off */
const kl__setting kl__settings[KL_SETTINGS] = {
    [KL_SET_STORE] = {"store", "KEYLINE_STORE",
        {"--store", "URL", "where tasks are kept: `disk:DIRECTORY`, or another store's URL", 0, 0, 0},
        "disk:./keyline-data", "", 0, KL_TAKES_STORE},
    [KL_SET_COLOR] = {"color", "KEYLINE_COLOR",
        {"--color", "auto|always|never", "whether output is coloured; auto: on a terminal, unless NO_COLOR is set", 0,
         0, 0},
        "auto", "", 0, KL_TAKES_JSON},
    [KL_SET_LOG] = {"log", "KEYLINE_LOG",
        {"--log", "error|warn|info|debug", "the least that is told on standard error of what happens inside", 0, 0, 0},
        "warn", "", 0, KL_TAKES_STORE},

    [KL_SET_WORKER_CONCURRENCY] = {"worker.concurrency", "KEYLINE_CONCURRENCY",
        {"--concurrency", "N", "tasks that a worker runs at once", 0, 1, KL_WORKER_THREADS_MAX},
        "", "the cores that the process may use", 0, KL_TAKES_WORK},
    [KL_SET_WORKER_PER_PARTITION] = {"worker.per_partition", "KEYLINE_PER_PARTITION",
        {"--per-partition", "N|none", "of these, tasks of one partition at once; none: as many as there are", 0, 1,
         KL_WORKER_THREADS_MAX},
        "none", "", KL_FOREVER, KL_TAKES_WORK},
    [KL_SET_WORKER_SHARDS] = {"worker.shards", "KEYLINE_SHARDS",
        {"--shards", "LIST", "take only these shards of each partition: `0,1,8-f`; in the file also an array", 0, 0, 0},
        "", "any shard", 0, KL_TAKES_WORK},
    [KL_SET_WORKER_SHARD_RANGE] = {"worker.shard_range", "KEYLINE_SHARD_RANGE",
        {"--shard-range", "RANGE", "take only the shards of this range: `00-3f`", 0, 0, 0},
        "", "any shard", 0, KL_TAKES_WORK},
    [KL_SET_WORKER_SLICE] = {"worker.slice", "KEYLINE_SLICE",
        {"--slice", "I/N", "take only the I-th of N equal parts of the shards, from 0: `0/4`", 0, 0, 0},
        "", "any shard", 0, KL_TAKES_WORK},
    [KL_SET_WORKER_WINDOW] = {"worker.window", "KEYLINE_WINDOW",
        {"--window", "N", "tasks that a worker holds in memory", 0, 1024, 16777216},
        "65536", "", 0, KL_TAKES_WORK},
    [KL_SET_WORKER_STOP] = {"worker.stop", "KEYLINE_STOP",
        {"--stop", "DURATION|none",
         "how long running tasks may go on when the worker is told to stop; none: as long as they take", 0, 1, 7 * DAY},
        "none", "", KL_FOREVER, KL_TAKES_WORK},
    [KL_SET_WORKER_GRACE] = {"worker.grace", "KEYLINE_GRACE",
        {"--grace", "DURATION", "between telling a handler's processes to end and killing them", 0, 1, HOUR},
        "5s", "", 0, KL_TAKES_WORK},

    [KL_SET_SERVER_LISTEN] = {"server.listen", "KEYLINE_LISTEN",
        {"--listen", "ADDRESS", "where the server listens: `127.0.0.1:7420`, `[::]:7420`; several with commas between", 0,
         0, 0},
        "127.0.0.1:7420", "", 0, KL_TAKES_SERVE},
    [KL_SET_SERVER_URL] = {"server.url", "KEYLINE_URL",
        {"--url", "URL", "how other servers on the same store reach this one: `http://10.0.0.7:7420`", 0, 0, 0},
        "", "its first address", 0, KL_TAKES_SERVE},
    [KL_SET_SERVER_TOKENS] = {"server.tokens", "KEYLINE_TOKENS",
        {"--tokens", "FILE", "the file with the tokens that are asked for, as `keyline token` writes it", 0, 0, 0},
        "", "none: everybody on this machine may do everything", 0, KL_TAKES_SERVE},
    [KL_SET_SERVER_HOSTS] = {"server.hosts", "KEYLINE_HOSTS",
        {"--hosts", "NAMES", "names under which browsers may call the server, with commas between", 0, 0, 0},
        "", "its addresses and localhost", 0, KL_TAKES_SERVE},
    [KL_SET_SERVER_TLS_CERT] = {"server.tls_cert", "KEYLINE_TLS_CERT",
        {"--tls-cert", "FILE", "the certificate, with those that it needs behind it, as PEM", 0, 0, 0},
        "", "no TLS", 0, KL_TAKES_SERVE},
    [KL_SET_SERVER_TLS_KEY] = {"server.tls_key", "KEYLINE_TLS_KEY",
        {"--tls-key", "FILE", "its private key, as PEM", 0, 0, 0},
        "", "no TLS", 0, KL_TAKES_SERVE},
    [KL_SET_SERVER_AUDIT] = {"server.audit", "KEYLINE_AUDIT",
        {"--audit", "FILE", "a file to which a line is written for each change that somebody makes; `-`: standard error",
         0, 0, 0},
        "", "no such file", 0, KL_TAKES_SERVE},
    [KL_SET_SERVER_LOG_FORMAT] = {"server.log_format", "KEYLINE_LOG_FORMAT",
        {"--log-format", "text|json", "how the server writes its log", 0, 0, 0},
        "text", "", 0, KL_TAKES_SERVE},
    [KL_SET_SERVER_BODY_MAX] = {"server.body_max", "KEYLINE_BODY_MAX",
        {"--body-max", "N", "the largest body of a request, in bytes", 0, 1024, 1 << 30},
        "16777216", "", 0, KL_TAKES_SERVE},
    [KL_SET_SERVER_STOP] = {"server.stop", "KEYLINE_SERVER_STOP",
        {"--server-stop", "DURATION", "how long claimed tasks may still be finished when the server is told to stop", 0, 1,
         HOUR},
        "10s", "", 0, KL_TAKES_SERVE},

    [KL_SET_PARTITIONS] = {"queue.partitions", "KEYLINE_PARTITIONS",
        {"--partitions", "N", "physical queues that carry the queue", FIELD(partitions), 1, KL_PARTITIONS_MAX},
        "1", "", 0, KL_TAKES_QUEUE},
    [KL_SET_SHARD_PREFIX_LEN] = {"queue.shard_prefix_len", "KEYLINE_SHARD_PREFIX_LEN",
        {"--shard-prefix-len", "N", "hex digits of a shard's name: 16, 256, 4096 or 65536 shards in each partition",
         FIELD(shard_prefix_len), 1, KL_SHARD_PREFIX_LEN_MAX},
        "1", "", 0, KL_TAKES_QUEUE},
    [KL_SET_ATTEMPTS] = {"queue.attempts", "KEYLINE_ATTEMPTS",
        {"--attempts", "N", "how often a task is started before it is dead", FIELD(attempts_max), 1, KL_ATTEMPTS_MAX},
        "8", "", 0, KL_TAKES_QUEUE},
    [KL_SET_BACKOFF] = {"queue.backoff", "KEYLINE_BACKOFF",
        {"--backoff", "DURATION", "wait before the second attempt, doubled for each further one",
         FIELD(backoff_base_ms), 1, DAY},
        "1s", "", 0, KL_TAKES_QUEUE},
    [KL_SET_BACKOFF_MAX] = {"queue.backoff_max", "KEYLINE_BACKOFF_MAX",
        {"--backoff-max", "DURATION", "the longest wait between two attempts", FIELD(backoff_max_ms), 1, 7 * DAY},
        "10m", "", 0, KL_TAKES_QUEUE},
    [KL_SET_TIMEOUT] = {"queue.timeout", "KEYLINE_TIMEOUT",
        {"--timeout", "DURATION|none", "how long one attempt may run", FIELD(timeout_ms), 1, 30 * DAY},
        "none", "", KL_FOREVER, KL_TAKES_QUEUE},
    [KL_SET_LEASE] = {"queue.lease", "KEYLINE_LEASE",
        {"--lease", "DURATION", "a worker that is not heard of for so long loses its shards; on S3 30s unless stated",
         FIELD(lease_ms), SECOND, HOUR},
        "10s", "", 0, KL_TAKES_QUEUE},
    [KL_SET_HEAD_POLICY] = {"queue.head_policy", "KEYLINE_HEAD_POLICY",
        {"--head-policy", "continue|halt|drain",
         "when a key's first task fails for good: go on with the next, stop the key until somebody acts, or give up "
         "the rest of its line too", FIELD(head_policy), 0, 0},
        "continue", "", 0, KL_TAKES_QUEUE},
    [KL_SET_KEEP_DONE] = {"queue.keep_done", "KEYLINE_KEEP_DONE",
        {"--keep-done", "DURATION|none", "how long done and cancelled tasks are kept", FIELD(keep_done_ms), 1,
         365 * DAY},
        "none", "", KL_NO_WAIT, KL_TAKES_QUEUE},
    [KL_SET_KEEP_DEAD] = {"queue.keep_dead", "KEYLINE_KEEP_DEAD",
        {"--keep-dead", "DURATION", "how long dead letters are kept", FIELD(keep_dead_ms), 1, 365 * DAY},
        "30d", "", 0, KL_TAKES_QUEUE},
    [KL_SET_RATE] = {"queue.rate", "KEYLINE_RATE",
        {"--rate", "N|none", "tasks started per second by all workers together", FIELD(rate), 1, LIMIT_MAX},
        "none", "", KL_FOREVER, KL_TAKES_QUEUE},
    [KL_SET_BURST] = {"queue.burst", "KEYLINE_BURST",
        {"--burst", "N", "tasks that may start at once after a quiet time", FIELD(burst), 1, LIMIT_MAX},
        "", "what the rate allows in a second", 0, KL_TAKES_QUEUE},
    [KL_SET_QUEUE_CONCURRENCY] = {"queue.concurrency", "KEYLINE_QUEUE_CONCURRENCY",
        {"--queue-concurrency", "N|none", "tasks running at once in all workers together", FIELD(concurrency), 1,
         LIMIT_MAX},
        "none", "", KL_FOREVER, KL_TAKES_QUEUE},
};
/* clang-format on */

/* What handlers are told (work_run.c) is passed over when a handler calls `keyline` itself. */
#define KUBERNETES "set in each container beside a Kubernetes service called `keyline`; passed over"
#define TOLD(what) what ", for handlers of `keyline work`; passed over here"

const kl__variable kl__variables[] = {
    {"KEYLINE_CONFIG", "the file to read instead of `keyline.toml`, as `--config` names it; empty: none"},
    {"KEYLINE_TOKEN", "the token for a store `http://...`: one with the role admin"},
    {"KEYLINE_CA", "a file with the certificates to trust for `https://...`; not set: those of the system"},
    {"KEYLINE_EXEC_*", "settings of the in-process executor, which `keyline demo` and programs of your own use"},
    {"KEYLINE_TASK_ID", TOLD("the task's id")},
    {"KEYLINE_QUEUE", TOLD("the task's queue")},
    {"KEYLINE_KEY", TOLD("the task's key")},
    {"KEYLINE_KIND", TOLD("the task's kind")},
    {"KEYLINE_ATTEMPT", TOLD("the number of the attempt, from 1")},
    {"KEYLINE_PRIORITY", TOLD("the task's priority")},
    {"KEYLINE_PARTITION", TOLD("the name of the partition that the task lies in, such as `orders__p1`")},
    {"KEYLINE_LAYOUT",
     TOLD("the number of that partition's layout, from 1: `queue alter` of partitions or shards opens the next")},
    {"KEYLINE_GROUP", TOLD("the task's group")},
    {"KEYLINE_JOB", TOLD("the id of the task's job")},
    {"KEYLINE_TRACEPARENT", TOLD("the task's traceparent, as `TRACEPARENT` has it")},
    {"KEYLINE_HEADER_*", TOLD("the task's headers")},
    {"KEYLINE_PORT", KUBERNETES},
    {"KEYLINE_PORT_*", KUBERNETES},
    {"KEYLINE_SERVICE_*", KUBERNETES},
    {NULL, NULL},
};

const kl__option kl__common_options[] = {
    {"--json", NULL, "print JSON, for machines: a line for each thing", offsetof(kl__config, json), 0, 0},
    {"--config", "FILE", "read settings from this file instead of keyline.toml", offsetof(kl__config, file), 0, 0},
    {NULL, NULL, NULL, 0, 0, 0},
};
