//! Protocol of the two ends of a measurement.
//!
//! ```text
//! client                      server
//! Hello (plan)        ->
//!                     <-      Accept (path MTU) or Failed (what differs)
//! End                 <->     End                       QPs are connected
//! Ready               <->     Ready
//! Round (size)        ->                                for each size
//!                     <-      Ready
//!       ... RDMA, or bare frames ...
//! Done                ->
//!                     <-      Report
//! Bye                 ->
//! ```

use std::time::Duration;

use roxie::verbs::Mtu;
use roxie_report::failure::Failure;
use roxie_report::formats;
use roxie_report::output;

use super::arguments::MeasurementOptions;
use super::control::{ANSWER, Control, End, Message, ServerReport, out_of_turn};
use super::plan::Plan;
use super::report::{Form, Outcome, Printer};

/// One end of a measurement: queue pairs, or a bare port.
pub(super) trait Side: Send {
    /// Returns the port's name and mode.
    fn port(&self) -> (String, String);
    /// Returns the path MTU to propose.
    fn path_mtu(&self) -> Result<Mtu, Failure>;
    /// Prepares for a plan, and returns the addresses to connect to.
    fn prepare(&mut self, plan: &Plan, path_mtu: Mtu) -> Result<End, Failure>;
    /// Connects to the other end.
    fn connect(&mut self, there: &End) -> Result<(), Failure>;
    /// Clears the state of earlier rounds, before either end begins with this size.
    fn arm(&mut self, plan: &Plan, size: u32) -> Result<(), Failure>;
    /// Measures messages of one size.
    fn measure(&mut self, plan: &Plan, size: u32, control: &Control) -> Result<Outcome, Failure>;
    /// Serves a round until the client is done. Returns the client's number of messages.
    fn serve(&mut self, plan: &Plan, size: u32, control: &Control) -> Result<(u64, ServerReport), Failure>;
    /// Returns the counters.
    fn counters(&self) -> Vec<(&'static str, u64)>;
    /// Prints the event logs of queue pairs that saw more than routine events.
    fn tell_logs(&self) {}
    /// Finishes output besides the results, such as a capture.
    fn finish(&self) -> Result<(), Failure> {
        Ok(())
    }
}

/// Runs the client.
pub(super) fn drive(
    mut control: Control,
    side: &mut dyn Side,
    plan: &Plan,
    form: Form,
) -> Result<(), Failure> {
    let done = drive_all(&mut control, side, plan, form).inspect_err(|_| side.tell_logs());
    tell(&mut control, &done);
    done.and_then(|()| side.finish())
}

fn drive_all(control: &mut Control, side: &mut dyn Side, plan: &Plan, form: Form) -> Result<(), Failure> {
    control.send(&Message::Hello { plan: plan.clone(), path_mtu: side.path_mtu()?.bytes() })?;
    let (path_mtu, selective_repeat) = match control.expect("its consent", ANSWER)? {
        Message::Accept { path_mtu, selective_repeat } => (known_mtu(path_mtu)?, selective_repeat),
        other => return Err(out_of_turn(&other)),
    };
    let agreed = Plan { selective_repeat: plan.selective_repeat && selective_repeat, ..plan.clone() };
    if plan.selective_repeat && !agreed.selective_repeat {
        output::note("the server has no selective repeat: go-back-N");
    }
    meet(control, side, &agreed, path_mtu)?;
    let printer = Printer::new(plan, side.port(), path_mtu, form);
    printer.heading()?;
    for &size in &plan.sizes {
        side.arm(plan, size)?;
        control.send(&Message::Round { size })?;
        expect_ready(control)?;
        let before = side.counters();
        let mut outcome = side.measure(plan, size, control)?;
        outcome.counters = moved(&before, &side.counters());
        control.send(&Message::Done { messages: outcome.messages })?;
        match control.expect("its report", ANSWER)? {
            Message::Report(report) => printer.row(size, &outcome, &report)?,
            other => return Err(out_of_turn(&other)),
        }
    }
    control.send(&Message::Bye)
}

/// Runs the server, with a summary of each round.
pub(super) fn serve(
    control: Control,
    side: &mut dyn Side,
    own: &Plan,
    wishes: &MeasurementOptions,
    json: bool,
) -> Result<(), Failure> {
    serve_all(control, side, own, wishes, &mut |size, messages, report| {
        if json {
            let object =
                serde_json::json!({ "role": "server", "size": size, "messages": messages, "report": report });
            formats::print(formats::PERF, object)
        } else {
            output::line(format_args!("served {messages} messages of {size} bytes"))
        }
    })
}

/// Runs the server without output, for a client in the same process.
pub(super) fn serve_quietly(
    control: Control,
    side: &mut dyn Side,
    own: &Plan,
    wishes: &MeasurementOptions,
) -> Result<(), Failure> {
    serve_all(control, side, own, wishes, &mut |_, _, _| Ok(()))
}

type Summary<'a> = &'a mut dyn FnMut(u32, u64, &ServerReport) -> Result<(), Failure>;

fn serve_all(
    mut control: Control,
    side: &mut dyn Side,
    own: &Plan,
    wishes: &MeasurementOptions,
    summary: Summary<'_>,
) -> Result<(), Failure> {
    let done = serve_rounds(&mut control, side, own, wishes, summary).inspect_err(|_| side.tell_logs());
    tell(&mut control, &done);
    done.and_then(|()| side.finish())
}

fn serve_rounds(
    control: &mut Control,
    side: &mut dyn Side,
    own: &Plan,
    wishes: &MeasurementOptions,
    summary: Summary<'_>,
) -> Result<(), Failure> {
    let (plan, theirs) = match control.expect("its plan", ANSWER)? {
        Message::Hello { plan, path_mtu } => (plan, known_mtu(path_mtu)?),
        other => return Err(out_of_turn(&other)),
    };
    plan.check().map_err(|e| Failure::Peer(format!("the client's plan cannot be: {e}")))?;
    let differences = plan.differences(own, wishes);
    if !differences.is_empty() {
        return Err(Failure::Peer(format!("the two ends differ: {}", differences.join("; "))));
    }
    let path_mtu = agree_on_mtu(&plan, theirs, side.path_mtu()?)?;
    let selective_repeat = plan.selective_repeat;
    control.send(&Message::Accept { path_mtu: path_mtu.bytes(), selective_repeat })?;
    meet(control, side, &plan, path_mtu)?;
    loop {
        match control.expect("the next round", Duration::from_secs(3600))? {
            Message::Round { size } if plan.sizes.contains(&size) => {
                let before = side.counters();
                side.arm(&plan, size)?;
                control.send(&Message::Ready)?;
                let (messages, mut report) = side.serve(&plan, size, control)?;
                report.counters = moved(&before, &side.counters());
                // Report to the client before printing, so that an error of this end's output does not affect it.
                control.send(&Message::Report(report.clone()))?;
                summary(size, messages, &report)?;
            }
            Message::Bye => return Ok(()),
            other => return Err(out_of_turn(&other)),
        }
    }
}

/// Returns the smaller path MTU. Fails if the client requested its own and this end cannot support it.
fn agree_on_mtu(plan: &Plan, theirs: Mtu, ours: Mtu) -> Result<Mtu, Failure> {
    if plan.mtu.is_some() && theirs > ours {
        return Err(Failure::Peer(format!(
            "the client asks for path MTU {}, the server can do {} at most",
            theirs.bytes(),
            ours.bytes()
        )));
    }
    Ok(theirs.min(ours))
}

fn known_mtu(bytes: usize) -> Result<Mtu, Failure> {
    Mtu::from_bytes(bytes)
        .ok_or_else(|| Failure::Peer(format!("the peer named {bytes}, which is no path MTU")))
}

fn meet(control: &mut Control, side: &mut dyn Side, plan: &Plan, path_mtu: Mtu) -> Result<(), Failure> {
    control.send(&Message::End(side.prepare(plan, path_mtu)?))?;
    match control.expect("its address", ANSWER)? {
        Message::End(there) => side.connect(&there)?,
        other => return Err(out_of_turn(&other)),
    }
    control.send(&Message::Ready)?;
    expect_ready(control)
}

fn expect_ready(control: &Control) -> Result<(), Failure> {
    match control.expect("that it is ready", ANSWER)? {
        Message::Ready => Ok(()),
        other => Err(out_of_turn(&other)),
    }
}

/// Tells the peer why this end gives up.
fn tell(control: &mut Control, done: &Result<(), Failure>) {
    if let Err(failure) = done {
        // The peer may have closed the connection already.
        let _ = control.send(&Message::Failed(failure.to_string().into()));
    }
}

/// Returns the counters that changed, with their increments.
fn moved(before: &[(&'static str, u64)], after: &[(&'static str, u64)]) -> Vec<(String, u64)> {
    let difference =
        |((name, old), (_, new)): (&(&str, u64), &(&str, u64))| ((*name).to_owned(), new.wrapping_sub(*old));
    before.iter().zip(after).map(difference).filter(|(_, n)| *n > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changed_counters_are_reported() {
        let moved = moved(&[("a", 1), ("b", 2)], &[("a", 1), ("b", 5)]);
        assert_eq!(moved, [("b".to_owned(), 3)]);
    }
}
