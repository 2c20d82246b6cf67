//! Requests that a controller refuses, aborts or has no room for, and how they end on Linux's nvmet and on Roxie's
//! target.
//!
//! `interop/tests/guests/storage.rs` sends them to nvmet; `docs/storage.md` has the table.

use std::net::SocketAddr;
use std::time::Duration;

use roxie::host::{ConnectionManager, Device};
use roxie_nvmeof::Status;
use roxie_nvmeof::cm::QueueRequest;
use roxie_nvmeof::command::{Command, admin, io};
use roxie_nvmeof::connect::{Connect, ConnectData, LENGTH};
use roxie_nvmeof::identify::{self, cns};
use roxie_nvmeof::initiator::{Data, HostOptions, Initiator};
use roxie_nvmeof::response::Response;

use super::raw::Raw;

const PATIENCE: Duration = Duration::from_secs(60);
/// A namespace that no controller of these tests has.
const ABSENT: u32 = 9;
/// Entries of the queue that is given more commands than it has entries, and the commands.
const ENTRIES: u16 = 32;
const FLOOD: u16 = 64;

/// Requests, and how they end: on nvmet of Linux 6.1, on Roxie's target.
pub(crate) const TABLE: [(&str, [&str; 2]); 17] = [
    ("Read of 2 blocks, SGL of 1 block", ["data SGL length invalid"; 2]),
    ("Read of 1 block, SGL of 2 blocks", ["data SGL length invalid"; 2]),
    ("Write of 2 blocks, 1 block in the capsule", ["data SGL length invalid"; 2]),
    ("Write of 32 blocks, SGL of 31 blocks", ["data SGL length invalid"; 2]),
    ("Flush with an SGL of 1 block", ["success", "data SGL length invalid"]),
    ("Read of an absent namespace", ["invalid namespace or format"; 2]),
    ("Write of 32 blocks to an absent namespace", ["invalid namespace or format"; 2]),
    ("Flush of an absent namespace", ["invalid namespace or format"; 2]),
    ("Identify of an absent namespace", ["success, all zeros", "invalid namespace or format"]),
    ("Read beyond the last block", ["internal error", "LBA out of range"]),
    ("unknown opcode, 0x55", ["invalid command opcode"; 2]),
    ("half of a fused command", ["invalid field in command"; 2]),
    ("Reads up to a full queue", ["all succeed"; 2]),
    ("Abort of a finished Read", ["not aborted"; 2]),
    (
        "Abort of an event request",
        ["not aborted", "aborted; the request: command abort requested (may be retried)"],
    ),
    ("fifth event request", ["asynchronous event request limit exceeded"; 2]),
    ("64 Reads at once on a queue of 32 entries", ["all succeed", "the connection ends"]),
];

/// A controller's address, with what it takes to connect there.
pub(crate) struct Place<'a> {
    pub(crate) device: &'a Device,
    pub(crate) manager: &'a ConnectionManager,
    pub(crate) to: SocketAddr,
    pub(crate) options: HostOptions,
    /// Time in which the connection of a queue with too many commands ends, if it ends.
    pub(crate) ends_within: Duration,
}

/// Sends all requests, and compares how they end with a column of the table.
pub(crate) fn check(place: &Place<'_>, column: usize) {
    let mut initiator = place.connect();
    let mut requests = of_blocks(&mut initiator);
    requests.extend(of_admin(&mut initiator));
    initiator.close().expect("the controller answers");
    requests.push(("64 Reads at once on a queue of 32 entries", place.flood()));
    requests.iter().for_each(|(request, end)| println!("{request}: {end}"));
    for (request, ends) in TABLE {
        let end = requests.iter().find(|(name, _)| *name == request).map(|(_, end)| end.as_str());
        assert_eq!(end, Some(ends[column]), "{request}");
    }
    assert_eq!(requests.len(), TABLE.len());
}

fn text(status: Status) -> String {
    let retried = if status.is_success() || status.is_permanent() { "" } else { " (may be retried)" };
    format!("{status}{retried}")
}

/// Requests of the I/O queue. Each leaves the queue usable.
fn of_blocks(initiator: &mut Initiator) -> Vec<(&'static str, String)> {
    let blocks = initiator.namespace(1).expect("a namespace").blocks;
    let depth = initiator.connect_io().expect("an I/O queue");
    let (read, write) = (
        |namespace, lba, count| Command::blocks(io::READ, namespace, lba, count),
        |namespace, count| Command::blocks(io::WRITE, namespace, 0, count),
    );
    let bytes = [0; 32 * 512];
    let cases = [
        ("Read of 2 blocks, SGL of 1 block", read(1, 0, 2), Data::In(512)),
        ("Read of 1 block, SGL of 2 blocks", read(1, 0, 1), Data::In(1024)),
        ("Write of 2 blocks, 1 block in the capsule", write(1, 2), Data::Out(&bytes[..512])),
        ("Write of 32 blocks, SGL of 31 blocks", write(1, 32), Data::Out(&bytes[..31 * 512])),
        ("Flush with an SGL of 1 block", Command::new(io::FLUSH, 1), Data::In(512)),
        ("Read of an absent namespace", read(ABSENT, 0, 1), Data::In(512)),
        ("Write of 32 blocks to an absent namespace", write(ABSENT, 32), Data::Out(&bytes)),
        ("Flush of an absent namespace", Command::new(io::FLUSH, ABSENT), Data::None),
        ("Read beyond the last block", read(1, blocks, 1), Data::In(512)),
        ("unknown opcode, 0x55", Command::new(0x55, 1), Data::None),
        ("half of a fused command", Command { flags: 0x41, ..read(1, 0, 1) }, Data::In(512)),
    ];
    let good = |initiator: &mut Initiator| initiator.execute(read(1, 0, 1), Data::In(512)).expect("a read");
    let mut requests = Vec::new();
    for (request, command, data) in cases {
        let id = initiator.submit(command, data).expect("a connection").expect("room");
        let finished = initiator.finish().expect("a response");
        assert_eq!(finished.response.id, id);
        requests.push((request, text(finished.response.status)));
        good(initiator);
    }
    let mut open = 0;
    while initiator.submit(read(1, open, 1), Data::In(512)).expect("a connection").is_some() {
        open += 1;
    }
    assert_eq!(open, u64::from(depth), "the queue takes as many commands as it has said");
    let mut ends: Vec<_> =
        (0..open).map(|_| text(initiator.finish().expect("a response").response.status)).collect();
    ends.dedup();
    requests.push(("Reads up to a full queue", ends.join(", ").replace("success", "all succeed")));
    let id = good(initiator).response.id;
    let abort = initiator.admin(Command::abort(1, id), Data::None).expect("an answer");
    requests.push(("Abort of a finished Read", aborted(&abort.response)));
    requests
}

fn aborted(response: &Response) -> String {
    if response.result & 1 == 0 { "aborted" } else { "not aborted" }.into()
}

/// Requests of the admin queue. Each leaves the queue usable.
fn of_admin(initiator: &mut Initiator) -> Vec<(&'static str, String)> {
    let mut requests = Vec::new();
    let end = |initiator: &mut Initiator| {
        initiator.finish_admin(PATIENCE).expect("a connection").expect("a response")
    };
    let good = |initiator: &mut Initiator| {
        initiator.admin(Command::new(admin::KEEP_ALIVE, 0), Data::None).expect("an answer")
    };
    let identify = Command::identify(cns::NAMESPACE, ABSENT);
    initiator.submit_admin(identify, Data::In(identify::LENGTH)).expect("a connection").expect("room");
    let finished = end(initiator);
    let zeros = !finished.data.is_empty() && finished.data.iter().all(|byte| *byte == 0);
    let zeros = if zeros { ", all zeros" } else { "" };
    requests.push(("Identify of an absent namespace", text(finished.response.status) + zeros));
    let request = Command::new(admin::EVENT_REQUEST, 0);
    let hold = |initiator: &mut Initiator| {
        initiator.submit_admin(request, Data::None).expect("a connection").expect("room")
    };
    let id = hold(initiator);
    let abort = initiator.admin(Command::abort(0, id), Data::None).expect("an answer");
    let mut how = aborted(&abort.response);
    let mut held = 1;
    if how == "aborted" {
        let finished = end(initiator);
        assert_eq!(finished.response.id, id);
        how += &format!("; the request: {}", text(finished.response.status));
        held = 0;
    }
    requests.push(("Abort of an event request", how));
    good(initiator);
    for _ in held..4 {
        hold(initiator);
    }
    let fifth = hold(initiator);
    let finished = end(initiator);
    assert_eq!(finished.response.id, fifth, "four requests are held");
    requests.push(("fifth event request", text(finished.response.status)));
    good(initiator);
    requests
}

impl Place<'_> {
    fn connect(&self) -> Initiator {
        Initiator::connect(self.device, self.manager, self.to, self.options.clone()).expect("a controller")
    }

    /// Makes an I/O queue of [`ENTRIES`] entries of a controller, which the initiator's limits do not hold back.
    fn queue(&self, controller: u16) -> Raw {
        let request = QueueRequest { queue: 1, receives: ENTRIES, sends: ENTRIES - 1 };
        let queue = Raw::connect(self.device, self.manager, self.to, &request, PATIENCE);
        let HostOptions { host_id, subsystem, host, .. } = self.options.clone();
        queue.write(&ConnectData { host_id, controller, subsystem, host }.to_bytes());
        let connect = Connect { queue: 1, size: ENTRIES - 1, no_flow_control: false, keep_alive_ms: 0 };
        queue.receive(0);
        send(&queue, connect.command(), LENGTH);
        assert_eq!(queue.response().status, Status::SUCCESS);
        queue
    }

    /// Sends twice as many Reads as a queue has entries, and takes responses only afterwards, so that all are
    /// outstanding at once. Returns how they end. The controller and its admin queue stay in any case.
    fn flood(&self) -> String {
        let mut initiator = self.connect();
        let queue = self.queue(initiator.controller());
        for id in 0..FLOOD {
            send(&queue, Command { id, ..Command::blocks(io::READ, 1, 0, 1) }, 512);
        }
        let end = if queue.connection.wait_for_end(self.ends_within) {
            "the connection ends".to_owned()
        } else {
            (0..FLOOD).for_each(|slot| queue.receive(slot));
            let mut ends: Vec<_> = (0..FLOOD).map(|_| text(queue.response().status)).collect();
            ends.dedup();
            ends.join(", ").replace("success", "all succeed")
        };
        initiator.admin(Command::new(admin::KEEP_ALIVE, 0), Data::None).expect("the admin queue works");
        drop(queue);
        initiator.close().expect("the controller answers");
        end
    }
}

/// Sends a command with `length` bytes of data.
fn send(queue: &Raw, command: Command, length: usize) {
    let sgl = queue.sgl(length, queue.memory.rkey().0);
    queue.send(&Command { sgl, ..command }.to_bytes());
}
