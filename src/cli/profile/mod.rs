//! `roxie profile`: what adapters were measured to do, and one small case of it on the engine.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use roxie_options::profile::{Evidence, FIELDS, Field, ProfileError, ProfileFile, names};
use roxie_report::failure::Failure;
use roxie_report::{formats, output};
use serde_json::{Value, json};

mod stage;
#[cfg(test)]
mod tests;
mod text;
mod trial;

const EXIT_CODES: &str =
    "Exit codes: 0 done, 1 the profiles differ (diff), 2 wrong usage, 3 there is no such profile.";

/// Show what adapters were measured to do, and play one small case
#[derive(Debug, Args)]
#[command(
    long_about = "Profiles of adapters: what others have measured, captured or documented of their transport, field by field with its \
        evidence. A profile is a name that `list` prints, or a file. A field without evidence keeps Roxie's own behaviour, and `show` says \
        so.\n\n`try` runs one small case on the engine in virtual time: a silent peer, a wrong key, a flush. It prints what would be on \
        the wire, which completions come when, and which counters move, so that somebody with the adapter can put both side by side.",
    after_help = format!(
        "Examples:\n  roxie profile show cx6\n  roxie profile diff cx6 cx6-20.40\n  roxie profile try cx6 silent --timeout 17 --retry 2\n  \
         roxie profile try own bad-rkey --batch 4 --at 1 --json\n\n{EXIT_CODES}"
    )
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the profiles that are built in
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print each field with its evidence
    Show {
        /// A name or a file
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the fields by which two profiles differ
    Diff {
        /// A name or a file
        a: String,
        /// Another one
        b: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    Try(trial::Arguments),
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let done = match &arguments.what {
        What::List { json } => list(*json).map(|()| ExitCode::SUCCESS),
        What::Show { name, json } => show(name, *json).map(|()| ExitCode::SUCCESS),
        What::Diff { a, b, json } => diff(a, b, *json),
        What::Try(arguments) => trial::run(arguments).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|failure| failure.report("profile"))
}

/// A profile that cannot be used.
fn unusable(error: ProfileError) -> Failure {
    Failure::Device(error.to_string())
}

fn find(name: &str) -> Result<ProfileFile, Failure> {
    ProfileFile::find(name).map_err(unusable)
}

fn list(as_json: bool) -> Result<(), Failure> {
    let files = names().map(find).collect::<Result<Vec<_>, _>>()?;
    if as_json {
        let profile = |file: &ProfileFile| {
            let firmware = text_of(file, "id.firmware");
            json!({ "name": file.name, "firmware": firmware, "fields": file.fields.len() })
        };
        let profiles: Vec<_> = files.iter().map(profile).collect();
        return formats::print(formats::PROFILE, json!({ "profiles": profiles }));
    }
    for file in &files {
        output::line(format_args!(
            "{:<10} firmware {}: {}",
            file.name,
            text_of(file, "id.firmware"),
            file.evidence()
        ))?;
    }
    Ok(())
}

/// Returns a text of the profile.
fn text_of<'a>(file: &'a ProfileFile, path: &str) -> &'a str {
    file.get(path).and_then(|value| value.as_str()).unwrap_or("")
}

fn show(name: &str, as_json: bool) -> Result<(), Failure> {
    let file = find(name)?;
    if as_json {
        let fields: Vec<Value> =
            FIELDS.iter().flat_map(|(path, _, what, own)| as_rows(&file, path, what, own)).collect();
        return formats::print(formats::PROFILE, json!({ "profile": file.name, "fields": fields }));
    }
    for (path, _, what, own) in &FIELDS {
        let fields: Vec<_> = file.named(path).collect();
        for (path, field) in &fields {
            output::line(format_args!("{path} = {}", shown(path, &field.value)))?;
            match &field.evidence {
                None => output::line(format_args!("    {what}"))?,
                Some(Evidence { class, who, src }) => {
                    output::line(format_args!("    {what}: {} on {who} ({src})", class.word()))?;
                }
            }
        }
        if fields.is_empty() {
            output::line(format_args!("{path}\n    {what}: Roxie's own, {own}: nobody has measured it"))?;
        }
    }
    output::line(file.evidence())
}

/// Returns a value as its readers know it: vendor errors in hexadecimal.
fn shown(path: &str, value: &toml::Value) -> String {
    match value.as_integer().filter(|_| path.starts_with("vendor_err.")) {
        Some(code) => format!("{code:#04x}"),
        None => value.to_string(),
    }
}

fn as_rows(file: &ProfileFile, path: &str, what: &str, own: &str) -> Vec<Value> {
    let fields: Vec<_> = file.named(path).collect();
    if fields.is_empty() {
        return vec![json!({ "path": path, "meaning": what, "own": own })];
    }
    let row = |(path, field): &(&str, &Field)| {
        let value = shown(path, &field.value);
        match &field.evidence {
            None => json!({ "path": path, "meaning": what, "value": value }),
            Some(evidence) => json!({
                "path": path, "meaning": what, "value": value,
                "class": evidence.class.word(), "who": evidence.who, "src": evidence.src,
            }),
        }
    };
    fields.iter().map(row).collect()
}

fn diff(a: &str, b: &str, as_json: bool) -> Result<ExitCode, Failure> {
    let files = [find(a)?, find(b)?];
    let mut paths: Vec<&String> = files.iter().flat_map(|file| file.fields.keys()).collect();
    paths.sort_unstable();
    paths.dedup();
    let value = |file: &ProfileFile, path: &str| {
        file.get(path).map_or_else(|| "Roxie's own".to_owned(), |value| shown(path, value))
    };
    let differing: Vec<[String; 3]> = paths
        .into_iter()
        .map(|path| [path.clone(), value(&files[0], path), value(&files[1], path)])
        .filter(|[_, a, b]| a != b)
        .collect();
    if as_json {
        let rows: Vec<_> =
            differing.iter().map(|[path, a, b]| json!({ "path": path, "a": a, "b": b })).collect();
        formats::print(formats::PROFILE, json!({ "a": a, "b": b, "differing": rows }))?;
    } else {
        for [path, a, b] in &differing {
            output::line(format_args!("{path}: {a}    {b}"))?;
        }
    }
    Ok(ExitCode::from(u8::from(!differing.is_empty())))
}
