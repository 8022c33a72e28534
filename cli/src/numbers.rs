//! Parsing of numbers on the command line, with the expected range in the error.

use clap::Command;
use std::str::FromStr;

/// Parses a whole number of at least `LEAST`, for `value_parser`.
///
/// # Errors
/// Message with the expected range.
pub(crate) fn whole<const LEAST: u64, T: TryFrom<u64> + FromStr>(text: &str) -> Result<T, String> {
    let expected = || format!("expected a whole number from {LEAST}");
    let digits = text.strip_prefix('+').unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let number: u64 = text.parse().map_err(|_| format!("{}; this one is too large", expected()))?;
        if number >= LEAST {
            return T::try_from(number).map_err(|_| format!("{}; this one is too large", expected()));
        }
    }
    Err(expected())
}

/// Parses a positive number with an optional suffix K, M, G, T or P, for `value_parser`.
///
/// # Errors
/// Message with the expected form.
pub(crate) fn with_suffix(text: &str) -> Result<f64, String> {
    let split = text.len() - text.chars().last().filter(char::is_ascii_alphabetic).map_or(0, char::len_utf8);
    let (number, suffix) = text.split_at(split);
    let scale = match suffix {
        "" => 1.0,
        "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        _ => f64::NAN,
    };
    match number.parse::<f64>() {
        Ok(number) if number * scale > 0.0 && (number * scale).is_finite() => Ok(number * scale),
        _ => Err("expected a positive number, with K, M, G, T or P behind it".to_owned()),
    }
}

/// Makes `-5` the value of the option before it, in `command` and all its subcommands, so that the error states the range of
/// the option. By default clap parses it as an unknown option and suggests `-- -5`, which would be a positional argument.
pub(crate) fn negative_numbers_are_values(command: Command) -> Command {
    command
        .mut_args(|argument| {
            let takes_values = argument.get_action().takes_values();
            if takes_values { argument.allow_negative_numbers(true) } else { argument }
        })
        .mut_subcommands(negative_numbers_are_values)
}

#[cfg(test)]
mod tests {
    use super::{whole, with_suffix};

    #[test]
    fn a_suffix_scales_a_number() {
        assert_eq!(["25G", "1.5T", "300", "2e3"].map(with_suffix), [Ok(25e9), Ok(1.5e12), Ok(300.0), Ok(2000.0)]);
        for text in ["", "G", "-1G", "0", "1g", "nan", "inf", "1 G", "1GB", "é", "1e308G"] {
            assert!(with_suffix(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_number_is_taken_only_if_it_is_whole_and_large_enough() {
        assert_eq!(whole::<1, usize>("1"), Ok(1));
        assert_eq!(whole::<0, u64>("18446744073709551615"), Ok(u64::MAX));
        for text in ["0", "-5", "", "1.5", "five", "1e3", " 7"] {
            assert_eq!(whole::<1, usize>(text), Err("expected a whole number from 1".to_owned()), "{text}");
        }
        for text in ["99999999999999999999", "4294967296"] {
            assert!(whole::<1, u32>(text).unwrap_err().contains("too large"), "{text}");
        }
    }
}
