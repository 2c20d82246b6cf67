//! Values that are written and read by their names.

use std::fmt;

/// A name that none of the values has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    /// The name.
    pub name: String,
    /// Names of all values.
    pub known: Vec<&'static str>,
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (last, others) = self.known.split_last().unwrap_or((&"", &[]));
        write!(f, "{:?} is none of {} and {last}", self.name, others.join(", "))
    }
}

impl std::error::Error for UnknownName {}

/// Gives the values of a type names: the constant `NAMES`, `Display` and `FromStr`.
#[macro_export]
macro_rules! named {
    ($type:ident: $($name:literal => $value:ident),+ $(,)?) => {
        impl $type {
            /// Names of all values.
            pub const NAMES: &'static [(&'static str, $type)] = &[$(($name, $type::$value)),+];
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let named = $type::NAMES.iter().find(|(_, value)| value == self);
                f.pad(named.map_or("", |(name, _)| name))
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::names::UnknownName;

            fn from_str(text: &str) -> Result<$type, Self::Err> {
                let named = $type::NAMES.iter().find(|(name, _)| *name == text);
                named.map(|(_, value)| *value).ok_or_else(|| $crate::names::UnknownName {
                    name: text.to_owned(),
                    known: $type::NAMES.iter().map(|(name, _)| *name).collect(),
                })
            }
        }
    };
}
