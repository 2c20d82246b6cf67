//! The notification point: selects the marked packets that are answered with a congestion notification.
//!
//! At most one notification per `min_time_between_cnps` is sent for each QP, to each address, or by the port,
//! as on mlx5 (`ROCE_CC_CNP_MODERATION`).

use super::knobs::{Knob, Knobs, Scope};
use roxie_base::time::Nanos;

/// Time of the last notification. Each QP has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastNotification(Option<Nanos>);

impl LastNotification {
    /// Returns true, and records a notification at `now`, if the last was `interval` or longer ago.
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

/// Destination address of a notification, a GID.
pub(super) type Destination = [u8; 16];

const WAYS: usize = 4;
const SETS: usize = 256;

/// Limits the rate of notifications.
///
/// Destinations are kept in a table of 1,024 entries: 256 sets of 4, chosen by a keyed hash. An entry holds
/// the whole address, so two addresses are never confused. A fifth address of a set evicts the entry with the
/// oldest notification. If that one was sent less than the interval ago, its destination may be notified
/// again too soon, at most once per eviction. A full table never suppresses a notification, so unrelated
/// senders cannot hide congestion from a peer.
#[derive(Debug)]
pub struct Moderation {
    interval: Nanos,
    scope: Scope,
    port: LastNotification,
    /// Empty unless the scope is [`Scope::Destination`].
    destinations: Vec<[(Destination, LastNotification); WAYS]>,
    secret: u64,
}

impl Moderation {
    /// Creates the moderation with the knobs of the notification point. `secret` prevents peers from choosing
    /// addresses that share a set.
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

    /// Applies other knobs. Earlier notifications still count.
    pub fn set(&mut self, knobs: &Knobs) {
        self.interval = Nanos::from_micros(knobs.value(Knob::MinTimeBetweenCnps) as u64);
        self.scope = knobs.scope();
        let wanted = if self.scope == Scope::Destination { SETS } else { 0 };
        self.destinations.resize_with(wanted, Default::default);
    }

    /// True if a notification was admitted at `now`. `qp`: the last one of its QP. Addresses are not looked up.
    pub fn has_admitted(&self, now: Nanos, qp: LastNotification) -> bool {
        match self.scope {
            Scope::Qp => qp.0 == Some(now),
            Scope::Port => self.port.0 == Some(now),
            Scope::Destination => true,
        }
    }

    /// Called for a marked packet of `qp`, with the destination of a notification. Returns true, and records
    /// the notification, if it may be sent.
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
        // An empty entry is older than all others.
        let oldest = set.iter_mut().min_by_key(|(_, last)| last.0);
        if let Some(place) = oldest {
            *place = (*destination, LastNotification(Some(now)));
        }
        true
    }
}

/// Returns a keyed hash of an address: multiply and fold, twice.
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
