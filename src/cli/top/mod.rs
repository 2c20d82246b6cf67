//! `roxie top`: activity of the devices of all processes, updated live.

mod draw;
mod rates;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use roxie::host::inspect::Snapshot;
use roxie_report::failure::{EXIT_CODES, Failure};
use roxie_report::formats;
use roxie_report::output;
use serde_json::json;

use crate::show::objects::{ProcessFilter, look};
use draw::Screen;
use rates::{Rates, Row, short};

/// Watch the activity of the devices of all processes.
#[derive(Debug, Args)]
#[command(
    long_about = "Shows the devices of all processes in this network namespace that the user may see, and their \
        present rates: bytes of payload and packets a second, retransmitted packets, RNR NAKs, congestion \
        notifications (CNPs), dropped frames, and the duration of an engine pass (median and 99th percentile since the \
        device was opened, of passes that received or sent something). Below are the queue pairs of the selected \
        process.\n\nKeys: up and down select a process, s changes the sort order, p pauses, q quits.\n\nAn update \
        costs each process some ten microseconds; between updates nothing.",
    after_help = format!(
        "Examples:\n  roxie top\n  roxie top -b -n 1              one table, for a script or a log\n  roxie top --json -n 3 -d 0.5   \
         one JSON object an update\n\n{EXIT_CODES}"
    )
)]
pub(crate) struct Arguments {
    /// Seconds between updates
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0)]
    delay: f64,
    /// Print one table after the other instead of a screen, as `top -b` does
    #[arg(short, long)]
    batch: bool,
    /// Exit after this number of updates
    #[arg(short = 'n', long, value_name = "NUMBER")]
    looks: Option<u64>,
    /// Print JSON: one object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    filter: ProcessFilter,
}

/// Shows the devices until the user ends the command.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let delay = match Duration::try_from_secs_f64(arguments.delay) {
        Ok(delay) if (0.05..=3600.0).contains(&arguments.delay) => delay,
        _ => {
            let why = format!("--delay {} is not between 0.05 and 3600 seconds", arguments.delay);
            return Failure::Usage(why).report("top");
        }
    };
    let shown = if arguments.batch || arguments.json {
        print(arguments, delay)
    } else if !std::io::stdout().is_terminal() {
        Err(Failure::Usage(
            "standard output is no terminal: `roxie top -b` prints tables, --json is for scripts".into(),
        ))
    } else {
        watch(arguments, delay)
    };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("top"),
    }
}

/// Successive snapshots and the rates between them.
struct Looks<'a> {
    arguments: &'a Arguments,
    rates: Rates,
    last: Instant,
    left: Option<u64>,
}

impl<'a> Looks<'a> {
    /// Takes the first snapshot, which the second is compared with.
    fn new(arguments: &'a Arguments) -> Result<Looks<'a>, Failure> {
        let mut rates = Rates::default();
        rates.next(&look(&arguments.filter)?, Duration::ZERO);
        Ok(Looks { arguments, rates, last: Instant::now(), left: arguments.looks })
    }

    fn next(&mut self) -> Result<(Vec<Snapshot>, Vec<Row>), Failure> {
        let seen = look(&self.arguments.filter)?;
        let since = self.last.elapsed();
        self.last = Instant::now();
        self.left = self.left.map(|left| left.saturating_sub(1));
        let rows = self.rates.next(&seen, since);
        Ok((seen, rows))
    }

    fn are_over(&self) -> bool {
        self.left == Some(0)
    }
}

fn print(arguments: &Arguments, delay: Duration) -> Result<(), Failure> {
    let mut looks = Looks::new(arguments)?;
    while !looks.are_over() {
        thread::sleep(delay);
        let (_, rows) = looks.next()?;
        if arguments.json {
            formats::print(formats::TOP, json!({ "processes": rows }))?;
        } else {
            print_table(&rows)?;
        }
    }
    Ok(())
}

/// Columns of the table: name and width. Numbers are right-aligned.
const COLUMNS: [(&str, usize); 14] = [
    ("PID", 8),
    ("PROGRAM", 16),
    ("ON", 10),
    ("PORT", 6),
    ("QPS", 6),
    ("TX B/s", 8),
    ("RX B/s", 8),
    ("TX pkt/s", 9),
    ("RX pkt/s", 9),
    ("RETR/s", 7),
    ("RNR/s", 7),
    ("CNP/s", 7),
    ("DROP/s", 7),
    ("PASS us", 11),
];

/// Columns with left-aligned text.
const TEXT: std::ops::Range<usize> = 1..4;

fn cells(row: &Row) -> [String; COLUMNS.len()] {
    let pass = match (row.pass_us, row.pass_p99_us) {
        (Some(median), Some(high)) => format!("{median:.1} {high:.1}"),
        _ => "-".to_owned(),
    };
    [
        row.pid.to_string(),
        row.name.to_string(),
        row.interface.to_string(),
        row.port.to_string(),
        if row.ready == row.qps { row.qps.to_string() } else { format!("{}/{}", row.ready, row.qps) },
        short(row.tx_bytes),
        short(row.rx_bytes),
        short(row.tx_packets),
        short(row.rx_packets),
        short(row.retransmitted),
        short(row.rnr),
        short(row.cnps),
        short(row.dropped),
        pass,
    ]
}

fn print_table(rows: &[Row]) -> Result<(), Failure> {
    let line = |cells: [&str; COLUMNS.len()]| {
        let padded: Vec<String> =
            cells
                .iter()
                .zip(COLUMNS)
                .enumerate()
                .map(|(column, (cell, (_, width)))| {
                    if TEXT.contains(&column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                })
                .collect();
        output::line(padded.join(" ").trim_end())
    };
    line(COLUMNS.map(|(name, _)| name))?;
    rows.iter().try_for_each(|row| line(cells(row).each_ref().map(String::as_str)))?;
    output::line("")
}

fn watch(arguments: &Arguments, delay: Duration) -> Result<(), Failure> {
    let mut looks = Looks::new(arguments)?;
    let mut terminal = ratatui::try_init().map_err(Failure::Output)?;
    let mut screen = Screen::new(delay);
    let watched = (|| {
        let mut due = Instant::now();
        loop {
            if due <= Instant::now() {
                due = Instant::now() + delay;
                if !screen.is_paused() {
                    let (seen, rows) = looks.next()?;
                    screen.show(seen, rows);
                }
            }
            terminal.draw(|frame| screen.draw(frame)).map_err(Failure::Output)?;
            if looks.are_over() {
                return Ok(());
            }
            if event::poll(due.saturating_duration_since(Instant::now())).map_err(Failure::Output)?
                && let Event::Key(key) = event::read().map_err(Failure::Output)?
                && key.kind == KeyEventKind::Press
                && !act(&mut screen, key)
            {
                return Ok(());
            }
        }
    })();
    ratatui::restore();
    watched
}

/// Handles a key. Returns false if the key ends the command.
fn act(screen: &mut Screen, key: KeyEvent) -> bool {
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Down | KeyCode::Char('j') => screen.choose(1),
        KeyCode::Up | KeyCode::Char('k') => screen.choose(-1),
        KeyCode::Char('s') => screen.change_order(),
        KeyCode::Char('p') | KeyCode::Char(' ') => screen.pause(),
        _ => {}
    }
    true
}
