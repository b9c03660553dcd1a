//! What is said first on a fresh connection, and what the server answers to it.

use super::super::super::errors;
use super::super::super::facts::Facts;
use super::super::pipe::{Broken, Pipe};
use super::super::resp::{Command, Value};
use super::{Link, Tracking};
use crate::clock::unix_us;
use crate::error::{Error, Result};

impl Link {
    /// A connection that ended before the server said anything.
    pub(super) fn no_welcome(&self, why: &str) -> Error {
        let at = &self.options.address;
        if why.contains("CertificateRequired") {
            let text = format!(
                "the server at {at} wants a client certificate: name it with tls_cert=FILE and \
                 tls_key=FILE"
            );
            return Error::new(crate::error::ErrorKind::Refused, text);
        }
        // A TLS alert, or the end of the connection: that is how a TLS port takes a plain greeting.
        let tls_port = self.options.tls.is_none()
            && (why.contains("\\u{15}")
                || ["closed the connection", "reset by peer"].iter().any(|end| why.contains(end)));
        if tls_port {
            errors::unreachable(at, format_args!("{why}; if it wants TLS, use rediss://"))
        } else {
            errors::unreachable(at, why)
        }
    }

    /// Everything in one message: who we are, which database, what we listen to, what the server
    /// is.
    pub(super) async fn hello(&self, pipe: &Pipe, channels: &[String]) -> Result<Facts> {
        let options = &self.options;
        let mut hello = Command::new(["HELLO", "3"]);
        if let Some(password) = &options.password {
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
        let tracks = self.lock().tracks.clone();
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
        let (names, commands): (Vec<&str>, Vec<Command>) = commands.into_iter().unzip();
        let (before, read_at_us) = (self.clock.now(), unix_us());
        let mut values = Vec::new();
        let mut greeting = Value::Nil;
        for (at, (name, answer)) in names.iter().zip(pipe.send(&commands)).enumerate() {
            let value = match answer.await {
                Ok(Ok((_, value))) => value,
                Ok(Err(
                    Broken::NotSent(why) | Broken::Unknown(why) | Broken::Unacknowledged(why),
                )) => {
                    return Err(self.no_welcome(&why));
                }
                Err(_) => return Err(self.no_welcome("the connection ended")),
            };
            match value {
                Value::Error(text) if at < required => {
                    return Err(errors::server(options, name, &text));
                }
                // What it says first is enough to know a server that can never do.
                value if at == 0 => {
                    Facts::read(&value, &Value::Nil, &Value::Nil).check(options)?;
                    greeting = value;
                }
                value => values.push(value),
            }
        }
        if tracks.is_some() {
            // Where it is denied, waiters look when the lease ends, and watchers every five
            // seconds.
            values.pop();
        }
        let fsync = values.pop().unwrap_or(Value::Nil);
        let info = values.pop().unwrap_or(Value::Nil);
        let mut facts = Facts::read(&greeting, &info, &fsync);
        if let Some([seconds, micros]) = values.pop().as_ref().map(Value::items)
            && let (Some(seconds), Some(micros)) = (seconds.unsigned(), micros.unsigned())
        {
            facts.time = Some((seconds.saturating_mul(1_000_000).saturating_add(micros), before));
            facts.read_at_us = read_at_us;
        }
        facts.heard = self.clock.now();
        facts.check(options)?;
        Ok(facts)
    }
}
