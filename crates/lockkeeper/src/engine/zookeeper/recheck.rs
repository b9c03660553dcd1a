//! The net under a lost wake-up (R10): one message for all claims of the process, and the nodes
//! that none of them knows.

use super::inspect;
use super::layout::Layout;
use super::proto::{Code, Reply, Request};
use super::recipe::{Input, Seen};
use super::session::Shared;
use super::state::Fault;
use crate::engine::Standing;
use crate::words::id::ClaimId;

/// How many claims are asked about in one message: at the longest names that is less than a server
/// takes.
const ASKED_AT_ONCE: usize = 256;

/// Asks the quorum whether the holds' nodes are there, and looks whether the nodes that places wait
/// for still are.
pub(super) async fn recheck(shared: &Shared, claims: &[ClaimId]) -> Vec<Standing> {
    let (mut waits, mut asked) = (false, false);
    for part in claims.chunks(ASKED_AT_ONCE) {
        match look_at_holds(shared, part).await {
            Some(some) => asked |= some,
            None => return unknown(shared, claims),
        }
        {
            let mut state = shared.lock();
            part.iter().for_each(|id| state.look_again(*id));
        }
        match look_at_places(shared, part).await {
            Some(some) => waits |= some,
            None => return unknown(shared, claims),
        }
    }
    // A claim whose node is not made yet has nothing to ask about, and is in line by our word
    // alone.
    if !asked && !waits {
        let root = shared.options.root();
        if inspect::ask(shared, Request::Exists { path: root, watch: false })
            .await
            .is_err_and(|fault| fault.is_silence())
        {
            return unknown(shared, claims);
        }
    }
    // Nor is a place waited for behind a node of our own that nobody here knows.
    if waits
        && let Ok(Reply::Children(paths)) =
            inspect::ask(shared, Request::GetEphemerals { prefix: shared.options.root() }).await
    {
        shared.lock().drop_leftovers(&paths);
    }
    let state = shared.lock();
    claims.iter().map(|id| state.stands(*id)).collect()
}

/// The ensemble did not answer.
fn unknown(shared: &Shared, claims: &[ClaimId]) -> Vec<Standing> {
    let error = shared.lock().unanswered();
    vec![Standing::Unknown(error); claims.len()]
}

/// Whether anything was asked; `None` when the quorum did not answer.
async fn look_at_holds(shared: &Shared, claims: &[ClaimId]) -> Option<bool> {
    let mut asked = false;
    loop {
        let (nodes, checks): (Vec<_>, Vec<_>) = {
            let state = shared.lock();
            let entries = claims.iter().filter_map(|id| Some((*id, state.claims.get(id)?)));
            let nodes = entries.flat_map(|(id, entry)| {
                entry
                    .machine
                    .rests_on()
                    .into_iter()
                    .map(move |name| (id, &entry.dir, name.to_owned()))
            });
            nodes
                .map(|(id, dir, name)| {
                    (
                        (id, name.clone()),
                        Request::Check { path: format!("{dir}/{name}"), version: -1 },
                    )
                })
                .unzip()
        };
        if nodes.is_empty() {
            return Some(asked);
        }
        asked = true;
        let replies = match inspect::ask(shared, Request::Multi(checks)).await {
            Ok(Reply::Many(replies)) => replies,
            Ok(_) => return Some(true),
            Err(_) => return None,
        };
        let gone = replies.iter().position(|r| *r == Err(Code::NO_NODE));
        let Some((id, name)) = gone.and_then(|at| nodes.get(at)) else { return Some(true) };
        shared.lock().step(*id, Input::Own(name.clone(), Err(Code::NO_NODE)));
    }
}

/// The net under a lost wake-up, and under a server that shows what its ensemble does not have. In
/// the layout plain it looks for contenders of another prefix, too. Answers whether there are any
/// places; `None` when the ensemble did not answer.
async fn look_at_places(shared: &Shared, claims: &[ClaimId]) -> Option<bool> {
    let (places, mut reads): (Vec<_>, Vec<_>) = {
        let state = shared.lock();
        let waiting = claims.iter().filter_map(|id| {
            let (id, entry, before) = state.waits(*id)?;
            Some((
                (id, before.to_owned()),
                Request::GetData { path: format!("{}/{before}", entry.dir), watch: false },
            ))
        });
        waiting.unzip()
    };
    if places.is_empty() {
        return Some(false);
    }
    if matches!(shared.options.layout, Layout::Plain { .. }) {
        let state = shared.lock();
        let dirs = places.iter().filter_map(|(id, _)| Some(state.claims.get(id)?.dir.clone()));
        reads.extend(dirs.map(|path| Request::GetChildren { path }));
    }
    let mut replies = match inspect::ask(shared, Request::MultiRead(reads)).await {
        Ok(Reply::Many(replies)) => replies,
        Err(fault) if fault.is_silence() => return None,
        _ => return Some(true),
    };
    let lists = replies.split_off(places.len().min(replies.len()));
    for ((id, _), names) in places.iter().zip(lists) {
        if let Ok(Reply::Children(names)) = names {
            shared.lock().look_for_strangers(*id, &names);
        }
    }
    let (there, checks): (Vec<_>, Vec<_>) = {
        let mut state = shared.lock();
        let mut there = Vec::new();
        for ((id, name), reply) in places.into_iter().zip(replies) {
            match reply {
                Err(Code::NO_NODE) => state.step(id, Input::Watched(name, Seen::Gone)),
                // It looked like a contender before its first child came.
                Ok(Reply::Data(_, stat)) if stat.is_directory() => {
                    state.step(id, Input::Watched(name, Seen::NoContender))
                }
                _ => there.push((id, name)),
            }
        }
        let check = |(id, name): (ClaimId, String)| {
            let path = format!("{}/{name}", state.claims.get(&id)?.dir);
            Some(((id, name), Request::Check { path, version: -1 }))
        };
        there.into_iter().filter_map(check).unzip()
    };
    if checks.is_empty() {
        return Some(true);
    }
    // This server shows them; whether they are there is what the quorum says.
    let quorum = inspect::ask(shared, Request::Multi(checks)).await;
    if quorum.as_ref().is_err_and(Fault::is_silence) {
        return None;
    }
    if let Ok(Reply::Many(replies)) = quorum {
        let gone = replies.iter().position(|part| *part == Err(Code::NO_NODE));
        if let Some((id, name)) = gone.and_then(|at| there.get(at)) {
            shared.lock().doubt(*id, name);
        }
    }
    Some(true)
}
