//! Reads the columns of a Parquet file. The crate would recurse as deeply as groups nest, and reserve memory for
//! as many columns as they claim.

use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use ::parquet::basic::{Repetition, Type as PhysicalType};
use ::parquet::errors::{ParquetError, Result};
use ::parquet::file::FOOTER_SIZE;
use ::parquet::file::metadata::FooterTail;
use ::parquet::schema::types::{SchemaDescPtr, SchemaDescriptor, Type};

use super::thrift::{BYTES, END, INTEGER, LIST, Thrift};

/// The types of columns by their numbers in files.
const TYPES: [PhysicalType; 8] = {
    use PhysicalType::*;
    [BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY]
};

/// The most bytes of a footer, which is read as a whole. Those of wide tables have a few MiB.
const MAX_FOOTER: u64 = 256 << 20;

/// Returns the columns of a file in the order of their data. Groups are left out, and a column inside of one
/// counts as repeated.
pub(super) fn columns(mut file: impl Read + Seek) -> Result<SchemaDescPtr> {
    let damaged = |what: &str| ParquetError::General(what.into());
    let size = file.seek(SeekFrom::End(0))?;
    let from_end = |bytes| size.checked_sub(bytes).ok_or_else(|| damaged("the file is too short"));
    let mut tail = [0; FOOTER_SIZE];
    file.seek(SeekFrom::Start(from_end(FOOTER_SIZE as u64)?))?;
    file.read_exact(&mut tail)?;
    let length = FooterTail::try_new(&tail)?.metadata_length() as u64;
    if length > MAX_FOOTER {
        return Err(damaged("its description has more than 256 MiB"));
    }
    file.seek(SeekFrom::Start(from_end(FOOTER_SIZE as u64 + length)?))?;
    let mut footer = Vec::new();
    file.take(length).read_to_end(&mut footer)?;
    let columns = Thrift(&footer).columns().ok_or_else(|| damaged("its schema is damaged"))?;
    let root = Type::group_type_builder("schema").with_fields(columns).build()?;
    Ok(Arc::new(SchemaDescriptor::new(Arc::new(root))))
}

/// An entry of a schema: a group with this many children, or a column.
enum SchemaElement {
    Group(u32),
    Column(Type),
}

impl Thrift<'_> {
    fn columns(mut self) -> Option<Vec<Arc<Type>>> {
        let mut id = 0;
        loop {
            match (self.field(&mut id)?, id) {
                (LIST, 2) => break,
                (kind, _) => self.skip(kind)?,
            }
        }
        let header = self.byte()?;
        let count = if header >> 4 == 15 { self.varint()? } else { u64::from(header >> 4) };
        let mut columns = Vec::new();
        // How many children of each open group are still to come. The first is the root.
        let mut open = vec![1];
        for _ in 0..count {
            while open.last() == Some(&0) {
                open.pop();
            }
            *open.last_mut()? -= 1;
            match self.element(open.len() > 2)? {
                SchemaElement::Group(children) => open.push(children),
                SchemaElement::Column(column) => columns.push(Arc::new(column)),
            }
        }
        Some(columns)
    }

    fn element(&mut self, is_inside: bool) -> Option<SchemaElement> {
        let mut numbers = [None; 6];
        let mut name = "";
        let mut id = 0;
        loop {
            match (self.field(&mut id)?, id) {
                (END, _) => break,
                (INTEGER, 0..6) => numbers[id as usize] = Some(self.integer()?),
                (BYTES, 4) => name = str::from_utf8(self.bytes()?).ok()?,
                (kind, _) => self.skip(kind)?,
            }
        }
        let [_, kind, length, repetition, _, children] = numbers;
        let Some(kind) = kind.filter(|_| children.is_none_or(|children| children == 0)) else {
            return Some(SchemaElement::Group(u32::try_from(children.unwrap_or(0)).ok()?));
        };
        let repetition = match repetition? {
            _ if is_inside => Repetition::REPEATED,
            0 => Repetition::REQUIRED,
            1 => Repetition::OPTIONAL,
            _ => Repetition::REPEATED,
        };
        let kind = *TYPES.get(usize::try_from(kind).ok()?)?;
        let column = Type::primitive_type_builder(name, kind).with_repetition(repetition);
        Some(SchemaElement::Column(column.with_length(length.unwrap_or(-1)).build().ok()?))
    }
}
