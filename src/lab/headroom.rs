//! The headroom of a lossless priority, term by term: the sum behind [`worst_case`], and the arrivals that use all of it.

use crate::sim::fabric::{LinkConfig, SHORTEST_FRAME, worst_case};
use crate::time::Nanos;
use crate::wire::mac_control::FRAME_LEN;

/// What happens between the frame that crosses the threshold and the silence.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// What it is.
    pub what: &'static str,
    /// How it comes about.
    pub how: String,
    /// How long it takes.
    pub time: Nanos,
    /// Bytes of the wire that pass in it.
    pub wire: u64,
}

/// The sum worked out.
#[derive(Clone, Debug, PartialEq)]
pub struct Sum {
    /// Times that pass one after the other.
    pub terms: Vec<Term>,
    /// Bytes of the frames that begin in that time, the longest there can be.
    pub begun: u64,
    /// Whole frames of the longest among them.
    pub whole: u64,
    /// Wire bytes that are left for a shorter one.
    pub rest: u64,
    /// Bytes of the longest frame: the first crosses the threshold, the last begins just before the silence.
    pub longest: u64,
    /// All of it, in bytes of the buffer.
    pub total: u64,
}

impl Sum {
    /// For a link, a peer that is silent after `response`, and a longest frame in bytes without FCS.
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
            term("cable, back", "what is on it still comes".into(), link.delay),
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

    /// Lengths of frames that, sent one behind the other from the one that crosses the threshold on, use all of it but `less` bytes;
    /// behind them come as many of the longest as one likes. A line that counts in whole nanoseconds leaves some bytes less than the sum,
    /// which rounds up.
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
            // What holds no frame of its own is made room for by a shorter one before it.
            lengths.pop();
            lengths.extend([longest - (shortest - rest), SHORTEST_FRAME]);
        }
        lengths
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::fabric::LinkRate;

    #[test]
    fn the_terms_are_the_sum() {
        for (gbps, metres, longest) in
            [(10, 5, 1518), (40, 100, 1100), (100, 300, 4200), (400, 2000, 9216), (25, 0, 300)]
        {
            let link = LinkConfig::new(LinkRate::from_gbps(gbps), Nanos(5 * metres));
            let response = link.rate.pause_response();
            let sum = Sum::of(&link, response, longest);
            assert_eq!(sum.total, worst_case(&link, response, longest));
            assert_eq!(sum.longest * 2 + sum.begun, sum.total);
            // The frames that use it: all but the last are named, and the last is one of the longest.
            let frames: u64 = sum.worst_frames(&link, 0).iter().map(|length| *length as u64).sum();
            assert_eq!(frames + sum.longest, sum.total, "{gbps} Gb/s, {metres} m, {longest}");
        }
    }
}
