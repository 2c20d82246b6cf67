//! Adapters by their profiles, with each other and with Roxie, over links that lose, double and reorder.

use roxie::port::fault::{FaultConfig, FaultPort};
use roxie::profile::Profile;
use roxie::time::Nanos;
use roxie::verbs::{Access, Mtu, RKey, SendWr, WcStatus, WrOpcode};
use roxie_sim::{Connected, Host, NicConfig, Pair, Payload, joined_ports};

use super::ChosenProfile;

const LENGTH: usize = 48 << 10;

/// Sends, writes and reads over such a link. Returns how many packets were sent again.
fn exchange(profiles: [Option<&'static Profile>; 2], seed: u64) -> u64 {
    let (near, far) = joined_ports(1500, None);
    let faulty = |port, end: u64| {
        let faults: FaultConfig = format!("drop=0.02,dup=0.01,reorder=0.01,dir=tx,seed={}", seed * 2 + end)
            .parse()
            .expect("faults");
        Box::new(FaultPort::new(port, &faults))
    };
    let config = |end: usize| NicConfig {
        seed: seed * 2 + end as u64,
        profile: profiles[end],
        ..NicConfig::default()
    };
    let mut pair =
        Pair::new(Host::new(1, config(0), faulty(near, 0)), Host::new(2, config(1), faulty(far, 1)));
    let [(qp_a, from), (qp_b, to)] = [&mut pair.a, &mut pair.b].map(|host| {
        let region = host.register(4 * LENGTH, Access::READ_WRITE);
        (host.queue_pair().signal_all().cq_entries(64).create(), region)
    });
    let path = pair.a.path(2, false);
    let connected =
        Connected { peer: qp_b.handle.qpn, path, path_mtu: Mtu::Mtu1024, timeout: 10, rd_atomic: 2 };
    let back = Connected { peer: qp_a.handle.qpn, path: pair.b.path(1, false), ..connected };
    pair.a.connect(&qp_a, &connected).expect("connected");
    pair.b.connect(&qp_b, &back).expect("connected");
    let bytes: Vec<u8> = (0..2 * LENGTH).map(|at| (at as u64 * 31 + seed) as u8).collect();
    from.memory.write(0, &bytes).expect("room");
    to.memory.write(3 * LENGTH as u64, &bytes[..LENGTH]).expect("room");
    let at = |part: u64| part * LENGTH as u64;
    pair.b.post_recv(&qp_b, 9, &[to.sge(at(0), LENGTH as u32)]).expect("room");
    for (wr_id, opcode, part) in [(1, WrOpcode::Send, 0), (2, WrOpcode::Write, 1), (3, WrOpcode::Read, 3)] {
        let wr = SendWr {
            wr_id,
            opcode,
            remote_addr: to.address + at(part),
            rkey: RKey(to.key),
            ..SendWr::default()
        };
        pair.a.post_send(&qp_a, &wr, Payload::Sges(&[from.sge(at(part), LENGTH as u32)])).expect("room");
    }
    assert!(pair.run(Nanos::from_millis(600_000)), "{profiles:?} seed {seed}: still busy");
    for wr_id in 1..=3 {
        let wc = pair
            .a
            .poll_cq(&qp_a)
            .unwrap_or_else(|| panic!("{profiles:?} seed {seed}: no completion {wr_id}"));
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success), "{profiles:?} seed {seed}");
    }
    let received = pair.b.poll_cq(&qp_b).expect("a message");
    assert_eq!((received.wr_id, received.status, received.byte_len), (9, WcStatus::Success, LENGTH as u32));
    assert_eq!(to.bytes(0, 2 * LENGTH), bytes, "{profiles:?} seed {seed}");
    assert_eq!(from.bytes(at(3), LENGTH), bytes[..LENGTH], "{profiles:?} seed {seed}");
    assert!(pair.a.poll_cq(&qp_a).is_none() && pair.b.poll_cq(&qp_b).is_none());
    pair.a.counter("retransmitted_packets")
}

#[test]
fn adapters_lose_nothing_with_each_other() {
    let adapters: Vec<_> =
        super::names().map(|name| name.parse::<ChosenProfile>().expect(name).profile).collect();
    let all: Vec<_> = [None].into_iter().chain(adapters.into_iter().map(Some)).collect();
    let mut again = 0;
    for near in &all {
        for far in &all {
            again += (0..40).map(|seed| exchange([*near, *far], seed)).sum::<u64>();
        }
    }
    assert!(again > 1000, "{again} packets were sent again");
}
