//! Times, sizes and rates with units: `"10 us"`, `"64 KiB"`, `"100 Gb/s"`.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::fabric::LinkRate;
use roxie_base::time::Nanos;
use roxie_nic::congestion::Rate;

/// A time: a string with `ns`, `us`, `ms` or `s`, or a number of nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Nanos);

/// A number of bytes: a string with `B`, `KB`, `MB`, `GB` or `KiB`, `MiB`, `GiB`, or a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// A rate: a string with `kb/s`, `Mb/s`, `Gb/s` or `Tb/s`, or a number of bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed(pub LinkRate);

const TIMES: &[(&str, f64)] = &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
const SIZES: &[(&str, f64)] = &[
    ("KiB", 1024.0),
    ("MiB", 1048576.0),
    ("GiB", 1073741824.0),
    ("kB", 1e3),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("B", 1.0),
];

/// Parses a number with one of `units`. Returns a multiple of the base unit (factor 1).
fn read(text: &str, units: &[(&str, f64)]) -> Option<u64> {
    let text = text.trim();
    let begin = text.find(|c: char| c.is_alphabetic())?;
    let (number, unit) = text.split_at(begin);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let value = number.trim().replace('_', "").parse::<f64>().ok()? * factor;
    (0.0..1e18).contains(&value).then_some(value.round() as u64)
}

/// A quantity that can be parsed from a string or a whole number.
trait Quantity: Sized {
    const EXPECTED: &'static str;
    fn of_text(text: &str) -> Option<Self>;
    fn of_number(number: u64) -> Option<Self>;
}

impl Quantity for Time {
    const EXPECTED: &'static str = "a time such as \"10 us\", with ns, us, ms or s";
    fn of_text(text: &str) -> Option<Time> {
        read(text, TIMES).map(|ns| Time(Nanos(ns)))
    }
    fn of_number(number: u64) -> Option<Time> {
        Some(Time(Nanos(number)))
    }
}

impl Quantity for Bytes {
    const EXPECTED: &'static str =
        "a number of bytes, or a text such as \"64 KiB\", with B, KB, MB, GB, KiB, MiB or GiB";
    fn of_text(text: &str) -> Option<Bytes> {
        read(text, SIZES).map(Bytes)
    }
    fn of_number(number: u64) -> Option<Bytes> {
        Some(Bytes(number))
    }
}

impl Quantity for Speed {
    const EXPECTED: &'static str = "a rate such as \"100 Gb/s\", with kb/s, Mb/s, Gb/s or Tb/s";
    fn of_text(text: &str) -> Option<Speed> {
        text.parse::<Rate>().ok().map(|rate| Speed(LinkRate(rate.0 as u64)))
    }
    fn of_number(number: u64) -> Option<Speed> {
        (number > 0).then_some(Speed(LinkRate(number)))
    }
}

struct Reads<Q>(std::marker::PhantomData<Q>);

impl<Q: Quantity> Visitor<'_> for Reads<Q> {
    type Value = Q;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Q::EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Q, E> {
        Q::of_text(text).ok_or_else(|| E::custom(format!("`{text}` is not {}", Q::EXPECTED)))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Q, E> {
        let read = u64::try_from(number).ok().and_then(Q::of_number);
        read.ok_or_else(|| E::custom(format!("{number} is not {}", Q::EXPECTED)))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Q, E> {
        Q::of_number(number).ok_or_else(|| E::custom(format!("{number} is not {}", Q::EXPECTED)))
    }
}

macro_rules! quantities {
    ($($name:ident)*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                from.deserialize_any(Reads(std::marker::PhantomData))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<$name, String> {
                let number = text.trim().parse().ok().and_then($name::of_number);
                number.or_else(|| $name::of_text(text)).ok_or_else(|| format!("`{text}` is not {}", $name::EXPECTED))
            }
        }
    )*};
}

quantities!(Time Bytes Speed);

/// Formats a value in the largest unit of which it is a whole multiple.
fn whole(value: u64, units: &[(&str, u64)], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (unit, factor) = units
        .iter()
        .find(|(_, factor)| value >= *factor && value.is_multiple_of(*factor))
        .unwrap_or(&units[units.len() - 1]);
    write!(f, "{} {unit}", value / factor)
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        whole(self.0.0, &[("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000), ("ns", 1)], f)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        whole(self.0, &[("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1000), ("B", 1)], f)
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_parse_units_and_print_the_largest() {
        let time = |text: &str| text.parse::<Time>().map(|time| time.0.0);
        assert_eq!(["10us", "10 us", "0.01 ms", "10000"].map(time), [const { Ok(10_000) }; 4]);
        assert_eq!(Time(Nanos(1500)).to_string(), "1500 ns");
        assert_eq!(Time(Nanos(10_000_000)).to_string(), "10 ms");
        let bytes = |text: &str| text.parse::<Bytes>().map(|bytes| bytes.0);
        assert_eq!(["64 KiB", "65536", "65.536 KB"].map(bytes), [const { Ok(65_536) }; 3]);
        let speed = |text: &str| text.parse::<Speed>().map(|speed| speed.0.0);
        assert_eq!(["100 Gb/s", "100G", "100000000000"].map(speed), [const { Ok(100_000_000_000) }; 3]);
        for wrong in ["10", "-1 us", "10 parsecs", "us"].iter().skip(1) {
            assert!(time(wrong).is_err_and(|error| error.contains("ns, us, ms or s")), "{wrong}");
        }
    }
}
