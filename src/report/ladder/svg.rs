//! Draws ladders as an SVG.

use std::fmt::Write as _;

use super::steps::{End, Ladder, Line, Rung, Step};
use crate::svg::{Document, Escaped};
use crate::words::folded;

/// Layout, in pixels.
const WIDTH: f64 = 1140.0;
const NUMBER_X: f64 = 62.0;
const TIME_X: f64 = 150.0;
const LEFT_X: f64 = 190.0;
const RIGHT_X: f64 = 690.0;
const REMARK_X: f64 = 716.0;
const ROW: f64 = 36.0;
const REMARK_LINE: f64 = 16.0;
/// Drop of an arrow's head below its tail: time runs downward.
const FALL: f64 = 9.0;
/// Characters of a remark in a line.
const REMARK_LETTERS: usize = 62;
/// Most steps drawn per connection: browsers are slow with more.
const MOST_STEPS: usize = 2_000;

const LIGHT: &str = "\
.soft{fill:#5b6675}
.name{font-weight:600;text-anchor:middle}
.number,.time{font-size:12px;fill:#5b6675;text-anchor:end;font-variant-numeric:tabular-nums}
.label{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;text-anchor:middle;\
stroke:#ffffff;stroke-width:4px;stroke-linejoin:round;paint-order:stroke}
.end{fill:#eef2f7;stroke:#8592a3;stroke-width:1}
.life{stroke:#8592a3;stroke-width:1.5}
.pause{stroke:#8592a3;stroke-width:1.5;stroke-dasharray:2 5}
.gap{fill:#f6f7f9;stroke:#8592a3;stroke-width:1;stroke-dasharray:5 4}
.middle{text-anchor:middle;font-style:italic}
.plain,.again,.trouble{fill:none;stroke-width:1.8}
.plain{stroke:#1d5fb4}.again{stroke:#9a5b00;stroke-dasharray:8 4}.trouble{stroke:#b3261e;stroke-width:2.4;\
stroke-dasharray:2 3.5}
.plain-head{fill:#1d5fb4}.again-head{fill:#9a5b00}.trouble-head{fill:#b3261e}
.lost{fill:none;stroke:#b3261e;stroke-width:2.6;stroke-linecap:round}
";
const DARK: &str = "\
.soft,.number,.time{fill:#9aa7b8}
.label{stroke:#12161c}
.end{fill:#1e2630;stroke:#6b7889}
.life,.pause{stroke:#6b7889}
.gap{fill:#1a2029;stroke:#6b7889}
.plain{stroke:#7db3ff}.again{stroke:#f0b357}.trouble,.lost{stroke:#ff8a80}
.plain-head{fill:#7db3ff}.again-head{fill:#f0b357}.trouble-head{fill:#ff8a80}
";

/// Draws connections one below the other.
pub fn draw(ladders: &[Ladder]) -> String {
    let mut canvas = Canvas { body: String::new(), y: 34.0 };
    for ladder in ladders {
        canvas.ladder(ladder);
    }
    canvas.legend();
    let about = ladders.iter().map(|ladder| ladder.title.as_str()).collect::<Vec<_>>().join("; ");
    let document = Document {
        width: WIDTH,
        height: canvas.y + 16.0,
        title: "RoCE sequence diagram",
        about: &about,
        style: [LIGHT, DARK],
    };
    document.with(&canvas.body)
}

/// A drawing that grows downward.
struct Canvas {
    body: String,
    y: f64,
}

impl Canvas {
    fn ladder(&mut self, ladder: &Ladder) {
        self.add(format_args!("<g class=\"ladder\">"));
        self.text("title", 24.0, self.y, &ladder.title);
        self.text("soft", 24.0, self.y + 22.0, &ladder.summary);
        self.y += 44.0;
        self.ends(&ladder.names);
        for step in ladder.steps.iter().take(MOST_STEPS) {
            match step {
                Step::Rung(rung) => self.rung(rung),
                Step::Missing(missing) => self.missing(&missing.label(), &missing.remark()),
                Step::Silence { ns } => self.silence(&super::duration(*ns)),
            }
        }
        self.lives("life", 14.0);
        if let Some(more) = ladder.steps.len().checked_sub(MOST_STEPS).filter(|more| *more > 0) {
            self.text(
                "middle",
                (LEFT_X + RIGHT_X) / 2.0,
                self.y + 4.0,
                &format!("{more} more rungs: draw them as text"),
            );
        }
        self.y += 44.0;
        self.add(format_args!("</g>"));
    }

    /// Draws the boxes above the lifelines.
    fn ends(&mut self, names: &[String; 2]) {
        for (x, name) in [LEFT_X, RIGHT_X].into_iter().zip(names) {
            let width = box_width(name);
            let (left, top) = ((x - width / 2.0).max(8.0), self.y);
            self.add(format_args!(
                "<rect class=\"end\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"26\" rx=\"5\"/>"
            ));
            self.text("name", left + width / 2.0, top + 17.5, name);
        }
        self.y += 26.0;
        self.lives("life", 8.0);
    }

    /// Extends the lifelines down by `height`.
    fn lives(&mut self, class: &str, height: f64) {
        let (top, bottom) = (self.y, self.y + height);
        for x in [LEFT_X, RIGHT_X] {
            self.add(format_args!(
                "<line class=\"{class}\" x1=\"{x}\" y1=\"{top:.1}\" x2=\"{x}\" y2=\"{bottom:.1}\"/>"
            ));
        }
        self.y = bottom;
    }

    fn rung(&mut self, rung: &Rung) {
        let mut remark = folded(&rung.remark, REMARK_LETTERS);
        remark.retain(|line| !line.is_empty());
        let (top, height) = (self.y, ROW.max(22.0 + remark.len() as f64 * REMARK_LINE));
        self.lives("life", height);
        let y = top + 22.0;
        self.add(format_args!("<g class=\"rung\">"));
        self.text("label", (LEFT_X + RIGHT_X) / 2.0, y - 5.0, &rung.label);
        self.arrow(rung, y);
        if let Some(number) = rung.number {
            self.text("number", NUMBER_X, y + 4.0, &number.to_string());
        }
        if let Some(at) = rung.at {
            self.text("time", TIME_X, y + 4.0, &super::signed_duration(at));
        }
        for (i, line) in remark.iter().enumerate() {
            self.text("remark", REMARK_X, y + 4.0 + i as f64 * REMARK_LINE, line);
        }
        self.add(format_args!("</g>"));
    }

    fn arrow(&mut self, rung: &Rung, y: f64) {
        let (kind, head) = classes(rung.line);
        let (from, to) = if rung.right { (LEFT_X, RIGHT_X) } else { (RIGHT_X, LEFT_X) };
        let at = |part: f64| (from + (to - from) * part, y + FALL * part);
        let ((x1, y1), (x2, y2)) = match rung.end {
            End::Arrives => (at(0.0), at(1.0)),
            End::Lost => (at(0.0), at(0.8)),
            End::Extra => (at(0.2), at(1.0)),
        };
        let forward = (to - from).signum();
        // The line ends inside its arrow head.
        let tip = if rung.end == End::Lost { x2 } else { x2 - forward * 7.0 };
        self.add(format_args!(
            "<line class=\"{kind}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{tip:.1}\" y2=\"{y2:.1}\"/>"
        ));
        if rung.end == End::Lost {
            let (l, r, t, b) = (x2 - 6.0, x2 + 6.0, y2 - 6.0, y2 + 6.0);
            self.add(format_args!(
                "<path class=\"lost\" d=\"M{l:.1} {t:.1}L{r:.1} {b:.1}M{l:.1} {b:.1}L{r:.1} {t:.1}\"/>"
            ));
            return;
        }
        if rung.end == End::Extra {
            self.add(format_args!("<circle class=\"{head}\" cx=\"{x1:.1}\" cy=\"{y1:.1}\" r=\"4\"/>"));
        }
        let back = x2 - forward * 11.0;
        self.add(format_args!(
            "<path class=\"{head}\" d=\"M{x2:.1} {y2:.1}L{back:.1} {:.1}L{back:.1} {:.1}Z\"/>",
            y2 - 4.8,
            y2 + 4.4
        ));
    }

    fn missing(&mut self, label: &str, remark: &str) {
        let top = self.y;
        self.lives("life", ROW);
        let (left, width) = (LEFT_X + 60.0, RIGHT_X - LEFT_X - 120.0);
        self.add(format_args!(
            "<rect class=\"gap\" x=\"{left}\" y=\"{:.1}\" width=\"{width}\" height=\"24\" rx=\"5\"/>",
            top + 5.0
        ));
        self.text("middle", (LEFT_X + RIGHT_X) / 2.0, top + 21.5, label);
        self.text("remark", REMARK_X, top + 21.5, remark);
    }

    fn silence(&mut self, time: &str) {
        let top = self.y;
        self.lives("pause", ROW + 6.0);
        self.text("middle soft", (LEFT_X + RIGHT_X) / 2.0, top + 24.0, &format!("{time} of silence"));
    }

    fn legend(&mut self) {
        let entries = [
            (Line::Plain, End::Arrives, "request or answer"),
            (Line::Again, End::Arrives, "again"),
            (Line::Trouble, End::Arrives, "NAK, or no good answer"),
            (Line::Plain, End::Lost, "lost on the way"),
        ];
        let (mut x, y) = (24.0, self.y);
        self.add(format_args!("<g class=\"legend\">"));
        for (line, end, words) in entries {
            let (kind, head) = classes(line);
            let tip = x + 46.0;
            self.add(format_args!(
                "<line class=\"{kind}\" x1=\"{x}\" y1=\"{y:.1}\" x2=\"{tip}\" y2=\"{y:.1}\"/>"
            ));
            if end == End::Lost {
                let (l, r, t, b) = (tip - 5.0, tip + 5.0, y - 5.0, y + 5.0);
                self.add(format_args!("<path class=\"lost\" d=\"M{l} {t}L{r} {b}M{l} {b}L{r} {t}\"/>"));
            } else {
                let (back, t, b) = (tip - 2.0, y - 4.5, y + 4.5);
                self.add(format_args!(
                    "<path class=\"{head}\" d=\"M{} {y}L{back} {t}L{back} {b}Z\"/>",
                    tip + 8.0
                ));
            }
            self.text("soft", tip + 16.0, y + 4.5, words);
            x = tip + 40.0 + words.len() as f64 * 7.4;
        }
        let top = y - 8.0;
        self.add(format_args!(
            "<rect class=\"gap\" x=\"{x}\" y=\"{top}\" width=\"46\" height=\"16\" rx=\"4\"/>"
        ));
        self.text("soft", x + 56.0, y + 4.5, "missing in the capture");
        self.add(format_args!("</g>"));
        self.y += 16.0;
    }

    fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        self.add(format_args!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", Escaped(text)));
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.body, "{element}");
    }
}

/// Returns the CSS classes of a line and of its head.
fn classes(line: Line) -> (&'static str, &'static str) {
    match line {
        Line::Plain => ("plain", "plain-head"),
        Line::Again => ("again", "again-head"),
        Line::Trouble => ("trouble", "trouble-head"),
    }
}

/// Returns the width of a box around a name.
fn box_width(name: &str) -> f64 {
    (name.chars().count() as f64 * 7.6 + 24.0).max(90.0)
}
