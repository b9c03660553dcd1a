mod faults;
mod minority;
mod mutual;
mod refusals;
mod support;
