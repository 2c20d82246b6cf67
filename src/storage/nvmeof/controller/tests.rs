//! A host that speaks to queues without a transport.

use std::sync::Arc;
use std::time::Duration;

use super::{CONNECT_TIMEOUT, Ending, Queue, Remote, Transfer, Violation};
use crate::command::{ALL_NAMESPACES, Command, LENGTH, admin, feature, io, property};
use crate::connect::{ANY_CONTROLLER, Connect, ConnectData, Wrong};
use crate::discovery::{self, Log};
use crate::identify::{self, cns};
use crate::nqn;
use crate::response::{NO_FLOW_CONTROL, Response};
use crate::sgl::Sgl;
use crate::status::Status;
use crate::storage::{FileStorage, MemoryStorage, Storage};
use crate::subsystem::{Limits, Namespace, Subsystem};

const DISK: &str = "nqn.2026-11.example:disk";
const HOST: &str = "nqn.2026-11.example:host";
const START: Duration = Duration::from_secs(100);

fn namespace(is_read_only: bool) -> Namespace {
    let storage = MemoryStorage::new(1 << 20).expect("memory");
    Namespace::new(Box::new(storage), 512, is_read_only, [7; 16]).expect("whole blocks")
}

/// A subsystem with a writable and a read-only namespace of 2048 blocks.
fn subsystem(hosts: &[&str]) -> Arc<Subsystem> {
    let limits = Limits { queues: 2, controllers: 2, longest_transfer: 8192, ..Limits::default() };
    let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    Arc::new(Subsystem::new(DISK, vec![namespace(false), namespace(true)], hosts, limits).expect("names"))
}

/// The host's end of a queue: its memory is `memory`.
struct Host {
    queue: Queue,
    memory: Vec<u8>,
    now: Duration,
    next: u16,
}

impl Host {
    fn on(subsystem: &Arc<Subsystem>, id: u16) -> Host {
        let queue = Queue::new(Arc::clone(subsystem), id, 32, START);
        Host { queue, memory: vec![0; 1 << 16], now: START, next: 0 }
    }

    /// Executes a command. `length`: bytes of its data, at address 0 of the host.
    fn call(&mut self, command: Command, length: u32) -> Response {
        let sgl = Sgl::Keyed { address: 0, length, key: 9, invalidate: true };
        self.send(Command { sgl: if length == 0 { Sgl::NONE } else { sgl }, ..command }, &[])
    }

    fn send(&mut self, command: Command, behind: &[u8]) -> Response {
        self.next += 1;
        self.post(Command { id: self.next, ..command }, behind).expect("no violation").expect("a response")
    }

    /// Sends a capsule, and moves the data as a transport would.
    fn post(&mut self, command: Command, behind: &[u8]) -> Result<Option<Response>, Violation> {
        let capsule = [&command.to_bytes(), behind].concat();
        let task = self.queue.take(self.now, &capsule)?;
        let mut data = match &task.transfer {
            Transfer::InCapsule(range) => capsule[range.clone()].to_vec(),
            Transfer::Fetch(Remote { address, length, .. }) => {
                self.memory[*address as usize..][..*length as usize].to_vec()
            }
            _ => Vec::new(),
        };
        let response = self.queue.run(self.now, &task, &mut data);
        if let (Transfer::Deliver(remote), Some(response)) = (&task.transfer, &response)
            && response.status.is_success()
        {
            assert_eq!(data.len(), remote.length as usize, "as many bytes as the host asked for");
            self.memory[remote.address as usize..][..data.len()].copy_from_slice(&data);
        }
        Ok(response)
    }

    fn connect(&mut self, connect: Connect, data: &ConnectData) -> Response {
        let bytes = data.to_bytes();
        self.memory[..bytes.len()].copy_from_slice(&bytes);
        self.call(connect.command(), bytes.len() as u32)
    }
}

fn connect(queue: u16) -> Connect {
    Connect { queue, size: 31, no_flow_control: false, keep_alive_ms: 0 }
}

fn data(controller: u16) -> ConnectData {
    ConnectData { host_id: [3; 16], controller, subsystem: DISK.into(), host: HOST.into() }
}

/// A connected and enabled admin queue.
fn enabled(subsystem: &Arc<Subsystem>) -> Host {
    let mut host = Host::on(subsystem, 0);
    assert_eq!(host.connect(connect(0), &data(ANY_CONTROLLER)).status, Status::SUCCESS);
    let enable = Command::property_set(property::CONFIGURATION, 0x0046_0001);
    assert_eq!(host.call(enable, 0).status, Status::SUCCESS);
    assert_eq!(host.call(Command::property_get(property::STATUS, false), 0).result, 1);
    host
}

/// An admin queue and an I/O queue.
fn pair(subsystem: &Arc<Subsystem>) -> (Host, Host) {
    let admin = enabled(subsystem);
    let id = admin.queue.controller().expect("connected").id();
    let mut io = Host::on(subsystem, 1);
    assert_eq!(io.connect(connect(1), &data(id)).result, u64::from(id));
    (admin, io)
}

#[test]
fn written_blocks_are_read_back() {
    let (_admin, mut io) = pair(&subsystem(&[]));
    io.memory[..1024].fill(0xa5);
    assert_eq!(io.call(Command::blocks(io::WRITE, 1, 7, 2), 1024).status, Status::SUCCESS);
    let sgl = Sgl::InCapsule { offset: 0, length: 512 };
    let inside = Command { sgl, ..Command::blocks(io::WRITE, 1, 9, 1) };
    assert_eq!(io.send(inside, &[0x5a; 512]).status, Status::SUCCESS);
    assert_eq!(io.call(Command::blocks(io::WRITE_ZEROES, 1, 8, 1), 0).status, Status::SUCCESS);
    assert_eq!(io.call(Command::new(io::FLUSH, 1), 0).status, Status::SUCCESS);
    assert_eq!(io.call(Command::blocks(io::READ, 1, 6, 4), 2048).status, Status::SUCCESS);
    let expected = [[0; 512], [0xa5; 512], [0; 512], [0x5a; 512]].concat();
    assert_eq!(io.memory[..2048], expected);
}

#[test]
fn wrong_io_commands_have_their_status() {
    let (_admin, mut io) = pair(&subsystem(&[]));
    let read = |lba, count| Command::blocks(io::READ, 1, lba, count);
    let inside = |offset, length, command| Command { sgl: Sgl::InCapsule { offset, length }, ..command };
    let cases = [
        (Command::blocks(io::READ, 3, 0, 1), 512, Status::INVALID_NAMESPACE),
        (Command::blocks(io::READ, 0, 0, 1), 512, Status::INVALID_NAMESPACE),
        (Command::new(io::FLUSH, 3), 0, Status::INVALID_NAMESPACE),
        (read(2048, 1), 512, Status::LBA_RANGE),
        (read(2047, 2), 1024, Status::LBA_RANGE),
        (read(u64::MAX, 1), 512, Status::LBA_RANGE),
        (read(0, 2), 512, Status::SGL_LENGTH),
        (read(0, 1), 1024, Status::SGL_LENGTH),
        (read(0, 1), 0, Status::SGL_LENGTH),
        (Command::new(io::FLUSH, 1), 512, Status::SGL_LENGTH),
        (read(0, 17), 8704, Status::INVALID_FIELD),
        (Command { flags: 0, ..read(0, 1) }, 512, Status::INVALID_FIELD),
        (Command { flags: 0x41, ..read(0, 1) }, 512, Status::INVALID_FIELD),
        (Command::blocks(io::WRITE, 2, 0, 1), 512, Status::WRITE_PROTECTED),
        (Command::blocks(io::WRITE_ZEROES, 2, 0, 1), 0, Status::WRITE_PROTECTED),
        // Compare and Reservation Register.
        (Command::blocks(0x05, 1, 0, 1), 512, Status::INVALID_OPCODE),
        (Command::new(0x0d, 1), 0, Status::INVALID_OPCODE),
        (Command::property_get(property::STATUS, false), 0, Status::INVALID_OPCODE),
    ];
    for (command, length, status) in cases {
        assert_eq!(io.call(command, length).status, status.permanent(), "{command}, {length} B");
    }
    let write = Command::blocks(io::WRITE, 1, 0, 1);
    let cases = [
        (inside(0, 512, read(0, 1)), Status::SGL_TYPE),
        (inside(1, 512, write), Status::SGL_OFFSET),
        (inside(u64::MAX, 512, write), Status::SGL_OFFSET),
        (inside(0, 1024, write), Status::SGL_LENGTH),
        (Command { sgl: Sgl::Address { address: 0, length: 512 }, ..write }, Status::SGL_TYPE),
        (Command { sgl: Sgl::Other([0xff; 16]), ..write }, Status::SGL_TYPE),
    ];
    for (command, status) in cases {
        assert_eq!(io.send(command, &[0; 512]).status, status.permanent(), "{command}");
    }
    // The queue still works.
    assert_eq!(io.call(read(0, 1), 512).status, Status::SUCCESS);
}

#[test]
fn wrong_connects_name_the_field() {
    let subsystem = subsystem(&[]);
    let wrong =
        |id: u16, connect: Connect, data: ConnectData| Host::on(&subsystem, id).connect(connect, &data);
    let (any, good) = (data(ANY_CONTROLLER), connect(0));
    let admin = enabled(&subsystem);
    let id = admin.queue.controller().expect("connected").id();
    let cases = [
        (wrong(0, Connect { queue: 1, ..good }, any.clone()), Wrong::QUEUE),
        (wrong(0, Connect { size: 0, ..good }, any.clone()), Wrong::SIZE),
        (wrong(0, Connect { size: 32, ..good }, any.clone()), Wrong::SIZE),
        (wrong(0, good, data(1)), Wrong::CONTROLLER),
        (
            wrong(0, good, ConnectData { subsystem: "nqn.2026-11.example:other".into(), ..any.clone() }),
            Wrong::SUBSYSTEM,
        ),
        (wrong(0, good, ConnectData { host: "host".into(), ..any.clone() }), Wrong::HOST),
        (wrong(1, connect(1), data(id + 1)), Wrong::CONTROLLER),
        (wrong(1, connect(1), ConnectData { host: DISK.into(), ..data(id) }), Wrong::HOST),
        (wrong(1, connect(1), ConnectData { host_id: [4; 16], ..data(id) }), Wrong::HOST_ID),
        (wrong(3, connect(3), data(id)), Wrong::QUEUE),
    ];
    for (response, wrong) in cases {
        assert_eq!(
            (response.status, response.result),
            (Status::CONNECT_PARAMETERS.permanent(), wrong.result())
        );
    }
    let format = Command { dwords: [1, 31, 0, 0, 0, 0], ..good.command() };
    assert_eq!(Host::on(&subsystem, 0).call(format, 1024).status, Status::INCOMPATIBLE_FORMAT.permanent());
    assert_eq!(Host::on(&subsystem, 0).call(good.command(), 1023).status, Status::SGL_LENGTH.permanent());
}

#[test]
fn commands_wait_for_connect_and_enable() {
    let subsystem = subsystem(&[]);
    let mut host = Host::on(&subsystem, 0);
    let keep_alive = Command::new(admin::KEEP_ALIVE, 0);
    assert_eq!(host.call(keep_alive, 0).status, Status::SEQUENCE.permanent());
    let id = host.connect(connect(0), &data(ANY_CONTROLLER)).result as u16;
    assert_eq!(host.call(keep_alive, 0).status, Status::SEQUENCE.permanent());
    let mut io = Host::on(&subsystem, 1);
    assert_eq!(io.connect(connect(1), &data(id)).status, Status::SEQUENCE.permanent());
    // Entries of another size, and a second Connect.
    assert_eq!(host.call(Command::property_set(property::CONFIGURATION, 1), 0).status, Status::SUCCESS);
    assert_eq!(host.call(Command::property_get(property::STATUS, false), 0).result, 2);
    assert_eq!(host.call(keep_alive, 0).status, Status::SEQUENCE.permanent());
    assert_eq!(host.connect(connect(0), &data(ANY_CONTROLLER)).status, Status::SEQUENCE.permanent());
}

#[test]
fn reset_and_shutdown_show_in_the_status() {
    let mut host = enabled(&subsystem(&[]));
    let mut status_after = |value| {
        assert_eq!(
            host.call(Command::property_set(property::CONFIGURATION, value), 0).status,
            Status::SUCCESS
        );
        host.call(Command::property_get(property::STATUS, false), 0).result
    };
    assert_eq!((status_after(0x0046_4001), status_after(0), status_after(0x0046_0001)), (0b1001, 0, 1));
    assert_eq!(host.call(Command::property_get(property::VERSION, false), 0).result, 0x0001_0400);
    let capabilities = host.call(Command::property_get(property::CAPABILITIES, true), 0).result;
    assert_eq!((capabilities & 0xffff, capabilities >> 37 & 1), (127, 1));
    for wrong in [
        Command::property_get(property::CAPABILITIES, false),
        Command::property_get(4, false),
        Command::property_set(property::STATUS, 1),
    ] {
        assert_eq!(host.call(wrong, 0).status, Status::INVALID_FIELD.permanent());
    }
}

#[test]
fn only_admitted_hosts_connect_and_discover() {
    let subsystem = subsystem(&["nqn.2026-11.example:friend"]);
    subsystem.set_addresses(vec!["192.0.2.1:4420".parse().expect("valid")]);
    let stranger = Host::on(&subsystem, 0).connect(connect(0), &data(ANY_CONTROLLER));
    assert_eq!(stranger.status, Status::INVALID_HOST.permanent());
    for (name, count) in [(HOST, 0), ("nqn.2026-11.example:friend", 1)] {
        let mut host = Host::on(&subsystem, 0);
        let discovery =
            ConnectData { subsystem: nqn::DISCOVERY.into(), host: name.into(), ..data(ANY_CONTROLLER) };
        assert_eq!(host.connect(connect(0), &discovery).status, Status::SUCCESS);
        host.call(Command::property_set(property::CONFIGURATION, 0x0046_0001), 0);
        assert_eq!(host.call(Command::log_page(discovery::PAGE, 0, 2048), 2048).status, Status::SUCCESS);
        let log = Log::parse(&host.memory[..2048]).expect("a log page");
        assert_eq!(log.entries.len(), count, "{name}");
        // A discovery controller has no namespaces.
        let list = Command::identify(cns::ACTIVE_NAMESPACES, 0);
        assert_eq!(host.call(list, 4096).status, Status::INVALID_FIELD.permanent());
        assert_eq!(host.call(Command::identify(cns::CONTROLLER, 0), 4096).status, Status::SUCCESS);
        assert!(identify::Controller::parse(&host.memory).expect("4096 bytes").is_discovery);
    }
}

#[test]
fn identify_lists_namespaces_and_their_properties() {
    let mut host = enabled(&subsystem(&[]));
    host.call(Command::identify(cns::ACTIVE_NAMESPACES, 1), 4096);
    assert_eq!(identify::parse_namespace_list(&host.memory[..4096]), [2]);
    host.call(Command::identify(cns::NAMESPACE, 2), 4096);
    let expected = identify::Namespace { blocks: 2048, block_shift: 9, is_read_only: true, guid: [7; 16] };
    assert_eq!(identify::Namespace::parse(&host.memory), Some(expected));
    assert_eq!(host.call(Command::identify(cns::DESCRIPTORS, 1), 4096).status, Status::SUCCESS);
    let invalid = Status::INVALID_NAMESPACE.permanent();
    for (cns, id) in [
        (cns::NAMESPACE, 3),
        (cns::NAMESPACE, ALL_NAMESPACES),
        (cns::DESCRIPTORS, 0),
        (cns::ACTIVE_NAMESPACES, ALL_NAMESPACES),
    ] {
        assert_eq!(host.call(Command::identify(cns, id), 4096).status, invalid, "{cns} {id}");
    }
    assert_eq!(host.call(Command::identify(0x44, 1), 4096).status, Status::INVALID_FIELD.permanent());
}

#[test]
fn features_and_log_pages_are_bounded() {
    let mut host = enabled(&subsystem(&[]));
    let queues = |value| Command::set_feature(feature::QUEUES, value);
    assert_eq!(host.call(queues(0x0007_0007), 0).result, 0x0001_0001);
    assert_eq!(host.call(queues(0x0000_0007), 0).result, 0);
    let get = Command { opcode: admin::GET_FEATURES, ..queues(0) };
    assert_eq!(host.call(get, 0).result, 0);
    let invalid = Status::INVALID_FIELD.permanent();
    for wrong in
        [queues(0xffff), Command::set_feature(0x55, 0), Command::set_feature(feature::EVENTS, 1 << 20)]
    {
        assert_eq!(host.call(wrong, 0).status, invalid);
    }
    let saved = Command { dwords: [1 << 31 | 7, 0, 0, 0, 0, 0], ..queues(0) };
    assert_eq!(host.call(saved, 0).status, Status::NOT_SAVEABLE.permanent());
    for (page, offset, length, status) in [
        (2, 0, 512, Status::SUCCESS),
        (2, 512, 4, Status::SUCCESS),
        (2, 516, 4, invalid),
        (2, 2, 4, invalid),
        (2, !3, 4, invalid),
        (discovery::PAGE, 0, 1024, Status::INVALID_LOG_PAGE.permanent()),
        (0x55, 0, 4, Status::INVALID_LOG_PAGE.permanent()),
    ] {
        let response = host.call(Command::log_page(page, offset, length), length);
        assert_eq!(response.status, status, "{page:#x} {offset} {length}");
    }
    let long = Command { dwords: [0xffff_0002, 0xffff, 0, 0, 0, 0], ..Command::log_page(2, 0, 4) };
    assert_eq!(host.call(long, 4096).status, invalid);
    assert_eq!(host.call(Command::new(admin::ABORT, 0), 0).result, 1);
}

#[test]
fn grown_file_raises_one_event() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(4096).expect("a length");
    let storage: Box<dyn Storage> = Box::new(FileStorage::open(file.path(), false).expect("opens"));
    let namespaces =
        vec![namespace(false), Namespace::new(storage, 512, false, [1; 16]).expect("whole blocks")];
    let subsystem = Arc::new(Subsystem::new(DISK, namespaces, vec![], Limits::default()).expect("a name"));
    let mut host = enabled(&subsystem);
    let request = |id| Command { id, ..Command::new(admin::EVENT_REQUEST, 0) };
    for id in 100..104 {
        assert_eq!(host.post(request(id), &[]), Ok(None));
    }
    let fifth = host.post(request(104), &[]).expect("no violation").expect("a response");
    assert_eq!(fifth.status, Status::TOO_MANY_EVENT_REQUESTS.permanent());
    assert_eq!(host.call(Command::set_feature(feature::EVENTS, 1 << 8), 0).status, Status::SUCCESS);
    assert_eq!((subsystem.look().expect("lengths"), host.queue.event()), (vec![], None));
    file.as_file().set_len(8192).expect("a length");
    assert_eq!(subsystem.look().expect("lengths"), [2]);
    let event = host.queue.event().expect("an event");
    assert_eq!((event.id, event.result), (100, 0x0004_0002));
    file.as_file().set_len(16384).expect("a length");
    assert_eq!((subsystem.look().expect("lengths"), host.queue.event()), (vec![2], None));
    // The log page clears the event, so that the next change is a new one.
    assert_eq!(host.call(Command::log_page(4, 0, 4096), 4096).status, Status::SUCCESS);
    assert_eq!(identify::parse_namespace_list(&host.memory[..4096]), [2]);
    assert_eq!(host.queue.event(), None);
    file.as_file().set_len(4096).expect("a length");
    assert_eq!(
        (subsystem.look().expect("lengths"), host.queue.event().map(|event| event.id)),
        (vec![2], Some(101))
    );
}

#[test]
fn abort_ends_held_event_requests_only() {
    let subsystem = subsystem(&[]);
    let (mut host, mut io) = pair(&subsystem);
    let request = Command { id: 100, ..Command::new(admin::EVENT_REQUEST, 0) };
    assert_eq!(host.post(request, &[]), Ok(None));
    // Another queue, another command, a finished one.
    for (queue, id) in [(1, 100), (0, 101), (0, 1), (7, 7)] {
        assert_eq!(host.call(Command::abort(queue, id), 0).result, 1, "{queue} {id}");
    }
    assert_eq!(host.queue.event(), None);
    assert_eq!(host.call(Command::abort(0, 100), 0).result, 0);
    let ended = host.queue.event().expect("a response");
    assert_eq!((ended.id, ended.result, ended.status), (100, 0, Status::ABORTED));
    assert_eq!((host.queue.event(), host.call(Command::abort(0, 100), 0).result), (None, 1));
    // The identifier and the place are free again, and the other queue goes on.
    for id in 100..104 {
        assert_eq!(host.post(Command { id, ..request }, &[]), Ok(None));
    }
    assert_eq!(io.call(Command::new(io::FLUSH, 1), 0).status, Status::SUCCESS);
}

#[test]
fn more_commands_than_entries_are_a_violation() {
    let subsystem = subsystem(&[]);
    let mut host = enabled(&subsystem);
    assert_eq!(host.queue.take(START, &[0; LENGTH - 1]), Err(Violation::Short(63)));
    let keep_alive = |id| Command { id, ..Command::new(admin::KEEP_ALIVE, 0) }.to_bytes();
    for id in 1000..1032 {
        assert!(host.queue.take(START, &keep_alive(id)).is_ok());
    }
    assert_eq!(host.queue.take(START, &keep_alive(1)), Err(Violation::Overrun(32)));
}

#[test]
fn duplicate_identifier_is_refused() {
    let mut host = enabled(&subsystem(&[]));
    let keep_alive = Command { id: 500, ..Command::new(admin::KEEP_ALIVE, 0) }.to_bytes();
    let first = host.queue.take(START, &keep_alive).expect("no violation");
    let second = host.queue.take(START, &keep_alive).expect("no violation");
    let mut run = |task| host.queue.run(START, task, &mut Vec::new()).expect("a response").status;
    assert_eq!((run(&second), run(&first)), (Status::ID_CONFLICT.permanent(), Status::SUCCESS));
}

#[test]
fn head_follows_commands_unless_flow_control_is_off() {
    let subsystem = subsystem(&[]);
    let mut host = enabled(&subsystem);
    let head = host.call(Command::new(admin::KEEP_ALIVE, 0), 0).head;
    assert_eq!((head, host.call(Command::new(admin::KEEP_ALIVE, 0), 0).head), (4, 5));
    let mut other = Host::on(&subsystem, 0);
    let connected = other.connect(Connect { no_flow_control: true, ..connect(0) }, &data(ANY_CONTROLLER));
    assert_eq!((connected.status, connected.head), (Status::SUCCESS, NO_FLOW_CONTROL));
}

#[test]
fn controllers_are_limited_and_freed() {
    let subsystem = subsystem(&[]);
    let (first, io) = pair(&subsystem);
    let _second = enabled(&subsystem);
    assert_eq!(Host::on(&subsystem, 0).connect(connect(0), &data(ANY_CONTROLLER)).status, Status::BUSY);
    let controller = Arc::clone(first.queue.controller().expect("connected"));
    assert_eq!((controller.host(), controller.queues()), (HOST, vec![1]));
    // A second queue of the same number.
    let mut twin = Host::on(&subsystem, 1);
    assert_eq!(twin.connect(connect(1), &data(controller.id())).status, Status::SEQUENCE.permanent());
    drop(first);
    assert_eq!(io.queue.ending(START), Some(Ending::AdminQueue));
    drop(io);
    assert_eq!((controller.queues(), subsystem.connected().len()), (vec![], 1));
    assert_eq!(Host::on(&subsystem, 0).connect(connect(0), &data(ANY_CONTROLLER)).status, Status::SUCCESS);
}

#[test]
fn silent_hosts_lose_all_their_queues() {
    let subsystem = subsystem(&[]);
    let waiting = Host::on(&subsystem, 0);
    assert_eq!(waiting.queue.ending(START + CONNECT_TIMEOUT), None);
    assert_eq!(
        waiting.queue.ending(START + CONNECT_TIMEOUT + Duration::from_nanos(1)),
        Some(Ending::NoConnect)
    );
    let (mut admin, mut io) = pair(&subsystem);
    admin.call(Command::set_feature(feature::KEEP_ALIVE, 5000), 0);
    let limit = Duration::from_secs(10);
    // I/O is a sign of life for the controller.
    io.now = START + limit;
    io.call(Command::new(io::FLUSH, ALL_NAMESPACES), 0);
    assert_eq!(admin.queue.ending(START + 2 * limit), None);
    assert_eq!(io.queue.ending(START + 2 * limit + Duration::from_nanos(1)), Some(Ending::KeepAlive));
    assert_eq!(admin.queue.ending(START), Some(Ending::KeepAlive));
}
