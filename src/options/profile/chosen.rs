//! A profile as an option of a command.

use std::str::FromStr;

use roxie::profile::{Identity, Profile};
use roxie_report::output;

use super::{Class, FIELDS, Field, HISTORIES, ProfileError, ProfileFile};

/// The profile that a device gets, after the first history.
#[derive(Clone, Debug)]
pub struct ChosenProfile {
    /// The profile's name, or its file.
    name: String,
    /// The behaviour.
    pub profile: &'static Profile,
    /// Vendor, part, firmware and board of the adapter.
    identity: Option<Identity>,
    /// How many fields are of which class.
    evidence: String,
}

impl FromStr for ChosenProfile {
    type Err = ProfileError;

    fn from_str(name: &str) -> Result<ChosenProfile, ProfileError> {
        let file = ProfileFile::find(name)?;
        // Once in a program: the option is read once.
        let profile = Box::leak(Box::new(file.profile(HISTORIES[0], false)?));
        Ok(ChosenProfile {
            name: name.to_owned(),
            profile,
            identity: file.identity(),
            evidence: file.evidence(),
        })
    }
}

impl ChosenProfile {
    /// Returns the behaviour with the identity of the adapter.
    ///
    /// # Errors
    /// If the profile has no identity.
    pub fn with_identity(&self) -> Result<Profile, String> {
        match &self.identity {
            Some(identity) => Ok(Profile { identity: Some(identity.clone()), ..self.profile.clone() }),
            None => Err(format!(
                "--identity: profile {} has no id.vendor, id.part and id.fw_ver: leave the option out",
                self.name
            )),
        }
    }

    /// Reports on standard error how much of the profile is known.
    pub fn report(&self) {
        output::note(format_args!("profile {}: {}", self.name, self.evidence));
    }
}

impl ProfileFile {
    /// Returns how many fields are of which class, and how many are Roxie's own.
    pub fn evidence(&self) -> String {
        let classes: Vec<Class> =
            self.fields.values().filter_map(|field| field.evidence.as_ref().map(|from| from.class)).collect();
        let count = |class| classes.iter().filter(|known| **known == class).count();
        let counts = Class::ALL.iter().map(|(class, _, word)| (count(*class), word));
        let known = counts.filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}"));
        let is_own = |path: &str| !path.starts_with("id.") && self.named(path).next().is_none();
        let own = FIELDS.iter().filter(|(path, ..)| is_own(path)).count();
        known.chain([format!("{own} Roxie's own")]).collect::<Vec<_>>().join(", ")
    }

    /// Returns the fields that a path names, in which `*` is any history.
    pub fn named<'a>(&'a self, path: &str) -> impl Iterator<Item = (&'a str, &'a Field)> {
        let fields = self.fields.iter().filter(|(known, _)| super::fields::is_path(path, known));
        fields.map(|(known, field)| (known.as_str(), field)).collect::<Vec<_>>().into_iter()
    }
}
