//! Remembers what the editor was shown of a session, so that a replay after a reconnect shows only the rest.
//!
//! Invariant: what a lost connection did not deliver is the end of the history. So everything in a replay up to the last
//! part that the editor has is old, and everything after it is new.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

/// A retry of a model repeats its text. Shorter overlaps with the text before it may be chance.
const MIN_OVERLAP: usize = 8;

/// What the editor has of a session.
#[derive(Debug, Clone, Default)]
pub(super) struct SessionLedger {
    pieces: Vec<MessageText>,
    /// The tool calls that the editor knows, and whether it knows their end.
    calls: HashMap<String, bool>,
    /// The last update of each kind that replaces the one before, such as the to-do list.
    latest: HashMap<String, Value>,
    notices: HashSet<String>,
    /// The ids that the editor knows for messages which have other ids on this connection.
    message_ids: HashMap<String, String>,
    /// How often the session was loaded again.
    reloads: u64,
    prompt: Option<OwnPrompt>,
}

/// The editor's last prompt.
#[derive(Debug, Clone, Copy)]
struct OwnPrompt {
    /// Its position among the pieces. `None` if it has no text.
    piece: Option<usize>,
    /// The server has shown something since then, or the prompt in a replay.
    received: bool,
}

/// The text of one message of one kind.
#[derive(Debug, Clone)]
struct MessageText {
    kind: String,
    message: Option<String>,
    text: String,
}

/// A part of a replay.
enum ReplayItem {
    Text { piece: MessageText, update: Value },
    Other(Value),
}

/// The position in a replay of the last part that the editor has.
struct MatchEnd {
    item: usize,
    /// How much of its text the editor has.
    offset: usize,
}

impl SessionLedger {
    /// Notes a prompt of the editor. The server does not show it to its author.
    pub(super) fn add_prompt(&mut self, blocks: &Value) {
        let blocks = blocks.as_array().map(Vec::as_slice).unwrap_or_default();
        let text: String = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
        let piece = (!text.is_empty()).then_some(self.pieces.len());
        if piece.is_some() {
            self.pieces.push(MessageText { kind: "user_message_chunk".to_owned(), message: None, text });
        }
        self.prompt = Some(OwnPrompt { piece, received: false });
    }

    /// Returns true if the server has the editor's last prompt.
    pub(super) fn has_received_prompt(&self) -> bool {
        self.prompt.is_some_and(|prompt| prompt.received)
    }

    /// Takes an update of the running connection. Returns what the editor is shown. `None` if the editor has it already.
    /// `is_prompting` is true while the editor waits for the response to a prompt.
    pub(super) fn accept(&mut self, update: &Value, is_prompting: bool) -> Option<Value> {
        if self.reloads > 0 && self.is_known(update, is_prompting) {
            return None;
        }
        let shown = self.with_known_id(update);
        self.record(&shown);
        Some(shown)
    }

    /// Takes a replay. Returns the updates that the editor does not have, in order.
    pub(super) fn reconcile(&mut self, updates: &[Value], is_prompting: bool) -> Vec<Value> {
        self.reloads += 1;
        self.message_ids.clear();
        let items = items(updates);
        let end = self.find_end(&items);
        let mut shown = Vec::new();
        let mut follows_prompt = is_prompting;
        for (at, item) in items.into_iter().enumerate() {
            let is_old = end.as_ref().is_some_and(|end| at < end.item);
            match item {
                ReplayItem::Text { .. } if is_old => {}
                ReplayItem::Text { piece, mut update } => {
                    let known = end.as_ref().filter(|end| end.item == at).map(|end| end.offset);
                    let is_user = piece.kind == "user_message_chunk";
                    // The editor knows its own prompt, also if the server shows it in another form.
                    let is_own = is_user && (known.is_some() || follows_prompt);
                    follows_prompt &= is_user;
                    let rest = &piece.text[known.unwrap_or(0)..];
                    if is_own || (known.is_some() && rest.is_empty()) {
                        continue;
                    }
                    if update["content"]["text"].is_string() {
                        update["content"]["text"] = json!(rest);
                    }
                    let update = self.with_known_id(&update);
                    self.record(&update);
                    shown.push(update);
                }
                ReplayItem::Other(update) => {
                    let is_call = update["sessionUpdate"].as_str().is_some_and(|kind| kind.starts_with("tool_call"));
                    if (is_old && !is_call) || self.is_known(&update, is_prompting) {
                        continue;
                    }
                    self.record(&update);
                    shown.push(update);
                }
            }
        }
        shown
    }

    /// Notes a replay as known without showing it: the editor asked for the session without its past.
    pub(super) fn swallow(&mut self, updates: &[Value]) {
        updates.iter().for_each(|update| self.record(update));
    }

    /// Finds the last part of a replay that the editor has, and remembers the ids of the messages.
    fn find_end(&mut self, items: &[ReplayItem]) -> Option<MatchEnd> {
        let mut end = None;
        let mut next = 0;
        for (at, item) in items.iter().enumerate() {
            match item {
                ReplayItem::Text { piece, .. } => {
                    let Some((index, offset)) = self.find_piece(piece, next) else { continue };
                    next = index + 1;
                    if let (Some(new), Some(known)) = (&piece.message, &self.pieces[index].message) {
                        self.message_ids.insert(new.clone(), known.clone());
                    }
                    if let Some(prompt) = &mut self.prompt {
                        prompt.received |= prompt.piece.is_some_and(|own| own <= index);
                    }
                    end = Some(MatchEnd { item: at, offset });
                }
                ReplayItem::Other(update) => {
                    let call = update["toolCallId"].as_str().and_then(|id| self.calls.get(id));
                    let is_known = match update["sessionUpdate"].as_str() {
                        Some("tool_call") => call.is_some(),
                        Some("tool_call_update") => call == Some(&true) && is_end(update),
                        _ => false,
                    };
                    if is_known {
                        end = Some(MatchEnd { item: at, offset: 0 });
                    }
                }
            }
        }
        end
    }

    /// Finds a piece from `next` on that has the beginning of this text. Returns its index, and how much the editor has.
    fn find_piece(&self, sought: &MessageText, next: usize) -> Option<(usize, usize)> {
        let mut candidates = self.pieces.iter().enumerate().skip(next).filter(|(_, piece)| piece.kind == sought.kind);
        if let Some((index, _)) = candidates.clone().find(|(_, piece)| piece.text == sought.text) {
            return Some((index, sought.text.len()));
        }
        // Only the last text can be incomplete.
        let (index, last) = candidates.next_back()?;
        if sought.text.starts_with(&last.text) {
            return Some((index, last.text.len()));
        }
        if last.text.starts_with(&sought.text) {
            return Some((index, sought.text.len()));
        }
        let limit = sought.text.len().min(last.text.len());
        let overlap = (MIN_OVERLAP..=limit)
            .rev()
            .find(|length| sought.text.get(..*length).is_some_and(|beginning| last.text.ends_with(beginning)));
        overlap.map(|length| (index, length))
    }

    /// Returns true if the editor has this update already, from an earlier connection.
    fn is_known(&self, update: &Value, is_prompting: bool) -> bool {
        let kind = update["sessionUpdate"].as_str().unwrap_or_default();
        let call = update["toolCallId"].as_str().and_then(|id| self.calls.get(id));
        match kind {
            "tool_call" => call.is_some(),
            "tool_call_update" => call == Some(&true) && is_end(update),
            "user_message_chunk" => is_prompting,
            "notice" => self.notices.contains(&update.to_string()),
            // The server sends notices as thoughts to editors without notices, and again on each connection.
            "agent_thought_chunk" => {
                let text = update["content"]["text"].as_str().unwrap_or_default();
                let is_notice = |piece: &MessageText| piece.kind == kind && piece.text == text;
                text.ends_with('\n') && self.pieces.iter().any(is_notice)
            }
            // The server sends the time of the last change with the end of a turn that it showed to others.
            "session_info_update" => update.get("title").is_none(),
            _ => {
                is_replacing(kind)
                    && self.latest.get(kind).is_some_and(|latest| without_id(latest) == without_id(update))
            }
        }
    }

    fn record(&mut self, update: &Value) {
        let kind = update["sessionUpdate"].as_str().unwrap_or_default();
        match kind {
            "user_message_chunk" | "agent_message_chunk" | "agent_thought_chunk" => self.record_text(piece_of(update)),
            "tool_call" | "tool_call_update" => {
                if let Some(id) = update["toolCallId"].as_str() {
                    *self.calls.entry(id.to_owned()).or_default() |= is_end(update);
                }
            }
            "notice" => {
                self.notices.insert(update.to_string());
            }
            _ if is_replacing(kind) => drop(self.latest.insert(kind.to_owned(), update.clone())),
            _ => {}
        }
        // Settings and notices may arrive before the server has read the prompt.
        let is_of_turn = kind == "agent_message_chunk" || kind == "tool_call";
        if let Some(prompt) = self.prompt.as_mut().filter(|_| is_of_turn) {
            prompt.received = true;
        }
    }

    fn record_text(&mut self, piece: MessageText) {
        let same = |known: &&mut MessageText| known.kind == piece.kind && known.message == piece.message;
        // Without an id, only neighbours belong to one message.
        let known = match piece.message {
            Some(_) => self.pieces.iter_mut().rev().find(same),
            None => self.pieces.last_mut().filter(same),
        };
        match known {
            Some(known) => known.text.push_str(&piece.text),
            None => self.pieces.push(piece),
        }
    }

    /// Returns the update with the message id that the editor knows.
    fn with_known_id(&self, update: &Value) -> Value {
        let mut update = update.clone();
        if let (Some(id), true) = (update["messageId"].as_str(), self.reloads > 0) {
            // A server may use an id again on another connection, for another message.
            let fresh = || format!("{id}.{}", self.reloads);
            let id = self.message_ids.get(id).cloned().unwrap_or_else(fresh);
            update["messageId"] = json!(id);
        }
        update
    }
}

/// Joins the chunks of a replay to messages.
fn items(updates: &[Value]) -> Vec<ReplayItem> {
    let mut items: Vec<ReplayItem> = Vec::new();
    for update in updates {
        let kind = update["sessionUpdate"].as_str().unwrap_or_default();
        if !kind.ends_with("_message_chunk") && kind != "agent_thought_chunk" {
            items.push(ReplayItem::Other(update.clone()));
            continue;
        }
        let piece = piece_of(update);
        match items.last_mut() {
            Some(ReplayItem::Text { piece: before, .. })
                if before.kind == piece.kind && before.message == piece.message && piece.message.is_some() =>
            {
                before.text.push_str(&piece.text);
            }
            _ => items.push(ReplayItem::Text { piece, update: update.clone() }),
        }
    }
    items
}

fn piece_of(update: &Value) -> MessageText {
    let content = &update["content"];
    MessageText {
        kind: update["sessionUpdate"].as_str().unwrap_or_default().to_owned(),
        message: update["messageId"].as_str().map(str::to_owned),
        text: content["text"].as_str().map_or_else(|| content.to_string(), str::to_owned),
    }
}

/// Returns true if the update ends its call.
fn is_end(update: &Value) -> bool {
    matches!(update["status"].as_str(), Some("completed" | "failed"))
}

/// Returns true for updates that replace the one before.
fn is_replacing(kind: &str) -> bool {
    matches!(
        kind,
        "plan" | "available_commands_update" | "config_option_update" | "current_mode_update" | "compaction_update"
    )
}

/// Returns the update without the id that is new in each replay.
fn without_id(update: &Value) -> Value {
    let mut update = update.clone();
    if let Some(fields) = update.as_object_mut() {
        fields.retain(|key, _| key != "compactionId");
    }
    update
}
