//! Configuration of faults, as plain data and as text for command lines.

use std::fmt;
use std::str::FromStr;

use roxie_base::time::Nanos;

/// Default number of later frames that overtake a reordered one.
const REORDER_AFTER: u32 = 1;
/// Default longest wait of a reordered frame.
const REORDER_WITHIN: Nanos = Nanos::from_millis(1);
/// Default number of buffers for copies.
const HELD: usize = 256;

/// The side of the port on which a fault acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Frames that arrive.
    Rx,
    /// Frames that leave.
    Tx,
}

/// Effect of a fault on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Drop the frame.
    Drop,
    /// Send a copy after the frame.
    Duplicate,
    /// Flip one bit, drawn from the seed.
    Corrupt,
    /// Mark the frame CE, as a switch does, if its sender allows marks (RFC 3168 section 5).
    Mark,
    /// Delay the frame by this time.
    Delay(Nanos),
    /// Hold the frame until `after` later frames have passed it, for `within` at most.
    ///
    /// Exactly `after` frames on receive; at least `after` on transmit, since held frames are sent at a flush.
    Reorder {
        /// Number of frames that overtake it.
        after: u32,
        /// Longest wait.
        within: Nanos,
    },
}

/// Which of the frames of its direction a fault hits. Counts begin at 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// Each frame with this probability, 0 to 1.
    Rate(f64),
    /// The n-th frame only.
    Nth(u64),
    /// Every n-th frame.
    Every(u64),
    /// The first n frames.
    First(u64),
}

/// One fault: an action, and the frames that it hits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// Effect on a frame.
    pub action: Action,
    /// Which frames it hits.
    pub when: When,
}

/// All faults of one port. The default has none.
///
/// Text form, by example: `drop=0.01,reorder=0.02,delay=1%:200us,corrupt=nth3,seed=7,dir=tx`.
/// `tx.drop=first5` names the direction of one fault. Without a direction a fault acts on both,
/// independently. `Display` writes a form that parses back to an equal value.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultConfig {
    /// Seed of every random draw: the same frames meet the same faults.
    pub seed: u64,
    /// Faults of received frames, applied in order.
    pub rx: Vec<Fault>,
    /// Faults of sent frames, applied in order.
    pub tx: Vec<Fault>,
    /// Number of copies that may be held at a time, both directions together. Beyond it frames pass unharmed.
    pub held: usize,
}

impl Default for FaultConfig {
    fn default() -> FaultConfig {
        FaultConfig { seed: 1, rx: Vec::new(), tx: Vec::new(), held: HELD }
    }
}

/// Error of parsing a [`FaultConfig`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultParseError {
    /// An item without `=`.
    #[error("`{0}` has no value: write it as name=value, for example drop=0.01")]
    NoValue(String),
    /// No such fault or option.
    #[error(
        "`{0}` is no fault: there are drop, duplicate, corrupt, mark, delay and reorder (with rx. or tx. in \
         front for one direction), and the options seed, dir and held"
    )]
    UnknownName(String),
    /// Not a rate, not a count.
    #[error(
        "`{item}`: `{value}` does not say which frames: give a rate from 0 to 1 (0.01), a percentage (1%), \
         or nth3, every100, first5 (counts from 1)"
    )]
    BadWhen {
        /// The whole item of the text that this is a part of.
        item: String,
        /// The part that is wrong.
        value: String,
    },
    /// Not a time.
    #[error("`{item}`: `{value}` is no time: give a whole number with a unit: 500ns, 200us, 5ms or 1s")]
    BadTime {
        /// The whole item of the text that this is a part of.
        item: String,
        /// The part that is wrong.
        value: String,
    },
    /// A delay without a time.
    #[error("`{0}` does not say how long: for example delay=0.01:200us")]
    NoDelay(String),
    /// Not a whole number in range.
    #[error("`{item}`: `{value}` is no whole number from {min} to {max}")]
    BadNumber {
        /// The whole item of the text that this is a part of.
        item: String,
        /// The part that is wrong.
        value: String,
        /// The smallest value allowed.
        min: u64,
        /// The largest value allowed.
        max: u64,
    },
    /// Not a direction.
    #[error("`{0}` is no direction: dir=rx, dir=tx or dir=both")]
    BadDirection(String),
    /// More parts than the fault takes.
    #[error("`{item}`: nothing may follow at `{rest}`")]
    Surplus {
        /// The whole item of the text that this is a part of.
        item: String,
        /// The text that is too much.
        rest: String,
    },
}

impl FaultConfig {
    /// Parses the text form, see [`FaultConfig`].
    ///
    /// # Errors
    /// If an item is wrong. The error names it, and what would be right.
    pub fn parse(text: &str) -> Result<FaultConfig, FaultParseError> {
        let mut config = FaultConfig::default();
        let (mut default_rx, mut default_tx) = (true, true);
        let mut faults = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, value) = item.split_once('=').ok_or_else(|| FaultParseError::NoValue(item.into()))?;
            match name {
                "seed" => config.seed = number(item, value, 0, u64::MAX)?,
                "held" => config.held = number(item, value, 1, 65_536)? as usize,
                "dir" => {
                    (default_rx, default_tx) = match value {
                        "rx" => (true, false),
                        "tx" => (false, true),
                        "both" => (true, true),
                        _ => return Err(FaultParseError::BadDirection(value.into())),
                    }
                }
                _ => faults.push(parse_fault(item, name, value)?),
            }
        }
        for (direction, fault) in faults {
            if direction.map_or(default_rx, |d| d == Direction::Rx) {
                config.rx.push(fault);
            }
            if direction.map_or(default_tx, |d| d == Direction::Tx) {
                config.tx.push(fault);
            }
        }
        Ok(config)
    }

    /// True if frames pass untouched.
    pub fn is_harmless(&self) -> bool {
        self.rx.is_empty() && self.tx.is_empty()
    }
}

impl FromStr for FaultConfig {
    type Err = FaultParseError;
    fn from_str(text: &str) -> Result<FaultConfig, FaultParseError> {
        FaultConfig::parse(text)
    }
}

fn parse_fault(item: &str, name: &str, value: &str) -> Result<(Option<Direction>, Fault), FaultParseError> {
    let (direction, name) = match name.split_once('.') {
        Some(("rx", name)) => (Some(Direction::Rx), name),
        Some(("tx", name)) => (Some(Direction::Tx), name),
        _ => (None, name),
    };
    let mut parts = value.split(':');
    let when = parse_when(item, parts.next().unwrap_or_default());
    let action = match name {
        "drop" => Action::Drop,
        "duplicate" | "dup" => Action::Duplicate,
        "corrupt" => Action::Corrupt,
        "mark" => Action::Mark,
        "delay" => {
            let time = parts.next().ok_or_else(|| FaultParseError::NoDelay(item.into()))?;
            Action::Delay(parse_time(item, time)?)
        }
        "reorder" => Action::Reorder {
            after: match parts.next() {
                Some(n) => number(item, n, 1, u64::from(u32::MAX))? as u32,
                None => REORDER_AFTER,
            },
            within: parts.next().map_or(Ok(REORDER_WITHIN), |time| parse_time(item, time))?,
        },
        _ => return Err(FaultParseError::UnknownName(name.into())),
    };
    match parts.next() {
        Some(rest) => Err(FaultParseError::Surplus { item: item.into(), rest: rest.into() }),
        None => Ok((direction, Fault { action, when: when? })),
    }
}

fn parse_when(item: &str, value: &str) -> Result<When, FaultParseError> {
    let count = |n: &str| number(item, n, 1, u64::MAX);
    if let Some(n) = value.strip_prefix("nth") {
        return Ok(When::Nth(count(n)?));
    }
    if let Some(n) = value.strip_prefix("every") {
        return Ok(When::Every(count(n)?));
    }
    if let Some(n) = value.strip_prefix("first") {
        return Ok(When::First(count(n)?));
    }
    let rate = match value.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().map(|p| p / 100.0),
        None => value.parse::<f64>(),
    };
    match rate {
        Ok(rate) if (0.0..=1.0).contains(&rate) => Ok(When::Rate(rate)),
        _ => Err(FaultParseError::BadWhen { item: item.into(), value: value.into() }),
    }
}

fn parse_time(item: &str, value: &str) -> Result<Nanos, FaultParseError> {
    let digits = value.bytes().take_while(u8::is_ascii_digit).count();
    let scale = match &value[digits..] {
        "ns" => Some(1),
        "us" => Some(1_000),
        "ms" => Some(1_000_000),
        "s" => Some(1_000_000_000),
        _ => None,
    };
    scale
        .zip(value[..digits].parse::<u64>().ok())
        .and_then(|(scale, n)| n.checked_mul(scale))
        .map(Nanos)
        .ok_or_else(|| FaultParseError::BadTime { item: item.into(), value: value.into() })
}

fn number(item: &str, value: &str, min: u64, max: u64) -> Result<u64, FaultParseError> {
    match value.parse() {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        _ => Err(FaultParseError::BadNumber { item: item.into(), value: value.into(), min, max }),
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            When::Rate(rate) => write!(f, "{rate}"),
            When::Nth(n) => write!(f, "nth{n}"),
            When::Every(n) => write!(f, "every{n}"),
            When::First(n) => write!(f, "first{n}"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.action {
            Action::Drop => write!(f, "drop={}", self.when),
            Action::Duplicate => write!(f, "duplicate={}", self.when),
            Action::Corrupt => write!(f, "corrupt={}", self.when),
            Action::Mark => write!(f, "mark={}", self.when),
            Action::Delay(time) => write!(f, "delay={}:{}ns", self.when, time.0),
            Action::Reorder { after, within } => {
                write!(f, "reorder={}:{after}:{}ns", self.when, within.0)
            }
        }
    }
}

impl fmt::Display for FaultConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed={}", self.seed)?;
        for fault in &self.rx {
            write!(f, ",rx.{fault}")?;
        }
        for fault in &self.tx {
            write!(f, ",tx.{fault}")?;
        }
        if self.held != HELD {
            write!(f, ",held={}", self.held)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_reads_as_documented() {
        let c =
            FaultConfig::parse("drop=0.01,reorder=0.02,delay=1%:200us,corrupt=nth3,seed=7,dir=tx").unwrap();
        let fault = |action, when| Fault { action, when };
        let reorder = Action::Reorder { after: 1, within: Nanos::from_millis(1) };
        assert_eq!((c.seed, c.rx.len()), (7, 0));
        assert_eq!(
            c.tx,
            [
                fault(Action::Drop, When::Rate(0.01)),
                fault(reorder, When::Rate(0.02)),
                fault(Action::Delay(Nanos::from_micros(200)), When::Rate(0.01)),
                fault(Action::Corrupt, When::Nth(3)),
            ]
        );
    }

    #[test]
    fn direction_prefix_overrides_dir_option() {
        let c = FaultConfig::parse("rx.drop=first2, duplicate=every10, dir=tx").unwrap();
        assert_eq!(c.rx, [Fault { action: Action::Drop, when: When::First(2) }]);
        assert_eq!(c.tx, [Fault { action: Action::Duplicate, when: When::Every(10) }]);
        let both = FaultConfig::parse("drop=0.5").unwrap();
        assert_eq!(both.rx, both.tx);
        assert!(!both.is_harmless() && FaultConfig::parse("").unwrap().is_harmless());
    }

    #[test]
    fn display_parses_back_to_an_equal_value() {
        let text = "seed=99,rx.drop=0.125,rx.reorder=nth4:7:3ms,tx.delay=every2:15us,tx.dup=first9,tx.mark=0.5,held=12";
        let c = FaultConfig::parse(text).unwrap();
        assert_eq!(FaultConfig::parse(&c.to_string()).unwrap(), c);
    }

    #[test]
    fn errors_name_the_item_and_the_remedy() {
        for (text, parts) in [
            ("drop", ["`drop` has no value", "drop=0.01"]),
            ("lose=0.1", ["`lose` is no fault", "duplicate"]),
            ("drop=1.5", ["`1.5`", "from 0 to 1"]),
            ("drop=NaN", ["`NaN`", "from 0 to 1"]),
            ("drop=nth0", ["`0` is no whole number", "from 1"]),
            ("delay=0.1", ["does not say how long", "200us"]),
            ("delay=0.1:20", ["`20` is no time", "200us"]),
            ("reorder=0.1:3:1ms:4", ["nothing may follow", "`4`"]),
            ("dir=up", ["`up` is no direction", "dir=both"]),
            ("up.drop=0.1", ["`up.drop` is no fault", "rx."]),
        ] {
            let message = FaultConfig::parse(text).unwrap_err().to_string();
            assert!(parts.iter().all(|part| message.contains(part)), "{text}: {message}");
        }
    }
}
