//! The container image: a root file system with the binary, and what builds an image of it.

use std::path::{Path, PathBuf};

use super::files::{read, write};
use super::{Made, THIRD_PARTY, packaging};
use crate::project::root;

/// What the image may have, in bytes.
pub const IMAGE_MAX: u64 = 15 * 1024 * 1024;

/// Fills the folder that `podman build` and `docker build` take; answers where the root file system
/// is.
///
/// # Errors
/// A file cannot be written, or it is too large.
pub fn build(made: &Made, place: &Path) -> Result<PathBuf, String> {
    let image = place.join("image");
    let rootfs = image.join("rootfs");
    write(&rootfs.join("usr/bin/lockkeeper"), read(&made.binary)?, 0o755)?;
    let doc = rootfs.join("usr/share/doc/lockkeeper");
    write(&doc.join(THIRD_PARTY), &made.third_party, 0o644)?;
    write(&doc.join("sbom.cdx.json"), &made.sbom, 0o644)?;
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        write(&doc.join(licence), read(&root().join(licence))?, 0o644)?;
    }
    write(&image.join("Containerfile"), read(&packaging().join("Containerfile"))?, 0o644)?;
    let size = super::files::size(&rootfs);
    if size > IMAGE_MAX {
        return Err(format!("the image has {size} bytes; {IMAGE_MAX} is what it may have"));
    }
    Ok(rootfs)
}
