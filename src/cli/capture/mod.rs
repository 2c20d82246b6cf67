//! `roxie capture`: the frames of a program or NIC that runs, with the NIC's reasons.

mod choice;
pub(crate) mod extcap;
mod frames;
mod session;

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use roxie_report::failure::Failure;
use roxie_report::formats;
use roxie_report::output;
use roxie_report::signals;
use serde_json::json;

use self::choice::{Chosen, Wanted};
use self::session::{Ending, Session, Sink};
use crate::decode::Style;

const LONG_ABOUT: &str = "Captures the frames of a program that runs, or of a NIC (`roxie nic`) that runs, from now on. The program needs no \
                          option and is not restarted; when the capture ends, it goes on as before.\n\nWithout -w, each packet is \
                          printed as `roxie decode` does. With -w, a file in pcapng is written, which `roxie decode` and Wireshark \
                          read. A comment of each packet says what the NIC did with it, and why.\n\nA program is captured by its own \
                          user and by root: a capture shows payload. One capture of a device runs at a time. The program never waits \
                          for the reader: if that is slower than the traffic for long, packets are left out, and the end of the \
                          capture says how many (interface statistics of pcapng: isb_ifdrop). --snaplen makes the reader faster.\n\n\
                          The capture ends at Ctrl-C, after --count or --seconds, or when the program ends. Of a program that `roxie \
                          nic` serves, capture the NIC: its frames are those of all its programs. --pid finds programs in other \
                          network namespaces as well, which takes root.";

const AFTER_HELP: &str = "Examples:\n  roxie capture                              the only program with a device, a line a packet\n  roxie capture \
                          --pid 4242 -w run.pcapng     to a file, until Ctrl-C or the program's end\n  roxie capture --dev roxie0-4242 \
                          --count 100 --json | jq .opcode_name\n  roxie capture --pid 4242 --snaplen 128 -w - | wireshark -k -i -\n\n\
                          Exit codes: 0 the capture has ended, 1 the run failed, 2 wrong usage, 3 there is no such device, or it may \
                          not be captured.";

/// Capture the packets of a program or NIC that runs
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The process to capture (`roxie show processes` lists them)
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// The device to capture: its name (roxie0), with the process (roxie0-4242), or its interface
    #[arg(long, value_name = "NAME")]
    dev: Option<String>,
    /// Write pcapng to this file, or to standard output (-), instead of printing packets
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Keep so many bytes of each packet [default: all]
    #[arg(short, long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    snaplen: Option<u32>,
    /// End after so many packets
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after so many seconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Print all fields of each packet, one header a line
    #[arg(short, long, conflicts_with_all = ["file", "json"])]
    verbose: bool,
    /// Print JSON: an object when the capture begins, one a packet without -w, and one at the end
    #[arg(long)]
    json: bool,
    /// Do not report the beginning and the end of the capture
    #[arg(short, long)]
    quiet: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match capture(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("capture"),
    }
}

fn capture(arguments: &Arguments) -> Result<(), Failure> {
    let to_stdout = arguments.file.as_ref().is_some_and(|file| file.as_os_str() == "-");
    if to_stdout && arguments.json {
        return Err(Failure::Usage("-w - leaves no room on standard output for --json: give -w FILE".into()));
    }
    if to_stdout && io::stdout().is_terminal() {
        return Err(Failure::Usage(
            "-w - writes bytes that are no text, and standard output is a terminal".into(),
        ));
    }
    // Block signals before any thread starts.
    let signals = signals::catch_in_command()?;
    let wanted = Wanted { pid: arguments.pid, name: arguments.dev.as_deref() };
    let chosen = wanted.choose()?;
    let sink = match &arguments.file {
        None => Sink::Decoded(Style { json: arguments.json, verbose: arguments.verbose }),
        Some(_) if to_stdout => {
            // Not the locked standard output of the library, which looks for line ends.
            let out = io::stdout().as_fd().try_clone_to_owned().map_err(Failure::Output)?;
            Sink::Stream(File::from(out))
        }
        Some(path) => Sink::Stream(
            // Emptied later: a device that refuses costs no file.
            File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
                .map_err(|error| Failure::Run(format!("cannot write {}: {error}", path.display())))?,
        ),
    };
    let frames = chosen.attach(arguments.snaplen.unwrap_or(0))?;
    if let Sink::Stream(file) = &sink
        && !to_stdout
    {
        // Fails for what has no length: pipes and devices.
        let _ = file.set_len(0);
    }
    report_begin(arguments, &chosen)?;
    let session = Session::start(frames, sink, arguments.count)?;
    let ending = session.wait(&signals, arguments.seconds.map(|n| Duration::from_secs(n.into())))?;
    report_end(arguments, &ending)
}

fn report_begin(arguments: &Arguments, chosen: &Chosen) -> Result<(), Failure> {
    let device = &chosen.device;
    if arguments.json {
        return formats::print(
            formats::CAPTURE,
            json!({
                "event": "ready", "pid": device.pid, "uid": device.uid, "name": device.name, "device": device.device,
                "interface": device.interface, "port": device.port,
            }),
        );
    }
    if !arguments.quiet {
        output::note(format_args!("capturing {chosen}"));
    }
    Ok(())
}

fn report_end(arguments: &Arguments, ending: &Ending) -> Result<(), Failure> {
    if arguments.json {
        return formats::print(
            formats::CAPTURE,
            json!({
                "event": "end", "ended_by": ending.cause.name(), "captured": ending.counts.captured,
                "dropped": ending.counts.dropped, "seen": ending.counts.seen, "is_whole": ending.counts.is_whole,
            }),
        );
    }
    // Lost packets are said in any case.
    if !arguments.quiet || ending.counts.dropped > 0 {
        output::note(ending);
    }
    Ok(())
}
