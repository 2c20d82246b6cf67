//! Bytes <-> types.
