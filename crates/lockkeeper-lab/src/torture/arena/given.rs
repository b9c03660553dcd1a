//! A server of somebody else's: only clients are hit. Whether it is still there is asked again and
//! again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::blocking::Locks;
use lockkeeper::engine::Keep;
use lockkeeper::{ErrorKind, Kind};

use super::super::storm::Storm;
use super::{About, Arena};
use crate::engines::{NOT_OURS, registration};
use crate::history::Writer;

/// How often it is asked.
const EVERY: Duration = Duration::from_millis(500);
/// One that was silent for so long has gone for good: longer than a lost connection takes to be
/// there again, which is tried after pauses of up to 2 s, and than a request may take.
const SILENT_MAX: Duration = Duration::from_secs(10);

pub(super) struct Given {
    url: String,
    about: About,
    /// When the last question was asked that it answered; kept by the one who asks, until this
    /// goes.
    heard: Arc<AtomicU64>,
    asks: Option<Storm>,
}

impl Given {
    pub(super) fn open(url: &str) -> Result<Self, (u8, String)> {
        let about = About::of(url)?;
        let keep = registration(url).map_err(|e| (e.kind().exit_code(), e.to_string()))?.keep;
        if keep == Keep::Process {
            let text = "is seen by one process only, and torture needs several: choose another";
            return Err((64, format!("{}: {text} engine", about.engine)));
        }
        let heard = Arc::new(AtomicU64::new(Writer::now()));
        // What the kernel keeps does not go away by itself.
        let asks = if keep == Keep::Kernel { None } else { Some(ask(url, heard.clone())?) };
        Ok(Self { url: url.to_owned(), about, heard, asks })
    }

    /// Since when it has not answered, if that is for good.
    fn silence(&self) -> Option<String> {
        let silent = Duration::from_nanos(Writer::now().saturating_sub(self.there()));
        let (engine, most) = (self.about.engine, SILENT_MAX.as_secs());
        (silent > SILENT_MAX).then(|| format!(
            "the {engine} server that was given ended, or cannot be reached: no answer for {most} s"
        ))
    }
}

fn ask(url: &str, heard: Arc<AtomicU64>) -> Result<Storm, (u8, String)> {
    let locks = Locks::open(url).map_err(|e| (e.kind().exit_code(), e.to_string()))?;
    let ask = move || {
        let asked = Writer::now();
        let answered = locks.status(Kind::Lock, "torture/0");
        // Whatever else it says, it is there.
        if !answered.is_err_and(|e| {
            matches!(e.kind(), ErrorKind::Unreachable | ErrorKind::Unknown | ErrorKind::TimedOut)
        }) {
            heard.store(asked, Ordering::Release);
        }
    };
    Storm::begin(EVERY, ask).map_err(|text| (125, text))
}

impl Arena for Given {
    fn url(&mut self, _: u32) -> Result<String, String> {
        Ok(self.url.clone())
    }
    fn about(&self) -> About {
        self.about
    }
    fn lost(&mut self) -> Option<String> {
        self.silence()
    }
    fn there(&self) -> u64 {
        if self.asks.is_some() { self.heard.load(Ordering::Acquire) } else { Writer::now() }
    }
    fn lost_at_the_end(&mut self) -> Option<String> {
        let end = Writer::now();
        while self.there() < end && self.silence().is_none() {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.silence()
    }
    fn left_out(&self) -> Vec<String> {
        vec![NOT_OURS.to_owned()]
    }
}
