//! Which processes have a device here, and which of them share it over sockets.

use roxie::host::inspect::Snapshot;
use roxie::port::udp::group::{self, Roster};
use roxie::wire::ROCE_V2_PORT;
use serde_json::{Value, json};

use super::objects::{Whose, look, table};
use crate::failure::Failure;
use crate::output;

/// What is known of a process: what its device says, and what the others of its group know.
#[derive(Default)]
struct Known {
    pid: u32,
    name: String,
    slot: Option<u8>,
    seen: Option<Snapshot>,
}

pub(super) fn show(as_json: bool) -> Result<(), Failure> {
    // Without it the devices themselves are shown: any process may have taken the group's name.
    let roster = group::roster(ROCE_V2_PORT).unwrap_or_else(|error| {
        output::note(error);
        None
    });
    let roster = roster.unwrap_or_default();
    let mut all: Vec<Known> = look(&Whose::default())?
        .into_iter()
        .map(|seen| Known { pid: seen.pid, name: seen.name.clone(), slot: seen.slot, seen: Some(seen) })
        .collect();
    // Those of the group that do not answer: stopped, or about to end.
    for (slot, who) in roster.members() {
        if all.iter().all(|known| known.slot != Some(slot)) {
            all.push(Known { pid: who.pid, name: who.name.clone(), slot: Some(slot), seen: None });
        }
    }
    all.sort_by_key(|known| (known.slot.is_none(), known.slot, known.pid));
    if as_json {
        return output::line(all.iter().map(|known| as_value(&roster, known)).collect::<Value>());
    }
    let row = |known: &Known| {
        let of = |tell: &dyn Fn(&Snapshot) -> String| known.seen.as_ref().map_or("?".to_owned(), tell);
        [
            known.pid.to_string(),
            of(&|s| s.uid.to_string()),
            known.name.clone(),
            of(&|s| s.interface.clone()),
            of(&|s| s.transport().to_owned()),
            units(&roster, known).iter().map(|unit| format!("{unit:02x}xxxx")).collect::<Vec<_>>().join(" "),
            of(&|s| s.qps.len().to_string()),
            of(&|s| s.mrs.len().to_string()),
            listening(&roster, known).join(" "),
        ]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    let names = ["pid", "uid", "program", "interface", "port", "QPNs", "QPs", "MRs", "listens on"];
    table(names, &rows, "no process of this user has a device in this network namespace")
}

/// The upper 8 bits of the QPNs of a process that shares the others with others.
fn units(roster: &Roster, known: &Known) -> Vec<u8> {
    known.slot.map_or_else(Vec::new, |slot| roster.units_of(slot).collect())
}

/// Port numbers and other services for which a process takes requests.
fn listening(roster: &Roster, known: &Known) -> Vec<String> {
    // RDMA-CM's are a port space and a port number (`rdma_cm.h`).
    let text = |id: u64| match id >> 16 {
        0x106 => format!("{}/tcp", id as u16),
        0x111 => format!("{}/udp", id as u16),
        _ => format!("{id:#018x}"),
    };
    let mut all: Vec<String> = match (known.slot, &known.seen) {
        (Some(slot), _) => {
            roster.services.iter().filter(|service| service.slot == slot).map(|s| text(s.id)).collect()
        }
        (None, Some(seen)) => {
            let listens = seen.cm_ids.iter().filter(|id| id.state == "LISTEN");
            listens.filter_map(|id| Some(format!("{}/{}", id.src?.port(), id.ps.to_lowercase()))).collect()
        }
        (None, None) => Vec::new(),
    };
    all.sort_unstable();
    all.dedup();
    all
}

fn as_value(roster: &Roster, known: &Known) -> Value {
    let ports: Vec<u16> =
        roster.ports.iter().filter(|port| Some(port.slot) == known.slot).map(|port| port.port).collect();
    let seen = known.seen.as_ref();
    json!({
        "slot": known.slot,
        "pid": known.pid,
        "uid": seen.map(|s| s.uid),
        "name": known.name,
        "units": units(roster, known),
        "ports": ports,
        "services": listening(roster, known),
        "interface": seen.map(|s| &s.interface),
        "port": seen.map(|s| &s.port),
        "mode": seen.map(|s| &s.mode),
        "qps": seen.map(|s| s.qps.len()),
        "mrs": seen.map(|s| s.mrs.len()),
        "cm_ids": seen.map(|s| s.cm_ids.len()),
    })
}
