//! The Connect command and its data (NVMe over Fabrics 3.3).

use crate::nvme::bytes::{first, put, put_text, text_at, u16_at};
use crate::nvme::command::{Command, fabrics};
use crate::nvme::response::Response;
use crate::nvme::status::Status;

/// Bytes of the command's data.
pub const LENGTH: usize = 1024;
/// Controller identifier that asks for any controller.
pub const ANY_CONTROLLER: u16 = 0xffff;

/// Connect attribute: no flow control of the submission queue.
const NO_FLOW_CONTROL: u8 = 1 << 2;

/// Fields of a Connect command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Queue identifier; 0: the admin queue.
    pub queue: u16,
    /// Entries of the submission queue, minus 1.
    pub size: u16,
    /// The host does without flow control of the submission queue.
    pub no_flow_control: bool,
    /// Keep-alive timeout in ms; 0: none. Admin queue only.
    pub keep_alive_ms: u32,
}

impl Connect {
    /// Reads the fields of a Connect command. `None`: the record format is unknown.
    pub fn of(command: &Command) -> Option<Connect> {
        let bytes = command.to_bytes();
        (u16_at(&bytes, 40) == 0).then_some(Connect {
            queue: u16_at(&bytes, 42),
            size: u16_at(&bytes, 44),
            no_flow_control: bytes[46] & NO_FLOW_CONTROL != 0,
            keep_alive_ms: command.dwords[2],
        })
    }

    /// Returns the command, without identifier and SGL.
    pub fn command(self) -> Command {
        let attributes = if self.no_flow_control { NO_FLOW_CONTROL } else { 0 };
        let second = u32::from(self.size) | u32::from(attributes) << 16;
        let dwords = [u32::from(self.queue) << 16, second, self.keep_alive_ms, 0, 0, 0];
        Command { dwords, ..Command::new(fabrics::OPCODE, fabrics::CONNECT.into()) }
    }
}

/// Data of a Connect command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// Host identifier, 128 bits.
    pub host_id: [u8; 16],
    /// Controller identifier; [`ANY_CONTROLLER`] on the admin queue.
    pub controller: u16,
    /// Name of the subsystem.
    pub subsystem: String,
    /// Name of the host.
    pub host: String,
}

impl ConnectData {
    /// Parses the data. `None`: it is too short.
    pub fn parse(bytes: &[u8]) -> Option<ConnectData> {
        let bytes: &[u8; LENGTH] = first(bytes)?;
        Some(ConnectData {
            host_id: std::array::from_fn(|n| bytes[n]),
            controller: u16_at(bytes, 16),
            subsystem: text_at(bytes, 256, 256),
            host: text_at(bytes, 512, 256),
        })
    }

    /// Encodes the data. Of longer names, the first 256 bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; LENGTH];
        put(&mut bytes, 0, &self.host_id);
        put(&mut bytes, 16, &self.controller.to_le_bytes());
        put_text(&mut bytes, (256, 256), &self.subsystem, 0);
        put_text(&mut bytes, (512, 256), &self.host, 0);
        bytes
    }
}

/// A field that makes a Connect command invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A field of the command, by its offset.
    Command(u16),
    /// A field of the data, by its offset.
    Data(u16),
}

impl Wrong {
    /// Queue identifier.
    pub const QUEUE: Wrong = Wrong::Command(42);
    /// Submission queue size.
    pub const SIZE: Wrong = Wrong::Command(44);
    /// Host identifier.
    pub const HOST_ID: Wrong = Wrong::Data(0);
    /// Controller identifier.
    pub const CONTROLLER: Wrong = Wrong::Data(16);
    /// Name of the subsystem.
    pub const SUBSYSTEM: Wrong = Wrong::Data(256);
    /// Name of the host.
    pub const HOST: Wrong = Wrong::Data(512);

    /// Returns the result that names the field: its offset, and in bit 16 whether it is in the data.
    pub const fn result(self) -> u64 {
        match self {
            Wrong::Command(at) => at as u64,
            Wrong::Data(at) => at as u64 | 1 << 16,
        }
    }
}

/// Names the invalid field of a refused Connect command, for messages. `None`: the response names none.
pub fn wrong_field(response: &Response) -> Option<&'static str> {
    if response.status.code() != Status::CONNECT_PARAMETERS {
        return None;
    }
    let fields = [
        (Wrong::QUEUE, "queue ID"),
        (Wrong::SIZE, "queue size"),
        (Wrong::HOST_ID, "host ID"),
        (Wrong::CONTROLLER, "controller ID"),
        (Wrong::SUBSYSTEM, "subsystem NQN"),
        (Wrong::HOST, "host NQN"),
    ];
    fields.into_iter().find(|(wrong, _)| wrong.result() == response.result & 0x1_ffff).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_has_the_specified_layout() {
        let connect = Connect { queue: 0x0102, size: 0x0304, no_flow_control: true, keep_alive_ms: 5000 };
        let command = connect.command();
        let bytes = command.to_bytes();
        assert_eq!((bytes[0], bytes[4]), (0x7f, 1));
        assert_eq!(bytes[40..52], [0, 0, 2, 1, 4, 3, 4, 0, 0x88, 0x13, 0, 0]);
        assert_eq!(Connect::of(&command), Some(connect));
        let other = Command { dwords: [1, 0, 0, 0, 0, 0], ..command };
        assert_eq!(Connect::of(&other), None);
    }

    #[test]
    fn connect_data_has_the_specified_layout() {
        let data = ConnectData {
            host_id: [9; 16],
            controller: ANY_CONTROLLER,
            subsystem: "nqn.2026-11.example:disk".into(),
            host: "nqn.2026-11.example:host".into(),
        };
        let bytes = data.to_bytes();
        assert_eq!((bytes.len(), &bytes[..18]), (1024, &[[9; 16].to_vec(), vec![0xff, 0xff]].concat()[..]));
        assert!(bytes[256..].starts_with(b"nqn.2026-11.example:disk\0"));
        assert!(bytes[512..].starts_with(b"nqn.2026-11.example:host\0"));
        assert_eq!(ConnectData::parse(&bytes), Some(data));
        assert_eq!(ConnectData::parse(&bytes[1..]), None);
    }

    #[test]
    fn refused_field_is_named() {
        let status = Status::CONNECT_PARAMETERS.permanent();
        let response = Response { result: Wrong::SUBSYSTEM.result(), head: 0, queue: 0, id: 0, status };
        assert_eq!((response.result, wrong_field(&response)), (0x1_0100, Some("subsystem NQN")));
        assert_eq!(wrong_field(&Response { status: Status::BUSY, ..response }), None);
    }
}
