mod faults;
mod refusals;
mod support;
