//! The knobs of [`super::Swift`]: names, units, ranges and descriptions.

use std::fmt;

use super::nearest::nearest;
use super::settings_error::SettingsError;

/// A knob.
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
    /// Name in settings.
    pub name: &'static str,
    /// Unit of a value.
    pub unit: &'static str,
    /// Minimum, in `unit`.
    pub least: f64,
    /// Maximum, in `unit`.
    pub most: f64,
    /// Default, in `unit`.
    pub default: f64,
    /// Description, one sentence.
    pub help: &'static str,
}

const COUNT: usize = 9;

/// All knobs of Swift.
#[rustfmt::skip]
pub static TABLE: [Description; COUNT] = [
    Description { knob: Knob::BaseTarget, name: "base_target", unit: "us", least: 1.0, most: 1e6, default: 50.0,
        help: "target round trip of a large window" },
    Description { knob: Knob::FsRange, name: "fs_range", unit: "us", least: 0.0, most: 1e6, default: 100.0,
        help: "maximum that a small window adds to the target: many flows at a bottleneck queue more" },
    Description { knob: Knob::FsMinCwnd, name: "fs_min_cwnd", unit: "packets", least: 1e-3, most: 1e6, default: 0.1,
        help: "window at which all of fs_range is added to the target" },
    Description { knob: Knob::FsMaxCwnd, name: "fs_max_cwnd", unit: "packets", least: 1e-3, most: 1e6, default: 100.0,
        help: "window from which none of fs_range is added" },
    Description { knob: Knob::Ai, name: "ai", unit: "packets", least: 1e-6, most: 1e3, default: 1.0,
        help: "growth of the window per round trip below the target" },
    Description { knob: Knob::Beta, name: "beta", unit: "", least: 1e-3, most: 1.0, default: 0.8,
        help: "factor of a decrease: the window shrinks by beta * (delay - target) / delay" },
    Description { knob: Knob::MaxMdf, name: "max_mdf", unit: "", least: 1e-3, most: 0.99, default: 0.5,
        help: "maximum part of the window that one decrease removes" },
    Description { knob: Knob::Packet, name: "packet", unit: "bytes", least: 64.0, most: 65_536.0, default: 1024.0,
        help: "packet size, the unit of windows" },
    Description { knob: Knob::MinRate, name: "min_rate", unit: "Mb/s", least: 1e-3, most: 1e7, default: 1.0,
        help: "minimum rate" },
];

/// A value for each knob of Swift. Every value is in its range.
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
    /// Returns the value of a knob, in its unit.
    pub(super) fn value(&self, knob: Knob) -> f64 {
        self.values[knob as usize]
    }

    /// Sets one knob by name. [`SwiftKnobs::check`] checks the consistency once all are set.
    ///
    /// # Errors
    /// If the name is unknown, or the value out of range. Nothing has changed then.
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

    /// Checks that the values are consistent.
    ///
    /// # Errors
    /// If `fs_min_cwnd` is not below `fs_max_cwnd`.
    pub fn check(&self) -> Result<(), SettingsError> {
        let (min, max) = (self.value(Knob::FsMinCwnd), self.value(Knob::FsMaxCwnd));
        if min < max { Ok(()) } else { Err(SettingsError::FlowScaling { min, max }) }
    }
}

impl fmt::Display for SwiftKnobs {
    /// Prints the differences from the defaults: `,base_target=30`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let differing = TABLE.iter().filter(|row| self.value(row.knob) != row.default);
        differing.into_iter().try_for_each(|row| write!(f, ",{}={}", row.name, self.value(row.knob)))
    }
}
