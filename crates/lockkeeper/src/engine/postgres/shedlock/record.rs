//! What stands in `locked_by`: of a hold of ours its host, its claim, its process, its program and
//! its label, a word each. Whoever else takes a lock writes the name of its host there, unless it
//! says otherwise.
//!
//! ShedLock compares this text at release, and so do we: the claim in it makes each hold's own.

use crate::engine::sql::record::{Us, left};
use crate::engine::words::{escape, time_of, unescape};
use crate::words::claim::{Ends, Holder, Identity, Mode};
use crate::words::id::ClaimId;

/// What tells a text of ours, behind the host.
const MARK: &str = "lockkeeper";
/// How much of somebody else's text is shown.
const SHOWN_MAX: usize = 200;

/// As much of a text, written as one word, as there is room for.
fn fit(text: &str, room: usize) -> String {
    let mut word = String::new();
    for char in text.chars() {
        let next = escape(char.encode_utf8(&mut [0; 4]));
        if word.len() + next.len() > room {
            break;
        }
        word.push_str(&next);
    }
    word
}

/// What a claim writes; it has so many bytes at most, all of them ASCII.
pub(super) fn locked_by(id: ClaimId, who: &Identity, most: usize) -> String {
    let ours = format!(" {MARK} {id} {}", who.pid);
    let mut text = fit(&who.host, most.saturating_sub(ours.len()));
    text.push_str(&ours);
    for word in [Some(who.program.as_str()), who.label.as_deref()].into_iter().flatten() {
        let room = most.saturating_sub(text.len() + 1);
        let word = fit(word, room);
        if word.is_empty() {
            break;
        }
        text.push(' ');
        text.push_str(&word);
    }
    text
}

/// The claim that a text of ours names.
pub(super) fn claim_of(by: &str) -> Option<ClaimId> {
    let mut words = by.split(' ').skip(1);
    let (mark, claim) = (words.next()?, words.next()?);
    let claim = (mark == MARK && claim.len() == 32).then(|| u128::from_str_radix(claim, 16));
    Some(ClaimId(claim?.ok()?))
}

/// Who holds a lock, which was taken at `since` and has so much time left.
pub(super) fn holder(by: &str, since: Us, rest: Us) -> Holder {
    let mut holder = Holder {
        since: time_of(&since.to_string()),
        mode: Some(Mode::Exclusive),
        ends: Some(Ends::Lease(left(rest))),
        ..Holder::default()
    };
    if let Some(claim) = claim_of(by) {
        let mut words = by.split(' ');
        holder.host = words.next().filter(|host| !host.is_empty()).and_then(unescape);
        let mut words = words.skip(2);
        holder.claim = Some(claim);
        holder.pid = words.next().and_then(|pid| pid.parse().ok());
        holder.program = words.next().and_then(unescape);
        holder.label = words.next().and_then(unescape);
        return holder;
    }
    let shown: String = by.chars().flat_map(char::escape_debug).take(SHOWN_MAX).collect();
    // ShedLock writes the name of its host unless it is told otherwise.
    let is_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if by.chars().all(is_host) {
        holder.host = Some(shown);
    } else {
        holder.label = Some(shown);
    }
    holder
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(host: &str, program: &str, label: Option<&str>) -> Identity {
        Identity {
            host: host.into(),
            pid: 4121,
            started: 0,
            program: program.into(),
            label: label.map(Into::into),
        }
    }

    #[test]
    fn what_a_claim_writes_names_it_and_its_process() {
        let who = who("web-1.example", "report.sh", Some("nächtlich"));
        let text = locked_by(ClaimId(0xabc), &who, 255);
        assert_eq!(
            text,
            "web-1.example lockkeeper 00000000000000000000000000000abc 4121 report.sh \
             n%C3%A4chtlich"
        );
        let holder = holder(&text, 1_000_000, 2_000_000);
        assert_eq!(holder.claim, Some(ClaimId(0xabc)));
        assert_eq!((holder.host.as_deref(), holder.pid), (Some("web-1.example"), Some(4121)));
        assert_eq!(holder.program.as_deref(), Some("report.sh"));
        assert_eq!(holder.label.as_deref(), Some("nächtlich"));
        assert_eq!(holder.expires_in(), Some(std::time::Duration::from_secs(2)));
    }

    #[test]
    fn r3_the_claim_stands_there_however_little_room_there_is() {
        let long = "ä b".repeat(300);
        for most in [64, 65, 66, 100, 255] {
            let text = locked_by(ClaimId(u128::MAX), &who(&long, &long, Some(&long)), most);
            assert!(text.len() <= most && text.is_ascii(), "{most}: {text}");
            assert_eq!(claim_of(&text), Some(ClaimId(u128::MAX)));
            let shown = holder(&text, 0, 0);
            assert!(long.starts_with(&shown.host.unwrap_or_default()), "{text}");
            assert_eq!(shown.pid, Some(4121));
        }
    }

    #[test]
    fn somebody_elses_text_is_shown_as_a_host_or_as_it_stands() {
        let spring = holder("batch-7.example", 5, 7);
        assert_eq!((spring.host.as_deref(), spring.claim), (Some("batch-7.example"), None));
        let other = holder("node 7\n", 5, 7);
        assert_eq!((other.host, other.label.as_deref()), (None, Some("node 7\\n")));
        for not_ours in ["", "lockkeeper", "h lockkeeper 12 3", "h lockkeeper +fff 3"] {
            assert_eq!(claim_of(not_ours), None, "{not_ours}");
        }
    }
}
