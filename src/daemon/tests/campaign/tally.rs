//! The actions of hostile clients, and their results.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use roxie::remote::message::Request;

/// Numbers of requests that the NIC executed and refused, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Tally(BTreeMap<String, [u64; 2]>);

impl Tally {
    pub(in super::super) fn note(&mut self, kind: &str, is_done: bool) {
        match self.0.get_mut(kind) {
            Some(counts) => counts[usize::from(!is_done)] += 1,
            None => drop(self.0.insert(kind.to_owned(), [u64::from(is_done), u64::from(!is_done)])),
        }
    }

    pub(in super::super) fn add(&mut self, other: Tally) {
        for (kind, [done, refused]) in other.0 {
            let counts = self.0.entry(kind).or_default();
            (counts[0], counts[1]) = (counts[0] + done, counts[1] + refused);
        }
    }

    /// Returns the executed and the refused.
    pub(in super::super) fn of(&self, kind: &str) -> [u64; 2] {
        self.0.get(kind).copied().unwrap_or_default()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(kind, [done, refused])| writeln!(f, "{done:>9} {refused:>9} {kind}"))
    }
}

/// Returns the kind of a request; for a command, the command's kind.
pub(in super::super) fn kind_of(request: &Request) -> String {
    let mut kind = Kind {
        depth: u32::from(matches!(request, Request::Command(_) | Request::Memory(_))),
        ..Kind::default()
    };
    // The writer fails where the name ends, which is no error.
    let _ = write!(kind, "{request:?}");
    kind.name
}

#[derive(Default)]
struct Kind {
    name: String,
    /// Brackets opened before the name.
    depth: u32,
}

impl Write for Kind {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match (c.is_alphanumeric(), self.depth) {
                (true, 0) => self.name.push(c),
                (true, _) => {}
                (false, 0) if !self.name.is_empty() => return Err(fmt::Error),
                (false, depth) => self.depth = depth.saturating_sub(u32::from(c == '(')),
            }
        }
        Ok(())
    }
}
