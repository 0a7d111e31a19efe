//! When this program was started, and by which command line.

use std::sync::OnceLock;

use rustix::time::{ClockId, clock_gettime};

/// Options of the command line that say how results are printed, or are the suite's own.
const OF_OUTPUT: [&str; 3] = ["--json", "--csv", "--in-turns"];

/// When it was first asked for, in UTC: `2026-11-29 09:20`.
pub(crate) fn date() -> String {
    static FIRST: OnceLock<String> = OnceLock::new();
    FIRST.get_or_init(|| spelled(clock_gettime(ClockId::Realtime).tv_sec)).clone()
}

/// Seconds since 1970 as a date. Years begin in March here, so that a leap day ends its year.
fn spelled(seconds: i64) -> String {
    let (days, minutes) = (seconds.div_euclid(86_400) + 719_468, seconds.rem_euclid(86_400) / 60);
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", minutes / 60, minutes % 60)
}

/// The command line as it is typed.
pub(crate) fn command() -> String {
    typed(std::env::args().skip(1))
}

fn typed(arguments: impl Iterator<Item = String>) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=.,:/@%+".contains(letter);
    let kept = arguments.filter(|argument| !OF_OUTPUT.contains(&&**argument)).map(|argument| {
        let needs_quotes = argument.is_empty() || !argument.chars().all(is_plain);
        if needs_quotes { format!("'{}'", argument.replace('\'', r"'\''")) } else { argument }
    });
    std::iter::once("gimmal-bench".to_owned()).chain(kept).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date) in [
            (0, "1970-01-01 00:00"),
            (951_782_399, "2000-02-28 23:59"),
            (951_782_400, "2000-02-29 00:00"),
            (951_868_800, "2000-03-01 00:00"),
            (1_735_689_599, "2024-12-31 23:59"),
            (1_795_944_000, "2026-11-29 09:20"),
            (4_107_542_400, "2100-03-01 00:00"),
            (-1, "1969-12-31 23:59"),
        ] {
            assert_eq!(spelled(seconds), date, "{seconds}");
        }
    }

    #[test]
    fn a_command_is_typed_again_as_it_was() {
        let words = ["lat", "--loopback", "--json", "-s", "64..4k", "--with", "a b'c", ""].map(str::to_owned);
        assert_eq!(typed(words.into_iter()), r"gimmal-bench lat --loopback -s 64..4k --with 'a b'\''c' ''");
        assert!(date().len() == 16);
    }
}
