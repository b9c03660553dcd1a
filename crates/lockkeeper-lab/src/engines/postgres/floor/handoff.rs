//! From one process to another, beside two commits, the second of which notifies.

use std::future::poll_fn;
use std::time::Instant;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, Client, Statement};

use super::bare::{connect, locks, make_rows, open};
use crate::bench::handoff::{Peer, name, now, until_waiting};
use crate::bench::measure::{Pairs, Row};
use crate::bench::{Subject, text};

/// Release here, turn there.
pub(super) fn process_handoff(subject: &Subject) -> Result<Row, String> {
    let bare = subject.name("bare");
    make_rows(subject, std::slice::from_ref(&bare))?;
    let mut floor = subject.runtime.block_on(Floor::connect(subject, bare))?;
    let mut peer = Peer::start(subject, &subject.file("bare-handoff"))?;
    let locks = lockkeeper::blocking::Locks::open(&subject.url).map_err(text)?;
    let name = name(subject);
    let mutex = locks.mutex(&name);
    let began = Instant::now();
    let mut all = Vec::new();
    while began.elapsed() < subject.time || all.len() < 8 {
        let guard = mutex.lock().run().map_err(text)?;
        peer.say("ours")?;
        until_waiting(&locks, &name)?;
        let released = now();
        drop(guard);
        let ours = peer.turn_at()?.saturating_sub(released);
        let floor = subject.runtime.block_on(floor.once())?;
        all.push((ours as f64 / 1e3, floor as f64 / 1e3));
    }
    all.remove(0);
    let row = subject.row("process-handoff", 2).measured(&Pairs(all));
    Ok(row.beside("two commits, the second of which notifies", "≤ 1"))
}

/// One connection that writes, and one that listens.
struct Floor {
    client: Client,
    write: Statement,
    notify: Statement,
    name: String,
    /// Ends with the value, and the connection with it.
    _listens: Client,
    heard: UnboundedReceiver<u64>,
}

impl Floor {
    async fn connect(subject: &Subject, name: String) -> Result<Self, String> {
        let client = connect(&subject.url).await?;
        let (listens, mut connection) = open(&subject.url).await?;
        let (tell, heard) = unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if matches!(message, AsyncMessage::Notification(_)) {
                    _ = tell.send(now());
                }
            }
        });
        let channel = subject.own.replace('-', "_");
        listens.batch_execute(&format!("LISTEN {channel}")).await.map_err(text)?;
        let write = format!(
            "UPDATE {} SET version = version + 1, number = number + 1 \
             WHERE kind = 0 AND name = convert_to($1, 'UTF8') RETURNING version",
            locks(&subject.url)
        );
        let notify = format!(
            "WITH written AS ({write}) \
             SELECT pg_notify('{channel}', version::text) FROM written"
        );
        let write = client.prepare(&write).await.map_err(text)?;
        let notify = client.prepare(&notify).await.map_err(text)?;
        Ok(Self { client, write, notify, name, _listens: listens, heard })
    }

    /// How long it took until it was heard, in nanoseconds.
    async fn once(&mut self) -> Result<u64, String> {
        let began = now();
        self.client.execute(&self.write, &[&self.name]).await.map_err(text)?;
        self.client.execute(&self.notify, &[&self.name]).await.map_err(text)?;
        let heard = self.heard.recv().await.ok_or("the connection that listens has ended")?;
        Ok(heard.saturating_sub(began))
    }
}
