//! What a protocol does with completions, and the loops that take them.

use std::time::{Duration, Instant};

use roxie::verbs::{Wc, WcOpcode, WcStatus};

use crate::ended::Ended;
use crate::endpoint::Endpoint;

/// An upper-layer protocol on a connection: what it does with the completions of its work requests. An identifier has a
/// meaning only with its operation. The end of the connection follows from the completion of an operation that the
/// protocol has no function for.
pub trait UpperLayer {
    /// The connection.
    fn endpoint(&self) -> &Endpoint;

    /// A message was received: [`Endpoint::receive`] returns it.
    ///
    /// # Errors
    /// If the connection is to end, as for all functions below.
    fn received(&mut self, wc: &Wc) -> Result<(), Ended>;

    /// A SEND has completed.
    ///
    /// # Errors
    /// If the connection is to end.
    fn sent(&mut self, wc: &Wc) -> Result<(), Ended>;

    /// A READ has completed.
    ///
    /// # Errors
    /// If the connection is to end.
    fn read(&mut self, wc: &Wc) -> Result<(), Ended> {
        unexpected(wc)
    }

    /// A WRITE has completed.
    ///
    /// # Errors
    /// If the connection is to end.
    fn written(&mut self, wc: &Wc) -> Result<(), Ended> {
        unexpected(wc)
    }

    /// A local invalidation has completed.
    ///
    /// # Errors
    /// If the connection is to end.
    fn invalidated(&mut self, wc: &Wc) -> Result<(), Ended> {
        unexpected(wc)
    }

    /// No completion is pending. A server calls it at least 20 times a second.
    ///
    /// # Errors
    /// If the connection is to end.
    fn idle(&mut self) -> Result<(), Ended> {
        Ok(())
    }
}

fn unexpected(wc: &Wc) -> Result<(), Ended> {
    Err(Ended::Unexpected(wc.opcode))
}

/// Hands a completion to its function. A work request that failed ends the connection.
pub(crate) fn dispatch<U: UpperLayer>(upper: &mut U, wc: &Wc) -> Result<(), Ended> {
    match (wc.status, wc.opcode) {
        (WcStatus::Success, WcOpcode::Recv) => upper.received(wc),
        (WcStatus::Success, WcOpcode::Send) => upper.sent(wc),
        (WcStatus::Success, WcOpcode::Read) => upper.read(wc),
        (WcStatus::Success, WcOpcode::Write) => upper.written(wc),
        (WcStatus::Success, WcOpcode::LocalInvalidate) => upper.invalidated(wc),
        (WcStatus::Success, _) => unexpected(wc),
        (status, opcode) => Err(Ended::Failed { opcode, status }),
    }
}

/// Waits for one completion, and hands it to its function. Returns the operation; `None`: there was none in time.
///
/// # Errors
/// If the connection has ended.
pub fn step<U: UpperLayer>(upper: &mut U, timeout: Duration) -> Result<Option<WcOpcode>, Ended> {
    let endpoint = upper.endpoint();
    let wc = endpoint.connection.wait_for_completion(&endpoint.cq, timeout);
    let Some(wc) = wc.map_err(|_| Ended::Closed)? else { return Ok(None) };
    dispatch(upper, &wc)?;
    Ok(Some(wc.opcode))
}

/// Takes completions until `result` returns a value. `None`: it did not in `timeout`.
///
/// # Errors
/// If the connection has ended.
pub fn wait<U: UpperLayer, T>(
    upper: &mut U,
    timeout: Duration,
    mut result: impl FnMut(&mut U) -> Option<T>,
) -> Result<Option<T>, Ended> {
    let until = Instant::now() + timeout;
    loop {
        if let Some(value) = result(upper) {
            return Ok(Some(value));
        }
        if step(upper, until.saturating_duration_since(Instant::now()))?.is_none() {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A protocol that posts SENDs and READs, and records which functions are called.
    #[derive(Default)]
    struct Reader(Vec<&'static str>);

    impl UpperLayer for Reader {
        fn endpoint(&self) -> &Endpoint {
            unreachable!("completions are handed over without a connection")
        }

        fn received(&mut self, _: &Wc) -> Result<(), Ended> {
            self.0.push("received");
            Ok(())
        }

        fn sent(&mut self, _: &Wc) -> Result<(), Ended> {
            self.0.push("sent");
            Ok(())
        }

        fn read(&mut self, _: &Wc) -> Result<(), Ended> {
            self.0.push("read");
            Ok(())
        }
    }

    /// A protocol that also posts WRITEs and local invalidations.
    #[derive(Default)]
    struct Writer(Reader);

    impl UpperLayer for Writer {
        fn endpoint(&self) -> &Endpoint {
            self.0.endpoint()
        }

        fn received(&mut self, wc: &Wc) -> Result<(), Ended> {
            self.0.received(wc)
        }

        fn sent(&mut self, wc: &Wc) -> Result<(), Ended> {
            self.0.sent(wc)
        }

        fn written(&mut self, _: &Wc) -> Result<(), Ended> {
            self.0.0.push("written");
            Ok(())
        }

        fn invalidated(&mut self, _: &Wc) -> Result<(), Ended> {
            self.0.0.push("invalidated");
            Ok(())
        }
    }

    /// Hands over a completion of each operation, and returns those that ended the connection.
    fn refused(upper: &mut impl UpperLayer) -> Vec<WcOpcode> {
        let mut refused = Vec::new();
        for opcode in (0..=u8::MAX).filter_map(WcOpcode::from_code) {
            match dispatch(upper, &Wc { opcode, ..Wc::default() }) {
                Ok(()) => {}
                Err(Ended::Unexpected(other)) => refused.push(other),
                Err(other) => panic!("{opcode:?}: {other}"),
            }
            let failed = dispatch(upper, &Wc { opcode, status: WcStatus::RetryExc, ..Wc::default() });
            assert!(failed.unwrap_err().to_string().contains("failed"), "{opcode:?}");
        }
        refused
    }

    #[test]
    fn completions_reach_the_function_of_their_operation() {
        let (mut reader, mut writer) = (Reader::default(), Writer::default());
        refused(&mut reader);
        refused(&mut writer);
        assert_eq!(reader.0, ["sent", "read", "received"]);
        assert_eq!(writer.0.0, ["sent", "written", "invalidated", "received"]);
    }

    #[test]
    fn unexpected_completions_end_the_connection() {
        use WcOpcode::{
            AtomicWrite, BindWindow, CompareSwap, FastRegister, FetchAdd, Flush, LocalInvalidate, Read,
            RecvWriteImm, Write,
        };
        let never = [CompareSwap, FetchAdd, BindWindow, Flush, AtomicWrite, FastRegister, RecvWriteImm];
        let is_other = |opcode: &WcOpcode| !never.contains(opcode);
        for (mut of, others) in [
            (refused(&mut Reader::default()), vec![Write, LocalInvalidate]),
            (refused(&mut Writer::default()), vec![Read]),
        ] {
            assert!(never.iter().all(|opcode| of.contains(opcode)), "{of:?}");
            of.retain(is_other);
            assert_eq!(of, others);
        }
        let message = Ended::Unexpected(RecvWriteImm).to_string();
        assert!(message.contains("RecvWriteImm"), "{message}");
    }
}
