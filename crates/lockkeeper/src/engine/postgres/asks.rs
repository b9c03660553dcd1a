//! The statements of the tables, and the types of their arguments.

use tokio_postgres::types::Type;

/// A statement and its types.
#[derive(Clone, Copy)]
pub(super) struct Sql(pub(super) &'static str, pub(super) &'static [Type]);

const KIND: Type = Type::INT2;
const KINDS: Type = Type::INT2_ARRAY;
const NAME: Type = Type::BYTEA;
const NAMES: Type = Type::BYTEA_ARRAY;
const CLAIM: Type = Type::BYTEA;
const CLAIMS: Type = Type::BYTEA_ARRAY;
const NUMBER: Type = Type::INT8;
const NUMBERS: Type = Type::INT8_ARRAY;
const TEXT: Type = Type::TEXT;
const TEXTS: Type = Type::TEXT_ARRAY;

pub(super) const ACQUIRE: Sql =
    Sql(include_str!("acquire.sql"), &[KIND, NAME, CLAIM, NUMBER, NUMBER, TEXT]);
pub(super) const RELEASE: Sql = Sql(include_str!("release.sql"), &[KIND, NAME, CLAIM, NUMBER]);
pub(super) const RENEW: Sql =
    Sql(include_str!("renew.sql"), &[KINDS, NAMES, CLAIMS, NUMBERS, NUMBERS]);
pub(super) const READ: Sql = Sql(include_str!("read.sql"), &[KIND, NAME, CLAIM, NUMBER, NUMBER]);
pub(super) const UPDATE: Sql = Sql(
    include_str!("update.sql"),
    &[
        KIND,
        NAME,
        NUMBER,
        NUMBER,
        NUMBER,
        CLAIM,
        NUMBER,
        NUMBER,
        Type::BOOL,
        TEXT,
        NUMBER,
        NUMBERS,
        NUMBER,
        NUMBERS,
        NUMBER,
        CLAIM,
        NUMBER,
        TEXT,
        TEXTS,
        TEXTS,
    ],
);
pub(super) const INSERT: Sql = Sql(
    include_str!("insert.sql"),
    &[
        KIND,
        NAME,
        NUMBER,
        CLAIM,
        NUMBER,
        NUMBER,
        Type::BOOL,
        TEXT,
        NUMBER,
        NUMBER,
        CLAIM,
        NUMBER,
        TEXT,
    ],
);
pub(super) const JOIN: Sql = Sql(include_str!("join.sql"), &[KIND, NAME, CLAIM, NUMBER, TEXT]);
pub(super) const TOGETHER: Sql = Sql(
    include_str!("together.sql"),
    &[
        KINDS,
        NAMES,
        NUMBERS,
        NUMBERS,
        NUMBERS,
        CLAIMS,
        NUMBERS,
        NUMBERS,
        Type::BOOL_ARRAY,
        TEXTS,
        NUMBER,
        NUMBER,
    ],
);
pub(super) const ROWS: Sql = Sql(include_str!("rows.sql"), &[KINDS, NAMES]);
pub(super) const ALIVE: Sql = Sql(include_str!("alive.sql"), &[KIND, NAME, CLAIM]);
pub(super) const LIST: Sql = Sql(include_str!("list.sql"), &[NAME]);
pub(super) const STATE: Sql = Sql(include_str!("state.sql"), &[KIND, NAME]);
pub(super) const SHARED: Sql = Sql(include_str!("shared.sql"), &[KIND, NAME]);
pub(super) const CLEAR: Sql = Sql(include_str!("clear.sql"), &[KIND, NAME]);
pub(super) const SWEEP: Sql = Sql(include_str!("sweep.sql"), &[NAME]);
