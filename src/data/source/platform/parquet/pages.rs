//! Bounds what the pages of a column can take in memory. The crate reserves as much as their headers claim, which
//! may be gigabytes for a page of a few kilobytes.

use std::io::{Read, Seek, SeekFrom};

use ::parquet::basic::Encoding;
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::data_type::ByteArray;
use ::parquet::errors::{ParquetError, Result};

use super::thrift::{END, INTEGER, Thrift};
use crate::text;

/// The most bytes of a page. Writers aim at one MiB, but a page has many rows, and those of books are long.
const MAX_PAGE: u64 = 1 << 30;

/// The bytes up to which a page may unpack to any multiple of its size.
const SMALL_PAGE: u64 = 64 << 20;

/// How many times its size a larger page may unpack to. Text gets three to ten times smaller.
const MAX_RATIO: u64 = 100;

/// The most texts of a dictionary, and of a page whose texts share their beginnings. Writers stop at a million.
const MAX_TEXTS: u64 = 16 << 20;

/// The bytes in which a header usually ends, steps, and the most that it may have: it can quote the least and the
/// greatest text of its page.
const HEADER: [u64; 4] = [1 << 10, 16 << 10, 256 << 10, 16 << 20];

/// Checks the sizes in the headers of all pages in `range`, the place of a column in a file. Returns the bytes of the
/// largest page.
pub fn largest(mut file: impl Read + Seek, (start, length): (u64, u64)) -> Result<u64> {
    let end = start.saturating_add(length).min(file.seek(SeekFrom::End(0))?);
    let mut at = start;
    let mut largest = 0;
    let mut bytes = Vec::new();
    while at < end {
        let mut header = None;
        for most in HEADER {
            bytes.clear();
            file.seek(SeekFrom::Start(at))?;
            (&mut file).take(most.min(end - at)).read_to_end(&mut bytes)?;
            header = PageHeader::read(&bytes);
            if header.is_some() {
                break;
            }
        }
        let header = header.ok_or_else(|| failed("the header of a page is damaged".into()))?;
        header.check()?;
        largest = largest.max(header.unpacked);
        at += header.length + header.packed;
    }
    Ok(largest)
}

/// The sizes that the header of a page claims, in bytes.
#[derive(Debug, PartialEq, Eq)]
struct PageHeader {
    /// Of the header itself.
    length: u64,
    packed: u64,
    unpacked: u64,
}

impl PageHeader {
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut thrift = Thrift(bytes);
        let mut id = 0;
        let mut sizes = [None; 4];
        loop {
            match (thrift.field(&mut id)?, id) {
                (END, _) => break,
                (INTEGER, 0..4) => sizes[id as usize] = u64::try_from(thrift.integer()?).ok(),
                (kind, _) => thrift.skip(kind)?,
            }
        }
        let [_, _, unpacked, packed] = sizes;
        let length = (bytes.len() - thrift.0.len()) as u64;
        Some(Self { length, packed: packed?, unpacked: unpacked? })
    }

    fn check(&self) -> Result<()> {
        let most = self.packed.saturating_mul(MAX_RATIO).clamp(SMALL_PAGE, MAX_PAGE);
        if self.unpacked <= most {
            return Ok(());
        }
        let packed = self.packed;
        let [unpacked, most] = [self.unpacked, most].map(text::bytes);
        Err(failed(format!(
            "a page of {packed} bytes unpacks to {unpacked}, but may have at most {most}"
        )))
    }
}

/// Reads the pages of a text column. Refuses those that claim more texts than they have room for, as the crate
/// reserves memory for them.
pub struct Pages {
    pub reader: Box<dyn PageReader>,
    /// True if the column may have nulls, whose places come before the texts of a page.
    pub has_nulls: bool,
}

impl Pages {
    fn check(&self, page: &Page) -> Result<()> {
        let (texts, most) = match page {
            // Each text begins with its length, in four bytes.
            Page::DictionaryPage { buf, num_values, .. } => {
                (Some(u64::from(*num_values)), (buf.len() / 4) as u64)
            }
            Page::DataPage { buf, num_values, encoding, def_level_encoding, .. } => {
                let length = buf.first_chunk().map(|bytes| 4 + u32::from_le_bytes(*bytes) as usize);
                // Other levels have no length. No program writes them with an encoding that claims anything.
                let length = length.filter(|_| *def_level_encoding == Encoding::RLE);
                let levels = if self.has_nulls { length } else { Some(0) };
                (
                    claimed(levels.and_then(|levels| buf.get(levels..)), *encoding),
                    u64::from(*num_values),
                )
            }
            Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                def_levels_byte_len: def,
                rep_levels_byte_len: rep,
                ..
            } => {
                let values = buf.get(*def as usize + *rep as usize..);
                (claimed(values, *encoding), u64::from(*num_values))
            }
        };
        let texts = texts.ok_or_else(|| failed("the beginning of a page is damaged".into()))?;
        if texts <= most.min(MAX_TEXTS) {
            return Ok(());
        }
        let bytes = page.buffer().len();
        Err(failed(format!("a page claims {texts} texts in {bytes} bytes")))
    }
}

/// Returns the greatest number of texts that a page claims in one of the delta encodings; the others claim none.
/// Returns `None` if it is cut short.
fn claimed(values: Option<&[u8]>, encoding: Encoding) -> Option<u64> {
    if ![Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY].contains(&encoding) {
        return Some(0);
    }
    let mut stream = Thrift(values?);
    if stream.0.is_empty() {
        return Some(0);
    }
    let first = Deltas::read(&mut stream)?;
    if encoding == Encoding::DELTA_LENGTH_BYTE_ARRAY || first.count > MAX_TEXTS {
        return Some(first.count);
    }
    // Those were the lengths of the beginnings that each text shares with the one before it.
    first.skip(&mut stream)?;
    let rest = Deltas::read(&mut stream)?;
    Some(first.count.max(rest.count))
}

/// The beginning of numbers in Parquet's encoding DELTA_BINARY_PACKED, which has Thrift's integers.
struct Deltas {
    count: u64,
    /// The numbers that have one width, and how many such parts a block has.
    part: u64,
    parts: usize,
}

impl Deltas {
    fn read(stream: &mut Thrift<'_>) -> Option<Self> {
        let block = stream.varint()?;
        let parts = stream.varint()?;
        let count = stream.varint()?;
        let _first = stream.varint()?;
        let part = block.checked_div(parts).filter(|part| *part > 0)?;
        Some(Self { count, part, parts: usize::try_from(parts).ok()? })
    }

    /// Skips the numbers: the first, then the blocks with the others.
    fn skip(&self, stream: &mut Thrift<'_>) -> Option<()> {
        let mut left = self.count.saturating_sub(1);
        while left > 0 {
            let _least = stream.varint()?;
            for width in stream.0.split_off(..self.parts)? {
                if left == 0 {
                    break;
                }
                let bits = self.part.checked_mul(u64::from(*width))?;
                stream.0.split_off(..usize::try_from(bits / 8).ok()?)?;
                left = left.saturating_sub(self.part);
            }
        }
        Some(())
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.reader.get_next_page()?;
        page.iter().try_for_each(|page| self.check(page))?;
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.reader.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.reader.skip_next_page()
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

fn failed(reason: String) -> ParquetError {
    ParquetError::General(reason)
}

/// The memory of a dictionary with the most texts.
const _: () = assert!(MAX_TEXTS * size_of::<ByteArray>() as u64 <= MAX_PAGE);

#[cfg(test)]
mod tests {
    use super::super::super::super::super::testing::assert_says;
    use super::*;

    /// Returns a number as Thrift and Parquet write it.
    fn varint(mut number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while number > 127 {
            bytes.push(number as u8 | 128);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    }

    /// Returns a page of zeros with the header of a data page.
    fn page(unpacked: u64, packed: usize) -> Vec<u8> {
        let [claimed, length] = [unpacked, packed as u64].map(|size| varint(size * 2));
        // The type, both sizes, and a structure with the number of values and a text.
        let header = [&[0x15, 0, 0x15][..], &claimed, &[0x15], &length, &[0x2c, 0x15, 2]].concat();
        let statistics = [&[0x48][..], &varint(5000), &[b'x'; 5000], &[0, 0]].concat();
        [header, statistics, vec![0; packed]].concat()
    }

    fn check(pages: &[Vec<u8>]) -> Result<u64> {
        let bytes = [b"PAR1", &pages.concat()[..], b"more"].concat();
        let length = bytes.len() as u64 - 8;
        largest(std::io::Cursor::new(bytes), (4, length))
    }

    #[test]
    fn the_sizes_of_all_pages_are_checked() {
        assert_eq!(check(&[page(300, 20), page(500, 30), page(7, 7)]).unwrap(), 500);
        // A small page may unpack to any multiple, a larger one to a hundredfold.
        assert_eq!(check(&[page(64 << 20, 9)]).unwrap(), 64 << 20);
        assert_eq!(check(&[page(100 << 20, 1 << 20)]).unwrap(), 100 << 20);
        for (unpacked, packed, said) in [
            (
                (64 << 20) + 1,
                1 << 10,
                "a page of 1024 bytes unpacks to 64.0 MiB, but may have at most 64.0",
            ),
            (
                (100 << 20) + 1,
                1 << 20,
                "a page of 1048576 bytes unpacks to 100.0 MiB, but may have at most 100.0",
            ),
            ((1 << 30) + 1, 11 << 20, "unpacks to 1.00 GiB, but may have at most 1.00 GiB"),
        ] {
            assert_says(check(&[page(7, 7), page(unpacked, packed)]).unwrap_err(), said);
        }
        let cut = page(300, 20);
        assert_says(check(&[cut[..9].to_vec()]).unwrap_err(), "the header of a page is damaged");
        assert_eq!(check(&[]).unwrap(), 0);
    }

    /// Blocks of 128 numbers in four parts. All numbers are equal, so they take no bytes.
    fn deltas(count: u64) -> Vec<u8> {
        let blocks = count.saturating_sub(1).div_ceil(128).min(4) as usize;
        let header = [varint(128), varint(4), varint(count), varint(0)].concat();
        [header, [0; 5].repeat(blocks)].concat()
    }

    #[test]
    fn the_texts_that_a_page_claims_are_counted() {
        use Encoding::{DELTA_BYTE_ARRAY, DELTA_LENGTH_BYTE_ARRAY, PLAIN};
        assert_eq!(claimed(Some(&deltas(1 << 40)), DELTA_LENGTH_BYTE_ARRAY), Some(1 << 40));
        for (prefixes, suffixes, expected) in
            [(1, 1 << 40, 1 << 40), (300, 7, 300), (0, 9, 9), (1 << 40, 0, 1 << 40)]
        {
            let page = [deltas(prefixes), deltas(suffixes)].concat();
            assert_eq!(claimed(Some(&page), DELTA_BYTE_ARRAY), Some(expected));
        }
        assert_eq!(claimed(Some(&deltas(300)[..7]), DELTA_BYTE_ARRAY), None);
        assert_eq!(claimed(Some(b""), DELTA_BYTE_ARRAY), Some(0));
        assert_eq!([claimed(None, PLAIN), claimed(None, DELTA_BYTE_ARRAY)], [Some(0), None]);
        // Parts of eight numbers of nine bits: 9 bytes each.
        let wide = [&varint(16)[..], &varint(2), &varint(10), &varint(0), &[0, 9, 9], &[0; 18]];
        let page = [&wide.concat()[..], &deltas(1 << 40)].concat();
        assert_eq!(claimed(Some(&page), DELTA_BYTE_ARRAY), Some(1 << 40));
    }
}
