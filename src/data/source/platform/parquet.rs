//! Reads a text column of Parquet files page by page, without Arrow.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use ::parquet::basic::Type as PhysicalType;
use ::parquet::column::reader::ColumnReaderImpl;
use ::parquet::data_type::ByteArrayType;
use ::parquet::errors::{ParquetError, Result as ParquetResult};
use ::parquet::file::reader::FileReader;
use ::parquet::file::serialized_reader::{ReadOptionsBuilder, SerializedFileReader};
use ::parquet::schema::types::ColumnDescriptor;

mod pages;
mod schema;
mod thrift;

use pages::Pages;

use super::super::{BadLines, DataError, DocumentPart, Sink, Stop};

/// The most rows of a batch. Pages are read one by one, so this and the longest document bound the memory.
const ROWS: u64 = 64;

/// The most bytes of a text, as of a line of JSON, and of a batch if each of its texts is as long as a page.
const MAX_TEXT: usize = 256 << 20;

/// The most bytes of text for each byte of a file, beyond the first GiB. A dictionary lets a small file stand for
/// terabytes, which nobody publishes: compression alone gives less than a thousand.
const MAX_RATIO: u64 = 10_000;

/// Reads a document from column `field` of each row into `sink`. Skips empty values, and counts null ones.
pub(in crate::data::source) fn read(
    path: &Path,
    bytes: u64,
    field: &str,
    bad_lines: &mut BadLines,
    sink: &mut Sink<'_>,
) -> Result<(), Stop> {
    let bad = |reason: &str, hint| {
        DataError::bad(format!("cannot read {}: {reason}", path.display()), hint)
    };
    let failed = |error: ParquetError| {
        let reason = error.to_string();
        // The crate's words for what it is built without.
        let is_unread =
            matches!(error, ParquetError::NYI(_)) || reason.contains("Disabled feature");
        let hint = if is_unread {
            "write it again with the compression snappy, gzip, lz4 or zstd"
        } else {
            "the file is damaged or incomplete: download it again"
        };
        bad(&reason, hint)
    };
    let of_column = |error: ParquetError| {
        let hint = "the file may be damaged: download it again, or write it anew in Python with \
                    pandas.read_parquet(FILE).to_parquet(FILE)";
        let reason = match error {
            ParquetError::General(reason) => reason,
            error => error.to_string(),
        };
        DataError::at(path, format!("column {field:?}: {reason}"), hint)
    };
    let file = File::open(path).map_err(DataError::io("read", path))?;
    let schema = schema::columns(&file).map_err(failed)?;
    let for_sizes = file.try_clone().map_err(DataError::io("read", path))?;
    let options = ReadOptionsBuilder::new().with_parquet_schema(schema.clone()).build();
    let reader =
        without_panic(|| SerializedFileReader::new_with_options(file, options)).map_err(failed)?;
    let rows = u64::try_from(reader.metadata().file_metadata().num_rows()).unwrap_or(0);
    let columns = schema.columns();
    let index = columns.iter().position(|column| is_text(column) && column.name() == field);
    let index = index.ok_or_else(|| {
        let texts = columns.iter().filter(|column| is_text(column));
        let texts: Vec<_> = texts.map(|column| column.name()).collect();
        let hint = if texts.is_empty() {
            "none of its columns has texts: prepare another file".to_owned()
        } else {
            format!("choose one of {} with --text-field", texts.join(", "))
        };
        DataError::at(path, format!("no text column {field:?}"), hint)
    })?;
    let most = bytes.saturating_mul(MAX_RATIO).saturating_add(1 << 30);
    let mut text_bytes = 0_u64;
    let mut done = 0_u64;
    for group in 0..reader.num_row_groups() {
        let range =
            without_panic(|| Ok(reader.metadata().row_group(group).column(index).byte_range()));
        let largest = pages::largest(&for_sizes, range.map_err(failed)?).map_err(of_column)?;
        let rows_at_once = (MAX_TEXT as u64 / largest.max(1)).clamp(1, ROWS) as usize;
        let pages = without_panic(|| reader.get_row_group(group)?.get_column_page_reader(index));
        let has_nulls = columns[index].max_def_level() > 0;
        let pages = Box::new(Pages { reader: pages.map_err(failed)?, has_nulls });
        let mut column = ColumnReaderImpl::<ByteArrayType>::new(columns[index].clone(), pages);
        let mut documents = vec![];
        let mut levels = vec![];
        loop {
            let (records, ..) = without_panic(|| {
                column.read_records(rows_at_once, Some(&mut levels), None, &mut documents)
            })
            .map_err(failed)?;
            if records == 0 {
                break;
            }
            done += records as u64;
            bad_lines.nulls += records.saturating_sub(documents.len()) as u64;
            // The reader seeks, so progress in bytes is estimated from the rows.
            let share = u128::from(bytes) * u128::from(done) / u128::from(rows.max(done));
            let bytes_read = u64::try_from(share).unwrap_or(bytes);
            levels.clear();
            for document in documents.drain(..).filter(|document| !document.is_empty()) {
                // Some writers omit the UTF8 annotation.
                let text = str::from_utf8(document.data()).map_err(|error| {
                    let first = done + 1 - records as u64;
                    let at = error.valid_up_to();
                    let hint =
                        "choose a column with text with --text-field, or write it again in UTF-8";
                    bad(&format!("rows {first} to {done}: not UTF-8 at byte {at} of a value"), hint)
                })?;
                text_bytes += text.len() as u64;
                if text.len() > MAX_TEXT || text_bytes > most {
                    let reason = "its texts are far longer than the texts of such a file can be";
                    let hint = "write its texts again, as JSON lines";
                    return Err(bad(reason, hint).into());
                }
                sink(DocumentPart::Text(text), bytes_read)?;
                sink(DocumentPart::EndOfDocument, bytes_read)?;
            }
        }
    }
    Ok(())
}

/// Calls the crate, which panics at some damaged files. `report_panics` does not report these.
fn without_panic<T>(call: impl FnOnce() -> ParquetResult<T>) -> ParquetResult<T> {
    catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err(ParquetError::General("its pages are damaged".into())))
}

/// Returns true for a column with one text per row, not a list of texts.
fn is_text(column: &ColumnDescriptor) -> bool {
    column.physical_type() == PhysicalType::BYTE_ARRAY && column.max_rep_level() == 0
}
