//! The matrix: a row an engine and layout, a test a rule.

use lockkeeper_lab::conformance::Subject;

lockkeeper_lab::conformance!(memory, Subject::memory());
