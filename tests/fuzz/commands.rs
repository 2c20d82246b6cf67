//! Commands to a NIC, built from arbitrary bytes.

use roxie::congestion::{Rate, SharedRate};
use roxie::flow::{RX_HASH_KEY, RxHash, RxHashFields};
use roxie::nic::{Command, MemoryCommand, ReceiveSource};
use roxie::shared::{CompletionRing, HostMemory, PageList, RecvRing, SendRing};
use roxie::verbs::{
    Access, AddressVector, AhId, CqIndex, FlowField, FlowId, FlowMatch, FlowRule, MrIndex, Mtu, MwIndex,
    MwType, OpenXrcd, PdId, Psn, QpAttr, QpCaps, QpIndex, QpInit, QpState, QpType, Qpn, Rss, SrqIndex,
    SrqInit, SrqKind, XrcdId,
};
use roxie::wire::Gid;
use roxie_sim::Host;

use crate::congestion;
use crate::input::Input;

/// 239.1.2.3
pub(crate) const GROUP: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3]);

pub(crate) fn command(input: &mut Input<'_>, rings: &mut Vec<CompletionRing>) -> Command {
    let small = |input: &mut Input<'_>| u32::from(input.u8() % 8);
    match input.u8() % 39 {
        36 => Command::SetCongestion(Box::new(congestion::settings(input))),
        37 => Command::SetQpControl(
            QpIndex(small(input)),
            input.flag().then(|| congestion::settings(input).control).map(Box::new),
        ),
        38 => {
            let rate = SharedRate::new(Rate(1e3 + input.number(1 << 40) as f64));
            Command::ShareRate(QpIndex(small(input)), rate)
        }
        kind @ 20.. => command_of_ways_and_windows(input, kind),
        0 => Command::AllocPd,
        1 => Command::DeallocPd(PdId(small(input))),
        2 => MemoryCommand::RegisterMemory {
            pd: PdId(small(input)),
            access: Access::from_bits_truncate(input.u32()),
            start: input.number(1 << 40),
            memory: memory(input),
        }
        .into(),
        3 => Command::DeregisterMemory(MrIndex(small(input))),
        4 => {
            let ring = CompletionRing::new(u32::from(input.u8() % 32)).expect("memory");
            rings.push(ring.clone());
            MemoryCommand::CreateCq { ring, notify: None }.into()
        }
        5 => Command::DestroyCq(CqIndex(small(input))),
        6 | 7 => create_qp(input),
        8 | 9 => Command::ModifyQp(QpIndex(small(input)), Box::new(attributes(input))),
        10 => match input.flag() {
            true => Command::QueryQp(QpIndex(small(input))),
            false => Command::ExamineQp(QpIndex(small(input)), input.flag()),
        },
        11 => Command::DestroyQp(QpIndex(small(input))),
        12 | 13 => MemoryCommand::CreateSrq {
            pd: PdId(small(input)),
            init: SrqInit {
                kind: match input.flag() {
                    true => SrqKind::Basic,
                    false => SrqKind::Xrc { xrcd: XrcdId(small(input)), cq: CqIndex(small(input)) },
                },
                limit: small(input),
            },
            ring: receives(input),
        }
        .into(),
        14 => MemoryCommand::ModifySrq {
            srq: SrqIndex(small(input)),
            ring: input.flag().then(|| receives(input)),
            limit: input.flag().then(|| small(input)),
        }
        .into(),
        15 => Command::QuerySrq(SrqIndex(small(input))),
        16 => Command::DestroySrq(SrqIndex(small(input))),
        17 => Command::OpenXrcd(OpenXrcd::default()),
        18 => match input.flag() {
            true => Command::CloseXrcd(XrcdId(small(input))),
            false => Command::CreateXrcTarget(XrcdId(small(input))),
        },
        _ => Command::ListQps,
    }
}

/// Returns a command about regions, domains, address handles or windows.
pub(crate) fn command_of_ways_and_windows(input: &mut Input<'_>, kind: u8) -> Command {
    let small = |input: &mut Input<'_>| u32::from(input.u8() % 8);
    match kind {
        20 => MemoryCommand::ReregisterMemory {
            mr: MrIndex(small(input)),
            pd: input.flag().then(|| PdId(small(input))),
            access: input.flag().then(|| Access::from_bits_truncate(input.u32())),
            translation: input.flag().then(|| (input.number(1 << 40), memory(input))),
        }
        .into(),
        21 => Command::ReleaseMemory(MrIndex(small(input))),
        22 => MemoryCommand::AllocFastMemory {
            pd: PdId(small(input)),
            memory: memory(input),
            pages: PageList::new(input.number(8) as u32 % 1024).expect("memory"),
        }
        .into(),
        23 => Command::AllocWindow { pd: PdId(small(input)), kind: input.pick(&[MwType::One, MwType::Two]) },
        24 => Command::NextWindowKey(MwIndex(small(input))),
        25 => Command::FreeWindow(MwIndex(small(input))),
        26 => Command::CreateAh(PdId(small(input)), Box::new(path(input))),
        27 => Command::DestroyAh(AhId(1 << 16 | small(input))),
        28 => Command::AttachMulticast(QpIndex(small(input)), group(input)),
        29 => Command::DetachMulticast(QpIndex(small(input)), group(input)),
        30 => create_qp(input),
        31 => Command::CreateFlow(QpIndex(small(input)), Box::new(flow(input))),
        32 => Command::DestroyFlow(FlowId(small(input))),
        33 => Command::CreateRssQp(PdId(small(input)), Box::new(spread(input))),
        _ => Command::ModifyQp(QpIndex(small(input)), Box::new(attributes(input))),
    }
}

pub(crate) fn memory(input: &mut Input<'_>) -> HostMemory {
    HostMemory::allocate(usize::from(input.u16())).expect("memory for a region")
}

pub(crate) fn receives(input: &mut Input<'_>) -> RecvRing {
    RecvRing::new(u32::from(input.u8() % 32), u32::from(input.u8() % 32)).expect("memory")
}

/// Returns a CreateQp command with sizes that may differ from the rings'.
pub(crate) fn create_qp(input: &mut Input<'_>) -> Command {
    let number = |input: &mut Input<'_>| input.number(16) as u32;
    let caps = QpCaps {
        max_send_wr: number(input),
        max_recv_wr: number(input),
        max_send_sge: number(input),
        max_recv_sge: number(input),
        max_inline: number(input),
    };
    let ring = |input: &mut Input<'_>| u32::from(input.u8() % 32);
    MemoryCommand::CreateQp {
        pd: PdId(u32::from(input.u8() % 4)),
        send_cq: CqIndex(u32::from(input.u8() % 4)),
        recv_cq: CqIndex(u32::from(input.u8() % 4)),
        init: QpInit {
            qp_type: input.pick(&[
                QpType::Rc,
                QpType::Uc,
                QpType::Ud,
                QpType::Gsi,
                QpType::RawPacket,
                QpType::XrcSend,
                QpType::XrcRecv,
            ]),
            caps,
            sq_sig_all: input.flag(),
        },
        sends: SendRing::new(ring(input), ring(input), ring(input)).expect("memory"),
        receives: match input.u8() % 4 {
            0 => ReceiveSource::Shared(SrqIndex(u32::from(input.u8() % 4))),
            1 => ReceiveSource::None,
            _ => ReceiveSource::Own(receives(input)),
        },
    }
    .into()
}

pub(crate) fn flow(input: &mut Input<'_>) -> FlowRule {
    let mut matching = FlowMatch::default();
    if input.flag() {
        let (value, mask) = (input.u16().to_be_bytes(), input.u16().to_be_bytes());
        matching.require(FlowField::EtherType, &value, &mask);
    }
    FlowRule { priority: u32::from(input.u8() % 4), matching }
}

pub(crate) fn spread(input: &mut Input<'_>) -> Rss {
    let fields = RxHashFields::from_bits_truncate(input.u8().into());
    let queues = input.u8() % 5;
    let table = (0..queues).map(|_| QpIndex(u32::from(input.u8() % 8))).collect();
    Rss { hash: RxHash { key: [input.u8(); RX_HASH_KEY], fields }, table }
}

pub(crate) fn group(input: &mut Input<'_>) -> Gid {
    let mut gid = GROUP;
    gid.0[15] = input.u8() % 8;
    if input.u8().is_multiple_of(8) {
        gid.0[usize::from(input.u8()) % 16] = input.u8();
    }
    gid
}

pub(crate) fn path(input: &mut Input<'_>) -> AddressVector {
    AddressVector {
        sgid: Gid::from(Host::address(1, input.flag())),
        dgid: Gid::from(Host::address(2, input.flag())),
        smac: Host::mac(1),
        dmac: Host::mac(2),
        traffic_class: input.u8(),
        flow_label: input.u32(),
        hop_limit: input.u8(),
        sl: input.u8(),
        static_rate: input.u8(),
        encapsulation: Default::default(),
    }
}

pub(crate) fn attributes(input: &mut Input<'_>) -> QpAttr {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    // Either a valid transition or any set of attributes.
    let any = input.flag();
    let has = |input: &mut Input<'_>| !any || input.flag();
    let path = path(input);
    let state = input.pick(&[Init, Rtr, Rts, Sqd, Sqe, Err, Reset]);
    let (init, rtr, rts) = (any || state == Init, any || state == Rtr, any || state == Rts);
    QpAttr {
        state: Some(state),
        pkey_index: (init && has(input)).then(|| u16::from(input.u8() % 2)),
        port: (init && has(input)).then(|| input.u8() % 3),
        qkey: (init && has(input)).then(|| input.u32()),
        access: (init && has(input)).then(|| Access::from_bits_truncate(input.u32())),
        av: (rtr && has(input)).then_some(path),
        rate_limit: (any && input.flag()).then(|| congestion::limit(input)),
        path_mtu: (rtr && has(input)).then(|| input.pick(&Mtu::ALL)),
        dest_qpn: (rtr && has(input)).then(|| Qpn::new(input.u32() & 0xff_ffff)),
        rq_psn: (rtr && has(input)).then(|| Psn::new(input.u32() & 0xff_ffff)),
        max_dest_rd_atomic: (rtr && has(input)).then(|| input.u8()),
        min_rnr_timer: (rtr && has(input)).then(|| input.u8()),
        sq_psn: (rts && has(input)).then(|| Psn::new(input.u32() & 0xff_ffff)),
        timeout: (rts && has(input)).then(|| input.u8()),
        retry_cnt: (rts && has(input)).then(|| input.u8()),
        rnr_retry: (rts && has(input)).then(|| input.u8()),
        max_rd_atomic: (rts && has(input)).then(|| input.u8()),
        selective_repeat: (any && input.flag()).then(|| input.flag()),
        ..QpAttr::default()
    }
}
