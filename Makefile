# `make demo` shows what Roxie does, `make test` runs all tests. Both install what they need.
export PATH := $(PATH):$(HOME)/.cargo/bin
SEEDS ?= 100000

.PHONY: demo test bench interop soak build

build:
	@.ci/setup build
	cargo build --release

demo: build
	./target/release/roxie demo

test:
	@.ci/setup test
	@.ci/test

bench:
	@.ci/setup build
	cargo bench

interop:
	@.ci/setup test
	cargo build --release
	cargo run --release -p interop -- run

# SEEDS=n: how many seeds; FIRST=k: the first of them.
soak:
	@.ci/setup build
	SEEDS=$(SEEDS) cargo test --release --features planted-bugs --test simulation every_seed -- --nocapture
