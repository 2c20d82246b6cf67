//! Whether a device uses selective repeat.

use std::fmt;
use std::str::FromStr;

/// When RC QPs of a device send lost packets alone again (selective repeat), instead of everything from the lost one on
/// (go-back-N). Both ends of a connection must do so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SelectiveRepeat {
    /// Never, unless asked for on a QP ([`ConnectOptions`](super::ConnectOptions)).
    #[default]
    Off,
    /// On connections made with a connection manager whose peer offers it as well: the two tell each other in private
    /// data.
    Agree,
    /// As [`Agree`](SelectiveRepeat::Agree), and on all other RC connections without asking: the peer is known to do so
    /// too.
    Assume,
}

impl SelectiveRepeat {
    /// Names of all values.
    pub const NAMES: [(&str, SelectiveRepeat); 3] = [
        ("off", SelectiveRepeat::Off),
        ("agree", SelectiveRepeat::Agree),
        ("assume", SelectiveRepeat::Assume),
    ];
}

impl fmt::Display for SelectiveRepeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = SelectiveRepeat::NAMES.iter().find(|(_, value)| value == self);
        f.pad(named.map_or("", |(name, _)| name))
    }
}

/// A name that is none of a [`SelectiveRepeat`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownSelectiveRepeat(String);

impl fmt::Display for UnknownSelectiveRepeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is none of off, agree and assume", self.0)
    }
}

impl std::error::Error for UnknownSelectiveRepeat {}

impl FromStr for SelectiveRepeat {
    type Err = UnknownSelectiveRepeat;

    fn from_str(text: &str) -> Result<SelectiveRepeat, UnknownSelectiveRepeat> {
        let named = SelectiveRepeat::NAMES.iter().find(|(name, _)| *name == text);
        named.map(|(_, value)| *value).ok_or_else(|| UnknownSelectiveRepeat(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for (name, value) in SelectiveRepeat::NAMES {
            assert_eq!((name.parse(), value.to_string().as_str()), (Ok(value), name));
        }
        assert!("on".parse::<SelectiveRepeat>().unwrap_err().to_string().contains("assume"));
    }
}
