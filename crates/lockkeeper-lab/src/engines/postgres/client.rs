//! A connection to the database of a URL, for what is not lockkeeper's own: the stock, raw
//! statements beside a lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use lockkeeper::url::EngineUrl;
use lockkeeper::{Error, ErrorKind, Result};
use tokio::time::timeout;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{Client, Config, Connection, NoTls, Socket};

/// How long a server may take to let a connection in, or to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The connections of this process. All that a process does to one database goes over one.
static OPEN: Mutex<BTreeMap<String, Weak<Client>>> = Mutex::new(BTreeMap::new());

/// An error in the words of the server.
fn failed(what: &str, error: &tokio_postgres::Error) -> Error {
    let (kind, said) = match error.as_db_error() {
        Some(said) if *said.code() == SqlState::TOO_MANY_CONNECTIONS => {
            let said = said.message();
            let text = format!(
                "{said}: each process of the demo has up to two connections, so take fewer \
                 --workers, or raise the server's max_connections"
            );
            (ErrorKind::Unreachable, text)
        }
        Some(said) => (ErrorKind::Refused, said.message().to_owned()),
        None => {
            let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
            (ErrorKind::Unreachable, format!("{error}{}", cause.unwrap_or_default()))
        }
    };
    Error::new(kind, format!("cannot {what}: {said}"))
}

/// What the server answers, in time.
///
/// # Errors
/// What it says, or that it says nothing.
pub(super) async fn answered<T>(
    what: &str,
    asked: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
) -> Result<T> {
    match timeout(PATIENCE, asked).await {
        Ok(answer) => answer.map_err(|error| failed(what, &error)),
        Err(_) => {
            let text = format!("cannot {what}: no answer in {} s", PATIENCE.as_secs());
            Err(Error::new(ErrorKind::Unreachable, text))
        }
    }
}

/// Whether these connections reach what a URL names: they speak no TLS.
pub(super) fn reaches(url: &str) -> bool {
    let Ok(url) = EngineUrl::parse(url) else { return false };
    let here = |(host, _): &(String, Option<u16>)| {
        let address = host.parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    };
    match url.option("sslmode") {
        Some(mode) => mode == "disable",
        None => url.hosts.iter().all(here),
    }
}

/// The connection of this process to the database of a URL. It ends with the last value.
///
/// # Errors
/// When the URL cannot be right, or the server refuses.
pub(super) async fn connect(url: &str) -> Result<Arc<Client>> {
    let open = || OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = open().get(url).and_then(Weak::upgrade).filter(|client| !client.is_closed());
    if let Some(client) = known {
        return Ok(client);
    }
    let (client, connection) = dial(url).await?;
    // Whoever asks hears that it ended.
    tokio::spawn(async move { _ = connection.await });
    let client = Arc::new(client);
    open().insert(url.to_owned(), Arc::downgrade(&client));
    Ok(client)
}

/// A connection of its own to the database of a URL, and what drives it.
///
/// # Errors
/// As [`connect`].
pub(super) async fn dial(url: &str) -> Result<(Client, Connection<Socket, NoTlsStream>)> {
    let config = config(url)?;
    answered("reach the database", config.connect(NoTls)).await
}

fn config(url: &str) -> Result<Config> {
    if !reaches(url) {
        let text = "the laboratory's own connection to a database speaks no TLS: name a server of \
                    this machine, or add sslmode=disable where the network is trusted";
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let mut url = EngineUrl::parse(url)?;
    let mut config = Config::new();
    config.application_name("lockkeeper-lab");
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    if let Some(directory) = url.take("socket") {
        config.host_path(directory);
    }
    for (host, port) in &url.hosts {
        config.host(host).port(port.unwrap_or(5432));
    }
    if let Some(user) = &url.user {
        config.user(user);
    }
    let refused = |text: String| Error::new(ErrorKind::InvalidArgument, text);
    if let Some(password) = &url.password {
        config.password(password.reveal());
    }
    if let Some(file) = url.take("password_file") {
        let text = std::fs::read_to_string(&file)
            .map_err(|e| refused(format!("password_file={file} cannot be read: {e}")))?;
        config.password(text.trim_end_matches(['\r', '\n']));
    }
    if let Some(variable) = url.take("password_env") {
        let text = std::env::var(&variable)
            .map_err(|_| refused(format!("password_env={variable}: it is not set")))?;
        config.password(text);
    }
    let database = url.path.trim_start_matches('/');
    if !database.is_empty() {
        config.dbname(database);
    }
    Ok(config)
}

/// A name as a statement has it.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The schema that the URL names.
pub(super) fn schema(url: &str) -> Option<String> {
    EngineUrl::parse(url).ok()?.take("schema")
}

/// A table of the URL's schema, as a statement names it.
pub(super) fn table(url: &str, name: &str) -> String {
    match schema(url) {
        Some(schema) => format!("{}.{}", quoted(&schema), quoted(name)),
        None => quoted(name),
    }
}
