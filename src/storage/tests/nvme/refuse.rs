//! Hosts and queues that the target does not take.

use std::fs;
use std::path::Path;

use roxie::host::{DialError, DialOptions};
use roxie_nvmeof::Status;
use roxie_nvmeof::cm::{QueueRequest, Refusal};
use roxie_nvmeof::command::{Command, io};
use roxie_nvmeof::initiator::{Data, HostOptions, InitiatorError};
use roxie_nvmeof::subsystem::Limits;

use super::requests::{Place, TABLE, check};
use super::{DISK, HOST, PATIENCE, Site, memory, options, subsystem};

#[test]
fn unknown_subsystem_is_named_in_the_refusal() {
    let site = Site::new();
    let error = site.connect_as(options("nqn.2026-11.example:other")).expect_err("there is none").to_string();
    assert!(error.contains("connect invalid parameters") && error.contains("subsystem NQN"), "{error}");
    site.serves(0);
}

#[test]
fn host_without_admission_is_refused() {
    let site = Site::with(subsystem(memory(), &["nqn.2026-11.example:friend"], Limits::default()));
    let error = site.connect_as(options(DISK)).expect_err("not admitted");
    let is_invalid = |status: &Status| status.code() == Status::INVALID_HOST;
    assert!(matches!(&error, InitiatorError::Refused { status, .. } if is_invalid(status)), "{error}");
    let friend = HostOptions { host: "nqn.2026-11.example:friend".into(), ..options(DISK) };
    let mut friend = site.connect_as(friend).expect("admitted");
    friend.connect_io().expect("an I/O queue");
    friend.execute(Command::blocks(io::READ, 1, 0, 1), Data::In(512)).expect("a read");
}

#[test]
fn hosts_beyond_the_limit_are_refused() {
    let site =
        Site::with(subsystem(memory(), &[], Limits { controllers: 1, queues: 1, ..Limits::default() }));
    let first = site.connect_as(options(DISK)).expect("a controller");
    let second = site.connect_as(HostOptions { host: format!("{HOST}2"), ..options(DISK) });
    let error = second.expect_err("no more controllers");
    assert!(error.to_string().contains("controller busy"), "{error}");
    first.close().expect("the target agrees");
    site.serves(0);
    site.connect();
}

#[test]
fn wrong_private_data_is_rejected_with_reason() {
    let site = Site::new();
    let good = QueueRequest { queue: 0, receives: 32, sends: 31 };
    let mut format = good.to_bytes();
    format[0] = 1;
    let of = |request: QueueRequest| request.to_bytes().to_vec();
    let cases = [
        (format.to_vec(), Refusal::FORMAT),
        (of(QueueRequest { queue: 9, ..good }), Refusal::QUEUE),
        (of(QueueRequest { sends: 0, ..good }), Refusal::SENDS),
        (of(QueueRequest { sends: 32, ..good }), Refusal::SENDS),
        (of(QueueRequest { queue: 1, sends: 128, ..good }), Refusal::SENDS),
        (of(QueueRequest { sends: u16::MAX, ..good }), Refusal::SENDS),
        (of(QueueRequest { receives: 0, ..good }), Refusal::RECEIVES),
    ];
    for (private_data, refusal) in cases {
        let (pd, cq) =
            (site.local.alloc_pd().expect("a domain"), site.local.create_cq(4, None).expect("a queue"));
        let qp = pd.queue_pair(&cq).create().expect("a QP");
        let options = DialOptions { private_data, ..DialOptions::default() };
        match site.manager.connect(qp, site.to, &options).map(drop) {
            Err(DialError::Rejected { private_data, .. }) => {
                assert_eq!(Refusal::parse(&private_data), Some(refusal));
            }
            other => panic!("{other:?} instead of {refusal}"),
        }
    }
    site.serves(0);
    site.connect();
}

#[test]
fn refused_requests_end_as_tabled() {
    let site = Site::new();
    let (device, manager, options) = (&site.local, &site.manager, options(DISK));
    check(&Place { device, manager, to: site.to, options, ends_within: PATIENCE }, 1);
    site.serves(0);
}

#[test]
fn page_has_the_table_of_requests() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/storage.md");
    let page = fs::read_to_string(path).expect("the page");
    let rows: String = TABLE
        .iter()
        .map(|(request, [nvmet, roxie])| format!("| {request} | {nvmet} | {roxie} |\n"))
        .collect();
    assert!(page.contains(&rows), "docs/storage.md lacks\n{rows}");
}
