//! Whom to believe about who the master is.

use super::errors;
use super::options::SentinelOptions;
use super::wire::Said;
use crate::engine::redis::options::Address;
use crate::words::error::Result;

/// The newest master that this process has heard of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Master {
    pub(super) at: Address,
    pub(super) epoch: u64,
}

/// The master to go to, where `named` is what the answers say, `before` the one that was known when
/// they were asked, and `known` the one of now. What was asked before another one was told of says
/// nothing against that, unless it is of a later failover.
pub(super) fn newest(known: Option<&Master>, before: Option<&Master>, named: Master) -> Master {
    let told = known.filter(|known| Some(*known) != before);
    told.filter(|told| told.epoch >= named.epoch).cloned().unwrap_or(named)
}

/// The master that a majority names of all Sentinels of the URL, by the latest failover that so
/// many of them know of: the epoch of one alone may be a lie, and would outdate every later one.
pub(super) fn agreed(options: &SentinelOptions, said: &[(usize, Said)]) -> Option<Master> {
    let majority = options.majority();
    said.iter().find_map(|(_, one)| {
        let same = said.iter().filter(|(_, said)| said.at == one.at);
        let mut epochs: Vec<u64> = same.map(|(_, said)| said.epoch).collect();
        epochs.sort_unstable_by(|one, other| other.cmp(one));
        let epoch = *epochs.get(majority - 1)?;
        Some(Master { at: one.at.clone(), epoch })
    })
}

/// Whom a process believes that has heard of a master: another one only where a majority names it.
/// The one that it has is dialled again also on the word of fewer, as long as more do not name
/// another one by a later failover.
///
/// An epoch below one that this process has heard of is of before a failover, so its master may be
/// the old one, cut off and alive. It counts only when every Sentinel of the URL is there and none
/// of them remembers the greater one: then they were set up anew.
///
/// # Errors
/// No majority names another master, and too few name the known one.
pub(super) fn next(
    options: &SentinelOptions,
    said: &[(usize, Said)],
    known: &Master,
) -> Result<Master> {
    let epoch = said.iter().map(|(_, said)| said.epoch).max().unwrap_or(0);
    let anew = said.len() == options.sentinels.len() && epoch < known.epoch;
    if let Some(agreed) = agreed(options, said) {
        if agreed.epoch >= known.epoch || anew {
            return Ok(agreed);
        }
        if agreed.at == known.at {
            return Ok(known.clone());
        }
    }
    let name = |at: &Address| said.iter().filter(|(_, said)| said.at == *at).count();
    let later = said.iter().map(|(_, said)| said).filter(|said| said.epoch > known.epoch);
    let later = later.filter(|said| said.at != known.at).max_by_key(|said| name(&said.at));
    match (name(&known.at), later) {
        (1.., None) => Ok(known.clone()),
        (same, Some(later)) if same >= name(&later.at) => Ok(known.clone()),
        (_, Some(later)) => Err(errors::unconfirmed(options, name(&later.at), &later.at)),
        (0, None) if epoch < known.epoch => {
            Err(errors::outdated(options, epoch, known.epoch, &known.at))
        }
        (0, None) => Err(errors::disagree(options, said)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::{at, options, said};
    use super::*;
    use crate::words::error::ErrorKind;

    /// Which master a process goes to that is told this, and by the failover of which epoch.
    fn chosen(
        sentinels: &str,
        told: &[(u16, u64)],
        known: Option<(u16, u64)>,
    ) -> Result<(u16, u64)> {
        let told: Vec<_> =
            told.iter().enumerate().map(|(n, (port, epoch))| (n, said(*port, *epoch))).collect();
        let options = options(sentinels);
        let master = match known {
            Some((port, epoch)) => next(&options, &told, &Master { at: at(port), epoch })?,
            None => agreed(&options, &told).ok_or_else(|| errors::disagree(&options, &told))?,
        };
        match master.at {
            Address::Tcp(_, port) => Ok((port, master.epoch)),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn b4_a_process_goes_to_another_master_only_where_a_majority_of_all_names_it() {
        let known = Some((1, 3));
        // One alone, whatever it says, and whether the others are there or not.
        for said in [&[(1, 3), (1, 3), (2, 9)][..], &[(1, 3), (2, 9)], &[(2, 9), (1, 3), (3, 4)]] {
            assert_eq!(chosen("a,b,c", said, known).unwrap(), (1, 3), "{said:?}");
        }
        let error = chosen("a,b,c", &[(2, 9)], known).unwrap_err();
        assert!(error.kind() == ErrorKind::Unreachable && error.is_temporary(), "{error}");
        assert!(error.message().contains("1 of the 3 Sentinels"), "{error}");
        assert_eq!(chosen("a,b,c", &[(2, 4), (2, 4)], known).unwrap(), (2, 4));
        assert_eq!(chosen("a,b,c", &[(1, 3), (2, 4), (2, 4)], known).unwrap(), (2, 4));
        assert_eq!(chosen("a", &[(2, 4)], known).unwrap(), (2, 4), "it is a majority of one");
        assert!(chosen("a,b,c,d,e", &[(2, 4), (2, 4), (1, 3)], known).is_err(), "more name it");
        // The known one is dialled again on the word of fewer.
        assert_eq!(chosen("a,b,c", &[(1, 3)], known).unwrap(), (1, 3));
        assert_eq!(chosen("a,b,c", &[(1, 3), (2, 2)], known).unwrap(), (1, 3), "that is older");
    }

    #[test]
    fn b4_an_epoch_that_one_sentinel_alone_names_outdates_no_later_failover() {
        for known in [None, Some((1, 3))] {
            let told = [(1, 3), (1, 1 << 60), (1, 3)];
            assert_eq!(chosen("a,b,c", &told, known).unwrap(), (1, 3), "{known:?}");
        }
        // One of them has not heard of it.
        assert_eq!(chosen("a,b,c", &[(1, 5), (1, 3), (1, 5)], Some((2, 4))).unwrap(), (1, 5));
    }

    #[test]
    fn b4_a_new_process_goes_by_a_majority_of_all_sentinels_of_the_url_at_any_epoch() {
        for epoch in [1, 3, 9] {
            let said = [(1, 3), (1, 3), (2, epoch)];
            assert_eq!(chosen("a,b,c", &said, None).unwrap(), (1, 3), "{epoch}");
        }
        assert_eq!(chosen("a,b,c", &[(1, 3), (1, 4)], None).unwrap().0, 1, "one is away");
        assert_eq!(chosen("a", &[(1, 0)], None).unwrap(), (1, 0));
        let said = [(1, 3), (2, 9)];
        let error = chosen("a,b,c", &said, None).unwrap_err();
        assert!(error.is_temporary() && error.message().contains("disagree"), "{error}");
        assert!(chosen("a,b,c,d,e", &[(1, 3), (1, 3)], None).is_err(), "two of five");
    }

    #[test]
    fn b4_of_what_was_told_and_what_was_answered_the_later_failover_counts() {
        let master = |port, epoch| Master { at: at(port), epoch };
        let (old, told) = (master(1, 3), master(2, 4));
        for (known, answered, counts) in [
            (&old, master(1, 3), 1),
            (&old, master(2, 4), 2),
            // Told while they were asked.
            (&told, master(1, 3), 2),
            (&told, master(3, 4), 2),
            (&told, master(3, 5), 3),
        ] {
            let newest = newest(Some(known), Some(&old), answered.clone());
            assert_eq!(newest.at, at(counts), "{known:?} {answered:?}");
        }
        assert_eq!(newest(None, None, master(1, 0)), master(1, 0));
        assert_eq!(newest(Some(&told), Some(&told), master(1, 0)), master(1, 0), "set up anew");
    }

    #[test]
    fn as_many_voices_for_two_masters_are_an_error_that_names_both() {
        for known in [None, Some((3, 2))] {
            let error = chosen("a,b", &[(1, 2), (2, 2)], known).unwrap_err();
            assert!(error.is_temporary(), "{error}");
            for part in ["a:26379 names h:1", "b:26379 names h:2", "disagree"] {
                assert!(error.message().contains(part), "{part}: {error}");
            }
        }
    }

    #[test]
    fn a_master_of_before_the_last_failover_is_not_believed() {
        let error = chosen("a,b,c", &[(1, 3), (1, 3)], Some((2, 4))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.message().contains("epoch 4 moved the master to h:2"), "{error}");
        // All of them are there and none remembers it: they were set up anew.
        assert_eq!(chosen("a,b,c", &[(1, 0), (1, 0), (1, 0)], Some((2, 4))).unwrap(), (1, 0));
        assert_eq!(chosen("a,b,c", &[(2, 4)], Some((2, 4))).unwrap(), (2, 4));
        assert_eq!(chosen("a,b,c", &[(1, 3), (1, 3), (2, 4)], Some((2, 4))).unwrap(), (2, 4));
    }
}
