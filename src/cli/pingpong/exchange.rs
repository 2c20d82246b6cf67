//! The exchange of addresses over TCP, compatible with rdma-core's example programs.
//!
//! ```text
//! client -> server   52 bytes: "LLLL:QQQQQQ:PPPPPP:" + the GID as 32 hex digits + NUL   (lid, QPN, PSN)
//! server -> client   its own address in the same form, once it is ready to receive
//! client -> server   "done" + NUL
//! ```
//!
//! Then both close the connection; all else is RDMA (`libibverbs/examples/rc_pingpong.c` of rdma-core).
//! `ibv_srq_pingpong` sends 256 such addresses; those without a QP are zeros (`srq_pingpong.c`).

use std::io;

use roxie::host::Endpoint;
use roxie::verbs::{Gid, Psn, Qpn};
use roxie_report::failure::Failure;

use crate::stream::{PATIENCE, Stream};

/// Bytes of an address message, NUL included.
const MESSAGE: usize = 52;
/// Addresses sent by an end with one QP.
pub(super) const ONE: usize = 1;
/// Addresses sent by an end with a shared receive queue, whatever its number of QPs.
pub(super) const SHARED_SLOTS: usize = 256;
/// Address in place of a missing QP.
const NONE: &[u8; MESSAGE] = b"0000:000000:000000:00000000000000000000000000000000\0";
/// The client's last message.
const DONE: &[u8; 5] = b"done\0";

/// Runs the client; returns the server's endpoints, as many as in `own`. `slots` is the number of addresses that each
/// side sends.
pub(super) fn as_client(
    stream: &mut dyn Stream,
    own: &[Endpoint],
    slots: usize,
) -> Result<Vec<Endpoint>, Failure> {
    stream.limit_reads(Some(PATIENCE)).map_err(|e| broken("set a limit", &e))?;
    stream.write_all(&addresses(own, slots)).map_err(|e| broken("send the local address", &e))?;
    let there = read_endpoints(stream, own.len(), slots)?;
    stream.write_all(DONE).map_err(|e| broken("confirm the remote address", &e))?;
    Ok(there)
}

/// Runs the server. Calls `connect` after receiving the client's addresses and before answering.
pub(super) fn as_server(
    stream: &mut dyn Stream,
    own: &[Endpoint],
    slots: usize,
    connect: impl FnOnce(&[Endpoint]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    stream.limit_reads(Some(PATIENCE)).map_err(|e| broken("set a limit", &e))?;
    let there = read_endpoints(stream, own.len(), slots)?;
    connect(&there)?;
    stream.write_all(&addresses(own, slots)).map_err(|e| broken("send the local address", &e))?;
    let mut done = [0; DONE.len()];
    stream.read_exact(&mut done[..]).map_err(|e| broken("hear that the client is ready", &e))?;
    if &done != DONE {
        return Err(Failure::Peer(format!(
            "the client ended the exchange with {:?} instead of \"done\"",
            String::from_utf8_lossy(&done)
        )));
    }
    Ok(())
}

/// Encodes all endpoints, padded with zero addresses to `slots`.
fn addresses(own: &[Endpoint], slots: usize) -> Vec<u8> {
    let there_are = own.iter().map(encode);
    there_are.chain(std::iter::repeat(*NONE)).take(slots).flatten().collect()
}

fn broken(what: &str, error: &io::Error) -> Failure {
    Failure::Peer(match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => format!(
            "could not {what}: the peer closed the TCP connection in the middle of the exchange; its own output \
             should say why"
        ),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!(
                "could not {what}: the peer sent nothing for {} s; is it a pingpong program?",
                PATIENCE.as_secs()
            )
        }
        _ => format!("could not {what}: {error}"),
    })
}

/// Reads `slots` addresses and returns the first `count`.
fn read_endpoints(stream: &mut dyn Stream, count: usize, slots: usize) -> Result<Vec<Endpoint>, Failure> {
    let mut there = Vec::with_capacity(count);
    for at in 0..slots {
        let mut message = [0; MESSAGE];
        stream.read_exact(&mut message).map_err(|e| broken("read the remote address", &e))?;
        if at < count {
            if at > 0 && &message == NONE {
                return Err(Failure::Peer(format!(
                    "the peer has {at} QPs, this end has {count}: start both with the same -q"
                )));
            }
            there.push(decode(&message).map_err(Failure::Peer)?);
        }
    }
    Ok(there)
}

/// Encodes an endpoint. RoCE has no LIDs, so the LID is 0.
fn encode(own: &Endpoint) -> [u8; MESSAGE] {
    let gid: String = own.gid.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("{:04x}:{:06x}:{:06x}:{gid}\0", 0, own.qpn.value(), own.psn.value());
    text.as_bytes().try_into().expect("all fields have a fixed width")
}

fn decode(message: &[u8; MESSAGE]) -> Result<Endpoint, String> {
    let text = String::from_utf8_lossy(message);
    let text = text.split('\0').next().unwrap_or_default();
    let bad = || format!("the peer sent {text:?}; an address is lid:qpn:psn:gid in hexadecimal");
    let fields: Vec<&str> = text.split(':').collect();
    let [lid, qpn, psn, gid] = fields[..] else { return Err(bad()) };
    let number = |field: &str, most: u32| {
        u32::from_str_radix(field, 16).ok().filter(|value| *value <= most).ok_or_else(bad)
    };
    number(lid, 0xffff)?;
    let (qpn, psn) = (number(qpn, 0xff_ffff)?, number(psn, 0xff_ffff)?);
    if gid.len() != 32 {
        return Err(bad());
    }
    let gid = u128::from_str_radix(gid, 16).map_err(|_| bad())?;
    if gid == 0 {
        return Err(
            "the peer sent no GID: RoCE needs one, start it with -g and the index of its RoCE v2 GID (the \
                    GIDs are in /sys/class/infiniband/*/ports/1/gids, or in `ibv_devinfo -v`)"
                .into(),
        );
    }
    Ok(Endpoint::new(Qpn::new(qpn), Psn::new(psn), Gid(gid.to_be_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    #[test]
    fn address_has_the_stock_format() {
        let gid = Gid::from(std::net::Ipv4Addr::new(192, 0, 2, 1));
        let own = Endpoint::new(Qpn::new(0x11), Psn::new(0xabcdef), gid);
        let bytes = encode(&own);
        assert_eq!(&bytes, b"0000:000011:abcdef:00000000000000000000ffffc0000201\0");
        assert_eq!(decode(&bytes), Ok(own));
    }

    #[test]
    fn shared_end_sends_256_addresses() {
        let gid = Gid::from(std::net::Ipv4Addr::new(192, 0, 2, 1));
        let own = [1, 2].map(|qpn| Endpoint::new(Qpn::new(qpn), Psn::new(7), gid));
        let bytes = addresses(&own, SHARED_SLOTS);
        assert_eq!(bytes.len(), 256 * 52);
        assert_eq!(bytes[..52], encode(&own[0]));
        assert_eq!(bytes[52..104], encode(&own[1]));
        assert!(bytes[104..].chunks(52).all(|message| message == NONE));
    }

    #[test]
    fn peer_without_gid_gets_advice() {
        let said = decode(&message("0000:000011:abcdef:00000000000000000000000000000000")).unwrap_err();
        assert!(said.contains("start it with -g"), "{said}");
    }

    #[test]
    fn invalid_address_is_refused_and_quoted() {
        for text in ["GET / HTTP/1.1", "0000:1000000:000001:00000000000000000000ffffc0000201", "0:1:2:3", ""]
        {
            let said = decode(&message(text)).unwrap_err();
            assert!(said.contains("lid:qpn:psn:gid") && said.contains(text), "{text}: {said}");
        }
    }
}
