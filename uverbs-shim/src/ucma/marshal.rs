//! Conversions between structures of the kernel's connection manager and of the verbs API, for `librdmacm`.

use crate::abi::{
    ib_user_path_rec, ib_uverbs_ah_attr, ib_uverbs_qp_attr, ibv_ah_attr, ibv_qp_attr, ibv_sa_path_rec,
};

/// # Safety
/// The two structures are valid, in the form of all releases.
unsafe fn ah_attr(to: *mut ibv_ah_attr, from: *const ib_uverbs_ah_attr) {
    // SAFETY: valid structures, as the caller promises, with these fields in all releases.
    unsafe {
        (*to).grh.dgid.raw = (*from).grh.dgid;
        (*to).grh.flow_label = (*from).grh.flow_label;
        (*to).grh.sgid_index = (*from).grh.sgid_index;
        (*to).grh.hop_limit = (*from).grh.hop_limit;
        (*to).grh.traffic_class = (*from).grh.traffic_class;
        (*to).dlid = (*from).dlid;
        (*to).sl = (*from).sl;
        (*to).src_path_bits = (*from).src_path_bits;
        (*to).static_rate = (*from).static_rate;
        (*to).is_global = (*from).is_global;
        (*to).port_num = (*from).port_num;
    }
}

/// Converts address handle attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut ibv_ah_attr, from: *const ib_uverbs_ah_attr) {
    // SAFETY: the contract: two structures.
    unsafe { ah_attr(to, from) };
}

/// Converts queue pair attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(to: *mut ibv_qp_attr, from: *const ib_uverbs_qp_attr) {
    // SAFETY: the contract: two structures.
    unsafe {
        (*to).cur_qp_state = (*from).cur_qp_state;
        (*to).path_mtu = (*from).path_mtu;
        (*to).path_mig_state = (*from).path_mig_state;
        (*to).qkey = (*from).qkey;
        (*to).rq_psn = (*from).rq_psn;
        (*to).sq_psn = (*from).sq_psn;
        (*to).dest_qp_num = (*from).dest_qp_num;
        (*to).qp_access_flags = (*from).qp_access_flags;
        (*to).cap.max_send_wr = (*from).max_send_wr;
        (*to).cap.max_recv_wr = (*from).max_recv_wr;
        (*to).cap.max_send_sge = (*from).max_send_sge;
        (*to).cap.max_recv_sge = (*from).max_recv_sge;
        (*to).cap.max_inline_data = (*from).max_inline_data;
        ah_attr(&raw mut (*to).ah_attr, &raw const (*from).ah_attr);
        ah_attr(&raw mut (*to).alt_ah_attr, &raw const (*from).alt_ah_attr);
        (*to).pkey_index = (*from).pkey_index;
        (*to).alt_pkey_index = (*from).alt_pkey_index;
        (*to).en_sqd_async_notify = (*from).en_sqd_async_notify;
        (*to).sq_draining = (*from).sq_draining;
        (*to).max_rd_atomic = (*from).max_rd_atomic;
        (*to).max_dest_rd_atomic = (*from).max_dest_rd_atomic;
        (*to).min_rnr_timer = (*from).min_rnr_timer;
        (*to).port_num = (*from).port_num;
        (*to).timeout = (*from).timeout;
        (*to).retry_cnt = (*from).retry_cnt;
        (*to).rnr_retry = (*from).rnr_retry;
        (*to).alt_port_num = (*from).alt_port_num;
        (*to).alt_timeout = (*from).alt_timeout;
    }
}

/// Converts a path record from the kernel's form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    to: *mut ibv_sa_path_rec,
    from: *const ib_user_path_rec,
) {
    // SAFETY: the contract: two structures.
    unsafe {
        (*to).dgid.raw = (*from).dgid;
        (*to).sgid.raw = (*from).sgid;
        (*to).dlid = (*from).dlid;
        (*to).slid = (*from).slid;
        (*to).raw_traffic = (*from).raw_traffic as i32;
        (*to).flow_label = (*from).flow_label;
        (*to).hop_limit = (*from).hop_limit;
        (*to).traffic_class = (*from).traffic_class;
        (*to).reversible = (*from).reversible as i32;
        (*to).numb_path = (*from).numb_path;
        (*to).pkey = (*from).pkey;
        (*to).sl = (*from).sl;
        (*to).mtu_selector = (*from).mtu_selector;
        (*to).mtu = (*from).mtu as u8;
        (*to).rate_selector = (*from).rate_selector;
        (*to).rate = (*from).rate;
        (*to).packet_life_time_selector = (*from).packet_life_time_selector;
        (*to).packet_life_time = (*from).packet_life_time;
        (*to).preference = (*from).preference;
    }
}

/// Converts a path record to the kernel's form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut ib_user_path_rec, from: *const ibv_sa_path_rec) {
    // SAFETY: the contract: two structures; all variants of a GID are the same bytes.
    unsafe {
        (*to).dgid = (*from).dgid.raw;
        (*to).sgid = (*from).sgid.raw;
        (*to).dlid = (*from).dlid;
        (*to).slid = (*from).slid;
        (*to).raw_traffic = (*from).raw_traffic as u32;
        (*to).flow_label = (*from).flow_label;
        (*to).reversible = (*from).reversible as u32;
        (*to).mtu = (*from).mtu.into();
        (*to).pkey = (*from).pkey;
        (*to).hop_limit = (*from).hop_limit;
        (*to).traffic_class = (*from).traffic_class;
        (*to).numb_path = (*from).numb_path;
        (*to).sl = (*from).sl;
        (*to).mtu_selector = (*from).mtu_selector;
        (*to).rate_selector = (*from).rate_selector;
        (*to).rate = (*from).rate;
        (*to).packet_life_time_selector = (*from).packet_life_time_selector;
        (*to).packet_life_time = (*from).packet_life_time;
        (*to).preference = (*from).preference;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_record_round_trips_through_kernel_form() {
        let mut record = ibv_sa_path_rec {
            dlid: 1,
            slid: 2,
            raw_traffic: 1,
            flow_label: 3,
            hop_limit: 4,
            ..Default::default()
        };
        (record.dgid.raw, record.sgid.raw) = ([5; 16], [6; 16]);
        (record.traffic_class, record.reversible, record.numb_path, record.pkey) = (7, 1, 8, 9);
        (record.sl, record.mtu_selector, record.mtu, record.rate_selector) = (10, 2, 4, 2);
        (record.rate, record.packet_life_time_selector, record.packet_life_time, record.preference) =
            (11, 2, 12, 13);
        let (mut kernel, mut back) = (ib_user_path_rec::default(), ibv_sa_path_rec::default());
        // SAFETY: three structures of this function.
        unsafe {
            ibv_copy_path_rec_to_kern(&raw mut kernel, &raw const record);
            ibv_copy_path_rec_from_kern(&raw mut back, &raw const kernel);
        }
        let bytes = |record: &ibv_sa_path_rec| {
            // SAFETY: unions of plain bytes.
            let gids = unsafe { (record.dgid.raw, record.sgid.raw) };
            let words = (
                record.dlid,
                record.slid,
                record.raw_traffic,
                record.flow_label,
                record.pkey,
                record.reversible,
            );
            let head = [
                record.hop_limit,
                record.traffic_class,
                record.numb_path,
                record.sl,
                record.mtu_selector,
                record.mtu,
            ];
            let tail = [
                record.rate_selector,
                record.rate,
                record.packet_life_time_selector,
                record.packet_life_time,
                record.preference,
            ];
            (gids, words, head, tail)
        };
        assert_eq!(bytes(&back), bytes(&record));
    }

    #[test]
    fn kernel_attributes_are_copied_to_their_fields() {
        // Each byte has its own offset as value, so no two fields of a size are equal.
        let mut kernel = ib_uverbs_qp_attr::default();
        let mut verbs = ibv_qp_attr::default();
        // SAFETY: two structures of this function, of plain numbers.
        unsafe {
            let bytes = (&raw mut kernel).cast::<u8>();
            for at in 0..size_of::<ib_uverbs_qp_attr>() {
                bytes.add(at).write(at as u8 + 1);
            }
            ibv_copy_qp_attr_from_kern(&raw mut verbs, &raw const kernel);
        }
        macro_rules! same {
            ($of:expr, $there:expr; $($field:ident)*) => { $(assert_eq!($of.$field, $there.$field, stringify!($field));)* };
        }
        same!(verbs, kernel; cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num qp_access_flags pkey_index);
        same!(verbs, kernel; alt_pkey_index en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic min_rnr_timer);
        same!(verbs, kernel; port_num timeout retry_cnt rnr_retry alt_port_num alt_timeout);
        same!(verbs.cap, kernel; max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data);
        let mut alone = ibv_ah_attr::default();
        // SAFETY: two structures of this function.
        unsafe { ibv_copy_ah_attr_from_kern(&raw mut alone, &raw const kernel.alt_ah_attr) };
        for (way, there) in [
            (verbs.ah_attr, kernel.ah_attr),
            (verbs.alt_ah_attr, kernel.alt_ah_attr),
            (alone, kernel.alt_ah_attr),
        ] {
            same!(way, there; dlid sl src_path_bits static_rate is_global port_num);
            same!(way.grh, there.grh; flow_label sgid_index hop_limit traffic_class);
            // SAFETY: all variants of a GID are the same bytes.
            assert_eq!(unsafe { way.grh.dgid.raw }, there.grh.dgid);
        }
    }
}
