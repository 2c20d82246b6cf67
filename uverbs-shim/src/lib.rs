//! `libibverbs.so.1` on top of Roxie, for unmodified verbs programs.
//!
//! Read `base/object.rs` first: a C structure and the Rust object behind it are one allocation. Then read `open.rs`,
//! `qp/mod.rs` and `qp/post.rs`, the path of a work request from `ibv_post_send` to [`roxie::host::QueuePair`]. The
//! other half is `ucma`, the file through which the stock `librdmacm` connects, and `interpose`, which redirects its
//! calls there. The script `link` builds the shared library from this crate.
//!
//! # Rules at the C boundary
//!
//! Every function called by C checks what can be checked (null pointers, enumerations, masks, objects of a process
//! before a fork), then calls the safe API of [`roxie::host`]. Everything else is the contract of the verbs API.
//! `SAFETY` comments rely on this contract alone:
//!
//! * **objects**: a pointer to an object was returned by its constructor, and the object has not been destroyed;
//! * **structures**: a pointer to a structure or array of the caller's is valid for the call, as far as the flags and
//!   counts next to it say. Callers may be older than this library, so it never makes a reference to a whole structure.
//!   Fields are read one by one, and those at the end only if a flag says that they are present;
//! * **memory**: registered memory is not reused for other purposes until it is deregistered. Unmapping or protecting
//!   it is handled ([`roxie::shared::guard`], and `interpose/signals.rs`).
//!
//! Calls are cancellation points only where they are in rdma-core (`base/cancellation.rs`).
//!
//! A panic never unwinds into C: `extern "C"` functions abort.

// Names are as in the C API.
#![allow(non_camel_case_types, unreachable_pub)]
// The safety contract of all functions called by C is in the module documentation above.
#![allow(clippy::missing_safety_doc)]

#[allow(missing_docs, non_upper_case_globals, non_snake_case, clippy::all)]
#[allow(dead_code, clippy::undocumented_unsafe_blocks, unreachable_pub, unsafe_op_in_unsafe_fn, rustdoc::all)]
mod abi {
    include!(concat!(env!("OUT_DIR"), "/abi.rs"));
}

/// Allocator of this library only; the program keeps its own.
#[global_allocator]
static ALLOCATOR: roxie::allocator::Allocator = roxie::allocator::Allocator;

// Modules in layers: each may use those before it.

mod base;
mod device;

// Objects.
mod pd;

mod memory;

mod cq;

mod srq;

mod ah;
mod qp;

mod flow;

mod netlink;

// The table of functions of a context.
mod open;

// The connection manager's file for librdmacm, and functions interposed before the C library's.
mod interpose;
mod ucma;

// Functions without a device.
mod strings;
