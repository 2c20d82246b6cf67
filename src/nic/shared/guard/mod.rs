//! Copies to and from memory that may be missing.
//!
//! An application may unmap or protect memory while it is registered: by mistake, or because a library beneath it does.
//! A copy then raises a signal, which would end the process, and a peer could trigger that at any time. Therefore the
//! NIC copies by routines of its own (`copy`), the instructions of which lie in one known range and use no stack. A
//! handler of `SIGSEGV` and `SIGBUS` ([`signals`]) looks at the address of the faulting instruction:
//!
//! * In the range, the thread resumes at the exit of the routine, which reports missing memory.
//! * Elsewhere, the signal is handled as it would be without this handler.
//!
//! A copy without a fault pays nothing.
//!
//! # Other handlers
//!
//! The handler is installed when memory is first registered that the NIC does not own, and checked at each later
//! registration. Handlers that the program had by then come after it. For handlers installed later:
//!
//! * If the verbs library is loaded before the C library, [`signals::sigaction`] answers `sigaction` and similar calls.
//!   The program's handler is placed behind this one, and the program sees no difference. The program cannot block the
//!   two signals for its threads either.
//! * Otherwise (a program of the Rust API, or one that installs handlers by system calls of its own), a later handler
//!   precedes this one until the next registration. If it passes on faults that are not its own, as it should, nothing
//!   changes. If it does not, it gets the faults of copies.
//! * A thread that blocks `SIGSEGV` or `SIGBUS` is killed by the kernel when it faults. Threads of the engine do not
//!   block them; a thread of the program that polls must not either.
//!
//! On processors other than x86-64 and aarch64, copies are Rust's own, without a guard, and under Miri as well, which
//! interprets no assembly.
//!
//! Limitation: memory that was unmapped and mapped again counts as present. Peers then write to whatever is mapped
//! there now. An adapter would write to the pages that it has pinned, which are visible to no program any more.

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
pub(super) mod copy;
#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
#[path = "plain.rs"]
pub(super) mod copy;
pub mod signals;

pub use signals::install;

/// True on processors with guarded copies.
const GUARDED: bool = cfg!(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)));

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod tests;
