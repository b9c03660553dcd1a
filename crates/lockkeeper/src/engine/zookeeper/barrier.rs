//! Double barriers: a node for each member, and one more, `ready`, as soon as enough have come in;
//! in Curator's and kazoo's shape, step by step.
//!
//! Whoever leaves deletes its node and waits until nobody's is there. Only the first of them, by
//! name, keeps its own until it is the last: Curator's wait for its end.

use std::sync::Arc;

use super::errors;
use super::inspect::{ask, catch_up, failed};
use super::latch::{done, parents};
use super::name;
use super::proto::{Code, Create, Reply, Request};
use super::session::Shared;
use super::state::Fault;
use crate::engine::Membership;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::ClaimId;
use crate::words::name::Name;

/// Says that enough have come in.
const READY: &str = "ready";
/// How often a step is tried against others.
const TRIES: u32 = 1_000;

/// A member that comes in, or has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Member {
    /// The session with which its node lives; 0 before one was asked for.
    session: i64,
    /// It has finished: that its node is gone is as it should be.
    leaves: bool,
}

/// Whether a child is a member's, of Curator's shape or kazoo's.
fn is_member(name: &str) -> bool {
    let hex = name.bytes().filter(u8::is_ascii_hexdigit).count();
    let dashes = name.bytes().filter(|b| *b == b'-').count();
    hex == 32 && hex + dashes == name.len() && (dashes == 0 || dashes == 4)
}

/// See [`Engine::barrier`](crate::engine::Engine::barrier).
///
/// Whoever withdraws may do so while a step before it is still under way: that one must not come in
/// afterwards. So it is known from when it is asked for who is a member.
pub(super) fn step(
    shared: Arc<Shared>,
    name: &Name,
    id: ClaimId,
    step: Membership,
) -> impl Future<Output = Result<bool>> + Send + use<> {
    let dir = name::directory(&shared.options.chroot, &shared.options.layout, name);
    let ours = shared.options.layout.bare(id);
    let was = {
        let members = &mut shared.lock().members;
        match step {
            Membership::Enter(_) => Some(*members.entry(id).or_default()),
            Membership::Leave => None,
            Membership::Withdraw => members.remove(&id),
        }
    };
    async move {
        let dir = dir?;
        match step {
            Membership::Enter(members) => enter(&shared, &dir, &ours, id, members).await,
            Membership::Leave => leave(&shared, &dir, &ours, id).await,
            Membership::Withdraw => withdraw(&shared, &dir, &ours, was.unwrap_or_default()).await,
        }
    }
}

/// Who is there, in order, and whether it is said that all are.
async fn look(shared: &Shared, dir: &str) -> Result<(Vec<String>, bool), Fault> {
    catch_up(shared);
    match ask(shared, Request::GetChildren { path: dir.to_owned() }).await {
        Ok(Reply::Children(mut names)) => {
            let ready = names.iter().any(|name| name == READY);
            names.retain(|name| is_member(name));
            names.sort_unstable();
            Ok((names, ready))
        }
        Ok(_) => Err(Fault::Code(Code::RUNTIME_INCONSISTENCY)),
        Err(Fault::Code(Code::NO_NODE)) => Ok((Vec::new(), false)),
        Err(fault) => Err(fault),
    }
}

fn create(shared: &Shared, path: String, how: Create) -> Request {
    let data = format!("lockkeeper pid={}", std::process::id()).into_bytes();
    Request::Create { path, data, acl: shared.options.acl.clone(), how }
}

fn session(shared: &Shared) -> i64 {
    shared.lock().session.as_ref().map_or(0, |session| session.key.id)
}

async fn enter(shared: &Shared, dir: &str, ours: &str, id: ClaimId, members: u32) -> Result<bool> {
    let (path, ready_path) = (format!("{dir}/{ours}"), format!("{dir}/{READY}"));
    for _ in 0..TRIES {
        let (names, ready) = look(shared, dir).await.map_err(|fault| failed(shared, fault, dir))?;
        let session = session(shared);
        if !names.iter().any(|name| name == ours) {
            let comes = create(shared, path.clone(), Create::Ephemeral);
            // Nobody is in: what is said there was left by members that died.
            let stale = ready && names.is_empty();
            let request = if stale {
                Request::Multi(vec![
                    Request::Delete { path: ready_path.clone(), version: -1 },
                    comes,
                ])
            } else {
                comes
            };
            match shared.lock().members.get_mut(&id) {
                Some(member) => *member = Member { session, leaves: false },
                None => return Err(lost()),
            }
            match done(ask(shared, request).await) {
                Ok(()) | Err(Fault::Code(Code::NODE_EXISTS)) => {}
                // Also when somebody else took away what was stale.
                Err(Fault::Code(Code::NO_NODE)) => parents(shared, &path).await?,
                Err(fault) => return Err(failed(shared, fault, &path)),
            }
            continue;
        }
        match ask(shared, Request::Exists { path: path.clone(), watch: false }).await {
            Ok(Reply::Stat(stat)) if stat.ephemeral_owner == session => {
                match shared.lock().members.get_mut(&id) {
                    // It may have been created in a session after the one in which it was asked
                    // for.
                    Some(member) => member.session = session,
                    None => return Err(lost()),
                }
            }
            // Of a session that is over, or will be: it must not count for us.
            Ok(_) => {
                _ = ask(shared, Request::Delete { path: path.clone(), version: -1 }).await;
                continue;
            }
            Err(Fault::Code(Code::NO_NODE)) => continue,
            Err(fault) => return Err(failed(shared, fault, &path)),
        }
        if ready {
            return Ok(true);
        }
        if names.len() < usize::try_from(members).unwrap_or(usize::MAX) {
            return Ok(false);
        }
        match ask(shared, create(shared, ready_path.clone(), Create::Persistent)).await {
            Ok(_) | Err(Fault::Code(Code::NODE_EXISTS)) => return Ok(true),
            Err(Fault::Code(Code::NO_NODE)) => {}
            Err(fault) => return Err(failed(shared, fault, &ready_path)),
        }
    }
    Err(errors::unanswered())
}

async fn leave(shared: &Shared, dir: &str, ours: &str, id: ClaimId) -> Result<bool> {
    let path = format!("{dir}/{ours}");
    for _ in 0..TRIES {
        let (names, _) = look(shared, dir).await.map_err(|fault| failed(shared, fault, dir))?;
        let now = session(shared);
        let member = shared.lock().members.get(&id).copied().filter(|member| member.session == now);
        let at = names.iter().position(|name| name == ours);
        match (at, member) {
            (_, None) => return Err(lost()),
            (None, Some(member)) if !member.leaves => return Err(lost()),
            (None, _) if names.is_empty() => {
                shared.lock().members.remove(&id);
                let ready = format!("{dir}/{READY}");
                return match ask(shared, Request::Delete { path: ready.clone(), version: -1 }).await
                {
                    // Without an answer the next round's first member sees to it.
                    Ok(_) | Err(Fault::Code(Code::NO_NODE) | Fault::Lost) => Ok(true),
                    Err(fault) => Err(failed(shared, fault, &ready)),
                };
            }
            (None, _) => return Ok(false),
            (Some(0), _) if names.len() > 1 => return Ok(false),
            (Some(_), _) => {}
        }
        if let Some(member) = shared.lock().members.get_mut(&id) {
            member.leaves = true;
        }
        match ask(shared, Request::Delete { path: path.clone(), version: -1 }).await {
            Ok(_) | Err(Fault::Code(Code::NO_NODE)) => {}
            Err(fault) => return Err(failed(shared, fault, &path)),
        }
    }
    Err(errors::unanswered())
}

/// Deletes the member's node until it is known to be gone, or no session is left. Nobody else's has
/// its name, whose session it is of.
async fn withdraw(shared: &Shared, dir: &str, ours: &str, member: Member) -> Result<bool> {
    let path = format!("{dir}/{ours}");
    while member.session != 0 && session(shared) != 0 {
        match ask(shared, Request::Delete { path: path.clone(), version: -1 }).await {
            Ok(_) | Err(Fault::Code(Code::NO_NODE)) => return Ok(true),
            Err(Fault::Lost) => {}
            Err(fault) => return Err(failed(shared, fault, &path)),
        }
    }
    Ok(true)
}

fn lost() -> Error {
    Error::new(ErrorKind::Lost, "the member's node no longer exists: the others do not count it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::zookeeper::layout::{Child, Layout};

    #[test]
    fn members_are_told_from_everything_else_in_the_directory() {
        for id in [0u128, 0x9999_9999_9999, u128::MAX] {
            for layout in [Layout::Curator, Layout::Kazoo] {
                let name = layout.bare(ClaimId(id));
                assert!(is_member(&name) && Child::read(&name).is_none(), "{name}");
            }
        }
        assert!(is_member("7b2d0f4e-1111-2222-3333-444455556666"), "Curator's");
        assert!(is_member("7b2d0f4e111122223333444455556666"), "kazoo's");
        for other in [
            "ready",
            "_c_7b2d0f4e-1111-2222-3333-444455556666-lock-0000000007",
            "lockkeeper-latch",
            "",
        ] {
            assert!(!is_member(other), "{other}");
        }
    }
}
