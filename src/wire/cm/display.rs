//! Messages as text: `{}` prints one line, `{:#}` every field, grouped into lines.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::{self, Display, Formatter};

use super::{Apr, CmMessage, Dreq, Lap, Mra, Path, PrivateData, Rej, Rep, Req, SidrRep, SidrReq};
use crate::service_id::CmaHeader;

impl Display for CmMessage {
    /// Prints `REQ 0x… service … qp … psn …`; with `#`, every field on indented lines behind it.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind().name())?;
        match self {
            CmMessage::Req(m) => req(m, f),
            CmMessage::Mra(m) => mra(m, f),
            CmMessage::Rej(m) => rej(m, f),
            CmMessage::Rep(m) => rep(m, f),
            CmMessage::Rtu(m) => {
                write!(f, " {} to {}", m.local_comm_id, m.remote_comm_id)?;
                private_data(&m.private_data, f)
            }
            CmMessage::Dreq(m) => dreq(m, f),
            CmMessage::Drep(m) => {
                write!(f, " {} to {}", m.local_comm_id, m.remote_comm_id)?;
                private_data(&m.private_data, f)
            }
            CmMessage::SidrReq(m) => sidr_req(m, f),
            CmMessage::SidrRep(m) => sidr_rep(m, f),
            CmMessage::Lap(m) => lap(m, f),
            CmMessage::Apr(m) => apr(m, f),
        }
    }
}

fn req(m: &Req, f: &mut Formatter<'_>) -> fmt::Result {
    write!(f, " {} service {} qp {} psn {}", m.local_comm_id, m.service_id, m.local_qpn, m.starting_psn)?;
    if !f.alternate() {
        return Ok(());
    }
    write!(f, "\n    CA GUID {:#018x} Q_Key {:#010x} P_Key {:#06x}", m.local_ca_guid, m.local_qkey, m.pkey)?;
    write!(f, " transport {:?} EECN {:#08x} remote {:#08x}", m.transport, m.local_eecn, m.remote_eecn)?;
    write!(f, " RDC {}", u8::from(m.rdc_exists))?;
    write!(f, "\n    responder resources {} initiator depth {}", m.responder_resources, m.initiator_depth)?;
    write!(f, " retry count {} RNR retry count {}", m.retry_count, m.rnr_retry_count)?;
    let flow_control = u8::from(m.end_to_end_flow_control);
    write!(f, " flow control {flow_control} SRQ {} path MTU {}", u8::from(m.srq), mtu(m.path_mtu))?;
    write!(f, "\n    CM response timeout remote {}", m.remote_cm_response_timeout)?;
    write!(f, " local {} max CM retries {}", m.local_cm_response_timeout, m.max_cm_retries)?;
    path("primary", &m.primary_path, f)?;
    if m.alternate_path != Path::default() {
        path("alternate", &m.alternate_path, f)?;
    }
    if m.service_id.port().is_some() {
        cma_header(&m.private_data, f)?;
    }
    private_data(&m.private_data, f)
}

/// Returns a path MTU code in bytes.
fn mtu(code: u8) -> String {
    if (1..=5).contains(&code) { (128u32 << code).to_string() } else { format!("code {code}") }
}

fn path(name: &str, p: &Path, f: &mut Formatter<'_>) -> fmt::Result {
    write!(f, "\n    {name} path {} > {} LID {:#06x}", p.local_gid, p.remote_gid, p.local_lid)?;
    write!(f, " > {:#06x} flow {:#07x} tclass {:#04x}", p.remote_lid, p.flow_label, p.traffic_class)?;
    write!(f, " hop {} rate {} SL {}", p.hop_limit, p.packet_rate, p.sl)?;
    write!(f, " subnet local {} ack timeout {}", u8::from(p.subnet_local), p.local_ack_timeout)
}

fn cma_header(data: &PrivateData, f: &mut Formatter<'_>) -> fmt::Result {
    let Some(h) = CmaHeader::read(data) else { return Ok(()) };
    write!(f, "\n    RDMA-CM {} port {} > {}", h.source, h.source_port, h.destination)
}

/// Prints the bytes up to the last nonzero one, if any.
fn private_data(data: &PrivateData, f: &mut Formatter<'_>) -> fmt::Result {
    let used = data.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    if !f.alternate() || used == 0 {
        return Ok(());
    }
    write!(f, "\n    private data {} bytes: ", data.len())?;
    data[..used].iter().try_for_each(|b| write!(f, "{b:02x}"))
}

fn information(bytes: &[u8], f: &mut Formatter<'_>) -> fmt::Result {
    if !f.alternate() || bytes.is_empty() {
        return Ok(());
    }
    write!(f, "\n    information {} bytes: ", bytes.len())?;
    bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))
}

fn mra(m: &Mra, f: &mut Formatter<'_>) -> fmt::Result {
    write!(f, " {} to {} of {:?}", m.local_comm_id, m.remote_comm_id, m.message)?;
    write!(f, " service timeout {}", m.service_timeout)?;
    private_data(&m.private_data, f)
}

fn rej(m: &Rej, f: &mut Formatter<'_>) -> fmt::Result {
    write!(f, " {} to {} of {:?}: {}", m.local_comm_id, m.remote_comm_id, m.message, m.reason)?;
    information(&m.ari, f)?;
    private_data(&m.private_data, f)
}

fn rep(m: &Rep, f: &mut Formatter<'_>) -> fmt::Result {
    write!(f, " {} to {} qp {}", m.local_comm_id, m.remote_comm_id, m.local_qpn)?;
    write!(f, " psn {}", m.starting_psn)?;
    if !f.alternate() {
        return Ok(());
    }
    write!(f, "\n    CA GUID {:#018x} Q_Key {:#010x}", m.local_ca_guid, m.local_qkey)?;
    write!(f, " EECN {:#08x}", m.local_eecn)?;
    write!(f, "\n    responder resources {} initiator depth {}", m.responder_resources, m.initiator_depth)?;
    write!(f, " RNR retry count {}", m.rnr_retry_count)?;
    write!(f, " flow control {} SRQ {}", u8::from(m.end_to_end_flow_control), u8::from(m.srq))?;
    write!(f, " target ack delay {} failover {}", m.target_ack_delay, m.failover_accepted)?;
    private_data(&m.private_data, f)
}

fn dreq(m: &Dreq, f: &mut Formatter<'_>) -> fmt::Result {
    write!(f, " {} to {} remote qp {}", m.local_comm_id, m.remote_comm_id, m.remote_qpn)?;
    private_data(&m.private_data, f)
}

fn sidr_req(m: &SidrReq, f: &mut Formatter<'_>) -> fmt::Result {
    write!(f, " {} service {}", m.request_id, m.service_id)?;
    if !f.alternate() {
        return Ok(());
    }
    write!(f, "\n    P_Key {:#06x}", m.pkey)?;
    if m.service_id.port().is_some() {
        cma_header(&m.private_data, f)?;
    }
    private_data(&m.private_data, f)
}

fn sidr_rep(m: &SidrRep, f: &mut Formatter<'_>) -> fmt::Result {
    write!(f, " {} status {} qp {}", m.request_id, m.status, m.qpn)?;
    if !f.alternate() {
        return Ok(());
    }
    write!(f, "\n    service {} Q_Key {:#010x}", m.service_id, m.qkey)?;
    information(&m.info, f)?;
    private_data(&m.private_data, f)
}

fn lap(m: &Lap, f: &mut Formatter<'_>) -> fmt::Result {
    write!(f, " {} to {} remote qp {}", m.local_comm_id, m.remote_comm_id, m.remote_qpn)?;
    if !f.alternate() {
        return Ok(());
    }
    write!(f, "\n    CM response timeout remote {}", m.remote_cm_response_timeout)?;
    let p = Path {
        local_lid: m.local_lid,
        remote_lid: m.remote_lid,
        local_gid: m.local_gid,
        remote_gid: m.remote_gid,
        flow_label: m.flow_label,
        packet_rate: m.packet_rate,
        traffic_class: m.traffic_class,
        hop_limit: m.hop_limit,
        sl: m.sl,
        subnet_local: m.subnet_local,
        local_ack_timeout: m.local_ack_timeout,
    };
    path("alternate", &p, f)?;
    private_data(&m.private_data, f)
}

fn apr(m: &Apr, f: &mut Formatter<'_>) -> fmt::Result {
    write!(f, " {} to {} status {}", m.local_comm_id, m.remote_comm_id, m.status.0)?;
    information(&m.info, f)?;
    private_data(&m.private_data, f)
}
