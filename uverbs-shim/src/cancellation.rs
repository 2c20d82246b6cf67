//! Threads that are cancelled (`pthread_cancel`): the C library unwinds them where they wait, which must not be in the middle of ours.

use std::ffi::c_int;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;

/// While it lives, the thread cannot be cancelled; what was asked for meanwhile happens later.
#[derive(Debug)]
pub(crate) struct Uncancelled(c_int);

impl Uncancelled {
    #[inline]
    pub(crate) fn new() -> Uncancelled {
        let mut before = 0;
        // SAFETY: a place for a number; it concerns the calling thread alone.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Uncancelled(before)
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a state that it was in; null: nobody wants to know the other.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}
