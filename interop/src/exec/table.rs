//! The page of all tables: reactions to the scripts, as specified and as each implementation was seen to react.

/// Returns the page of all tables.
pub fn page() -> String {
    format!(
        "# Invalid packets\n\n\
         Reactions of rdma_rxe (rxe, on Linux 6.1 and 7.2) and of Roxie; one without a name is of all. `cargo run -p interop -- wrong` prints\n\
         the tables, rows `wrong/…` and `odd/…` check rxe, `interop/tests/guests/wrong.rs` checks Roxie.\n\n\
         `NAK60` is a PSN sequence error, `NAK61` an invalid request, `NAK62` a remote access error, `NAK63` a remote operational error. `+1`\n\
         counts PSNs from the script's first. `ERR`: the queue pair is in the error state afterwards. Clauses are those of the IBTA's\n\
         volume 1; annex A19 has the memory placement extensions.\n\n\
         ## Invalid requests\n\n\
         The responder's answers. If its queue pair is not in the error state, the next valid message arrives.\n\n{}\n\
         ## Invalid responses\n\n\
         What the requester sends next, and how its requests complete. If its queue pair is not in the error state, the script then gives\n\
         valid responses to its last requests. `READ_REQ` is a READ request.\n\n{}",
        super::wrong::lines(),
        super::odd::lines()
    )
}
