//! Dates that templates write.

/// A date, in days since 1970-01-01.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date(pub i64);

impl Date {
    /// Year, month from 1, and day from 1, by Howard Hinnant's `civil_from_days`.
    pub fn civil(self) -> (i64, i64, i64) {
        let z = self.0 + 719_468;
        let (era, day) = (z.div_euclid(146_097), z.rem_euclid(146_097));
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
        (year + era * 400 + i64::from(month <= 2), month, day)
    }

    /// `2026-09-05`.
    pub(super) fn iso(self) -> String {
        let (year, month, day) = self.civil();
        format!("{year}-{month:02}-{day:02}")
    }

    /// Day of the week; 0 is Sunday.
    pub(super) fn weekday(self) -> usize {
        (self.0 + 4).rem_euclid(7) as usize
    }
}
