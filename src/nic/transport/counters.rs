//! Counters of a NIC, under the names of mlx5 and rxe.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a NIC. Names follow the `hw_counters` of mlx5 and rxe, where these have one.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Returns names and values.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// RoCE packets sent.
    sent_pkts,
    /// RoCE packets received for a QP, with its service and from its peer, in any state of the QP.
    rcvd_pkts,
    /// Payload bytes sent.
    sent_bytes,
    /// Payload bytes received.
    rcvd_bytes,
    /// SEND messages sent. On reliable services, counted when acknowledged.
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
    /// Requests received while no receive was posted.
    out_of_buffer,
    /// Requests ahead of the expected PSN.
    out_of_sequence,
    /// Selective repeat: requests ahead of the expected PSN whose payload was placed.
    early_kept,
    /// Selective repeat: acknowledgements received that ask for missing packets.
    rcvd_sacks,
    /// Probes for an acknowledgement: none was asked for, or with selective repeat none came for a few round trips.
    tail_probes,
    /// Duplicate requests received.
    duplicate_request,
    /// Duplicate requests dropped, because the result is not stored any more.
    duplicate_dropped,
    /// RNR NAKs sent.
    send_rnr_err,
    /// RNR NAKs received.
    rcvd_rnr_err,
    /// RNR retry counter exceeded.
    retry_rnr_exceeded_err,
    /// PSN sequence NAKs received.
    packet_seq_err,
    /// Responses that overtook a READ or ATOMIC response.
    implied_nak_seq_err,
    /// Retransmission timeouts.
    local_ack_timeout_err,
    /// Retransmissions in the adaptive phase of an adapter's timer.
    roce_adp_retrans,
    /// Retry counter exceeded.
    retry_exceeded_err,
    /// Packets retransmitted.
    retransmitted_packets,
    /// Acknowledgements for PSNs that were never sent, or with a reserved syndrome.
    ghost_acks,
    /// Duplicate acknowledgements.
    duplicate_acks,
    /// Requester: completions with an error status.
    req_cqe_error,
    /// Requester: flushed completions.
    req_cqe_flush_error,
    /// Requester: remote access error NAKs received.
    req_remote_access_errors,
    /// Requester: invalid request NAKs received.
    req_remote_invalid_request,
    /// Responder: completions with an error status.
    resp_cqe_error,
    /// Responder: flushed completions.
    resp_cqe_flush_error,
    /// Responder: messages longer than the receive.
    resp_local_length_error,
    /// Responder: requests refused because of key, bounds or rights.
    resp_remote_access_errors,
    /// Responder: requests refused as invalid.
    resp_invalid_requests,
    /// Packets for a QP in a state that accepts none.
    rx_wrong_state,
    /// Packets from another address than the peer's, or not of the connection's VLAN and RoCE version.
    rx_wrong_source,
    /// Packets of a VLAN or RoCE version of which their destination is no GID, and packets with two VLAN tags.
    rx_other_network,
    /// Packets for a QPN that does not exist.
    rx_unknown_qp,
    /// Connection requests and replies of clients that were not sent, because they name a QP that is not the client's.
    tx_foreign_qp,
    /// Packets for a multicast group with members.
    rx_multicast,
    /// Frames of other protocols that flows have steered to raw packet QPs.
    rx_steered,
    /// Packets of another service than the QP's.
    rx_wrong_service,
    /// Packets with a P_Key that does not match.
    rx_bad_pkey,
    /// Datagrams with another Q_Key than the QP's (`qkey_viol_cntr` of a port's attributes).
    qkey_viol_cntr,
    /// Datagrams and UC packets dropped silently: their message lost a packet, or no receive was posted.
    rx_dropped_unacknowledged,
    /// Packets with a wrong ICRC (`rx_icrc_encapsulated` of mlx5).
    rx_icrc_encapsulated,
    /// Packets accepted although their ICRC matches only an implausible IPv4 identification: the ICRC covers that
    /// field, and sockets do not show it.
    icrc_weak,
    /// Malformed RoCE packets: invalid headers or lengths, a wrong pad, an invalid congestion notification.
    rx_malformed,
    /// Frames of other protocols.
    rx_not_roce,
    /// Congestion notifications handled.
    rp_cnp_handled,
    /// Congestion notifications ignored: the QP has no reaction point, or has sent nothing that can have caused them.
    rp_cnp_ignored,
    /// Congestion notifications sent.
    np_cnp_sent,
    /// Packets received with a CE mark.
    np_ecn_marked_roce_packets,
    /// Priority flow control frames sent that pause.
    tx_prio_pause,
    /// Priority flow control frames sent that resume.
    tx_prio_resume,
    /// PAUSE frames received that pause the whole link.
    rx_global_pause,
    /// Pause storms detected: a priority was paused so long that pauses are ignored for a while (mlx5's name).
    rx_pause_storm_warning_events,
    /// Pauses ignored because of a pause storm.
    rx_pause_storm_ignored,
    /// Memory operations that failed: pages missing or protected, a flush that could not be written back, or a client's
    /// memory out of reach.
    memory_faults,
    /// Packets dropped because their QP waits for copies from or to a client's memory, and too many packets wait with
    /// it.
    rx_dropped_awaiting_copies,
    /// Completions lost because their completion queue was full.
    cq_overflow,
    /// Asynchronous events lost because the application did not read earlier ones.
    events_lost,
}
