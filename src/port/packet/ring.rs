//! The receive ring that the kernel fills (`TPACKET_V2`, Documentation/networking/packet_mmap.rst).
//!
//! A slot belongs to the kernel or to this side, by its status word. The kernel fills slots in order and drops frames
//! while the next one is not its own.

#![allow(unsafe_code)]

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::{SysconfVar, sysconf};

use super::merge::{Filling, Outlook};
use crate::BURST;
use crate::udp::sys::set_int;

/// Bytes of a block of slots, at most: the kernel takes a power of two of pages for each.
const BLOCK: usize = 1 << 20;
/// `struct virtio_net_hdr` in front of each frame.
pub(super) const VNET_HEADER: usize = 10;
/// `VIRTIO_NET_HDR_GSO_UDP_L4` and `VIRTIO_NET_HDR_GSO_ECN` of `linux/virtio_net.h`.
pub(super) const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;
/// `struct sockaddr_ll` behind the header of a slot.
const ADDRESS: usize = 32;
/// Offset in it of the packet type, and the type of frames to groups.
const PACKET_TYPE: usize = ADDRESS + 10;
const TO_GROUP: u8 = 2;
/// The tag's EtherType is known (`linux/if_packet.h`), and the EtherType of 802.1Q.
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;
const VLAN: u16 = 0x8100;

/// Processors, at most, that are taken to fill slots of a ring at the same time: each costs a look at a slot for a
/// frame that comes alone.
const MOST_PROCESSORS: usize = 16;
/// Indices of words in `struct tpacket2_hdr`.
const SECONDS: usize = 4;
const NANOSECONDS: usize = 5;

/// A slot that the kernel has filled.
pub(super) struct Filled<'a> {
    /// The frame from the Ethernet header on, or as much as the slot had room for.
    pub(super) bytes: &'a [u8],
    /// Bytes of the frame as it was.
    pub(super) len: usize,
    /// `struct virtio_net_hdr` of the frame.
    pub(super) vnet: &'a [u8; VNET_HEADER],
    /// Bytes of UDP payload in each datagram but the last, if the frame is a train.
    pub(super) segment: Option<usize>,
    /// The VLAN tag, which is not in the frame.
    pub(super) tag: Option<u16>,
    /// True if that is a service tag (802.1ad).
    pub(super) is_service_tag: bool,
    /// True if the frame is addressed to a group.
    pub(super) to_group: bool,
    /// Arrival time since the Unix epoch, if known: seconds, nanoseconds.
    pub(super) stamp: Option<(u32, u32)>,
}

/// Size of a ring.
#[derive(Clone, Copy)]
pub(super) struct Size {
    /// Whole blocks.
    pub(super) slots: usize,
    /// Bytes of a slot: a frame and its headers. Whole pages, or an integer fraction of a page.
    pub(super) slot: usize,
}

impl Size {
    fn bytes(self) -> usize {
        self.slots * self.slot
    }

    /// Returns the bytes of a block: as many slots as fit. One slot of 68 KiB would take as much memory as two of 64
    /// KiB.
    fn block(self) -> usize {
        BLOCK / self.slot * self.slot
    }
}

/// A packet socket with a receive ring.
pub(super) struct Ring {
    socket: OwnedFd,
    map: NonNull<u8>,
    size: Size,
    /// Processors that may fill slots at the same time.
    processors: usize,
    /// The next slot to read.
    next: usize,
    /// The oldest slot that is not returned to the kernel.
    oldest: usize,
    /// Frames that the kernel dropped.
    drops: AtomicU64,
}

// SAFETY: the mapping belongs to this value alone and is reached through `&self` and `&mut self` only, from any thread.
unsafe impl Send for Ring {}
// SAFETY: through `&self` slots are read that no `&mut self` call has returned to the kernel, and status words, which
// are atomics.
unsafe impl Sync for Ring {}

impl Ring {
    /// Makes the ring of a packet socket that is not bound yet.
    ///
    /// # Errors
    /// The kernel's: without memory for the ring, or if it has no such rings.
    pub(super) fn new(socket: OwnedFd, size: Size) -> io::Result<Ring> {
        let fd = socket.as_fd();
        set_int(fd, libc::SOL_PACKET, libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as i32)?;
        let block = size.block();
        let request = libc::tpacket_req {
            tp_block_size: block as u32,
            tp_block_nr: (size.bytes() / block) as u32,
            tp_frame_size: size.slot as u32,
            tp_frame_nr: size.slots as u32,
        };
        // SAFETY: the kernel reads a live structure of the length given.
        let rc = unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_RX_RING,
                (&raw const request).cast(),
                size_of::<libc::tpacket_req>() as libc::socklen_t,
            )
        };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        let length = NonZeroUsize::new(size.bytes()).ok_or(io::ErrorKind::InvalidInput)?;
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; nothing else refers to it.
        let map = unsafe { mmap(None, length, rights, MapFlags::MAP_SHARED, fd, 0) }?;
        let processors =
            sysconf(SysconfVar::_NPROCESSORS_ONLN)?.map_or(MOST_PROCESSORS, |count| count as usize);
        let processors = processors.min(MOST_PROCESSORS);
        Ok(Ring { socket, map: map.cast(), size, processors, next: 0, oldest: 0, drops: AtomicU64::new(0) })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Clears the socket's error.
    pub(super) fn clear_error(&self) {
        // Reading the error clears it.
        let _ = getsockopt(&self.socket, sockopt::SocketError);
    }

    fn slot(&self, slot: usize) -> *mut u8 {
        // SAFETY: the slot number is reduced to one of the mapping.
        unsafe { self.map.as_ptr().add(slot % self.size.slots * self.size.slot) }
    }

    fn status(&self, slot: usize) -> &AtomicU32 {
        // SAFETY: a slot begins with its status word, aligned to its size, within the mapping, which lives as long as
        // `self`. The kernel writes it as a whole.
        unsafe { AtomicU32::from_ptr(self.slot(slot).cast()) }
    }

    /// True if the next slot is filled.
    pub(super) fn is_ready(&self) -> bool {
        self.is_filled(0)
    }

    /// Returns the arrival time of a slot of this side: seconds and nanoseconds since the Unix epoch.
    fn stamp(&self, slot: usize) -> (u32, u32) {
        // SAFETY: a slot begins with a header of eight words, aligned to its size, within the mapping. The caller has
        // seen that it is filled, so the kernel does not change it until its status is written, which takes `&mut
        // self`.
        let header = unsafe { &*self.slot(slot).cast::<[u32; 6]>() };
        (header[SECONDS], header[NANOSECONDS])
    }

    /// True if the slot, `ahead` of the next one, is filled.
    fn is_filled(&self, ahead: usize) -> bool {
        self.next + ahead - self.oldest < self.size.slots
            && self.status(self.next + ahead).load(Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Takes the next filled slot. It stays valid until it is [released](Ring::release).
    pub(super) fn take(&mut self) -> Option<usize> {
        self.is_ready().then(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// Reads a slot that was taken and is not released.
    pub(super) fn read(&self, slot: usize) -> Filled<'_> {
        debug_assert!((self.oldest..self.next).contains(&slot));
        let base = self.slot(slot);
        // SAFETY: the slot is this side's until its status is written, which takes `&mut self`, so the kernel does not
        // change it while the slice is borrowed. It lies within the mapping.
        let all = unsafe { std::slice::from_raw_parts(base, self.size.slot) };
        let word = |at: usize| u32::from_ne_bytes([all[at], all[at + 1], all[at + 2], all[at + 3]]);
        let half = |at: usize| u16::from_ne_bytes([all[at], all[at + 1]]);
        // struct tpacket2_hdr: status, len, snaplen, mac, net, sec, nsec, vlan_tci, vlan_tpid.
        let (status, len, captured, frame) =
            (word(0), word(4) as usize, word(8) as usize, usize::from(half(12)));
        // The kernel's offsets lie within the slot; a value that does not is cut.
        let bytes = all.get(frame..frame + captured).unwrap_or_default();
        let header = frame.checked_sub(VNET_HEADER).and_then(|at| all.get(at..)?.first_chunk());
        let vnet = header.unwrap_or(&[0; VNET_HEADER]);
        // struct virtio_net_hdr: flags, gso_type, hdr_len, gso_size.
        let segment = usize::from(u16::from_ne_bytes([vnet[4], vnet[5]]));
        let is_train = vnet[1] & !GSO_ECN == GSO_UDP_L4 && segment > 0;
        Filled {
            bytes,
            len,
            vnet,
            segment: is_train.then_some(segment),
            tag: (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| half(24)),
            is_service_tag: status & TP_STATUS_VLAN_TPID_VALID != 0 && half(26) != VLAN,
            to_group: all[PACKET_TYPE] == TO_GROUP,
            stamp: Some((word(4 * SECONDS), word(4 * NANOSECONDS))),
        }
    }

    /// Returns all slots before `slot` to the kernel.
    pub(super) fn release(&mut self, slot: usize) {
        while self.oldest < slot {
            self.status(self.oldest).store(libc::TP_STATUS_KERNEL, Release);
            self.oldest += 1;
        }
    }

    /// Returns all slots that were taken to the kernel.
    pub(super) fn release_all(&mut self) {
        self.release(self.next);
    }

    /// Returns the number of filled slots, and of all. Processors fill slots almost in order: the number may be off by
    /// the processors that fill one at this moment.
    pub(super) fn waiting(&self) -> (usize, usize) {
        let (mut filled, mut free) = (self.next, self.oldest + self.size.slots);
        while filled < free {
            let middle = filled + (free - filled) / 2;
            match self.status(middle).load(Relaxed) & libc::TP_STATUS_USER {
                0 => free = middle,
                _ => filled = middle + 1,
            }
        }
        (filled - self.oldest, self.size.slots)
    }

    /// Returns the number of frames that the kernel dropped because no slot was free.
    pub(super) fn dropped(&self) -> u64 {
        let mut counts = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to a live structure of that length. It resets its counts.
        let rc = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut counts).cast(),
                &raw mut length,
            )
        };
        let new = if rc == 0 { u64::from(counts.tp_drops) } else { 0 };
        self.drops.fetch_add(new, Relaxed) + new
    }
}

impl Filling for Ring {
    type Time = (u32, u32);

    fn peek(&self) -> Option<Outlook<(u32, u32)>> {
        let filled = (0..self.processors).filter(|ahead| self.is_filled(*ahead));
        let mut stamps = filled.map(|ahead| (ahead, self.stamp(self.next + ahead)));
        let (first, stamp) = stamps.next()?;
        let earliest = stamps.fold(stamp, |earliest, (_, stamp)| earliest.min(stamp));
        Some(Outlook { is_ready: first == 0, earliest })
    }

    fn in_a_row(&self) -> usize {
        (0..BURST).take_while(|ahead| self.is_filled(*ahead)).count()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.map.cast(), self.size.bytes()) };
    }
}
