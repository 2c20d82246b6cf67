//! `rdma_set_option` at the level of identifiers.

use super::id::{Id, Stage};
use crate::abi::{
    RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS,
};
use crate::object::Errno;

/// Sets one; `value` is its length in bytes and what it is.
///
/// # Errors
/// `EINVAL` for a value of another length or at the wrong time, `ENOSYS` for an option that is not known.
pub(super) fn set(id: &mut Id, name: u32, value: Option<(u32, u32)>) -> Result<(), Errno> {
    let byte = value.filter(|(length, _)| *length == 1).map(|(_, value)| value as u8).ok_or(libc::EINVAL);
    let flag = value.filter(|(length, _)| *length == 4).map(|(_, value)| value != 0).ok_or(libc::EINVAL);
    let free = matches!(id.stage, Stage::Idle | Stage::Bound);
    match name {
        RDMA_OPTION_ID_TOS => id.options.service_type = byte?,
        RDMA_OPTION_ID_REUSEADDR if flag? && !free => return Err(libc::EINVAL),
        RDMA_OPTION_ID_REUSEADDR => id.options.reuse_address = flag?,
        RDMA_OPTION_ID_AFONLY if !free => return Err(libc::EINVAL),
        RDMA_OPTION_ID_AFONLY => id.options.one_family = Some(flag?),
        // 5 bits, from which one is taken for the path.
        RDMA_OPTION_ID_ACK_TIMEOUT if byte? > 31 => return Err(libc::EINVAL),
        RDMA_OPTION_ID_ACK_TIMEOUT => id.options.ack_timeout = Some(byte?),
        _ => return Err(libc::ENOSYS),
    }
    Ok(())
}
