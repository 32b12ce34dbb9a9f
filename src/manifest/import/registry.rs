//! Converts an entry of the Agent Client Protocol registry to an agent manifest. Imports packages of npm and PyPI.
//! Never downloads an archive: the manifest names its program, and a note names its address.

use serde_json::{Map, Value, json};

use super::super::model::LOADERS;
use super::super::yaml::{self, DocumentPath, SourceFile};
use super::{SkippedItem, write_below};
use crate::diagnostic::Diagnostic;
use crate::ids::nearest;

/// An agent manifest converted from a registry entry.
#[derive(Debug)]
pub struct RegistryAgent {
    pub name: String,
    /// The text of the manifest file.
    pub text: String,
    /// The command that would be started.
    pub starts: String,
    /// Steps that the user must do by hand.
    pub notes: Vec<String>,
    pub left_out: Vec<SkippedItem>,
}

type RegistryResult<T> = Result<T, Box<Diagnostic>>;

const KNOWN: [&str; 9] =
    ["id", "name", "version", "description", "distribution", "repository", "authors", "license", "icon"];

/// Converts an `agent.json`, or the agent with this id from the whole registry. `platform` is in the registry's form,
/// such as `linux-x86_64`. The agent is named `name`, or by its id.
pub fn read_registry(
    file: &str,
    text: &str,
    id: Option<&str>,
    name: Option<&str>,
    platform: &str,
) -> RegistryResult<RegistryAgent> {
    let source = SourceFile::new(file, text.trim_start_matches('\u{feff}'));
    let value = yaml::parse(&source)?;
    let entry = select_entry(&value, id, &source)?;
    let mut agent = RegistryAgent {
        name: name.map_or_else(|| entry.text("id").map(str::to_owned), |name| Ok(name.to_owned()))?,
        text: String::new(),
        starts: String::new(),
        notes: Vec::new(),
        left_out: Vec::new(),
    };
    for key in entry.keys().filter(|key| !KNOWN.contains(key) && !key.starts_with('$')) {
        agent.skip(key, "it is not known here");
    }
    let (runtime, remark) = agent.runtime(&entry.child("distribution")?, platform)?;
    agent.text = manifest_text(&agent.name, &entry, &runtime, remark.as_deref())?;
    Ok(agent)
}

/// A mapping and its location in the file.
struct RegistryEntry<'a> {
    fields: &'a Map<String, Value>,
    at: DocumentPath,
    source: &'a SourceFile,
}

fn select_entry<'a>(value: &'a Value, id: Option<&str>, source: &'a SourceFile) -> RegistryResult<RegistryEntry<'a>> {
    let Some(fields) = value.as_object() else {
        let problem = "an entry of the registry is a mapping";
        return Err(value_error(source, &DocumentPath::root(), problem, "name an agent.json of the registry"));
    };
    let whole = RegistryEntry { fields, at: DocumentPath::root(), source };
    let Some(agents) = fields.get("agents") else {
        return match id {
            Some(id) if fields.get("id").and_then(Value::as_str) != Some(id) => {
                let problem = format!("this is the entry of one agent, and not that of `{id}`");
                Err(value_error(source, &DocumentPath::root().key("id"), problem, "leave `--agent` out"))
            }
            _ => Ok(whole),
        };
    };
    let at = DocumentPath::root().key("agents");
    let agents =
        agents.as_array().ok_or_else(|| value_error(source, &at, "`agents` must be a list", "write a list here"))?;
    let ids: Vec<_> = agents.iter().filter_map(|agent| agent.get("id")?.as_str()).collect();
    let Some(id) = id else {
        let help = format!("choose one with `--agent ID`: {}", ids.join(", "));
        return Err(value_error(source, &at, "this is the whole registry", help));
    };
    let here = agents.iter().position(|agent| agent.get("id").and_then(Value::as_str) == Some(id));
    match here.and_then(|index| Some((index, agents[index].as_object()?))) {
        Some((index, fields)) => Ok(RegistryEntry { fields, at: at.index(index), source }),
        None => {
            let help = nearest(id, ids.iter().copied()).map(|near| format!("did you mean `{near}`?"));
            let help = help.unwrap_or_else(|| format!("it has: {}", ids.join(", ")));
            Err(value_error(source, &at, format!("the registry has no agent `{id}`"), help))
        }
    }
}

fn value_error(
    source: &SourceFile,
    at: &DocumentPath,
    problem: impl Into<String>,
    help: impl Into<String>,
) -> Box<Diagnostic> {
    Box::new(Diagnostic::error("E013", source.place(at), problem, help))
}

impl<'a> RegistryEntry<'a> {
    fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.fields.keys().map(String::as_str)
    }

    fn missing(&self, key: &str) -> Box<Diagnostic> {
        value_error(self.source, &self.at, format!("the field `{key}` is missing"), format!("add `\"{key}\": …`"))
    }

    /// Returns a required, non-empty text field.
    fn text(&self, key: &str) -> RegistryResult<&'a str> {
        let value = self.fields.get(key).ok_or_else(|| self.missing(key))?;
        value.as_str().filter(|text| !text.trim().is_empty()).ok_or_else(|| self.type_error(key, "text"))
    }

    fn optional(&self, key: &str) -> RegistryResult<Option<&'a str>> {
        self.fields.get(key).map(|value| value.as_str().ok_or_else(|| self.type_error(key, "text"))).transpose()
    }

    fn list(&self, key: &str) -> RegistryResult<Vec<&'a str>> {
        let Some(value) = self.fields.get(key) else { return Ok(Vec::new()) };
        let texts = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        texts.ok_or_else(|| self.type_error(key, "a list of text"))
    }

    fn child(&self, key: &str) -> RegistryResult<RegistryEntry<'a>> {
        let value = self.fields.get(key).ok_or_else(|| self.missing(key))?;
        let fields = value.as_object().ok_or_else(|| self.type_error(key, "a mapping"))?;
        Ok(RegistryEntry { fields, at: self.at.key(key), source: self.source })
    }

    fn type_error(&self, key: &str, what: &str) -> Box<Diagnostic> {
        value_error(self.source, &self.at.key(key), format!("`{key}` must be {what}"), format!("write {what} here"))
    }
}

impl RegistryAgent {
    fn skip(&mut self, what: &str, reason: &str) {
        self.left_out.push(SkippedItem { what: what.to_owned(), reason: reason.to_owned() });
    }

    /// Returns the value of `runtime.acp`, and a comment to write above it.
    fn runtime(&mut self, distribution: &RegistryEntry<'_>, platform: &str) -> RegistryResult<(Value, Option<String>)> {
        let ways = ["npx", "uvx", "binary"];
        let mut given = ways.into_iter().filter(|way| distribution.fields.contains_key(*way));
        let Some(way) = given.next() else {
            let problem = "`distribution` has none of npx, uvx and binary";
            return Err(value_error(
                distribution.source,
                &distribution.at,
                problem,
                "there is no other way to start it",
            ));
        };
        given.for_each(|other| self.skip(&format!("the {other} distribution"), &format!("{way} is used")));
        for key in distribution.keys().filter(|key| !ways.contains(key)) {
            self.skip(&format!("distribution.{key}"), "it is not known here");
        }
        let of = distribution.child(way)?;
        if way == "binary" { self.binary(&of, platform) } else { self.package(way, &of) }
    }

    fn package(&mut self, way: &str, of: &RegistryEntry<'_>) -> RegistryResult<(Value, Option<String>)> {
        let package = of.text("package")?;
        if package.contains("${") || package.starts_with('-') {
            return Err(of.type_error("package", "the name of a package"));
        }
        let (args, env) = self.launch_options(of, &["package"])?;
        let by = if way == "npx" { "npx -y" } else { way };
        self.starts = [&[by, package], args.as_slice()].concat().join(" ");
        Ok((json!({way: with(json!({"package": package}), &args, env)}), None))
    }

    fn binary(&mut self, of: &RegistryEntry<'_>, platform: &str) -> RegistryResult<(Value, Option<String>)> {
        if !of.fields.contains_key(platform) {
            let has: Vec<_> = of.keys().collect();
            let problem = format!("there is no archive for {platform}, only for {}", has.join(", "));
            return Err(value_error(
                of.source,
                &of.at,
                problem,
                "build the agent from its sources and write a manifest for it",
            ));
        }
        let of = of.child(platform)?;
        let (archive, cmd) = (of.text("archive")?, of.text("cmd")?);
        let (args, env) = self.launch_options(&of, &["archive", "cmd"])?;
        let command = cmd.rsplit(['/', '\\']).next().unwrap_or(cmd);
        self.starts = [&[command], args.as_slice()].concat().join(" ");
        let get = format!("the archive for {platform} is not fetched: {archive}");
        let put = format!("unpack it and put `{command}` on the PATH, or write its whole path as `command`");
        self.notes.push(format!("{get}; {put}"));
        Ok((with(json!({"command": command}), &args, env), Some(format!("{get}\n{put}"))))
    }

    /// Returns the arguments and variables, which all distributions have in common.
    fn launch_options<'a>(
        &mut self,
        of: &RegistryEntry<'a>,
        known: &[&str],
    ) -> RegistryResult<(Vec<&'a str>, Map<String, Value>)> {
        for key in of.keys().filter(|key| !known.contains(key) && !["args", "env"].contains(key)) {
            self.skip(&format!("{}.{key}", of.at), "it is not known here");
        }
        let mut env = Map::new();
        if of.fields.contains_key("env") {
            let values = of.child("env")?;
            for name in values.keys() {
                // The registry has no placeholders, and a `$` must not become one.
                let value = values.fields.get(name).and_then(Value::as_str);
                let value = value.ok_or_else(|| values.type_error(name, "text"))?;
                if LOADERS.contains(&name) || value.contains("${") {
                    self.skip(&format!("the variable {name}"), "a manifest may not give it that value");
                } else {
                    env.insert(name.to_owned(), json!(value));
                }
            }
        }
        let args = of.list("args")?;
        if args.iter().any(|argument| argument.contains("${")) {
            return Err(of.type_error("args", "a list of text without `${`"));
        }
        Ok((args, env))
    }
}

fn with(mut start: Value, args: &[&str], env: Map<String, Value>) -> Value {
    if !args.is_empty() {
        start["args"] = json!(args);
    }
    if !env.is_empty() {
        start["env"] = Value::Object(env);
    }
    start
}

fn manifest_text(
    name: &str,
    entry: &RegistryEntry<'_>,
    runtime: &Value,
    remark: Option<&str>,
) -> RegistryResult<String> {
    let text = |text: &str| Value::from(text).to_string();
    let (title, description) = (entry.text("name")?, entry.text("description")?);
    let mut metadata = json!({"version": entry.text("version")?});
    if let Some(license) = entry.optional("license")? {
        metadata["license"] = json!(license);
    }
    let authors = entry.list("authors")?;
    if let Some((first, others)) = authors.split_first() {
        metadata["author"] = json!({"name": first});
        if !others.is_empty() {
            metadata["contributors"] = others.iter().map(|name| json!({"name": name})).collect();
        }
    }
    if let Some(repository) = entry.optional("repository")? {
        metadata["links"] = json!([{"type": "source", "url": repository}]);
    }
    if let Some(icon) = entry.optional("icon")? {
        metadata["annotations"] = json!({"icon": icon});
    }
    let mut lines = vec![
        "# Taken over from the registry of the Agent Client Protocol by `skein import registry`.".to_owned(),
        "version: 1".to_owned(),
        "kind: agent".to_owned(),
        format!("name: {name}"),
        format!("title: {}", text(title)),
        format!("description: {}", text(description)),
        "metadata:".to_owned(),
    ];
    write_below(&metadata, 1, &mut lines);
    lines.push("runtime:".to_owned());
    lines.push("  acp:".to_owned());
    let remarks = remark.into_iter().flat_map(str::lines);
    // Each line is a separate comment, so that third-party text cannot end the comment.
    lines.extend(remarks.map(|line| format!("    # {}", line.replace(char::is_control, " "))));
    write_below(runtime, 2, &mut lines);
    lines.push(
        "    # Without a sandbox, the agent has all your rights. To limit it, name its folder and hosts:".to_owned(),
    );
    lines.push(format!(
        "    # sandbox: {{files: workspace, write: [\"~/.{name}/\"], read: [\"~/.{name}\"], network: ask}}"
    ));
    lines.push("modes:".to_owned());
    lines.push("  - slug: default".to_owned());
    lines.push(format!("    description: {}", text(&format!("{title} with its defaults."))));
    lines.push("    tool_groups: []".to_owned());
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(distribution: Value) -> Value {
        json!({
            "id": "helper", "name": "Helper", "version": "1.2.3", "description": "Helps.", "license": "MIT",
            "authors": ["Ada", "Bo"], "repository": "https://example.com/helper", "distribution": distribution,
        })
    }

    fn read(value: &Value) -> RegistryResult<RegistryAgent> {
        read_registry("agent.json", &format!("{value:#}"), None, None, "linux-x86_64")
    }

    #[test]
    fn a_package_is_taken_over_with_what_is_known_about_it() {
        let package = json!({"package": "@x/helper@1.2.3", "args": ["--acp"], "env": {"A": "b"}});
        let agent = read(&entry(json!({"npx": package, "binary": {}}))).unwrap();
        assert_eq!((agent.name.as_str(), agent.starts.as_str()), ("helper", "npx -y @x/helper@1.2.3 --acp"));
        for line in ["  version: \"1.2.3\"", "  license: \"MIT\"", "    name: \"Ada\"", "      A: \"b\""] {
            assert!(agent.text.contains(line), "{line}: {}", agent.text);
        }
        assert_eq!(agent.left_out[0].what, "the binary distribution");
    }

    #[test]
    fn an_archive_is_told_and_not_fetched() {
        let build = json!({"archive": "https://example.com/a.tgz\n- x", "cmd": "./bin/helper", "args": ["acp"]});
        let agent = read(&entry(json!({"binary": {"linux-x86_64": build}}))).unwrap();
        assert!(agent.text.contains("    command: \"helper\"\n    args: [\"acp\"]"), "{}", agent.text);
        assert!(agent.text.contains("    # - x\n"), "{}", agent.text);
        assert!(agent.notes[0].contains("https://example.com/a.tgz"), "{:?}", agent.notes);
        let elsewhere = entry(json!({"binary": {"darwin-aarch64": build}}));
        assert!(read(&elsewhere).unwrap_err().problem.contains("no archive for linux-x86_64, only for darwin-aarch64"));
    }

    #[test]
    fn what_is_not_known_is_told_and_what_loads_code_is_left_out() {
        let mut value =
            entry(json!({"uvx": {"package": "helper", "env": {"LD_PRELOAD": "x", "K": "${X}"}, "extra": 1}}));
        value["website"] = json!("https://example.com");
        let agent = read(&value).unwrap();
        let left: Vec<_> = agent.left_out.iter().map(|left| left.what.as_str()).collect();
        let expected = ["website", "distribution.uvx.extra", "the variable LD_PRELOAD", "the variable K"];
        assert_eq!(left, expected);
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let mut value = entry(json!({"npx": {"package": 1}}));
        let error = read(&value).unwrap_err();
        assert_eq!((error.problem.as_str(), error.at.span.map(|span| span.line)), ("`package` must be text", Some(14)));
        value["distribution"] = json!({});
        assert!(read(&value).unwrap_err().problem.contains("none of npx, uvx and binary"));
        value.as_object_mut().unwrap().remove("version");
        value["distribution"] = json!({"npx": {"package": "x"}});
        assert_eq!(read(&value).unwrap_err().problem, "the field `version` is missing");
    }

    #[test]
    fn of_the_whole_registry_one_agent_is_chosen() {
        let whole = json!({"version": "1", "agents": [entry(json!({"npx": {"package": "x"}}))]}).to_string();
        let read = |id| read_registry("registry.json", &whole, id, Some("mine"), "linux-x86_64");
        assert_eq!(read(Some("helper")).unwrap().name, "mine");
        assert!(read(None).unwrap_err().help.contains("`--agent ID`: helper"));
        assert_eq!(read(Some("helpr")).unwrap_err().help, "did you mean `helper`?");
    }
}
