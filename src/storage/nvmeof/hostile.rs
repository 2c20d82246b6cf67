//! Input that no conforming peer sends: no panic, and what is parsed encodes to what it was.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use crate::cm::{QueueReply, QueueRequest, Refusal};
use crate::command::{Command, admin, fabrics, io};
use crate::connect::{ANY_CONTROLLER, Connect, ConnectData};
use crate::controller::{Queue, Transfer};
use crate::discovery::Log;
use crate::identify;
use crate::response::Response;
use crate::status::Status;
use crate::storage::MemoryStorage;
use crate::subsystem::{Limits, Namespace, Subsystem};

const DISK: &str = "nqn.2026-11.example:disk";

/// Opcodes, mostly known ones.
fn opcode() -> impl Strategy<Value = u8> {
    let known = [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::EVENT_REQUEST,
        admin::KEEP_ALIVE,
        fabrics::OPCODE,
        io::FLUSH,
        io::WRITE,
        io::READ,
        io::WRITE_ZEROES,
    ];
    prop_oneof![8 => prop::sample::select(known.to_vec()), 1 => any::<u8>()]
}

/// A capsule: arbitrary bytes, or a command with plausible fields here and there.
fn capsule() -> impl Strategy<Value = Vec<u8>> {
    let small = || prop_oneof![4 => 0u32..4, 1 => any::<u32>()];
    let fields = (opcode(), small(), any::<[u8; 16]>(), prop::array::uniform6(small()), 0u16..40);
    let kind = prop::sample::select(vec![0x00u8, 0x01, 0x40, 0x4f, 0x5a, 0xff]);
    let length = prop::sample::select(vec![0u32, 4, 512, 1024, 4096, 8192, u32::MAX]);
    let plausible = (fields, kind, length, prop::collection::vec(any::<u8>(), 0..1200)).prop_map(
        |((opcode, namespace, sgl, dwords, id), kind, length, behind)| {
            let mut bytes = Command { id, dwords, ..Command::new(opcode, namespace) }.to_bytes();
            bytes[24..40].copy_from_slice(&sgl);
            bytes[32..36].copy_from_slice(&length.to_le_bytes());
            bytes[39] = kind;
            [&bytes[..], &behind].concat()
        },
    );
    prop_oneof![4 => plausible, 1 => prop::collection::vec(any::<u8>(), 0..200)]
}

fn subsystem() -> Arc<Subsystem> {
    let storage = MemoryStorage::new(64 << 10).expect("memory");
    let namespace = Namespace::new(Box::new(storage), 512, false, [7; 16]).expect("whole blocks");
    Arc::new(Subsystem::new(DISK, vec![namespace], vec![], Limits::default()).expect("a name"))
}

/// Runs a capsule as a transport would, with data of the length that the task asks for. The result of the command, if
/// any.
fn run(queue: &mut Queue, capsule: &[u8]) -> Option<Response> {
    let limit = u64::from(Limits::default().longest_transfer);
    let task = queue.take(Duration::ZERO, capsule).ok()?;
    let mut data = match &task.transfer {
        Transfer::InCapsule(range) => capsule[range.clone()].to_vec(),
        Transfer::Fetch(remote) => vec![0x55; remote.length as usize],
        _ => Vec::new(),
    };
    assert!(data.len() as u64 <= limit, "{} bytes to fetch", data.len());
    let response = queue.run(Duration::ZERO, &task, &mut data);
    while queue.event().is_some() {}
    if let (Transfer::Deliver(remote), Some(response)) = (&task.transfer, response)
        && response.status.is_success()
    {
        assert_eq!(data.len(), remote.length as usize);
        assert!(data.len() as u64 <= limit, "{} bytes to deliver", data.len());
    }
    response
}

/// A queue that is connected, if `connected`, and enabled.
fn queue(subsystem: &Arc<Subsystem>, id: u16, controller: u16) -> Queue {
    let mut queue = Queue::new(Arc::clone(subsystem), id, 32, Duration::ZERO);
    let connect = Connect { queue: id, size: 31, no_flow_control: false, keep_alive_ms: 0 };
    let host = "nqn.2026-11.example:host".to_owned();
    let data = ConnectData { host_id: [0; 16], controller, subsystem: DISK.into(), host };
    let sgl = crate::Sgl::InCapsule { offset: 0, length: 1024 };
    let capsule = [&Command { sgl, ..connect.command() }.to_bytes()[..], &data.to_bytes()].concat();
    assert_eq!(run(&mut queue, &capsule).expect("a response").status, Status::SUCCESS);
    queue
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_capsules_leave_queues_usable(capsules in prop::collection::vec(capsule(), 1..40), behind in any::<bool>()) {
        let subsystem = subsystem();
        let mut unconnected = Queue::new(Arc::clone(&subsystem), 0, 32, Duration::ZERO);
        let mut admin = queue(&subsystem, 0, ANY_CONTROLLER);
        let enable = Command::property_set(0x14, 0x0046_0001).to_bytes();
        prop_assert!(run(&mut admin, &enable).is_some());
        let id = admin.controller().expect("connected").id();
        let mut io = queue(&subsystem, 1, id);
        for capsule in &capsules {
            for queue in [&mut unconnected, &mut admin, &mut io] {
                let response = run(queue, capsule);
                // A response names the command that it answers.
                if let (Some(response), Some(command)) = (response, Command::parse(capsule)) {
                    prop_assert_eq!(response.id, command.id);
                }
            }
        }
        // A capsule may have disabled the controller or held event requests: fabrics commands still work.
        let status = Command { id: 999, ..Command::property_get(0x1c, false) }.to_bytes();
        if behind {
            prop_assert!(run(&mut admin, &status).is_some_and(|response| response.id == 999));
        }
    }

    #[test]
    fn commands_parse_to_what_they_were(bytes in any::<[u8; 32]>(), more in any::<[u8; 32]>()) {
        // All but reserved bytes of the SGL.
        let parsed = Command::parse(&[bytes, more].concat()).expect("64 bytes");
        prop_assert_eq!(Command::parse(&parsed.to_bytes()), Some(parsed));
    }

    #[test]
    fn structures_of_any_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..4200)) {
        let _ = Response::parse(&bytes).map(|response| response.to_string());
        let _ = Command::parse(&bytes).map(|command| command.to_string());
        let _ = ConnectData::parse(&bytes);
        let _ = (identify::Controller::parse(&bytes), identify::Namespace::parse(&bytes));
        let _ = identify::parse_namespace_list(&bytes);
        let _ = Log::parse(&bytes);
        let _ = (QueueRequest::parse(&bytes), QueueReply::parse(&bytes), Refusal::parse(&bytes));
    }
}
