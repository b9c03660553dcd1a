//! An engine from outside: it registers itself, and nothing else knows of it. It keeps one kernel
//! lock a name in a directory, so that several processes exclude each other.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::Duration;

use lockkeeper::engine::*;
use lockkeeper::{Can, Locks, url::EngineUrl};

type Claims = Arc<Mutex<HashMap<ClaimId, Option<(File, u64)>>>>;
struct Dummy {
    dir: PathBuf,
    claims: Claims,
    context: OnceLock<Context>,
}

fn open(url: &mut EngineUrl, _: &Common) -> Result<Box<dyn Engine>> {
    let shelf = url.take("shelf").unwrap_or_else(|| "locks".to_owned());
    let dir = Path::new(&url.path).join(shelf);
    Ok(Box::new(Dummy { dir, claims: Claims::default(), context: OnceLock::new() }))
}

pub static DUMMY: LazyLock<Registration> = LazyLock::new(|| {
    let mut dummy = Registration::new("dummy", &["dummy"], Keep::Kernel, open);
    let shelf = UrlOption::new("shelf", Value::Text("WORD"), "locks", "the directory in the path");
    dummy.options.push(shelf.identity());
    Locks::register(dummy.clone()).expect("nobody else has the scheme");
    dummy
});

/// Takes the file's lock, if it is free, and counts the grant in it.
fn take(path: &Path) -> std::io::Result<Option<(File, u64)>> {
    let file = File::options().create(true).truncate(false).read(true).write(true).open(path)?;
    if file.try_lock().is_err() {
        return Ok(None);
    }
    let mut last = [0; 8];
    _ = file.read_at(&mut last, 0)?;
    let number = next_number(u64::from_be_bytes(last), unix_us());
    let number = number.ok_or(std::io::ErrorKind::InvalidData)?;
    file.write_all_at(&number.to_be_bytes(), 0)?;
    Ok(Some((file, number)))
}

fn granted(number: u64) -> Grant {
    Grant { number: Number::Ours(number), lease: None }
}

fn refused(error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Refused, error.to_string())
}

fn unsupported() -> Error {
    Error::new(ErrorKind::Unsupported, "the dummy only knows mutexes")
}

impl Dummy {
    fn end(&self, claim: ClaimId) -> End {
        let ended = self.claims.lock().expect("no panic").remove(&claim);
        if ended.is_some() { End::Freed } else { End::NotOurs }
    }
}

impl Engine for Dummy {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        _ = self.context.set(context);
        Answer::Now(std::fs::create_dir_all(&self.dir).map_err(|e| refused(&e)))
    }
    fn describe(&self) -> Description {
        let mut about = Description::new("dummy", "dummy", Class::OneKernel);
        about.can = Can::NONE;
        about.server = self.dir.display().to_string();
        about.breaks.push("whoever deletes a file of the directory".to_owned());
        about
    }
    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        let (id, hasher) = (claim.id, BuildHasherDefault::<DefaultHasher>::default());
        let path = self.dir.join(format!("{:x}", hasher.hash_one(&claim.name)));
        let mut claims = self.claims.lock().expect("no panic");
        if let Some(known) = claims.get(&id) {
            let number = known.as_ref().map(|(_, number)| granted(*number));
            return Answer::Now(number.map_or(Attempt::InLine(Place::default()), Attempt::Granted));
        }
        match take(&path) {
            Ok(None) if line == Line::Try => return Answer::Now(Attempt::Busy(None)),
            Ok(None) => claims.insert(id, None),
            Ok(Some((file, number))) => {
                claims.insert(id, Some((file, number)));
                return Answer::Now(Attempt::Granted(granted(number)));
            }
            Err(e) => return Answer::Now(Attempt::Failed(refused(&e))),
        };
        let (claims, events) = (self.claims.clone(), self.context.get().map(|c| c.events.clone()));
        std::thread::spawn(move || {
            let number = loop {
                std::thread::sleep(Duration::from_millis(2));
                let mut claims = claims.lock().expect("no panic");
                let Some(waiting @ None) = claims.get_mut(&id) else { return };
                let Ok(Some(got)) = take(&path) else { continue };
                break waiting.insert(got).1;
            };
            let granted = Event::Granted { claim: id, grant: granted(number) };
            events.expect("it is open").send(granted);
        });
        Answer::Now(Attempt::InLine(Place::default()))
    }
    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
        let all = self.claims.lock().expect("no panic");
        let one = |claim| match all.get(claim) {
            Some(Some((_, number))) => Standing::Held(granted(*number)),
            Some(None) => Standing::InLine(Place::default()),
            None => Standing::Gone(Error::new(ErrorKind::Lost, "nothing of it is there")),
        };
        Answer::Now(claims.iter().map(one).collect())
    }
    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        Answer::Now(self.end(claim))
    }
    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        let ends = holds.iter().map(|hold| self.end(*hold)).collect();
        let again = again.map(|claim| self.attempt(claim, Line::Join));
        let again = again.and_then(|a| if let Answer::Now(a) = a { Some(a) } else { None });
        Answer::Now(Released { ends, again })
    }
    fn convert(&self, _: HoldId, _: &Claim) -> Answer<Attempt> {
        Answer::Now(Attempt::Failed(unsupported()))
    }
    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        Answer::Now(leases.iter().map(|_| Renewal::Gone(Lost::TakenAway)).collect())
    }
    fn read(&self, _: &Query) -> Answer<Result<Vec<Entry>>> {
        Answer::Now(Err(unsupported()))
    }
    fn write(&self, _: &Change) -> Answer<Result<bool>> {
        Answer::Now(Err(unsupported()))
    }
    fn watch(&self, _: WatchId, _: &Query) -> Answer<Result<()>> {
        Answer::Now(Err(unsupported()))
    }
    fn unwatch(&self, _: WatchId) {}
    fn close(&self) -> Answer<()> {
        self.claims.lock().expect("no panic").clear();
        Answer::Now(())
    }
}
