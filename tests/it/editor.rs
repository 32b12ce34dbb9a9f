//! A session that is shown in an editor: the files and terminals it lends stay inside the mode's scope.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use serde_json::json;
use skein::broker::{BindRequest, Binding};
use skein::manifest::ApprovalLevel;
use skein::tool::ask::NoAsker;
use skein::tool::editor::{Editor, EditorCapabilities, EditorError, Terminal, TerminalCommand};
use skein::tool::{Activity, CallContext, SessionContext, SessionContextPorts};

use crate::support::{Wired, agent, arguments, mode};

/// Notes every path and command that it is asked for.
#[derive(Default)]
struct Watched {
    asked: Mutex<Vec<PathBuf>>,
}

impl Watched {
    fn asked(&self) -> Vec<PathBuf> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

impl Editor for Watched {
    fn abilities(&self) -> EditorCapabilities {
        EditorCapabilities { read: true, write: true, terminal: true, sandbox: false }
    }

    fn read(&self, path: &Path) -> BoxFuture<'_, Result<String, EditorError>> {
        self.asked.lock().unwrap().push(path.to_owned());
        ready(std::fs::read_to_string(path).map_err(|_| EditorError::NotFound)).boxed()
    }

    fn write(&self, path: &Path, text: String) -> BoxFuture<'_, Result<(), EditorError>> {
        self.asked.lock().unwrap().push(path.to_owned());
        ready(std::fs::write(path, text).map_err(|error| EditorError::Failed(error.to_string()))).boxed()
    }

    fn run(&self, command: TerminalCommand) -> BoxFuture<'_, Result<Box<dyn Terminal>, EditorError>> {
        self.asked.lock().unwrap().push(command.program.into());
        ready(Err(EditorError::Failed("no terminals here".to_owned()))).boxed()
    }
}

struct Shown {
    wired: Wired,
    binding: Binding,
    session: Arc<SessionContext>,
    editor: Arc<Watched>,
}

impl Shown {
    /// A mode that may edit Markdown and nothing else.
    async fn new() -> Self {
        let groups = json!(["read", {"group": "edit", "files": r"\.md$"}]);
        let wired = Wired::with_manifests(&[agent(&[mode("docs", groups, json!(["developer"]))])]);
        let editor = Arc::new(Watched::default());
        let lent: Arc<dyn Editor> = Arc::clone(&editor) as _;
        let (cwd, scratch) = (wired.path("project"), wired.path("scratch"));
        let ports = SessionContextPorts { editor: Some(lent), ..SessionContextPorts::default() };
        let session = SessionContext::with_ports("session", cwd, Vec::new(), scratch, ports);
        let terms = BindRequest {
            session: Arc::clone(&session),
            approval: Some(ApprovalLevel::Auto),
            asker: Arc::new(NoAsker),
            client_services: Vec::new(),
        };
        let binding = wired.bind_terms("docs", terms).await.expect("bound");
        Self { wired, binding, session, editor }
    }

    /// Whether the call worked, and what it told.
    async fn call(&self, tool: &str, with: serde_json::Value) -> (bool, Vec<Activity>) {
        let told: Arc<Mutex<Vec<Activity>>> = Arc::default();
        let sink = Arc::clone(&told);
        let context = CallContext::new(Arc::clone(&self.session))
            .with_activity(move |activity| sink.lock().unwrap().extend(Some(activity).filter(Activity::lasts)));
        let outcome = self.binding.call(tool, arguments(with), context).await.expect("not cancelled");
        let told = told.lock().unwrap().clone();
        (!outcome.is_error, told)
    }
}

#[tokio::test]
async fn a_files_rule_lets_no_other_path_reach_the_editor() {
    let shown = Shown::new().await;
    let project = shown.wired.path("project");
    std::fs::create_dir(project.join("docs")).unwrap();
    std::fs::write(project.join("secret.rs"), "untouched").unwrap();
    for (link, target) in [("link.md", "secret.rs"), ("dangling.md", "nowhere.rs"), ("folder.md", "")] {
        std::os::unix::fs::symlink(project.join(target), project.join("docs").join(link)).unwrap();
    }
    let hostile = [
        "secret.rs",
        "new.rs",
        "docs/link.md",
        "docs/dangling.md",
        "docs/folder.md/secret.rs",
        "docs/x.md/../../secret.rs",
        "../outside.md",
    ];
    for path in hostile {
        for path in [path.to_owned(), project.join(path).display().to_string()] {
            for (tool, with) in [
                ("developer__write_file", json!({"path": path, "content": "x", "overwrite": true})),
                ("developer__edit_file", json!({"path": path, "edits": [{"before": "untouched", "after": "x"}]})),
                ("developer__undo_edit", json!({"path": path})),
            ] {
                assert_eq!(shown.call(tool, with).await, (false, Vec::new()), "{tool} {path}");
            }
        }
    }
    assert!(!shown.call("developer__shell", json!({"command": "true"})).await.0, "the mode has no shell");
    assert_eq!(shown.editor.asked(), [] as [PathBuf; 0]);
    assert_eq!(shown.wired.text("project/secret.rs"), "untouched");

    let notes = project.join("docs/notes.md");
    let (worked, told) = shown.call("developer__write_file", json!({"path": "docs/notes.md", "content": "a\n"})).await;
    let changed = Activity::Changed { path: notes.clone(), before: None, after: "a\n".to_owned() };
    assert_eq!((worked, told), (true, vec![Activity::Location { path: notes.clone(), line: Some(1) }, changed]));
    let asked = shown.editor.asked();
    assert!(!asked.is_empty() && asked.iter().all(|path| *path == notes), "{asked:?}");
    drop(shown.binding);
    shown.wired.stop().await;
}
