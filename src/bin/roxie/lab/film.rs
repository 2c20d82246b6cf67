//! The packets of a capture, to be looked at one by one.

use roxie::capture::{Direction, Reader};
use roxie::frame::Frame;
use roxie::lab::layout::{Layout, fields};

use super::document::Part;
use crate::failure::Failure;

/// A frame of a capture.
pub(super) struct Shot {
    /// The one that was captured sent it.
    pub(super) out: bool,
    pub(super) frame: Vec<u8>,
    pub(super) layout: Layout,
}

impl Shot {
    /// The payload of its packet.
    pub(super) fn payload(&self) -> &[u8] {
        &self.frame[self.layout.packet.payload.clone()]
    }
}

/// All of them.
///
/// # Errors
/// If the capture is none, which captures of the stage are.
pub(super) fn shots(film: &[u8]) -> Result<Vec<Shot>, Failure> {
    let wrong = |why: String| Failure::Run(format!("the capture of the run: {why}"));
    let mut reader = Reader::new(film).map_err(|e| wrong(e.to_string()))?;
    let mut shots = Vec::new();
    while let Some(record) = reader.next().map_err(|e| wrong(e.to_string()))? {
        let frame = Frame::whole(record.data).to_vec();
        let layout = fields(&frame).map_err(|drop| wrong(drop.to_string()))?;
        shots.push(Shot { out: record.direction == Some(Direction::Out), frame, layout });
    }
    Ok(shots)
}

/// Adds bytes to the part of this name.
pub(super) fn add(parts: &mut Vec<Part>, name: &str, bytes: f64) {
    match parts.iter_mut().find(|part| part.name == name) {
        Some(part) => part.value += bytes,
        None => parts.push(Part::new(name, bytes)),
    }
}
