//! Why a command did not do what it was asked to.
//!
//! Exit codes: 0 done, 1 the run failed, 2 wrong usage, 3 the device cannot be opened, 4 the peer cannot be
//! reached or disagrees.

use std::fmt;
use std::io;

use roxie::host::DeviceError;
use roxie::nic::ControlError;
use roxie::shared::PostError;

/// What the help of every command that opens a device ends with.
pub(crate) const EXIT_CODES: &str = "Exit codes: 0 done, 1 the run failed, 2 wrong usage, 3 the device cannot be \
                                     opened, 4 the peer cannot be reached or disagrees.";

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It broke off in the middle.
    Run(String),
    /// A value on the command line cannot be.
    Usage(String),
    /// There is no device to run on.
    Device(String),
    /// The other end is not there, or wants something else.
    Peer(String),
    /// Standard output does not take what it should.
    Output(io::Error),
}

impl Failure {
    /// See the module's page.
    pub(crate) fn exit_code(&self) -> u8 {
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
