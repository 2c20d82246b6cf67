//! Lists processes with a device, and those that share an interface over sockets.

use std::collections::BTreeMap;

use roxie::host::inspect::{AccountEntry, ClientEntry, Snapshot};
use roxie::port::group::{self, GroupId};
use roxie::roster::{Identity, Roster};
use roxie::text::Foreign;
use roxie::wire::ROCE_V2_PORT;
use roxie_report::failure::Failure;
use roxie_report::formats;
use roxie_report::output;
use serde_json::{Value, json};

use super::objects::{ProcessFilter, look, table};

/// This user's groups.
struct Groups(Vec<(GroupId, Roster)>);

impl Groups {
    /// Returns the roster of a process's group, and its slots.
    fn place_of<'a>(&'a self, known: &'a Known) -> Option<(&'a Roster, &'a [u8])> {
        let (interface, slots) = known.member.as_ref()?;
        let interface = interface.as_ref().map(Foreign::as_received);
        let (_, roster) = self.0.iter().find(|(id, _)| id.interface.as_deref() == interface)?;
        Some((roster, slots))
    }
}

/// A process, as its own device, its socket group and its NIC describe it.
#[derive(Default)]
struct Known {
    pid: u32,
    uid: Option<u32>,
    name: Foreign,
    /// The interface of its group, if the group has packet sockets, and its slots in it: the first is the process's
    /// own, the others are those of its further workers.
    member: Option<(Option<Foreign>, Vec<u8>)>,
    seen: Option<Snapshot>,
    /// Resources at the NIC that serves it, by name.
    account: BTreeMap<Foreign, AccountEntry>,
}

pub(super) fn show(as_json: bool) -> Result<(), Failure> {
    // Without rosters, show the devices alone: any process may have taken a group's name.
    let groups = Groups(group::all(ROCE_V2_PORT).unwrap_or_else(|error| {
        output::note(error);
        Vec::new()
    }));
    let seen = look(&ProcessFilter::default())?;
    let mut all = with_accounts(seen);
    for (id, roster) in &groups.0 {
        for (slot, who) in roster.members() {
            add_member(&mut all, id.interface.as_deref(), slot, who);
        }
    }
    all.sort_by_cached_key(|known| (known.member.is_none(), known.member.clone(), known.pid));
    if as_json {
        let all: Vec<_> = all.iter().map(|known| as_value(&groups, known)).collect();
        return formats::print(formats::SHOW, json!({ "processes": all }));
    }
    let row = |known: &Known| {
        let of = |tell: &dyn Fn(&Snapshot) -> String| known.seen.as_ref().map_or("?".to_owned(), tell);
        [
            known.pid.to_string(),
            known.uid.map_or("?".to_owned(), |uid| uid.to_string()),
            known.name.to_string(),
            of(&|s| s.interface.to_string()),
            of(&|s| s.transport().to_string()),
            units(&groups, known).iter().map(|unit| format!("{unit:02x}xxxx")).collect::<Vec<_>>().join(" "),
            of(&|s| s.qps.len().to_string()),
            of(&|s| s.mrs.len().to_string()),
            listening(&groups, known).join(" "),
        ]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    let names = ["pid", "uid", "program", "interface", "port", "QPNs", "QPs", "MRs", "listens on"];
    table(names, &rows, "no process of this user has a device in this network namespace")?;
    accounts(&all)
}

/// A client's place: the interface of its NIC, its slot there, its user.
type Place = (Foreign, u8, u32);

/// Returns each process once: the snapshot of its device, with its account at the NIC that serves it. The NIC and a
/// process in another PID namespace do not know each other's process numbers, but both know the client's slot. The
/// kernel reports the user in both cases.
fn with_accounts(seen: Vec<Snapshot>) -> Vec<Known> {
    let of = |nic: &Snapshot| {
        let interface = nic.interface.clone();
        nic.clients
            .clone()
            .into_iter()
            .map(move |client| ((interface.clone(), client.slot, client.uid), client))
    };
    let mut clients: BTreeMap<Place, ClientEntry> = seen.iter().flat_map(of).collect();
    let mut known = |seen: Snapshot| {
        let place = seen.nic_slot.map(|slot| (seen.interface.clone(), slot, seen.uid));
        Known {
            pid: seen.pid,
            uid: Some(seen.uid),
            name: seen.name.clone(),
            member: seen.slot.map(|slot| (is_of_packets(&seen).then(|| seen.interface.clone()), vec![slot])),
            account: place
                .and_then(|place| clients.remove(&place))
                .map_or_else(BTreeMap::new, |client| client.account),
            seen: Some(seen),
        }
    };
    let mut all: Vec<Known> = seen.into_iter().map(&mut known).collect();
    // The NIC also knows processes that do not answer.
    all.extend(clients.into_values().map(|client| Known {
        pid: client.pid,
        uid: Some(client.uid),
        name: client.name,
        account: client.account,
        ..Known::default()
    }));
    all
}

/// Adds a member of a group: to the process that has other slots of it for its workers, else as a process that does not
/// answer. Such a process is stopped, or about to end.
fn add_member(all: &mut Vec<Known>, interface: Option<&str>, slot: u8, who: &Identity) {
    let interface = interface.map(Foreign::from);
    let of_group = |known: &Known| known.member.as_ref().is_some_and(|(of, _)| *of == interface);
    let has_slot = |known: &Known| known.member.as_ref().is_some_and(|(_, slots)| slots.contains(&slot));
    if all.iter().any(|known| of_group(known) && has_slot(known)) {
        return;
    }
    let is_it = |known: &&mut Known| {
        of_group(known) && (known.pid, known.uid, &known.name) == (who.pid, Some(who.uid), &who.name)
    };
    if let Some((_, slots)) = all.iter_mut().find(is_it).and_then(|known| known.member.as_mut()) {
        slots.push(slot);
        return;
    }
    let (uid, name, member) = (Some(who.uid), who.name.clone(), Some((interface, vec![slot])));
    all.push(Known { pid: who.pid, uid, name, member, ..Known::default() });
}

/// True if the process shares its interface by packet sockets.
fn is_of_packets(seen: &Snapshot) -> bool {
    seen.transport() == "packet"
}

/// Prints the accounts of a NIC's clients, with the resources that they use.
fn accounts(all: &[Known]) -> Result<(), Failure> {
    let has = |known: &Known| {
        let entries: Vec<_> = known.account.iter().filter(|(_, entry)| entry.used > 0).collect();
        entries.into_iter().map(|(resource, entry)| account_cells(known, resource, entry)).collect::<Vec<_>>()
    };
    let rows: Vec<_> = all.iter().flat_map(has).collect();
    if rows.is_empty() {
        return Ok(());
    }
    output::line("")?;
    table(["pid", "uid", "program", "resource", "has", "of", "its user has", "of"], &rows, "")
}

fn account_cells(known: &Known, resource: &Foreign, entry: &AccountEntry) -> [String; 8] {
    let bound = |limit: u64| if limit == u64::MAX { "-".to_owned() } else { limit.to_string() };
    [
        known.pid.to_string(),
        known.uid.map_or("?".to_owned(), |uid| uid.to_string()),
        known.name.to_string(),
        resource.to_string(),
        entry.used.to_string(),
        bound(entry.limit),
        entry.user_used.to_string(),
        bound(entry.user_limit),
    ]
}

/// Returns the process's units: the upper 8 bits of its QPNs in a group.
fn units(groups: &Groups, known: &Known) -> Vec<u8> {
    let units =
        |(roster, slots): (&Roster, &[u8])| slots.iter().flat_map(|slot| roster.units_of(*slot)).collect();
    groups.place_of(known).map_or_else(Vec::new, units)
}

/// Returns the port numbers and services at which a process accepts requests.
fn listening(groups: &Groups, known: &Known) -> Vec<String> {
    // RDMA-CM services consist of a port space and a port number (`rdma_cm.h`).
    let text = |id: u64| match id >> 16 {
        0x106 => format!("{}/tcp", id as u16),
        0x111 => format!("{}/udp", id as u16),
        _ => format!("{id:#018x}"),
    };
    let mut all: Vec<String> = match (groups.place_of(known), &known.seen) {
        (Some((roster, slots)), _) => {
            slots.iter().flat_map(|slot| roster.services.of(*slot)).map(|(id, _)| text(id)).collect()
        }
        (None, Some(seen)) => {
            let listens = seen.cm_ids.iter().filter(|id| id.state == "LISTEN");
            listens
                .filter_map(|id| Some(format!("{}/{}", id.src?.port(), id.ps.to_string().to_lowercase())))
                .collect()
        }
        (None, None) => Vec::new(),
    };
    all.sort_unstable();
    all.dedup();
    all
}

fn as_value(groups: &Groups, known: &Known) -> Value {
    let ports = |(roster, slots): (&Roster, &[u8])| {
        slots.iter().flat_map(|slot| roster.ports.of(*slot)).map(|port| port.name.port).collect()
    };
    let ports: Vec<u16> = groups.place_of(known).map_or_else(Vec::new, ports);
    let seen = known.seen.as_ref();
    json!({
        "slot": known.member.as_ref().and_then(|(_, slots)| slots.first()),
        "pid": known.pid,
        "uid": known.uid,
        "name": known.name,
        "units": units(groups, known),
        "ports": ports,
        "services": listening(groups, known),
        "interface": seen.map(|s| &s.interface),
        "port": seen.map(|s| &s.port),
        "mode": seen.map(|s| &s.mode),
        "qps": seen.map(|s| s.qps.len()),
        "mrs": seen.map(|s| s.mrs.len()),
        "cm_ids": seen.map(|s| s.cm_ids.len()),
        "account": known.account,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_of_several_workers_has_one_row() {
        let who = |pid, name: &str| Identity { pid, uid: 0, name: name.into() };
        let answers = Known {
            pid: 7,
            uid: Some(0),
            name: "x".into(),
            member: Some((None, vec![2])),
            ..Known::default()
        };
        let mut all = vec![answers];
        for (slot, who) in [(2, who(7, "x")), (3, who(7, "x")), (4, who(8, "x")), (5, who(8, "x"))] {
            add_member(&mut all, None, slot, &who);
        }
        add_member(&mut all, Some("eth9"), 3, &who(7, "x"));
        let rows: Vec<_> =
            all.into_iter().map(|known| (known.pid, known.member.expect("a member"))).collect();
        let eth9 = (7, (Some("eth9".into()), vec![3]));
        assert_eq!(rows, [(7, (None, vec![2, 3])), (8, (None, vec![4, 5])), eth9]);
    }

    #[test]
    fn client_of_another_pid_namespace_has_one_row() {
        let client = |pid, slot: u8| {
            let account = BTreeMap::from([(
                "qps".into(),
                AccountEntry { used: slot.into(), ..AccountEntry::default() },
            )]);
            ClientEntry { pid, uid: 1000, name: "x".into(), slot, account }
        };
        let served = |pid, nic_slot| {
            let interface = "eth9".into();
            Snapshot { pid, uid: 1000, interface, nic_slot, ..Snapshot::default() }
        };
        // The NIC does not see the first two; the third one does not answer.
        let clients = vec![client(0, 1), client(0, 2), client(9, 3)];
        let nic = Snapshot { clients, ..served(5, None) };
        let all = with_accounts(vec![served(7, Some(1)), nic, served(8, Some(2))]);
        let rows: Vec<_> =
            all.iter().map(|known| (known.pid, known.account.get("qps").map(|qps| qps.used))).collect();
        assert_eq!(rows, [(7, Some(1)), (5, None), (8, Some(2)), (9, Some(3))]);
    }

    #[test]
    fn many_clients_take_few_steps() {
        // With a search for each, these would take 10 billion steps.
        let client = |pid| ClientEntry { pid, uid: pid, ..ClientEntry::default() };
        let nic = Snapshot { clients: (0..100_000).map(client).collect(), ..Snapshot::default() };
        assert_eq!(with_accounts(vec![nic]).len(), 100_001);
    }
}
