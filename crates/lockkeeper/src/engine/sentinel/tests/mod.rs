mod faults;
mod mutual;
mod refusals;
mod support;
