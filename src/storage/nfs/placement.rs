//! Where a reply goes: into the message, or into the memory that the call's chunks name (RFC 8166 3.4 and 4.5).

use crate::rpcrdma::{Body, Chunk, Chunks, Header, SHORTEST, Segment, length};
use crate::xdr::padding;

/// RDMA WRITEs of one reply at most.
pub const MOST_PARTS: usize = 64;

/// Bytes that go to a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Memory of the peer's, with the number of bytes that go there.
    pub to: Segment,
    /// Offset of the first of them in what is moved.
    pub from: usize,
}

/// The bytes that move by RDMA WRITE, before the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Nothing.
    Nothing,
    /// The data item. The RPC message goes without it.
    Data,
    /// The RPC message. Only the header is sent.
    Message,
}

/// How a reply leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The header of the message.
    pub header: Header,
    /// The bytes that move.
    pub moved: Moved,
    /// Where it goes.
    pub parts: Vec<Part>,
}

/// A reply for which the call provides no room: it is answered with ERR_CHUNK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// Sizes of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Bytes of the RPC message up to its data item.
    pub head: usize,
    /// Bytes of the data item, which is the message's end; `None`: the results have none that may be moved.
    pub data: Option<usize>,
    /// Bytes of a message that the peer receives.
    pub inline: usize,
}

/// Chooses how the reply to a call with these chunks leaves.
///
/// # Errors
/// If it fits neither the message nor the chunks.
pub fn place(xid: u32, credits: u32, call: &Chunks, lengths: &Lengths) -> Result<Placement, NoRoom> {
    let Lengths { head, data, inline } = *lengths;
    let mut writes: Vec<Chunk> = call.writes.iter().map(|chunk| unused(chunk)).collect();
    // The first write chunk is the data item's, also if that is short.
    if let (Some(data), Some(chunk)) = (data, call.writes.first()) {
        let (used, parts) = fill(chunk, data)?;
        writes[0] = used;
        let chunks = Chunks { writes, ..Chunks::default() };
        if chunks.header_length() + head > inline {
            return Err(NoRoom);
        }
        return Ok(Placement {
            header: Header { xid, credits, body: Body::Message(chunks) },
            moved: if data == 0 { Moved::Nothing } else { Moved::Data },
            parts,
        });
    }
    let message = head + data.map_or(0, |data| data + padding(data));
    let chunks = Chunks { writes, ..Chunks::default() };
    if chunks.header_length() + message <= inline {
        return Ok(Placement {
            header: Header { xid, credits, body: Body::Message(chunks) },
            moved: Moved::Nothing,
            parts: Vec::new(),
        });
    }
    let (reply, parts) = fill(call.reply.as_ref().ok_or(NoRoom)?, message)?;
    let chunks = Chunks { reply: Some(reply), ..chunks };
    if chunks.header_length() > inline {
        return Err(NoRoom);
    }
    Ok(Placement {
        header: Header { xid, credits, body: Body::NoMessage(chunks) },
        moved: Moved::Message,
        parts,
    })
}

/// Bytes of a message without chunks that leave room for the RPC message.
pub fn inline_room(inline: u32) -> usize {
    (inline as usize).saturating_sub(SHORTEST)
}

/// Returns a chunk of which nothing was used: with the same segments, without bytes.
fn unused(chunk: &[Segment]) -> Chunk {
    chunk.iter().map(|segment| Segment { length: 0, ..*segment }).collect()
}

/// Distributes bytes over the segments of a chunk, in order. Returns the chunk with the used lengths, and the parts.
fn fill(chunk: &[Segment], bytes: usize) -> Result<(Chunk, Vec<Part>), NoRoom> {
    if length(chunk) < bytes as u64 {
        return Err(NoRoom);
    }
    let (mut used, mut parts, mut from) = (unused(chunk), Vec::new(), 0);
    for (segment, used) in chunk.iter().zip(&mut used) {
        let take = (bytes - from).min(segment.length as usize);
        if take == 0 {
            continue;
        }
        if parts.len() == MOST_PARTS {
            return Err(NoRoom);
        }
        used.length = take as u32;
        parts.push(Part { to: *used, from });
        from += take;
    }
    Ok((used, parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(handle: u32, length: u32) -> Segment {
        Segment { handle, length, offset: u64::from(handle) << 12 }
    }

    fn lengths(head: usize, data: Option<usize>) -> Lengths {
        Lengths { head, data, inline: 1024 }
    }

    #[test]
    fn short_replies_go_into_the_message() {
        let placed = place(7, 3, &Chunks::default(), &lengths(996, None)).expect("room");
        assert_eq!((placed.moved, placed.parts.len()), (Moved::Nothing, 0));
        assert_eq!(place(7, 3, &Chunks::default(), &lengths(997, None)), Err(NoRoom));
        // Padding counts.
        assert!(place(7, 3, &Chunks::default(), &lengths(892, Some(101))).is_ok());
        assert_eq!(place(7, 3, &Chunks::default(), &lengths(892, Some(105))), Err(NoRoom));
    }

    #[test]
    fn data_fill_the_write_chunk_in_order() {
        let call = Chunks {
            writes: vec![vec![segment(1, 10), segment(2, 10), segment(3, 10)]],
            ..Chunks::default()
        };
        let placed = place(7, 3, &call, &lengths(100, Some(15))).expect("room");
        assert_eq!(placed.moved, Moved::Data);
        assert_eq!(
            placed.parts,
            [Part { to: segment(1, 10), from: 0 }, Part { to: segment(2, 5), from: 10 }]
        );
        let used = vec![vec![segment(1, 10), segment(2, 5), segment(3, 0)]];
        assert_eq!(placed.header.chunks().expect("lists").writes, used);
        assert_eq!(place(7, 3, &call, &lengths(100, Some(31))), Err(NoRoom));
        // A failed call has no data: the chunk returns unused.
        let placed = place(7, 3, &call, &lengths(100, None)).expect("room");
        assert_eq!(length(&placed.header.chunks().expect("lists").writes[0]), 0);
    }

    #[test]
    fn long_replies_go_into_the_reply_chunk() {
        let call = Chunks { reply: Some(vec![segment(1, 2000)]), ..Chunks::default() };
        let placed = place(7, 3, &call, &lengths(1500, None)).expect("room");
        assert_eq!((placed.moved, placed.parts[0].to.length), (Moved::Message, 1500));
        assert!(
            matches!(&placed.header.body, Body::NoMessage(chunks) if chunks.reply == Some(vec![segment(1, 1500)]))
        );
        let short = place(7, 3, &call, &lengths(100, None)).expect("room");
        assert_eq!(short.header.body, Body::Message(Chunks::default()));
        assert_eq!(place(7, 3, &call, &lengths(2001, None)), Err(NoRoom));
    }

    #[test]
    fn replies_in_too_many_parts_are_refused() {
        let call = Chunks { writes: vec![vec![segment(1, 1); MOST_PARTS + 1]], ..Chunks::default() };
        let inline = 1 << 16;
        let of = |data| place(7, 3, &call, &Lengths { head: 100, data: Some(data), inline });
        assert!(of(MOST_PARTS).is_ok());
        assert_eq!(of(MOST_PARTS + 1), Err(NoRoom));
    }
}
