//! Tests of the files that a model checker also compiles (`tests/handoff`), and which therefore contain no tests.

mod doorbell;
mod event_counter;
mod page_list;
mod shared_receives;
mod work_queue;
