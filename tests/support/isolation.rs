//! The script of isolated VLANs for a port: frames with all kinds of tags, of which the port takes those of its
//! addresses' VLANs and counts the others.

use std::net::IpAddr;

use roxie::port::{LinkChange, Port};

use crate::tags::{FOREIGN, OWN, PLAIN, Tag, VLAN, tagged};
use crate::wire::{A_WHILE, B4, B6, SOON, counter, flush, frame, put, take};

/// Sends a frame with each list of tags, and checks that the port takes all, or counts all and takes none.
fn expect(ports: (&mut impl Port, &mut impl Port), v6: bool, cases: &[(&str, &[Tag])], takes: bool) {
    let (left, right) = ports;
    for (what, tags) in cases {
        let before = counter(right, "rx_tagged");
        let sent = tagged(&frame(true, v6, false, 200, 1), tags);
        assert!(put(left, &sent));
        flush(left);
        if takes {
            assert!(take(right, 1, SOON) == [sent], "{what}, IPv6 {v6}: not taken as it is");
            assert_eq!(counter(right, "rx_tagged"), before, "{what}");
        } else {
            // A good frame behind it shows that the port has seen it.
            let good = tagged(&frame(true, v6, false, 200, 2), OWN[0].1);
            assert!(put(left, &good));
            flush(left);
            assert!(take(right, 1, SOON) == [good], "{what}, IPv6 {v6}: taken");
            assert_eq!(counter(right, "rx_tagged"), before + 1, "{what}, IPv6 {v6}: not counted once");
        }
    }
}

/// Runs the script at `right`, whose address is on VLAN 5.
pub(crate) fn run(left: &mut impl Port, right: &mut impl Port) {
    for v6 in [false, true] {
        let here: IpAddr = if v6 { B6.into() } else { B4.into() };
        // On the VLAN and on the interface itself.
        right.follow(&LinkChange::Addresses(vec![here])).unwrap();
        right.set_vlans(&[(here, VLAN)]).unwrap();
        expect((left, right), v6, &FOREIGN, false);
        expect((left, right), v6, &OWN, true);
        expect((left, right), v6, &PLAIN, true);
        // On the VLAN alone.
        right.follow(&LinkChange::Addresses(Vec::new())).unwrap();
        expect((left, right), v6, &[&FOREIGN[..], &PLAIN].concat(), false);
        expect((left, right), v6, &OWN, true);
        // The VLAN is deleted.
        right.follow(&LinkChange::Addresses(vec![here])).unwrap();
        right.set_vlans(&[]).unwrap();
        let sent = tagged(&frame(true, v6, false, 200, 3), OWN[0].1);
        assert!(put(left, &sent));
        flush(left);
        assert!(take(right, 1, A_WHILE).is_empty(), "the VLAN is gone");
        expect((left, right), v6, &PLAIN, true);
    }
}
