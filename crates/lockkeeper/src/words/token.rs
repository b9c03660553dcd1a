//! Fencing tokens.

use std::fmt;
use std::str::FromStr;

/// How many turns one number has room for.
pub const TURNS_PER_NUMBER: u64 = 64;

/// Unix seconds at which the clock part of a number starts: 2026-01-01T00:00:00Z.
pub const TICK_EPOCH_UNIX_SECONDS: u64 = 1_767_225_600;

/// A fencing token: below 2⁶³, strictly increasing per name over every exclusive turn.
///
/// Send it with every write, and let the resource refuse a write whose token is smaller than the
/// greatest it has seen. It is no number to count with: the only things to do with it are to store
/// it, to print it and to compare it. In JSON it is a decimal string, because half of the world
/// reads numbers as doubles.
///
/// ```
/// use lockkeeper::Token;
/// let seen: Token = "129600000064".parse()?;
/// let mine: Token = "129600000128".parse()?;
/// assert!(mine > seen);
/// # Ok::<(), lockkeeper::BadToken>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(u64);

impl Token {
    /// The token of one turn (0…63) of the hold with this number.
    ///
    /// `None` when the number leaves no room below 2⁶³, or the turn is above 63.
    pub fn of(number: u64, turn: u8) -> Option<Self> {
        let turn = u64::from(turn);
        if turn >= TURNS_PER_NUMBER || number >= (1 << 63) / TURNS_PER_NUMBER {
            return None;
        }
        Some(Self(number * TURNS_PER_NUMBER + turn))
    }

    /// A token as another program's counter keeps it: raw, never multiplied. `None` at or above
    /// 2⁶³.
    pub fn raw(value: u64) -> Option<Self> {
        (value < 1 << 63).then_some(Self(value))
    }

    /// The value, for storing beside the resource.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The value as an `i64`, which is what a `BIGINT` column holds; it always fits.
    /// `Token::try_from` reads it back.
    ///
    /// One expression serves every SQL client: `.bind(token.as_i64())` in sqlx,
    /// `&[&token.as_i64()]` in tokio-postgres, `fence.eq(token.as_i64())` in diesel,
    /// `[token.as_i64()]` in rusqlite, `(token.as_i64(),)` in mysql_async.
    ///
    /// ```
    /// # use lockkeeper::Token;
    /// let token: Token = "129600000064".parse()?;
    /// let column: i64 = token.as_i64();
    /// assert_eq!(Token::try_from(column)?, token);
    /// # Ok::<(), lockkeeper::BadToken>(())
    /// ```
    pub fn as_i64(self) -> i64 {
        self.0 as i64
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.0)
    }
}

/// What was read is no token: a token is a decimal number below 2⁶³, without sign or leading zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadToken(());

impl fmt::Display for BadToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a fencing token is a decimal number below 9223372036854775808, without sign or \
             leading zero",
        )
    }
}

impl std::error::Error for BadToken {}

impl TryFrom<i64> for Token {
    type Error = BadToken;

    /// Reads what [`Token::as_i64`] stored.
    fn try_from(value: i64) -> Result<Self, BadToken> {
        u64::try_from(value).ok().and_then(Self::raw).ok_or(BadToken(()))
    }
}

impl FromStr for Token {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Self, BadToken> {
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        let canonical = text == "0" || !text.starts_with('0');
        let value = if digits && canonical { text.parse().ok() } else { None };
        value.and_then(Self::raw).ok_or(BadToken(()))
    }
}

/// The next number of a name: one more than the last, and not below the engine's clock.
///
/// `clock_unix_us` is the engine's own clock in microseconds; a clock before 2026 counts as tick 0,
/// and then only the last number moves the result. `None` when the numbers are used up.
pub fn next_number(last: u64, clock_unix_us: u64) -> Option<u64> {
    let tick = clock_unix_us.saturating_sub(TICK_EPOCH_UNIX_SECONDS * 1_000_000) / 16;
    let next = last.checked_add(1)?.max(tick);
    Token::of(next, 63).map(|_| next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r7_numbers_rise_over_a_clock_that_goes_back() {
        let at = |s: u64| (TICK_EPOCH_UNIX_SECONDS + s) * 1_000_000;
        let first = next_number(0, at(100)).unwrap();
        assert_eq!(first, 100 * 1_000_000 / 16);
        assert_eq!(next_number(first, at(1)), Some(first + 1));
        assert_eq!(next_number(0, 0), Some(1));
        assert_eq!(next_number(u64::MAX, 0), None);
        assert_eq!(next_number((1 << 57) - 1, 0), None);
    }

    #[test]
    fn r7_clock_numbers_stay_exact_in_doubles_until_2097() {
        let end_of_2096 = 4_007_836_800u64; // 2097-01-01T00:00:00Z
        let number = next_number(0, end_of_2096 * 1_000_000).unwrap();
        let token = Token::of(number, 63).unwrap().get();
        assert!(number < 1 << 53, "{number}");
        assert!(token < 1 << 63);
    }

    #[test]
    fn c29_a_token_passes_through_a_bigint_column_and_a_negative_one_is_none() {
        for token in [Token(0), Token((1 << 63) - 1)] {
            assert_eq!(Token::try_from(token.as_i64()), Ok(token));
        }
        assert!(Token::try_from(-1).is_err());
    }

    #[test]
    fn tokens_read_back_what_they_print_and_nothing_else() {
        let t = Token::of(7, 3).unwrap();
        assert_eq!(t.to_string().parse(), Ok(t));
        for bad in ["", "+1", "-1", "01", " 1", "9223372036854775808", "1e3"] {
            assert!(bad.parse::<Token>().is_err(), "{bad}");
        }
    }
}
