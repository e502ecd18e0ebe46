# Keyline: Meson does the building, this file names what people do. `make help` lists it.

PREFIX = /usr/local
OPS    = 10000000

.PHONY: all help run demo test bench lint fmt asan tsan model crash crashpg crashs3 powerloss sim mutants fuzz install clean

all: ## install what is missing and build: the program is build/keyline
	@tools/setup build
	@tools/build plain
	@echo 'built: build/keyline; next: `make run` starts a server, `make help` lists the rest'

help: ## this list
	@echo 'Keyline runs tasks in order per key, in parallel across keys.'
	@echo
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | \
		while IFS='	' read -r target text; do printf '  make %-9s %s\n' "$$target" "$$text"; done
	@echo
	@echo 'Start with `make run`.'

run: DEMO   = on
run: LISTEN = 127.0.0.1:7420
run: ## install what is missing, build, and start a server with a small load (make run DEMO=off LISTEN=127.0.0.1:8000)
	@tools/setup build
	@tools/build plain
	@tools/run $(LISTEN) $(DEMO)
	@echo 'next: `make test` checks that it works here; `make demo` shows a queue from the command line'

demo: ## show a durable queue at work from the command line
	@tools/setup build
	@tools/build plain
	@tools/demo-queue
	@echo 'next: `make run` starts a server; `build/keyline demo` is a live view of 50 keys at work'

test: ## install what is missing, build, and run every test and check (make test SEED=fresh: with other random numbers)
	@tools/setup test
	@tools/suite

asan: ## run the tests under the address and undefined-behaviour sanitizers
	@tools/setup test
	@tools/suite asan

tsan: ## run the tests under the thread sanitizer
	@tools/setup test
	@tools/suite tsan

model: ## compare the lanes with their model for OPS random steps (make model OPS=1000000000)
	@tools/setup build
	@tools/build plain
	@KL_TEST_OPS=$(OPS) build/tests/test-lanes

crash: N = 50
crash: ## kill a process under load N times and check what it leaves (make crash N=1000)
	@tools/setup build
	@tools/build plain
	@build/tests/crash-store $(N)

crashpg: N = 100
crashpg: ## kill workers N times, and PostgreSQL N/5 times, under load (make crashpg N=1000)
	@tools/setup test
	@tools/build plain
	@KL_TEST_KILLS=$(N) build/tests/test-postgres-crash

crashs3: N = 12
crashs3: ## kill workers on S3, N times six of them, and look at the order of keys; try a real server that must be refused
	@tools/setup test
	@tools/build plain
	@for i in $$(seq $(N)); do build/tests/test-s3 workers_that_are_killed || exit 1; done
	@tools/s3-refused build/keyline

powerloss: N = 100000
powerloss: ## lose power at every operation of random runs, N images of the disk (make powerloss N=1000000)
	@tools/setup build
	@tools/build plain
	@KL_TEST_IMAGES=$(N) build/tests/test-powerloss what_was_acknowledged

sim: SEEDS = 1000
sim: OPS   = 10000
sim: ## simulate crashes, pauses, lost replies and wrong clocks: SEEDS worlds of OPS operations (make sim SEED=1: that one)
	@tools/setup build
	@tools/build plain
	@build/tests/simulate $(if $(SEED),$(SEED),--seeds $(SEEDS)) $(OPS)

mutants: ## switch known bugs on, one by one, and show how the simulator catches each
	@tools/setup build
	@tools/build plain
	@build/tests/simulate --mutants

fuzz: SECONDS = 60
fuzz: ## feed random bytes to every parser, SECONDS for each (make fuzz SECONDS=3600 NAME=http: that one)
	@tools/setup test
	@tools/fuzz --seconds $(SECONDS) $(NAME)

bench: ## measure queue, stores and executor beside their peers, the per-key scheduler and the id generator
	@tools/setup test
	@tools/build release
	@bench/exec/run
	@bench/disk/run
	@bench/queue/run
	@ninja -C build-release --quiet bench/bench-http-load
	@bench/http/run
	@bench/postgres/run
	@ninja -C build-release --quiet bench/bench-id bench/bench-lanes
	@build-release/bench/bench-id
	@build-release/bench/bench-lanes

lint: ## static analysis of the sources and scripts
	@tools/setup test
	@tools/build plain
	@tools/lint

fmt: ## format the sources
	@tools/setup test
	@tools/format

install: export PREFIX := $(PREFIX)
install: ## install library, headers, program and manual (PREFIX=/usr/local, DESTDIR=)
	@tools/setup build
	@tools/install

clean: ## remove what was built
	rm -rf build build-asan build-tsan build-release build-install
