//! Implements a measurement's side with queue pairs.

use roxie::verbs::Mtu;
use roxie_report::failure::Failure;

use super::arguments::{Measure, Operation};
use super::control::{Control, End, ServerReport};
use super::link::Link;
use super::plan::Plan;
use super::report::Outcome;
use super::session::Side;
use super::{bandwidth, latency};
use crate::device::health::tell_logs;

impl Side for Link<'_> {
    fn port(&self) -> (String, String) {
        let info = self.device.port();
        (info.name.clone(), info.mode.clone())
    }

    fn path_mtu(&self) -> Result<Mtu, Failure> {
        self.options.path_mtu(&self.device, Mtu::Mtu4096)
    }

    fn prepare(&mut self, plan: &Plan, path_mtu: Mtu) -> Result<End, Failure> {
        Link::prepare(self, plan, path_mtu)
    }

    fn connect(&mut self, there: &End) -> Result<(), Failure> {
        Link::connect(self, there)
    }

    fn arm(&mut self, plan: &Plan, size: u32) -> Result<(), Failure> {
        if (plan.measure, plan.operation) == (Measure::Lat, Operation::Write) {
            // Clear the last byte, so that an earlier round's message is not taken for the next one's.
            self.parts().pairs.incoming.write_at(size as usize - 1, &[0])?;
        }
        Ok(())
    }

    fn measure(&mut self, plan: &Plan, size: u32, control: &Control) -> Result<Outcome, Failure> {
        match plan.measure {
            Measure::Bw => bandwidth::run(self, plan, size, control),
            Measure::Lat => latency::run(self, plan, size, control),
        }
    }

    fn serve(&mut self, plan: &Plan, size: u32, control: &Control) -> Result<(u64, ServerReport), Failure> {
        match (plan.measure, plan.operation) {
            (Measure::Lat, Operation::Send | Operation::Write) => {
                latency::answer(self, plan.operation, size, control)
            }
            _ => self.receive_all(control),
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.device.counters()
    }

    fn tell_logs(&self) {
        tell_logs(&self.device);
    }

    fn finish(&self) -> Result<(), Failure> {
        self.options.finish_capture(&self.device)
    }
}
