//! What the two ends say to one another over TCP: one JSON value a line.

use std::io::{BufRead, BufReader, Read};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError, bounded};
use roxie::host::Endpoint;
use roxie::verbs::{Gid, Psn, Qpn};
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use crate::failure::Failure;
use crate::stream::Stream;

/// The longest line: the queue pairs of a large plan.
const MAX_LINE: u64 = 1 << 20;
/// How long the peer may take to answer: it may be resolving addresses and registering memory.
pub(super) const ANSWER: Duration = Duration::from_secs(30);

/// A line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// Client: what is measured, and the largest path MTU that it can do.
    Hello { plan: Plan, path_mtu: usize },
    /// Server: it will; with this path MTU.
    Accept { path_mtu: usize },
    /// Either: it will not, or cannot go on, because.
    Failed(String),
    /// Either: where it is to be reached.
    End(End),
    /// Either: it is ready for what comes next.
    Ready,
    /// Client: messages of this size come next.
    Round { size: u32 },
    /// Client: that was all, so many messages.
    Done { messages: u64 },
    /// Server: what it saw of them.
    Report(ServerReport),
    /// Client: nothing more.
    Bye,
}

/// Where an end is to be reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) gid: [u8; 16],
    /// Number and first PSN of each queue pair.
    pub(super) qps: Vec<(u32, u32)>,
    /// Address and rkey of its memory.
    pub(super) address: u64,
    pub(super) rkey: u32,
}

impl End {
    /// Its `i`-th queue pair.
    pub(super) fn endpoint(&self, i: usize) -> Option<Endpoint> {
        let &(qpn, psn) = self.qps.get(i)?;
        (qpn <= 0xff_ffff).then(|| Endpoint { qpn: Qpn::new(qpn), psn: Psn::new(psn), gid: Gid(self.gid) })
    }
}

/// What a server saw of a round.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ServerReport {
    /// Messages or frames that arrived, where the server sees them.
    pub(super) messages: Option<u64>,
    /// Between the first and the last of them.
    pub(super) seconds: Option<f64>,
    /// The counters that moved during the run, with their names.
    pub(super) counters: Vec<(String, u64)>,
}

/// The connection.
pub(super) struct Control {
    stream: Box<dyn Stream>,
    inbox: Receiver<Result<Message, String>>,
}

impl Control {
    /// Reads lines from now on, on a thread, so that looking for one costs nothing on the measured path.
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

    /// Says something.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), Failure> {
        let line = serde_json::to_string(message).expect("plain data") + "\n";
        self.stream.write_all(line.as_bytes()).map_err(|e| {
            // The peer may have said why before it went.
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

    /// A message, if one has come.
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
        // Ends the reading thread, too.
        self.stream.hang_up();
    }
}

fn read_line(reader: &mut BufReader<Box<dyn Stream>>) -> Result<Message, String> {
    let mut line = String::new();
    match reader.by_ref().take(MAX_LINE).read_line(&mut line) {
        Ok(0) => Err("the peer closed its TCP connection; its own output should say why".into()),
        Ok(_) => serde_json::from_str(&line).map_err(|e| {
            let start: String = line.chars().take(60).collect();
            format!(
                "the peer sent {start:?}, which is no line of `roxie perf` ({e}): is it one, of this version?"
            )
        }),
        Err(e) => Err(format!("the TCP connection to the peer broke: {e}")),
    }
}

/// What the peer said is not what comes now.
pub(super) fn out_of_turn(message: &Message) -> Failure {
    Failure::Peer(format!("the peer said {message:?} out of turn: are both ends of the same version?"))
}
