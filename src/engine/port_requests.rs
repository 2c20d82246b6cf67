//! What a NIC requests of its port: groups, flows, receive services, room for frames.

use std::io;

use roxie_nic::nic::{Answer, ControlError, GroupChange, Nic};
use roxie_port::{Port, RxOptions};

/// The latest requests of a NIC to its port.
#[derive(Debug, Default)]
pub(super) struct PortRequests {
    /// The receive services.
    options: RxOptions,
    /// True if the port refused them.
    is_refused: bool,
    /// The number of frames to expect.
    expected: usize,
}

impl PortRequests {
    /// Passes to the port what a command changed. Returns the command's `result`, or the error of a request that the
    /// port refused. `asks`: the command sets receive services. Only such a command fails if the port refuses them.
    pub(super) fn follow(
        &mut self,
        nic: &mut Nic,
        port: &mut dyn Port,
        asks: bool,
        result: Result<Answer, ControlError>,
    ) -> Result<Answer, ControlError> {
        let result = follow_groups(nic, port, result);
        let result = follow_flows(nic, port, result);
        let result = follow_vlans(nic, port, result);
        if self.expected != nic.expected_frames() {
            self.expected = nic.expected_frames();
            port.expect_frames(self.expected);
        }
        if options(nic) == self.options && !(asks && self.is_refused) {
            return result;
        }
        match self.set_options(nic, port) {
            Err(error) if asks => Err(ControlError::MacControl(error.to_string())),
            _ => result,
        }
    }

    /// Passes everything to a port that replaces another.
    ///
    /// # Errors
    /// If the port refuses the receive services, or addresses on VLANs.
    pub(super) fn repeat(&mut self, nic: &Nic, port: &mut dyn Port) -> io::Result<()> {
        port.expect_frames(self.expected);
        port.set_vlans(&nic.vlan_addresses())?;
        self.set_options(nic, port)
    }

    fn set_options(&mut self, nic: &Nic, port: &mut dyn Port) -> io::Result<()> {
        self.options = options(nic);
        let answer = port.set_rx_wishes(self.options);
        self.is_refused = answer.is_err();
        answer
    }
}

fn options(nic: &Nic) -> RxOptions {
    let mac_control = nic.congestion().classes.uses_mac_control();
    RxOptions { arrivals: nic.wants_arrivals(), mac_control, roce_v1: nic.wants_roce_v1() }
}

/// Has the port join and leave the NIC's multicast groups. A group that the port cannot join is removed, and the
/// command that asked for it fails.
fn follow_groups(
    nic: &mut Nic,
    port: &mut dyn Port,
    result: Result<Answer, ControlError>,
) -> Result<Answer, ControlError> {
    let mut result = result;
    while let Some(change) = nic.take_group_change() {
        match change {
            GroupChange::Left(group) => port.leave(group.to_ip()),
            GroupChange::Joined(group) => {
                if let Err(error) = port.join(group.to_ip()) {
                    nic.forget_group(group);
                    result = Err(ControlError::Join { group, reason: error.to_string() });
                }
            }
        }
    }
    result
}

/// Passes the flows of raw packet QPs to the port. A flow that the port cannot steer is removed, and the command fails.
/// A command that removed flows does not: if the port still steers their frames here, the NIC drops them.
fn follow_flows(
    nic: &mut Nic,
    port: &mut dyn Port,
    result: Result<Answer, ControlError>,
) -> Result<Answer, ControlError> {
    let Some((flows, added)) = nic.take_flow_change() else { return result };
    if let Err(error) = port.steer(&flows)
        && let Some(id) = added
    {
        nic.forget_flow(id);
        return Err(ControlError::Steer(error.to_string()));
    }
    result
}

/// Passes the addresses on VLANs to the port. If the port cannot take their frames, the NIC keeps the GIDs that it had,
/// and the command fails.
fn follow_vlans(
    nic: &mut Nic,
    port: &mut dyn Port,
    result: Result<Answer, ControlError>,
) -> Result<Answer, ControlError> {
    let Some(vlans) = nic.take_vlan_change() else { return result };
    if let Err(error) = port.set_vlans(&vlans) {
        nic.restore_gids();
        return Err(ControlError::Vlan(error.to_string()));
    }
    result
}
