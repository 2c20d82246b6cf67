//! The screen of `roxie top`.

use std::cmp::Reverse;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row as TableRow, Table, TableState};
use roxie::host::inspect::{QpEntry, Snapshot};

use super::rates::{Row, short};
use super::{COLUMNS, TEXT, cells};
use crate::show::objects::qp_cells;

/// Sort order of the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Traffic,
    Troubles,
    Pid,
}

impl Order {
    fn next(self) -> Order {
        match self {
            Order::Traffic => Order::Troubles,
            Order::Troubles => Order::Pid,
            Order::Pid => Order::Traffic,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Order::Traffic => "traffic",
            Order::Troubles => "troubles",
            Order::Pid => "process",
        }
    }

    fn key(self, row: &Row) -> (Reverse<u64>, u32) {
        let most_first = match self {
            Order::Traffic => row.tx_bytes + row.rx_bytes,
            Order::Troubles => row.retransmitted + row.rnr + row.cnps + row.dropped,
            Order::Pid => 0.0,
        };
        (Reverse(most_first as u64), row.pid)
    }
}

/// State of the screen.
pub(super) struct Screen {
    delay: Duration,
    seen: Vec<Snapshot>,
    rows: Vec<Row>,
    /// PID of the selected process.
    chosen: Option<u32>,
    order: Order,
    paused: bool,
}

impl Screen {
    pub(super) fn new(delay: Duration) -> Screen {
        Screen {
            delay,
            seen: Vec::new(),
            rows: Vec::new(),
            chosen: None,
            order: Order::Traffic,
            paused: false,
        }
    }

    pub(super) fn show(&mut self, seen: Vec<Snapshot>, rows: Vec<Row>) {
        (self.seen, self.rows) = (seen, rows);
        self.sort();
    }

    fn sort(&mut self) {
        self.rows.sort_by_key(|row| self.order.key(row));
    }

    pub(super) fn change_order(&mut self) {
        self.order = self.order.next();
        self.sort();
    }

    pub(super) fn pause(&mut self) {
        self.paused = !self.paused;
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    fn place(&self) -> usize {
        self.rows.iter().position(|row| Some(row.pid) == self.chosen).unwrap_or(0)
    }

    /// Moves the selection down by `below` lines.
    pub(super) fn choose(&mut self, below: isize) {
        let last = self.rows.len().saturating_sub(1);
        let place = self.place().saturating_add_signed(below).min(last);
        self.chosen = self.rows.get(place).map(|row| row.pid);
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let processes = (self.rows.len() as u16).saturating_add(3).min(frame.area().height / 2).max(5);
        let [head, above, below, foot] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(processes),
            Constraint::Fill(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.summary(), head);
        self.draw_processes(frame, above);
        self.draw_qps(frame, below);
        let paused = if self.paused { "  PAUSED" } else { "" };
        let keys = format!(
            " up, down: choose   s: order ({})   p: pause   q: quit   every {} s{paused}",
            self.order.name(),
            self.delay.as_secs_f64()
        );
        frame.render_widget(Paragraph::new(keys).style(Style::new().add_modifier(Modifier::REVERSED)), foot);
    }

    fn summary(&self) -> Text<'static> {
        let sum = |of: &dyn Fn(&Row) -> f64| self.rows.iter().map(of).sum::<f64>();
        let bold = |text: String| Span::styled(text, Style::new().add_modifier(Modifier::BOLD));
        let first = Line::from(vec![
            bold(format!(" {} devices", self.rows.len())),
            format!(
                ", {} queue pairs, {} memory regions",
                self.rows.iter().map(|row| row.qps).sum::<usize>(),
                self.rows.iter().map(|row| row.mrs).sum::<usize>()
            )
            .into(),
        ]);
        let second = Line::from(format!(
            " sent {}B/s, received {}B/s; sent again {}/s, RNR {}/s, CNPs {}/s, dropped {}/s",
            with_unit(sum(&|row| row.tx_bytes)),
            with_unit(sum(&|row| row.rx_bytes)),
            short(sum(&|row| row.retransmitted)),
            short(sum(&|row| row.rnr)),
            short(sum(&|row| row.cnps)),
            short(sum(&|row| row.dropped)),
        ));
        Text::from(vec![first, second])
    }

    fn draw_processes(&self, frame: &mut Frame<'_>, area: Rect) {
        let block = Block::new().borders(Borders::TOP).title(" processes ");
        if self.rows.is_empty() {
            let text = " No process of this user has a device in this network namespace.\n Start one: roxie run -- PROGRAM";
            frame.render_widget(Paragraph::new(text).block(block), area);
            return;
        }
        let side = |column: usize, text: String| {
            let alignment = if TEXT.contains(&column) { Alignment::Left } else { Alignment::Right };
            Cell::new(Text::from(text).alignment(alignment))
        };
        let row =
            |row: &Row| TableRow::new(cells(row).into_iter().enumerate().map(|(at, text)| side(at, text)));
        let widths = COLUMNS.map(|(_, width)| Constraint::Length(width as u16));
        let names = COLUMNS.iter().enumerate().map(|(at, (name, _))| side(at, (*name).to_owned()));
        let table = Table::new(self.rows.iter().map(row), widths)
            .header(TableRow::new(names).style(Style::new().add_modifier(Modifier::BOLD)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .block(block);
        frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(Some(self.place())));
    }

    fn draw_qps(&self, frame: &mut Frame<'_>, area: Rect) {
        let Some(row) = self.rows.get(self.place()) else { return };
        let mine = |s: &&Snapshot| s.pid == row.pid && s.interface == row.interface;
        let Some(seen) = self.seen.iter().find(mine) else { return };
        let block = Block::new()
            .borders(Borders::TOP)
            .title(format!(" {} {}: queue pairs over {} ({}) ", row.pid, row.name, seen.port, seen.mode));
        let names = ["QPN", "TYPE", "STATE", "PEER", "MTU", "SQ PSN", "RQ PSN", "RATE"];
        let widths = [10, 11, 7, 44, 6, 10, 10, 12].map(Constraint::Length);
        let room = area.height.saturating_sub(2).into();
        let mut rows: Vec<TableRow<'_>> = seen.qps.iter().take(room).map(qp_row).collect();
        if seen.qps.len() > room && room > 0 {
            rows.truncate(room - 1);
            rows.push(TableRow::new([format!("and {} more", seen.qps.len() - (room - 1))]));
        }
        let table = Table::new(rows, widths)
            .header(TableRow::new(names).style(Style::new().add_modifier(Modifier::BOLD)))
            .block(block);
        frame.render_widget(table, area);
    }
}

fn qp_row(qp: &QpEntry) -> TableRow<'_> {
    let failed = qp.state == "ERR" || qp.state == "SQE";
    let style = if failed { Style::new().add_modifier(Modifier::BOLD) } else { Style::new() };
    TableRow::new(qp_cells(qp)).style(style)
}

/// Formats a number to stand before its unit: `1.23 M`.
fn with_unit(value: f64) -> String {
    let text = short(value);
    if text.contains(' ') { text } else { format!("{text} ") }
}
