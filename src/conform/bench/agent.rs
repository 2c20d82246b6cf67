//! Client of the agent: one line a request, one line an answer, within bounded time and memory.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use roxie_base::protocol::Protocol;

use crate::verdict::Stop;

/// Source of the agent, for `cc`.
pub const SOURCE: &str = include_str!("agent.c");
/// TCP port on which an agent listens by default.
pub const PORT: u16 = 4790;
/// Protocol of bench and agent, in lines.
const AGENT_PROTOCOL: Protocol = Protocol { name: "agent protocol", oldest: 1, version: 1 };
/// Bytes of the longest answer that is read.
const LONGEST_ANSWER: usize = 64 << 10;
/// Time in which an agent answers a request that does not wait.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time in which an agent is compiled and begins, if the bench starts it.
const BEGINS_WITHIN: Duration = Duration::from_secs(60);

/// Bytes to and from an agent.
#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    /// Standard input and output of a program that leads to the agent.
    Program(UnixStream),
}

impl Stream {
    fn set_read_timeout(&self, limit: Duration) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(Some(limit)),
            Stream::Program(stream) => stream.set_read_timeout(Some(limit)),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(bytes),
            Stream::Program(stream) => stream.read(bytes),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Program(stream) => stream.write_all(bytes),
        }
    }
}

/// A connection to an agent.
#[derive(Debug)]
pub struct Agent {
    stream: Stream,
    /// Time for the first answer.
    begins_within: Duration,
    /// Bytes received behind the last answer.
    rest: Vec<u8>,
    /// True once an answer was late or the connection broke: later answers could not be told apart.
    is_lost: bool,
}

/// Parses a number as agents write them: decimal, or hexadecimal behind `0x`.
pub(crate) fn number_of(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

/// Words of an answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    words: BTreeMap<String, String>,
    completions: Vec<Completion>,
}

/// A completion as the agent's `ibv_poll_cq` gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// `wr_id` of the work request.
    pub id: u64,
    /// Number of `enum ibv_wc_status`.
    pub status: u32,
    /// Number of `enum ibv_wc_opcode`; -1 with an error.
    pub opcode: i32,
    /// Bytes received.
    pub length: u32,
    /// Flags of `enum ibv_wc_flags`.
    pub flags: u32,
    /// Immediate data in host byte order.
    pub imm: u32,
    /// Source QP of a datagram.
    pub source: u32,
}

impl Agent {
    /// Connects to the agent of a target.
    ///
    /// # Errors
    /// The system's error, if nothing listens there or no answer comes in time.
    pub fn connect(at: SocketAddr, limit: Duration) -> io::Result<Agent> {
        let stream = TcpStream::connect_timeout(&at, limit)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Agent { stream: Stream::Tcp(stream), begins_within: PATIENCE, rest: Vec::new(), is_lost: false })
    }

    /// Takes the standard input and output of a program that compiles and starts an agent: the other end of `stream`.
    ///
    /// # Errors
    /// The system's error, if `stream` takes no time limit.
    pub fn of_program(stream: UnixStream) -> io::Result<Agent> {
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Agent {
            stream: Stream::Program(stream),
            begins_within: BEGINS_WITHIN,
            rest: Vec::new(),
            is_lost: false,
        })
    }

    /// True if the connection can no longer be used.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Gives up the connection: the target cannot be relied on.
    pub fn abandon(&mut self) {
        self.is_lost = true;
    }

    /// Chooses the GID, given as 32 digits, and returns what the agent tells of itself and of its device.
    ///
    /// # Errors
    /// If the agent refuses, or speaks another version of the protocol.
    pub fn hello(&mut self, gid: &str) -> Result<BTreeMap<String, String>, Stop> {
        let answer = self.ask_within(&format!("hello gid={gid}"), self.begins_within)?;
        let version = answer.word32("protocol")?;
        AGENT_PROTOCOL.check("the bench", "the agent", version).map_err(|error| {
            Stop::NotTested(format!(
                "{error} (`roxie conform agent` prints the agent's source for this bench)"
            ))
        })?;
        Ok(answer.words)
    }

    /// Sends a request and returns the answer.
    ///
    /// # Errors
    /// [`Stop::NotTested`] if the agent refuses, [`Stop::Lost`] if it does not answer.
    pub fn ask(&mut self, request: &str) -> Result<Answer, Stop> {
        self.ask_within(request, PATIENCE)
    }

    /// Sends a request that may take `limit` longer than others.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn ask_within(&mut self, request: &str, limit: Duration) -> Result<Answer, Stop> {
        if self.is_lost {
            return Err(Stop::Lost("the connection to the agent is lost".into()));
        }
        let asked = self.stream.write_all(format!("{request}\n").as_bytes());
        match asked.and_then(|()| self.line(Instant::now() + limit.max(PATIENCE))) {
            Ok(line) => Answer::read(&line, request),
            Err(error) => {
                self.is_lost = true;
                Err(Stop::Lost(format!("the agent did not answer `{}`: {error}", shortened(request))))
            }
        }
    }

    /// Reads a line until `until`.
    fn line(&mut self, until: Instant) -> io::Result<String> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.rest.len() > LONGEST_ANSWER {
                return Err(io::Error::new(ErrorKind::InvalidData, "an answer longer than 64 KiB"));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(ErrorKind::TimedOut, "no answer in time"));
            }
            self.stream.set_read_timeout(left.max(Duration::from_millis(1)))?;
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => {
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, "the agent closed the connection"));
                }
                Ok(n) => self.rest.extend_from_slice(&bytes[..n]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

impl Answer {
    fn read(line: &str, request: &str) -> Result<Answer, Stop> {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("ok") => {}
            Some("err") => {
                let why = words.collect::<Vec<_>>().join(" ");
                return Err(Stop::NotTested(format!("the agent refuses `{}`: {why}", shortened(request))));
            }
            _ => return Err(Stop::NotTested(format!("no answer of an agent: {:?}", shortened(line)))),
        }
        let mut answer = Answer::default();
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            if key == "wc" {
                answer.completions.push(Completion::read(value)?);
            } else {
                answer.words.insert(key.to_owned(), value.to_owned());
            }
        }
        Ok(answer)
    }

    /// Returns a word.
    ///
    /// # Errors
    /// If the answer lacks it.
    pub fn word(&self, key: &str) -> Result<&str, Stop> {
        let missing = || Stop::NotTested(format!("the agent's answer has no {key}="));
        self.words.get(key).map(String::as_str).ok_or_else(missing)
    }

    /// Returns a number.
    ///
    /// # Errors
    /// If the answer lacks it, or has a word that is no number.
    pub fn number(&self, key: &str) -> Result<u64, Stop> {
        let word = self.word(key)?;
        number_of(word)
            .ok_or_else(|| Stop::NotTested(format!("the agent's answer has {key}={word}, no number")))
    }

    /// Returns a number of 32 bits.
    ///
    /// # Errors
    /// As [`number`](Self::number).
    pub fn word32(&self, key: &str) -> Result<u32, Stop> {
        let number = self.number(key)?;
        u32::try_from(number).map_err(|_| Stop::NotTested(format!("the agent's answer has {key}={number}")))
    }

    /// Returns the completions.
    pub fn completions(self) -> Vec<Completion> {
        self.completions
    }
}

impl Completion {
    fn read(text: &str) -> Result<Completion, Stop> {
        let wrong = || Stop::NotTested(format!("the agent's answer has wc={}", shortened(text)));
        let fields: Vec<i64> = text.split(':').map_while(|field| field.parse().ok()).collect();
        let [id, status, opcode, length, flags, imm, source] = fields[..] else { return Err(wrong()) };
        let word = |n: i64| u32::try_from(n).map_err(|_| wrong());
        Ok(Completion {
            id: u64::try_from(id).map_err(|_| wrong())?,
            status: word(status)?,
            opcode: i32::try_from(opcode).map_err(|_| wrong())?,
            length: word(length)?,
            flags: word(flags)?,
            imm: word(imm)?,
            source: word(source)?,
        })
    }
}

/// Returns the name of a status of `enum ibv_wc_status`.
pub fn status_name(status: u32) -> &'static str {
    const NAMES: [&str; 14] = [
        "SUCCESS",
        "LOC_LEN_ERR",
        "LOC_QP_OP_ERR",
        "LOC_EEC_OP_ERR",
        "LOC_PROT_ERR",
        "WR_FLUSH_ERR",
        "MW_BIND_ERR",
        "BAD_RESP_ERR",
        "LOC_ACCESS_ERR",
        "REM_INV_REQ_ERR",
        "REM_ACCESS_ERR",
        "REM_OP_ERR",
        "RETRY_EXC_ERR",
        "RNR_RETRY_EXC_ERR",
    ];
    NAMES.get(status as usize).copied().unwrap_or("another status")
}

/// Returns bytes as lower-case digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the bytes of lower-case digits; `None` if `text` has others.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// Returns the first 60 characters of a text.
fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Returns an agent that answers the first request with `answer`.
    fn lying(answer: &'static [u8]) -> Agent {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.write_all(answer);
        });
        Agent::connect(at, PATIENCE).unwrap()
    }

    #[test]
    fn words_and_completions_are_read() {
        let answer = lying(b"ok n=1 wc=7:0:128:64:2:5:9\n").ask("poll qp=0").unwrap();
        assert_eq!(answer.number("n").unwrap(), 1);
        let completion =
            Completion { id: 7, status: 0, opcode: 128, length: 64, flags: 2, imm: 5, source: 9 };
        assert_eq!(answer.completions(), [completion]);
    }

    #[test]
    fn refusal_is_no_verdict_about_the_target() {
        let stop = lying(b"err ibv_reg_mr: Invalid argument\n").ask("mr").unwrap_err();
        assert!(matches!(&stop, Stop::NotTested(why) if why.contains("Invalid argument")), "{stop:?}");
    }

    #[test]
    fn agent_of_another_version_names_the_older() {
        for (hello, older) in
            [(&b"ok protocol=0\n"[..], "update the agent"), (b"ok protocol=2\n", "update the bench")]
        {
            let stop = lying(hello).hello("0").unwrap_err();
            assert!(matches!(&stop, Stop::NotTested(why) if why.contains(older)), "{stop:?}");
        }
        assert!(lying(b"ok protocol=1\n").hello("0").is_ok());
    }

    #[test]
    fn closed_connection_is_a_lost_agent() {
        let mut agent = lying(b"ok");
        assert!(matches!(agent.ask("mr"), Err(Stop::Lost(_))));
        assert!(agent.is_lost() && matches!(agent.ask("mr"), Err(Stop::Lost(_))));
    }

    #[test]
    fn hostile_answers_are_refused() {
        static ENDLESS: [u8; 1 << 17] = [b'x'; 1 << 17];
        let hostile: [&[u8]; 5] = [b"\n", b"ok wc=1:2\n", b"ok wc=-1:0:0:0:0:0:0\n", b"\xff\xfe\n", &ENDLESS];
        for answer in hostile {
            assert!(lying(answer).ask("poll").is_err(), "{:?}", &answer[..answer.len().min(20)]);
        }
    }
}
