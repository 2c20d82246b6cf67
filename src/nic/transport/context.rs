//! A QP's context: what each part of the QP knows of the whole.
//!
//! Parts are given the context with each call, and cannot change it: [`Qp`](super::Qp) sets state and attributes.

use super::AckRequestPolicy;
use crate::profile::{PacketProfile, Profile, ResponderProfile};
use crate::verbs::{CqIndex, PdId, QpAttr, QpAttributes, QpCaps, QpIndex, QpInit, QpState, QpType};
use roxie_wire::mad::GSI_QKEY;
use roxie_wire::{Bth, Packet, Qpn, Service};

/// P_Key of the default partition, full member.
const PKEY: u16 = 0xffff;

/// Parameters for the creation of a QP.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Index in the NIC's QP table.
    pub index: QpIndex,
    /// QP number on the wire.
    pub qpn: Qpn,
    /// Protection domain of the QP's memory.
    pub pd: PdId,
    /// Completion queue for sends.
    pub send_cq: CqIndex,
    /// Completion queue for receives.
    pub recv_cq: CqIndex,
    /// Service type and queue sizes.
    pub init: QpInit,
    /// Protection domain of the shared receive queue, if the QP uses one.
    pub srq_pd: Option<PdId>,
    /// The behaviour of an adapter. `None`: Roxie's own.
    pub profile: Option<&'static Profile>,
    /// When unsignaled messages ask for an acknowledgement.
    pub ack_requests: AckRequestPolicy,
}

/// Numbers, queues, attributes and state of a QP.
#[derive(Debug)]
pub struct QpContext {
    /// Index in the NIC's QP table.
    pub index: QpIndex,
    /// QP number on the wire.
    pub qpn: Qpn,
    /// Protection domain of the QP's memory. An XRC target has none.
    pub pd: PdId,
    /// Completion queue for sends.
    pub send_cq: CqIndex,
    /// If true, every send generates a completion, signaled or not.
    pub sig_all: bool,
    /// Service type. Constant during the QP's life.
    pub qp_type: QpType,
    /// Service of the QP's opcodes. `None`: raw packets, which are not RoCE.
    pub service: Option<Service>,
    /// Queue sizes at creation.
    pub caps: QpCaps,
    /// The QP uses a shared receive queue. Its receives outlive the QP's errors.
    pub shares_receives: bool,
    /// The behaviour of an adapter. `None`: Roxie's own.
    pub profile: Option<&'static Profile>,
    /// When unsignaled messages ask for an acknowledgement.
    pub ack_requests: AckRequestPolicy,
    /// What is different in an adapter's packets, or nothing.
    packets: PacketProfile,
    /// ACKs have the number of posted receives.
    has_credits: bool,
    state: QpState,
    attributes: QpAttributes,
}

impl QpContext {
    /// Returns the context of a QP in RESET.
    pub(super) fn new(config: &QpConfig) -> QpContext {
        QpContext {
            index: config.index,
            qpn: config.qpn,
            pd: config.pd,
            send_cq: config.send_cq,
            sig_all: config.init.sq_sig_all,
            qp_type: config.init.qp_type,
            service: service_of(config.init.qp_type),
            caps: config.init.caps,
            shares_receives: config.srq_pd.is_some(),
            profile: config.profile,
            ack_requests: config.ack_requests,
            packets: config.profile.map_or_else(PacketProfile::default, |profile| profile.packets),
            has_credits: false,
            state: QpState::Reset,
            attributes: QpAttributes::default(),
        }
    }

    /// Returns the QP's state.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Returns the QP's attributes.
    pub fn attributes(&self) -> &QpAttributes {
        &self.attributes
    }

    /// Returns an adapter's behaviour as a responder, or Roxie's own.
    pub(super) fn responder_profile(&self) -> ResponderProfile {
        self.profile.map_or_else(ResponderProfile::default, |profile| profile.responder)
    }

    /// Returns what is different in an adapter's packets, or nothing.
    pub(super) fn packets(&self) -> PacketProfile {
        self.packets
    }

    /// True if ACKs have the number of posted receives.
    pub(super) fn has_credits(&self) -> bool {
        self.has_credits
    }

    /// Sets the attributes that verbs do not define.
    pub(super) fn configure(&mut self, mig_req: bool, end_to_end_credits: bool) {
        let packets = self.packets();
        self.attributes.mig_req = packets.mig_req.unwrap_or(mig_req);
        self.attributes.end_to_end_credits = end_to_end_credits;
        self.has_credits = end_to_end_credits || packets.has_credits;
    }

    /// Returns the path MTU in bytes.
    pub(super) fn mtu(&self) -> usize {
        self.attributes.path_mtu.bytes()
    }

    /// Changes the state. Returns the one before.
    pub(super) fn enter(&mut self, state: QpState) -> QpState {
        std::mem::replace(&mut self.state, state)
    }

    /// Applies attributes. Selective repeat is for RC only.
    pub(super) fn apply(&mut self, attr: &QpAttr) {
        self.attributes.apply(attr);
        self.attributes.selective_repeat &= self.qp_type == QpType::Rc;
    }

    /// Returns the attributes, to change them.
    pub(super) fn attributes_mut(&mut self) -> &mut QpAttributes {
        &mut self.attributes
    }

    /// Returns the Q_Key that datagrams to this QP must have.
    pub(super) fn qkey(&self) -> u32 {
        //= IBTA 10.2.4: gsi-has-its-number-and-key
        if self.qp_type == QpType::Gsi { GSI_QKEY } else { self.attributes.qkey }
    }

    /// Returns the BTH fields that all packets of this QP share.
    pub(super) fn bth(&self) -> Bth {
        Bth {
            //= IBTA 9.2: pkey-of-the-qp-is-sent
            pkey: PKEY,
            mig_req: self.attributes.mig_req,
            dest_qp: self.attributes.dest_qpn,
            ..Bth::default()
        }
    }

    /// Returns the BTH fields that all planned requests of a reliable service share.
    pub(super) fn request_bth(&self) -> Bth {
        Bth { reserved6: self.packets.request_bits, ..self.bth() }
    }
}

/// A received packet.
#[derive(Clone, Copy)]
pub(super) struct Received<'a> {
    /// The QP that has received the packet.
    pub qp: &'a QpContext,
    pub packet: &'a Packet,
    /// Index of the packet's frame in the receive burst.
    pub frame: u16,
}

/// True for the P_Key of a full or a limited member of the default partition.
#[inline(always)]
pub(super) fn is_member(pkey: u16) -> bool {
    pkey & 0x7fff == PKEY & 0x7fff
}

fn service_of(qp_type: QpType) -> Option<Service> {
    match qp_type {
        QpType::Rc => Some(Service::Rc),
        QpType::Uc => Some(Service::Uc),
        QpType::Ud | QpType::Gsi => Some(Service::Ud),
        QpType::XrcSend | QpType::XrcRecv => Some(Service::Xrc),
        //= IBTA 9.8.4: raw-is-never-roce
        QpType::RawPacket => None,
    }
}
