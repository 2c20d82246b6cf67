//! Where the blocks of a namespace are: a file, a block device, or memory.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

/// Bytes that a namespace keeps. Threads of several queues call it at the same time.
pub trait Storage: Debug + Send + Sync {
    /// Length in bytes. May grow while the storage is in use.
    ///
    /// # Errors
    /// The system's.
    fn length(&self) -> io::Result<u64>;

    /// Reads bytes from `offset` on.
    ///
    /// # Errors
    /// If not all can be read.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes bytes from `offset` on.
    ///
    /// # Errors
    /// If not all can be written.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// The system's: some writes may be lost.
    fn flush(&self) -> io::Result<()>;

    /// Writes `length` zeros from `offset` on.
    ///
    /// # Errors
    /// As those of [`Storage::write`].
    fn zero(&self, offset: u64, length: u64) -> io::Result<()> {
        let zeros = vec![0; length.min(ZEROS) as usize];
        let mut done = 0;
        while done < length {
            let part = (length - done).min(ZEROS) as usize;
            self.write(offset + done, &zeros[..part])?;
            done += part as u64;
        }
        Ok(())
    }
}

/// Zeros written at once.
const ZEROS: u64 = 1 << 20;

/// A regular file or a block device.
#[derive(Debug)]
pub struct FileStorage {
    file: File,
    path: PathBuf,
}

impl FileStorage {
    /// Opens a file for reading and, unless `read_only`, for writing.
    ///
    /// # Errors
    /// If it cannot be opened, or is neither a regular file nor a block device.
    pub fn open(path: &Path, read_only: bool) -> io::Result<FileStorage> {
        use std::os::unix::fs::FileTypeExt;
        // Checked before it is opened: opening a pipe would block.
        let kind = std::fs::metadata(path)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "neither a regular file nor a block device",
            ));
        }
        let file = OpenOptions::new().read(true).write(!read_only).open(path)?;
        Ok(FileStorage { file, path: path.to_owned() })
    }

    /// The path, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Storage for FileStorage {
    fn length(&self) -> io::Result<u64> {
        // The length in a block device's metadata is 0; its end is where a seek ends. Nothing else uses the position.
        (&self.file).seek(SeekFrom::End(0))
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Memory of the process, lost when it ends.
#[derive(Debug)]
pub struct MemoryStorage(RwLock<Vec<u8>>);

impl MemoryStorage {
    /// Allocates `length` bytes of zeros.
    ///
    /// # Errors
    /// If the system has no such memory.
    pub fn new(length: u64) -> io::Result<MemoryStorage> {
        let too_long = || io::Error::new(io::ErrorKind::OutOfMemory, format!("{length} bytes of memory"));
        let length = usize::try_from(length).map_err(|_| too_long())?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|_| too_long())?;
        bytes.resize(length, 0);
        Ok(MemoryStorage(RwLock::new(bytes)))
    }

    fn range(offset: u64, length: usize, of: &[u8]) -> io::Result<std::ops::Range<usize>> {
        let beyond = || io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the end");
        let begin = usize::try_from(offset).map_err(|_| beyond())?;
        let end = begin.checked_add(length).filter(|end| *end <= of.len()).ok_or_else(beyond)?;
        Ok(begin..end)
    }
}

impl Storage for MemoryStorage {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.read().unwrap_or_else(PoisonError::into_inner).len() as u64)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let memory = self.0.read().unwrap_or_else(PoisonError::into_inner);
        bytes.copy_from_slice(&memory[MemoryStorage::range(offset, bytes.len(), &memory)?]);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut memory = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let range = MemoryStorage::range(offset, bytes.len(), &memory)?;
        memory[range].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_storage(storage: &dyn Storage) {
        assert_eq!(storage.length().expect("a length"), 3 << 20);
        storage.write(5, b"hello").expect("a write");
        storage.write((3 << 20) - 2, b"ok").expect("a write to the end");
        let mut bytes = [1; 7];
        storage.read(4, &mut bytes).expect("a read");
        assert_eq!(&bytes, b"\0hello\0");
        storage.zero(6, (2 << 20) + 9).expect("zeros");
        storage.read(4, &mut bytes).expect("a read");
        assert_eq!(&bytes, b"\0h\0\0\0\0\0");
        storage.flush().expect("a flush");
        assert!(storage.read((3 << 20) - 6, &mut bytes).is_err());
    }

    #[test]
    fn memory_keeps_what_was_written() {
        is_storage(&MemoryStorage::new(3 << 20).expect("memory"));
        assert!(MemoryStorage::new(u64::MAX).is_err());
        assert!(MemoryStorage::new(4).expect("memory").write(3, b"xy").is_err());
    }

    #[test]
    fn file_keeps_what_was_written() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(3 << 20).expect("a length");
        is_storage(&FileStorage::open(file.path(), false).expect("opens"));
        let reader = FileStorage::open(file.path(), true).expect("opens");
        assert!(reader.write(0, b"x").is_err());
    }

    #[test]
    fn folders_and_absent_files_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let why = FileStorage::open(folder.path(), true).expect_err("a folder is no file").to_string();
        assert!(why.contains("neither a regular file"), "{why}");
        assert!(FileStorage::open(&folder.path().join("absent"), true).is_err());
    }
}
