//! Expands WGSL. Loops are unrolled, so that arrays that must stay in registers have constant indices
//! whatever the driver does. Parts for each tensor are repeated: WGSL has no arrays of buffers.

/// Loops with more iterations are not unrolled: compiling their text would take longer than it saves.
const MOST: u32 = 8;

/// Unrolls each loop after a line `// unroll`. Its form is `for (var i = 0u; i < COUNT; i++) {` and ends
/// with a line `}` of the same indentation. COUNT is one of the `constants` or a literal.
pub(super) fn unroll(source: &str, constants: &[(&str, u32)]) -> String {
    let lines: Vec<&str> = source.lines().collect();
    let mut lines = &lines[..];
    let mut text = String::with_capacity(2 * source.len());
    while let Some((&line, rest)) = lines.split_first() {
        lines = rest;
        if line.trim() == "// unroll"
            && let Some((head, body, after)) = split_loop(rest)
        {
            lines = after;
            let body = body.join("\n");
            match parse_head(head, constants) {
                Some((index, count)) if count <= MOST => {
                    for i in 0..count {
                        let body = substitute(&body, index, &format!("{i}u"));
                        // A block, so that each iteration has its own names.
                        text += &format!("{{\n{}}}\n", unroll(&body, constants));
                    }
                }
                _ => text += &format!("{head}\n{}}}\n", unroll(&body, constants)),
            }
        } else {
            text += &format!("{line}\n");
        }
    }
    text
}

/// Repeats the lines between a line `// repeat` and the next line `// end` `count` times. Replaces
/// `TENSOR` by the number of the repetition, from 0.
pub(super) fn repeat(source: &str, count: u32) -> String {
    let mut lines = source.lines();
    let mut text = String::with_capacity(2 * source.len());
    while let Some(line) = lines.next() {
        if line.trim() == "// repeat" {
            let part = lines.by_ref().take_while(|line| line.trim() != "// end");
            let part: String = part.map(|line| format!("{line}\n")).collect();
            text.extend((0..count).map(|tensor| part.replace("TENSOR", &tensor.to_string())));
        } else {
            text += &format!("{line}\n");
        }
    }
    text
}

/// Splits lines into the head of a loop, its body and the lines after its `}`.
fn split_loop<'a>(lines: &'a [&'a str]) -> Option<(&'a str, &'a [&'a str], &'a [&'a str])> {
    let (head, rest) = lines.split_first()?;
    let indentation = &head[..head.len() - head.trim_start().len()];
    let end = rest.iter().position(|line| {
        line.strip_prefix(indentation).is_some_and(|line| line.trim_end() == "}")
    })?;
    Some((head, &rest[..end], &rest[end + 1..]))
}

/// Returns the index and the number of iterations of `for (var i = 0u; i < COUNT; i++) {`.
fn parse_head<'a>(head: &'a str, constants: &[(&str, u32)]) -> Option<(&'a str, u32)> {
    let (index, rest) = head.trim().strip_prefix("for (var ")?.split_once(" = 0u; ")?;
    let bound = rest.strip_prefix(index)?.strip_prefix(" < ")?;
    let name = bound.strip_suffix(&format!("; {index}++) {{"))?;
    let constant = constants.iter().find(|&&(constant, _)| constant == name);
    let literal = || name.strip_suffix('u')?.parse().ok();
    Some((index, constant.map(|&(_, count)| count).or_else(literal)?))
}

fn substitute(text: &str, name: &str, value: &str) -> String {
    let of_name = |c: char| c.is_alphanumeric() || c == '_';
    let replaced =
        text.split_inclusive(|c| !of_name(c)).map(|word| match word.strip_prefix(name) {
            Some(end) if !end.starts_with(of_name) => format!("{value}{end}"),
            _ => word.to_string(),
        });
    replaced.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NESTED: &str = "
        let own = 1u;
        // unroll
        for (var i = 0u; i < ROWS; i++) {
            let sum_i = x[i];
            // unroll
            for (var j = 0u; j < 2u; j++) {
                y[i][j] += sum_i;
            }
        }
        after(i);
    ";

    #[test]
    fn loops_are_written_out_with_constant_indices() {
        let text = unroll(NESTED, &[("OTHER", 3), ("ROWS", 1)]);
        assert_eq!(
            text.split_whitespace().collect::<Vec<_>>().join(" "),
            "let own = 1u; { let sum_i = x[0u]; { y[0u][0u] += sum_i; } { y[0u][1u] += sum_i; } } \
             after(i);"
        );
    }

    #[test]
    fn parts_are_repeated_for_each_tensor() {
        let source = "a\n// repeat\nvar x_TENSOR = TENSOR;\n  // end\nb(TENSORS)\n";
        assert_eq!(repeat(source, 2), "a\nvar x_0 = 0;\nvar x_1 = 1;\nb(TENSORS)\n");
        assert_eq!(repeat("a\nb\n", 2), "a\nb\n");
    }

    #[test]
    fn long_loops_and_unknown_bounds_stay_loops() {
        let inner = NESTED.replace("2u", "9u");
        for constant in [("ROWS", 9), ("OTHER", 1)] {
            let text = unroll(&inner, &[constant]);
            let without: Vec<&str> =
                inner.lines().map(str::trim).filter(|&line| line != "// unroll").collect();
            assert_eq!(text.lines().map(str::trim).collect::<Vec<_>>(), without);
        }
    }
}
