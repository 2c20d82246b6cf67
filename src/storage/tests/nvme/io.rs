//! Commands that succeed, and those that the controller refuses.

use std::collections::HashMap;
use std::time::Duration;

use roxie_nvmeof::Status;
use roxie_nvmeof::command::{Command, io};
use roxie_nvmeof::initiator::{Data, Ended, HostOptions, Initiator, InitiatorError};
use roxie_nvmeof::nqn;
use roxie_nvmeof::storage::FileStorage;
use roxie_nvmeof::subsystem::Limits;

use super::{BLOCKS, DISK, HOST, Site, memory, options, pattern, subsystem};

#[test]
fn blocks_of_each_size_are_read_back() {
    let site = Site::new();
    let mut initiator = site.connect();
    // In the capsule, by one page, by several, and the longest.
    for (n, blocks) in [1u32, 8, 9, 17, 256].into_iter().enumerate() {
        let (lba, data) = (300 * n as u64, pattern(n, blocks as usize * 512));
        let write = Command::blocks(io::WRITE, 1, lba, blocks);
        initiator.execute(write, Data::Out(&data)).expect("a write");
        let read = Command::blocks(io::READ, 1, lba, blocks);
        let back = initiator.execute(read, Data::In(data.len())).expect("a read").data;
        assert!(back == data, "{blocks} blocks");
    }
    initiator.execute(Command::blocks(io::WRITE_ZEROES, 1, 1, 2), Data::None).expect("zeros");
    initiator.flush(1).expect("a flush");
    let back = initiator.execute(Command::blocks(io::READ, 1, 0, 4), Data::In(2048)).expect("a read").data;
    assert!(back[512..1536].iter().all(|byte| *byte == 0) && back[..512] == pattern(0, 512));
    initiator.close().expect("the target agrees");
    site.serves(0);
}

/// Keeps a queue of `entries` full until `count` writes are done, and reads their data back.
fn fill(initiator: &mut Initiator, entries: usize, count: u64) {
    let data = |n: u64| pattern(n as usize, 16 * 512);
    let mut open = HashMap::new();
    let (mut next, mut refused) = (0, 0);
    while next < count || !open.is_empty() {
        let write = Command::blocks(io::WRITE, 1, 16 * next, 16);
        let sent = if next < count {
            initiator.submit(write, Data::Out(&data(next))).expect("a post")
        } else {
            None
        };
        match sent {
            Some(id) => {
                assert_eq!(open.insert(id, next), None, "identifiers in use differ");
                next += 1;
            }
            None => {
                refused += usize::from(open.len() == entries);
                let finished = initiator.finish().expect("a response");
                assert_eq!(finished.response.status, Status::SUCCESS);
                open.remove(&finished.response.id).expect("an open command");
            }
        }
    }
    assert!(refused > 0, "the queue was full at times");
    for n in 0..count {
        let read = Command::blocks(io::READ, 1, 16 * n, 16);
        let back = initiator.execute(read, Data::In(16 * 512)).expect("a read").data;
        assert!(back == data(n), "blocks from {} on", 16 * n);
    }
}

#[test]
fn full_queue_completes_every_command() {
    let site = Site::new();
    fill(&mut site.connect(), 32, 200);
}

/// Capsules beyond the receives of the target are sent again.
#[test]
fn queue_longer_than_its_receives_completes_every_command() {
    let site = Site::with(subsystem(memory(), &[], Limits { queue_size: 1024, ..Limits::default() }));
    let mut initiator =
        site.connect_as(HostOptions { queue_size: 400, ..options(DISK) }).expect("a controller");
    initiator.connect_io().expect("an I/O queue");
    fill(&mut initiator, 400, 500);
}

#[test]
fn refused_commands_leave_the_queue_usable() {
    let site = Site::new();
    let mut initiator = site.connect();
    let block = [0; 512];
    let cases = [
        (Command::blocks(io::READ, 9, 0, 1), Data::In(512), Status::INVALID_NAMESPACE),
        (Command::blocks(io::READ, 1, BLOCKS, 1), Data::In(512), Status::LBA_RANGE),
        (Command::blocks(io::WRITE, 1, BLOCKS - 1, 2), Data::Out(&[0; 1024]), Status::LBA_RANGE),
        (Command::blocks(io::READ, 1, 0, 1), Data::In(1024), Status::SGL_LENGTH),
        (Command::blocks(io::READ, 1, 0, 2), Data::In(512), Status::SGL_LENGTH),
        (Command::blocks(io::WRITE, 1, 0, 2), Data::Out(&block), Status::SGL_LENGTH),
        (Command::blocks(io::WRITE, 2, 0, 1), Data::Out(&[0; 4096]), Status::WRITE_PROTECTED),
        (Command::blocks(0x05, 1, 0, 1), Data::Out(&block), Status::INVALID_OPCODE),
    ];
    for (command, data, status) in cases {
        let error = initiator.execute(command, data).expect_err("a refusal");
        let is = |s: Status| s == status.permanent();
        assert!(
            matches!(&error, InitiatorError::Refused { status, .. } if is(*status)),
            "{command}: {error}"
        );
    }
    initiator.execute(Command::blocks(io::READ, 2, 0, 1), Data::In(4096)).expect("a read");
    let error =
        initiator.submit(Command::blocks(io::READ, 1, 0, 512), Data::In(512 * 512)).expect_err("too long");
    assert!(error.to_string().contains("262144 bytes of data"), "{error}");
}

#[test]
fn namespaces_are_listed_and_identified() {
    let site = Site::new();
    let mut initiator = site.connect_as(options(DISK)).expect("a controller");
    assert_eq!(initiator.namespaces().expect("a list"), [1, 2]);
    let second = initiator.namespace(2).expect("a namespace");
    assert_eq!((second.blocks, second.block_shift, second.is_read_only), (BLOCKS / 8, 12, true));
    let error = initiator.namespace(3).expect_err("there is none").to_string();
    assert!(error.contains("invalid namespace"), "{error}");
    assert_eq!(initiator.identity().subsystem, DISK);
    assert!(matches!(initiator.flush(1), Err(InitiatorError::NoQueue)));
}

#[test]
fn discovery_names_the_subsystem() {
    let site = Site::new();
    let mut initiator = site.connect_as(options(nqn::DISCOVERY)).expect("discovery");
    let log = initiator.discover().expect("a log page");
    assert_eq!((log.entries.len(), log.entries[0].subsystem.as_str()), (1, DISK));
    let entry = &log.entries[0];
    let at = (entry.transport_name(), entry.address.clone(), entry.service.clone());
    assert_eq!(at, ("rdma", site.to.ip().to_string(), "4420".into()));
    assert!(initiator.connect_io().is_err(), "discovery has no I/O queues");
}

#[test]
fn restarted_target_has_all_flushed_blocks() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(BLOCKS * 512).expect("a length");
    let storage = FileStorage::open(file.path(), false).expect("opens");
    let mut site = Site::with(subsystem(Box::new(storage), &[], Limits::default()));
    let mut initiator = site.connect();
    let data = pattern(5, 64 * 512);
    initiator.execute(Command::blocks(io::WRITE, 1, 64, 64), Data::Out(&data)).expect("a write");
    site.stop();
    let error = initiator.flush(1).expect_err("the target is gone");
    assert!(
        matches!(error, InitiatorError::Lost(Ended::Closed | Ended::Failed { .. } | Ended::Post(_))),
        "{error}"
    );
    let refused = site.connect_as(options(DISK)).expect_err("no target listens");
    assert!(matches!(refused, InitiatorError::Dial(_)), "{refused}");
    site.start();
    let mut again = site.connect();
    let back =
        again.execute(Command::blocks(io::READ, 1, 64, 64), Data::In(data.len())).expect("a read").data;
    assert!(back == data);
    assert!(std::fs::read(file.path()).expect("a file")[64 * 512..128 * 512] == data);
}

#[test]
fn silent_host_is_forgotten() {
    let site = Site::new();
    let hasty = HostOptions { keep_alive: Duration::from_millis(50), ..options(DISK) };
    let mut silent = site.connect_as(hasty).expect("a controller");
    silent.connect_io().expect("an I/O queue");
    site.serves(0);
    assert!(site.subsystem.connected().is_empty());
    // The name may connect again at once.
    assert_eq!(site.connect().controller(), silent.controller() + 1);
    assert_eq!(site.subsystem.connected()[0].host(), HOST);
}

#[test]
fn idle_host_stays_connected_by_keep_alive() {
    let site = Site::new();
    let mut initiator = site
        .connect_as(HostOptions { keep_alive: Duration::from_secs(2), ..options(DISK) })
        .expect("a controller");
    initiator.connect_io().expect("an I/O queue");
    for _ in 0..8 {
        std::thread::sleep(Duration::from_millis(700));
        initiator.keep_alive().expect("the target answers");
    }
    initiator.flush(1).expect("a flush");
}

#[test]
fn waiting_host_notices_that_the_target_ended() {
    let mut site = Site::new();
    let mut initiator = site.connect();
    site.stop();
    let ended = initiator.finish();
    assert!(matches!(ended, Err(InitiatorError::Lost(Ended::Closed))), "{ended:?}");
}
