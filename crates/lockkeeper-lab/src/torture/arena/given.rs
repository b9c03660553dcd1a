//! A server of somebody else's: only clients are hit.

use super::{About, Arena};

pub(super) struct Given {
    url: String,
    about: About,
}

impl Given {
    pub(super) fn open(url: &str) -> Result<Self, (u8, String)> {
        let about = About::of(url)?;
        if about.engine == "memory" {
            return Err((64, "memory: is seen by one process only, and torture needs several: choose another engine".to_owned()));
        }
        Ok(Self { url: url.to_owned(), about })
    }
}

impl Arena for Given {
    fn url(&mut self, _: u32) -> Result<String, String> {
        Ok(self.url.clone())
    }
    fn about(&self) -> About {
        self.about
    }
    fn left_out(&self) -> Vec<String> {
        vec!["faults of servers and links: the server is not ours (redis:auto and the like start their own)".to_owned()]
    }
}
