//! Forwarding table of a switch.

use std::collections::HashMap;

/// Prefix of the MAC addresses of simulated hosts. The two remaining bytes are the host's number.
const NUMBERED: [u8; 4] = [2, 0, 0, 0];
/// No route.
const NOWHERE: u32 = u32::MAX;

/// Maps a MAC address to its equal-cost ports.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// Distinct port lists. There are few.
    lists: Vec<Vec<u16>>,
    known: HashMap<Vec<u16>, u32>,
    /// List index by host number, for addresses of simulated hosts. A hash look-up would double the cost of switching a
    /// frame.
    numbered: Vec<u32>,
    others: HashMap<[u8; 6], u32>,
}

impl Routes {
    pub(super) fn set(&mut self, station: [u8; 6], ports: &[u16]) {
        let list = match self.known.get(ports) {
            Some(list) => *list,
            None => {
                self.lists.push(ports.to_vec());
                let list = self.lists.len() as u32 - 1;
                self.known.insert(ports.to_vec(), list);
                list
            }
        };
        match number(&station) {
            Some(number) => {
                if self.numbered.len() <= number {
                    self.numbered.resize(number + 1, NOWHERE);
                }
                self.numbered[number] = list;
            }
            None => drop(self.others.insert(station, list)),
        }
    }

    /// Moves the route of one address to another.
    pub(super) fn rename(&mut self, before: &[u8; 6], after: [u8; 6]) {
        let list = match number(before) {
            Some(number) => self.numbered.get_mut(number).map(|list| std::mem::replace(list, NOWHERE)),
            None => self.others.remove(before),
        };
        if let Some(ports) = list.and_then(|list| self.lists.get(list as usize)).cloned() {
            self.set(after, &ports);
        }
    }

    pub(super) fn to(&self, station: &[u8; 6]) -> Option<&[u16]> {
        let list = match number(station) {
            Some(number) => self.numbered.get(number),
            None => self.others.get(station),
        };
        Some(self.lists.get(*list? as usize)?)
    }
}

fn number(station: &[u8; 6]) -> Option<usize> {
    let [.., high, low] = *station;
    station.starts_with(&NUMBERED).then(|| usize::from(u16::from_be_bytes([high, low])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_and_other_stations_are_found() {
        let mut routes = Routes::default();
        let (host, other) = ([2, 0, 0, 0, 1, 4], [2, 1, 0, 0, 1, 4]);
        routes.set(host, &[3, 4]);
        routes.set(other, &[5]);
        routes.set([2, 0, 0, 0, 0, 9], &[3, 4]);
        assert_eq!((routes.to(&host), routes.to(&other)), (Some(&[3, 4][..]), Some(&[5][..])));
        assert_eq!((routes.to(&[2, 0, 0, 0, 0, 8]), routes.to(&[2, 1, 0, 0, 0, 8])), (None, None));
        assert_eq!(routes.lists.len(), 2);
        routes.set(host, &[5]);
        assert_eq!(routes.to(&host), Some(&[5][..]));
        for (before, after) in [(host, [2, 3, 0, 0, 1, 4]), ([2, 3, 0, 0, 1, 4], [2, 0, 0, 0, 7, 7])] {
            routes.rename(&before, after);
            assert_eq!((routes.to(&before), routes.to(&after)), (None, Some(&[5][..])));
        }
    }
}
