//! Congestion control without a transport: rates, knobs, pacing, and the moderation of notifications.

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
