//! Requests that come a moment before somebody listens, and wait.

use std::collections::VecDeque;

use crate::time::Nanos;
use crate::wire::ServiceId;
use crate::wire::cm::CmMessage;

use super::Route;

/// A request that waits, a REQ or a SIDR_REQ.
#[derive(Clone, Debug)]
pub(super) struct Early {
    pub(super) until: Nanos,
    pub(super) tid: u64,
    pub(super) request: CmMessage,
    pub(super) route: Route,
}

/// Those that wait, in the order in which they came.
pub(super) type EarlyRequests = VecDeque<Early>;

impl Early {
    /// Which service it is for.
    pub(super) fn asked(&self) -> Option<ServiceId> {
        match &self.request {
            CmMessage::Req(req) => Some(req.service_id),
            CmMessage::SidrReq(question) => Some(question.service_id),
            _ => None,
        }
    }
}
