//! Tests of the files that a model checker compiles as well (`tests/handoff`), and that have none of their own therefore.

mod doorbell;
mod event_counter;
mod page_list;
mod shared_receives;
mod work_queue;
