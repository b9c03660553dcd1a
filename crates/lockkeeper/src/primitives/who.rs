//! Who this process is, as others may see it.

use crate::words::claim::Identity;

impl Identity {
    /// This process: host, pid, start time, and `argv[0]` without its path. Never the arguments:
    /// they hold secrets.
    pub fn of_this_process() -> Self {
        let host = nix::unistd::gethostname()
            .ok()
            .and_then(|h| h.into_string().ok())
            .unwrap_or_else(|| "localhost".to_owned());
        // With another C library than glibc a program whose `main` is C's own has no `args`.
        let program = std::env::args_os().next().map(std::path::PathBuf::from);
        let program = program.or_else(|| std::env::current_exe().ok());
        let program = program
            .as_deref()
            .and_then(|p| p.file_name())
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default();
        Self {
            host,
            pid: std::process::id(),
            started: start_time().unwrap_or(0),
            program,
            label: None,
        }
    }
}

/// Field 22 of /proc/self/stat; the program's name before it may hold spaces and brackets.
fn start_time() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let after_name = stat.get(stat.rfind(')')? + 1..)?;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_name_and_a_start() {
        let me = Identity::of_this_process();
        assert_eq!(me.pid, std::process::id());
        assert!(me.started > 0 && !me.program.contains('/') && !me.host.is_empty(), "{me:?}");
    }
}
