//! The part of a profile that a NIC gets.

use roxie::profile::{
    AckTimer, Adaptive, CnpProfile, Identity, PacketProfile, Profile, ResponderProfile, Step, VendorErrors,
};
use roxie::time::Nanos;

use super::fields::{real, steps};
use super::{ProfileError, ProfileFile};

impl ProfileFile {
    /// Returns the behaviour for a history of the adapter. `floor_off`: small ACK timeouts count too.
    ///
    /// # Errors
    /// If fields that belong together are not all there.
    pub fn profile(&self, history: &str, floor_off: bool) -> Result<Profile, ProfileError> {
        let mut vendor_err = VendorErrors::default();
        for name in VendorErrors::names() {
            let value = self.number(&format!("vendor_err.{name}"));
            if let (Some(value), Some(field)) = (value, vendor_err.by_name(name)) {
                *field = Some(value as u8);
            }
        }
        Ok(Profile {
            ack_timer: if floor_off { self.spaced()? } else { self.two_phase(history)? },
            rnr_extra: Nanos::from_micros(self.number("rnr.extra_us").unwrap_or(0)),
            vendor_err,
            counts_root_alone: self.is_set("counters.root_alone"),
            cnp: CnpProfile {
                source_port: self.number("cnp.source_port").map(|port| port as u16),
                mig_req: self.get("cnp.mig_req").and_then(toml::Value::as_bool),
                first_ip_id: self.number("cnp.first_ip_id").map(|id| id as u16),
                answers_gaps: self.is_set("cnp.on_nak"),
            },
            packets: PacketProfile {
                mig_req: self.get("bth.mig_req").and_then(toml::Value::as_bool),
                source_port_is_qpn: self.get("sport.rule").is_some(),
                is_ecn_capable: self.get("ip.ecn").is_some(),
                request_bits: self.number("bth.byte4_requests").unwrap_or(0) as u8,
                first_requests_ack: self.is_set("ack.first_of_first"),
                has_credits: self.get("ack.credits").is_some(),
            },
            ack_delay: self.number("caps.local_ca_ack_delay").map(|code| code as u8),
            identity: None,
            sq_psn_is_acknowledged: self.get("requester.sq_psn").is_some(),
            responder: ResponderProfile {
                checks_each_packet: self.get("responder.range").is_some(),
                counts_before_key: self.is_set("responder.count_before_key"),
                counts_no_refusal: self.is_set("responder.counts_no_refusal"),
            },
        })
    }

    /// Returns vendor, part, firmware and board of the adapter, if the profile has them.
    pub fn identity(&self) -> Option<Identity> {
        let text = |path: &str| self.get(path).and_then(toml::Value::as_str).map(str::to_owned);
        Some(Identity {
            vendor: self.number("id.vendor")? as u32,
            part: self.number("id.part")? as u32,
            firmware: text("id.fw_ver")?,
            board: text("id.board").unwrap_or_else(|| "unknown".to_owned()),
        })
    }

    /// True if the profile says how the adapter's timer runs after this history.
    pub fn has_history(&self, history: &str) -> bool {
        self.get(&format!("timer.history.{history}.steps")).is_some()
    }

    /// True if the profile says how the adapter's timer runs without its floor.
    pub fn has_floor_off(&self) -> bool {
        self.get("timer.floor_off.spacing").is_some()
    }

    /// The timer of two phases. `None`: Roxie's own, also after a history that is not known.
    fn two_phase(&self, history: &str) -> Result<Option<AckTimer>, ProfileError> {
        if self.get("timer.mode").is_none() || !self.has_history(history) {
            return Ok(None);
        }
        let of_history = |key: &str| format!("timer.history.{history}.{key}");
        let first_ms = self.real(&of_history("first_ms"))?;
        Ok(Some(AckTimer::TwoPhase {
            floor: self.needed("timer.floor")? as u8,
            factor: self.real("timer.factor")?,
            zero_as: self.needed("timer.zero_as")? as u8,
            adaptive: Adaptive {
                start: Nanos((first_ms * 1e6).round() as u64),
                first_of: self.needed(&of_history("first_of"))?.max(1) as u8,
                steps: self.steps(&of_history("steps"))?,
            },
        }))
    }

    fn spaced(&self) -> Result<Option<AckTimer>, ProfileError> {
        if !self.has_floor_off() {
            return Ok(None);
        }
        Ok(Some(AckTimer::Spaced {
            first: self.steps("timer.floor_off.first")?,
            first_is_silent: self.is_set("timer.floor_off.first_is_silent"),
            spacing: self.real("timer.floor_off.spacing")?,
        }))
    }

    fn is_set(&self, path: &str) -> bool {
        self.get(path).and_then(toml::Value::as_bool).unwrap_or(false)
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.get(path).and_then(toml::Value::as_integer).and_then(|number| u64::try_from(number).ok())
    }

    fn needed(&self, path: &str) -> Result<u64, ProfileError> {
        self.number(path).ok_or_else(|| self.lacks(path))
    }

    fn real(&self, path: &str) -> Result<f64, ProfileError> {
        self.get(path).and_then(real).ok_or_else(|| self.lacks(path))
    }

    fn steps(&self, path: &str) -> Result<Vec<Step>, ProfileError> {
        let pairs = self.get(path).and_then(steps).ok_or_else(|| self.lacks(path))?;
        Ok(pairs.into_iter().map(|(code, share)| Step { code, share }).collect())
    }

    fn lacks(&self, path: &str) -> ProfileError {
        self.wrong(path, "it is missing, and other fields of the timer need it")
    }
}
