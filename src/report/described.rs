//! The commands of a program as data.
//!
//! `roxie` starts the programs of products for their commands, and does not know the options of these. For shell
//! completions and for the manual it asks each program: `roxie-NAME describe` prints its commands as JSON
//! ([`print()`]), from which `roxie` makes definitions again ([`Described::into_command`]). Parsers of values are not
//! described: the program itself parses its command line.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, ArgAction, Command, ValueHint};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::output;

/// The hidden command by which a program describes the others.
pub const COMMAND: &str = "describe";

/// A command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    name: String,
    about: Option<String>,
    long_about: Option<String>,
    after_help: Option<String>,
    after_long_help: Option<String>,
    aliases: Vec<String>,
    /// Place among the commands of a list.
    order: usize,
    is_hidden: bool,
    requires_command: bool,
    arguments: Vec<Argument>,
    commands: Vec<Described>,
}

/// An option or a positional argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Argument {
    id: String,
    short: Option<char>,
    long: Option<String>,
    aliases: Vec<String>,
    help: Option<String>,
    long_help: Option<String>,
    heading: Option<String>,
    /// Place among the options of a list.
    order: usize,
    /// The action's name, as `Debug` prints it.
    action: String,
    /// Least and most values; `None` for those of the action.
    values: Option<(usize, usize)>,
    value_names: Vec<String>,
    possible_values: Vec<Possible>,
    /// Defaults that the help shows.
    defaults: Vec<String>,
    /// The hint's name, as `Debug` prints it.
    hint: String,
    is_required: bool,
    is_hidden: bool,
    is_global: bool,
    is_last: bool,
    requires_equals: bool,
    conflicts: Vec<String>,
}

/// A possible value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Possible {
    name: String,
    help: Option<String>,
    is_hidden: bool,
}

/// Prints the commands of a program as JSON, without those that its help does not list.
pub fn print(program: &Command) -> ExitCode {
    let commands: Vec<_> =
        program.get_subcommands().filter(|command| !command.is_hide_set()).map(Described::of).collect();
    let json = serde_json::to_string(&commands).map_err(|error| Failure::Run(error.to_string()));
    match json.and_then(output::line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(COMMAND),
    }
}

/// Parses what [`print()`] has printed. `None`: it is something else.
#[must_use]
pub fn parse(json: &[u8]) -> Option<Vec<Described>> {
    serde_json::from_slice(json).ok()
}

impl Described {
    /// Describes a command.
    #[must_use]
    pub fn of(command: &Command) -> Described {
        let text = |text: Option<&clap::builder::StyledStr>| text.map(ToString::to_string);
        Described {
            name: command.get_name().to_owned(),
            about: text(command.get_about()),
            long_about: text(command.get_long_about()),
            after_help: text(command.get_after_help()),
            after_long_help: text(command.get_after_long_help()),
            aliases: command.get_visible_aliases().map(str::to_owned).collect(),
            order: command.get_display_order(),
            is_hidden: command.is_hide_set(),
            requires_command: command.is_subcommand_required_set(),
            arguments: command.get_arguments().map(|argument| Argument::of(command, argument)).collect(),
            commands: command.get_subcommands().map(Described::of).collect(),
        }
    }

    /// Returns the command's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a definition with the same help.
    #[must_use]
    pub fn into_command(self) -> Command {
        let mut command = Command::new(self.name)
            .visible_aliases(self.aliases)
            .display_order(self.order)
            .hide(self.is_hidden)
            .subcommand_required(self.requires_command)
            .args(self.arguments.into_iter().map(Argument::into_arg))
            .subcommands(self.commands.into_iter().map(Described::into_command));
        for (text, set) in [
            (self.about, Command::about as fn(Command, String) -> Command),
            (self.long_about, Command::long_about),
            (self.after_help, Command::after_help),
            (self.after_long_help, Command::after_long_help),
        ] {
            if let Some(text) = text {
                command = set(command, text);
            }
        }
        command
    }
}

impl Argument {
    fn of(command: &Command, argument: &Arg) -> Argument {
        let conflicts = command.get_arg_conflicts_with(argument);
        // A flag has a parser and a name for values that it does not take.
        let is_flag = !argument.get_action().takes_values();
        let value_names = argument.get_value_names().filter(|_| !is_flag).unwrap_or_default();
        let possible_values = if is_flag { Vec::new() } else { argument.get_possible_values() };
        let is_shown = !argument.is_hide_default_value_set();
        let defaults = argument.get_default_values().iter().filter(|_| is_shown);
        Argument {
            id: argument.get_id().to_string(),
            short: argument.get_short(),
            long: argument.get_long().map(str::to_owned),
            aliases: argument.get_visible_aliases().into_iter().flatten().map(str::to_owned).collect(),
            help: argument.get_help().map(ToString::to_string),
            long_help: argument.get_long_help().map(ToString::to_string),
            heading: argument.get_help_heading().map(str::to_owned),
            order: argument.get_display_order(),
            action: format!("{:?}", argument.get_action()),
            values: argument.get_num_args().map(|range| (range.min_values(), range.max_values())),
            value_names: value_names.iter().map(ToString::to_string).collect(),
            possible_values: possible_values.iter().map(Possible::of).collect(),
            defaults: defaults.map(|value| value.to_string_lossy().into()).collect(),
            hint: format!("{:?}", argument.get_value_hint()),
            is_required: argument.is_required_set(),
            is_hidden: argument.is_hide_set(),
            is_global: argument.is_global_set(),
            is_last: argument.is_last_set(),
            requires_equals: argument.is_require_equals_set(),
            conflicts: conflicts.into_iter().map(|other| other.get_id().to_string()).collect(),
        }
    }

    fn into_arg(self) -> Arg {
        let action = match &self.action[..] {
            "Append" => ArgAction::Append,
            "SetTrue" => ArgAction::SetTrue,
            "SetFalse" => ArgAction::SetFalse,
            "Count" => ArgAction::Count,
            _ => ArgAction::Set,
        };
        let mut argument = Arg::new(self.id)
            .short(self.short)
            .visible_aliases(self.aliases)
            .display_order(self.order)
            .action(action)
            .value_hint(self.hint.parse::<ValueHint>().unwrap_or_default())
            .required(self.is_required)
            .hide(self.is_hidden)
            .global(self.is_global)
            .last(self.is_last)
            .require_equals(self.requires_equals)
            .conflicts_with_all(self.conflicts);
        if let Some(long) = self.long {
            argument = argument.long(long);
        }
        if let Some(heading) = self.heading {
            argument = argument.help_heading(heading);
        }
        if let Some(help) = self.help {
            argument = argument.help(help);
        }
        if let Some(help) = self.long_help {
            argument = argument.long_help(help);
        }
        if let Some((least, most)) = self.values {
            argument = argument.num_args(least..=most);
        }
        if !self.value_names.is_empty() {
            argument = argument.value_names(self.value_names);
        }
        if !self.possible_values.is_empty() {
            let values = self.possible_values.into_iter().map(Possible::into_value);
            argument = argument.value_parser(PossibleValuesParser::new(values));
        }
        if !self.defaults.is_empty() {
            argument = argument.default_values(self.defaults.into_iter().map(OsString::from));
        }
        argument
    }
}

impl Possible {
    fn of(value: &PossibleValue) -> Possible {
        Possible {
            name: value.get_name().to_owned(),
            help: value.get_help().map(ToString::to_string),
            is_hidden: value.is_hide_set(),
        }
    }

    fn into_value(self) -> PossibleValue {
        let value = PossibleValue::new(self.name).hide(self.is_hidden);
        match self.help {
            Some(help) => value.help(help),
            None => value,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, Parser, Subcommand, ValueEnum};

    use super::*;

    #[derive(Clone, Debug, ValueEnum)]
    enum Order {
        /// One after the other
        Sequential,
        Random,
    }

    #[derive(Debug, Parser)]
    #[command(name = "program")]
    struct Program {
        #[command(subcommand)]
        command: Commands,
    }

    #[derive(Debug, Subcommand)]
    enum Commands {
        Copy(Copy),
        #[command(hide = true)]
        Describe,
    }

    /// Copy a file
    #[derive(Debug, Args)]
    #[command(
        long_about = "Copies a file.",
        after_help = "Examples:\n  program copy a b",
        visible_alias = "cp"
    )]
    struct Copy {
        /// Where from
        from: std::path::PathBuf,
        /// Order of blocks
        #[arg(short, long, value_name = "ORDER", default_value = "random", help_heading = "Blocks")]
        order: Order,
        /// Repeat
        #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "2")]
        again: Option<u32>,
        /// Say nothing
        #[arg(short, long, conflicts_with = "again")]
        quiet: bool,
        /// Say more
        #[arg(short, action = ArgAction::Count, hide = true)]
        verbose: u8,
        /// Any
        #[arg(long, default_value = "nobody", hide_default_value = true)]
        name: Vec<String>,
    }

    #[test]
    fn described_command_has_the_same_help() {
        let program = <Program as clap::CommandFactory>::command();
        let copy = program.find_subcommand("copy").expect("a command");
        let described = Described::of(copy);
        let json = serde_json::to_vec(&[&described]).expect("JSON");
        let parsed = parse(&json).expect("descriptions");
        assert_eq!(parsed, [described]);
        let mut made = parsed[0].clone().into_command();
        assert_eq!(Described::of(&made), parsed[0]);
        let mut copy = copy.clone();
        assert_eq!(made.render_long_help().to_string(), copy.render_long_help().to_string());
        assert_eq!(made.render_help().to_string(), copy.render_help().to_string());
        assert_eq!(made.render_usage().to_string(), copy.render_usage().to_string());
        assert_eq!(parse(b"usage: program"), None);
    }
}
