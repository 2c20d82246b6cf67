//! `rdma_set_option` at the level of identifiers.

use super::id::{Id, IdState};
use crate::abi::{
    RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS,
};
use crate::base::object::Errno;

/// Sets an option. `value` is its length in bytes, and its value.
///
/// # Errors
/// `EINVAL` for a value of another length or in the wrong state, `ENOSYS` for an unknown option.
pub(super) fn set(id: &mut Id, name: u32, value: Option<(u32, u32)>) -> Result<(), Errno> {
    let byte = value.filter(|(length, _)| *length == 1).map(|(_, value)| value as u8).ok_or(libc::EINVAL);
    let flag = value.filter(|(length, _)| *length == 4).map(|(_, value)| value != 0).ok_or(libc::EINVAL);
    let free = matches!(id.stage, IdState::Idle | IdState::Bound);
    match name {
        RDMA_OPTION_ID_TOS => id.options.service_type = byte?,
        RDMA_OPTION_ID_REUSEADDR if flag? && !free => return Err(libc::EINVAL),
        RDMA_OPTION_ID_REUSEADDR => id.options.reuse_address = flag?,
        RDMA_OPTION_ID_AFONLY if !free => return Err(libc::EINVAL),
        RDMA_OPTION_ID_AFONLY => id.options.one_family = Some(flag?),
        // 5 bits. The path's packet lifetime is one less.
        RDMA_OPTION_ID_ACK_TIMEOUT if byte? > 31 => return Err(libc::EINVAL),
        RDMA_OPTION_ID_ACK_TIMEOUT => id.options.ack_timeout = Some(byte?),
        _ => return Err(libc::ENOSYS),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::ibv_qp_type::IBV_QPT_RC;
    use crate::ucma::id::{Made, Options};
    use crate::ucma::ports::Space;
    use roxie::verbs::Psn;

    #[test]
    fn options_check_length_range_and_state() {
        let made = Made { uid: 1, channel: 1, space: Space::Tcp, qp_type: IBV_QPT_RC, psn: Psn::new(0) };
        let mut id = Id::new(made);
        let before = id.options;
        for (name, value) in [
            (RDMA_OPTION_ID_TOS, Some((4, 1))),
            (RDMA_OPTION_ID_TOS, None),
            (RDMA_OPTION_ID_REUSEADDR, Some((1, 1))),
            (RDMA_OPTION_ID_AFONLY, Some((1, 1))),
            (RDMA_OPTION_ID_ACK_TIMEOUT, Some((4, 1))),
            (RDMA_OPTION_ID_ACK_TIMEOUT, Some((1, 32))),
        ] {
            assert_eq!(set(&mut id, name, value), Err(libc::EINVAL), "{name} {value:?}");
        }
        assert_eq!((set(&mut id, 99, Some((1, 1))), id.options), (Err(libc::ENOSYS), before));
        set(&mut id, RDMA_OPTION_ID_TOS, Some((1, 0x68))).unwrap();
        set(&mut id, RDMA_OPTION_ID_REUSEADDR, Some((4, 1))).unwrap();
        set(&mut id, RDMA_OPTION_ID_AFONLY, Some((4, 0))).unwrap();
        set(&mut id, RDMA_OPTION_ID_ACK_TIMEOUT, Some((1, 31))).unwrap();
        let all = Options {
            service_type: 0x68,
            reuse_address: true,
            one_family: Some(false),
            ack_timeout: Some(31),
        };
        assert_eq!(id.options, all);
        // Sharing must be enabled before the port is held exclusively; it can be disabled at any time.
        id.stage = IdState::Listen;
        assert_eq!(set(&mut id, RDMA_OPTION_ID_REUSEADDR, Some((4, 1))), Err(libc::EINVAL));
        assert_eq!(set(&mut id, RDMA_OPTION_ID_AFONLY, Some((4, 1))), Err(libc::EINVAL));
        assert_eq!(
            (set(&mut id, RDMA_OPTION_ID_REUSEADDR, Some((4, 0))), id.options.reuse_address),
            (Ok(()), false)
        );
    }
}
