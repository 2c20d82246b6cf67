//! Matches packets between two views of the same traffic, and finds those that never arrived.
//!
//! The views are two captures, or the sent and received packets in the capture of a host that talks to itself. If
//! captures do not record directions, times tell which end each was made at: a sender sees a packet first. Summed over
//! both directions, the offset between the clocks cancels out. These times also bound the offset.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use roxie::wire::{Opcode, Psn, Qpn, Sack, Syndrome};

use super::{Facts, Fate, Passage, Seen, Sight};

/// Error: no packet is in both captures.
#[derive(Debug, thiserror::Error)]
#[error(
    "the two captures are not of the two ends of one traffic: the first has packets between {first}, the second \
     between {second}, and no packet is in both"
)]
pub struct Unrelated {
    first: String,
    second: String,
}

/// Identifies a packet, apart from retransmissions of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    src: IpAddr,
    dst: IpAddr,
    dest_qp: Qpn,
    src_qp: Option<Qpn>,
    psn: Psn,
    opcode: Opcode,
    syndrome: Option<Syndrome>,
    sack: Option<Sack>,
}

impl Key {
    fn of(facts: &Facts) -> Key {
        let Facts { src, dst, dest_qp, src_qp, psn, opcode, syndrome, sack, .. } = *facts;
        Key { src, dst, dest_qp, src_qp, psn, opcode, syndrome, sack }
    }
}

/// Two addresses in ascending order, for either direction.
type AddressPair = (IpAddr, IpAddr);

fn road(facts: &Facts) -> AddressPair {
    (facts.src.min(facts.dst), facts.src.max(facts.dst))
}

/// Merges the packets of one or two captures into one list in the order of time.
///
/// # Errors
///
/// If two captures have no packet in common.
pub fn meet(mut captures: Vec<Vec<Seen>>) -> Result<Vec<Passage>, Unrelated> {
    let second = if captures.len() > 1 { captures.pop() } else { None };
    let first = captures.pop().unwrap_or_default();
    match second {
        None => Ok(alone(first)),
        Some(second) => together(first, second),
    }
}

/// Handles one capture: a passage for each packet, or for each pair if a host talks to itself and captured both.
fn alone(seen: Vec<Seen>) -> Vec<Passage> {
    let mut ways: HashMap<(IpAddr, IpAddr), [bool; 2]> = HashMap::new();
    for s in &seen {
        if let Some(out) = s.out {
            ways.entry((s.facts.src, s.facts.dst)).or_default()[usize::from(out)] = true;
        }
    }
    let to_itself = |s: &Seen| {
        s.out.is_some() && ways.get(&(s.facts.src, s.facts.dst)).is_some_and(|way| *way == [true, true])
    };
    let (both, single): (Vec<Seen>, Vec<Seen>) = seen.into_iter().partition(to_itself);
    let mut passages: Vec<_> = single.into_iter().map(Passage::single).collect();
    if !both.is_empty() {
        let (departures, arrivals) = both.into_iter().partition(|s| s.out == Some(true));
        passages.extend(join(departures, arrivals, None));
        in_order(&mut passages);
    }
    passages
}

/// Handles two captures.
fn together(first: Vec<Seen>, second: Vec<Seen>) -> Result<Vec<Passage>, Unrelated> {
    let views = Views::compare(&first, &second);
    if views.0.is_empty() {
        return Err(Unrelated { first: roads(&first), second: roads(&second) });
    }
    let mut passages = Vec::new();
    let (mut departures, mut arrivals) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let mut begin = [None; 2];
    for (file, seen) in [first, second].into_iter().enumerate() {
        for mut s in seen {
            let Some(view) = views.0.get(&road(&s.facts)) else {
                passages.push(Passage::single(s));
                continue;
            };
            // Times are by the first capture's clock.
            if file == 1 {
                s.sight.at = s.sight.at.map(|at| at.saturating_add_signed(-view.ahead_ns));
            }
            begin[file] = begin[file].or(s.sight.at);
            let at_lower = (file == 0) == view.first_is_at_lower;
            let leaves = s.out.unwrap_or((s.facts.src <= s.facts.dst) == at_lower);
            if leaves { departures[file].push(s) } else { arrivals[file].push(s) }
        }
    }
    let ([left_first, left_second], [came_to_first, came_to_second]) = (departures, arrivals);
    passages.extend(join(left_first, came_to_second, begin[1]));
    passages.extend(join(left_second, came_to_first, begin[0]));
    in_order(&mut passages);
    Ok(passages)
}

fn in_order(passages: &mut [Passage]) {
    passages.sort_by_key(|passage| passage.at);
}

fn roads(seen: &[Seen]) -> String {
    let all: BTreeSet<AddressPair> = seen.iter().map(|s| road(&s.facts)).collect();
    let mut names: Vec<_> = all.iter().take(3).map(|(a, b)| format!("{a} and {b}")).collect();
    if all.len() > 3 {
        names.push(format!("{} more pairs", all.len() - 3));
    }
    if names.is_empty() { "nobody".into() } else { names.join(", ") }
}

/// How two captures see the packets between two addresses.
#[derive(Clone, Copy, Debug)]
struct View {
    /// True if the first capture was made at the lower address.
    first_is_at_lower: bool,
    /// Nanoseconds by which the second capture's clock is ahead of the first's.
    ahead_ns: i64,
}

struct Views(HashMap<AddressPair, View>);

impl Views {
    fn compare(first: &[Seen], second: &[Seen]) -> Views {
        let (here, there) = (by_key(first), by_key(second));
        let mut differences: HashMap<AddressPair, [Option<Spread>; 2]> = HashMap::new();
        for (key, here) in &here {
            // Match retransmissions in order, if both captures have the same number.
            let Some(there) = there.get(key).filter(|there| there.len() == here.len()) else { continue };
            for (here, there) in here.iter().zip(there) {
                let (Some(a), Some(b)) = (here.sight.at, there.sight.at) else { continue };
                let upward = key.src <= key.dst;
                // Time from the first capture to the second, if the first is at the lower address.
                let took = b.wrapping_sub(a).cast_signed();
                let took = if upward { took } else { -took };
                let spread = &mut differences.entry(road(&here.facts)).or_default()[usize::from(!upward)];
                let (least, most) = spread.unwrap_or((took, took));
                *spread = Some((least.min(took), most.max(took)));
            }
        }
        let noted = noted_places(first, second);
        let view = |(road, [up, down]): (AddressPair, [Option<Spread>; 2])| {
            let sum = up.map_or(0, |(least, _)| least) + down.map_or(0, |(least, _)| least);
            let first_is_at_lower = noted.get(&road).copied().unwrap_or(sum >= 0);
            // No packet arrives before it was sent.
            let (lowest, highest) = if first_is_at_lower {
                (down.map(|(least, _)| -least), up.map(|(least, _)| least))
            } else {
                (up.map(|(_, most)| most), down.map(|(_, most)| -most))
            };
            let ahead_ns = match (lowest, highest) {
                (Some(lowest), Some(highest)) => ahead_within(lowest, highest),
                (one, other) => one.or(other).unwrap_or(0),
            };
            (road, View { first_is_at_lower, ahead_ns })
        };
        Views(differences.into_iter().map(view).collect())
    }
}

/// Returns the clock offset, given its bounds: 0 if that is within or near the bounds, else the middle, which assumes
/// equal delays in both directions.
fn ahead_within(lowest: i64, highest: i64) -> i64 {
    let nearest = if lowest > highest { 0 } else { 0.clamp(lowest, highest) };
    if nearest.abs() <= highest - lowest { nearest } else { lowest + (highest - lowest) / 2 }
}

/// Least and most nanoseconds between the two sightings of a packet.
type Spread = (i64, i64);

/// Groups the packets of a capture by their key.
fn by_key(seen: &[Seen]) -> HashMap<Key, Vec<&Seen>> {
    let mut all: HashMap<Key, Vec<&Seen>> = HashMap::new();
    for s in seen {
        all.entry(Key::of(&s.facts)).or_default().push(s);
    }
    all
}

/// For address pairs with recorded directions: true if the first capture was made at the lower address.
fn noted_places(first: &[Seen], second: &[Seen]) -> HashMap<AddressPair, bool> {
    let mut places = HashMap::new();
    for (is_first, seen) in [(false, second), (true, first)] {
        for s in seen {
            if let Some(out) = s.out {
                let here_is_lower = (s.facts.src <= s.facts.dst) == out;
                places.insert(road(&s.facts), here_is_lower == is_first);
            }
        }
    }
    places
}

/// Matches each arrival with its departure.
///
/// If a packet departed more often than it arrived, an arrival belongs to the latest departure before it: a packet is
/// retransmitted because an earlier copy was lost. The receiver's capture starts at `begin`.
fn join(departures: Vec<Seen>, arrivals: Vec<Seen>, begin: Option<u64>) -> Vec<Passage> {
    let mut left: HashMap<Key, Vec<usize>> = HashMap::new();
    for (i, s) in departures.iter().enumerate() {
        left.entry(Key::of(&s.facts)).or_default().push(i);
    }
    // `matched`: the arrival of each departure, if any. `extra`: arrivals without a departure.
    let mut came: HashMap<Key, Vec<usize>> = HashMap::new();
    for (i, s) in arrivals.iter().enumerate() {
        came.entry(Key::of(&s.facts)).or_default().push(i);
    }
    let mut matched: Vec<Option<usize>> = vec![None; departures.len()];
    let mut extra: Vec<usize> = Vec::new();
    for (key, came) in &came {
        let none = Vec::new();
        let left = left.get(key).unwrap_or(&none);
        let (mut taken, mut owned) = (vec![false; left.len()], Vec::new());
        for &arrival in came {
            match latest_before(&departures, left, &taken, arrivals[arrival].sight.at) {
                Some(place) => {
                    taken[place] = true;
                    owned.push(arrival);
                }
                None => extra.push(arrival),
            }
        }
        // Match departures in the order in which they were sent, whatever order the search found them in.
        let left = left.iter().zip(&taken).filter(|(_, taken)| **taken).map(|(departure, _)| *departure);
        left.zip(owned).for_each(|(departure, arrival)| matched[departure] = Some(arrival));
    }
    let mut arrivals: Vec<Option<Seen>> = arrivals.into_iter().map(Some).collect();
    let mut passages: Vec<Passage> = Vec::new();
    // A packet sent before the other capture began does not count as lost, unless an earlier one arrived or it was sent
    // again.
    let mut watched = false;
    let last: HashMap<Key, usize> =
        left.into_iter().filter_map(|(key, all)| Some((key, *all.last()?))).collect();
    for (i, (seen, arrival)) in departures.into_iter().zip(matched).enumerate() {
        let arrived = arrival.and_then(|arrival| arrivals[arrival].take()).map(|s| s.sight);
        let late = begin.is_none_or(|begin| seen.sight.at.is_none_or(|at| at >= begin));
        watched |= late || arrived.is_some();
        let fate = match arrived {
            Some(_) => Fate::Delivered,
            None if watched || last.get(&Key::of(&seen.facts)) != Some(&i) => Fate::Lost,
            None => Fate::Unknown,
        };
        let at = seen.sight.at.map(u64::cast_signed);
        passages.push(Passage { facts: seen.facts, departed: Some(seen.sight), arrived, fate, at });
    }
    passages.extend(extra.into_iter().filter_map(|i| arrivals[i].take()).map(|s| Passage {
        at: s.sight.at.map(u64::cast_signed),
        facts: s.facts,
        departed: None,
        arrived: Some(s.sight),
        fate: Fate::Extra,
    }));
    passages
}

/// Returns the place in `left` of the latest unused departure before `at`.
fn latest_before(departures: &[Seen], left: &[usize], taken: &[bool], at: Option<u64>) -> Option<usize> {
    let before = |departure: &Sight| match (departure.at, at) {
        (Some(departed), Some(arrived)) => departed <= arrived,
        _ => true,
    };
    (0..left.len()).rev().find(|&place| !taken[place] && before(&departures[left[place]].sight))
}

impl Passage {
    /// Returns the passage of a packet that was captured at one place only.
    fn single(seen: Seen) -> Passage {
        let at = seen.sight.at.map(u64::cast_signed);
        let (departed, arrived) = match seen.out {
            Some(false) => (None, Some(seen.sight)),
            _ => (Some(seen.sight), None),
        };
        Passage { facts: seen.facts, departed, arrived, fate: Fate::Unknown, at }
    }
}
