//! Requests that wait for a listener.

use std::collections::VecDeque;

use roxie_base::time::Nanos;
use roxie_wire::ServiceId;
use roxie_wire::cm::CmMessage;

use super::Route;

/// A waiting request: a REQ or a SIDR_REQ.
#[derive(Clone, Debug)]
pub(super) struct Early {
    pub(super) until: Nanos,
    pub(super) tid: u64,
    pub(super) request: CmMessage,
    pub(super) route: Route,
}

/// Waiting requests in order of arrival.
pub(super) type EarlyRequests = VecDeque<Early>;

impl Early {
    /// Returns the service that is requested.
    pub(super) fn requested_service(&self) -> Option<ServiceId> {
        match &self.request {
            CmMessage::Req(req) => Some(req.service_id),
            CmMessage::SidrReq(question) => Some(question.service_id),
            _ => None,
        }
    }
}
