//! `roxie nvme read` and `roxie nvme write`: blocks to and from files.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use clap::Args;
use roxie_nvmeof::command::{Command, io as opcode};
use roxie_nvmeof::identify::Namespace;
use roxie_nvmeof::initiator::{Data, Finished, Initiator};
use roxie_report::failure::{EXIT_CODES, Failure};
use roxie_report::output;

use super::initiator::{ConnectOptions, NamespaceOptions, failure};

/// Read blocks of a namespace
#[derive(Debug, Args)]
#[command(
    long_about = "Reads blocks of a namespace, and writes them to a file or to standard output.",
    after_help = format!(
        "Examples:\n  roxie nvme read 192.0.2.1 -o disk.img          the whole namespace\n  roxie nvme read 192.0.2.1 \
         --lba 2048 --blocks 8 | xxd\n\n{EXIT_CODES}"
    )
)]
pub(super) struct ReadArguments {
    #[command(flatten)]
    connect: ConnectOptions,
    #[command(flatten)]
    namespace: NamespaceOptions,
    /// First block
    #[arg(long, value_name = "N", default_value_t = 0)]
    lba: u64,
    /// Number of blocks [default: all up to the end]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    blocks: Option<u64>,
    /// Write to this file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Write blocks of a namespace
#[derive(Debug, Args)]
#[command(
    long_about = "Writes a file or standard input to blocks of a namespace, and flushes it. The input must be whole \
        blocks.",
    after_help = format!(
        "Examples:\n  roxie nvme write 192.0.2.1 -i disk.img          from block 0 on\n  head -c 4096 /dev/zero | roxie nvme \
         write 192.0.2.1 --lba 2048\n\n{EXIT_CODES}"
    )
)]
pub(super) struct WriteArguments {
    #[command(flatten)]
    connect: ConnectOptions,
    #[command(flatten)]
    namespace: NamespaceOptions,
    /// First block
    #[arg(long, value_name = "N", default_value_t = 0)]
    lba: u64,
    /// Read from this file [default: standard input]
    #[arg(short, long, value_name = "FILE")]
    input: Option<PathBuf>,
}

/// Reads blocks.
pub(super) fn read(arguments: &ReadArguments) -> Result<(), Failure> {
    let (connect, options) = (&arguments.connect, &arguments.namespace);
    let mut session = connect.connect(&options.nqn, options.depth)?;
    let initiator = &mut session.initiator;
    let namespace = initiator.namespace(options.namespace).map_err(failure)?;
    let rest = namespace.blocks.saturating_sub(arguments.lba);
    let count = arguments.blocks.unwrap_or(rest);
    if count == 0 || count > rest {
        return Err(beyond(options.namespace, arguments.lba, count, &namespace));
    }
    let mut out: Box<dyn Write> = match &arguments.output {
        Some(path) => Box::new(
            File::create(path).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?,
        ),
        None => Box::new(io::stdout().lock()),
    };
    initiator.connect_io().map_err(failure)?;
    let step = (initiator.longest_transfer() >> namespace.block_shift) as u64;
    if step == 0 {
        let (block, most) = (1u64 << namespace.block_shift, initiator.longest_transfer());
        return Err(Failure::Peer(format!("the target moves {most} bytes at most, and a block has {block}")));
    }
    let mut pipe = Pipe::default();
    let (mut at, end) = (arguments.lba, arguments.lba + count);
    while at < end {
        let blocks = step.min(end - at) as u32;
        let command = Command::blocks(opcode::READ, options.namespace, at, blocks);
        pipe.submit(initiator, command, Data::In((blocks as usize) << namespace.block_shift), &mut out)?;
        at += u64::from(blocks);
    }
    pipe.drain(initiator, &mut out)?;
    out.flush().map_err(Failure::Output)?;
    if let Some(path) = &arguments.output {
        output::note(format_args!(
            "{count} blocks of {} B read to {}",
            1u64 << namespace.block_shift,
            path.display()
        ));
    }
    session.close(connect)
}

fn beyond(id: u32, lba: u64, count: u64, namespace: &Namespace) -> Failure {
    Failure::Usage(format!(
        "{count} blocks from {lba} on are not in namespace {id}: it has {} blocks of {} B",
        namespace.blocks,
        1u64 << namespace.block_shift
    ))
}

/// Writes blocks.
pub(super) fn write(arguments: &WriteArguments) -> Result<(), Failure> {
    let (connect, options) = (&arguments.connect, &arguments.namespace);
    let mut input: Box<dyn Read> = match &arguments.input {
        Some(path) => Box::new(
            File::open(path).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?,
        ),
        None => Box::new(io::stdin().lock()),
    };
    // The length of a regular file is checked before anything is written.
    let known =
        arguments.input.as_ref().and_then(|path| path.metadata().ok()).filter(std::fs::Metadata::is_file);
    let mut session = connect.connect(&options.nqn, options.depth)?;
    let initiator = &mut session.initiator;
    let namespace = initiator.namespace(options.namespace).map_err(failure)?;
    let block = 1usize << namespace.block_shift;
    let check = |length: u64| {
        if !length.is_multiple_of(block as u64) {
            return Err(Failure::Usage(format!("{length} bytes are no whole number of blocks of {block} B")));
        }
        let count = length / block as u64;
        if count > namespace.blocks.saturating_sub(arguments.lba) {
            return Err(beyond(options.namespace, arguments.lba, count, &namespace));
        }
        Ok(())
    };
    if let Some(file) = &known {
        check(file.len())?;
    }
    initiator.connect_io().map_err(failure)?;
    let mut pipe = Pipe::default();
    let (mut bytes, mut done) = (vec![0; initiator.longest_transfer()], 0u64);
    loop {
        let length = fill(&mut input, &mut bytes)?;
        if length == 0 {
            break;
        }
        check(done + length as u64)?;
        let blocks = (length / block) as u32;
        let at = arguments.lba + done / block as u64;
        let command = Command::blocks(opcode::WRITE, options.namespace, at, blocks);
        pipe.submit(initiator, command, Data::Out(&bytes[..length]), &mut io::sink())?;
        done += length as u64;
    }
    pipe.drain(initiator, &mut io::sink())?;
    initiator.flush(options.namespace).map_err(failure)?;
    output::note(format_args!("{} blocks of {block} B written and flushed", done / block as u64));
    session.close(connect)
}

/// Reads until the buffer is full or the input ends. Returns the number of bytes.
fn fill(input: &mut dyn Read, bytes: &mut [u8]) -> Result<usize, Failure> {
    let mut length = 0;
    while length < bytes.len() {
        match input.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::Run(format!("cannot read the input: {error}"))),
        }
    }
    Ok(length)
}

/// Commands that are kept at most, with their data: a target that never answers one of them must not have all that
/// follow read. The longest queue has 1,023 commands.
const MOST_UNDER_WAY: usize = 1024;

/// Commands under way, in their order, so that their data leaves in the same order.
#[derive(Default)]
struct Pipe {
    under_way: VecDeque<(u16, Command, Option<Finished>)>,
}

impl Pipe {
    /// Sends a command, after others have finished if the queue is full.
    fn submit(
        &mut self,
        initiator: &mut Initiator,
        command: Command,
        data: Data<'_>,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        loop {
            if self.under_way.len() >= MOST_UNDER_WAY {
                self.finish_one(initiator, out)?;
                continue;
            }
            match initiator.submit(command, data).map_err(failure)? {
                Some(id) => {
                    self.under_way.push_back((id, command, None));
                    return Ok(());
                }
                None => self.finish_one(initiator, out)?,
            }
        }
    }

    fn drain(&mut self, initiator: &mut Initiator, out: &mut dyn Write) -> Result<(), Failure> {
        while !self.under_way.is_empty() {
            self.finish_one(initiator, out)?;
        }
        Ok(())
    }

    fn finish_one(&mut self, initiator: &mut Initiator, out: &mut dyn Write) -> Result<(), Failure> {
        let finished = initiator.finish().map_err(failure)?;
        let id = finished.response.id;
        // An identifier is used again once its command has finished: the open one is meant.
        let open = self.under_way.iter_mut().find(|(other, _, finished)| *other == id && finished.is_none());
        let (_, command, slot) = open.ok_or_else(|| Failure::Peer(format!("a response to command {id}")))?;
        if !finished.response.status.is_success() {
            return Err(Failure::Peer(format!("{}: {}", command.title(false), finished.response.status)));
        }
        *slot = Some(finished);
        while let Some((_, _, Some(finished))) = self.under_way.front() {
            out.write_all(&finished.data).map_err(Failure::Output)?;
            self.under_way.pop_front();
        }
        Ok(())
    }
}
