//! Files that are disks of a target.

use std::fs::{self, File};
use std::path::Path;

use crate::error::Error;

/// Length of a disk: with room for a file system and its journal.
pub const LENGTH: u64 = 64 << 20;

/// Makes an empty disk of [`LENGTH`] bytes, in place of an earlier one.
///
/// # Errors
/// If the file cannot be written.
pub fn create(path: &Path) -> Result<(), Error> {
    File::create(path).and_then(|file| file.set_len(LENGTH)).map_err(Error::file(path))
}

/// Checks that a disk has a file system, ext4.
///
/// # Errors
/// If it has none, or cannot be read.
pub fn has_file_system(path: &Path) -> Result<(), Error> {
    let file = fs::read(path).map_err(Error::file(path))?;
    // Magic number in the superblock, at byte 1024 + 56.
    match file.get(1080..1082) {
        Some([0x53, 0xef]) => Ok(()),
        _ => Err(Error::Local(format!("{} has no file system", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::output_folder;

    #[test]
    fn empty_disk_has_no_file_system() {
        fs::create_dir_all(output_folder()).expect("the folder");
        let path = output_folder().join(format!("empty-{}.img", std::process::id()));
        create(&path).expect("the disk");
        assert_eq!(fs::metadata(&path).expect("the disk").len(), LENGTH);
        assert!(has_file_system(&path).expect_err("zeros").to_string().contains("no file system"));
        let mut disk = fs::read(&path).expect("the disk");
        disk[1080..1082].copy_from_slice(&[0x53, 0xef]);
        fs::write(&path, &disk[..2048]).expect("the disk");
        has_file_system(&path).expect("a superblock");
        fs::remove_file(path).expect("the disk");
    }
}
