//! The knobs of DCQCN, by the names that OFED gives them in sysfs and mlx5 in debugfs.
//!
//! [`TABLE`] has one row a knob: names, unit, range and the default of each preset. Everything else (parsing, printing,
//! `roxie cc knobs`) goes by it.
//!
//! Sources: names and aliases `drivers/infiniband/hw/mlx5/cong.c` and OFED's `/sys/class/net/DEV/ecn/roce_{rp,np}`; units,
//! ranges and defaults NVIDIA's "DCQCN CC Parameters" and what `mlxconfig` prints of a ConnectX-5; the paper is Zhu et al.,
//! Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015.

use std::fmt;

use super::nearest::nearest;

/// Whose rules and defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// As ConnectX adapters are delivered: alpha is looked at by a clock of its own, a decrease at most once a period.
    #[default]
    ConnectX,
    /// As the paper has it: each notification decreases, moves alpha and restarts both timers.
    Paper,
}

impl Preset {
    /// All of them.
    pub const ALL: [Preset; 2] = [Preset::ConnectX, Preset::Paper];

    /// The name that settings have for it.
    pub const fn name(self) -> &'static str {
        match self {
            Preset::ConnectX => "connectx",
            Preset::Paper => "paper",
        }
    }

    /// The preset of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn from_name(name: &str) -> Result<Preset, KnobError> {
        let found = Preset::ALL.into_iter().find(|preset| preset.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| KnobError::Preset(name.to_owned()))
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which notifications are held apart by `min_time_between_cnps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Those of a QP.
    #[default]
    Qp,
    /// Those to an address.
    Destination,
    /// Those of the port.
    Port,
}

/// A knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // TABLE says what each is.
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

/// What a value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Million bits per second. Fractions are taken, which adapters do not.
    Mbps,
    /// Microseconds.
    Micros,
    /// Bytes.
    Bytes,
    /// Increases.
    Steps,
    /// 1/1024.
    Per1024,
    /// Hundredths.
    Percent,
    /// An exponent of two.
    Log2,
    /// Off or on: 0 or 1.
    Switch,
    /// A number of a header field.
    Number,
    /// One of these words.
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
    /// The knob that the row is about.
    pub knob: Knob,
    /// OFED's name in sysfs.
    pub name: &'static str,
    /// The name in mlx5's debugfs; empty if it is not there.
    pub alias: &'static str,
    /// What a value counts.
    pub unit: Unit,
    /// The smallest value that it takes, in `unit`.
    pub least: f64,
    /// The largest value that it takes, in `unit`.
    pub most: f64,
    /// True if 0 is taken too, though it is below `least`: it switches off what the knob is for.
    pub zero: bool,
    /// Of an adapter as it is delivered.
    pub connectx: f64,
    /// The value that the paper uses, in `unit`.
    pub paper: f64,
    /// What it does, in a sentence for people.
    pub help: &'static str,
}

impl Description {
    /// The range in words: `1..131071`, `0 or 0.001..10000000`.
    pub fn range(&self) -> String {
        let number = |value| self.text(value);
        match self.unit {
            Unit::Word(words) => words.join(", "),
            Unit::Switch => "0 or 1".to_owned(),
            _ if self.zero => format!("0 or {}..{}", number(self.least), number(self.most)),
            _ => format!("{}..{}", number(self.least), number(self.most)),
        }
    }

    /// A value as it is written.
    pub fn text(&self, value: f64) -> String {
        match self.unit {
            Unit::Word(words) => words[(value as usize).min(words.len() - 1)].to_owned(),
            _ => value.to_string(),
        }
    }

    /// The default of a preset.
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
        // A NaN is in no range.
        let inside = (self.least..=self.most).contains(&value) || self.zero && value == 0.0;
        if whole && inside { Ok(value.abs()) } else { Err(wrong()) }
    }
}

const MODERATION: &[&str] = &["qp", "destination", "port"];
/// 10 Tb/s: beyond every link.
const MOST_MBPS: f64 = 1e7;
const LEAST_MBPS: f64 = 0.001;
/// What 17 bits hold: the field of the adapter's configuration.
const MOST_MICROS: f64 = 131_071.0;
const MOST_U32: f64 = u32::MAX as f64;

/// A row that both presets begin alike, and whose range holds the bounds.
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

/// How many knobs there are.
pub const COUNT: usize = 20;

/// All knobs: the row of [`Knob`] `k` is `TABLE[k as usize]`.
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
        "increases of fast recovery, which halve the way to the target; then the target rises").of(1.0, 5.0),
    row(Knob::AiRate, ["rpg_ai_rate", "rp_ai_rate"], Unit::Mbps, [LEAST_MBPS, MOST_MBPS],
        "how far an additive increase raises the target").of(5.0, 40.0),
    row(Knob::HaiRate, ["rpg_hai_rate", "rp_hai_rate"], Unit::Mbps, [LEAST_MBPS, MOST_MBPS],
        "how far a hyper increase raises the target; in the paper's preset 10 times rpg_ai_rate unless it is set").of(50.0, 400.0),
    row(Knob::MaxRate, ["rpg_max_rate", "rp_max_rate"], Unit::Mbps, [LEAST_MBPS, MOST_MBPS],
        "the highest rate; 0: the line rate").or_zero().of(0.0, 0.0),
    row(Knob::MinDecFac, ["rpg_min_dec_fac", "rp_min_dec_fac"], Unit::Percent, [0.0, 100.0],
        "what at least is left of the rate after one decrease; 0: no bound, 100: no decrease").of(50.0, 0.0),
    row(Knob::MinRate, ["rpg_min_rate", "rp_min_rate"], Unit::Mbps, [LEAST_MBPS, MOST_MBPS],
        "the lowest rate (the paper has none; the preset keeps the adapter's, so that no QP stands still)").of(1.0, 1.0),
    row(Knob::RateOnFirstCnp, ["rate_to_set_on_first_cnp", "rp_rate_to_set_on_first_cnp"], Unit::Mbps, [LEAST_MBPS, MOST_MBPS],
        "rate and target after the first notification; 0: it decreases like any other").or_zero().of(0.0, 0.0),
    row(Knob::DceTcpG, ["dce_tcp_g", "rp_dce_tcp_g"], Unit::Per1024, [0.0, 1023.0],
        "what an update leaves of alpha: 1019 multiplies it by 1019/1024 (the paper's g is 1 less this)").of(1019.0, 1020.0),
    row(Knob::DceTcpRtt, ["dce_tcp_rtt", "rp_dce_tcp_rtt"], Unit::Micros, [1.0, MOST_MICROS],
        "time between two updates of alpha").of(1.0, 55.0),
    row(Knob::MonitorPeriod, ["rate_reduce_monitor_period", "rp_rate_reduce_monitor_period"], Unit::Micros, [1.0, MOST_U32],
        "shortest time between two decreases; 0: each notification decreases").or_zero().of(4.0, 0.0),
    row(Knob::InitialAlpha, ["initial_alpha_value", "rp_initial_alpha_value"], Unit::Per1024, [1.0, 1024.0],
        "alpha at the first notification (adapters have 10 bits: up to 1023)").of(1023.0, 1024.0),
    row(Knob::Gd, ["rpg_gd", "rp_gd"], Unit::Log2, [10.0, 11.0],
        "a decrease multiplies the rate by 1 - 1024 alpha / 2^rpg_gd: 11 for alpha/2, 10 for alpha").of(11.0, 11.0),
    row(Knob::MinTimeBetweenCnps, ["min_time_between_cnps", "np_min_time_between_cnps"], Unit::Micros, [0.0, MOST_MICROS],
        "receiver: shortest time between two notifications; 0: one for each marked packet").of(4.0, 50.0),
    row(Knob::CnpDscp, ["cnp_dscp", "np_cnp_dscp"], Unit::Number, [0.0, 63.0],
        "receiver: DSCP of notifications").of(48.0, 48.0),
    row(Knob::CnpPriority, ["cnp_802p_prio", "np_cnp_prio"], Unit::Number, [0.0, 7.0],
        "receiver: 802.1p priority of notifications").of(6.0, 6.0),
    row(Knob::CnpModeration, ["cnp_moderation", ""], Unit::Word(MODERATION), [0.0, 2.0],
        "receiver: between which notifications min_time_between_cnps lies: those of a QP, to an address, of the port").of(0.0, 0.0),
];

/// Why a knob is not set.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum KnobError {
    /// There is no such knob.
    #[error("`{name}` is no knob of DCQCN{} `roxie cc knobs` lists all", did_you_mean(nearest))]
    Unknown {
        /// What was asked for.
        name: String,
        /// The knob whose name is most like it.
        nearest: Option<&'static str>,
    },
    /// There is no such preset.
    #[error("`{0}` is no preset: there are connectx and paper")]
    Preset(String),
    /// The knob takes no such value.
    #[error("{}={text}: {}", knob.name, takes(knob))]
    Value {
        /// The knob whose range was missed.
        knob: &'static Description,
        /// What was asked for.
        text: String,
    },
    /// No rate is left.
    #[error(
        "rpg_min_rate={min} is above rpg_max_rate={max}: the lowest rate must be the highest at most (0 is the line rate)"
    )]
    MinAboveMax {
        /// The lowest rate, `rpg_min_rate`, in Mb/s.
        min: f64,
        /// The highest rate, `rpg_max_rate`, in Mb/s.
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

/// A value for each knob. All of them are in their ranges, and fit one another.
#[derive(Clone, Debug, PartialEq)]
pub struct Knobs {
    preset: Preset,
    values: [f64; COUNT],
    /// The hyper increase is ten times the additive one, as the paper's preset has it until it is set.
    hai_follows: bool,
}

impl Default for Knobs {
    fn default() -> Knobs {
        Knobs::new(Preset::default())
    }
}

impl Knobs {
    /// The defaults of a preset.
    pub fn new(preset: Preset) -> Knobs {
        let values = std::array::from_fn(|i| TABLE[i].default_of(preset));
        Knobs { preset, values, hai_follows: preset == Preset::Paper }
    }

    /// Whose rules these knobs turn.
    pub fn preset(&self) -> Preset {
        self.preset
    }

    /// The value of a knob, in its unit.
    pub fn value(&self, knob: Knob) -> f64 {
        self.values[knob as usize]
    }

    /// Which notifications are held apart.
    pub fn scope(&self) -> Scope {
        match self.value(Knob::CnpModeration) as u8 {
            0 => Scope::Qp,
            1 => Scope::Destination,
            _ => Scope::Port,
        }
    }

    /// The row of a knob, by OFED's name, mlx5's name or that of the firmware's configuration (OFED's in capitals).
    ///
    /// # Errors
    /// If there is none.
    pub fn find(name: &str) -> Result<&'static Description, KnobError> {
        let is = |known: &str| known.eq_ignore_ascii_case(name);
        let found = TABLE.iter().find(|row| is(row.name) || is(row.alias));
        found.filter(|_| !name.is_empty()).ok_or_else(|| {
            let names = TABLE.iter().flat_map(|row| [row.name, row.alias]);
            KnobError::Unknown { name: name.to_owned(), nearest: nearest(name, names) }
        })
    }

    /// Sets one knob by name. Whether it fits the others says [`Knobs::check`], when all are set.
    ///
    /// # Errors
    /// An unknown name, or a value that it does not take: then nothing has changed.
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

    /// Whether the values fit one another.
    ///
    /// # Errors
    /// If the lowest rate is above the highest.
    pub fn check(&self) -> Result<(), KnobError> {
        let (min, max) = (self.value(Knob::MinRate), self.value(Knob::MaxRate));
        if max != 0.0 && min > max { Err(KnobError::MinAboveMax { min, max }) } else { Ok(()) }
    }
}

impl fmt::Display for Knobs {
    /// What differs from ConnectX, as [`super::Settings`] reads it: `,preset=paper,rpg_ai_rate=20`.
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
