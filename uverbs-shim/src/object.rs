//! A C structure and the Rust object behind it, in one allocation: C holds a pointer to the former, which comes first.

use std::ffi::{c_char, c_int};
use std::ptr;

use crate::fork;

/// What went wrong, in the numbers of `errno.h`.
pub(crate) type Errno = c_int;

/// A structure of the verbs API that stands for an object of ours.
pub(crate) trait Face: Copy {
    /// The structure that the object has: this one, or a longer one that begins with it.
    type Whole: Copy;
    /// What is behind it.
    type Behind;
}

/// An object: see the module's page.
#[repr(C)]
pub(crate) struct Object<W, B> {
    face: W,
    /// The process that made it, counted in forks: a child of that process must leave it alone.
    generation: u32,
    behind: B,
}

/// Makes an object and gives it to C.
pub(crate) fn give<C: Face<Whole = C>>(face: C, behind: C::Behind) -> *mut C {
    let object: Object<C, C::Behind> = Object { face, generation: fork::generation(), behind };
    Box::into_raw(Box::new(object)).cast()
}

/// What is behind a structure.
///
/// # Errors
/// `EINVAL` for a null pointer; `EIO` for an object of the process that this one was forked from.
///
/// # Safety
/// `face` is null, or came from [`give`] and was not taken back; the result is not used after it is.
pub(crate) unsafe fn behind<'a, C: Face>(face: *const C) -> Result<&'a C::Behind, Errno> {
    if face.is_null() {
        return Err(libc::EINVAL);
    }
    let object = face.cast::<Object<C::Whole, C::Behind>>();
    // SAFETY: the caller's promise. Only the parts that C never writes are referred to.
    let (generation, behind) = unsafe { ((*object).generation, &(*object).behind) };
    if generation == fork::generation() { Ok(behind) } else { Err(libc::EIO) }
}

/// Takes an object back from C, to be dropped.
///
/// # Safety
/// As [`behind`], and nothing refers to it any more.
pub(crate) unsafe fn take_back<C: Face>(face: *mut C) -> Box<Object<C::Whole, C::Behind>> {
    // SAFETY: the caller's promise: `give` made it of a box.
    unsafe { Box::from_raw(face.cast()) }
}

/// For functions that return a pointer: null, with `errno` set, instead of an error.
pub(crate) fn pointer<T>(result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        ptr::null_mut()
    })
}

/// For functions that return 0 or a positive errno. `errno` is set too: some programs look there.
pub(crate) fn code(result: Result<(), Errno>) -> c_int {
    result.map_or_else(
        |errno| {
            set_errno(errno);
            errno
        },
        |()| 0,
    )
}

/// The same for a number that is 0 or the error's.
pub(crate) fn code_of(errno: Errno) -> c_int {
    if errno != 0 {
        set_errno(errno);
    }
    errno
}

/// For functions that return 0, or -1 with `errno` set.
pub(crate) fn minus_one(result: Result<(), Errno>) -> c_int {
    if code(result) == 0 { 0 } else { -1 }
}

pub(crate) fn set_errno(errno: Errno) {
    nix::errno::Errno::from_raw(errno).set();
}

/// Writes to a pointer that the caller may have left null.
///
/// # Safety
/// It is null or may be written.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not null, as was seen, so it may be written, as the caller promises.
        unsafe { to.write(value) };
    }
}

/// For functions that return -1 and `errno`.
pub(crate) fn failed(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// Copies text to an array of C, cut to fit, with a zero behind it.
pub(crate) fn fill(to: &mut [c_char], text: &str) {
    let room = to.len() - 1;
    for (to, from) in to[..room].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_to_fit_and_ends_with_a_zero() {
        let mut array = [1 as c_char; 4];
        fill(&mut array, "abcdef");
        assert_eq!(array[..3], [b'a' as c_char, b'b' as c_char, b'c' as c_char]);
    }
}
