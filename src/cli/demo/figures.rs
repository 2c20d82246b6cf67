//! Medians of several runs, and number formatting.

/// Returns the median; of an even number of values, the upper of the middle two.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Formats a number to about three significant digits.
pub(super) fn number(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_ignores_an_outlier() {
        assert_eq!(median(vec![3.0, 1.0, 1e9, 2.0, 0.0]), 2.0);
        assert_eq!(median(vec![]), 0.0);
    }
}
