//! Upgrade and downgrade of a hold.

use std::os::fd::AsFd;
use std::sync::Arc;

use super::bytes::{Grip, HOT_AT, Span};
use super::driver::Driver;
use super::inspect;
use super::recipe::{End as Came, Event, Goal, Recipe};
use super::record::{About, Hot};
use super::state::{Hold, Share};
use super::{Opened, Shared, acquire, boot, dir, presence, wire};
use crate::engine::{Attempt, End, Error, ErrorKind, HoldId, Mode, Place};
use crate::words::claim::Claim;
use crate::words::clock::unix_us;
use crate::words::error::Result;
use crate::words::lost::Lost;

impl Shared {
    pub(super) fn convert(self: &Arc<Self>, hold: HoldId, claim: &Claim) -> Attempt {
        self.convert_now(hold, claim).unwrap_or_else(Attempt::Failed)
    }

    fn convert_now(self: &Arc<Self>, id: HoldId, claim: &Claim) -> Result<Attempt> {
        let opened = self.opened()?;
        let mut state = self.state();
        if state.closed {
            return Err(Error::new(ErrorKind::Closed, "these locks were closed"));
        }
        if state.waits.contains_key(&claim.id) {
            return Ok(Attempt::InLine(Place::default()));
        }
        if state.waits.values().any(|waiting| waiting.converts == Some(id)) {
            // Its thread is on the way out of the conversion before, and puts the locks back as
            // they were.
            let text = "the conversion before is being taken back: ask again";
            return Ok(Attempt::Unknown(Error::new(ErrorKind::Unknown, text).temporary(true)));
        }
        let Some(hold) = state.holds.get_mut(&id) else {
            return Err(Error::new(ErrorKind::Lost, "the hold no longer exists"));
        };
        if hold.converted.is_some_and(|(by, _)| by == claim.id) || hold.mode == claim.mode {
            return Ok(Attempt::Granted(acquire::grant(hold.mode, hold.number)));
        }
        match (hold.mode, claim.mode) {
            (Mode::Upgradable, Mode::Exclusive) => {}
            (Mode::Exclusive, Mode::Upgradable | Mode::Shared)
            | (Mode::Upgradable, Mode::Shared) => {
                downgrade(opened, hold, id, claim)?;
                hold.converted = Some((claim.id, hold.mode));
                hold.mode = claim.mode;
                return Ok(Attempt::Granted(acquire::grant(hold.mode, hold.number)));
            }
            (from, to) => {
                let text = format!(
                    "a hold cannot go from {} to {}: only an upgradable one becomes exclusive",
                    from.as_str(),
                    to.as_str()
                );
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
        }
        let failed =
            |e| dir::refused("duplicate the descriptor of", &opened.dir.file(&hold.key.file), e);
        let (file, keep) =
            (hold.share.file().twin().map_err(failed)?, hold.share.file().twin().map_err(failed)?);
        let key = hold.key.clone();
        drop(state);

        let mut recipe = Recipe::new(Goal::Upgrade, true);
        let mut driver = Driver::new(&opened.dir, &key, claim, opened.stamp(claim), file);
        driver.holder = id;
        match driver.run(&mut recipe, Event::Yes) {
            Some(Came::Granted) => {
                let number = driver.number;
                if let Some(hold) = self.state().holds.get_mut(&id) {
                    hold.converted = Some((claim.id, hold.mode));
                    (hold.mode, hold.number) = (claim.mode, number);
                }
                Ok(Attempt::Granted(acquire::grant(claim.mode, number)))
            }
            Some(Came::Busy | Came::Stopped | Came::Failed) => {
                Err(driver.error.unwrap_or_else(|| {
                    Error::new(
                        ErrorKind::Lost,
                        format!("the hold to be upgraded is lost: {}", Lost::Replaced),
                    )
                }))
            }
            None => {
                let place =
                    Place { holder: inspect::holder(&driver.file, &key), ..Place::default() };
                let (file, stamp) = (driver.file, driver.stamp);
                let order = acquire::Order {
                    claim: claim.clone(),
                    key,
                    recipe,
                    file,
                    stamp,
                    converts: Some((id, keep)),
                };
                let wait = self.stand(order)?;
                self.start(wait).map(|()| Attempt::InLine(place))
            }
        }
    }

    /// Takes back a conversion whose caller left before it heard of it.
    pub(super) fn unconvert(self: &Arc<Self>, id: HoldId) -> End {
        let Ok(opened) = self.opened() else { return End::NotOurs };
        let mut state = self.state();
        let Some(hold) = state.holds.get_mut(&id) else { return End::NotOurs };
        if let Some((_, Mode::Upgradable)) = hold.converted.take()
            && hold.mode == Mode::Exclusive
        {
            if let Err(error) = lower(opened, hold, Mode::Upgradable) {
                return End::Unknown(error);
            }
            hold.mode = Mode::Upgradable;
        }
        End::Freed
    }
}

/// Goes down to a mode that lets others in: shown to them first, with the number that every later
/// exclusive turn exceeds.
fn downgrade(opened: &Opened, hold: &mut Hold, id: HoldId, claim: &Claim) -> Result<()> {
    let failed = |e| dir::refused("write the lock file", &opened.dir.file(&hold.key.file), e);
    let mut hot = Hot::EMPTY;
    wire::read_at(hold.share.file(), &mut hot.0, HOT_AT).map_err(failed)?;
    let Some((record, _)) = hot.latest() else {
        return Err(hold.share.file().unreadable(&opened.dir, &hold.key));
    };
    // Every exclusive turn leaves one number free behind it, for all who share; an upgradable hold
    // has that one already, and as a reader's it gets the next turn of it.
    let free = if hold.mode == Mode::Exclusive { hold.number + 1 } else { hold.number };
    let number = free.max(record.number() + 1);
    let mut stamp = opened.stamp(claim);
    let bytes = stamp.stamped(About::of_mode(claim.mode), number, id, unix_us(), boot::id(), 0);
    match &mut hold.share {
        Share::Own { file, shown: Some(place), .. } => {
            presence::write_shown(file.as_fd(), *place, bytes).map_err(failed)?
        }
        Share::Own { file, shown, .. } => {
            *shown = presence::show(file.as_fd(), bytes, |_| false).map_err(failed)?
        }
        Share::Permits(..) => {}
    }
    // Whoever comes in now must not take it for somebody who waits.
    if let Share::Own { file, place, .. } = &mut hold.share
        && let Some(place) = place.take()
    {
        presence::retract(file, place);
    }
    lower(opened, hold, claim.mode)?;
    hold.number = number;
    Ok(())
}

/// Changes the locks only. Going down, the kernel refuses nothing.
fn lower(opened: &Opened, hold: &Hold, to: Mode) -> Result<()> {
    let failed = |e| dir::refused("unlock the lock file", &opened.dir.file(&hold.key.file), e);
    wire::try_lock(hold.share.file(), Span::MAIN, Grip::Read).map_err(failed)?;
    wire::unlock(hold.share.file(), Span::GATE).map_err(failed)?;
    if to == Mode::Shared {
        wire::unlock(hold.share.file(), Span::UPGRADE).map_err(failed)?;
    }
    Ok(())
}
