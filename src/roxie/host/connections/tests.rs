//! Tests of the path back to a sender, of a failed QP1, and of replies that cannot be sent.

use super::*;
use crate::host::AhOptions;
use crate::host::{ConnectionManager, DeviceConfig, DialError, DialOptions};
use roxie_nic::cm::Route;
use roxie_nic::verbs::Access;
use roxie_wire::cm::{CmMessage, CommId, RejReason, Req};

#[test]
fn sender_is_found_in_either_network_header() {
    let mut v4 = [0; HEADER];
    v4[20..].copy_from_slice(&[0x45, 0x0c, 0, 48, 0, 0, 0x40, 0, 63, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    let route = return_path(&v4, 0).unwrap();
    assert_eq!(
        (route.remote.to_string(), route.local.to_string()),
        ("::ffff:192.0.2.1".into(), "::ffff:192.0.2.2".into())
    );
    assert_eq!((route.traffic_class, route.hop_limit), (0x0c, 64));

    let mut v6 = [0; HEADER];
    v6[..8].copy_from_slice(&[0x60, 0xc1, 0x23, 0x45, 0, 28, 17, 7]);
    (v6[8], v6[24]) = (0xfd, 0xfc);
    let route = return_path(&v6, 5).unwrap();
    assert_eq!((route.remote.0[0], route.local.0[0]), (0xfd, 0xfc));
    assert_eq!((route.traffic_class, route.flow_label), (0x0c, 0x1_2345));

    assert_eq!(return_path(&[0; HEADER], 0), None);
}

/// QP1 has no room while its completions are not polled.
#[test]
fn replies_to_a_flood_wait_in_bounded_queues() {
    let (local, remote) = Device::memory_pair(&DeviceConfig::default()).unwrap();
    let manager = Manager::new(roxie_nic::cm::Config { grace: Nanos(0), ..roxie_nic::cm::Config::default() });
    let service = ConnectionService::start(&remote, manager, IgnoreEvents).unwrap();
    let (here, there) = (remote.gids()[0].gid, local.gids()[0].gid);
    let route = Route::new(here.to_ip(), there.to_ip());
    let handle = service.inner.lock().gsi.domain.create_ah(0, there, &AhOptions::default()).unwrap();
    let mut core = service.inner.lock();
    let answer = Transmit { route, mad: [0; MAD_LEN] };
    core.paths.insert(MessagePath::of(&answer), Arc::new(handle));
    let limits = core.manager.config().limits;
    for number in 1..=3 * limits.transmits as u32 {
        let mut req =
            Req { local_comm_id: CommId(number), local_qpn: Qpn::new(number), path_mtu: 3, ..Req::default() };
        req.primary_path.local_gid = there;
        req.primary_path.remote_gid = here;
        let from = Arrival { route, src_qp: Qpn::GSI };
        core.manager.handle_mad(Nanos(0), &CmMessage::Req(req).to_mad(number.into()), &from);
        core.settle(Nanos(0));
        core.send(&service.inner.requests);
    }
    assert!(core.manager.counters().sent(roxie_wire::cm::Kind::Rej) > 64, "nothing was answered");
    let waiting = core.outbox.len() + std::iter::from_fn(|| core.manager.poll_transmit()).count();
    assert!((limits.transmits..=limits.transmits + 1).contains(&waiting), "{waiting} messages wait");
}

/// An RTU that waited for a path of its own was overtaken by the DREQ of a short connection: its peer never became
/// connected.
#[test]
fn message_behind_a_request_needs_no_path() {
    let (local, _remote) = Device::memory_pair(&DeviceConfig::default()).unwrap();
    let manager = Manager::new(roxie_nic::cm::Config::default());
    let service = ConnectionService::start(&local, manager, IgnoreEvents).unwrap();
    let here = local.gids()[0].gid;
    let mut core = service.inner.lock();
    let handle = core.gsi.domain.create_ah(0, here, &AhOptions::default()).unwrap();
    let route = Route::new(here.to_ip(), [192, 0, 2, 99].into());
    let (requests, receiver) = std::sync::mpsc::sync_channel(1);
    core.outbox.push_back(Transmit { route, mad: [0; MAD_LEN] });
    assert!(!core.send(&requests) && receiver.try_recv().is_ok(), "an unknown host is asked for");
    core.paths.insert(MessagePath::to(&route, true), Arc::new(handle));
    core.outbox.push_back(Transmit { route, mad: [0; MAD_LEN] });
    assert!(core.send(&requests) && receiver.try_recv().is_err(), "the request's path is known");
}

#[test]
fn failed_qp1_restarts() {
    let (local, remote) = Device::memory_pair(&DeviceConfig::default()).unwrap();
    let service =
        ConnectionService::start(&remote, Manager::new(roxie_nic::cm::Config::default()), IgnoreEvents)
            .unwrap();
    let client = ConnectionManager::start(&local).unwrap();
    let (domain, queue) = (local.alloc_pd().unwrap(), local.create_cq(4, None).unwrap());
    let to = (remote.gids()[0].gid.to_ip(), 7174).into();
    for _ in 0..3 {
        let error = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
        service.inner.lock().gsi.qp.modify(&error).unwrap();
        let qp = domain.queue_pair(&queue).signal_all().create().unwrap();
        qp.initialize(Access::empty()).unwrap();
        // No listener: QP1 itself answers with a rejection.
        let refusal = client.connect(qp, to, &DialOptions::default()).unwrap_err();
        assert!(
            matches!(refusal, DialError::Rejected { reason: RejReason::INVALID_SERVICE_ID, .. }),
            "{refusal}"
        );
    }
}
