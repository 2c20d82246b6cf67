//! NICs on a switch in virtual time, whole lives of them. A script decides everything, and a seed writes scripts.
//!
//! [`script`] says what can happen and [`text`] how it reads; [`generate`] makes a script from a seed. [`world`] runs it:
//! [`link`] is a channel between QPs, [`flow`] and [`receiver`] its two sides, [`grant`] keys that come and go, [`weather`] what
//! happens to frames. Oracles know nothing of packets: [`oracle`] looks at bytes, [`law`] says which failures a script
//! explains, [`audit`] what must be true when all is quiet. [`shrink`] cuts a failing script down, and `tests/scripts` keeps those
//! that taught something.
//!
//! [`network`] is the hosts and the switch, and which NIC is turned when.
//!
//! [`ways`] compares the shortest way through the NIC with the longer one.
//!
//! [`intruder`] is a stranger on the link, [`vandal`] a program that writes over its own queues, [`witness`] looks at each frame on its way, and [`congested`] at how fast they come and what
//! is said about that; [`brakes`] are seeds for it. [`srq`] is queues that QPs share.
//!
//! `SEEDS=n` runs n seeds, `FIRST=k` begins at seed k. A failure prints its seed and leaves its script and captures.

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
