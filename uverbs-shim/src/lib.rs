//! x
#![allow(missing_docs, non_camel_case_types, non_upper_case_globals, non_snake_case, dead_code, clippy::all)]
pub mod abi { include!(concat!(env!("OUT_DIR"), "/abi.rs")); }
