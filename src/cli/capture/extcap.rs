//! `roxie extcap`: running devices as interfaces of Wireshark.
//!
//! Wireshark starts each program of its extcap folders, with one of a few questions, or to capture into a pipe
//! (<https://www.wireshark.org/docs/wsdg_html_chunked/ChCaptureExtcap.html>).

use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use roxie::host::inspect::Snapshot;
use roxie_report::failure::Failure;
use roxie_report::output;
use roxie_report::signals;

use super::choice::{Wanted, name_of, running};
use super::session::{Session, Sink};

/// Name of the link in an extcap folder, under which the program is `roxie extcap`.
pub(crate) const LINK: &str = "roxie-extcap";

const LONG_ABOUT: &str = "Speaks to Wireshark as one of its capture programs (extcap): each running device is an interface there, as \
                          roxie0-PID, and its packets have the NIC's reasons as comments.\n\nWireshark and tshark find the program \
                          by a link named roxie-extcap in their extcap folder (`tshark -G folders`). The Debian package has it. \
                          Without, make it yourself:\n\n  ln -s \"$(command -v roxie)\" \
                          ~/.local/lib/wireshark/extcap/roxie-extcap\n\nBefore Wireshark 4.2 that folder is \
                          ~/.config/wireshark/extcap.\n\nDevices of your own programs in Wireshark's network namespace \
                          are listed, for root those of all users. Select packets by display filters: there are no capture filters.";

const AFTER_HELP: &str = "Examples:\n  tshark -D                                  lists roxie0-4242 among the interfaces\n  tshark -i roxie0-4242 \
                          -c 10\n  roxie extcap --extcap-interfaces           what Wireshark asks first\n\nExit codes: 0 done, 1 the run \
                          failed, 2 wrong usage, 3 there is no such device, or it may not be captured.";

/// Show running devices to Wireshark as interfaces
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// List the interfaces
    #[arg(long)]
    extcap_interfaces: bool,
    /// Version of Wireshark
    #[arg(long, value_name = "VERSION", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    extcap_version: Option<String>,
    /// The interface, as listed
    #[arg(long, value_name = "NAME")]
    extcap_interface: Option<String>,
    /// Print the link types of the interface
    #[arg(long, requires = "extcap_interface")]
    extcap_dlts: bool,
    /// Print the options of the interface
    #[arg(long, requires = "extcap_interface")]
    extcap_config: bool,
    /// A capture filter: refused
    #[arg(long, value_name = "FILTER")]
    extcap_capture_filter: Option<String>,
    /// Capture into the pipe
    #[arg(long, requires = "extcap_interface", requires = "fifo")]
    capture: bool,
    /// The pipe
    #[arg(long, value_name = "PIPE")]
    fifo: Option<PathBuf>,
    /// Keep so many bytes of each packet; 0 keeps all
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    snaplen: u32,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match answer(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("extcap"),
    }
}

fn answer(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.capture {
        return capture(arguments);
    }
    if arguments.extcap_interfaces {
        return interfaces();
    }
    if arguments.extcap_dlts {
        return output::line("dlt {number=1}{name=EN10MB}{display=Ethernet}");
    }
    if arguments.extcap_config {
        return output::line(
            "arg {number=0}{call=--snaplen}{display=Bytes of each packet}{type=unsigned}{default=0}\
             {tooltip=0 keeps all. Fewer bytes keep up with faster traffic.}",
        );
    }
    if let Some(filter) = &arguments.extcap_capture_filter {
        // Wireshark takes any text here for the reason why a filter is invalid.
        return if filter.is_empty() { Ok(()) } else { output::line(NO_FILTER) };
    }
    Err(Failure::Usage(
        "Wireshark starts this command: `roxie capture` is the one for the command line".into(),
    ))
}

const NO_FILTER: &str = "the frames of a program come without a capture filter: use a display filter";

fn interfaces() -> Result<(), Failure> {
    output::line(format_args!("extcap {{version={}}}{{display=Roxie}}", env!("CARGO_PKG_VERSION")))?;
    // Wireshark shows the list of a program that fails as empty: no more is to be said.
    let devices = running().unwrap_or_default();
    devices.iter().try_for_each(|device| output::line(sentence(device)))
}

fn sentence(device: &Snapshot) -> String {
    // Braces end a value.
    let plain = |text: &dyn fmt::Display| text.to_string().replace(['{', '}'], "_");
    let Snapshot { name, pid, interface, .. } = device;
    let whose = if device.clients.is_empty() { "" } else { ", all programs of this NIC" };
    format!(
        "interface {{value={}}}{{display=RoCE of {} (process {pid}) on {}{whose}}}",
        plain(&name_of(device)),
        plain(name),
        plain(interface),
    )
}

fn capture(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.extcap_capture_filter.as_ref().is_some_and(|filter| !filter.is_empty()) {
        return Err(Failure::Usage(NO_FILTER.to_owned()));
    }
    let signals = signals::catch_in_command()?;
    let wanted = Wanted { pid: None, name: arguments.extcap_interface.as_deref() };
    let chosen = wanted.choose()?;
    let fifo = arguments.fifo.as_deref().unwrap_or_else(|| unreachable!("--capture requires it"));
    // Blocks until Wireshark has opened the other end.
    let pipe = File::options()
        .write(true)
        .open(fifo)
        .map_err(|error| Failure::Run(format!("cannot open {}: {error}", fifo.display())))?;
    let frames = chosen.attach(arguments.snaplen)?;
    let ending = Session::start(frames, Sink::Stream(pipe), None)?.wait(&signals, None)?;
    if ending.counts.dropped > 0 {
        output::note(&ending);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_sentence_cannot_be_broken_by_names() {
        let device = Snapshot {
            pid: 7,
            device: "roxie0".into(),
            name: "a}{value=b".into(),
            interface: "eth0".into(),
            ..Snapshot::default()
        };
        assert_eq!(
            sentence(&device),
            "interface {value=roxie0-7}{display=RoCE of a__value=b (process 7) on eth0}"
        );
    }
}
