//! `memory:` is private to its `Locks`, `memory:NAME` is shared inside the process.

use super::Memory;
use crate::engine::{Common, Engine, Keep, Registration};
use crate::open::url::EngineUrl;
use crate::words::error::Result;

pub(crate) fn registration() -> Registration {
    let mut memory = Registration::new("memory", &["memory"], Keep::Process, open);
    // Its name may end in a slash.
    memory.place = Some(|_| Ok(()));
    memory
}

fn open(url: &mut EngineUrl, _: &Common) -> Result<Box<dyn Engine>> {
    let name = std::mem::take(&mut url.path);
    Ok(Box::new(if name.is_empty() { Memory::private() } else { Memory::shared(&name) }))
}
