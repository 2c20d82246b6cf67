//! Tables of results, and their output as CSV.

use std::io::{self, Write};

/// Values of a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// Whole numbers.
    Count(Vec<u64>),
    /// Whole numbers, some of which may be missing.
    Maybe(Vec<Option<u64>>),
    /// Real numbers, some of which may be missing.
    Real(Vec<Option<f64>>),
    /// Texts.
    Text(Vec<String>),
}

impl Column {
    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        match self {
            Column::Count(values) => values.len(),
            Column::Maybe(values) => values.len(),
            Column::Real(values) => values.len(),
            Column::Text(values) => values.len(),
        }
    }

    /// Returns true if the column has no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a value as written in a CSV file; empty for a missing value.
    pub fn cell(&self, row: usize) -> String {
        match self {
            Column::Count(values) => values[row].to_string(),
            Column::Maybe(values) => values[row].map_or_else(String::new, |value| value.to_string()),
            // The shortest text that parses to the same number.
            Column::Real(values) => values[row].map_or_else(String::new, |value| value.to_string()),
            Column::Text(values) if values[row].contains([',', '"', '\n', '\r']) => {
                format!("\"{}\"", values[row].replace('"', "\"\""))
            }
            Column::Text(values) => values[row].clone(),
        }
    }
}

/// A table: columns of equal length.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Name: the name of its file without the extension.
    pub name: &'static str,
    /// Columns and their names. A name ends with its unit.
    pub columns: Vec<(String, Column)>,
}

impl Table {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.columns.first().map_or(0, |(_, column)| column.len())
    }

    /// Returns the column of this name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|(of, _)| of == name).map(|(_, column)| column)
    }

    /// Writes comma-separated values with a header line (RFC 4180, with line feeds).
    ///
    /// # Errors
    /// I/O errors of `out`.
    pub fn write_csv(&self, mut out: impl Write) -> io::Result<()> {
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| name.as_str()).collect();
        writeln!(out, "{}", names.join(","))?;
        for row in 0..self.rows() {
            let cells: Vec<String> = self.columns.iter().map(|(_, column)| column.cell(row)).collect();
            writeln!(out, "{}", cells.join(","))?;
        }
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_quotes_commas_and_leaves_missing_cells_empty() {
        let table = Table {
            name: "t",
            columns: vec![
                ("n".into(), Column::Maybe(vec![Some(1), None])),
                ("x".into(), Column::Real(vec![Some(0.1), Some(2.0)])),
                ("text".into(), Column::Text(vec!["a, \"b\"".into(), "c".into()])),
            ],
        };
        let mut out = Vec::new();
        table.write_csv(&mut out).expect("memory");
        assert_eq!(String::from_utf8_lossy(&out), "n,x,text\n1,0.1,\"a, \"\"b\"\"\"\n,2,c\n");
    }
}
