//! Reads the packets of a run's capture.

use roxie::capture::{Direction, Reader};
use roxie::frame::Frame;
use roxie_lab_theory::layout::{Layout, fields};
use roxie_report::failure::Failure;

use super::document::Part;

/// A frame of a capture.
pub(super) struct CapturedFrame {
    /// True if the captured host sent the frame.
    pub(super) out: bool,
    pub(super) frame: Vec<u8>,
    pub(super) layout: Layout,
}

impl CapturedFrame {
    /// Returns the payload of the packet.
    pub(super) fn payload(&self) -> &[u8] {
        &self.frame[self.layout.packet.payload.clone()]
    }
}

/// Returns all frames of a capture.
///
/// # Errors
///
/// If the capture cannot be parsed, which never happens with a stage's.
pub(super) fn shots(film: &[u8]) -> Result<Vec<CapturedFrame>, Failure> {
    let wrong = |why: String| Failure::Run(format!("the capture of the run: {why}"));
    let mut reader = Reader::new(film).map_err(|e| wrong(e.to_string()))?;
    let mut shots = Vec::new();
    while let Some(record) = reader.next().map_err(|e| wrong(e.to_string()))? {
        let frame = Frame::whole(record.data).to_vec();
        let layout = fields(&frame).map_err(|drop| wrong(drop.to_string()))?;
        shots.push(CapturedFrame { out: record.direction == Some(Direction::Out), frame, layout });
    }
    Ok(shots)
}

/// Adds bytes to the part with this name.
pub(super) fn add(parts: &mut Vec<Part>, name: &str, bytes: f64) {
    match parts.iter_mut().find(|part| part.name == name) {
        Some(part) => part.value += bytes,
        None => parts.push(Part::new(name, bytes)),
    }
}
