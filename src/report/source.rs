//! Where a capture comes from: a file or standard input, as it is or compressed by gzip.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

/// First bytes of a file that gzip has compressed (RFC 1952, 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Opens a file, or standard input for `-`. What gzip has compressed is decompressed as it is read.
///
/// # Errors
///
/// If the file cannot be opened or read.
pub fn open(file: &Path) -> io::Result<Box<dyn Read>> {
    if file.as_os_str() == "-" { decompressed(io::stdin().lock()) } else { decompressed(File::open(file)?) }
}

/// Reads a capture, decompressed. Takes no more of a pipe than it has.
fn decompressed(source: impl Read + 'static) -> io::Result<Box<dyn Read>> {
    let mut source = BufReader::new(source);
    let is_gzip = source.fill_buf()?.starts_with(&GZIP);
    Ok(if is_gzip { Box::new(MultiGzDecoder::new(source)) } else { Box::new(source) })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        decompressed(io::Cursor::new(bytes.to_vec()))?.read_to_end(&mut out)?;
        Ok(out)
    }

    fn compressed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).expect("memory");
        encoder.finish().expect("memory")
    }

    #[test]
    fn gzip_is_decompressed_and_others_stay() {
        let plain: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(read(&plain).expect("bytes"), plain);
        assert_eq!(read(&compressed(&plain)).expect("gzip"), plain);
        // As `cat a.gz b.gz` makes it.
        let two = [compressed(b"one"), compressed(b"two")].concat();
        assert_eq!(read(&two).expect("gzip"), b"onetwo");
        assert_eq!(read(b"").expect("nothing"), b"");
        let cut = compressed(&plain);
        assert_eq!(read(&cut[..cut.len() / 2]).expect_err("cut").kind(), io::ErrorKind::UnexpectedEof);
    }
}
