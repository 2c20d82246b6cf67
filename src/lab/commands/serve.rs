//! `roxie lab serve`: serves the labs as pages on a local port, and runs each lab on request.

use std::net::SocketAddr;

use clap::Args;
use roxie_report::failure::Failure;
use roxie_report::http::{self, Reply};
use roxie_report::output;

use super::catalogue::{ALL, Lab};
use super::page;

/// Serve all labs as pages on a local port
#[derive(Debug, Args)]
#[command(
    long_about = "Serves an index and a page for each lab over HTTP. A lab runs when its page is requested; the form \
        at the page's top runs it with other arguments. Listens on the loopback address unless another one is given: \
        any client that can connect can use this machine's processor.",
    after_help = "Examples:\n  roxie lab serve                            http://127.0.0.1:8000/\n  roxie lab serve --listen 127.0.0.1:0       \
        any free port, which it prints"
)]
pub(super) struct Arguments {
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
}

/// Serves until the process is ended.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let listener = http::listen(arguments.listen)?;
    output::note(format_args!("labs at http://{}/", listener.local_addr().unwrap_or(arguments.listen)));
    http::serve(&listener, |target| {
        let (code, body) = answer(target);
        Reply { code, kind: "text/html; charset=utf-8", body }
    });
    Ok(())
}

fn answer(url: &str) -> (u16, String) {
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    let name = path.trim_start_matches('/');
    if name.is_empty() {
        return (200, page::index(ALL));
    }
    if !ALL.iter().any(|about| about.name == name) {
        return (404, page::refusal(&format!("there is no lab {name}")));
    }
    let given =
        query.split('&').find_map(|pair| pair.strip_prefix("arguments=")).map(decoded).unwrap_or_default();
    let words: Vec<String> =
        std::iter::once(name.to_owned()).chain(given.split_whitespace().map(str::to_owned)).collect();
    // Options that read or write files are for the local user only.
    if let Some(word) = words.iter().find(|word| word.starts_with("--capture")) {
        return (403, page::refusal(&format!("{word}: files are read from the command line alone")));
    }
    let shown = Lab::read(&words).and_then(|lab| lab.report(&words)).and_then(|report| {
        let json = report.json()?;
        Ok(page::draw(&report, &json, true))
    });
    match shown {
        Ok(body) => (200, body),
        Err(failure @ Failure::Usage(_)) => (400, page::refusal(&failure.to_string())),
        Err(failure) => (500, page::refusal(&failure.to_string())),
    }
}

/// Decodes a form value: `+` and `%20` are spaces.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|pair| std::str::from_utf8(pair).ok());
        match (bytes[at], hex.and_then(|pair| u8::from_str_radix(pair, 16).ok())) {
            (b'+', _) => out.push(b' '),
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 2;
            }
            (byte, _) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_decoded() {
        assert_eq!(decoded("--lose+3%2C7+--packets%208%"), "--lose 3,7 --packets 8%");
    }

    #[test]
    fn remote_user_cannot_read_files() {
        assert_eq!(answer("/frame?arguments=--capture%3D/etc/passwd").0, 403);
        assert_eq!(answer("/frame?arguments=--cap+/etc/passwd").0, 400);
        assert_eq!(answer("/frame?arguments=--payload+99999").0, 400);
        assert_eq!(answer("/nothing").0, 404);
        assert!(answer("/").1.contains("href=\"/go-back-n\""));
        let (code, body) = answer("/go-back-n?arguments=--lose+2");
        assert!(code == 200 && body.contains("value=\"--lose 2\""));
    }
}
