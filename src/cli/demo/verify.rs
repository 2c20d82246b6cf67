//! Verifies the data of every operation in full, and that bytes behind it are untouched.

use roxie::verbs::{SendWr, WrOpcode};

use super::Failure;
use super::connection::{Connection, End};

/// Bytes behind each message that must stay unchanged.
const GUARD: usize = 64;
/// Value of the guard bytes.
const GUARD_BYTE: u8 = 0xa5;
/// Atomics of each kind in one check.
const ATOMICS: u64 = 16;

/// Counts of compared bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verified {
    /// Bytes compared.
    pub(super) bytes: u64,
    /// Bytes that differed.
    pub(super) corrupt: u64,
}

impl std::ops::AddAssign for Verified {
    fn add_assign(&mut self, other: Verified) {
        self.bytes += other.bytes;
        self.corrupt += other.corrupt;
    }
}

impl Verified {
    fn compare(&mut self, expected: &[u8], found: &[u8]) {
        self.bytes += expected.len() as u64;
        let same = expected.iter().zip(found).filter(|(e, f)| e == f).count();
        self.corrupt += (expected.len() - same) as u64;
    }

    fn compare_number(&mut self, expected: u64, found: u64) {
        self.compare(&expected.to_ne_bytes(), &found.to_ne_bytes());
    }
}

/// Returns pseudorandom bytes, different for every seed (splitmix64).
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut word = || roxie::random::splitmix(&mut state);
    let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| word().to_le_bytes()).collect();
    bytes.truncate(length);
    bytes
}

/// Runs SEND, WRITE, READ and the atomics in both directions, in sizes around the path MTU and up to `largest`.
pub(super) fn verify(c: &Connection, seed: u64, largest: usize) -> Result<Verified, Failure> {
    let mtu = c.path_mtu();
    let sizes = [1, 3, 64, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 5, largest];
    let mut verified = Verified::default();
    for (turn, (from, to)) in [(&c.near, &c.far), (&c.far, &c.near)].into_iter().enumerate() {
        for (i, size) in sizes.into_iter().enumerate() {
            let seed = seed.wrapping_add((turn * sizes.len() + i) as u64 * 4);
            verified += send(c, from, to, seed, size)?;
            verified += write(c, from, to, seed + 1, size)?;
            verified += read(c, from, to, seed + 2, size)?;
        }
        verified += atomics(c, from, to, seed)?;
    }
    Ok(verified)
}

/// Writes a pattern to the source, and guard bytes over its whole target.
fn prepare(source: &End, target: &End, seed: u64, size: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = pattern(seed, size);
    source.memory.write_at(0, &bytes)?;
    target.memory.write_at(0, &vec![GUARD_BYTE; size + GUARD])?;
    bytes.extend([GUARD_BYTE; GUARD]);
    Ok(bytes)
}

fn check(target: &End, expected: &[u8]) -> Result<Verified, Failure> {
    let mut verified = Verified::default();
    verified.compare(expected, &target.memory.to_vec(0, expected.len())?);
    Ok(verified)
}

fn send(c: &Connection, from: &End, to: &End, seed: u64, size: usize) -> Result<Verified, Failure> {
    let expected = prepare(from, to, seed, size)?;
    to.qp.post_recv(seed, &[to.memory.sge(0, (size + GUARD) as u32)])?;
    from.qp.post_send(&SendWr::default(), &[from.memory.sge(0, size as u32)])?;
    let what = format!("SEND of {size} bytes");
    let received = c.wait(&to.receives, &what)?;
    c.wait(&from.sends, &what)?;
    if received.byte_len as usize != size {
        return Err(Failure::Wrong(format!("{what}: the receive says {} bytes", received.byte_len)));
    }
    check(to, &expected)
}

fn write(c: &Connection, from: &End, to: &End, seed: u64, size: usize) -> Result<Verified, Failure> {
    let expected = prepare(from, to, seed, size)?;
    from.write(to, 0, size as u32)?;
    c.wait(&from.sends, &format!("WRITE of {size} bytes"))?;
    check(to, &expected)
}

fn read(c: &Connection, from: &End, to: &End, seed: u64, size: usize) -> Result<Verified, Failure> {
    let expected = prepare(to, from, seed, size)?;
    let wr = remote(to, WrOpcode::Read);
    from.qp.post_send(&wr, &[from.memory.sge(0, size as u32)])?;
    c.wait(&from.sends, &format!("READ of {size} bytes"))?;
    check(from, &expected)
}

/// Runs fetch-and-adds, then compare-and-swaps of which every other one must fail.
fn atomics(c: &Connection, from: &End, to: &End, seed: u64) -> Result<Verified, Failure> {
    let mut verified = Verified::default();
    let mut value = seed | 1;
    to.memory.write_at(0, &value.to_ne_bytes())?;
    let mut run = |value: &mut u64, wr: SendWr, next: u64| -> Result<(), Failure> {
        from.qp.post_send(&wr, &[from.memory.sge(0, 8)])?;
        c.wait(&from.sends, "ATOMIC")?;
        verified.compare_number(*value, number(from)?);
        *value = next;
        verified.compare_number(*value, number(to)?);
        Ok(())
    };
    for i in 0..ATOMICS {
        let add = seed.wrapping_mul(i + 1) | 0x1_0000_0001;
        let wr = SendWr { compare_add: add, ..remote(to, WrOpcode::FetchAdd) };
        let sum = value.wrapping_add(add);
        run(&mut value, wr, sum)?;
    }
    for i in 0..ATOMICS {
        let fails = i % 2 == 1;
        let swap = value.rotate_left(9) ^ i;
        let compare_add = if fails { !value } else { value };
        let wr = SendWr { compare_add, swap, ..remote(to, WrOpcode::CompareSwap) };
        let next = if fails { value } else { swap };
        run(&mut value, wr, next)?;
    }
    Ok(verified)
}

fn remote(to: &End, opcode: WrOpcode) -> SendWr {
    SendWr { opcode, remote_addr: to.memory.address(), rkey: to.memory.rkey(), ..SendWr::default() }
}

fn number(end: &End) -> Result<u64, Failure> {
    let mut bytes = [0; 8];
    end.memory.read_at(0, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Fills the source of the bandwidth measurement and clears its target.
pub(super) fn fill(c: &Connection, seed: u64) -> Result<(), Failure> {
    let length = c.near.memory.len();
    c.near.memory.write_at(0, &pattern(seed, length))?;
    Ok(c.far.memory.write_at(0, &vec![0; length])?)
}

/// Compares the first `length` bytes that the bandwidth measurement wrote.
pub(super) fn filled(c: &Connection, seed: u64, length: usize) -> Result<Verified, Failure> {
    check(&c.far, &pattern(seed, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_differs_is_counted() {
        let mut v = Verified::default();
        let expected = pattern(7, 100);
        let mut found = expected.clone();
        v.compare(&expected, &found);
        assert_eq!(v, Verified { bytes: 100, corrupt: 0 });
        found[3] ^= 1;
        found[99] ^= 0x80;
        v.compare(&expected, &found);
        assert_eq!(v, Verified { bytes: 200, corrupt: 2 });
    }

    #[test]
    fn missing_bytes_are_corrupt() {
        let mut v = Verified::default();
        v.compare(&[1, 2, 3], &[1]);
        assert_eq!(v, Verified { bytes: 3, corrupt: 2 });
    }

    #[test]
    fn patterns_of_two_seeds_differ_nearly_everywhere() {
        let (a, b) = (pattern(1, 4096), pattern(2, 4096));
        let same = a.iter().zip(&b).filter(|(x, y)| x == y).count();
        assert!(same < 100, "{same} of 4096 bytes are the same");
    }
}
