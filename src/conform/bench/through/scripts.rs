//! Scripts of a wire: an operation, the packets that the wire changes, and what must follow.

/// What must be seen on the wire behind the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// A request is sent again.
    Again,
    /// A sequence NAK, and a request is sent again.
    Nak,
    /// Nothing: the connection goes on.
    Nothing,
}

/// A script.
#[derive(Clone, Copy, Debug)]
pub struct WireScript {
    /// Name, unique: `read/response_middle_lost`.
    pub name: &'static str,
    /// Rules of `roxie wire`, separated by semicolons.
    pub rules: &'static str,
    /// What must follow.
    pub follows: Follows,
}

impl WireScript {
    /// Returns the operation that the peers perform with messages of 8 KiB: read, send, write or atomic.
    pub fn operation(&self) -> &'static str {
        self.name.split('/').next().unwrap_or_default()
    }
}

/// Returns the script of a name.
pub fn script(name: &str) -> Option<WireScript> {
    SCRIPTS.into_iter().find(|script| script.name == name)
}

const fn of(name: &'static str, rules: &'static str, follows: Follows) -> WireScript {
    WireScript { name, rules, follows }
}

/// All scripts. The path MTU of the peers is 1024 bytes.
pub const SCRIPTS: [WireScript; 22] = [
    of("read/response_middle_lost", "drop opcode=READ_RESPONSE_MIDDLE psn=+3 once", Follows::Again),
    of("read/response_last_lost", "drop opcode=READ_RESPONSE_LAST once", Follows::Again),
    of("read/request_lost", "drop opcode=READ_REQUEST once", Follows::Again),
    of("read/request_twice", "duplicate opcode=READ_REQUEST nth2", Follows::Nothing),
    of("read/response_late", "delay=5ms opcode=READ_RESPONSE_MIDDLE psn=+5 once", Follows::Again),
    of("read/response_damaged", "corrupt opcode=READ_RESPONSE_MIDDLE nth4", Follows::Again),
    of("send/first_lost", "drop opcode=SEND_FIRST once", Follows::Again),
    of("send/middle_lost", "drop opcode=SEND_MIDDLE psn=+2 once", Follows::Nak),
    of("send/last_lost", "drop opcode=SEND_LAST once", Follows::Again),
    of("send/last_twice", "duplicate opcode=SEND_LAST once", Follows::Nothing),
    of("send/middle_overtaken", "reorder=3 opcode=SEND_MIDDLE nth5", Follows::Nak),
    of("send/middle_and_nak_lost", "drop opcode=SEND_MIDDLE psn=+2 once; drop kind=nak once", Follows::Again),
    of("write/middle_lost", "drop opcode=WRITE_MIDDLE nth9", Follows::Nak),
    of("write/middle_damaged", "corrupt opcode=WRITE_MIDDLE nth9", Follows::Nak),
    of("write/acknowledgement_lost", "drop opcode=ACKNOWLEDGE once", Follows::Nothing),
    of("write/half_of_acknowledgements_lost", "drop kind=ack every2", Follows::Nothing),
    of("write/acknowledgement_damaged", "corrupt kind=ack once", Follows::Nothing),
    of("write/acknowledgement_twice", "duplicate kind=ack once", Follows::Nothing),
    of("write/acknowledgement_late", "delay=100ms kind=ack once", Follows::Nothing),
    of("write/data_marked", "mark kind=data nth7", Follows::Nothing),
    of("atomic/request_twice", "duplicate opcode=FETCH_ADD nth5", Follows::Nothing),
    of("atomic/answer_lost", "drop opcode=ATOMIC_ACKNOWLEDGE once", Follows::Again),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn scripts_have_names_of_their_own() {
        let names: BTreeSet<&str> = SCRIPTS.iter().map(|script| script.name).collect();
        assert_eq!(names.len(), SCRIPTS.len());
        for known in SCRIPTS {
            assert!(["read", "send", "write", "atomic"].contains(&known.operation()), "{}", known.name);
            assert_eq!(script(known.name).map(|found| found.rules), Some(known.rules));
        }
        assert!(script("read").is_none());
    }
}
