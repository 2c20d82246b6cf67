//! Compares a disk over NVMe/TCP with one over RDMA: the kernel's target in one guest, then Roxie's, and the kernel's
//! host in another.

use std::time::Duration;

use interop::error::Error;
use interop::guest::{Adapter, Files, Guest, Image, Kernel, output_folder};
use interop::local::program::roxie;
use interop::network::{Namespace, address};
use interop::peer::Peer;
use interop::rows::Family;

use super::guest_script::words;
use super::pair::last_words;

const ROUNDS: usize = 3;
const TARGET: u8 = 2;
const HOST: u8 = 3;
const NQN: &str = "nqn.2026-11.example:versus";
const SERVICE: &str = "4420";
/// Length of the disk in memory, which each target serves.
const KIB: u32 = 64 << 10;
const ENDS_WITHIN: Duration = Duration::from_secs(90);

/// What serves the disk, and how.
#[derive(Clone, Copy)]
enum Media {
    /// The kernel's target over this transport.
    Kernel(&'static str),
    /// Roxie's target on this port; the host is on rdma_rxe.
    Roxie(&'static str),
}

/// The media of each figure, in order; ratios are to the first.
const MEDIA: [(&str, Media); 5] = [
    ("NVMe/TCP", Media::Kernel("tcp")),
    ("nvmet on rxe", Media::Kernel("rdma")),
    ("xdp", Media::Roxie("xdp")),
    ("packet", Media::Roxie("packet")),
    ("udp", Media::Roxie("udp")),
];

/// A figure: its name, fio's options, and the field of the script's line (KiB and operations a second of reads, then of
/// writes).
struct Figure {
    what: &'static str,
    options: &'static str,
    field: usize,
}

const FIGURES: [Figure; 4] = [
    Figure { what: "reads of 128 KiB, depth 8, MB/s", options: "read 128k 8", field: 0 },
    Figure { what: "writes of 128 KiB, depth 8, MB/s", options: "write 128k 8", field: 2 },
    Figure { what: "reads of 4 KiB, depth 1, a second", options: "randread 4k 1", field: 1 },
    Figure { what: "reads of 4 KiB, depth 32, a second", options: "randread 4k 32", field: 1 },
];

/// Results of each round, by figure and medium.
type Values = [[Vec<f64>; MEDIA.len()]; FIGURES.len()];

/// Measures all figures, and prints the table.
pub(crate) fn disks() -> Result<(), Error> {
    let image = Image::build(Kernel::Newest, false)?;
    let namespace = Namespace::create()?;
    let start = |number: u8| {
        let log = output_folder().join(format!("disks-{number}.log"));
        Guest::start_with(&image, &namespace, number, &log, Files::Host, Adapter::Plain)
    };
    let (target, host) = (start(TARGET)?, start(HOST)?);
    let (mut target, mut host) = (target.peer(&namespace)?, host.peer(&namespace)?);
    target.release()?;
    host.release()?;
    let mut values = Values::default();
    for round in 1..=ROUNDS {
        for (at, (name, media)) in MEDIA.into_iter().enumerate() {
            eprintln!("versus: round {round} of {ROUNDS}, {name}");
            let measured = with_disk(media, &mut target, &mut host)?;
            values.iter_mut().zip(measured).for_each(|(figure, value)| figure[at].push(value));
        }
    }
    println!("Guests of Linux {}, one emulated processor each", host.about().kernel);
    print(&mut values);
    Ok(())
}

/// Serves a disk, measures all figures on it, and ends both.
fn with_disk(media: Media, target: &mut Peer, host: &mut Peer) -> Result<Vec<f64>, Error> {
    let here = address(TARGET, Family::V4);
    let (transport, job) = match media {
        Media::Kernel(transport) => {
            run(target, "roxie-nvme", &format!("serve {here} {SERVICE} {NQN} {KIB} {transport}"))?;
            (transport, None)
        }
        Media::Roxie(port) => {
            run(target, "rdma", "link delete rxe0")?;
            let program = roxie()?.display().to_string();
            let line =
                format!("/host {program} nvme target --dev eth0 --port={port} --nqn {NQN} memory:{KIB}k");
            ("rdma", Some(target.spawn("chroot", &words(&line))?))
        }
    };
    let connect = format!("connect {here} {SERVICE} {NQN} 1 {transport}");
    retried(host, "roxie-nvme", &connect)?;
    let mut values = Vec::new();
    for Figure { options, field, .. } in &FIGURES {
        let output = run(host, "roxie-nvme", &format!("measure {options}"))?;
        let numbers = output.trim().split(';').map(str::parse).collect::<Result<Vec<f64>, _>>();
        let numbers = numbers.map_err(|_| Error::Guest(format!("fio printed no figures: {output}")))?;
        let value = numbers.get(*field).ok_or_else(|| Error::Guest(format!("too few figures: {output}")))?;
        // KiB as MB, operations as they are.
        values.push(if field % 2 == 0 { value * 1024.0 / 1e6 } else { *value });
    }
    run(host, "roxie-nvme", "leave")?;
    match job {
        None => drop(run(target, "roxie-nvme", "stop")?),
        Some(job) => {
            // `roxie nvme` becomes this program.
            run(target, "killall", "-TERM roxie-storage")?;
            target.wait(job, ENDS_WITHIN)?;
            run(target, "rdma", "link add rxe0 type rxe netdev eth0")?;
        }
    }
    Ok(values)
}

/// Runs a program of a guest, which must end well, and returns its output.
fn run(peer: &mut Peer, name: &str, line: &str) -> Result<String, Error> {
    let job = peer.spawn(name, &words(line))?;
    let ended = peer.wait(job, ENDS_WITHIN)?;
    match ended.code {
        Some(0) => Ok(ended.output),
        _ => Err(Error::Guest(format!("{name} {line}: {}", last_words(&ended)))),
    }
}

/// Likewise, several times: a target that has just been started may not listen yet.
fn retried(peer: &mut Peer, name: &str, line: &str) -> Result<String, Error> {
    let mut last = run(peer, name, line);
    for _ in 0..4 {
        if last.is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
        last = run(peer, name, line);
    }
    last
}

fn print(values: &mut Values) {
    print!("{:<38}", "");
    MEDIA.iter().for_each(|(name, _)| print!("{name:>22}"));
    MEDIA[1..].iter().for_each(|(name, _)| print!("{name:>14}"));
    println!();
    for (figure, values) in FIGURES.iter().zip(values) {
        values.iter_mut().for_each(|sorted| sorted.sort_by(f64::total_cmp));
        print!("{:<38}", figure.what);
        for sorted in values.iter() {
            let (least, median, most) = (sorted[0], sorted[ROUNDS / 2], sorted[ROUNDS - 1]);
            print!("{:>22}", format!("{median:.0} ({least:.0}-{most:.0})"));
        }
        let [tcp, others @ ..] = values.each_ref().map(|sorted| sorted[ROUNDS / 2]);
        others.into_iter().for_each(|median| print!("{:>14.2}", median / tcp));
        println!();
    }
    println!("Medians of {ROUNDS} rounds (least to most). Ratios to NVMe/TCP: more is better.");
}
