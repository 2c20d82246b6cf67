//! Which file takes names from which, read from the sources: `use` declarations and paths, followed through re-exports to the file
//! that defines the name.
//!
//! Two things are no imports. A module that has others below it is the face of its folder: it declares them, and may use them as they
//! use what it defines. And a type may have its methods in several files (`impl Qp` in `uc.rs`): to name it for that is to continue
//! it. Not seen: methods (every owner of the value can call them), what macros make, and what stands under `cfg(test)`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

/// File, then the file that it takes names from, then the names.
pub(crate) type Imports = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Reads crates: under which name others know each, and the file that it begins with.
pub(crate) fn imports(root: &Path, crates: &[(&str, &str)]) -> Imports {
    let mut tree = Tree { root: root.into(), ..Tree::default() };
    for (name, file) in crates {
        let module = tree.add_file(Path::new(file), None);
        // A library and a program of the same name: others name the library, which comes first.
        tree.crates.entry((*name).into()).or_insert(module);
    }
    tree.imports()
}

/// Files that reach one another, each group sorted.
pub(crate) fn circles(imports: &Imports) -> Vec<Vec<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        imports.keys().map(|f| (f, reached(imports, f))).collect();
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for (file, far) in &reach {
        if far.contains(file) && !seen.contains(file) {
            let circle: Vec<&String> = far
                .iter()
                .copied()
                .filter(|f| reach.get(f).is_some_and(|back| back.contains(file)))
                .collect();
            seen.extend(circle.iter().copied());
            circles.push(circle.into_iter().cloned().collect());
        }
    }
    circles
}

/// Returns the imports among the entries of a folder: files, and folders as a whole.
pub(crate) fn within(imports: &Imports, folder: &str) -> Imports {
    let part = |file: &str| {
        let rest = file.strip_prefix(folder)?;
        Some(format!("{folder}{}", rest.split_inclusive('/').next().unwrap_or(rest)))
    };
    let mut parts = Imports::new();
    for (from, taken) in imports {
        for (to, names) in taken {
            if let (Some(from), Some(to)) = (part(from), part(to))
                && from != to
            {
                parts.entry(from).or_default().entry(to).or_default().extend(names.iter().cloned());
            }
        }
    }
    parts
}

/// All folders that files are in, each with a slash behind it.
pub(crate) fn folders(imports: &Imports) -> BTreeSet<String> {
    let ends = |file: &String| file.match_indices('/').map(|(at, _)| at + 1).collect::<Vec<_>>();
    imports.keys().flat_map(|file| ends(file).into_iter().map(|end| file[..end].to_owned())).collect()
}

fn reached<'a>(imports: &'a Imports, from: &'a String) -> BTreeSet<&'a String> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(file) = open.pop() {
        for next in imports.get(file).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(next) {
                open.push(next);
            }
        }
    }
    found
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    /// The contents of a literal in quotes.
    Text(String),
    /// `::`
    Then,
    Sign(char),
}

/// One module: of a file, or within braces.
#[derive(Default)]
struct Module {
    file: String,
    parent: Option<usize>,
    /// Modules declared here.
    below: HashMap<String, usize>,
    items: HashSet<String>,
    /// Names that `use` brings in. `words` tells re-exports apart.
    uses: HashMap<String, (Vec<String>, bool)>,
    globs: Vec<Vec<String>>,
    /// Paths of two or more names in its code.
    paths: Vec<Vec<String>>,
    /// All single names in its code.
    words: HashSet<String>,
    /// Types that get methods here.
    continued: HashSet<String>,
}

enum Target {
    Module(usize),
    /// An item, in this file.
    Item(String),
}

#[derive(Default)]
struct Tree {
    root: PathBuf,
    crates: HashMap<String, usize>,
    modules: Vec<Module>,
}

impl Tree {
    fn add_file(&mut self, file: &Path, parent: Option<usize>) -> usize {
        let text =
            fs::read_to_string(self.root.join(file)).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let index = self.add(file, parent);
        self.read(index, file, &tokens(&text));
        index
    }

    fn add(&mut self, file: &Path, parent: Option<usize>) -> usize {
        self.modules.push(Module { file: file.display().to_string(), parent, ..Module::default() });
        self.modules.len() - 1
    }

    /// Reads the tokens of a module.
    fn read(&mut self, module: usize, file: &Path, tokens: &[Token]) {
        let word = |i: usize| match tokens.get(i) {
            Some(Token::Word(word)) => Some(word.as_str()),
            _ => None,
        };
        let sign = |i: usize, c: char| tokens.get(i) == Some(&Token::Sign(c));
        let (mut i, mut depth) = (0, 0);
        // The attributes before an item.
        let (mut for_tests, mut path) = (false, None);
        while i < tokens.len() {
            match &tokens[i] {
                Token::Sign('#') if sign(i + 1, '[') || sign(i + 1, '!') && sign(i + 2, '[') => {
                    let start = i + 1 + usize::from(sign(i + 1, '!'));
                    let end = matching(tokens, start);
                    let inside = &tokens[start..end];
                    for_tests |= matches!(&inside[1..], [Token::Word(cfg), Token::Sign('('), when @ ..] if cfg == "cfg" && tests_only(when));
                    if let [_, Token::Word(name), Token::Sign('='), Token::Text(text)] = inside
                        && name == "path"
                    {
                        path = Some(text.clone());
                    }
                    i = end + 1;
                    continue;
                }
                _ if for_tests && depth == 0 => {
                    i = end_of_item(tokens, i);
                    (for_tests, path) = (false, None);
                    continue;
                }
                Token::Word(keyword) if keyword == "mod" && word(i + 1).is_some() => {
                    let name = word(i + 1).expect("a name").to_owned();
                    let child = if sign(i + 2, '{') {
                        let end = matching(tokens, i + 2);
                        let child = self.add(file, Some(module));
                        self.read(child, file, &tokens[i + 3..end]);
                        i = end + 1;
                        child
                    } else {
                        i += 3;
                        self.add_file(&self.file_of(file, &name, path.as_deref()), Some(module))
                    };
                    self.modules[module].below.insert(name, child);
                    path = None;
                    continue;
                }
                Token::Word(keyword) if keyword == "use" && !sign(i + 1, '<') => {
                    let public = i > 0 && (word(i - 1) == Some("pub") || sign(i - 1, ')'));
                    let end = (i..tokens.len()).find(|at| sign(*at, ';')).unwrap_or(tokens.len());
                    self.read_use(module, &tokens[i + 1..end], &[], public);
                    i = end + 1;
                    continue;
                }
                Token::Word(keyword) if depth == 0 && DEFINES.contains(&keyword.as_str()) => {
                    let name = if word(i + 1) == Some("mut") { word(i + 2) } else { word(i + 1) };
                    self.modules[module].items.extend(name.map(str::to_owned));
                }
                Token::Word(keyword) if keyword == "macro_rules" => {
                    self.modules[module].items.extend(word(i + 2).map(str::to_owned));
                }
                Token::Word(keyword) if keyword == "impl" && depth == 0 => {
                    let name = if sign(i + 1, '<') { behind_generics(tokens, i + 1) } else { i + 1 };
                    let inherent = !tokens[i..]
                        .iter()
                        .take_while(|t| **t != Token::Sign('{'))
                        .any(|t| *t == Token::Word("for".into()));
                    if inherent {
                        self.modules[module].continued.extend(word(name).map(str::to_owned));
                    }
                }
                Token::Word(first) => {
                    let mut names = vec![first.clone()];
                    while tokens.get(i + 1) == Some(&Token::Then)
                        && let Some(next) = word(i + 2)
                    {
                        names.push(next.to_owned());
                        i += 2;
                    }
                    let here = &mut self.modules[module];
                    if names.len() > 1 {
                        here.paths.push(names.clone());
                    }
                    here.words.insert(names.swap_remove(0));
                }
                Token::Sign('{') => depth += 1,
                Token::Sign('}') => depth -= 1,
                _ => {}
            }
            (for_tests, path) = (for_tests && depth > 0, path.filter(|_| word(i) == Some("pub")));
            i += 1;
        }
    }

    /// Where a module is that a file declares.
    fn file_of(&self, declared_in: &Path, name: &str, path: Option<&str>) -> PathBuf {
        let folder = declared_in.parent().expect("a folder");
        if let Some(path) = path {
            return folder.join(path);
        }
        let stem = declared_in.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        let folder = if ["mod", "lib", "main"].contains(&stem) { folder.into() } else { folder.join(stem) };
        let file = folder.join(format!("{name}.rs"));
        if self.root.join(&file).is_file() { file } else { folder.join(name).join("mod.rs") }
    }

    fn read_use(&mut self, module: usize, tokens: &[Token], before: &[String], public: bool) {
        let mut path = before.to_vec();
        let mut i = 0;
        while i < tokens.len() {
            match &tokens[i] {
                Token::Word(word) if word == "as" => {
                    if let Some(Token::Word(name)) = tokens.get(i + 1) {
                        self.modules[module].uses.insert(name.clone(), (path, public));
                    }
                    return;
                }
                Token::Word(word) => path.push(word.clone()),
                Token::Sign('*') => return self.modules[module].globs.push(path),
                Token::Sign('{') => {
                    let inside = &tokens[i + 1..matching(tokens, i)];
                    let (mut from, mut depth) = (0, 0);
                    for (at, token) in inside.iter().enumerate() {
                        match token {
                            Token::Sign('{') => depth += 1,
                            Token::Sign('}') => depth -= 1,
                            Token::Sign(',') if depth == 0 => {
                                self.read_use(module, &inside[from..at], &path, public);
                                from = at + 1;
                            }
                            _ => {}
                        }
                    }
                    return self.read_use(module, &inside[from..], &path, public);
                }
                _ => {}
            }
            i += 1;
        }
        if path.len() > before.len() {
            if path.last().is_some_and(|last| last == "self") {
                path.pop();
            }
            let name = path.last().cloned().unwrap_or_default();
            self.modules[module].uses.insert(name, (path, public));
        }
    }

    /// Resolves a path in a module. `None`: the path leads out of these crates.
    fn resolve(&self, module: usize, path: &[String], patience: u8) -> Option<Target> {
        let patience = patience.checked_sub(1)?;
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Target::Module(self.crate_of(module)),
            "self" => Target::Module(module),
            "super" => Target::Module(self.modules[module].parent?),
            name => match self.named(module, name, patience, false) {
                Some(target) => target,
                None => Target::Module(*self.crates.get(name)?),
            },
        };
        while let (Target::Module(here), [name, after @ ..]) = (&at, rest) {
            rest = after;
            at = match name.as_str() {
                "super" => Target::Module(self.modules[*here].parent?),
                name => self
                    .named(*here, name, patience, after.is_empty())
                    .unwrap_or_else(|| Target::Item(self.modules[*here].file.clone())),
            };
        }
        Some(at)
    }

    /// Resolves a name in a module. `item`: an item of the name that is no module, if there is one.
    fn named(&self, module: usize, name: &str, patience: u8, item: bool) -> Option<Target> {
        let here = &self.modules[module];
        let defined = here.items.contains(name).then(|| Target::Item(here.file.clone()));
        let below = here.below.get(name).map(|child| Target::Module(*child));
        let found = if item { defined.or(below) } else { below.or(defined) };
        found.or_else(|| self.resolve(module, here.uses.get(name).map(|(path, _)| path)?, patience)).or_else(
            || {
                here.globs.iter().find_map(|glob| match self.resolve(module, glob, patience)? {
                    Target::Module(from) if from != module => {
                        self.named(from, name, patience.checked_sub(1)?, item)
                    }
                    _ => None,
                })
            },
        )
    }

    fn crate_of(&self, mut module: usize) -> usize {
        while let Some(parent) = self.modules[module].parent {
            module = parent;
        }
        module
    }

    fn imports(&self) -> Imports {
        const PATIENCE: u8 = 12;
        let mut imports = Imports::new();
        for (index, module) in self.modules.iter().enumerate() {
            let mut taken: Vec<(Option<Target>, String)> = Vec::new();
            for (name, (path, public)) in &module.uses {
                // Handed on, and not used here.
                if (!public || module.words.contains(name)) && !module.continued.contains(name) {
                    taken.push((self.resolve(index, path, PATIENCE), name.clone()));
                }
            }
            for path in module.paths.iter().filter(|path| !module.continued.contains(&path[0])) {
                taken.push((self.resolve(index, path, PATIENCE), path.join("::")));
            }
            for name in module.words.iter().filter(|_| !module.globs.is_empty()) {
                if !module.items.contains(name) && !module.uses.contains_key(name) {
                    taken.push((self.named(index, name, PATIENCE, true), name.clone()));
                }
            }
            let from = imports.entry(module.file.clone()).or_default();
            for (target, name) in taken {
                if let Some(Target::Item(file)) = target
                    && file != module.file
                    && !holds(&module.file, &file)
                {
                    from.entry(file).or_default().insert(name);
                }
            }
        }
        imports
    }
}

/// True if the first file is the face of a folder that the second is in.
fn holds(face: &str, file: &str) -> bool {
    ["mod.rs", "lib.rs", "main.rs"]
        .iter()
        .any(|end| face.strip_suffix(end).is_some_and(|folder| file.starts_with(folder)))
}

/// Behind the `<…>` that opens at `open`.
fn behind_generics(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token {
            Token::Sign('<') => depth += 1,
            Token::Sign('>') if tokens[at - 1] != Token::Sign('-') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// True if a condition holds in tests alone: `test`, or `all(test, …)`.
fn tests_only(when: &[Token]) -> bool {
    match when {
        [Token::Word(all), Token::Sign('('), rest @ ..] if all == "all" => tests_only(rest),
        [Token::Word(test), Token::Sign(')' | ','), ..] => test == "test",
        _ => false,
    }
}

const DEFINES: &[&str] = &["fn", "struct", "enum", "union", "trait", "const", "static", "type"];

/// Where the bracket closes that opens at `open`.
fn matching(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token {
            Token::Sign('(' | '[' | '{') => depth += 1,
            Token::Sign(')' | ']' | '}') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len()
}

/// Behind the item that begins at `start`: its semicolon, or its braces.
fn end_of_item(tokens: &[Token], start: usize) -> usize {
    let mut i = start;
    while i < tokens.len() {
        match tokens[i] {
            Token::Sign(';') => return i + 1,
            Token::Sign('{') => return matching(tokens, i) + 1,
            Token::Sign('(' | '[') => i = matching(tokens, i),
            _ => {}
        }
        i += 1;
    }
    i
}

/// A text without its comments, in tokens.
fn tokens(text: &str) -> Vec<Token> {
    let c: Vec<char> = text.chars().collect();
    let at = |i: usize| c.get(i).copied().unwrap_or('\0');
    let is_name = |x: char| x.is_alphanumeric() || x == '_';
    let (mut i, mut found) = (0, Vec::new());
    while i < c.len() {
        match c[i] {
            '/' if at(i + 1) == '/' => i = (i..c.len()).find(|j| c[*j] == '\n').unwrap_or(c.len()),
            '/' if at(i + 1) == '*' => {
                let (mut depth, mut j) = (1, i + 2);
                while depth > 0 && j < c.len() {
                    match (c[j], at(j + 1)) {
                        ('/', '*') => (depth, j) = (depth + 1, j + 2),
                        ('*', '/') => (depth, j) = (depth - 1, j + 2),
                        _ => j += 1,
                    }
                }
                i = j;
            }
            '"' => {
                let mut j = i + 1;
                while j < c.len() && c[j] != '"' {
                    j += 1 + usize::from(c[j] == '\\');
                }
                found.push(Token::Text(c[i + 1..j.min(c.len())].iter().collect()));
                i = j + 1;
            }
            // A character, or a lifetime.
            '\'' if at(i + 1) == '\\' => {
                i = (i + 3..c.len()).find(|j| c[*j] == '\'').unwrap_or(c.len()) + 1;
            }
            '\'' if at(i + 2) == '\'' => i += 3,
            '\'' => i = (i + 1..c.len()).find(|j| !is_name(c[*j])).unwrap_or(c.len()),
            x if is_name(x) => {
                let end = (i..c.len()).find(|j| !is_name(c[*j])).unwrap_or(c.len());
                let word: String = c[i..end].iter().collect();
                let hashes = (end..c.len()).take_while(|j| c[*j] == '#').count();
                if ["r", "br", "cr"].contains(&word.as_str()) && at(end + hashes) == '"' {
                    let close: Vec<char> =
                        std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
                    let start = end + hashes + 1;
                    let close_at = (start..c.len()).find(|j| c[*j..].starts_with(&close)).unwrap_or(c.len());
                    found.push(Token::Text(c[start..close_at].iter().collect()));
                    i = close_at + close.len();
                } else {
                    found.push(Token::Word(word));
                    i = end;
                }
            }
            ':' if at(i + 1) == ':' => {
                found.push(Token::Then);
                i += 2;
            }
            x => {
                if !x.is_whitespace() {
                    found.push(Token::Sign(x));
                }
                i += 1;
            }
        }
    }
    found
}
