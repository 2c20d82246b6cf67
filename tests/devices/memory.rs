//! Memory windows, fast registration and memory regions through the verbs API, between two devices of one process.

use std::time::Duration;

use roxie::host::{
    CompletionQueue, ConnectOptions, Device, DeviceConfig, DeviceError, ProtectionDomain, QueuePair,
    WindowRange,
};
use roxie::nic::ControlError;
use roxie::shared::HostMemory;
use roxie::verbs::{Access, MwType, RKey, SendFlags, SendWr, Wc, WcFlags, WcStatus, WrOpcode};

struct End {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
}

fn end(device: &Device) -> End {
    let pd = device.alloc_pd().expect("a domain");
    let cq = device.create_cq(64, None).expect("a queue");
    let qp = pd.queue_pair(&cq).signal_all().create().expect("a QP");
    End { pd, cq, qp }
}

/// Returns two connected ends.
fn pair() -> (End, End) {
    let (local, remote) = Device::memory_pair(&DeviceConfig::caller_only()).expect("a pair");
    let (a, b) = (end(&local), end(&remote));
    let (here, there) = (a.qp.endpoint(0).expect("a GID"), b.qp.endpoint(0).expect("a GID"));
    let options = ConnectOptions::default();
    a.qp.connect(&here, &there, &options).expect("connected");
    b.qp.connect(&there, &here, &options).expect("connected");
    (a, b)
}

/// Returns the next completion of one end, and polls the other meanwhile.
fn next(of: &End, other: &End) -> Wc {
    let until = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(wc) = of.cq.poll_one() {
            return wc;
        }
        assert!(other.cq.poll_one().is_none(), "the other end has an unexpected completion");
        assert!(std::time::Instant::now() < until, "no completion in ten seconds");
    }
}

fn write(a: &End, b: &End, remote_addr: u64, rkey: RKey, bytes: &[u8]) -> WcStatus {
    let wr = SendWr { opcode: WrOpcode::Write, remote_addr, rkey, ..SendWr::default() };
    a.qp.post_send_inline(&wr, bytes).expect("room");
    next(a, b).status
}

const SIGNALED: SendFlags = SendFlags::SIGNALED;

#[test]
fn window_is_bound_used_and_invalidated() {
    let (a, b) = pair();
    let region = b.pd.register(4096, Access::LOCAL_WRITE | Access::MW_BIND).expect("a region");
    let mut window = b.pd.alloc_window(MwType::Two).expect("a window");
    let range = WindowRange { region: &region, offset: 64, length: 16, access: Access::REMOTE_WRITE };
    let key = b.qp.bind_window(1, SIGNALED, &mut window, &range).expect("posted");
    assert_eq!(next(&b, &a).status, WcStatus::Success);
    assert_eq!(write(&a, &b, region.address() + 64, key, b"through a window"), WcStatus::Success);
    assert_eq!(region.to_vec(64, 16).expect("inside"), b"through a window");

    b.qp.post_recv(2, &[region.sge(0, 8)]).expect("room");
    let wr = SendWr { opcode: WrOpcode::SendInvalidate, rkey: key, ..SendWr::default() };
    a.qp.post_send_inline(&wr, b"done").expect("room");
    let received = loop {
        if let Some(wc) = b.cq.poll_one() {
            break wc;
        }
        let _ = a.cq.poll_one();
    };
    assert_eq!((received.flags, received.imm), (WcFlags::WITH_INV, key.0));
    // The window is free again, and can be bound with another key.
    let again = b.qp.bind_window(3, SIGNALED, &mut window, &range).expect("posted");
    while b.cq.poll_one().map(|wc| assert_eq!(wc.status, WcStatus::Success)).is_none() {
        let _ = a.cq.poll_one();
    }
    assert_ne!(again, key);
}

#[test]
fn device_chooses_type_1_window_keys() {
    let (a, b) = pair();
    let region = b.pd.register(4096, Access::LOCAL_WRITE | Access::MW_BIND).expect("a region");
    let mut window = b.pd.alloc_window(MwType::One).expect("a window");
    let range = WindowRange { region: &region, offset: 0, length: 8, access: Access::REMOTE_WRITE };
    let mut keys = Vec::new();
    for wr_id in 0..3 {
        keys.push(b.qp.bind_window(wr_id, SIGNALED, &mut window, &range).expect("posted"));
        assert_eq!(next(&b, &a).status, WcStatus::Success);
    }
    assert!(keys.iter().all(|key| key.0 >> 8 != keys[0].0 >> 8 || *key == keys[0]), "{keys:?}");
    assert_eq!(write(&a, &b, region.address(), keys[2], &[1]), WcStatus::Success);
    assert_eq!(write(&a, &b, region.address(), keys[1], &[2]), WcStatus::RemAccess);
    assert_eq!(region.to_vec(0, 1).expect("inside"), [1]);
}

#[test]
fn dropping_a_region_drops_its_windows() {
    let (a, b) = pair();
    let region = b.pd.register(4096, Access::LOCAL_WRITE | Access::MW_BIND).expect("a region");
    let mut window = b.pd.alloc_window(MwType::Two).expect("a window");
    let range = WindowRange { region: &region, offset: 0, length: 8, access: Access::REMOTE_WRITE };
    let key = b.qp.bind_window(1, SIGNALED, &mut window, &range).expect("posted");
    assert_eq!(next(&b, &a).status, WcStatus::Success);
    let address = region.address();
    let mut region = region;
    let busy = region.reregister(None, Some(Access::empty()), None);
    assert!(matches!(busy, Err(DeviceError::Control(ControlError::Busy { users: 1, .. }))), "{busy:?}");
    drop(region);
    assert_eq!(write(&a, &b, address, key, &[1]), WcStatus::RemAccess);
}

#[test]
fn work_requests_register_pages() {
    let (a, b) = pair();
    let mut region = b.pd.alloc_fast(8 * 4096, 2).expect("a region");
    let too_many = b.qp.fast_register(0, SIGNALED, &mut region, &[0; 3], (0, 1, Access::LOCAL_WRITE));
    assert!(matches!(too_many, Err(DeviceError::Control(ControlError::TooLarge { value: 3, limit: 2, .. }))));
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let requested = (0x10_0000 - 2, 4, access);
    let key = b.qp.fast_register(1, SIGNALED, &mut region, &[3 * 4096, 0], requested).expect("posted");
    assert_eq!(next(&b, &a).status, WcStatus::Success);
    assert_eq!(write(&a, &b, 0x10_0000 - 2, key, &[1, 2, 3, 4]), WcStatus::Success);
    let at = |offset| {
        let mut bytes = [0; 2];
        region.memory().read(offset, &mut bytes).expect("inside");
        bytes
    };
    assert_eq!((at(4 * 4096 - 2), at(0)), ([1, 2], [3, 4]));
    b.qp.invalidate(2, SIGNALED, key).expect("posted");
    assert_eq!(next(&b, &a).status, WcStatus::Success);
    assert_eq!(write(&a, &b, 0x10_0000 - 2, key, &[9]), WcStatus::RemAccess);
}

#[test]
fn reregistered_region_moves() {
    let (a, b) = pair();
    let mut region = b.pd.register(64, Access::LOCAL_WRITE).expect("a region");
    let old = region.rkey();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::ZERO_BASED;
    region
        .reregister(None, Some(access), Some(HostMemory::allocate(128).expect("memory")))
        .expect("registered");
    assert_eq!((region.address(), region.len()), (0, 128));
    assert_eq!(write(&a, &b, 126, region.rkey(), &[5, 6]), WcStatus::Success);
    assert_eq!(region.to_vec(126, 2).expect("inside"), [5, 6]);
    assert_eq!(write(&a, &b, 0, old, &[1]), WcStatus::RemAccess);
}

#[test]
fn null_region_discards_a_message() {
    let (a, b) = pair();
    let null = b.pd.register_null().expect("a region");
    b.qp.post_recv(1, &[null.sge(0, 1000)]).expect("room");
    a.qp.post_send_inline(&SendWr::default(), b"nobody will read this").expect("room");
    let received = loop {
        if let Some(wc) = b.cq.poll_one() {
            break wc;
        }
        let _ = a.cq.poll_one();
    };
    assert_eq!((received.status, received.byte_len), (WcStatus::Success, 21));
}

#[test]
fn buffer_comes_back_with_what_was_written() {
    let (a, b) = pair();
    let buffer: Vec<u8> = vec![1; 8192];
    let bytes = buffer.as_ptr();
    let region = b.pd.register_owned(buffer, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("a region");
    assert_eq!((region.address(), region.len()), (bytes as u64, 8192));
    assert_eq!(write(&a, &b, region.address() + 8, region.rkey(), b"in place"), WcStatus::Success);
    let (address, key) = (region.address(), region.rkey());
    let buffer = region.into_buffer().expect("the device works");
    assert_eq!((buffer.as_ptr(), buffer.len(), &buffer[7..17]), (bytes, 8192, &b"\x01in place\x01"[..]));
    // Its key gives no more access.
    assert_eq!(write(&a, &b, address, key, b"too late"), WcStatus::RemAccess);
    assert_eq!(buffer[0], 1);
}

#[test]
fn refused_buffer_is_returned() {
    let (_a, b) = pair();
    let buffer = vec![7; 100];
    let bytes = buffer.as_ptr();
    // A peer may write only where the device may.
    let refused = b.pd.register_owned(buffer, Access::REMOTE_WRITE).expect_err("flags that contradict");
    assert_eq!((refused.buffer.as_ptr(), refused.buffer.len()), (bytes, 100));
    assert!(refused.to_string().contains("local write"), "{refused}");
}

#[test]
fn bound_buffer_comes_back_unbound() {
    let (a, b) = pair();
    let region = b.pd.register_owned(vec![0; 4096], Access::LOCAL_WRITE | Access::MW_BIND).expect("a region");
    let mut window = b.pd.alloc_window(MwType::Two).expect("a window");
    let range = WindowRange { region: &region, offset: 0, length: 4096, access: Access::REMOTE_WRITE };
    let key = b.qp.bind_window(1, SIGNALED, &mut window, &range).expect("posted");
    assert_eq!(next(&b, &a).status, WcStatus::Success);
    let address = region.address();
    assert_eq!(region.into_buffer().expect("the device works").len(), 4096);
    assert_eq!(write(&a, &b, address, key, b"too late"), WcStatus::RemAccess);
}
