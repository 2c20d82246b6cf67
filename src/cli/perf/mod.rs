//! `roxie perf`: bandwidth, message rate and latency, between two processes or within one.
//!
//! Read `plan` for what is measured, `session` for the protocol of the two ends, then `bandwidth` and `latency`.
//! `floor` measures the port alone, without the transport.

use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use roxie::host::AckRequestPolicy;
use roxie_options::PortKind;
use roxie_report::failure::Failure;

use crate::stream::{self, Stream};

mod arguments;
mod bandwidth;
mod control;
mod floor;
mod latency;
mod link;
mod picture;
mod plan;
mod plot;
mod queue_pairs;
mod report;
mod sampler;
mod session;

pub(crate) use arguments::Arguments;
use arguments::Measure;
use control::Control;
use floor::Floor;
use link::Link;
use plan::Plan;
use report::Form;
use session::Side;

/// Runs the command.
pub(crate) fn run(mut arguments: Arguments) -> ExitCode {
    // The other end is this command as well.
    arguments.device.ask.get_or_insert(AckRequestPolicy::Late);
    match measure(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("perf"),
    }
}

fn measure(arguments: &Arguments) -> Result<(), Failure> {
    let plan = Plan::new(arguments)?;
    check_plot(arguments, &plan)?;
    if arguments.device.port == Some(PortKind::Memory) {
        if arguments.server.is_some() {
            return Err(Failure::Usage(
                "--port memory has both ends in this process: leave the server out".into(),
            ));
        }
        return both_ends(arguments, &plan);
    }
    let Some(server) = &arguments.server else {
        // Listen before opening the device: a busy port then leaves nothing to clean up, and the client may connect
        // early.
        let listener = stream::listen(arguments.tcp_port)?;
        let mut side = open(arguments, &plan)?;
        let stream = stream::accept(listener, arguments.tcp_port)?;
        return session::serve(
            Control::new(stream)?,
            side.as_mut(),
            &plan,
            &arguments.wishes,
            arguments.json,
        );
    };
    let stream = stream::connect(server, arguments.tcp_port)?;
    let control = Control::new(stream)?;
    let mut side = open(arguments, &plan)?;
    session::drive(control, side.as_mut(), &plan, arguments.form())
}

/// Rejects measurements that cannot be plotted.
fn check_plot(arguments: &Arguments, plan: &Plan) -> Result<(), Failure> {
    let Some(wish) = &arguments.plot else { return Ok(()) };
    let usage = |why: &str| Err(Failure::Usage(why.into()));
    if plan.measure != Measure::Bw || plan.floor {
        return usage(
            "--plot shows the rates of queue pairs that send all they can: measure bw, without --floor",
        );
    }
    if matches!(wish, plot::SampleFormat::Picture(_)) && plan.sizes.len() > 1 {
        return usage("--plot FILE: a picture shows one size, measure them one by one");
    }
    if arguments.server.is_none() && arguments.device.port != Some(PortKind::Memory) {
        return usage("--plot is the client's: give it where the server is named");
    }
    Ok(())
}

impl Arguments {
    fn form(&self) -> Form {
        Form { json: self.json, plot: self.plot.clone() }
    }
}

fn open<'a>(arguments: &'a Arguments, plan: &Plan) -> Result<Box<dyn Side + 'a>, Failure> {
    Ok(if plan.floor {
        Box::new(Floor::new(&arguments.device, arguments.device.open_bare()?)?)
    } else {
        let opened = arguments.device.open()?;
        let mut link = Link::new(&arguments.device, opened.device, opened.gid_index)?;
        link.is_sampled = arguments.plot.is_some();
        Box::new(link)
    })
}

/// Runs the client on this thread, and the server on another.
fn both_ends(arguments: &Arguments, plan: &Plan) -> Result<(), Failure> {
    let (near, far) =
        UnixStream::pair().map_err(|e| Failure::Run(format!("cannot make a socket pair: {e}")))?;
    let (mut client, mut server): (Box<dyn Side + '_>, Box<dyn Side + '_>) = if plan.floor {
        let (a, b) = arguments.device.open_bare_pair()?;
        (Box::new(Floor::new(&arguments.device, a)?), Box::new(Floor::new(&arguments.device, b)?))
    } else {
        let opened = arguments.device.open()?;
        let other = opened.far.ok_or_else(|| Failure::Device("the memory port has two ends".into()))?;
        let mut near = Link::new(&arguments.device, opened.device, opened.gid_index)?;
        near.is_sampled = arguments.plot.is_some();
        (Box::new(near), Box::new(Link::new(&arguments.device, other, 0)?))
    };
    let far = Control::new(far)?;
    let near_hang_up = near.duplicate().map_err(|e| Failure::Run(format!("cannot share a socket: {e}")))?;
    std::thread::scope(|scope| {
        let served =
            scope.spawn(move || session::serve_quietly(far, server.as_mut(), plan, &arguments.wishes));
        let here =
            Control::new(near).and_then(|near| session::drive(near, client.as_mut(), plan, arguments.form()));
        near_hang_up.hang_up();
        let there = served.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        here.and(there)
    })
}
