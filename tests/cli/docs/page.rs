//! A page: its prose, its headings, its fenced blocks.

/// A fenced block.
#[derive(Clone, Debug)]
pub struct Block {
    /// The line of the fence, from 1.
    pub line: usize,
    pub language: String,
    pub lines: Vec<String>,
    /// Nothing but empty lines stands between it and the block before.
    pub follows: bool,
}

pub struct Page {
    /// Below the repository.
    pub name: String,
    /// Lines outside of blocks, by number.
    pub prose: Vec<(usize, String)>,
    pub headings: Vec<String>,
    pub blocks: Vec<Block>,
}

impl Page {
    pub fn parse(name: &str, text: &str) -> Page {
        let mut page =
            Page { name: name.into(), prose: Vec::new(), headings: Vec::new(), blocks: Vec::new() };
        let (mut open, mut adjacent): (Option<Block>, bool) = (None, false);
        for (number, line) in (1..).zip(text.lines()) {
            let fence = line.trim_start().strip_prefix("```");
            match (&mut open, fence) {
                (None, Some(language)) => {
                    let language = language.trim().to_owned();
                    open = Some(Block { line: number, language, lines: Vec::new(), follows: adjacent });
                }
                (Some(_), Some(_)) => {
                    page.blocks.extend(open.take());
                    adjacent = true;
                }
                (Some(block), None) => block.lines.push(line.to_owned()),
                (None, None) => {
                    adjacent &= line.trim().is_empty();
                    if line.starts_with('#') {
                        page.headings.push(line.trim_start_matches('#').trim().to_owned());
                    }
                    page.prose.push((number, line.to_owned()));
                }
            }
        }
        assert!(open.is_none(), "{name}: a block has no end");
        page
    }

    /// Anchors of this page, made as GitHub makes them.
    pub fn anchors(&self) -> Vec<String> {
        let slug = |heading: &String| -> String {
            let letters = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            letters.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
        };
        self.headings.iter().map(slug).collect()
    }

    /// Code within prose that reads like one of our commands, by line number. Omissions (`…`) cannot be checked.
    pub fn mentions(&self) -> Vec<(usize, &str)> {
        let ours = |code: &str| ["roxie ", "make ", "cargo "].iter().any(|start| code.starts_with(start));
        let all = self
            .prose
            .iter()
            .flat_map(|(line, text)| text.split('`').skip(1).step_by(2).map(move |code| (*line, code)));
        all.filter(|(_, code)| ours(code) && !code.contains(['…', '['])).collect()
    }

    /// Lines of the blocks that are commands, by number; a line that ends in `\` goes on.
    pub fn commands(&self) -> Vec<(usize, String)> {
        let mut all = Vec::new();
        for block in self.blocks.iter().filter(|block| block.language == "sh") {
            let mut begun: Option<(usize, String)> = None;
            for (number, line) in (block.line + 1..).zip(&block.lines) {
                let (at, text) = begun.take().unwrap_or((number, String::new()));
                let text = format!("{text}{line}");
                match text.strip_suffix('\\') {
                    Some(part) => begun = Some((at, part.to_owned())),
                    None if text.trim().is_empty() || text.starts_with('#') => {}
                    None => all.push((at, text)),
                }
            }
        }
        all
    }
}
