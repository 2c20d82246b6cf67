//! `roxie profile try`: one small case on the engine in virtual time.

use clap::{Args, ValueEnum};
use roxie::profile::Profile;
use roxie::time::Nanos;
use roxie::verbs::{Access, LKey, Mtu, Psn, QpState, RKey, SendFlags, SendWr, Sge, WrOpcode};
use roxie_options::profile::{HISTORIES, ProfileFile};
use roxie_report::failure::Failure;
use roxie_report::formats;
use roxie_sim::{NicConfig, Payload};
use serde_json::{Map, Value, json};

use super::stage::{Agreed, End, Stage};

/// Bytes of an atomic.
const ATOMIC: u32 = 8;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Case {
    /// The peer answers nothing
    Silent,
    /// The peer ends behind a stream of WRITEs
    Killed,
    /// The peer posts no receive
    Rnr,
    /// A key that the peer does not have
    BadRkey,
    /// Bytes beyond the peer's memory
    OutOfRange,
    /// A key that the requester does not have
    BadLkey,
    /// A work request longer than its memory
    TooLong,
    /// The peer's QP may not be written
    NoRight,
    /// The peer's QP takes no atomics
    NoAtomicRight,
    /// Software moves the QP to ERR
    Flush,
}

/// What is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Opcode {
    /// RDMA WRITE
    Write,
    /// RDMA READ
    Read,
    /// SEND
    Send,
}

/// Which work requests complete visibly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Signaled {
    /// Each
    All,
    /// The last
    Last,
    /// None
    None,
}

/// Run one small case on the engine in virtual time
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The requester: a profile, or `own`
    name: String,
    /// The case
    #[arg(value_enum)]
    case: Case,
    /// The responder's profile [default: Roxie's own]
    #[arg(long, value_name = "NAME")]
    peer: Option<String>,
    /// Code of the local ACK timeout: 4.096 us * 2^T
    #[arg(long, value_name = "T", default_value_t = 14, value_parser = clap::value_parser!(u8).range(1..=31))]
    timeout: u8,
    /// Retries
    #[arg(long, value_name = "R", default_value_t = 7, value_parser = clap::value_parser!(u8).range(0..=7))]
    retry: u8,
    /// What the adapter did before
    #[arg(long, default_value = HISTORIES[0], value_parser = HISTORIES)]
    history: String,
    /// Whether small ACK timeouts count as the floor
    #[arg(long, default_value = "on", value_parser = ["on", "off"])]
    floor: String,
    /// RNR retries
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u8).range(0..=6))]
    rnr_retry: u8,
    /// Code of the responder's RNR timer
    #[arg(long, value_name = "CODE", default_value_t = 12, value_parser = clap::value_parser!(u8).range(0..=31))]
    rnr_timer: u8,
    /// Bytes of the responder's memory
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    region: u32,
    /// Where in it the case's work request begins
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    offset: u32,
    /// Bytes of a work request
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    length: u32,
    /// Path MTU
    #[arg(long, value_name = "BYTES", default_value = "1024", value_parser = path_mtu)]
    mtu: Mtu,
    /// Work requests that are posted together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    batch: u16,
    /// Which of them is the bad one, from 0
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    at: u16,
    /// Work requests outstanding when software moves the QP to ERR
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=256))]
    outstanding: u16,
    /// Which work requests complete visibly
    #[arg(long, value_enum, default_value = "all")]
    signaled: Signaled,
    /// What is posted; atomics for no-atomic-right, SENDs for rnr
    #[arg(long, value_enum, default_value = "write")]
    opcode: Opcode,
    /// Number from which QPNs are drawn, and by them the first adaptive point
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn path_mtu(text: &str) -> Result<Mtu, String> {
    let known = [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096];
    let found = known.into_iter().find(|mtu| mtu.bytes().to_string() == text);
    found.ok_or_else(|| "a path MTU is 256, 512, 1024, 2048 or 4096".to_owned())
}

/// Runs the case, and prints what it brought.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.at >= arguments.batch {
        let why = format!("--at {} is behind the last of --batch {}", arguments.at, arguments.batch);
        return Err(Failure::Usage(why));
    }
    let outcome = outcome(arguments)?;
    match arguments.json {
        true => formats::print(formats::PROFILE, outcome),
        false => super::text::print(&outcome),
    }
}

/// Returns what the case brings.
pub(super) fn outcome(arguments: &Arguments) -> Result<Value, Failure> {
    let (file, profile) = chosen(&arguments.name, arguments)?;
    let (peer_file, peer) = chosen(arguments.peer.as_deref().unwrap_or("own"), arguments)?;
    let case = arguments.case;
    let mut access = Access::READ_WRITE | Access::REMOTE_ATOMIC;
    access.set(Access::REMOTE_WRITE | Access::REMOTE_READ, case != Case::NoRight);
    access.set(Access::REMOTE_ATOMIC, case != Case::NoAtomicRight);
    let agreed = Agreed {
        path_mtu: arguments.mtu,
        timeout: arguments.timeout,
        retry_cnt: arguments.retry,
        rnr_retry: arguments.rnr_retry,
        rnr_timer: arguments.rnr_timer,
        access,
    };
    let config = |profile, seed| NicConfig { seed, profile, ..NicConfig::default() };
    let configs = [config(profile, arguments.seed), config(peer, arguments.seed ^ 1 << 32)];
    let memory = [arguments.length.max(ATOMIC) as usize, region(arguments) as usize];
    let mut stage = Stage::new(configs, memory, &agreed);
    stage.near.region.memory.write(0, &vec![0xa5; memory[0]]).expect("within the region");
    let (first_psn, before) = play(&mut stage, arguments)?;
    let after = [counters(&stage.near), counters(&stage.far)];
    let now = stage.now;
    let [near, far] = [&mut stage.near, &mut stage.far].map(|end| end.host.query(now, &end.qp));
    let name = |state: QpState| format!("{state:?}").to_uppercase();
    let mut outcome = report(&stage, arguments, first_psn);
    outcome.extend([
        (
            "counters",
            json!({ "requester": moved(&before[0], &after[0]), "responder": moved(&before[1], &after[1]) }),
        ),
        ("sq_psn_delta", near.sq_psn.distance_from(first_psn).into()),
        ("state", json!({ "requester": name(near.state), "responder": name(far.state) })),
        ("declined", json!(declined(arguments, file.as_ref(), peer_file.as_ref()))),
    ]);
    Ok(outcome.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>().into())
}

/// Returns a profile's file, and the behaviour that the options choose from it. A history that the profile does not
/// have runs as the steady one.
fn chosen(
    name: &str,
    arguments: &Arguments,
) -> Result<(Option<ProfileFile>, Option<&'static Profile>), Failure> {
    if name == "own" {
        return Ok((None, None));
    }
    let file = ProfileFile::find(name).map_err(super::unusable)?;
    let is_known = file.has_history(&arguments.history);
    let history = if is_known { arguments.history.as_str() } else { HISTORIES[0] };
    let profile = file.profile(history, arguments.floor == "off").map_err(super::unusable)?;
    Ok((Some(file), Some(Box::leak(Box::new(profile)))))
}

/// Bytes of the responder's memory: all of a work request's fit, unless they are not to.
fn region(arguments: &Arguments) -> u32 {
    match arguments.case {
        Case::OutOfRange => arguments.region,
        _ => arguments.region.max(arguments.offset.saturating_add(arguments.length.max(ATOMIC))),
    }
}

/// Posts the receives that the case leaves the responder: for `rnr`, none for the bad work request and those behind it.
fn post_receives(stage: &mut Stage, arguments: &Arguments) -> Result<(), roxie_sim::PostError> {
    let count = match arguments.case {
        Case::Rnr => arguments.at,
        // Also for the one before the end of a peer.
        _ => count(arguments) + 1,
    };
    let End { host, qp, region, .. } = &stage.far;
    (0..count).try_for_each(|index| host.post_recv(qp, index.into(), &[region.sge(0, arguments.length)]))
}

/// Number of work requests.
fn count(arguments: &Arguments) -> u16 {
    if arguments.case == Case::Flush { arguments.outstanding } else { arguments.batch }
}

/// Posts what the case needs, and runs to its end. Returns the PSN and the counters with which it begins.
fn play(stage: &mut Stage, arguments: &Arguments) -> Result<(Psn, [Vec<u64>; 2]), Failure> {
    let refused = |error| Failure::Run(format!("the simulated NIC refuses: {error}"));
    post_receives(stage, arguments).map_err(refused)?;
    match arguments.case {
        Case::Silent | Case::Flush => stage.is_joined = false,
        Case::Killed => {
            send(stage, &work_request(arguments, 0, false), arguments.length, false).map_err(refused)?;
            stage.run(stage.now + Nanos::from_millis(1));
            stage.is_joined = false;
            stage
                .far
                .region
                .memory
                .write(0, &vec![0; region(arguments) as usize])
                .expect("within the region");
        }
        _ => {}
    }
    stage.begin();
    let before = [counters(&stage.near), counters(&stage.far)];
    let first_psn = stage.near.host.query(stage.now, &stage.near.qp).sq_psn;
    for index in 0..count(arguments) {
        let is_bad = index == arguments.at;
        let wr = work_request(arguments, index, is_bad);
        send(stage, &wr, length_of(arguments, is_bad), is_bad && arguments.case == Case::BadLkey)
            .map_err(refused)?;
    }
    if arguments.case == Case::Flush {
        stage.run(stage.now + Nanos::from_micros(100));
        stage.fail_requester();
    }
    stage.run(Nanos::MAX);
    Ok((first_psn, before))
}

/// Bytes of a work request: beyond its memory if it is to be too long.
fn length_of(arguments: &Arguments, is_bad: bool) -> u32 {
    match arguments.case {
        Case::TooLong if is_bad => arguments.length + 4096,
        Case::NoAtomicRight if is_bad => ATOMIC,
        _ => arguments.length,
    }
}

/// Returns work request number `index`, without the peer's memory.
fn work_request(arguments: &Arguments, index: u16, is_bad: bool) -> SendWr {
    let opcode = match (arguments.case, arguments.opcode) {
        (Case::Rnr, _) | (_, Opcode::Send) => WrOpcode::Send,
        (Case::NoAtomicRight, _) if is_bad => WrOpcode::FetchAdd,
        (_, Opcode::Write) => WrOpcode::Write,
        (_, Opcode::Read) => WrOpcode::Read,
    };
    let is_last = index + 1 == count(arguments);
    let is_signaled = match arguments.signaled {
        Signaled::All => true,
        Signaled::Last => is_last,
        Signaled::None => false,
    };
    let flags = if is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
    let outside = is_bad && arguments.case == Case::OutOfRange && arguments.offset == 0;
    // Without --offset, from the last byte on.
    let offset = if outside {
        arguments.region - 1
    } else if is_bad {
        arguments.offset
    } else {
        0
    };
    let rkey = u32::from(is_bad && arguments.case == Case::BadRkey);
    SendWr {
        wr_id: index.into(),
        opcode,
        flags,
        remote_addr: offset.into(),
        rkey: RKey(rkey),
        ..SendWr::default()
    }
}

/// Posts a work request to the peer's memory.
fn send(stage: &mut Stage, wr: &SendWr, length: u32, has_bad_key: bool) -> Result<(), roxie_sim::PostError> {
    let End { host, qp, region, .. } = &stage.near;
    let far = &stage.far.region;
    let wr = SendWr { remote_addr: far.address + wr.remote_addr, rkey: RKey(far.key ^ wr.rkey.0), ..*wr };
    let sge = region.sge(0, length);
    let sge = Sge { lkey: LKey(sge.lkey.0 ^ u32::from(has_bad_key)), ..sge };
    host.post_send(qp, &wr, Payload::Sges(&[sge]))
}

/// Counters by their mlx5 names, where mlx5 has one.
const COUNTERS: [(&str, &str); 20] = [
    ("rx_write_requests", "rx_write_requests"),
    ("rx_read_requests", "rx_read_requests"),
    ("rx_atomic_requests", "rx_atomic_requests"),
    ("out_of_buffer", "out_of_buffer"),
    ("out_of_sequence", "out_of_sequence"),
    ("duplicate_request", "duplicate_request"),
    ("rcvd_rnr_err", "rnr_nak_retry_err"),
    ("packet_seq_err", "packet_seq_err"),
    ("implied_nak_seq_err", "implied_nak_seq_err"),
    ("local_ack_timeout_err", "local_ack_timeout_err"),
    ("resp_local_length_error", "resp_local_length_error"),
    ("resp_cqe_error", "resp_cqe_error"),
    ("req_cqe_error", "req_cqe_error"),
    ("req_remote_invalid_request", "req_remote_invalid_request"),
    ("req_remote_access_errors", "req_remote_access_errors"),
    ("resp_remote_access_errors", "resp_remote_access_errors"),
    ("req_cqe_flush_error", "req_cqe_flush_error"),
    ("retry_exceeded_err", "req_transport_retries_exceeded"),
    ("retry_rnr_exceeded_err", "req_rnr_retries_exceeded"),
    ("roce_adp_retrans", "roce_adp_retrans"),
];

fn counters(end: &End) -> Vec<u64> {
    COUNTERS.iter().map(|(name, _)| end.host.counter(name)).collect()
}

/// Returns the counters that moved.
fn moved(before: &[u64], after: &[u64]) -> Map<String, Value> {
    let names = COUNTERS.iter().map(|(_, name)| *name);
    let deltas = names.zip(after.iter().zip(before)).map(|(name, (after, before))| (name, after - before));
    deltas.filter(|(_, delta)| *delta > 0).map(|(name, delta)| (name.to_owned(), delta.into())).collect()
}

/// Returns what was seen on the wire, in completions and in the peer's memory.
fn report(stage: &Stage, arguments: &Arguments, first_psn: Psn) -> Vec<(&'static str, Value)> {
    let ms = |at: Nanos| (stage.since(at).0 as f64 / 1e3).round() / 1e3;
    let transmissions: Vec<_> = stage
        .transmissions
        .iter()
        .map(|sent| json!({ "ms": ms(sent.at), "psn": Psn::new(sent.psn).distance_from(first_psn), "why": sent.why }))
        .collect();
    let timeouts: Vec<_> = stage
        .timeouts
        .iter()
        .map(|timeout| json!({ "ms": ms(timeout.at), "why": timeout.why, "sends": timeout.sends }))
        .collect();
    let completion = |(at, wc): &(Nanos, roxie::verbs::Wc)| {
        let signaled = work_request(arguments, wc.wr_id as u16, false).flags.contains(SendFlags::SIGNALED);
        json!({ "ms": ms(*at), "index": wc.wr_id, "signaled": signaled, "status": wc.status as u8, "vendor_err": wc.vendor_err })
    };
    let root = stage.completions.iter().find(|(_, wc)| wc.status as u8 != 0).or(stage.completions.last());
    let placed = stage.far.region.bytes(0, region(arguments) as usize);
    let last = placed.iter().rposition(|byte| *byte != 0);
    let case = arguments.case.to_possible_value().map_or_else(String::new, |case| case.get_name().to_owned());
    vec![
        ("profile", arguments.name.clone().into()),
        ("peer", arguments.peer.as_deref().unwrap_or("own").into()),
        ("case", case.into()),
        ("transmissions", transmissions.into()),
        ("timeouts", timeouts.into()),
        ("completions", stage.completions.iter().map(completion).collect()),
        ("placed", json!({ "bytes": placed.iter().filter(|byte| **byte != 0).count(), "last_offset": last })),
        ("sent_packets", stage.transmissions.len().into()),
        ("end_ms", root.map(|(at, _)| ms(*at)).into()),
        ("last_ack_ms", stage.last_answer_ms().into()),
    ]
}

/// Returns what the profiles have no evidence for.
fn declined(
    arguments: &Arguments,
    file: Option<&ProfileFile>,
    peer: Option<&ProfileFile>,
) -> Vec<&'static str> {
    let mut declined = Vec::new();
    let is_refused = matches!(arguments.case, Case::BadRkey | Case::OutOfRange | Case::NoRight);
    if is_refused && peer.is_some_and(|peer| peer.get("responder.range").is_none()) {
        declined.extend(["placed", "counters.responder"]);
    }
    let Some(file) = file else { return declined };
    if is_refused && file.get("requester.sq_psn").is_none() {
        declined.push("sq_psn_delta");
    }
    let is_timed = match arguments.case {
        Case::Silent | Case::Killed => {
            if arguments.floor == "off" {
                file.has_floor_off()
            } else {
                file.has_history(&arguments.history)
            }
        }
        Case::Rnr => file.get("rnr.extra_us").is_some() || arguments.rnr_retry == 0,
        _ => true,
    };
    if !is_timed {
        declined.extend(["transmissions.ms", "timeouts.ms", "completions.ms", "end_ms"]);
    }
    if vendor_errors(arguments).iter().any(|cause| file.get(&format!("vendor_err.{cause}")).is_none()) {
        declined.push("completions.vendor_err");
    }
    if file.get("counters.root_alone").is_none() {
        declined.push("counters.requester");
    }
    declined
}

/// Returns the causes of vendor errors that the case meets.
fn vendor_errors(arguments: &Arguments) -> Vec<&'static str> {
    let root = match arguments.case {
        Case::Silent | Case::Killed => "retries",
        Case::Rnr => "rnr_retries",
        Case::BadRkey | Case::OutOfRange => "remote_access",
        Case::NoRight | Case::NoAtomicRight => "remote_invalid",
        Case::BadLkey => "local_key",
        Case::TooLong => "local_length",
        Case::Flush => "flush_head",
    };
    let has_rest = match arguments.case {
        Case::Flush => arguments.outstanding > 1,
        _ => arguments.at + 1 < arguments.batch,
    };
    [root].into_iter().chain(has_rest.then_some("flush_rest")).collect()
}
