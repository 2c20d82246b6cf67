//! Probes the kernel with datagrams to itself.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use super::sys::{attach_filter, set_int};

/// Most segments per send, newest kernels first (`UDP_MAX_SEGMENTS`).
const SEGMENTS: [usize; 2] = [128, 64];
/// Timeout for a datagram to ourselves.
const PATIENCE: Duration = Duration::from_millis(100);

/// Returns the most datagrams per send, or why it is one.
pub(super) fn segmentation() -> Result<usize, String> {
    let probe = || -> io::Result<usize> {
        // Do not bind to the loopback address: a new namespace has none until its `lo` is up.
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let to = (Ipv4Addr::LOCALHOST, socket.local_addr()?.port());
        set_int(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 1)?;
        for segments in SEGMENTS {
            match socket.send_to(&vec![0; segments], to) {
                Ok(_) => return Ok(segments),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                // The loopback interface is down or filtered. The kernel accepted the option, so it has segmentation.
                Err(_) => break,
            }
        }
        Ok(SEGMENTS[SEGMENTS.len() - 1])
    };
    probe().map_err(|error| format!("the kernel refuses UDP_SEGMENT ({error})"))
}

/// Whether the kernel sets the IPv4 identifications that `arrange` predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identification {
    /// Observed: 0 for a single datagram; 0, 1, 2 … in a train.
    AsAssumed,
    /// Observed: other values. Peers that check the ICRC will drop frames.
    Different,
    /// The probe failed.
    Unchecked,
}

impl fmt::Display for Identification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Identification::AsAssumed => "IPv4 ids checked",
            Identification::Different => {
                "IPv4 ids are NOT as assumed: peers may drop frames for their ICRC, prefer IPv6"
            }
            Identification::Unchecked => "IPv4 ids not checked: no datagram to 127.0.0.1 came back",
        })
    }
}

/// Sends datagrams to ourselves that contain their expected identification, through a socket filter that passes those
/// that have it.
pub(super) fn identification(segments: usize) -> Identification {
    let count = |filter: &[(u16, u8, u8, u32)]| -> io::Result<usize> {
        let to = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        to.set_read_timeout(Some(PATIENCE))?;
        attach_filter(to.as_fd(), filter)?;
        let from = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        set_int(from.as_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
        from.send_to(&[0], to.local_addr()?)?;
        let mut sent = 1;
        if segments >= 3 {
            set_int(from.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 1)?;
            from.send_to(&[0, 1, 2], to.local_addr()?)?;
            sent += 3;
        }
        let mut byte = [0];
        let passed = (0..sent).take_while(|_| to.recv(&mut byte).is_ok()).count();
        Ok(sent - passed)
    };
    match (count(&PASS_EXPECTED), count(&PASS_ALL)) {
        (Ok(0), _) => Identification::AsAssumed,
        (Ok(_), Ok(0)) => Identification::Different,
        _ => Identification::Unchecked,
    }
}

/// Classic BPF: passes a datagram if its first byte equals its IPv4 identification.
const PASS_EXPECTED: [(u16, u8, u8, u32); 6] = [
    (0x30, 0, 0, 8),                            // A = byte behind the UDP header
    (0x07, 0, 0, 0),                            // X = A
    (0x28, 0, 0, libc::SKF_NET_OFF as u32 + 4), // A = half-word 4 of the IP header
    (0x1d, 0, 1, 0),                            // A == X ?
    (0x06, 0, 0, 0xffff),                       // pass
    (0x06, 0, 0, 0),                            // drop
];
const PASS_ALL: [(u16, u8, u8, u32); 1] = [(0x06, 0, 0, 0xffff)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_segments_and_numbers_as_assumed() {
        let segments = segmentation().expect("UDP_SEGMENT is in Linux since 4.18");
        assert!(SEGMENTS.contains(&segments));
        assert_eq!(identification(segments), Identification::AsAssumed);
    }
}
