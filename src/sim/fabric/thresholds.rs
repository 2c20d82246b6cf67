//! Buffer thresholds of the DCQCN paper (Zhu et al., SIGCOMM 2015, section 4).
//!
//! PFC must act before the buffer overflows, and ECN before PFC. With `n` ports and eight lossless priorities, each
//! priority of each port reserves `t_flight` of headroom. Queues share the rest, and each may grow up to `t_pfc`.

/// Parameters of a switch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedSwitch {
    /// Bytes of the shared buffer, `B`.
    pub buffer: f64,
    /// Number of ports, `n`.
    pub ports: f64,
    /// Headroom in bytes of each port and priority.
    pub t_flight: f64,
    /// Number of priorities: eight.
    pub priorities: f64,
}

impl SharedSwitch {
    /// Returns the switch of the paper: 12 MB, 32 ports of 40 Gb/s, 22.4 KB of headroom.
    pub fn paper() -> SharedSwitch {
        SharedSwitch { buffer: 12e6, ports: 32.0, t_flight: 22.4e3, priorities: 8.0 }
    }

    /// Returns the bytes outside of the headroom.
    fn shared(&self) -> f64 {
        self.buffer - self.priorities * self.ports * self.t_flight
    }

    /// Returns the highest static PFC threshold in bytes with which the buffer cannot overflow.
    pub fn t_pfc_static(&self) -> f64 {
        self.shared() / (self.priorities * self.ports)
    }

    /// Returns the dynamic PFC threshold of each priority while `used` bytes of the shared buffer are in use: `beta`
    /// times the rest.
    pub fn t_pfc_dynamic(&self, beta: f64, used: f64) -> f64 {
        beta * (self.shared() - used) / self.priorities
    }

    /// Returns the queue depth in bytes below which marking must start, so that ECN reaches every sender before PFC
    /// pauses any. Worst case with the dynamic threshold: all used bytes came in by one port and wait at one.
    pub fn t_ecn(&self, beta: f64) -> f64 {
        beta * self.shared() / (self.priorities * self.ports * (beta + 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of section 4 of the paper.
    #[test]
    fn thresholds_match_the_paper() {
        let switch = SharedSwitch::paper();
        assert_eq!(switch.t_pfc_static().round(), 24_475.0);
        assert_eq!(switch.t_ecn(8.0).round(), 21_756.0);
        // A static threshold for marking, without beta, would be below one packet.
        assert!(switch.t_pfc_dynamic(8.0, 0.0) > switch.t_pfc_static());
        assert_eq!(switch.t_pfc_dynamic(8.0, switch.shared()), 0.0);
    }
}
