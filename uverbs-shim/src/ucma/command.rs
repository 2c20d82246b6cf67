//! Commands that programs write to the file (`rdma/rdma_user_cm.h`): a header, a structure, and for some commands the
//! address of a response.
//!
//! A structure may be shorter than this library knows it: the rest is zero. Room for a response may be shorter than the
//! response: it is truncated. As for the kernel, the program promises that pointers are valid; a null pointer is
//! `EFAULT`.

use std::mem::{offset_of, size_of};
use std::net::SocketAddr;

use roxie::verbs::QpState;
use roxie::wire::cm::RejReason;

use super::answer;
use super::event::{ConnectionFacts, Event};
use super::id::Made;
use super::ports::Space;
use super::process::Process;
use super::sockaddr;
use super::state::State;
use crate::abi::*;
use crate::base::object::Errno;
use crate::base::report;
use crate::ucma::plain::{Plain, bytes_of, read};

/// Maximum number of paths in one option. A subnet manager returns a primary and an alternate one.
const PATHS: usize = 64;

/// A command and its origin.
pub(super) struct Command<'a> {
    process: &'static Process,
    /// The open file that it was written to.
    channel: u64,
    number: u32,
    body: &'a [u8],
    /// Room for the response in bytes.
    room: usize,
}

/// Splits a command into number, body and room for the response. Returns `None` if it is shorter than its header, or
/// than its header says.
pub(super) fn parse(bytes: &[u8]) -> Option<(u32, &[u8], usize)> {
    let header: rdma_ucm_cmd_hdr = read(bytes.get(..size_of::<rdma_ucm_cmd_hdr>())?);
    let body = bytes.get(size_of::<rdma_ucm_cmd_hdr>()..)?.get(..header.in_.into())?;
    Some((header.cmd, body, header.out.into()))
}

impl Command<'_> {
    /// Runs a command.
    ///
    /// # Safety
    /// The contract: pointers in the command are valid for the lengths in its header.
    ///
    /// # Errors
    /// As in the kernel's `ucma.c`.
    pub(super) unsafe fn run(
        process: &'static Process,
        channel: u64,
        (number, body, room): (u32, &[u8], usize),
    ) -> Result<(), Errno> {
        let command = Command { process, channel, number, body, room };
        // SAFETY: the caller promises that the command's pointers are valid, which each command requires.
        unsafe { command.dispatch() }
    }

    unsafe fn dispatch(&self) -> Result<(), Errno> {
        // SAFETY: the caller's promise, for each.
        unsafe {
            match self.number {
                RDMA_USER_CM_CMD_CREATE_ID => self.create_id(),
                RDMA_USER_CM_CMD_DESTROY_ID => self.destroy_id(),
                RDMA_USER_CM_CMD_BIND_IP => self.bind_ip(),
                RDMA_USER_CM_CMD_BIND => self.bind(),
                RDMA_USER_CM_CMD_RESOLVE_IP => self.resolve_ip(),
                RDMA_USER_CM_CMD_RESOLVE_ADDR => self.resolve_addr(),
                RDMA_USER_CM_CMD_RESOLVE_ROUTE => self.resolve_route(),
                RDMA_USER_CM_CMD_QUERY_ROUTE => self.query_route(),
                RDMA_USER_CM_CMD_QUERY => self.query(),
                RDMA_USER_CM_CMD_CONNECT => self.connect(),
                RDMA_USER_CM_CMD_LISTEN => self.listen(),
                RDMA_USER_CM_CMD_ACCEPT => self.accept(),
                RDMA_USER_CM_CMD_REJECT => self.reject(),
                RDMA_USER_CM_CMD_DISCONNECT => self.disconnect(),
                RDMA_USER_CM_CMD_INIT_QP_ATTR => self.init_qp_attr(),
                RDMA_USER_CM_CMD_SET_OPTION => self.set_option(),
                RDMA_USER_CM_CMD_NOTIFY => self.notify(),
                RDMA_USER_CM_CMD_JOIN_IP_MCAST => self.join_ip_mcast(),
                RDMA_USER_CM_CMD_JOIN_MCAST => self.join_mcast(),
                RDMA_USER_CM_CMD_LEAVE_MCAST => self.leave_mcast(),
                RDMA_USER_CM_CMD_MIGRATE_ID => self.migrate_id(),
                // Not implemented by the kernel either.
                RDMA_USER_CM_CMD_GET_OPTION => Err(libc::ENOSYS),
                other => {
                    report::refuse("rdma_cm", libc::EINVAL, format_args!("command {other} is not known"))
                }
            }
        }
    }

    fn structure<T: Plain>(&self) -> T {
        read(self.body)
    }

    /// Checks that there is room for a response of this many bytes.
    fn needs(&self, bytes: usize) -> Result<(), Errno> {
        if self.room < bytes { Err(libc::ENOSPC) } else { Ok(()) }
    }

    /// # Safety
    /// `to` is null, or has the room that the command says.
    unsafe fn answer<T: Plain>(&self, to: u64, answer: &T) -> Result<(), Errno> {
        let bytes = bytes_of(answer);
        // SAFETY: `to` is null or has `room` bytes, as the caller promises, and no more than that is written.
        unsafe { put(to, &bytes[..bytes.len().min(self.room)]) }
    }

    unsafe fn create_id(&self) -> Result<(), Errno> {
        self.needs(size_of::<rdma_ucm_create_id_resp>())?;
        let request: rdma_ucm_create_id = self.structure();
        let space = Space::from_code(request.ps).ok_or(libc::EINVAL)?;
        let made = Made {
            uid: request.uid,
            channel: self.channel,
            space,
            qp_type: space.qp_type(request.qp_type),
            psn: State::psn(self.process.random()),
        };
        let id = self.process.state().create(made)?;
        // SAFETY: the command's address for its response is null, or has the room that its header says.
        unsafe { self.answer(request.response, &rdma_ucm_create_id_resp { id }) }
    }

    unsafe fn destroy_id(&self) -> Result<(), Errno> {
        self.needs(size_of::<rdma_ucm_destroy_id_resp>())?;
        let request: rdma_ucm_destroy_id = self.structure();
        let events_reported = self.process.with(|state, cm| state.destroy(cm, self.channel, request.id))?;
        // SAFETY: the command's address for its response is null, or has the room that its header says.
        unsafe { self.answer(request.response, &rdma_ucm_destroy_id_resp { events_reported }) }
    }

    unsafe fn bind_ip(&self) -> Result<(), Errno> {
        let request: rdma_ucm_bind_ip = self.structure();
        let at = offset_of!(rdma_ucm_bind_ip, addr);
        let address = self.address(at, size_of::<sockaddr_in6>())?.ok_or(libc::EINVAL)?;
        self.process.bind_for_use(self.channel, request.id, address)
    }

    unsafe fn bind(&self) -> Result<(), Errno> {
        let request: rdma_ucm_bind = self.structure();
        let address = self.address(offset_of!(rdma_ucm_bind, addr), request.addr_size.into())?;
        let address = address.filter(|_| request.reserved == 0).ok_or(libc::EINVAL)?;
        self.process.bind_for_use(self.channel, request.id, address)
    }

    unsafe fn resolve_ip(&self) -> Result<(), Errno> {
        let request: rdma_ucm_resolve_ip = self.structure();
        let length = size_of::<sockaddr_in6>();
        let source = self.address(offset_of!(rdma_ucm_resolve_ip, src_addr), length)?;
        let destination = self.address(offset_of!(rdma_ucm_resolve_ip, dst_addr), length)?;
        let destination = destination.ok_or(libc::EINVAL)?;
        self.process.resolve_address(self.channel, request.id, source, destination, request.timeout_ms)
    }

    unsafe fn resolve_addr(&self) -> Result<(), Errno> {
        let request: rdma_ucm_resolve_addr = self.structure();
        let source = match request.src_size {
            0 => None,
            size => self.address(offset_of!(rdma_ucm_resolve_addr, src_addr), size.into())?,
        };
        let at = offset_of!(rdma_ucm_resolve_addr, dst_addr);
        let destination = self.address(at, request.dst_size.into())?;
        let destination = destination.filter(|_| request.reserved == 0).ok_or(libc::EINVAL)?;
        self.process.resolve_address(self.channel, request.id, source, destination, request.timeout_ms)
    }

    /// Reads a socket address from the structure.
    fn address(&self, at: usize, length: usize) -> Result<Option<SocketAddr>, Errno> {
        let bytes = self.body.get(at..).ok_or(libc::EINVAL)?;
        sockaddr::read(&bytes[..bytes.len().min(length)])
    }

    unsafe fn resolve_route(&self) -> Result<(), Errno> {
        let request: rdma_ucm_resolve_route = self.structure();
        let mtu = self.process.nic().device.largest_mtu();
        self.process.state().resolve_route(self.channel, request.id, mtu)
    }

    unsafe fn query_route(&self) -> Result<(), Errno> {
        self.needs(offset_of!(rdma_ucm_query_route_resp, ibdev_index))?;
        let request: rdma_ucm_query = self.structure();
        let response = answer::route(self.process.state().id(self.channel, request.id)?);
        // SAFETY: the command's address for its response is null, or has the room that its header says.
        unsafe { self.answer(request.response, &response) }
    }

    unsafe fn query(&self) -> Result<(), Errno> {
        let request: rdma_ucm_query = self.structure();
        let id = self.process.state().id(self.channel, request.id)?.clone();
        // SAFETY: the command's address for its response is null, or has the room that its header says.
        unsafe {
            match request.option {
                RDMA_USER_CM_QUERY_ADDR => {
                    self.needs(offset_of!(rdma_ucm_query_addr_resp, ibdev_index))?;
                    self.answer(request.response, &answer::address(&id))
                }
                RDMA_USER_CM_QUERY_GID => {
                    self.needs(offset_of!(rdma_ucm_query_addr_resp, ibdev_index))?;
                    self.answer(request.response, &answer::gid(&id))
                }
                RDMA_USER_CM_QUERY_PATH => {
                    self.needs(size_of::<rdma_ucm_query_path_resp>())?;
                    put(request.response, &answer::path(&id, self.room))
                }
                _ => Err(libc::ENOSYS),
            }
        }
    }

    unsafe fn connect(&self) -> Result<(), Errno> {
        let request: rdma_ucm_connect = self.structure();
        if self.body.len() < offset_of!(rdma_ucm_connect, ece) || request.conn_param.valid == 0 {
            return Err(libc::EINVAL);
        }
        let wish = wish(&request.conn_param);
        self.process.connected("rdma_connect", |state, cm| state.connect(cm, self.channel, request.id, &wish))
    }

    unsafe fn listen(&self) -> Result<(), Errno> {
        let request: rdma_ucm_listen = self.structure();
        self.process.listen(self.channel, request.id, request.backlog)
    }

    unsafe fn accept(&self) -> Result<(), Errno> {
        let request: rdma_ucm_accept = self.structure();
        if self.body.len() < offset_of!(rdma_ucm_accept, ece) {
            return Err(libc::EINVAL);
        }
        let accepted = (request.conn_param.valid != 0).then(|| (request.uid, wish(&request.conn_param)));
        self.process
            .connected("rdma_accept", |state, cm| state.accept(cm, self.channel, request.id, accepted))
    }

    unsafe fn reject(&self) -> Result<(), Errno> {
        const VENDOR_OPTION: u16 = 35;
        let request: rdma_ucm_reject = self.structure();
        let reason = match u16::from(request.reason) {
            0 => RejReason::CONSUMER,
            reason if reason == RejReason::CONSUMER.0 || reason == VENDOR_OPTION => RejReason(reason),
            _ => return Err(libc::EINVAL),
        };
        let data = &request.private_data[..request.private_data_len.into()];
        self.process
            .connected("rdma_reject", |state, cm| state.reject(cm, self.channel, request.id, reason, data))
    }

    unsafe fn disconnect(&self) -> Result<(), Errno> {
        let request: rdma_ucm_disconnect = self.structure();
        self.process.with(|state, cm| match cm {
            Some(mut cm) => state.disconnect(&mut cm, self.channel, request.id),
            None => state.id_on_device(self.channel, request.id).and(Err(libc::EINVAL)),
        })
    }

    unsafe fn init_qp_attr(&self) -> Result<(), Errno> {
        self.needs(size_of::<ib_uverbs_qp_attr>())?;
        let request: rdma_ucm_init_qp_attr = self.structure();
        let wanted = QpState::from_code(request.qp_state).ok_or(libc::EINVAL)?;
        let attributes = self.process.around(|around| {
            self.process
                .with(|state, cm| state.attributes(cm.as_ref(), around, self.channel, request.id, wanted))
        })?;
        // SAFETY: the command's address for its response is null, or has the room that its header says.
        unsafe { self.answer(request.response, &attributes) }
    }

    unsafe fn set_option(&self) -> Result<(), Errno> {
        let request: rdma_ucm_set_option = self.structure();
        self.process.state().id(self.channel, request.id)?;
        match (request.level, request.optname) {
            (RDMA_OPTION_ID, name) => {
                // SAFETY: the contract: as many bytes as the command says, of which at most a number is read.
                let value = unsafe { number(request.optval, request.optlen) };
                let mut state = self.process.state();
                super::options::set(state.id(self.channel, request.id)?, name, value)
            }
            (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => {
                if request.optval == 0 {
                    return Err(libc::EFAULT);
                }
                let length = (request.optlen as usize).min(PATHS * size_of::<ib_path_rec_data>() + 1);
                let mut records = vec![0; length];
                // SAFETY: the contract: that many bytes are valid; copied before they are parsed.
                unsafe {
                    std::ptr::copy_nonoverlapping(request.optval as *const u8, records.as_mut_ptr(), length)
                };
                let largest = self.process.nic().device.largest_mtu();
                self.process.state().take_path(self.channel, request.id, &records, largest)
            }
            _ => Err(libc::ENOSYS),
        }
    }

    unsafe fn notify(&self) -> Result<(), Errno> {
        let request: rdma_ucm_notify = self.structure();
        if request.event != ibv_event_type::IBV_EVENT_COMM_EST {
            return Err(libc::EINVAL);
        }
        self.process.with(|state, cm| match cm {
            Some(mut cm) => state.established(&mut cm, self.channel, request.id),
            None => state.id(self.channel, request.id).and(Err(libc::EINVAL)),
        })
    }

    unsafe fn join_ip_mcast(&self) -> Result<(), Errno> {
        self.needs(size_of::<rdma_ucm_create_id_resp>())?;
        let request: rdma_ucm_join_ip_mcast = self.structure();
        let at = offset_of!(rdma_ucm_join_ip_mcast, addr);
        let address = self.address(at, size_of::<sockaddr_in6>())?.ok_or(libc::EINVAL)?;
        // SAFETY: `response` is the command's address for its response, for which the command's caller promises the
        // room.
        unsafe { self.join(request.id, request.uid, address, request.response) }
    }

    unsafe fn join_mcast(&self) -> Result<(), Errno> {
        self.needs(size_of::<rdma_ucm_create_id_resp>())?;
        let request: rdma_ucm_join_mcast = self.structure();
        let address = self.address(offset_of!(rdma_ucm_join_mcast, addr), request.addr_size.into())?;
        let flags = u32::from(request.join_flags);
        let known = flags == RDMA_MC_JOIN_FLAG_FULLMEMBER || flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
        let address = address.filter(|_| known).ok_or(libc::EINVAL)?;
        // SAFETY: `response` is the command's address for its response, for which the command's caller promises the
        // room.
        unsafe { self.join(request.id, request.uid, address, request.response) }
    }

    unsafe fn join(&self, id: u32, uid: u64, address: SocketAddr, response: u64) -> Result<(), Errno> {
        let id = self.process.around(|around| {
            let mut state = self.process.state();
            state.join(around, self.channel, id, uid, address)
        })?;
        // SAFETY: the command's address for its response is null, or has the room that its header says.
        unsafe { self.answer(response, &rdma_ucm_create_id_resp { id }) }
    }

    unsafe fn leave_mcast(&self) -> Result<(), Errno> {
        self.needs(size_of::<rdma_ucm_destroy_id_resp>())?;
        let request: rdma_ucm_destroy_id = self.structure();
        let events_reported = self.process.state().leave(self.channel, request.id)?;
        // SAFETY: the command's address for its response is null, or has the room that its header says.
        unsafe { self.answer(request.response, &rdma_ucm_destroy_id_resp { events_reported }) }
    }

    unsafe fn migrate_id(&self) -> Result<(), Errno> {
        self.needs(size_of::<rdma_ucm_migrate_resp>())?;
        let request: rdma_ucm_migrate_id = self.structure();
        let mut state = self.process.state();
        // Descriptor of the file that the identifier belongs to.
        let from =
            i32::try_from(request.fd).ok().and_then(|fd| state.descriptors.file(fd)).ok_or(libc::EINVAL)?;
        let events_reported = state.migrate(from, self.channel, request.id)?;
        drop(state);
        // SAFETY: the command's address for its response is null, or has the room that its header says.
        unsafe { self.answer(request.response, &rdma_ucm_migrate_resp { events_reported }) }
    }
}

/// Writes the next event to the program's response.
///
/// # Safety
/// The contract: the response's address has the room that the header says.
pub(super) unsafe fn give(event: &Event, (_, body, room): (u32, &[u8], usize)) -> Result<(), Errno> {
    let request: rdma_ucm_get_event = read(body);
    let response = answer::event(event);
    let bytes = bytes_of(&response);
    // SAFETY: the response's address has the room that the header says, as the caller promises, and no more than that
    // is written.
    unsafe { put(request.response, &bytes[..bytes.len().min(room)]) }
}

/// Minimum room for an event: its last fields were added later.
pub(super) const EVENT_ROOM: usize = offset_of!(rdma_ucm_event_resp, reserved);

/// # Safety
/// `to` is null, or has room for the bytes.
unsafe fn put(to: u64, bytes: &[u8]) -> Result<(), Errno> {
    if to == 0 {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's promise; the program's memory and `bytes` do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
    Ok(())
}

/// Reads the value of an option: a byte or an `int`. Returns `None` for another length, or without an address.
///
/// # Safety
/// `at` is null, or has `length` bytes.
unsafe fn number(at: u64, length: u32) -> Option<(u32, u32)> {
    if at == 0 {
        return None;
    }
    // SAFETY: not null, as checked, so `length` bytes may be read, as the caller promises.
    unsafe {
        match length {
            1 => Some((1, (at as *const u8).read().into())),
            4 => Some((4, (at as *const u32).read_unaligned())),
            _ => None,
        }
    }
}

fn wish(told: &rdma_ucm_conn_param) -> ConnectionFacts {
    let length = usize::from(told.private_data_len).min(told.private_data.len());
    ConnectionFacts {
        qpn: told.qp_num,
        srq: told.srq != 0,
        responder_resources: told.responder_resources,
        initiator_depth: told.initiator_depth,
        flow_control: told.flow_control != 0,
        retry_count: told.retry_count,
        rnr_retry_count: told.rnr_retry_count,
        private_data: told.private_data[..length].to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(cmd: u32, in_: u16, out: u16, body: &[u8]) -> Vec<u8> {
        [bytes_of(&rdma_ucm_cmd_hdr { cmd, in_, out }), body].concat()
    }

    #[test]
    fn command_body_has_the_length_in_its_header() {
        assert_eq!(parse(&written(7, 3, 9, b"abc")), Some((7, &b"abc"[..], 9)));
        assert_eq!(parse(&written(7, 2, 9, b"abc")), Some((7, &b"ab"[..], 9)), "more is left alone");
        assert_eq!(parse(&written(7, 4, 9, b"abc")), None, "less is not a command");
        assert_eq!(parse(&[0; 7]), None);
    }

    #[test]
    fn truncated_structure_is_padded_with_zeros() {
        let whole = rdma_ucm_listen { id: 0x0102_0304, backlog: 9 };
        let cut: rdma_ucm_listen = read(&bytes_of(&whole)[..4]);
        assert_eq!((cut.id, cut.backlog), (0x0102_0304, 0));
        let longer: rdma_ucm_listen = read(&[bytes_of(&whole), &[0xff; 8]].concat());
        assert_eq!((longer.id, longer.backlog), (0x0102_0304, 9));
    }

    #[test]
    fn connection_parameters_are_read_field_by_field() {
        let mut parameters = read::<rdma_ucm_connect>(&[]).conn_param;
        (parameters.qp_num, parameters.srq, parameters.responder_resources, parameters.initiator_depth) =
            (17, 1, 2, 3);
        (parameters.retry_count, parameters.rnr_retry_count, parameters.private_data_len) = (5, 6, 3);
        parameters.private_data[..4].copy_from_slice(b"ask!");
        let wanted = ConnectionFacts {
            qpn: 17,
            srq: true,
            responder_resources: 2,
            initiator_depth: 3,
            flow_control: false,
            retry_count: 5,
            rnr_retry_count: 6,
            private_data: b"ask".to_vec(),
        };
        assert_eq!(wish(&parameters), wanted);
        (parameters.srq, parameters.flow_control) = (0, 1);
        assert_eq!(wish(&parameters), ConnectionFacts { srq: false, flow_control: true, ..wanted });
    }
}
