//! Lists objects of all processes' devices: queue pairs, memory regions, rdma_cm identifiers, counters.

use std::fmt::Display;

use clap::Args;
use roxie::host::inspect::{CmIdEntry, MrEntry, QpEntry, Snapshot, snapshots};
use roxie::text::Foreign;
use roxie_report::failure::Failure;
use roxie_report::formats;
use roxie_report::output;
use serde::Serialize;
use serde_json::{Value, json};

/// Selects processes.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ProcessFilter {
    /// Show this process only; repeatable
    #[arg(long, value_name = "PID")]
    pub(super) pid: Vec<u32>,
}

/// Returns snapshots of the selected devices. Reports processes that did not answer.
pub(crate) fn look(filter: &ProcessFilter) -> Result<Vec<Snapshot>, Failure> {
    let look =
        snapshots().map_err(|e| Failure::Run(format!("cannot list Unix sockets (/proc/net/unix): {e}")))?;
    let wanted = |pid: u32| filter.pid.is_empty() || filter.pid.contains(&pid);
    for pid in look.silent.iter().filter(|pid| wanted(**pid)) {
        output::note(format_args!(
            "process {pid} does not answer as a device does: it is stopped, or no process of Roxie's"
        ));
    }
    for (pid, version) in look.of_other_versions.iter().filter(|(pid, _)| wanted(*pid)) {
        output::note(format_args!("process {pid} cannot be shown: {version}"));
    }
    if look.omitted > 0 {
        let n = look.omitted;
        output::note(format_args!(
            "{n} sockets of other users were left out: too many, or no answers of devices"
        ));
    }
    let seen: Vec<_> = look.snapshots.into_iter().filter(|snapshot| wanted(snapshot.pid)).collect();
    let is_told =
        |pid| look.silent.contains(pid) || look.of_other_versions.iter().any(|(other, _)| other == pid);
    match filter.pid.iter().find(|pid| seen.iter().all(|s| s.pid != **pid) && !is_told(*pid)) {
        Some(pid) => Err(Failure::Run(format!(
            "process {pid} has no device that can be seen from here: `roxie show processes` lists those that have"
        ))),
        None => Ok(seen),
    }
}

/// Returns each object of each device, with the snapshot that it belongs to.
fn each<'a, T: 'a>(
    seen: &'a [Snapshot],
    of: impl Fn(&'a Snapshot) -> &'a [T],
) -> impl Iterator<Item = (&'a Snapshot, &'a T)> {
    seen.iter().flat_map(move |snapshot| of(snapshot).iter().map(move |object| (snapshot, object)))
}

/// Prints an object with one list: each object of each device, with the owner of the device.
fn print_json<'a, T: Serialize + 'a>(
    name: &str,
    seen: &'a [Snapshot],
    of: impl Fn(&'a Snapshot) -> &'a [T],
) -> Result<(), Failure> {
    let one = |(owner, object): (&Snapshot, &T)| {
        let mut value =
            json!({ "pid": owner.pid, "uid": owner.uid, "name": owner.name, "device": owner.device });
        if let (Some(into), Ok(Value::Object(fields))) = (value.as_object_mut(), serde_json::to_value(object))
        {
            into.extend(fields);
        }
        value
    };
    formats::print(formats::SHOW, json!({ name: each(seen, of).map(one).collect::<Value>() }))
}

fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Prints a table with columns as wide as their contents.
pub(super) fn table<const N: usize>(
    names: [&str; N],
    rows: &[[String; N]],
    nothing: &str,
) -> Result<(), Failure> {
    if rows.is_empty() {
        return output::line(nothing);
    }
    aligned(names, rows).try_for_each(output::line)
}

/// Returns the lines of a table.
fn aligned<'a, const N: usize>(
    names: [&'a str; N],
    rows: &'a [[String; N]],
) -> impl Iterator<Item = String> + 'a {
    let mut widths = names.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    // Nothing follows the last column, which may have long cells: those of one row must not widen all others.
    widths[N - 1] = 0;
    let line = move |cells: [&str; N]| {
        let padded: Vec<String> =
            cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        padded.join("  ").trim_end().to_owned()
    };
    let shown = rows.iter().map(|row| row.each_ref().map(String::as_str));
    std::iter::once(names).chain(shown).map(line)
}

/// Formats a queue pair: QPN, service, state, peer, path MTU, next PSN to send, expected PSN, rate.
pub(crate) fn qp_cells(qp: &QpEntry) -> [String; 8] {
    let peer = qp.dest_qpn.zip(qp.remote.as_ref());
    [
        format!("{:#08x}", qp.qpn),
        if qp.selective_repeat { format!("{} selective", qp.service) } else { qp.service.to_string() },
        qp.state.to_string(),
        or_dash(peer.map(|(number, at)| format!("{number:#08x} at {at}"))),
        or_dash(qp.path_mtu),
        qp.sq_psn.to_string(),
        qp.rq_psn.to_string(),
        or_dash(qp.rate_mbps.map(|rate| format!("{rate:.0} Mb/s"))),
    ]
}

pub(super) fn qps(filter: &ProcessFilter, json: bool) -> Result<(), Failure> {
    let seen = look(filter)?;
    if json {
        return print_json("qps", &seen, |s| &s.qps);
    }
    let row = |(owner, qp): (&Snapshot, &QpEntry)| {
        let [qpn, service, state, peer, mtu, sq_psn, rq_psn, rate] = qp_cells(qp);
        let (pid, uid, name) = (owner.pid.to_string(), owner.uid.to_string(), owner.name.to_string());
        [pid, uid, name, qpn, service, state, peer, mtu, sq_psn, rq_psn, rate]
    };
    let rows: Vec<_> = each(&seen, |s| &s.qps).map(row).collect();
    let names = ["pid", "uid", "program", "QPN", "type", "state", "peer", "MTU", "sq-psn", "rq-psn", "rate"];
    table(names, &rows, "no queue pairs")
}

pub(super) fn mrs(filter: &ProcessFilter, json: bool) -> Result<(), Failure> {
    let seen = look(filter)?;
    if json {
        return print_json("mrs", &seen, |s| &s.mrs);
    }
    let row = |(owner, mr): (&Snapshot, &MrEntry)| {
        [
            owner.pid.to_string(),
            owner.uid.to_string(),
            owner.name.to_string(),
            mr.kind.to_string(),
            if mr.key == 0 { "-".to_owned() } else { format!("{:#010x}", mr.key) },
            mr.pd.to_string(),
            format!("{:#014x}", mr.start),
            mr.length.to_string(),
            mr.access.iter().map(Foreign::to_string).collect::<Vec<_>>().join(" ").to_lowercase(),
        ]
    };
    let rows: Vec<_> = each(&seen, |s| &s.mrs).map(row).collect();
    let names = ["pid", "uid", "program", "kind", "key", "pd", "start", "bytes", "access"];
    table(names, &rows, "no memory regions")
}

pub(super) fn cm_ids(filter: &ProcessFilter, json: bool) -> Result<(), Failure> {
    let seen = look(filter)?;
    if json {
        return print_json("cm_ids", &seen, |s| &s.cm_ids);
    }
    let row = |(owner, id): (&Snapshot, &CmIdEntry)| {
        [
            owner.pid.to_string(),
            owner.uid.to_string(),
            owner.name.to_string(),
            id.id.to_string(),
            id.ps.to_string(),
            id.state.to_string(),
            or_dash(id.qpn.map(|qpn| format!("{qpn:#08x}"))),
            or_dash(id.src),
            or_dash(id.dst),
        ]
    };
    let rows: Vec<_> = each(&seen, |s| &s.cm_ids).map(row).collect();
    let names = ["pid", "uid", "program", "cm-id", "ps", "state", "QPN", "source", "destination"];
    table(names, &rows, "no identifiers of rdma_cm")
}

/// Prints the counters that are not 0, or all.
pub(super) fn counters(filter: &ProcessFilter, all: bool, json: bool) -> Result<(), Failure> {
    let seen = look(filter)?;
    if json {
        let one = |s: &Snapshot| {
            json!({ "pid": s.pid, "uid": s.uid, "name": s.name, "device": s.device, "interface": s.interface,
                    "port": s.port, "counters": s.counters })
        };
        let devices: Vec<_> = seen.iter().map(one).collect();
        return formats::print(formats::SHOW, json!({ "devices": devices }));
    }
    let rows: Vec<_> = seen
        .iter()
        .flat_map(|s| {
            let told = s.counters.iter().filter(|(_, value)| all || **value > 0);
            told.map(|(name, value)| {
                [
                    s.pid.to_string(),
                    s.uid.to_string(),
                    s.name.to_string(),
                    name.to_string(),
                    value.to_string(),
                ]
            })
        })
        .collect();
    table(
        ["pid", "uid", "program", "counter", "value"],
        &rows,
        "nothing was counted (--all shows all counters)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_last_cells_widen_no_other_row() {
        let rows = [["a".to_owned(), "x".repeat(1 << 20)], ["größe".to_owned(), "y".to_owned()]];
        let lines: Vec<String> = aligned(["one", "two"], &rows).collect();
        assert_eq!((&*lines[0], &*lines[2]), ("one    two", "größe  y"));
        assert_eq!((lines[1].starts_with("a      x"), lines[1].len()), (true, 7 + (1 << 20)));
    }
}
