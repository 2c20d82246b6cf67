//! The handler of `SIGSEGV` and `SIGBUS`: resumes faulting copies, and passes all other signals on to the program.
//!
//! For a fault of a copy, the handler takes no lock, allocates nothing and reads no thread-local value. For other
//! signals it acts as the kernel would: it sets the mask of the program's action, then calls the program's handler with
//! the same arguments on the current stack (the alternate one, if the thread has one). If the program has no handler,
//! or ignores a signal that cannot be ignored, the default action is restored and the same signal sent again. The
//! process then ends as it would have, with a core dump.
//!
//! If another handler has replaced this one, this one is installed in front of it under another address (an *entry*). A
//! handler that passes signals on to its predecessor so reaches the older entry, and from there the handler before
//! that, instead of a loop.

use std::ffi::{c_int, c_void};
use std::hint;
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence,
};

use super::copy;

/// The signals handled here.
pub const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// How often this handler may be installed in front of another.
const ENTRIES: usize = 4;
/// Words of a signal set.
const WORDS: usize = size_of::<libc::sigset_t>() / size_of::<usize>();

type Handler = unsafe extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// The entries, which differ in their address only.
static ENTRY: [Handler; ENTRIES] = [entry::<0>, entry::<1>, entry::<2>, entry::<3>];

/// The program's action behind each entry, for each signal.
static BEHIND: [[Behind; ENTRIES]; SIGNALS.len()] = [const { [const { Behind::new() }; ENTRIES] }; 2];
/// Number of entries installed, for each signal.
static USED: [AtomicUsize; SIGNALS.len()] = [const { AtomicUsize::new(0) }; 2];
/// Serializes writers of the two above. The thread that holds it takes no signals.
static LOCK: AtomicBool = AtomicBool::new(false);
/// The process in which the handler is installed; 0 if none. A child between `vfork` and `exec` shares this memory, but
/// has signal actions of its own.
static OWNER: AtomicI32 = AtomicI32::new(0);
/// The C library's `sigaction`, if that name leads to another function.
static SIGACTION: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// The type of the C library's `sigaction`.
pub type Sigaction =
    unsafe extern "C-unwind" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

/// Sets the C library's `sigaction`, for a program in which another function has that name.
pub fn use_sigaction(found: Sigaction) {
    SIGACTION.store(found as *mut c_void, Release);
}

/// Calls the C library's `sigaction`, not the one of this module.
///
/// # Safety
/// As for the C library's.
unsafe fn system(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let function = SIGACTION.load(Acquire);
    if function.is_null() {
        // SAFETY: the caller meets the C library's conditions: each pointer is null or a structure, and the function is
        // the library's.
        return unsafe { libc::sigaction(signal, new, old) };
    }
    // SAFETY: the pointer was stored from a function of this type.
    let function = unsafe { mem::transmute::<*mut c_void, Sigaction>(function) };
    // SAFETY: the caller meets the C library's conditions, and this is that function under another name.
    unsafe { function(signal, new, old) }
}

/// Installs the guard of copies, again if another handler precedes it by now. Also unblocks both signals for the
/// calling thread, which a fault would otherwise kill.
pub fn install() {
    if !super::GUARDED {
        return;
    }
    let _turn = SignalLock::take();
    for place in 0..SIGNALS.len() {
        install_one(place);
    }
    // SAFETY: no arguments.
    OWNER.store(unsafe { libc::getpid() }, Release);
    // SAFETY: a set that is filled in before it is used; the mask is the calling thread's alone.
    unsafe {
        let mut ours = empty_set();
        for signal in SIGNALS {
            libc::sigaddset(&mut ours, signal);
        }
        change_mask(libc::SIG_UNBLOCK, &ours, ptr::null_mut());
    }
}

fn install_one(place: usize) {
    let signal = SIGNALS[place];
    let mut now = default_action();
    // SAFETY: `now` has room for the action.
    if unsafe { system(signal, ptr::null(), &mut now) } != 0 || entry_of(&now).is_some() {
        return;
    }
    let used = USED[place].load(Relaxed);
    let (Some(entry), Some(behind)) = (ENTRY.get(used), BEHIND[place].get(used)) else { return };
    behind.store(&now);
    USED[place].store(used + 1, Relaxed);
    let mut ours = default_action();
    ours.sa_sigaction = *entry as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler's code stays loaded: the library is never unloaded.
    unsafe { system(signal, &ours, ptr::null_mut()) };
}

/// Returns which entry an action leads to, if any.
fn entry_of(action: &libc::sigaction) -> Option<usize> {
    ENTRY.iter().position(|entry| *entry as usize == action.sa_sigaction)
}

/// Replaces `sigaction` for the program. Where this module's handler is installed, it stays in front, and the program's
/// action is placed behind it.
///
/// # Safety
/// As for the C library's.
pub unsafe fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: no arguments.
    let owned = || OWNER.load(Acquire) == unsafe { libc::getpid() };
    let Some(place) = SIGNALS.iter().position(|ours| *ours == signal).filter(|_| owned()) else {
        // SAFETY: the caller meets the C library's conditions, and `system` has the same.
        return unsafe { system(signal, new, old) };
    };
    // Read before the lock is taken: `new` and `old` may be the same structure, and a bad pointer must not fault under
    // the lock. SAFETY: the caller promises null or a structure to read; it was compared with null.
    let wanted = (!new.is_null()).then(|| unsafe { *new });
    let turn = SignalLock::take();
    let mut now = default_action();
    // SAFETY: `now` has room for the action.
    let status = unsafe { system(signal, ptr::null(), &mut now) };
    let Some(entry) = entry_of(&now).filter(|_| status == 0) else {
        drop(turn);
        // Another handler is in front, installed by a way that does not lead here.
        // SAFETY: the caller meets the C library's conditions, and `system` has the same.
        return unsafe { system(signal, new, old) };
    };
    let behind = &BEHIND[place][entry];
    let before = behind.load();
    if let Some(wanted) = wanted {
        behind.store(&wanted);
    }
    drop(turn);
    if !old.is_null() {
        // SAFETY: the caller promises null or room for a structure; it was compared with null.
        unsafe { *old = before };
    }
    0
}

/// Resets the state in the child of a fork: the thread that held the lock does not exist there.
pub fn in_child() {
    LOCK.store(false, Release);
    if OWNER.load(Acquire) != 0 {
        // SAFETY: no arguments.
        OWNER.store(unsafe { libc::getpid() }, Release);
    }
}

/// Removes [`SIGNALS`] from a set that is to be blocked.
pub fn keep_unblocked(set: &mut libc::sigset_t) {
    for signal in SIGNALS {
        // SAFETY: a valid set and a valid signal.
        unsafe { libc::sigdelset(set, signal) };
    }
}

unsafe extern "C-unwind" fn entry<const ENTRY: usize>(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: the arguments are those that the kernel passes to a handler, or that another handler passes on.
    unsafe {
        let context = context.cast::<libc::ucontext_t>();
        let code = (*info).si_code;
        // A fault of this instruction: not a signal that was sent, nor a report of a bad page that no instruction has
        // touched.
        let of_instruction = code > 0 && !(signal == libc::SIGBUS && code == libc::BUS_MCEERR_AO);
        if of_instruction && let Some(exit) = copy::exit_for(instruction(context)) {
            go_on_at(context, exit);
            return;
        }
        if let Some(place) = SIGNALS.iter().position(|ours| *ours == signal) {
            pass_on(&BEHIND[place][ENTRY], signal, info, context);
        }
    }
}

/// Handles a signal as the kernel would without this module.
///
/// # Safety
/// The arguments must be a handler's.
unsafe fn pass_on(
    behind: &Behind,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) {
    let action = behind.load();
    // SAFETY: the caller passes the arguments of a handler: `info` is the kernel's, and valid while the handler runs.
    let sent = unsafe { (*info).si_code } <= 0;
    match action.sa_sigaction {
        libc::SIG_IGN if sent => {}
        libc::SIG_DFL | libc::SIG_IGN => end(signal, info),
        handler => {
            if action.sa_flags & libc::SA_RESETHAND != 0 {
                let _turn = SignalLock::take();
                behind.store(&default_action());
            }
            let mut before = empty_set();
            // SAFETY: valid sets. The mask is what the kernel would have set for this handler.
            unsafe {
                let mut mask = action.sa_mask;
                if action.sa_flags & libc::SA_NODEFER == 0 {
                    libc::sigaddset(&mut mask, signal);
                }
                change_mask(libc::SIG_BLOCK, &mask, &mut before);
                if action.sa_flags & libc::SA_NODEFER != 0 {
                    // The module's own handler was installed without SA_NODEFER.
                    let mut this = empty_set();
                    libc::sigaddset(&mut this, signal);
                    change_mask(libc::SIG_UNBLOCK, &this, ptr::null_mut());
                }
            }
            // SAFETY: the program's handler, of the type that its flags state, with the kernel's arguments. The kernel
            // restores the mask from before the signal when this handler returns. If the program's handler jumps
            // instead, the mask is the program's business.
            unsafe {
                if action.sa_flags & libc::SA_SIGINFO != 0 {
                    mem::transmute::<usize, Handler>(handler)(signal, info, context.cast());
                } else {
                    mem::transmute::<usize, unsafe extern "C-unwind" fn(c_int)>(handler)(signal);
                }
                change_mask(libc::SIG_SETMASK, &before, ptr::null_mut());
            }
        }
    }
}

/// Ends the process by this signal, as soon as the handler returns.
fn end(signal: c_int, info: *mut libc::siginfo_t) {
    // SAFETY: the default action, and the same signal, sent to the calling thread, which blocks it until the handler
    // returns.
    unsafe {
        system(signal, &default_action(), ptr::null_mut());
        let (pid, tid) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, info);
    }
}

#[cfg(target_arch = "x86_64")]
unsafe fn instruction(context: *const libc::ucontext_t) -> usize {
    // SAFETY: the caller has a context of the kernel's.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] as usize }
}

#[cfg(target_arch = "x86_64")]
unsafe fn go_on_at(context: *mut libc::ucontext_t, address: usize) {
    // SAFETY: the caller has a context of the kernel's, which the handler may change.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] = address as i64 };
}

#[cfg(target_arch = "aarch64")]
unsafe fn instruction(context: *const libc::ucontext_t) -> usize {
    // SAFETY: the caller has a context of the kernel's.
    unsafe { (*context).uc_mcontext.pc as usize }
}

#[cfg(target_arch = "aarch64")]
unsafe fn go_on_at(context: *mut libc::ucontext_t, address: usize) {
    // SAFETY: the caller has a context of the kernel's, which the handler may change.
    unsafe { (*context).uc_mcontext.pc = address as u64 };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn instruction(_context: *const libc::ucontext_t) -> usize {
    0
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn go_on_at(_context: *mut libc::ucontext_t, _address: usize) {}

fn empty_set() -> libc::sigset_t {
    // SAFETY: plain numbers; all zeroes is a set, the empty one.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

fn default_action() -> libc::sigaction {
    // SAFETY: plain numbers and a null; all zeroes is the default action.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// The program's action: a seqlock, which handlers read without the lock, and writers write under it.
#[derive(Debug)]
struct Behind {
    /// Odd while a writer is at work.
    version: AtomicU32,
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: [AtomicUsize; WORDS],
}

impl Behind {
    const fn new() -> Behind {
        let (handler, flags) = (AtomicUsize::new(libc::SIG_DFL), AtomicI32::new(0));
        Behind { version: AtomicU32::new(0), handler, flags, mask: [const { AtomicUsize::new(0) }; WORDS] }
    }

    fn load(&self) -> libc::sigaction {
        loop {
            let version = self.version.load(Acquire);
            let mut action = default_action();
            action.sa_sigaction = self.handler.load(Relaxed);
            action.sa_flags = self.flags.load(Relaxed);
            let words: [usize; WORDS] = std::array::from_fn(|at| self.mask[at].load(Relaxed));
            // SAFETY: a set is an array of words, and these were read from one.
            action.sa_mask = unsafe { mem::transmute::<[usize; WORDS], libc::sigset_t>(words) };
            fence(Acquire);
            if version.is_multiple_of(2) && self.version.load(Relaxed) == version {
                return action;
            }
            hint::spin_loop();
        }
    }

    /// Caller must hold the lock.
    fn store(&self, action: &libc::sigaction) {
        // SAFETY: a set is an array of words.
        let words = unsafe { mem::transmute::<libc::sigset_t, [usize; WORDS]>(action.sa_mask) };
        self.version.fetch_add(1, AcqRel);
        fence(Release);
        self.handler.store(action.sa_sigaction, Relaxed);
        self.flags.store(action.sa_flags, Relaxed);
        for (place, word) in self.mask.iter().zip(words) {
            place.store(word, Relaxed);
        }
        self.version.fetch_add(1, Release);
    }
}

/// The lock. Its holder takes no signals, since a handler might want the lock too.
struct SignalLock {
    mask: libc::sigset_t,
}

impl SignalLock {
    fn take() -> SignalLock {
        let mut mask = empty_set();
        // SAFETY: valid sets.
        unsafe { change_mask(libc::SIG_SETMASK, &all_signals(), &mut mask) };
        while LOCK.swap(true, Acquire) {
            // SAFETY: no arguments.
            unsafe { libc::sched_yield() };
        }
        SignalLock { mask }
    }
}

impl Drop for SignalLock {
    fn drop(&mut self) {
        LOCK.store(false, Release);
        // SAFETY: the mask that `take` read on this thread; null, since the present mask is not needed.
        unsafe { change_mask(libc::SIG_SETMASK, &self.mask, ptr::null_mut()) };
    }
}

fn all_signals() -> libc::sigset_t {
    // SAFETY: a set is an array of words; all ones is the full set.
    unsafe { mem::transmute::<[usize; WORDS], libc::sigset_t>([usize::MAX; WORDS]) }
}

/// Changes the mask of the calling thread by a system call: the library's functions may be interposed, and leave out
/// the very signals that matter here.
///
/// # Safety
/// `before` is null or room for a set.
unsafe fn change_mask(how: c_int, mask: &libc::sigset_t, before: *mut libc::sigset_t) {
    /// Bytes of a set in the kernel: 64 signals.
    const SIZE: usize = 8;
    // SAFETY: the caller's promise; the C library's set is longer.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, mask, before, SIZE) };
}
