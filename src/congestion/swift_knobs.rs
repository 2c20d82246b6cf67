//! The knobs of [`super::Swift`]: names, units, ranges and what each does.

use std::fmt;

use super::nearest::nearest;
use super::settings_error::SettingsError;

/// What can be turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Knob {
    BaseTarget,
    FsRange,
    FsMinCwnd,
    FsMaxCwnd,
    Ai,
    Beta,
    MaxMdf,
    Packet,
    MinRate,
}

/// A row of [`TABLE`].
#[derive(Clone, Copy, Debug)]
pub struct Description {
    knob: Knob,
    /// The name by which users set it.
    pub name: &'static str,
    /// What a value counts.
    pub unit: &'static str,
    /// The smallest value that it takes, in `unit`.
    pub least: f64,
    /// The largest value that it takes, in `unit`.
    pub most: f64,
    /// The value unless another is set.
    pub default: f64,
    /// What it does, in a sentence for people.
    pub help: &'static str,
}

const COUNT: usize = 9;

/// All knobs of Swift.
#[rustfmt::skip]
pub static TABLE: [Description; COUNT] = [
    Description { knob: Knob::BaseTarget, name: "base_target", unit: "us", least: 1.0, most: 1e6, default: 50.0,
        help: "round trip that a large window aims at" },
    Description { knob: Knob::FsRange, name: "fs_range", unit: "us", least: 0.0, most: 1e6, default: 100.0,
        help: "how much longer a small window may take: many flows at a bottleneck queue more" },
    Description { knob: Knob::FsMinCwnd, name: "fs_min_cwnd", unit: "packets", least: 1e-3, most: 1e6, default: 0.1,
        help: "window at which the whole of fs_range is granted" },
    Description { knob: Knob::FsMaxCwnd, name: "fs_max_cwnd", unit: "packets", least: 1e-3, most: 1e6, default: 100.0,
        help: "window from which on nothing of it is" },
    Description { knob: Knob::Ai, name: "ai", unit: "packets", least: 1e-6, most: 1e3, default: 1.0,
        help: "how far the window grows in a round trip below the target" },
    Description { knob: Knob::Beta, name: "beta", unit: "", least: 1e-3, most: 1.0, default: 0.8,
        help: "decrease for an excess over the target, as a part of the round trip" },
    Description { knob: Knob::MaxMdf, name: "max_mdf", unit: "", least: 1e-3, most: 0.99, default: 0.5,
        help: "the most that one decrease takes" },
    Description { knob: Knob::Packet, name: "packet", unit: "bytes", least: 64.0, most: 65_536.0, default: 1024.0,
        help: "bytes of a packet in which windows are counted" },
    Description { knob: Knob::MinRate, name: "min_rate", unit: "Mb/s", least: 1e-3, most: 1e7, default: 1.0,
        help: "the lowest rate" },
];

/// A value for each knob of Swift, all in their ranges.
#[derive(Clone, Debug, PartialEq)]
pub struct SwiftKnobs {
    values: [f64; COUNT],
}

impl Default for SwiftKnobs {
    fn default() -> SwiftKnobs {
        SwiftKnobs { values: TABLE.map(|row| row.default) }
    }
}

impl SwiftKnobs {
    /// The value of one of them, in the unit of its row.
    pub(super) fn value(&self, knob: Knob) -> f64 {
        self.values[knob as usize]
    }

    /// Sets one knob by name. Whether it fits the others says [`SwiftKnobs::check`].
    ///
    /// # Errors
    /// An unknown name, or a value that it does not take: then nothing has changed.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingsError> {
        let Some(row) = TABLE.iter().find(|row| row.name.eq_ignore_ascii_case(name)) else {
            let names = TABLE.iter().map(|row| row.name);
            return Err(SettingsError::NoKnob {
                of: "swift",
                name: name.to_owned(),
                nearest: nearest(name, names),
                known: TABLE.map(|row| row.name).join(", "),
            });
        };
        match value.parse::<f64>() {
            Ok(v) if (row.least..=row.most).contains(&v) => self.values[row.knob as usize] = v,
            _ => {
                let (Description { least, most, .. }, unit) = (row, row.unit);
                let takes = format!("{least}..{most} {unit}").trim_end().to_owned();
                return Err(SettingsError::Value { knob: row.name, text: value.to_owned(), takes });
            }
        }
        Ok(())
    }

    /// Whether the values fit one another.
    ///
    /// # Errors
    /// If the windows of flow scaling are the wrong way round.
    pub fn check(&self) -> Result<(), SettingsError> {
        let (min, max) = (self.value(Knob::FsMinCwnd), self.value(Knob::FsMaxCwnd));
        if min < max { Ok(()) } else { Err(SettingsError::FlowScaling { min, max }) }
    }
}

impl fmt::Display for SwiftKnobs {
    /// What differs from the defaults: `,base_target=30`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let differing = TABLE.iter().filter(|row| self.value(row.knob) != row.default);
        differing.into_iter().try_for_each(|row| write!(f, ",{}={}", row.name, self.value(row.knob)))
    }
}
