//! What is written down about a name: one row, and a row for each place in its line.
//!
//! The row's text has a line for each holder and for whatever else there is to say. Of a holder
//! that is alone the row itself says the number, the time of its grant and the end of its lease, so
//! that a statement can grant, renew and give back without reading.

use std::time::Duration;

use crate::engine::words::{fill_who, time_of, who_word};
use crate::words::claim::{Claim, Ends, Holder, Mode, Waiter};
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::ClaimId;
use crate::words::name::Kind;
use crate::words::token::Token;

/// The number of this layout (R17).
pub(in crate::engine) const LAYOUT: u32 = 1;

/// How long a latch remembers who counted it down.
const COUNTED_US: i64 = 600_000_000;

/// Microseconds of the server's clock.
pub(in crate::engine) type Us = i64;

/// A name's row, as the columns have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::engine) struct Row {
    /// The server's clock at the first write, then one more at every write.
    pub(in crate::engine) version: i64,
    /// The last number; every passing of the hold changes it, and no renewal does.
    pub(in crate::engine) number: i64,
    /// The only holder.
    pub(in crate::engine) claim: Option<ClaimId>,
    /// From then on nobody holds it, delays included; 0 for a free one.
    pub(in crate::engine) ends: Us,
    /// When the only holder was granted it.
    pub(in crate::engine) since: Us,
    /// Whether more than this row has to be read before somebody is granted it.
    pub(in crate::engine) line: bool,
    /// Everything else.
    pub(in crate::engine) record: String,
}

/// Somebody who holds it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine) struct Hold {
    pub(in crate::engine) claim: ClaimId,
    pub(in crate::engine) mode: char,
    pub(in crate::engine) count: u16,
    pub(in crate::engine) number: u64,
    pub(in crate::engine) ttl: Us,
    pub(in crate::engine) delay: Us,
    pub(in crate::engine) since: Us,
    /// The end of its lease, without the delay after it.
    pub(in crate::engine) ends: Us,
    /// Where its process hears.
    pub(in crate::engine) channel: String,
    /// When its last conversion was first asked for; 0 for none.
    pub(in crate::engine) conversion: Us,
    pub(in crate::engine) who: String,
}

/// Somebody who stands in line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine) struct Place {
    /// Its order; 0 for an upgrade.
    pub(in crate::engine) seq: i64,
    pub(in crate::engine) claim: ClaimId,
    /// Until when it lives without another sign.
    pub(in crate::engine) alive: Us,
    /// When it was asked for a sign of life; 0 for never.
    pub(in crate::engine) asked: Us,
    pub(in crate::engine) mode: char,
    pub(in crate::engine) count: u16,
    pub(in crate::engine) ttl: Us,
    pub(in crate::engine) delay: Us,
    /// When it was first asked for.
    pub(in crate::engine) since: Us,
    pub(in crate::engine) channel: String,
    /// The hold that it would convert.
    pub(in crate::engine) hold: Option<ClaimId>,
    pub(in crate::engine) who: String,
}

/// Everything about a name but its line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::engine) struct Lock {
    /// 0: there is no row.
    pub(in crate::engine) version: i64,
    pub(in crate::engine) number: u64,
    pub(in crate::engine) holds: Vec<Hold>,
    /// A semaphore's limit.
    pub(in crate::engine) limit: u16,
    /// A latch's count.
    pub(in crate::engine) count: u64,
    /// Who counted a latch down lately, and when.
    pub(in crate::engine) counted: Vec<(ClaimId, Us)>,
    /// Claims that are refused until then: a request may still be on its way.
    pub(in crate::engine) refused: Vec<(ClaimId, Us)>,
    /// A lease ended later than it can: the server's clock was set back.
    pub(in crate::engine) clamped: bool,
}

/// A kind as the column has it.
pub(in crate::engine) fn kind_number(kind: Kind) -> i16 {
    match kind {
        Kind::Lock => 0,
        Kind::Semaphore => 1,
        Kind::Election => 2,
        Kind::Latch => 3,
    }
}

/// Reads what [`kind_number`] wrote.
pub(in crate::engine) fn kind_of(number: i16) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| kind_number(*kind) == number)
}

/// Whole microseconds, at least one where there is anything.
pub(in crate::engine) fn micros(time: Duration) -> Us {
    Us::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(Us::MAX)
}

/// A time that is left; none where it has passed.
pub(in crate::engine) fn left(us: Us) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or(0))
}

fn letter(mode: Mode) -> char {
    match mode {
        Mode::Exclusive => 'x',
        Mode::Shared => 's',
        Mode::Upgradable => 'u',
        Mode::Permits { .. } => 'p',
    }
}

fn mode_of(letter: char, count: u16, limit: u16) -> Option<Mode> {
    Some(match letter {
        'x' => Mode::Exclusive,
        's' => Mode::Shared,
        'u' => Mode::Upgradable,
        'p' => Mode::Permits { count, limit },
        _ => return None,
    })
}

pub(super) fn damaged(what: &str) -> Error {
    let text = format!(
        "its row in the table …_locks, or a place of it in …_line, cannot be read ({what}): it is \
         damaged, or not lockkeeper's; delete both once nobody uses the name"
    );
    Error::new(ErrorKind::Corrupt, text)
}

/// The words of a line, read one after the other.
struct Words<'a>(std::str::Split<'a, char>);

impl<'a> Words<'a> {
    fn word(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    fn read<T: std::str::FromStr>(&mut self) -> Option<T> {
        self.word()?.parse().ok()
    }

    fn claim(&mut self) -> Option<ClaimId> {
        ClaimId::parse(self.word()?)
    }

    /// A number, or what the row says in its place.
    fn or<T: std::str::FromStr>(&mut self, row: T) -> Option<T> {
        match self.word()? {
            "-" => Some(row),
            word => word.parse().ok(),
        }
    }
}

impl Hold {
    /// What a place becomes that is granted.
    pub(in crate::engine) fn of(place: &Place, number: u64, now: Us, lease: Us) -> Self {
        Self {
            claim: place.claim,
            mode: place.mode,
            count: place.count,
            number,
            ttl: place.ttl,
            delay: place.delay,
            since: now,
            ends: now.saturating_add(lease),
            channel: place.channel.clone(),
            conversion: 0,
            who: place.who.clone(),
        }
    }

    /// When somebody else may have the lock.
    pub(in crate::engine) fn frees(&self) -> Us {
        self.ends.saturating_add(self.delay)
    }

    /// `by_row`: the row says the number, the times, or both.
    fn text(&self, number: Option<u64>, since: Option<Us>, ends: Option<Us>) -> String {
        let or = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
        format!(
            "h {} {} {} {} {} {} {} {} {} {} {}",
            self.claim,
            self.mode,
            self.count,
            or(number.map(|n| n.to_string())),
            self.ttl,
            self.delay,
            or(since.map(|n| n.to_string())),
            or(ends.map(|n| n.to_string())),
            self.channel,
            self.conversion,
            self.who
        )
    }

    fn parse(mut words: Words<'_>, row: &Row) -> Option<Self> {
        let claim = words.claim()?;
        let mode = words.read()?;
        let count = words.read()?;
        let number = words.or(u64::try_from(row.number).ok()?)?;
        let (ttl, delay): (Us, Us) = (words.read()?, words.read()?);
        let since = words.or(row.since)?;
        let ends = words.or(row.ends.saturating_sub(delay))?;
        let channel = words.word()?.to_owned();
        let conversion = words.read()?;
        let who = words.word()?.to_owned();
        mode_of(mode, 1, 1)?;
        let hold =
            Self { claim, mode, count, number, ttl, delay, since, ends, channel, conversion, who };
        (ttl >= 0 && delay >= 0 && words.word().is_none()).then_some(hold)
    }

    /// As it is shown.
    pub(in crate::engine) fn shown(&self, kind: Kind, limit: u16, now: Us) -> Holder {
        let mut holder = Holder {
            claim: Some(self.claim),
            mode: mode_of(self.mode, self.count, limit),
            since: time_of(&self.since.to_string()),
            ends: Some(Ends::Lease(left(self.ends - now))),
            ..Holder::default()
        };
        // The turn inside the hold is known to its own process alone.
        if kind != Kind::Semaphore {
            holder.token = Token::of(self.number, 0);
        }
        fill_who(&self.who, &mut holder);
        holder
    }
}

impl Place {
    /// What a claim asks for; `since`: when it was first asked for, on the server's clock.
    pub(in crate::engine) fn of(
        claim: &Claim,
        hold: Option<ClaimId>,
        channel: &str,
        since: Us,
    ) -> Self {
        Self {
            seq: -1,
            claim: claim.id,
            alive: 0,
            asked: 0,
            mode: letter(claim.mode),
            count: claim.mode.permits().unwrap_or(1),
            ttl: micros(claim.ttl),
            delay: micros(claim.lock_delay),
            since,
            channel: channel.to_owned(),
            hold,
            who: who_word(&claim.who, claim.value.as_deref()),
        }
    }

    /// What its row says, beside the columns.
    pub(in crate::engine) fn text(&self) -> String {
        let hold = self.hold.map_or_else(|| "-".to_owned(), |hold| hold.to_string());
        format!(
            "{} {} {} {} {} {} {hold} {}",
            self.mode, self.count, self.ttl, self.delay, self.since, self.channel, self.who
        )
    }

    /// Reads `seq alive asked claim`, and what [`Place::text`] wrote.
    pub(in crate::engine) fn parse(text: &str) -> Option<Self> {
        let mut words = Words(text.split(' '));
        let (seq, alive, asked, claim) =
            (words.read()?, words.read()?, words.read()?, words.claim()?);
        let (mode, count, ttl, delay) =
            (words.read()?, words.read()?, words.read()?, words.read()?);
        let (since, channel) = (words.read()?, words.word()?.to_owned());
        let hold = match words.word()? {
            "-" => None,
            hold => Some(ClaimId::parse(hold)?),
        };
        let who = words.word()?.to_owned();
        mode_of(mode, 1, 1)?;
        let place =
            Self { seq, claim, alive, asked, mode, count, ttl, delay, since, channel, hold, who };
        words.word().is_none().then_some(place)
    }

    /// The text of a holder that a statement grants without reading: the row says number and times.
    pub(in crate::engine) fn granted_text(&self) -> String {
        format!("{LAYOUT}\n{}", Hold::of(self, 0, 0, 0).text(None, None, None))
    }

    /// As it is shown.
    pub(in crate::engine) fn shown(&self, limit: u16, ahead: u32) -> Waiter {
        let mut shown = Holder::default();
        fill_who(&self.who, &mut shown);
        Waiter {
            host: shown.host,
            pid: shown.pid,
            since: time_of(&self.since.to_string()),
            ahead: Some(ahead),
            mode: mode_of(self.mode, self.count, limit),
        }
    }
}

impl Lock {
    /// What a row says.
    ///
    /// # Errors
    /// `Corrupt`, or `NewerLayout` with both numbers.
    pub(in crate::engine) fn of(row: Option<&Row>, now: Us) -> Result<Self> {
        let Some(row) = row else { return Ok(Self::default()) };
        let number = u64::try_from(row.number).map_err(|_| damaged("its number"))?;
        let mut lock = Self { version: row.version, number, ..Self::default() };
        let mut lines = row.record.split('\n');
        match lines.next().map(str::parse::<u32>) {
            Some(_) if row.record.is_empty() => return Ok(lock),
            Some(Ok(LAYOUT)) => {}
            Some(Ok(newer)) if newer > LAYOUT => {
                let text = format!(
                    "its row has layout {newer}, and this lockkeeper knows up to {LAYOUT}: use \
                     the newer release everywhere"
                );
                return Err(Error::new(ErrorKind::NewerLayout, text));
            }
            _ => return Err(damaged("its layout")),
        }
        for line in lines {
            lock.take(line, row, now).ok_or_else(|| damaged(line))?;
        }
        Ok(lock)
    }

    fn take(&mut self, line: &str, row: &Row, now: Us) -> Option<()> {
        let mut words = Words(line.split(' '));
        match words.word()? {
            "h" => {
                let mut hold = Hold::parse(words, row)?;
                // The server's clock was set back (D2): no lease has more left than it began with.
                let most = now.saturating_add(hold.ttl);
                self.clamped |= hold.ends > most;
                hold.ends = hold.ends.min(most);
                self.holds.push(hold);
            }
            "l" => self.limit = words.read()?,
            "c" => self.count = words.read()?,
            "d" => {
                let counted = (words.claim()?, words.read()?);
                if counted.1 + COUNTED_US > now {
                    self.counted.push(counted);
                }
            }
            "r" => {
                let refused = (words.claim()?, words.read()?);
                if refused.1 > now {
                    self.refused.push(refused);
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Its row, where somebody stands in line or nobody does.
    pub(in crate::engine) fn row(&self, waits: bool) -> Row {
        let alone = match self.holds.as_slice() {
            [one] => Some(one),
            _ => None,
        };
        let holds = self.holds.iter().map(|hold| {
            let (since, ends) = (hold.since, hold.ends);
            let times = alone.is_none().then_some(ends);
            hold.text(Some(hold.number), alone.is_none().then_some(since), times)
        });
        let limit = (self.limit > 0).then(|| format!("l {}", self.limit));
        let count = (self.count > 0).then(|| format!("c {}", self.count));
        let counted = self.counted.iter().map(|(claim, at)| format!("d {claim} {at}"));
        let refused = self.refused.iter().map(|(claim, until)| format!("r {claim} {until}"));
        let lines: Vec<String> =
            holds.chain(limit).chain(count).chain(counted).chain(refused).collect();
        let record = if lines.is_empty() {
            String::new()
        } else {
            format!("{LAYOUT}\n{}", lines.join("\n"))
        };
        Row {
            version: self.version + 1,
            number: i64::try_from(self.number).unwrap_or(i64::MAX),
            claim: alone.map(|hold| hold.claim),
            ends: self.holds.iter().map(Hold::frees).max().unwrap_or(0),
            since: alone.map_or(0, |hold| hold.since),
            line: waits || !self.refused.is_empty(),
            record,
        }
    }

    /// The hold of a claim.
    pub(in crate::engine) fn hold(&mut self, claim: ClaimId) -> Option<&mut Hold> {
        self.holds.iter_mut().find(|hold| hold.claim == claim)
    }
}
