//! Reads a text column of Parquet files page by page, without Arrow.

use std::fs::File;
use std::path::Path;

use ::parquet::basic::Type as PhysicalType;
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::record::reader::RowIter;
use ::parquet::record::{Field, Row};
use ::parquet::schema::types::Type;

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
    let projection = projection(metadata.schema(), field).ok_or_else(|| {
        let columns: Vec<_> = metadata.schema().get_fields().iter().map(|c| c.name()).collect();
        let hint = format!("choose one of {} with --text-field", columns.join(", "));
        DataError::at(path, format!("no text column {field:?}"), hint)
    })?;
    let iter = RowIter::from_file_into(Box::new(reader))
        .project(Some(projection))
        .map_err(failed)?
        .with_batch_size(ROWS);
    for (row, done) in iter.zip(1_u64..) {
        let row = row.map_err(failed)?;
        let document = document(&row).map_err(|reason| bad(format!("row {done}: {reason}")))?;
        if document.is_empty() {
            continue;
        }
        // The reader seeks, so progress in bytes is estimated from the rows.
        let share = u128::from(bytes) * u128::from(done) / u128::from(rows.max(done));
        let bytes_read = u64::try_from(share).unwrap_or(bytes);
        sink(DocumentPart::Text(document), bytes_read)?;
        sink(DocumentPart::EndOfDocument, bytes_read)?;
    }
    Ok(())
}

/// Returns true if the position or the size of a column is below 0. The crate panics when it reads it.
fn is_nowhere(column: &ColumnChunkMetaData) -> bool {
    let first = column.dictionary_page_offset().unwrap_or_else(|| column.data_page_offset());
    first < 0 || column.compressed_size() < 0
}

/// Returns a schema with only this column, if it exists and holds text.
fn projection(schema: &Type, field: &str) -> Option<Type> {
    let column = schema.get_fields().iter().find(|column| column.name() == field)?;
    if !column.is_primitive() || column.get_physical_type() != PhysicalType::BYTE_ARRAY {
        return None;
    }
    Type::group_type_builder(schema.name()).with_fields(vec![column.clone()]).build().ok()
}

/// Returns the text of a row. Some writers omit the UTF8 annotation, so bytes are accepted if they
/// are valid UTF-8.
fn document(row: &Row) -> Result<&str, String> {
    match row.get_column_iter().next() {
        Some((_, Field::Str(text))) => Ok(text),
        Some((_, Field::Bytes(bytes))) => str::from_utf8(bytes.data())
            .map_err(|error| format!("not UTF-8 at byte {} of the value", error.valid_up_to())),
        Some((_, Field::Null)) | None => Ok(""),
        Some((_, other)) => Err(format!("not text: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::assert_says;
    use super::super::tests::documents;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use ::parquet::basic::{Compression, ZstdLevel};
    use ::parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
    use ::parquet::file::metadata::{ParquetMetaDataReader, ParquetMetaDataWriter};
    use ::parquet::file::properties::WriterProperties;
    use ::parquet::file::writer::SerializedFileWriter;
    use ::parquet::schema::parser::parse_message_type;

    /// Writes two row groups of (id, text), where every third text is null.
    fn write(folder: &Path, compression: Compression, annotation: &str) -> (PathBuf, Vec<String>) {
        let path = folder.join("a.parquet");
        let schema =
            format!("message m {{ required int64 id; optional binary text {annotation}; }}");
        let schema = Arc::new(parse_message_type(&schema).unwrap());
        let properties = WriterProperties::builder().set_compression(compression).build();
        let file = std::fs::File::create(&path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
        let ids: Vec<i64> = (0..300).collect();
        let levels: Vec<i16> = (0..300).map(|row| i16::from(row % 3 != 0)).collect();
        let mut texts = vec![];
        for group in 0..2 {
            let values: Vec<_> =
                (0..200).map(|n| format!("group {group}, text {n} \u{e9}")).collect();
            let mut rows = writer.next_row_group().unwrap();
            let mut column = rows.next_column().unwrap().unwrap();
            column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
            column.close().unwrap();
            let mut column = rows.next_column().unwrap().unwrap();
            let bytes: Vec<_> = values.iter().map(|v| ByteArray::from(v.as_str())).collect();
            column.typed::<ByteArrayType>().write_batch(&bytes, Some(&levels), None).unwrap();
            column.close().unwrap();
            rows.close().unwrap();
            texts.extend(values);
        }
        writer.close().unwrap();
        (path, texts)
    }

    #[test]
    fn the_text_column_is_read_in_order() {
        let folder = tempfile::tempdir().unwrap();
        for compression in [
            Compression::UNCOMPRESSED,
            Compression::SNAPPY,
            Compression::GZIP(Default::default()),
            Compression::LZ4_RAW,
            Compression::ZSTD(ZstdLevel::default()),
        ] {
            for annotation in ["(UTF8)", ""] {
                let (path, texts) = write(folder.path(), compression, annotation);
                assert_eq!(documents(path, "text").unwrap(), texts, "{compression}");
            }
        }
    }

    #[test]
    fn errors_list_the_columns_and_name_the_damaged_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, _) = write(folder.path(), Compression::SNAPPY, "(UTF8)");
        for column in ["body", "id"] {
            let error = documents(path.clone(), column).unwrap_err();
            assert_says(&error, &format!("{column:?}"));
            assert_says(error.hint(), "id, text");
        }
        let bytes = std::fs::read(&path).unwrap();
        for length in [0, 3, bytes.len() / 2, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..length]).unwrap();
            assert_says(documents(path.clone(), "text").unwrap_err(), "a.parquet");
        }
    }

    #[test]
    fn sizes_and_positions_below_zero_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (path, _) = write(folder.path(), Compression::SNAPPY, "(UTF8)");
        let file = std::fs::File::open(&path).unwrap();
        let whole = ParquetMetaDataReader::new().parse_and_finish(&file).unwrap();
        for (size, position) in [(-1, 4), (100, -4)] {
            let mut footer = whole.clone().into_builder();
            let groups = footer.take_row_groups().into_iter().map(|group| {
                let columns = group.columns().iter().cloned().map(|column| {
                    let column = column.into_builder().set_dictionary_page_offset(None);
                    let column = column.set_total_compressed_size(size);
                    column.set_data_page_offset(position).build().unwrap()
                });
                let columns = columns.collect();
                group.into_builder().set_column_metadata(columns).build().unwrap()
            });
            let footer = footer.set_row_groups(groups.collect()).build();
            let mut changed = std::fs::read(&path).unwrap();
            ParquetMetaDataWriter::new(&mut changed, &footer).finish().unwrap();
            let damaged = folder.path().join("damaged.parquet");
            std::fs::write(&damaged, changed).unwrap();
            assert_says(documents(damaged, "text").unwrap_err(), "before the file");
        }
    }
}
