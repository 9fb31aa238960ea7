//! Reads values in [Thrift's compact protocol](https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md),
//! in which Parquet describes its columns and pages.

// The types of fields that we read.
pub const END: u8 = 0;
pub const INTEGER: u8 = 5;
pub const BYTES: u8 = 8;
pub const LIST: u8 = 9;

/// How deeply structures nest in the description of a column or a page.
const MOST_LEVELS: usize = 8;

/// The bytes that are still to read. `None` means that they are damaged or end too early.
pub struct Thrift<'a>(pub &'a [u8]);

impl<'a> Thrift<'a> {
    /// Returns the type of the next field, and updates `id`, the number of the field before it.
    pub fn field(&mut self, id: &mut i32) -> Option<u8> {
        let header = self.byte()?;
        match header >> 4 {
            _ if header & 15 == END => {}
            0 => *id = self.integer()?,
            more => *id = id.checked_add(more.into())?,
        }
        Some(header & 15)
    }

    /// Skips a value other than a list.
    pub fn skip(&mut self, kind: u8) -> Option<()> {
        self.skip_within(kind, MOST_LEVELS)
    }

    fn skip_within(&mut self, kind: u8, levels: usize) -> Option<()> {
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
                        kind => self.skip_within(kind, levels.checked_sub(1)?)?,
                    }
                }
            }
            _ => None,
        }
    }

    pub fn byte(&mut self) -> Option<u8> {
        self.0.split_off_first().copied()
    }

    pub fn varint(&mut self) -> Option<u64> {
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

    pub fn integer(&mut self) -> Option<i32> {
        let value = self.varint()?;
        i32::try_from((value >> 1) as i64 ^ -((value & 1) as i64)).ok()
    }

    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        self.0.split_off(..length)
    }
}
