//! The notification point: which marked packets are answered with a congestion notification.
//!
//! At most one in `min_time_between_cnps`, for each QP, for each address that notifications go to, or for the port, as
//! mlx5 has it (`ROCE_CC_CNP_MODERATION`).

use super::knobs::{Knob, Knobs, Scope};
use crate::time::Nanos;

/// When a notification last left. A QP has one of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastNotification(Option<Nanos>);

impl LastNotification {
    /// True, and it has left now, if the last is `interval` or more behind.
    fn admit(&mut self, now: Nanos, interval: Nanos) -> bool {
        let due = self.is_over(now, interval);
        if due {
            self.0 = Some(now);
        }
        due
    }

    fn is_over(self, now: Nanos, interval: Nanos) -> bool {
        self.0.is_none_or(|last| now - last >= interval)
    }
}

/// An address that notifications go to, as 16 bytes: a GID.
pub(super) type Destination = [u8; 16];

const WAYS: usize = 4;
const SETS: usize = 256;

/// Holds notifications apart.
///
/// Addresses are kept in a table of 1,024 places, 256 sets of 4 by a keyed hash, each with its whole address: no two
/// are taken for one. A fifth address of a set takes the place of the one whose notification is the longest ago. If
/// that was less than the interval ago, the one that lost its place may be notified too soon: at most once for each
/// address that pushed it out. Never is a notification withheld because the table is full, so that strangers keep
/// nobody from hearing of congestion.
#[derive(Debug)]
pub struct Moderation {
    interval: Nanos,
    scope: Scope,
    port: LastNotification,
    /// Empty unless it is wanted.
    destinations: Vec<[(Destination, LastNotification); WAYS]>,
    secret: u64,
}

impl Moderation {
    /// With the knobs of the notification point. `secret` keeps peers from choosing addresses that share a set.
    pub fn new(knobs: &Knobs, secret: u64) -> Moderation {
        let mut moderation = Moderation {
            interval: Nanos::ZERO,
            scope: Scope::Qp,
            port: LastNotification::default(),
            destinations: Vec::new(),
            secret,
        };
        moderation.set(knobs);
        moderation
    }

    /// Other knobs; what left before them counts on.
    pub fn set(&mut self, knobs: &Knobs) {
        self.interval = Nanos::from_micros(knobs.value(Knob::MinTimeBetweenCnps) as u64);
        self.scope = knobs.scope();
        let wanted = if self.scope == Scope::Destination { SETS } else { 0 };
        self.destinations.resize_with(wanted, Default::default);
    }

    /// A marked packet came for a QP, and a notification would go to `destination`: true if it shall, and then it has.
    pub fn admit(&mut self, now: Nanos, qp: &mut LastNotification, destination: &Destination) -> bool {
        match self.scope {
            Scope::Qp => qp.admit(now, self.interval),
            Scope::Port => self.port.admit(now, self.interval),
            Scope::Destination => self.admit_destination(now, destination),
        }
    }

    fn admit_destination(&mut self, now: Nanos, destination: &Destination) -> bool {
        let set = &mut self.destinations[hash(self.secret, destination) as usize % SETS];
        if let Some((_, last)) = set.iter_mut().find(|(known, last)| last.0.is_some() && known == destination)
        {
            return last.admit(now, self.interval);
        }
        // An empty place is before all times.
        let oldest = set.iter_mut().min_by_key(|(_, last)| last.0);
        if let Some(place) = oldest {
            *place = (*destination, LastNotification(Some(now)));
        }
        true
    }
}

/// Mixes an address and a secret: multiply and fold, twice.
fn hash(secret: u64, destination: &Destination) -> u64 {
    let whole = u128::from_be_bytes(*destination);
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        (product >> 64) as u64 ^ product as u64
    };
    let halves =
        fold((whole >> 64) as u64 ^ secret, whole as u64 ^ secret.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15);
    let mixed = fold(halves ^ secret, 0xd6e8_feb8_6659_fd93);
    mixed ^ mixed >> 32
}
