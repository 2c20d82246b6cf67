//! Rows on a VLAN, on RoCE v1, with selective repeat, and on a bond.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use interop::end::{Ended, Local, Setup, Unready};
use interop::error::Error;
use interop::exec;
use interop::local::program::roxie;
use interop::local::{self, Site};
use interop::network::{INTERFACE, Namespace, VLAN, address, vlan_address};
use interop::peer::Peer;
use interop::report::Outcome;
use interop::rows::{Bond, Case, Family, Impairment, Network, Op, PortKind, Row};
use interop::skip::SkipReason;
use roxie::capture::Reader;
use roxie::frame::Frame;
use roxie::wire::{Opcode, parse};

use super::guest_script::{Failed, ended};

/// Number of the guest at the site.
const GUEST: u8 = 2;
/// Exit code of the guest's script if the kernel has no such links.
const NO_SUCH_LINK: i32 = 77;
/// Packets of a message of which one in a hundred is lost: at least one of so many, but for a chance of 4 in 100,000.
const SURELY_LOST: usize = 1000;
/// Time for a program on a bond, in an emulated guest on a busy host.
const BOND_WITHIN: Duration = Duration::from_secs(240);
/// Message of a packet port on the guest's kernel if that is older than Linux 6.2.
const NO_TRAINS: &str = "the packet port takes Linux 6.2";
/// SENDs for some seconds, with an ACK timeout of 537 ms, because the guest is slow on a busy host.
const SENDS: &str = "ib_send_bw -c RC -m 1024 -s 5000 -D 8 -u 17 -F -p 18515";

/// Two namespaces of this host, for rows between two devices of Roxie.
pub(crate) fn namespaces(rows: &[Row]) -> Result<Option<[Namespace; 2]>, Error> {
    let wanted = rows.iter().any(|row| row.network().is_between_devices());
    wanted.then(Namespace::create_pair).transpose()
}

/// What rows on other links than the plain one need.
pub(crate) struct Links<'a> {
    /// The namespace of the guest's site; `None` with a hardware peer.
    pub(crate) site: Option<&'a Namespace>,
    /// Two devices of Roxie.
    devices: Option<[Box<dyn Local + 'a>; 2]>,
    /// Why the peer has no VLAN, once it was asked for one.
    no_vlan: Option<SkipReason>,
}

impl<'a> Links<'a> {
    /// `pair`: what [`namespaces`] has made.
    pub(crate) fn new(site: Option<&'a Namespace>, pair: Option<&'a [Namespace; 2]>) -> Links<'a> {
        let open = |(number, namespace): (u8, &'a Namespace)| {
            let addresses = [Family::V4, Family::V6].map(|family| address(number, family)).to_vec();
            let (interface, rxe_flush_icrc) = (INTERFACE, false);
            // Two sites for a whole run.
            let addresses = addresses.leak();
            local::open(&Site { namespace: Some(namespace), interface, addresses, rxe_flush_icrc })
        };
        let devices = pair.map(|[near, far]| [open((1, near)), open((2, far))]);
        Links { site, devices, no_vlan: None }
    }

    /// Makes the peer use its GIDs of the row's link.
    pub(super) fn prepare(&mut self, row: &Row, peer: &mut Peer) -> Result<(), Unready> {
        let wanted = row.network() == Network::Vlan;
        if wanted && !peer.has_vlan() {
            if self.no_vlan.is_none() {
                self.no_vlan = self.make_vlan(peer)?;
            }
            if let Some(reason) = self.no_vlan {
                return Err(Unready::Skip(reason));
            }
        }
        peer.use_vlan(wanted);
        Ok(())
    }

    /// Gives the guest a VLAN interface. Returns why there is none.
    fn make_vlan(&self, peer: &mut Peer) -> Result<Option<SkipReason>, Error> {
        let Some(site) = self.site else { return Ok(Some(SkipReason::PeerHasNoVlan)) };
        let own = site.reach_vlan(GUEST, &format!("52:54:00:71:00:{GUEST:02x}"))?;
        let own = own.map(|byte| format!("{byte:02x}")).join(":");
        let there = [Family::V4, Family::V6].map(|family| vlan_address(GUEST, family));
        let pairs = [Family::V4, Family::V6]
            .map(|family| format!("{} {}", vlan_address(1, family), vlan_address(GUEST, family)));
        let line = format!("vlan {VLAN} {own} {}", pairs.join(" "));
        match script(peer, &line, Duration::from_secs(30)) {
            Ok(_) => {}
            Err(Failed::Error(error)) => return Err(error),
            Err(Failed::Missing) => return Ok(Some(SkipReason::PeerHasNoVlan)),
            Err(Failed::Program(_, ended)) => {
                return Err(Error::Local(format!("the guest's VLAN: {ended:?}")));
            }
            Err(Failed::Other(why)) => return Err(Error::Local(why)),
        }
        match peer.await_vlan(&there)? {
            true => Ok(None),
            false => {
                Err(Error::Local(format!("{there:?} of the guest's VLAN are no GIDs: {:?}", peer.gids())))
            }
        }
    }

    /// Runs a row between two devices of Roxie. The near one has the faults and the capture.
    pub(super) fn between(&mut self, row: &Row, setup: &Setup) -> Outcome {
        let Some([local, remote]) = &mut self.devices else { return Outcome::Skip(SkipReason::NeedsGuest) };
        let plain = Setup { fault: Impairment::None, capture: None, ..setup.clone() };
        for (end, setup) in [(&mut *local, setup), (&mut *remote, &plain)] {
            match end.prepare(setup) {
                Ok(()) => {}
                Err(Unready::Skip(reason)) => return Outcome::Skip(reason),
                Err(Unready::Failed(error)) => return Outcome::Fail(error.to_string()),
            }
        }
        let before = sacks(local.as_ref());
        let played = exec::run(row, local.as_mut(), remote.as_mut());
        let sacks = sacks(local.as_ref()) - before;
        let finished = local.finish().and(remote.finish());
        let played = played.and(finished.map_err(exec::Failure::End));
        match played {
            Err(failure) => Outcome::Fail(failure.to_string()),
            Ok(()) if must_repeat(row) && sacks == 0 => {
                Outcome::Fail("the responder has sent no SACK: packets were not repeated one by one".into())
            }
            Ok(()) => Outcome::Pass,
        }
    }
}

/// True if a row loses packets that a SACK must ask for.
fn must_repeat(row: &Row) -> bool {
    match row.case {
        Case::Over(Network::Selective, transfer) => {
            row.fault() != Impairment::None && transfer.packets() >= SURELY_LOST && transfer.op != Op::Read
        }
        _ => false,
    }
}

fn sacks(end: &dyn Local) -> u64 {
    end.counters().iter().filter(|(name, _)| *name == "rcvd_sacks").map(|(_, n)| n).sum()
}

/// Returns what is wrong with the capture of a connection whose peer has no selective repeat: it has packets of RC, and
/// no SACK.
pub(super) fn is_not_plain(capture: &Path) -> Option<String> {
    let count = || -> Result<(u64, u64), String> {
        let file = File::open(capture).map_err(|e| e.to_string())?;
        let mut reader = Reader::new(file).map_err(|e| e.to_string())?;
        let (mut all, mut sacks) = (0, 0);
        while let Some(record) = reader.next().map_err(|e| e.to_string())? {
            let Ok(packet) = parse(&Frame { a: record.data, b: &[] }) else { continue };
            all += 1;
            sacks += u64::from(packet.bth.opcode == Opcode::RC_SELECTIVE_ACKNOWLEDGE);
        }
        Ok((all, sacks))
    };
    match count() {
        Ok((all, 0)) if all > 0 => None,
        Ok((all, sacks)) => Some(format!("{sacks} SACKs in {all} packets: this is no plain RC")),
        Err(why) => Some(format!("{}: {why}", capture.display())),
    }
}

/// Runs a stock program on a bond in the guest.
pub(super) fn bond(bond: Bond, port: PortKind, peer: &mut Peer, site: Option<&Namespace>) -> Outcome {
    if site.is_none() {
        return Outcome::Skip(SkipReason::NeedsGuest);
    }
    let roxie = match roxie() {
        Ok(path) => path.display().to_string(),
        Err(error) => return Outcome::Fail(error.to_string()),
    };
    let line = match (bond, port) {
        (Bond::Refused, _) => format!("refused {roxie}"),
        // Over sockets the kernel tags, on the VLAN's interface.
        (Bond::Vlan, PortKind::Udp) => format!("bond vlan {roxie} udp bond0.5 1 {SENDS}"),
        // The VLAN's GID follows those of the bond: link-local and IPv4.
        (Bond::Vlan, _) => format!("bond vlan {roxie} {port} bond0 2 {SENDS}"),
        (mode, _) => format!("bond {mode} {roxie} {port} bond0 1 {SENDS}"),
    };
    match script(peer, &line, BOND_WITHIN) {
        Ok(_) => Outcome::Pass,
        Err(Failed::Error(error)) => Outcome::Fail(error.to_string()),
        Err(Failed::Program(_, ended)) if ended.output.contains(NO_TRAINS) => {
            Outcome::Skip(SkipReason::PortUnavailable)
        }
        Err(Failed::Program(what, ended)) => Outcome::Fail(format!("{what}: {ended:?}")),
        Err(Failed::Other(why)) => Outcome::Fail(why),
        Err(Failed::Missing) => Outcome::Skip(SkipReason::KernelHasNoBonds),
    }
}

/// Runs the guest's script `interop/guest/links` to its end.
fn script(peer: &mut Peer, line: &str, within: Duration) -> Result<Ended, Failed> {
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let job = peer.spawn("roxie-links", &words)?;
    match peer.wait(job, within)? {
        missing if missing.code == Some(NO_SUCH_LINK) => Err(Failed::Missing),
        other => ended(other),
    }
}
