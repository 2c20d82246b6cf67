//! RPC version 2 (RFC 5531): calls and replies, up to the arguments or the results.

use std::fmt;

use crate::nfs::xdr::{Malformed, Reader, Writer};

/// The version of RPC.
pub const VERSION: u32 = 2;
/// Bytes of a credential or verifier at most (RFC 5531 8.2).
const LONGEST_AUTHENTICATION: usize = 400;
/// Bytes of a machine name at most (RFC 5531 A).
const LONGEST_NAME: usize = 255;
/// Groups in a credential at most (RFC 5531 A).
const MOST_GROUPS: u32 = 16;

/// Message types.
const CALL: u32 = 0;
const REPLY: u32 = 1;

/// Flavors of authentication.
pub mod flavor {
    /// None.
    pub const NONE: u32 = 0;
    /// AUTH_SYS: the user's numbers, as the client says.
    pub const SYS: u32 = 1;
}

/// Identity of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential<'a> {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    Sys {
        /// The client's name.
        machine: &'a [u8],
        /// User number.
        user: u32,
        /// Group number.
        group: u32,
    },
    /// Another flavor, which is not read.
    Other(u32),
}

impl<'a> Credential<'a> {
    fn parse(reader: &mut Reader<'a>) -> Result<Credential<'a>, Malformed> {
        let flavor = reader.u32()?;
        let mut body = Reader::new(reader.opaque(LONGEST_AUTHENTICATION)?);
        match flavor {
            flavor::NONE => Ok(Credential::None),
            flavor::SYS => {
                body.u32()?;
                let machine = body.opaque(LONGEST_NAME)?;
                let (user, group, count) = (body.u32()?, body.u32()?, body.u32()?);
                if count > MOST_GROUPS {
                    return Err(reader.wrong("more than 16 groups"));
                }
                for _ in 0..count {
                    body.u32()?;
                }
                Ok(Credential::Sys { machine, user, group })
            }
            other => Ok(Credential::Other(other)),
        }
    }

    fn write(&self, out: &mut Writer) {
        match self {
            Credential::None => out.u32(flavor::NONE).u32(0),
            Credential::Sys { machine, user, group } => {
                let mut body = Writer::new();
                body.u32(0).opaque(machine).u32(*user).u32(*group).u32(0);
                out.u32(flavor::SYS).opaque(&body.finish())
            }
            Credential::Other(flavor) => out.u32(*flavor).u32(0),
        };
    }
}

/// The head of a call. The arguments follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// Transaction identifier, which the reply repeats.
    pub xid: u32,
    /// RPC version: 2, unless the client is of another time.
    pub rpc_version: u32,
    /// Program number.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure number.
    pub procedure: u32,
    /// Identity of the caller.
    pub credential: Credential<'a>,
}

impl<'a> Call<'a> {
    /// Returns a call of RPC version 2.
    pub fn new(
        xid: u32,
        (program, version): (u32, u32),
        procedure: u32,
        credential: Credential<'a>,
    ) -> Call<'a> {
        Call { xid, rpc_version: VERSION, program, version, procedure, credential }
    }

    /// Parses a call. Returns it, and the reader of its arguments.
    ///
    /// # Errors
    /// If the message is no call, or too short.
    pub fn parse(bytes: &'a [u8]) -> Result<(Call<'a>, Reader<'a>), Malformed> {
        let mut reader = Reader::new(bytes);
        let xid = reader.u32()?;
        if reader.u32()? != CALL {
            return Err(Malformed { at: 4, what: "no call" });
        }
        let (rpc_version, program, version) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let procedure = reader.u32()?;
        let credential = Credential::parse(&mut reader)?;
        reader.u32()?;
        reader.opaque(LONGEST_AUTHENTICATION)?;
        Ok((Call { xid, rpc_version, program, version, procedure, credential }, reader))
    }

    /// Writes the call; the arguments go behind it.
    pub fn write(&self, out: &mut Writer) {
        out.u32(self.xid).u32(CALL).u32(self.rpc_version).u32(self.program).u32(self.version);
        out.u32(self.procedure);
        self.credential.write(out);
        out.u32(flavor::NONE).u32(0);
    }
}

/// Whether a call was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Executed: the results follow.
    Success,
    /// The server has no such program.
    NoProgram,
    /// The server has other versions of the program.
    WrongVersion {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    },
    /// The program has no such procedure.
    NoProcedure,
    /// The arguments cannot be parsed.
    Garbage,
    /// The server has failed.
    SystemError,
    /// The server has other versions of RPC.
    WrongRpcVersion {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    },
    /// The server does not take the credential.
    Denied(u32),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Success => f.write_str("success"),
            Outcome::NoProgram => f.write_str("program unavailable"),
            Outcome::WrongVersion { low, high } => write!(f, "program versions {low} to {high} only"),
            Outcome::NoProcedure => f.write_str("procedure unavailable"),
            Outcome::Garbage => f.write_str("arguments cannot be decoded"),
            Outcome::SystemError => f.write_str("system error"),
            Outcome::WrongRpcVersion { low, high } => write!(f, "RPC versions {low} to {high} only"),
            Outcome::Denied(reason) => match reason {
                1 => f.write_str("authentication failed: bad credential"),
                2 => f.write_str("authentication failed: credential expired"),
                5 => f.write_str("authentication failed: credential too weak"),
                other => write!(f, "authentication failed: reason {other}"),
            },
        }
    }
}

/// The head of a reply. The results follow it, if the call was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Transaction identifier of the call.
    pub xid: u32,
    /// Whether the call was executed.
    pub outcome: Outcome,
}

impl Reply {
    /// Parses a reply. Returns it, and the reader of its results.
    ///
    /// # Errors
    /// If the message is no reply, or too short.
    pub fn parse(bytes: &[u8]) -> Result<(Reply, Reader<'_>), Malformed> {
        let mut reader = Reader::new(bytes);
        let xid = reader.u32()?;
        if reader.u32()? != REPLY {
            return Err(Malformed { at: 4, what: "no reply" });
        }
        let is_denied = reader.bool()?;
        let outcome = if is_denied {
            if reader.bool()? {
                Outcome::Denied(reader.u32()?)
            } else {
                Outcome::WrongRpcVersion { low: reader.u32()?, high: reader.u32()? }
            }
        } else {
            reader.u32()?;
            reader.opaque(LONGEST_AUTHENTICATION)?;
            match reader.u32()? {
                0 => Outcome::Success,
                1 => Outcome::NoProgram,
                2 => Outcome::WrongVersion { low: reader.u32()?, high: reader.u32()? },
                3 => Outcome::NoProcedure,
                4 => Outcome::Garbage,
                5 => Outcome::SystemError,
                _ => return Err(reader.wrong("unknown status of a reply")),
            }
        };
        Ok((Reply { xid, outcome }, reader))
    }

    /// Writes the reply; results go behind it.
    pub fn write(&self, out: &mut Writer) {
        out.u32(self.xid).u32(REPLY);
        match self.outcome {
            Outcome::Denied(reason) => {
                out.u32(1).u32(1).u32(reason);
                return;
            }
            Outcome::WrongRpcVersion { low, high } => {
                out.u32(1).u32(0).u32(low).u32(high);
                return;
            }
            _ => out.u32(0).u32(flavor::NONE).u32(0),
        };
        match self.outcome {
            Outcome::Success => out.u32(0),
            Outcome::NoProgram => out.u32(1),
            Outcome::WrongVersion { low, high } => out.u32(2).u32(low).u32(high),
            Outcome::NoProcedure => out.u32(3),
            Outcome::Garbage => out.u32(4),
            _ => out.u32(5),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_parse_to_what_was_written() {
        for credential in [
            Credential::None,
            Credential::Sys { machine: b"host", user: 1000, group: 100 },
            Credential::Other(6),
        ] {
            let call = Call::new(7, (100_003, 3), 6, credential);
            let mut out = Writer::new();
            call.write(&mut out);
            out.u32(0x55);
            let bytes = out.finish();
            let (parsed, mut arguments) = Call::parse(&bytes).expect("a call");
            assert_eq!((parsed, arguments.u32()), (call, Ok(0x55)));
            assert!(Reply::parse(&bytes).is_err());
        }
    }

    #[test]
    fn replies_parse_to_what_was_written() {
        let outcomes = [
            Outcome::Success,
            Outcome::NoProgram,
            Outcome::WrongVersion { low: 3, high: 4 },
            Outcome::NoProcedure,
            Outcome::Garbage,
            Outcome::SystemError,
            Outcome::WrongRpcVersion { low: 2, high: 2 },
            Outcome::Denied(5),
        ];
        for outcome in outcomes {
            let reply = Reply { xid: 9, outcome };
            let mut out = Writer::new();
            reply.write(&mut out);
            let bytes = out.finish();
            let (parsed, rest) = Reply::parse(&bytes).expect("a reply");
            assert_eq!((parsed, rest.rest().len()), (reply, 0));
            assert!(Call::parse(&bytes).is_err());
        }
    }

    #[test]
    fn credentials_with_too_many_groups_are_refused() {
        let mut body = Writer::new();
        body.u32(0).opaque(b"").u32(0).u32(0).u32(17);
        let mut out = Writer::new();
        out.u32(1).u32(CALL).u32(2).u32(3).u32(4).u32(5).u32(flavor::SYS).opaque(&body.finish());
        assert_eq!(Call::parse(&out.finish()).expect_err("17 groups").what, "more than 16 groups");
    }
}
