//! The floor's frames. Their headers and lengths are those of RoCE packets (a SEND to an unused QPN), so that ports
//! steer and segment them alike. Each end copies the payload once, as a transport must. The ICRC is left out.

use roxie::port::{BURST, Port};
use roxie::time::Nanos;
use roxie::verbs::Mtu;
use roxie::wire::{Bth, Ext, FlowSpec, Gid, MAX_HEADERS, Opcode, Qpn, RoceVersion, Template};

/// Destination QPN, which no QP has.
const UNUSED_QPN: u32 = 0xff_fff0;

/// Station address and GID of one end.
pub(crate) type Station = ([u8; 6], Gid);

/// Returns the header template of all frames from one end to the other.
pub(crate) fn flow((src_mac, src): Station, (dst_mac, dst): Station) -> Template {
    Template::new(&FlowSpec {
        src_mac,
        dst_mac,
        vlan: None,
        src,
        dst,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
        source_port: 0xc0de,
        version: RoceVersion::V2,
    })
}

/// A frame to send repeatedly: its headers, its payload and its length.
pub(crate) struct Shape {
    headers: [u8; MAX_HEADERS],
    header_len: usize,
    payload: Vec<u8>,
    frame_len: usize,
}

/// Memory that takes the payload of received frames.
pub(crate) struct Sink(Vec<u8>);

impl Default for Sink {
    fn default() -> Sink {
        Sink(vec![0; Mtu::Mtu4096.bytes()])
    }
}

impl Shape {
    /// Returns the frame with `payload` bytes behind the headers.
    pub(crate) fn new(flow: &Template, payload: usize) -> Shape {
        let opcode = Opcode::RC_SEND_ONLY;
        let bth = Bth { opcode, pkey: 0xffff, dest_qp: Qpn::new(UNUSED_QPN), ..Bth::default() };
        let mut headers = [0; MAX_HEADERS];
        let header_len = flow.write_headers(&mut headers, &bth, &Ext::None, payload);
        let payload = vec![0x5a; payload];
        let frame_len = flow.frame_len(opcode, payload.len());
        Shape { headers, header_len, payload, frame_len }
    }

    /// Commits up to `count` frames, at most one burst, and returns how many found a slot. The next flush sends them.
    pub(crate) fn send(&self, port: &mut dyn Port, count: u64) -> u64 {
        let mut ids: [_; BURST] = std::array::from_fn(|_| None);
        let mut n = 0;
        while n < ids.len().min(count as usize) {
            let Some(id) = port.tx_alloc(self.frame_len) else { break };
            let mut frame = port.tx_frame(&id);
            frame.write(0, &self.headers[..self.header_len]);
            frame.write(self.header_len, &self.payload);
            ids[n] = Some(id);
            n += 1;
        }
        port.tx_arrange();
        for id in ids.into_iter().flatten() {
            port.tx_commit(id);
        }
        n as u64
    }

    /// Receives one burst; returns how many of its frames have this length. Hardly any other frames are steered to the
    /// port.
    pub(crate) fn receive(&self, port: &mut dyn Port, now: Nanos, sink: &mut Sink) -> u64 {
        let count = port.rx_burst(now);
        let mut take = |i: usize| {
            let frame = port.rx_frame(i).frame;
            let is_ours = frame.len() == self.frame_len;
            if is_ours {
                let most = self.payload.len().min(sink.0.len());
                std::hint::black_box(frame.copy_to(self.header_len, &mut sink.0[..most]));
            }
            is_ours
        };
        let ours = (0..count).filter(|i| take(*i)).count();
        port.rx_release();
        ours as u64
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use roxie::port::memory::{self, MemoryConfig};

    use super::*;

    #[test]
    fn only_frames_of_same_length_count() {
        let (mut a, mut b) = memory::pair(MemoryConfig::default(), MemoryConfig::default());
        let station = |n| ([2, 0, 0, 0, 0, n], Gid::from(IpAddr::from([192, 0, 2, n])));
        let flow = flow(station(1), station(2));
        let (short, long) = (Shape::new(&flow, 64), Shape::new(&flow, 1024));
        assert_eq!((short.send(&mut a, 3), long.send(&mut a, 5)), (3, 5));
        a.tx_flush(Nanos::ZERO).unwrap();
        let mut sink = Sink::default();
        assert_eq!(long.receive(&mut b, Nanos::ZERO, &mut sink), 5);
        assert_eq!(sink.0[..1025], [&[0x5a; 1024][..], &[0]].concat(), "the payload is copied");
        assert_eq!(short.receive(&mut b, Nanos::ZERO, &mut sink), 0, "they came in the same burst");
        assert_eq!(short.send(&mut a, 10 * BURST as u64), BURST as u64, "no more than a burst at once");
    }
}
