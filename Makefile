# `make demo` shows what Roxie does, `make test` runs all tests. Both install what they need.
export PATH := $(PATH):$(HOME)/.cargo/bin
SEEDS ?= 100000000
MINUTES ?= 60
FIRST ?=
SECONDS ?= 600
KERNEL ?= 6.1
SUITES ?= bookworm trixie sid
# Ends a command that has not ended after so many seconds. It stays in the terminal's process group, so that Ctrl-C reaches it.
IN_TIME := timeout --foreground --kill-after=10
TARGET ?=
KIND ?=
VERSION ?=
PREFIX ?= /usr/local
SUITE ?= bookworm
# Packages whose programs `roxie` starts for some of its commands.
PRODUCTS := roxie-conform roxie-lab roxie-storage

.PHONY: demo test test-all conformance bench versus interop soak fuzz sanitize miri cross build products install deb tarball image release

build:
	@.ci/setup build
	$(IN_TIME) 7200 cargo build --release --features xdp -p roxie-cli -p uverbs-shim
	$(IN_TIME) 300 uverbs-shim/link target/release

# What `make build` builds, and the programs of products: `roxie conform`, `roxie judge` and `roxie wire`, `roxie lab`, `roxie nvme` and
# `roxie nfs`.
products:
	@.ci/setup build
	$(IN_TIME) 7200 cargo build --release --features xdp -p roxie-cli -p uverbs-shim $(PRODUCTS:%=-p %)
	$(IN_TIME) 300 uverbs-shim/link target/release

# PREFIX=/opt/roxie: puts what `make products` built there, with its manual and completions.
install:
	@.ci/install target/release $(DESTDIR)$(PREFIX)

# A Debian package, target/roxie_VERSION_ARCHITECTURE.deb. `.ci/deb-check` installs and removes it in a Debian of its own.
deb: products
	@.ci/setup deb
	@.ci/deb target/release

# For other systems, target/roxie-VERSION-PROCESSOR-linux-gnu.tar.gz: built for glibc 2.31, whatever the host has.
tarball:
	@.ci/setup tarball
	@.ci/tarball

# For containers, target/roxie-VERSION-SUITE.oci.tar, of the Debian package in a minimal Debian; SUITE=trixie: another one. As root.
image: deb
	@.ci/setup image
	@.ci/image "$$(ls -t target/roxie_*.deb | head -n 1)" $(SUITE)

# VERSION=1.2.3: checks that the tree is that version, runs what continuous integration runs, and makes the crate and the package in
# target/release-VERSION. It tags nothing, signs nothing and publishes nothing.
release:
	@.ci/release $(VERSION)

demo:
	@.ci/setup demo
	@$(MAKE) build
	$(IN_TIME) 1800 ./target/release/roxie demo --capture target/demo

test:
	@.ci/lacks
	@.ci/setup test
	@.ci/test

# What `make test` leaves out, too: other processors, Miri, sanitizers, new seeds, the products' suites, all ports. It takes hours.
test-all:
	@.ci/lacks
	@.ci/setup test
	$(MAKE) cross miri sanitize
	$(MAKE) soak SECONDS=60 MINUTES=30 FIRST=clock
	$(MAKE) interop
	$(IN_TIME) 14400 interop/suites
	@.ci/test all

# Writes docs/conformance.md and its table anew, of the rules and of the annotations in the sources, and prints how many rules are kept.
conformance:
	CONFORMANCE=write $(IN_TIME) 7200 cargo test --quiet --test repository the_page -- --nocapture

bench:
	@.ci/setup build
	$(IN_TIME) 28800 cargo bench -p benches -p roxie-cli

# Stock programs over TCP and on Roxie, in one run, then on rdma_rxe and on Roxie in guests: what to measure before choosing. ROWS="ucx-64k
# write": some rows of the first alone; ROWS=--json: for a script.
versus:
	@.ci/setup test
	$(IN_TIME) 14400 cargo bench -p roxie-cli --bench versus -- $(ROWS)
	$(if $(ROWS),,$(IN_TIME) 7200 cargo build --release --features xdp -p roxie-cli $(PRODUCTS:%=-p %))
	$(if $(ROWS),,$(IN_TIME) 14400 cargo run --release -p interop -- versus || [ $$? -eq 77 ])

# KERNEL=newest: against the newest kernel that Debian has. SUITES="trixie sid": in which releases of Debian its programs are run besides,
# SUITES= in none.
interop:
	@.ci/setup test
	$(IN_TIME) 7200 cargo build --release --features xdp -p roxie-cli $(PRODUCTS:%=-p %)
	$(IN_TIME) 28800 cargo run --release -p interop -- run --kernel $(KERNEL)
	$(IN_TIME) 14400 cargo run --release -p interop -- zero-copy
	$(IN_TIME) 14400 cargo test --release -p interop --test guests smb:: -- --ignored --nocapture
	ALL_SCRIPTS=1 $(IN_TIME) 14400 cargo test --release -p interop --test guests cable::
	$(if $(SUITES),$(IN_TIME) 28800 cargo run --release -p interop -- distro $(SUITES:%=--suite %) || [ $$? -eq 77 ])

# SECONDS=n: how long each fuzzer runs; MINUTES=n: how long the simulation does then, or SEEDS=n: how many seeds; FIRST=k: the first of
# them, FIRST=clock: one that the clock gives, printed; THREADS=n. Seeds that fail leave their scripts, whole and short, and captures in
# target/tmp/simulation.
soak: fuzz
	SOAK=1 $(if $(FIRST),FIRST=$(FIRST) )SEEDS=$(SEEDS) MINUTES=$(MINUTES) $(IN_TIME) $$((60 * $(MINUTES) + 7200)) cargo test --release --features planted-bugs --test simulation every_seed -- --nocapture

# TARGET=packets SECONDS=3600: one of parser, capture, packets, commands, queues, management, calls; without TARGET all of them.
fuzz:
	@.ci/setup fuzz
	@.ci/fuzz $(SECONDS) $(TARGET)

# KIND=thread or KIND=address: ThreadSanitizer over what threads share, AddressSanitizer over the verbs library; without KIND both.
sanitize:
	@.ci/setup test
	@.ci/sanitize $(KIND)

# What threads share, under Miri, which takes a nightly toolchain with it.
miri:
	@.ci/miri

# Builds for aarch64, and runs the tests under qemu-user that need no other program; SEEDS=n: of the simulation.
cross:
	@.ci/setup cross
	@SEEDS=$(if $(filter command line environment,$(origin SEEDS)),$(SEEDS)) .ci/cross
