//! Tables as Parquet files, a columnar format that data frame libraries read.

use std::io::Write;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;

use super::table::{Column, Table};

impl Table {
    /// Writes a Parquet file of one row group. Counts are unsigned 64-bit integers; columns with missing values are
    /// optional.
    ///
    /// # Errors
    /// I/O errors of `out`.
    pub fn write_parquet(&self, out: impl Write + Send) -> std::io::Result<()> {
        self.write_groups(out).map_err(std::io::Error::other)
    }

    fn write_groups(&self, out: impl Write + Send) -> Result<(), ParquetError> {
        let field = |(name, column): &(String, Column)| match column {
            Column::Count(_) => format!("required int64 {name} (INTEGER(64,false));"),
            Column::Maybe(_) => format!("optional int64 {name} (INTEGER(64,false));"),
            Column::Real(_) => format!("optional double {name};"),
            Column::Text(_) => format!("required binary {name} (UTF8);"),
        };
        let fields: Vec<String> = self.columns.iter().map(field).collect();
        let schema = parse_message_type(&format!("message {} {{ {} }}", self.name, fields.join(" ")))?;
        let mut writer =
            SerializedFileWriter::new(out, Arc::new(schema), Arc::new(WriterProperties::default()))?;
        let mut group = writer.next_row_group()?;
        for (_, column) in &self.columns {
            if let Some(mut writer) = group.next_column()? {
                write(column, &mut writer)?;
                writer.close()?;
            }
        }
        group.close()?;
        writer.close()?;
        Ok(())
    }
}

fn write(column: &Column, writer: &mut SerializedColumnWriter<'_>) -> Result<(), ParquetError> {
    // Parquet stores unsigned integers bit for bit as signed ones.
    let signed = |value: &u64| *value as i64;
    let levels = |there: Vec<bool>| there.into_iter().map(i16::from).collect::<Vec<_>>();
    match column {
        Column::Count(values) => {
            let values: Vec<i64> = values.iter().map(signed).collect();
            writer.typed::<Int64Type>().write_batch(&values, None, None)
        }
        Column::Maybe(values) => {
            let there = levels(values.iter().map(Option::is_some).collect());
            let values: Vec<i64> = values.iter().flatten().map(signed).collect();
            writer.typed::<Int64Type>().write_batch(&values, Some(&there), None)
        }
        Column::Real(values) => {
            let there = levels(values.iter().map(Option::is_some).collect());
            let values: Vec<f64> = values.iter().flatten().copied().collect();
            writer.typed::<DoubleType>().write_batch(&values, Some(&there), None)
        }
        Column::Text(values) => {
            let values: Vec<ByteArray> = values.iter().map(|value| value.as_str().into()).collect();
            writer.typed::<ByteArrayType>().write_batch(&values, None, None)
        }
    }
    .map(drop)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    use super::*;

    #[test]
    fn parquet_file_is_read_back() {
        let table = Table {
            name: "t",
            columns: vec![
                ("n".into(), Column::Count(vec![1, u64::MAX])),
                ("end_ns".into(), Column::Maybe(vec![None, Some(7)])),
                ("x".into(), Column::Real(vec![Some(0.5), None])),
                ("text".into(), Column::Text(vec!["a".into(), "b, c".into()])),
            ],
        };
        let mut out = Vec::new();
        table.write_parquet(&mut out).expect("memory");
        let reader = SerializedFileReader::new(Bytes::from(out)).expect("a file");
        let rows: Vec<_> = reader.get_row_iter(None).expect("rows").map(|row| row.expect("a row")).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].get_ulong(0).ok(), rows[1].get_ulong(0).ok()), (Some(1), Some(u64::MAX)));
        assert!(rows[0].get_ulong(1).is_err() && rows[1].get_ulong(1).ok() == Some(7));
        assert_eq!(rows[0].get_double(2).ok(), Some(0.5));
        assert_eq!(rows[1].get_string(3).ok().map(String::as_str), Some("b, c"));
    }

    #[test]
    fn table_without_rows_is_a_valid_file() {
        let table = Table { name: "t", columns: vec![("n".into(), Column::Count(Vec::new()))] };
        let mut out = Vec::new();
        table.write_parquet(&mut out).expect("memory");
        let reader = SerializedFileReader::new(Bytes::from(out)).expect("a file");
        assert_eq!(reader.metadata().file_metadata().num_rows(), 0);
    }
}
