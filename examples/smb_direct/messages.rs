//! Messages of SMB Direct (MS-SMBD 2.2), as bytes and as types. All fields are little-endian.

/// Version of the protocol: 1.0 (MS-SMBD 2.2.1).
pub(crate) const VERSION: u16 = 0x0100;
/// Status of a response to a request without a common version (MS-SMBD 3.1.5.6).
pub(crate) const NOT_SUPPORTED: u32 = 0xc000_00bb;
/// Bytes of a data transfer message without data, and of the offset of its data (MS-SMBD 2.2.3).
pub(crate) const HEADER: usize = 20;
/// Offset of the data in messages of this end: the next multiple of 8.
pub(crate) const DATA_OFFSET: usize = 24;
/// Flag of a data transfer message: the peer shall answer at once (MS-SMBD 2.2.3).
const RESPONSE_REQUESTED: u16 = 1;
/// Lowest limits that an end may announce (MS-SMBD 3.1.5.6 and 3.1.5.7): bytes of a message, of a reassembled one, of
/// an RDMA transfer.
const LOWEST: (u32, u32, u32) = (128, 128 << 10, 1 << 20);

/// A message that ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// Message that ends before its fields or its data do.
    #[error("a message of {length} bytes, of which at least {needed} were due")]
    Short { length: usize, needed: u64 },
    /// Field with a value that the specification excludes.
    #[error("field {field} is {value}")]
    Field { field: &'static str, value: u32 },
    /// Fragment that does not continue the message before it.
    #[error("a fragment leaves {is} bytes to come where {due} were due")]
    Sequence { is: u64, due: u32 },
    /// Message for which no receive was granted.
    #[error("a message without a credit")]
    NoCredit,
}

/// Returns `N` bytes of a message from an offset on.
pub(crate) fn bytes<const N: usize>(message: &[u8], at: usize) -> Result<[u8; N], Refused> {
    let rest = message.get(at..).unwrap_or_default();
    let short = Refused::Short { length: message.len(), needed: (at + N) as u64 };
    rest.first_chunk().copied().ok_or(short)
}

pub(crate) fn u16_at(message: &[u8], at: usize) -> Result<u16, Refused> {
    bytes(message, at).map(u16::from_le_bytes)
}

pub(crate) fn u32_at(message: &[u8], at: usize) -> Result<u32, Refused> {
    bytes(message, at).map(u32::from_le_bytes)
}

/// Checks that a field is at least `lowest`.
fn at_least(lowest: u32, field: &'static str, value: u32) -> Result<u32, Refused> {
    if value < lowest { Err(Refused::Field { field, value }) } else { Ok(value) }
}

/// Sizes that an end announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Bytes of a message that the end would like to send.
    pub(crate) preferred_send: u32,
    /// Bytes of a message that it receives.
    pub(crate) receive: u32,
    /// Bytes of a message that it assembles from fragments.
    pub(crate) fragmented: u32,
}

impl Sizes {
    fn parse(message: &[u8], at: usize) -> Result<Sizes, Refused> {
        Ok(Sizes {
            preferred_send: u32_at(message, at)?,
            receive: at_least(LOWEST.0, "MaxReceiveSize", u32_at(message, at + 4)?)?,
            fragmented: at_least(LOWEST.1, "MaxFragmentedSize", u32_at(message, at + 8)?)?,
        })
    }

    fn to_bytes(self) -> Vec<u8> {
        [self.preferred_send, self.receive, self.fragmented].map(u32::to_le_bytes).concat()
    }
}

/// The first message, from the connecting end (MS-SMBD 2.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NegotiateRequest {
    /// Lowest and highest version of the sender.
    pub(crate) versions: (u16, u16),
    /// Credits that the sender would like to have.
    pub(crate) credits_requested: u16,
    /// The sender's sizes.
    pub(crate) sizes: Sizes,
}

impl NegotiateRequest {
    /// Parses a request. Its versions are the receiver's to judge: a wrong one has an answer.
    pub(crate) fn parse(message: &[u8]) -> Result<NegotiateRequest, Refused> {
        let versions = (u16_at(message, 0)?, u16_at(message, 2)?);
        let credits_requested = u16_at(message, 6)?;
        let sizes = Sizes::parse(message, 8)?;
        at_least(1, "CreditsRequested", credits_requested.into())?;
        Ok(NegotiateRequest { versions, credits_requested, sizes })
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let words = [self.versions.0, self.versions.1, 0, self.credits_requested].map(u16::to_le_bytes);
        [words.concat(), self.sizes.to_bytes()].concat()
    }

    pub(crate) fn has_version(&self) -> bool {
        (self.versions.0..=self.versions.1).contains(&VERSION)
    }
}

/// The answer to the first message (MS-SMBD 2.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NegotiateResponse {
    /// Zero, or an NTSTATUS: then only the versions count.
    pub(crate) status: u32,
    /// Credits that the sender would like to have.
    pub(crate) credits_requested: u16,
    /// Messages that the receiver may send.
    pub(crate) credits_granted: u16,
    /// Bytes of an RDMA transfer at most.
    pub(crate) max_read_write: u32,
    /// The sender's sizes.
    pub(crate) sizes: Sizes,
}

impl NegotiateResponse {
    /// Parses the response to a request with sizes `own` (MS-SMBD 3.1.5.7).
    pub(crate) fn parse(message: &[u8], own: &Sizes) -> Result<NegotiateResponse, Refused> {
        bytes::<32>(message, 0)?;
        let field = |field, value: u32| Err(Refused::Field { field, value });
        let (version, status) = (u16_at(message, 4)?, u32_at(message, 12)?);
        if status != 0 {
            return field("Status", status);
        }
        if version != VERSION {
            return field("NegotiatedVersion", version.into());
        }
        let (credits_requested, credits_granted) = (u16_at(message, 8)?, u16_at(message, 10)?);
        at_least(1, "CreditsRequested", credits_requested.into())?;
        at_least(1, "CreditsGranted", credits_granted.into())?;
        let max_read_write = at_least(LOWEST.2, "MaxReadWriteSize", u32_at(message, 16)?)?;
        let sizes = Sizes::parse(message, 20)?;
        if sizes.preferred_send > own.receive {
            return field("PreferredSendSize", sizes.preferred_send);
        }
        Ok(NegotiateResponse { status, credits_requested, credits_granted, max_read_write, sizes })
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let (credits, granted) = (self.credits_requested, self.credits_granted);
        let words = [VERSION, VERSION, VERSION, 0, credits, granted].map(u16::to_le_bytes).concat();
        let sizes = [self.status, self.max_read_write].map(u32::to_le_bytes).concat();
        [words, sizes, self.sizes.to_bytes()].concat()
    }
}

/// All further messages (MS-SMBD 2.2.3): a fragment of the upper layer's message, or credits alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataTransfer<'a> {
    /// Credits that the sender would like to have, with those that it has.
    pub(crate) credits_requested: u16,
    /// Further credits of the receiver.
    pub(crate) credits_granted: u16,
    /// The receiver shall answer at once.
    pub(crate) wants_response: bool,
    /// Bytes of the message in fragments that follow.
    pub(crate) remaining: u32,
    /// Bytes of the message in this fragment.
    pub(crate) data: &'a [u8],
}

impl<'a> DataTransfer<'a> {
    /// Parses a message for an end that assembles `fragmented` bytes (MS-SMBD 3.1.5.8).
    pub(crate) fn parse(message: &'a [u8], fragmented: u32) -> Result<DataTransfer<'a>, Refused> {
        let field = |field, value| Err(Refused::Field { field, value });
        bytes::<HEADER>(message, 0)?;
        let credits_requested = u16_at(message, 0)?;
        at_least(1, "CreditsRequested", credits_requested.into())?;
        let (remaining, offset, length) = (u32_at(message, 8)?, u32_at(message, 12)?, u32_at(message, 16)?);
        if !offset.is_multiple_of(8) {
            return field("DataOffset", offset);
        }
        let end = u64::from(offset) + u64::from(length);
        if end > message.len() as u64 {
            return Err(Refused::Short { length: message.len(), needed: end });
        }
        if u64::from(length) + u64::from(remaining) > fragmented.into() {
            return field("RemainingDataLength", remaining);
        }
        if length == 0 && remaining > 0 {
            return field("DataLength", 0);
        }
        // Data cannot be inside the header.
        if length > 0 && (offset as usize) < HEADER {
            return field("DataOffset", offset);
        }
        let data = if length == 0 { &[] } else { &message[offset as usize..end as usize] };
        Ok(DataTransfer {
            credits_requested,
            credits_granted: u16_at(message, 2)?,
            wants_response: u16_at(message, 4)? & RESPONSE_REQUESTED != 0,
            remaining,
            data,
        })
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let flags = if self.wants_response { RESPONSE_REQUESTED } else { 0 };
        let mut out = [self.credits_requested, self.credits_granted, flags, 0].map(u16::to_le_bytes).concat();
        let offset = if self.data.is_empty() { 0 } else { DATA_OFFSET as u32 };
        out.extend([self.remaining, offset, self.data.len() as u32].map(u32::to_le_bytes).concat());
        if !self.data.is_empty() {
            out.resize(DATA_OFFSET, 0);
            out.extend(self.data);
        }
        out
    }
}
