//! Turns: whether a request or a reply of a reliable QP is sent next.

use super::Reply;

/// Whose turn it is after the last packet.
///
/// Replies precede requests, with two exceptions. READ responses and requests alternate, so that neither starves. One
/// request may precede an ACK, unless `Ctx::acknowledges_first`: an application's immediate reply is more urgent, and
/// over sockets both leave in one segmented send.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// A READ response packet was sent last: a request is sent before the next one.
    request_is_due: bool,
    /// A request was sent ahead of an acknowledgement, which is sent next.
    acknowledgement_is_due: bool,
}

impl Turns {
    /// True if a request is sent before `reply`, the oldest one.
    #[inline(always)]
    pub(super) fn request_precedes(&self, reply: Option<Reply>, acknowledges_first: bool) -> bool {
        match reply {
            None => true,
            Some(Reply::Ack { .. }) => !self.acknowledgement_is_due && !acknowledges_first,
            Some(_) => self.request_is_due,
        }
    }

    /// Records a sent request. `replies_wait`: a reply is pending.
    #[inline(always)]
    pub(super) fn request_sent(&mut self, replies_wait: bool) {
        *self = Turns { request_is_due: false, acknowledgement_is_due: replies_wait };
    }

    /// Records a sent packet that is no request. `is_response`: a READ response with payload.
    #[inline(always)]
    pub(super) fn reply_sent(&mut self, is_response: bool) {
        *self = Turns { request_is_due: is_response, acknowledgement_is_due: false };
    }
}
