//! The routines that may fault.
//!
//! Written in assembly, because no compiler promises which instructions access memory. Each is a leaf without a stack
//! frame, and changes only registers that a callee may change. The handler may therefore jump from any of their
//! instructions to the exit, which returns 1.
//!
//! A copy ascends, and stores no byte twice. Its last store, of 8, 4, 2 or 1 bytes, is a single one after all others
//! (by the store order of x86, by `stlr` on aarch64). Earlier stores have up to 32 bytes; `rep movsb` would be no
//! faster for the payload of a packet.

use std::arch::global_asm;

/// The result of a guarded access to a word, in two registers.
#[repr(C)]
struct Word {
    /// 0, or 1 if the word is missing.
    fault: u64,
    value: u64,
}

unsafe extern "C" {
    fn roxie_guarded_copy(to: *mut u8, from: *const u8, body: usize, last: usize) -> u64;
    #[cfg(target_arch = "x86_64")]
    fn roxie_guarded_copy_avx(to: *mut u8, from: *const u8, body: usize, last: usize) -> u64;
    fn roxie_guarded_load(at: *const u64) -> Word;
    fn roxie_guarded_swap(at: *mut u64, expected: u64, new: u64) -> Word;
    static roxie_guarded_begin: u8;
    static roxie_guarded_end: u8;
    static roxie_guarded_exit: u8;
}

/// The memory is missing, or does not allow the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shared) struct Missing;

fn judge(fault: u64) -> Result<(), Missing> {
    if fault == 0 { Ok(()) } else { Err(Missing) }
}

/// Copies `body` bytes, then `last` (8, 4, 2, 1 or 0) by one store. On error, bytes before the missing page may have
/// been copied.
///
/// # Safety
/// All that is mapped of `body + last` bytes at `to` is for the NIC to write, and at `from` to read; they do not
/// overlap. `to + body` is a multiple of `last`.
#[inline]
pub(in crate::shared) unsafe fn copy(
    to: *mut u8,
    from: *const u8,
    body: usize,
    last: usize,
) -> Result<(), Missing> {
    #[cfg(target_arch = "x86_64")]
    {
        /// Bytes; shorter copies are as fast without AVX.
        const WIDE: usize = 256;
        if body >= WIDE && std::arch::is_x86_feature_detected!("avx") {
            // SAFETY: the caller's promise; the processor has the instructions. The handler turns an access to an
            // unmapped page into an error.
            return judge(unsafe { roxie_guarded_copy_avx(to, from, body, last) });
        }
    }
    // SAFETY: the caller's promise. The handler turns an access to an unmapped page into an error.
    judge(unsafe { roxie_guarded_copy(to, from, body, last) })
}

/// Runs `operation` on the 8 bytes at `at` as the processor's own atomics would, and returns the value before. The page
/// must be writable even if `operation` returns `None`, which leaves the value as it is.
///
/// # Safety
/// `at` is a multiple of 8. If it is mapped, it is for the NIC to change, and all other accesses there are atomic.
#[inline]
pub(in crate::shared) unsafe fn update(
    at: *mut u64,
    operation: impl Fn(u64) -> Option<u64>,
) -> Result<u64, Missing> {
    // SAFETY: the caller's promise. The handler turns an access to an unmapped page into an error.
    let Word { fault, value: mut before } = unsafe { roxie_guarded_load(at) };
    judge(fault)?;
    loop {
        let new = operation(before).unwrap_or(before);
        // SAFETY: `at` is aligned and for the NIC to change, as the caller promises. The handler turns an access to a
        // page unmapped since into an error.
        let Word { fault, value } = unsafe { roxie_guarded_swap(at, before, new) };
        judge(fault)?;
        if value == before {
            return Ok(before);
        }
        before = value;
    }
}

/// Returns where a thread resumes that faulted at this instruction, or `None` if the instruction is not one of these
/// routines.
pub(super) fn exit_for(instruction: usize) -> Option<usize> {
    let range = (&raw const roxie_guarded_begin) as usize..(&raw const roxie_guarded_end) as usize;
    range.contains(&instruction).then_some((&raw const roxie_guarded_exit) as usize)
}

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.roxie_guarded, \"ax\", @progbits",
    ".globl roxie_guarded_begin, roxie_guarded_end, roxie_guarded_exit",
    ".globl roxie_guarded_copy, roxie_guarded_copy_avx, roxie_guarded_load, roxie_guarded_swap",
    ".hidden roxie_guarded_begin, roxie_guarded_end, roxie_guarded_exit",
    ".hidden roxie_guarded_copy, roxie_guarded_copy_avx, roxie_guarded_load, roxie_guarded_swap",
    ".type roxie_guarded_copy, @function",
    ".type roxie_guarded_copy_avx, @function",
    ".type roxie_guarded_load, @function",
    ".type roxie_guarded_swap, @function",
    ".p2align 5",
    "roxie_guarded_begin:",
    // rdi: to, rsi: from, rdx: bytes before the last store, rcx: bytes of the last store.
    "roxie_guarded_copy_avx:",
    ".cfi_startproc",
    "sub rdx, 128",
    "jb 3f",
    "2:",
    "vmovups ymm0, [rsi]",
    "vmovups ymm1, [rsi + 32]",
    "vmovups ymm2, [rsi + 64]",
    "vmovups ymm3, [rsi + 96]",
    "vmovups [rdi], ymm0",
    "vmovups [rdi + 32], ymm1",
    "vmovups [rdi + 64], ymm2",
    "vmovups [rdi + 96], ymm3",
    "sub rsi, -128",
    "sub rdi, -128",
    "sub rdx, 128",
    "jae 2b",
    "vzeroupper",
    "3:",
    "sub rdx, -128",
    ".cfi_endproc",
    // Falls through to roxie_guarded_copy with the remaining bytes.
    "roxie_guarded_copy:",
    ".cfi_startproc",
    "sub rdx, 64",
    "jb 3f",
    "2:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "sub rdx, 64",
    "jae 2b",
    "3:",
    // The low six bits of rdx hold the number of bytes left.
    "test dl, 63",
    "je 9f",
    "test dl, 32",
    "je 4f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "add rsi, 32",
    "add rdi, 32",
    "4:",
    "test dl, 16",
    "je 5f",
    "movups xmm0, [rsi]",
    "movups [rdi], xmm0",
    "add rsi, 16",
    "add rdi, 16",
    "5:",
    "test dl, 8",
    "je 6f",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "add rsi, 8",
    "add rdi, 8",
    "6:",
    "test dl, 7",
    "je 9f",
    "test dl, 4",
    "je 7f",
    "mov eax, [rsi]",
    "mov [rdi], eax",
    "add rsi, 4",
    "add rdi, 4",
    "7:",
    "test dl, 2",
    "je 8f",
    "movzx eax, word ptr [rsi]",
    "mov [rdi], ax",
    "add rsi, 2",
    "add rdi, 2",
    "8:",
    "test dl, 1",
    "je 9f",
    "movzx eax, byte ptr [rsi]",
    "mov [rdi], al",
    "inc rsi",
    "inc rdi",
    "9:",
    "cmp ecx, 8",
    "jne 22f",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "xor eax, eax",
    "ret",
    "22:",
    "test ecx, ecx",
    "je 25f",
    "cmp ecx, 2",
    "je 23f",
    "jb 24f",
    "mov eax, [rsi]",
    "mov [rdi], eax",
    "xor eax, eax",
    "ret",
    "23:",
    "movzx eax, word ptr [rsi]",
    "mov [rdi], ax",
    "xor eax, eax",
    "ret",
    "24:",
    "movzx eax, byte ptr [rsi]",
    "mov [rdi], al",
    "25:",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    // rdi: address. Returns eax: 0, rdx: the value.
    "roxie_guarded_load:",
    ".cfi_startproc",
    "mov rdx, [rdi]",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    // rdi: address, rsi: expected, rdx: new. Returns eax: 0, rdx: the value before.
    "roxie_guarded_swap:",
    ".cfi_startproc",
    "mov rax, rsi",
    "lock cmpxchg [rdi], rdx",
    "mov rdx, rax",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    "roxie_guarded_end:",
    "roxie_guarded_exit:",
    ".cfi_startproc",
    "mov eax, 1",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text.roxie_guarded, \"ax\", %progbits",
    ".globl roxie_guarded_begin, roxie_guarded_end, roxie_guarded_exit",
    ".globl roxie_guarded_copy, roxie_guarded_load, roxie_guarded_swap",
    ".hidden roxie_guarded_begin, roxie_guarded_end, roxie_guarded_exit",
    ".hidden roxie_guarded_copy, roxie_guarded_load, roxie_guarded_swap",
    ".type roxie_guarded_copy, %function",
    ".type roxie_guarded_load, %function",
    ".type roxie_guarded_swap, %function",
    ".p2align 5",
    "roxie_guarded_begin:",
    // x0: to, x1: from, x2: bytes before the last store, x3: bytes of the last store.
    "roxie_guarded_copy:",
    ".cfi_startproc",
    "subs x2, x2, #64",
    "b.lo 3f",
    "2:",
    "ldp q0, q1, [x1]",
    "ldp q2, q3, [x1, #32]",
    "stp q0, q1, [x0]",
    "stp q2, q3, [x0, #32]",
    "add x1, x1, #64",
    "add x0, x0, #64",
    "subs x2, x2, #64",
    "b.hs 2b",
    "3:",
    // The low six bits of x2 hold the number of bytes left.
    "tbz w2, #5, 4f",
    "ldp q0, q1, [x1], #32",
    "stp q0, q1, [x0], #32",
    "4:",
    "tbz w2, #4, 5f",
    "ldr q0, [x1], #16",
    "str q0, [x0], #16",
    "5:",
    "tbz w2, #3, 6f",
    "ldr x4, [x1], #8",
    "str x4, [x0], #8",
    "6:",
    "tbz w2, #2, 7f",
    "ldr w4, [x1], #4",
    "str w4, [x0], #4",
    "7:",
    "tbz w2, #1, 8f",
    "ldrh w4, [x1], #2",
    "strh w4, [x0], #2",
    "8:",
    "tbz w2, #0, 9f",
    "ldrb w4, [x1], #1",
    "strb w4, [x0], #1",
    "9:",
    "cbz w3, 25f",
    "tbz w3, #3, 22f",
    "ldr x4, [x1]",
    "stlr x4, [x0]",
    "b 25f",
    "22:",
    "tbz w3, #2, 23f",
    "ldr w4, [x1]",
    "stlr w4, [x0]",
    "b 25f",
    "23:",
    "tbz w3, #1, 24f",
    "ldrh w4, [x1]",
    "stlrh w4, [x0]",
    "b 25f",
    "24:",
    "ldrb w4, [x1]",
    "stlrb w4, [x0]",
    "25:",
    "mov x0, #0",
    "ret",
    ".cfi_endproc",
    // x0: address. Returns x0: 0, x1: the value.
    "roxie_guarded_load:",
    ".cfi_startproc",
    "ldar x1, [x0]",
    "mov x0, #0",
    "ret",
    ".cfi_endproc",
    // x0: address, x1: expected, x2: new. Returns x0: 0, x1: the value before.
    "roxie_guarded_swap:",
    ".cfi_startproc",
    "2:",
    "ldaxr x3, [x0]",
    "cmp x3, x1",
    // A value other than the expected one is stored back unchanged: the page has to be writable.
    "csel x4, x2, x3, eq",
    "stlxr w5, x4, [x0]",
    "cbnz w5, 2b",
    "mov x1, x3",
    "mov x0, #0",
    "ret",
    ".cfi_endproc",
    "roxie_guarded_end:",
    "roxie_guarded_exit:",
    ".cfi_startproc",
    "mov x0, #1",
    "ret",
    ".cfi_endproc",
    ".popsection",
);
