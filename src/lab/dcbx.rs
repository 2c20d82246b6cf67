//! Data centre bridging exchange: the TLVs by which a port tells its neighbour of priorities, shares and lossless traffic (IEEE 802.1Qaz,
//! 802.1Q annex D), inside LLDP (802.1AB).

/// Priorities and traffic classes (802.1Q).
pub const CLASSES: usize = 8;

/// LLDP's type of what an organization defines.
const ORGANIZATIONALLY_SPECIFIC: u16 = 127;
/// IEEE 802.1's identifier.
const OUI: [u8; 3] = [0x00, 0x80, 0xc2];

/// When a traffic class is served (802.1Q D.2.8.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Ahead of all others.
    Strict = 0,
    /// By the shaper of audio and video bridging.
    CreditBased = 1,
    /// By its share.
    Ets = 2,
    /// As the vendor likes.
    Vendor = 255,
}

/// A plan for one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The traffic class of each priority.
    pub class_of: [u8; CLASSES],
    /// The share of each class, in hundredths.
    pub share: [u8; CLASSES],
    /// How each class is served.
    pub selection: [Selection; CLASSES],
    /// Bit n: priority n loses nothing.
    pub lossless: u8,
    /// How many lossless classes the port can have at once.
    pub pfc_capability: u8,
    /// It takes its neighbour's word for it.
    pub willing: bool,
}

/// Why a plan is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Shares of ETS classes are hundredths of one whole.
    #[error("the shares of the ETS classes are {0} % together: they have to be 100")]
    Shares(u32),
    /// No such class.
    #[error("there is no traffic class {0}: they are 0 to 7")]
    Class(u8),
}

impl Plan {
    /// Says what is wrong with it.
    ///
    /// # Errors
    /// If something is.
    pub fn check(&self) -> Result<(), PlanError> {
        if let Some(class) = self.class_of.iter().find(|class| usize::from(**class) >= CLASSES) {
            return Err(PlanError::Class(*class));
        }
        let ets = (0..CLASSES).filter(|class| self.selection[*class] == Selection::Ets);
        let sum: u32 = ets.clone().map(|class| u32::from(self.share[class])).sum();
        if ets.count() > 0 && sum != 100 { Err(PlanError::Shares(sum)) } else { Ok(()) }
    }

    /// ETS configuration (802.1Q D.2.8): what the port does. 27 bytes with its header.
    pub fn ets_configuration(&self) -> Vec<u8> {
        // Willing, no credit-based shaper, three reserved bits, and 0 for eight classes.
        self.ets(0x09, u8::from(self.willing) << 7)
    }

    /// ETS recommendation (802.1Q D.2.9): what it would have its neighbour do.
    pub fn ets_recommendation(&self) -> Vec<u8> {
        self.ets(0x0a, 0)
    }

    fn ets(&self, subtype: u8, first: u8) -> Vec<u8> {
        let mut body = vec![first];
        // Two priorities a byte, the lower in front.
        body.extend(self.class_of.chunks(2).map(|pair| pair[0] << 4 | pair[1] & 15));
        body.extend(self.share);
        body.extend(self.selection.map(|selection| selection as u8));
        tlv(subtype, &body)
    }

    /// Priority flow control configuration (802.1Q D.2.10): 8 bytes with its header.
    pub fn pfc(&self) -> Vec<u8> {
        tlv(0x0b, &[u8::from(self.willing) << 7 | self.pfc_capability & 15, self.lossless])
    }
}

/// What an application's frames are known by (802.1Q D.2.11.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector {
    /// Their EtherType.
    EtherType = 1,
    /// TCP or SCTP port.
    Tcp = 2,
    /// UDP or DCCP port.
    Udp = 3,
    /// Any of these ports.
    Port = 4,
    /// Their DSCP.
    Dscp = 5,
}

/// Application priority (802.1Q D.2.11): which frames have which priority.
pub fn applications(table: &[(u8, Selector, u16)]) -> Vec<u8> {
    let mut body = vec![0];
    for (priority, selector, id) in table {
        body.push(priority << 5 | *selector as u8);
        body.extend(id.to_be_bytes());
    }
    tlv(0x0c, &body)
}

/// Seven bits of type and nine of length, then the organization's subtype and what it says.
fn tlv(subtype: u8, body: &[u8]) -> Vec<u8> {
    let length = (4 + body.len()) as u16;
    let mut bytes = (ORGANIZATIONALLY_SPECIFIC << 9 | length & 0x1ff).to_be_bytes().to_vec();
    bytes.extend(OUI);
    bytes.push(subtype);
    bytes.extend(body);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let mut plan = Plan {
            class_of: [0, 0, 0, 3, 0, 0, 6, 0],
            share: [50, 0, 0, 50, 0, 0, 0, 0],
            selection: [Selection::Ets; CLASSES],
            lossless: 1 << 3,
            pfc_capability: 8,
            willing: false,
        };
        plan.selection[6] = Selection::Strict;
        plan
    }

    #[test]
    fn the_bytes_are_where_the_standard_puts_them() {
        let configuration = plan().ets_configuration();
        // Type 127, length 25; OUI; subtype 9; then 21 bytes.
        assert_eq!(configuration[..6], [0xfe, 0x19, 0x00, 0x80, 0xc2, 0x09]);
        assert_eq!(configuration[6..11], [0x00, 0x00, 0x03, 0x00, 0x60]);
        assert_eq!(configuration[11..19], [50, 0, 0, 50, 0, 0, 0, 0]);
        assert_eq!(configuration[19..], [2, 2, 2, 2, 2, 2, 0, 2]);
        assert_eq!(plan().ets_recommendation()[5], 0x0a);
        assert_eq!(plan().pfc(), [0xfe, 0x06, 0x00, 0x80, 0xc2, 0x0b, 0x08, 0x08]);
        let roce = applications(&[
            (3, Selector::Udp, 4791),
            (3, Selector::EtherType, 0x8915),
            (6, Selector::Dscp, 48),
        ]);
        assert_eq!(roce[..7], [0xfe, 0x0e, 0x00, 0x80, 0xc2, 0x0c, 0x00]);
        assert_eq!(roce[7..], [0x63, 0x12, 0xb7, 0x61, 0x89, 0x15, 0xc5, 0x00, 0x30]);
    }

    #[test]
    fn shares_are_one_whole() {
        assert_eq!(plan().check(), Ok(()));
        let mut other = plan();
        other.share[3] = 60;
        assert_eq!(other.check(), Err(PlanError::Shares(110)));
        other.class_of[1] = 8;
        assert_eq!(other.check(), Err(PlanError::Class(8)));
    }
}
