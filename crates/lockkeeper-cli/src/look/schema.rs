//! `schema`: what an administrator runs where lockkeeper may make no tables by itself.

use lockkeeper::engine::Registration;

use crate::args::common::Global;
use crate::args::others::Schema;
use crate::choice::Choice;
use crate::failure::Failure;
use crate::out::print;

/// Prints the statements that make the tables of the chosen engine, or of another one.
///
/// # Errors
/// What is wrong with the URL, or that the engine has no tables.
pub fn schema(global: &Global, args: &Schema) -> Result<u8, Failure> {
    let mut global = global.clone();
    global.url = args.engine.clone().or(global.url);
    Ok(print(&Registration::schema_of(&Choice::find(&global)?.url)?))
}
