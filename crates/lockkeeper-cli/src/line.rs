//! This process's own command line.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

static LINE: OnceLock<Vec<OsString>> = OnceLock::new();

/// Keeps what the C runtime gave. `std::env::args` has it with glibc alone: where another C library
/// starts a program whose `main` is not Rust's own, it has nothing.
///
/// # Safety
/// These are the runtime's own, as `main` gets them.
pub unsafe fn keep(argc: c_int, argv: *const *const c_char) {
    let mut line = Vec::new();
    for at in 0..usize::try_from(argc).unwrap_or(0) {
        // SAFETY: `argv` has `argc` texts, each with its end.
        let word = unsafe {
            let start = *argv.add(at);
            if start.is_null() {
                break;
            }
            CStr::from_ptr(start)
        };
        line.push(OsStr::from_bytes(word.to_bytes()).to_owned());
    }
    _ = LINE.set(line);
}

/// The words, the program's name first, as they were before secrets were hidden.
pub fn words() -> &'static [OsString] {
    LINE.get_or_init(|| std::env::args_os().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_that_the_runtime_gave() {
        let texts = [c"lockkeeper".as_ptr(), c"ls".as_ptr(), c"a b\xff".as_ptr(), std::ptr::null()];
        // SAFETY: three texts with their ends.
        unsafe { keep(3, texts.as_ptr()) };
        let words: Vec<&[u8]> = words().iter().map(|word| word.as_bytes()).collect();
        assert_eq!(words, [b"lockkeeper".as_slice(), b"ls", b"a b\xff"]);
    }
}
