//! Cost of an event: take the next, schedule another (hold model), compared with a binary heap; and cost of the events
//! of frames in a fabric.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use roxie::random::splitmix;
use roxie::time::Nanos;
use roxie_sim::events::EventQueue;
use roxie_sim::fabric::{
    Fabric, FabricConfig, LinkConfig, LinkRate, PortConfig, StationConfig, Step, SwitchConfig,
};

/// Events per measurement.
const BATCH: u64 = 10_000;

/// Returns the delay of a new event: mostly a frame's time on a link, sometimes a timer's.
fn span(random: &mut u64) -> u64 {
    let draw = splitmix(random);
    if draw.is_multiple_of(64) { draw >> 42 } else { 100 + (draw >> 54) }
}

fn events(c: &mut Criterion) {
    let mut group = c.benchmark_group("events");
    group.throughput(Throughput::Elements(BATCH));
    for waiting in [100_u64, 10_000, 1_000_000] {
        let mut random = 1;
        let mut wheel = EventQueue::new();
        for n in 0..waiting {
            wheel.schedule(Nanos(span(&mut random)), [n; 4]);
        }
        group.bench_function(BenchmarkId::new("wheel", waiting), |b| {
            b.iter(|| {
                for _ in 0..BATCH {
                    let (now, event) = wheel.pop(Nanos::MAX).expect("an event for each one taken");
                    wheel.schedule(now + Nanos(span(&mut random)), black_box(event));
                }
            });
        });
        let mut heap: BinaryHeap<_> = (0..waiting).map(|n| Reverse((span(&mut random), n, [n; 4]))).collect();
        let mut sequence = waiting;
        group.bench_function(BenchmarkId::new("heap", waiting), |b| {
            b.iter(|| {
                for _ in 0..BATCH {
                    let Reverse((now, _, event)) = heap.pop().expect("an event for each one taken");
                    sequence += 1;
                    heap.push(Reverse((now + span(&mut random), sequence, black_box(event))));
                }
            });
        });
    }
    group.finish();
}

/// A thousand stations on a switch: each frame that arrives is sent to another station.
fn frames(c: &mut Criterion) {
    const STATIONS: usize = 1000;
    let link = LinkConfig::new(LinkRate::from_gbps(100), Nanos(500));
    let mac = |n: usize| [2, 0, 0, 0, (n >> 8) as u8, n as u8];
    let stations = (0..STATIONS).map(|n| StationConfig::new(mac(n), link)).collect();
    let ports = FabricConfig::ports(STATIONS, &PortConfig::new(link));
    let mut fabric = Fabric::new(FabricConfig::star(stations, SwitchConfig::new(ports))).expect("a fabric");
    let mut random = 1;
    let mut frame = vec![0; 1000];
    let mut send = |fabric: &mut Fabric, station, frame: &mut [u8]| {
        frame[..6].copy_from_slice(&mac(splitmix(&mut random) as usize % STATIONS));
        fabric.send(fabric.now(), station, frame);
    };
    (0..8 * STATIONS).for_each(|n| send(&mut fabric, n % STATIONS, &mut frame));
    let mut group = c.benchmark_group("fabric");
    group.throughput(Throughput::Elements(BATCH));
    group.bench_function("events of frames, 1000 stations", |b| {
        b.iter(|| {
            for _ in 0..BATCH {
                let Some(Step::Arrived { station }) = fabric.step(Nanos::MAX) else { continue };
                let (_, mut frame) = fabric.take(station).expect("it arrived");
                send(&mut fabric, station, &mut frame);
                fabric.recycle(frame);
            }
        });
    });
    group.finish();
}

criterion_group!(benches, events, frames);
criterion_main!(benches);
