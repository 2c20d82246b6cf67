//! What becomes of a script: as the specification wants it, and as each implementation was seen to take it.

/// The page of all tables.
pub fn page() -> String {
    format!(
        "# Packets that nobody should send\n\n\
         What a responder makes of wrong requests and a requester of wrong answers. `NAK60` is a PSN sequence error, `NAK61` an\n\
         invalid request, `NAK62` a remote access error, `NAK63` a remote operational error; `+1` is the PSN, from the script's\n\
         first; `ERR` says that the queue pair has gone to the error state. The columns of rdma_rxe are held by the rows `wrong/…`\n\
         and `odd/…`, the last by `tests/wrong.rs`. Clauses are those of the IBTA's volume 1; annex A19 has the memory placement\n\
         extensions.\n\n\
         ## Wrong requests\n\n\
         What the responder answers. Where it goes on, the next good message arrives.\n\n{}\n\
         ## Wrong answers\n\n\
         The requester's first packets have gone out when the script answers. What it sends thereupon, and how its requests\n\
         complete; where it goes on, right answers to what it asked last have followed. `READ_REQ` is a READ request.\n\n{}",
        super::wrong::lines(),
        super::odd::lines()
    )
}
