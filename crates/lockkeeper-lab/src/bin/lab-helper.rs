//! A process that takes locks when a test tells it to. See `lockkeeper_lab::conformance::Helper`.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockkeeper_lab::conformance::serve(|url| {
        Box::pin(async move { lockkeeper::Locks::open(&url).await })
    })
}
