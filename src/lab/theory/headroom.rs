//! Headroom of a lossless priority, term by term: the sum behind [`worst_case`], and the arrivals that use all of it.

use roxie_base::time::Nanos;
use roxie_sim::fabric::{LinkConfig, SHORTEST_FRAME, worst_case};
use roxie_wire::mac_control::FRAME_LEN;

/// A delay between the frame that crosses the threshold and the end of transmission.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// Name of the delay.
    pub what: &'static str,
    /// Explanation.
    pub how: String,
    /// Duration.
    pub time: Nanos,
    /// Bytes on the wire in that time.
    pub wire: u64,
}

/// The headroom and its parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Sum {
    /// Delays, one after the other.
    pub terms: Vec<Term>,
    /// Maximum total length of the frames that start during the delays, in bytes.
    pub begun: u64,
    /// Number of frames of maximum length among them.
    pub whole: u64,
    /// Remaining wire bytes, for a shorter frame.
    pub rest: u64,
    /// Maximum frame length in bytes: that of the frame that crosses the threshold, and of the last frame before
    /// transmission stops.
    pub longest: u64,
    /// The headroom, in bytes of the buffer.
    pub total: u64,
}

impl Sum {
    /// Computes the headroom for a link, a peer that stops after `response`, and a maximum frame length in bytes
    /// without FCS.
    pub fn of(link: &LinkConfig, response: Nanos, longest: u32) -> Sum {
        let full = link.wire_bytes(longest as usize);
        let term = |what, how: String, time: Nanos| Term { what, how, time, wire: link.rate.bytes_in(time) };
        let pfc = link.wire_bytes(FRAME_LEN);
        let terms = vec![
            term(
                "wait for the line back",
                format!("a frame of {longest} bytes has just begun: {full} on the wire"),
                link.rate.nanos_for(full),
            ),
            term("the PFC frame", format!("{FRAME_LEN} bytes: {pfc} on the wire"), link.rate.nanos_for(pfc)),
            term("cable, there", format!("{} ns of it at 5 ns a metre", link.delay.0), link.delay),
            term("response of the peer", "802.3 31B.3.7, or as asked for".into(), response),
            term("cable, back", "frames on the cable still arrive".into(), link.delay),
        ];
        let silence = terms.iter().map(|term| term.time.0).sum();
        let before_last = link.rate.bytes_in(Nanos(silence)).saturating_sub(1);
        let longest = u64::from(longest);
        let total = worst_case(link, response, longest as u32);
        Sum {
            terms,
            begun: total - 2 * longest,
            whole: before_last / full,
            rest: before_last % full,
            longest,
            total,
        }
    }

    /// Returns the lengths of back-to-back frames that use the whole headroom except for `less` bytes. The first
    /// crosses the threshold. Frames of maximum length must follow, in any number. A line that counts in whole
    /// nanoseconds may need `less` > 0, because the sum rounds up.
    pub fn worst_frames(&self, link: &LinkConfig, less: u64) -> Vec<usize> {
        let (longest, overhead) = (self.longest as usize, link.overhead as usize);
        let shortest = SHORTEST_FRAME + overhead;
        let full = link.wire_bytes(longest);
        let before_last = (self.whole * full + self.rest).saturating_sub(less);
        let (whole, rest) = ((before_last / full) as usize, (before_last % full) as usize);
        let mut lengths = vec![longest; 1 + whole];
        if rest >= shortest {
            lengths.push(rest - overhead);
        } else if rest > overhead && whole > 0 && longest >= SHORTEST_FRAME + shortest - rest {
            // A remainder too short for a frame: shorten the frame before to make room.
            lengths.pop();
            lengths.extend([longest - (shortest - rest), SHORTEST_FRAME]);
        }
        lengths
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxie_sim::fabric::LinkRate;

    #[test]
    fn terms_add_up_to_the_headroom() {
        for (gbps, metres, longest) in
            [(10, 5, 1518), (40, 100, 1100), (100, 300, 4200), (400, 2000, 9216), (25, 0, 300)]
        {
            let link = LinkConfig::new(LinkRate::from_gbps(gbps), Nanos(5 * metres));
            let response = link.rate.pause_response();
            let sum = Sum::of(&link, response, longest);
            assert_eq!(sum.total, worst_case(&link, response, longest));
            assert_eq!(sum.longest * 2 + sum.begun, sum.total);
            // `worst_frames` omits the last frame, which has maximum length.
            let frames: u64 = sum.worst_frames(&link, 0).iter().map(|length| *length as u64).sum();
            assert_eq!(frames + sum.longest, sum.total, "{gbps} Gb/s, {metres} m, {longest}");
        }
    }
}
