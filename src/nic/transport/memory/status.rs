//! The table's regions and windows, by name, for those who watch.

use std::ops::Range;

use super::{KeyKind, MemoryTable};
use crate::verbs::{Access, MrIndex, MwIndex, PdId};

/// Status of a region or a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionStatus {
    /// `region`, `fast`, `window1` or `window2`.
    pub kind: &'static str,
    /// Key: lkey and rkey are one number. 0 if nothing is granted.
    pub key: u32,
    /// Protection domain.
    pub pd: PdId,
    /// Address of the first byte. 0 if nothing is granted.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// Granted access rights.
    pub access: Access,
}

/// The name of a region or a window: one table has both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryName {
    /// A region.
    Region(MrIndex),
    /// A window.
    Window(MwIndex),
}

impl MemoryTable {
    /// Returns the number of slots.
    pub fn places(&self) -> usize {
        self.entries.len()
    }

    /// Returns the names of the regions and windows at `places`.
    pub fn names(&self, places: Range<usize>) -> impl Iterator<Item = MemoryName> + '_ {
        let places = places.start..places.end.min(self.entries.len());
        places.filter_map(|index| {
            let name = self.name_at(index as u16);
            Some(match self.entries[index].as_ref()?.kind {
                KeyKind::Region { .. } | KeyKind::Fast { .. } => MemoryName::Region(MrIndex(name)),
                KeyKind::Window1(_) | KeyKind::Window2 { .. } => MemoryName::Window(MwIndex(name)),
            })
        })
    }

    /// Returns the status of a region or window. `None`: there is none of this name.
    pub fn status(&self, name: MemoryName) -> Option<RegionStatus> {
        let (MemoryName::Region(MrIndex(number)) | MemoryName::Window(MwIndex(number))) = name;
        let entry = self.named(number)?;
        let kind = match entry.kind {
            KeyKind::Region { .. } => "region",
            KeyKind::Fast { .. } => "fast",
            KeyKind::Window1(_) => "window1",
            KeyKind::Window2 { .. } => "window2",
        };
        let (key, start, length) =
            if entry.grants == 0 { (0, 0, 0) } else { (entry.key, entry.start, entry.length) };
        let access = Access::from_bits_truncate(entry.grants);
        Some(RegionStatus { kind, key, pd: entry.pd, start, length, access })
    }
}
