//! Tests of the example `smb_direct`, beside its files. `tests/devices/examples.rs` runs its program.

#[allow(dead_code, reason = "the program's own way through its modules begins at `main`")]
#[path = "../../examples/smb_direct/main.rs"]
mod example;
