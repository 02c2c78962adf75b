# What can be done here. `make` alone lists it.

CARGO   := $(or $(shell command -v cargo),$(HOME)/.cargo/bin/cargo)

RELEASE = $(CARGO_TARGET_DIR)/release
export CARGO_TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
export PATH := $(PATH):$(HOME)/.cargo/bin

# What needs root asks for it.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.DEFAULT_GOAL := help
.PHONY: help deps build build-benches install install-library deb demo demo-cluster demo-failover demo-sensors demo-volumes demo-sockets demo-video docs deny test test-long test-affected test-tipc test-xen check bench bench-peers bench-xen bench-quick clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' $(MAKEFILE_LIST) | expand -t 24

deps: ## install what is missing: Debian packages (packages.txt), Rust
	@scripts/deps

# `tombolo` is static, so that it runs inside any domain; the flag reaches that one program only. The preload library
# and the bench's workers are dynamic by nature.
build: deps ## the release: tombolo, libtombolo_preload.so, libtombolo.so
	@echo "build: the release, optimised; some minutes the first time"
	@$(CARGO) rustc --release --package tombolo --bin tombolo -- -C target-feature=+crt-static
	@$(CARGO) build --release --package preload --package libtombolo
	@ln -sf libtombolo.so $(RELEASE)/libtombolo.so.0
	@scripts/build-dds $(RELEASE)
	@ls -sh1 $(RELEASE)/tombolo $(RELEASE)/libtombolo_preload.so $(RELEASE)/libtombolo.so

build-benches: build ## the release, and what `tombolo bench` runs
	@$(CARGO) build --release --package measure --package bench --package campaign --bins

INSTALL = $(if $(DESTDIR),,$(SUDO)) env PREFIX=$(or $(PREFIX),/usr/local) DESTDIR=$(DESTDIR) BINARIES=$(RELEASE) scripts/install

install: build ## the command, its unit, man pages, completions and libraries, below PREFIX (/usr/local)
	@$(INSTALL)

install-library: build ## libtombolo for C and Python alone, below PREFIX (/usr/local)
	@$(INSTALL) library development python

deb: build ## Debian packages, in target/packages
	@BINARIES=$(RELEASE) scripts/make-packages $(CARGO_TARGET_DIR)/packages

demo: build ## the main job on this machine, shown (KEEP=1 leaves it up)
	@TOMBOLO=$(RELEASE)/tombolo examples/quickstart/demo.sh

demo-cluster: build ## three nodes on this machine: joining, placement, a node that dies
	@TOMBOLO=$(RELEASE)/tombolo examples/cluster/demo.sh

demo-failover: build ## a node of three is lost while look-ups, calls and locks go on
	@TOMBOLO=$(RELEASE)/tombolo examples/failover/demo.sh

demo-volumes: build ## PostgreSQL on a replicated volume: its node is lost, and no acknowledged transaction
	@TOMBOLO=$(RELEASE)/tombolo examples/volumes/demo.sh

demo-sensors: build ## four sensors at 1 kHz, a control loop with a deadline, a recorder; ends with a drawing
	@TOMBOLO=$(RELEASE)/tombolo examples/sensors/demo.sh

demo-sockets: build ## nginx, an application, redis and PostgreSQL in containers that have only lo
	@TOMBOLO=$(RELEASE)/tombolo examples/shop/demo.sh
	@TOMBOLO=$(RELEASE)/tombolo examples/shop/move.sh

demo-video: build ## streams of video beside a flood, with and without promises: ten minutes, and a report in HTML
	@TOMBOLO=$(RELEASE)/tombolo examples/video/demo.sh

check: deps ## formatting, lints, tidy, unit tests: before each commit
	@$(CARGO) xtask test check

docs: deps ## the pages of docs/ as a site that is searched without a network, in target/docs
	@scripts/build-docs $(CARGO_TARGET_DIR)/docs

deny: deps ## licences, sources and forbidden crates of what is linked; advisories where there is a network
	@scripts/deny

test: deps ## everything but what takes too long, the same that CI runs
	@$(CARGO) xtask test everything

test-long: deps ## what takes too long for that: Xen, TIPC, old kernels, long fuzzing
	@$(CARGO) xtask test long

test-affected: deps ## the tests that a change can have touched: SINCE=REVISION
	@$(CARGO) xtask test affected --since $(or $(SINCE),HEAD)

test-xen: deps ## channels between domains of a real Xen, under emulation
	@$(CARGO) xtask test xen

# The middleware that we are compared with takes minutes to build: only a bench does.
bench-peers: build-benches
	@$(CARGO) build --release --package middleware --package peers --bins

# Each scenario's recording, of which the tables are made. A scenario that can't run here does not hold up the others.
RECORDINGS = $(CARGO_TARGET_DIR)/recordings
bench: bench-peers ## every scenario; its figures go into docs/performance.md and docs/figures.tsv
	@rm -rf $(RECORDINGS) && mkdir -p $(RECORDINGS)
	-@$(SUDO) $(RELEASE)/tombolo bench directory --record $(RECORDINGS)/directory.jsonl
	-@$(SUDO) $(RELEASE)/tombolo bench channel --record $(RECORDINGS)/channel.jsonl
	-@$(SUDO) $(RELEASE)/tombolo bench channel --between vm,host --record $(RECORDINGS)/vm-host.jsonl
	-@$(SUDO) $(RELEASE)/tombolo bench channel --between vm,vm --record $(RECORDINGS)/vm-vm.jsonl
	-@$(SUDO) $(RELEASE)/tombolo bench directory --kind vm --record $(RECORDINGS)/directory-vm.jsonl
	-@$(SUDO) $(RELEASE)/tombolo bench ipc --record $(RECORDINGS)/ipc.jsonl
	-@$(SUDO) $(RELEASE)/tombolo bench link --record $(RECORDINGS)/link.jsonl
	-@$(SUDO) $(RELEASE)/tombolo bench reserve --record $(RECORDINGS)/reserve.jsonl
	-@$(SUDO) $(RELEASE)/tombolo bench reserve --part table --record $(RECORDINGS)/reserve-table.jsonl
	-@$(SUDO) $(RELEASE)/tombolo bench idle --record $(RECORDINGS)/idle.jsonl
	-@$(SUDO) $(RELEASE)/tombolo bench sockets --record $(RECORDINGS)/sockets.jsonl
	-@$(SUDO) $(RELEASE)/tombolo bench services --record $(RECORDINGS)/services.jsonl
	@$(CARGO) xtask figures $(RECORDINGS)/*.jsonl

test-tipc: deps ## the suite of links over TIPC, in a guest under emulation
	@$(CARGO) xtask test tipc

bench-xen: deps ## channels between domains of Xen beside libxenvchan and TCP, under emulation
	@$(CARGO) build --quiet --release --package xen_bed --bins
	@$(RELEASE)/xen_bench

bench-quick: bench-peers ## the same, short: to see that it works, not to quote
	@$(SUDO) $(RELEASE)/tombolo bench directory --quick
	@$(SUDO) $(RELEASE)/tombolo bench channel --quick
	@$(SUDO) $(RELEASE)/tombolo bench channel --between vm,host --quick
	@$(SUDO) $(RELEASE)/tombolo bench channel --between vm,vm --quick
	@$(SUDO) $(RELEASE)/tombolo bench directory --kind vm --quick
	@$(SUDO) $(RELEASE)/tombolo bench ipc --quick
	@$(SUDO) $(RELEASE)/tombolo bench link --quick
	@$(SUDO) $(RELEASE)/tombolo bench reserve --quick
	@$(SUDO) $(RELEASE)/tombolo bench idle --quick
	@$(SUDO) $(RELEASE)/tombolo bench sockets --quick
	@$(SUDO) $(RELEASE)/tombolo bench services --quick

clean: ## forget what was built
	@$(CARGO) clean
