//! Data Center Bridging eXchange (DCBX): TLVs by which a port announces its priorities, ETS shares and lossless
//! priorities to its neighbour (IEEE 802.1Qaz, 802.1Q annex D), carried in LLDP (802.1AB).

/// Number of priorities, and of traffic classes (802.1Q).
pub const CLASSES: usize = 8;

/// LLDP type of organizationally specific TLVs.
const ORGANIZATIONALLY_SPECIFIC: u16 = 127;
/// Organizationally unique identifier of IEEE 802.1.
const OUI: [u8; 3] = [0x00, 0x80, 0xc2];

/// Transmission selection algorithm of a traffic class (802.1Q D.2.8.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Strict priority.
    Strict = 0,
    /// Credit-based shaper (audio and video bridging).
    CreditBased = 1,
    /// Enhanced transmission selection, by share.
    Ets = 2,
    /// Vendor-specific.
    Vendor = 255,
}

/// Configuration of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Traffic class of each priority.
    pub class_of: [u8; CLASSES],
    /// Share of each class, in percent.
    pub share: [u8; CLASSES],
    /// Transmission selection of each class.
    pub selection: [Selection; CLASSES],
    /// Bit n: priority n is lossless.
    pub lossless: u8,
    /// Maximum number of lossless classes.
    pub pfc_capability: u8,
    /// Willing bit: the port accepts its neighbour's configuration.
    pub willing: bool,
}

/// Error of a port's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The shares of the ETS classes do not add up to 100 %.
    #[error("the shares of the ETS classes are {0} % together: they have to be 100")]
    Shares(u32),
    /// Traffic class above 7.
    #[error("there is no traffic class {0}: they are 0 to 7")]
    Class(u8),
}

impl Plan {
    /// Checks the configuration.
    ///
    /// # Errors
    /// If a class is above 7, or the shares of the ETS classes do not add up to 100 %.
    pub fn check(&self) -> Result<(), PlanError> {
        if let Some(class) = self.class_of.iter().find(|class| usize::from(**class) >= CLASSES) {
            return Err(PlanError::Class(*class));
        }
        let ets = (0..CLASSES).filter(|class| self.selection[*class] == Selection::Ets);
        let sum: u32 = ets.clone().map(|class| u32::from(self.share[class])).sum();
        if ets.count() > 0 && sum != 100 { Err(PlanError::Shares(sum)) } else { Ok(()) }
    }

    /// Returns the ETS configuration TLV (802.1Q D.2.8): what the port does. 27 bytes, header included.
    pub fn ets_configuration(&self) -> Vec<u8> {
        // Willing bit, no credit-based shaper, three reserved bits, and 0 for eight classes.
        self.ets(0x09, u8::from(self.willing) << 7)
    }

    /// Returns the ETS recommendation TLV (802.1Q D.2.9): what the neighbour should do.
    pub fn ets_recommendation(&self) -> Vec<u8> {
        self.ets(0x0a, 0)
    }

    fn ets(&self, subtype: u8, first: u8) -> Vec<u8> {
        let mut body = vec![first];
        // Two priorities per byte, the lower one in the high bits.
        body.extend(self.class_of.chunks(2).map(|pair| pair[0] << 4 | pair[1] & 15));
        body.extend(self.share);
        body.extend(self.selection.map(|selection| selection as u8));
        tlv(subtype, &body)
    }

    /// Returns the PFC configuration TLV (802.1Q D.2.10): 8 bytes, header included.
    pub fn pfc(&self) -> Vec<u8> {
        tlv(0x0b, &[u8::from(self.willing) << 7 | self.pfc_capability & 15, self.lossless])
    }
}

/// Selector of an application's frames (802.1Q D.2.11.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector {
    /// EtherType.
    EtherType = 1,
    /// TCP or SCTP port.
    Tcp = 2,
    /// UDP or DCCP port.
    Udp = 3,
    /// Port of any of these protocols.
    Port = 4,
    /// DSCP.
    Dscp = 5,
}

/// Returns the application priority TLV (802.1Q D.2.11), from (priority, selector, identifier) entries.
pub fn applications(table: &[(u8, Selector, u16)]) -> Vec<u8> {
    let mut body = vec![0];
    for (priority, selector, id) in table {
        body.push(priority << 5 | *selector as u8);
        body.extend(id.to_be_bytes());
    }
    tlv(0x0c, &body)
}

/// Returns a TLV: seven bits of type, nine bits of length, OUI, subtype, and body.
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
    fn tlvs_have_the_standard_layout() {
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
    fn ets_shares_must_add_up_to_100() {
        assert_eq!(plan().check(), Ok(()));
        let mut other = plan();
        other.share[3] = 60;
        assert_eq!(other.check(), Err(PlanError::Shares(110)));
        other.class_of[1] = 8;
        assert_eq!(other.check(), Err(PlanError::Class(8)));
    }
}
