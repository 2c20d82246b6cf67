//! Simulation of NICs on a switch in virtual time. A script decides everything; seeds generate scripts.
//!
//! * [`script`] defines what can happen, [`text`] and [`parse`] its text form, [`generate`] the script of a seed, with
//!   [`focus`] on rare situations and [`brakes`] for congestion.
//! * [`world`] runs a script on a [`network`]. A [`link`] is a channel between QPs, [`flow`] and [`receiver`] are its
//!   two sides, [`srq`] shared receive queues, [`grant`] keys that are granted and revoked, [`weather`] faults of
//!   frames.
//! * [`intruder`] is a stranger on the link, [`vandal`] a program that corrupts its own queues.
//! * Oracles: [`oracle`] checks bytes, [`law`] which failures the script permits, [`audit`] the state after the run,
//!   [`witness`] each frame, [`congested`] congestion control. All but the last two know nothing of packets.
//! * [`both_paths`] compares the fast path through the NIC with the slow path.
//! * [`campaign`] runs [`seeds`] and [`scripts`]. [`shrink`] shortens a failing script. [`planted`] checks that planted
//!   bugs are found. [`reach`] and [`coverage`] check that the seeds reach enough. `tests/scripts` keeps instructive
//!   scripts.
//!
//! `SEEDS=n` runs n seeds, `FIRST=k` begins at seed k. A failure prints its seed and stores its script and captures.

#![allow(unreachable_pub)]

mod audit;
mod both_paths;
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
mod repeats;
mod script;
mod scripts;
mod seeds;
mod shrink;
mod srq;
mod stations;
mod text;
mod vandal;
mod weather;
mod witness;
mod world;
