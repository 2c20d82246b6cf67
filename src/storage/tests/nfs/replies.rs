//! Servers that reply what no server replies, and those that are started again: the client says what is wrong.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use roxie::host::{ConnectionManager, Device, DeviceConfig, DialOptions};
use roxie::verbs::{Access, RKey, SendWr, WcOpcode, WcStatus, WrOpcode};
use roxie_nfs::client::{Client, ClientError, ClientOptions};
use roxie_nfs::nfs3::{Arguments, FileHandle, Stable, procedure};
use roxie_nfs::rpc::{Call, Outcome, Reply};
use roxie_nfs::rpcrdma::{Body, Chunks, Header};
use roxie_nfs::xdr::Writer;

use super::PATIENCE;

/// A call, as the server has received it.
struct Called {
    header: Header,
    procedure: u32,
    arguments: Vec<u8>,
}

/// A reply: a header, and a message behind it. `None`: the server disconnects. A header without credits is not sent.
type Answer = Option<(Header, Vec<u8>)>;

/// A server that takes one connection, and answers each call but NULL as a function says.
struct Odd {
    local: Device,
    manager: ConnectionManager,
    to: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Odd {
    fn new(answer: impl FnMut(Called) -> Answer + Send + 'static) -> Odd {
        Odd::replying_by(SendWr::send(), answer)
    }

    /// Replies to each call but NULL by this work request.
    fn replying_by(by: SendWr, mut answer: impl FnMut(Called) -> Answer + Send + 'static) -> Odd {
        let (local, remote) = Device::memory_pair(&DeviceConfig::default()).expect("devices");
        let manager = ConnectionManager::start(&local).expect("a manager");
        let remote_manager = ConnectionManager::start(&remote).expect("a manager");
        let to = SocketAddr::new(remote.gid(0).expect("an address").to_ip(), roxie_nfs::PORT);
        let listener = remote_manager.listen(to, 4).expect("a free port");
        let thread = std::thread::spawn(move || {
            let request = listener.accept(PATIENCE).expect("the device works").expect("a request");
            let (pd, cq) =
                (remote.alloc_pd().expect("a domain"), remote.create_cq(64, None).expect("a queue"));
            let memory = pd.register(32 * 4096, Access::LOCAL_WRITE).expect("memory");
            let qp = pd.queue_pair(&cq).create().expect("a QP");
            qp.initialize(Access::LOCAL_WRITE).expect("a QP");
            for n in 0..16 {
                qp.post_recv(n, &[memory.sge(n as usize * 4096, 4096)]).expect("a receive");
            }
            let connection = request.accept(qp, &DialOptions::default()).expect("a connection");
            let mut sent = 0;
            while !connection.wait_for_end(Duration::ZERO) {
                let Ok(wc) = cq.wait(Duration::from_millis(20)) else { continue };
                if wc.status != WcStatus::Success {
                    return;
                }
                if wc.opcode != WcOpcode::Recv {
                    continue;
                }
                let bytes = memory.to_vec(wc.wr_id as usize * 4096, wc.byte_len as usize).expect("a call");
                let (header, message) = Header::parse(&bytes).expect("a client's header");
                let (call, arguments) = Call::parse(message).expect("a client's call");
                let xid = header.xid;
                let called =
                    Called { header, procedure: call.procedure, arguments: arguments.rest().to_vec() };
                let (by, answer) = match called.procedure {
                    procedure::NULL => (SendWr::send(), Some(success(xid, &[]))),
                    _ => (by, answer(called)),
                };
                let Some((header, message)) = answer else { return };
                if header.credits == 0 {
                    continue;
                }
                let reply = [&header.to_bytes()[..], &message].concat();
                let place = (16 + sent % 16) * 4096;
                sent += 1;
                memory.write_at(place, &reply).expect("room");
                let sge = memory.sge(place, reply.len() as u32);
                let sges = if by.opcode == WrOpcode::Send { &[sge][..] } else { &[] };
                connection.qp().post_send(&by.signaled(), sges).expect("room");
                let receive = memory.sge(wc.wr_id as usize * 4096, 4096);
                connection.qp().post_recv(wc.wr_id, &[receive]).expect("room");
            }
        });
        Odd { local, manager, to, thread: Some(thread) }
    }

    fn connect(&self) -> Client {
        self.connect_for(PATIENCE)
    }

    fn connect_for(&self, timeout: Duration) -> Client {
        let options = ClientOptions { timeout, ..ClientOptions::default() };
        Client::connect(&self.local, &self.manager, self.to, options).expect("a connection")
    }
}

impl Drop for Odd {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            thread.join().expect("no panic");
        }
    }
}

fn message(xid: u32, outcome: Outcome, results: &[u8]) -> Vec<u8> {
    let mut out = Writer::new();
    Reply { xid, outcome }.write(&mut out);
    [out.finish(), results.to_vec()].concat()
}

fn header(xid: u32, body: Body) -> Header {
    Header { xid, credits: 8, body }
}

/// Returns a reply with these results in the message.
fn success(xid: u32, results: &[u8]) -> (Header, Vec<u8>) {
    (header(xid, Body::Message(Chunks::default())), message(xid, Outcome::Success, results))
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn file() -> FileHandle {
    FileHandle::new(b"file").expect("short enough")
}

/// Returns the error of GETATTR from a server that answers so.
fn error(answer: impl Fn(u32) -> Answer + Send + 'static) -> ClientError {
    let odd = Odd::new(move |called| answer(called.header.xid));
    odd.connect().attributes(&file(), "/file").expect_err("a wrong reply")
}

/// Answers a call with this XID.
type Wrong = fn(u32) -> Answer;

#[test]
fn wrong_replies_are_told() {
    let cases: [(Wrong, &str); 7] = [
        (|xid| Some((header(xid, Body::WrongChunk), vec![])), "cannot use the chunks"),
        (|xid| Some((header(xid, Body::WrongVersion { low: 2, high: 3 }), vec![])), "versions 2 to 3"),
        (|xid| Some((header(xid ^ 1, Body::WrongChunk), vec![])), "not outstanding"),
        (|xid| Some((header(xid, Body::NoMessage(Chunks::default())), vec![])), "malformed reply"),
        (|xid| Some(success(xid, &[])), "malformed reply: end of the message"),
        (|xid| Some((success(xid, &[]).0, message(xid, Outcome::NoProgram, &[]))), "program unavailable"),
        (|_| None, "closed the connection"),
    ];
    for (answer, expected) in cases {
        let refusal = error(answer).to_string();
        assert!(refusal.contains(expected), "{refusal} instead of {expected}");
    }
}

#[test]
fn write_with_immediate_ends_the_client() {
    let by = SendWr::write(0, RKey(0)).imm(0);
    let odd = Odd::replying_by(by, |called| Some(success(called.header.xid, &[])));
    let message = odd.connect().attributes(&file(), "/file").expect_err("no reply").to_string();
    assert!(message.contains("RecvWriteImm"), "{message}");
}

/// Answers GETATTR with a file of this size.
fn attributes(xid: u32, size: u32) -> Answer {
    let mut results = words(&[0, 1, 0o644, 1, 0, 0, 0, size]);
    results.extend([0; 84 - 28]);
    Some(success(xid, &results))
}

#[test]
fn unanswered_read_bounds_what_is_kept() {
    const MANY: usize = 1000;
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    let odd = Odd::new(move |called| {
        let xid = called.header.xid;
        if called.procedure == procedure::GETATTR {
            return attributes(xid, 1 << 30);
        }
        match counted.fetch_add(1, Relaxed) {
            0 => Some((Header { credits: 0, ..header(xid, Body::WrongChunk) }, vec![])),
            MANY.. => None,
            _ => Some(success(xid, &[words(&[0, 0, 512, 0, 512]), vec![7; 512]].concat())),
        }
    });
    let mut out = Vec::new();
    let read = odd.connect_for(Duration::from_millis(500)).read_file(&file(), "/file", 512, &mut out, |_| {});
    let message = read.expect_err("the first part does not come").to_string();
    assert!(reads.load(Relaxed) <= 64, "{} READs: {message}", reads.load(Relaxed));
    assert!(out.is_empty());
}

#[test]
fn chunks_longer_than_offered_are_told() {
    for (length, expected) in [(u32::MAX, "wrote 4294967295 bytes to 65536"), (4096, "and 4096 in the chunk")]
    {
        let odd = Odd::new(move |called| {
            if called.procedure == procedure::GETATTR {
                return attributes(called.header.xid, 100_000);
            }
            let xid = called.header.xid;
            let mut chunks = called.header.chunks().expect("lists").clone();
            chunks.writes[0][0].length = length;
            let results = words(&[0, 0, 65_536, 0, 65_536]);
            Some((header(xid, Body::Message(chunks)), message(xid, Outcome::Success, &results)))
        });
        let read = odd.connect().read_file(&file(), "/file", 64 << 10, &mut Vec::new(), |_| {});
        let refusal = read.expect_err("too long").to_string();
        assert!(refusal.contains(expected), "{refusal}");
    }
}

/// A server to which three bytes are written, at most `most` a call, with a verifier for each WRITE and for the COMMIT.
fn written(
    most: u32,
    verifiers: impl Fn(usize) -> u32 + Send + 'static,
) -> (Result<u64, ClientError>, usize) {
    let calls = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = calls.clone();
    let odd = Odd::new(move |called| {
        let number = counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let verifier = verifiers(number);
        let results = match called.procedure {
            procedure::WRITE => {
                let mut reader = roxie_nfs::xdr::Reader::new(&called.arguments);
                let arguments = Arguments::parse(procedure::WRITE, &mut reader).expect("arguments");
                let Some(Arguments::Write { offset, count, stable: Stable::Unstable, .. }) = arguments else {
                    panic!("{arguments:?}");
                };
                let data = reader.opaque(3).expect("inline data");
                assert_eq!(data, &b"abc"[offset as usize..], "{count} bytes at {offset}");
                words(&[0, 0, 0, count.min(most), Stable::Unstable as u32, 0, verifier])
            }
            _ => words(&[0, 0, 0, 0, verifier]),
        };
        Some(success(called.header.xid, &results))
    });
    let written = odd.connect().write_file(&file(), "/file", 4096, &mut &b"abc"[..], |_| {});
    (written, calls.load(std::sync::atomic::Ordering::Relaxed))
}

#[test]
fn short_writes_are_continued() {
    let (done, calls) = written(1, |_| 5);
    assert_eq!((done.expect("written"), calls), (3, 4));
    let (done, _) = written(0, |_| 5);
    assert!(done.expect_err("nothing is written").to_string().contains("a WRITE of 0 bytes"));
}

#[test]
fn restarted_server_fails_the_write() {
    // Between two WRITEs, and between the last one and the COMMIT.
    for first in [1, 3] {
        let (done, _) = written(1, move |number| u32::from(number >= first));
        let error = done.expect_err("lost");
        assert!(matches!(&error, ClientError::Verifier { path } if path == "/file"), "{error}");
    }
}
