//! Tables of results, and how they are written.

use std::io::{self, Write};

/// What is in a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// Whole numbers.
    Count(Vec<u64>),
    /// Whole numbers, where there are some.
    Maybe(Vec<Option<u64>>),
    /// Numbers, where there are some.
    Real(Vec<Option<f64>>),
    /// Texts.
    Text(Vec<String>),
}

impl Column {
    /// Rows.
    pub fn len(&self) -> usize {
        match self {
            Column::Count(values) => values.len(),
            Column::Maybe(values) => values.len(),
            Column::Real(values) => values.len(),
            Column::Text(values) => values.len(),
        }
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As it stands in a file of comma-separated values; nothing where there is no value.
    pub fn cell(&self, row: usize) -> String {
        match self {
            Column::Count(values) => values[row].to_string(),
            Column::Maybe(values) => values[row].map_or_else(String::new, |value| value.to_string()),
            // Shortest that is read back as the same number.
            Column::Real(values) => values[row].map_or_else(String::new, |value| value.to_string()),
            Column::Text(values) if values[row].contains([',', '"', '\n', '\r']) => {
                format!("\"{}\"", values[row].replace('"', "\"\""))
            }
            Column::Text(values) => values[row].clone(),
        }
    }
}

/// A table: columns of one length.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// What it is called: its file's name without the ending.
    pub name: &'static str,
    /// Columns and their names. Units are the end of a name.
    pub columns: Vec<(String, Column)>,
}

impl Table {
    /// Rows.
    pub fn rows(&self) -> usize {
        self.columns.first().map_or(0, |(_, column)| column.len())
    }

    /// A column.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|(of, _)| of == name).map(|(_, column)| column)
    }

    /// Writes comma-separated values with a line of names (RFC 4180, with line feeds).
    ///
    /// # Errors
    /// What `out` says.
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
    fn what_has_a_comma_is_quoted_and_what_is_not_there_is_empty() {
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
