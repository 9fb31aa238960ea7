//! Reads a text column of Parquet files page by page, without Arrow.

use std::fs::File;
use std::path::Path;

use ::parquet::basic::Type as PhysicalType;
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::column::reader::ColumnReaderImpl;
use ::parquet::data_type::ByteArrayType;
use ::parquet::errors::{ParquetError, Result as ParquetResult};
use ::parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::schema::types::ColumnDescriptor;

use super::{DataError, DocumentPart, Sink, Stop};

/// Rows per batch. Pages are read one by one, so this and the longest document bound the memory.
const ROWS: usize = 64;

/// Reads a document from column `field` of each row into `sink`. Skips null and empty values.
pub(super) fn read(path: &Path, bytes: u64, field: &str, sink: &mut Sink<'_>) -> Result<(), Stop> {
    let bad = |reason: String| {
        DataError::bad(
            format!("cannot read {}: {reason}", path.display()),
            "the file may be damaged or use a compression other than snappy, gzip, lz4 or zstd",
        )
    };
    let failed = |error: ParquetError| bad(error.to_string());
    let file = File::open(path).map_err(DataError::io("read", path))?;
    let reader = SerializedFileReader::new(file).map_err(failed)?;
    let metadata = reader.metadata().file_metadata();
    let mut columns = reader.metadata().row_groups().iter().flat_map(RowGroupMetaData::columns);
    if columns.any(is_nowhere) {
        return Err(bad("a column begins or ends before the file".into()).into());
    }
    let rows = u64::try_from(metadata.num_rows()).unwrap_or(0);
    let columns = metadata.schema_descr().columns();
    let index = columns.iter().position(|column| is_text(column, field)).ok_or_else(|| {
        let columns: Vec<_> = metadata.schema().get_fields().iter().map(|c| c.name()).collect();
        let hint = format!("choose one of {} with --text-field", columns.join(", "));
        DataError::at(path, format!("no text column {field:?}"), hint)
    })?;
    let mut done = 0_u64;
    for group in 0..reader.num_row_groups() {
        let pages =
            reader.get_row_group(group).and_then(|group| group.get_column_page_reader(index));
        let pages = Box::new(Pages(pages.map_err(failed)?));
        let mut column = ColumnReaderImpl::<ByteArrayType>::new(columns[index].clone(), pages);
        let (mut documents, mut levels) = (vec![], vec![]);
        loop {
            let read = column.read_records(ROWS, Some(&mut levels), None, &mut documents);
            let (records, ..) = read.map_err(failed)?;
            if records == 0 {
                break;
            }
            done += records as u64;
            // The reader seeks, so progress in bytes is estimated from the rows.
            let share = u128::from(bytes) * u128::from(done) / u128::from(rows.max(done));
            let bytes_read = u64::try_from(share).unwrap_or(bytes);
            levels.clear();
            for document in documents.drain(..).filter(|document| !document.is_empty()) {
                // Some writers omit the UTF8 annotation.
                let text = str::from_utf8(document.data()).map_err(|error| {
                    let (first, at) = (done + 1 - records as u64, error.valid_up_to());
                    bad(format!("rows {first} to {done}: not UTF-8 at byte {at} of a value"))
                })?;
                sink(DocumentPart::Text(text), bytes_read)?;
                sink(DocumentPart::EndOfDocument, bytes_read)?;
            }
        }
    }
    Ok(())
}

/// Reads pages. Refuses a dictionary with more values than its page has room for, as the crate reserves memory
/// for the number that the page names.
struct Pages(Box<dyn PageReader>);

impl PageReader for Pages {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        let page = self.0.get_next_page()?;
        match &page {
            // Each text begins with its length, in four bytes.
            Some(Page::DictionaryPage { buf, num_values, .. })
                if *num_values as usize > buf.len() / 4 =>
            {
                Err(ParquetError::General(format!("{num_values} texts in {} bytes", buf.len())))
            }
            _ => Ok(page),
        }
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        self.0.peek_next_page()
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        self.0.skip_next_page()
    }
}

impl Iterator for Pages {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

/// Returns true if the position or the size of a column is below 0. The crate panics when it reads it.
fn is_nowhere(column: &ColumnChunkMetaData) -> bool {
    let first = column.dictionary_page_offset().unwrap_or_else(|| column.data_page_offset());
    first < 0 || column.compressed_size() < 0
}

/// Returns true for a column of texts, not of lists of them, with this name.
fn is_text(column: &ColumnDescriptor, name: &str) -> bool {
    column.path().parts() == [name]
        && column.physical_type() == PhysicalType::BYTE_ARRAY
        && column.max_rep_level() == 0
}
