//! Congestion control without a transport: rates, knobs, pacing, and the moderation of notifications.

mod dcqcn;
mod delay;
mod moderation;
mod pacing;
mod published;
mod random;
mod settings;
