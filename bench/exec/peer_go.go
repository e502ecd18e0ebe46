// peer_go.go - the workload of bench.c on bare Go channels: one channel and one goroutine a shard.
//
// No retry, no stealing, no priorities, no end report; a blocked task blocks its whole shard. Within that it is in its
// leanest form: the element is a function and a pointer (16 bytes; with the key's text in it channels are a third
// slower), the hash is inline, and nothing is allocated. Channels have no batch form: a batch is a loop of sends.
// -slices shows what sending recycled slices, one per shard and batch, would give instead; its capacity counts slices
// of the average length.
package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"sort"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const (
	shards      = 4
	keys        = 1000
	producers   = 2
	batchMax    = 64
	tickNs      = 100000
	sampleEvery = 16
	keyStride   = 617
)

type task struct {
	fn  func(*int64)
	ctx *int64
}

type counter struct {
	value int64
	_     [7]int64 // a cache line each
}

type producer struct {
	key       int
	submitted int64
	max       int64
	samples   []int64
	_         [8]int64
}

var (
	capacity = flag.Int("capacity", 8192, "tasks a shard")
	batch    = flag.Int("batch", 1, "tasks a submit")
	ms       = flag.Int64("ms", 600, "how long the producers go on")
	rate     = flag.Int64("rate", 0, "tasks/s of all producers together; 0: as fast as possible")
	slices   = flag.Bool("slices", false, "send slices of tasks")

	names    [keys]string
	counters [keys]counter
	queues   [shards]chan task
	batches  [shards]chan *[]task
	spare    = sync.Pool{New: func() any { part := make([]task, 0, batchMax); return &part }}
	start    time.Time
)

func nowNs() int64 { return int64(time.Since(start)) } // reads the monotonic clock, and only that

func count(counter *int64) { *counter++ }

func noteLatency(sample *int64) { *sample = nowNs() - *sample }

func shardOf(key string) uint32 {
	hash := uint32(2166136261) // FNV-1a
	for i := 0; i < len(key); i++ {
		hash = (hash ^ uint32(key[i])) * 16777619
	}
	return hash % shards
}

func (p *producer) next() (uint32, task) {
	shard, t := shardOf(names[p.key]), task{count, &counters[p.key].value}
	if p.samples != nil && p.submitted%sampleEvery == 0 {
		sample := &p.samples[p.submitted/sampleEvery]
		*sample = nowNs()
		t = task{noteLatency, sample}
	}
	p.submitted++
	if p.key += keyStride; p.key >= keys {
		p.key -= keys
	}
	return shard, t
}

func (p *producer) sendEach(n int64) {
	for ; n > 0; n-- {
		shard, t := p.next()
		queues[shard] <- t
	}
}

func (p *producer) sendSlices() {
	var parts [shards]*[]task
	for i := 0; i < *batch; i++ {
		shard, t := p.next()
		if parts[shard] == nil {
			parts[shard] = spare.Get().(*[]task)
		}
		*parts[shard] = append(*parts[shard], t)
	}
	for shard, part := range parts {
		if part != nil {
			batches[shard] <- part
		}
	}
}

func (p *producer) flatOut() {
	for nowNs() < *ms*1e6 {
		if *slices {
			p.sendSlices()
		} else {
			p.sendEach(batchMax)
		}
	}
}

// A timerfd read through the runtime's poller: the goroutine sleeps, no thread is held, and ticks come when due.
func openTimer() *os.File {
	const clockMonotonic, nonblock = 1, syscall.O_NONBLOCK
	fd, _, errno := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, clockMonotonic, nonblock, 0)
	if errno == 0 {
		everyTick := [2]syscall.Timespec{{Nsec: tickNs}, {Nsec: tickNs}}
		_, _, errno = syscall.Syscall6(syscall.SYS_TIMERFD_SETTIME, fd, 0, uintptr(unsafe.Pointer(&everyTick)), 0, 0, 0)
	}
	if errno != 0 {
		panic(errno)
	}
	return os.NewFile(fd, "timerfd")
}

func (p *producer) paced() {
	timer, elapsed, ticks := openTimer(), make([]byte, 8), int64(0)
	for nowNs() < *ms*1e6 && p.submitted < p.max {
		if _, err := timer.Read(elapsed); err != nil {
			panic(err)
		}
		ticks += int64(binary.LittleEndian.Uint64(elapsed))
		due := ticks * *rate / producers / (1e9 / tickNs)
		if due > p.max {
			due = p.max
		}
		p.sendEach(due - p.submitted)
	}
	timer.Close()
}

func consume(shard int) {
	if *slices {
		for part := range batches[shard] {
			for _, t := range *part {
				t.fn(t.ctx)
			}
			*part = (*part)[:0]
			spare.Put(part)
		}
	} else {
		for t := range queues[shard] {
			t.fn(t.ctx)
		}
	}
}

func goEach(group *sync.WaitGroup, n int, f func(i int)) {
	group.Add(n)
	for i := 0; i < n; i++ {
		go func(i int) {
			f(i)
			group.Done()
		}(i)
	}
}

func setUp(all []producer) {
	for i := range names {
		names[i] = fmt.Sprintf("key-%04d", i)
	}
	for i := range queues {
		queues[i] = make(chan task, *capacity)
		batches[i] = make(chan *[]task, *capacity/(batchMax/shards))
	}
	for i := range all {
		all[i].key = i * keys / len(all)
		if *rate > 0 {
			all[i].max = *rate / producers * *ms / 1000
			all[i].samples = make([]int64, all[i].max/sampleEvery+1)
			for j := range all[i].samples {
				all[i].samples[j] = -1 // page faults now, not in the middle of the measurement
			}
		}
	}
}

func report(all []producer, seconds float64) {
	var submitted, ran int64
	var latencies []int64
	for i := range all {
		submitted += all[i].submitted
		if *rate > 0 {
			latencies = append(latencies, all[i].samples[:(all[i].submitted+sampleEvery-1)/sampleEvery]...)
		}
	}
	for i := range counters {
		ran += counters[i].value
	}
	n := len(latencies)
	if ran+int64(n) != submitted {
		panic("some tasks did not run")
	}
	fmt.Printf("tasks/s %.0f", float64(submitted)/seconds)
	if n > 0 {
		sort.Slice(latencies, func(i, j int) bool { return latencies[i] < latencies[j] })
		fmt.Printf(" p50_ns %d p99_ns %d", latencies[n/2], latencies[n*99/100])
	}
	fmt.Println()
}

func main() {
	flag.Parse()
	var all [producers]producer
	var sending, running sync.WaitGroup
	setUp(all[:])
	goEach(&running, shards, consume)
	start = time.Now()
	goEach(&sending, producers, func(i int) {
		if *rate > 0 {
			all[i].paced()
		} else {
			all[i].flatOut()
		}
	})
	sending.Wait()
	for i := range queues {
		close(queues[i])
		close(batches[i])
	}
	running.Wait()
	report(all[:], time.Since(start).Seconds())
}
