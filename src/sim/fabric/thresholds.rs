//! The buffer thresholds of the DCQCN paper (Zhu et al., SIGCOMM 2015, section 4).
//!
//! PFC must come before the buffer overflows, and marks before PFC. With `n` ports and eight priorities all of which are lossless,
//! each holds back `t_flight` of headroom. What is left is shared by queues that may be as long as `t_pfc`.

/// A switch whose thresholds are asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedSwitch {
    /// Bytes of the shared buffer, `B`.
    pub buffer: f64,
    /// Ports, `n`.
    pub ports: f64,
    /// Bytes of headroom of each port and priority.
    pub t_flight: f64,
    /// Priorities: eight.
    pub priorities: f64,
}

impl SharedSwitch {
    /// The switch of the paper: 12 MB, 32 ports of 40 Gb/s, 22.4 KB of headroom.
    pub fn paper() -> SharedSwitch {
        SharedSwitch { buffer: 12e6, ports: 32.0, t_flight: 22.4e3, priorities: 8.0 }
    }

    /// Bytes that are no headroom.
    fn shared(&self) -> f64 {
        self.buffer - self.priorities * self.ports * self.t_flight
    }

    /// The highest threshold that is the same for all and never overflows: a PFC frame when a queue is longer, in bytes.
    pub fn t_pfc_static(&self) -> f64 {
        self.shared() / (self.priorities * self.ports)
    }

    /// The dynamic threshold while `used` bytes of the shared buffer are in use: `beta` times what is left, for each priority.
    pub fn t_pfc_dynamic(&self, beta: f64, used: f64) -> f64 {
        beta * (self.shared() - used) / self.priorities
    }

    /// Marks have to begin below this depth, in bytes, for every sender to be told before any is paused: with the dynamic threshold,
    /// all that is used may have come in by one port and wait at one.
    pub fn t_ecn(&self, beta: f64) -> f64 {
        beta * self.shared() / (self.priorities * self.ports * (beta + 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of section 4 of the paper.
    #[test]
    fn thresholds_are_those_of_the_paper() {
        let switch = SharedSwitch::paper();
        assert_eq!(switch.t_pfc_static().round(), 24_475.0);
        assert_eq!(switch.t_ecn(8.0).round(), 21_756.0);
        // Naive: without beta it would be below one packet.
        assert!(switch.t_pfc_dynamic(8.0, 0.0) > switch.t_pfc_static());
        assert_eq!(switch.t_pfc_dynamic(8.0, switch.shared()), 0.0);
    }
}
