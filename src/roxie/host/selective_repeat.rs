//! Whether a device uses selective repeat.

use roxie_base::named;

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

named!(SelectiveRepeat: "off" => Off, "agree" => Agree, "assume" => Assume);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for (name, value) in SelectiveRepeat::NAMES {
            assert_eq!((name.parse(), value.to_string().as_str()), (Ok(*value), *name));
        }
        assert!("on".parse::<SelectiveRepeat>().unwrap_err().to_string().contains("assume"));
    }
}
