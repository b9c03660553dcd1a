//! The one table of programs that tests need from outside. A later engine adds its row here.

use std::path::{Path, PathBuf};

/// When a program is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// By `cargo xtask test`.
    Test,
    /// Only by `cargo xtask interop`.
    Interop,
    /// Only by `cargo xtask dist --check`.
    Dist,
}

/// A program, and the Debian package that has it.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    /// A program on the path, or an absolute path to a file.
    pub file: &'static str,
    /// Debian packages that bring it.
    pub packages: &'static [&'static str],
    /// The service that the package would start.
    pub service: Option<&'static str>,
    /// When it is needed.
    pub need: Need,
    /// What for.
    pub purpose: &'static str,
}

/// Every program from outside.
pub const TABLE: &[Tool] = &[
    Tool {
        file: "cc",
        packages: &["gcc", "libc6-dev"],
        service: None,
        need: Need::Test,
        purpose: "links every Rust program; compiles the clock that tests move",
    },
    Tool {
        file: "redis-server",
        packages: &["redis-server"],
        service: Some("redis-server"),
        need: Need::Test,
        purpose: "the engines `redis`, `redlock`, `sentinel` and `cluster`; tests start their own",
    },
    Tool {
        file: "java",
        packages: &["default-jre-headless"],
        service: None,
        need: Need::Test,
        purpose: "runs the ZooKeeper servers of tests",
    },
    Tool {
        file: "/usr/share/java/zookeeper.jar",
        packages: &["libzookeeper-java"],
        service: None,
        need: Need::Test,
        purpose: "the engine `zookeeper`; tests start their own",
    },
    Tool {
        file: "/usr/lib/postgresql/15/bin/postgres",
        packages: &["postgresql-15"],
        service: Some("postgresql"),
        need: Need::Test,
        purpose: "the engine `postgres`; tests start their own",
    },
    Tool {
        file: "/usr/sbin/pgbouncer",
        packages: &["pgbouncer"],
        service: Some("pgbouncer"),
        need: Need::Test,
        purpose: "a pooler before the servers of `postgres`; tests start their own",
    },
    Tool {
        file: "openssl",
        packages: &["openssl"],
        service: None,
        need: Need::Test,
        purpose: "certificates for the TLS tests",
    },
    Tool {
        file: "zsh",
        packages: &["zsh"],
        service: None,
        need: Need::Test,
        purpose: "asks for completions, as people at a prompt do",
    },
    Tool {
        file: "fish",
        packages: &["fish"],
        service: None,
        need: Need::Test,
        purpose: "the same",
    },
    Tool {
        file: "redis-cli",
        packages: &["redis-tools"],
        service: None,
        need: Need::Interop,
        purpose: "the commands of the articles",
    },
    Tool {
        file: "python3",
        packages: &["python3", "python3-venv"],
        service: None,
        need: Need::Interop,
        purpose: "redis-py, and the drivers",
    },
    Tool {
        file: "mvn",
        packages: &["maven"],
        service: None,
        need: Need::Interop,
        purpose: "fetches and builds Redisson's side",
    },
    Tool {
        file: "javac",
        packages: &["default-jdk-headless"],
        service: None,
        need: Need::Interop,
        purpose: "compiles Redisson's side",
    },
    Tool {
        file: "go",
        packages: &["golang-go"],
        service: None,
        need: Need::Interop,
        purpose: "fetches and builds redsync's side",
    },
    Tool {
        file: "node",
        packages: &["nodejs"],
        service: None,
        need: Need::Interop,
        purpose: "runs node-redlock's side",
    },
    Tool {
        file: "npm",
        packages: &["npm"],
        service: None,
        need: Need::Interop,
        purpose: "fetches node-redlock",
    },
    Tool {
        file: "flock",
        packages: &["util-linux"],
        service: None,
        need: Need::Test,
        purpose: "the floor that bench compares `run` with",
    },
    Tool {
        file: "dpkg-deb",
        packages: &["dpkg"],
        service: None,
        need: Need::Dist,
        purpose: "makes the Debian package",
    },
    Tool {
        file: "lintian",
        packages: &["lintian"],
        service: None,
        need: Need::Dist,
        purpose: "judges the Debian package",
    },
    Tool {
        file: "ip",
        packages: &["iproute2"],
        service: None,
        need: Need::Dist,
        purpose: "a network of its own, in which the static binary asks for names",
    },
    Tool {
        file: "pgrep",
        packages: &["procps"],
        service: None,
        need: Need::Dist,
        purpose: "finds the first process of a container",
    },
    Tool {
        file: "podman",
        packages: &["podman"],
        service: None,
        need: Need::Dist,
        purpose: "builds the image, and runs it where it may",
    },
    Tool {
        file: "python3",
        packages: &["python3", "python3-venv"],
        service: None,
        need: Need::Dist,
        purpose: "checks the Kubernetes examples",
    },
    Tool {
        file: "systemd-analyze",
        packages: &["systemd"],
        service: None,
        need: Need::Dist,
        purpose: "judges the unit and the timer of the package",
    },
];

/// The rows that something needs.
pub fn needed(by: &[Need]) -> Vec<&'static Tool> {
    TABLE.iter().filter(|tool| by.contains(&tool.need)).collect()
}

impl Tool {
    /// Where it is, if it is installed. Debian keeps some servers in /usr/sbin, which a user's path
    /// may lack.
    pub fn find(&self) -> Option<PathBuf> {
        if self.file.starts_with('/') {
            return Some(PathBuf::from(self.file)).filter(|path| path.exists());
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders =
            std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
        folders.find_map(|folder| Some(folder.join(self.file)).filter(|path| executable(path)))
    }
}

fn executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_says_what_it_is_for_and_where_it_comes_from() {
        for tool in TABLE {
            assert!(!tool.packages.is_empty() && !tool.purpose.is_empty(), "{tool:?}");
        }
    }

    #[test]
    fn a_program_is_found_and_a_missing_one_is_not() {
        let row =
            |file| Tool { file, packages: &["x"], service: None, need: Need::Test, purpose: "x" };
        assert!(row("sh").find().is_some_and(|path| path.is_absolute()));
        assert!(row("/bin/sh").find().is_some());
        assert_eq!(row("no-such-program-anywhere").find(), None);
        assert_eq!(row("/no/such/file.jar").find(), None);
    }
}
