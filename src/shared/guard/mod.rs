//! Copies to and from memory that may not be there.
//!
//! An application registers memory and may unmap or protect it all the same, by mistake or because a library beneath it does. Then
//! a copy ends in a signal, and the signal would end the process: one that a peer can ask for at any time. So the NIC copies by
//! routines of its own (`copy`), whose instructions lie in one known range and use no stack. A handler of `SIGSEGV` and `SIGBUS`
//! ([`signals`]) looks where the fault happened. In the range: the thread goes on at an exit of the routine, which says that the memory
//! is not there. Anywhere else: the signal goes on to whom it would have gone without the handler. A copy that does not fault
//! pays nothing.
//!
//! # What holds where
//!
//! The handler is installed when memory is first registered that is not the NIC's own, and looked after with each that follows. It comes before
//! handlers that the program had then. Of handlers that come later:
//!
//! * With the verbs library before the C library, calls of `sigaction` and its like are answered by [`signals::sigaction`]: the program's
//!   handler is behind ours, and the program does not see a difference. Neither does it block the two signals for its threads.
//! * Without (a program of the Rust API, or one whose handlers are installed by system calls of its own), a later handler stands before ours
//!   until the next registration. If it passes on what it does not know, as it should, nothing changes; if it does not, a fault in a
//!   copy is that handler's.
//! * A thread that blocks `SIGSEGV` or `SIGBUS` is killed by the system when it faults. Threads of the engine do not; a thread of
//!   the program that polls must not.
//!
//! On processors other than x86-64 and aarch64 copies are the language's, without a guard. So they are under Miri, which interprets no
//! assembly.
//!
//! What is not noticed: memory that was unmapped and mapped anew is there again. Who has it now gets what peers write to it. An
//! adapter would write to the pages that it has pinned, which nobody sees any more.

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
pub(super) mod copy;
#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
#[path = "plain.rs"]
pub(super) mod copy;
pub mod signals;

pub use signals::install;

/// True where copies are guarded.
const GUARDED: bool = cfg!(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)));

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod tests;
