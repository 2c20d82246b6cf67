//! `libibverbs.so.1` on top of Roxie, so that unmodified verbs programs run on it.
//!
//! Read `object.rs` first: how a C structure and the Rust object behind it are one. Then `open.rs`, `qp.rs` and `post.rs`: the
//! way of a work request from `ibv_post_send` to [`roxie::host::QueuePair`]. `ucma` is the other half: the file through which the stock
//! `librdmacm` connects, with `interpose` before it. `link` beside this crate makes the shared library of
//! it.
//!
//! # The discipline at the boundary
//!
//! Every function that C calls checks what can be checked (null pointers, numbers in enumerations, masks, objects of a process
//! before a fork) and then calls the safe API of [`roxie::host`]. What it cannot check is the contract of the verbs API, and that
//! alone is what the `SAFETY` comments lean on:
//!
//! * **objects**: a pointer to an object came from the function that makes such objects, and nobody has destroyed it;
//! * **structures**: a pointer to a structure or array of the caller's points to as much of it as the flags and counts beside it
//!   say, for the length of the call. Callers may be older than this library: no reference to a whole structure is ever made,
//!   fields are read one by one, and those at the end only if a flag says that they are there;
//! * **memory**: what is registered is not given to somebody else until it is deregistered. That it may be unmapped or protected is
//!   provided for ([`roxie::shared::guard`], and `interpose/signals.rs`).
//!
//! No call is a cancellation point that is none in rdma-core (`cancellation.rs`).
//!
//! A panic never crosses into C: `extern "C"` functions abort instead.

// Names of C, as C programs call them.
#![allow(non_camel_case_types, unreachable_pub)]
// The safety contract of all functions that C calls is the one on this page.
#![allow(clippy::missing_safety_doc)]

#[allow(missing_docs, non_upper_case_globals, non_snake_case, clippy::all)]
#[allow(dead_code, clippy::undocumented_unsafe_blocks, unreachable_pub, unsafe_op_in_unsafe_fn, rustdoc::all)]
mod abi {
    include!(concat!(env!("OUT_DIR"), "/abi.rs"));
}

/// Of this library alone: the program keeps its own.
#[global_allocator]
static ALLOCATOR: roxie::allocator::Allocator = roxie::allocator::Allocator;

// Each may use those before it.

// What every call stands on.
mod cancellation;
mod fork;
mod lock;
mod object;
mod pages;
mod plain;
mod report;
mod waiting;

// The device.
mod event_queue;
mod nic;
mod settings;

mod nldev;
mod published;

mod context;
mod family;
mod newer;

// Its objects.
mod pd;

mod buffer;
mod memory;
mod newer_calls;

mod cq;
mod poll_ex;

mod lists;
mod srq;
mod wq;

mod ah;
mod batch;
mod qp;
mod qp_attr;
mod window;

mod post;
mod post_ex;

mod create_qp;
mod flow;

mod events;

// The table of all of them.
mod query;

mod netlink;

mod device;
mod open;

// The connection manager's file, for librdmacm, and what stands before the C library.
mod farewell;
mod interpose;
mod ucma;

// What needs no device.
mod marshal;
mod strings;
