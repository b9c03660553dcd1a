//! Locks on a master that Sentinels name.

mod trusts_old_master;

use crate::torture::broken::{self, Broken};

pub(crate) const ALL: &[&Broken] = &[&trusts_old_master::THIS];

/// With it a master without its replicas grants nothing to a client that keeps to it, and so
/// nothing excuses two holders.
const BASE: Broken = Broken { url: "redis+sentinel:auto?wait_replicas=1", ..broken::BASE };
