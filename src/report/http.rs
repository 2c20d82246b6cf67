//! HTTP for a browser or a scraper: short requests without a body, one a connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use crate::failure::Failure;
use roxie::tcp::{self, Timed};

/// Time for a whole request, and again for a whole reply.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for the client to take the end of a reply.
const PARTING: Duration = Duration::from_secs(1);
/// Connections at a time.
const LIMITS: tcp::Limits = tcp::Limits { connections: 32, of_network: 16, patience: PATIENCE };
/// Bytes of a request at most, and lines of its header.
const LONGEST_REQUEST: usize = 8192;
const MOST_LINES: usize = 64;

/// A reply.
#[derive(Debug)]
pub struct Reply {
    /// Status code.
    pub code: u16,
    /// Media type of the body.
    pub kind: &'static str,
    /// Text behind the header.
    pub body: String,
}

/// Binds an address.
///
/// # Errors
/// If the address is not this host's, or in use.
pub fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).map_err(|e| Failure::Run(format!("cannot listen on {address}: {e}")))
}

/// Answers GET and HEAD for a path until the process ends. `answer` runs on several threads at a time.
pub fn serve(listener: &TcpListener, answer: impl Fn(&str) -> Reply + Send + Sync + 'static) {
    tcp::serve(listener, &LIMITS, None, move |stream, _| {
        // A client may have disconnected, or be too slow.
        let _ = exchange(stream, &answer);
    });
}

fn exchange(mut stream: Timed, answer: &impl Fn(&str) -> Reply) -> io::Result<()> {
    let (reply, is_head) = match read(&mut stream)? {
        Asked::Page { path, is_head } => (answer(&path), is_head),
        Asked::Other => (plain(405, "only GET"), false),
        Asked::Malformed => (plain(400, "no request of HTTP/1"), false),
    };
    let Reply { code, kind, body } = &reply;
    let head = format!(
        "HTTP/1.1 {code} {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        phrase(*code),
        body.len()
    );
    stream.restart(PATIENCE);
    stream.write_all(head.as_bytes())?;
    if !is_head {
        stream.write_all(body.as_bytes())?;
    }
    stream.finish()?;
    // Bytes that are not read would end the connection by a reset, which may overtake the reply.
    stream.restart(PARTING);
    let mut rest = [0; 4096];
    for _ in 0..16 {
        if stream.read(&mut rest)? == 0 {
            break;
        }
    }
    Ok(())
}

fn plain(code: u16, text: &str) -> Reply {
    Reply { code, kind: "text/plain; charset=utf-8", body: format!("{text}\n") }
}

/// A request.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Page { path: String, is_head: bool },
    Other,
    Malformed,
}

/// Reads the head of a request.
fn read(stream: &mut impl Read) -> io::Result<Asked> {
    let mut bytes = Vec::new();
    loop {
        let begin = bytes.len();
        bytes.resize((begin + 1024).min(LONGEST_REQUEST), 0);
        let count = stream.read(&mut bytes[begin..])?;
        bytes.truncate(begin + count);
        if let Some(asked) = parse(&bytes) {
            return Ok(asked);
        }
        if count == 0 || bytes.len() == LONGEST_REQUEST {
            return Ok(Asked::Malformed);
        }
    }
}

/// Parses the head of a request. `None`: it is not complete.
fn parse(bytes: &[u8]) -> Option<Asked> {
    let mut lines = [httparse::EMPTY_HEADER; MOST_LINES];
    let mut request = httparse::Request::new(&mut lines);
    match request.parse(bytes) {
        Ok(status) if status.is_partial() => None,
        Ok(_) => Some(match (request.method?, request.path?) {
            ("GET", path) => Asked::Page { path: path.to_owned(), is_head: false },
            ("HEAD", path) => Asked::Page { path: path.to_owned(), is_head: true },
            _ => Asked::Other,
        }),
        Err(_) => Some(Asked::Malformed),
    }
}

fn phrase(code: u16) -> &'static str {
    match code {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn requests_are_bounded() {
        let page = |path: &str, is_head| Asked::Page { path: path.to_owned(), is_head };
        let read = |text: &str| read(&mut text.as_bytes()).expect("bytes");
        assert_eq!(read("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\nGET /"), page("/metrics", false));
        assert_eq!(read("HEAD / HTTP/1.0\r\n\r\n"), page("/", true));
        assert_eq!(read("POST / HTTP/1.1\r\n\r\n"), Asked::Other);
        let long = format!("GET / HTTP/1.1\r\nA: {}", "x".repeat(1 << 20));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(MOST_LINES + 1));
        for malformed in ["", "GET", "SSH-2.0-x\r\n", "GET / HTTP/1.1\r\nHost", &long, &many] {
            assert_eq!(read(malformed), Asked::Malformed, "{}", &malformed[..malformed.len().min(40)]);
        }
    }

    #[test]
    fn clients_that_read_nothing_stop_nobody() {
        let listener = listen("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let at = listener.local_addr().expect("an address");
        // A reply that no socket buffer takes.
        let body = "x".repeat(16 << 20);
        let answer = move |path: &str| Reply {
            code: 200,
            kind: "text/plain",
            body: if path == "/long" { body.clone() } else { "short".into() },
        };
        std::thread::spawn(move || serve(&listener, answer));
        let ask = |path: &str| {
            let mut stream = TcpStream::connect(at).expect("a connection");
            stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).expect("room");
            stream
        };
        let _held: Vec<_> = (0..4).map(|_| ask("/long")).collect();
        let mut text = String::new();
        ask("/").read_to_string(&mut text).expect("an answer");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nshort"), "{text}");
    }
}
