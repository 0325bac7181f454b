//! Numbers in text: integers, decimals, fractions, percentages, in plain writing and in LaTeX.

use super::super::rational::Rational;

/// A number of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::rewards) struct Found {
    pub value: Rational,
    /// Whether a percent sign follows. The value is the number before it.
    pub percent: bool,
}

impl Found {
    /// Whether the numbers differ by at most `tolerance`. If only one is a percentage, it may also stand for the number without the sign, as
    /// answers to "what percentage" do.
    pub fn equals(&self, other: &Found, tolerance: f64) -> bool {
        let hundredth = |found: &Found| found.value.times_power_of_ten(-2);
        self.value.equals(other.value, tolerance)
            || match (self.percent, other.percent) {
                (true, false) => hundredth(self).is_some_and(|value| value.equals(other.value, tolerance)),
                (false, true) => hundredth(other).is_some_and(|value| value.equals(self.value, tolerance)),
                _ => false,
            }
    }
}

/// The last number of `text`; `None` if there is none, or if it belongs to a power, a root or the like.
pub(super) fn last(text: &str) -> Option<Found> {
    let text = plain(text);
    let cursor = Cursor(text.as_bytes());
    let (mut at, mut found) = (0, None);
    while at < text.len() {
        let (end, item) = cursor.item(at);
        found = item.unwrap_or(found);
        at = end.max(at + 1);
    }
    found
}

/// The text in one spelling of signs, spaces and commands.
fn plain(text: &str) -> String {
    let spellings = [
        ("\u{2212}", "-"),
        ("\u{FF0D}", "-"),
        ("{,}", ","),
        (r"\!", ""),
        (r"\,", ""),
        (r"\%", "%"),
        (r"\$", "$"),
        (r"\dfrac", r"\frac"),
        (r"\tfrac", r"\frac"),
        (r"\left", ""),
        (r"\right", ""),
    ];
    spellings.iter().fold(text.to_owned(), |text, (from, to)| match text.contains(from) {
        true => text.replace(from, to),
        false => text,
    })
}

/// Commands after which a number is a factor of something else, or that make something else of it.
const OTHER: [&str; 11] =
    [r"\pi", r"\sqrt", r"\log", r"\ln", r"\sin", r"\cos", r"\tan", r"\exp", r"\infty", "π", "√"];
/// Signs of a product with a power of ten.
const TIMES: [&str; 5] = [r"\times", r"\cdot", "×", "·", "*"];
/// Currencies between a minus and a number.
const CURRENCIES: [&str; 3] = ["$", "€", "£"];

/// A value, and the place where it ends.
type Parsed<T> = (usize, T);

/// A text to be read at any position. No position is beyond its end.
#[derive(Clone, Copy)]
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn byte(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    fn is(self, at: usize, fits: impl Fn(u8) -> bool) -> bool {
        self.byte(at).is_some_and(fits)
    }

    fn starts(self, at: usize, with: &str) -> bool {
        self.0.get(at..).is_some_and(|rest| rest.starts_with(with.as_bytes()))
    }

    /// The end of the first of `words` that is at `at`.
    fn word(self, at: usize, words: &[&str]) -> Option<usize> {
        words.iter().find(|word| self.starts(at, word)).map(|word| at + word.len())
    }

    fn skip(self, mut at: usize, fits: impl Fn(u8) -> bool) -> usize {
        while self.is(at, &fits) {
            at += 1;
        }
        at
    }

    fn spaces(self, at: usize) -> usize {
        self.skip(at, |byte| byte == b' ')
    }

    fn digits(self, at: usize) -> usize {
        self.skip(at, |byte| byte.is_ascii_digit())
    }

    /// The text between two positions, of ASCII characters.
    fn text(self, from: usize, to: usize) -> String {
        String::from_utf8_lossy(&self.0[from..to]).into_owned()
    }

    /// Reads at `at`: the end of what is there, and its number. `Some(None)`: a number that is part of something else; `None`: nothing that counts.
    fn item(self, at: usize) -> Parsed<Option<Option<Found>>> {
        if self.starts(at, r"\frac") {
            let (end, value) = self.fraction(at);
            return self.finished(at, end, value);
        }
        if let Some(end) = self.word(at, &[r"\sqrt", "√"]) {
            return (self.group(self.index(end)), Some(None));
        }
        let point = self.is(at, |byte| byte == b'.') && self.is(at + 1, |byte| byte.is_ascii_digit());
        let begins = point && !(at > 0 && self.is(at - 1, |byte| byte.is_ascii_digit()));
        if !begins && !self.is(at, |byte| byte.is_ascii_digit()) {
            return (at + 1, None);
        }
        let (end, number) = self.number(at);
        if self.is_index(at) {
            return (end, None);
        }
        let (end, number) = self.with_rest(at, end, number);
        self.finished(at, end, number)
    }

    /// Adds the sign before and the percent sign after a number; `Some(None)` if it is part of a power or a product.
    fn finished(self, at: usize, end: usize, value: Option<Rational>) -> Parsed<Option<Option<Found>>> {
        let closed = self.skip(end, |byte| matches!(byte, b')' | b'}'));
        let degree = [r"^\circ", r"^{\circ", "^°"];
        let is_power = self.starts(closed, "^") && self.word(closed, &degree).is_none();
        if is_power || self.word(self.spaces(end), &OTHER).is_some() {
            return (end, Some(None));
        }
        let percent = self.word(self.spaces(end), &["%", "percent"]);
        let negative = self.sign(at).1;
        let found = value.map(|value| Found {
            value: if negative { value.negated() } else { value },
            percent: percent.is_some(),
        });
        (percent.unwrap_or(end), Some(found))
    }

    /// The start of the sign before `at`, if there is one, and whether it is a minus and not a difference or a hyphen.
    fn sign(self, at: usize) -> Parsed<bool> {
        let currency = CURRENCIES.iter().find(|sign| self.0[..at].ends_with(sign.as_bytes()));
        let start = at - currency.map_or(0, |sign| sign.len());
        if start == 0 || !self.is(start - 1, |byte| byte == b'-') {
            return (at, false);
        }
        let difference = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b')' | b'}' | b']' | b'%');
        (start - 1, start == 1 || !self.is(start - 2, difference))
    }

    /// Whether the number at `at` is an exponent or an index, or the end of a name such as `m2`.
    fn is_index(self, at: usize) -> bool {
        let start = self.sign(at).0;
        let before = |n: usize| start.checked_sub(n).and_then(|at| self.byte(at));
        match before(1) {
            Some(b'^' | b'_') => true,
            Some(b'{') => matches!(before(2), Some(b'^' | b'_')),
            Some(byte) => start == at && byte.is_ascii_alphabetic(),
            None => false,
        }
    }

    /// Digits with groups of thousands, a fraction and an exponent.
    fn number(self, at: usize) -> Parsed<Option<Rational>> {
        let mut end = self.digits(at);
        let mut whole = self.text(at, end);
        if (1..=3).contains(&whole.len()) && !whole.starts_with('0') {
            while self.is(end, |byte| byte == b',') && self.digits(end + 1) == end + 4 {
                whole += &self.text(end + 1, end + 4);
                end += 4;
            }
        }
        let mut fraction = String::new();
        if self.is(end, |byte| byte == b'.') && self.digits(end + 1) > end + 1 {
            let start = end + 1;
            end = self.digits(start);
            fraction = self.text(start, end);
        }
        let number = Rational::decimal(&whole, &fraction);
        if self.is(end, |byte| matches!(byte, b'e' | b'E')) {
            let sign = usize::from(self.is(end + 1, |byte| matches!(byte, b'+' | b'-')));
            let digits = end + 1 + sign;
            let exponent_end = self.digits(digits);
            if exponent_end > digits && !self.is(exponent_end, |byte| byte.is_ascii_alphabetic()) {
                let exponent = self.power(digits, exponent_end, self.is(end + 1, |byte| byte == b'-'));
                return (exponent_end, number.and_then(|number| number.times_power_of_ten(exponent)));
            }
        }
        (end, number)
    }

    /// A power of ten; too large a one becomes the largest.
    fn power(self, from: usize, to: usize, negative: bool) -> i32 {
        let power: i32 = self.text(from, to).parse().unwrap_or(i32::MAX);
        if negative { -power } else { power }
    }

    /// A number with the fraction or the power of ten that follows it: `1\frac{3}{4}`, `3/4`, `3 \times 10^{8}`.
    fn with_rest(self, at: usize, end: usize, number: Option<Rational>) -> Parsed<Option<Rational>> {
        let is_whole = self.0[at..end].iter().all(u8::is_ascii_digit);
        if is_whole && self.starts(self.spaces(end), r"\frac") {
            let (end, fraction) = self.fraction(self.spaces(end));
            return (end, number.zip(fraction).and_then(|(number, fraction)| number.plus(fraction)));
        }
        let slash = self.skip(end, |byte| byte == b' ').min(end + 1);
        if self.is(slash, |byte| byte == b'/') {
            let below = self.spaces(slash + 1).min(slash + 2);
            if self.is(below, |byte| byte.is_ascii_digit()) {
                let (below_end, divisor) = self.number(below);
                let quotient = number.zip(divisor).and_then(|(number, divisor)| number.divided_by(divisor));
                if quotient.is_some() {
                    return (below_end, quotient);
                }
            }
        }
        match self.power_of_ten(end) {
            Some((end, exponent)) => (end, number.and_then(|number| number.times_power_of_ten(exponent))),
            None => (end, number),
        }
    }

    /// `\times 10^{-3}` and the like: the exponent.
    fn power_of_ten(self, at: usize) -> Option<Parsed<i32>> {
        let sign = self.word(self.spaces(at), &TIMES)?;
        let caret = self.word(self.spaces(sign), &["10^"])?;
        let start = self.word(caret, &["{"]).unwrap_or(caret);
        let digits = self.word(start, &["-"]).unwrap_or(start);
        let end = self.digits(digits);
        let exponent = (end > digits).then(|| self.power(digits, end, digits > start))?;
        Some((if start > caret { self.word(end, &["}"])? } else { end }, exponent))
    }

    /// `\frac{a}{b}` or `\frac12`; `None` if a part is no plain number.
    fn fraction(self, at: usize) -> Parsed<Option<Rational>> {
        let above = self.spaces(at + r"\frac".len());
        let (above_end, numerator) = self.part(above);
        let (end, denominator) = self.part(self.spaces(above_end));
        (end, numerator.zip(denominator).and_then(|(above, below)| above.divided_by(below)))
    }

    /// A part of a fraction: a number in braces, or a digit.
    fn part(self, at: usize) -> Parsed<Option<Rational>> {
        let end = self.group(at);
        if !self.is(at, |byte| byte == b'{') {
            let digit = self.is(at, |byte| byte.is_ascii_digit()).then(|| self.text(at, at + 1));
            return (end, digit.and_then(|digit| Rational::decimal(&digit, "")));
        }
        let inside = self.spaces(at + 1);
        let start = self.word(inside, &["-"]).unwrap_or(inside);
        if !self.is(start, |byte| byte.is_ascii_digit() || byte == b'.') {
            return (end, None);
        }
        let (number_end, number) = self.number(start);
        let number = number.map(|number| if start > inside { number.negated() } else { number });
        (end, number.filter(|_| self.spaces(number_end) + 1 == end))
    }

    /// The end of `{…}`, or of one byte; that of the text if the group is not closed.
    fn group(self, at: usize) -> usize {
        if !self.is(at, |byte| byte == b'{') {
            return (at + 1).min(self.0.len());
        }
        let mut depth = 0_usize;
        for (i, byte) in self.0.iter().enumerate().skip(at) {
            match byte {
                b'{' => depth += 1,
                b'}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return i + 1;
            }
        }
        self.0.len()
    }

    /// The end of `[…]`, the index of a root.
    fn index(self, at: usize) -> usize {
        match self.is(at, |byte| byte == b'[') {
            true => (self.skip(at, |byte| byte != b']') + 1).min(self.0.len()),
            false => at,
        }
    }
}
