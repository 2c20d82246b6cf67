//! Ports that do not open, and what is said.

use std::net::UdpSocket;

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
