//! Performs actions in a page as a user would: with the mouse and the keyboard of the browser.

use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::keys::KeyPress;
use super::view::NamedElement;
use super::{EMPTY_PAGE, SessionBrowser};
use crate::cdp::CdpError;
use crate::services::builtin::answer::truncate;
use crate::services::builtin::computercontroller::files::load;
use crate::services::builtin::developer::paths::printable;
use crate::tool::{CallContext, strip_to_line};

/// How long `wait` waits for its text.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
const WAIT_STEP: Duration = Duration::from_millis(200);
/// Time for a script in the page.
const SCRIPT_LIMIT_MS: u64 = 5_000;
/// The longest text that one action enters or waits for.
const MAX_TEXT: usize = 100_000;

/// One action of `browse_act`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(in super::super) struct BrowserAction {
    /// What to do
    #[serde(rename = "do")]
    kind: ActionKind,
    /// Element of the view, such as e12; for click, hover, fill, select, check, uncheck, upload
    #[serde(rename = "ref")]
    #[schemars(regex(pattern = "^e[0-9]+$"))]
    element: Option<String>,
    /// fill: new text; select: option; press: key such as Enter or Control+A; scroll: up, down, top or bottom; wait: text
    /// to appear
    #[schemars(length(max = 10000))]
    value: Option<String>,
    /// upload: file in the workspace
    path: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(super) enum ActionKind {
    Click,
    Hover,
    Fill,
    Select,
    Check,
    Uncheck,
    Upload,
    Press,
    Scroll,
    Wait,
    Back,
    Forward,
    Reload,
}

/// Why an action did not happen.
#[derive(Debug, thiserror::Error)]
pub(super) enum ActionError {
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Browser(#[from] CdpError),
}

impl ActionError {
    /// Returns true if the browser cannot be used any more.
    pub(super) fn ends_browser(&self) -> bool {
        matches!(self, Self::Browser(CdpError::Ended | CdpError::TimedOut { .. }))
    }
}

fn refuse<T>(text: impl Into<String>) -> Result<T, ActionError> {
    Err(ActionError::Refused(text.into()))
}

impl BrowserAction {
    /// Returns the action for messages: `click e12`.
    pub(super) fn label(&self) -> String {
        let kind = format!("{:?}", self.kind).to_lowercase();
        match &self.element {
            Some(element) => format!("{kind} {}", truncate(&printable(element), 20)),
            None => kind,
        }
    }

    fn value(&self) -> Result<&str, ActionError> {
        match &self.value {
            Some(value) if value.len() > MAX_TEXT => refuse(format!("`value` is longer than {MAX_TEXT} bytes")),
            Some(value) => Ok(value),
            None => refuse("`value` is missing"),
        }
    }

    fn element<'a>(&self, browser: &'a SessionBrowser) -> Result<&'a NamedElement, ActionError> {
        let Some(element) = &self.element else { return refuse("`ref` is missing") };
        browser.refs.get(element).ok_or_else(|| {
            let element = truncate(&printable(element), 20).to_owned();
            ActionError::Refused(format!("the page has no element `{element}` now; look again with `browse_read`"))
        })
    }
}

impl SessionBrowser {
    /// Performs one action. Returns what was done.
    pub(super) async fn perform(&self, action: &BrowserAction, call: &CallContext) -> Result<String, ActionError> {
        match action.kind {
            ActionKind::Click => {
                let element = action.element(self)?;
                self.click(element).await?;
                Ok(format!("clicked {}", element.shown))
            }
            ActionKind::Hover => {
                let element = action.element(self)?;
                let (x, y) = self.find_center(element).await?;
                self.mouse("mouseMoved", x, y).await?;
                Ok(format!("pointed at {}", element.shown))
            }
            ActionKind::Fill => {
                let element = action.element(self)?;
                self.fill(element, action.value()?).await?;
                Ok(format!("filled {}", element.shown))
            }
            ActionKind::Select => {
                let element = action.element(self)?;
                let chosen = self.run_on(element, SELECT, &[json!(action.value()?)]).await?;
                Ok(format!("selected \"{}\" in {}", strip_to_line(chosen.as_str().unwrap_or_default()), element.shown))
            }
            ActionKind::Check | ActionKind::Uncheck => {
                let (element, wanted) = (action.element(self)?, action.kind == ActionKind::Check);
                if self.run_on(element, IS_CHECKED, &[]).await? != json!(wanted) {
                    self.click(element).await?;
                }
                if self.run_on(element, IS_CHECKED, &[]).await? != json!(wanted) {
                    return refuse(format!("{} did not change when it was clicked", element.shown));
                }
                Ok(format!("{} {}", if wanted { "checked" } else { "unchecked" }, element.shown))
            }
            ActionKind::Upload => self.upload(action, call).await,
            ActionKind::Press => {
                let key = KeyPress::parse(action.value()?).map_err(|error| ActionError::Refused(error.to_string()))?;
                if action.element.is_some() {
                    self.focus(action.element(self)?).await?;
                }
                for event in key.events() {
                    self.process.call("Input.dispatchKeyEvent", event).await?;
                }
                Ok(format!("pressed {}", printable(action.value()?)))
            }
            ActionKind::Scroll => self.scroll(action).await,
            ActionKind::Wait => self.wait_for_text(action.value()?).await,
            ActionKind::Back => self.go(-1).await,
            ActionKind::Forward => self.go(1).await,
            ActionKind::Reload => {
                self.process.call("Page.reload", json!({})).await?;
                Ok("reloaded the page".to_owned())
            }
        }
    }

    async fn click(&self, element: &NamedElement) -> Result<(), ActionError> {
        let (x, y) = self.find_center(element).await?;
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            self.mouse(kind, x, y).await?;
        }
        Ok(())
    }

    async fn mouse(&self, kind: &str, x: f64, y: f64) -> Result<(), ActionError> {
        let mut event = json!({"type": kind, "x": x, "y": y});
        if kind != "mouseMoved" {
            event["button"] = json!("left");
            event["clickCount"] = json!(1);
        }
        self.process.call("Input.dispatchMouseEvent", event).await?;
        Ok(())
    }

    /// Scrolls to an element and returns its centre in the window.
    async fn find_center(&self, element: &NamedElement) -> Result<(f64, f64), ActionError> {
        let node = json!({"backendNodeId": element.element});
        let gone = |error| match error {
            CdpError::Refused { .. } => ActionError::Refused(format!(
                "{} is not visible or no longer there; look again with `browse_read`",
                element.shown
            )),
            error => ActionError::Browser(error),
        };
        self.process.call("DOM.scrollIntoViewIfNeeded", node.clone()).await.map_err(gone)?;
        let quads = self.process.call("DOM.getContentQuads", node).await.map_err(gone)?;
        let corners = |quad: &Value| {
            let points: Vec<f64> = quad.as_array()?.iter().filter_map(Value::as_f64).collect();
            let (xs, ys): (Vec<f64>, Vec<f64>) = points.chunks_exact(2).map(|point| (point[0], point[1])).unzip();
            let middle = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
            let width = xs.iter().copied().fold(f64::MIN, f64::max) - xs.iter().copied().fold(f64::MAX, f64::min);
            let height = ys.iter().copied().fold(f64::MIN, f64::max) - ys.iter().copied().fold(f64::MAX, f64::min);
            (xs.len() == 4 && width >= 1.0 && height >= 1.0).then(|| (middle(&xs), middle(&ys)))
        };
        let center = quads["quads"].as_array().into_iter().flatten().find_map(corners);
        center.ok_or_else(|| ActionError::Refused(format!("{} has no visible area", element.shown)))
    }

    async fn focus(&self, element: &NamedElement) -> Result<(), ActionError> {
        match self.process.call("DOM.focus", json!({"backendNodeId": element.element})).await {
            Err(CdpError::Refused { .. }) => refuse(format!("{} cannot have the keyboard focus", element.shown)),
            result => Ok(result.map(drop)?),
        }
    }

    /// Replaces the text of a field with keyboard input. Fields with another kind of value get it from a script.
    async fn fill(&self, element: &NamedElement, value: &str) -> Result<(), ActionError> {
        let kind = self.run_on(element, FIELD_KIND, &[]).await?;
        match kind.as_str() {
            Some("text") => {
                self.focus(element).await?;
                self.run_on(element, SELECT_ALL, &[]).await?;
                if value.is_empty() {
                    let delete = KeyPress::parse("Delete").map_err(|error| ActionError::Refused(error.to_string()))?;
                    for event in delete.events() {
                        self.process.call("Input.dispatchKeyEvent", event).await?;
                    }
                } else {
                    self.process.call("Input.insertText", json!({"text": value})).await?;
                }
                self.run_on(element, CHANGED, &[]).await?;
                Ok(())
            }
            Some("value") => {
                let set = self.run_on(element, SET_VALUE, &[json!(value)]).await?;
                if set == json!(true) {
                    return Ok(());
                }
                let format = strip_to_line(set.as_str().unwrap_or_default());
                refuse(format!("{} does not take `{}`: {format}", element.shown, truncate(value, 100)))
            }
            Some("file") => refuse(format!("{} takes files: use `upload`", element.shown)),
            Some("select") => refuse(format!("{} takes options: use `select`", element.shown)),
            Some("readonly") => refuse(format!("{} is disabled or read-only", element.shown)),
            _ => refuse(format!("{} is no field that can be filled", element.shown)),
        }
    }

    /// Copies a file of the workspace to where the browser can read it, and gives it to a file field.
    async fn upload(&self, action: &BrowserAction, call: &CallContext) -> Result<String, ActionError> {
        let element = action.element(self)?;
        let Some(path) = &action.path else { return refuse("`path` is missing") };
        if self.run_on(element, FIELD_KIND, &[]).await? != json!("file") {
            return refuse(format!("{} is no field for files", element.shown));
        }
        let file = load(call, path).await.map_err(|refusal| ActionError::Refused(refusal.0))?;
        let name = file.path.file_name().map(Path::new).unwrap_or(Path::new("file"));
        let unwritable = |error: std::io::Error| ActionError::Refused(format!("the file could not be copied: {error}"));
        let folder = tempfile::tempdir_in(self.process.uploads()).map_err(unwritable)?.keep();
        let copy = folder.join(name);
        tokio::fs::write(&copy, &file.bytes).await.map_err(unwritable)?;
        let files = json!({"files": [copy.to_string_lossy()], "backendNodeId": element.element});
        self.process.call("DOM.setFileInputFiles", files).await?;
        Ok(format!("gave `{}` to {}", file.shown, element.shown))
    }

    async fn scroll(&self, action: &BrowserAction) -> Result<String, ActionError> {
        if action.element.is_some() {
            let element = action.element(self)?;
            self.find_center(element).await?;
            return Ok(format!("scrolled to {}", element.shown));
        }
        let way = action.value()?;
        let script = match way {
            "up" => "scrollBy(0, -innerHeight * 0.8)",
            "down" => "scrollBy(0, innerHeight * 0.8)",
            "top" => "scrollTo(0, 0)",
            "bottom" => "scrollTo(0, document.documentElement.scrollHeight)",
            _ => return refuse("`value` of scroll is `up`, `down`, `top` or `bottom`"),
        };
        self.evaluate(script).await?;
        Ok(format!("scrolled {way}"))
    }

    async fn wait_for_text(&self, text: &str) -> Result<String, ActionError> {
        if text.trim().is_empty() {
            return refuse("`value` is the text to wait for");
        }
        let script = format!("(document.body?.innerText ?? '').includes({})", json!(text));
        let until = Instant::now() + WAIT_LIMIT;
        loop {
            match self.evaluate(&script).await {
                Ok(Value::Bool(true)) => return Ok("the text is there".to_owned()),
                // A page that is being replaced has no script.
                Ok(_) | Err(CdpError::Refused { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            if Instant::now() > until || self.process.events.facts().end.is_some() {
                return refuse(format!("the text did not appear within {} s", WAIT_LIMIT.as_secs()));
            }
            tokio::time::sleep(WAIT_STEP).await;
        }
    }

    async fn go(&self, step: i64) -> Result<String, ActionError> {
        let history = self.process.call("Page.getNavigationHistory", json!({})).await?;
        let mut index = history["currentIndex"].as_i64().unwrap_or_default();
        // The empty pages before and between URLs are no pages of the history.
        let entry = loop {
            index += step;
            let entry = usize::try_from(index).ok().and_then(|index| history["entries"].get(index));
            if entry.is_none_or(|entry| entry["url"] != EMPTY_PAGE) {
                break entry;
            }
        };
        match entry {
            Some(entry) => {
                self.process.call("Page.navigateToHistoryEntry", json!({"entryId": entry["id"]})).await?;
                Ok(if step < 0 { "went back" } else { "went forward" }.to_owned())
            }
            None => refuse("there is no such page in the history"),
        }
    }

    /// Runs a script in the page.
    pub(super) async fn evaluate(&self, script: &str) -> Result<Value, CdpError> {
        let params = json!({"expression": script, "returnByValue": true, "timeout": SCRIPT_LIMIT_MS});
        let answer = self.process.call("Runtime.evaluate", params).await?;
        Ok(answer["result"]["value"].clone())
    }

    /// Runs a function with an element as `this`. What it throws is the reason of a refusal.
    async fn run_on(&self, element: &NamedElement, function: &str, arguments: &[Value]) -> Result<Value, ActionError> {
        let object = match self.process.call("DOM.resolveNode", json!({"backendNodeId": element.element})).await {
            Err(CdpError::Refused { .. }) => {
                return refuse(format!("{} is no longer there; look again with `browse_read`", element.shown));
            }
            result => result?["object"]["objectId"].clone(),
        };
        let arguments: Vec<Value> = arguments.iter().map(|value| json!({"value": value})).collect();
        let params = json!({
            "functionDeclaration": function, "objectId": object, "arguments": arguments, "returnByValue": true,
        });
        let answer = self.process.call("Runtime.callFunctionOn", params).await?;
        if let Some(thrown) = answer.get("exceptionDetails") {
            let reason = thrown["exception"]["value"].as_str().or(thrown["text"].as_str()).unwrap_or("it failed");
            return refuse(format!("{}: {}", element.shown, truncate(&strip_to_line(reason), 500)));
        }
        Ok(answer["result"]["value"].clone())
    }
}

/// Returns how a field gets its value.
const FIELD_KIND: &str = "function () {
    if (this.disabled || this.readOnly) return 'readonly';
    if (this.isContentEditable) return 'text';
    switch (this.tagName) {
        case 'TEXTAREA': return 'text';
        case 'SELECT': return 'select';
        case 'INPUT': break;
        default: return 'none';
    }
    if (this.type === 'file') return 'file';
    if (['date', 'datetime-local', 'month', 'week', 'time', 'color', 'range'].includes(this.type)) return 'value';
    return ['checkbox', 'radio', 'button', 'submit', 'reset', 'image', 'hidden'].includes(this.type) ? 'none' : 'text';
}";

const SELECT_ALL: &str = "function () {
    if (this.select) return this.select();
    const range = document.createRange();
    range.selectNodeContents(this);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
}";

/// Keyboard input causes `input`; `change` follows when a user leaves the field.
const CHANGED: &str = "function () { this.dispatchEvent(new Event('change', { bubbles: true })); }";

/// Sets a value in the format of its kind. Frameworks replace the setter of an element, so it takes that of the class.
const SET_VALUE: &str = "function (value) {
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(this, value);
    for (const name of ['input', 'change']) this.dispatchEvent(new Event(name, { bubbles: true }));
    const same = this.value === value || (this.type === 'color' && this.value === value.toLowerCase());
    const formats = { date: '2026-01-31', 'datetime-local': '2026-01-31T12:30', month: '2026-01', week: '2026-W05',
        time: '12:30', color: '#aabbcc', range: `a number from ${this.min || 0} to ${this.max || 100}` };
    return same || `it wants ${formats[this.type]}`;
}";

const SELECT: &str = "function (wanted) {
    if (this.tagName !== 'SELECT') throw 'it is no list of options: click it, then click an option';
    const options = [...this.options];
    const label = (option) => option.label.trim();
    const option = options.find((o) => label(o) === wanted.trim()) ?? options.find((o) => o.value === wanted);
    if (!option) throw 'its options are ' + options.slice(0, 50).map(label).join(', ');
    if (option.disabled || this.disabled) throw 'this option is disabled';
    if (this.multiple) option.selected = true; else this.value = option.value, this.selectedIndex = option.index;
    for (const name of ['input', 'change']) this.dispatchEvent(new Event(name, { bubbles: true }));
    return label(option);
}";

const IS_CHECKED: &str = "function () {
    if (typeof this.checked === 'boolean') return this.checked;
    const state = this.getAttribute('aria-checked') ?? this.getAttribute('aria-pressed');
    if (state === null) throw 'it cannot be checked';
    return state === 'true';
}";
