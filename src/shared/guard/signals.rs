//! The handler of `SIGSEGV` and `SIGBUS`: what is a copy's goes back to it, all else goes on to the program.
//!
//! It takes no lock, allocates nothing and reads no thread-local value on the way of a copy's fault, and for others no more than the
//! system would do: the mask of the program's action, then its handler, with the same arguments, on the stack where ours runs
//! (the alternate one, if the thread has one). Without a handler, or with one that ignores what cannot be ignored, the default action is
//! set and the same signal sent again, so that the process ends as it would have, with its core.
//!
//! Should another handler be found in the place of ours, ours comes before it under another address (an *entry*), so that one that
//! passes on to what was there before it leads to the older entry, and from there to what was before that, and not in a circle.

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

/// What is handled here.
pub const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// How often ours may come before another.
const ENTRIES: usize = 4;
/// Words of a signal set.
const WORDS: usize = size_of::<libc::sigset_t>() / size_of::<usize>();

type Handler = unsafe extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// The entries' addresses, which is all in which they differ.
static ENTRY: [Handler; ENTRIES] = [entry::<0>, entry::<1>, entry::<2>, entry::<3>];

/// The program's actions, behind each entry.
static BEHIND: [[Behind; ENTRIES]; SIGNALS.len()] = [const { [const { Behind::new() }; ENTRIES] }; 2];
/// Entries that were installed, of each signal.
static USED: [AtomicUsize; SIGNALS.len()] = [const { AtomicUsize::new(0) }; 2];
/// Guards the two above against writers. Whoever has it takes no signals.
static LOCK: AtomicBool = AtomicBool::new(false);
/// The process in which ours is installed; 0: none. A child between `vfork` and `exec` has this memory and handlers of its own.
static OWNER: AtomicI32 = AtomicI32::new(0);
/// The C library's `sigaction`, if it is not found under that name.
static SIGACTION: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// As `sigaction` of the C library.
pub type Sigaction =
    unsafe extern "C-unwind" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

/// The C library's `sigaction` is this one: another stands in its place, under its name.
pub fn use_sigaction(found: Sigaction) {
    SIGACTION.store(found as *mut c_void, Release);
}

/// Asks the system, not [`sigaction`] of this module.
///
/// # Safety
/// As with the C library's.
unsafe fn system(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let found = SIGACTION.load(Acquire);
    if found.is_null() {
        // SAFETY: the caller keeps what the C library's asks for: each pointer is null or a structure; this is that function.
        return unsafe { libc::sigaction(signal, new, old) };
    }
    // SAFETY: it was a function of this type.
    let found = unsafe { mem::transmute::<*mut c_void, Sigaction>(found) };
    // SAFETY: the caller keeps what the C library's asks for, and this is that function under another name.
    unsafe { found(signal, new, old) }
}

/// Has copies guarded from now on, and again if somebody else's handler has come before ours. Also has the calling thread
/// take both signals: one that blocks them is killed by a fault.
pub fn install() {
    if !super::GUARDED {
        return;
    }
    let _turn = Turn::take();
    for place in 0..SIGNALS.len() {
        install_one(place);
    }
    // SAFETY: no arguments.
    OWNER.store(unsafe { libc::getpid() }, Release);
    // SAFETY: a set that is filled in before it is used; it concerns the calling thread alone.
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
    // SAFETY: room for what is there.
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
    // SAFETY: a handler for as long as the program's code is there, which it is: the library is never unloaded.
    unsafe { system(signal, &ours, ptr::null_mut()) };
}

/// Which entry of ours an action leads to.
fn entry_of(action: &libc::sigaction) -> Option<usize> {
    ENTRY.iter().position(|entry| *entry as usize == action.sa_sigaction)
}

/// What `sigaction` is to the program: where ours is installed it stays, and the program's is behind it.
///
/// # Safety
/// As with the C library's.
pub unsafe fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: no arguments.
    let owned = || OWNER.load(Acquire) == unsafe { libc::getpid() };
    let Some(place) = SIGNALS.iter().position(|ours| *ours == signal).filter(|_| owned()) else {
        // SAFETY: the caller keeps what the C library's asks for, and `system` asks for the same.
        return unsafe { system(signal, new, old) };
    };
    // The caller's may be the same structure, or bad pointers, on which it faults here and not under the lock.
    // SAFETY: the caller promises null or a structure to read; it was compared with null.
    let wanted = (!new.is_null()).then(|| unsafe { *new });
    let turn = Turn::take();
    let mut now = default_action();
    // SAFETY: room for what is there.
    let asked = unsafe { system(signal, ptr::null(), &mut now) };
    let Some(entry) = entry_of(&now).filter(|_| asked == 0) else {
        drop(turn);
        // Somebody else's is there, by a way that does not lead here.
        // SAFETY: the caller keeps what the C library's asks for, and `system` asks for the same.
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

/// In the child of a fork: nobody else is here, whoever had the lock.
pub fn in_child() {
    LOCK.store(false, Release);
    if OWNER.load(Acquire) != 0 {
        // SAFETY: no arguments.
        OWNER.store(unsafe { libc::getpid() }, Release);
    }
}

/// Takes [`SIGNALS`] out of a set that is to be blocked.
pub fn keep_unblocked(set: &mut libc::sigset_t) {
    for signal in SIGNALS {
        // SAFETY: a set, and a signal that there is.
        unsafe { libc::sigdelset(set, signal) };
    }
}

unsafe extern "C-unwind" fn entry<const ENTRY: usize>(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: what the system hands to a handler, or another handler passes on.
    unsafe {
        let context = context.cast::<libc::ucontext_t>();
        let code = (*info).si_code;
        // A fault of this instruction, and no signal that was sent or tells of a page that nobody has touched.
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

/// As the system would have without ours.
///
/// # Safety
/// The arguments of a handler.
unsafe fn pass_on(
    behind: &Behind,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) {
    let action = behind.load();
    // SAFETY: the caller has the arguments of a handler: `info` is the system's, and there for as long as the handler runs.
    let sent = unsafe { (*info).si_code } <= 0;
    match action.sa_sigaction {
        libc::SIG_IGN if sent => {}
        libc::SIG_DFL | libc::SIG_IGN => end(signal, info),
        handler => {
            if action.sa_flags & libc::SA_RESETHAND != 0 {
                let _turn = Turn::take();
                behind.store(&default_action());
            }
            let mut before = empty_set();
            // SAFETY: sets that are there. The mask is what the system would have set for this handler.
            unsafe {
                let mut mask = action.sa_mask;
                if action.sa_flags & libc::SA_NODEFER == 0 {
                    libc::sigaddset(&mut mask, signal);
                }
                change_mask(libc::SIG_BLOCK, &mask, &mut before);
                if action.sa_flags & libc::SA_NODEFER != 0 {
                    // Ours was installed without.
                    let mut this = empty_set();
                    libc::sigaddset(&mut this, signal);
                    change_mask(libc::SIG_UNBLOCK, &this, ptr::null_mut());
                }
            }
            // SAFETY: the program's handler, of the type that its flags say, with what the system gave. The mask before the signal comes back
            // when ours returns, or is the program's business if its handler jumps.
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

/// Ends the process by this signal as soon as the handler returns.
fn end(signal: c_int, info: *mut libc::siginfo_t) {
    // SAFETY: the default action; the same signal, to the calling thread, which blocks it until it returns.
    unsafe {
        system(signal, &default_action(), ptr::null_mut());
        let (pid, tid) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, info);
    }
}

#[cfg(target_arch = "x86_64")]
unsafe fn instruction(context: *const libc::ucontext_t) -> usize {
    // SAFETY: the caller has a context of the system's.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] as usize }
}

#[cfg(target_arch = "x86_64")]
unsafe fn go_on_at(context: *mut libc::ucontext_t, address: usize) {
    // SAFETY: the caller has a context of the system's, which the handler may change.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] = address as i64 };
}

#[cfg(target_arch = "aarch64")]
unsafe fn instruction(context: *const libc::ucontext_t) -> usize {
    // SAFETY: the caller has a context of the system's.
    unsafe { (*context).uc_mcontext.pc as usize }
}

#[cfg(target_arch = "aarch64")]
unsafe fn go_on_at(context: *mut libc::ucontext_t, address: usize) {
    // SAFETY: the caller has a context of the system's, which the handler may change.
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

/// The program's action: read by handlers, which wait for nobody, and written under the lock.
#[derive(Debug)]
struct Behind {
    /// Odd while it is written.
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
            // SAFETY: a set is words, and these were one.
            action.sa_mask = unsafe { mem::transmute::<[usize; WORDS], libc::sigset_t>(words) };
            fence(Acquire);
            if version.is_multiple_of(2) && self.version.load(Relaxed) == version {
                return action;
            }
            hint::spin_loop();
        }
    }

    /// Under the lock.
    fn store(&self, action: &libc::sigaction) {
        // SAFETY: a set is words.
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

/// The lock. No handler runs in this thread meanwhile, which might want it too.
struct Turn {
    mask: libc::sigset_t,
}

impl Turn {
    fn take() -> Turn {
        let mut mask = empty_set();
        // SAFETY: sets that are there.
        unsafe { change_mask(libc::SIG_SETMASK, &all_signals(), &mut mask) };
        while LOCK.swap(true, Acquire) {
            // SAFETY: no arguments.
            unsafe { libc::sched_yield() };
        }
        Turn { mask }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        LOCK.store(false, Release);
        // SAFETY: the mask that `take` read on this thread; null: nobody wants to know the present one.
        unsafe { change_mask(libc::SIG_SETMASK, &self.mask, ptr::null_mut()) };
    }
}

fn all_signals() -> libc::sigset_t {
    // SAFETY: a set is words; all ones is the full one.
    unsafe { mem::transmute::<[usize; WORDS], libc::sigset_t>([usize::MAX; WORDS]) }
}

/// Changes the mask of the calling thread, by a system call: functions for that may be made to leave out the very signals that matter
/// here.
///
/// # Safety
/// `before` is null or room for a set.
unsafe fn change_mask(how: c_int, mask: &libc::sigset_t, before: *mut libc::sigset_t) {
    /// Bytes of a set in the kernel: 64 signals.
    const SIZE: usize = 8;
    // SAFETY: the caller's promise; the C library's set is longer.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, mask, before, SIZE) };
}
