//! What the server's errors mean.

use tokio_postgres::error::{DbError, Severity, SqlState};

use super::environment;
use super::options::{Pooler, PostgresOptions};
use crate::words::error::{Error, ErrorKind};

/// Why a statement has no answer.
#[derive(Clone, Debug)]
pub(super) struct Broken {
    /// What to tell.
    pub(super) error: Error,
    /// It certainly did nothing.
    pub(super) certain: bool,
    /// It did nothing because others were in the way: ask again.
    pub(super) repeat: bool,
    /// It waited for a row that somebody else has locked.
    pub(super) waited: bool,
    /// Nothing was in the way but that others wrote first, again and again.
    pub(super) conflict: bool,
    /// A table or its schema is not there.
    pub(super) missing: bool,
}

impl Broken {
    /// Nothing was sent.
    pub(super) fn unsent(error: Error) -> Self {
        Self { error, certain: true, repeat: false, waited: false, conflict: false, missing: false }
    }

    /// It may have been carried out.
    pub(super) fn unknown(error: Error) -> Self {
        Self { certain: false, ..Self::unsent(error) }
    }

    /// The same, where it is not certain what was done.
    pub(super) fn doubted(self) -> Self {
        Self::unknown(self.error)
    }
}

pub(super) fn wrong(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

/// A change that has no claim to ask about: whoever repeats it may do it twice (R4).
pub(super) fn not_known(why: &Error) -> Error {
    let text = format!("it is not known whether this was carried out: {}", why.message());
    Error::new(ErrorKind::Unknown, text)
}

pub(super) fn unreachable(at: &str, why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Unreachable, format!("the server at {at} cannot be reached: {why}"))
}

/// What to tell of two servers of which neither can be used: one that is full is the one to use,
/// once it has room, whatever the others are.
pub(super) fn either(one: Error, other: Error) -> Error {
    let full = one.kind() == ErrorKind::Refused && one.is_outage();
    if full { one } else { other }
}

/// What a statement's error means.
pub(super) fn statement(options: &PostgresOptions, error: &tokio_postgres::Error) -> Broken {
    let at = options.at();
    let Some(db) = error.as_db_error() else {
        return Broken::unknown(unreachable(&at, text(error)));
    };
    let code = db.code();
    let in_the_way = [
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::QUERY_CANCELED,
    ];
    if *code == SqlState::UNIQUE_VIOLATION {
        let text = format!(
            "the tables in the server at {at} do not fit together ({}): places stand there whose \
             row is gone; delete those of the name from {} once nobody uses it",
            db.message(),
            options.sql("{line}")
        );
        return Broken::unsent(Error::new(ErrorKind::Corrupt, text));
    }
    if in_the_way.contains(code) {
        let waited = *code == SqlState::LOCK_NOT_AVAILABLE;
        let text = in_the_way_of(&at, code, db.message());
        let error = match waited {
            // The server can be reached, and what stands on the row may be a hold.
            true => Error::new(ErrorKind::Refused, text).no_room(),
            false => Error::new(ErrorKind::Unreachable, text),
        };
        return Broken { repeat: true, waited, ..Broken::unsent(error) };
    }
    let error = match *code == SqlState::INSUFFICIENT_PRIVILEGE {
        true => no_right(options, db),
        false => refused(options, db),
    };
    let certain = is_certain(db.parsed_severity(), code);
    let missing = *code == SqlState::UNDEFINED_TABLE || *code == SqlState::INVALID_SCHEMA_NAME;
    Broken { certain, missing, ..Broken::unknown(error) }
}

/// What kept a statement that did nothing, and what ends that.
fn in_the_way_of(at: &str, code: &SqlState, said: &str) -> String {
    if *code == SqlState::LOCK_NOT_AVAILABLE {
        return format!(
            "the server at {at} did not get to the lock's row ({said}): somebody's transaction \
             stands on it; pg_locks and pg_stat_activity show whose: end it, or ask later"
        );
    }
    format!(
        "the server at {at} did not get through with the statement ({said}): others are in the \
         way, or it is very busy; ask later"
    )
}

/// Whether an error says that the statement did nothing. A server that goes away, or a connection
/// that ends, may take the answer to a commit with it.
fn is_certain(severity: Option<Severity>, code: &SqlState) -> bool {
    let ends = matches!(severity, Some(Severity::Fatal | Severity::Panic));
    !ends && !code.code().starts_with("57P") && !code.code().starts_with("08")
}

/// Whether a dial was refused for its password. A user that does not exist or may not log in, and
/// what pg_hba.conf does not admit, has 28000, and so has a password that LDAP or PAM refused: that
/// comes from another place of the server.
pub(super) fn is_about_password(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(is_wrong_password)
}

fn is_wrong_password(error: &DbError) -> bool {
    *error.code() == SqlState::INVALID_PASSWORD
        || *error.code() == SqlState::INVALID_AUTHORIZATION_SPECIFICATION
            && error.routine() == Some("auth_failed")
}

/// What a dial that failed means.
pub(super) fn dial(options: &PostgresOptions, at: &str, error: &tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(db) => refused(options, db),
        None => {
            let why = text(error);
            if why.contains("password missing") {
                let text = format!(
                    "the server at {at} wants a password: write postgres://user:password@host, or \
                     use password_file or password_env{}",
                    environment::of_password()
                );
                return Error::new(ErrorKind::Refused, text);
            }
            unreachable(at, why)
        }
    }
}

/// No right to make the tables, or to use them. A dial has none of it: there it is the right to
/// connect that is missing.
fn no_right(options: &PostgresOptions, db: &DbError) -> Error {
    let text = format!(
        "the server at {} refuses: {} ({}); let somebody with the right to create the tables run \
         what `lockkeeper schema URL` prints: it grants this user what it needs",
        options.at(),
        db.message(),
        db.code().code()
    );
    Error::new(ErrorKind::Refused, text)
}

fn refused(options: &PostgresOptions, db: &DbError) -> Error {
    let (at, said) = (options.at(), db.message());
    let code = db.code();
    // As pgbouncer says it.
    let full =
        *code == SqlState::TOO_MANY_CONNECTIONS || said.contains("no more connections allowed");
    // A statement's name, which only a connection of the server's own keeps.
    let named =
        *code == SqlState::INVALID_SQL_STATEMENT_NAME || *code == SqlState::DUPLICATE_PSTATEMENT;
    let (kind, text) = if named {
        let what_to_do = match options.pooler {
            Pooler::Session => "write the URL without pooler=session",
            _ => "name the server itself, or add pooler=transaction with layout=table",
        };
        let text = format!(
            "the server at {at} forgets what was prepared ({said}): a pooler there gives each \
             transaction another connection; {what_to_do}"
        );
        (ErrorKind::Refused, text)
    } else if *code == SqlState::UNDEFINED_TABLE
        || *code == SqlState::UNDEFINED_COLUMN
        || *code == SqlState::INVALID_SCHEMA_NAME
        || *code == SqlState::DATATYPE_MISMATCH
        || *code == SqlState::UNDEFINED_FUNCTION
        || HAND_MADE.contains(code)
    {
        (ErrorKind::Refused, no_tables(options, said))
    } else if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        let text = format!(
            "the server at {at} takes no writes ({said}): it is a replica, or its transactions \
             are read-only; name the primary"
        );
        (ErrorKind::Refused, text)
    } else if full {
        let text = format!(
            "the server at {at} has as many connections as it takes ({said}): raise its \
             max_connections or the limit of the role or the database, or run fewer clients"
        );
        return Error::new(ErrorKind::Refused, text).no_room();
    } else if *code == SqlState::CANNOT_CONNECT_NOW
        || code.code().starts_with("57P")
        || code.code().starts_with("08")
    {
        (ErrorKind::Unreachable, format!("the server at {at} cannot be used now: {said}"))
    } else {
        // What LDAP or PAM refused has the code of whom nobody lets in.
        let code = if is_wrong_password(db) { &SqlState::INVALID_PASSWORD } else { code };
        let what_to_do = what_to_do(code, said).map(|what| format!("; {what}"));
        let what_to_do = what_to_do.unwrap_or_default();
        let text = format!("the server at {at} refuses: {said} ({}){what_to_do}", db.code().code());
        (ErrorKind::Refused, text)
    };
    Error::new(kind, text)
}

/// What a table says that is not there, or not as we make it.
pub(super) fn no_tables(options: &PostgresOptions, why: &str) -> String {
    format!(
        "the tables of lockkeeper in the server at {} are not there, or not its own ({why}): let \
         somebody with the right to create them run what `lockkeeper schema URL` prints, or use \
         another prefix (with layout=shedlock: another table)",
        options.at()
    )
}

/// What a table says that has our name, and is not as we make it: a view, one without the index
/// that is needed, or with a column or a condition of somebody else's.
const HAND_MADE: [SqlState; 5] = [
    SqlState::WRONG_OBJECT_TYPE,
    SqlState::INVALID_COLUMN_REFERENCE,
    SqlState::NOT_NULL_VIOLATION,
    SqlState::CHECK_VIOLATION,
    SqlState::NUMERIC_VALUE_OUT_OF_RANGE,
];

/// What ends a refusal, where its code says that.
fn what_to_do(code: &SqlState, said: &str) -> Option<&'static str> {
    Some(match code {
        c if *c == SqlState::INVALID_CATALOG_NAME => {
            "create the database, or name another: postgres://host/database"
        }
        c if *c == SqlState::INVALID_PASSWORD => "check the URL's user and the password",
        c if *c == SqlState::INVALID_AUTHORIZATION_SPECIFICATION
            && said.contains("does not exist") =>
        {
            "create the role, or name another: postgres://user@host/database"
        }
        c if *c == SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            "whoever runs the server lets this user in, by its roles and pg_hba.conf"
        }
        // Only a dial's: of a statement it is the tables' (`no_right`).
        c if *c == SqlState::INSUFFICIENT_PRIVILEGE => {
            "let the database's owner GRANT CONNECT ON it to this user"
        }
        c if *c == SqlState::UNTRANSLATABLE_CHARACTER => {
            "the database cannot hold this name: use one in UTF8, or layout=table"
        }
        c if c.code().starts_with("53") => "make room there, and ask again",
        _ => return None,
    })
}

/// An error with its cause, on one line.
fn text(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    text.replace('\n', " ")
}

/// An error about TLS, in the words of a database's administrator.
pub(super) fn libpq(error: Error) -> Error {
    let mut said = error.message().to_owned();
    for (ours, libpq) in [("tls_ca", "sslrootcert"), ("tls_cert", "sslcert"), ("tls_key", "sslkey")]
    {
        said = said.replace(ours, libpq);
    }
    said = said.replace(", or its name with tls_name=", "");
    Error::new(error.kind(), said).passing_as(&error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b7_of_several_servers_the_full_one_is_told_whatever_the_others_are() {
        let full = || Error::new(ErrorKind::Refused, "full").no_room();
        for other in [unreachable("b:1", "away"), Error::new(ErrorKind::Refused, "a replica")] {
            let told = either(full(), other);
            assert!(told.message() == "full" && told.is_outage(), "{told}");
        }
        let told = either(unreachable("a:1", "away"), Error::new(ErrorKind::Refused, "a replica"));
        assert_eq!(told.message(), "a replica");
    }

    #[test]
    fn r4_what_ends_the_connection_is_never_certain() {
        for severity in [Severity::Fatal, Severity::Panic] {
            for code in [SqlState::IO_ERROR, SqlState::DISK_FULL, SqlState::UNDEFINED_TABLE] {
                assert!(!is_certain(Some(severity), &code), "{severity} {code:?}");
            }
        }
        assert!(is_certain(Some(Severity::Error), &SqlState::UNDEFINED_TABLE));
        assert!(!is_certain(Some(Severity::Error), &SqlState::ADMIN_SHUTDOWN));
    }
}
