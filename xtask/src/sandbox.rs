//! Where tests run: with a home, temporary files and state of their own, and with a mark by which
//! we find what they leave.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The variable that marks every process that a test starts, however far it wanders.
const MARK: &str = "XTASK_RUN";
/// The variable that names the file in which servers' ports are locked (`servers/port.rs` of the
/// lab).
const PORTS: &str = "XTASK_PORTS";
/// How long we go on ending what is killed and what that started.
const KILLED: Duration = Duration::from_secs(5);

/// A directory and a mark for one run, or for [one program of it](Sandbox::room).
pub struct Sandbox {
    dir: PathBuf,
    mark: String,
    /// In which programs tell each other which ports they use.
    ports: PathBuf,
}

/// A process that outlived its test.
#[derive(Debug)]
pub struct Stray {
    /// Its id.
    pub pid: u32,
    /// Its command line and the locks it has.
    pub text: String,
}

impl Sandbox {
    /// A fresh one.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn new() -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        sweep(&std::env::temp_dir());
        // Short: socket paths in it have to fit into 108 bytes.
        let mark = format!("lk-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(&mark);
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir(&dir)?;
        Self { ports: ports(&dir)?, dir, mark }.furnish()
    }

    /// Where a test of ours may write.
    #[cfg(test)]
    pub fn dir(&self) -> &std::path::Path {
        &self.dir
    }

    /// A sandbox in this one, for the program of that name: with a home and temporary files of its
    /// own, and with a mark that says the name of whatever the program leaves behind.
    ///
    /// # Errors
    /// Its directory cannot be made.
    pub fn room(&self, number: usize, name: &str) -> io::Result<Self> {
        let dir = self.folder(&number.to_string())?;
        let ports = self.ports.clone();
        Self { dir, mark: format!("{}/{name}", self.mark), ports }.furnish()
    }

    fn furnish(self) -> io::Result<Self> {
        self.folder("home")?;
        self.folder("tmp")?;
        Ok(self)
    }

    /// A directory of that name in it.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn folder(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.dir.join(name);
        fs::create_dir_all(&path).map(|()| path)
    }

    /// Gives a command the sandbox's home and temporary directory, and nothing of the user's
    /// settings.
    pub fn apply<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        // As cargo finds it where HOME is not set: in the password database.
        let home = std::env::home_dir().filter(|home| home.is_absolute());
        for (variable, folder) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
            // These two follow HOME, and the toolchain is the user's.
            if let Some(home) = home.as_ref().filter(|_| std::env::var_os(variable).is_none()) {
                command.env(variable, home.join(folder));
            }
        }
        for (variable, _) in std::env::vars_os() {
            let name = variable.to_string_lossy();
            if name.starts_with("LOCKKEEPER_") || name.starts_with("XDG_") {
                command.env_remove(&variable);
            }
        }
        let command = self.mark(command).env(PORTS, &self.ports);
        command.env("HOME", self.dir.join("home")).env("TMPDIR", self.dir.join("tmp"))
    }

    /// Lets [`Sandbox::kill_all`] find a command and what it starts.
    pub fn mark<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env(MARK, &self.mark)
    }

    /// The processes of this run that are still there when their grace is `over`.
    pub fn strays(&self, over: impl Fn() -> bool) -> Vec<Stray> {
        let mut none_before = false;
        loop {
            let found = self.alive();
            // Nobody twice: while a process becomes another program, it shows no environment.
            if if found.is_empty() { none_before } else { over() } {
                return found;
            }
            none_before = found.is_empty();
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn alive(&self) -> Vec<Stray> {
        let mark = format!("{MARK}={}", self.mark);
        let rooms = format!("{mark}/");
        let ours =
            |variable: &[u8]| variable == mark.as_bytes() || variable.starts_with(rooms.as_bytes());
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let marked = pids.filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(ours)
        });
        marked
            .map(|pid| Stray {
                pid,
                text: format!("pid {pid}: {}{}", command_line(pid), locks(pid)),
            })
            .collect()
    }

    /// Ends processes of this run at once, by id.
    pub fn kill(&self, strays: &[Stray]) {
        if !strays.is_empty() {
            let pids = strays.iter().map(|stray| stray.pid.to_string());
            // The shell's own kill: the program may not be installed. Those that are gone by now
            // are no failure.
            _ = Command::new("sh")
                .args(["-c", "kill -9 \"$@\" 2>/dev/null", "kill"])
                .args(pids)
                .status();
        }
    }

    /// Ends everything of this run, its rooms included: also what is started while we look, and
    /// what just becomes another program and shows no environment.
    pub fn kill_all(&self) {
        let until = Instant::now() + KILLED;
        let mut none_before = false;
        loop {
            let found = self.alive();
            if found.is_empty() && none_before || Instant::now() >= until {
                return;
            }
            none_before = found.is_empty();
            self.kill(&found);
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The file of all runs on this machine: another clone may be tested at the same time, by another
/// user. It is empty, and stays: whoever takes it away divides those who use it. Where it is not
/// for everybody, each user has one.
fn ports(beside: &Path) -> io::Result<PathBuf> {
    let shared = beside.with_file_name("lk-ports");
    // The system lets nobody create what is there and belongs to somebody else.
    if let Ok(file) = fs::File::options().write(true).create_new(true).open(&shared) {
        file.set_permissions(fs::Permissions::from_mode(0o666))?;
    }
    if fs::File::options().write(true).open(&shared).is_ok() {
        return Ok(shared);
    }
    Ok(beside.with_file_name(format!("lk-ports-{}", fs::metadata(beside)?.uid())))
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.dir);
    }
}

/// Removes what runs that were interrupted left behind: directories `lk-PID-N` whose process is
/// gone.
fn sweep(temporary: &Path) {
    for entry in fs::read_dir(temporary).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let parts: Option<Vec<u32>> = name
            .strip_prefix("lk-")
            .map(|rest| rest.split('-').filter_map(|part| part.parse().ok()).collect());
        let Some([pid, count]) = parts.as_deref() else { continue };
        if name == format!("lk-{pid}-{count}") && !Path::new(&format!("/proc/{pid}")).exists() {
            _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The beginning of it: a fork of a test program has the names of all its tests.
fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
    text.trim_end().chars().take(400).collect()
}

/// The files on which a process has a kernel lock.
fn locks(pid: u32) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten() {
        if fs::read_to_string(entry.path())
            .is_ok_and(|info| info.lines().any(|line| line.starts_with("lock:")))
        {
            let target =
                fs::read_link(format!("/proc/{pid}/fd/{}", entry.file_name().to_string_lossy()));
            text += &format!("; has a lock on {}", target.unwrap_or_default().display());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_outlives_its_test_is_named_and_ended() {
        let sandbox = Sandbox {
            dir: PathBuf::from("/nonexistent"),
            mark: format!("lk-test-{}", std::process::id()),
            ports: PathBuf::new(),
        };
        assert!(sandbox.alive().is_empty());
        // A program in the background of a shell that has ended: nobody's child. While it is being
        // loaded it shows nothing.
        let mut shell = Command::new("sh");
        let script =
            "sleep 600 > /dev/null 2>&1 & until grep -qa ^sleep /proc/$!/cmdline; do :; done";
        shell.args(["-c", script]).env(MARK, &sandbox.mark);
        assert!(shell.status().unwrap().success());
        let strays = sandbox.strays(|| true);
        assert_eq!(strays.len(), 1);
        assert!(strays[0].text.contains("sleep 600"), "{strays:?}");
        sandbox.kill(&strays);
        assert!(sandbox.strays(|| false).is_empty());
    }

    #[test]
    fn a_room_knows_its_own_processes_and_the_run_knows_those_of_all_rooms() {
        let run = Sandbox::new().unwrap();
        let (one, other) = (run.room(0, "one").unwrap(), run.room(1, "one_more").unwrap());
        let mut sleeper = one.apply(Command::new("sleep").arg("605")).spawn().unwrap();
        let counts = || [&one, &other, &run].map(|sandbox| sandbox.alive().len());
        // Until it is what it is to be: in between it shows nothing of what it is.
        while counts() != [1, 0, 1] {
            assert!(sleeper.try_wait().unwrap().is_none(), "{:?}", counts());
            thread::sleep(Duration::from_millis(10));
        }
        run.kill_all();
        sleeper.wait().unwrap();
        let place = one.dir.clone();
        drop(one);
        assert!(!place.exists() && other.dir.exists() && run.dir.exists());
    }

    #[test]
    fn an_interrupted_run_is_swept_away_and_nothing_else() {
        let place = std::env::temp_dir().join(format!("xtask-sweep-{}", std::process::id()));
        let mut dead = Command::new("true").spawn().unwrap();
        dead.wait().unwrap();
        let dirs = [
            format!("lk-{}-0", dead.id()),
            format!("lk-{}-0", std::process::id()),
            "lk-x-0".to_owned(),
            format!("lk-{}-0-1", dead.id()),
        ];
        for dir in &dirs {
            fs::create_dir_all(place.join(dir)).unwrap();
        }
        sweep(&place);
        assert_eq!(dirs.map(|dir| place.join(dir).exists()), [false, true, true, true]);
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn a_command_in_the_sandbox_sees_nothing_of_the_user() {
        let sandbox =
            Sandbox { dir: PathBuf::from("/x"), mark: "m".to_owned(), ports: PathBuf::from("/p") };
        let mut command = Command::new("true");
        sandbox.apply(&mut command);
        let set: Vec<(String, Option<String>)> = command
            .get_envs()
            .map(|(key, value)| {
                (
                    key.to_string_lossy().into_owned(),
                    value.map(|text| text.to_string_lossy().into_owned()),
                )
            })
            .collect();
        assert!(set.contains(&("HOME".to_owned(), Some("/x/home".to_owned()))));
        assert!(set.contains(&("TMPDIR".to_owned(), Some("/x/tmp".to_owned()))));
    }
}
