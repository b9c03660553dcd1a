//! What the guarded resource saw: its own log decides whether a stale operation got through
//! (design, section 5).

use super::claims::At;

/// The greatest tokens one register has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Register {
    exclusive: u64,
    any: u64,
    /// Where `any` was seen.
    pub seen: Seen,
    /// The last write: when the engine had confirmed its hold last, and whether that was over.
    pub written: Written,
}

/// How a write stands to the hold that it was made under.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    pub confirmed: u64,
    pub late: bool,
}

/// One operation in the resource's log.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub token: u64,
    pub client: u32,
    pub at: At,
    /// When the engine had confirmed its hold for the last time.
    pub confirmed: u64,
}

impl Register {
    /// Whether an operation with this token comes too late. An exclusive holder's read seals as a
    /// write does.
    pub fn is_stale(&self, token: u64, shared_read: bool) -> bool {
        token != 0 && token < if shared_read { self.exclusive } else { self.any }
    }

    /// Takes an accepted operation in.
    pub fn accept(&mut self, operation: Seen, shared_read: bool) {
        if operation.token >= self.any {
            self.any = operation.token;
            self.seen = operation;
        }
        if !shared_read {
            self.exclusive = self.exclusive.max(operation.token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(tokens: &[(u64, bool)]) -> Register {
        let mut register = Register::default();
        for (token, shared_read) in tokens {
            register.accept(Seen { token: *token, ..Seen::default() }, *shared_read);
        }
        register
    }

    #[test]
    fn a_write_is_stale_below_any_token_and_a_shared_read_below_exclusive_ones() {
        let register = with(&[(5, false), (7, true)]);
        assert!(
            register.is_stale(6, false)
                && !register.is_stale(7, false)
                && !register.is_stale(8, false)
        );
        assert!(register.is_stale(4, true) && !register.is_stale(5, true));
        assert!(!register.is_stale(0, false), "without a token nothing can be said");
        assert_eq!(register.seen.token, 7);
    }

    #[test]
    fn a_stale_operation_that_was_accepted_lowers_nothing() {
        let register = with(&[(5, false), (3, false)]);
        assert!(register.is_stale(4, false) && register.is_stale(4, true));
        assert_eq!(register.seen.token, 5);
    }
}
