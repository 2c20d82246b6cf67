//! Pages of registered memory: faulted in, and checked for their protection, as by a device that pins them.

use std::ffi::c_void;
use std::fs;
use std::sync::OnceLock;

use crate::base::object::Errno;
use crate::base::report::refuse;

/// Bytes of one call to the kernel, which locks the address space throughout. A thread that is preempted meanwhile
/// blocks all others that map memory, and copies from and to this process.
const PIECE: usize = 1 << 20;

/// Faults in the pages of `length` bytes at `address`.
///
/// # Errors
/// `EFAULT` if a page is not mapped, not readable or, if the device `writes`, not writable. The kernel's `ib_umem_get`
/// does the same, and programs rely on it to fall back to a read-only region. `EINVAL` if the range wraps around.
pub(crate) fn populate(call: &str, address: *mut c_void, length: usize, writes: bool) -> Result<(), Errno> {
    let page = page_size();
    let start = address as usize & !(page - 1);
    let Some(end) = (address as usize).checked_add(length) else {
        return refuse(call, libc::EINVAL, format_args!("{length} bytes at {address:p} wrap around"));
    };
    if length == 0 {
        return Ok(());
    }
    let advice = if writes { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let populated = if has_populate() {
        (start..end).step_by(PIECE).try_for_each(|piece| advise(piece, PIECE.min(end - piece), advice))
    } else {
        permitted(start, end, writes)
    };
    populated.or_else(|errno| match errno {
        // EINVAL: the protection forbids the access, or the mapping is of device registers, which cannot be pinned.
        libc::EINVAL | libc::ENOMEM | libc::EFAULT => refuse(
            call,
            libc::EFAULT,
            format_args!(
                "{length} bytes at {address:p} are not all mapped and {}; /proc/{}/maps shows the protection",
                if writes { "writable (required by IBV_ACCESS_LOCAL_WRITE)" } else { "readable" },
                std::process::id()
            ),
        ),
        errno => Err(errno),
    })
}

/// Checks a range to be registered, before its pages. `iova`: its address in work requests, if it has another one.
///
/// # Errors
/// As the kernel's `ib_uverbs_reg_mr`: `EINVAL` if the two addresses differ in their place in a page. As its
/// `ib_umem_get`: `EINVAL` if the range, or its last page, wraps around, and if it touches no page. A range of 0 bytes
/// touches one unless it is page-aligned.
pub(crate) fn check_range(
    call: &str,
    address: *mut c_void,
    length: usize,
    iova: Option<u64>,
) -> Result<(), Errno> {
    let (start, page) = (address as usize, page_size());
    if let Some(iova) = iova.filter(|iova| (*iova as usize ^ start) & (page - 1) != 0) {
        return refuse(
            call,
            libc::EINVAL,
            format_args!(
                "iova {iova:#x} for {address:p}: the offset in a page of {page} bytes must be equal"
            ),
        );
    }
    match start.checked_add(length).and_then(|end| end.checked_next_multiple_of(page)) {
        None => refuse(call, libc::EINVAL, format_args!("{length} bytes at {address:p} wrap around")),
        Some(end) if end == start => {
            refuse(call, libc::EINVAL, format_args!("0 bytes at {address:p}: a region has at least one page"))
        }
        Some(_) => Ok(()),
    }
}

fn page_size() -> usize {
    // SAFETY: a query without pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

fn advise(start: usize, length: usize, advice: libc::c_int) -> Result<(), Errno> {
    // SAFETY: faulting pages in has no effect visible to the program; the system checks the range.
    match unsafe { libc::madvise(start as *mut c_void, length, advice) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EFAULT)),
    }
}

/// Returns true if the kernel has `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE` (since 5.14). An older kernel returns
/// `EINVAL`, but so does a newer one if the protection forbids the access. A request for an empty range tells them
/// apart.
fn has_populate() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| advise(0, 0, libc::MADV_POPULATE_WRITE).is_ok())
}

/// Checks the protection by `/proc/self/maps`, for kernels before 5.14. Pages are faulted in on first use.
fn permitted(start: usize, end: usize, writes: bool) -> Result<(), Errno> {
    let maps = fs::read_to_string("/proc/self/maps")
        .map_err(|error| error.raw_os_error().unwrap_or(libc::EFAULT))?;
    if covers(&maps, start, end, writes) { Ok(()) } else { Err(libc::EFAULT) }
}

/// Returns true if mappings (`proc_pid_maps(5)`) cover the whole range with the required protection.
fn covers(maps: &str, start: usize, end: usize, writes: bool) -> bool {
    let mut at = start;
    for line in maps.lines() {
        let mut words = line.split(' ');
        let range = words.next().and_then(|range| range.split_once('-'));
        let bound = |text: &str| usize::from_str_radix(text, 16).ok();
        let Some((from, to)) = range.and_then(|(from, to)| bound(from).zip(bound(to))) else { continue };
        let protection = words.next().unwrap_or_default();
        let allows = protection.starts_with('r') && (!writes || protection[1..].starts_with('w'));
        if from <= at && at < to && allows {
            at = to;
        }
        if at >= end {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "1000-3000 rw-p 00000000 00:00 0 [heap]\n\
                        3000-4000 r--p 00000000 08:01 7 /lib/a b.so\n\
                        4000-5000 rw-s 00000000 00:00 0\n\
                        6000-7000 ---p 00000000 00:00 0\n";

    #[test]
    fn each_page_needs_the_protection() {
        assert!(covers(MAPS, 0x1000, 0x3000, true) && covers(MAPS, 0x1000, 0x5000, false));
        assert!(!covers(MAPS, 0x1000, 0x3001, true), "one page is read-only");
        assert!(covers(MAPS, 0x4010, 0x4020, true));
        assert!(!covers(MAPS, 0x4000, 0x5001, false), "a page is not mapped");
        assert!(!covers(MAPS, 0x6000, 0x6001, false), "PROT_NONE");
        assert!(!covers(MAPS, 0x800, 0x1800, false), "the first page is not mapped");
    }

    #[test]
    fn maps_agree_with_the_kernel_about_own_memory() {
        static TEXT: [u8; 64] = [7; 64];
        let mut own = [0u8; 64];
        let range = |bytes: *const u8| (bytes as usize & !(page_size() - 1), bytes as usize + 64);
        let (start, end) = range(own.as_mut_ptr());
        assert_eq!(permitted(start, end, true), Ok(()));
        let (start, end) = range(TEXT.as_ptr());
        assert_eq!(permitted(start, end, false), Ok(()));
        assert_eq!(permitted(start, end, true), Err(libc::EFAULT));
        if has_populate() {
            assert_eq!(advise(start, end - start, libc::MADV_POPULATE_WRITE), Err(libc::EINVAL));
        }
    }

    /// A region of several pieces, the last one a single page, and one page that is not mapped behind it.
    #[test]
    fn each_piece_of_a_region_is_faulted_in() {
        let (length, page) = (2 * PIECE + page_size(), page_size());
        let (flags, rights) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping, which nothing else uses.
        let region = unsafe { libc::mmap(std::ptr::null_mut(), length + page, rights, flags, -1, 0) };
        assert_ne!(region, libc::MAP_FAILED);
        // SAFETY: the last page of that mapping.
        assert_eq!(unsafe { libc::munmap(region.wrapping_byte_add(length), page) }, 0);
        assert_eq!(populate("ibv_reg_mr", region, length, true), Ok(()));
        let mut resident = vec![0; length / page];
        // SAFETY: the mapping, and a byte for each of its pages.
        assert_eq!(unsafe { libc::mincore(region, length, resident.as_mut_ptr()) }, 0);
        assert!(!has_populate() || resident.iter().all(|page| page & 1 == 1), "a page is missing");
        assert_eq!(populate("ibv_reg_mr", region, length + page, true), Err(libc::EFAULT));
        // SAFETY: the mapping, which this test made.
        assert_eq!(unsafe { libc::munmap(region, length) }, 0);
    }
}
