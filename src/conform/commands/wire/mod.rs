//! `roxie wire`: a cable between two interfaces that does to chosen packets what rules say.

mod cable;
mod judge;
mod report;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use roxie::frame::Frame;
use roxie::host::PacketRule;
use roxie::netdev::Interface;
use roxie::port::Port;
use roxie::port::fault::{Action, Direction, Fault, FaultConfig, FaultPort, When};
use roxie::port::packet::{PacketError, PromiscuousPort};
use roxie::port::pcap::{PcapPort, Timestamps};
use roxie::time::Nanos;
use roxie_conform_bench::verdict::Verdict;
use roxie_report::failure::Failure;
use roxie_report::formats;
use roxie_report::output;
use roxie_report::signals;
use serde_json::json;

use self::cable::{Cable, End};
use self::judge::{Judge, JudgeArguments};
use self::report::{Placed, Report};

const LONG_ABOUT: &str = "Forwards every frame between two interfaces, and loses, doubles, damages, marks, delays or reorders those that \
                          rules name. Nothing of Roxie runs at the ends: two adapters on two ports of this host, two virtual machines on \
                          taps, or two containers on veth pairs are tested with packets that no switch would lose.\n\nA rule is an \
                          action, conditions, and when:\n\n  drop opcode=READ_RESPONSE_MIDDLE psn=+3 once\n  mark kind=data every10 \
                          from=veth0\n  delay=200us kind=ack 1%\n\nActions: drop, duplicate, corrupt, mark, delay=TIME, \
                          reorder[=FRAMES[:TIME]]. Conditions: opcode (with or without its service), kind (data, ack, nak, rnr, cnp, cm, \
                          roce, other), qp (destination), psn (+N: behind the first one seen of the QP), src, dst, from (the interface \
                          that the packet comes from). When: once, nthN, everyN, firstN, 1%, 0.01; without it always.\n\nThe interfaces \
                          must have no IP address, or this host would answer beside the other end. Each frame leaves as on a wire: \
                          what the kernel has merged is cut. Takes CAP_NET_RAW. Ctrl-C ends the wire and prints what passed.\n\n--judge follows \
                          the reliable connections on the wire, and says whether both peers keep to the specification: from which PSN a \
                          request is sent again, what a NAK names, that nothing is acknowledged that has not arrived, that atomics are \
                          executed once. --script NAME loses what a known script says, and asks for what must follow.";

const AFTER_HELP: &str = "Examples:\n  roxie wire veth0 veth1\n  roxie wire veth0 veth1 --rule 'drop opcode=ACKNOWLEDGE nth3'\n  roxie wire \
                          tap0 tap1 --fault drop=0.01,delay=1%:200us --capture a.pcapng b.pcapng\n  roxie wire veth0 veth1 --rules \
                          script --seconds 10 --json\n  roxie wire veth0 veth1 --script write/middle_lost --html wire.html\n  roxie wire \
                          --scripts\n\nExit codes: 0 done, 1 a fault could not be applied, an interface has gone or a peer breaks a \
                          rule, 2 wrong usage, 3 an interface cannot be opened.";

/// A cable between two interfaces that loses, doubles, damages, marks, delays or reorders chosen packets
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// One end: an interface
    #[arg(value_name = "A", required_unless_present = "scripts")]
    a: Option<String>,
    /// The other end
    #[arg(value_name = "B", required_unless_present = "scripts")]
    b: Option<String>,
    /// A fault for chosen packets; repeatable, all rules act
    #[arg(long = "rule", value_name = "RULE")]
    rules: Vec<PacketRule>,
    /// A file of rules, one a line; lines that begin with # are skipped
    #[arg(long = "rules", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Faults of all frames, in both directions: drop=0.01,reorder=0.02,delay=1%:200us,seed=7
    #[arg(long, value_name = "FAULTS")]
    fault: Option<FaultConfig>,
    /// Write what passes at A and at B, with what the wire did, to two files
    #[arg(long, num_args = 2, value_names = ["FILE_A", "FILE_B"])]
    capture: Vec<PathBuf>,
    #[command(flatten)]
    judge: JudgeArguments,
    /// End after so many seconds [default: at Ctrl-C]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Print one JSON object when the wire is ready, and one at the end
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match forward(arguments) {
        Ok(code) => code,
        Err(failure) => failure.report("wire"),
    }
}

fn forward(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (Some(a), Some(b)) = (&arguments.a, &arguments.b) else {
        return judge::list().map(|()| ExitCode::SUCCESS);
    };
    let names = [a.clone(), b.clone()];
    if names[0] == names[1] {
        return Err(Failure::Usage(format!("both ends are {}: a wire has two", names[0])));
    }
    let rules = rules(arguments, &names)?;
    let fault = arguments.fault.clone().unwrap_or_default();
    if fault.rx != fault.tx {
        return Err(Failure::Usage(
            "--fault acts on both directions here: choose one by a rule, for example --rule 'drop 1% from=veth0'".into(),
        ));
    }
    let signals = signals::catch_in_command()?;
    let mut placed: Vec<Placed> =
        rules.into_iter().map(|rule| Placed { rule, matched: Vec::new() }).collect();
    let judge = arguments.judge.judge(&placed);
    let mut open =
        |at: usize| end(&names[at], &fault, &mut placed, arguments.capture.get(at), judge.as_ref());
    let mut cable = Cable::new([open(0)?, open(1)?]);
    if let Some(judge) = &judge {
        cable.show_to(judge.clone());
    }
    announce(arguments, &names, &cable, placed.len())?;
    let until = arguments.seconds.map_or(Nanos::MAX, |seconds| Nanos(u64::from(seconds) * 1_000_000_000));
    let ended = cable.run(signals.as_fd(), until);
    let mut report = Report::of(&cable, &placed, &names);
    let verdicts = judge.map(|judge| judge.report(&names));
    // The captures are complete when the ends are closed.
    drop(cable);
    if let Some(verdicts) = &verdicts {
        arguments.judge.write(verdicts)?;
        report.verdicts.clone_from(&verdicts.checks);
    }
    if arguments.json {
        formats::print(formats::WIRE, &report)?;
    } else {
        report.lines().iter().try_for_each(output::line)?;
    }
    ended.map_err(|error| Failure::Run(format!("{} or {} has gone: {error}", names[0], names[1])))?;
    if report.not_kept() > 0 {
        output::complain(
            "wire",
            "faults could not be applied (see above): --fault held=N takes more buffers",
        );
        return Ok(ExitCode::FAILURE);
    }
    let is_broken = verdicts.is_some_and(|verdicts| verdicts.count(Verdict::Breaks) > 0);
    Ok(if is_broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the rules of options, of the file and of a script.
fn rules(arguments: &Arguments, names: &[String; 2]) -> Result<Vec<PacketRule>, Failure> {
    let mut rules = arguments.rules.clone();
    if let Some(path) = &arguments.file {
        rules.extend(read_rules(path)?);
    }
    rules.extend(arguments.judge.rules()?);
    for rule in &rules {
        if let Some(from) = rule.from.as_ref().filter(|from| !names.contains(from)) {
            let ends = names.join(" or ");
            return Err(Failure::Usage(format!("`{rule}`: from={from} is no end of this wire: {ends}")));
        }
    }
    Ok(rules)
}

/// Reports that the wire is ready.
fn announce(arguments: &Arguments, names: &[String; 2], cable: &Cable, count: usize) -> Result<(), Failure> {
    let [a, b] = [&cable.ends[0], &cable.ends[1]].map(|end| end.info().mtu);
    if arguments.json {
        let ready = json!({"event": "ready", "ends": names, "mtu": [a, b], "rules": count});
        formats::print(formats::WIRE, ready)?;
    } else {
        let unequal = if a == b { "" } else { "; longer frames are refused" };
        output::note(format_args!(
            "{} (MTU {a}) <-> {} (MTU {b}){unequal}; {count} rules",
            names[0], names[1]
        ));
    }
    Ok(())
}

/// Opens an end, with the rules for the frames that arrive there.
fn end(
    name: &str,
    fault: &FaultConfig,
    rules: &mut [Placed],
    capture: Option<&PathBuf>,
    judge: Option<&Judge>,
) -> Result<End, Failure> {
    let interface = Interface::by_name(name).map_err(|error| Failure::Device(error.to_string()))?;
    // The kernel makes link-local addresses of IPv6 by itself, and answers no host for other addresses there.
    let own = interface.addresses.iter().map(|address| address.ip);
    if let Some(address) = own.clone().find(|ip| !is_link_local(ip)) {
        return Err(Failure::Device(format!(
            "{name} has the address {address}: this host would answer beside the other end. Remove it (ip addr flush dev {name}), or \
             name the interface behind"
        )));
    }
    if !interface.up {
        return Err(Failure::Device(format!("{name} is down: ip link set {name} up")));
    }
    let port = PromiscuousPort::open(name).map_err(|error| match error {
        PacketError::NotPermitted => Failure::Device(
            "a wire takes CAP_NET_RAW: run as root, or `setcap cap_net_raw+ep` the program roxie-conform"
                .into(),
        ),
        other => Failure::Device(other.to_string()),
    })?;
    let port: Box<dyn Port> = match capture {
        Some(path) => {
            let failed =
                |error: io::Error| Failure::Device(format!("the capture {}: {error}", path.display()));
            let file = File::create(path).map_err(failed)?;
            Box::new(PcapPort::to_file(port, file, Timestamps::WallClock).map_err(failed)?)
        }
        None => Box::new(port),
    };
    let only_arriving = FaultConfig { tx: Vec::new(), ..fault.clone() };
    let mut end = FaultPort::new(port, &only_arriving);
    if let Some(judge) = judge.cloned() {
        // A fault without an effect, with a predicate that sees each frame as it arrives.
        let nothing = Fault { action: Action::Drop, when: When::Rate(0.0) };
        end = end.with_rule(Direction::Rx, nothing, move |frame: &Frame<'_>| judge.arrives(frame));
    }
    for placed in rules.iter_mut().filter(|placed| placed.rule.from.as_ref().is_none_or(|from| from == name))
    {
        let (test, matched) = placed.rule.matcher();
        placed.matched.push(matched);
        end = end.with_rule(Direction::Rx, placed.rule.fault, test);
    }
    Ok(end)
}

fn is_link_local(ip: &std::net::IpAddr) -> bool {
    matches!(ip, std::net::IpAddr::V6(ip) if ip.is_unicast_link_local())
}

fn read_rules(path: &Path) -> Result<Vec<PacketRule>, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::Usage(format!("the rules {}: {error}", path.display())))?;
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(number, line)| {
            line.parse().map_err(|error| Failure::Usage(format!("{}:{number}: {error}", path.display())))
        })
        .collect()
}
