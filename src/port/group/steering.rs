//! Finds the process that a datagram is for, by its content: as a classic BPF program for the kernel, and as a function
//! for a member that received a stray.
//!
//! A packet goes to the owner of its destination QPN's unit (upper 8 bits). A management datagram to QP1 goes by its
//! type: a request (REQ, SIDR_REQ) to the member that listens for its service; any other message to the owner of the
//! unit in the communication ID that its receiver chose. A datagram for no member goes to the first one, which answers
//! requests for connections and for their release.

use std::net::IpAddr;

use roxie_base::addressee::{Addressee, DREQ, REQ, SIDR_REP, SIDR_REQ};
use roxie_base::roster::Roster;

/// An instruction of classic BPF: code, jump if true, jump if false, operand.
pub(super) type Instruction = (u16, u8, u8, u32);

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// `BPF_A`, which libc does not have (`linux/filter.h`).
const RETURN_A: u16 = libc::BPF_RET as u16 | 0x10;

/// The destination QPN, with the reserved byte before it (IBTA 9.2).
pub(crate) const DESTINATION_QP: usize = 4;
/// Attribute ID of a management datagram: in the MAD header behind BTH and DETH (IBTA 13.4.3).
pub(crate) const ATTRIBUTE: usize = 12 + 8 + 16;
/// Offset of a CM message.
const MESSAGE: usize = 12 + 8 + 24;
/// Communication ID of the receiver, in all messages but requests and SIDR_REP (IBTA 12.6).
pub(crate) const REMOTE_ID: usize = MESSAGE + Addressee::REMOTE_ID;
/// Request ID that a SIDR_REP answers.
pub(crate) const REQUEST_ID: usize = MESSAGE + Addressee::REQUEST_ID;
/// Service ID of REQ and SIDR_REQ.
const SERVICE: usize = MESSAGE + Addressee::SERVICE;
pub(crate) const QP1: u32 = 1;
pub(crate) const MULTICAST: u32 = 0xff_ffff;
/// Maximum number of services in the program. The first member passes on requests for others.
const SERVICES: usize = 1500;

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The owner of this unit.
    Unit(u8),
    /// Likewise, and any member if no process owns the unit: a request to release a connection, which is to be
    /// answered.
    Release(u8),
    /// The member that listens for this service.
    Service(u64),
    /// All members that joined the multicast group.
    Multicast,
    /// Unknown: the datagram is too short.
    Unknown,
}

/// Returns the destination of a datagram without UDP header.
pub(crate) fn target(datagram: &[u8]) -> Target {
    fn field<const N: usize>(datagram: &[u8], at: usize) -> Option<[u8; N]> {
        datagram.get(at..at + N)?.try_into().ok()
    }
    let target = || {
        Some(match u32::from_be_bytes(field(datagram, DESTINATION_QP)?) & 0xff_ffff {
            QP1 => {
                let attribute = u16::from_be_bytes(field(datagram, ATTRIBUTE)?);
                match Addressee::of(attribute, datagram.get(MESSAGE..)?)? {
                    Addressee::Service(service) => Target::Service(service),
                    Addressee::Unit(unit) if attribute == DREQ => Target::Release(unit),
                    Addressee::Unit(unit) => Target::Unit(unit),
                }
            }
            MULTICAST => Target::Multicast,
            qpn => Target::Unit((qpn >> 16) as u8),
        })
    };
    target().unwrap_or(Target::Unknown)
}

/// Returns the slot of a destination. `None` if it is not a single member.
pub(super) fn slot_of(target: Target, destination: IpAddr, roster: &Roster) -> Option<u8> {
    match target {
        Target::Unit(unit) | Target::Release(unit) => roster.owner_of_unit(unit),
        Target::Service(service) => roster.server_of(service, destination),
        Target::Multicast | Target::Unknown => None,
    }
}

/// Returns the program that selects a socket of the group by its place, which is a slot's number. In classic BPF a load
/// beyond the datagram's end returns 0.
pub(super) fn program(roster: &Roster) -> Vec<Instruction> {
    let first = roster.taken().next().unwrap_or(0);
    let mut code: Vec<Instruction> = Vec::new();
    let management = [
        (LOAD_WORD, 0, 0, DESTINATION_QP as u32),
        (AND, 0, 0, 0xff_ffff),
        (IF_EQUAL, 2, 0, QP1),
        (SHIFT_RIGHT, 0, 0, 16),
        JUMP_TO_UNITS,
        (LOAD_HALF, 0, 0, ATTRIBUTE as u32),
        (IF_EQUAL, 6, 0, REQ.into()),
        (IF_EQUAL, 5, 0, SIDR_REQ.into()),
        (IF_EQUAL, 2, 0, SIDR_REP.into()),
        (LOAD_BYTE, 0, 0, REMOTE_ID as u32),
        JUMP_TO_UNITS,
        (LOAD_BYTE, 0, 0, REQUEST_ID as u32),
        JUMP_TO_UNITS,
        (LOAD_WORD, 0, 0, SERVICE as u32),
    ];
    code.extend(management);
    // Group services by the upper half of their ID. If two members listen on different addresses, the first gets all
    // requests and passes them on.
    let mut services: Vec<(u32, u32, u8)> =
        roster.services.iter().map(|s| ((s.id >> 32) as u32, s.id as u32, s.slot)).collect();
    services.sort_unstable();
    services.dedup_by_key(|(high, low, _)| (*high, *low));
    services.truncate(SERVICES);
    for half in services.chunk_by(|a, b| a.0 == b.0) {
        // If the upper half differs, jump over this group.
        code.push((IF_EQUAL, 1, 0, half[0].0));
        code.push((JUMP, 0, 0, 2 + 2 * half.len() as u32));
        code.push((LOAD_WORD, 0, 0, SERVICE as u32 + 4));
        for (_, low, slot) in half {
            code.push((IF_EQUAL, 0, 1, *low));
            code.push((RETURN, 0, 0, u32::from(*slot)));
        }
        code.push((RETURN, 0, 0, first.into()));
    }
    code.push((RETURN, 0, 0, first.into()));
    let units = code.len();
    for (unit, slot) in &roster.units {
        code.push((IF_EQUAL, 0, 1, u32::from(*unit)));
        code.push((RETURN, 0, 0, u32::from(*slot)));
    }
    // The first unit of a slot has its number.
    code.push((IF_AT_LEAST, 1, 0, roster.slots.len() as u32));
    code.push((RETURN_A, 0, 0, 0));
    code.push((RETURN, 0, 0, first.into()));
    for (at, instruction) in code.iter_mut().enumerate() {
        if *instruction == JUMP_TO_UNITS {
            instruction.3 = (units - at - 1) as u32;
        }
    }
    code
}

/// Placeholder for a jump of unknown distance.
const JUMP_TO_UNITS: Instruction = (JUMP, 0, 0, u32::MAX);

#[cfg(test)]
mod tests {
    use super::super::SLOTS;
    use super::*;
    use roxie_base::random::splitmix;
    use roxie_base::roster::{Identity, Room, Service};

    /// Runs a program as the kernel does (`net/core/filter.c`).
    fn run(program: &[Instruction], datagram: &[u8]) -> u32 {
        let (mut at, mut a) = (0, 0u32);
        loop {
            let (code, jump, otherwise, k) = program[at];
            at += 1;
            let mut load = |bytes: usize| {
                let field = datagram.get(k as usize..k as usize + bytes)?;
                a = field.iter().fold(0, |a, byte| a << 8 | u32::from(*byte));
                Some(())
            };
            let loaded = match code {
                LOAD_WORD => load(4),
                LOAD_HALF => load(2),
                LOAD_BYTE => load(1),
                _ => Some(()),
            };
            if loaded.is_none() {
                return 0;
            }
            match code {
                LOAD_WORD | LOAD_HALF | LOAD_BYTE => {}
                AND => a &= k,
                SHIFT_RIGHT => a >>= k,
                JUMP => at += k as usize,
                IF_EQUAL => at += usize::from(if a == k { jump } else { otherwise }),
                IF_AT_LEAST => at += usize::from(if a >= k { jump } else { otherwise }),
                RETURN => return k,
                RETURN_A => return a,
                other => panic!("{other:#x}"),
            }
        }
    }

    fn roster(slots: u8) -> Roster {
        let mut roster = Roster::new(SLOTS as u8);
        for slot in 0..slots {
            roster.enter(slot, Identity::default());
        }
        roster
    }

    fn packet(qpn: u32) -> Vec<u8> {
        let mut datagram = vec![0; 300];
        datagram[4..8].copy_from_slice(&(qpn | 0xab00_0000).to_be_bytes());
        datagram
    }

    fn message(attribute: u16, service: u64, remote: u32) -> Vec<u8> {
        let mut datagram = packet(1);
        datagram[ATTRIBUTE..ATTRIBUTE + 2].copy_from_slice(&attribute.to_be_bytes());
        let at = if attribute == SIDR_REP { REQUEST_ID } else { REMOTE_ID };
        datagram[at..at + 4].copy_from_slice(&remote.to_be_bytes());
        if [REQ, SIDR_REQ].contains(&attribute) {
            datagram[SERVICE..SERVICE + 8].copy_from_slice(&service.to_be_bytes());
        }
        datagram
    }

    #[test]
    fn kernel_and_member_agree_on_every_datagram() {
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        let mut state = 3;
        let mut draw = |below: u64| splitmix(&mut state) % below;
        for round in 0..400 {
            let mut roster = roster(1 + draw(100) as u8);
            let slots = roster.slots.len() as u64;
            for _ in 0..draw(40) {
                roster.add_unit(draw(slots) as u8);
            }
            for n in 0..draw(300) {
                let id = draw(3) << 32 | 0x0106_0000 | n;
                roster.services.insert(Service { id, address: None, slot: draw(slots) as u8 });
            }
            if round % 3 == 0 && slots > 2 {
                let departed = draw(slots) as u8;
                roster.leave(departed);
                roster.take_unit(departed, (departed + 1) % slots as u8, Room::ALL).expect("free");
            }
            let program = program(&roster);
            assert!(program.len() < 4096);
            let first = roster.taken().next().unwrap();
            for _ in 0..200 {
                let service = draw(3) << 32 | 0x0106_0000 | draw(320);
                let attribute = [REQ, SIDR_REQ, SIDR_REP, 0x11, 0x13, 0x15][draw(6) as usize];
                let some = message(attribute, service, draw(1 << 32) as u32);
                let datagram = if draw(2) == 0 { some } else { packet(2 + draw(0xff_fffd) as u32) };
                let steered = run(&program, &datagram);
                match slot_of(target(&datagram), address, &roster) {
                    Some(slot) => assert_eq!(steered, u32::from(slot), "{:?}", target(&datagram)),
                    // A slot without a member still has its socket.
                    None => assert!(
                        steered == u32::from(first) || roster.slots[steered as usize].member.is_none(),
                        "{steered} for {:?}",
                        target(&datagram)
                    ),
                }
            }
        }
    }

    #[test]
    fn destination_is_read_from_the_bytes() {
        let program = program(&roster(3));
        for length in 0..MESSAGE {
            let short = &message(REQ, 7, 9)[..length];
            assert_eq!(target(short), Target::Unknown);
            assert_eq!(run(&program, short), 0);
        }
        assert_eq!(target(&packet(0xff_ffff)), Target::Multicast);
        assert_eq!(target(&message(DREQ, 7, 0x0b00_0001)), Target::Release(0x0b));
        assert_eq!(target(&message(0x16, 7, 0x0b00_0001)), Target::Unit(0x0b));
    }

    #[test]
    fn most_services_fit_the_program() {
        let mut roster = roster(2);
        roster.services = (0..60_000).map(|id| Service { id, address: None, slot: 1 }).collect();
        assert_eq!((0..128).filter_map(|_| roster.add_unit(1)).count(), 128);
        assert!(program(&roster).len() <= 4096);
    }
}
