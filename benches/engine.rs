//! Cost of the engine without a port: two NICs joined by memory, the sum of both sides, one thread.
//!
//! Run by `cargo bench -p benches --bench engine`. Budgets: 150 ns for a 64-byte SEND, posting and polling included;
//! 4096 QPs reach at least 0.9 of the throughput of one QP. For instructions, run `cargo bench -p benches --bench
//! instructions`.

mod two_nics;

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use roxie::verbs::WrOpcode;
use two_nics::{BATCH, Bench, CASES};

/// Returns the duration of `messages` of this kind.
fn time(bench: &mut Bench, messages: u64, opcode: WrOpcode, length: u32) -> Duration {
    let batches = messages.div_ceil(BATCH as u64);
    let start = Instant::now();
    for _ in 0..batches {
        bench.batch(opcode, length);
    }
    start.elapsed().mul_f64(messages as f64 / (batches * BATCH as u64) as f64)
}

fn operations(c: &mut Criterion) {
    let mut group = c.benchmark_group("operation");
    for (opcode, length) in CASES {
        let budget = if (opcode, length) == (WrOpcode::Send, 64) { " (budget: 150 ns)" } else { "" };
        let name = BenchmarkId::new(format!("{opcode:?}"), format!("{length}{budget}"));
        group.throughput(Throughput::Bytes(length.into()));
        group.bench_function(name, |b| {
            let mut bench = Bench::new(1, BATCH, 65_536);
            b.iter_custom(|messages| time(&mut bench, messages, opcode, length));
        });
    }
    group.finish();
}

fn many_qps(c: &mut Criterion) {
    let mut group = c.benchmark_group("qps");
    // 16 messages per QP in a row, as from a sender with a queue; and one, the worst case, in which each QP's state is
    // cold.
    for (qps, in_a_row) in [(1, 16), (64, 16), (4096, 16), (1, 1), (4096, 1)] {
        let budget = if (qps, in_a_row) == (4096, 16) { " (budget: the time of 1 / 0.9)" } else { "" };
        let name = BenchmarkId::new("Send64", format!("{qps} QPs, {in_a_row} in a row{budget}"));
        group.bench_function(name, |b| {
            let mut bench = Bench::new(qps, in_a_row, 4096);
            b.iter_custom(|messages| time(&mut bench, messages, WrOpcode::Send, 64));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(30).measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    targets = operations, many_qps
}
criterion_main!(benches);
