//! Draws both runs as an SVG.

use std::fmt::Write as _;

use roxie_report::svg::{Document, Escaped};
use roxie_report::words::folded;

use super::report::Report;
use super::trace::Run;

/// Layout, in pixels.
const WIDTH: f64 = 1140.0;
const LEFT: f64 = 70.0;
const GAP: f64 = 60.0;
const TOP: f64 = 120.0;
const QUEUE: f64 = 170.0;
const RATES: f64 = 240.0;
const BETWEEN: f64 = 56.0;
/// Samples averaged for a drawn rate: single samples show the noise of bursts.
const SMOOTH: usize = 8;
/// Number of grid lines across a panel.
const TICKS: u32 = 4;

const LIGHT: &str = "\
.name{font-weight:600}
.soft{fill:#5b6675;font-size:12px}
.end{text-anchor:end}
.middle{text-anchor:middle}
.grid{stroke:#dde3ea;stroke-width:1}
.frame{fill:none;stroke:#8592a3;stroke-width:1}
.line{fill:none;stroke-width:1.6;stroke-linejoin:round}
.mark{stroke:#8592a3;stroke-width:1;stroke-dasharray:4 4}
";
const DARK: &str = "\
.soft{fill:#9aa7b8}
.grid{stroke:#29323e}
.frame{stroke:#6b7889}
.mark{stroke:#6b7889}
";

/// A colour for each sender, distinguishable with colour blindness (Okabe and Ito 2008).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a7f00"];

/// Draws a report.
pub(super) fn draw(report: &Report) -> String {
    let runs = report.runs();
    let width = (WIDTH - LEFT - GAP * runs.len() as f64) / runs.len() as f64;
    let most = |value: &dyn Fn(&Run) -> f64| runs.iter().map(|(_, run)| value(run)).fold(1.0, f64::max);
    let deepest =
        most(&|run| run.trace.samples.iter().map(|sample| sample.depth).max().unwrap_or(0) as f64 / 1e3);
    let longest = most(&|run| run.trace.samples.last().map_or(0.0, |sample| sample.at.as_secs_f64()));
    let fastest = report.scenario.mbps as f64 * 1.05;
    let mut body = String::new();
    let _ = write!(body, "<text class=\"title\" x=\"{LEFT}\" y=\"30\">A congested link</text>");
    let about = report.scenario.to_string();
    for (n, line) in folded(&about, 150).iter().enumerate() {
        let y = 50 + 16 * n;
        let _ = write!(body, "<text class=\"soft\" x=\"{LEFT}\" y=\"{y}\">{}</text>", Escaped(line));
    }
    for (column, (name, run)) in runs.iter().enumerate() {
        let x = LEFT + column as f64 * (width + GAP);
        let panel = |y, height, highest| Panel { x, y, width, height, longest, highest };
        let queue = panel(TOP, QUEUE, deepest * 1.05);
        queue.axes(&mut body, &format!("{name}: bytes in the queue, KB"), false);
        for level in [report.scenario.kmin, report.scenario.kmax] {
            queue.level(&mut body, level as f64 / 1e3);
        }
        let depth = |i: usize| run.trace.samples[i].depth as f64 / 1e3;
        queue.line(&mut body, run, COLOURS[0], &depth);
        let rates = panel(TOP + QUEUE + BETWEEN, RATES, fastest);
        rates.axes(&mut body, &format!("{name}: rate of each sender, Mb/s"), true);
        rates.level(&mut body, report.scenario.mbps as f64 / report.scenario.senders as f64);
        for sender in 0..report.scenario.senders {
            let rate = |i: usize| run.trace.rate(sender, i.saturating_sub(SMOOTH), i);
            rates.line(&mut body, run, COLOURS[sender % COLOURS.len()], &rate);
        }
    }
    let height = TOP + QUEUE + BETWEEN + RATES + 50.0;
    let title = "A congested link";
    Document { width: WIDTH, height, title, about: &about, style: [LIGHT, DARK] }.with(&body)
}

/// A plot area with axes.
struct Panel {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
    /// Seconds at the right edge.
    longest: f64,
    /// Value at the top edge.
    highest: f64,
}

impl Panel {
    fn at(&self, value: f64) -> f64 {
        self.y + self.height * (1.0 - value / self.highest)
    }

    fn axes(&self, body: &mut String, title: &str, names_time: bool) {
        let Panel { x, y, width, height, longest, highest } = self;
        let (right, bottom) = (x + width, y + height);
        let _ = write!(body, "<text class=\"name\" x=\"{x}\" y=\"{:.1}\">{title}</text>", y - 8.0);
        for tick in 0..=TICKS {
            let share = f64::from(tick) / f64::from(TICKS);
            let (across, value) = (y + height * (1.0 - share), highest * share);
            let digits = usize::from(*highest < 20.0);
            let _ = write!(
                body,
                "<path class=\"grid\" d=\"M{x} {across:.1}H{right:.1}\"/>\
                 <text class=\"soft end\" x=\"{:.1}\" y=\"{:.1}\">{value:.digits$}</text>\
                 <text class=\"soft middle\" x=\"{:.1}\" y=\"{:.1}\">{:.1}{}</text>",
                x - 6.0,
                across + 4.0,
                x + width * share,
                bottom + 16.0,
                longest * share,
                if names_time && tick == TICKS { " s" } else { "" }
            );
        }
        let _ = write!(
            body,
            "<rect class=\"frame\" x=\"{x}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height}\"/>"
        );
    }

    /// Draws a dashed line: a threshold, or a fair share.
    fn level(&self, body: &mut String, value: f64) {
        if value <= self.highest {
            let (y, right) = (self.at(value), self.x + self.width);
            let _ = write!(body, "<path class=\"mark\" d=\"M{} {y:.1}H{right:.1}\"/>", self.x);
        }
    }

    fn line(&self, body: &mut String, run: &Run, colour: &str, value: &dyn Fn(usize) -> f64) {
        let _ = write!(body, "<polyline class=\"line\" stroke=\"{colour}\" points=\"");
        for (i, sample) in run.trace.samples.iter().enumerate() {
            let x = self.x + self.width * sample.at.as_secs_f64() / self.longest;
            let _ = write!(body, "{x:.1},{:.1} ", self.at(value(i).min(self.highest)));
        }
        body.push_str("\"/>\n");
    }
}
