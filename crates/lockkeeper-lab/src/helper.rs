//! Helper processes: this very program started again with a hidden first argument, told what to do
//! in one line of JSON on its standard input, and answering in lines on its standard output.
//!
//! Nothing about them stands in their argument list, where every user of the machine could read a
//! URL's password. They end with their parent, whatever ends it: the kernel kills them, and their
//! standard input closes.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use lockkeeper::{Error, ErrorKind, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{engines, interrupt, torture};

/// The argument that makes the program a helper: `lockkeeper __helper KIND`.
pub const ARGUMENT: &str = "__helper";

/// How often a wait for helpers looks whether the user wants to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Whether this program was started by itself, to help with a demo, a measurement or a torture:
/// then the exit code of that work. A program with an engine of its own registers it and asks this
/// first.
///
/// ```no_run
/// use lockkeeper_lab::{bench, demo, helper, torture};
///
/// # fn registration() -> lockkeeper::engine::Registration { todo!() }
/// fn main() -> lockkeeper::Result<()> {
///     lockkeeper::Locks::register(registration())?; // of the scheme `ledger`
///     let line: Vec<_> = std::env::args_os().collect();
///     if let Some(code) = helper::started(&line) {
///         std::process::exit(code.into());
///     }
///     let (url, mut out) = ("ledger://host".to_owned(), std::io::stdout());
///     demo::run(&demo::Options::new(&url), &mut out)?;
///     bench::run(&bench::Options { urls: vec![url.clone()], ..Default::default() }, &mut out);
///     let options = torture::Options { url, ..Default::default() };
///     let code = torture::run(&options, &mut out).unwrap_or_else(|(code, why)| {
///         eprintln!("{why}");
///         code
///     });
///     std::process::exit(code.into());
/// }
/// ```
pub fn started(line: &[OsString]) -> Option<u8> {
    let [_, hidden, rest @ ..] = line else { return None };
    (hidden == ARGUMENT).then(|| {
        engines::known();
        main(rest)
    })
}

/// Does what a helper process was started for; answers its exit code. `arguments` follow
/// [`ARGUMENT`].
pub fn main(arguments: &[OsString]) -> u8 {
    // Its work begins when the parent has ended.
    if arguments.first().is_some_and(|kind| kind == crate::bench::TRACES_HELPER) {
        return crate::bench::clear().map_or_else(|error| error.kind().exit_code(), |()| 0);
    }
    // Without it a parent that is killed would leave a stopped helper stopped for ever.
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    let done = match arguments.first().and_then(|kind| kind.to_str()) {
        // Its output is not heard.
        Some(torture::HELPER) => return torture::client_main(),
        Some(crate::demo::contenders::HELPER) => crate::demo::contenders::worker::main(),
        Some(crate::demo::HELPER) => crate::demo::worker::main(),
        Some(crate::bench::HELPER) => crate::bench::serve(),
        Some(engines::CAMPAIGN) => {
            engines::campaign().iter().for_each(|line| say(line));
            Ok(())
        }
        kind => match kind.and_then(|kind| engines::all().find_map(|engine| engine.helper(kind))) {
            Some(serve) => serve(),
            None => Err(Error::new(
                ErrorKind::InvalidArgument,
                "this is how the program starts helpers of its own; run it without",
            )),
        },
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            say(&format!("failed {} {}", error.kind().as_str(), error.message()));
            error.kind().exit_code()
        }
    }
}

/// Says a line to the parent. A parent that is gone has killed us already.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Reads what the parent wants done.
///
/// # Errors
/// When the line is not there or not what was expected.
pub(crate) fn hear<T: DeserializeOwned>() -> Result<T> {
    let mut line = String::new();
    let _ =
        std::io::stdin().lock().read_line(&mut line).map_err(|e| failed("read what to do", &e))?;
    serde_json::from_str(&line).map_err(|e| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("the helper received an invalid instruction: {e}"),
        )
    })
}

/// What the parent says afterwards, line by line, and the end of this process when the parent is
/// gone.
pub(crate) fn orders() -> tokio::sync::mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            match line {
                // Nobody waits for an order any more: the work is done and the process about to
                // end.
                Ok(line) => drop(sender.send(line)),
                Err(_) => break,
            }
        }
        std::process::exit(1);
    });
    receiver
}

fn failed(what: &str, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Refused, format!("cannot {what}: {error}"))
}

/// How to start this program as a helper.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program.
    pub path: PathBuf,
    /// Its arguments before the kind of helper.
    pub arguments: Vec<OsString>,
}

impl Program {
    /// The program that runs.
    ///
    /// # Errors
    /// When the system does not say which one that is.
    pub fn this() -> Result<Self> {
        let path = std::env::current_exe()
            .map_err(|e| failed("find this program to start it again", &e))?;
        Ok(Self { path, arguments: vec![ARGUMENT.into()] })
    }

    /// What starts it as a helper of this kind, which [`tell`] then says what to do. In a group of
    /// its own: Ctrl-C is for us, and we end it.
    pub(crate) fn helper(&self, kind: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).arg(kind).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }
}

/// Says to a helper that was just started what to do, in one line.
///
/// # Errors
/// When it has ended already, or cannot be talked to.
pub(crate) fn tell(child: &mut Child, what: &impl Serialize) -> std::io::Result<()> {
    let line = serde_json::to_string(what)?;
    let stdin = child.stdin.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
    writeln!(stdin, "{line}").and_then(|()| stdin.flush())
}

/// What a helper said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) helper: usize,
    pub(crate) line: String,
}

/// Helpers that work together. Dropping it kills them and waits for their end.
pub(crate) struct Crew {
    helpers: Vec<Child>,
    said: Receiver<(usize, Option<String>)>,
    sender: Sender<(usize, Option<String>)>,
}

impl Crew {
    pub(crate) fn new() -> Self {
        let (sender, said) = channel();
        Self { helpers: Vec::new(), said, sender }
    }

    /// Starts one more; answers its number.
    ///
    /// # Errors
    /// When the system starts no more processes or threads.
    pub(crate) fn start(
        &mut self,
        program: &Program,
        kind: &str,
        told: &impl Serialize,
    ) -> Result<usize> {
        let mut child = program.helper(kind).spawn().map_err(|e| failed("start a process", &e))?;
        let stdout = child.stdout.take();
        let told = tell(&mut child, told);
        let number = self.helpers.len();
        self.helpers.push(child);
        let sender = self.sender.clone();
        let listen = move || {
            for line in stdout
                .into_iter()
                .flat_map(|out| BufReader::new(out).lines())
                .map_while(std::io::Result::ok)
            {
                // The crew is gone: then nobody wants to know.
                let _ = sender.send((number, Some(line)));
            }
            let _ = sender.send((number, None));
        };
        std::thread::Builder::new()
            .stack_size(256 * 1024)
            .spawn(listen)
            .map_err(|e| failed("start a thread", &e))?;
        unless_ended(told).map(|()| number)
    }

    /// Tells one helper something. That it has ended is no error here: what it said last tells how.
    ///
    /// # Errors
    /// When the pipe to it fails otherwise.
    pub(crate) fn tell(&mut self, number: usize, line: &str) -> Result<()> {
        let stdin = self.helpers.get_mut(number).and_then(|helper| helper.stdin.as_mut());
        let Some(stdin) = stdin else { return Ok(()) };
        unless_ended(writeln!(stdin, "{line}").and_then(|()| stdin.flush()))
    }

    /// Tells all of them something.
    ///
    /// # Errors
    /// As [`Crew::tell`].
    pub(crate) fn tell_all(&mut self, line: &str) -> Result<()> {
        (0..self.helpers.len()).try_for_each(|number| self.tell(number, line))
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, number: usize, signal: Signal) {
        if let Some(pid) = self.pid(number) {
            // It may just have ended, and its parent has not waited for it yet: the number is still
            // its own.
            let _ = kill(pid, signal);
        }
    }

    pub(crate) fn pid(&self, number: usize) -> Option<Pid> {
        self.helpers
            .get(number)
            .and_then(|helper| i32::try_from(helper.id()).ok())
            .map(Pid::from_raw)
    }

    /// The next thing that a helper says.
    ///
    /// # Errors
    /// `Closed` when the user wants to end; what a helper failed with; a helper that ended without
    /// a word; `TimedOut` after `patience` of silence.
    pub(crate) fn hear(&mut self, patience: Duration) -> Result<Said> {
        let until = Instant::now() + patience;
        loop {
            if interrupt::caught().is_some() {
                return Err(Error::new(ErrorKind::Closed, "interrupted"));
            }
            match self.said.recv_timeout(LOOK_EVERY) {
                Ok((helper, Some(line))) => match line.strip_prefix("failed ") {
                    Some(why) => return Err(told_failure(why)),
                    None => return Ok(Said { helper, line }),
                },
                Ok((helper, None)) => self.gone(helper)?,
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(_) => {
                    let text = format!(
                        "a process said nothing for {patience:?}: the engine does not answer, or \
                         the machine is overloaded"
                    );
                    return Err(Error::new(ErrorKind::TimedOut, text));
                }
            }
        }
    }

    /// Waits until every helper has said this.
    ///
    /// # Errors
    /// As [`Crew::hear`].
    pub(crate) fn hear_from_all(&mut self, word: &str, patience: Duration) -> Result<()> {
        let mut missing = self.helpers.len();
        while missing > 0 {
            missing -= usize::from(self.hear(patience)?.line == word);
        }
        Ok(())
    }

    /// A helper has closed its output: it has ended, well or not.
    fn gone(&mut self, number: usize) -> Result<()> {
        let Some(helper) = self.helpers.get_mut(number) else { return Ok(()) };
        let status = helper.wait().map_err(|e| failed("wait for a process", &e))?;
        if status.success() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Refused,
            format!("a process of this run ended unexpectedly ({status})"),
        ))
    }
}

/// Whether something could be said. A helper that has ended says itself how.
fn unless_ended(told: std::io::Result<()>) -> Result<()> {
    match told {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(failed("talk to a process", &e))
        }
        _ => Ok(()),
    }
}

/// `KIND MESSAGE`, as [`main`] says it.
fn told_failure(text: &str) -> Error {
    let (kind, message) = text.split_once(' ').unwrap_or((text, ""));
    let kind =
        ErrorKind::ALL.iter().copied().find(|k| k.as_str() == kind).unwrap_or(ErrorKind::Unknown);
    Error::new(kind, message)
}

impl Drop for Crew {
    fn drop(&mut self) {
        for helper in &mut self.helpers {
            // Both fail only for one that has ended already.
            let _ = helper.kill();
            let _ = helper.wait();
        }
    }
}
