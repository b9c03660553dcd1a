//! What is said first on a fresh connection, and what the server answers to it.

use std::collections::BTreeSet;

use super::super::super::describe::Facts;
use super::super::super::errors;
use super::super::pipe::Pipe;
use super::super::resp::{Command, Value};
use super::super::script::Which;
use super::super::why::value;
use super::{Link, Tracking};
use crate::engine::password::Login;
use crate::engine::tls::or_refusal;
use crate::words::clock::unix_us;
use crate::words::error::{Error, Result};

impl Link {
    /// A connection that ended before the server said anything.
    fn no_welcome(&self, server: &str, why: &str) -> Error {
        let at = &self.options.address;
        // A TLS alert, or the end of the connection: that is how a TLS port takes a plain greeting.
        let tls_port = self.options.tls.is_none()
            && (why.contains("\\u{15}")
                || ["closed the connection", "reset by peer"].iter().any(|end| why.contains(end)));
        if tls_port {
            let tls = self.options.spelling.tls;
            return errors::unreachable(at, format_args!("{why}; if it wants TLS, {tls}"));
        }
        // Another program will not become a server by itself.
        let another = why.contains("does not speak the Redis protocol");
        let error = errors::unreachable(at, why).temporary(!another);
        or_refusal(self.options.tls.as_ref(), server, error)
    }

    /// What a server's error to the first command means.
    fn no_entry(&self, server: &str, login: Option<&Login>, text: &str) -> Error {
        let why = errors::server(&self.options, "HELLO", text);
        match self.options.password.as_ref().zip(login) {
            Some((password, login)) if errors::is_about_password(text) => {
                password.refused(server, login, why)
            }
            _ => why,
        }
    }

    /// Everything in one message: who we are, which database, what we listen to, what the server
    /// is, and which of the scripts it has that are brought along otherwise. `server`: where it is.
    pub(super) async fn hello(
        &self,
        pipe: &Pipe,
        channels: &[String],
        server: &str,
        login: Option<&Login>,
    ) -> Result<(Facts, BTreeSet<Which>)> {
        let options = &self.options;
        let mut hello = Command::new(["HELLO", "3"]);
        if let Some(Login { password, .. }) = login {
            hello = hello
                .arg("AUTH")
                .arg(options.user.as_deref().unwrap_or("default"))
                .arg(password.reveal());
        }
        let mut commands = vec![("HELLO", hello.arg("SETNAME").arg(&self.label))];
        if options.db != 0 {
            commands.push(("SELECT", Command::new(["SELECT"]).number(options.db.into())));
        }
        commands.extend(
            channels.iter().map(|channel| ("SUBSCRIBE", Command::new(["SUBSCRIBE", channel]))),
        );
        commands.push(("TIME", Command::new(["TIME"])));
        let required = commands.len();
        commands.push(("INFO", Command::new(["INFO"])));
        commands.push(("CONFIG", Command::new(["CONFIG", "GET", "appendfsync"])));
        if options.scattered() {
            commands.push(("CLUSTER", Command::new(["CLUSTER", "MYID"])));
        }
        if let Some(key) = &options.marker {
            commands.push(("HMGET", Command::new(["HMGET", key, "run", "layout", "clock_skew"])));
        }
        let (tracks, brought) = {
            let state = self.lock();
            (state.tracks.clone(), state.brought)
        };
        if let Some(tracks) = &tracks {
            let on = Command::new(["CLIENT", "TRACKING", "ON", "NOLOOP"]);
            commands.push((
                "CLIENT",
                match tracks {
                    Tracking::Read => on,
                    Tracking::Prefix(prefix) => on.arg("BCAST").arg("PREFIX").arg(prefix),
                },
            ));
        }
        if !brought.is_empty() {
            commands.push(("SCRIPT", Which::exist(brought, options.scattered())));
        }
        let (names, commands): (Vec<&str>, Vec<Command>) = commands.into_iter().unzip();
        let (before, read_at_us) = (self.clock.now(), unix_us());
        let mut values = Vec::new();
        let mut greeting = Value::Nil;
        for (at, (name, answer)) in names.iter().zip(pipe.send(&commands)).enumerate() {
            let value = value(answer).await.map_err(|why| self.no_welcome(server, &why))?;
            if let Some(tls) = &options.tls {
                tls.accepted(server);
            }
            match value {
                Value::Error(text) if at == 0 => return Err(self.no_entry(server, login, &text)),
                Value::Error(text) if at < required => {
                    return Err(errors::server(options, name, &text));
                }
                // What it says first is enough to know a server that can never do.
                value if at == 0 => {
                    // Any other program may answer with what a script answers, too: a bare number.
                    if value.pairs().is_empty() {
                        return Err(errors::garbage(options));
                    }
                    if let (Some(password), Some(login)) = (&options.password, login) {
                        password.accepted(server, login);
                    }
                    Facts::read(&value, &Value::Nil, &Value::Nil).check_greeting(options)?;
                    greeting = value;
                }
                value => values.push(value),
            }
        }
        let mut known = BTreeSet::new();
        if !brought.is_empty()
            && let Some(exist) = values.pop()
        {
            // Where it is denied, the first release brings its script along.
            let has = |(_, there): &(_, &Value)| there.integer() == Some(1);
            let there = brought.iter().zip(exist.items()).filter(has);
            known.extend(there.map(|(which, _)| *which));
        }
        // Where it is denied, waiters look when the lease ends, and watchers every five seconds.
        let tracks = tracks.and_then(|_| values.pop());
        let marker = options.marker.as_ref().and_then(|_| values.pop());
        // Where it is denied, only a server that is no node at all is known for a stranger.
        let id = options.scattered().then(|| values.pop()).flatten();
        let fsync = values.pop().unwrap_or(Value::Nil);
        let info = values.pop().unwrap_or(Value::Nil);
        let mut facts = Facts::read(&greeting, &info, &fsync);
        facts.deaf = matches!(tracks, Some(Value::Error(_)));
        if let Some([seconds, micros]) = values.pop().as_ref().map(Value::items)
            && let (Some(seconds), Some(micros)) = (seconds.unsigned(), micros.unsigned())
        {
            facts.time = Some((seconds.saturating_mul(1_000_000).saturating_add(micros), before));
            facts.read_at_us = read_at_us;
        }
        if let Some([run, layout, clock_skew]) = marker.as_ref().map(Value::items) {
            let text = |value: &Value| value.text().map(str::to_owned);
            facts.marker = [run, layout, clock_skew].map(text);
        }
        facts.heard = self.clock.now();
        facts.check(options)?;
        #[cfg(feature = "cluster")]
        if let Some(slots) = &options.slots
            && id
                .as_ref()
                .and_then(Value::text)
                .is_some_and(|id| slots.is_other(&options.address, id))
        {
            slots.doubt();
            return Err(errors::another_node(&options.address));
        }
        #[cfg(not(feature = "cluster"))]
        drop(id);
        Ok((facts, known))
    }
}
