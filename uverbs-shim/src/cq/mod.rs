//! Completion queues (`ibv_cq`), and completion channels (`ibv_comp_channel`).

pub(crate) mod poll_ex;

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Mutex;
use std::time::Duration;

use roxie::host::{CompletionChannel, CompletionQueue, Wait, Watched};
use roxie::shared::Armed;
use roxie::time::Nanos;
use roxie::verbs::{Wc, WcFlags};

use crate::abi::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_attr_mask, ibv_cq_ex, ibv_modify_cq_attr, ibv_wc,
    ibv_wc_flags as wc_flags,
};
use crate::base::cancellation::Uncancelled;
use crate::base::lock::lock;
use crate::base::object::{
    Errno, VerbsStruct, code, give, minus_one, object_of, pointer, put, set_errno, take_back,
};
use crate::base::report::{device, refuse};
use crate::base::waiting::{
    Acknowledgements, SpinLock, WakeReason, take_count, take_count_now, wait_for_any,
};
use crate::device::context::context;
use crate::device::event_queue::Element;
use crate::device::nic::Source;
use crate::device::published::{Counted, Kind};
use crate::pd::Users;

/// Number of completion vectors: one engine raises all events.
pub(crate) const COMPLETION_VECTORS: c_int = 1;

/// The object behind a completion queue. Applications hold the shorter `ibv_cq`, which is the beginning of `ibv_cq_ex`.
pub(crate) struct Cq {
    pub(crate) queue: CompletionQueue,
    channel: Option<*mut ibv_comp_channel>,
    pub(crate) users: Users,
    comp_acknowledgements: Acknowledgements,
    pub(crate) async_acknowledgements: Acknowledgements,
    /// Held by the thread that polls with `ibv_start_poll`, for access to `poll`.
    pub(crate) poll_turn: SpinLock,
    pub(crate) poll: Poll,
    _counted: Counted,
}

/// The current completion and its timestamp. Accessed only by the thread that holds `poll_turn`.
#[derive(Default)]
pub(crate) struct Poll(pub(crate) UnsafeCell<(Wc, Nanos)>);

// SAFETY: `poll_turn`, which every user holds, excludes concurrent access.
unsafe impl Sync for Poll {}

impl VerbsStruct for ibv_cq_ex {
    type Extended = ibv_cq_ex;
    type Inner = Cq;
}

impl VerbsStruct for ibv_cq {
    type Extended = ibv_cq_ex;
    type Inner = Cq;
}

const _: () = assert!(
    offset_of!(ibv_cq_ex, async_events_completed) == offset_of!(ibv_cq, async_events_completed),
    "ibv_cq_ex begins with the fields of ibv_cq"
);

/// The object behind a completion channel.
pub(crate) struct Channel {
    channel: CompletionChannel,
    /// Queues of the channel, least recently served first.
    queues: Mutex<Vec<*mut ibv_cq_ex>>,
}

impl VerbsStruct for ibv_comp_channel {
    type Extended = ibv_comp_channel;
    type Inner = Channel;
}

/// Creates a completion channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(of: *mut ibv_context) -> *mut ibv_comp_channel {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    pointer(unsafe { context(of) }.and_then(|_| {
        let channel = CompletionChannel::counting().map_err(device("ibv_create_comp_channel"))?;
        let face = ibv_comp_channel { context: of, fd: channel.as_fd().as_raw_fd(), refcnt: 0 };
        Ok(give(face, Channel { channel, queues: Mutex::default() }))
    }))
}

/// Destroys a completion channel without queues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    code(unsafe { object_of(channel) }.and_then(|found| {
        let users = lock(&found.queues).len();
        if users > 0 {
            return refuse(
                "ibv_destroy_comp_channel",
                libc::EBUSY,
                format_args!("{users} completion queues still use it"),
            );
        }
        // SAFETY: no queue uses the channel.
        drop(unsafe { take_back(channel) });
        Ok(())
    }))
}

/// Minimum number of entries, as on adapters (hns: 64; others: as many as fit a page).
///
/// Programs that request no more entries than they have outstanding requests may poll one request late. Example:
/// `ib_send_lat -e` has one request and one entry. If the peer's reply arrives before the ACK of its request, the
/// program takes the reply's event for the event of the request. A queue of one entry would then overflow, and the QP
/// fail.
const LEAST_ENTRIES: u32 = 64;

/// Creates a queue, for all forms of `ibv_create_cq`.
pub(crate) fn create(
    call: &'static str,
    of: *mut ibv_context,
    entries: u32,
    user: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: u32,
) -> Result<*mut ibv_cq_ex, Errno> {
    // SAFETY: the contract: objects; a channel or null.
    let (nic, channel_object) =
        unsafe { (context(of)?, if channel.is_null() { None } else { Some(object_of(channel)?) }) };
    if entries == 0 || entries > roxie::limits::MAX_CQE {
        return refuse(
            call,
            libc::EINVAL,
            format_args!("{entries} entries: 1 to {}", roxie::limits::MAX_CQE),
        );
    }
    if vector >= COMPLETION_VECTORS as u32 {
        return refuse(call, libc::EINVAL, format_args!("comp_vector {vector}: there is vector 0"));
    }
    let entries = entries.max(LEAST_ENTRIES);
    let queue =
        nic.nic.device.create_cq(entries, channel_object.map(|f| &f.channel)).map_err(device(call))?;
    let source = Source::Cq(queue.index().0);
    let face =
        ibv_cq_ex { context: of, channel, cq_context: user, cqe: entries as c_int, ..ibv_cq_ex::default() };
    let cq = give(
        face,
        Cq {
            queue,
            channel: channel_object.map(|_| channel),
            users: Users::default(),
            comp_acknowledgements: Acknowledgements::default(),
            async_acknowledgements: Acknowledgements::default(),
            poll_turn: SpinLock::default(),
            poll: Poll::default(),
            _counted: nic.family.published.add(Kind::Cq),
        },
    );
    nic.nic.add_source(source, &nic.events, Element::Cq(cq as usize));
    if let Some(channel_object) = channel_object {
        lock(&channel_object.queues).push(cq);
        // SAFETY: as above; the count is informative.
        unsafe { (*channel).refcnt += 1 };
    }
    Ok(cq)
}

/// Creates a completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    of: *mut ibv_context,
    entries: c_int,
    user: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let _uncancelled = Uncancelled::new();
    let entries = u32::try_from(entries).unwrap_or(0);
    let vector = u32::try_from(vector).unwrap_or(u32::MAX);
    pointer(create("ibv_create_cq", of, entries, user, channel, vector).map(<*mut ibv_cq_ex>::cast))
}

/// Destroys a queue without QPs, once its events are acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    let _uncancelled = Uncancelled::new();
    let cq = cq.cast::<ibv_cq_ex>();
    // SAFETY: the contract: live objects, and a queue that is not used concurrently.
    code(unsafe {
        object_of(cq).and_then(|found| {
            found.users.none("ibv_destroy_cq", "completion queue")?;
            context((*cq).context)?.nic.remove_source(Source::Cq(found.queue.index().0));
            if let Some(channel) = found.channel {
                let of = object_of(channel)?;
                lock(&of.queues).retain(|queue| *queue != cq);
                (*channel).refcnt -= 1;
                while found.queue.take_event() {
                    take_count_now(of.channel.events());
                }
            }
            found.comp_acknowledgements.wait();
            found.async_acknowledgements.wait();
            drop(take_back(cq));
            Ok(())
        })
    })
}

/// Maximum number of passes of the NIC before a resize.
const PASSES_BEFORE_A_RESIZE: u32 = 64;

/// Resizes a queue. Pending completions are kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    code(unsafe { object_of(cq) }.and_then(|found| {
        let Some(entries) = u32::try_from(entries).ok().filter(|entries| *entries > 0) else {
            return refuse("ibv_resize_cq", libc::EINVAL, format_args!("{entries} entries: one at least"));
        };
        // SAFETY: as above. Unlike a new queue, a resized one has exactly the size requested (rdma-core's
        // test_resize_cq fills it up to `cqe`). The passes deliver completions in flight, so that a queue too small for
        // them is rejected.
        let nic = unsafe { context((*cq).context) }?;
        for _ in 0..PASSES_BEFORE_A_RESIZE {
            if !nic.nic.device.poll() {
                break;
            }
        }
        found.queue.resize(entries).map_err(device("ibv_resize_cq"))?;
        // SAFETY: as above; the field is the library's to change.
        unsafe { (*cq).cqe = entries as c_int };
        Ok(())
    }))
}

/// Moderates events: one event per number of completions, or per number of microseconds after the first of them.
pub(crate) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    let _uncancelled = Uncancelled::new();
    const CALL: &str = "ibv_modify_cq";
    // SAFETY: the contract: an object, and attributes.
    code(unsafe {
        object_of(cq).and_then(|found| {
            let (mask, moderate) = ((*attr).attr_mask, (*attr).moderate);
            if mask != ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE {
                return refuse(
                    CALL,
                    libc::EINVAL,
                    format_args!("attr_mask {mask:#x}: MODERATE (1) is known"),
                );
            }
            let period = Duration::from_micros(moderate.cq_period.into());
            found.queue.moderate(moderate.cq_count.into(), period).map_err(device(CALL))
        })
    })
}

/// Waits for the next event of a channel, or returns if the descriptor is non-blocking. The wait is a cancellation
/// point: no destructor is pending here.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    user: *mut *mut c_void,
) -> c_int {
    let mut by_link = false;
    loop {
        // SAFETY: the contract: objects that live.
        let waited = match unsafe { prepare_wait(channel, by_link) } {
            EventWait::Taken => true,
            EventWait::Again => {
                by_link = false;
                continue;
            }
            EventWait::Failed(errno) => return minus_one(Err(errno)),
            EventWait::Sleep(events) => take_count(events),
            EventWait::Watch { events, link, timeout } => {
                let woken = wait_for_any(events, &link, timeout);
                // SAFETY: the contract of this call: the channel lives until it returns.
                unsafe { end_wait(channel, woken == WakeReason::ByBell) };
                by_link = matches!(woken, WakeReason::ByLink | WakeReason::ByBell);
                if woken != WakeReason::Failed {
                    continue;
                }
                false
            }
        };
        if !waited {
            return -1;
        }
        // None: the event's queue was destroyed meanwhile.
        // SAFETY: as above, and room for two pointers.
        unsafe {
            if let Ok(channel_object) = object_of(channel)
                && let Some(raised) = next_event(channel_object)
            {
                put(cq, raised.cast());
                put(user, (*raised).cq_context);
                return 0;
            }
        }
    }
}

/// State of a channel's events, and how to wait for one. Holds nothing that needs a destructor.
enum EventWait {
    /// An event was taken.
    Taken,
    /// A completion has arrived; look again.
    Again,
    /// Another thread runs the NIC: wait for this descriptor's count.
    Sleep(RawFd),
    /// No other thread runs the NIC: wait for any of these, then run it.
    Watch {
        events: RawFd,
        link: Watched,
        timeout: Duration,
    },
    Failed(Errno),
}

/// Checks for an event, and prepares to wait for one. `by_link`: the link ended the last sleep, without an event.
///
/// # Safety
/// The contract: an object.
unsafe fn prepare_wait(channel: *mut ibv_comp_channel, by_link: bool) -> EventWait {
    // SAFETY: the caller promises a channel that lives for the call; its context does, as long as the channel is there.
    let (object, nic) =
        match unsafe { object_of(channel).and_then(|object| Ok((object, context((*channel).context)?))) } {
            Ok(both) => both,
            Err(errno) => return EventWait::Failed(errno),
        };
    // A pass makes system calls, so cancellation must be disabled.
    let _uncancelled = Uncancelled::new();
    let (channel, device) = (&object.channel, &nic.nic.device);
    if !by_link && take_count_now(channel.events()) {
        return EventWait::Taken;
    }
    if device.has_failed() {
        return EventWait::Failed(libc::EIO);
    }
    if !by_link && channel.is_nonblocking() {
        return EventWait::Failed(libc::EAGAIN);
    }
    let events = channel.events().as_raw_fd();
    match channel.begin_wait(device) {
        Wait::Taken => EventWait::Taken,
        Wait::Look => EventWait::Again,
        Wait::Sleep => EventWait::Sleep(events),
        Wait::Watch { on, timeout } => EventWait::Watch { events, link: on, timeout },
    }
}

/// # Safety
/// The contract: an object.
unsafe fn end_wait(channel: *mut ibv_comp_channel, rang: bool) {
    // SAFETY: the caller promises a channel that lives for the call, and its context lives as long.
    if let Ok(of) = unsafe { context((*channel).context) } {
        let _uncancelled = Uncancelled::new();
        of.nic.device.end_wait(rang);
    }
}

/// Takes the event of one of the channel's queues, and counts it as delivered. Returns the queue.
fn next_event(channel: &Channel) -> Option<*mut ibv_cq_ex> {
    let mut queues = lock(&channel.queues);
    let place = queues.iter().position(|cq| {
        // SAFETY: queues leave the list, under its lock, before they are destroyed.
        unsafe { object_of(*cq) }.is_ok_and(|cq| {
            let raised = cq.queue.take_event();
            if raised {
                cq.comp_acknowledgements.handed_over();
            }
            raised
        })
    })?;
    // The next search starts behind this queue, so that one busy queue cannot starve the others.
    queues.rotate_left(place + 1);
    queues.last().copied()
}

/// Acknowledges events. A queue can be destroyed once all are acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: u32) {
    // SAFETY: the contract: an object.
    if let Ok(object) = unsafe { object_of(cq) } {
        object.comp_acknowledgements.acknowledge(count);
    }
}

/// Arms a queue: the next completion raises an event.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    code(unsafe { object_of(cq) }.map(|found| {
        found.queue.arm(if solicited_only != 0 { Armed::Solicited } else { Armed::Next });
    }))
}

/// Completions taken from the ring at a time.
const BATCH: usize = 16;

/// Polls a queue. Returns the number of completions, or -1.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: the contract: an object.
    let object = match unsafe { object_of(cq) } {
        Ok(object) => object,
        Err(errno) => {
            set_errno(errno);
            return -1;
        }
    };
    let room = usize::try_from(room).unwrap_or(0);
    let mut batch = [Wc::default(); BATCH];
    let mut taken = 0;
    while taken < room {
        let wanted = BATCH.min(room - taken);
        let mut polled = object.queue.poll_ready(&mut batch[..wanted]);
        if polled + taken == 0 {
            // A pass makes system calls, so cancellation must be disabled.
            let _uncancelled = Uncancelled::new();
            object.queue.turn();
            polled = object.queue.poll_ready(&mut batch[..wanted]);
            if polled == 0 && object.queue.has_failed() {
                // The engine has failed: report it to programs that would poll without end.
                set_errno(libc::EIO);
                return -1;
            }
        }
        for (place, wc) in batch[..polled].iter().enumerate() {
            // SAFETY: the contract: `room` completions, and `taken + place` is below that.
            unsafe { write_wc(to.add(taken + place), wc) };
        }
        taken += polled;
        if polled < wanted {
            break;
        }
    }
    taken as c_int
}

/// # Safety
/// `to` may be written.
unsafe fn write_wc(to: *mut ibv_wc, wc: &Wc) {
    // SAFETY: the caller promises room for a completion of all releases: only fields that each has are written.
    unsafe {
        (*to).wr_id = wc.wr_id;
        (*to).status = wc.status as u32;
        (*to).opcode = wc.opcode as u32;
        (*to).vendor_err = wc.vendor_err.into();
        (*to).byte_len = wc.byte_len;
        (*to).__bindgen_anon_1.imm_data = imm_or_key(wc);
        (*to).qp_num = wc.qpn.value();
        (*to).src_qp = wc.src_qp.value();
        (*to).wc_flags = flags(wc);
        (*to).pkey_index = wc.pkey_index;
        // RoCE has no LIDs.
        (*to).slid = 0;
        (*to).sl = wc.sl;
        (*to).dlid_path_bits = 0;
    }
}

/// Returns immediate data in network order, or an invalidated rkey unchanged.
pub(crate) fn imm_or_key(wc: &Wc) -> u32 {
    if wc.flags.contains(WcFlags::WITH_INV) { wc.imm } else { wc.imm.to_be() }
}

/// Returns `enum ibv_wc_flags`.
pub(crate) fn flags(wc: &Wc) -> u32 {
    let bits = [
        (WcFlags::GRH, wc_flags::IBV_WC_GRH),
        (WcFlags::WITH_IMM, wc_flags::IBV_WC_WITH_IMM),
        (WcFlags::WITH_INV, wc_flags::IBV_WC_WITH_INV),
    ];
    bits.into_iter().filter(|(flag, _)| wc.flags.contains(*flag)).map(|(_, bit)| bit).sum()
}
