//! Communication management: scripted tests of two managers, for each message and each state.

#![allow(unreachable_pub)]

mod backlog;
mod bounds;
mod connect;
mod counted;
mod disconnect;
mod early;
mod examined;
mod handover;
mod lost;
mod pair;
mod refuse;
mod resolve;
mod restarted;
mod simulation;
mod soon;
mod stale;
mod undelivered;
mod unproven;
mod wire;
