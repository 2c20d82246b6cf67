//! The congestion control of a device, as configured by text: `dcqcn,preset=paper,rpg_ai_rate=40`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Rate;
use super::knobs::{Knobs, Preset};
use super::nearest::nearest;
use super::settings_error::SettingsError;
use super::swift_knobs::SwiftKnobs;

/// An algorithm with its knobs. [`FromStr`] parses the text, [`fmt::Display`] prints it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Settings {
    /// No congestion control: only the transport's window limits a QP.
    #[default]
    Off,
    /// Reacts to notifications.
    Dcqcn(Knobs),
    /// Reacts to delay.
    Swift(SwiftKnobs),
    /// Constant rate.
    Fixed(Rate),
}

impl From<Settings> for String {
    fn from(settings: Settings) -> String {
        settings.to_string()
    }
}

impl TryFrom<String> for Settings {
    type Error = SettingsError;
    fn try_from(text: String) -> Result<Settings, SettingsError> {
        text.parse()
    }
}

const ALGORITHMS: [&str; 4] = ["off", "dcqcn", "swift", "fixed"];

impl Settings {
    /// Sets knobs from text: `rpg_ai_rate=40`, or several separated by commas. `preset=paper` may only be the
    /// first.
    ///
    /// # Errors
    /// If the text is invalid. Nothing has changed then.
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

    /// Returns the knobs of DCQCN, including the knobs of the notification point. `None` for other algorithms.
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

    /// Parses `100M`, `2.5Gb/s`, `40Gbit/s`.
    fn from_str(text: &str) -> Result<Rate, SettingsError> {
        read_rate(text.trim())
    }
}

/// Parses a number with its unit in bits per second: `100M`, `2.5Gb/s`, `40Gbit/s`.
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

/// Formats a rate for [`read_rate`], which returns the same whole number of bits per second.
fn rate_text(rate: Rate) -> String {
    let units = [(1e12, 'T'), (1e9, 'G'), (1e6, 'M')];
    let (factor, unit) = units.into_iter().find(|(factor, _)| rate.0 >= *factor).unwrap_or((1e3, 'k'));
    format!("{}{unit}", rate.0 / factor)
}
