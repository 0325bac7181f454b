//! Formats numbers, times and sizes for people.

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
