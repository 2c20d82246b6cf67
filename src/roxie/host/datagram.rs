//! Address handles and multicast groups, for datagram QPs.

use std::net::IpAddr;

use super::ah_options::AhOptions;
use super::device::Device;
use super::error::DeviceError;
use super::pd::ProtectionDomain;
use super::qp::QueuePair;
use roxie_nic::nic::{Answer, Command};
use roxie_nic::verbs::{AddressVector, AhId, LocalGid, Psn, QpAttr, QpState, Qpn, SendWr, UdAddress};
use roxie_port::Carries;
use roxie_port::netdev::RouteKey;
use roxie_wire::{Encapsulation, Gid};

/// A path for datagrams. Must outlive the work requests that use it.
#[derive(Debug)]
pub struct AddressHandle {
    pd: ProtectionDomain,
    id: AhId,
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        let _ = self.pd.device().execute(Command::DestroyAh(self.id));
    }
}

impl AddressHandle {
    /// The handle's ID, for work requests.
    pub fn id(&self) -> AhId {
        self.id
    }

    /// Returns a signaled SEND to a QP at the end of this path.
    pub fn send_to(&self, remote_qpn: Qpn, remote_qkey: u32) -> SendWr {
        SendWr { ud: UdAddress { ah: self.id, remote_qpn, remote_qkey }, ..SendWr::default() }
    }
}

impl ProtectionDomain {
    /// Makes an address handle from the address at `gid_index` to `dgid`, which may be a multicast group. Blocks while
    /// the path is resolved.
    ///
    /// # Errors
    /// If there is no such address or no path, or the device has no room for another handle.
    pub fn create_ah(
        &self,
        gid_index: usize,
        dgid: Gid,
        options: &AhOptions,
    ) -> Result<AddressHandle, DeviceError> {
        let device = self.device();
        let av = device.address_vector(device.local_gid(gid_index)?, dgid, options)?;
        self.create_ah_along(av)
    }

    /// Makes an address handle for a resolved path.
    ///
    /// # Errors
    /// If the device has no room for another handle.
    pub fn create_ah_along(&self, av: AddressVector) -> Result<AddressHandle, DeviceError> {
        match self.device().execute(Command::CreateAh(self.id(), Box::new(av)))? {
            Answer::Ah(id) => Ok(AddressHandle { pd: self.clone(), id }),
            other => unreachable!("the device answered {other:?}"),
        }
    }
}

impl Device {
    /// Resolves the path from `sgid` to `dgid`, down to the MAC address.
    ///
    /// # Errors
    /// If the two are of different address families, or there is no path.
    pub fn address_vector(
        &self,
        sgid: impl Into<LocalGid>,
        dgid: Gid,
        options: &AhOptions,
    ) -> Result<AddressVector, DeviceError> {
        let source = sgid.into();
        let dmac = self.resolve(source, self.reach(source, dgid, options.traffic_class)?)?;
        Ok(self.along(source, dgid, dmac, options))
    }

    /// Like [`address_vector`](Self::address_vector) without blocking. `None`: the next hop is being resolved. See
    /// [`Device::give_up`].
    pub(super) fn address_vector_now(
        &self,
        source: LocalGid,
        dgid: Gid,
        options: &AhOptions,
        asks: bool,
    ) -> Result<Option<AddressVector>, DeviceError> {
        let dmac = self.resolve_now(source, self.reach(source, dgid, options.traffic_class)?, asks)?;
        Ok(dmac.map(|dmac| self.along(source, dgid, dmac, options)))
    }

    /// True if the MAC address of the next hop from `sgid` to `dgid` is known, or none is needed. Does not block. If
    /// false, the kernel resolves it (ARP, neighbour discovery) and a later call returns true. [`Device::give_up`] ends
    /// the resolution.
    ///
    /// # Errors
    /// If the two are of different address families, or there is no route.
    pub fn next_hop_is_known(&self, sgid: impl Into<LocalGid>, dgid: Gid) -> Result<bool, DeviceError> {
        let source = sgid.into();
        Ok(self.resolve_now(source, self.reach(source, dgid, 0)?, false)?.is_some())
    }

    /// Returns the hop limit of packets from `sgid` to `dgid` whose sender does not name one: the route's, where the
    /// device sends frames. Routes from a VLAN are the routes of its interface.
    pub fn hop_limit(&self, sgid: impl Into<LocalGid>, dgid: Gid, traffic_class: u8) -> u8 {
        let source = sgid.into();
        let key = RouteKey::new(source.gid.to_ip(), dgid.to_ip(), traffic_class);
        self.resolving(source, |resolver| resolver.hop_limit(key))
    }

    fn along(&self, source: LocalGid, dgid: Gid, dmac: [u8; 6], options: &AhOptions) -> AddressVector {
        AddressVector {
            sgid: source.gid,
            dgid,
            smac: self.port().mac,
            dmac,
            traffic_class: options.traffic_class,
            flow_label: options.flow_label,
            hop_limit: match options.hop_limit {
                0 => self.hop_limit(source, dgid, options.traffic_class),
                hops => hops,
            },
            sl: options.sl,
            static_rate: 0,
            encapsulation: if self.tags_frames() { source.encapsulation } else { Encapsulation::default() },
        }
    }

    /// True if frames carry the tag of their VLAN when they reach the port. Over sockets the kernel tags.
    fn tags_frames(&self) -> bool {
        self.port().carries != Carries::Datagrams
    }

    /// Returns the key of the route from `source` to `dgid`, if that can be reached: it is of the same address family,
    /// and no group on a VLAN.
    fn reach(&self, source: LocalGid, dgid: Gid, traffic_class: u8) -> Result<RouteKey, DeviceError> {
        let remote = same_family(source.gid, dgid)?;
        if source.encapsulation.vlan != 0 && remote.is_multicast() && self.tags_frames() {
            return Err(DeviceError::VlanMulticast { local: source, group: dgid });
        }
        Ok(RouteKey::new(source.gid.to_ip(), remote, traffic_class))
    }
}

/// Returns the IP address of `dgid`, if `sgid` is of the same address family.
fn same_family(sgid: Gid, dgid: Gid) -> Result<IpAddr, DeviceError> {
    let (local, remote): (IpAddr, IpAddr) = (sgid.to_ip(), dgid.to_ip());
    if local.is_ipv4() != remote.is_ipv4() {
        return Err(DeviceError::Families { local: sgid, remote: dgid });
    }
    Ok(remote)
}

impl QueuePair {
    /// Brings a datagram QP from RESET to RTS. The QP accepts packets with `qkey`, and sends from PSN `psn` on.
    /// Receives may be posted before this in INIT; packets without a receive are dropped.
    ///
    /// # Errors
    /// If the QP is not a datagram QP, or not in RESET.
    pub fn start_datagrams(&self, qkey: u32, psn: Psn) -> Result<(), DeviceError> {
        let port = (self.qp_type() == roxie_nic::verbs::QpType::Ud).then_some(1);
        let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
        self.modify(&QpAttr { pkey_index: Some(0), port, qkey: Some(qkey), ..to(QpState::Init) })?;
        self.modify(&to(QpState::Rtr))?;
        self.modify(&QpAttr { sq_psn: Some(psn), ..to(QpState::Rts) })
    }

    /// Attaches a datagram QP to a multicast group. The port joins the group.
    ///
    /// # Errors
    /// If the QP is not a datagram QP, `group` is no multicast group, or the system does not let the port join.
    pub fn attach_multicast(&self, group: Gid) -> Result<(), DeviceError> {
        self.device().execute(Command::AttachMulticast(self.index(), group)).map(drop)
    }

    /// Detaches a QP from a multicast group.
    ///
    /// # Errors
    /// If the QP is not in the group.
    pub fn detach_multicast(&self, group: Gid) -> Result<(), DeviceError> {
        self.device().execute(Command::DetachMulticast(self.index(), group)).map(drop)
    }
}
