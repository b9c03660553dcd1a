//! Which server of a deployment: its keys are in slots, and every slot is at one of its nodes.

/// A node, as this process numbers them; a single server is the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::engine) struct Node(pub(in crate::engine) u16);
