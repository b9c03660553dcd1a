mod faults;
mod interop;
mod mutual;
mod outages;
mod refusals;
mod support;
