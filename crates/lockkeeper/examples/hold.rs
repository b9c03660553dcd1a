//! Holds a lock until standard input is closed:
//!
//! ```text
//! hold URL NAME [-n] [--until-asked] [-s | -w | --permits N/MAX | --elect ID | --latch |
//!      --wait | --all NAME | --double N | --ask]
//! ```
//!
//! `-s` reads and `-w` writes through the rw-lock, `--elect` leads, `--latch` keeps a latch closed,
//! `--wait` waits until one is open, `--all` holds a second name with the first, `--double` is
//! inside a double barrier of N members, `--ask` asks the holder to let go, `--until-asked` holds
//! until somebody asks for that. Without arguments it does so in memory. One line says that it was
//! granted. Exit 75 when `-n` found it taken. The drivers under `interop/` use it.

use std::process::ExitCode;

use lockkeeper::{
    AllGuard, ErrorKind, Guard, Held, Inside, Kind, Latch, Locks, Result, WriteGuard,
};

enum Mode {
    Exclusive,
    Shared,
    Write,
    Permits(u16, u16),
    Elect(String),
    Latch,
    Wait,
    All(String),
    Double(u32),
    Ask,
}

/// What is held.
enum Grip {
    Guard(Guard),
    Writer(WriteGuard),
    Closed(Latch),
    All(AllGuard),
    Inside(Inside),
    Nothing,
}

impl Grip {
    fn token(&self) -> Option<String> {
        match self {
            Self::Guard(guard) => guard.token().ok(),
            Self::Writer(guard) => guard.token().ok(),
            Self::Closed(_) | Self::All(_) | Self::Inside(_) | Self::Nothing => None,
        }
        .map(|token| token.to_string())
    }

    fn held(&self) -> Option<Held> {
        match self {
            Self::Guard(guard) => Some(guard.held()),
            Self::Writer(guard) => Some(guard.held()),
            Self::Closed(_) | Self::All(_) | Self::Inside(_) | Self::Nothing => None,
        }
    }

    async fn give_back(self) -> Result<()> {
        match self {
            Self::Guard(guard) => _ = guard.release().await,
            Self::Writer(guard) => _ = guard.release().await,
            Self::Closed(latch) => _ = latch.count_down().await?,
            Self::All(guard) => _ = guard.release().await,
            Self::Inside(inside) => inside.leave().await?,
            Self::Nothing => {}
        }
        Ok(())
    }
}

async fn take(locks: &Locks, name: &str, mode: &Mode, now: bool) -> Result<Option<Grip>> {
    let guard = match (mode, now) {
        (Mode::Write, true) => return Ok(locks.rwlock(name).try_write().await?.map(Grip::Writer)),
        (Mode::Write, false) => return Ok(Some(Grip::Writer(locks.rwlock(name).write().await?))),
        (Mode::Latch, _) => {
            let latch = locks.latch(name);
            return Ok(latch.set(1).await?.then_some(Grip::Closed(latch)));
        }
        (Mode::Wait, _) => {
            locks.latch(name).wait().await?;
            return Ok(Some(Grip::Nothing));
        }
        (Mode::All(second), now) => {
            let all = locks.all([locks.mutex(name).lock(), locks.mutex(second).lock()]);
            let all = if now { all.timeout(std::time::Duration::from_millis(300)) } else { all };
            return match all.await {
                Ok(all) => Ok(Some(Grip::All(all))),
                Err(error) if now && error.kind() == ErrorKind::TimedOut => Ok(None),
                Err(error) => Err(error),
            };
        }
        (Mode::Double(members), _) => {
            return Ok(Some(Grip::Inside(locks.double_barrier(name, *members).enter().await?)));
        }
        (Mode::Ask, _) => return Ok(locks.ask(Kind::Lock, name).await?.then_some(Grip::Nothing)),
        (Mode::Elect(id), _) => Some(locks.election(name).stand(id).await?),
        (Mode::Exclusive, true) => locks.mutex(name).try_lock().await?,
        (Mode::Exclusive, false) => Some(locks.mutex(name).lock().await?),
        (Mode::Shared, true) => locks.rwlock(name).try_read().await?,
        (Mode::Shared, false) => Some(locks.rwlock(name).read().await?),
        (Mode::Permits(count, limit), true) => {
            locks.semaphore(name, *limit).try_acquire(*count).await?
        }
        (Mode::Permits(count, limit), false) => {
            Some(locks.semaphore(name, *limit).acquire(*count).await?)
        }
    };
    Ok(guard.map(Grip::Guard))
}

async fn run(url: &str, name: &str, mode: &Mode, now: bool, until_asked: bool) -> Result<u8> {
    // Members of the drivers' own need not be waited for.
    #[cfg(feature = "redlock")]
    if url.starts_with("redlock-lab:") {
        Locks::register(lockkeeper::redlock_laboratory())?;
    }
    let locks = Locks::open(url).await?;
    let Some(held) = take(&locks, name, mode, now).await? else { return Ok(75) };
    println!("granted {}", held.token().unwrap_or_else(|| "-".to_owned()));
    if let Some(held) = held.held().filter(|_| until_asked) {
        held.asked().await;
        println!("asked");
    } else {
        let end = tokio::task::spawn_blocking(|| {
            std::io::copy(&mut std::io::stdin(), &mut std::io::sink())
        });
        // Whatever the input ends with, it has ended.
        let _ = end.await;
    }
    held.give_back().await?;
    let _ = locks.close().await;
    Ok(0)
}

fn permits(text: &str) -> Option<Mode> {
    let (count, limit) = text.split_once('/')?;
    Some(Mode::Permits(count.parse().ok()?, limit.parse().ok()?))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if words.is_empty() {
        // Nothing to share with anybody: shows itself on a lock of this process.
        words = ["memory:", "example", "-n"].map(str::to_owned).to_vec();
    }
    let [url, name, options @ ..] = words.as_slice() else {
        eprintln!(
            "usage: hold URL NAME [-n] [--until-asked] [-s | -w | --permits N/MAX | --elect ID | \
             --latch | --wait | --all NAME | --double N | --ask]"
        );
        return ExitCode::from(64);
    };
    let (mut mode, mut now, mut until_asked) = (Mode::Exclusive, false, false);
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match option.as_str() {
            "-n" => now = true,
            "--until-asked" => until_asked = true,
            "--ask" => mode = Mode::Ask,
            "-s" => mode = Mode::Shared,
            "-w" => mode = Mode::Write,
            "--latch" => mode = Mode::Latch,
            "--wait" => mode = Mode::Wait,
            "--elect" => match options.next() {
                Some(id) => mode = Mode::Elect(id.clone()),
                None => return ExitCode::from(64),
            },
            "--all" => match options.next() {
                Some(second) => mode = Mode::All(second.clone()),
                None => return ExitCode::from(64),
            },
            "--double" => match options.next().and_then(|text| text.parse().ok()) {
                Some(members) => mode = Mode::Double(members),
                None => return ExitCode::from(64),
            },
            "--permits" => match options.next().and_then(|text| permits(text)) {
                Some(permits) => mode = permits,
                None => return ExitCode::from(64),
            },
            _ => return ExitCode::from(64),
        }
    }
    match run(url, name, &mode, now, until_asked).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(if error.kind() == ErrorKind::TimedOut {
                75
            } else {
                error.kind().exit_code()
            })
        }
    }
}
