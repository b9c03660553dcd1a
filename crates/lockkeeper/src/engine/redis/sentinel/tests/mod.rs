mod faults;
mod minority;
mod mutual;
mod refusals;
pub(super) mod support;
