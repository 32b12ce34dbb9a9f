//! Parses a page of `docs/tutorials` into a lesson. A heading starts a step. In a step, a block `file=PATH` is a
//! file to write, and a block `console` contains commands to run. The block `console check` contains a command and
//! lines that it must print once the step is done.

/// A tutorial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lesson {
    pub name: String,
    pub title: String,
    pub about: String,
    pub steps: Vec<LessonStep>,
}

/// One step of a tutorial.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LessonStep {
    pub title: String,
    /// The whole step as Markdown.
    pub text: String,
    /// Paths and contents.
    pub files: Vec<(String, String)>,
    pub commands: Vec<String>,
    /// The command, and lines that its output must contain.
    pub check: Option<(String, Vec<String>)>,
}

impl Lesson {
    /// Parses a page without validation; a test checks the pages.
    pub fn read(name: &str, page: &str) -> Self {
        let mut parts = page.split("\n## ");
        let (title, about) = parts.next().unwrap_or_default().split_once('\n').unwrap_or_default();
        let title = title.trim_start_matches("# ").to_owned();
        let steps = parts.map(step).collect();
        Self { name: name.to_owned(), title, about: about.trim().replace('\n', " "), steps }
    }
}

impl LessonStep {
    /// Returns the step as Markdown for people: the path of a file and the purpose of a check are text, because
    /// programs that show Markdown often hide the rest of a fence's line.
    pub fn display_text(&self) -> String {
        let mut in_block = false;
        let mut lines = Vec::new();
        for line in self.text.lines() {
            let Some(info) = line.strip_prefix("```") else {
                lines.push(line.to_owned());
                continue;
            };
            let opens = !in_block;
            in_block = opens;
            match info.split_once(" file=") {
                Some((language, path)) if opens => {
                    lines.push(format!("Write the file `{path}`:\n\n```{language}"));
                }
                None if opens && info == "console check" => {
                    lines.push("The check of this step, and what it prints:\n\n```console".to_owned());
                }
                Some(_) | None => lines.push(line.to_owned()),
            }
        }
        lines.join("\n")
    }
}

fn step(section: &str) -> LessonStep {
    let (title, text) = section.split_once('\n').unwrap_or((section, ""));
    let mut step = LessonStep { title: title.to_owned(), text: text.trim().to_owned(), ..LessonStep::default() };
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let block: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
        if let Some((_, path)) = info.split_once(" file=") {
            let text = block.iter().map(|line| format!("{line}\n")).collect();
            step.files.push((path.to_owned(), text));
        } else if info == "console" {
            step.commands.extend(block.iter().filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned));
        } else if info == "console check" {
            let command = block.first().and_then(|line| line.strip_prefix("$ ")).unwrap_or_default().to_owned();
            step.check = Some((command, block.iter().skip(1).map(|line| (*line).to_owned()).collect()));
        }
    }
    step
}
