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
        let said = error.to_string();
        assert!(said.contains(&format!("process {} (", std::process::id())), "{said}");
        assert!(said.contains("10.77.0.1") && said.contains("4791") && said.contains("stop"), "{said}");
    });
}

/// A socket in transit to another process has no holder. Its port becomes free when the message is discarded.
#[test]
fn port_without_visible_holder_is_awaited() {
    in_namespace("port_without_visible_holder_is_awaited", || {
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
fn taken_source_port_error_names_its_owner() {
    in_namespace("taken_source_port_error_names_its_owner", || {
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
fn foreign_address_is_refused_with_remedy() {
    in_namespace("foreign_address_is_refused_with_remedy", || {
        let config = UdpConfig { addresses: vec![ip("192.0.2.1")], ..UdpConfig::default() };
        let said = UdpPort::open(&config).err().expect("a refusal").to_string();
        assert!(
            said.contains("192.0.2.1 is no address of this host") && said.contains("ip address"),
            "{said}"
        );
    });
}
