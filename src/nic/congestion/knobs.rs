//! The knobs of DCQCN, with the names of OFED (sysfs) and mlx5 (debugfs).
//!
//! [`TABLE`] has one row per knob: names, unit, range and the default of each preset. Parsing, printing and
//! `roxie cc knobs` use the table.
//!
//! Sources. Names and aliases: `drivers/infiniband/hw/mlx5/cong.c` and OFED's
//! `/sys/class/net/DEV/ecn/roce_{rp,np}`. Units, ranges and defaults: NVIDIA's "DCQCN CC Parameters" and the
//! output of `mlxconfig` for a ConnectX-5. The paper: Zhu et al., Congestion Control for Large-Scale RDMA
//! Deployments, SIGCOMM 2015.

use std::fmt;

use super::nearest::nearest;

/// A variant of the rules, with its defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// ConnectX adapters as delivered: alpha is updated by a timer of its own, and the rate decreases at most
    /// once per period.
    #[default]
    ConnectX,
    /// The paper: each notification decreases the rate, updates alpha and restarts the two timers.
    Paper,
}

impl Preset {
    /// All presets.
    pub const ALL: [Preset; 2] = [Preset::ConnectX, Preset::Paper];

    /// Returns the preset's name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Preset::ConnectX => "connectx",
            Preset::Paper => "paper",
        }
    }

    /// Returns the preset of a name.
    ///
    /// # Errors
    /// If the name is unknown.
    pub fn from_name(name: &str) -> Result<Preset, KnobError> {
        let matching = Preset::ALL.into_iter().find(|preset| preset.name().eq_ignore_ascii_case(name));
        matching.ok_or_else(|| KnobError::Preset(name.to_owned()))
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Set of notifications among which `min_time_between_cnps` applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Notifications of a QP.
    #[default]
    Qp,
    /// Notifications to an address.
    Destination,
    /// Notifications of the port.
    Port,
}

/// A knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // described in TABLE.
pub enum Knob {
    ClampTgtRate,
    ClampTgtRateAfterTimeInc,
    TimeReset,
    ByteReset,
    Threshold,
    AiRate,
    HaiRate,
    MaxRate,
    MinDecFac,
    MinRate,
    RateOnFirstCnp,
    DceTcpG,
    DceTcpRtt,
    MonitorPeriod,
    InitialAlpha,
    Gd,
    MinTimeBetweenCnps,
    CnpDscp,
    CnpPriority,
    CnpModeration,
}

/// Unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Mb/s. Fractions are allowed, unlike on adapters.
    Mbps,
    /// Microseconds.
    Micros,
    /// Bytes.
    Bytes,
    /// Number of increases.
    Steps,
    /// Multiples of 1/1024.
    Per1024,
    /// Percent.
    Percent,
    /// Exponent of two.
    Log2,
    /// Switch: 0 is off, 1 is on.
    Switch,
    /// Value of a header field.
    Number,
    /// One of the listed words.
    Word(&'static [&'static str]),
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unit::Mbps => "Mb/s",
            Unit::Micros => "us",
            Unit::Bytes => "bytes",
            Unit::Steps => "steps",
            Unit::Per1024 => "1/1024",
            Unit::Percent => "%",
            Unit::Log2 => "log2",
            Unit::Switch => "switch",
            Unit::Number => "number",
            Unit::Word(_) => "word",
        })
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// The knob.
    pub knob: Knob,
    /// Name in OFED's sysfs.
    pub name: &'static str,
    /// Name in mlx5's debugfs; empty if it has none.
    pub alias: &'static str,
    /// Unit of a value.
    pub unit: Unit,
    /// Minimum, in `unit`.
    pub least: f64,
    /// Maximum, in `unit`.
    pub most: f64,
    /// True if 0 is allowed although it is below `least`. 0 disables the knob's function.
    pub zero: bool,
    /// Default of an adapter as delivered, in `unit`.
    pub connectx: f64,
    /// Default of the paper, in `unit`.
    pub paper: f64,
    /// Description, one sentence.
    pub help: &'static str,
}

impl Description {
    /// Returns the range as text: `1..131071`, `0 or 0.001..10000000`.
    pub fn range(&self) -> String {
        let number = |value| self.text(value);
        match self.unit {
            Unit::Word(words) => words.join(", "),
            Unit::Switch => "0 or 1".to_owned(),
            _ if self.zero => format!("0 or {}..{}", number(self.least), number(self.most)),
            _ => format!("{}..{}", number(self.least), number(self.most)),
        }
    }

    /// Returns a value as text.
    pub fn text(&self, value: f64) -> String {
        match self.unit {
            Unit::Word(words) => words[(value as usize).min(words.len() - 1)].to_owned(),
            _ => value.to_string(),
        }
    }

    /// Returns the default of a preset.
    pub const fn default_of(&self, preset: Preset) -> f64 {
        match preset {
            Preset::ConnectX => self.connectx,
            Preset::Paper => self.paper,
        }
    }

    fn read(&'static self, text: &str) -> Result<f64, KnobError> {
        let wrong = || KnobError::Value { knob: self, text: text.to_owned() };
        if let Unit::Word(words) = self.unit {
            return words
                .iter()
                .position(|w| w.eq_ignore_ascii_case(text))
                .map(|i| i as f64)
                .ok_or_else(wrong);
        }
        let value: f64 = text.parse().map_err(|_| wrong())?;
        let whole = self.unit == Unit::Mbps || value.fract() == 0.0;
        // NaN is in no range.
        let inside = (self.least..=self.most).contains(&value) || self.zero && value == 0.0;
        if whole && inside { Ok(value.abs()) } else { Err(wrong()) }
    }
}

const MODERATION: &[&str] = &["qp", "destination", "port"];
/// 10 Tb/s, more than any link.
const MOST_MBPS: f64 = 1e7;
const LEAST_MBPS: f64 = 0.001;
/// The adapter's configuration field has 17 bits.
const MOST_MICROS: f64 = 131_071.0;
const MOST_U32: f64 = u32::MAX as f64;

/// Returns a row with defaults of 0 for the two presets.
const fn row(
    knob: Knob,
    names: [&'static str; 2],
    unit: Unit,
    range: [f64; 2],
    help: &'static str,
) -> Description {
    let [name, alias] = names;
    let [least, most] = range;
    Description { knob, name, alias, unit, least, most, zero: false, connectx: 0.0, paper: 0.0, help }
}

impl Description {
    const fn of(self, connectx: f64, paper: f64) -> Description {
        Description { connectx, paper, ..self }
    }

    const fn or_zero(self) -> Description {
        Description { zero: true, ..self }
    }
}

/// Number of knobs.
pub const COUNT: usize = 20;

/// All knobs. The row of [`Knob`] `k` is `TABLE[k as usize]`.
#[rustfmt::skip]
pub static TABLE: [Description; COUNT] = [
    row(Knob::ClampTgtRate, ["clamp_tgt_rate", "rp_clamp_tgt_rate"], Unit::Switch, [0.0, 1.0],
        "1: each decrease makes the rate before it the target. 0: only if the byte counter has raised the rate since the last").of(0.0, 1.0),
    row(Knob::ClampTgtRateAfterTimeInc, ["clamp_tgt_rate_after_time_inc", "rp_clamp_tgt_rate_ati"], Unit::Switch, [0.0, 1.0],
        "with clamp_tgt_rate 0: also if the timer has raised the rate since the last decrease").of(1.0, 1.0),
    row(Knob::TimeReset, ["rpg_time_reset", "rp_time_reset"], Unit::Micros, [1.0, MOST_MICROS],
        "time between two increases").of(300.0, 55.0),
    row(Knob::ByteReset, ["rpg_byte_reset", "rp_byte_reset"], Unit::Bytes, [1.0, MOST_U32],
        "bytes sent between two increases; 0: the byte counter is off").or_zero().of(32_767.0, 10_000_000.0),
    row(Knob::Threshold, ["rpg_threshold", "rp_threshold"], Unit::Steps, [0.0, 31.0],
        "number of fast-recovery increases, which halve the gap to the target, before the target rises").of(1.0, 5.0),
    row(Knob::AiRate, ["rpg_ai_rate", "rp_ai_rate"], Unit::Mbps, [LEAST_MBPS, MOST_MBPS],
        "how far an additive increase raises the target").of(5.0, 40.0),
    row(Knob::HaiRate, ["rpg_hai_rate", "rp_hai_rate"], Unit::Mbps, [LEAST_MBPS, MOST_MBPS],
        "how far a hyper increase raises the target; with preset=paper 10 times rpg_ai_rate unless set").of(50.0, 400.0),
    row(Knob::MaxRate, ["rpg_max_rate", "rp_max_rate"], Unit::Mbps, [LEAST_MBPS, MOST_MBPS],
        "maximum rate; 0: the line rate").or_zero().of(0.0, 0.0),
    row(Knob::MinDecFac, ["rpg_min_dec_fac", "rp_min_dec_fac"], Unit::Percent, [0.0, 100.0],
        "lower bound of the rate after one decrease, in percent of the rate before; 0: no bound, 100: no decrease").of(50.0, 0.0),
    row(Knob::MinRate, ["rpg_min_rate", "rp_min_rate"], Unit::Mbps, [LEAST_MBPS, MOST_MBPS],
        "minimum rate (the paper has none; its preset uses the adapter's, so that no QP stalls)").of(1.0, 1.0),
    row(Knob::RateOnFirstCnp, ["rate_to_set_on_first_cnp", "rp_rate_to_set_on_first_cnp"], Unit::Mbps, [LEAST_MBPS, MOST_MBPS],
        "rate and target after the first notification; 0: decrease as for any other notification").or_zero().of(0.0, 0.0),
    row(Knob::DceTcpG, ["dce_tcp_g", "rp_dce_tcp_g"], Unit::Per1024, [0.0, 1023.0],
        "factor of alpha per update: 1019 multiplies alpha by 1019/1024 (the paper's g is 1 minus this factor)").of(1019.0, 1020.0),
    row(Knob::DceTcpRtt, ["dce_tcp_rtt", "rp_dce_tcp_rtt"], Unit::Micros, [1.0, MOST_MICROS],
        "time between two updates of alpha").of(1.0, 55.0),
    row(Knob::MonitorPeriod, ["rate_reduce_monitor_period", "rp_rate_reduce_monitor_period"], Unit::Micros, [1.0, MOST_U32],
        "minimum time between two decreases; 0: each notification decreases").or_zero().of(4.0, 0.0),
    row(Knob::InitialAlpha, ["initial_alpha_value", "rp_initial_alpha_value"], Unit::Per1024, [1.0, 1024.0],
        "alpha at the first notification (adapters have 10 bits: up to 1023)").of(1023.0, 1024.0),
    row(Knob::Gd, ["rpg_gd", "rp_gd"], Unit::Log2, [10.0, 11.0],
        "a decrease multiplies the rate by 1 - 1024 alpha / 2^rpg_gd: 11 for alpha/2, 10 for alpha").of(11.0, 11.0),
    row(Knob::MinTimeBetweenCnps, ["min_time_between_cnps", "np_min_time_between_cnps"], Unit::Micros, [0.0, MOST_MICROS],
        "receiver: minimum time between two notifications; 0: one for each marked packet").of(4.0, 50.0),
    row(Knob::CnpDscp, ["cnp_dscp", "np_cnp_dscp"], Unit::Number, [0.0, 63.0],
        "receiver: DSCP of notifications").of(48.0, 48.0),
    row(Knob::CnpPriority, ["cnp_802p_prio", "np_cnp_prio"], Unit::Number, [0.0, 7.0],
        "receiver: 802.1p priority of notifications").of(6.0, 6.0),
    row(Knob::CnpModeration, ["cnp_moderation", ""], Unit::Word(MODERATION), [0.0, 2.0],
        "receiver: scope of min_time_between_cnps: the notifications of a QP, to a destination address, or of the port").of(0.0, 0.0),
];

/// Why a knob cannot be set.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KnobError {
    /// Unknown knob.
    #[error("`{name}` is no knob of DCQCN{} `roxie cc knobs` lists all", did_you_mean(nearest))]
    Unknown {
        /// The given name.
        name: String,
        /// The most similar knob.
        nearest: Option<&'static str>,
    },
    /// Unknown preset.
    #[error("`{0}` is no preset: there are connectx and paper")]
    Preset(String),
    /// The value is out of the knob's range.
    #[error("{}={text}: {}", knob.name, takes(knob))]
    Value {
        /// Row of the knob.
        knob: &'static Description,
        /// The given value.
        text: String,
    },
    /// The minimum rate exceeds the maximum.
    #[error(
        "rpg_min_rate={min} is above rpg_max_rate={max}: the minimum must not exceed the maximum (0 is the line rate)"
    )]
    MinAboveMax {
        /// Minimum rate, `rpg_min_rate`, in Mb/s.
        min: f64,
        /// Maximum rate, `rpg_max_rate`, in Mb/s.
        max: f64,
    },
}

impl PartialEq for Description {
    fn eq(&self, other: &Description) -> bool {
        self.knob == other.knob
    }
}

fn did_you_mean(nearest: &Option<&'static str>) -> String {
    nearest.map_or(";".to_owned(), |name| format!(": did you mean {name}?"))
}

fn takes(knob: &Description) -> String {
    let range = knob.range();
    match knob.unit {
        Unit::Word(_) => format!("it takes one of {range}"),
        Unit::Switch => format!("it takes {range}"),
        Unit::Mbps => format!("it takes {range} Mb/s"),
        Unit::Per1024 => format!("it takes a whole number of 1/1024, {range}"),
        Unit::Number | Unit::Log2 => format!("it takes a whole number, {range}"),
        unit => format!("it takes a whole number, {range} {unit}"),
    }
}

/// A value for each knob. Every value is in its range, and all are consistent.
#[derive(Clone, Debug, PartialEq)]
pub struct Knobs {
    preset: Preset,
    values: [f64; COUNT],
    /// True while the hyper increase is ten times the additive one: with the paper's preset, until it is set.
    hai_follows: bool,
}

impl Default for Knobs {
    fn default() -> Knobs {
        Knobs::new(Preset::default())
    }
}

impl Knobs {
    /// Returns the defaults of a preset.
    pub fn new(preset: Preset) -> Knobs {
        let values = std::array::from_fn(|i| TABLE[i].default_of(preset));
        Knobs { preset, values, hai_follows: preset == Preset::Paper }
    }

    /// Returns the preset.
    pub fn preset(&self) -> Preset {
        self.preset
    }

    /// Returns the value of a knob, in its unit.
    pub fn value(&self, knob: Knob) -> f64 {
        self.values[knob as usize]
    }

    /// Returns the scope of `min_time_between_cnps`.
    pub fn scope(&self) -> Scope {
        match self.value(Knob::CnpModeration) as u8 {
            0 => Scope::Qp,
            1 => Scope::Destination,
            _ => Scope::Port,
        }
    }

    /// Returns the row of a knob, by the name of OFED, of mlx5, or of the firmware's configuration (OFED's in
    /// capitals).
    ///
    /// # Errors
    /// If the name is unknown.
    pub fn find(name: &str) -> Result<&'static Description, KnobError> {
        let is = |known: &str| known.eq_ignore_ascii_case(name);
        let matching = TABLE.iter().find(|row| is(row.name) || is(row.alias));
        matching.filter(|_| !name.is_empty()).ok_or_else(|| {
            let names = TABLE.iter().flat_map(|row| [row.name, row.alias]);
            KnobError::Unknown { name: name.to_owned(), nearest: nearest(name, names) }
        })
    }

    /// Sets one knob by name. [`Knobs::check`] checks the consistency once all are set.
    ///
    /// # Errors
    /// If the name is unknown, or the value out of range. Nothing has changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), KnobError> {
        let row = Knobs::find(name)?;
        let value = row.read(value)?;
        self.values[row.knob as usize] = value;
        match row.knob {
            Knob::HaiRate => self.hai_follows = false,
            Knob::AiRate if self.hai_follows => {
                self.values[Knob::HaiRate as usize] = (10.0 * value).min(MOST_MBPS);
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that the values are consistent.
    ///
    /// # Errors
    /// If the minimum rate exceeds the maximum.
    pub fn check(&self) -> Result<(), KnobError> {
        let (min, max) = (self.value(Knob::MinRate), self.value(Knob::MaxRate));
        if max != 0.0 && min > max { Err(KnobError::MinAboveMax { min, max }) } else { Ok(()) }
    }
}

impl fmt::Display for Knobs {
    /// Prints the differences from the default as [`super::Settings`] parses them:
    /// `,preset=paper,rpg_ai_rate=20`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.preset != Preset::default() {
            write!(f, ",preset={}", self.preset)?;
        }
        for row in &TABLE {
            let value = self.value(row.knob);
            let differs = match row.knob {
                Knob::HaiRate if self.preset == Preset::Paper => !self.hai_follows,
                _ => value != row.default_of(self.preset),
            };
            if differs {
                write!(f, ",{}={}", row.name, row.text(value))?;
            }
        }
        Ok(())
    }
}
