//! What becomes of a script: as the specification wants it, and as each implementation was seen to take it.

/// The page of all tables.
pub fn page() -> String {
    format!(
        "# Packets that nobody should send\n\n\
         What a responder makes of wrong requests, and a requester of wrong answers.\n\n\
         How to read the tables: `NAK60` is a PSN sequence error, `NAK61` an invalid request, `NAK62` a remote access error, `NAK63` a\n\
         remote operational error. `+1` counts PSNs from the script's first. `ERR` says that the queue pair has gone to the error state.\n\
         Clauses are those of the IBTA's volume 1; annex A19 has the memory placement extensions.\n\n\
         The rows `wrong/…` and `odd/…` check the columns of rdma_rxe, and `interop/tests/wrong.rs` checks the last column.\n\
         `cargo run -p interop -- wrong` prints the tables.\n\n\
         ## Wrong requests\n\n\
         What the responder answers. Where its queue pair does not go to the error state, the next good message arrives.\n\n{}\n\
         ## Wrong answers\n\n\
         The requester has sent its first packets when the script answers. The table shows what the requester sends after that, and how its\n\
         requests complete. Where the queue pair goes on, right answers have followed to whatever it asked last. `READ_REQ` is a READ\n\
         request.\n\n{}",
        super::wrong::lines(),
        super::odd::lines()
    )
}
