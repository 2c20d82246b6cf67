//! `roxie lab`: runs of the engine to learn from, as text, as data, and as interactive pages.
//!
//! [`catalogue`] lists the labs. Each makes a [`document`], which [`text`] and [`page`] draw. [`stage`] sets up two
//! queue pairs.

mod atomic;
mod catalogue;
mod check;
mod compare;
mod dcqcn;
mod deadlock;
mod document;
mod doorbell;
mod ets;
mod film;
mod frame;
mod frames;
mod go_back_n;
mod goodput;
mod headroom;
mod incast;
mod lessons;
mod nvmeof;
mod page;
mod pfc;
mod read;
mod rnr;
mod serve;
mod stage;
mod text;
mod traffic;
mod victim;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use roxie_report::failure::Failure;
use roxie_report::formats;
use roxie_report::output;

use catalogue::Lab;

/// Learn how the transport works: small runs of the engine, with pictures and controls.
#[derive(Debug, Args)]
#[command(
    long_about = "Small runs of the engine in virtual time, each about one subject: a frame, a lost packet, a pause, a \
        congested link. Each says first what to observe, and last what to change to see the opposite. No privilege, no \
        network, a few seconds.\n\nPrints text of 80 columns by default. --html writes one self-contained page with \
        charts and controls. --json prints the data, which the page contains as well.",
    after_help = "Examples:\n  roxie lab list\n  roxie lab go-back-n --lose 3\n  roxie lab frame --html frame.html\n  \
        roxie lab doorbell --json | jq '.runs[0].facts'\n\nExit codes: 0 done, 1 the run failed, 2 wrong usage."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
    /// Print the data as JSON
    #[arg(long, global = true)]
    json: bool,
    /// Write one page to this file, or to standard output (-)
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "json")]
    html: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the labs
    List,
    Serve(serve::Arguments),
    Check(check::Arguments),
    #[command(flatten)]
    Lab(Lab),
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let shown = arguments.json || arguments.html.is_some();
    let done = match &arguments.what {
        What::Serve(_) if shown => {
            Err(Failure::Usage("serve shows pages: it takes neither --json nor --html".into()))
        }
        What::List | What::Check(_) if arguments.html.is_some() => {
            Err(Failure::Usage("--html is for a lab: roxie lab NAME --html FILE".into()))
        }
        What::List => list(arguments.json),
        What::Serve(arguments) => serve::run(arguments),
        What::Check(check) => check::run(check, arguments.json),
        What::Lab(lab) => show(arguments, lab),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("lab"),
    }
}

fn list(json: bool) -> Result<(), Failure> {
    if json {
        return formats::print(formats::LAB, serde_json::json!({ "labs": catalogue::ALL }));
    }
    let width = catalogue::ALL.iter().map(|about| about.name.len()).max().unwrap_or(0);
    catalogue::ALL
        .iter()
        .try_for_each(|about| output::line(format_args!("{:width$}  {}", about.name, about.line)))
}

fn show(arguments: &Arguments, lab: &Lab) -> Result<(), Failure> {
    let report = lab.report(&words())?;
    let json = report.json()?;
    match &arguments.html {
        Some(file) if file.as_os_str() == "-" => output::exact(&page::draw(&report, &json, false)),
        Some(file) => fs::write(file, page::draw(&report, &json, false))
            .map_err(|e| Failure::Run(format!("cannot write {}: {e}", file.display()))),
        None if arguments.json => output::line(json),
        None => output::lines(text::draw(&report).trim_end()),
    }
}

/// Returns the lab's name and arguments as given, without output options.
fn words() -> Vec<String> {
    let all = std::env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .skip_while(|word| word != "lab")
        .skip(1);
    let mut words = Vec::new();
    let mut skip = false;
    for word in all {
        if std::mem::replace(&mut skip, false) || word == "--json" || word.starts_with("--html=") {
            continue;
        }
        skip = word == "--html";
        if !skip {
            words.push(word);
        }
    }
    words
}
