//! Delivery and acknowledgement of asynchronous events.

use std::ffi::c_int;

use roxie::verbs::EventKind;

use crate::abi::{
    ibv_async_event, ibv_context, ibv_cq, ibv_event_type as event_type, ibv_qp, ibv_srq, ibv_wq,
};
use crate::base::object::{minus_one, object_of};
use crate::base::waiting::take_count;
use crate::device::context::context;
use crate::device::event_queue::Element;

/// Returns the event type.
fn number(element: Element, kind: EventKind) -> event_type::Type {
    // A receive work queue has only one kind of error.
    if let Element::Wq(_) = element {
        return event_type::IBV_EVENT_WQ_FATAL;
    }
    match kind {
        EventKind::CqError => event_type::IBV_EVENT_CQ_ERR,
        EventKind::QpFatal => event_type::IBV_EVENT_QP_FATAL,
        EventKind::QpRequestError => event_type::IBV_EVENT_QP_REQ_ERR,
        EventKind::QpAccessError => event_type::IBV_EVENT_QP_ACCESS_ERR,
        EventKind::CommunicationEstablished => event_type::IBV_EVENT_COMM_EST,
        EventKind::SqDrained => event_type::IBV_EVENT_SQ_DRAINED,
        EventKind::LastWqeReached => event_type::IBV_EVENT_QP_LAST_WQE_REACHED,
        EventKind::SrqLimitReached => event_type::IBV_EVENT_SRQ_LIMIT_REACHED,
        EventKind::SrqError => event_type::IBV_EVENT_SRQ_ERR,
        EventKind::PortActive => event_type::IBV_EVENT_PORT_ACTIVE,
        EventKind::PortError => event_type::IBV_EVENT_PORT_ERR,
        EventKind::GidChange => event_type::IBV_EVENT_GID_CHANGE,
        EventKind::DeviceFatal => event_type::IBV_EVENT_DEVICE_FATAL,
    }
}

/// Fills in an event for the application. The event must be acknowledged before its object can be destroyed.
fn hand_over(element: Element, kind: EventKind) -> ibv_async_event {
    let mut event = ibv_async_event { event_type: number(element, kind), ..ibv_async_event::default() };
    // SAFETY: an object discards its events before it is destroyed, and that waits for this call.
    unsafe {
        match element {
            Element::Qp(at) => {
                event.element.qp = at as *mut ibv_qp;
                if let Ok(qp) = object_of(event.element.qp) {
                    qp.acknowledgements.handed_over();
                }
            }
            Element::Cq(at) => {
                event.element.cq = at as *mut ibv_cq;
                if let Ok(cq) = object_of(event.element.cq) {
                    cq.async_acknowledgements.handed_over();
                }
            }
            Element::Srq(at) => {
                event.element.srq = at as *mut ibv_srq;
                if let Ok(srq) = object_of(event.element.srq) {
                    srq.acknowledgements.handed_over();
                }
            }
            Element::Wq(at) => {
                event.element.wq = at as *mut ibv_wq;
                if let Ok(wq) = object_of(event.element.wq) {
                    wq.acknowledgements.handed_over();
                }
            }
            Element::Port => event.element.port_num = 1,
        }
    }
    event
}

/// Waits for the next event of a context, or returns if the descriptor is non-blocking. The wait is a cancellation
/// point.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_async_event(
    of: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the contract: an object.
    let fd = match unsafe { context(of) } {
        Ok(context) => context.events.raw_fd(),
        Err(errno) => return minus_one(Err(errno)),
    };
    while take_count(fd) {
        // SAFETY: as above, and room for an event.
        unsafe {
            if let Ok(context) = context(of)
                && let Some(next) = context.events.next(hand_over)
            {
                event.write(next);
                return 0;
            }
        }
    }
    -1
}

/// Acknowledges an event, after which its object can be destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    use event_type::*;
    // SAFETY: the contract: `ibv_get_async_event` filled it in, and its object's destruction waits for this call.
    unsafe {
        match (*event).event_type {
            IBV_EVENT_CQ_ERR => {
                if let Ok(cq) = object_of((*event).element.cq) {
                    cq.async_acknowledgements.acknowledge(1);
                }
            }
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_PATH_MIG
            | IBV_EVENT_PATH_MIG_ERR
            | IBV_EVENT_QP_LAST_WQE_REACHED => {
                if let Ok(qp) = object_of((*event).element.qp) {
                    qp.acknowledgements.acknowledge(1);
                }
            }
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                if let Ok(srq) = object_of((*event).element.srq) {
                    srq.acknowledgements.acknowledge(1);
                }
            }
            IBV_EVENT_WQ_FATAL => {
                if let Ok(wq) = object_of((*event).element.wq) {
                    wq.acknowledgements.acknowledge(1);
                }
            }
            _ => {}
        }
    }
}
