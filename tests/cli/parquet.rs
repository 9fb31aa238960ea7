//! Prepares the text column of Parquet files.

use std::sync::Arc;

use ::parquet::basic::{Compression, ZstdLevel};
use ::parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, FixedLenByteArray, FixedLenByteArrayType,
    Int64Type,
};
use ::parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaDataReader, ParquetMetaDataWriter,
};
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
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
        assert!(said.contains("choose one of text with"), "{said}");
    }
    let bytes = fs::read(folder.join("a.parquet")).unwrap();
    for length in [3, bytes.len() / 2, bytes.len() - 1] {
        fs::write(folder.join("a.parquet"), &bytes[..length]).unwrap();
        let said = refused(folder, &[]);
        assert!(length > 3 || said.contains("the file is too short"), "{said}");
    }
}

/// The crate panics at these.
#[test]
fn columns_elsewhere_in_the_file_are_refused() {
    let folder = temporary();
    let path = folder.path().join("a.parquet");
    type Place = fn(&ColumnChunkMetaData) -> (i64, i64);
    let places: [Place; 3] = [
        |_| (4, -1),
        |_| (-4, 100),
        // Without its dictionary.
        |column| {
            let (at, start) = (column.data_page_offset(), column.dictionary_page_offset().unwrap());
            (at, column.compressed_size() - (at - start))
        },
    ];
    for place in places {
        write(folder.path(), Compression::SNAPPY, COLUMNS, &[]);
        let file = fs::File::open(&path).unwrap();
        let mut footer =
            ParquetMetaDataReader::new().parse_and_finish(&file).unwrap().into_builder();
        let groups = footer.take_row_groups().into_iter().map(|group| {
            let columns = group.columns().iter().map(|column| {
                let (position, size) = place(column);
                let column = column.clone().into_builder().set_dictionary_page_offset(None);
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
        let said = refused(folder.path(), &[]);
        assert!(!said.contains("panicked"), "{said}");
    }
}

/// The crate reserves memory for as many bytes as a page claims to have.
#[test]
fn a_page_that_unpacks_to_far_more_than_its_size_is_refused() {
    let folder = temporary();
    let long = vec![b'a'; 70 << 20];
    write(folder.path(), Compression::ZSTD(ZstdLevel::default()), COLUMNS, &[&long]);
    assert!(fs::metadata(folder.path().join("a.parquet")).unwrap().len() < 1 << 20);
    let said = refused(folder.path(), &[]);
    assert!(said.contains("a.parquet: column \"text\": a page of "), "{said}");
    assert!(said.contains("unpacks to 70.0 MiB, but may have at most 64.0 MiB"), "{said}");
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

#[test]
fn texts_are_found_among_columns_of_all_kinds() {
    const ROWS: usize = 40;
    let folder = temporary();
    let folder = folder.path();
    let columns = "
        required int64 at (TIMESTAMP(MILLIS, true)); required boolean flag;
        optional fixed_len_byte_array(5) price (DECIMAL(10, 2));
        optional group inner { optional binary own (UTF8); }
        optional group tags (LIST) { repeated group list { optional binary element (UTF8); } }
        optional binary text (STRING);";
    let schema = Arc::new(parse_message_type(&format!("message m {{ {columns} }}")).unwrap());
    let file = fs::File::create(folder.join("a.parquet")).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
    let mut rows = writer.next_row_group().unwrap();
    let text = |text: &str| vec![ByteArray::from(text); ROWS];
    let price = FixedLenByteArray::from(vec![1; 5]);
    let same = |level: i16| Some(vec![level; ROWS]);
    write_column::<Int64Type, _>(&mut rows, &[1; ROWS], None, None);
    write_column::<BoolType, _>(&mut rows, &[true; ROWS], None, None);
    write_column::<FixedLenByteArrayType, _>(&mut rows, &vec![price; ROWS], same(1), None);
    write_column::<ByteArrayType, _>(&mut rows, &text("own"), same(2), None);
    write_column::<ByteArrayType, _>(&mut rows, &text("tag"), same(3), same(0));
    write_column::<ByteArrayType, _>(&mut rows, &text("wanted"), same(1), None);
    rows.close().unwrap();
    writer.close().unwrap();
    for inside in ["own", "element", "tags"] {
        assert!(refused(folder, &["--text-field", inside]).contains("choose one of text with"));
    }
    let said = ok(folder, &["prepare", "a.parquet", "-o", "a", "--tokenizer=byte"]);
    assert!(said.contains("read 1 file, 40 documents"), "{said}");
    // Two bytes a token.
    let tokens = fs::read(folder.join("a/train.bin")).unwrap();
    let bytes: Vec<u8> = tokens.iter().step_by(2).copied().collect();
    let texts = String::from_utf8_lossy(&bytes);
    assert!(texts.contains("wanted"), "{texts}");
    assert!(!texts.contains("own") && !texts.contains("tag"), "{texts}");
}

fn write_column<T: DataType, W: Write + Send>(
    rows: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    levels: Option<Vec<i16>>,
    repeats: Option<Vec<i16>>,
) {
    let mut column = rows.next_column().unwrap().unwrap();
    let writer = column.typed::<T>();
    writer.write_batch(values, levels.as_deref(), repeats.as_deref()).unwrap();
    column.close().unwrap();
}

/// The crate's reader of schemas recurses as deeply as groups nest, and reserves memory for the columns that
/// they claim.
#[test]
fn groups_that_nest_deeply_or_claim_too_much_are_harmless() {
    let folder = temporary();
    // Thrift's compact protocol: required groups of one column, and of 2^30, and a required number.
    let group = [0x35, 0, 0x18, 1, b'g', 0x15, 2, 0].repeat(100_000);
    let claim = [0x35, 0, 0x18, 1, b'g', 0x15, 0x80, 0x80, 0x80, 0x80, 8, 0].repeat(6);
    let column = [0x15, 2, 0x25, 0, 0x18, 1, b't', 0];
    for (groups, count) in [(group, [0xa1, 0x8d, 6]), (claim, [0x87, 0x80, 0])] {
        // Version 1, a list of structures, no rows, and no groups of rows.
        let begin = [&[0x15, 2, 0x19, 0xfc][..], &count].concat();
        let footer = [&begin, &groups[..], &column, &[0x16, 0, 0x19, 0x0c, 0]].concat();
        let length = u32::try_from(footer.len()).unwrap().to_le_bytes();
        let file = [b"PAR1", &footer[..], &length, b"PAR1"].concat();
        fs::write(folder.path().join("a.parquet"), file).unwrap();
        let said = refused(folder.path(), &["--text-field=t"]);
        assert!(said.contains("none of its columns has texts"), "{said}");
    }
}
