//! Whole files, with many READs or WRITEs outstanding.

use std::collections::VecDeque;
use std::io::{self, Read, Write};

use super::transport::SLOTS;
use super::{
    AROUND, Arguments, Client, ClientError, Data, FileHandle, Finished, LONGEST_TRANSFER, Stable, Written,
    failed, results,
};
use crate::nfs3;

/// Parts that are kept at most: a server that never answers for one of them must not have all that follow read.
const MOST_PARTS: usize = 4 * SLOTS as usize;

/// A part of a file that is read.
#[derive(Debug)]
struct Wanted {
    offset: u64,
    /// Number of bytes.
    count: u32,
    /// Received bytes.
    bytes: Vec<u8>,
    /// The outstanding call.
    slot: Option<usize>,
    is_done: bool,
}

/// A part of a file that is written.
#[derive(Debug)]
struct Given {
    offset: u64,
    bytes: Vec<u8>,
    /// Number of bytes that the server has.
    written: usize,
    /// The outstanding call.
    slot: Option<usize>,
}

impl Client {
    /// Copies a file to `out`, in its order, with `transfer` bytes a call. `progress` receives the number of bytes so
    /// far. Returns their number at the end. A file that becomes shorter meanwhile ends there.
    ///
    /// # Errors
    /// As those of [`Client::attributes`], or if `out` fails.
    pub fn read_file(
        &mut self,
        file: &FileHandle,
        path: &str,
        transfer: u32,
        out: &mut dyn Write,
        mut progress: impl FnMut(u64),
    ) -> Result<u64, ClientError> {
        let transfer = transfer.clamp(1, LONGEST_TRANSFER as u32);
        let size = self.attributes(file, path)?.size;
        let (mut next, mut copied, mut has_ended) = (0, 0, false);
        let mut parts: VecDeque<Wanted> = VecDeque::new();
        loop {
            for part in parts.iter_mut().filter(|part| part.slot.is_none() && !part.is_done) {
                part.slot = self.read(file, part)?;
            }
            while next < size
                && parts.len() < MOST_PARTS
                && parts.iter().all(|part| part.slot.is_some() || part.is_done)
            {
                let count = u64::from(transfer).min(size - next) as u32;
                let mut part = Wanted { offset: next, count, bytes: Vec::new(), slot: None, is_done: false };
                part.slot = self.read(file, &part)?;
                if part.slot.is_none() {
                    break;
                }
                parts.push_back(part);
                next += u64::from(count);
            }
            if parts.is_empty() {
                return Ok(copied);
            }
            let finished = self.transport.wait(self.options.timeout)?;
            let part = parts.iter_mut().find(|part| part.slot == Some(finished.slot));
            let part = part.ok_or_else(|| ClientError::Protocol("a reply to no READ".into()))?;
            let left = part.count - part.bytes.len() as u32;
            let (bytes, is_end) = data(finished, file, path, left)?;
            if bytes.is_empty() && !is_end {
                return Err(ClientError::Protocol(format!("{path}: a READ returns nothing before the end")));
            }
            part.bytes.extend(bytes);
            part.slot = None;
            part.is_done = is_end || part.bytes.len() == part.count as usize;
            while parts.front().is_some_and(|part| part.is_done) {
                let Some(part) = parts.pop_front() else { break };
                // Bytes behind a part that is too short have another place.
                if !has_ended {
                    out.write_all(&part.bytes)?;
                    copied += part.bytes.len() as u64;
                    progress(copied);
                }
                if part.bytes.len() < part.count as usize {
                    (has_ended, next) = (true, size);
                }
            }
        }
    }

    fn read(&mut self, file: &FileHandle, part: &Wanted) -> Result<Option<usize>, ClientError> {
        let offset = part.offset + part.bytes.len() as u64;
        let count = part.count - part.bytes.len() as u32;
        self.submit(&Arguments::Read { file: file.clone(), offset, count }, Data::In(count as usize, AROUND))
    }

    /// Overwrites a file from its first byte on with what `source` has, with `transfer` bytes a call, and makes it
    /// durable. `progress` receives the number of bytes so far. Returns their number at the end.
    ///
    /// # Errors
    /// As those of [`Client::attributes`], if `source` fails, or if the server was started again meanwhile.
    pub fn write_file(
        &mut self,
        file: &FileHandle,
        path: &str,
        transfer: u32,
        source: &mut dyn Read,
        mut progress: impl FnMut(u64),
    ) -> Result<u64, ClientError> {
        let transfer = transfer.clamp(1, LONGEST_TRANSFER as u32) as usize;
        let (mut next, mut written, mut is_end, mut verifier) = (0, 0, false, None);
        let mut parts: Vec<Given> = Vec::new();
        loop {
            for part in parts.iter_mut().filter(|part| part.slot.is_none()) {
                part.slot = self.write(file, part)?;
            }
            while !is_end && parts.iter().all(|part| part.slot.is_some()) {
                let bytes = fill(source, transfer)?;
                is_end = bytes.len() < transfer;
                if bytes.is_empty() {
                    break;
                }
                let mut part = Given { offset: next, bytes, written: 0, slot: None };
                part.slot = self.write(file, &part)?;
                next += part.bytes.len() as u64;
                parts.push(part);
            }
            if parts.is_empty() {
                break;
            }
            let finished = self.transport.wait(self.options.timeout)?;
            let index = parts.iter().position(|part| part.slot == Some(finished.slot));
            let index = index.ok_or_else(|| ClientError::Protocol("a reply to no WRITE".into()))?;
            let part = &mut parts[index];
            let result = Written::parse(&mut results("WRITE", &finished.message)?)?;
            let result = result.map_err(|status| ClientError::Status {
                path: path.to_owned(),
                call: "WRITE",
                status,
            })?;
            let count = result.count as usize;
            if count == 0 || count > part.bytes.len() - part.written {
                return Err(ClientError::Protocol(format!(
                    "{path}: a WRITE of {count} bytes, which are not those that were sent"
                )));
            }
            if result.stable != Stable::File && *verifier.get_or_insert(result.verifier) != result.verifier {
                return Err(ClientError::Verifier { path: path.to_owned() });
            }
            part.written += count;
            part.slot = None;
            written += count as u64;
            if part.written == part.bytes.len() {
                parts.swap_remove(index);
            }
            progress(written);
        }
        let committed = self.commit(file, path)?;
        match verifier {
            Some(verifier) if verifier != committed.verifier => {
                Err(ClientError::Verifier { path: path.to_owned() })
            }
            _ => Ok(written),
        }
    }

    fn write(&mut self, file: &FileHandle, part: &Given) -> Result<Option<usize>, ClientError> {
        let bytes = &part.bytes[part.written..];
        let offset = part.offset + part.written as u64;
        let count = bytes.len() as u32;
        let arguments = Arguments::Write { file: file.clone(), offset, count, stable: Stable::Unstable };
        self.submit(&arguments, Data::Out(bytes))
    }
}

/// Returns the data of a READ for `most` bytes, and whether they reach the end of the file.
fn data(
    finished: Finished,
    file: &FileHandle,
    path: &str,
    most: u32,
) -> Result<(Vec<u8>, bool), ClientError> {
    let mut reader = results("READ", &finished.message)?;
    let head = nfs3::read_head(&mut reader)?.map_err(|status| {
        failed(&Arguments::Read { file: file.clone(), offset: 0, count: most }, path, status)
    })?;
    let length = head.length as usize;
    if head.length > most {
        return Err(ClientError::Protocol(format!("{path}: a READ of {most} bytes returns {length}")));
    }
    // A server may also write the padding.
    match finished.moved {
        Some(mut moved) if moved.len() >= length && moved.len() <= length.next_multiple_of(4) => {
            moved.truncate(length);
            Ok((moved, head.is_end))
        }
        Some(moved) if !moved.is_empty() => {
            let moved = moved.len();
            Err(ClientError::Protocol(format!("{path}: a READ of {length} bytes, and {moved} in the chunk")))
        }
        // A server need not use the chunk.
        _ => Ok((reader.fixed(length)?.to_vec(), head.is_end)),
    }
}

/// Reads `most` bytes, or all up to the end.
fn fill(source: &mut dyn Read, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}
