//! An honest connection beside the fuzzed one: each of its transfers must arrive, once and unchanged.

use std::time::{Duration, Instant};

use roxie_wire::Opcode;

use crate::bench::{Bench, Pair, Region, Setup};
use crate::packet::{Craft, Seen};
use crate::service::Service;
use crate::verdict::{Script, Stop, must};

/// Bytes of a transfer.
const LENGTH: usize = 256;
/// Offset of the counter that FETCH_ADD increments.
const COUNTER: u64 = 1024;
/// Offset of the receive.
const RECEIVE: u64 = 2048;
/// Sends of a request without an answer: the link may lose packets.
const TRIES: u32 = 4;
/// Time for an answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The connection.
#[derive(Debug)]
pub(crate) struct Honest {
    pair: Pair,
    region: Region,
    rounds: u64,
    has_atomics: bool,
}

impl Honest {
    /// Opens the connection.
    pub(crate) fn new(bench: &mut Bench) -> Script<Honest> {
        let region = bench.register(4096, "lrwa", 0)?;
        let mut pair = bench.connect(&Setup::new(Service::Rc))?;
        pair.region = region;
        bench.wire.leave_out(pair.own);
        let has_atomics = bench.device_number("atomic_cap") > 0;
        Ok(Honest { pair, region, rounds: 0, has_atomics })
    }

    /// Returns the bytes of a round.
    fn bytes(&self) -> Vec<u8> {
        (0..LENGTH as u64).map(|i| ((self.rounds * 17 + i) % 241) as u8).collect()
    }

    /// Sends a request until its answer comes, and returns that.
    fn ask(&mut self, bench: &mut Bench, request: &Craft, answer: &str) -> Script<Seen> {
        for _ in 0..TRIES {
            bench.wire.send(request, true)?;
            let until = Instant::now() + PATIENCE;
            while Instant::now() < until {
                bench.wire.wait(self.pair.own, 1, until);
                let came = bench.wire.take(self.pair.own);
                if let Some(seen) =
                    came.into_iter().find(|seen| seen.words(self.pair.next).starts_with(answer))
                {
                    self.pair.advance(1);
                    return Ok(seen);
                }
            }
        }
        Err(Stop::Breaks(format!(
            "an honest connection beside got no {answer} for its request within {} tries",
            TRIES
        )))
    }

    /// Writes, reads, adds and sends once, and compares what arrives.
    pub(crate) fn transfer(&mut self, bench: &mut Bench) -> Script {
        let bytes = self.bytes();
        let write = self.pair.write_only(0, &bytes);
        self.ask(bench, &write, "ACK+0")?;
        let read = self.pair.read(0, LENGTH as u32);
        let came = self.ask(bench, &read, "READ_RESPONSE_ONLY+0")?;
        must(came.payload() == bytes, || {
            "an honest connection beside reads other bytes than it wrote".into()
        })?;
        if self.has_atomics {
            self.count(bench)?;
        }
        self.receive(bench, &bytes)?;
        self.rounds += 1;
        Ok(())
    }

    fn count(&mut self, bench: &mut Bench) -> Script {
        let add = self.pair.request(Opcode::RC_FETCH_ADD);
        let add = add.atomic(self.region.addr + COUNTER, self.region.rkey, 1, 0).ack();
        let came = self.ask(bench, &add, "ATOMIC_ACKNOWLEDGE+0")?;
        let original = came.packet.atomic_ack();
        must(original == Some(self.rounds), || {
            format!("the counter of an honest connection beside is {original:?}, expected {}", self.rounds)
        })
    }

    fn receive(&mut self, bench: &mut Bench, bytes: &[u8]) -> Script {
        let id = self.rounds;
        let words = format!("mr={} off={RECEIVE} len={LENGTH} id={id}", self.region.id);
        bench.tell(&self.pair, "recv", &words)?;
        let send = self.pair.send_only(bytes);
        self.ask(bench, &send, "ACK+0")?;
        let done = bench.completions(&self.pair, 1, PATIENCE)?;
        let is_right = matches!(&done[..], [wc] if (wc.id, wc.status, wc.length as usize) == (id, 0, LENGTH));
        must(is_right, || {
            format!("an honest connection beside sent one message, completions came: {done:?}")
        })?;
        bench.memory(self.region, RECEIVE, bytes)
    }
}
