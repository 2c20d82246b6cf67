//! AF_XDP on a bond.
//!
//! A driver's XDP hook sees the frames of a slave, and redirects them to sockets of the slave only. The generic hook runs again after the
//! bond has taken the frame up, so a socket on the bond receives from all slaves, and what it sends leaves by the bond's policy. The bond
//! fails over as for any other program. The port therefore opens a bond with the generic hook, on as many queues as a slave has.

use std::fs;

use super::{Mode, XdpError};
use crate::netdev::Interface;

/// A bond.
pub(super) struct Bond {
    name: String,
    mode: String,
    slaves: Vec<String>,
}

impl Bond {
    /// Returns the bond that an interface of the calling thread's namespace is. `None`: another kind of interface.
    pub(super) fn of(interface: &Interface) -> Option<Bond> {
        if interface.driver != "bond" {
            return None;
        }
        let read = |file: &str| {
            fs::read_to_string(format!("/sys/class/net/{}/bonding/{file}", interface.name))
                .unwrap_or_default()
        };
        // The file `mode` has the name and the number: `active-backup 1`.
        let mode = read("mode").split_whitespace().next().unwrap_or("unknown mode").to_owned();
        let slaves = read("slaves").split_whitespace().map(str::to_owned).collect();
        Some(Bond { name: interface.name.clone(), mode, slaves })
    }

    /// Returns why native modes are not tried, or that there is no other way if only they are allowed.
    pub(super) fn why_generic(&self, mode: Mode) -> Result<String, XdpError> {
        let slaves = if self.slaves.is_empty() { "none yet".to_owned() } else { self.slaves.join(", ") };
        let why = format!("native: a bond ({}) whose slaves ({slaves}) have sockets of their own", self.mode);
        match mode {
            Mode::Auto | Mode::Generic => Ok(why),
            Mode::Native | Mode::ZeroCopy => Err(XdpError::Bond { interface: self.name.clone(), why }),
        }
    }

    /// Returns the number of receive queues of the slave that has the most.
    pub(super) fn rx_queues(&self) -> u32 {
        let of = |name: &String| Interface::by_name(name).map_or(1, |slave| slave.rx_queues);
        self.slaves.iter().map(of).max().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_modes_of_a_bond_are_refused() {
        let bond = Bond {
            name: "bond0".into(),
            mode: "active-backup".into(),
            slaves: vec!["eth1".into(), "eth2".into()],
        };
        let why = bond.why_generic(Mode::Auto).expect("the generic hook");
        assert_eq!(why, "native: a bond (active-backup) whose slaves (eth1, eth2) have sockets of their own");
        assert_eq!(bond.why_generic(Mode::Generic).expect("asked for"), why);
        for mode in [Mode::Native, Mode::ZeroCopy] {
            let refused = bond.why_generic(mode).expect_err("not possible").to_string();
            assert!(refused.starts_with("bond0: native: a bond") && refused.contains("generic"), "{refused}");
        }
    }
}
