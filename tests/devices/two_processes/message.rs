//! Messages between the two processes: words and descriptors, over a socket that preserves message boundaries.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::cmsg_space;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg,
    socketpair,
};
use roxie::verbs::{Access, AddressVector, Gid, Mtu, Psn, QpAttr, QpState, Qpn};

/// First word of a request. The second names the NIC, except for `JOIN`.
pub(crate) const JOIN: u64 = 1;
pub(crate) const ALLOC_PD: u64 = 2;
pub(crate) const REGISTER: u64 = 3;
pub(crate) const CREATE_CQ: u64 = 4;
pub(crate) const CREATE_QP: u64 = 5;
pub(crate) const MODIFY_QP: u64 = 6;

/// First word of a reply.
pub(crate) const DONE: u64 = 0;
pub(crate) const REFUSED: u64 = 1;

/// Most words and descriptors of a message.
const LONGEST: usize = 512;
const MOST_FDS: usize = 4;

#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) words: Vec<u64>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// One end of the socket.
#[derive(Debug)]
pub(crate) struct Link(pub(crate) OwnedFd);

impl Link {
    pub(crate) fn pair() -> (Link, Link) {
        let ends = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        let (a, b) = ends.expect("two sockets");
        (Link(a), Link(b))
    }

    /// Sends a message; an error if the other end has closed.
    pub(crate) fn send(&self, words: &[u64], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        assert!(
            words.len() <= LONGEST && fds.len() <= MOST_FDS,
            "a message as short as the receiver's buffer"
        );
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &[][..] } else { &rights[..] };
        let pieces = [IoSlice::new(&bytes)];
        sendmsg::<()>(self.0.as_raw_fd(), &pieces, control, MsgFlags::MSG_NOSIGNAL, None)?;
        Ok(())
    }

    /// Waits for a message; `None` if the other end has closed.
    pub(crate) fn receive(&self) -> io::Result<Option<Message>> {
        let mut bytes = [0; 8 * LONGEST];
        let mut control = cmsg_space!([RawFd; MOST_FDS]);
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let received = match recvmsg::<()>(self.0.as_raw_fd(), &mut pieces, Some(&mut control), flags) {
            Err(nix::Error::ECONNRESET) => return Ok(None),
            other => other?,
        };
        let mut fds = Vec::new();
        for message in received.cmsgs()? {
            if let ControlMessageOwned::ScmRights(raw) = message {
                // SAFETY: the kernel created these descriptors for this process with this message; no other owner
                // exists.
                fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        let length = received.bytes;
        let word = |chunk: &[u8]| u64::from_ne_bytes(chunk.try_into().expect("8 bytes"));
        let words: Vec<u64> = bytes[..length].chunks_exact(8).map(word).collect();
        Ok((!words.is_empty()).then_some(Message { words, fds }))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Value of an attribute that is not set.
const UNSET: u64 = u64::MAX;

/// Encodes the attributes that connect an RC QP.
pub(crate) fn words_of(attr: &QpAttr) -> Vec<u64> {
    fn word<T>(value: Option<T>, of: impl FnOnce(T) -> u64) -> u64 {
        value.map_or(UNSET, of)
    }
    let mut words = vec![
        word(attr.state, |state| state as u64),
        word(attr.access, |access| access.bits().into()),
        word(attr.pkey_index, u64::from),
        word(attr.port, u64::from),
        word(attr.path_mtu, |mtu| mtu.bytes() as u64),
        word(attr.dest_qpn, |qpn| qpn.value().into()),
        word(attr.rq_psn, |psn| psn.value().into()),
        word(attr.sq_psn, |psn| psn.value().into()),
        word(attr.max_dest_rd_atomic, u64::from),
        word(attr.max_rd_atomic, u64::from),
        word(attr.min_rnr_timer, u64::from),
        word(attr.timeout, u64::from),
        word(attr.retry_cnt, u64::from),
        word(attr.rnr_retry, u64::from),
    ];
    if let Some(av) = &attr.av {
        let gid = |gid: Gid| u128::from_be_bytes(gid.0);
        let mac = |[a, b, c, d, e, f]: [u8; 6]| u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        let (from, to) = (gid(av.sgid), gid(av.dgid));
        words.extend([(from >> 64) as u64, from as u64, (to >> 64) as u64, to as u64]);
        words.extend([mac(av.smac), mac(av.dmac), av.hop_limit.into()]);
    }
    words
}

/// Decodes the words of `words_of`; `None` if they have another form.
pub(crate) fn attr_of(words: &[u64]) -> Option<QpAttr> {
    let (plain, path) = words.split_at_checked(14)?;
    let word = |at: usize| Some(plain[at]).filter(|word| *word != UNSET);
    let byte = |at: usize| word(at).map(|word| word as u8);
    let av = match *path {
        [] => None,
        [from, from_low, to, to_low, smac, dmac, hop_limit] => {
            let gid = |high: u64, low: u64| Gid((u128::from(high) << 64 | u128::from(low)).to_be_bytes());
            let mac = |word: u64| {
                let [_, _, mac @ ..] = word.to_be_bytes();
                mac
            };
            let path = AddressVector::new(gid(from, from_low), gid(to, to_low), mac(smac), mac(dmac));
            Some(AddressVector { hop_limit: hop_limit as u8, ..path })
        }
        _ => return None,
    };
    Some(QpAttr {
        state: word(0).and_then(|code| QpState::from_code(code as u32)),
        access: word(1).map(|bits| Access::from_bits_retain(bits as u32)),
        pkey_index: word(2).map(|index| index as u16),
        port: byte(3),
        path_mtu: word(4).and_then(|bytes| Mtu::from_bytes(bytes as usize)),
        dest_qpn: word(5).map(|qpn| Qpn::new(qpn as u32)),
        rq_psn: word(6).map(|psn| Psn::new(psn as u32)),
        sq_psn: word(7).map(|psn| Psn::new(psn as u32)),
        max_dest_rd_atomic: byte(8),
        max_rd_atomic: byte(9),
        min_rnr_timer: byte(10),
        timeout: byte(11),
        retry_cnt: byte(12),
        rnr_retry: byte(13),
        av,
        ..QpAttr::default()
    })
}
