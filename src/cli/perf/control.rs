//! Messages between the two ends over TCP: one JSON value a line.

use std::io::{BufRead, BufReader, Read};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError, bounded};
use roxie::host::Endpoint;
use roxie::text::Foreign;
use roxie::verbs::{Gid, Psn, Qpn};
use roxie_report::failure::Failure;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::plan::{PERF_PROTOCOL, Plan};
use crate::stream::Stream;

/// Longest line: the queue pairs of a large plan.
const MAX_LINE: u64 = 1 << 20;
/// Longest wait for the peer's answer: it may be resolving addresses and registering memory.
pub(super) const ANSWER: Duration = Duration::from_secs(30);

/// A message.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// Client: the plan, and the largest path MTU that it supports.
    Hello { plan: Plan, path_mtu: usize },
    /// Server: accepts the plan, with this path MTU. `selective_repeat`: it agrees to that; servers that do not know it
    /// say nothing.
    Accept {
        path_mtu: usize,
        #[serde(default)]
        selective_repeat: bool,
    },
    /// Either: gives up, with the reason.
    Failed(Foreign),
    /// Either: the addresses to connect to.
    End(End),
    /// Either: ready for the next step.
    Ready,
    /// Client: starts a round of messages of this size.
    Round { size: u32 },
    /// Client: the round is over, after this many messages.
    Done { messages: u64 },
    /// Server: its view of the round.
    Report(ServerReport),
    /// Client: ends the session.
    Bye,
}

/// Addresses of an end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) gid: [u8; 16],
    /// QPN and first PSN of each queue pair.
    pub(super) qps: Vec<(u32, u32)>,
    /// Address and rkey of its memory.
    pub(super) address: u64,
    pub(super) rkey: u32,
}

impl End {
    /// Returns the endpoint of the `i`-th queue pair.
    pub(super) fn endpoint(&self, i: usize) -> Option<Endpoint> {
        let &(qpn, psn) = self.qps.get(i)?;
        (qpn <= 0xff_ffff).then(|| Endpoint::new(Qpn::new(qpn), Psn::new(psn), Gid(self.gid)))
    }
}

/// A server's view of a round.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ServerReport {
    /// Messages or frames that arrived, if the server can see them.
    pub(super) messages: Option<u64>,
    /// Seconds between the first and the last arrival.
    pub(super) seconds: Option<f64>,
    /// Names and increments of the counters that changed.
    pub(super) counters: Vec<(String, u64)>,
}

/// The connection to the peer.
pub(super) struct Control {
    stream: Box<dyn Stream>,
    inbox: Receiver<Result<Message, String>>,
}

impl Control {
    /// Starts a thread that reads messages, so that polling for one costs nothing on the measured path.
    pub(super) fn new(stream: impl Stream) -> Result<Control, Failure> {
        let failed = |e: std::io::Error| Failure::Run(format!("cannot use the connection to the peer: {e}"));
        stream.limit_reads(None).map_err(failed)?;
        let mut reader = BufReader::new(stream.duplicate().map_err(failed)?);
        let (sender, inbox) = bounded(16);
        let read = move || {
            loop {
                let message = read_line(&mut reader);
                let over = message.is_err();
                if sender.send(message).is_err() || over {
                    return;
                }
            }
        };
        thread::Builder::new().name("control".into()).spawn(read).map_err(failed)?;
        Ok(Control { stream: Box::new(stream), inbox })
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), Failure> {
        let line = serde_json::to_string(message).expect("plain data") + "\n";
        self.stream.write_all(line.as_bytes()).map_err(|e| {
            // The peer may have sent its reason before it closed the connection.
            match self.inbox.recv_timeout(Duration::from_millis(100)) {
                Ok(Ok(Message::Failed(why))) => Failure::Peer(format!("the peer gave up: {why}")),
                _ => Failure::Peer(format!("the peer is gone: {e}")),
            }
        })
    }

    /// Waits for the next message.
    pub(super) fn expect(&self, what: &str, limit: Duration) -> Result<Message, Failure> {
        match self.inbox.recv_timeout(limit) {
            Ok(Ok(Message::Failed(why))) => Err(Failure::Peer(format!("the peer gave up: {why}"))),
            Ok(Ok(message)) => Ok(message),
            Ok(Err(gone)) => Err(Failure::Peer(format!("while waiting for {what}: {gone}"))),
            Err(RecvTimeoutError::Timeout) => {
                Err(Failure::Peer(format!("the peer did not send {what} within {} s", limit.as_secs())))
            }
            Err(RecvTimeoutError::Disconnected) => Err(Failure::Peer("the peer is gone".into())),
        }
    }

    /// Returns a message if one has arrived.
    pub(super) fn look(&self) -> Result<Option<Message>, Failure> {
        match self.inbox.try_recv() {
            Ok(Ok(Message::Failed(why))) => {
                Err(Failure::Peer(format!("the peer gave up in the middle: {why}")))
            }
            Ok(Ok(message)) => Ok(Some(message)),
            Ok(Err(gone)) => Err(Failure::Peer(format!("in the middle of a round: {gone}"))),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Failure::Peer("the peer is gone".into())),
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // The shutdown also ends the reading thread.
        self.stream.hang_up();
    }
}

fn read_line(reader: &mut BufReader<Box<dyn Stream>>) -> Result<Message, String> {
    let mut line = String::new();
    match reader.by_ref().take(MAX_LINE).read_line(&mut line) {
        Ok(0) => Err("the peer closed its TCP connection; its own output should say why".into()),
        Ok(_) => parse(&line),
        Err(e) => Err(format!("the TCP connection to the peer broke: {e}")),
    }
}

/// Parses a message. The version of a client's first message stands at the same place in all versions.
fn parse(line: &str) -> Result<Message, String> {
    let value: Result<Value, _> = serde_json::from_str(line);
    let version = value.as_ref().ok().and_then(|value| value.pointer("/hello/plan/version")?.as_u64());
    if let Some(version) = version {
        let version = version.try_into().unwrap_or(u32::MAX);
        PERF_PROTOCOL.check("the server", "the client", version).map_err(|error| error.to_string())?;
    }
    value.and_then(serde_json::from_value).map_err(|error| {
        let start: String = line.chars().take(60).collect();
        format!(
            "the peer sent {start:?}, which is no line of `roxie perf` ({error}): is it one, of this version?"
        )
    })
}

/// Returns the error for a message that does not fit the protocol's state.
pub(super) fn out_of_turn(message: &Message) -> Failure {
    Failure::Peer(format!("unexpected message {message:?} of the peer: are both ends of the same version?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_of_another_version_names_the_older() {
        for (version, older) in [(1, "update the client"), (3, "update the server")] {
            // The rest has another form as well.
            let line = format!(r#"{{"hello":{{"plan":{{"version":{version},"operation":"sing"}}}}}}"#);
            let said = parse(&line).unwrap_err();
            assert!(said.contains(&format!("version {version} of the perf protocol")), "{said}");
            assert!(said.ends_with(older), "{said}");
        }
        assert!(parse("GET / HTTP/1.1").unwrap_err().contains("no line of `roxie perf`"));
        assert!(matches!(parse(r#""bye""#), Ok(Message::Bye)));
    }
}
