// peer_asio.cpp - the workload of bench.c on asio: one strand a shard, one thread a core.
//
// No retry, no priorities, no end report, and a blocked task blocks its whole shard. Within that it is in the fastest
// of the forms tried: io_context::strand (asio::strand has half its throughput, on io_context and on thread_pool alike)
// and a strand a shard (a strand a key is slower at capacity 128). Strands are not bounded, so each shard counts its
// tasks; a producer that finds no room sleeps until half of it is free. Batches are a loop of posts.
// --ring=1 shows what handler memory from a ring would give instead of the usual allocation.
#include <algorithm>
#include <asio.hpp>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <sys/timerfd.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace
{
constexpr int shard_count = 4, key_count = 1000, key_stride = 617, producer_count = 2, batch_max = 64;
constexpr int64_t tick_ns = 100000, sample_every = 16;

struct {
    long capacity = 8192, batch = 1, ms = 600, rate = 0, ring = 0;
} args;

asio::io_context io(static_cast<int>(std::thread::hardware_concurrency()));

int64_t now_ns() { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct alignas(64) shard {
    void take_room()
    {
        while (used.fetch_add(1) >= args.capacity) {
            used.fetch_sub(1);
            std::unique_lock<std::mutex> hold(lock);
            waiting++;
            freed.wait(hold, [this] { return used.load() <= args.capacity / 2; });
            waiting--;
        }
    }

    void give_room()
    {
        if (used.fetch_sub(1) <= args.capacity / 2 + 1 && waiting.load() > 0) {
            std::lock_guard<std::mutex> hold(lock);
            freed.notify_all();
        }
    }

    asio::io_context::strand strand{io};
    std::mutex lock;
    std::condition_variable freed;
    std::atomic<int> waiting{0};
    alignas(64) std::atomic<long> used{0};
};

// One producer's handlers in one shard. They end in order and are at most `capacity`, so the oldest slot is free.
struct handler_ring {
    struct alignas(64) slot {
        char bytes[128];
    };
    std::vector<slot> slots = std::vector<slot>(args.ring ? static_cast<size_t>(args.capacity) : 0);
    size_t next = 0;
};

template <class T> struct ring_allocator {
    using value_type = T;
    explicit ring_allocator(handler_ring *r) : ring(r) {}
    template <class U> ring_allocator(const ring_allocator<U> &other) : ring(other.ring) {}

    T *allocate(size_t n)
    {
        if (n * sizeof(T) > sizeof(handler_ring::slot))
            std::abort();
        void *slot = &ring->slots[ring->next];
        ring->next = ring->next + 1 < ring->slots.size() ? ring->next + 1 : 0;
        return static_cast<T *>(slot);
    }
    void deallocate(T *, size_t) {}
    template <class U> bool operator==(const ring_allocator<U> &other) const { return ring == other.ring; }
    template <class U> bool operator!=(const ring_allocator<U> &other) const { return ring != other.ring; }

    handler_ring *ring;
};

struct task {
    void operator()() const
    {
        fn(ctx);
        home->give_room();
    }

    void (*fn)(int64_t *);
    int64_t *ctx;
    shard *home;
};

struct task_in_ring : task {
    using allocator_type = ring_allocator<void>;
    allocator_type get_allocator() const noexcept { return allocator_type(ring); }

    handler_ring *ring;
};

struct alignas(64) counter {
    int64_t value = 0;
};

char keys[key_count][sizeof "key-0000"];
counter counters[key_count];
shard shards[shard_count];
int64_t end_ns;

void count(int64_t *value) { ++*value; }
void note_latency(int64_t *sample) { *sample = now_ns() - *sample; }

uint32_t shard_of(const char *key)
{
    uint32_t hash = 2166136261u; // FNV-1a
    for (; *key; key++)
        hash = (hash ^ static_cast<unsigned char>(*key)) * 16777619u;
    return hash % shard_count;
}

struct alignas(64) producer {
    explicit producer(int index) : key(index * key_count / producer_count)
    {
        if (args.rate)
            samples.assign(static_cast<size_t>(submitted_max / sample_every + 1), -1);
    }

    void submit_one()
    {
        uint32_t s = shard_of(keys[key]);
        task task{count, &counters[key].value, &shards[s]};
        if (args.rate && submitted % sample_every == 0) {
            int64_t *sample = &samples[static_cast<size_t>(submitted / sample_every)];
            *sample = now_ns();
            task.fn = note_latency;
            task.ctx = sample;
        }
        submitted++;
        if ((key += key_stride) >= key_count)
            key -= key_count;
        task.home->take_room();
        if (args.ring)
            asio::post(task.home->strand, task_in_ring{task, &rings[s]});
        else
            asio::post(task.home->strand, task);
    }

    void flat_out()
    {
        while (now_ns() < end_ns)
            for (int i = 0; i < batch_max; i++)
                submit_one();
    }

    void paced()
    {
        itimerspec every_tick = {{0, tick_ns}, {0, tick_ns}};
        int timer = timerfd_create(CLOCK_MONOTONIC, 0);
        int64_t ticks = 0, elapsed;
        timerfd_settime(timer, 0, &every_tick, nullptr);
        while (now_ns() < end_ns && submitted < submitted_max) {
            if (read(timer, &elapsed, sizeof elapsed) != sizeof elapsed)
                std::abort();
            ticks += elapsed;
            int64_t due = std::min(ticks * args.rate / producer_count / (1000000000 / tick_ns), submitted_max);
            while (submitted < due)
                submit_one();
        }
        close(timer);
    }

    handler_ring rings[shard_count];
    int key;
    int64_t submitted = 0, submitted_max = args.rate / producer_count * args.ms / 1000;
    std::vector<int64_t> samples;
};

void report(const std::vector<std::unique_ptr<producer>> &producers, double seconds)
{
    int64_t submitted = 0, ran = 0;
    std::vector<int64_t> latencies;
    for (auto &p : producers) {
        submitted += p->submitted;
        if (args.rate)
            latencies.insert(latencies.end(), p->samples.begin(),
                             p->samples.begin() + (p->submitted + sample_every - 1) / sample_every);
    }
    for (auto &counter : counters)
        ran += counter.value;
    size_t n = latencies.size();
    if (ran + static_cast<int64_t>(n) != submitted) {
        std::fprintf(stderr, "some tasks did not run\n");
        std::exit(1);
    }
    std::printf("tasks/s %.0f", static_cast<double>(submitted) / seconds);
    if (n) {
        std::sort(latencies.begin(), latencies.end());
        std::printf(" p50_ns %lld p99_ns %lld", static_cast<long long>(latencies[n / 2]),
                    static_cast<long long>(latencies[n * 99 / 100]));
    }
    std::printf("\n");
}

void parse_option(const char *text)
{
    const std::pair<const char *, long *> options[] = {{"--capacity=%ld", &args.capacity},
                                                       {"--batch=%ld", &args.batch},
                                                       {"--ms=%ld", &args.ms},
                                                       {"--rate=%ld", &args.rate},
                                                       {"--ring=%ld", &args.ring}};
    for (auto &option : options)
        if (std::sscanf(text, option.first, option.second) == 1)
            return;
    std::fprintf(stderr, "usage: bench-exec-asio [--capacity=N] [--batch=N] [--ms=N] [--rate=N] [--ring=1]\n");
    std::exit(2);
}
} // namespace

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        parse_option(argv[i]);
    for (int i = 0; i < key_count; i++)
        std::snprintf(keys[i], sizeof keys[i], "key-%04u", static_cast<unsigned>(i) % 10000);
    std::vector<std::unique_ptr<producer>> producers;
    for (int i = 0; i < producer_count; i++)
        producers.push_back(std::make_unique<producer>(i));

    auto open = asio::make_work_guard(io);
    std::vector<std::thread> workers, threads;
    for (unsigned i = 0; i < std::thread::hardware_concurrency(); i++)
        workers.emplace_back([] { io.run(); });
    int64_t start_ns = now_ns();
    end_ns = start_ns + args.ms * 1000000;
    for (auto &p : producers)
        threads.emplace_back([&p] { args.rate ? p->paced() : p->flat_out(); });
    for (auto &thread : threads)
        thread.join();
    open.reset();
    for (auto &worker : workers)
        worker.join();
    report(producers, static_cast<double>(now_ns() - start_ns) / 1e9);
}
