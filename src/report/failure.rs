//! Why a command failed, and with which exit code.
//!
//! Exit codes: 0 done, 1 the run failed, 2 wrong usage, 3 the device cannot be opened, 4 the peer cannot be reached or
//! disagrees.

use std::fmt;
use std::io;

use roxie::host::DeviceError;
use roxie::nic::ControlError;
use roxie::shared::PostError;

/// Last paragraph of the help of every command that opens a device.
pub const EXIT_CODES: &str = "Exit codes: 0 done, 1 the run failed, 2 wrong usage, 3 the device cannot be \
                                     opened, 4 the peer cannot be reached or disagrees.";

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The run failed after it had begun.
    Run(String),
    /// A value on the command line is invalid.
    Usage(String),
    /// The device cannot be opened.
    Device(String),
    /// The peer cannot be reached, or disagrees.
    Peer(String),
    /// Standard output cannot be written.
    Output(io::Error),
}

impl Failure {
    /// Returns the exit code, as the module's documentation lists them.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Run(_) | Failure::Output(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Device(_) => 3,
            Failure::Peer(_) => 4,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Run(why) | Failure::Usage(why) | Failure::Device(why) | Failure::Peer(why) => {
                f.write_str(why)
            }
            Failure::Output(e) => write!(f, "cannot write the output: {e}"),
        }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Failure {
        match error {
            DeviceError::NoGid { .. } | DeviceError::Control(ControlError::TooLarge { .. }) => {
                Failure::Usage(error.to_string())
            }
            DeviceError::Resolve(_) | DeviceError::Families { .. } => Failure::Peer(error.to_string()),
            _ => Failure::Run(error.to_string()),
        }
    }
}

impl From<PostError> for Failure {
    fn from(error: PostError) -> Failure {
        Failure::Run(format!("cannot post a work request: {error}"))
    }
}
