//! Real servers for tests and measurements: started on free ports of the loopback with directories of their own, and
//! stopped, by their own process id, when they are dropped.

#[allow(clippy::expect_used, clippy::panic, reason = "a server of a test's own: a failure to start it ends the test")]
pub mod certificates;
pub mod clock_shim;
#[allow(clippy::expect_used, clippy::panic, reason = "a server of a test's own: a failure to start it ends the test")]
pub mod redis;
pub mod zookeeper;
pub mod zookeeper_client;
pub mod zookeeper_proxy;

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::sys::signal::Signal;

/// A server that ends with whoever starts it, whatever ends that, and that hears no Ctrl-C: whoever started it does. The
/// kernel looks at the thread that starts it, so that must be one that stays.
fn end_with_us(command: &mut Command) {
    command.process_group(0);
    // SAFETY: between fork and exec one system call is made, and nothing is allocated.
    unsafe {
        command.pre_exec(|| nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(Into::into));
    }
}

/// A port of the loopback that nobody listened on a moment ago.
pub(crate) fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
