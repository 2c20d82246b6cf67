//! Text charts, 80 columns wide, for `roxie perf --plot` and the labs.

/// Columns of the plot area; the axis takes the rest of 80.
const COLUMNS: usize = 67;

/// A line of a chart: (x, y) for each sample with a known value.
pub struct Line {
    /// Name in the legend.
    pub name: &'static str,
    /// Samples, in order of x.
    pub points: Vec<(f64, f64)>,
}

/// Returns the axis limit: the next round number above the highest point.
pub fn top(lines: &[&Line]) -> f64 {
    let most = lines.iter().flat_map(|line| &line.points).map(|point| point.1).fold(0.0, f64::max);
    if most <= 0.0 {
        return 1.0;
    }
    let step = 10_f64.powf(most.log10().floor());
    let steps = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0].map(|n| n * step);
    steps.into_iter().find(|step| *step >= most).unwrap_or(most)
}

/// Draws the lines as characters, with x from 0 to `end`. `end_name` labels the right end. Later lines cover earlier
/// ones.
pub fn draw(
    title: &str,
    rows: usize,
    end: f64,
    end_name: &str,
    lines: &[(char, &Line)],
    fixed_top: Option<f64>,
) -> String {
    let known: Vec<&Line> = lines.iter().map(|(_, line)| *line).collect();
    let top = fixed_top.unwrap_or_else(|| top(&known));
    let mut grid = vec![vec![' '; COLUMNS]; rows];
    for (mark, line) in lines {
        for (column, value) in by_column(line, end) {
            let height = (value / top * (rows - 1) as f64).round().clamp(0.0, (rows - 1) as f64) as usize;
            grid[rows - 1 - height][column] = *mark;
        }
    }
    let mut text = format!("{title}\n");
    for (row, line) in grid.iter().enumerate() {
        let is_labelled = row == 0 || row == rows - 1 || 2 * row == rows - 1;
        let value = top * (rows - 1 - row) as f64 / (rows - 1) as f64;
        let label = if is_labelled { number(value) } else { String::new() };
        let drawn: String = line.iter().collect();
        text += &format!("{label:>10} |{}\n", drawn.trim_end());
    }
    text + &format!(
        "{:>10} +{}\n{:>12}{end_name:>width$}\n",
        "",
        "-".repeat(COLUMNS),
        "0",
        width = COLUMNS - 1
    )
}

/// Averages the points of each column.
fn by_column(line: &Line, end: f64) -> impl Iterator<Item = (usize, f64)> {
    let mut sums = vec![(0.0, 0_u32); COLUMNS];
    for (at, value) in &line.points {
        let column = (at / end.max(1e-9) * COLUMNS as f64) as usize;
        let sum = &mut sums[column.min(COLUMNS - 1)];
        *sum = (sum.0 + value, sum.1 + 1);
    }
    let mean =
        |(column, (sum, count)): (usize, (f64, u32))| (count > 0).then(|| (column, sum / f64::from(count)));
    sums.into_iter().enumerate().filter_map(mean)
}

/// Formats a number to three significant digits.
pub fn number(value: f64) -> String {
    match value {
        v if v == 0.0 || v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_with_round_numbers() {
        let of = |most| top(&[&Line { name: "", points: vec![(0.0, most)] }]);
        assert_eq!([of(0.97), of(1.2), of(37.0), of(0.0), of(0.000_2)], [1.0, 1.5, 40.0, 1.0, 0.000_2]);
    }
}
