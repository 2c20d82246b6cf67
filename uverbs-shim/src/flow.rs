//! Flow steering (`ibv_flow`): converts lists of header specifications to the NIC's match rules.

use std::ffi::c_int;
use std::mem::{offset_of, size_of};

use roxie::flow::layer;
use roxie::host::Flow;
use roxie::verbs::{FlowField, FlowMatch, FlowRule};

use crate::abi::{
    ibv_flow, ibv_flow_attr, ibv_flow_attr_type as kind, ibv_flow_spec_eth, ibv_flow_spec_ipv4,
    ibv_flow_spec_ipv4_ext, ibv_flow_spec_ipv6, ibv_flow_spec_tcp_udp, ibv_flow_spec_type as spec, ibv_qp,
};
use crate::base::cancellation::Uncancelled;
use crate::base::object::{Errno, VerbsStruct, code, give, object_of, pointer, take_back};
use crate::base::report::{device, refuse};

const CALL: &str = "ibv_create_flow";

/// The object behind a flow.
pub(crate) struct Inner {
    _flow: Flow,
    qp: *mut ibv_qp,
}

impl VerbsStruct for ibv_flow {
    type Extended = ibv_flow;
    type Inner = Inner;
}

/// Creates a flow, which steers frames to a raw packet QP.
pub(crate) unsafe extern "C" fn create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, and attributes with as many specifications behind them as they say.
    pointer(unsafe {
        object_of(qp).and_then(|found| {
            let rule = rule(attr)?;
            let flow = found.pair.create_flow(&rule).map_err(device(CALL))?;
            found.flows.add();
            let face = ibv_flow { context: (*qp).context, ..ibv_flow::default() };
            Ok(give(face, Inner { _flow: flow, qp }))
        })
    })
}

/// Destroys a flow.
pub(crate) unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object; its QP outlives its flows.
    code(unsafe {
        object_of(flow).and_then(|found| {
            object_of(found.qp)?.flows.remove();
            drop(take_back(flow));
            Ok(())
        })
    })
}

/// # Safety
/// The contract: attributes with specifications behind them.
unsafe fn rule(attr: *const ibv_flow_attr) -> Result<FlowRule, Errno> {
    if attr.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: not null, as checked; the caller promises attributes, with a fixed part of the same length in all
    // releases.
    let of = unsafe { attr.read() };
    if of.comp_mask != 0 {
        return refuse(
            CALL,
            libc::EINVAL,
            format_args!("comp_mask {:#x}: no extension is known", of.comp_mask),
        );
    }
    if of.flags != 0 {
        let why = format_args!("flags {:#x}: only received frames are steered, each to one QP", of.flags);
        return refuse(CALL, libc::EOPNOTSUPP, why);
    }
    if of.port > 1 {
        return refuse(CALL, libc::EINVAL, format_args!("port {}: the device has port 1", of.port));
    }
    if of.type_ != kind::IBV_FLOW_ATTR_NORMAL {
        // Other types are for frames that the kernel does not take, or for copies. Here, frames that match are taken
        // from the kernel, ARP included.
        let why = format_args!(
            "type {}: only normal rules (0) are supported; default rules would take the interface from the kernel, and \
             for sniffers' copies, use --capture of roxie run",
            of.type_
        );
        return refuse(CALL, libc::EOPNOTSUPP, why);
    }
    let mut matching = FlowMatch::default();
    let mut layers = 0;
    // SAFETY: the caller's promise: the specifications follow the attributes.
    let mut next = unsafe { attr.add(1) }.cast::<u8>();
    for _ in 0..of.num_of_specs {
        // SAFETY: as above; each specification has its size in its header.
        let (size, layer) = unsafe { add(&mut matching, next) }?;
        if layers & layer != 0 {
            return refuse(
                CALL,
                libc::EINVAL,
                "two specifications of the same layer: a frame has one header of each",
            );
        }
        layers |= layer;
        // SAFETY: the specification at `next` has `size` bytes, as the caller promises, so the next one, or the end,
        // follows.
        next = unsafe { next.add(size) };
    }
    Ok(FlowRule { priority: of.priority.into(), matching })
}

/// Layers of a frame, as bits. A rule has at most one specification of each.
const LINK: u32 = 1;
const NETWORK: u32 = 2;
const TRANSPORT: u32 = 4;

/// Adds the requirements of a specification. Returns its size and layer.
///
/// # Safety
/// The contract: a specification that begins with its type and size, and has that size.
unsafe fn add(to: &mut FlowMatch, at: *const u8) -> Result<(usize, u32), Errno> {
    const SIZE: usize = offset_of!(ibv_flow_spec_eth, size);
    // SAFETY: the caller promises type and size, whatever the type; neither needs to be aligned.
    let (what, size) =
        unsafe { (at.cast::<u32>().read_unaligned(), at.add(SIZE).cast::<u16>().read_unaligned()) };
    let size = usize::from(size);
    // SAFETY: each structure is read only if the specification has its size.
    let layer = unsafe {
        match what {
            spec::IBV_FLOW_SPEC_ETH => {
                ethernet(to, &sized(at, size)?);
                LINK
            }
            spec::IBV_FLOW_SPEC_IPV4 => {
                ipv4(to, &sized(at, size)?);
                NETWORK
            }
            spec::IBV_FLOW_SPEC_IPV4_EXT => {
                ipv4_ext(to, &sized(at, size)?);
                NETWORK
            }
            spec::IBV_FLOW_SPEC_IPV6 => {
                ipv6(to, &sized(at, size)?);
                NETWORK
            }
            spec::IBV_FLOW_SPEC_TCP => {
                ports(to, layer::TCP, &sized(at, size)?);
                TRANSPORT
            }
            spec::IBV_FLOW_SPEC_UDP => {
                ports(to, layer::UDP, &sized(at, size)?);
                TRANSPORT
            }
            other => {
                let why = format_args!(
                    "a specification of type {other:#x}: Ethernet, IPv4, IPv6, TCP and UDP are supported"
                );
                return refuse(CALL, libc::EOPNOTSUPP, why);
            }
        }
    };
    Ok((size, layer))
}

/// # Safety
/// `size` bytes at `at` may be read.
unsafe fn sized<T: Copy>(at: *const u8, size: usize) -> Result<T, Errno> {
    if size != size_of::<T>() {
        let why = format_args!("a specification of {size} bytes: its type has {}", size_of::<T>());
        return refuse(CALL, libc::EINVAL, why);
    }
    // SAFETY: `size` bytes may be read, as the caller promises, and `T` has the same size; no alignment is needed.
    Ok(unsafe { at.cast::<T>().read_unaligned() })
}

fn ethernet(to: &mut FlowMatch, eth: &ibv_flow_spec_eth) {
    let (value, mask) = (&eth.val, &eth.mask);
    to.require(FlowField::Destination, &value.dst_mac, &mask.dst_mac);
    to.require(FlowField::Source, &value.src_mac, &mask.src_mac);
    // Multi-byte fields are in network order: their bytes in memory are as in the frame.
    to.require(FlowField::EtherType, &value.ether_type.to_ne_bytes(), &mask.ether_type.to_ne_bytes());
    if mask.vlan_tag != 0 {
        to.require_layers(layer::VLAN);
        to.require(FlowField::VlanTag, &value.vlan_tag.to_ne_bytes(), &mask.vlan_tag.to_ne_bytes());
    }
}

fn ipv4(to: &mut FlowMatch, ip: &ibv_flow_spec_ipv4) {
    let (value, mask) = (&ip.val, &ip.mask);
    to.require_layers(layer::IPV4);
    to.require(FlowField::SourceIpv4, &value.src_ip.to_ne_bytes(), &mask.src_ip.to_ne_bytes());
    to.require(FlowField::DestinationIpv4, &value.dst_ip.to_ne_bytes(), &mask.dst_ip.to_ne_bytes());
}

fn ipv4_ext(to: &mut FlowMatch, ip: &ibv_flow_spec_ipv4_ext) {
    let (value, mask) = (&ip.val, &ip.mask);
    to.require_layers(layer::IPV4);
    to.require(FlowField::SourceIpv4, &value.src_ip.to_ne_bytes(), &mask.src_ip.to_ne_bytes());
    to.require(FlowField::DestinationIpv4, &value.dst_ip.to_ne_bytes(), &mask.dst_ip.to_ne_bytes());
    to.require(FlowField::Protocol, &[value.proto], &[mask.proto]);
    to.require(FlowField::TrafficClass, &[value.tos], &[mask.tos]);
    to.require(FlowField::HopLimit, &[value.ttl], &[mask.ttl]);
    to.require(FlowField::Ipv4Flags, &[value.flags], &[mask.flags]);
}

fn ipv6(to: &mut FlowMatch, ip: &ibv_flow_spec_ipv6) {
    let (value, mask) = (&ip.val, &ip.mask);
    to.require_layers(layer::IPV6);
    to.require(FlowField::SourceIpv6, &value.src_ip, &mask.src_ip);
    to.require(FlowField::DestinationIpv6, &value.dst_ip, &mask.dst_ip);
    to.require(FlowField::FlowLabel, &value.flow_label.to_ne_bytes(), &mask.flow_label.to_ne_bytes());
    to.require(FlowField::Protocol, &[value.next_hdr], &[mask.next_hdr]);
    to.require(FlowField::TrafficClass, &[value.traffic_class], &[mask.traffic_class]);
    to.require(FlowField::HopLimit, &[value.hop_limit], &[mask.hop_limit]);
}

fn ports(to: &mut FlowMatch, layer: u8, ports: &ibv_flow_spec_tcp_udp) {
    let (value, mask) = (&ports.val, &ports.mask);
    to.require_layers(layer);
    to.require(FlowField::SourcePort, &value.src_port.to_ne_bytes(), &mask.src_port.to_ne_bytes());
    to.require(FlowField::DestinationPort, &value.dst_port.to_ne_bytes(), &mask.dst_port.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::ibv_flow_attr;

    /// Attributes followed by two specifications, as programs lay them out.
    #[repr(C)]
    struct Written {
        attr: ibv_flow_attr,
        eth: ibv_flow_spec_eth,
        udp: ibv_flow_spec_tcp_udp,
    }

    fn written() -> Written {
        let mut written = Written {
            attr: ibv_flow_attr { num_of_specs: 2, port: 1, priority: 3, ..ibv_flow_attr::default() },
            eth: ibv_flow_spec_eth {
                type_: spec::IBV_FLOW_SPEC_ETH,
                size: size_of::<ibv_flow_spec_eth>() as u16,
                ..ibv_flow_spec_eth::default()
            },
            udp: ibv_flow_spec_tcp_udp {
                type_: spec::IBV_FLOW_SPEC_UDP,
                size: size_of::<ibv_flow_spec_tcp_udp>() as u16,
                ..ibv_flow_spec_tcp_udp::default()
            },
        };
        written.eth.val.dst_mac = [1, 2, 3, 4, 5, 6];
        written.eth.mask.dst_mac = [0xff; 6];
        written.udp.val.dst_port = 4000u16.to_be();
        written.udp.mask.dst_port = u16::MAX;
        written
    }

    /// Replaces the Ethernet specification by one that is not longer, so that nothing moves.
    fn two_transports(written: &mut Written) {
        const { assert!(size_of::<ibv_flow_spec_eth>() > size_of::<ibv_flow_spec_tcp_udp>()) };
        let tcp = ibv_flow_spec_tcp_udp { type_: spec::IBV_FLOW_SPEC_TCP, ..written.udp };
        let udp = written.udp;
        // SAFETY: two transport specifications are no longer than the two specifications before.
        unsafe {
            let at = (&raw mut written.eth).cast::<ibv_flow_spec_tcp_udp>();
            at.write_unaligned(tcp);
            at.add(1).write_unaligned(udp);
        }
    }

    fn rule_of(change: impl FnOnce(&mut Written)) -> Result<FlowRule, Errno> {
        let mut written = written();
        change(&mut written);
        // SAFETY: the specifications follow without gaps, and their number is correct.
        unsafe { rule((&raw const written).cast()) }
    }

    #[test]
    fn list_of_headers_becomes_one_match() {
        let mut wanted = FlowMatch::default().with(FlowField::Destination, &[1, 2, 3, 4, 5, 6]);
        wanted.require(FlowField::DestinationPort, &4000u16.to_be_bytes(), &[0xff; 2]);
        wanted.require_layers(layer::UDP);
        assert_eq!(rule_of(|_| {}), Ok(FlowRule { priority: 3, matching: wanted }));
        let without_port = rule_of(|w| w.attr.num_of_specs = 1).unwrap().matching;
        assert_eq!(without_port, FlowMatch::default().with(FlowField::Destination, &[1, 2, 3, 4, 5, 6]));
        let tagged = rule_of(|w| w.eth.mask.vlan_tag = u16::MAX).unwrap().matching;
        assert_ne!(tagged, wanted, "a tag is asked for");
    }

    #[test]
    fn unsupported_and_invalid_rules_are_refused() {
        const INNER: u32 = spec::IBV_FLOW_SPEC_INNER | spec::IBV_FLOW_SPEC_ETH;
        for (refused, errno) in [
            (rule_of(|w| w.attr.type_ = kind::IBV_FLOW_ATTR_SNIFFER), libc::EOPNOTSUPP),
            (rule_of(|w| w.attr.type_ = kind::IBV_FLOW_ATTR_ALL_DEFAULT), libc::EOPNOTSUPP),
            (rule_of(|w| w.attr.type_ = kind::IBV_FLOW_ATTR_MC_DEFAULT), libc::EOPNOTSUPP),
            (rule_of(|w| w.attr.flags = 2), libc::EOPNOTSUPP),
            (rule_of(|w| w.eth.type_ = INNER), libc::EOPNOTSUPP),
            (rule_of(|w| w.udp.type_ = spec::IBV_FLOW_SPEC_ACTION_DROP), libc::EOPNOTSUPP),
            (rule_of(|w| w.attr.port = 2), libc::EINVAL),
            (rule_of(|w| w.udp.size += 1), libc::EINVAL),
            (rule_of(|w| w.attr.comp_mask = 1), libc::EINVAL),
            (rule_of(two_transports), libc::EINVAL),
        ] {
            assert_eq!(refused, Err(errno));
        }
    }

    /// Returns the requirements of one header specification. Each byte of its fields has its own offset as value.
    fn required<T: Copy + Default>(what: u32) -> (FlowMatch, usize, u32) {
        let mut written = T::default();
        let (mut matching, size) = (FlowMatch::default(), size_of::<T>());
        // SAFETY: a structure of plain numbers: type and size, then values, then equally many bytes of masks.
        unsafe {
            let bytes = (&raw mut written).cast::<u8>();
            for at in 6..size {
                bytes.add(at).write(at as u8);
            }
            bytes.cast::<u32>().write_unaligned(what);
            bytes.add(offset_of!(ibv_flow_spec_eth, size)).cast::<u16>().write_unaligned(size as u16);
            let (length, layer) = add(&mut matching, bytes).unwrap();
            (matching, length, layer)
        }
    }

    /// Returns the match for fields at these offsets, with masks that are `mask` bytes further.
    fn wanted(layers: u8, mask: usize, fields: &[(FlowField, std::ops::Range<usize>)]) -> FlowMatch {
        let mut matching = FlowMatch::default();
        matching.require_layers(layers);
        for (field, at) in fields {
            let bytes = |from: usize| at.clone().map(|at| (at + from) as u8).collect::<Vec<_>>();
            matching.require(*field, &bytes(0), &bytes(mask));
        }
        matching
    }

    #[test]
    fn header_fields_are_matched_at_their_offsets() {
        let addresses = [(FlowField::SourceIpv4, 8..12), (FlowField::DestinationIpv4, 12..16)];
        let v4 = wanted(layer::IPV4, 8, &addresses);
        assert_eq!(required::<ibv_flow_spec_ipv4>(spec::IBV_FLOW_SPEC_IPV4), (v4, 24, NETWORK));
        let more = [
            (FlowField::Protocol, 16..17),
            (FlowField::TrafficClass, 17..18),
            (FlowField::HopLimit, 18..19),
            (FlowField::Ipv4Flags, 19..20),
        ];
        let v4 = wanted(layer::IPV4, 12, &[&addresses[..], &more].concat());
        assert_eq!(required::<ibv_flow_spec_ipv4_ext>(spec::IBV_FLOW_SPEC_IPV4_EXT), (v4, 32, NETWORK));
        let v6 = [
            (FlowField::SourceIpv6, 8..24),
            (FlowField::DestinationIpv6, 24..40),
            (FlowField::FlowLabel, 40..44),
            (FlowField::Protocol, 44..45),
            (FlowField::TrafficClass, 45..46),
            (FlowField::HopLimit, 46..47),
        ];
        let v6 = wanted(layer::IPV6, 40, &v6);
        assert_eq!(required::<ibv_flow_spec_ipv6>(spec::IBV_FLOW_SPEC_IPV6), (v6, 88, NETWORK));
        let ports = [(FlowField::DestinationPort, 6..8), (FlowField::SourcePort, 8..10)];
        for (what, layer) in [(spec::IBV_FLOW_SPEC_TCP, layer::TCP), (spec::IBV_FLOW_SPEC_UDP, layer::UDP)] {
            let wanted = (wanted(layer, 4, &ports), 16, TRANSPORT);
            assert_eq!(required::<ibv_flow_spec_tcp_udp>(what), wanted);
        }
        let link = [
            (FlowField::Destination, 6..12),
            (FlowField::Source, 12..18),
            (FlowField::EtherType, 18..20),
            (FlowField::VlanTag, 20..22),
        ];
        let link = wanted(layer::VLAN, 16, &link);
        assert_eq!(required::<ibv_flow_spec_eth>(spec::IBV_FLOW_SPEC_ETH), (link, 40, LINK));
    }
}
