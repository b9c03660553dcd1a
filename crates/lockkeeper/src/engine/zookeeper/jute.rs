//! Jute, ZooKeeper's record encoding: big-endian numbers, and texts, bytes and vectors behind a
//! 32-bit length.

/// What was received is not what the protocol says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Appends one record field after the other.
pub(super) trait Put {
    fn put_bool(&mut self, value: bool);
    fn put_i32(&mut self, value: i32);
    fn put_i64(&mut self, value: i64);
    fn put_bytes(&mut self, value: &[u8]);
    fn put_str(&mut self, value: &str);
}

impl Put for Vec<u8> {
    fn put_bool(&mut self, value: bool) {
        self.push(u8::from(value));
    }

    fn put_i32(&mut self, value: i32) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn put_i64(&mut self, value: i64) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn put_bytes(&mut self, value: &[u8]) {
        self.put_i32(i32::try_from(value.len()).unwrap_or(i32::MAX));
        self.extend_from_slice(value);
    }

    fn put_str(&mut self, value: &str) {
        self.put_bytes(value.as_bytes());
    }
}

/// Takes one record field after the other.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    pub(super) fn get_bool(&mut self) -> Result<bool, Malformed> {
        Ok(self.array::<1>()? != [0])
    }

    pub(super) fn get_i32(&mut self) -> Result<i32, Malformed> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub(super) fn get_i64(&mut self) -> Result<i64, Malformed> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    /// Bytes; a length of -1 stands for Java's null and reads as empty.
    pub(super) fn get_bytes(&mut self) -> Result<&'a [u8], Malformed> {
        match self.get_i32()? {
            -1 => Ok(&[]),
            len => self.take(usize::try_from(len).map_err(|_| Malformed)?),
        }
    }

    pub(super) fn get_str(&mut self) -> Result<String, Malformed> {
        String::from_utf8(self.get_bytes()?.to_vec()).map_err(|_| Malformed)
    }

    pub(super) fn get_strs(&mut self) -> Result<Vec<String>, Malformed> {
        let count = usize::try_from(self.get_i32()?.max(0)).map_err(|_| Malformed)?;
        // Each takes four bytes at least: a wrong count cannot make us reserve more than was
        // received.
        let mut all = Vec::with_capacity(count.min(self.0.len() / 4));
        for _ in 0..count {
            all.push(self.get_str()?);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_nothing_is_read_past_the_end() {
        let mut bytes = Vec::new();
        bytes.put_i32(-7);
        bytes.put_i64(1 << 40);
        bytes.put_bool(true);
        bytes.put_str("é");
        let mut reader = Reader::new(&bytes);
        assert_eq!(
            (reader.get_i32(), reader.get_i64(), reader.get_bool()),
            (Ok(-7), Ok(1 << 40), Ok(true))
        );
        assert_eq!(reader.get_str().as_deref(), Ok("é"));
        assert!(reader.is_empty());
        assert_eq!(reader.get_i32(), Err(Malformed));
        for cut in 0..bytes.len() {
            let mut reader = Reader::new(&bytes[..cut]);
            let all = (|| {
                reader.get_i32()?;
                reader.get_i64()?;
                reader.get_bool()?;
                reader.get_str()
            })();
            assert_eq!(all, Err(Malformed), "cut at {cut}");
        }
    }

    #[test]
    fn a_count_that_lies_is_refused() {
        let mut bytes = Vec::new();
        bytes.put_i32(i32::MAX);
        assert_eq!(Reader::new(&bytes).get_strs(), Err(Malformed));
        assert_eq!(Reader::new(&[0xff; 8]).get_bytes(), Ok(&[][..]), "null");
        assert_eq!(Reader::new(&[0xff, 0xff, 0xff, 0xfe]).get_bytes(), Err(Malformed));
    }
}
