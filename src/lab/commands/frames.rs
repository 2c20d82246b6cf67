//! Frames without a NIC, for labs about switches: RoCE frames of a given length and priority, and stations that send
//! them.

use roxie::frame::FrameMut;
use roxie::time::Nanos;
use roxie::wire::{Bth, Ext, FlowSpec, Gid, MAX_HEADERS, Opcode, RoceVersion, Template};
use roxie_report::failure::Failure;
use roxie_sim::Host;
use roxie_sim::fabric::{ConfigError, LinkConfig, MacPause, PriorityMap, StationConfig};

/// Converts an invalid configuration to a usage error.
pub(super) fn refused(error: &ConfigError) -> Failure {
    Failure::Usage(error.to_string())
}

/// Returns a RoCE v2 frame of `length` bytes, with a DSCP of this priority. A length below the headers' gives a frame
/// of just the headers.
pub(super) fn frame(from: usize, to: usize, length: usize, priority: u8) -> Vec<u8> {
    let template = Template::new(&FlowSpec {
        src_mac: Host::mac(from as u16 + 1),
        dst_mac: Host::mac(to as u16 + 1),
        vlan: None,
        src: Gid::from(Host::address(from as u16 + 1, false)),
        dst: Gid::from(Host::address(to as u16 + 1, false)),
        traffic_class: priority << 5,
        flow_label: 0,
        hop_limit: 64,
        source_port: 0xc000 + from as u16,
        version: RoceVersion::V2,
    });
    let bth = Bth { opcode: Opcode::RC_SEND_ONLY, ..Bth::default() };
    let around = template.frame_len(bth.opcode, 0);
    let payload = length.saturating_sub(around) & !3;
    let mut headers = [0; MAX_HEADERS];
    let at = template.write_headers(&mut headers, &bth, &Ext::None, payload);
    let mut frame = vec![0; template.frame_len(bth.opcode, payload)];
    frame[..at].copy_from_slice(&headers[..at]);
    template.seal(&mut FrameMut { a: &mut frame, b: &mut [] });
    // Bytes beyond a multiple of 4 become a trailer.
    frame.resize(length.max(around), 0);
    frame
}

/// Returns a station with a long ring that honours pause frames.
pub(super) fn station(number: usize, link: LinkConfig, response: Option<Nanos>) -> StationConfig {
    StationConfig {
        mtu: 10_000,
        slots: 1 << 20,
        mac_pause: Some(MacPause { response, priorities: PriorityMap::default() }),
        ..StationConfig::new(Host::mac(number as u16 + 1), link)
    }
}
