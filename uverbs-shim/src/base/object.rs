//! A C structure and the Rust object behind it, in one allocation. C holds a pointer to the structure, which comes
//! first.

use std::ffi::{c_char, c_int};
use std::ptr;

use crate::base::fork;

/// An error number of `errno.h`.
pub(crate) type Errno = c_int;

/// A structure of the verbs API with an object of this library behind it.
pub(crate) trait VerbsStruct: Copy {
    /// The structure allocated: this one, or a longer one that begins with it.
    type Extended: Copy;
    /// The object behind the structure.
    type Inner;
}

/// The allocation; see the module documentation.
#[repr(C)]
pub(crate) struct Object<W, B> {
    face: W,
    /// Generation of the process that made it. A child of that process must not use it.
    generation: u32,
    inner: B,
}

/// Allocates an object and gives it to C.
pub(crate) fn give<C: VerbsStruct<Extended = C>>(face: C, inner: C::Inner) -> *mut C {
    let object: Object<C, C::Inner> = Object { face, generation: fork::generation(), inner };
    Box::into_raw(Box::new(object)).cast()
}

/// Returns the object behind a structure.
///
/// # Errors
/// `EINVAL` for a null pointer; `EIO` for an object that was made before this process was forked.
///
/// # Safety
/// `face` is null, or came from [`give`] and was not taken back. The result must not be used after it is taken back.
pub(crate) unsafe fn object_of<'a, C: VerbsStruct>(face: *const C) -> Result<&'a C::Inner, Errno> {
    if face.is_null() {
        return Err(libc::EINVAL);
    }
    let object = face.cast::<Object<C::Extended, C::Inner>>();
    // SAFETY: the caller's promise. References cover only the parts that C never writes.
    let (generation, inner) = unsafe { ((*object).generation, &(*object).inner) };
    if generation == fork::generation() { Ok(inner) } else { Err(libc::EIO) }
}

/// Takes an object back from C, to drop it.
///
/// # Safety
/// As for [`object_of`], and no reference to the object is left.
pub(crate) unsafe fn take_back<C: VerbsStruct>(face: *mut C) -> Box<Object<C::Extended, C::Inner>> {
    // SAFETY: the caller's promise: `give` allocated it as a box.
    unsafe { Box::from_raw(face.cast()) }
}

/// Returns the pointer, or null with `errno` set.
pub(crate) fn pointer<T>(result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        ptr::null_mut()
    })
}

/// Returns 0 or a positive error number. Also sets `errno`, which some programs check.
pub(crate) fn code(result: Result<(), Errno>) -> c_int {
    result.map_or_else(
        |errno| {
            set_errno(errno);
            errno
        },
        |()| 0,
    )
}

/// Returns `errno`, and sets the variable if it is not 0.
pub(crate) fn code_of(errno: Errno) -> c_int {
    if errno != 0 {
        set_errno(errno);
    }
    errno
}

/// Returns 0, or -1 with `errno` set.
pub(crate) fn minus_one(result: Result<(), Errno>) -> c_int {
    if code(result) == 0 { 0 } else { -1 }
}

pub(crate) fn set_errno(errno: Errno) {
    nix::errno::Errno::from_raw(errno).set();
}

/// Writes through a pointer, unless the caller passed null.
///
/// # Safety
/// `to` is null, or may be written.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not null, as checked, so it may be written, as the caller promises.
        unsafe { to.write(value) };
    }
}

/// Sets `errno` and returns -1.
pub(crate) fn failed(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// Copies text to a C array, truncated to fit, with a terminating zero.
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
    fn text_is_truncated_and_null_terminated() {
        let mut array = [1 as c_char; 4];
        fill(&mut array, "abcdef");
        assert_eq!(array[..3], [b'a' as c_char, b'b' as c_char, b'c' as c_char]);
    }
}
