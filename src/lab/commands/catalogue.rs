//! The list of labs.

use clap::{Parser, Subcommand};
use roxie_report::failure::Failure;

use super::document::{About, Block, Report, Run};
use super::{
    atomic, compare, dcqcn, deadlock, doorbell, ets, frame, go_back_n, headroom, incast, nvmeof, pfc, read,
    rnr, victim,
};

/// A lab and its arguments.
#[derive(Debug, Subcommand)]
pub(super) enum Lab {
    Frame(frame::Arguments),
    Doorbell(doorbell::Arguments),
    GoBackN(go_back_n::Arguments),
    Rnr(rnr::Arguments),
    Read(read::Arguments),
    Atomic(atomic::Arguments),
    Compare(compare::Arguments),
    Nvmeof(nvmeof::Arguments),
    Pfc(pfc::Arguments),
    Headroom(headroom::Arguments),
    Ets(ets::Arguments),
    Dcqcn(dcqcn::Arguments),
    Incast(incast::Arguments),
    Victim(victim::Arguments),
    Deadlock(deadlock::Arguments),
}

/// All labs, in the order of the course.
pub(super) const ALL: &[About] = &[
    frame::ABOUT,
    doorbell::ABOUT,
    go_back_n::ABOUT,
    rnr::ABOUT,
    read::ABOUT,
    atomic::ABOUT,
    compare::ABOUT,
    nvmeof::ABOUT,
    pfc::ABOUT,
    headroom::ABOUT,
    ets::ABOUT,
    dcqcn::ABOUT,
    incast::ABOUT,
    victim::ABOUT,
    deadlock::ABOUT,
];

/// Parser of a single lab, for arguments that do not come from the command line.
#[derive(Debug, Parser)]
#[command(name = "roxie lab", disable_help_subcommand = true)]
struct Alone {
    #[command(subcommand)]
    lab: Lab,
}

impl Lab {
    /// Parses a name and arguments.
    ///
    /// # Errors
    ///
    /// The parser's message, if the name or an argument is invalid.
    pub(super) fn read(words: &[String]) -> Result<Lab, Failure> {
        let all = std::iter::once("roxie lab").chain(words.iter().map(String::as_str));
        Alone::try_parse_from(all).map(|alone| alone.lab).map_err(|error| Failure::Usage(error.to_string()))
    }

    /// Returns the lab's description.
    pub(super) fn about(&self) -> About {
        match self {
            Lab::Frame(_) => frame::ABOUT,
            Lab::Doorbell(_) => doorbell::ABOUT,
            Lab::GoBackN(_) => go_back_n::ABOUT,
            Lab::Rnr(_) => rnr::ABOUT,
            Lab::Read(_) => read::ABOUT,
            Lab::Atomic(_) => atomic::ABOUT,
            Lab::Compare(_) => compare::ABOUT,
            Lab::Nvmeof(_) => nvmeof::ABOUT,
            Lab::Pfc(_) => pfc::ABOUT,
            Lab::Headroom(_) => headroom::ABOUT,
            Lab::Ets(_) => ets::ABOUT,
            Lab::Dcqcn(_) => dcqcn::ABOUT,
            Lab::Incast(_) => incast::ABOUT,
            Lab::Victim(_) => victim::ABOUT,
            Lab::Deadlock(_) => deadlock::ABOUT,
        }
    }

    fn play(&self) -> Result<(Vec<Run>, Vec<Block>), Failure> {
        match self {
            Lab::Frame(arguments) => frame::run(arguments),
            Lab::Doorbell(arguments) => doorbell::run(arguments),
            Lab::GoBackN(arguments) => go_back_n::run(arguments),
            Lab::Rnr(arguments) => rnr::run(arguments),
            Lab::Read(arguments) => read::run(arguments),
            Lab::Atomic(arguments) => atomic::run(arguments),
            Lab::Compare(arguments) => compare::run(arguments),
            Lab::Nvmeof(arguments) => nvmeof::run(arguments),
            Lab::Pfc(arguments) => pfc::run(arguments),
            Lab::Headroom(arguments) => headroom::run(arguments),
            Lab::Ets(arguments) => ets::run(arguments),
            Lab::Dcqcn(arguments) => dcqcn::run(arguments),
            Lab::Incast(arguments) => incast::run(arguments),
            Lab::Victim(arguments) => victim::run(arguments),
            Lab::Deadlock(arguments) => deadlock::run(arguments),
        }
    }

    /// Runs the lab. `words` are its name and arguments, as given.
    ///
    /// # Errors
    ///
    /// If an argument is invalid, or the engine misbehaves.
    pub(super) fn report(&self, words: &[String]) -> Result<Report, Failure> {
        let (runs, across) = self.play()?;
        Ok(Report { about: self.about(), command: format!("roxie lab {}", words.join(" ")), runs, across })
    }
}
