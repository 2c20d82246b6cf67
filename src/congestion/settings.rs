//! Which congestion control a device has, as the text that a user writes: `dcqcn,preset=paper,rpg_ai_rate=40`.

use std::fmt;
use std::str::FromStr;

use super::knobs::{KnobError, Knobs, Preset};
use super::nearest::nearest;
use super::swift::SwiftKnobs;
use super::{Control, Dcqcn, Fixed, Rate, Swift};
use crate::time::Nanos;

/// Which congestion control, with its knobs. Text of it is read with [`FromStr`] and given back by [`fmt::Display`].
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Settings {
    /// None: what the window lets leave leaves.
    #[default]
    Off,
    /// By notifications.
    Dcqcn(Knobs),
    /// By delay.
    Swift(SwiftKnobs),
    /// A rate that nothing moves.
    Fixed(Rate),
}

const ALGORITHMS: [&str; 4] = ["off", "dcqcn", "swift", "fixed"];

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// The first word names no algorithm.
    #[error("`{name}` is no congestion control: there are off, dcqcn, swift and fixed{}", meant(nearest))]
    Algorithm {
        /// What was asked for.
        name: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
    },
    /// A part is not `KNOB=VALUE`.
    #[error("`{0}` sets nothing: write KNOB=VALUE, several with commas between them")]
    Part(String),
    /// A preset behind other knobs.
    #[error("preset={0} sets all knobs: write it before those that differ from it")]
    PresetLate(String),
    /// A knob of DCQCN.
    #[error(transparent)]
    Dcqcn(#[from] KnobError),
    /// No knob of this name.
    #[error("`{name}` is no knob of {of}{}; there are {known}", meant(nearest))]
    NoKnob {
        /// Of which algorithm.
        of: &'static str,
        /// What was asked for.
        name: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
        /// All that there are.
        known: String,
    },
    /// A knob takes no such value.
    #[error("{knob}={text}: it takes {takes}")]
    Value {
        /// Which knob.
        knob: &'static str,
        /// What was asked for.
        text: String,
        /// The range and the unit.
        takes: String,
    },
    /// Swift's flow scaling is upside down.
    #[error("fs_min_cwnd={min} must be below fs_max_cwnd={max}")]
    FlowScaling {
        /// Packets.
        min: f64,
        /// Packets.
        max: f64,
    },
    /// `fixed` without its rate.
    #[error("a fixed rate wants to know which: fixed,rate=100M")]
    NoRate,
    /// A rate that is none.
    #[error(
        "`{0}` is no rate: write a number from 1k to 10T with its unit, k, M, G or T bits per second, such as 100M or 2.5G"
    )]
    Rate(String),
    /// A knob where there is none.
    #[error("congestion control is off and has no knobs: `dcqcn` or `dcqcn,{0}` switches it on")]
    Off(String),
}

fn meant(nearest: &Option<&'static str>) -> String {
    nearest.map_or(String::new(), |name| format!(" (did you mean {name}?)"))
}

impl Settings {
    /// A reaction point with these settings, for a QP on a link of `line_rate`; `None` if it is off.
    pub fn control(&self, line_rate: Rate, now: Nanos) -> Option<Box<dyn Control>> {
        // Nothing of them begins before a packet does.
        let _ = now;
        match self {
            Settings::Off => None,
            Settings::Dcqcn(knobs) => Some(Box::new(Dcqcn::new(knobs, line_rate))),
            Settings::Swift(knobs) => Some(Box::new(Swift::new(knobs, line_rate))),
            Settings::Fixed(rate) => Some(Box::new(Fixed::new(*rate, line_rate))),
        }
    }

    /// Turns knobs: `rpg_ai_rate=40`, or several with commas between them; `preset=paper` first, if at all.
    ///
    /// # Errors
    /// What is wrong with the text; then nothing has changed.
    pub fn change(&mut self, text: &str) -> Result<(), SettingsError> {
        let mut changed = self.clone();
        for (number, part) in text.split(',').enumerate() {
            changed.change_one(number, part.trim())?;
        }
        match &changed {
            Settings::Dcqcn(knobs) => knobs.check()?,
            Settings::Swift(knobs) => knobs.check()?,
            Settings::Off | Settings::Fixed(_) => {}
        }
        *self = changed;
        Ok(())
    }

    fn change_one(&mut self, number: usize, part: &str) -> Result<(), SettingsError> {
        if *self == Settings::Off {
            return Err(SettingsError::Off(part.to_owned()));
        }
        let (name, value) = part.split_once('=').ok_or_else(|| SettingsError::Part(part.to_owned()))?;
        let (name, value) = (name.trim(), value.trim());
        match self {
            Settings::Off => {}
            Settings::Dcqcn(knobs) if name.eq_ignore_ascii_case("preset") => {
                if number != 0 {
                    return Err(SettingsError::PresetLate(value.to_owned()));
                }
                *knobs = Knobs::new(Preset::from_name(value)?);
            }
            Settings::Dcqcn(knobs) => knobs.set(name, value)?,
            Settings::Swift(knobs) => knobs.set(name, value)?,
            Settings::Fixed(rate) if name.eq_ignore_ascii_case("rate") => *rate = read_rate(value)?,
            Settings::Fixed(_) => {
                return Err(SettingsError::NoKnob {
                    of: "fixed",
                    name: name.to_owned(),
                    nearest: None,
                    known: "rate".into(),
                });
            }
        }
        Ok(())
    }

    /// The knobs of DCQCN, those of the notification point among them, if that is what it is.
    pub fn knobs(&self) -> Option<&Knobs> {
        match self {
            Settings::Dcqcn(knobs) => Some(knobs),
            _ => None,
        }
    }
}

impl FromStr for Settings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Settings, SettingsError> {
        let (name, knobs) = match text.trim().split_once(',') {
            Some((name, knobs)) => (name.trim(), Some(knobs)),
            None => (text.trim(), None),
        };
        let mut settings = match name.to_ascii_lowercase().as_str() {
            "off" => Settings::Off,
            "dcqcn" => Settings::Dcqcn(Knobs::default()),
            "swift" => Settings::Swift(SwiftKnobs::default()),
            "fixed" if knobs.is_none() => return Err(SettingsError::NoRate),
            "fixed" => Settings::Fixed(Rate(0.0)),
            _ => {
                let nearest = nearest(name, ALGORITHMS);
                return Err(SettingsError::Algorithm { name: name.to_owned(), nearest });
            }
        };
        if let Some(knobs) = knobs {
            settings.change(knobs)?;
        }
        Ok(settings)
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Settings::Off => f.write_str("off"),
            Settings::Dcqcn(knobs) => write!(f, "dcqcn{knobs}"),
            Settings::Swift(knobs) => write!(f, "swift{knobs}"),
            Settings::Fixed(rate) => write!(f, "fixed,rate={}", rate_text(*rate)),
        }
    }
}

impl FromStr for Rate {
    type Err = SettingsError;

    /// `100M`, `2.5Gb/s`, `40Gbit/s`.
    fn from_str(text: &str) -> Result<Rate, SettingsError> {
        read_rate(text.trim())
    }
}

/// `100M`, `2.5Gb/s`, `40Gbit/s`: a number with its unit, in bits per second.
fn read_rate(text: &str) -> Result<Rate, SettingsError> {
    let wrong = || SettingsError::Rate(text.to_owned());
    let body =
        ["bit/s", "b/s", "bps"].iter().find_map(|end| text.strip_suffix(end)).unwrap_or(text).trim_end();
    let unit = body.chars().next_back().ok_or_else(wrong)?;
    let factor = match unit.to_ascii_lowercase() {
        'k' => 1e3,
        'm' => 1e6,
        'g' => 1e9,
        't' => 1e12,
        _ => return Err(wrong()),
    };
    let number: f64 = body[..body.len() - 1].trim_end().parse().map_err(|_| wrong())?;
    let rate = (number * factor).round();
    if (1e3..=1e13).contains(&rate) { Ok(Rate(rate)) } else { Err(wrong()) }
}

/// As [`read_rate`] reads it: the same whole number of bits per second.
fn rate_text(rate: Rate) -> String {
    let units = [(1e12, 'T'), (1e9, 'G'), (1e6, 'M')];
    let (factor, unit) = units.into_iter().find(|(factor, _)| rate.0 >= *factor).unwrap_or((1e3, 'k'));
    format!("{}{unit}", rate.0 / factor)
}
