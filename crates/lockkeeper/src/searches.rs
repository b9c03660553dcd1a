//! How far searches go that take long.

/// So far among the unit tests, and so far where `cargo xtask campaign models` asks for the whole.
pub(crate) fn as_far_as<N>(briefly: N, whole: N) -> N {
    if std::env::var_os("LOCKKEEPER_WHOLE_SEARCHES").is_some() { whole } else { briefly }
}
