//! CRC-32 by carry-less multiplication, 16 bytes at a time. The instructions (PCLMULQDQ, AVX) exist on x86
//! since about 2011.
//!
//! A block of 16 bytes is a polynomial. A bit that lies n bits before the end of a message counts as x^n,
//! therefore a block may be multiplied by x^128 modulo the generator and added to the next block. A message
//! is thus folded into one block, and that block into 32 bits (V. Gopal et al., "Fast CRC Computation for
//! Generic Polynomials Using PCLMULQDQ", Intel 2009). CPUs pipeline multiplications, so a long message is
//! folded in four independent lanes.
#![allow(unsafe_code)]

/// Bytes of the head: an IPv4 header without options, UDP and BTH.
pub(super) const HEAD: usize = 40;
/// Bits of the head that count as ones, as little-endian words: TOS; TTL and header checksum; UDP checksum;
/// byte 4 of the BTH.
const MASK: [u64; HEAD / 8] = [0xff00, 0xffff_00ff, 0, 0xffff_0000, 0xff];

/// True if the CPU has a feature: detected at run time, or without the standard library as the compiler was told.
#[cfg(target_arch = "x86_64")]
macro_rules! has {
    ($feature:tt) => {{
        #[cfg(feature = "std")]
        let has = std::is_x86_feature_detected!($feature);
        #[cfg(not(feature = "std"))]
        let has = cfg!(target_feature = $feature);
        has
    }};
}

/// Returns the ICRC of a head and the bytes behind it, in two pieces. `None` if the CPU lacks the
/// instructions.
#[inline(always)]
pub(super) fn of(head: &[u8; HEAD], rest: &[u8], more: &[u8]) -> Option<u32> {
    #[cfg(target_arch = "x86_64")]
    if has!("pclmulqdq") && has!("avx") {
        // SAFETY: the function requires the CPU features it is compiled for, and the line above checks for
        // them.
        return Some(unsafe { x86::of(head, rest, more) });
    }
    let _ = (head, rest, more, MASK);
    None
}

/// True if the CPU multiplies several blocks by one instruction (VPCLMULQDQ), which crc32fast uses.
#[inline(always)]
pub(super) fn has_wider() -> bool {
    #[cfg(target_arch = "x86_64")]
    return has!("vpclmulqdq");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Returns `a * b` modulo the generator, both reflected. `None` if the CPU lacks the instructions.
#[inline(always)]
pub(super) fn product(a: u32, b: u32) -> Option<u32> {
    #[cfg(target_arch = "x86_64")]
    if has!("pclmulqdq") && has!("avx") {
        // SAFETY: the function requires the CPU features it is compiled for, and the line above checks for
        // them.
        return Some(unsafe { x86::modular_product(a, b) });
    }
    let _ = (a, b);
    None
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{
        __m128i, _mm_clmulepi64_si128, _mm_cvtsi64_si128, _mm_cvtsi128_si64, _mm_loadu_si128, _mm_or_si128,
        _mm_set_epi64x, _mm_srli_si128, _mm_xor_si128,
    };

    use super::{HEAD, MASK};
    use crate::icrc::{POLYNOMIAL, X, power};

    /// Returns x^n modulo the generator as a factor, shifted by one because the product of two reflected
    /// polynomials comes out one bit too low.
    const fn factor(n: u32) -> i64 {
        (power(X, n) as i64) << 1
    }

    /// Factors for the two halves of a block, to move it 64 bytes (16 bytes) towards the end. The first half
    /// is 64 bits further from the end. Products come out 32 bits too high.
    const BY_64_BYTES: [i64; 2] = [factor(512 + 32), factor(512 - 32)];
    const BY_16_BYTES: [i64; 2] = [factor(128 + 32), factor(128 - 32)];
    const HALF: i64 = factor(128 - 32);
    const QUARTER: i64 = factor(64);
    /// The generator, with its 33rd bit.
    const GENERATOR: i64 = (POLYNOMIAL as i64) << 1 | 1;
    /// x^64 divided by the generator: the inverse of the reflected generator modulo 2^33.
    const QUOTIENT: i64 = {
        let (mut quotient, mut product, mut bit) = (0, 0, 0);
        while bit <= 32 {
            if (product ^ 1) >> bit & 1 != 0 {
                quotient |= 1 << bit;
                product ^= GENERATOR << bit;
            }
            bit += 1;
        }
        quotient
    };
    /// Ones in place of the LRH. The first four bytes meet the initial ones of a CRC-32 and cancel.
    const START: i64 = 0xffff_ffff_0000_0000_u64 as i64;

    #[target_feature(enable = "pclmulqdq,avx")]
    pub(super) fn of(head: &[u8; HEAD], rest: &[u8], more: &[u8]) -> u32 {
        let (first, others) = head.as_chunks::<8>().0.split_at(1);
        let (others, _) = others.as_flattened().as_chunks();
        let [first_mask, masks @ ..] = MASK.map(u64::cast_signed);
        let mut sum = _mm_set_epi64x(i64::from_le_bytes(first[0]) | first_mask, START);
        for (bytes, mask) in others.iter().zip(masks.as_chunks().0) {
            let [low, high] = *mask;
            sum = fold(sum, BY_16_BYTES, _mm_or_si128(block(bytes), _mm_set_epi64x(high, low)));
        }
        let (mut bytes, mut more) = (rest, more);
        loop {
            let crc = update(sum, bytes);
            let Some((first, others)) = more.split_first_chunk() else { return !update_by_words(crc, more) };
            sum = _mm_xor_si128(block(first), _mm_cvtsi64_si128(i64::from(crc)));
            (bytes, more) = (others, &[]);
        }
    }

    #[target_feature(enable = "pclmulqdq,avx")]
    pub(super) fn modular_product(a: u32, b: u32) -> u32 {
        let whole = product(_mm_cvtsi64_si128(i64::from(a)), i64::from(b));
        // The product comes out one bit too low.
        remainder(_mm_cvtsi128_si64(whole).cast_unsigned() << 1)
    }

    /// Folds `bytes` into `sum`, and reduces the result to 32 bits.
    #[inline]
    #[target_feature(enable = "pclmulqdq,avx")]
    fn update(mut sum: __m128i, bytes: &[u8]) -> u32 {
        let (mut blocks, tail) = bytes.as_chunks::<16>();
        if let Some((first, others)) = blocks.split_first_chunk::<4>() {
            // The fourth lane is the last: after the loop, each lane is folded into the next.
            let mut lanes = first.each_ref().map(|bytes| block(bytes));
            lanes[0] = fold(sum, BY_16_BYTES, lanes[0]);
            let (rounds, others) = others.as_chunks::<4>();
            for round in rounds {
                for (lane, bytes) in lanes.iter_mut().zip(round) {
                    *lane = fold(*lane, BY_64_BYTES, block(bytes));
                }
            }
            sum = lanes[0];
            for lane in &lanes[1..] {
                sum = fold(sum, BY_16_BYTES, *lane);
            }
            blocks = others;
        }
        for bytes in blocks {
            sum = fold(sum, BY_16_BYTES, block(bytes));
        }
        let sum = _mm_xor_si128(product(sum, HALF), _mm_srli_si128::<8>(sum));
        let low = _mm_cvtsi64_si128(_mm_cvtsi128_si64(sum) & 0xffff_ffff);
        let sum = _mm_xor_si128(product(low, QUARTER), _mm_srli_si128::<4>(sum));
        let crc = remainder(_mm_cvtsi128_si64(sum).cast_unsigned());
        if tail.is_empty() { crc } else { update_by_words(crc, tail) }
    }

    /// Updates a CRC by 4 bytes at a time, for less than a block.
    #[inline]
    #[target_feature(enable = "pclmulqdq,avx")]
    fn update_by_words(mut crc: u32, bytes: &[u8]) -> u32 {
        let (words, tail) = bytes.as_chunks();
        for word in words {
            crc = remainder(u64::from(crc ^ u32::from_le_bytes(*word)));
        }
        for byte in tail {
            let sum = crc ^ u32::from(*byte);
            crc = sum >> 8 ^ remainder(u64::from(sum << 24));
        }
        crc
    }

    /// Returns the remainder of 64 bits divided by the generator (Barrett reduction).
    #[inline]
    #[target_feature(enable = "pclmulqdq,avx")]
    fn remainder(sum: u64) -> u32 {
        let low = |bits: u64| _mm_cvtsi64_si128((bits & 0xffff_ffff).cast_signed());
        let quotient = _mm_cvtsi128_si64(product(low(sum), QUOTIENT)).cast_unsigned();
        let multiple = _mm_cvtsi128_si64(product(low(quotient), GENERATOR)).cast_unsigned();
        ((sum ^ multiple) >> 32) as u32
    }

    #[inline]
    #[target_feature(enable = "pclmulqdq,avx")]
    fn fold(sum: __m128i, [first, second]: [i64; 2], next: __m128i) -> __m128i {
        let by = _mm_set_epi64x(second, first);
        let (first, second) = (_mm_clmulepi64_si128::<0x00>(sum, by), _mm_clmulepi64_si128::<0x11>(sum, by));
        _mm_xor_si128(_mm_xor_si128(first, next), second)
    }

    #[inline]
    #[target_feature(enable = "pclmulqdq,avx")]
    fn product(sum: __m128i, by: i64) -> __m128i {
        _mm_clmulepi64_si128::<0x00>(sum, _mm_cvtsi64_si128(by))
    }

    #[inline]
    #[target_feature(enable = "pclmulqdq,avx")]
    fn block(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: `bytes` are 16 readable bytes, and the load requires no alignment.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folded_crc_equals_crc32_at_any_split() {
        let bytes: Vec<u8> = (0..700u32).map(|i| ((i * i) >> 3) as u8).collect();
        let (head, rest) = bytes.split_first_chunk::<HEAD>().expect("longer than a head");
        let masked =
            head.iter().zip(MASK.map(u64::to_le_bytes).into_iter().flatten()).map(|(b, mask)| b | mask);
        let masked: Vec<u8> = core::iter::repeat_n(0xff, 8).chain(masked).collect();
        for length in (0..300).chain([511, 512, 640]) {
            let expected = crc32fast::hash(&[&masked, &rest[..length]].concat());
            for at in [0, 1, 3, 15, 16, 17, 64, 100, length] {
                let Some((first, second)) = rest[..length].split_at_checked(at) else { continue };
                if let Some(crc) = of(head, first, second) {
                    assert_eq!(crc, expected, "{length} bytes behind the head, split at {at}");
                }
            }
        }
    }

    #[test]
    fn product_agrees_with_long_multiplication() {
        let mut state = 7;
        for _ in 0..1000 {
            let bits = next(&mut state);
            let (a, b) = (bits as u32, (bits >> 32) as u32);
            if let Some(product) = product(a, b) {
                assert_eq!(product, crate::icrc::multiply(a, b), "{a:#x} by {b:#x}");
            }
        }
    }

    /// Pseudo-random numbers (xorshift, Marsaglia 2003).
    fn next(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }
}
