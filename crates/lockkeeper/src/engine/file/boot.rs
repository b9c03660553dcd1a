//! Which run of the kernel this is.
//!
//! Records are not synced, so after a power cut a file may show an older state than what was
//! granted from it. The numbers of exclusive turns survive that because they follow the clock (R7);
//! those of shared holds follow the last exclusive one, and so they trust a record only of this
//! run.

use std::sync::OnceLock;

/// A short form of the kernel's boot id; 0 when the kernel does not tell.
pub(super) fn id() -> u32 {
    static ID: OnceLock<u32> = OnceLock::new();
    *ID.get_or_init(|| {
        std::fs::read("/proc/sys/kernel/random/boot_id").map_or(0, |text| crc32fast::hash(&text))
    })
}
