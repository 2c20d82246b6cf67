//! I/O commands (NVMe base specification 6).

use super::queue::{Answer, Needs, Queue, Refused};
use crate::command::{ALL_NAMESPACES, Command, io};
use crate::status::Status;
use crate::subsystem::Namespace;

impl Queue {
    pub(super) fn io_needs(&self, command: &Command) -> Result<Needs, Status> {
        match command.opcode {
            io::FLUSH if command.namespace == ALL_NAMESPACES => Ok(Needs::Nothing),
            io::FLUSH => self.of(command).map(|_| Needs::Nothing),
            io::READ => Ok(Needs::ToHost(self.range(command)?.1)),
            io::WRITE => {
                let (_, length) = self.range(command)?;
                self.writable(command)?;
                Ok(Needs::FromHost(length))
            }
            io::WRITE_ZEROES => {
                self.range(command)?;
                self.writable(command)?;
                Ok(Needs::Nothing)
            }
            _ => Err(Status::INVALID_OPCODE.permanent()),
        }
    }

    pub(super) fn run_io(&self, command: &Command, data: &mut Vec<u8>) -> Answer {
        if command.opcode == io::FLUSH && command.namespace == ALL_NAMESPACES {
            return done(self.subsystem.flush(), Status::WRITE_FAULT);
        }
        let storage = self.of(command)?.storage();
        let range = || self.range(command);
        match command.opcode {
            io::FLUSH => done(storage.flush(), Status::WRITE_FAULT),
            io::READ => {
                let (offset, length) = range()?;
                data.resize(length as usize, 0);
                done(storage.read(offset, data), Status::READ_ERROR)
            }
            io::WRITE => {
                let (offset, length) = range()?;
                if data.len() as u64 != length {
                    return Err(Status::DATA_TRANSFER.into());
                }
                let written = storage.write(offset, data);
                let flushed = || if command.forces_unit_access() { storage.flush() } else { Ok(()) };
                done(written.and_then(|()| flushed()), Status::WRITE_FAULT)
            }
            io::WRITE_ZEROES => {
                let (offset, length) = range()?;
                let zeroed = storage.zero(offset, length);
                let flushed = || if command.forces_unit_access() { storage.flush() } else { Ok(()) };
                done(zeroed.and_then(|()| flushed()), Status::WRITE_FAULT)
            }
            _ => Err(Status::INVALID_OPCODE.permanent().into()),
        }
    }

    fn of(&self, command: &Command) -> Result<&Namespace, Status> {
        self.subsystem.namespace(command.namespace).ok_or(Status::INVALID_NAMESPACE.permanent())
    }

    fn writable(&self, command: &Command) -> Result<(), Status> {
        if self.of(command)?.is_read_only() { Err(Status::WRITE_PROTECTED.permanent()) } else { Ok(()) }
    }

    /// Returns offset and length in bytes of a command's blocks.
    fn range(&self, command: &Command) -> Result<(u64, u64), Status> {
        let namespace = self.of(command)?;
        let end = command.lba().checked_add(command.block_count().into());
        if end.is_none_or(|end| end > namespace.blocks()) {
            return Err(Status::LBA_RANGE.permanent());
        }
        let shift = namespace.block_shift();
        Ok((command.lba() << shift, u64::from(command.block_count()) << shift))
    }
}

/// A storage error is not permanent: the host may try another path, or later.
fn done(result: std::io::Result<()>, status: Status) -> Answer {
    result.map(|()| 0).map_err(|_| Refused::from(status))
}
