//! Cost of a frame before and after the transport: parsing, headers, ICRC, by payload size.

use std::hint::black_box;
use std::net::Ipv4Addr;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use roxie::frame::{Frame, FrameMut};
use roxie::wire::icrc::solve_ipv4_id;
use roxie::wire::{
    Bth, Ext, FlowSpec, Gid, MAX_HEADERS, Opcode, Psn, Qpn, Reth, RoceVersion, Template, entropy_port, icrc,
    parse,
};

const SIZES: [usize; 5] = [0, 64, 256, 1024, 4096];

fn template() -> Template {
    Template::new(&FlowSpec {
        src_mac: [2, 0, 0, 0, 0, 1],
        dst_mac: [2, 0, 0, 0, 0, 2],
        vlan: None,
        src: Gid::from(Ipv4Addr::new(10, 0, 0, 1)),
        dst: Gid::from(Ipv4Addr::new(10, 0, 0, 2)),
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
        source_port: entropy_port(Qpn::new(17), Qpn::new(18)),
        version: RoceVersion::V2,
    })
}

fn packet(size: usize) -> (Bth, Ext) {
    let bth = Bth {
        opcode: Opcode::RC_WRITE_ONLY,
        dest_qp: Qpn::new(18),
        psn: Psn::new(1000),
        ack_req: true,
        ..Bth::default()
    };
    (bth, Ext::Reth(Reth { va: 0x7f00_0000_0000, rkey: 0x1234, dma_len: size as u32 }))
}

fn frame(size: usize) -> Vec<u8> {
    let (template, (bth, ext)) = (template(), packet(size));
    let mut bytes = vec![0x5a; template.frame_len(bth.opcode, size)];
    let mut headers = [0; MAX_HEADERS];
    let n = template.write_headers(&mut headers, &bth, &ext, size);
    bytes[..n].copy_from_slice(&headers[..n]);
    template.seal(&mut FrameMut { a: &mut bytes, b: &mut [] });
    bytes
}

fn headers(c: &mut Criterion) {
    let bytes = frame(64);
    c.bench_function("parse/whole", |b| b.iter(|| parse(black_box(&Frame::whole(&bytes)))));
    let (head, tail) = bytes.split_at(42);
    c.bench_function("parse/split at 42", |b| b.iter(|| parse(black_box(&Frame { a: head, b: tail }))));
    let (template, (bth, ext)) = (template(), packet(64));
    let mut out = [0; MAX_HEADERS];
    c.bench_function("build/headers", |b| {
        b.iter(|| template.write_headers(black_box(&mut out), black_box(&bth), black_box(&ext), 64))
    });
    c.bench_function("icrc/solve id", |b| {
        b.iter(|| solve_ipv4_id(black_box(0x1234_5678), black_box(0x9abc_def0), black_box(1062)))
    });
}

fn icrc_by_size(c: &mut Criterion) {
    let mut group = c.benchmark_group("icrc");
    for size in SIZES {
        let bytes = frame(size);
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_with_input(BenchmarkId::from_parameter(size), &bytes, |b, bytes| {
            b.iter(|| icrc::compute(black_box(&Frame::whole(bytes)), 14, bytes.len() - 4))
        });
    }
    group.finish();
}

criterion_group!(benches, headers, icrc_by_size);
criterion_main!(benches);
