//! What this engine promises in this directory (R14).

use std::os::fd::AsFd;
use std::path::Path;

use nix::sys::statfs::fstatfs;
use nix::unistd::geteuid;

use super::dir::{Directory, shown};
use crate::words::guarantee::{Ability, Class, Description, Warning};

/// What it would say before it was opened.
pub(super) fn unopened() -> Description {
    let mut about = Description::new("file", "file", Class::OneKernel);
    about.immediate = true;
    let lacks = [Ability::Delay, Ability::Force, Ability::Fair, Ability::FairPermits];
    about.can = about.can.without(&lacks);
    about
}

/// What it says about a directory.
pub(super) fn of(dir: &Directory) -> Description {
    let mut about = unopened();
    let anchor = dir.anchor();
    let kind = fstatfs(&*anchor).map(|fs| place(fs.filesystem_type().0 as u32));
    let kind = kind.unwrap_or(Place { name: "unknown file system", distance: Distance::Unknown });
    about.server = format!(
        "{} ({}, device {}, inode {})",
        shown(dir.path()),
        kind.name,
        anchor.dev,
        anchor.ino
    );
    about.immediate = !dir.durable;
    about.breaks = [
        "no lease: a holder that is stopped (SIGSTOP, a frozen container) keeps its locks until it \
         goes on or dies",
        "a lock file replaced or deleted while it is held: announced as lost, and a second holder \
         until its holder heard of it",
        "two paths, mounts or containers that mean different files by the same name: compare \
         device and inode",
        "tokens: the directory deleted together with a clock set back",
    ]
    .map(str::to_owned)
    .into();
    if !dir.durable {
        about.breaks.push(
            "tokens: a power cut together with a clock set back; ?durable=true excludes it"
                .to_owned(),
        );
    }
    match kind.distance {
        Distance::Local => {}
        Distance::Layered => about.warnings.push(Warning {
            id: "overlay",
            text: format!(
                "{} is an overlay: containers see the lock only if they mount the same directory, \
                 not copies of it",
                shown(dir.path())
            ),
        }),
        Distance::Network | Distance::Unknown => {
            about.class = Class::Efficiency;
            about.recovery_stopped = None;
            about.warnings.push(Warning {
                id: "network-file-system",
                text: format!(
                    "{} is on {}: whether its server keeps range locks, through its own restarts \
                     too, is not known here; use a local directory, or an engine with a server",
                    shown(dir.path()),
                    kind.name
                ),
            });
        }
    }
    if anchor.is_unprotected() {
        about.warnings.push(Warning {
            id: "unprotected-directory",
            text: format!(
                "{} lets every user replace every file in it: chmod +t it",
                shown(dir.path())
            ),
        });
    }
    about.warnings.extend(foreign(dir.path(), anchor.owner));
    about
}

/// That another user than us and root owns the directory, and so can replace every file in it.
pub(super) fn foreign(path: &Path, owner: u32) -> Option<Warning> {
    let us = geteuid();
    let is_foreign = owner != 0 && owner != us.as_raw();
    is_foreign.then(|| Warning {
        id: "directory-owner",
        text: format!(
            "{} belongs to user {owner} and this process is user {us}: its owner can replace every \
             lock file in it; use a directory of this user or of root",
            shown(path)
        ),
    })
}

/// Whether a directory's file system is one whose time stamps and locks are this kernel's own.
pub(super) fn is_local(directory: impl AsFd) -> bool {
    fstatfs(directory)
        .is_ok_and(|fs| matches!(place(fs.filesystem_type().0 as u32).distance, Distance::Local))
}

#[derive(Clone, Copy)]
enum Distance {
    Local,
    Layered,
    Network,
    Unknown,
}

#[derive(Clone, Copy)]
struct Place {
    name: &'static str,
    distance: Distance,
}

/// What a file system's magic number means for locks (F4).
fn place(magic: u32) -> Place {
    use Distance::{Layered, Local, Network, Unknown};
    let (name, distance) = match magic {
        0xef53 => ("ext4", Local),
        0x5846_5342 => ("xfs", Local),
        0x9123_683e => ("btrfs", Local),
        0x0102_1994 => ("tmpfs", Local),
        0x8584_58f6 => ("ramfs", Local),
        0xf2f5_2010 => ("f2fs", Local),
        0x2fc1_2fc1 => ("zfs", Local),
        0xca45_1a4e => ("bcachefs", Local),
        0x3153_464a => ("jfs", Local),
        0x5265_4973 => ("reiserfs", Local),
        0x4d44 => ("vfat", Local),
        0x794c_7630 => ("overlayfs", Layered),
        0x6969 => ("NFS", Network),
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => ("SMB", Network),
        0x0102_1997 => ("9p", Network),
        0x6573_5546 => ("FUSE", Network),
        0x00c3_6400 => ("Ceph", Network),
        0x0bd0_0bd0 => ("Lustre", Network),
        0x5346_414f | 0x6b41_4653 => ("AFS", Network),
        0x7461_636f => ("OCFS2", Network),
        0x0116_1970 => ("GFS2", Network),
        0x4750_4653 => ("GPFS", Network),
        0x786f_4256 => ("VirtualBox shared folder", Network),
        0xbacb_acbc => ("VMware shared folder", Network),
        _ => ("an unknown file system", Unknown),
    };
    Place { name, distance }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::guarantee::Expiry;

    #[test]
    fn f4_a_network_file_system_is_no_kernel_lock() {
        for magic in [0x6969, 0x6573_5546, 0x0102_1997, 0xff53_4d42, 0x1234] {
            assert!(
                matches!(place(magic).distance, Distance::Network | Distance::Unknown),
                "{magic:x}"
            );
        }
        assert!(matches!(place(0xef53).distance, Distance::Local));
    }

    #[test]
    fn f8_a_description_names_device_and_inode_and_r14_no_lease() {
        let temp = tempfile::tempdir().unwrap();
        let about = of(&Directory::open(temp.path(), false).unwrap());
        assert!(
            about.server.contains("inode") && about.server.contains("device"),
            "{}",
            about.server
        );
        assert_eq!(
            (about.recovery, about.recovery_stopped, about.expiry),
            (std::time::Duration::ZERO, None, Expiry::WithProcess)
        );
        assert!(about.breaks.iter().any(|text| text.starts_with("no lease")));
    }
}
