//! Parser for the literals and arithmetic that nanoGPT configs and flags may contain.
//!
//! ```text
//! sum     = product (("+" | "-") product)*
//! product = unary ("*" unary)*
//! unary   = ("+" | "-")* atom
//! atom    = number | string | "True" | "False" | "(" sum ")"
//! ```

use toml::Value;

/// Limit of nested parentheses, so that hostile text cannot overflow the stack.
const MAX_DEPTH: usize = 32;

/// Evaluates one expression, which may be followed by a comment.
///
/// # Errors
/// A clause that says what is wrong but not where, like "`/` is not supported".
pub(super) fn parse(text: &str) -> Result<Value, String> {
    let mut parser = Parser { rest: text, depth: 0 };
    let value = parser.sum()?;
    match parser.peek() {
        None => Ok(value),
        Some(found) => Err(unsupported(found, parser.rest)),
    }
}

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

impl<'a> Parser<'a> {
    /// Skips blanks and returns the next character; `None` at the end or at a comment.
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
        self.rest.chars().next().filter(|&c| c != '#')
    }

    /// Consumes the next character if it is `wanted`.
    fn consume(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.rest = &self.rest[wanted.len_utf8()..];
        }
        found
    }

    fn sum(&mut self) -> Result<Value, String> {
        let mut left = self.product()?;
        loop {
            if self.consume('+') {
                left = combine(left, self.product()?, i64::checked_add, |a, b| a + b)?;
            } else if self.consume('-') {
                left = combine(left, self.product()?, i64::checked_sub, |a, b| a - b)?;
            } else {
                return Ok(left);
            }
        }
    }

    fn product(&mut self) -> Result<Value, String> {
        let mut left = self.unary()?;
        while self.consume('*') {
            if self.rest.starts_with('*') {
                return Err("`**` is not supported".into());
            }
            left = combine(left, self.unary()?, i64::checked_mul, |a, b| a * b)?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Value, String> {
        let mut sign = None;
        while let Some(found @ ('+' | '-')) = self.peek() {
            self.consume(found);
            sign = Some(if found == '-' { -1 } else { 1 } * sign.unwrap_or(1));
        }
        let value = self.atom()?;
        match sign {
            Some(sign) => combine(Value::Integer(sign), value, i64::checked_mul, |a, b| a * b),
            None => Ok(value),
        }
    }

    fn atom(&mut self) -> Result<Value, String> {
        match self.peek() {
            None => Err("a value is missing".into()),
            Some('(') => self.parenthesis(),
            Some(quote @ ('\'' | '"')) => self.string(quote),
            Some(c) if c.is_ascii_digit() || c == '.' => number(self.word(true)),
            Some(c) if is_word(c) => match self.word(false) {
                "True" => Ok(Value::Boolean(true)),
                "False" => Ok(Value::Boolean(false)),
                "None" => Err("`None` is not supported".into()),
                word => Err(unexpected_name(word, self.rest)),
            },
            Some(found) => Err(unsupported(found, self.rest)),
        }
    }

    fn parenthesis(&mut self) -> Result<Value, String> {
        if self.depth == MAX_DEPTH {
            return Err(format!("more than {MAX_DEPTH} nested parentheses"));
        }
        self.consume('(');
        self.depth += 1;
        let value = self.sum()?;
        self.depth -= 1;
        if !self.consume(')') {
            return Err("a `)` is missing, or a list or call is not supported".into());
        }
        Ok(value)
    }

    /// Consumes a word, or a number with its point and the sign of its exponent.
    fn word(&mut self, number: bool) -> &'a str {
        let mut before = ' ';
        let end = self.rest.find(|c| {
            let exponent_sign = number && matches!(before, 'e' | 'E') && matches!(c, '+' | '-');
            before = c;
            !(is_word(c) || exponent_sign || (number && c == '.'))
        });
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }

    fn string(&mut self, quote: char) -> Result<Value, String> {
        let mut text = String::new();
        let mut characters = self.rest.char_indices().skip(1);
        while let Some((at, c)) = characters.next() {
            match c {
                '\\' => text.push(escape(characters.next().map(|(_, c)| c))?),
                c if c == quote => {
                    self.rest = &self.rest[at + 1..];
                    return match self.peek() {
                        Some('\'' | '"') => {
                            Err("triple quotes and adjacent strings are not supported".into())
                        }
                        _ => Ok(Value::String(text)),
                    };
                }
                c => text.push(c),
            }
        }
        Err(format!("the string has no closing {quote}"))
    }
}

fn overflow() -> String {
    "the number is too large".into()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Describes the problem with a name, by the character after it.
fn unexpected_name(word: &str, rest: &str) -> String {
    match rest.chars().next() {
        Some('(') => format!("`{word}(...)` is a call"),
        Some('\'' | '"') => format!("strings with the prefix `{word}` are not supported"),
        _ => format!("`{word}` is a name, not a literal"),
    }
}

fn unsupported(found: char, rest: &str) -> String {
    if rest.starts_with("//") {
        return "`//` is not supported".into();
    }
    match found {
        '[' | '{' | ',' => "lists, tuples and dictionaries are not supported".into(),
        '=' => "a second `=` is not supported".into(),
        ';' => "one line holds one assignment, so `;` is not supported".into(),
        c => format!("`{}` is not supported", c.escape_debug()),
    }
}

fn escape(c: Option<char>) -> Result<char, String> {
    match c {
        Some('n') => Ok('\n'),
        Some('t') => Ok('\t'),
        Some('r') => Ok('\r'),
        Some(c @ ('\\' | '\'' | '"')) => Ok(c),
        // Python silently reads the `\f` of 'data\first' as a form feed.
        Some(c) => Err(format!("`\\{}` is not supported, double the backslash", c.escape_debug())),
        None => Err("the string ends in a backslash".into()),
    }
}

/// Parses a decimal number as Python does: `_` only between digits, no leading zero on an integer.
fn number(word: &str) -> Result<Value, String> {
    let not_a_number = || format!("`{word}` is not a decimal number");
    let parts: Vec<&str> = word.split('_').collect();
    let digit = |c: char| c.is_ascii_digit();
    if !parts.windows(2).all(|pair| pair[0].ends_with(digit) && pair[1].starts_with(digit)) {
        return Err(not_a_number());
    }
    let digits = parts.concat();
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        if digits.starts_with('0') && digits.bytes().any(|byte| byte != b'0') {
            return Err(format!("`{word}` starts with a zero"));
        }
        return digits.parse().map(Value::Integer).map_err(|_| overflow());
    }
    let value: f64 = digits.parse().map_err(|_| not_a_number())?;
    finite(value)
}

fn combine(
    left: Value,
    right: Value,
    integers: fn(i64, i64) -> Option<i64>,
    floats: fn(f64, f64) -> f64,
) -> Result<Value, String> {
    match (left, right) {
        (Value::Integer(a), Value::Integer(b)) => {
            integers(a, b).map(Value::Integer).ok_or_else(overflow)
        }
        (Value::Integer(a), Value::Float(b)) => finite(floats(a as f64, b)),
        (Value::Float(a), Value::Integer(b)) => finite(floats(a, b as f64)),
        (Value::Float(a), Value::Float(b)) => finite(floats(a, b)),
        _ => Err("only numbers can be added, subtracted and multiplied".into()),
    }
}

fn finite(value: f64) -> Result<Value, String> {
    if value.is_finite() { Ok(Value::Float(value)) } else { Err(overflow()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn literals_and_arithmetic_that_keeps_integers_and_precedence() {
        let string = |s: &str| Value::String(s.into());
        for (text, value) in [
            ("12", Value::Integer(12)),
            ("5_000", Value::Integer(5000)),
            ("0", Value::Integer(0)),
            ("1e-3", Value::Float(1e-3)),
            ("6E+4", Value::Float(6e4)),
            (".5", Value::Float(0.5)),
            ("2.", Value::Float(2.0)),
            ("True", Value::Boolean(true)),
            ("False # off", Value::Boolean(false)),
            ("'a # b' # comment", string("a # b")),
            (r#""it's\n\"\\""#, string("it's\n\"\\")),
            ("''", string("")),
            ("5 * 8", Value::Integer(40)),
            ("1000 - 10 - 1", Value::Integer(989)),
            ("2 + 3 * 4", Value::Integer(14)),
            ("(2 + 3) * 4", Value::Integer(20)),
            ("-3 * -(1 - 3)", Value::Integer(-6)),
            ("--1", Value::Integer(1)),
            ("2 * 0.5", Value::Float(1.0)),
            ("1e-3-1e-4", Value::Float(1e-3 - 1e-4)),
        ] {
            assert_eq!(parse(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn errors_name_the_unsupported_syntax() {
        for (text, clause) in [
            ("", "missing"),
            ("# only a comment", "missing"),
            ("5 *", "missing"),
            ("None", "None"),
            ("str(1)", "call"),
            ("f'x'", "prefix `f`"),
            ("n_head", "name"),
            ("2 ** 3", "`**`"),
            ("7 // 2", "`//`"),
            ("1 / 2", "`/`"),
            ("[1]", "lists"),
            ("(1, 2)", "`)` is missing"),
            ("1; 2", "`;`"),
            ("'a", "closing"),
            ("'a' 'b'", "adjacent"),
            ("'''a'''", "triple"),
            (r"'data\first'", "double the backslash"),
            ("'a' + 'b'", "only numbers"),
            ("True + 1", "only numbers"),
            ("-True", "only numbers"),
            ("1__0", "decimal"),
            ("1_", "decimal"),
            ("0x10", "decimal"),
            ("1e", "decimal"),
            ("1.2.3", "decimal"),
            (".", "decimal"),
            ("007", "zero"),
            ("9223372036854775808", "too large"),
            ("4294967296 * 4294967296", "too large"),
            ("1e308 * 10", "too large"),
            ("1e999", "too large"),
        ] {
            let problem = parse(text).expect_err(text);
            assert!(problem.contains(clause), "{text}: {problem}");
        }
        assert!(parse(&"(".repeat(100_000)).is_err());
        assert_eq!(parse(&format!("{}1", "-".repeat(100_000))), Ok(Value::Integer(1)));
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "\\PC*", dense in "[-+*() .0-9_eE'\"\\\\#a]{0,40}") {
            let _ = parse(&text);
            let _ = parse(&dense);
        }

        #[test]
        fn printed_numbers_read_back(int in 0..=i64::MAX, float in 0.0..f64::MAX) {
            prop_assert_eq!(parse(&int.to_string()), Ok(Value::Integer(int)));
            prop_assert_eq!(parse(&format!("{float:?}")), Ok(Value::Float(float)));
        }
    }
}
