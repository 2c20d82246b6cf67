//! Who shares the device over sockets.

use roxie::port::udp::group::{self, Roster};
use roxie::wire::ROCE_V2_PORT;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output;

pub(super) fn show(as_json: bool) -> Result<(), Failure> {
    let roster = group::roster(ROCE_V2_PORT).map_err(|e| Failure::Device(e.to_string()))?;
    let roster = roster.unwrap_or_default();
    if as_json {
        let all: Vec<Value> = roster.members().map(|(slot, _)| as_value(&roster, slot)).collect();
        return output::line(Value::from(all));
    }
    if roster.members().next().is_none() {
        return output::line(
            "no process of this user has the device over UDP sockets in this network namespace",
        );
    }
    output::line(format_args!("{:>4}  {:>7}  {:<16}  {:<12}  listens on", "slot", "pid", "program", "QPNs"))?;
    for (slot, who) in roster.members() {
        let units: Vec<String> = roster.units_of(slot).map(|unit| format!("{unit:02x}xxxx")).collect();
        let mut ports = listening(&roster, slot);
        ports.dedup();
        output::line(format_args!(
            "{slot:>4}  {:>7}  {:<16}  {:<12}  {}",
            who.pid,
            who.name,
            units.join(" "),
            ports.join(" ")
        ))?;
    }
    Ok(())
}

/// Port numbers and other services for which a process takes requests.
fn listening(roster: &Roster, slot: u8) -> Vec<String> {
    let services = roster.services.iter().filter(|service| service.slot == slot);
    // RDMA-CM's are a port space and a port number (`rdma_cm.h`).
    let text = |id: u64| match id >> 16 {
        0x106 => format!("{}/tcp", id as u16),
        0x111 => format!("{}/udp", id as u16),
        _ => format!("{id:#018x}"),
    };
    let mut all: Vec<String> = services.map(|service| text(service.id)).collect();
    all.sort_unstable();
    all
}

fn as_value(roster: &Roster, slot: u8) -> Value {
    let who = roster.members().find(|(of, _)| *of == slot).map(|(_, who)| who);
    let ports: Vec<u16> =
        roster.ports.iter().filter(|port| port.slot == slot).map(|port| port.port).collect();
    json!({
        "slot": slot,
        "pid": who.map(|who| who.pid),
        "name": who.map(|who| &who.name),
        "units": roster.units_of(slot).collect::<Vec<_>>(),
        "ports": ports,
        "services": listening(roster, slot),
    })
}
