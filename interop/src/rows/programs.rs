//! Stock programs, unmodified at both ends: here on Roxie, at the peer on its own libibverbs.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{FAMILIES, Family};

/// A stock program with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program {
    /// Name and options, except those that differ between the ends: the GID index and the server's address.
    line: &'static str,
    /// Variant of the use, as in the row's name.
    way: &'static str,
    /// Name and options of the server, if the ends connect by rdma_cm. In both lines `@` then stands for the server's
    /// address, `%` for the end's own address, and `&` for the multicast group.
    server: Option<&'static str>,
}

/// Every use of a program: variant, name and options.
///
/// Messages are longer than a packet if the service allows, datagrams fit an MTU of 1024. Without acknowledgements
/// nothing paces a sender: UC and UD send no more messages than the receiver has receives (512) and the queues between
/// have room for. perftest sets `max_rd_atomic` to the other end's limit (128 at rxe) instead of the lower of both, so
/// `-o` sets the lower. perftest uses `ibv_wr_*` only on adapters that it knows, and `ibv_post_send` on all others,
/// with or without the option.
const USES: [(&str, &str); 47] = [
    ("polling", "ibv_rc_pingpong -m 1024 -s 5000 -n 100 -c"),
    ("events", "ibv_rc_pingpong -m 1024 -s 5000 -n 100 -c -e"),
    ("new", "ibv_rc_pingpong -m 1024 -s 5000 -n 100 -c -N"),
    ("polling", "ibv_uc_pingpong -m 1024 -s 5000 -n 100 -c"),
    ("events", "ibv_uc_pingpong -m 1024 -s 5000 -n 100 -c -e"),
    ("polling", "ibv_ud_pingpong -s 1000 -n 100 -c"),
    ("events", "ibv_ud_pingpong -s 1000 -n 100 -c -e"),
    ("polling", "ibv_srq_pingpong -m 1024 -s 5000 -n 100 -c"),
    ("events", "ibv_srq_pingpong -m 1024 -s 5000 -n 100 -c -e"),
    ("polling", "ibv_xsrq_pingpong -m 1024 -s 5000 -n 100"),
    ("rc", "ib_send_bw -c RC -n 200 -s 5000"),
    ("uc", "ib_send_bw -c UC -n 200 -s 5000"),
    ("ud", "ib_send_bw -c UD -n 200 -s 1000"),
    ("rc/old", "ib_send_bw -c RC -n 200 -s 5000 --use_old_post_send"),
    ("xrc", "ib_send_bw -c XRC -n 200 -s 5000"),
    ("rc/qps3", "ib_send_bw -c RC -n 200 -s 5000 -q 3"),
    ("rc/both", "ib_send_bw -c RC -n 200 -s 5000 -b"),
    ("rc/both/qps3", "ib_send_bw -c RC -n 200 -s 5000 -b -q 3"),
    ("rc/events", "ib_send_bw -c RC -n 200 -s 5000 -e"),
    ("rc/srq", "ib_send_bw -c RC -n 200 -s 5000 -q 3 --use-srq"),
    ("uc/qps3", "ib_send_bw -c UC -n 100 -s 2000 -q 3"),
    ("ud/events", "ib_send_bw -c UD -n 200 -s 1000 -e"),
    ("rc", "ib_send_lat -c RC -n 100 -s 5000"),
    ("uc", "ib_send_lat -c UC -n 100 -s 5000"),
    ("ud", "ib_send_lat -c UD -n 100 -s 1000"),
    ("rc/events", "ib_send_lat -c RC -n 100 -s 5000 -e"),
    ("uc/events", "ib_send_lat -c UC -n 100 -s 5000 -e"),
    ("ud/events", "ib_send_lat -c UD -n 100 -s 1000 -e"),
    ("rc/srq", "ib_send_lat -c RC -n 100 -s 5000 --use-srq"),
    ("rc", "ib_write_bw -c RC -n 200 -s 5000"),
    ("uc", "ib_write_bw -c UC -n 200 -s 5000"),
    ("rc/qps3", "ib_write_bw -c RC -n 200 -s 5000 -q 3"),
    ("rc/both", "ib_write_bw -c RC -n 200 -s 5000 -b"),
    ("rc/both/qps3", "ib_write_bw -c RC -n 200 -s 5000 -b -q 3"),
    ("rc/all", "ib_write_bw -c RC -n 5 -a"),
    ("rc", "ib_write_lat -c RC -n 100 -s 5000"),
    ("uc", "ib_write_lat -c UC -n 100 -s 5000"),
    ("rc", "ib_read_bw -c RC -o 16 -n 200 -s 5000"),
    ("rc/qps3", "ib_read_bw -c RC -o 16 -n 200 -s 5000 -q 3"),
    ("rc/both", "ib_read_bw -c RC -o 16 -n 200 -s 5000 -b"),
    ("rc/events", "ib_read_bw -c RC -o 16 -n 200 -s 5000 -e"),
    ("rc", "ib_read_lat -c RC -o 16 -n 100 -s 5000"),
    ("fetch_and_add", "ib_atomic_bw -A FETCH_AND_ADD -o 16 -n 200"),
    ("cmp_and_swap", "ib_atomic_bw -A CMP_AND_SWAP -o 16 -n 200"),
    ("fetch_and_add/qps3", "ib_atomic_bw -A FETCH_AND_ADD -o 16 -n 200 -q 3"),
    ("fetch_and_add", "ib_atomic_lat -A FETCH_AND_ADD -o 16 -n 100"),
    ("cmp_and_swap", "ib_atomic_lat -A CMP_AND_SWAP -o 16 -n 100"),
];

/// Uses of programs that connect by rdma_cm: variant, server, client. rping, rstream, riostream, fio's SEND and qperf's
/// `ver_…` verify data.
///
/// fio posts every receive before the first message: it connects with an RNR retry count of 0. The server of mckey is
/// the receiver.
const OVER_CM: [(&str, &str, &str); 25] = [
    ("cm", "rping -s -a @ -v -V -C 20 -S 2000", "rping -c -a @ -v -V -C 20 -S 2000"),
    ("cm/connections", "ucmatose -b @ -c 3 -C 20 -S 1000", "ucmatose -s @ -c 3 -C 20 -S 1000"),
    ("cm/channels", "ucmatose -b @ -m", "ucmatose -s @ -m"),
    ("cm/datagrams", "udaddy -b @ -c 3 -C 20 -S 500", "udaddy -s @ -c 3 -C 20 -S 500"),
    ("cm/endpoints", "rdma_server -s @", "rdma_client -s @"),
    ("cm/srq", "rdma_xserver -c r", "rdma_xclient -c r -s @"),
    ("cm/streams", "rstream -b @ -S 2000 -C 100 -T v", "rstream -s @ -S 2000 -C 100 -T v"),
    (
        "cm/streams/nonblocking",
        "rstream -b @ -S 2000 -C 100 -T v -T n",
        "rstream -s @ -S 2000 -C 100 -T v -T n",
    ),
    ("cm/writes", "riostream -b @ -S 2000 -C 100 -T v", "riostream -s @ -S 2000 -C 100 -T v"),
    ("cm/rc", "ib_send_bw -R -n 200 -s 5000", "ib_send_bw -R -n 200 -s 5000 @"),
    ("cm/rc", "ib_send_lat -R -n 100 -s 5000", "ib_send_lat -R -n 100 -s 5000 @"),
    ("cm/ud", "ib_send_lat -R -c UD -n 100 -s 1000", "ib_send_lat -R -c UD -n 100 -s 1000 @"),
    ("cm/rc", "ib_write_bw -R -n 200 -s 5000", "ib_write_bw -R -n 200 -s 5000 @"),
    ("cm/rc/both/qps3", "ib_write_bw -R -n 200 -s 5000 -b -q 3", "ib_write_bw -R -n 200 -s 5000 -b -q 3 @"),
    ("cm/rc", "ib_write_lat -R -n 100 -s 5000", "ib_write_lat -R -n 100 -s 5000 @"),
    ("cm/rc", "ib_read_bw -R -o 16 -n 200 -s 5000", "ib_read_bw -R -o 16 -n 200 -s 5000 @"),
    ("cm/group", "mckey -m & -b % -C 10 -S 1000", "mckey -m & -b % -C 10 -S 1000 -s"),
    ("cm/connections", "cmtime -b @ -c 20", "cmtime -s @ -c 20"),
    ("lids", "qperf", "qperf @ -t 1 rc_lat uc_lat ud_lat quit"),
    (
        "cm/bandwidth",
        "qperf",
        "qperf @ -cm1 -t 1 -m 16K rc_bw rc_bi_bw rc_rdma_write_bw rc_rdma_read_bw quit",
    ),
    (
        "cm/latency",
        "qperf",
        "qperf @ -cm1 -t 1 rc_lat rc_rdma_write_lat rc_rdma_write_poll_lat rc_rdma_read_lat quit",
    ),
    ("cm/atomics", "qperf", "qperf @ -cm1 -t 1 ver_rc_compare_swap ver_rc_fetch_add rc_fetch_add_mr quit"),
    (
        "cm/verified",
        "fio --name=r --ioengine=rdma --port=4321 --bs=16k --size=512k --iodepth=32 --rw=read --verify=pattern \
         --verify_pattern=0x5aa5 --verify_state_save=0",
        "fio --name=s --ioengine=rdma --port=4321 --bs=16k --size=512k --iodepth=4 --rw=write --verb=send --hostname=@ \
         --verify=pattern --verify_pattern=0x5aa5 --do_verify=0 --verify_state_save=0",
    ),
    (
        "cm/writes",
        "fio --name=r --ioengine=rdma --port=4321 --bs=16k --size=512k --iodepth=4 --rw=read",
        "fio --name=w --ioengine=rdma --port=4321 --bs=16k --size=512k --iodepth=4 --rw=write --verb=write --hostname=@",
    ),
    (
        "cm/reads",
        "fio --name=r --ioengine=rdma --port=4321 --bs=16k --size=512k --iodepth=4 --rw=read",
        "fio --name=w --ioengine=rdma --port=4321 --bs=16k --size=512k --iodepth=4 --rw=write --verb=read --hostname=@",
    ),
];

/// Programs that run over IPv6 too: at least one of each service.
const OVER_V6: [&str; 7] = [
    "program/ibv_rc_pingpong/polling",
    "program/ibv_ud_pingpong/events",
    "program/ib_send_lat/uc",
    "program/ib_read_bw/rc",
    "program/rping/cm",
    "program/ucmatose/cm/connections",
    "program/mckey/cm/group",
];

/// Further options of perftest. -F: no complaint about the CPU frequency. -u17: an emulated guest on a busy host may
/// not answer for longer than perftest's timeout of eight times 67 ms; this makes it eight times 537 ms.
const MEASURED: [&str; 2] = ["-F", "-u17"];

/// TCP port of qperf's server.
const QPERF_PORT: u16 = 19765;

/// Returns the multicast group of mckey, of the address's IP version.
fn group(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::new(239, 71, 0, 7).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0x71, 7).into(),
    }
}

fn first(line: &'static str) -> &'static str {
    line.split(' ').next().unwrap_or_default()
}

/// Returns every use of a program with its IP versions.
pub fn all() -> Vec<(Program, &'static [Family])> {
    let alone = USES.into_iter().map(|(way, line)| Program { line, way, server: None });
    let met = OVER_CM.into_iter().map(|(way, server, line)| Program { line, way, server: Some(server) });
    alone
        .chain(met)
        .map(|program| {
            let both = OVER_V6.contains(&program.to_string().as_str());
            (program, if both { &FAMILIES[..] } else { &FAMILIES[..1] })
        })
        .collect()
}

/// How a server shows from outside that a client may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Not at all: a client that is refused is started again.
    Nothing,
    /// The server listens on this TCP port.
    Listens(u16),
    /// The server's kernel has joined this multicast group.
    Joined(IpAddr),
}

impl fmt::Display for Program {
    /// `program/ib_send_bw/rc/qps3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "program/{}/{}", self.name(), self.way)
    }
}

impl Program {
    /// Returns the program's name; the client's, if the server is another program.
    pub fn name(&self) -> &'static str {
        first(self.line)
    }

    /// True for the use of this program in this variant.
    pub(super) fn is(&self, name: &str, way: &str) -> bool {
        (self.name(), self.way) == (name, way)
    }

    /// True if its ends connect by rdma_cm.
    pub fn uses_cm(&self) -> bool {
        self.server.is_some()
    }

    /// Returns name and options of a program that connects by rdma_cm, for the server or the client, with these
    /// addresses.
    pub fn over_cm(&self, serves: bool, server: IpAddr, own: IpAddr) -> (String, Vec<String>) {
        let line = self.server.filter(|_| serves).unwrap_or(self.line);
        let placed = |word: &str| match word {
            "%" => own.to_string(),
            "&" => group(server).to_string(),
            _ => word.replace('@', &server.to_string()),
        };
        let mut words = line.split_whitespace().map(placed);
        let name = words.next().unwrap_or_default();
        let how = self.measures().then(|| MEASURED.map(str::to_owned));
        (name, how.into_iter().flatten().chain(words).collect())
    }

    /// Returns how the server, at this address, shows that it is ready.
    pub fn shows_ready(&self, server: IpAddr) -> Ready {
        match self.name() {
            "mckey" => Ready::Joined(group(server)),
            "qperf" => Ready::Listens(QPERF_PORT),
            _ => Ready::Nothing,
        }
    }

    /// Returns a TCP port on which the server may listen before it is ready: since rdma-core 52 both ends of cmtime
    /// synchronize by sockets.
    pub fn may_listen(&self) -> Option<u16> {
        (self.name() == "cmtime").then_some(7471)
    }

    /// True if its server ends only when killed.
    pub fn never_ends(&self) -> bool {
        self.name() == "cmtime"
    }

    /// Returns a word in the usage of an incompatible program of the same name.
    pub fn sign_of_another(&self) -> Option<&'static str> {
        // rdma-core 65's cmtime has a control address, and few of the earlier options.
        (self.name() == "cmtime").then_some("oob_port")
    }

    /// Returns the options for an end with the address at this index of its GID table. `server`: the other end's
    /// address, for a client.
    pub fn words(&self, gid_index: usize, server: Option<String>) -> Vec<String> {
        let own = self.line.split(' ').skip(1).map(str::to_owned);
        let place = if self.measures() {
            MEASURED.iter().map(|word| (*word).to_owned()).chain([format!("-x{gid_index}")]).collect()
        } else {
            vec![format!("-g{gid_index}")]
        };
        own.chain(place).chain(server).collect()
    }

    /// True if its ends use a multicast group. The sender does not wait until its requests are sent.
    pub fn is_of_a_group(&self) -> bool {
        self.name() == "mckey"
    }

    /// True if it addresses its peer by LID only: qperf without rdma_cm. rdma_rxe and Roxie refuse such a path
    /// (EINVAL), as RoCE has no LIDs.
    pub fn names_no_gid(&self) -> bool {
        self.name() == "qperf" && !self.line.contains(" -cm1")
    }

    /// True if it needs XRC at both ends.
    pub fn is_xrc(&self) -> bool {
        self.name() == "ibv_xsrq_pingpong" || self.line.contains("-c XRC")
    }

    /// True for a program of perftest, which prints a table of measurements.
    fn measures(&self) -> bool {
        self.name().starts_with("ib_")
    }

    /// Returns the value of an option.
    fn option(&self, name: &str) -> Option<usize> {
        let mut words = self.line.split(' ').skip_while(|word| *word != name);
        words.nth(1)?.parse().ok()
    }

    /// Returns what is wrong with the output of both, if anything: invalid data, where the program verifies; a missing
    /// measurement.
    pub fn complaint(&self, client: &str, server: &str) -> Option<String> {
        match self.name() {
            "rping" => {
                let rounds = client.matches("ping data: rdma-ping-").count();
                (Some(rounds) != self.option("-C")).then(|| format!("{rounds} rounds were verified"))
            }
            "mckey" => {
                let both = [client, server].iter().all(|said| said.contains("data transfers complete"));
                (!both).then(|| "not all datagrams were sent and received".to_owned())
            }
            "cmtime" => self.steps_missing(client),
            "qperf" => self.values_missing(client),
            "fio" => {
                let moved = |said: &str| said.contains("io=512KiB");
                // The server moves data only by SENDs.
                let all = moved(client) && (moved(server) || !self.line.contains("--verb=send"));
                (!all).then(|| "not all blocks were moved".to_owned())
            }
            _ if self.measures() => self.table_wrong(client),
            _ => {
                // The pingpongs exit with 0 after invalid data, but report it.
                let invalid = client.contains("invalid data") || server.contains("invalid data");
                invalid.then(|| "data is invalid".to_owned())
            }
        }
    }

    /// Checks that cmtime's client printed no unexpected event, and a time for each step.
    fn steps_missing(&self, client: &str) -> Option<String> {
        if client.contains("event: ") || client.contains("_ERROR") || client.contains("failure") {
            return Some("not all connections were made".to_owned());
        }
        // Since rdma-core 52 the step is named `cm connect`.
        let timed = |step: &str| {
            let of_step = |line: &&str| line.trim_start_matches("cm ").starts_with(step);
            client.lines().any(|line| of_step(&line) && line.contains(|c: char| c.is_ascii_digit()))
        };
        let missing: Vec<&str> =
            ["resolve route", "connect", "disconnect"].into_iter().filter(|step| !timed(step)).collect();
        (!missing.is_empty()).then(|| format!("these steps have no time: {}", missing.join(", ")))
    }

    /// Checks that qperf's client printed a value for each test: the words behind the options, except `quit`.
    fn values_missing(&self, client: &str) -> Option<String> {
        let tests = self.line.split(' ').filter(|word| word.contains("rc_"));
        let has_value = |test: &&str| {
            let mut lines = client.lines().skip_while(|line| line.trim() != format!("{test}:")).skip(1);
            let value =
                lines.next().and_then(|line| line.split_once('=')?.1.split_whitespace().next()?.parse().ok());
            value.is_some_and(|value: f64| value > 0.0)
        };
        let missing: Vec<&str> = tests.filter(|test| !has_value(test)).collect();
        (!missing.is_empty()).then(|| format!("these tests have no value: {}", missing.join(", ")))
    }

    /// Returns what is wrong with the table of perftest's client.
    fn table_wrong(&self, client: &str) -> Option<String> {
        let numbers = |line: &str| -> Option<(usize, usize)> {
            let mut words = line.split_whitespace();
            Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
        };
        let measured: Vec<(usize, usize)> = client.lines().filter_map(numbers).collect();
        let sizes = match self.line.contains(" -a") {
            true => (1..=23).map(|power| 1 << power).collect(),
            false => vec![self.option("-s").unwrap_or(8)],
        };
        let iterations = self.option("-n").unwrap_or_default() * self.option("-q").unwrap_or(1);
        let wanted: Vec<(usize, usize)> = sizes.into_iter().map(|size| (size, iterations)).collect();
        (measured != wanted)
            .then(|| format!("sizes and iterations are {measured:?}, and should be {wanted:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Program {
        all().into_iter().map(|(program, _)| program).find(|p| p.to_string() == name).unwrap()
    }

    #[test]
    fn ends_differ_in_gid_and_server_only() {
        let words = named("program/ib_read_bw/rc").words(1, Some("10.71.0.1".into()));
        assert_eq!(words.join(" "), "-c RC -o 16 -n 200 -s 5000 -F -u17 -x1 10.71.0.1");
        let words = named("program/ibv_ud_pingpong/events").words(2, None);
        assert_eq!(words.join(" "), "-s 1000 -n 100 -c -e -g2");
    }

    #[test]
    fn rdma_cm_ends_get_the_server_address() {
        let server = "10.71.0.1".parse().unwrap();
        let line = |name, serves| {
            let (name, words) = named(name).over_cm(serves, server, "10.71.0.2".parse().unwrap());
            format!("{name} {}", words.join(" "))
        };
        assert_eq!(line("program/rdma_client/cm/endpoints", true), "rdma_server -s 10.71.0.1");
        assert_eq!(line("program/rdma_client/cm/endpoints", false), "rdma_client -s 10.71.0.1");
        assert_eq!(line("program/ib_send_lat/cm/rc", true), "ib_send_lat -F -u17 -R -n 100 -s 5000");
        assert_eq!(
            line("program/ib_send_lat/cm/rc", false),
            "ib_send_lat -F -u17 -R -n 100 -s 5000 10.71.0.1"
        );
        assert_eq!(line("program/mckey/cm/group", true), "mckey -m 239.71.0.7 -b 10.71.0.2 -C 10 -S 1000");
        assert!(line("program/fio/cm/reads", false).ends_with("--hostname=10.71.0.1"));
    }

    #[test]
    fn failed_connection_of_cmtime_is_a_complaint() {
        let program = named("program/cmtime/cm/connections");
        let table = "resolve route:  1.0  1.0\nconnect      :  1.0  1.0\ndisconnect   :  1.0  1.0\n";
        assert_eq!(program.complaint(table, ""), None);
        let refused = format!("event: RDMA_CM_EVENT_REJECTED, error: 28\n{table}");
        assert!(program.complaint(&refused, "").is_some());
        assert!(program.complaint("connecting\n", "").unwrap().contains("disconnect"));
        let newer = "resolve route 113 2264\ncm connect 475 9503\ndisconnect 20 403\n";
        assert_eq!(program.complaint(newer, ""), None);
    }

    #[test]
    fn missing_value_of_qperf_is_a_complaint() {
        let program = named("program/qperf/cm/atomics");
        let of = |test: &str, value: &str| format!("{test}:\n    msg_rate  =  {value} K/sec\n");
        let reports = |value| {
            of("ver_rc_compare_swap", "1.2") + &of("ver_rc_fetch_add", value) + &of("rc_fetch_add_mr", "3")
        };
        assert_eq!(program.complaint(&reports("7"), ""), None);
        assert_eq!(
            program.complaint(&reports("0"), "").unwrap(),
            "these tests have no value: ver_rc_fetch_add"
        );
    }

    #[test]
    fn every_program_named_for_ipv6_exists() {
        assert!(OVER_V6.iter().all(|name| named(name).to_string() == **name));
    }

    #[test]
    fn incomplete_perftest_table_is_a_complaint() {
        let program = named("program/ib_write_bw/rc/qps3");
        let table = |line: &str| format!(" #bytes  #iterations  BW peak[MB/sec]\n {line}\n------\n");
        assert_eq!(program.complaint(&table("5000     600              41.31"), ""), None);
        assert!(program.complaint(&table("5000     200              41.31"), "").is_some());
        assert!(program.complaint(&table(""), "").is_some());
        let all = named("program/ib_write_bw/rc/all");
        assert!(all.complaint(&table("2          5                1.0"), "").unwrap().contains("8388608"));
    }

    #[test]
    fn invalid_data_is_a_complaint() {
        let program = named("program/ibv_rc_pingpong/polling");
        let fine = "1000000 bytes in 0.01 seconds";
        assert_eq!(program.complaint(fine, fine), None);
        assert!(program.complaint("invalid data in page 0", fine).is_some());
        assert!(program.complaint(fine, "invalid data in page 0").is_some());
    }
}
