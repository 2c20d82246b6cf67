//! Ports that do not open, and what is said.

use std::io::IoSlice;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use roxie::port::udp::{UdpConfig, UdpError, UdpPort};

use crate::{PORT, in_namespace, ip, open};

#[test]
fn a_taken_port_is_refused_with_the_name_of_its_owner() {
    in_namespace("a_taken_port_is_refused_with_the_name_of_its_owner", || {
        let _first = open("10.77.0.1");
        let config = UdpConfig { addresses: vec![ip("10.77.0.1")], ..UdpConfig::default() };
        let error = UdpPort::open(&config).err().expect("a refusal");
        assert!(matches!(error, UdpError::InUse { port: PORT, .. }));
        let said = error.to_string();
        assert!(said.contains(&format!("process {} (", std::process::id())), "{said}");
        assert!(said.contains("10.77.0.1") && said.contains("4791") && said.contains("stop"), "{said}");
    });
}

/// A socket that is on its way to another process is nobody's, and its port is free when nobody takes it.
#[test]
fn a_port_that_nobody_is_seen_to_hold_is_waited_for() {
    in_namespace("a_port_that_nobody_is_seen_to_hold_is_waited_for", || {
        let socket = UdpSocket::bind(("10.77.0.1", PORT)).expect("a socket");
        let (near, far) = UnixStream::pair().expect("two sockets");
        let message = [ControlMessage::ScmRights(&[socket.as_raw_fd()])];
        let flags = MsgFlags::empty();
        sendmsg::<()>(near.as_raw_fd(), &[IoSlice::new(b"x")], &message, flags, None).expect("it is sent");
        drop((socket, near));
        let config = UdpConfig { addresses: vec![ip("10.77.0.1")], ..UdpConfig::default() };
        let said = UdpPort::open(&config).err().expect("it is on its way").to_string();
        assert!(said.contains("no process that may be seen"), "{said}");
        let reader = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(far);
        });
        UdpPort::open(&config).expect("it is free in time");
        reader.join().expect("no panic");
    });
}

#[test]
fn a_taken_port_among_the_source_ports_is_refused_with_its_owner_too() {
    in_namespace("a_taken_port_among_the_source_ports_is_refused_with_its_owner_too", || {
        let _taken = UdpSocket::bind(("10.77.0.1", 0xc123)).expect("a socket");
        let config = UdpConfig { addresses: vec![ip("10.77.0.1")], port: 0xc123, ..UdpConfig::default() };
        let said = UdpPort::open(&config).err().expect("a refusal").to_string();
        assert!(
            said.contains("49443") && said.contains(&format!("process {} (", std::process::id())),
            "{said}"
        );
    });
}

#[test]
fn an_address_of_another_host_is_refused_with_a_remedy() {
    in_namespace("an_address_of_another_host_is_refused_with_a_remedy", || {
        let config = UdpConfig { addresses: vec![ip("192.0.2.1")], ..UdpConfig::default() };
        let said = UdpPort::open(&config).err().expect("a refusal").to_string();
        assert!(
            said.contains("192.0.2.1 is no address of this host") && said.contains("ip address"),
            "{said}"
        );
    });
}
