//! The course, as a new user goes through it.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use crate::in_time::CommandInTime;
use serde_json::Value;

use crate::lab::{data, refused};

fn page(name: &str) -> String {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("docs/lab").join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn check(lesson: u8, answers: &[String]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roxie-lab"));
    command.args(["lab", "check", &lesson.to_string()]).args(answers);
    command.output_in_time().expect("roxie runs")
}

#[test]
fn each_lesson_page_matches_its_questions() {
    let index = page("README.md");
    for lesson in 1..=10 {
        let solution = data(&format!("check {lesson} --tell"));
        let name = solution["page"].as_str().expect("a page");
        assert!(name.starts_with(&format!("{lesson:02}-")) && index.contains(name), "{name} is in the index");
        let text = page(name).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(solution["title"].as_str().expect("a title")), "{name}");
        assert!(text.contains(&format!("roxie lab check {lesson}")), "{name}");
        let questions = solution["questions"].as_array().expect("questions");
        let mut answers = Vec::new();
        for question in questions {
            let question_text = question["question"].as_str().expect("a question");
            assert!(text.contains(question_text), "{name} does not ask: {question_text}");
            answers.push(match &question["answer"] {
                Value::String(word) => word.clone(),
                number => number.to_string(),
            });
        }
        // The page runs the lab that the lesson is about.
        let lab = questions[0]["look_at"].as_str().expect("a command").split(' ').nth(2).expect("a lab");
        assert!(text.contains(&format!("roxie lab {lab}")), "{name} runs {lab}");
        assert!(check(lesson, &answers).status.success(), "{name}: {answers:?}");
        for wrong in 0..3 {
            let mut other = answers.clone();
            other[wrong] =
                other[wrong].parse::<f64>().map_or("nobody".into(), |n| (2.0 * n + 1.0).to_string());
            let judged = check(lesson, &other);
            let message = String::from_utf8_lossy(&judged.stdout);
            assert_eq!(judged.status.code(), Some(1), "{name}: {other:?}: {message}");
            assert_eq!(
                (message.matches(": right").count(), message.matches("not right").count()),
                (2, 1),
                "{message}"
            );
        }
    }
}

#[test]
fn check_prints_questions_and_refuses_wrong_usage() {
    let question_text = data("check 3");
    assert_eq!(question_text["questions"].as_array().map(Vec::len), Some(3));
    assert!(question_text["questions"][0].get("answer").is_none());
    refused("check 11", 2, &["1..=10"]);
    refused("check 3 7 10", 2, &["three questions, and 2 answers"]);
}
