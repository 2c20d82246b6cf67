//! Versions of the protocols between processes of Roxie, which may be of different releases.
//!
//! The two ends of a protocol compare versions before they believe any other byte. Where each protocol is, and when its
//! version is raised, is in `docs/versions.md`.

/// Release of this program or library.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// A protocol, as this release speaks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// The name in messages.
    pub name: &'static str,
    /// The oldest version that this release understands.
    pub oldest: u32,
    /// The version that this release speaks.
    pub version: u32,
}

impl Protocol {
    /// Checks the version of the other end. `own` and `peer` name the two ends in the error, such as `the NIC` and `the
    /// library`.
    ///
    /// # Errors
    /// If this release does not understand the version.
    pub fn check(self, own: &'static str, peer: &'static str, version: u32) -> Result<(), OtherVersion> {
        match (self.oldest..=self.version).contains(&version) {
            true => Ok(()),
            false => Err(OtherVersion { protocol: self, own, peer, version }),
        }
    }
}

/// The other end of a protocol speaks a version that this end does not understand. The text names both versions and the
/// end to update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{peer} speaks version {version} of the {}, {own} (roxie {RELEASE}) version {}: update {}",
    protocol.name, protocol.version, self.older()
)]
pub struct OtherVersion {
    protocol: Protocol,
    own: &'static str,
    peer: &'static str,
    version: u32,
}

impl OtherVersion {
    /// Returns the end to update.
    fn older(&self) -> &'static str {
        if self.version < self.protocol.oldest { self.peer } else { self.own }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_version_names_the_end_to_update() {
        let protocol = Protocol { name: "test protocol", oldest: 3, version: 5 };
        let check = |version| protocol.check("the NIC", "the library", version);
        assert!((3..=5).all(|version| check(version).is_ok()));
        let message = |version| check(version).unwrap_err().to_string();
        assert_eq!(
            message(2),
            format!(
                "the library speaks version 2 of the test protocol, the NIC (roxie {RELEASE}) version 5: update the library"
            )
        );
        assert!(message(6).ends_with("version 5: update the NIC"), "{}", message(6));
    }
}
