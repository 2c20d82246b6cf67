//! Profiles: what adapters were measured to do, field by field with its evidence.
//!
//! A file is TOML. A value is bare, or a table of `v` and its evidence; a section's evidence holds for all of its
//! values. A field that is absent, or of class `unknown`, keeps Roxie's own behaviour.

mod build;
mod chosen;
mod fields;
#[cfg(test)]
mod loss_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;

use toml::{Table, Value};

pub use chosen::ChosenProfile;
pub use fields::{FIELDS, FieldKind, FieldSpec};

/// Profiles that are built in, and their files.
const BUILT_IN: [(&str, &str); 5] = [
    ("cx4lx", include_str!("cx4lx.toml")),
    ("cx5", include_str!("cx5.toml")),
    ("cx6", include_str!("cx6.toml")),
    ("cx6-20.40", include_str!("cx6-20.40.toml")),
    ("hi1822", include_str!("hi1822.toml")),
];

/// Histories of an adapter before a fault, by which its adaptive phase differs.
pub const HISTORIES: [&str; 6] = ["steady", "fresh", "fresh-traffic", "steady-traffic", "reopened", "idle"];

/// Why a profile cannot be used.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ProfileError {
    /// Neither the name of one that is built in, nor a file.
    #[error("there is no profile and no file {name:?} ({why}): built in are {}", names().collect::<Vec<_>>().join(", "))]
    Unknown {
        /// The argument.
        name: String,
        /// Why the file cannot be read.
        why: String,
    },
    /// The file is no TOML.
    #[error("profile {name}: {why}")]
    Syntax {
        /// The profile.
        name: String,
        /// The parser's message, with the line.
        why: String,
    },
    /// A field cannot be what it is.
    #[error("profile {name}, {field}: {why}")]
    Field {
        /// The profile.
        name: String,
        /// The field's path, with dots.
        field: String,
        /// The fault, and what would be right.
        why: String,
    },
}

/// How a value is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A third party has measured it.
    Measured,
    /// A capture shows it.
    Captured,
    /// Vendor or driver document it.
    Documented,
    /// A single report.
    Said,
    /// A consequence of measured values.
    Inferred,
}

impl Class {
    /// All classes, by their letter in files, and in words.
    pub const ALL: [(Class, &str, &str); 5] = [
        (Class::Measured, "m", "measured"),
        (Class::Captured, "c", "captured"),
        (Class::Documented, "d", "documented"),
        (Class::Said, "s", "said"),
        (Class::Inferred, "i", "inferred"),
    ];

    /// Returns the class in a word.
    pub fn word(self) -> &'static str {
        Class::ALL.iter().find(|(class, ..)| *class == self).map_or("", |(.., word)| word)
    }
}

/// Where a value is from.
#[derive(Clone, Debug, PartialEq)]
pub struct Evidence {
    /// How it is known.
    pub class: Class,
    /// On which adapter.
    pub who: String,
    /// By which source.
    pub src: String,
}

/// A value of a profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// The value.
    pub value: Value,
    /// The value's evidence. `None`: of the profile itself, as its name.
    pub evidence: Option<Evidence>,
}

/// A profile, as its file has it.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileFile {
    /// The profile's name.
    pub name: String,
    /// Fields by their path, with dots.
    pub fields: BTreeMap<String, Field>,
}

/// Returns the names of the profiles that are built in.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

impl ProfileFile {
    /// Reads the profile that is built in under this name, or else the file of this name.
    ///
    /// # Errors
    /// If there is neither, or the file is no profile.
    pub fn find(name: &str) -> Result<ProfileFile, ProfileError> {
        match BUILT_IN.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => ProfileFile::parse(name, text),
            None => {
                let text = fs::read_to_string(name).map_err(|error| ProfileError::Unknown {
                    name: name.to_owned(),
                    why: error.to_string(),
                })?;
                ProfileFile::parse(name, &text)
            }
        }
    }

    /// Reads a profile's text.
    ///
    /// # Errors
    /// If it is no profile.
    pub fn parse(name: &str, text: &str) -> Result<ProfileFile, ProfileError> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| ProfileError::Syntax {
            name: name.to_owned(),
            why: error.to_string(),
        })?;
        let mut file = ProfileFile { name: name.to_owned(), fields: BTreeMap::new() };
        for (section, value) in table {
            match value {
                Value::Table(table) => file.add_section(&section, table, &Inherited::default())?,
                _ => return Err(file.wrong(&section, "a profile has sections: `[timer]`")),
            }
        }
        HISTORIES.iter().try_for_each(|history| file.profile(history, false).map(drop))?;
        file.profile(HISTORIES[0], true)?;
        Ok(file)
    }

    /// Adds the values of a section and of the sections in it.
    fn add_section(&mut self, path: &str, mut table: Table, around: &Inherited) -> Result<(), ProfileError> {
        let here = self.take_evidence(path, &mut table, around)?;
        for (key, value) in table {
            let path = format!("{path}.{key}");
            match value {
                Value::Table(mut table) if table.contains_key("v") => {
                    let evidence = self.take_evidence(&path, &mut table, &here)?;
                    let value = table.remove("v").unwrap_or(Value::Boolean(false));
                    if let Some((other, _)) = table.iter().next() {
                        return Err(self.wrong(&path, &format!("{other:?} is none of v, class, who and src")));
                    }
                    self.add_field(path, value, &evidence)?;
                }
                Value::Table(table) => self.add_section(&path, table, &here)?,
                value => self.add_field(path, value, &here)?,
            }
        }
        Ok(())
    }

    fn add_field(&mut self, path: String, value: Value, evidence: &Inherited) -> Result<(), ProfileError> {
        fields::check(&path, &value).map_err(|why| self.wrong(&path, &why))?;
        let evidence = match (&evidence.class, path.starts_with("id.")) {
            (_, true) => None,
            (KnownClass::Known(class), _) => {
                Some(Evidence { class: *class, who: evidence.who.clone(), src: evidence.src.clone() })
            }
            // Roxie's own.
            (KnownClass::Unknown, _) => return Ok(()),
            (KnownClass::None, _) => {
                return Err(self.wrong(&path, "it has no class: m, c, d, s, i or unknown"));
            }
        };
        self.fields.insert(path, Field { value, evidence });
        Ok(())
    }

    /// Takes the evidence out of a table. The rest is that of the section around it.
    fn take_evidence(
        &self,
        path: &str,
        table: &mut Table,
        around: &Inherited,
    ) -> Result<Inherited, ProfileError> {
        let mut text = |key: &str| match table.remove(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(&format!("{path}.{key}"), &format!("{other} is no text"))),
        };
        let class = match text("class")?.as_deref() {
            None => around.class,
            Some("unknown") => KnownClass::Unknown,
            Some(letter) => match Class::ALL.iter().find(|(_, known, _)| *known == letter) {
                Some((class, ..)) => KnownClass::Known(*class),
                None => {
                    let why = format!("{letter:?} is no class: m, c, d, s, i or unknown");
                    return Err(self.wrong(&format!("{path}.class"), &why));
                }
            },
        };
        let who = text("who")?.unwrap_or_else(|| around.who.clone());
        let src = text("src")?.unwrap_or_else(|| around.src.clone());
        Ok(Inherited { class, who, src })
    }

    /// Returns the value of a field.
    pub fn get(&self, path: &str) -> Option<&Value> {
        self.fields.get(path).map(|field| &field.value)
    }

    fn wrong(&self, field: &str, why: &str) -> ProfileError {
        ProfileError::Field { name: self.name.clone(), field: field.to_owned(), why: why.to_owned() }
    }
}

/// Class of a section's values.
#[derive(Clone, Copy, Debug, Default)]
enum KnownClass {
    #[default]
    None,
    Unknown,
    Known(Class),
}

/// The evidence of a section.
#[derive(Clone, Debug, Default)]
struct Inherited {
    class: KnownClass,
    who: String,
    src: String,
}
