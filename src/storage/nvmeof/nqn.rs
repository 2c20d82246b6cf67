//! NVMe qualified names (NVMe base specification 7.9).

/// Name of every discovery subsystem.
pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Most bytes of a name.
pub const LONGEST: usize = 223;

/// Checks a name.
///
/// # Errors
/// If it is no NQN, with the reason.
pub fn check(name: &str) -> Result<(), String> {
    if name.len() > LONGEST {
        return Err(format!("{} bytes are more than the {LONGEST} of an NQN", name.len()));
    }
    let month = name.strip_prefix("nqn.").and_then(|rest| rest.get(..8));
    let dated = month.is_some_and(|month| {
        month.bytes().zip("0000-00.".bytes()).all(|(byte, form)| match form {
            b'0' => byte.is_ascii_digit(),
            _ => byte == form,
        })
    });
    if !dated || name.len() < 13 || name.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
        return Err(format!(
            "{name:?} is no NQN: nqn.YYYY-MM.REVERSED-DOMAIN:NAME, for example nqn.2026-11.example:disk"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dated_names_are_accepted() {
        for good in [DISCOVERY, "nqn.2014-08.org.nvmexpress:uuid:1b4e28ba", "nqn.2026-11.example:disk"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        let long = format!("nqn.2026-11.example:{}", "x".repeat(LONGEST));
        for bad in [
            "",
            "disk",
            "nqn.2026.example",
            "nqn.20x6-11.example",
            "nqn.2026-11.",
            "nqn.2026-11.a b",
            "nqn.20",
            &long,
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
