//! `roxie nvme bench`: how fast a namespace is read or written, and whether it keeps what was written.

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use roxie::random::unguessable;
use roxie_nvmeof::command::{Command, io};
use roxie_nvmeof::initiator::Data;
use roxie_options::bytes::bytes;
use roxie_report::failure::{EXIT_CODES, Failure};
use roxie_report::formats;
use roxie_report::output;
use serde_json::json;

use super::initiator::{ConnectOptions, NamespaceOptions, failure};

/// The order of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Order {
    /// One after the other, from the first again after the last
    Sequential,
    /// Any
    Random,
}

/// Measure reads or writes of a namespace
#[derive(Debug, Args)]
#[command(
    long_about = "Reads blocks of a namespace for some seconds, with --depth commands outstanding, and prints rate and \
        latency. --write overwrites blocks of the namespace instead. --verify with it writes a pattern, then reads every \
        written block again and compares.",
    after_help = format!(
        "Examples:\n  roxie nvme bench --port memory --seconds 1            both ends in this process\n  roxie nvme bench \
         192.0.2.1 --size 64K --order sequential\n  roxie nvme bench 192.0.2.1 --write --verify\n\n{EXIT_CODES}"
    )
)]
pub(super) struct Arguments {
    #[command(flatten)]
    connect: ConnectOptions,
    #[command(flatten)]
    namespace: NamespaceOptions,
    /// Write: the data of the namespace is lost
    #[arg(long)]
    write: bool,
    /// Read all that was written, and compare
    #[arg(long, requires = "write")]
    verify: bool,
    /// Bytes of a command: a multiple of the block, 4K or 128K for example
    #[arg(short, long, value_name = "BYTES", value_parser = bytes, default_value = "4K")]
    size: u64,
    /// The order of blocks
    #[arg(long, value_name = "ORDER", default_value = "random")]
    order: Order,
    /// Duration
    #[arg(short = 'D', long, value_name = "SECONDS", default_value_t = 5.0, value_parser = seconds)]
    seconds: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        _ => Err("a number of seconds above 0, up to 86400".into()),
    }
}

/// Steps through places in the chosen order: places are units of the command's size.
struct Places {
    order: Order,
    count: u64,
    next: u64,
    random: u64,
}

impl Places {
    fn next(&mut self) -> u64 {
        match self.order {
            Order::Sequential => {
                let at = self.next;
                self.next = (at + 1) % self.count;
                at
            }
            Order::Random => {
                // xorshift64 (Marsaglia 2003).
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                self.random % self.count
            }
        }
    }
}

/// Fills a command's data, different for each place and each write of it.
fn pattern(place: u64, write: u32, bytes: &mut [u8]) {
    let mut word = (place << 20 ^ u64::from(write)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in bytes.chunks_mut(8) {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

/// Measures.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (connect, options) = (&arguments.connect, &arguments.namespace);
    let mut session = connect.connect(&options.nqn, options.depth)?;
    let initiator = &mut session.initiator;
    let namespace = initiator.namespace(options.namespace).map_err(failure)?;
    let entries = initiator.connect_io().map_err(failure)?;
    let depth = usize::from(options.depth.min(entries));
    let (block, longest) = (1u64 << namespace.block_shift, initiator.longest_transfer() as u64);
    let size = arguments.size;
    if size == 0 || !size.is_multiple_of(block) || size > longest || size / block > namespace.blocks {
        return Err(Failure::Usage(format!(
            "--size {size}: a multiple of the block, {block}, up to {} is possible",
            longest.min(namespace.blocks.saturating_mul(block))
        )));
    }
    let count = namespace.blocks / (size / block);
    let mut places = Places { order: arguments.order, count, next: 0, random: unguessable() | 1 };
    let mut run = Run {
        arguments,
        size,
        blocks: (size / block) as u32,
        under_way: Vec::new(),
        data: vec![0; size as usize],
    };
    // Number of writes of each place, for the comparison.
    let mut writes = vec![0u32; if arguments.verify { count as usize } else { 0 }];
    let mut latency =
        Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).expect("bounds in order, 0 to 5 digits");
    let mut commands = 0u64;
    let start = Instant::now();
    let until = start + Duration::from_secs_f64(arguments.seconds);
    loop {
        while run.under_way.len() < depth && Instant::now() < until {
            let place = places.next();
            // Two writes of one place at a time would leave either.
            if arguments.write && run.under_way.iter().any(|(_, other, _)| *other == place) {
                if count <= depth as u64 {
                    break;
                }
                continue;
            }
            let version = writes.get_mut(place as usize).map_or(0, |version| {
                *version += 1;
                *version
            });
            run.submit(initiator, place, arguments.write.then_some(version))?;
        }
        if run.under_way.is_empty() {
            break;
        }
        let (_, sent, _) = run.finish(initiator)?;
        latency.saturating_record(u64::try_from(sent.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1));
        commands += 1;
    }
    let elapsed = start.elapsed().as_secs_f64();
    let verified = if arguments.verify { Some(verify(&mut run, initiator, &writes, depth)?) } else { None };
    if arguments.write {
        initiator.flush(options.namespace).map_err(failure)?;
    }
    let port = session.port();
    print(arguments, commands, elapsed, &latency, verified, &port)?;
    session.close(connect)
}

/// Reads all written places and compares. Returns their number.
fn verify(
    run: &mut Run<'_>,
    initiator: &mut roxie_nvmeof::initiator::Initiator,
    writes: &[u32],
    depth: usize,
) -> Result<u64, Failure> {
    let mut written =
        (0u64..).zip(writes).filter(|(_, version)| **version > 0).map(|(place, _)| place).peekable();
    let mut verified = 0;
    let mut expected = vec![0; run.size as usize];
    loop {
        while run.under_way.len() < depth
            && let Some(place) = written.next()
        {
            run.submit(initiator, place, None)?;
        }
        if run.under_way.is_empty() {
            return Ok(verified);
        }
        let (place, _, data) = run.finish(initiator)?;
        pattern(place, writes[place as usize], &mut expected);
        if let Some(at) = data.iter().zip(&expected).position(|(is, was)| is != was) {
            return Err(Failure::Run(format!(
                "byte {at} of the {} bytes at block {} is {:#04x}, and {:#04x} was written",
                run.size,
                place * u64::from(run.blocks),
                data[at],
                expected[at]
            )));
        }
        verified += 1;
    }
}

/// Commands under way: identifier, place, and time of sending.
struct Run<'a> {
    arguments: &'a Arguments,
    size: u64,
    blocks: u32,
    under_way: Vec<(u16, u64, Instant)>,
    data: Vec<u8>,
}

impl Run<'_> {
    /// Sends a read of a place, or the given write of it.
    fn submit(
        &mut self,
        initiator: &mut roxie_nvmeof::initiator::Initiator,
        place: u64,
        write: Option<u32>,
    ) -> Result<(), Failure> {
        let lba = place * u64::from(self.blocks);
        let opcode = if write.is_some() { io::WRITE } else { io::READ };
        let command = Command::blocks(opcode, self.arguments.namespace.namespace, lba, self.blocks);
        let sent = Instant::now();
        let data = match write {
            Some(version) => {
                pattern(place, version, &mut self.data);
                Data::Out(&self.data)
            }
            None => Data::In(self.size as usize),
        };
        let id = initiator.submit(command, data).map_err(failure)?;
        let id = id.ok_or_else(|| Failure::Run("the queue is full".into()))?;
        self.under_way.push((id, place, sent));
        Ok(())
    }

    /// Waits for a command. Returns its place, the time of sending, and the data.
    fn finish(
        &mut self,
        initiator: &mut roxie_nvmeof::initiator::Initiator,
    ) -> Result<(u64, Instant, Vec<u8>), Failure> {
        let finished = initiator.finish().map_err(failure)?;
        let at = self.under_way.iter().position(|(id, _, _)| *id == finished.response.id);
        let at =
            at.ok_or_else(|| Failure::Peer(format!("a response to command {}", finished.response.id)))?;
        let (_, place, sent) = self.under_way.swap_remove(at);
        if !finished.response.status.is_success() {
            let lba = place * u64::from(self.blocks);
            return Err(Failure::Peer(format!("the command at block {lba}: {}", finished.response.status)));
        }
        Ok((place, sent, finished.data))
    }
}

fn print(
    arguments: &Arguments,
    commands: u64,
    elapsed: f64,
    latency: &Histogram<u64>,
    verified: Option<u64>,
    port: &serde_json::Value,
) -> Result<(), Failure> {
    let operation = if arguments.write { "write" } else { "read" };
    let (rate, megabytes) = (commands as f64 / elapsed, (commands * arguments.size) as f64 / elapsed / 1e6);
    let us = |percentile: f64| latency.value_at_percentile(percentile) as f64 / 1e3;
    if arguments.json {
        let mut result = json!({
            "operation": operation, "bytes": arguments.size, "depth": arguments.namespace.depth,
            "commands": commands, "seconds": elapsed, "commands_per_second": rate, "megabytes_per_second": megabytes,
            "latency_us": {"p50": us(50.0), "p99": us(99.0), "p99.9": us(99.9), "max": latency.max() as f64 / 1e3},
        });
        result["verified"] = verified.into();
        if let (Some(all), Some(port)) = (result.as_object_mut(), port.as_object()) {
            all.extend(port.clone());
        }
        return formats::print(formats::NVME, result);
    }
    output::line(format_args!(
        "{operation} of {} B, depth {}: {commands} commands in {elapsed:.2} s, {rate:.0}/s, {megabytes:.1} MB/s",
        arguments.size, arguments.namespace.depth
    ))?;
    output::line(format_args!(
        "latency: p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us, max {:.1} us",
        us(50.0),
        us(99.0),
        us(99.9),
        latency.max() as f64 / 1e3
    ))?;
    if let Some(verified) = verified {
        output::line(format_args!("{verified} places read again: all as written"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_differ_by_place_and_write() {
        let of = |place, write| {
            let mut bytes = [0; 20];
            pattern(place, write, &mut bytes);
            bytes
        };
        assert_eq!(of(1, 1), of(1, 1));
        assert!(of(1, 1) != of(1, 2) && of(1, 1) != of(2, 1));
    }

    #[test]
    fn places_stay_inside_the_namespace() {
        for order in [Order::Sequential, Order::Random] {
            let mut places = Places { order, count: 3, next: 0, random: 1 };
            let seen: Vec<u64> = (0..300).map(|_| places.next()).collect();
            assert!(seen.iter().all(|place| *place < 3) && (0..3).all(|place| seen.contains(&place)));
        }
    }
}
