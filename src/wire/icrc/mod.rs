//! The invariant CRC: a CRC-32 over all fields that switches and routers must not change (IBTA 7.8.1, annex
//! A16.4.3 for RoCE v1, annex A17.4.5.3 for RoCE v2).
//!
//! The CRC begins with eight bytes of ones in place of the LRH, and covers the L3 header up to the end of the
//! pad. Fields that may change in transit count as ones: IPv4 TOS, TTL and checksum; IPv6 or GRH traffic
//! class, flow label and hop limit; the UDP checksum; byte 4 of the BTH. The CRC is stored little-endian.

mod fold;

use crc32fast::Hasher;

use super::Bth;
use super::net::PROTOCOL_UDP;
use crate::frame::Frame;

/// Result of [`Envelope::check_icrc`](super::Envelope::check_icrc).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icrc {
    /// The stored CRC matches the frame.
    Ok,
    /// The stored CRC does not match.
    Bad {
        /// CRC computed over the frame.
        computed: u32,
        /// CRC stored in the frame.
        stored: u32,
    },
}

/// Bytes of ones in place of the LRH. Hashing them for each packet is faster than starting from their CRC:
/// ones and 40 bytes of headers (IPv4, UDP, BTH) are three blocks of 16 bytes, so a payload of whole blocks
/// leaves no remainder.
const ONES: usize = 8;

/// Returns an initial hasher. `Hasher::new` detects CPU features, so it runs once where there is a lock for that.
#[inline(always)]
fn start() -> Hasher {
    #[cfg(feature = "std")]
    {
        static START: std::sync::LazyLock<Hasher> = std::sync::LazyLock::new(Hasher::new);
        START.clone()
    }
    #[cfg(not(feature = "std"))]
    Hasher::new()
}

/// Bytes that are copied to be masked. The last masked byte is at most byte 72 (IPv4 with all options, UDP,
/// five bytes of BTH). With 128, a small frame is hashed in one call.
const HEAD: usize = 128;
/// Bytes from which wider registers are worth their setup.
const LONG: usize = 512;
/// Bytes that crc32fast folds at a time at best. A remainder is handled separately.
const STRIDE: usize = 256;

/// Returns the ICRC of the bytes from the L3 header at `l3_offset` to `end`, exclusive. The first byte tells
/// IPv4 from IPv6 and GRH. The range is cut to the frame.
#[inline(always)]
pub fn compute(frame: &Frame<'_>, l3_offset: usize, end: usize) -> u32 {
    let (a, b) = match frame.a.get(l3_offset..end) {
        Some(covered) => (covered, &[][..]),
        None => frame.slices(l3_offset..end),
    };
    compute_fast(a, b).unwrap_or_else(|| of_pieces(a, b))
}

/// Fast path: the ICRC of IPv4 without options and UDP. `None` for other frames, or if the CPU lacks the
/// instructions.
#[inline(always)]
fn compute_fast(a: &[u8], b: &[u8]) -> Option<u32> {
    if let Some((head, rest)) = a.split_first_chunk() {
        return compute_fast_head(head, rest, b);
    }
    // The UDP port splits the frame at the BTH.
    let (below, (bth, rest)) =
        (<&[u8; fold::HEAD - Bth::LEN]>::try_from(a).ok()?, b.split_first_chunk::<{ Bth::LEN }>()?);
    let mut head = [0; fold::HEAD];
    let (place_below, place) = head.split_at_mut(below.len());
    place_below.copy_from_slice(below);
    place.copy_from_slice(bth);
    compute_fast_head(&head, rest, &[])
}

#[inline(always)]
fn compute_fast_head(head: &[u8; fold::HEAD], rest: &[u8], more: &[u8]) -> Option<u32> {
    //= IBTA 7.8.1: icrc-covers-what-stays-the-same
    if head[0] != 0x45 || head[9] != PROTOCOL_UDP {
        return None;
    }
    if rest.len() < LONG || !fold::has_wider() {
        fold::of(head, rest, more)
    } else {
        of_long(head, rest, more)
    }
}

/// Hashes the head by `fold`, and the rest in wider registers by crc32fast.
#[inline(never)]
fn of_long(head: &[u8; fold::HEAD], rest: &[u8], more: &[u8]) -> Option<u32> {
    let mut crc = Hasher::new_with_initial(fold::of(head, &[], &[])?);
    crc.update(rest);
    crc.update(more);
    Some(crc.finalize())
}

/// Slow path: the ICRC of any frame in two pieces, of which either may be empty.
#[inline(never)]
fn of_pieces(a: &[u8], b: &[u8]) -> u32 {
    let first = a.first().or(b.first()).copied().unwrap_or_default();
    let mut store = [0xff; ONES + HEAD];
    let copied = head_len(first, a.len() + b.len());
    let head = &mut store[ONES..ONES + copied];
    let (from_a, rest_of_a) = a.split_at(copied.min(a.len()));
    let (from_b, rest_of_b) = b.split_at(copied - from_a.len());
    head[..from_a.len()].copy_from_slice(from_a);
    if !from_b.is_empty() {
        head[from_a.len()..].copy_from_slice(from_b);
    }
    mask(head);
    let mut crc = start();
    crc.update(&store[..ONES + copied]);
    for rest in [rest_of_a, rest_of_b] {
        if !rest.is_empty() {
            crc.update(rest);
        }
    }
    crc.finalize()
}

/// Returns how many of `covered` bytes to copy and mask. The rest is hashed in place, fastest in whole
/// strides.
fn head_len(first_byte: u8, covered: usize) -> usize {
    // The last masked byte is byte 4 of the BTH.
    let masked = 8 + 5 + if first_byte >> 4 == 4 { usize::from(first_byte & 0x0f) * 4 } else { 40 };
    let Some(rest) = covered.checked_sub(HEAD) else { return covered };
    let outside_strides = masked + (rest + HEAD - masked) % STRIDE;
    if outside_strides <= HEAD { outside_strides } else { HEAD }
}

/// Returns the ICRC that rdma_rxe of Linux 6.12 to 7.2 puts on a FLUSH. Having hashed the frame, rxe takes
/// the BTH and everything behind it for the payload, and hashes them once more. `icrc` is the correct ICRC.
pub fn of_rxe_flush(frame: &Frame<'_>, icrc: u32, bth_offset: usize, end: usize) -> u32 {
    let end = end.min(frame.len());
    let (a, b) = frame.slices(bth_offset.min(end)..end);
    let mut crc = Hasher::new_with_initial(icrc);
    crc.update(a);
    crc.update(b);
    crc.finalize()
}

/// Sets the bits that the CRC does not cover to ones. A mask beyond the end of `head` is skipped.
fn mask(head: &mut [u8]) {
    if let Some(head) = head.first_chunk_mut()
        && head[0] == 0x45
        && head[9] == PROTOCOL_UDP
    {
        return mask_fast(head);
    }
    let Some(&first) = head.first() else { return };
    //= IBTA 7.8.1: icrc-covers-what-stays-the-same
    let (l4, protocol) = if first >> 4 == 4 {
        ones(head, 1, 1);
        ones(head, 8, 1);
        ones(head, 10, 2);
        (usize::from(first & 0x0f) * 4, head.get(9))
    } else {
        head[0] |= 0x0f;
        ones(head, 1, 3);
        ones(head, 7, 1);
        (40, head.get(6))
    };
    if protocol == Some(&PROTOCOL_UDP) {
        ones(head, l4 + 6, 2);
        ones(head, l4 + 8 + 4, 1);
    } else {
        ones(head, l4 + 4, 1);
    }
}

/// Masks IPv4 without options, UDP, and the BTH up to its last masked byte.
fn mask_fast(head: &mut [u8; 33]) {
    for at in [1, 8, 10, 11, 26, 27, 32] {
        head[at] = 0xff;
    }
}

fn ones(head: &mut [u8], at: usize, n: usize) {
    if let Some(bytes) = head.get_mut(at..at + n) {
        bytes.fill(0xff);
    }
}

/// The generator polynomial, reflected: bit 31 is the coefficient of x^0.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// x^0 in reflected order.
const ONE: u32 = 1 << 31;
/// x.
#[cfg(target_arch = "x86_64")]
const X: u32 = ONE >> 1;
/// x^-1 modulo the polynomial.
const X_INVERSE: u32 = 0xdb71_0641;

/// Returns `a * b` modulo the polynomial.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = ONE;
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = b >> 1 ^ if b & 1 != 0 { POLYNOMIAL } else { 0 };
        bit >>= 1;
    }
    product
}

/// Returns `base^exponent` modulo the polynomial.
const fn power(mut base: u32, mut exponent: u32) -> u32 {
    let mut result = ONE;
    while exponent != 0 {
        if exponent & 1 != 0 {
            result = multiply(result, base);
        }
        base = multiply(base, base);
        exponent >>= 1;
    }
    result
}

/// Returns `start * step^i` for i below 256.
const fn powers(start: u32, step: u32) -> [u32; 256] {
    let mut table = [start; 256];
    let mut i = 1;
    while i < table.len() {
        table[i] = multiply(table[i - 1], step);
        i += 1;
    }
    table
}

/// x^-(32 + 8i): undoes i bytes, and the shift of a message by 32 bits.
static UNDO_BYTES: [u32; 256] = powers(power(X_INVERSE, 32), power(X_INVERSE, 8));
/// x^-(8 * 256 * i): undoes i times 256 bytes.
static UNDO_PAGES: [u32; 256] = powers(ONE, power(X_INVERSE, 8 * 256));

/// Returns the IPv4 identification that explains a CRC, given the CRC computed with identification 0.
///
/// `bytes_after_id` is the number of covered bytes behind the identification: `end - (l3_offset + 6)`. The
/// CRC is linear, so the two CRCs differ by `id * x^(32 + 8 * bytes_after_id)`. `None` if no 16-bit number
/// solves this. One corrupted frame in 65,536 passes by chance.
pub fn solve_ipv4_id(computed_with_id0: u32, stored: u32, bytes_after_id: usize) -> Option<u16> {
    let pages = UNDO_PAGES.get(bytes_after_id >> 8)?;
    let product = |a, b| fold::product(a, b).unwrap_or_else(|| multiply(a, b));
    let undo = product(UNDO_BYTES[bytes_after_id & 0xff], *pages);
    let id = product(computed_with_id0 ^ stored, undo);
    // A polynomial of degree below 16 lies in the upper half, its first wire byte lowest.
    let [0, 0, first, second] = id.to_le_bytes() else { return None };
    Some(u16::from_be_bytes([first, second]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_and_general_icrc_agree_at_every_length() {
        let mut bytes: Vec<u8> = (0..4200u32).map(|i| ((i * i) >> 3) as u8).collect();
        (bytes[0], bytes[9]) = (0x45, PROTOCOL_UDP);
        for length in (40..200).chain([LONG + 39, LONG + 40, LONG + 41, 1064, 4136, 4200]) {
            for at in [28, 40, 41, 100, 600, length] {
                let Some((a, b)) = bytes[..length].split_at_checked(at) else { continue };
                let Some(crc) = compute_fast(a, b) else { continue };
                assert_eq!(crc, of_pieces(a, b), "{length} bytes, split at {at}");
            }
        }
    }

    #[test]
    fn multiplying_by_the_inverse_undoes_a_shift() {
        let x = ONE >> 1;
        assert_eq!(multiply(x, X_INVERSE), ONE);
        assert_eq!(multiply(power(x, 8 * 1234), power(X_INVERSE, 8 * 1234)), ONE);
    }

    #[test]
    fn ipv4_id_is_solved_at_any_distance() {
        for after in [0, 1, 14, 40, 255, 256, 257, 1062, 4140, 9000, 65_529] {
            for id in [0u16, 1, 0x00ff, 0x94cf, 0xff00, 0xffff] {
                let mut bytes: Vec<u8> = (0..after + 6).map(|i| (i * 7 + 3) as u8).collect();
                bytes[4..6].fill(0);
                let zero = crc32fast::hash(&bytes);
                bytes[4..6].copy_from_slice(&id.to_be_bytes());
                let stored = crc32fast::hash(&bytes);
                assert_eq!(solve_ipv4_id(zero, stored, after), Some(id), "{after} bytes after");
            }
        }
    }

    #[test]
    fn no_ipv4_id_explains_flipped_payload_bit() {
        let mut bytes: Vec<u8> = (0..600u32).map(|i| (i * 11) as u8).collect();
        bytes[4..6].fill(0);
        let zero = crc32fast::hash(&bytes);
        for bit in 48..600 * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(solve_ipv4_id(zero, crc32fast::hash(&bytes), 594), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn distance_beyond_ip_packet_has_no_solution() {
        assert_eq!(solve_ipv4_id(1, 1, 1 << 16), None);
    }
}
