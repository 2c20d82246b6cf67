//! VLAN tags that a script puts into frames.

/// A tag: its EtherType, and its control information: priority in bits 15:13, VLAN ID in bits 11:0.
pub(crate) type Tag = (u16, u16);

pub(crate) const CUSTOMER: u16 = 0x8100;
pub(crate) const SERVICE: u16 = 0x88a8;

/// The VLAN of the GIDs under test.
pub(crate) const VLAN: u16 = 5;

/// Tags with which a frame is not of VLAN 5. Those of `PLAIN` are of no VLAN.
pub(crate) const FOREIGN: [(&str, &[Tag]); 21] = [
    ("the VLAN before", &[(CUSTOMER, 4)]),
    ("the VLAN behind", &[(CUSTOMER, 6)]),
    ("VLAN 1", &[(CUSTOMER, 1)]),
    ("a VLAN with the same lower byte", &[(CUSTOMER, 0x105)]),
    ("a VLAN with the same lower bits", &[(CUSTOMER, 0x805)]),
    ("VLAN 5 in the other order of bytes", &[(CUSTOMER, 0x0500)]),
    ("the last VLAN", &[(CUSTOMER, 4094)]),
    ("the reserved VLAN", &[(CUSTOMER, 4095)]),
    ("another VLAN of priority 7", &[(CUSTOMER, 7 << 13 | 7)]),
    ("a service tag of VLAN 5", &[(SERVICE, 5)]),
    ("a service tag of priority 3", &[(SERVICE, 3 << 13 | 5)]),
    ("a service tag of no VLAN", &[(SERVICE, 0)]),
    ("VLAN 5 twice", &[(CUSTOMER, 5), (CUSTOMER, 5)]),
    ("VLAN 5 in another", &[(CUSTOMER, 7), (CUSTOMER, 5)]),
    ("another in VLAN 5", &[(CUSTOMER, 5), (CUSTOMER, 7)]),
    ("VLAN 5 in a priority tag", &[(CUSTOMER, 0), (CUSTOMER, 5)]),
    ("a priority tag in VLAN 5", &[(CUSTOMER, 5), (CUSTOMER, 0)]),
    ("two priority tags", &[(CUSTOMER, 0), (CUSTOMER, 0)]),
    ("VLAN 5 in a service tag", &[(SERVICE, 5), (CUSTOMER, 5)]),
    ("VLAN 5 in a service tag of no VLAN", &[(SERVICE, 0), (CUSTOMER, 5)]),
    ("the tags in the wrong order", &[(CUSTOMER, 5), (SERVICE, 5)]),
];

/// Tags with which a frame is of no VLAN.
pub(crate) const PLAIN: [(&str, &[Tag]); 6] = [
    ("no tag", &[]),
    ("a priority tag", &[(CUSTOMER, 0)]),
    ("a priority tag of priority 3", &[(CUSTOMER, 3 << 13)]),
    ("a priority tag of priority 7", &[(CUSTOMER, 7 << 13)]),
    ("a priority tag, droppable", &[(CUSTOMER, 1 << 12)]),
    ("a priority tag whose priority looks like VLAN 5", &[(CUSTOMER, 5 << 12)]),
];

/// Tags with which a frame is of VLAN 5.
pub(crate) const OWN: [(&str, &[Tag]); 4] = [
    ("VLAN 5", &[(CUSTOMER, VLAN)]),
    ("VLAN 5 of priority 3", &[(CUSTOMER, 3 << 13 | VLAN)]),
    ("VLAN 5 of priority 7", &[(CUSTOMER, 7 << 13 | VLAN)]),
    ("VLAN 5, droppable", &[(CUSTOMER, 1 << 12 | VLAN)]),
];

/// Returns a frame with tags behind its station addresses.
pub(crate) fn tagged(untagged: &[u8], tags: &[Tag]) -> Vec<u8> {
    let (stations, rest) = untagged.split_at(12);
    let mut frame = stations.to_vec();
    for (kind, control) in tags {
        frame.extend(kind.to_be_bytes());
        frame.extend(control.to_be_bytes());
    }
    frame.extend(rest);
    frame
}
