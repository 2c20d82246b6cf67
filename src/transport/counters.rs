//! What a NIC counts, under the names that mlx5 and rxe give it.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a NIC. Names are those of mlx5's and rxe's `hw_counters`, where those have one.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Names and values.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// RoCE packets sent.
    sent_pkts,
    /// RoCE packets for a QP, of its service and from its peer, whatever its state then said to them.
    rcvd_pkts,
    /// Payload bytes sent.
    sent_bytes,
    /// Payload bytes received.
    rcvd_bytes,
    /// SEND messages sent, and acknowledged where the service does that.
    rdma_sends,
    /// SEND messages received.
    rdma_recvs,
    /// WRITE requests received.
    rx_write_requests,
    /// READ requests received.
    rx_read_requests,
    /// ATOMIC requests received.
    rx_atomic_requests,
    /// FLUSH requests received.
    rx_flush_requests,
    /// Requests that found no receive.
    out_of_buffer,
    /// Requests ahead of the expected PSN.
    out_of_sequence,
    /// Requests seen before.
    duplicate_request,
    /// Duplicates that could not be answered again: the saved result is gone.
    duplicate_dropped,
    /// RNR NAKs sent.
    send_rnr_err,
    /// RNR NAKs received.
    rcvd_rnr_err,
    /// RNR retries exhausted.
    retry_rnr_exceeded_err,
    /// PSN sequence NAKs received.
    packet_seq_err,
    /// Responses that overtook a READ or ATOMIC response.
    implied_nak_seq_err,
    /// Transport timers expired.
    local_ack_timeout_err,
    /// Retries exhausted.
    retry_exceeded_err,
    /// Packets sent again.
    retransmitted_packets,
    /// Acknowledgements for what was never sent, or that make no sense.
    ghost_acks,
    /// Acknowledgements seen before.
    duplicate_acks,
    /// Requester: completions in error.
    req_cqe_error,
    /// Requester: completions flushed.
    req_cqe_flush_error,
    /// Requester: NAK remote access error.
    req_remote_access_errors,
    /// Requester: NAK invalid request.
    req_remote_invalid_request,
    /// Responder: completions in error.
    resp_cqe_error,
    /// Responder: completions flushed.
    resp_cqe_flush_error,
    /// Responder: messages longer than the receive.
    resp_local_length_error,
    /// Responder: requests refused for access rights, keys or bounds.
    resp_remote_access_errors,
    /// Responder: requests refused as invalid.
    resp_invalid_requests,
    /// Packets for a QP in a state that takes none.
    rx_wrong_state,
    /// Packets for a QP from an address that is not its peer's.
    rx_wrong_source,
    /// Packets for a QPN that nobody has.
    rx_unknown_qp,
    /// Packets for a multicast group with members.
    rx_multicast,
    /// Frames of other protocols that flows took to raw packet QPs.
    rx_steered,
    /// Packets of another service than the QP's.
    rx_wrong_service,
    /// Packets with a foreign partition key.
    rx_bad_pkey,
    /// Datagrams that presented another Q_Key than their QP's (`qkey_viol_cntr` of a port's attributes).
    qkey_viol_cntr,
    /// Packets of UC and UD dropped without a word: their message lost a packet, or there was no receive.
    rx_dropped_unacknowledged,
    /// Packets whose ICRC does not match (`rx_icrc_encapsulated` of mlx5).
    rx_icrc_encapsulated,
    /// Packets accepted although the hidden IPv4 identification leaves their ICRC weak.
    icrc_weak,
    /// Frames that are no RoCE packet, or a broken one.
    rx_malformed,
    /// Frames that are not RoCE.
    rx_not_roce,
    /// Congestion notifications of QPs' peers, heeded.
    rp_cnp_handled,
    /// Those that nobody heeded: their QP has no reaction point, or sent nothing that can have caused them.
    rp_cnp_ignored,
    /// Congestion notifications sent.
    np_cnp_sent,
    /// Packets with CE set by a switch.
    np_ecn_marked_roce_packets,
    /// Priority flow control frames sent that stop.
    tx_prio_pause,
    /// Those that let go on.
    tx_prio_resume,
    /// PAUSE frames that stopped everything.
    rx_global_pause,
    /// Priorities found paused for so long without a break that their pauses are ignored for a while (mlx5's name).
    rx_pause_storm_warning_events,
    /// Pauses that were ignored for that.
    rx_pause_storm_ignored,
    /// Copies that memory refused: it is not there, or not any more.
    memory_faults,
    /// Completions lost to a full completion queue.
    cq_overflow,
    /// Asynchronous events lost because nobody took those before them.
    events_lost,
}
