//! Errors of a client.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use roxie::host::DialError;
use roxie_ulp::Ended;

use crate::mount;
use crate::nfs3::Status;
use crate::rpc::Outcome;
use crate::xdr::Malformed;

/// Why an operation of a client failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The connection was not made.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// A server of MOUNT or the port mapper is not reached.
    #[error("{at} (TCP, {what}): {source}")]
    Mounting {
        /// The address.
        at: SocketAddr,
        /// The service.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The server does not export a folder to this client.
    #[error("{path}: {status}")]
    Export {
        /// The folder.
        path: String,
        /// The status of MOUNT.
        status: mount::Status,
    },
    /// A call has failed with a status of NFS.
    #[error("{path}: {call}: {status}")]
    Status {
        /// The file.
        path: String,
        /// The procedure.
        call: &'static str,
        /// The status.
        status: Status,
    },
    /// A call was not executed.
    #[error("{call}: {outcome}")]
    Call {
        /// The procedure.
        call: &'static str,
        /// Why.
        outcome: Outcome,
    },
    /// The server violates the protocol.
    #[error("{0}")]
    Protocol(String),
    /// The server may have lost written data: its verifier has changed.
    #[error(
        "{path}: the server was started again while data was written, and may have lost some: write the file again"
    )]
    Verifier {
        /// The file.
        path: String,
    },
    /// The connection has ended: it is lost, the server has closed it, or violates the protocol.
    #[error(transparent)]
    Lost(#[from] Ended),
    /// No call has finished in time.
    #[error("no reply in {0:?}")]
    Timeout(Duration),
    /// The caller's file cannot be read or written.
    #[error(transparent)]
    Local(#[from] io::Error),
}

impl From<Malformed> for ClientError {
    fn from(malformed: Malformed) -> ClientError {
        ClientError::Protocol(format!("a malformed reply: {malformed}"))
    }
}
