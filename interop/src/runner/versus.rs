//! Compares perftest on rdma_rxe and on Roxie, on one machine without an RDMA adapter.
//!
//! Two guests of one kernel, each with one emulated processor and the same adapter, on a bridge. A round measures each
//! figure on rdma_rxe and on Roxie over each port, so that other load on this host affects all.

use std::time::Duration;

use interop::error::Error;
use interop::guest::{Adapter, Files, Guest, Image, Kernel, output_folder};
use interop::network::Namespace;
use interop::peer::Peer;

use super::ends::{End, Figure, On};
use super::pair::last_words;

const ROUNDS: usize = 3;
/// Server and client.
const GUESTS: [u8; 2] = [2, 3];
/// The media of each figure, in order; ratios are to the first.
const MEDIA: [On; 4] =
    [On::Rxe, On::Roxie(&["--port", "xdp"]), On::Roxie(&["--port", "packet"]), On::Roxie(&["--port", "udp"])];
/// The first medium that needs the UDP port, on which rdma_rxe listens. So do those behind it.
const FIRST_ON_PORT: usize = 2;
const FIGURES: [Figure; 5] = [
    Figure::bandwidth("WRITE 64 KiB, MB/s", "ib_write_bw -m 4096 -s 65536 -D 3"),
    Figure::bandwidth("READ 64 KiB, MB/s", "ib_read_bw -m 4096 -s 65536 -o 16 -D 3"),
    Figure::rate("SEND 64 bytes, millions a second", "ib_send_bw -m 4096 -s 64 -D 3"),
    Figure::latency("SEND 8 bytes, one way, us", "ib_send_lat -m 4096 -s 8 -n 1000"),
    Figure::latency("WRITE 8 bytes, one way, us", "ib_write_lat -m 4096 -s 8 -n 1000"),
];
const RDMA_WITHIN: Duration = Duration::from_secs(10);

/// Results of each round, by figure and medium.
type Values = [[Vec<f64>; MEDIA.len()]; FIGURES.len()];

/// Measures all figures, and prints the table.
pub(crate) fn versus() -> Result<(), Error> {
    let image = Image::build(Kernel::Newest, false)?;
    let namespace = Namespace::create()?;
    let mut guests = Vec::new();
    for number in GUESTS {
        let log = output_folder().join(format!("versus-{number}.log"));
        guests.push(Guest::start_with(&image, &namespace, number, &log, Files::Host, Adapter::Plain)?);
    }
    let (mut server, mut client) = (guests[0].peer(&namespace)?, guests[1].peer(&namespace)?);
    let mut values = measured(&mut server, &mut client)?;
    println!("Guests of Linux {}, one emulated processor each", server.about().kernel);
    print(&mut values);
    Ok(())
}

fn measured(server: &mut Peer, client: &mut Peer) -> Result<Values, Error> {
    server.release()?;
    client.release()?;
    let mut values = Values::default();
    for round in 1..=ROUNDS {
        for (at, on) in MEDIA.into_iter().enumerate() {
            if at == FIRST_ON_PORT {
                both(server, client, "link delete rxe0")?;
            }
            for (figure, values) in FIGURES.iter().zip(&mut values) {
                eprintln!("versus: round {round} of {ROUNDS}, {}, {}", name(on), figure.what);
                let (mut local, mut remote) =
                    (End::Guest(GUESTS[0], server, on), End::Guest(GUESTS[1], client, on));
                values[at].push(figure.measure(&mut local, &mut remote)?);
            }
        }
        both(server, client, "link add rxe0 type rxe netdev eth0")?;
    }
    Ok(values)
}

fn print(values: &mut Values) {
    print!("{:<34}", "");
    MEDIA.iter().for_each(|on| print!("{:>26}", name(*on)));
    MEDIA[1..].iter().for_each(|on| print!("{:>8}", name(*on)));
    println!();
    for (figure, values) in FIGURES.iter().zip(values) {
        values.iter_mut().for_each(|sorted| sorted.sort_by(f64::total_cmp));
        print!("{:<34}", figure.what);
        values.iter().for_each(|sorted| print!("{:>26}", shown(sorted)));
        let [rxe, roxie @ ..] = values.each_ref().map(|sorted| sorted[ROUNDS / 2]);
        roxie.into_iter().for_each(|median| print!("{:>8.2}", figure.ratio(rxe, median)));
        println!();
    }
    println!("Medians of {ROUNDS} rounds (least to most). Ratios to rdma_rxe: more is better.");
}

/// Formats the median of sorted values, with their range.
fn shown(sorted: &[f64]) -> String {
    let (least, median, most) = (sorted[0], sorted[ROUNDS / 2], sorted[ROUNDS - 1]);
    let places = if median < 1.0 { 4 } else { 0 };
    format!("{median:.places$} ({least:.places$}-{most:.places$})")
}

fn name(on: On) -> &'static str {
    match on {
        On::Rxe => "rdma_rxe",
        On::Roxie(options) => options.last().copied().unwrap_or_default(),
    }
}

/// Runs `rdma` in both guests.
fn both(server: &mut Peer, client: &mut Peer, words: &str) -> Result<(), Error> {
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    for peer in [server, client] {
        let job = peer.spawn("rdma", &words)?;
        let ended = peer.wait(job, RDMA_WITHIN)?;
        if ended.code != Some(0) {
            return Err(Error::Guest(format!("rdma {}: {}", words.join(" "), last_words(&ended))));
        }
    }
    Ok(())
}
