//! Draws rates over time as an SVG.

use std::fmt::Write as _;

use roxie_report::chart::{Line, number, top};
use roxie_report::svg::{Document, Escaped};

use super::plot::Series;

/// Layout, in pixels.
const WIDTH: f64 = 960.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 24.0;
const TITLE: f64 = 40.0;
const GAP: f64 = 64.0;

const LIGHT: &str = "\
.tick{font-size:12px;fill:#5b6675;text-anchor:end;font-variant-numeric:tabular-nums}
.mid{text-anchor:middle}
.grid{stroke:#d9dee6;stroke-width:1}
.first,.second,.third{fill:none;stroke-linejoin:round}
.first{stroke:#1d5fb4;stroke-width:2}
.second{stroke:#9a5b00;stroke-width:1.6;stroke-dasharray:7 4}
.third{stroke:#6c7787;stroke-width:1;stroke-dasharray:2 2}
.mark{stroke:#b3261e;stroke-width:1.2}
";
const DARK: &str = "\
.tick{fill:#9aa7b8}
.grid{stroke:#2b3440}
.first{stroke:#7db3ff}.second{stroke:#f0b357}.third{stroke:#9aa7b8}.mark{stroke:#ff8a80}
";

/// Draws a run: rates, and below them alpha and round trips if known.
pub(super) fn draw(series: &Series, title: &str) -> String {
    let mut canvas = Canvas { body: String::new(), y: TITLE, seconds: series.length().max(1e-9) };
    let [rate, target, achieved] = series.rates();
    let of = if series.qps() == 1 { String::new() } else { format!(", mean of {} QPs", series.qps()) };
    let lines = [("third", &achieved), ("second", &target), ("first", &rate)];
    canvas.panel(&format!("Gb/s{of}"), 260.0, &lines, None, &series.notified_at());
    let alpha = series.alpha();
    if !alpha.points.is_empty() {
        canvas.panel("alpha", 120.0, &[("first", &alpha)], Some(1.0), &[]);
    }
    let round_trip = series.round_trip();
    if !round_trip.points.is_empty() {
        canvas.panel("round trip, us", 140.0, &[("first", &round_trip)], None, &[]);
    }
    let document =
        Document { width: WIDTH, height: canvas.y, title, about: "Rates over time", style: [LIGHT, DARK] };
    let heading = format!("<text class=\"title\" x=\"{LEFT}\" y=\"26\">{}</text>\n", Escaped(title));
    document.with(&(heading + &canvas.body))
}

/// A drawing that grows downward.
struct Canvas {
    body: String,
    y: f64,
    seconds: f64,
}

impl Canvas {
    fn x(&self, at: f64) -> f64 {
        LEFT + at / self.seconds * (WIDTH - LEFT - RIGHT)
    }

    fn panel(
        &mut self,
        unit: &str,
        height: f64,
        lines: &[(&str, &Line)],
        fixed_top: Option<f64>,
        marks: &[f64],
    ) {
        let known: Vec<&Line> = lines.iter().map(|(_, line)| *line).collect();
        let most = fixed_top.unwrap_or_else(|| top(&known));
        let (above, below) = (self.y + 24.0, self.y + 24.0 + height);
        self.legend(unit, lines, marks);
        for part in 0..=4 {
            let share = f64::from(part) / 4.0;
            let y = below - share * height;
            let _ = writeln!(
                self.body,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{}\" y2=\"{y:.1}\"/>\
                 <text class=\"tick\" x=\"{}\" y=\"{:.1}\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.0,
                number(most * share)
            );
            let x = self.x(share * self.seconds);
            let _ = writeln!(
                self.body,
                "<text class=\"tick mid\" x=\"{x:.1}\" y=\"{:.1}\">{:.2} s</text>",
                below + 18.0,
                share * self.seconds
            );
        }
        for at in marks {
            let x = self.x(*at);
            let _ = writeln!(
                self.body,
                "<line class=\"mark\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{below:.1}\"/>",
                below - 10.0
            );
        }
        for (class, line) in lines {
            let point = |(at, value): &(f64, f64)| {
                let y = (below - value / most * height).max(above);
                format!("{:.1},{y:.1} ", self.x(*at))
            };
            let points: String = line.points.iter().map(point).collect();
            let _ = writeln!(self.body, "<polyline class=\"{class}\" points=\"{}\"/>", points.trim_end());
        }
        self.y = below + GAP;
    }

    /// Draws the unit, then the key to the lines.
    fn legend(&mut self, unit: &str, lines: &[(&str, &Line)], marks: &[f64]) {
        let y = self.y + 12.0;
        let _ = writeln!(self.body, "<text x=\"{LEFT}\" y=\"{y:.1}\">{}</text>", Escaped(unit));
        if lines.len() == 1 {
            return;
        }
        let mut x = LEFT + 200.0;
        for (class, line) in lines.iter().rev().filter(|(_, line)| !line.points.is_empty()) {
            let name = line.name;
            let _ = writeln!(
                self.body,
                "<polyline class=\"{class}\" points=\"{x:.1},{a:.1} {:.1},{a:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{y:.1}\">{name}</text>",
                x + 34.0,
                x + 42.0,
                a = y - 4.0
            );
            x += 170.0;
        }
        if !marks.is_empty() {
            let _ = writeln!(
                self.body,
                "<line class=\"mark\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{y:.1}\">notification</text>",
                y - 10.0,
                x + 10.0
            );
        }
    }
}
