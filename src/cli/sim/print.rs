//! Prints the results of a scenario.

use std::cmp::Ordering;

use roxie_report::failure::Failure;
use roxie_report::output;
use roxie_sim::scenario::{Column, Results, Table};

/// Rows of a list.
const ROWS: usize = 8;

/// Prints a summary, the slowest flows, and the ports with the deepest queues.
pub(super) fn summary(results: &Results) -> Result<(), Failure> {
    let s = &results.summary;
    let us = |ns: u64| ns as f64 / 1e3;
    let name = if s.name.is_empty() { "scenario" } else { &s.name };
    output::line(format_args!("{name}, seed {}: {:.1} us", s.seed, us(s.time_ns)))?;
    let open = s.flows - s.ended - s.failed;
    output::line(format_args!("  flows       {} ended, {} failed, {open} open", s.ended, s.failed))?;
    output::line(format_args!(
        "  completion  median {:.1} us, 99 of 100 {:.1} us, longest {:.1} us",
        us(s.fct_p50_ns),
        us(s.fct_p99_ns),
        us(s.fct_max_ns)
    ))?;
    output::line(format_args!(
        "  slowdown    median {:.2}, mean {:.2}, 99 of 100 {:.2}",
        s.slowdown_p50, s.slowdown_mean, s.slowdown_p99
    ))?;
    output::line(format_args!("  goodput     {:.3} Gb/s, fairness {:.4}", s.goodput_bps / 1e9, s.fairness))?;
    output::line(format_args!(
        "  switches    {} frames, {} marked, {} dropped, {} damaged on links, {} sent again by hosts",
        s.frames, s.marked, s.dropped, s.damaged, s.retransmitted
    ))?;
    output::line(format_args!(
        "  pauses      {} frames, {:.1} us in all; {} storms",
        s.pauses,
        us(s.pause_ns),
        s.storms
    ))?;
    if let (Some(cycle), Some(since)) = (&s.deadlock, s.deadlock_since_ns) {
        output::line(format_args!(
            "  DEADLOCK    since {:.1} us, for {:.1} us: {cycle}",
            us(since),
            us(s.deadlock_ns)
        ))?;
    }
    flows(results)?;
    ports(results)
}

/// Prints the flows with the largest slowdowns, and what happened to their packets.
fn flows(results: &Results) -> Result<(), Failure> {
    let Some(table) = results.table("flows") else { return Ok(()) };
    let Some(Column::Real(slowdowns)) = table.column("slowdown") else { return Ok(()) };
    let mut rows: Vec<usize> = (0..table.rows()).filter(|row| slowdowns[*row].is_some()).collect();
    rows.sort_by(|a, b| slowdowns[*b].partial_cmp(&slowdowns[*a]).unwrap_or(Ordering::Equal));
    let columns = [
        ("flow", "flow"),
        ("from", "from"),
        ("to", "to"),
        ("bytes", "bytes"),
        ("slowdown", "slowdown"),
        ("marked", "marked"),
        ("dropped", "dropped"),
        ("damaged", "damaged"),
        ("retransmitted_packets", "again"),
        ("cnps", "CNPs"),
    ];
    list("slowest flows, and what became of their packets:", table, &columns, &rows)
}

fn ports(results: &Results) -> Result<(), Failure> {
    let Some(table) = results.table("ports") else { return Ok(()) };
    let Some(Column::Count(peaks)) = table.column("depth_peak_bytes") else { return Ok(()) };
    let mut rows: Vec<usize> = (0..table.rows()).filter(|row| peaks[*row] > 0).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(peaks[*row]));
    let columns = [
        ("switch", "switch"),
        ("port", "port"),
        ("peer", "peer"),
        ("priority", "priority"),
        ("depth_peak_bytes", "depth peak"),
        ("depth_p99_bytes", "depth p99"),
        ("marked", "marked"),
        ("xoff_sent", "xoff sent"),
    ];
    list("deepest queues, in bytes:", table, &columns, &rows)
}

/// Prints these rows up to the limit. `columns` are pairs of the table's column name and the printed title.
fn list(title: &str, table: &Table, columns: &[(&str, &str)], rows: &[usize]) -> Result<(), Failure> {
    if rows.is_empty() {
        return Ok(());
    }
    let cell = |name: &str, row: usize| match table.column(name) {
        Some(Column::Real(values)) => values[row].map_or_else(String::new, |value| format!("{value:.2}")),
        column => column.map_or_else(String::new, |column| column.cell(row)),
    };
    let mut lines: Vec<Vec<String>> = vec![columns.iter().map(|(_, above)| (*above).to_owned()).collect()];
    lines
        .extend(rows.iter().take(ROWS).map(|row| columns.iter().map(|(name, _)| cell(name, *row)).collect()));
    let widths: Vec<usize> =
        (0..columns.len()).map(|n| lines.iter().map(|line| line[n].len()).max().unwrap_or(0)).collect();
    output::line(format_args!("  {title}"))?;
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        output::line(format_args!("    {}", cells.collect::<Vec<_>>().join("  ")))?;
    }
    Ok(())
}
