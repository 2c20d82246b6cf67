//! The pages over HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::lab::pages::embedded;
use crate::lab::{data, refused};

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already; its exit status does not matter.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

#[test]
fn index_links_labs_and_form_runs_them() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_roxie-lab"))
        .args(["lab", "serve", "--listen", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("roxie runs");
    let stderr = child.stderr.take().expect("piped");
    let _server = Server(child);
    let output_text = BufReader::new(stderr).lines().next().expect("a line").expect("text");
    let address =
        output_text.split("http://").nth(1).expect("where it listens").trim_end_matches('/').to_owned();
    let index = get(&address, "/");
    for about in data("list")["labs"].as_array().expect("a list") {
        let link = format!("href=\"/{}\"", about["name"].as_str().expect("a name"));
        assert!(index.contains(&link), "{link}");
    }
    let page = get(&address, "/go-back-n?arguments=--lose+2+--packets+4");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    assert_eq!(embedded(&page), data("go-back-n --lose 2 --packets 4"));
    assert!(get(&address, "/nowhere").starts_with("HTTP/1.1 404"));
    let wrong = get(&address, "/go-back-n?arguments=--lose+0");
    assert!(wrong.starts_with("HTTP/1.1 400") && wrong.contains("is no number of a frame"), "{wrong}");
    assert!(get(&address, "/frame?arguments=--capture+/etc/hostname").starts_with("HTTP/1.1 403"));
    refused(&format!("serve --listen {address}"), 1, &["cannot listen on", &address]);
}
