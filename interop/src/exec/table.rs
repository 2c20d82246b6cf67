//! The page of all tables: reactions to the scripts, as specified and as each implementation was seen to react.

/// Returns the page of all tables.
pub fn page() -> String {
    format!(
        "# Invalid packets\n\n\
         Reactions of a responder to invalid requests, and of a requester to invalid responses.\n\n\
         How to read the tables: `NAK60` is a PSN sequence error, `NAK61` an invalid request, `NAK62` a remote access error, `NAK63` a\n\
         remote operational error. `+1` counts PSNs from the script's first. `ERR`: the queue pair is in the error state afterwards.\n\
         Clauses are those of the IBTA's volume 1; annex A19 has the memory placement extensions.\n\n\
         The rows `wrong/…` and `odd/…` check the columns of rdma_rxe, and `interop/tests/guests/wrong.rs` checks the last column.\n\
         `cargo run -p interop -- wrong` prints the tables.\n\n\
         ## Invalid requests\n\n\
         The table shows the responder's answers. If its queue pair is not in the error state, the next valid message arrives.\n\n{}\n\
         ## Invalid responses\n\n\
         The script answers the requester's first packets. The table shows what the requester sends next, and how its requests complete.\n\
         If its queue pair is not in the error state, the script then gives valid responses to its last requests. `READ_REQ` is a READ\n\
         request.\n\n{}",
        super::wrong::lines(),
        super::odd::lines()
    )
}
