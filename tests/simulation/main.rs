//! Simulation of complete runs: NICs on a switch in virtual time. A script determines a run, and seeds generate scripts.
//!
//! [`script`] defines scripts, [`text`] and [`parse`] their text form; [`generate`] makes a script from a seed. [`world`] runs
//! it: [`link`] is a channel between QPs, [`flow`] and [`receiver`] are its two sides, [`grant`] is keys that are granted and
//! revoked, and [`weather`] faults of frames. [`srq`] is shared receive queues, [`network`] hosts and switch.
//!
//! Checks are independent of packets: [`oracle`] checks bytes, [`law`] permits failures that the script explains, and [`audit`]
//! checks the end of a run. [`witness`] checks each frame, and [`congested`] rates and CNPs; [`brakes`] has seeds for them.
//! [`intruder`] is a stranger on the link, and [`vandal`] a program that corrupts its own queues. [`ways`] compares the NIC's
//! fast path with the slow one.
//!
//! [`shrink`] reduces a failing script, and `tests/scripts` keeps instructive ones.
//!
//! `SEEDS=n` runs n seeds, `FIRST=k` starts at seed k. A failure prints its seed, and leaves its script and captures.

#![allow(unreachable_pub)]

mod audit;
mod brakes;
mod campaign;
mod congested;
mod coverage;
mod flow;
mod focus;
mod generate;
mod grant;
mod intruder;
mod law;
mod life;
mod link;
mod network;
mod oracle;
mod parse;
mod planted;
mod reach;
mod receiver;
mod script;
mod scripts;
mod seeds;
mod shrink;
mod srq;
mod stations;
mod text;
mod vandal;
mod ways;
mod weather;
mod witness;
mod world;
