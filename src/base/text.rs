//! Text that another process, user or host has chosen.
//!
//! A terminal executes control characters, and format characters change what a reader sees. [`Plain`] replaces both
//! where text is printed. [`Foreign`] is the type for text that was received: it has a bounded length, and can be
//! printed only so. [`file_in`] makes a path from a received name.

use std::borrow::Borrow;
use std::fmt::{self, Display, Write};
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Returns true if a character acts on a terminal or on the text around it: control characters, the format characters
/// of Unicode's category Cf (directions, joiners, marks without width, tags), and the separators of lines and
/// paragraphs.
pub fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e007f}')
}

/// Prints as one line without characters that act: each of them, a newline too, is printed as U+FFFD.
#[derive(Clone, Copy, Debug)]
pub struct Plain<T>(pub T);

impl<T: Display> Display for Plain<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Filter(f), "{}", self.0)
    }
}

struct Filter<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Filter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for (n, part) in text.split(acts).enumerate() {
            if n > 0 {
                self.0.write_char(char::REPLACEMENT_CHARACTER)?;
            }
            self.0.write_str(part)?;
        }
        Ok(())
    }
}

/// Text that another process, user or host has chosen. It is printed as [`Plain`], serialised as it was received, and
/// cut to [`LONGEST`](Self::LONGEST) characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String")]
pub struct Foreign(String);

impl Foreign {
    /// Maximum number of characters.
    pub const LONGEST: usize = 256;

    /// Returns the text as it was received, for comparisons. Never print it.
    pub fn as_received(&self) -> &str {
        &self.0
    }
}

impl From<String> for Foreign {
    fn from(mut text: String) -> Foreign {
        if let Some((end, _)) = text.char_indices().nth(Foreign::LONGEST) {
            text.truncate(end);
        }
        Foreign(text)
    }
}

impl From<&str> for Foreign {
    fn from(text: &str) -> Foreign {
        Foreign(text.chars().take(Foreign::LONGEST).collect())
    }
}

impl From<&[u8]> for Foreign {
    /// Replaces bytes that are no UTF-8.
    fn from(bytes: &[u8]) -> Foreign {
        Foreign::from(&*String::from_utf8_lossy(bytes))
    }
}

impl PartialEq<str> for Foreign {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for Foreign {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl Borrow<str> for Foreign {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&Plain(&self.0).to_string())
    }
}

/// Returns the name of a process by its number, or of `self`; empty if there is no such process. A process gives itself
/// any name.
pub fn process_name(pid: impl Display) -> Foreign {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.strip_suffix(b"\n").unwrap_or(&name).into()
}

/// A name that cannot be a file's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` cannot be the name of a file: a name has 1 to {most} bytes, begins with no dot, and has neither slashes nor control characters",
    most = LONGEST_NAME
)]
pub struct NoFileName(Foreign);

/// Maximum number of bytes of a file's name, which leaves room for an extension (NAME_MAX is 255).
const LONGEST_NAME: usize = 200;

/// Returns the path of a file in a folder, where the name comes from a file or from another host: never a path outside
/// of the folder.
///
/// # Errors
/// If the name has a slash or a character that [acts], begins with a dot, is empty, or has more than 200 bytes.
pub fn file_in(folder: &Path, name: &str, extension: &str) -> Result<PathBuf, NoFileName> {
    check_file_name(name).map(|()| folder.join(format!("{name}.{extension}")))
}

/// Checks a name that [`file_in`] is to take.
///
/// # Errors
/// As [`file_in`].
pub fn check_file_name(name: &str) -> Result<(), NoFileName> {
    let is_name = (1..=LONGEST_NAME).contains(&name.len())
        && !name.starts_with('.')
        && !name.contains(|c| c == '/' || acts(c));
    if is_name { Ok(()) } else { Err(NoFileName(name.into())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_act_are_not_printed() {
        let text =
            "a\u{1b}[2J\r\n\u{9b}31m\u{202e}\u{2066}\u{200b}\u{feff}\u{ad}\u{e0041}\u{2028}\t\u{7f}\u{0}z";
        let plain = Plain(text).to_string();
        assert!(
            !plain.contains(acts) && plain.starts_with("a\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}31m"),
            "{plain:?}"
        );
        assert_eq!(plain.chars().filter(|c| *c == char::REPLACEMENT_CHARACTER).count(), 14, "{plain:?}");
        assert_eq!(Plain(format_args!("{}: {}", "größe 尺寸", 7)).to_string(), "größe 尺寸: 7");
        assert!((0..0x20).chain(0x7f..0xa0).all(|c| char::from_u32(c).is_some_and(acts)));
    }

    #[test]
    fn foreign_text_is_bounded_and_printed_plain() {
        let long = Foreign::from("\u{e4}".repeat(1000));
        assert_eq!(
            (long.as_received().chars().count(), &long),
            (Foreign::LONGEST, &Foreign::from("\u{e4}".repeat(300).as_str()))
        );
        let text = Foreign::from("a\u{1b}b\n");
        assert_eq!(
            (text.to_string(), format!("{text:<6}|")),
            ("a\u{fffd}b\u{fffd}".into(), "a\u{fffd}b\u{fffd}  |".into())
        );
        assert_eq!(text, "a\u{1b}b\n");
        assert_eq!(Foreign::from(&b"\xff\x1b"[..]).to_string(), "\u{fffd}\u{fffd}");
    }

    #[test]
    fn names_lead_to_no_file_outside() {
        let folder = Path::new("out");
        assert_eq!(file_in(folder, "leaf0-spine1", "pcapng"), Ok("out/leaf0-spine1.pcapng".into()));
        let long = "x".repeat(LONGEST_NAME + 1);
        for name in ["", ".", "..", "../x", "/etc/x", "a/b", ".x", "a\0b", "a\nb", "\u{202e}x", &long] {
            let refused = file_in(folder, name, "csv").expect_err(name).to_string();
            assert!(!refused.contains(acts) && refused.contains("cannot be the name"), "{refused:?}");
        }
    }
}
