//! Finds the end of a pickle, without building anything of it.

/// Returns the length of the pickle at the start of `bytes`, in any of Python's protocols; `None` if it does not end
/// there, or has an instruction that Python does not have.
pub fn length(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    loop {
        let (&instruction, after) = rest.split_first()?;
        rest = after;
        // The bytes of its argument, or of the argument's length.
        let (argument, is_length) = match instruction {
            b'.' => return Some(bytes.len() - rest.len()),
            b'('
            | b'0'
            | b'1'
            | b'2'
            | b'N'
            | b'Q'
            | b'R'
            | b'a'
            | b'b'
            | b'd'
            | b'}'
            | b'e'
            | b'l'
            | b']'
            | b'o'
            | b's'
            | b't'
            | b')'
            | b'u'
            | 0x81
            | 0x85..=0x89
            | 0x8f..=0x94
            | 0x97
            | 0x98 => (0, false),
            b'K' | b'h' | b'q' | 0x80 | 0x82 => (1, false),
            b'M' | 0x83 => (2, false),
            b'J' | b'j' | b'r' | 0x84 => (4, false),
            b'G' | 0x95 => (8, false),
            b'U' | b'C' | 0x8a | 0x8c => (1, true),
            b'T' | b'X' | b'B' | 0x8b => (4, true),
            0x8d | 0x8e | 0x96 => (8, true),
            b'F' | b'I' | b'L' | b'S' | b'V' | b'P' | b'g' | b'p' => {
                rest = after_line(rest)?;
                (0, false)
            }
            b'c' | b'i' => {
                rest = after_line(after_line(rest)?)?;
                (0, false)
            }
            _ => return None,
        };
        let (argument, after) = rest.split_at_checked(argument)?;
        rest = after;
        if is_length {
            let length =
                argument.iter().rev().fold(0, |length, byte| length << 8 | u64::from(*byte));
            rest = rest.get(usize::try_from(length).ok()?..)?;
        }
    }
}

fn after_line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some(&bytes[end + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Python's pickle writes for [1, -70000, 2**70, 2.5, 'a.', b'b.', (None, True), {'c': 'a.'}], in protocols
    /// 0, 2 and 5. Texts have dots, with which a pickle would end.
    const PICKLES: [&[u8]; 3] = [
        b"(lp0\nI1\naI-70000\naL1180591620717411303424L\naF2.5\naVa.\np1\nac_codecs\nencode\np2\n(Vb.\np3\nVlatin1\np4\ntp5\nRp6\na(NI01\ntp7\na(dp8\nVc\np9\ng1\nsa.",
        b"\x80\x02]q\x00(K\x01J\x90\xee\xfe\xff\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00@G@\x04\x00\x00\x00\x00\x00\x00X\x02\x00\x00\x00a.q\x01c_codecs\nencode\nq\x02X\x02\x00\x00\x00b.q\x03X\x06\x00\x00\x00latin1q\x04\x86q\x05Rq\x06N\x88\x86q\x07}q\x08X\x01\x00\x00\x00cq\x09h\x01se.",
        b"\x80\x05\x957\x00\x00\x00\x00\x00\x00\x00]\x94(K\x01J\x90\xee\xfe\xff\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00@G@\x04\x00\x00\x00\x00\x00\x00\x8c\x02a.\x94C\x02b.\x94N\x88\x86\x94}\x94\x8c\x01c\x94h\x01se.",
    ];

    #[test]
    fn a_pickle_ends_after_its_arguments() {
        for pickle in PICKLES {
            let followed = [pickle, b"..more"].concat();
            assert_eq!(length(&followed), Some(pickle.len()));
            for cut in 0..pickle.len() {
                assert_eq!(length(&pickle[..cut]), None, "{cut}");
            }
        }
        // A text of 2^63 bytes, and an instruction that does not exist.
        assert_eq!(length(b"\x80\x04\x8d\0\0\0\0\0\0\0\x80a."), None);
        assert_eq!(length(b"\x80\x02y."), None);
    }
}
