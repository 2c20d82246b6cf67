//! `roxie lab check`: checks the answers to a lesson's questions.

use clap::Args;
use roxie_report::failure::Failure;
use roxie_report::formats;
use roxie_report::output;
use roxie_report::words::folded;
use serde_json::{Value, json};

use super::lessons::{LESSONS, Question, agrees};

/// Check the answers to the questions of a lesson
#[derive(Debug, Args)]
#[command(
    long_about = "Checks the answers to the three questions of a lesson of docs/lab. No answers are stored: each is \
        computed by a run of the lab. Without answers, the command prints the questions.\n\nA number is right within 1 \
        %; commas and a unit behind it are ignored.",
    after_help = "Examples:\n  roxie lab check 3                    the questions of lesson 3\n  roxie lab check 3 7 10 1             checks three \
        answers\n  roxie lab check 3 --tell             the answers, and the runs that show them\n\nExit codes: 0 all right, 1 not all, 2 wrong \
        usage."
)]
pub(super) struct Arguments {
    /// Number of the lesson, 1 to 10
    #[arg(value_name = "N", value_parser = clap::value_parser!(u8).range(1..=LESSONS.len() as i64))]
    lesson: u8,
    /// Three answers, in order; quote one that contains a space
    #[arg(allow_negative_numbers = true, num_args = 0..)]
    answers: Vec<String>,
    /// Print the answers
    #[arg(long, conflicts_with = "answers")]
    tell: bool,
}

/// Runs the command.
pub(super) fn run(arguments: &Arguments, json: bool) -> Result<(), Failure> {
    let lesson = &LESSONS[usize::from(arguments.lesson) - 1];
    let given = &arguments.answers;
    if !given.is_empty() && given.len() != lesson.questions.len() {
        let why = format!(
            "lesson {} has three questions, and {} answers were given",
            arguments.lesson,
            given.len()
        );
        return Err(Failure::Usage(why));
    }
    let ask = |(n, question): (usize, &Question)| judge(question, given.get(n), arguments.tell);
    let judged = lesson.questions.iter().enumerate().map(ask).collect::<Result<Vec<_>, _>>()?;
    let wrong = judged.iter().filter(|one| one["right"] == Value::Bool(false)).count();
    if json {
        formats::print(
            formats::LAB,
            json!({ "lesson": arguments.lesson, "title": lesson.title, "page": lesson.page, "questions": judged }),
        )?;
    } else {
        output::line(format_args!(
            "Lesson {}: {} (docs/lab/{})",
            arguments.lesson, lesson.title, lesson.page
        ))?;
        for (n, one) in judged.iter().enumerate() {
            print(n + 1, one)?;
        }
    }
    match wrong {
        0 => Ok(()),
        n => Err(Failure::Run(format!("{n} of {} answers are not right", judged.len()))),
    }
}

fn judge(question: &Question, given: Option<&String>, tell: bool) -> Result<Value, Failure> {
    let mut one = json!({ "question": question.text });
    if let Some(said) = given {
        let right = agrees(said, &question.answer()?);
        one["said"] = said.as_str().into();
        one["right"] = right.into();
        if !right {
            one["look_at"] = format!("roxie lab {}", question.run).into();
        }
    } else if tell {
        one["answer"] = question.answer()?;
        one["look_at"] = format!("roxie lab {}", question.run).into();
    }
    Ok(one)
}

fn print(number: usize, one: &Value) -> Result<(), Failure> {
    let text = one["question"].as_str().unwrap_or_default();
    for (i, line) in folded(text, 76).iter().enumerate() {
        let head = if i == 0 { format!("{number}.") } else { String::new() };
        output::line(format_args!("{head:3} {line}"))?;
    }
    let look = one["look_at"].as_str().unwrap_or_default();
    match (&one["right"], &one["answer"]) {
        (Value::Bool(true), _) => {
            output::line(format_args!("    {}: right", one["said"].as_str().unwrap_or_default()))
        }
        (Value::Bool(false), _) => output::line(format_args!(
            "    {}: not right; look again at `{look}`",
            one["said"].as_str().unwrap_or_default()
        )),
        (_, Value::Null) => Ok(()),
        (_, answer) => output::line(format_args!("    {}, as `{look}` shows", super::text::cell(answer))),
    }
}
