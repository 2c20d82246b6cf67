//! Ports that cannot be opened, and their errors.

use std::io::IoSlice;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use roxie::port::udp::{UdpConfig, UdpError, UdpPort};

use crate::udp::{PORT, in_namespace, ip, open};

#[test]
fn taken_port_error_names_its_owner() {
    in_namespace("taken_port_error_names_its_owner", || {
        let _first = open("10.77.0.1");
        let config = UdpConfig { addresses: vec![ip("10.77.0.1")], ..UdpConfig::default() };
        let error = UdpPort::open(&config).err().expect("a refusal");
        assert!(matches!(error, UdpError::InUse { port: PORT, .. }));
        let message = error.to_string();
        assert!(message.contains(&format!("process {} (", std::process::id())), "{message}");
        assert!(
            message.contains("10.77.0.1") && message.contains("4791") && message.contains("stop"),
            "{message}"
        );
    });
}

/// A socket in transit to another process has no holder. Its port becomes free when the message is discarded.
#[test]
fn port_without_visible_holder_is_awaited() {
    in_namespace("port_without_visible_holder_is_awaited", || {
        let socket = UdpSocket::bind(("10.77.0.1", PORT)).expect("a socket");
        let (local, remote) = UnixStream::pair().expect("two sockets");
        let message = [ControlMessage::ScmRights(&[socket.as_raw_fd()])];
        let flags = MsgFlags::empty();
        sendmsg::<()>(local.as_raw_fd(), &[IoSlice::new(b"x")], &message, flags, None).expect("it is sent");
        drop((socket, local));
        let config = UdpConfig { addresses: vec![ip("10.77.0.1")], ..UdpConfig::default() };
        let refusal = UdpPort::open(&config).err().expect("it is on its way").to_string();
        assert!(refusal.contains("no process that may be seen"), "{refusal}");
        let reader = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(remote);
        });
        UdpPort::open(&config).expect("it is free in time");
        reader.join().expect("no panic");
    });
}

#[test]
fn taken_source_port_error_names_its_owner() {
    in_namespace("taken_source_port_error_names_its_owner", || {
        let _taken = UdpSocket::bind(("10.77.0.1", 0xc123)).expect("a socket");
        let config = UdpConfig { addresses: vec![ip("10.77.0.1")], port: 0xc123, ..UdpConfig::default() };
        let message = UdpPort::open(&config).err().expect("a refusal").to_string();
        assert!(
            message.contains("49443") && message.contains(&format!("process {} (", std::process::id())),
            "{message}"
        );
    });
}

#[test]
fn foreign_address_is_refused_with_remedy() {
    in_namespace("foreign_address_is_refused_with_remedy", || {
        let config = UdpConfig { addresses: vec![ip("192.0.2.1")], ..UdpConfig::default() };
        let message = UdpPort::open(&config).err().expect("a refusal").to_string();
        assert!(
            message.contains("192.0.2.1 is no address of this host") && message.contains("ip address"),
            "{message}"
        );
    });
}
