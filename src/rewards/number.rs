//! The reward `number`: the last number of a completion against that of a column.

mod scan;

use super::columns::texts;
use super::text::{judged, value};
use super::{Completion, Judge, RewardError, Values};
pub(super) use scan::Found;

/// The reward `number`.
pub(super) struct Number {
    pub name: String,
    pub column: String,
    pub tolerance: f64,
    pub after: Option<String>,
}

impl Judge for Number {
    fn score(&mut self, completions: &[Completion<'_>]) -> Result<Values, RewardError> {
        completions
            .iter()
            .map(|completion| {
                let expected = texts(completion.row, &self.column, &self.name)?;
                let expected: Vec<Found> = expected.iter().filter_map(|text| of_column(text)).collect();
                if expected.is_empty() {
                    return Ok(None);
                }
                let text = judged(completion.text, self.after.as_deref());
                let found = text.and_then(answer);
                Ok(value(found.is_some_and(|found| {
                    expected.iter().any(|expected| found.equals(expected, self.tolerance))
                })))
            })
            .collect()
    }
}

/// The number of a column: that after GSM8K's `####`, if the text has it.
fn of_column(text: &str) -> Option<Found> {
    answer(text.rsplit("####").next().unwrap_or(text))
}

/// The number that a text ends with: the last one of the last `\boxed{…}`, or the last one of the text. `None` if that is no plain number,
/// such as a power or a root.
pub(super) fn answer(text: &str) -> Option<Found> {
    scan::last(boxed(text).unwrap_or(text))
}

/// The inside of the last `\boxed{…}`, which may lack its end.
fn boxed(text: &str) -> Option<&str> {
    let start = [r"\boxed", r"\fbox"].iter().filter_map(|name| Some(text.rfind(name)? + name.len())).max()?;
    let rest = text[start..].trim_start();
    let Some(inside) = rest.strip_prefix('{') else { return Some(rest.lines().next().unwrap_or("")) };
    let mut depth = 1_usize;
    for (i, c) in inside.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&inside[..i]);
        }
    }
    Some(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the completion has the number that the column has; `None` if the column has none.
    fn judge(completion: &str, column: &str) -> Option<bool> {
        let expected = of_column(column)?;
        Some(answer(completion).is_some_and(|found| found.equals(&expected, 0.0)))
    }

    /// Completions, and columns with the same number.
    const EQUAL: &[(&str, &str)] = &[
        ("42", "42"),
        ("The answer is 42.", "She has 20 + 22 = <<20+22=42>>42.\n#### 42"),
        ("#### 42", "#### 42"),
        ("so it is 1,234,567 dollars", "1234567"),
        (r"1{,}234", "1,234"),
        (r"1\,234", "1234"),
        (r"\$1,234.50", "1234.5"),
        ("$-5$", "-5"),
        ("-$5", "-5"),
        ("\u{2212}5", "-5"),
        ("x = -5", "-5"),
        ("10-5", "5"),
        ("3 - 5", "5"),
        ("(-5)", "-5"),
        (".5", "0.5"),
        ("0.50", "1/2"),
        ("+7", "7"),
        ("3/4", "0.75"),
        ("3 / 4", "0.75"),
        ("-3/4", "-0.75"),
        (r"\frac{3}{4}", "3/4"),
        (r"\dfrac{3}{4}", "3/4"),
        (r"\frac34", "3/4"),
        (r"-\frac{1}{2}", "-0.5"),
        (r"\frac{-1}{2}", "-0.5"),
        (r"\frac { 1 } { 2 }", "0.5"),
        (r"1\frac{3}{4}", "1.75"),
        (r"-1\frac{3}{4}", "-1.75"),
        (r"\boxed{42} is the answer to question 7", "42"),
        (r"first \boxed{1}, then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", "0.5"),
        (r"\boxed{\text{about } 12}", "12"),
        (r"\boxed{42", "42"),
        (r"\boxed 42", "42"),
        (r"\fbox{3}", "3"),
        ("50%", "50"),
        ("50%", "0.5"),
        (r"50\%", "50%"),
        ("0.5", "50%"),
        ("50 percent", "50%"),
        ("1e3", "1000"),
        ("1.5E-3", "0.0015"),
        (r"3 \times 10^{8}", "300000000"),
        (r"3 \times 10^8", "3e8"),
        ("3×10^-2", "0.03"),
        ("12 cm^2", "12"),
        ("5 m2", "5"),
        ("答案是5。", "5"),
        ("5.", "5"),
        ("5,", "5"),
        ("it is 1, 2, 3", "3"),
        ("1,23", "23"),
        ("12/0", "0"),
        ("2024-11-28", "28"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("0", "-0"),
        ("007", "7"),
    ];

    #[test]
    fn numbers_are_equal_in_every_spelling() {
        for (completion, column) in EQUAL {
            assert_eq!(judge(completion, column), Some(true), "{completion:?}, {column:?}");
        }
    }

    #[test]
    fn other_numbers_are_not_equal() {
        let different = [
            ("41", "42"),
            ("42, or rather 43", "42"),
            ("", "42"),
            ("forty-two", "42"),
            ("5", "-5"),
            ("0.333", "1/3"),
            (r"\boxed{\text{yes}}, 42", "42"),
            (r"\boxed{}", "42"),
            (r"\boxed{2^{10}}", "10"),
            (r"2\sqrt{3}", "3"),
            (r"\sqrt{16}", "16"),
            (r"\frac{\pi}{2}", "2"),
            ("50%", "5"),
            ("50%", "0.5%"),
            ("9007199254740993", "9007199254740992"),
            ("1e999", "1"),
        ];
        for (completion, column) in different {
            assert_eq!(judge(completion, column), Some(false), "{completion:?}, {column:?}");
        }
    }

    #[test]
    fn a_column_without_a_plain_number_judges_nothing() {
        for column in
            ["", "yes", "#### none", "5 #### ", r"\boxed{x}", r"2\sqrt{3}", r"2\pi", "x^2", r"\frac{\pi}{2}"]
        {
            assert_eq!(judge("5", column), None, "{column:?}");
        }
    }

    #[test]
    fn no_text_panics() {
        let pieces = [
            "1",
            "9",
            ",",
            ".",
            "-",
            "+",
            "/",
            "%",
            "$",
            " ",
            "e",
            "E",
            "^",
            "_",
            "{",
            "}",
            "\\frac",
            "\\boxed",
            "\\sqrt",
            "\\times",
            "10",
            "####",
            "×",
            "−",
            "答",
            "\\",
            "\\,",
            "\\!",
            "0",
            "999999999999999999999999999999999999999",
            "\n",
            "percent",
            "(",
            ")",
            "π",
            "x",
        ];
        let mut state = 1_u64;
        for _ in 0..200_000 {
            let mut text = String::new();
            for _ in 0..12 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                text += pieces[(state >> 33) as usize % pieces.len()];
            }
            let found = of_column(&text);
            assert!(found.is_none_or(|found| found.equals(&found, 0.0)), "{text:?}");
        }
    }
}
