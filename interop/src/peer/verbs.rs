//! The verbs of a session with a peer program.

use roxie::frame::FrameMut;
use roxie::wire::{Bth, Ext, FlowSpec, Gid, MAX_HEADERS, Opcode, Qpn, ROCE_V2_PORT, RoceVersion, Template};
use std::net::IpAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::{Peer, Words};
use crate::end::{
    Access, Completion, Connection, Done, End, Handle, Pair, PairKind, Queue, Quirks, Receive, Registration,
    Request, State, Status, Window,
};
use crate::error::Error;
use crate::pattern::Mismatch;
use crate::rows::{Family, Op};

/// `IBV_EVENT_SRQ_LIMIT_REACHED`.
const SRQ_LIMIT_REACHED: u64 = 15;

/// Returns the words for a gather or scatter entry.
fn entry(entry: Option<(Registration, usize, usize)>) -> String {
    match entry {
        Some((region, offset, length)) => format!(" mr={} off={offset} len={length}", region.key),
        None => String::new(),
    }
}

/// Returns an address as a GID of 32 hex digits.
fn gid_hex(address: IpAddr) -> String {
    let v6 = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    format!("{:032x}", u128::from(v6))
}

fn completion(words: &Words) -> Option<Completion> {
    let done = match words.text("opcode")? {
        "send" => Some(Done::Request(Op::Send)),
        "write" => Some(Done::Request(Op::Write)),
        "read" => Some(Done::Request(Op::Read)),
        "cmp_swap" => Some(Done::Request(Op::CmpSwap)),
        "fetch_add" => Some(Done::Request(Op::FetchAdd)),
        "atomic_write" => Some(Done::Request(Op::AtomicWrite)),
        "flush" => Some(Done::Request(Op::Flush)),
        "bind_mw" => Some(Done::Bind),
        "local_inv" => Some(Done::LocalInvalidate),
        "recv" => Some(Done::Receive),
        "recv_imm" => Some(Done::ReceiveWriteImm),
        _ => None,
    };
    // IBV_WC_GRH, IBV_WC_WITH_IMM, IBV_WC_WITH_INV
    let flag = |mask| words.number("flags").map(|flags| flags & mask != 0);
    let word = |key| words.number(key).and_then(|n| u32::try_from(n).ok());
    let (with_header, with_imm, with_inv) = (flag(1)?, flag(2)?, flag(8)?);
    Some(Completion {
        wr_id: words.number("wr_id")?,
        status: Status(words.number("status")?.try_into().ok()?),
        done,
        byte_len: word("byte_len")?,
        imm: with_imm.then_some(word("imm")?),
        invalidated: with_inv.then_some(word("inv")?),
        datagram_from: with_header.then_some(word("src_qp")?),
    })
}

impl End for Peer {
    /// Returns the differences of rdma_rxe, seen on 6.1: the kernel's `rxe_resp.c`, `send_data_in`, and rdma-core's
    /// `providers/rxe/rxe.c`, `validate_send_wr`.
    fn quirks(&self) -> Quirks {
        let rxe = self.about.device.starts_with("rxe");
        Quirks {
            long_send_is_operational_error: rxe,
            refuses_misaligned_atomics: rxe,
            hides_invalidations: rxe,
            wants_persistent_memory: rxe,
            flush_has_wrong_icrc: rxe,
            completes_before_it_errs: rxe,
            windows_are_as_wide_as_regions: rxe,
            joins_no_v6_group: rxe,
            // Since Linux 6.5 it sends from a work queue, and not from the posting call.
            forgets_unsent: rxe && self.has_placement(),
            has_no_xrc: rxe,
        }
    }

    fn has_placement(&self) -> bool {
        self.about.flush_global && self.about.atomic_write
    }

    fn address(&mut self, family: Family) -> Result<IpAddr, Error> {
        self.gid(family).map(|gid| gid.address)
    }

    fn register(&mut self, size: usize, access: Access) -> Result<Registration, Error> {
        let mut flags = String::from("l");
        let rights = [
            (access.read, 'r'),
            (access.write, 'w'),
            (access.atomic, 'a'),
            (access.bind, 'b'),
            (access.zero_based, 'z'),
            (access.flush_global, 'g'),
            (access.flush_persistent, 'p'),
        ];
        flags.extend(rights.into_iter().filter_map(|(allowed, flag)| allowed.then_some(flag)));
        let reply = self.command(&format!("mr size={size} access={flags}"))?;
        Ok(Registration {
            key: reply.number("mr")?,
            addr: reply.number("addr")?,
            rkey: reply.number("rkey")?,
        })
    }

    fn fill(&mut self, region: Registration, range: Range<usize>, seed: u64) -> Result<(), Error> {
        let (mr, off, len) = (region.key, range.start, range.len());
        self.command(&format!("fill mr={mr} off={off} len={len} seed={seed}")).map(drop)
    }

    fn mismatch(
        &mut self,
        region: Registration,
        range: Range<usize>,
        seed: u64,
    ) -> Result<Option<Mismatch>, Error> {
        let (mr, off, len) = (region.key, range.start, range.len());
        let reply = self.command(&format!("check mr={mr} off={off} len={len} seed={seed}"))?;
        if reply.number::<u32>("match")? == 1 {
            return Ok(None);
        }
        Ok(Some(Mismatch { at: reply.number("at")?, got: reply.number("got")?, want: reply.number("want")? }))
    }

    fn store(&mut self, region: Registration, offset: usize, value: u64) -> Result<(), Error> {
        // Little-endian hosts only, on both sides.
        let hex = u64::from_be_bytes(value.to_le_bytes());
        self.command(&format!("poke mr={} off={offset} hex={hex:016x}", region.key)).map(drop)
    }

    fn load(&mut self, region: Registration, offset: usize) -> Result<u64, Error> {
        let reply = self.command(&format!("peek mr={} off={offset} len=8", region.key))?;
        let value = u64::from_str_radix(reply.text("hex")?, 16).map_err(|_| reply.malformed("hex"))?;
        Ok(u64::from_le_bytes(value.to_be_bytes()))
    }

    fn read(&mut self, region: Registration, range: Range<usize>) -> Result<Vec<u8>, Error> {
        let (mr, off, len) = (region.key, range.start, range.len());
        let reply = self.command(&format!("peek mr={mr} off={off} len={len}"))?;
        let hex = reply.text("hex")?;
        let byte = |i| hex.get(2 * i..2 * i + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        (0..len).map(byte).collect::<Option<_>>().ok_or_else(|| reply.malformed("hex"))
    }

    fn create_pair(&mut self, kind: PairKind) -> Result<Pair, Error> {
        let words = match kind {
            PairKind::Rc => "type=rc rq=64".to_owned(),
            PairKind::RcSharing(queue) => format!("type=rc srq={}", queue.key),
            PairKind::Uc => "type=uc rq=64".to_owned(),
            PairKind::Ud { qkey, psn } => format!("type=ud rq=64 qkey=0x{qkey:x} sq_psn=0x{psn:x}"),
        };
        let reply = self.command(&format!("qp sq=64 {words}"))?;
        Ok(Pair { key: reply.number("qp")?, qpn: reply.number("qpn")? })
    }

    fn connect(&mut self, pair: Pair, c: &Connection) -> Result<(), Error> {
        let gid_index = self.gid(c.family)?.index;
        let gid = gid_hex(c.remote);
        self.command(&format!(
            "connect qp={} qpn={} gid={} gid_index={gid_index} mtu={} rq_psn={} sq_psn={} timeout={} \
             retry={} rnr_retry={} min_rnr_timer=12",
            pair.key, c.remote_qpn, gid, c.mtu, c.rq_psn, c.sq_psn, c.timeout, c.retry, c.rnr_retry
        ))
        .map(drop)
    }

    fn post_receive(&mut self, pair: Pair, receive: &Receive) -> Result<(), Error> {
        let to = entry(receive.to);
        self.command(&format!("recv qp={} wr_id={}{to}", pair.key, receive.wr_id)).map(drop)
    }

    fn post_send(&mut self, pair: Pair, r: &Request) -> Result<(), Error> {
        let to = match r.datagram {
            Some(to) => {
                format!(" ah={} remote_qpn={} remote_qkey=0x{:x}", to.handle.key, to.qpn, to.qkey)
            }
            None => String::new(),
        };
        let flush = r.flush.map(|flush| {
            let (kind, level) =
                (u8::from(flush.global) | u8::from(flush.persistent) << 1, flush.whole_region);
            format!(" len={} type={kind} level={}", flush.length, u8::from(level))
        });
        let flush = flush.unwrap_or_default();
        self.command(&format!(
            "send qp={} wr_id={} op={}{} raddr=0x{:x} rkey=0x{:x} imm=0x{:x} compare_add=0x{:x} swap=0x{:x} flags=s{to}{flush}",
            pair.key,
            r.wr_id,
            r.op,
            entry(r.local),
            r.remote_addr,
            r.rkey,
            r.imm,
            r.compare_add,
            r.swap
        ))
        .map(drop)
    }

    fn poll(&mut self, pair: Pair, least: usize, timeout: Duration) -> Result<Vec<Completion>, Error> {
        let reply =
            self.command(&format!("poll qp={} min={least} timeout_ms={}", pair.key, timeout.as_millis()))?;
        let parse = |line: &String| {
            completion(&Words::parse(line)).ok_or_else(|| reply.malformed("a completion line"))
        };
        reply.details.iter().map(parse).collect()
    }

    fn create_handle(&mut self, family: Family, to: IpAddr) -> Result<Handle, Error> {
        let index = self.gid(family)?.index;
        let reply = self.command(&format!("ah gid={} gid_index={index}", gid_hex(to)))?;
        Ok(Handle { key: reply.number("ah")? })
    }

    fn create_queue(&mut self) -> Result<Queue, Error> {
        Ok(Queue { key: self.command("srq max=64")?.number("srq")? })
    }

    fn post_shared(&mut self, queue: Queue, receive: &Receive) -> Result<(), Error> {
        let to = entry(receive.to);
        self.command(&format!("recv srq={} wr_id={}{to}", queue.key, receive.wr_id)).map(drop)
    }

    fn arm_limit(&mut self, queue: Queue, limit: u32) -> Result<(), Error> {
        self.command(&format!("srq_limit srq={} limit={limit}", queue.key)).map(drop)
    }

    fn limit_reached(&mut self, timeout: Duration) -> Result<bool, Error> {
        let until = Instant::now() + timeout;
        loop {
            // Other events may arrive before it.
            let remaining = until.saturating_duration_since(Instant::now()).as_millis();
            let reply = self.command(&format!("events timeout_ms={remaining}"))?;
            let mut events = reply.details.iter().map(|line| Words::parse(line).number("event"));
            if events.any(|event| event == Some(SRQ_LIMIT_REACHED)) {
                return Ok(true);
            }
            if remaining == 0 {
                return Ok(false);
            }
        }
    }

    fn create_window(&mut self) -> Result<Window, Error> {
        Ok(Window { key: self.command("mw")?.number("mw")? })
    }

    fn post_bind(
        &mut self,
        pair: Pair,
        wr_id: u64,
        window: Window,
        to: (Registration, usize, usize),
    ) -> Result<u32, Error> {
        let to = entry(Some(to));
        let words = format!("qp={} wr_id={wr_id} op=bind_mw mw={}{to} access=rw", pair.key, window.key);
        self.command(&format!("send {words}"))?.number("rkey")
    }

    fn post_invalidate(&mut self, pair: Pair, wr_id: u64, rkey: u32) -> Result<(), Error> {
        self.command(&format!("send qp={} wr_id={wr_id} op=local_inv rkey=0x{rkey:x}", pair.key)).map(drop)
    }

    fn attach(&mut self, pair: Pair, group: IpAddr) -> Result<(), Error> {
        let family = if group.is_ipv4() { Family::V4 } else { Family::V6 };
        let (gid, index) = (gid_hex(group), self.gid(family)?.index);
        self.command(&format!("attach qp={} gid={gid} gid_index={index}", pair.key)).map(drop)
    }

    fn detach(&mut self, pair: Pair, _group: IpAddr) -> Result<(), Error> {
        self.command(&format!("detach qp={}", pair.key)).map(drop)
    }

    fn is_member(&mut self, group: IpAddr) -> Result<bool, Error> {
        Ok(self.command(&format!("member gid={}", gid_hex(group)))?.number::<u32>("member")? == 1)
    }

    fn can_notify(&self) -> bool {
        true
    }

    fn notify(&mut self, family: Family, to: IpAddr, qpn: u32) -> Result<(), Error> {
        let from = self.address(family)?;
        let hex: String = notification(from, to, qpn).iter().map(|byte| format!("{byte:02x}")).collect();
        let gid = gid_hex(to);
        self.command(&format!("datagram gid={gid} from={NOTIFIES_FROM} port={ROCE_V2_PORT} hex={hex}"))
            .map(drop)
    }

    fn state(&mut self, pair: Pair) -> Result<State, Error> {
        let reply = self.command(&format!("query qp={}", pair.key))?;
        Ok(match reply.text("state")? {
            "reset" => State::Reset,
            "init" => State::Init,
            "rtr" => State::Rtr,
            "rts" => State::Rts,
            "sqd" => State::Sqd,
            "sqe" => State::Sqe,
            "err" => State::Err,
            _ => return Err(reply.malformed("state")),
        })
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.command("reset").map(drop)
    }
}

/// Source UDP port of notifications.
const NOTIFIES_FROM: u16 = 0xc0de;

/// Returns the UDP payload of a congestion notification between these addresses.
fn notification(from: IpAddr, to: IpAddr, qpn: u32) -> Vec<u8> {
    let template = Template::new(&FlowSpec {
        src_mac: [0; 6],
        dst_mac: [0; 6],
        vlan: None,
        src: Gid::from(from),
        dst: Gid::from(to),
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
        source_port: NOTIFIES_FROM,
        version: RoceVersion::V2,
    });
    let bth = Bth { opcode: Opcode::CNP, becn: true, dest_qp: Qpn::new(qpn), ..Bth::default() };
    let mut headers = [0; MAX_HEADERS];
    let behind = template.write_headers(&mut headers, &bth, &Ext::None, 0);
    let mut frame = vec![0; template.frame_len(bth.opcode, 0)];
    frame[..behind].copy_from_slice(&headers[..behind]);
    template.seal(&mut FrameMut { a: &mut frame, b: &mut [] });
    let udp = if from.is_ipv4() { 14 + 20 } else { 14 + 40 };
    frame.split_off(udp + 8)
}
