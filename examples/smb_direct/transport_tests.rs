//! Peers that break the protocol: the connection ends, and says why.

use std::thread::{self, JoinHandle};

use roxie::host::DeviceConfig;
use roxie::verbs::SendWr;

use super::*;

const PORT: u16 = 445;
const REQUEST: NegotiateRequest =
    NegotiateRequest { versions: (VERSION, VERSION), credits_requested: RECEIVES, sizes: OWN };

/// A client that sends what it likes, and a server that returns why its connection has ended.
struct Raw {
    messages: Messages,
    server: JoinHandle<String>,
}

impl Raw {
    fn new() -> Raw {
        let (local, remote) = Device::memory_pair(&DeviceConfig::default()).expect("two devices");
        let address = SocketAddr::new(remote.gid(0).expect("a GID").to_ip(), PORT);
        let listener = ConnectionManager::start(&remote).and_then(|manager| manager.listen(address, 1));
        let listener = listener.expect("a listener");
        let server = thread::spawn(move || {
            let request = listener.accept(PATIENCE).expect("no error").expect("a request");
            let served = Transport::accept(&remote, request).and_then(|mut server| server.receive());
            served.map(|(message, _)| message).expect_err("the client is refused").to_string()
        });
        let manager = ConnectionManager::start(&local).expect("a manager");
        let messages = Messages::new(&local, |qp| manager.connect(qp, address, &DialOptions::default()));
        Raw { messages: messages.expect("a connection"), server }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.messages.send(bytes, None).expect("posted");
    }

    fn negotiate(&mut self) {
        self.send(&REQUEST.to_bytes());
        let response = self.messages.first().expect("a response");
        NegotiateResponse::parse(&response, &OWN).expect("conforms");
    }

    /// Waits for the end of the connection. Returns why the server has ended it.
    fn ended(self) -> String {
        let why = self.server.join().expect("no panic");
        assert!(self.messages.endpoint.connection.wait_for_end(PATIENCE), "the client is not told");
        why
    }
}

#[test]
fn malformed_transfer_closes_the_connection() {
    let mut raw = Raw::new();
    raw.negotiate();
    // No credits are requested.
    raw.send(&[0; 20]);
    assert_eq!(raw.ended(), "closed: field CreditsRequested is 0");
    let mut raw = Raw::new();
    raw.negotiate();
    raw.send(&[1; 19]);
    assert_eq!(raw.ended(), "closed: a message of 19 bytes, of which at least 20 were due");
    let mut raw = Raw::new();
    raw.negotiate();
    // A fragment of 8 of 16 bytes, and another one that leaves as much.
    let mut fragment = [0; 32];
    (fragment[0], fragment[8], fragment[12], fragment[16]) = (10, 8, 24, 8);
    raw.send(&fragment);
    raw.send(&fragment);
    assert_eq!(raw.ended(), "closed: a fragment leaves 16 bytes to come where 8 were due");
}

#[test]
fn malformed_negotiation_closes_the_connection() {
    let mut raw = Raw::new();
    raw.send(&NegotiateRequest { credits_requested: 0, ..REQUEST }.to_bytes());
    assert_eq!(raw.ended(), "field CreditsRequested is 0");
}

#[test]
fn other_versions_get_an_answer() {
    let mut raw = Raw::new();
    raw.send(&NegotiateRequest { versions: (0x0200, 0x0201), ..REQUEST }.to_bytes());
    let response = raw.messages.first().expect("a response");
    let refused = NegotiateResponse::parse(&response, &OWN);
    assert_eq!(
        refused,
        Err(super::super::messages::Refused::Field { field: "Status", value: NOT_SUPPORTED })
    );
    assert_eq!(raw.ended(), "the client has versions 0x0200 to 0x0201");
}

#[test]
fn write_with_immediate_closes_the_connection() {
    let mut raw = Raw::new();
    raw.negotiate();
    let write = SendWr::write(0, RKey(0)).imm(7);
    raw.messages.endpoint.qp().post_send(&write, &[]).expect("room");
    assert_eq!(raw.ended(), "a completion of RecvWriteImm, which this end does not post");
}
