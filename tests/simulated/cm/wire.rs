//! Messages as bytes: a kernel's messages, tshark's decoding, and round trips.

use std::fs::File;

use proptest::prelude::*;
use roxie::capture::{Direction, PcapngWriter, Reader};
use roxie::frame::{Frame, FrameMut};
use roxie::verbs::{Psn, Qpn};
use roxie::wire::cm::{
    Apr, AprStatus, Ari, CmMessage, CommId, Drep, Dreq, Kind, Lap, Mra, NotCm, Path, PrivateData, Rej,
    RejReason, Rep, Req, Rtu, SidrRep, SidrReq, SidrStatus, Stage, Transport,
};
use roxie::wire::mad::{GSI_QKEY, MAD_LEN, MadHeader};
use roxie::wire::service_id::port_flow_label;
use roxie::wire::{
    Bth, CmaHeader, Deth, Ext, FlowSpec, Gid, MAX_HEADERS, Opcode, PortSpace, RoceVersion, ServiceId,
    Template, parse,
};

fn data(name: &str) -> String {
    format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Returns the management datagrams of a capture, with their frame numbers.
fn mads(capture: &str) -> Vec<(u64, [u8; MAD_LEN])> {
    let mut reader = Reader::new(File::open(data(capture)).unwrap()).unwrap();
    let mut out = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        let frame = Frame::whole(record.data);
        let Ok(packet) = parse(&frame) else { continue };
        if packet.bth.dest_qp != Qpn::GSI || packet.bth.opcode != Opcode::UD_SEND_ONLY {
            continue;
        }
        let mut mad = [0; MAD_LEN];
        assert_eq!(frame.copy_to(packet.payload.start, &mut mad), MAD_LEN);
        out.push((record.number, mad));
    }
    out
}

/// Formats a row of tshark's table, with empty columns for fields that the message does not have.
fn row(number: u64, tid: u64, message: &CmMessage) -> String {
    let mut columns =
        vec![number.to_string(), format!("{:#06x}", message.kind() as u16), format!("{tid:#018x}")];
    let mut part = |wanted: bool, width: usize, values: Vec<String>| {
        if wanted {
            assert_eq!(values.len(), width);
            columns.extend(values);
        } else {
            columns.extend(vec![String::new(); width]);
        }
    };
    let b = |v: u8| format!("{v:#04x}");
    let bit = |v: bool| format!("{:#04x}", u8::from(v));
    let req = if let CmMessage::Req(m) = message { req_columns(m) } else { Vec::new() };
    part(!req.is_empty(), REQ_COLUMNS, req);
    let rep = match message {
        CmMessage::Rep(m) => vec![
            m.local_comm_id.to_string(),
            m.remote_comm_id.to_string(),
            m.local_qpn.to_string(),
            format!("{:#08x}", m.starting_psn.value()),
            b(m.responder_resources),
            b(m.initiator_depth),
            b(m.target_ack_delay),
            b(m.failover_accepted),
            bit(m.end_to_end_flow_control),
            b(m.rnr_retry_count),
            bit(m.srq),
            format!("{:#018x}", m.local_ca_guid),
        ],
        _ => Vec::new(),
    };
    part(!rep.is_empty(), 12, rep);
    let ids = |a: CommId, b: CommId| vec![a.to_string(), b.to_string()];
    let rtu =
        if let CmMessage::Rtu(m) = message { ids(m.local_comm_id, m.remote_comm_id) } else { Vec::new() };
    part(!rtu.is_empty(), 2, rtu);
    let rej = match message {
        CmMessage::Rej(m) => {
            let mut columns = ids(m.local_comm_id, m.remote_comm_id);
            columns.extend([b(m.message as u8), b(m.ari.len() as u8), format!("{:#06x}", m.reason.0)]);
            columns
        }
        _ => Vec::new(),
    };
    part(!rej.is_empty(), 5, rej);
    let dreq = match message {
        CmMessage::Dreq(m) => {
            let mut columns = ids(m.local_comm_id, m.remote_comm_id);
            columns.push(m.remote_qpn.to_string());
            columns
        }
        _ => Vec::new(),
    };
    part(!dreq.is_empty(), 3, dreq);
    let drep =
        if let CmMessage::Drep(m) = message { ids(m.local_comm_id, m.remote_comm_id) } else { Vec::new() };
    part(!drep.is_empty(), 2, drep);
    columns.join("\t")
}

const REQ_COLUMNS: usize = 21;

fn req_columns(m: &Req) -> Vec<String> {
    let b = |v: u8| format!("{v:#04x}");
    let bit = |v: bool| format!("{:#04x}", u8::from(v));
    let (service, _) = match m.transport {
        Transport::Rc => (0, 0),
        Transport::Uc => (1, 0),
        Transport::Rd => (2, 0),
        _ => (3, 1),
    };
    let (space, port) = m.service_id.port().expect("a port");
    vec![
        m.local_comm_id.to_string(),
        b(space as u16 as u8),
        format!("{port:#06x}"),
        format!("{:#018x}", m.local_ca_guid),
        m.local_qpn.to_string(),
        b(m.responder_resources),
        b(m.initiator_depth),
        b(m.remote_cm_response_timeout),
        b(service),
        bit(m.end_to_end_flow_control),
        format!("{:#08x}", m.starting_psn.value()),
        b(m.local_cm_response_timeout),
        b(m.retry_count),
        format!("{:#06x}", m.pkey),
        b(m.path_mtu),
        b(m.rnr_retry_count),
        b(m.max_cm_retries),
        bit(m.srq),
        b(m.primary_path.hop_limit),
        b(m.primary_path.local_ack_timeout),
        format!("{:#06x}", CmaHeader::read(&m.private_data).expect("a header").source_port),
    ]
}

#[test]
fn kernel_messages_agree_with_tshark() {
    let messages = mads("rxe-6.12-cm.pcap");
    assert_eq!(messages.len(), 22);
    let rows: Vec<String> = messages
        .iter()
        .map(|(number, mad)| {
            let (tid, message) = CmMessage::read(mad).unwrap();
            assert_eq!(message.to_mad(tid), *mad, "frame {number}: {message}");
            row(*number, tid, &message)
        })
        .collect();
    let theirs = std::fs::read_to_string(data("rxe-6.12-cm.messages.tsv")).unwrap();
    assert_eq!(rows, theirs.lines().collect::<Vec<_>>());
}

#[test]
fn kernel_request_has_rdma_cm_fields() {
    let mut requests = 0;
    for (number, mad) in mads("rxe-6.12-cm.pcap") {
        let (_, message) = CmMessage::read(&mad).unwrap();
        let CmMessage::Req(req) = message else { continue };
        requests += 1;
        let header = CmaHeader::read(&req.private_data).unwrap();
        let (space, port) = req.service_id.port().unwrap();
        assert_eq!(space, PortSpace::Tcp);
        assert_eq!(ServiceId::of_port(space, port), req.service_id);
        let path = req.primary_path;
        assert_eq!(path.local_gid, Gid::from(header.source), "frame {number}");
        assert_eq!(path.remote_gid, Gid::from(header.destination), "frame {number}");
        assert_eq!(path.flow_label, port_flow_label(header.source_port, port), "frame {number}");
        assert_eq!(header.to_bytes(), req.private_data[..CmaHeader::LEN]);
        assert_eq!(CmaHeader::behind(&req.private_data).len(), 56);
        assert_eq!(
            (req.remote_cm_response_timeout, req.max_cm_retries, path.local_ack_timeout),
            (20, 15, 17)
        );
    }
    assert_eq!(requests, 5);
}

/// The starting PSN in a message is for packets to its sender.
#[test]
fn kernel_starts_at_the_advertised_psn() {
    let mut reported = Vec::new();
    for (number, mad) in mads("rxe-6.12-cm.pcap") {
        match CmMessage::read(&mad).unwrap().1 {
            CmMessage::Req(m) => reported.push((number, m.local_qpn, m.starting_psn)),
            CmMessage::Rep(m) => reported.push((number, m.local_qpn, m.starting_psn)),
            _ => {}
        }
    }
    let mut reader = Reader::new(File::open(data("rxe-6.12-cm.pcap")).unwrap()).unwrap();
    let mut count = 0;
    while let Some(record) = reader.next().unwrap() {
        let Ok(packet) = parse(&Frame::whole(record.data)) else { continue };
        let request = packet.bth.opcode == Opcode::RC_SEND_ONLY;
        // The last PSN told for the QP; a QP's first request follows soon.
        let last = reported.iter().rposition(|(n, qpn, _)| *n < record.number && *qpn == packet.bth.dest_qp);
        if let (true, Some(last)) = (request, last) {
            let (_, _, psn) = reported.remove(last);
            if psn == packet.bth.psn {
                count += 1;
            }
        }
    }
    assert!(count >= 4, "{count} first requests with the PSN that was told");
}

fn template() -> Template {
    let ip = |n| Gid::from(std::net::Ipv4Addr::new(10, 0, 0, n));
    Template::new(&FlowSpec {
        src_mac: [2, 0, 0, 0, 0, 1],
        dst_mac: [2, 0, 0, 0, 0, 2],
        vlan: None,
        src: ip(1),
        dst: ip(2),
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
        source_port: 0xd000,
        version: RoceVersion::V2,
    })
}

/// Returns a frame with the message, as QP1 sends it.
fn frame(mad: &[u8; MAD_LEN]) -> Vec<u8> {
    let template = template();
    let bth = Bth { opcode: Opcode::UD_SEND_ONLY, dest_qp: Qpn::GSI, ..Bth::default() };
    let mut headers = [0; MAX_HEADERS];
    let deth = Ext::Deth(Deth { qkey: GSI_QKEY, src_qp: Qpn::GSI });
    let n = template.write_headers(&mut headers, &bth, &deth, MAD_LEN);
    let mut bytes = vec![0; template.frame_len(bth.opcode, MAD_LEN)];
    bytes[..n].copy_from_slice(&headers[..n]);
    bytes[n..n + MAD_LEN].copy_from_slice(mad);
    template.seal(&mut FrameMut { a: &mut bytes, b: &mut [] });
    bytes
}

/// Returns messages with random bits in their fields, of the kinds that tshark decodes.
fn made() -> Vec<(u64, CmMessage)> {
    let mut state = 2026;
    let mut next = || roxie::random::splitmix(&mut state);
    let kinds = [Kind::Req, Kind::Rep, Kind::Rtu, Kind::Rej, Kind::Dreq, Kind::Drep];
    (0..48)
        .map(|i| {
            let mut mad = [0; MAD_LEN];
            mad.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&next().to_be_bytes()));
            let tid = next();
            mad[..24].copy_from_slice(&CmMessage::Rtu(Rtu::default()).to_mad(tid)[..24]);
            mad[16..18].copy_from_slice(&(kinds[i % kinds.len()] as u16).to_be_bytes());
            let (_, mut message) = CmMessage::read(&mad).unwrap();
            if let CmMessage::Req(req) = &mut message {
                req.service_id = ServiceId::of_port(PortSpace::ALL[i % 3], next() as u16);
                let mut data = [0; 92];
                let header = CmaHeader {
                    source: std::net::Ipv4Addr::from(next() as u32).into(),
                    source_port: next() as u16,
                    destination: std::net::Ipv4Addr::from(next() as u32).into(),
                };
                data[..CmaHeader::LEN].copy_from_slice(&header.to_bytes());
                req.private_data = PrivateData::new(Kind::Req, &data).unwrap();
                // tshark does not distinguish these.
                if !matches!(req.transport, Transport::Rc | Transport::Uc | Transport::Rd) {
                    req.transport = Transport::Xrc;
                }
            }
            (tid, message)
        })
        .collect()
}

/// `WRITE_CM_MADE=file` writes the capture from which the table beside it was made.
#[test]
fn our_messages_agree_with_tshark() {
    let made = made();
    if let Ok(path) = std::env::var("WRITE_CM_MADE") {
        let mut writer = PcapngWriter::new(File::create(path).unwrap(), &["made"]).unwrap();
        for (tid, message) in &made {
            let bytes = frame(&message.to_mad(*tid));
            writer.write(0, 0, Direction::Out, &Frame::whole(&bytes), None).unwrap();
        }
    }
    let captured = mads("cm-made.pcapng");
    let ours: Vec<_> = (1u64..).zip(&made).map(|(n, (tid, message))| (n, message.to_mad(*tid))).collect();
    assert!(ours == captured, "the capture is not of these messages any more: see tests/data/README.md");
    let theirs = std::fs::read_to_string(data("cm-made.messages.tsv")).unwrap();
    for ((number, (tid, message)), theirs) in (1u64..).zip(&made).zip(theirs.lines()) {
        assert_eq!(row(number, *tid, message), theirs, "{message}");
    }
    assert_eq!(theirs.lines().count(), made.len());
}

fn gid() -> impl Strategy<Value = Gid> {
    any::<[u8; 16]>().prop_map(Gid)
}

fn id() -> impl Strategy<Value = CommId> {
    any::<u32>().prop_map(CommId)
}

fn qpn() -> impl Strategy<Value = Qpn> {
    any::<u32>().prop_map(Qpn::new)
}

fn psn() -> impl Strategy<Value = Psn> {
    any::<u32>().prop_map(Psn::new)
}

fn private(kind: Kind) -> impl Strategy<Value = PrivateData> {
    prop::collection::vec(any::<u8>(), kind.private_data_len())
        .prop_map(move |bytes| PrivateData::new(kind, &bytes).unwrap())
}

fn ari() -> impl Strategy<Value = Ari> {
    prop::collection::vec(any::<u8>(), 0..=Ari::LEN).prop_map(|bytes| Ari::new(&bytes))
}

fn stage() -> impl Strategy<Value = Stage> {
    prop::sample::select(vec![Stage::Req, Stage::Rep, Stage::Other, Stage::Reserved])
}

prop_compose! {
    fn path()(
        (local_lid, remote_lid, local_gid, remote_gid) in (any::<u16>(), any::<u16>(), gid(), gid()),
        (flow_label, packet_rate, traffic_class) in (0u32..1 << 20, 0u8..64, any::<u8>()),
        (hop_limit, sl, subnet_local, local_ack_timeout) in (any::<u8>(), 0u8..16, any::<bool>(), 0u8..32),
    ) -> Path {
        Path {
            local_lid, remote_lid, local_gid, remote_gid, flow_label, packet_rate, traffic_class, hop_limit, sl,
            subnet_local, local_ack_timeout,
        }
    }
}

prop_compose! {
    fn req()(
        (local_comm_id, service_id, local_ca_guid) in (id(), any::<u64>().prop_map(ServiceId), any::<u64>()),
        (local_qkey, local_qpn, local_eecn, remote_eecn) in (any::<u32>(), qpn(), 0u32..1 << 24, 0u32..1 << 24),
        (responder_resources, initiator_depth) in any::<(u8, u8)>(),
        (remote_cm_response_timeout, local_cm_response_timeout) in (0u8..32, 0u8..32),
        transport in prop_oneof![
            Just(Transport::Rc), Just(Transport::Uc), Just(Transport::Rd), Just(Transport::Xrc),
            Just(Transport::Reserved(0)), (2u8..8).prop_map(Transport::Reserved),
        ],
        (end_to_end_flow_control, rdc_exists, srq) in any::<(bool, bool, bool)>(),
        (starting_psn, retry_count, pkey, path_mtu) in (psn(), 0u8..8, any::<u16>(), 0u8..16),
        (rnr_retry_count, max_cm_retries) in (0u8..8, 0u8..16),
        (primary_path, alternate_path, private_data) in (path(), path(), private(Kind::Req)),
    ) -> CmMessage {
        CmMessage::Req(Req {
            local_comm_id, service_id, local_ca_guid, local_qkey, local_qpn, responder_resources, local_eecn,
            initiator_depth, remote_eecn, remote_cm_response_timeout, transport, end_to_end_flow_control,
            starting_psn, local_cm_response_timeout, retry_count, pkey, path_mtu, rdc_exists, rnr_retry_count,
            max_cm_retries, srq, primary_path, alternate_path, private_data,
        })
    }
}

prop_compose! {
    fn rep()(
        (local_comm_id, remote_comm_id, local_qkey, local_qpn) in (id(), id(), any::<u32>(), qpn()),
        (local_eecn, starting_psn) in (0u32..1 << 24, psn()),
        (responder_resources, initiator_depth) in any::<(u8, u8)>(),
        (target_ack_delay, failover_accepted, rnr_retry_count) in (0u8..32, 0u8..4, 0u8..8),
        (end_to_end_flow_control, srq, local_ca_guid) in any::<(bool, bool, u64)>(),
        private_data in private(Kind::Rep),
    ) -> CmMessage {
        CmMessage::Rep(Rep {
            local_comm_id, remote_comm_id, local_qkey, local_qpn, local_eecn, starting_psn, responder_resources,
            initiator_depth, target_ack_delay, failover_accepted, end_to_end_flow_control, rnr_retry_count, srq,
            local_ca_guid, private_data,
        })
    }
}

prop_compose! {
    fn lap()(
        (local_comm_id, remote_comm_id, remote_qpn) in (id(), id(), qpn()),
        (remote_cm_response_timeout, p, private_data) in (0u8..32, path(), private(Kind::Lap)),
    ) -> CmMessage {
        CmMessage::Lap(Lap {
            local_comm_id, remote_comm_id, remote_qpn, remote_cm_response_timeout, private_data,
            local_lid: p.local_lid, remote_lid: p.remote_lid, local_gid: p.local_gid, remote_gid: p.remote_gid,
            flow_label: p.flow_label, traffic_class: p.traffic_class, hop_limit: p.hop_limit,
            packet_rate: p.packet_rate, sl: p.sl, subnet_local: p.subnet_local,
            local_ack_timeout: p.local_ack_timeout,
        })
    }
}

fn small() -> impl Strategy<Value = CmMessage> {
    let ids = || (id(), id());
    prop_oneof![
        (ids(), private(Kind::Rtu)).prop_map(|((local_comm_id, remote_comm_id), private_data)| {
            CmMessage::Rtu(Rtu { local_comm_id, remote_comm_id, private_data })
        }),
        (ids(), private(Kind::Drep)).prop_map(|((local_comm_id, remote_comm_id), private_data)| {
            CmMessage::Drep(Drep { local_comm_id, remote_comm_id, private_data })
        }),
        (ids(), qpn(), private(Kind::Dreq)).prop_map(
            |((local_comm_id, remote_comm_id), remote_qpn, private_data)| {
                CmMessage::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn, private_data })
            }
        ),
        (ids(), stage(), 0u8..32, private(Kind::Mra)).prop_map(
            |((local_comm_id, remote_comm_id), message, service_timeout, private_data)| {
                CmMessage::Mra(Mra { local_comm_id, remote_comm_id, message, service_timeout, private_data })
            }
        ),
        (ids(), stage(), any::<u16>(), ari(), private(Kind::Rej)).prop_map(
            |((local_comm_id, remote_comm_id), message, reason, ari, private_data)| {
                let reason = RejReason(reason);
                CmMessage::Rej(Rej { local_comm_id, remote_comm_id, message, reason, ari, private_data })
            }
        ),
        (ids(), any::<u8>(), ari(), private(Kind::Apr)).prop_map(
            |((local_comm_id, remote_comm_id), status, info, private_data)| {
                let status = AprStatus(status);
                CmMessage::Apr(Apr { local_comm_id, remote_comm_id, status, info, private_data })
            }
        ),
        (id(), any::<u16>(), any::<u64>(), private(Kind::SidrReq)).prop_map(
            |(request_id, pkey, service, private_data)| {
                CmMessage::SidrReq(SidrReq { request_id, pkey, service_id: ServiceId(service), private_data })
            }
        ),
        ((id(), any::<u8>(), ari(), qpn()), any::<u64>(), any::<u32>(), private(Kind::SidrRep)).prop_map(
            |((request_id, status, info, qpn), service, qkey, private_data)| {
                let (status, service_id) = (SidrStatus(status), ServiceId(service));
                CmMessage::SidrRep(SidrRep { request_id, status, info, qpn, service_id, qkey, private_data })
            }
        ),
    ]
}

proptest! {
    #[test]
    fn written_messages_are_read_back(tid: u64, message in prop_oneof![req(), rep(), lap(), small()]) {
        let mad = message.to_mad(tid);
        prop_assert_eq!(CmMessage::read(&mad), Ok((tid, message.clone())));
        let header = MadHeader::read(&mad).unwrap();
        prop_assert_eq!(header.attribute, message.kind() as u16);
        let (line, lines) = (message.to_string(), format!("{message:#}"));
        prop_assert!(!line.contains('\n') && lines.starts_with(message.kind().name()), "{}", lines);
    }

    /// Apart from reserved bits, every bit of a message belongs to a field: reading and writing any bytes twice gives
    /// the same.
    #[test]
    fn any_bytes_are_message_or_error(mut mad in prop::collection::vec(any::<u8>(), 0..300), attribute in 0u16..0x20) {
        if mad.len() >= 24 {
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16..18].copy_from_slice(&attribute.to_be_bytes());
        }
        match CmMessage::read(&mad) {
            Ok((tid, message)) => {
                prop_assert!(mad.len() >= MAD_LEN);
                let again = message.to_mad(tid);
                prop_assert_eq!(CmMessage::read(&again), Ok((tid, message.clone())));
                let _ = format!("{message} {message:#}");
            }
            Err(NotCm::NoMad { len }) => prop_assert!(len < MAD_LEN),
            Err(NotCm::Attribute(a)) => prop_assert!(a == attribute && Kind::from_attribute(a).is_none()),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}
