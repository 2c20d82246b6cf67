//! The registry: which rules there are, of which clause and for which services. Plain text, read line by line.
//!
//! ```text
//! = A chapter
//!
//! name-of-the-rule (9.7.1; RC, UC)
//!     The requirement, in our words.
//!     today: what happens instead, where it is not kept, or not as it stands.
//! ```

/// Services that a rule may be for.
const SERVICES: [&str; 6] = ["all", "RC", "UC", "UD", "XRC", "raw"];

/// A chapter of the page.
#[derive(Debug)]
pub struct Chapter {
    /// Its heading.
    pub title: String,
    /// In the order of the file.
    pub rules: Vec<Rule>,
}

/// A rule of the specification.
#[derive(Debug)]
pub struct Rule {
    /// By which annotations name it.
    pub name: String,
    /// Of the specification's volume 1, or of one of its annexes.
    pub clause: String,
    /// For which services.
    pub services: Vec<String>,
    /// The requirement.
    pub text: String,
    /// The behaviour instead.
    pub today: Option<String>,
}

/// Reads the registry, or says what is wrong with it, line by line.
pub fn parse(text: &str) -> Result<Vec<Chapter>, Vec<String>> {
    let mut chapters: Vec<Chapter> = Vec::new();
    let mut wrong = Vec::new();
    let mut names = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let done = if line.starts_with('#') {
            Ok(())
        } else if let Some(title) = line.strip_prefix("= ") {
            chapters.push(Chapter { title: title.to_owned(), rules: Vec::new() });
            Ok(())
        } else if let Some(more) = line.strip_prefix("    ") {
            continue_rule(chapters.last_mut().and_then(|chapter| chapter.rules.last_mut()), more)
        } else {
            begin_rule(line, &mut names).and_then(|rule| match chapters.last_mut() {
                Some(chapter) => {
                    chapter.rules.push(rule);
                    Ok(())
                }
                None => Err("a rule before the first chapter".to_owned()),
            })
        };
        wrong.extend(done.err().map(|why| format!("rules.txt:{number}: {why}")));
    }
    for rule in chapters.iter().flat_map(|chapter| &chapter.rules).filter(|rule| rule.text.is_empty()) {
        wrong.push(format!("rules.txt: {} does not say what it asks", rule.name));
    }
    if wrong.is_empty() { Ok(chapters) } else { Err(wrong) }
}

fn begin_rule(line: &str, names: &mut Vec<String>) -> Result<Rule, String> {
    let shape = || "name (clause; services) begins a rule".to_owned();
    let (name, rest) = line.split_once(" (").ok_or_else(shape)?;
    let (clause, services) =
        rest.strip_suffix(')').and_then(|rest| rest.split_once("; ")).ok_or_else(shape)?;
    if !name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-') {
        return Err(format!("{name}: a name is of small letters, digits and hyphens"));
    }
    if names.iter().any(|known| known == name) {
        return Err(format!("{name} is there twice"));
    }
    if !is_clause(clause) {
        return Err(format!("{clause}: a clause is 9.7.1, 9.7.6.1.3 C9-140 or A17.9.3"));
    }
    let services: Vec<String> = services.split(", ").map(str::to_owned).collect();
    if let Some(unknown) = services.iter().find(|service| !SERVICES.contains(&service.as_str())) {
        return Err(format!("{unknown}: a service is one of {}", SERVICES.join(", ")));
    }
    names.push(name.to_owned());
    let (name, clause) = (name.to_owned(), clause.to_owned());
    Ok(Rule { name, clause, services, text: String::new(), today: None })
}

/// A clause's number, and perhaps that of a compliance statement in it.
fn is_clause(text: &str) -> bool {
    let mut words = text.split(' ');
    let number = words.next().unwrap_or("");
    let digits = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    let statement = words.next();
    let number_is_good = number.strip_prefix('A').unwrap_or(number).split('.').all(digits);
    let statement_is_good = statement.is_none_or(|s| {
        let rest = s.strip_prefix(['C', 'o']).and_then(|rest| rest.split_once('-'));
        rest.is_some_and(|(chapter, number)| digits(chapter) && number.split('.').all(digits))
    });
    number_is_good && statement_is_good && words.next().is_none()
}

fn continue_rule(rule: Option<&mut Rule>, said: &str) -> Result<(), String> {
    let rule = rule.ok_or("this belongs to no rule")?;
    match (said.strip_prefix("today: "), &mut rule.today) {
        (Some(_), Some(_)) => return Err(format!("{} says twice what happens today", rule.name)),
        (Some(first), None) => rule.today = Some(first.to_owned()),
        (None, Some(today)) => append(today, said),
        (None, None) => append(&mut rule.text, said),
    }
    Ok(())
}

fn append(to: &mut String, line: &str) {
    if !to.is_empty() {
        to.push(' ');
    }
    to.push_str(line.trim());
}
