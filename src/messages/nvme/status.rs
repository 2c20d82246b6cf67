//! Statuses of commands (NVMe base specification 4.6.1; NVMe over Fabrics 3.3).

use std::fmt;

/// A status: the status code type in bits 10:8, the status code in bits 7:0, Do Not Retry in bit 14.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u16);

/// Bit of "do not retry": the command will fail again.
const DO_NOT_RETRY: u16 = 1 << 14;

macro_rules! statuses {
    ($($(#[doc = $doc:literal])* $name:ident = $code:literal, $text:literal;)*) => {
        impl Status {
            $($(#[doc = $doc])* pub const $name: Status = Status($code);)*

            /// Returns the status in the words of the specification. `None`: not one that this crate knows.
            pub fn text(self) -> Option<&'static str> {
                match self.0 & 0x7ff {
                    $($code => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    /// The command has completed.
    SUCCESS = 0x000, "success";
    /// The controller does not have this command.
    INVALID_OPCODE = 0x001, "invalid command opcode";
    /// A field has a value that is reserved or not supported.
    INVALID_FIELD = 0x002, "invalid field in command";
    /// A command with the same identifier is outstanding.
    ID_CONFLICT = 0x003, "command ID conflict";
    /// The data could not be moved.
    DATA_TRANSFER = 0x004, "data transfer error";
    /// The controller failed.
    INTERNAL = 0x006, "internal error";
    /// The command was aborted by an Abort command.
    ABORTED = 0x007, "command abort requested";
    /// The namespace does not exist, or is not active.
    INVALID_NAMESPACE = 0x00b, "invalid namespace or format";
    /// The queue or the controller is not in a state for this command.
    SEQUENCE = 0x00c, "command sequence error";
    /// The SGL describes more or fewer bytes than the command moves.
    SGL_LENGTH = 0x00f, "data SGL length invalid";
    /// The type of the SGL descriptor does not suit the command.
    SGL_TYPE = 0x011, "SGL descriptor type invalid";
    /// The data is not inside the capsule.
    SGL_OFFSET = 0x016, "SGL offset invalid";
    /// The keep-alive timeout is not supported.
    KEEP_ALIVE_INVALID = 0x01a, "keep alive timeout invalid";
    /// The namespace is read-only.
    WRITE_PROTECTED = 0x020, "namespace is write protected";
    /// Blocks beyond the end of the namespace.
    LBA_RANGE = 0x080, "LBA out of range";
    /// There is no such queue.
    INVALID_QUEUE = 0x101, "invalid queue identifier";
    /// More Asynchronous Event Requests are outstanding than the controller holds.
    TOO_MANY_EVENT_REQUESTS = 0x105, "asynchronous event request limit exceeded";
    /// The controller does not have this log page.
    INVALID_LOG_PAGE = 0x109, "invalid log page";
    /// The feature cannot be saved.
    NOT_SAVEABLE = 0x10d, "feature identifier not saveable";
    /// The record format of a Connect command is unknown.
    INCOMPATIBLE_FORMAT = 0x180, "connect incompatible format";
    /// The controller takes no more hosts or queues.
    BUSY = 0x181, "connect controller busy";
    /// A field of a Connect command is invalid.
    CONNECT_PARAMETERS = 0x182, "connect invalid parameters";
    /// The host may not connect to this subsystem.
    INVALID_HOST = 0x184, "connect invalid host";
    /// The medium could not be written.
    WRITE_FAULT = 0x280, "write fault";
    /// The medium could not be read.
    READ_ERROR = 0x281, "unrecovered read error";
}

impl Status {
    /// Marks the status as permanent: the host must not retry the command.
    #[must_use]
    pub const fn permanent(self) -> Status {
        Status(self.0 | DO_NOT_RETRY)
    }

    /// The status code type and the status code, without Do Not Retry.
    #[must_use]
    pub const fn code(self) -> Status {
        Status(self.0 & 0x7ff)
    }

    /// True for success.
    pub const fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// True if the host must not retry the command.
    pub const fn is_permanent(self) -> bool {
        self.0 & DO_NOT_RETRY != 0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => write!(f, "{text}"),
            None => write!(f, "status type {} code {:#04x}", self.0 >> 8 & 7, self.0 & 0xff),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permanence_changes_neither_code_nor_text() {
        let status = Status::LBA_RANGE.permanent();
        assert_eq!((status.code(), status.to_string()), (Status::LBA_RANGE, "LBA out of range".into()));
        assert!(status.is_permanent() && !status.is_success() && !Status::LBA_RANGE.is_permanent());
        assert_eq!(Status(0x3ab).to_string(), "status type 3 code 0xab");
    }
}
