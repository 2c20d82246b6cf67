//! WRITEs over a link that is lost: the device's own interface goes down, is deleted, or moves to another namespace.

use std::time::{Duration, Instant};

use crate::end::End;
use crate::run_in;
use crate::wire::{Wire, skip};
use roxie::host::{ConnectOptions, ControlError, Device, DeviceConfig, DeviceError, OpenError, Stack};
use roxie::netdev::{Links, NetNs};
use roxie::port::packet::PacketConfig;
use roxie::port::udp::UdpConfig;
use roxie::port::xdp::XdpConfig;
use roxie::verbs::{AsyncEvent, EventKind, Mtu, QpState, WcStatus, WrOpcode};

/// Bytes of a WRITE: many frames.
const LENGTH: usize = 64 << 10;
/// Number of WRITEs after the loss.
const WRITES: usize = 16;
/// Limit for what takes well below a second.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    Down,
    Deleted,
    Moved,
}

type Open = fn(&str) -> Result<Device, OpenError>;

fn packet(name: &str) -> Result<Device, OpenError> {
    Device::open_packet(&PacketConfig::new(name), &Stack::default(), &DeviceConfig::default())
}

fn xdp(name: &str) -> Result<Device, OpenError> {
    Device::open_xdp(&XdpConfig::new(name), &Stack::default(), &DeviceConfig::default())
}

fn udp(name: &str) -> Result<Device, OpenError> {
    let config = UdpConfig { interface: Some(name.into()), ..UdpConfig::default() };
    Device::open_udp(&config, &Stack::default(), &DeviceConfig::default())
}

fn post_write(from: &End, to: &End) {
    from.post(to, WrOpcode::Write, LENGTH);
}

fn status(of: &End) -> Option<WcStatus> {
    of.cq.wait(LIMIT).ok().map(|wc| wc.status)
}

/// Connects two new QPs.
fn connected(near: &Device, far: &Device) -> Option<(End, End)> {
    let (a, b) = (End::new(near, LENGTH), End::new(far, LENGTH));
    let (here, there) = (a.qp.endpoint(0).unwrap(), b.qp.endpoint(0).unwrap());
    let options = ConnectOptions { path_mtu: Some(Mtu::Mtu1024), retry_cnt: 3, ..ConnectOptions::default() };
    a.qp.connect(&here, &there, &options).ok()?;
    b.qp.connect(&there, &here, &options).ok()?;
    Some((a, b))
}

fn lose(wire: &Wire, loss: Loss) {
    let mut links = Links::open_in(&wire.a).unwrap();
    match loss {
        Loss::Down => links.set_up("left", false).unwrap(),
        Loss::Deleted => links.delete("left").unwrap(),
        Loss::Moved => {
            run_in(&wire.a, "ip", &format!("link set left netns {}", wire.b.name().unwrap()));
        }
    }
}

/// Loses the link of a device, and checks that each WRITE after that completes in error. Brings a link up again that
/// went down.
fn writes_fail(port: &str, open: Open, loss: Loss) {
    let wire = Wire::new(&format!("lost-{port}-{loss:?}").to_lowercase(), 1500, 1);
    let opened = |ns: &NetNs, name: &str| ns.run(|| open(name)).unwrap().unwrap();
    let (local, remote) = (opened(&wire.a, "left"), opened(&wire.b, "right"));
    let (a, b) = connected(&local, &remote).expect("a path");
    post_write(&a, &b);
    assert_eq!(status(&a), Some(WcStatus::Success));
    lose(&wire, loss);
    if loss != Loss::Down {
        let until = Instant::now() + LIMIT;
        while !local.has_lost_interface() {
            assert!(Instant::now() < until, "{port}, {loss:?}: the device is gone");
            std::thread::sleep(Duration::from_millis(5));
        }
        let refused = local.alloc_pd().unwrap_err();
        assert!(matches!(refused, DeviceError::Control(ControlError::DeviceFatal)), "{refused}");
    }
    (0..WRITES).for_each(|_| post_write(&a, &b));
    let statuses: Vec<_> = (0..WRITES).map_while(|_| status(&a)).collect();
    let failed = [vec![WcStatus::RetryExc], vec![WcStatus::WrFlush; WRITES - 1]].concat();
    assert_eq!(statuses, failed, "{port}, {loss:?}");
    assert_eq!(a.qp.query().unwrap().state, QpState::Err);
    if loss != Loss::Down {
        let fatal = [AsyncEvent::Device(EventKind::DeviceFatal), AsyncEvent::Port(EventKind::PortError)];
        let events: Vec<_> = std::iter::from_fn(|| local.event()).filter(|e| fatal.contains(e)).collect();
        // The interface may have been seen to go down before.
        assert!(events.ends_with(&fatal), "{port}, {loss:?}: {events:?}");
        return;
    }
    Links::open_in(&wire.a).unwrap().set_up("left", true).unwrap();
    let until = Instant::now() + LIMIT;
    let passes = || {
        let Some((a, b)) = connected(&local, &remote) else { return false };
        post_write(&a, &b);
        status(&a) == Some(WcStatus::Success)
    };
    while !passes() {
        assert!(Instant::now() < until, "{port}: WRITEs pass again");
    }
}

fn writes_fail_however_lost(test: &str, port: &str, open: Open) {
    if skip(test) {
        return;
    }
    std::thread::scope(|scope| {
        for loss in [Loss::Down, Loss::Deleted, Loss::Moved] {
            scope.spawn(move || writes_fail(port, open, loss));
        }
    });
}

#[test]
fn writes_fail_when_packet_link_is_lost() {
    writes_fail_however_lost("writes_fail_when_packet_link_is_lost", "packet", packet);
}

#[test]
fn writes_fail_when_xdp_link_is_lost() {
    writes_fail_however_lost("writes_fail_when_xdp_link_is_lost", "xdp", xdp);
}

#[test]
fn writes_fail_when_udp_link_is_lost() {
    writes_fail_however_lost("writes_fail_when_udp_link_is_lost", "udp", udp);
}
