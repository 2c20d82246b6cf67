//! Sleeping on the sockets, and polling of silent sockets.

use roxie::port::Port;
use roxie::port::udp::{UdpConfig, UdpPort};

use crate::udp::{Flow, in_namespace, ip, open, payloads, receive, receive_burst, send};

/// A silent socket is polled less often while another is busy, but it is polled.
#[test]
fn silent_socket_is_polled_beside_busy_one() {
    in_namespace("silent_socket_is_polled_beside_busy_one", || {
        let both = UdpConfig { addresses: vec![ip("10.77.0.2"), ip("fd77::2")], ..UdpConfig::default() };
        let (mut a, mut c) = (open("10.77.0.1"), open("fd77::1"));
        let mut b = UdpPort::open(&both).expect("a port");
        let (busy, silent) = (Flow::new("10.77.0.1", "10.77.0.2"), Flow::new("fd77::1", "fd77::2"));
        let mut turn = |b: &mut UdpPort| {
            send(&mut a, &busy, &payloads(1, 100));
            let mut frames = Vec::new();
            receive_burst(b, &mut frames);
            frames.iter().any(|frame| frame[12..14] == [0x86, 0xdd])
        };
        for _ in 0..200 {
            assert!(!turn(&mut b), "no packet was sent over IPv6");
        }
        send(&mut c, &silent, &payloads(1, 100));
        assert!((0..100).any(|_| turn(&mut b)), "the datagram waits behind a socket that is busy");
    });
}

#[test]
fn sockets_wake_a_sleeper() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    in_namespace("sockets_wake_a_sleeper", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        let readable = |port: &UdpPort| {
            let mut fds: Vec<_> =
                port.event_fds().into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            poll(&mut fds, PollTimeout::from(200u8)).expect("poll") > 0
        };
        assert!(b.prepare_sleep() && !readable(&b));
        send(&mut a, &Flow::new("10.77.0.1", "10.77.0.2"), &payloads(1, 10));
        assert!(readable(&b));
        receive(&mut b, 1);
        assert!(b.prepare_sleep() && !readable(&b));
    });
}
