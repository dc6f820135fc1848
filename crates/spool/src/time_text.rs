//! The format of times in file names: `20261116T220203-123456`, in UTC, to the microsecond.

use postrider_core::Timestamp;

const MICROS_A_DAY: i64 = 86_400_000_000;
/// The range of times whose year has four digits, in microseconds.
const EARLIEST: i64 = -62_135_596_800_000_000;
const LATEST: i64 = 253_402_300_799_999_999;
const LENGTH: usize = 22;

pub(crate) fn write(time: Timestamp) -> String {
    let mut text = String::with_capacity(LENGTH);
    push(&mut text, time);
    text
}

/// Appends a time, clamped to years of four digits.
pub(crate) fn push(text: &mut String, time: Timestamp) {
    let micros = time.as_micros().clamp(EARLIEST, LATEST);
    let (year, month, day) = date(micros.div_euclid(MICROS_A_DAY));
    let of_day = micros.rem_euclid(MICROS_A_DAY);
    let (seconds, fraction) = (of_day / 1_000_000, of_day % 1_000_000);
    digits(text, year, 4);
    digits(text, month, 2);
    digits(text, day, 2);
    text.push('T');
    digits(text, seconds / 3600, 2);
    digits(text, seconds / 60 % 60, 2);
    digits(text, seconds % 60, 2);
    text.push('-');
    digits(text, fraction, 6);
}

pub(crate) fn read(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    if bytes.len() != LENGTH || bytes[8] != b'T' || bytes[15] != b'-' {
        return None;
    }
    let number = |from: usize, to: usize| {
        bytes[from..to]
            .iter()
            .try_fold(0i64, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + i64::from(byte - b'0')))
    };
    let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
    let (hour, minute, second) = (number(9, 11)?, number(11, 13)?, number(13, 15)?);
    let days = days(year, month, day);
    // Refuses the 30th of February as well as the 25th hour.
    if date(days) != (year, month, day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let seconds = hour * 3600 + minute * 60 + second;
    Some(Timestamp::from_micros(days * MICROS_A_DAY + seconds * 1_000_000 + number(16, 22)?))
}

fn digits(text: &mut String, number: i64, width: u32) {
    for location in (0..width).rev() {
        // A digit is below ten.
        text.push(char::from(b'0' + (number / 10i64.pow(location) % 10) as u8));
    }
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. Years are counted from March, so that the leap day is the
/// last of its year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let before_month = (153 * month + 2) / 5;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + before_month + day - 1 - 719_468
}

/// The date `days` days after 1970-01-01.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year_of_era, month + 3) } else { (year_of_era + 1, month - 9) };
    (era * 400 + year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read() {
        for (time, text) in [
            ("1970-01-01T00:00:00Z", "19700101T000000-000000"),
            ("2024-02-29T23:59:59.999999Z", "20240229T235959-999999"),
            ("2000-03-01T00:00:00Z", "20000301T000000-000000"),
            ("2126-11-16T22:02:03.000001Z", "21261116T220203-000001"),
            ("1969-12-31T23:59:59.5Z", "19691231T235959-500000"),
        ] {
            let time: Timestamp = time.parse().unwrap();
            assert_eq!(write(time), text);
            assert_eq!(read(text), Some(time));
        }
        assert_eq!(write(Timestamp::MAX), "99991231T235959-999999");
    }

    #[test]
    fn every_day_of_four_centuries_round_trips() {
        for day in -146_097..146_097 {
            let (year, month, date) = date(day);
            assert_eq!(days(year, month, date), day);
        }
    }

    #[test]
    fn invalid_times_are_refused() {
        for text in
            ["", "20240230T000000-000000", "20240101T240000-000000", "20240101T000000.000000", "2024010 T000000-000000"]
        {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
