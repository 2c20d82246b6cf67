//! The frame of commands that serve until a signal: `nvme target` and `nfs serve`.

use std::fmt::Display;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use roxie::host::{ConnectionManager, DialError};
use roxie_options::{DeviceOptions, Opened, PortKind, THREAD};
use roxie_report::failure::Failure;
use roxie_report::line_rate::LineRate;
use roxie_report::{formats, output, signals};
use serde::Serialize;

/// Interval between two checks that the device works.
const LOOK: Duration = Duration::from_secs(1);
/// Lines a second about connections, which any peer can cause, and their burst.
const LINES: (u32, u32) = (10, 256);

/// Options of every server.
#[derive(Clone, Debug, Args)]
pub(super) struct ServeOptions {
    /// Print one JSON object a line about each connection
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceOptions,
}

/// The open device of a server, and the signals that end it.
pub(super) struct Serving {
    signals: SignalFd,
    options: DeviceOptions,
    pub(super) opened: Opened,
    pub(super) manager: ConnectionManager,
}

impl ServeOptions {
    /// Prepares what is served, and opens the device. `instead`: the command that has both ends in one process.
    pub(super) fn open<T>(
        &self,
        instead: &str,
        prepare: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<(Serving, T), Failure> {
        if self.device.asked_port() == Some(PortKind::Memory) {
            return Err(Failure::Usage(format!(
                "--port memory has both ends in one process: `{instead}` runs them so"
            )));
        }
        // Block signals before any thread starts, so that no thread takes them.
        let signals = signals::catch_in_command()?;
        // Wrong names and files are reported before a device is opened.
        let prepared = prepare()?;
        let mut options = self.device.clone();
        options.drive.get_or_insert(THREAD);
        let opened = options.open()?;
        let manager =
            ConnectionManager::start(&opened.device).map_err(|error| Failure::Device(error.to_string()))?;
        Ok((Serving { signals, options, opened, manager }, prepared))
    }

    /// Says where the server listens: one line for programs that wait for it.
    pub(super) fn announce(
        &self,
        format: u32,
        json: impl Serialize,
        text: impl Display,
    ) -> Result<(), Failure> {
        if self.json {
            return formats::print(format, json);
        }
        output::note(text);
        Ok(())
    }

    /// Returns the receiver of events, which prints a limited number of lines.
    pub(super) fn report<E: Display + Serialize + 'static>(
        &self,
        format: u32,
    ) -> Box<dyn Fn(E) + Send + Sync> {
        let (rate, json) = (LineRate::new(LINES.0, LINES.1), self.json);
        Box::new(move |event| match rate.takes(Instant::now()) {
            true if json => drop(formats::print(format, event)),
            true => output::note(event),
            false => {}
        })
    }
}

/// Returns the failure of a server that does not listen.
pub(super) fn cannot_listen(at: SocketAddr, error: &DialError) -> Failure {
    match error {
        DialError::Port { .. } | DialError::Manager(_) => Failure::Usage(format!(
            "cannot listen at {at}: {error}: does another server run? `roxie show cm_id` lists listeners, and --listen takes \
             another port"
        )),
        other => Failure::Device(other.to_string()),
    }
}

impl Serving {
    /// Waits for a signal that ends the server, as `ends` says.
    pub(super) fn wait(&self, mut ends: impl FnMut(Signal) -> bool) -> Result<(), Failure> {
        while !signals::next(&self.signals, LOOK).is_some_and(&mut ends) {
            if self.opened.device.has_failed() {
                return Err(Failure::Run("the engine has failed (see above): this is a bug in roxie".into()));
            }
        }
        Ok(())
    }

    /// Completes the capture of a server that has ended.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        self.options.finish_capture(&self.opened.device)
    }
}
