//! The value that an election's leader leaves beside the record: up to 1 KiB, with the number of
//! the record it belongs to.

use std::os::fd::AsFd;

use nix::errno::Errno;

use super::bytes::{VALUE, VALUE_AT};
use super::record::{is_sealed, seal};
use super::wire;

const TEXT_AT: usize = 16;

/// Writes the value of the record with this number; what does not fit is cut, and the API refuses
/// it before.
pub(super) fn write(file: impl AsFd, number: u64, text: &[u8]) -> Result<(), Errno> {
    let mut bytes = [0; VALUE];
    let length = text.len().min(VALUE - TEXT_AT);
    bytes[4..6].copy_from_slice(&(length as u16).to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes[TEXT_AT..TEXT_AT + length].copy_from_slice(&text[..length]);
    seal(&mut bytes);
    wire::write_at(file, &bytes, VALUE_AT)
}

/// Reads the value of the record with this number.
pub(super) fn read(file: impl AsFd, number: u64) -> Result<Option<Vec<u8>>, Errno> {
    let mut bytes = [0; VALUE];
    let read = wire::read_at(file, &mut bytes, VALUE_AT)?;
    if read < VALUE || !is_sealed(&bytes) || bytes[8..16] != number.to_le_bytes() {
        return Ok(None);
    }
    let length = usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
    Ok(bytes.get(TEXT_AT..TEXT_AT + length).map(<[u8]>::to_vec))
}
