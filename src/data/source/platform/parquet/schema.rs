//! Reads the columns of a Parquet file. The crate would recurse as deeply as groups nest, and reserve memory for
//! as many columns as they claim.

use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use ::parquet::basic::{Repetition, Type as PhysicalType};
use ::parquet::errors::{ParquetError, Result};
use ::parquet::file::FOOTER_SIZE;
use ::parquet::file::metadata::FooterTail;
use ::parquet::schema::types::{SchemaDescPtr, SchemaDescriptor, Type};

/// The types of columns by their numbers in files.
const TYPES: [PhysicalType; 8] = {
    use PhysicalType::*;
    [BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY]
};

// The types of fields that this module reads.
const END: u8 = 0;
const INTEGER: u8 = 5;
const BYTES: u8 = 8;
const LIST: u8 = 9;

/// How deeply structures nest in the description of a column.
const MOST_LEVELS: usize = 8;

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

/// Reads a footer in [Thrift's compact protocol](https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md).
struct Thrift<'a>(&'a [u8]);

impl<'a> Thrift<'a> {
    fn columns(mut self) -> Option<Vec<Arc<Type>>> {
        let mut id = 0;
        loop {
            match (self.field(&mut id)?, id) {
                (LIST, 2) => break,
                (kind, _) => self.skip(kind, MOST_LEVELS)?,
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
                (kind, _) => self.skip(kind, MOST_LEVELS)?,
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

    /// Returns the type of the next field, and updates `id`, the number of the field before it.
    fn field(&mut self, id: &mut i32) -> Option<u8> {
        let header = self.byte()?;
        match header >> 4 {
            _ if header & 15 == END => {}
            0 => *id = self.integer()?,
            more => *id = id.checked_add(more.into())?,
        }
        Some(header & 15)
    }

    /// Skips a value. Lists come after the schema.
    fn skip(&mut self, kind: u8, levels: usize) -> Option<()> {
        match kind {
            // The type of a field says if it is true.
            1 | 2 => Some(()),
            3 => self.byte().map(drop),
            4..=6 => self.varint().map(drop),
            BYTES => self.bytes().map(drop),
            12 => {
                let mut id = 0;
                loop {
                    match self.field(&mut id)? {
                        END => return Some(()),
                        kind => self.skip(kind, levels.checked_sub(1)?)?,
                    }
                }
            }
            _ => None,
        }
    }

    fn byte(&mut self) -> Option<u8> {
        self.0.split_off_first().copied()
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Some(value);
            }
        }
        None
    }

    fn integer(&mut self) -> Option<i32> {
        let value = self.varint()?;
        i32::try_from((value >> 1) as i64 ^ -((value & 1) as i64)).ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        self.0.split_off(..length)
    }
}
