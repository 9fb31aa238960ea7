//! Expands parts of WGSL. Loops are unrolled, so that arrays which must stay in registers have constant
//! indices even if the driver does not unroll. Parts for each tensor are repeated, because WGSL has no
//! arrays of buffers.

/// Loops with more iterations are not unrolled: compiling their text would take longer than it saves.
const MOST: u32 = 8;

/// Unrolls each loop after a line `// unroll`. The loop must have the form
/// `for (var i = 0u; i < COUNT; i++) {` and end with a line `}` of the same indentation. COUNT is one of
/// the `constants` or a literal.
pub(super) fn unroll(source: &str, constants: &[(&str, u32)]) -> String {
    let lines: Vec<String> = source.lines().map(str::to_string).collect();
    let mut text = String::with_capacity(2 * source.len());
    write_lines(&lines, constants, &mut text);
    text
}

/// Repeats the lines between a line `// repeat` and the next line `// end` `count` times. Replaces
/// `TENSOR` by the number of the repetition, from 0.
pub(super) fn repeat(source: &str, count: u32) -> String {
    let is = |line: &str, mark: &str| line.trim() == mark;
    let mut lines = source.lines();
    let mut text = String::with_capacity(2 * source.len());
    while let Some(line) = lines.next() {
        if is(line, "// repeat") {
            let part: Vec<&str> = lines.by_ref().take_while(|line| !is(line, "// end")).collect();
            for tensor in 0..count {
                for line in &part {
                    text.push_str(&line.replace("TENSOR", &tensor.to_string()));
                    text.push('\n');
                }
            }
        } else {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

fn write_lines(mut lines: &[String], constants: &[(&str, u32)], text: &mut String) {
    while let Some((line, rest)) = lines.split_first() {
        lines = rest;
        if line.trim() == "// unroll"
            && let Some((head, body, after)) = split_loop(rest)
        {
            write_loop(head, body, constants, text);
            lines = after;
        } else {
            text.push_str(line);
            text.push('\n');
        }
    }
}

/// Splits lines into the head of a loop, its body and the lines after its `}`.
fn split_loop(lines: &[String]) -> Option<(&str, &[String], &[String])> {
    let (head, rest) = lines.split_first()?;
    let indentation = &head[..head.len() - head.trim_start().len()];
    let end = rest.iter().position(|line| {
        line.strip_prefix(indentation).is_some_and(|line| line.trim_end() == "}")
    })?;
    Some((head, &rest[..end], &rest[end + 1..]))
}

fn write_loop(head: &str, body: &[String], constants: &[(&str, u32)], text: &mut String) {
    match parse_head(head, constants) {
        Some((index, count)) if count <= MOST => {
            for i in 0..count {
                let value = format!("{i}u");
                let body: Vec<String> =
                    body.iter().map(|line| substitute(line, index, &value)).collect();
                // A block, so that each iteration has its own names.
                text.push_str("{\n");
                write_lines(&body, constants, text);
                text.push_str("}\n");
            }
        }
        _ => {
            text.push_str(head);
            text.push('\n');
            write_lines(body, constants, text);
            text.push_str("}\n");
        }
    }
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

/// Replaces a name in a line.
fn substitute(line: &str, name: &str, value: &str) -> String {
    let of_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| of_name(c) != of_name(first)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        text.push_str(if word == name { value } else { word });
        rest = after;
    }
    text
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
        let lines: Vec<&str> =
            text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        assert_eq!(
            lines,
            [
                "let own = 1u;",
                "{",
                "let sum_i = x[0u];",
                "{",
                "y[0u][0u] += sum_i;",
                "}",
                "{",
                "y[0u][1u] += sum_i;",
                "}",
                "}",
                "after(i);",
            ]
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
