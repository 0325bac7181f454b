//! Formats numbers, times and sizes for people.

/// Bytes in hexadecimal, two digits each.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Alternatives: `1, 2 or 4`.
pub fn either(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// A number with its digits in groups of three, separated by `separator`.
pub fn grouped(n: usize, separator: char) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(separator);
        }
        text.push(digit);
    }
    text
}

/// A number with its noun in singular or plural: `1 epoch`, `2 000 tokens`.
pub fn counted(n: usize, noun: &str) -> String {
    format!("{} {noun}{}", grouped(n, ' '), if n == 1 { "" } else { "s" })
}

/// A number with about two significant digits, without an exponent: `43`, `5.7`, `0.0012`.
pub fn short(x: f64) -> String {
    let decimals = match x.abs() {
        0.0 => 0,
        a if a >= 9.95 => 0,
        a => (1 - a.log10().floor() as i32).clamp(0, 9) as usize,
    };
    let text = format!("{x:.decimals$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    match text {
        "0" | "-0" if x != 0.0 => "less than 0.000000001".into(),
        text => text.into(),
    }
}

/// A learning rate with at most three digits: `2e-4`, `0`.
pub fn rate(x: f64) -> String {
    let text = format!("{x:.2e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    if x == 0.0 { "0".into() } else { format!("{digits}e{power}") }
}

/// A duration such as `45 s`, `12 min 30 s` or `3 h 05 min`. Below a minute it has `decimals` decimal places.
pub fn duration(seconds: f64, decimals: usize) -> String {
    match seconds as u64 {
        0..60 => format!("{seconds:.decimals$} s"),
        s @ 60..3600 => format!("{} min {:02} s", s / 60, s % 60),
        s => format!("{} h {:02} min", s / 3600, s / 60 % 60),
    }
}

/// A size in bytes with a suitable unit, such as `1.5 MiB`.
pub fn bytes(n: u64) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{:.1} KiB", n as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", n as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", n as f64 / 1_073_741_824.0),
    }
}

/// 10 to the power `exponent`, to the last digit: on some systems `powi` is off by a unit.
pub fn power_of_ten(exponent: i32) -> f64 {
    format!("1e{exponent}").parse().expect("a number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_numbers_have_no_exponent() {
        let found = [0.0, 42.53, 100.0, 5.7401, 1.0, 0.0012345, 9.96, 0.1, 3.2e-7].map(short);
        assert_eq!(found, ["0", "43", "100", "5.7", "1", "0.0012", "10", "0.1", "0.00000032"]);
        assert_eq!(short(1e-12), "less than 0.000000001");
        assert_eq!([0.0, 2e-4, 1.0, 1.234e-5, 1.999e-3].map(rate), ["0", "2e-4", "1e0", "1.23e-5", "2e-3"]);
    }
}
