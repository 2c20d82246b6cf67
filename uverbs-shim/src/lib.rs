//! `libibverbs.so.1` on top of Roxie, so that unmodified verbs programs run on it.
//!
//! Not built yet: see the status table in the README. The library side it stands
//! on is [`roxie::verbs`].
