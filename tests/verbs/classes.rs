//! Traffic classes and rates of stock programs on the wire: DSCP, ECN bits, priority, UDP source port, and intervals
//! between packets.
//!
//! Over AF_XDP, the receiver's capture shows the wire: frames as its ring had them. Over sockets, a tap on the link
//! does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};
use roxie::capture::{Direction, Reader};
use roxie::netdev::NetNs;
use roxie::wire::flow_port;
use tempfile::TempDir;

use super::{Finished, NEAR, Running, Site, compiled, launcher, ports, sent_bytes, skip};

/// TCP port by which perftest's ends exchange addresses.
const PORT: u16 = 18515;
/// EtherType of a tagged frame (802.1Q).
const TAGGED: [u8; 2] = [0x81, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// UDP port of RoCE v2.
const ROCE: u16 = 4791;

/// The fields of a frame that carry its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Marks {
    /// Type of service (IPv4) or traffic class (IPv6).
    tos: u8,
    /// Priority of the 802.1Q tag, if there is one.
    priority: Option<u8>,
    source_port: u16,
    flow_label: u32,
}

/// A RoCE packet.
#[derive(Clone, Copy, Debug)]
struct Seen {
    marks: Marks,
    opcode: u8,
    bytes: usize,
    at_ns: u64,
}

/// True for RC packets with data, by the first byte of the BTH (IBTA table 38): SEND, WRITE, and READ responses, but
/// not acknowledgements.
fn carries_data(opcode: u8) -> bool {
    matches!(opcode, 0x00..=0x0b | 0x0d..=0x10)
}

/// Parses a frame up to its BTH; `None` if it is not RoCE.
fn read(frame: &[u8], at_ns: u64) -> Option<Seen> {
    let (mut at, mut priority) = (14, None);
    if frame.get(12..14)? == TAGGED {
        (at, priority) = (18, Some(frame[14] >> 5));
    }
    let (tos, flow_label, udp) = if frame.get(at - 2..at)? == IPV6 {
        let word = u32::from_be_bytes(frame.get(at..at + 4)?.try_into().ok()?);
        ((word >> 20) as u8, word & 0xf_ffff, at + 40)
    } else {
        (*frame.get(at + 1)?, 0, at + 20)
    };
    let word = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    let marks = Marks { tos, priority, source_port: word(udp)?, flow_label };
    let opcode = *frame.get(udp + 8)?;
    (word(udp + 2)? == ROCE).then_some(Seen { marks, opcode, bytes: frame.len(), at_ns })
}

/// Returns the packets that a capture's end received.
fn arrived(capture: &Path) -> Vec<Seen> {
    let mut reader = Reader::new(File::open(capture).unwrap()).unwrap();
    let mut all = Vec::new();
    while let Some(record) = reader.next().expect("whole blocks") {
        if record.direction == Some(Direction::In) {
            all.extend(read(record.data, record.timestamp_ns.unwrap_or(0)));
        }
    }
    all
}

/// Captures packets on a namespace's links. AF_XDP frames do not pass it.
struct Tap(OwnedFd);

impl Tap {
    fn new(namespace: &NetNs) -> Tap {
        let open =
            || socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_NONBLOCK, SockProtocol::EthAll);
        let tap = namespace.run(open).unwrap().unwrap();
        nix::sys::socket::setsockopt(&tap, nix::sys::socket::sockopt::RcvBuf, &(8 << 20)).unwrap();
        Tap(tap)
    }

    /// Returns the packets since the last call.
    fn seen(&self) -> Vec<Seen> {
        let mut buffer = vec![0; 1 << 16];
        let mut all = Vec::new();
        while let Ok(length) = recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            all.extend(read(&buffer[..length], 0));
        }
        all
    }
}

/// A site with captures and taps.
struct Watched {
    site: Site,
    taps: [Tap; 2],
    place: TempDir,
}

/// Output of the programs, and the packets that each end received.
struct Played {
    client: Finished,
    server: Finished,
    arrived: [Vec<Seen>; 2],
}

impl Watched {
    fn new(tag: &str) -> Watched {
        let site = Site::new(tag);
        let taps = [Tap::new(&site.local), Tap::new(&site.remote)];
        Watched { site, taps, place: tempfile::tempdir().unwrap() }
    }

    fn capture(&self, end: &str) -> PathBuf {
        self.place.path().join(format!("{end}.pcapng"))
    }

    fn start(&self, end: &str, port: &str, options: &str, program: &str) -> Running {
        let capture = self.capture(end);
        let (namespace, dev) =
            if end == "near" { (&self.site.local, "left") } else { (&self.site.remote, "right") };
        let mut all = vec!["--dev", dev, "--port", port, "--capture", capture.to_str().unwrap()];
        all.extend(options.split_whitespace());
        Running::start(namespace, launcher(&all, program))
    }

    /// Runs a server at the near end and its client at the far one; `options` are of `roxie run`, at both.
    fn play(&self, port: &str, options: &str, program: &str) -> Played {
        let mut server = self.start("near", port, options, program);
        if program.contains("-R") {
            server.wait_until_it_serves();
        } else {
            server.wait_until_it_listens(PORT);
        }
        let client = self.start("far", port, options, &format!("{program} {NEAR}")).finish();
        let server = server.finish();
        let tapped = self.taps.each_ref().map(Tap::seen);
        let captured = ["near", "far"].map(|end| arrived(&self.capture(end)));
        let packets = if port == "xdp" { captured } else { tapped };
        Played { client, server, arrived: packets }
    }
}

impl Played {
    #[track_caller]
    fn well(self) -> Played {
        assert!(
            self.client.status.success() && self.server.status.success(),
            "client: {:?}\nserver: {:?}",
            self.client,
            self.server
        );
        self
    }

    /// Counts data packets by their marks, at either end.
    fn marks(&self) -> BTreeMap<Marks, usize> {
        let mut marks = BTreeMap::new();
        for seen in self.arrived.iter().flatten().filter(|seen| carries_data(seen.opcode)) {
            *marks.entry(seen.marks).or_default() += 1;
        }
        marks
    }
}

fn set<T: Ord>(of: impl IntoIterator<Item = T>) -> BTreeSet<T> {
    of.into_iter().collect()
}

const BANDWIDTH: [&str; 3] = ["ib_write_bw", "ib_send_bw", "ib_read_bw"];

#[test]
fn perftests_traffic_class_is_on_the_wire() {
    let name = "perftests_traffic_class_is_on_the_wire";
    if skip(name, &BANDWIDTH) {
        return;
    }
    let watched = Watched::new("cl-class");
    for port in ports() {
        for program in BANDWIDTH {
            // DSCP 26, with ECN bits set by perftest or left to the device.
            for (asked, options, expected) in [
                ("--tclass=106", "", 106),
                ("--tclass=104", "", 104),
                ("--tclass=104", "--ecn on", 106),
                ("--tclass=104", "--ecn dscp=27", 104),
                ("--tclass=104", "--ecn dscp=26", 106),
                ("", "--cc dcqcn", 2),
            ] {
                let command = format!("{program} -x 1 -F -n 20 -s 5000 --sl=3 {asked}");
                let played = watched.play(port, options, &command).well();
                let marks = played.marks();
                let context = format!("{port}: {options} -- {command}: {marks:?}");
                assert_eq!(
                    set(marks.keys().map(|m| (m.tos, m.priority))),
                    set([(expected, None)]),
                    "{context}"
                );
            }
        }
    }
}

#[test]
fn service_level_is_the_tag_priority() {
    let name = "service_level_is_the_tag_priority";
    if skip(name, &BANDWIDTH) {
        return;
    }
    let watched = Watched::new("cl-level");
    for program in BANDWIDTH {
        let command = format!("{program} -x 1 -F -n 20 -s 5000 --sl=5 --tclass=104");
        let tagged = watched.play("xdp", "--qos tag=on", &command).well().marks();
        assert_eq!(set(tagged.keys().map(|m| (m.tos, m.priority))), set([(104, Some(5))]), "{command}");
        let mapped = watched.play("xdp", "--qos tag=on,trust=dscp,map=26:2", &command).well().marks();
        assert_eq!(set(mapped.keys().map(|m| (m.tos, m.priority))), set([(104, Some(2))]), "{command}");
    }
}

#[test]
fn connection_or_default_tos_is_used() {
    let name = "connection_or_default_tos_is_used";
    if skip(name, &BANDWIDTH) {
        return;
    }
    let watched = Watched::new("cl-tos");
    for port in ports() {
        for program in BANDWIDTH {
            // perftest's own connection, which exchanges memory addresses, sets no type of service
            // (`perftest_communication.c`).
            for (asked, options, expected) in [
                ("-T 106", "", &[0, 106][..]),
                ("", "--tos 184", &[184]),
                ("-T 106", "--tos 184", &[106, 184]),
                ("", "", &[0]),
            ] {
                let command = format!("{program} -R -F -n 20 -s 5000 {asked}");
                let marks = watched.play(port, options, &command).well().marks();
                let context = format!("{port}: {options} -- {command}: {marks:?}");
                assert_eq!(set(marks.keys().map(|m| m.tos)), set(expected.iter().copied()), "{context}");
            }
        }
    }
}

#[test]
fn launchers_rate_is_not_exceeded() {
    let name = "launchers_rate_is_not_exceeded";
    if skip(name, &BANDWIDTH) {
        return;
    }
    let watched = Watched::new("cl-rate");
    for port in ports() {
        for program in BANDWIDTH {
            let command = format!("{program} -x 1 -F -n 40 -s 16384");
            let played = watched.play(port, "--cc fixed,rate=20M", &command).well();
            // Times are by the receiver's clock; a late pass may catch up.
            let end = if program == "ib_read_bw" { "far" } else { "near" };
            let packets = arrived(&watched.capture(end));
            let data: Vec<_> = packets.iter().filter(|seen| carries_data(seen.opcode)).collect();
            let bits = |from: usize| 8 * data[from + 1..].iter().map(|seen| seen.bytes as u64).sum::<u64>();
            assert!(bits(0) >= 40 * 16384 * 7, "{} bits", bits(0));
            // On a busy machine, the receiver may see the first frames late. A rate that is really exceeded shows from
            // any frame on.
            let last = data.last().expect("data").at_ns;
            let rate = |from: usize| bits(from) as f64 * 1e3 / (last - data[from].at_ns) as f64;
            let mbps = (0..4).map(|eighth| rate(data.len() * eighth / 8)).fold(f64::MAX, f64::min);
            println!("{port} {program}: {mbps:.2} Mb/s on the wire; {}", rate_of(&played.client.output));
            assert!(mbps < 20.4, "{port} {program}: {mbps} Mb/s");
        }
    }
}

/// Returns the row of numbers that perftest prints.
fn rate_of(said: &str) -> &str {
    let is_row = |line: &&str| {
        line.split_whitespace().count() == 5 && line.trim_start().starts_with(|c: char| c.is_ascii_digit())
    };
    said.lines().find(is_row).unwrap_or("no row")
}

#[test]
fn perftests_rate_limiters_work() {
    let name = "perftests_rate_limiters_work";
    if skip(name, &["ib_write_bw"]) {
        return;
    }
    let watched = Watched::new("cl-limit");
    for port in ports() {
        // perftest's own limiter sends bursts.
        let software = "--rate_limit=0.02 --rate_limit_type=SW --burst_size=4";
        let played = watched.play(port, "", &format!("ib_write_bw -x 1 -F -n 40 -s 16384 {software}")).well();
        println!("{port} software: {}", rate_of(&played.client.output));
        // perftest sets the QP's rate and reads it back, but trusts it on InfiniBand only (`ctx_connect`). On any RoCE
        // device it also limits by itself.
        let played = watched.play(port, "", "ib_write_bw -x 1 -F -n 40 -s 16384 --rate_limit=2.5").well();
        assert!(played.client.output.contains("providing SW rate limit"), "{:?}", played.client);
        let command = "ib_write_bw -x 1 -F -n 40 -s 16384 --rate_limit=2.5 --rate_limit_type=HW";
        let server = watched.start("near", port, "", "ib_write_bw -x 1 -F -n 40 -s 16384");
        let mut server = server;
        server.wait_until_it_listens(PORT);
        let refused = watched.start("far", port, "", &format!("{command} {NEAR}")).finish();
        drop(server);
        assert!(!refused.status.success() && refused.output.contains("failed to accept HW rate limit"));
        assert!(!refused.output.contains("roxie run: "), "the device refused nothing: {refused:?}");
    }
}

#[test]
fn rates_labels_and_service_levels_apply() {
    let name = "rates_labels_and_service_levels_apply";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("rates", &["-libverbs"]);
    let watched = Watched::new("cl-verbs");
    // UDP source port of the flow label, as Linux computes it (`rdma_flow_label_to_udp_sport`).
    let source_port = flow_port(0x5_4321);
    for port in ports() {
        for way in ["::ffff:192.0.2.2 1", "fd00::2 2"] {
            let ended = watched
                .start("near", port, "--qos tag=off", &format!("{} {way}", program.display()))
                .finish();
            assert!(ended.status.success() && ended.output.contains("all so"), "{port} {way}: {ended:?}");
            println!("{port} {way}: {}", ended.output);
            // The far end has only its kernel, which receives what AF_XDP sends.
            let [_, tapped] = watched.taps.each_ref().map(Tap::seen);
            let marks = set(tapped.iter().map(|seen| (seen.marks.tos, seen.marks.source_port)));
            let context = format!("{port} {way}: {} packets, {marks:?}", tapped.len());
            if port == "xdp" {
                assert_eq!(marks, set([(0x68, source_port)]), "{context}");
            } else {
                // Sockets have their own source ports; each path uses one of them (`udp/tx`).
                assert_eq!((marks.len(), marks.first().map(|m| m.0)), (1, Some(0x68)), "{context}");
            }
        }
    }
}

/// The first rate is below what the program can send, the second far above.
#[test]
fn knob_file_changes_a_running_program() {
    let name = "knob_file_changes_a_running_program";
    if skip(name, &["ib_write_bw"]) {
        return;
    }
    let watched = Watched::new("cl-file");
    let knobs = watched.place.path().join("knobs");
    let option = format!("--cc @{}", knobs.display());
    for port in ports() {
        std::fs::write(&knobs, "fixed,rate=20M\n").unwrap();
        let command = "ib_write_bw -x 1 -F -n 20000 -s 16384";
        let mut server = watched.site.local(port, command);
        server.wait_until_it_listens(PORT);
        let options = ["--dev", "right", "--port", port];
        let all: Vec<&str> = options.into_iter().chain(option.split(' ')).collect();
        let client = launcher(&all, &format!("{command} {NEAR}"));
        let mut client = Running::start(&watched.site.remote, client);
        // The program sends by the first knobs, then the second are refused.
        client.wait_until("sending", |_| sent_bytes(&watched.site.remote) > 0);
        std::fs::write(&knobs, "fixed,rat=9G").unwrap();
        client.wait_for_output("congestion control stays as it is");
        std::fs::write(&knobs, "off # as fast as it goes").unwrap();
        let ended = client.finish();
        assert!(ended.status.success() && server.finish().status.success(), "{port}: {ended:?}");
        let warnings = ended.output.matches("congestion control stays as it is").count();
        assert_eq!(
            (warnings, ended.output.contains("`rat` is no knob of fixed")),
            (1, true),
            "{port}: {ended:?}"
        );
    }
}
