//! Draws ladders as text.

use std::fmt::Write as _;

use super::steps::{End, Ladder, Line, Rung, Step};
use crate::words::folded;

/// Columns between the two lifelines.
const NARROWEST: usize = 46;
const WIDEST: usize = 72;

/// Draws a connection.
pub fn draw(ladder: &Ladder) -> String {
    let labels = ladder.steps.iter().filter_map(|step| match step {
        Step::Rung(rung) => Some(rung.label.chars().count() + 8),
        _ => None,
    });
    let width = labels.max().unwrap_or(0).clamp(NARROWEST, WIDEST);
    let mut text = format!("{}\n{}\n\n", ladder.title, ladder.summary);
    let [left, right] = &ladder.names;
    let between = (width + 2).saturating_sub(left.chars().count() + right.chars().count());
    if between >= 2 {
        let _ = writeln!(text, "{:>6} {:>12}  {left}{:between$}{right}", "frame", "time", "");
    } else {
        let _ = writeln!(text, "{:>6} {:>12}  {left}", "frame", "time");
        let _ = writeln!(text, "{:21}{right:>1$}", "", width + 2);
    }
    for step in &ladder.steps {
        let line = match step {
            Step::Rung(rung) => {
                let number = rung.number.map_or(String::new(), |n| n.to_string());
                let time = rung.at.map_or(String::new(), super::signed_duration);
                format!("{number:>6} {time:>12}  |{}|  {}", line(rung, width), rung.remark)
            }
            Step::Missing(missing) => {
                let label = format!("- - -  {}  - - -", missing.label());
                format!("{:21}:{label:^width$}:  {}", "", missing.remark())
            }
            Step::Silence { ns } => {
                let label = format!("{} of silence", super::duration(*ns));
                format!("{:21}:{label:^width$}:", "")
            }
        };
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Draws a connection within `columns` columns (at least 60). Remarks wrap beside their rungs.
pub fn draw_within(ladder: &Ladder, columns: usize) -> String {
    /// Columns of the time, and of the two lifelines.
    const TIME: usize = 10;
    const LINES: usize = 6;
    let labels = ladder.steps.iter().filter_map(|step| match step {
        Step::Rung(rung) => Some(rung.label.chars().count() + 8),
        _ => None,
    });
    let width = labels.max().unwrap_or(0).clamp(24, (columns - TIME - LINES) * 2 / 3);
    let remarks = columns - TIME - LINES - width;
    let mut text = String::new();
    for line in [&ladder.title, &ladder.summary] {
        folded(line, columns).iter().for_each(|line| text += &format!("{line}\n"));
    }
    let [left, right] = &ladder.names;
    let between = (width + 2).saturating_sub(left.chars().count()).max(1);
    let _ = writeln!(text, "\n{:>TIME$}  {left}{right:>between$}", "time");
    for step in &ladder.steps {
        let (time, edge, body, remark) = match step {
            Step::Rung(rung) => {
                let time = rung.at.map_or(String::new(), super::signed_duration);
                (time, '|', line(rung, width), rung.remark.clone())
            }
            Step::Missing(missing) => {
                (String::new(), ':', format!("{:^width$}", missing.label()), missing.remark())
            }
            Step::Silence { ns } => {
                let label = format!("{} of silence", super::duration(*ns));
                (String::new(), ':', format!("{label:^width$}"), String::new())
            }
        };
        for (i, words) in folded(&remark, remarks).iter().enumerate() {
            let drawn = match i {
                0 => format!("{time:>TIME$}  {edge}{body}{edge}  {words}"),
                _ => format!("{:TIME$}  |{:width$}|  {words}", "", ""),
            };
            let _ = writeln!(text, "{}", drawn.trim_end());
        }
    }
    text
}

/// Draws an arrow of `width` columns, with its head at the receiver.
fn line(rung: &Rung, width: usize) -> String {
    let dash = match rung.line {
        Line::Plain => '-',
        Line::Again => '=',
        Line::Trouble => '~',
    };
    let label: String = rung.label.chars().take(width.saturating_sub(8)).collect();
    // Drawn from tail to head, as if to the right.
    let (tail, head, space) = match rung.end {
        End::Arrives => ("", if rung.right { ">" } else { "<" }, 0),
        End::Lost => ("", "X", width / 6),
        End::Extra => ("o", if rung.right { ">" } else { "<" }, width / 6),
    };
    let length = width - space - tail.len() - head.len();
    let dashes = |n: usize| dash.to_string().repeat(n);
    let rest = length.saturating_sub(label.chars().count() + 2);
    let spaces = " ".repeat(space);
    if rung.right {
        let lead = rest.min(2);
        let body = format!("{} {label} {}", dashes(lead), dashes(rest - lead));
        match rung.end {
            End::Extra => format!("{spaces}{tail}{body}{head}"),
            _ => format!("{tail}{body}{head}{spaces}"),
        }
    } else {
        let lead = rest.min(1);
        let body = format!("{} {label} {}", dashes(lead), dashes(rest - lead));
        match rung.end {
            End::Lost => format!("{spaces}{head}{body}{tail}"),
            _ => format!("{head}{body}{tail}{spaces}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rungs_have_equal_width() {
        let label = "WRITE_MIDDLE psn 16777215 again".to_owned();
        for width in [NARROWEST, WIDEST] {
            for end in [End::Arrives, End::Lost, End::Extra] {
                for right in [false, true] {
                    let rung = Rung {
                        number: None,
                        at: None,
                        right,
                        line: Line::Again,
                        end,
                        label: label.clone(),
                        remark: String::new(),
                    };
                    let drawn = line(&rung, width);
                    assert_eq!(drawn.chars().count(), width, "{drawn}");
                    assert!(drawn.contains(&label), "{drawn}");
                }
            }
        }
    }
}
