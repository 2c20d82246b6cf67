//! Management datagrams have a ring of their own.

use super::*;

/// Slots of the ring of management datagrams.
const ROOM: usize = 2048;
/// Length of a frame with one management datagram, over IPv4 and IPv6.
const LENGTHS: [usize; 2] = [322, 342];

/// Returns a frame to QP1, or to another QP.
fn to(qpn: u8, v6: bool, len: usize) -> Vec<u8> {
    let mut frame = frame(true, v6, false, len, 5);
    let qp = if v6 { 62 + 5 } else { 42 + 5 };
    frame[qp..qp + 3].copy_from_slice(&[0, 0, qpn]);
    frame
}

/// Sends each frame alone.
fn send_each<'a>(port: &mut PacketPort, frames: impl IntoIterator<Item = &'a Vec<u8>>) {
    for frame in frames {
        assert!(put(port, frame));
        flush(port);
    }
}

#[test]
fn management_flood_displaces_no_data() {
    if skip("management_flood_displaces_no_data") {
        return;
    }
    for (v6, length) in [false, true].into_iter().zip(LENGTHS) {
        let wire = Wire::new("pk-flood", 1500, 1);
        let (mut left, mut right) = wire.packet_ports();
        let request = to(1, v6, length);
        send_each(&mut left, std::iter::repeat_n(&request, ROOM + 500));
        // Of the same length to another QP, and to QP1 of other lengths, which no datagram has.
        let data = [to(2, v6, length), to(1, v6, length + 60), to(1, v6, length - 40)];
        send_each(&mut left, &data);
        assert_eq!(right.rx_waiting(), Some((data.len(), SLOTS)));
        let received = take(&mut right, ROOM + 500 + data.len(), A_WHILE);
        assert!(received[..data.len()] == data && received.len() == data.len() + ROOM);
        assert!(received[data.len()..].iter().all(|frame| *frame == request));
        assert_eq!(counter(&right, "rx_out_of_buffer"), 500);
        send_each(&mut left, [&request, &data[0]]);
        assert_eq!(take(&mut right, 2, SOON).len(), 2, "reception continues");
    }
}

#[test]
fn full_ring_of_data_delays_no_management() {
    if skip("full_ring_of_data_delays_no_management") {
        return;
    }
    let wire = Wire::new("pk-share", 1500, 1);
    let (mut left, mut right) = wire.packet_ports();
    let (data, request) = (to(2, false, 400), to(1, false, LENGTHS[0]));
    send_each(&mut left, std::iter::repeat_n(&data, 200));
    send_each(&mut left, std::iter::repeat_n(&request, 200));
    assert_eq!(requests_in_burst(&mut right), 16, "a quarter of a burst");
    assert_eq!(take(&mut right, 400 - 64, SOON).len(), 400 - 64);
    // Two trains, each as long as a burst.
    let frames: Vec<_> = (0..128).map(|seed| frame(true, false, false, 400, seed)).collect();
    for train in frames.chunks(64) {
        let ids = arrange(&mut left, train);
        ids.into_iter().for_each(|id| left.tx_commit(id));
        flush(&mut left);
    }
    send_each(&mut left, std::iter::repeat_n(&request, 200));
    assert_eq!(requests_in_burst(&mut right), 16, "also in the middle of a train");
    let rest = take(&mut right, 128 + 200 - 64, SOON);
    let data: Vec<_> = rest.iter().filter(|frame| frame.len() == 400).map(|frame| &frame[42..]).collect();
    assert!(data == frames[48..].iter().map(|frame| &frame[42..]).collect::<Vec<_>>(), "in order");
    assert_eq!((counter(&right, "rx_trains"), rest.len()), (2, 128 + 200 - 64));
}

/// Receives a full burst. Returns the number of management datagrams in it.
fn requests_in_burst(port: &mut PacketPort) -> usize {
    assert_eq!(port.rx_burst(Nanos::ZERO), 64);
    let requests = (0..64).filter(|i| port.rx_frame(*i).frame.len() == LENGTHS[0]).count();
    port.rx_release();
    requests
}
