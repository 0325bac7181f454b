//! Formats numbers, times and text for an HTML page.

use crate::words;

/// Escapes text for HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Formats a number as in a recipe.
pub fn setting(x: f64) -> String {
    if x != 0.0 && x.abs() < 1e-3 { format!("{x:e}") } else { x.to_string() }
}

/// Formats a number with three or four significant digits.
pub fn number(x: f64) -> String {
    let text = match x.abs() {
        0.0 => return "0".into(),
        a if a >= 1000.0 => return grouped(x.round() as usize),
        a if a >= 100.0 => format!("{x:.1}"),
        a if a >= 10.0 => format!("{x:.2}"),
        a if a >= 0.01 => format!("{x:.3}"),
        _ => return small(x),
    };
    text.trim_end_matches('0').trim_end_matches('.').into()
}

/// Formats a number in scientific notation: `4e-3`.
pub fn small(x: f64) -> String {
    let text = format!("{x:.2e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    if power == "0" || x == 0.0 { digits.into() } else { format!("{digits}e{power}") }
}

/// Formats a fraction as a percentage.
pub fn percent(share: f64) -> String {
    let text = format!("{:.1}", 100.0 * share);
    format!("{} %", text.strip_suffix(".0").unwrap_or(&text))
}

/// Formats a duration in seconds.
pub fn duration(seconds: f64) -> String {
    words::duration(seconds, 1)
}

/// Formats a number with groups of three digits, separated by narrow no-break spaces.
pub fn grouped(n: usize) -> String {
    words::grouped(n, '\u{202f}')
}

/// Formats seconds since 1970 as date and time in UTC. Algorithm: Howard Hinnant, "chrono-compatible low-level date algorithms".
pub fn date(seconds: f64) -> String {
    let days = (seconds / 86_400.0).floor() as i64;
    let rest = seconds.rem_euclid(86_400.0) as u32;
    let shifted = days + 719_468; // from 1 March of year 0
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153; // from March
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year_of_era + era * 400 + next_year;
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3600, rest / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let found = [6.59442, 731.0097, 0.04178, 1.0, 12_345.6, 2e-5, 0.0, 88.0].map(number);
        assert_eq!(found, ["6.594", "731", "0.042", "1", "12\u{202f}346", "2e-5", "0", "88"]);
        assert_eq!([4e-3, 0.0, 1.25e-4, 1.0].map(small), ["4e-3", "0", "1.25e-4", "1"]);
        assert_eq!([0.578, 1.0, 0.0].map(percent), ["57.8 %", "100 %", "0 %"]);
        assert_eq!([3.25, 61.0, 7500.0].map(duration), ["3.2 s", "1 min 01 s", "2 h 05 min"]);
    }

    #[test]
    fn dates_match_the_calendar() {
        assert_eq!(date(0.0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_827_696.0), "2000-02-29 12:34 UTC");
        assert_eq!(date(4_107_542_399.0), "2100-02-28 23:59 UTC");
        assert_eq!(date(4_107_542_400.0), "2100-03-01 00:00 UTC");
    }
}
