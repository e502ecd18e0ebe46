// peers.mjs - one side of the comparison that runs on Node, once: graphile-worker or pg-boss. bench/postgres/run calls it.
//
//     node peers.mjs graphile|graphile-keyed|pgboss MODULES URL GROUP MS [RATE]
//
// MODULES is a directory where `npm install graphile-worker pg-boss pg` was made. Two producers put tasks of 200 B over
// 1,000 keys in calls of GROUP; consumers have the settings that the documentation of each calls fast. Prints one line like
// bench-postgres does.
import { createRequire } from 'node:module';
import { performance } from 'node:perf_hooks';

const [side, modules, url, groupText, msText, rateText] = process.argv.slice(2);
const group = Number(groupText), ms = Number(msText), rate = Number(rateText || 0);
const load = createRequire(`${modules}/`);
const KEYS = 1000, PRODUCERS = 2, FILL = 'x'.repeat(170);
const latencies = [];
let put = 0, run = 0, number = 0, began = 0;

const now = () => performance.timeOrigin + performance.now();
const pause = (wait) => new Promise((resolve) => setTimeout(resolve, wait));

function note(payload) {
  latencies.push(now() - payload.t);
  run++;
}

async function produce(send) {
  while (now() - began < ms) {
    const tasks = [];
    for (let i = 0; i < group; i++) tasks.push({ key: `customer-${number++ % KEYS}`, payload: { t: now(), fill: FILL } });
    await send(tasks);
    put += group;
    if (rate > 0) {
      const ahead = put * 1000 / rate - (now() - began);
      if (ahead > 0) await pause(ahead);
    }
  }
}

async function measure(send) {
  began = now();
  await Promise.all(Array.from({ length: PRODUCERS }, () => produce(send)));
  const putMs = now() - began;
  while (run < put) await pause(1);
  return putMs;
}

async function graphile(keyed) {
  const { run: start, makeWorkerUtils } = load('graphile-worker');
  const quiet = new (load('graphile-worker').Logger)(() => () => {});
  const utils = await makeWorkerUtils({ connectionString: url, logger: quiet });
  await utils.migrate();
  const preset = { worker: { connectionString: url, concurrentJobs: 24, maxPoolSize: 10, pollInterval: 50,
    localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } };
  const runner = await start({ preset, connectionString: url, logger: quiet, noHandleSignals: true, crontab: '',
    concurrency: 24, taskList: { bench: async (payload) => note(payload) } });
  const putMs = await measure((tasks) => utils.addJobs(tasks.map((task) => (
    { identifier: 'bench', payload: task.payload, ...(keyed ? { queueName: task.key } : {}) }))));
  const allMs = now() - began;
  await runner.stop();
  await utils.release();
  return [putMs, allMs];
}

async function pgboss() {
  const PgBoss = load('pg-boss');
  const boss = new PgBoss({ connectionString: url, max: 8, supervise: false, schedule: false });
  boss.on('error', (error) => { console.error(error); process.exit(1); });
  await boss.start();
  await boss.createQueue('bench');
  let ends = false;
  const consume = async () => {
    while (!ends) {
      const jobs = await boss.fetch('bench', { batchSize: 100 });
      for (const job of jobs || []) note(job.data);
      if (jobs && jobs.length > 0) await boss.complete('bench', jobs.map((job) => job.id));
      else await pause(1);
    }
  };
  const consumers = [consume(), consume()];
  const putMs = await measure((tasks) => boss.insert(tasks.map((task) => ({ name: 'bench', data: task.payload }))));
  ends = true;
  await Promise.all(consumers);
  const allMs = now() - began;
  await boss.stop({ graceful: false });
  return [putMs, allMs];
}

const [putMs, allMs] = side === 'pgboss' ? await pgboss() : await graphile(side === 'graphile-keyed');
latencies.sort((a, b) => a - b);
const part = (share) => latencies[Math.floor((latencies.length - 1) * share)].toFixed(2);
console.log(`tasks ${put} put_s ${Math.round(put * 1000 / putMs)} all_s ${Math.round(put * 1000 / allMs)}`
  + ` p50_ms ${part(0.5)} p95_ms ${part(0.95)} p99_ms ${part(0.99)}`);
process.exit(0);
