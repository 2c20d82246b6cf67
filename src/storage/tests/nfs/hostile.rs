//! Clients that send what no client sends: the server refuses or closes, and serves the next.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use roxie::host::{CompletionQueue, Connection, DialOptions, MemoryRegion};
use roxie::verbs::{Access, RKey, SendWr, WcOpcode, WcStatus};
use roxie_nfs::nfs3::{Arguments, FileHandle, PROGRAM, Status, read_head};
use roxie_nfs::rpc::{Call, Credential, Outcome, Reply};
use roxie_nfs::rpcrdma::{Body, Chunks, Header, ReadSegment, Segment};
use roxie_nfs::xdr::Writer;

use super::{PATIENCE, Site, pattern};

/// A connection without a client's state.
pub(super) struct Bare {
    // Dropped first: the queue pair uses the memory below.
    connection: Connection,
    cq: CompletionQueue,
    replies: MemoryRegion,
    /// Memory that the server may write to and read from.
    memory: MemoryRegion,
}

const RECEIVES: u64 = 8;

impl Bare {
    pub(super) fn new(site: &Site) -> Bare {
        let pd = site.local.alloc_pd().expect("a domain");
        let cq = site.local.create_cq(64, None).expect("a queue");
        let replies = pd.register(RECEIVES as usize * 4096, Access::LOCAL_WRITE).expect("memory");
        let remote = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let memory = pd.register(1 << 17, remote).expect("memory");
        let qp = pd.queue_pair(&cq).create().expect("a QP");
        qp.initialize(remote).expect("a QP");
        for n in 0..RECEIVES {
            qp.post_recv(n, &[replies.sge(n as usize * 4096, 4096)]).expect("a receive");
        }
        let connection = site.manager.connect(qp, site.to, &DialOptions::default()).expect("a connection");
        Bare { connection, cq, replies, memory }
    }

    /// Calls READ, with room for a short reply. Returns its status.
    pub(super) fn read(&mut self, file: &FileHandle, count: u32) -> Status {
        let call = message(9, &read_of(file, count));
        let (_, results) = self.call(&header(9, Chunks::default()), &call).expect("a reply");
        let mut results = Reply::parse(&results).expect("a reply").1;
        Status(results.u32().expect("a status"))
    }

    fn segment(&self, offset: u64, length: u32) -> Segment {
        Segment { handle: self.memory.rkey().0, length, offset: self.memory.address() + offset }
    }

    /// Sends bytes. Returns the reply; `None`: the server has closed.
    fn exchange(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let memory = &self.memory;
        memory.write_at((1 << 17) - 8192, bytes).expect("room");
        let sge = memory.sge((1 << 17) - 8192, bytes.len() as u32);
        self.connection.qp().post_send(&SendWr::send().signaled(), &[sge]).ok()?;
        let until = Instant::now() + PATIENCE;
        loop {
            let Ok(wc) = self.cq.wait(Duration::from_millis(20)) else {
                if self.connection.wait_for_end(Duration::ZERO) {
                    return None;
                }
                assert!(Instant::now() < until, "neither a reply nor an end");
                continue;
            };
            if wc.status != WcStatus::Success {
                return None;
            }
            if wc.opcode == WcOpcode::Recv {
                let begin = wc.wr_id as usize * 4096;
                return Some(self.replies.to_vec(begin, wc.byte_len as usize).expect("a reply"));
            }
        }
    }

    /// Sends a header and a message. Returns the reply's header and message.
    fn call(&mut self, header: &Header, message: &[u8]) -> Option<(Header, Vec<u8>)> {
        let reply = self.exchange(&[&header.to_bytes()[..], message].concat())?;
        let (header, message) = Header::parse(&reply).expect("a right header");
        Some((header, message.to_vec()))
    }
}

fn message(xid: u32, arguments: &Arguments<'_>) -> Vec<u8> {
    let mut out = Writer::new();
    Call::new(xid, PROGRAM, arguments.procedure(), Credential::None).write(&mut out);
    arguments.write(&mut out);
    out.finish()
}

fn header(xid: u32, chunks: Chunks) -> Header {
    Header { xid, credits: 1, body: Body::Message(chunks) }
}

fn read_of(file: &FileHandle, count: u32) -> Arguments<'static> {
    Arguments::Read { file: file.clone(), offset: 0, count }
}

/// A file of 100,000 bytes, its handle, and a connection.
fn served(site: &Site) -> (FileHandle, Bare) {
    site.write("file", &pattern(9, 100_000));
    let mut client = site.connect();
    let (file, _) = client.lookup(&site.root(), "file", "").expect("a file");
    client.close().expect("the device works");
    (file, Bare::new(site))
}

#[test]
fn wrong_headers_are_refused_and_the_next_served() {
    let site = Site::new();
    let (_, mut bare) = served(&site);
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    let body = |reply: Vec<u8>| Header::parse(&reply).expect("a header").0.body;
    let version = bare.exchange(&words(&[7, 2, 1, 0, 0, 0, 0])).expect("a reply");
    assert_eq!(body(version), Body::WrongVersion { low: 1, high: 1 });
    // A truncated list, an unknown type, a chunk that is longer than the message, a call in a chunk.
    for wrong in
        [&[7, 1, 1, 0, 1][..], &[7, 1, 1, 3, 0, 0, 0], &[7, 1, 1, 0, 0, 1, 99], &[7, 1, 1, 1, 0, 0, 0]]
    {
        let reply = bare.exchange(&words(wrong)).expect("a reply");
        assert_eq!(body(reply), Body::WrongChunk, "{wrong:?}");
    }
    // Another XID in the message, and data at its begin.
    let null = message(8, &Arguments::Null);
    assert_eq!(bare.call(&header(7, Chunks::default()), &null).expect("a reply").0.body, Body::WrongChunk);
    let reads = vec![ReadSegment { position: 0, segment: bare.segment(0, 64) }];
    let at_begin = header(8, Chunks { reads, ..Chunks::default() });
    let reply = bare.call(&at_begin, &null).expect("a reply").0;
    assert_eq!(reply.body, Body::WrongChunk);
    let (reply, message) = bare.call(&header(8, Chunks::default()), &null).expect("a reply");
    assert!(matches!(reply.body, Body::Message(_)) && reply.credits > 0);
    assert_eq!(Reply::parse(&message).expect("a reply").0, Reply { xid: 8, outcome: Outcome::Success });
}

#[test]
fn messages_without_a_call_close_the_connection() {
    let site = Site::new();
    let (_, mut first) = served(&site);
    for wrong in
        [vec![0; 3], vec![], [&header(7, Chunks::default()).to_bytes()[..], &7u32.to_be_bytes()].concat()]
    {
        assert_eq!(first.exchange(&wrong), None, "{wrong:?}");
        first = Bare::new(&site);
    }
    let null = message(8, &Arguments::Null);
    assert!(first.call(&header(8, Chunks::default()), &null).is_some());
}

#[test]
fn chunks_without_room_are_refused() {
    let site = Site::new();
    let (file, mut bare) = served(&site);
    let call = message(9, &read_of(&file, 50_000));
    let small = Chunks { writes: vec![vec![bare.segment(0, 49_999)]], ..Chunks::default() };
    let none = Chunks::default();
    let reply = Chunks { reply: Some(vec![bare.segment(0, 50_000)]), ..Chunks::default() };
    let many =
        Chunks { writes: vec![(0..100).map(|n| bare.segment(n * 4, 4)).collect()], ..Chunks::default() };
    for chunks in [small, none, reply, many] {
        let shown = format!("{chunks:?}");
        assert_eq!(
            bare.call(&header(9, chunks), &call).expect("a reply").0.body,
            Body::WrongChunk,
            "{shown}"
        );
    }
    assert_eq!(bare.memory.to_vec(0, 50_000).expect("memory"), vec![0; 50_000]);
}

#[test]
fn data_fill_the_segments_and_no_more() {
    let site = Site::new();
    let (file, mut bare) = served(&site);
    let call = message(9, &read_of(&file, 50_000));
    let (first, second) = (bare.segment(100, 10), bare.segment(2000, 60_000));
    let chunks = Chunks { writes: vec![vec![first, second]], ..Chunks::default() };
    let (reply, results) = bare.call(&header(9, chunks), &call).expect("a reply");
    let used = vec![vec![first, Segment { length: 49_990, ..second }]];
    assert_eq!(reply.chunks().expect("lists").writes, used);
    let mut results = Reply::parse(&results).expect("a reply").1;
    let head = read_head(&mut results).expect("results").expect("success");
    assert_eq!((head.count, head.is_end, results.rest().len()), (50_000, false, 0));
    let (expected, memory) = (pattern(9, 50_000), bare.memory.to_vec(0, 60_000).expect("memory"));
    assert!(memory[..100].iter().chain(&memory[110..2000]).chain(&memory[51_990..]).all(|byte| *byte == 0));
    assert!(memory[100..110] == expected[..10] && memory[2000..51_990] == expected[10..]);
    // The whole reply in the reply chunk, with padding.
    let call = message(10, &read_of(&file, 49_999));
    let chunks = Chunks { reply: Some(vec![bare.segment(0, 60_000)]), ..Chunks::default() };
    let (reply, results) = bare.call(&header(10, chunks), &call).expect("a reply");
    assert!(matches!(reply.body, Body::NoMessage(_)) && results.is_empty());
    let length = reply.chunks().and_then(|chunks| chunks.reply.clone()).expect("a chunk")[0].length as usize;
    let whole = bare.memory.to_vec(0, length).expect("memory");
    let mut results = Reply::parse(&whole).expect("a reply").1;
    read_head(&mut results).expect("results").expect("success");
    assert!(results.fixed(49_999).expect("data") == &expected[..49_999] && results.rest().is_empty());
}

#[test]
fn wrong_keys_end_the_connection_alone() {
    let site = Site::new();
    let (file, mut bare) = served(&site);
    let call = message(9, &read_of(&file, 50_000));
    let wrong = Segment { handle: bare.memory.rkey().0 ^ 0x100, ..bare.segment(0, 60_000) };
    let chunks = Chunks { writes: vec![vec![wrong]], ..Chunks::default() };
    assert!(bare.call(&header(9, chunks), &call).is_none());
    let mut next = Bare::new(&site);
    assert!(next.call(&header(8, Chunks::default()), &message(8, &Arguments::Null)).is_some());
}

#[test]
fn write_with_immediate_closes_the_connection() {
    let site = Site::new();
    let bare = Bare::new(&site);
    let write = SendWr::write(0, RKey(0)).imm(7);
    bare.connection.qp().post_send(&write, &[]).expect("room");
    assert!(bare.connection.wait_for_end(PATIENCE), "the server has not closed the connection");
    let mut next = Bare::new(&site);
    assert!(next.call(&header(8, Chunks::default()), &message(8, &Arguments::Null)).is_some());
}

#[test]
fn wrong_calls_are_answered_with_their_outcome() {
    let site = Site::new();
    let (file, mut bare) = served(&site);
    let mut outcome = |program, version, procedure, credential, arguments: &[u8]| {
        let mut out = Writer::new();
        Call::new(7, (program, version), procedure, credential).write(&mut out);
        let message = [&out.finish()[..], arguments].concat();
        let (_, reply) = bare.call(&header(7, Chunks::default()), &message).expect("a reply");
        let (reply, results) = Reply::parse(&reply).expect("a reply");
        (reply.outcome, results.rest().to_vec())
    };
    let (program, version) = PROGRAM;
    assert_eq!(outcome(100_227, 3, 0, Credential::None, &[]).0, Outcome::NoProgram);
    assert_eq!(outcome(program, 4, 0, Credential::None, &[]).0, Outcome::WrongVersion { low: 3, high: 3 });
    assert_eq!(outcome(program, version, 22, Credential::None, &[]).0, Outcome::NoProcedure);
    assert_eq!(outcome(program, version, 1, Credential::None, &[0; 3]).0, Outcome::Garbage);
    assert_eq!(outcome(program, version, 0, Credential::Other(6), &[]).0, Outcome::Denied(5));
    // Handles that the server has not given.
    let of = |bytes: &[u8]| {
        let mut out = Writer::new();
        out.opaque(bytes);
        out.finish()
    };
    let mut forged = file.bytes().to_vec();
    forged[20] ^= 0x40;
    let status = |status: Status| status.0.to_be_bytes().to_vec();
    assert_eq!(
        outcome(program, version, 1, Credential::None, &of(&forged)),
        (Outcome::Success, status(Status::STALE))
    );
    assert_eq!(
        outcome(program, version, 1, Credential::None, &of(b"x")),
        (Outcome::Success, status(Status::BADHANDLE))
    );
}

#[test]
fn wrong_records_of_mount_are_closed() {
    let site = Site::new();
    let at = site.server.as_ref().expect("it runs").mount_address();
    for wrong in [&[0xff; 64][..], &[0, 0, 0, 0, 0, 0, 0, 0], &[0x80, 0, 0, 4, 1, 2, 3, 4]] {
        let mut stream = TcpStream::connect(at).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
        stream.write_all(wrong).expect("a socket");
        let mut answer = Vec::new();
        // A reset is an end too.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{wrong:?}");
    }
    assert!(site.mount("/").is_ok());
}

#[test]
fn slow_connections_do_not_stop_mount() {
    let site = Site::new();
    let at = site.server.as_ref().expect("it runs").mount_address();
    let begun = |_| {
        let mut stream = TcpStream::connect(at).expect("a connection");
        stream.write_all(&[0x80]).expect("room");
        stream
    };
    let mut held: Vec<_> = (0..16).map(begun).collect();
    assert!(site.mount("/").is_ok());
    // Connections of one address take the places of each other.
    assert!(matches!(held[0].read(&mut [0]), Ok(0) | Err(_)));
}
