//! Options of congestion control and traffic classes, for a device in this process and for one in a started program.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use roxie::congestion::{Rate, Settings};
use roxie::host::KnobFile;
use roxie::nic::{CongestionConfig, EcnPolicy, TrafficClasses};

/// Congestion control and traffic classes, as text, to be passed on unchanged.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Congestion")]
pub struct CongestionOptions {
    /// Congestion control: off, dcqcn, swift or fixed,rate=RATE, with optional knobs: dcqcn,preset=paper,rpg_ai_rate=40
    /// (`roxie cc knobs` lists them). @FILE reads the setting from a file, and again whenever the file changes
    /// [default: off]
    #[arg(long, value_name = "SPEC", value_parser = checked_control)]
    cc: Option<String>,
    /// ECN: which data is sent as ECN-capable, so that switches mark it instead of dropping it: off, on, or by DSCP:
    /// dscp=26+46 [default: on with --cc dcqcn, else off]
    #[arg(long, value_name = "WHICH", value_parser = checked::<EcnPolicy>)]
    ecn: Option<String>,
    /// Traffic classes: trust=dscp|pcp, map=26:3+46:5 (DSCP to priority), strict=6+7, weight=0:20+3:80, pfc=3
    /// (priorities whose pause frames are honoured), pause=on, tag=on (priority in an 802.1Q tag; xdp), send_pfc=3
    /// (sends pause frames to the neighbour; xdp)
    #[arg(long, value_name = "SPEC", value_parser = checked::<TrafficClasses>)]
    qos: Option<String>,
    /// The link's rate if its driver does not report one: 1G, 25G. Queue pairs start at this rate
    #[arg(long, value_name = "RATE", value_parser = checked::<Rate>)]
    speed: Option<String>,
}

fn checked<T: FromStr<Err: Display>>(text: &str) -> Result<String, String> {
    text.parse::<T>().map_err(|error| error.to_string()).map(|_| text.to_owned())
}

/// Checks a congestion control setting, or the one in the file that `@FILE` names. Makes the file's path absolute.
fn checked_control(text: &str) -> Result<String, String> {
    let Some(name) = text.strip_prefix('@') else { return checked::<Settings>(text) };
    let path = std::path::absolute(name).map_err(|error| format!("{name}: {error}"))?;
    match KnobFile::new(&path).read()? {
        Some(_) => Ok(format!("@{}", path.display())),
        None => {
            Err(format!("{} is empty: write what --cc takes, such as dcqcn,rpg_ai_rate=40", path.display()))
        }
    }
}

fn parsed<T: FromStr>(text: &Option<String>) -> Option<T> {
    text.as_ref().and_then(|text| text.parse().ok())
}

impl CongestionOptions {
    /// Returns the configuration of a device in this process.
    pub(crate) fn config(&self) -> CongestionConfig {
        CongestionConfig {
            control: parsed(&self.cc).unwrap_or_default(),
            ecn: parsed(&self.ecn),
            classes: parsed(&self.qos).unwrap_or_default(),
            line_rate: parsed(&self.speed),
        }
    }

    /// Returns the path of the file with the setting, for `@FILE`.
    pub(crate) fn control_file(&self) -> Option<PathBuf> {
        self.cc.as_deref()?.strip_prefix('@').map(|path| Path::new(path).to_owned())
    }

    /// Returns the environment variables that give a started program's device the same options.
    pub fn environment(&self) -> impl Iterator<Item = (&'static str, OsString)> {
        let all = [
            ("ROXIE_CC", &self.cc),
            ("ROXIE_ECN", &self.ecn),
            ("ROXIE_QOS", &self.qos),
            ("ROXIE_SPEED", &self.speed),
        ];
        all.into_iter().filter_map(|(name, text)| Some((name, OsString::from(text.clone()?))))
    }
}
