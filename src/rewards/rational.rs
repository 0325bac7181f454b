//! Exact arithmetic with short decimals and fractions.

/// A number: exact as far as 128 bits go, otherwise in double precision and finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rational {
    /// In lowest terms, with a denominator above 0.
    Exact(i128, i128),
    Float(f64),
}

/// Relative difference of doubles that count as equal: the rounding of a few operations.
const ROUNDING: f64 = 1e-12;
/// Digits that fit in 128 bits.
const DIGITS: usize = 38;

impl Rational {
    /// Digits before and after a decimal point; either may be missing. `None` for a number beyond double precision.
    pub fn decimal(whole: &str, fraction: &str) -> Option<Rational> {
        let fraction = fraction.trim_end_matches('0');
        let digits = format!("{whole}{fraction}");
        let digits = digits.trim_start_matches('0');
        let exact = || {
            let number = if digits.is_empty() { 0 } else { digits.parse().ok()? };
            Rational::ratio(number, 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?)
        };
        let short = digits.len() <= DIGITS && fraction.len() <= DIGITS;
        let float = || Rational::float(format!("0{whole}.{fraction}0").parse().ok()?);
        short.then(exact).flatten().or_else(float)
    }

    /// `None` unless the denominator is above 0.
    fn ratio(numerator: i128, denominator: i128) -> Option<Rational> {
        if denominator <= 0 {
            return None;
        }
        let divisor = gcd(numerator.unsigned_abs(), denominator.unsigned_abs()) as i128;
        Some(Rational::Exact(numerator / divisor, denominator / divisor))
    }

    fn float(number: f64) -> Option<Rational> {
        number.is_finite().then_some(Rational::Float(number))
    }

    /// In double precision.
    pub fn to_f64(self) -> f64 {
        match self {
            Rational::Exact(numerator, denominator) => numerator as f64 / denominator as f64,
            Rational::Float(number) => number,
        }
    }

    pub fn negated(self) -> Rational {
        match self {
            // `decimal` makes no number whose negative does not fit.
            Rational::Exact(numerator, denominator) => {
                Rational::Exact(numerator.saturating_neg(), denominator)
            }
            Rational::Float(number) => Rational::Float(-number),
        }
    }

    pub fn plus(self, other: Rational) -> Option<Rational> {
        let exact = match (self, other) {
            (Rational::Exact(a, b), Rational::Exact(c, d)) => {
                let sum = || a.checked_mul(d)?.checked_add(c.checked_mul(b)?);
                sum().zip(b.checked_mul(d)).and_then(|(sum, product)| Rational::ratio(sum, product))
            }
            _ => None,
        };
        exact.or_else(|| Rational::float(self.to_f64() + other.to_f64()))
    }

    /// `None` if `other` is 0, or for a number beyond double precision.
    pub fn divided_by(self, other: Rational) -> Option<Rational> {
        let exact = match (self, other) {
            (Rational::Exact(a, b), Rational::Exact(c, d)) => {
                let (numerator, denominator) = (a.checked_mul(d), b.checked_mul(c));
                let both = numerator.zip(denominator);
                both.and_then(|(n, d)| Rational::ratio(n.checked_mul(d.signum())?, d.checked_abs()?))
            }
            _ => None,
        };
        exact.or_else(|| Rational::float(self.to_f64() / other.to_f64()))
    }

    /// The number times 10 to the power of `exponent`; `None` beyond double precision.
    pub fn times_power_of_ten(self, exponent: i32) -> Option<Rational> {
        let power = 10_i128.checked_pow(exponent.unsigned_abs()).map(|power| Rational::Exact(power, 1));
        match (power, exponent >= 0) {
            (Some(Rational::Exact(power, _)), true) => self.divided_by(Rational::Exact(1, power)),
            (Some(power), false) => self.divided_by(power),
            _ => Rational::float(self.to_f64() * 10_f64.powi(exponent)),
        }
    }

    /// Whether the numbers differ by at most `tolerance`.
    pub fn equals(self, other: Rational, tolerance: f64) -> bool {
        let (a, b) = (self.to_f64(), other.to_f64());
        match (self, other) {
            (Rational::Exact(..), Rational::Exact(..)) if self == other => true,
            (Rational::Exact(..), Rational::Exact(..)) if tolerance == 0.0 => false,
            _ => (a - b).abs() <= tolerance + ROUNDING * a.abs().max(b.abs()),
        }
    }
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Rational {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        Rational::decimal(whole, fraction).expect("a number")
    }

    #[test]
    fn short_numbers_are_exact() {
        assert_eq!(number("0.10"), Rational::Exact(1, 10));
        assert_eq!(number(".5"), Rational::Exact(1, 2));
        assert_eq!(number("007"), Rational::Exact(7, 1));
        assert_eq!(number("1").divided_by(number("3")), Some(Rational::Exact(1, 3)));
        assert_eq!(number("1").divided_by(number("0")), None);
        assert_eq!(number("1").divided_by(number("2").negated()), Some(Rational::Exact(-1, 2)));
        assert_eq!(number("1.5").plus(number("0.25")), Some(Rational::Exact(7, 4)));
        assert_eq!(number("1.5").times_power_of_ten(3), Some(Rational::Exact(1500, 1)));
        assert_eq!(number("15").times_power_of_ten(-3), Some(Rational::Exact(3, 200)));
        assert!(!number("9007199254740993").equals(number("9007199254740992"), 0.0));
        assert!(number("3.1").equals(number("3.2"), 0.1));
        assert!(!number("3.1").equals(number("3.3"), 0.1));
    }

    #[test]
    fn long_numbers_are_doubles_and_endless_ones_none() {
        let long = "9".repeat(60);
        assert!(matches!(number(&long), Rational::Float(_)));
        assert!(number(&long).equals(number(&long), 0.0));
        assert!(
            number(&format!("0.{}", "3".repeat(60))).equals(number(&format!("0.{}", "3".repeat(50))), 0.0)
        );
        assert_eq!(Rational::decimal(&"9".repeat(400), ""), None);
        assert_eq!(number("1").times_power_of_ten(i32::MAX), None);
        assert_eq!(number("0").times_power_of_ten(i32::MIN).map(Rational::to_f64), Some(0.0));
        let most = number(&"9".repeat(38));
        assert!(most.divided_by(number("0.00000007")).is_some() && most.plus(most).is_some());
    }
}
