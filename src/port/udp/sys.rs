//! System calls without a safe wrapper in a crate: datagrams by the batch, with ancillary data per datagram.
//!
//! The interface is safe: raw pointers exist only from the layout of a batch to the return of its system call. Socket
//! addresses and control messages are written and read as bytes, in the layouts of `linux/in.h`, `linux/in6.h` and
//! `linux/socket.h`.

#![allow(unsafe_code)]

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use libc::{c_int, iovec, mmsghdr};

/// Most datagrams or trains per call.
pub(crate) const BATCH: usize = 64;
/// Maximum number of pieces of memory per call.
pub(crate) const PIECES: usize = 512;
/// Longest received train, in bytes.
pub(super) const TRAIN_BYTES: usize = 65_536;
/// Number of receive buffers.
pub(super) const INBOX: usize = 32;

/// Length of `struct sockaddr_in`.
const SOCKADDR_IN: usize = 16;
/// Length of `struct sockaddr_in6`.
const SOCKADDR_IN6: usize = 28;
/// Length of `struct cmsghdr` on 64-bit machines: length, level, type.
const CMSG_HEADER: usize = 16;
const _: () = assert!(size_of::<libc::cmsghdr>() == CMSG_HEADER);
const _: () = assert!(size_of::<libc::sockaddr_in>() == SOCKADDR_IN);
const _: () = assert!(size_of::<libc::sockaddr_in6>() == SOCKADDR_IN6);

/// Control messages of a sent datagram: packet info 40 bytes, traffic class 24, segment size 24.
type SendControl = [u8; 96];
/// Control messages of a received datagram: the same, the drop count 24 bytes, and the time 32.
type ReceiveControl = [u8; 160];

/// Sets a socket option of type `int`.
pub(crate) fn set_int(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the value pointer is to a live c_int and the length is its size; the kernel only reads it.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets a packet socket see the frames of an interface that are addressed to other stations, for as long as it is open.
pub(crate) fn make_promiscuous(fd: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: index as c_int,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    // SAFETY: the kernel reads a live structure of the length given.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            (&raw const request).cast(),
            size_of::<libc::packet_mreq>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets a buffer size beyond the limit if privileged, else up to the limit.
pub(crate) fn enlarge(fd: BorrowedFd<'_>, force: i32, plain: i32, bytes: usize) {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX / 2);
    if set_int(fd, libc::SOL_SOCKET, force, bytes).is_err() {
        let _ = set_int(fd, libc::SOL_SOCKET, plain, bytes);
    }
}

/// Binds a socket to an address given as the bytes of its structure.
pub(crate) fn bind_bytes(fd: BorrowedFd<'_>, address: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads `address.len()` bytes of a live slice.
    let rc = unsafe { libc::bind(fd.as_raw_fd(), address.as_ptr().cast(), address.len() as libc::socklen_t) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Attaches a classic BPF program that filters the datagrams of a socket: (code, jump if true, jump if false, operand).
pub(crate) fn attach_filter(fd: BorrowedFd<'_>, program: &[(u16, u8, u8, u32)]) -> io::Result<()> {
    attach(fd, libc::SO_ATTACH_FILTER, program)
}

/// Attaches a program that selects the socket within `fd`'s group (`SO_REUSEPORT`), replacing the earlier one.
pub(crate) fn attach_steering(fd: BorrowedFd<'_>, program: &[(u16, u8, u8, u32)]) -> io::Result<()> {
    attach(fd, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

fn attach(fd: BorrowedFd<'_>, option: c_int, program: &[(u16, u8, u8, u32)]) -> io::Result<()> {
    let mut code: Vec<libc::sock_filter> =
        program.iter().map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k }).collect();
    let len = u16::try_from(code.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len, filter: code.as_mut_ptr() };
    // SAFETY: `program.filter` points to `len` initialised instructions that outlive the call, and the
    // option length is the struct's; the kernel copies and verifies both.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the MTU in bytes of the interface `name`, in the network namespace of `fd`.
pub(super) fn interface_mtu(fd: BorrowedFd<'_>, name: &str) -> io::Result<usize> {
    // SAFETY: `ifreq` is plain data for which all zeroes is a value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("`{name}` is no interface name")));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: SIOCGIFMTU reads the terminated name of a live ifreq and writes its `ifru_mtu`.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so `ifru_mtu` is the union's live member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(io::Error::other)
}

/// Addressing of a datagram or a train.
pub(super) struct Envelope {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) port: u16,
    /// Interface index for link-local destinations, else 0.
    pub(super) scope: u32,
    pub(super) traffic_class: u8,
    /// Bytes of each datagram but the last; `None` for a single datagram.
    pub(super) segment: Option<u16>,
}

/// Up to [`BATCH`] trains laid out for one `sendmmsg`.
pub(crate) struct Outbox {
    names: Box<[[u8; SOCKADDR_IN6]]>,
    controls: Box<[SendControl]>,
    /// Lengths of each name and control, and the range of pieces.
    shapes: Vec<(usize, usize, Range<usize>)>,
    pieces: Vec<Range<usize>>,
    raw: Raw,
}

/// Arguments for the kernel. Their pointers are valid only during a call.
struct Raw {
    headers: Box<[mmsghdr]>,
    vectors: Box<[iovec]>,
}

// SAFETY: every pointer in `Raw` is written again from borrowed memory by the call that uses it, on the
// thread that makes it, and is never followed otherwise.
unsafe impl Send for Raw {}

impl Raw {
    fn new(headers: usize, vectors: usize) -> Raw {
        // SAFETY: `mmsghdr` is plain data for which all zeroes (null pointers, no lengths) is a value.
        let header: mmsghdr = unsafe { zeroed() };
        let vector = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Raw {
            headers: vec![header; headers].into_boxed_slice(),
            vectors: vec![vector; vectors].into_boxed_slice(),
        }
    }
}

impl Outbox {
    pub(crate) fn new() -> Outbox {
        Outbox {
            names: vec![[0; SOCKADDR_IN6]; BATCH].into_boxed_slice(),
            controls: vec![[0; 96]; BATCH].into_boxed_slice(),
            shapes: Vec::with_capacity(BATCH),
            pieces: Vec::with_capacity(PIECES),
            raw: Raw::new(BATCH, PIECES),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.shapes.clear();
        self.pieces.clear();
    }

    /// True if this many trains, with `pieces` pieces in all, still fit.
    pub(crate) fn has_room(&self, trains: usize, pieces: usize) -> bool {
        self.shapes.len() + trains <= BATCH && self.pieces.len() + pieces <= PIECES
    }

    /// Begins a train; the pieces pushed next are its bytes.
    pub(super) fn begin(&mut self, envelope: &Envelope) {
        let i = self.shapes.len();
        let name_len = write_name(&mut self.names[i], envelope.destination, envelope.port, envelope.scope);
        let control_len = write_control(&mut self.controls[i], envelope);
        self.shapes.push((name_len, control_len, self.pieces.len()..self.pieces.len()));
    }

    /// Begins a train for a socket that takes whole frames: to the interface with this index, or to the socket's
    /// interface.
    pub(crate) fn begin_frame(&mut self, interface: Option<u32>) {
        let name_len = interface.map_or(0, |index| write_link(&mut self.names[self.shapes.len()], index));
        self.shapes.push((name_len, 0, self.pieces.len()..self.pieces.len()));
    }

    /// Adds bytes to the newest train: a range of the memory that [`send`](Outbox::send) gets later. Adjacent ranges
    /// are merged; an empty range is ignored.
    pub(crate) fn push(&mut self, piece: Range<usize>) {
        if piece.is_empty() {
            return;
        }
        let Some((_, _, pieces)) = self.shapes.last_mut() else { return };
        match self.pieces.last_mut() {
            Some(last) if pieces.start < pieces.end && last.end == piece.start => last.end = piece.end,
            _ => {
                self.pieces.push(piece);
                pieces.end = self.pieces.len();
            }
        }
    }

    /// Sends the trains from the `first`-th on, without blocking. Returns the number sent, at least one.
    pub(crate) fn send(&mut self, fd: BorrowedFd<'_>, memory: &[u8], first: usize) -> io::Result<usize> {
        let n = self.shapes.len();
        for i in first..n {
            let (name_len, control_len, pieces) = self.shapes[i].clone();
            for p in pieces.clone() {
                // Slicing checks the range, so the kernel reads within `memory` only.
                let bytes = &memory[self.pieces[p].clone()];
                self.raw.vectors[p] =
                    iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            }
            let header = &mut self.raw.headers[i].msg_hdr;
            let name = if name_len == 0 { std::ptr::null_mut() } else { self.names[i].as_mut_ptr().cast() };
            header.msg_name = name;
            header.msg_namelen = name_len as libc::socklen_t;
            header.msg_control = self.controls[i].as_mut_ptr().cast();
            header.msg_controllen = control_len as _;
            header.msg_iov = self.raw.vectors[pieces].as_mut_ptr();
            header.msg_iovlen = self.shapes[i].2.len() as _;
        }
        // SAFETY: headers `first..n` were just filled: names, controls and vectors are our own boxes with
        // lengths within them, the vectors point into `memory`, which is borrowed until the call returns,
        // and the kernel only reads them (`sendmsg` writes no iov bytes). `n - first` headers exist.
        let sent = unsafe {
            libc::sendmmsg(
                fd.as_raw_fd(),
                self.raw.headers[first..n].as_mut_ptr(),
                (n - first) as libc::c_uint,
                libc::MSG_DONTWAIT,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Buffers for received trains.
pub(super) struct Inbox {
    buffers: Box<[u8]>,
    names: Box<[[u8; SOCKADDR_IN6]]>,
    controls: Box<[ReceiveControl]>,
    raw: Raw,
}

/// A received train of datagrams.
pub(super) struct Train {
    pub(super) source: IpAddr,
    pub(super) source_port: u16,
    pub(super) destination: Option<IpAddr>,
    pub(super) traffic_class: u8,
    /// Bytes of each datagram but the last.
    pub(super) segment: usize,
    /// Total bytes, in the buffer of the same index.
    pub(super) len: usize,
    pub(super) truncated: bool,
    /// Total datagrams that this socket has dropped for lack of room.
    pub(super) dropped: Option<u32>,
    /// Arrival time of the last datagram, since the Unix epoch.
    pub(super) stamp: Option<Duration>,
}

impl Inbox {
    pub(super) fn new() -> Inbox {
        Inbox {
            buffers: vec![0; INBOX * TRAIN_BYTES].into_boxed_slice(),
            names: vec![[0; SOCKADDR_IN6]; INBOX].into_boxed_slice(),
            controls: vec![[0; 160]; INBOX].into_boxed_slice(),
            raw: Raw::new(INBOX, INBOX),
        }
    }

    /// Receives up to `limit` trains, without blocking. Overwrites the buffers of earlier ones.
    pub(super) fn receive(&mut self, fd: BorrowedFd<'_>, limit: usize) -> io::Result<usize> {
        let n = limit.min(INBOX);
        for (i, buffer) in self.buffers.chunks_exact_mut(TRAIN_BYTES).take(n).enumerate() {
            self.raw.vectors[i] = iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let header = &mut self.raw.headers[i].msg_hdr;
            header.msg_name = self.names[i].as_mut_ptr().cast();
            header.msg_namelen = SOCKADDR_IN6 as libc::socklen_t;
            header.msg_control = self.controls[i].as_mut_ptr().cast();
            header.msg_controllen = size_of::<ReceiveControl>() as _;
            header.msg_iov = &raw mut self.raw.vectors[i];
            header.msg_iovlen = 1;
            header.msg_flags = 0;
        }
        // SAFETY: headers `0..n` were just filled with pointers into our own boxes and their lengths; the
        // boxes are borrowed mutably through `self` until the call returns, so nothing else sees them
        // written. No timeout is given.
        let got = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                self.raw.headers.as_mut_ptr(),
                n as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    /// Returns the train in the `i`-th buffer. `None` if its source is not an IP address.
    pub(super) fn train(&self, i: usize) -> Option<Train> {
        let header = &self.raw.headers[i];
        let (source, source_port) = read_name(&self.names[i])?;
        let len = (header.msg_len as usize).min(TRAIN_BYTES);
        let mut train = Train {
            source,
            source_port,
            destination: None,
            traffic_class: 0,
            segment: len,
            len,
            truncated: header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
            dropped: None,
            stamp: None,
        };
        let control_len = header.msg_hdr.msg_controllen.min(size_of::<ReceiveControl>());
        read_control(&self.controls[i][..control_len], &mut train);
        Some(train)
    }

    /// Returns `len` bytes at `offset` of the `i`-th buffer.
    pub(super) fn bytes(&self, i: usize, offset: usize, len: usize) -> &[u8] {
        &self.buffers[i * TRAIN_BYTES..][offset..offset + len]
    }
}

fn write_name(out: &mut [u8; SOCKADDR_IN6], address: IpAddr, port: u16, scope: u32) -> usize {
    *out = [0; SOCKADDR_IN6];
    out[2..4].copy_from_slice(&port.to_be_bytes());
    match address {
        IpAddr::V4(a) => {
            out[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            out[4..8].copy_from_slice(&a.octets());
            SOCKADDR_IN
        }
        IpAddr::V6(a) => {
            out[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            out[8..24].copy_from_slice(&a.octets());
            out[24..28].copy_from_slice(&scope.to_ne_bytes());
            SOCKADDR_IN6
        }
    }
}

/// Writes a `struct sockaddr_ll` with an interface alone: a raw packet socket sends frames as they are.
fn write_link(out: &mut [u8; SOCKADDR_IN6], interface: u32) -> usize {
    *out = [0; SOCKADDR_IN6];
    out[..2].copy_from_slice(&(libc::AF_PACKET as u16).to_ne_bytes());
    out[4..8].copy_from_slice(&interface.to_ne_bytes());
    size_of::<libc::sockaddr_ll>()
}

fn read_name(name: &[u8; SOCKADDR_IN6]) -> Option<(IpAddr, u16)> {
    let port = u16::from_be_bytes([name[2], name[3]]);
    let address = match c_int::from(u16::from_ne_bytes([name[0], name[1]])) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(array(&name[4..8]))),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(array(&name[8..24]))),
        _ => return None,
    };
    Some((address, port))
}

fn write_control(out: &mut SendControl, envelope: &Envelope) -> usize {
    let class = c_int::from(envelope.traffic_class).to_ne_bytes();
    let mut at = 0;
    let mut put = |level: c_int, kind: c_int, data: &[u8]| {
        let len = CMSG_HEADER + data.len();
        out[at..at + 8].copy_from_slice(&len.to_ne_bytes());
        out[at + 8..at + 12].copy_from_slice(&level.to_ne_bytes());
        out[at + 12..at + 16].copy_from_slice(&kind.to_ne_bytes());
        out[at + CMSG_HEADER..at + len].copy_from_slice(data);
        at += len.next_multiple_of(8);
    };
    match envelope.source {
        IpAddr::V4(source) => {
            // struct in_pktinfo: interface (any), address to send from, destination (ignored).
            let mut info = [0; 12];
            info[4..8].copy_from_slice(&source.octets());
            put(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            put(libc::IPPROTO_IP, libc::IP_TOS, &class);
        }
        IpAddr::V6(source) => {
            // struct in6_pktinfo: address to send from, interface.
            let mut info = [0; 20];
            info[..16].copy_from_slice(&source.octets());
            info[16..].copy_from_slice(&envelope.scope.to_ne_bytes());
            put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class);
        }
    }
    if let Some(segment) = envelope.segment {
        put(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
    }
    at
}

fn read_control(mut control: &[u8], train: &mut Train) {
    while control.len() >= CMSG_HEADER {
        let len = usize::from_ne_bytes(array(&control[..8]));
        let level = c_int::from_ne_bytes(array(&control[8..12]));
        let kind = c_int::from_ne_bytes(array(&control[12..16]));
        if len < CMSG_HEADER || len > control.len() {
            return;
        }
        let data = &control[CMSG_HEADER..len];
        match (level, kind, data.len()) {
            (libc::IPPROTO_IP, libc::IP_TOS, 1..) => train.traffic_class = data[0],
            // An int below 256, in native byte order.
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 4..) => {
                train.traffic_class = c_int::from_ne_bytes(array(&data[..4])) as u8;
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO, 12..) => {
                train.destination = Some(IpAddr::V4(Ipv4Addr::from(array(&data[8..12]))));
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, 20..) => {
                train.destination = Some(IpAddr::V6(Ipv6Addr::from(array(&data[..16]))));
            }
            (libc::SOL_UDP, libc::UDP_GRO, 4..) => {
                let segment = c_int::from_ne_bytes(array(&data[..4]));
                train.segment = usize::try_from(segment).unwrap_or(0).clamp(1, train.len.max(1));
            }
            // struct timespec.
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, 16..) => {
                let [seconds, nanos] = [0, 8].map(|at| u64::from_ne_bytes(array(&data[at..at + 8])));
                train.stamp = Some(Duration::from_secs(seconds) + Duration::from_nanos(nanos));
            }
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 4..) => {
                train.dropped = Some(u32::from_ne_bytes(array(&data[..4])));
            }
            _ => {}
        }
        control = &control[len.next_multiple_of(8).min(control.len())..];
    }
}

/// Returns a slice of `N` bytes as an array.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(bytes);
    out
}
