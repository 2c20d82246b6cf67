//! Tests of the example `smb_direct`, beside its files. `tests/examples.rs` runs its program.

// The program's own way through its modules begins at `main`.
#[allow(dead_code)]
#[path = "../examples/smb_direct/main.rs"]
mod example;
