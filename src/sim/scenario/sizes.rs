//! Flow sizes: published distributions.

use serde::{Deserialize, Serialize};

use roxie_base::random::splitmix;

/// A distribution of flow sizes, named as in the literature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sizes {
    /// Query and background flows of a web search cluster (DCTCP, SIGCOMM 2010, figure 4), as used by later simulators.
    WebSearch,
    /// A data mining cluster (VL2, SIGCOMM 2009, figure 2), as used by pFabric: half of the flows are one packet, most
    /// bytes are in flows of over 100 MB.
    DataMining,
    /// A Hadoop cluster of Facebook (Roy et al., SIGCOMM 2015, figure 6), as used by HPCC's simulator.
    Hadoop,
}

/// Points of a distribution: bytes, and the share of flows of at most that size. Linear in between.
type Points = &'static [(f64, f64)];

const WEB_SEARCH: Points = &[
    (0.0, 0.0),
    (10e3, 0.15),
    (20e3, 0.20),
    (30e3, 0.30),
    (50e3, 0.40),
    (80e3, 0.53),
    (200e3, 0.60),
    (1e6, 0.70),
    (2e6, 0.80),
    (5e6, 0.90),
    (10e6, 0.97),
    (30e6, 1.0),
];

/// In packets of 1460 bytes.
const DATA_MINING: Points = &[
    (1460.0, 0.0),
    (1460.0, 0.50),
    (2.0 * 1460.0, 0.60),
    (3.0 * 1460.0, 0.70),
    (7.0 * 1460.0, 0.80),
    (267.0 * 1460.0, 0.90),
    (2107.0 * 1460.0, 0.95),
    (66_667.0 * 1460.0, 0.99),
    (666_667.0 * 1460.0, 1.0),
];

const HADOOP: Points = &[
    (0.0, 0.0),
    (100.0, 0.01),
    (200.0, 0.02),
    (300.0, 0.05),
    (350.0, 0.15),
    (400.0, 0.20),
    (500.0, 0.30),
    (600.0, 0.40),
    (700.0, 0.50),
    (1000.0, 0.60),
    (2000.0, 0.67),
    (7000.0, 0.70),
    (30e3, 0.72),
    (50e3, 0.82),
    (80e3, 0.87),
    (120e3, 0.90),
    (300e3, 0.95),
    (1e6, 0.975),
    (2e6, 0.99),
    (10e6, 1.0),
];

impl Sizes {
    fn points(self) -> Points {
        match self {
            Sizes::WebSearch => WEB_SEARCH,
            Sizes::DataMining => DATA_MINING,
            Sizes::Hadoop => HADOOP,
        }
    }

    /// Returns the mean flow size in bytes.
    pub fn mean(self) -> f64 {
        let between = |pair: &[(f64, f64)]| (pair[1].1 - pair[0].1) * (pair[0].0 + pair[1].0) / 2.0;
        self.points().windows(2).map(between).sum()
    }

    /// Returns the size in bytes that `share` (0 to 1) of the flows do not exceed.
    pub fn quantile(self, share: f64) -> f64 {
        let points = self.points();
        let after = points.iter().position(|(_, at)| *at >= share).unwrap_or(points.len() - 1).max(1);
        let [(low, from), (high, to)] = [points[after - 1], points[after]];
        if to > from { low + (high - low) * (share - from) / (to - from) } else { high }
    }

    /// Draws the size of the next flow in bytes, 1 or more.
    pub fn draw(self, random: &mut u64) -> u64 {
        (self.quantile(unit(random)).round() as u64).max(1)
    }
}

/// Returns a number from 0 inclusive to 1 exclusive.
pub(super) fn unit(random: &mut u64) -> f64 {
    // 53 bits: the precision of an `f64`.
    (splitmix(random) >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns the time to the next of independent events, in units of their mean interval.
pub(super) fn exponential(random: &mut u64) -> f64 {
    -(1.0 - unit(random)).ln()
}

/// Returns a number below `count`, which must not be 0.
pub(super) fn below(random: &mut u64, count: usize) -> usize {
    ((u128::from(splitmix(random)) * count as u128) >> 64) as usize
}

/// Shuffles `things`: all orders are equally likely (Fisher and Yates).
pub(super) fn shuffle<T>(random: &mut u64, things: &mut [T]) {
    for last in (1..things.len()).rev() {
        things.swap(last, below(random, last + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_match_the_literature() {
        // Web search: 1.7 MB. Data mining: 7.4 MB with linear interpolation; its longest flows dominate.
        let means =
            [Sizes::WebSearch, Sizes::DataMining, Sizes::Hadoop].map(|sizes| (sizes.mean() / 1e3) as u64);
        assert_eq!(means, [1711, 7470, 120]);
    }

    #[test]
    fn drawn_sizes_have_the_distribution() {
        for sizes in [Sizes::WebSearch, Sizes::DataMining, Sizes::Hadoop] {
            let mut random = 7;
            let mut drawn: Vec<u64> = (0..40_000).map(|_| sizes.draw(&mut random)).collect();
            drawn.sort_unstable();
            for share in [0.1, 0.55, 0.75, 0.93] {
                let [expected, measured] = [sizes.quantile(share), drawn[(share * 40_000.0) as usize] as f64];
                assert!(
                    (measured / expected - 1.0).abs() < 0.15,
                    "{sizes:?} {share}: {measured}, not {expected}"
                );
            }
        }
    }

    #[test]
    fn shuffle_keeps_all_and_waits_average_one() {
        let mut random = 3;
        let mut things: Vec<u32> = (0..100).collect();
        shuffle(&mut random, &mut things);
        assert_ne!(things, (0..100).collect::<Vec<_>>());
        things.sort_unstable();
        assert_eq!(things, (0..100).collect::<Vec<_>>());
        let mean = (0..20_000).map(|_| exponential(&mut random)).sum::<f64>() / 20_000.0;
        assert!((mean - 1.0).abs() < 0.03, "{mean}");
    }
}
