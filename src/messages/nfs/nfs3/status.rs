//! Statuses of NFS version 3 (RFC 1813 2.6).

use std::fmt;

/// The status of an executed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

impl Status {
    /// Success.
    pub const OK: Status = Status(0);
    /// The caller is not the owner.
    pub const PERM: Status = Status(1);
    /// There is no such name.
    pub const NOENT: Status = Status(2);
    /// Input or output has failed.
    pub const IO: Status = Status(5);
    /// The caller has no permission.
    pub const ACCES: Status = Status(13);
    /// The name exists.
    pub const EXIST: Status = Status(17);
    /// The file is no folder.
    pub const NOTDIR: Status = Status(20);
    /// The file is a folder.
    pub const ISDIR: Status = Status(21);
    /// An argument is invalid.
    pub const INVAL: Status = Status(22);
    /// The file system has no space.
    pub const NOSPC: Status = Status(28);
    /// The file system is read-only.
    pub const ROFS: Status = Status(30);
    /// The name is too long.
    pub const NAMETOOLONG: Status = Status(63);
    /// The handle names a file that is gone.
    pub const STALE: Status = Status(70);
    /// The handle is none of this server's.
    pub const BADHANDLE: Status = Status(10001);
    /// The cookie of a listing is no longer valid.
    pub const BAD_COOKIE: Status = Status(10003);
    /// The server has no such operation.
    pub const NOTSUPP: Status = Status(10004);
    /// A buffer or a request is too small.
    pub const TOOSMALL: Status = Status(10005);
    /// The server has failed.
    pub const SERVERFAULT: Status = Status(10006);

    /// True if the call succeeded.
    pub fn is_ok(self) -> bool {
        self == Status::OK
    }

    /// Returns the name, without `NFS3ERR_`. `None`: it is unknown.
    pub fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0 => "OK",
            1 => "PERM",
            2 => "NOENT",
            5 => "IO",
            6 => "NXIO",
            13 => "ACCES",
            17 => "EXIST",
            18 => "XDEV",
            19 => "NODEV",
            20 => "NOTDIR",
            21 => "ISDIR",
            22 => "INVAL",
            27 => "FBIG",
            28 => "NOSPC",
            30 => "ROFS",
            31 => "MLINK",
            63 => "NAMETOOLONG",
            66 => "NOTEMPTY",
            69 => "DQUOT",
            70 => "STALE",
            71 => "REMOTE",
            10001 => "BADHANDLE",
            10002 => "NOT_SYNC",
            10003 => "BAD_COOKIE",
            10004 => "NOTSUPP",
            10005 => "TOOSMALL",
            10006 => "SERVERFAULT",
            10007 => "BADTYPE",
            10008 => "JUKEBOX",
            _ => return None,
        })
    }
}

/// `success`, `NFS3ERR_NOENT (no such file or folder)`, `status 99`.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            0 => return f.write_str("success"),
            1 => "not the owner",
            2 => "no such file or folder",
            5 => "input or output has failed",
            13 => "permission denied",
            17 => "the name exists",
            20 => "not a folder",
            21 => "a folder",
            22 => "invalid argument",
            27 => "file too large",
            28 => "no space left",
            30 => "read-only file system",
            63 => "name too long",
            69 => "quota exceeded",
            70 => "stale file handle",
            10001 => "not a handle of this server",
            10004 => "operation not supported",
            10008 => "the server asks to try later",
            _ => "",
        };
        match (self.name(), text) {
            (Some(name), "") => write!(f, "NFS3ERR_{name}"),
            (Some(name), text) => write!(f, "NFS3ERR_{name} ({text})"),
            (None, _) => write!(f, "status {}", self.0),
        }
    }
}
