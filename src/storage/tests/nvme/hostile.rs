//! Hosts that violate the protocol: the target closes their connection, and serves the others.

use std::time::Duration;

use roxie::host::WaitError;
use roxie::verbs::{RKey, SendWr};
use roxie_nvmeof::cm::QueueRequest;
use roxie_nvmeof::command::{Command, admin};
use roxie_nvmeof::connect::{ANY_CONTROLLER, Connect, ConnectData, LENGTH};
use roxie_nvmeof::{Sgl, Status};

use super::raw::Raw;
use super::{DISK, HOST, PATIENCE, Site};

/// Receives for responses.
const RECEIVES: u16 = 64;

impl Raw {
    fn of(site: &Site) -> Raw {
        let request = QueueRequest { queue: 0, receives: 64, sends: 31 };
        let raw = Raw::connect(&site.local, &site.manager, site.to, &request, PATIENCE);
        (0..RECEIVES).for_each(|slot| raw.receive(slot));
        raw
    }

    /// A Connect command with its data at `sgl`.
    fn connect_capsule(&self, sgl: Sgl) -> [u8; 64] {
        let data = ConnectData {
            host_id: [3; 16],
            controller: ANY_CONTROLLER,
            subsystem: DISK.into(),
            host: HOST.into(),
        };
        self.write(&data.to_bytes());
        let connect = Connect { queue: 0, size: 31, no_flow_control: false, keep_alive_ms: 0 };
        Command { sgl, ..connect.command() }.to_bytes()
    }

    fn data(&self, key: RKey) -> Sgl {
        self.sgl(LENGTH, key.0)
    }

    fn is_closed(&self) {
        assert!(self.connection.wait_for_end(PATIENCE), "the target has not closed the connection");
    }
}

/// Runs a host's misbehaviour, after which the target must have closed the connection and serve others.
fn is_closed_after(misbehave: impl Fn(&Raw)) {
    let site = Site::new();
    let raw = Raw::of(&site);
    misbehave(&raw);
    raw.is_closed();
    site.serves(0);
    site.connect().flush(1).expect("the target serves others");
}

#[test]
fn short_capsule_closes_the_connection() {
    is_closed_after(|raw| raw.send(&[0; 63]));
}

#[test]
fn long_capsule_closes_the_connection() {
    is_closed_after(|raw| raw.send(&[0; 65]));
}

#[test]
fn invalid_key_closes_the_connection() {
    is_closed_after(|raw| raw.send(&raw.connect_capsule(raw.data(RKey(raw.memory.rkey().0 ^ 0x0100)))));
}

#[test]
fn foreign_key_to_invalidate_closes_the_connection() {
    is_closed_after(|raw| {
        raw.send(&raw.connect_capsule(raw.data(raw.memory.rkey())));
        assert_eq!(raw.response().status, Status::SUCCESS);
        let Sgl::Keyed { address, key, .. } = raw.data(raw.memory.rkey()) else { unreachable!("keyed") };
        // A SEND with invalidate of an ordinary region is an error at the host.
        let sgl = Sgl::Keyed { address, length: 4, key, invalidate: true };
        raw.send(&Command { sgl, ..Command::new(admin::KEEP_ALIVE, 0) }.to_bytes());
    });
}

#[test]
fn write_with_immediate_closes_the_connection() {
    is_closed_after(|raw| {
        let write = SendWr::write(0, RKey(0)).imm(7);
        raw.connection.qp().post_send(&write, &[]).expect("room");
    });
}

#[test]
fn untaken_responses_close_the_connection() {
    is_closed_after(|raw| {
        // More than the receives here, the target's send queue and as many again as the queue has entries.
        for id in 0..(RECEIVES + 3 * 32 + 32 + 2) {
            raw.send(&Command { id, ..Command::new(admin::KEEP_ALIVE, 0) }.to_bytes());
        }
    });
}

#[test]
fn capsules_before_connect_are_refused() {
    let site = Site::new();
    let raw = Raw::of(&site);
    raw.send(&Command { id: 9, ..Command::new(admin::KEEP_ALIVE, 0) }.to_bytes());
    let response = raw.response();
    assert_eq!((response.id, response.status), (9, Status::SEQUENCE.permanent()));
    raw.send(&raw.connect_capsule(Sgl::InCapsule { offset: 0, length: 1024 }));
    assert_eq!(raw.response().status, Status::SGL_OFFSET.permanent());
    raw.send(&raw.connect_capsule(raw.data(raw.memory.rkey())));
    assert_eq!(raw.response().status, Status::SUCCESS);
}

#[test]
fn held_event_requests_are_bounded_and_freed() {
    let site = Site::new();
    let raw = Raw::of(&site);
    raw.send(&raw.connect_capsule(raw.data(raw.memory.rkey())));
    assert_eq!(raw.response().status, Status::SUCCESS);
    let enable = Command::property_set(0x14, 0x0046_0001).to_bytes();
    raw.send(&enable);
    assert_eq!(raw.response().status, Status::SUCCESS);
    for id in 0..4 {
        raw.send(&Command { id, ..Command::new(admin::EVENT_REQUEST, 0) }.to_bytes());
        // The answer to a second command shows that the target has the first.
        raw.send(&Command { id: 100, ..Command::new(admin::KEEP_ALIVE, 0) }.to_bytes());
        assert_eq!(raw.response().id, 100);
    }
    raw.send(&Command { id: 4, ..Command::new(admin::EVENT_REQUEST, 0) }.to_bytes());
    assert_eq!(raw.response().status, Status::TOO_MANY_EVENT_REQUESTS.permanent());
    // The connection's end frees all that it held.
    drop(raw);
    site.serves(0);
}

#[test]
fn host_that_goes_away_is_forgotten() {
    let site = Site::new();
    let raw = Raw::of(&site);
    site.serves(1);
    let ended = raw.cq.wait(Duration::ZERO);
    assert_eq!(ended.map(|wc| wc.status), Err(WaitError::TimedOut(Duration::ZERO)));
    raw.connection.disconnect().expect("the target agrees");
    site.serves(0);
}
