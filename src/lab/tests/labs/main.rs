//! The labs and the course as a user runs them.

#[path = "../../../../tests/support/in_time.rs"]
mod in_time;

mod lab;
