//! Prepares the text column of Parquet files.

use std::sync::Arc;

use ::parquet::basic::{Compression, ZstdLevel};
use ::parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use ::parquet::file::metadata::{ParquetMetaDataReader, ParquetMetaDataWriter};
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;

use super::*;

/// The columns of a file.
const COLUMNS: &str = "required int64 id; optional binary text (UTF8);";

/// Writes `a.parquet` with two row groups of (id, text), where every third text is null. Returns the texts.
fn write(
    folder: &Path,
    compression: Compression,
    columns: &str,
    texts: &[&[u8]],
) -> Vec<ByteArray> {
    let schema = Arc::new(parse_message_type(&format!("message m {{ {columns} }}")).unwrap());
    let properties = WriterProperties::builder().set_compression(compression).build();
    let file = fs::File::create(folder.join("a.parquet")).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    let ids: Vec<i64> = (0..300).collect();
    let levels: Vec<i16> = (0..300).map(|row| i16::from(row % 3 != 0)).collect();
    let mut written = vec![];
    for group in 0..2 {
        let own = |n| ByteArray::from(format!("group {group}, text {n} \u{e9}.").as_str());
        let mut values: Vec<_> = (0..200 - texts.len()).map(own).collect();
        values.extend(texts.iter().map(|text| ByteArray::from(text.to_vec())));
        let mut rows = writer.next_row_group().unwrap();
        let mut column = rows.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
        column.close().unwrap();
        let mut column = rows.next_column().unwrap().unwrap();
        let repeats = vec![0; levels.len()];
        let repeats = columns.contains("repeated").then_some(&repeats[..]);
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), repeats).unwrap();
        column.close().unwrap();
        rows.close().unwrap();
        written.extend(values);
    }
    writer.close().unwrap();
    written
}

/// Prepares `a.parquet`, which must be refused. Returns what it says.
fn refused(folder: &Path, flags: &[&str]) -> String {
    let output = run(folder, &[&["prepare", "a.parquet", "-o", "refused"], flags].concat());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(said.contains("a.parquet"), "{said}");
    said
}

#[test]
fn the_text_column_is_read_in_order() {
    let folder = temporary();
    let folder = folder.path();
    for compression in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(Default::default()),
        Compression::LZ4_RAW,
        Compression::ZSTD(ZstdLevel::default()),
    ] {
        for annotation in ["(UTF8)", ""] {
            let columns = COLUMNS.replace("(UTF8)", annotation);
            // An empty text is no document.
            let texts = write(folder, compression, &columns, &[b"", b"last"]);
            let texts = texts.iter().map(|text| text.as_utf8().unwrap());
            let lines = texts.map(|text| format!("{}\n", serde_json::json!({ "text": text })));
            fs::write(folder.join("a.jsonl"), lines.collect::<String>()).unwrap();
            let read = |input: &str| {
                ok(
                    folder,
                    &["prepare", input, "-o", input.trim_start_matches("a."), "--tokenizer=gpt2"],
                )
            };
            let said = [read("a.parquet"), read("a.jsonl")];
            assert!(
                said.iter().all(|said| said.contains("read 1 file, 398 documents")),
                "{said:?}"
            );
            for name in ["train.bin", "val.bin"] {
                let [a, b] = ["parquet", "jsonl"]
                    .map(|data| fs::read(folder.join(data).join(name)).unwrap());
                assert_eq!(a, b, "{compression} {name}");
                assert!(name == "val.bin" || a.len() > 4000, "{compression}");
            }
            for data in ["parquet", "jsonl"] {
                fs::remove_dir_all(folder.join(data)).unwrap();
            }
        }
    }
}

#[test]
fn errors_list_the_columns_and_name_the_damaged_file() {
    let folder = temporary();
    let folder = folder.path();
    write(folder, Compression::SNAPPY, &COLUMNS.replace("optional", "repeated"), &[]);
    assert!(refused(folder, &[]).contains("no text column \"text\""));
    write(folder, Compression::SNAPPY, &COLUMNS.replace("(UTF8)", ""), &[b"caf\xe9"]);
    // The last text of the first group is in its last row.
    let said = refused(folder, &[]);
    assert!(said.contains("rows 257 to 300: not UTF-8 at byte 3 of a value"), "{said}");
    write(folder, Compression::SNAPPY, COLUMNS, &[]);
    for column in ["body", "id"] {
        let said = refused(folder, &["--text-field", column]);
        assert!(said.contains(&format!("no text column {column:?}")), "{said}");
        assert!(said.contains("id, text"), "{said}");
    }
    let bytes = fs::read(folder.join("a.parquet")).unwrap();
    for length in [3, bytes.len() / 2, bytes.len() - 1] {
        fs::write(folder.join("a.parquet"), &bytes[..length]).unwrap();
        refused(folder, &[]);
    }
}

#[test]
fn sizes_and_positions_below_zero_are_refused() {
    let folder = temporary();
    let path = folder.path().join("a.parquet");
    for (size, position) in [(-1, 4), (100, -4)] {
        write(folder.path(), Compression::SNAPPY, COLUMNS, &[]);
        let file = fs::File::open(&path).unwrap();
        let mut footer =
            ParquetMetaDataReader::new().parse_and_finish(&file).unwrap().into_builder();
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
        let mut changed = fs::read(&path).unwrap();
        ParquetMetaDataWriter::new(&mut changed, &footer).finish().unwrap();
        fs::write(&path, changed).unwrap();
        assert!(refused(folder.path(), &[]).contains("before the file"));
    }
}

/// The crate reserves memory for as many texts as a dictionary claims to have.
#[test]
fn a_dictionary_of_more_texts_than_its_page_holds_is_refused() {
    let folder = temporary();
    let path = folder.path().join("a.parquet");
    write(folder.path(), Compression::SNAPPY, COLUMNS, &[]);
    let file = fs::File::open(&path).unwrap();
    let footer = ParquetMetaDataReader::new().parse_and_finish(&file).unwrap();
    let start = footer.row_group(0).column(1).dictionary_page_offset().unwrap() as usize;
    let mut bytes = fs::read(&path).unwrap();
    // Thrift's compact protocol: the seventh field of the page's header is a structure, whose first field is the
    // number of texts, here 200, zigzag-encoded in two bytes.
    let number = [0x4c, 0x15, 0x90, 0x03];
    let at = bytes[start..].windows(4).position(|window| window == number).unwrap() + start;
    // 8,191 texts.
    bytes[at + 2..at + 4].copy_from_slice(&[0xfe, 0x7f]);
    fs::write(&path, bytes).unwrap();
    let said = refused(folder.path(), &[]);
    assert!(said.contains("8191 texts in "), "{said}");
}
