//! Roxie's end of a run.

use std::net::IpAddr;

use crate::end::Local;
use crate::error::Error;
use crate::network::Namespace;

/// Where Roxie works.
#[derive(Debug)]
pub struct Site<'a> {
    /// The namespace of its interface; `None` for the one that the runner is in (hardware peers).
    pub namespace: Option<&'a Namespace>,
    /// The interface.
    pub interface: &'a str,
    /// The interface's addresses, one per IP version that is to be tested.
    pub addresses: &'a [IpAddr],
}

/// Roxie's end at a site.
///
/// # Errors
/// Always, as long as the `roxie` library that this is built with has no verbs to offer: a run without
/// them would say nothing about Roxie.
pub fn open(site: &Site<'_>) -> Result<Box<dyn Local>, Error> {
    Err(Error::Local(format!(
        "no rows can run on {}: this build's `roxie` library has no verbs interface. \
         `interop self-check` runs the same rows between two sessions of the guest",
        site.interface
    )))
}
