//! Tests of the files that a model checker compiles as well (`tests/handoff`), and that have none of their own therefore.

mod shared_receives;
mod work_queue;
