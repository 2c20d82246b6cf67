//! Captures of named links, at both ends, with the outcome in the switches as comments.

use std::fmt;
use std::io::{self, Write};

use super::error::ScenarioError;
use crate::fabric::{End, Shape, TappedFrame};
use roxie_wire::capture::{Direction, PcapngWriter};
use roxie_wire::frame::Frame;

/// The capture of a link.
pub(super) struct Capture {
    ends: [End; 2],
    writer: PcapngWriter<Box<dyn Write + Send>>,
    /// Number of frames that may still be written.
    remaining: usize,
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture")
            .field("ends", &self.ends)
            .field("left", &self.remaining)
            .finish_non_exhaustive()
    }
}

/// Returns the ends of the link of this name: `leaf0-spine1`, in either order.
///
/// # Errors
/// If no link has this name. The message lists the links.
pub(super) fn ends(shape: &Shape, name: &str) -> Result<[End; 2], ScenarioError> {
    let called = |[a, b]: [End; 2]| format!("{}-{}", shape.name(a), shape.name(b));
    let ends = shape
        .links
        .iter()
        .map(|link| link.ends)
        .find(|[a, b]| called([*a, *b]) == name || called([*b, *a]) == name);
    ends.ok_or_else(|| {
        let mut names: Vec<String> = shape.links.iter().map(|link| called(link.ends)).collect();
        let more = names.len().saturating_sub(12);
        names.truncate(12);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let what = format!("there is no link `{name}`: there are {}{more}", names.join(", "));
        ScenarioError::wrong(("output", "capture"), what)
    })
}

impl Capture {
    pub(super) fn new(
        shape: &Shape,
        ends: [End; 2],
        frames: usize,
        out: Box<dyn Write + Send>,
    ) -> io::Result<Capture> {
        let name = |end| match end {
            End::Station(_) => shape.name(end).to_owned(),
            End::Switch { port, .. } => format!("{}:{port}", shape.name(end)),
        };
        let names = ends.map(name);
        let writer = PcapngWriter::new(out, &[&names[0], &names[1]])?;
        Ok(Capture { ends, writer, remaining: frames })
    }

    /// Writes a frame if it belongs to this link and the capture is not full.
    pub(super) fn take(&mut self, sight: &TappedFrame) -> io::Result<()> {
        let Some(interface) = self.ends.iter().position(|end| *end == sight.end) else { return Ok(()) };
        if self.remaining == 0 {
            return Ok(());
        }
        self.remaining -= 1;
        let direction = if sight.is_arrival { Direction::In } else { Direction::Out };
        let comment = sight.to_string();
        let comment = Some(comment.as_str()).filter(|comment| !comment.is_empty());
        self.writer.write(interface as u32, sight.at.0, direction, &Frame::whole(&sight.frame), comment)
    }

    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
