//! Congestion control as the transport sees it: rates, knobs, pacing, and which marks are answered.

#[path = "../support/in_time.rs"]
mod in_time;

mod dcqcn;
mod delay;
mod moderation;
mod pacing;
mod published;
mod random;
mod replay;
mod settings;
