mod refusals;
mod support;
