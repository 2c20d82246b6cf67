//! Well-behaved programs and a hostile one on the same NIC. In all actions of the hostile one, the state of the others
//! is unaffected, its quota holds, and after its end none of its objects is left.
//!
//! A seed decides the actions: `FIRST=7 SEEDS=1 cargo test --lib isolation`. `SEEDS=1000` takes many. The engine's own
//! timing is left to the scheduler.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::honest::{Couple, Service};
use super::hostile::{Hostile, Known};
use super::{Nic, Quota, nic};
use roxie::host::Device;
use roxie::remote::Attachment;
use roxie_base::roster::{Identity, Room};
use roxie_base::threads::lock;
use roxie_nic::nic::{Command, ObjectCounts};
use roxie_nic::verbs::PdId;

/// Seeds of a normal run.
const SEEDS: u64 = 24;
/// Lives of the hostile program, and exchanges of the others in each.
const LIVES: u64 = 2;
const EXCHANGES: u64 = 8;
/// Actions of the hostile program between two operations of the others.
const STEPS: usize = 12;
/// The service of a port number of `RDMA_PS_TCP`.
const SERVICE: u64 = 0x0106_0000 + 7471;

const QUOTA: Quota = Quota {
    qps: 6,
    cqes: 5000,
    mrs: 8,
    bytes: 4 << 20,
    objects: 12,
    queue_bytes: 8 << 20,
    arenas: 16,
    channels: 8,
    bits_per_second: u64::MAX,
    xrcds: 4,
    memberships: 4,
    flows: 4,
    ports: 16,
};

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}=number")))
}

#[test]
fn hostile_program_harms_no_client_and_leaves_nothing() {
    let (first, seeds) = (variable("FIRST", 1), variable("SEEDS", SEEDS));
    for seed in first..first + seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            eprintln!("again: FIRST={seed} SEEDS=1 cargo test --lib isolation");
            resume_unwind(panic);
        }
    }
    println!("{seeds} seeds");
}

pub(super) fn attached(nic: &Nic) -> Device {
    let attachment = Attachment::open(&nic.interface).expect("it serves").expect("it is there");
    Device::attached_to_memory(attachment)
}

/// Counts the NIC's objects between two passes, and checks their consistency.
fn objects(nic: &Nic) -> ObjectCounts {
    let engine = nic.daemon.inner.registry.device.engine().expect("its own");
    let (objects, wrong) = engine.inspect(|worker| (worker.nic().objects(), worker.nic().inconsistency()));
    assert_eq!(wrong, None);
    assert!(!nic.daemon.has_failed());
    objects
}

fn run(seed: u64) {
    let nic = nic(QUOTA);
    let nobody = objects(&nic);
    {
        let mut local = Couple::new([attached(&nic), attached(&nic)], 2 * seed);
        let mut outside = Couple::new([attached(&nic), nic.remote.clone()], 2 * seed + 1);
        let mut service = Service::new(attached(&nic), nic.remote.clone());
        service.call();
        let mut known = Known { services: vec![SERVICE], slots: vec![service.slot()], ..Known::default() };
        for end in local.ends.iter().chain(&outside.ends) {
            let (qpns, key, address) = end.known();
            known.qpns.extend(qpns);
            known.keys.push(key.0);
            known.addresses.push(address);
        }
        for life in 0..LIVES {
            let before = objects(&nic);
            let mut hostile = Hostile::new(&nic, known.clone(), seed << 16 | life);
            for _ in 0..EXCHANGES {
                local.exchange(|| steps(&mut hostile));
                keeps_to_its_quota(&nic, &hostile, &before);
                outside.exchange(|| steps(&mut hostile));
            }
            service.call();
            drop(hostile);
            nic.wait("it is gone", |nic| nic.daemon.served().len() == 4);
            assert_eq!(objects(&nic), before, "nothing of it is left");
            assert_eq!(free_places(&nic), 255 - 4, "places that others may have");
        }
        local.exchange(|| ());
        outside.exchange(|| ());
    }
    nic.wait("all are gone", |nic| nic.daemon.served().is_empty());
    assert_eq!(objects(&nic), nobody, "what the honest ones had they could give back");
}

fn steps(hostile: &mut Hostile) {
    for _ in 0..STEPS {
        if let Err(what) = hostile.step() {
            panic!("{what}");
        }
    }
}

/// Checks that the program's own count, the NIC's books and the NIC's tables agree, and that they are within the quota.
fn keeps_to_its_quota(nic: &Nic, hostile: &Hostile, before: &ObjectCounts) {
    let mine = &hostile.mine;
    let clients = lock(&nic.daemon.inner.clients).clone();
    let book = clients.last().map(|client| client.farewell()).expect("it is served");
    let written = |is: fn(&Command) -> bool| book.iter().filter(|command| is(command)).count();
    let counts = [
        ("domains", mine.pds.len(), written(|c| matches!(c, Command::DeallocPd(_)))),
        ("queues", mine.cqs.len(), written(|c| matches!(c, Command::DestroyCq(_)))),
        ("QPs", mine.qps.len(), written(|c| matches!(c, Command::DestroyQp(_)))),
        ("shared queues", mine.srqs.len(), written(|c| matches!(c, Command::DestroySrq(_)))),
        ("XRC domains", mine.xrcds.len(), written(|c| matches!(c, Command::CloseXrcd(_)))),
        ("regions", mine.mrs.len(), written(|c| matches!(c, Command::ReleaseMemory(_)))),
        ("windows", mine.windows.len(), written(|c| matches!(c, Command::FreeWindow(_)))),
        ("handles", mine.handles.len(), written(|c| matches!(c, Command::DestroyAh(_)))),
        ("flows", mine.flows.len(), written(|c| matches!(c, Command::DestroyFlow(_)))),
    ];
    for (what, given, written) in counts {
        assert_eq!(given, written, "{what} that it was given, and those in its book");
    }
    let own = ObjectCounts {
        pds: before.pds + mine.pds.len(),
        cqs: before.cqs + mine.cqs.len(),
        qps: before.qps + mine.qps.len(),
        srqs: before.srqs + mine.srqs.len(),
        xrcds: before.xrcds + mine.xrcds.len(),
        memory: before.memory + mine.mrs.len() + mine.windows.len(),
        handles: before.handles + mine.handles.len(),
        flows: before.flows + mine.flows.len(),
    };
    // The manager's address handles vary with its messages, so their number may have changed.
    assert_eq!(ObjectCounts { handles: own.handles, ..objects(nic) }, own, "the NIC's tables");
    let objects = mine.pds.len() + mine.cqs.len() + mine.srqs.len() + mine.xrcds.len();
    let all = objects + mine.handles.len() + mine.flows.len();
    let sum = |of: &mut dyn Iterator<Item = u64>| of.sum::<u64>();
    for (what, has, most) in [
        ("QPs", mine.qps.len() as u64, QUOTA.qps.into()),
        ("entries", sum(&mut mine.cqs.iter().map(|(_, entries)| *entries)), QUOTA.cqes),
        ("regions", (mine.mrs.len() + mine.windows.len()) as u64, QUOTA.mrs.into()),
        ("bytes", sum(&mut mine.mrs.iter().map(|(_, bytes)| *bytes)), QUOTA.bytes),
        ("objects", all as u64, QUOTA.objects.into()),
    ] {
        assert!(has <= most, "{what}: {has}, and {most} are allowed");
    }
    assert!(free_places(nic) > 200, "places are left for others");
    let statuses = engine_regions(nic, &mine.pds);
    assert!(statuses <= QUOTA.bytes, "{statuses} bytes are registered, and {} are allowed", QUOTA.bytes);
}

/// Returns the number of free slots.
fn free_places(nic: &Nic) -> usize {
    let mut roster = lock(&nic.daemon.inner.registry.roster).clone();
    (0..256).take_while(|_| roster.admit(Identity::default(), Room::ALL).is_ok()).count()
}

/// Returns the bytes of the regions in some domains, from the NIC's tables.
fn engine_regions(nic: &Nic, pds: &[PdId]) -> u64 {
    let engine = nic.daemon.inner.registry.device.engine().expect("its own");
    let status = |nic: &roxie_nic::nic::Nic| -> Vec<_> {
        let mut names = Vec::new();
        nic.names(0..u32::MAX, &mut names);
        names.into_iter().filter_map(|object| nic.memory_status(object)).collect()
    };
    let regions = engine.inspect(move |worker| status(worker.nic()));
    let own = regions.iter().filter(|region| pds.contains(&region.pd) && !region.kind.starts_with("window"));
    own.map(|region| region.length).filter(|length| *length != u64::MAX).sum()
}
