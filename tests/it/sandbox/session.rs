//! A session whose shell commands run in a sandbox, and the questions that they cause.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::support::Sandbox;
use crate::support::acp::{Acp, selected};

/// An ACP session at the approval level `ask`. Questions about the shell itself are answered with yes.
pub(super) struct SandboxedSession {
    pub(super) machine: Sandbox,
    pub(super) client: Acp,
    id: String,
    asked: Rc<RefCell<Vec<Value>>>,
    answer: Rc<RefCell<&'static str>>,
}

impl SandboxedSession {
    /// Starts a session. `settings` is the section `sandbox` of the user's config; `variables` are Skein's own.
    pub(super) fn start(machine: Sandbox, settings: &Value, variables: &[(&str, &str)]) -> Self {
        Self::start_with(machine, &json!({"sandbox": settings}), variables, &[])
    }

    /// Starts a session with this config of the user, and flags.
    pub(super) fn start_with(machine: Sandbox, config: &Value, variables: &[(&str, &str)], flags: &[&str]) -> Self {
        let mut config = config.clone();
        config["version"] = json!(1);
        machine.write("config/config.yaml", &config.to_string());
        let mut command = machine.command(&[&["--sandbox", "required", "acp"], flags].concat());
        command.envs(variables.iter().copied());
        let mut client = Acp::launch(&machine, command);
        client.introduce(&json!({}));
        let asked: Rc<RefCell<Vec<Value>>> = Rc::default();
        let answer = Rc::new(RefCell::new("allow_once"));
        let (kept, given) = (Rc::clone(&asked), Rc::clone(&answer));
        client.on("session/request_permission", move |request| {
            let call = &request["toolCall"];
            if call["rawInput"].get("timeout").is_some() {
                return Some(selected("allow_once"));
            }
            kept.borrow_mut().push(call.clone());
            Some(selected(*given.borrow()))
        });
        let id = client.session();
        Self { machine, client, id, asked, answer }
    }

    /// The answer to the next questions: an option of ACP.
    pub(super) fn will_answer(&self, option: &'static str) {
        *self.answer.borrow_mut() = option;
    }

    /// Runs a command. Returns the result that the model gets, and the questions that the command caused.
    pub(super) fn shell(&mut self, command: &str) -> (Value, Vec<Value>) {
        self.call("shell", &json!({"command": command, "timeout": 60}))
    }

    /// Calls a tool of the service `developer`.
    pub(super) fn call(&mut self, tool: &str, arguments: &Value) -> (Value, Vec<Value>) {
        let (_, updates) = self.client.prompt(&self.id, &format!("/developer.{tool} {arguments}"));
        let ended = |update: &&Value| ["completed", "failed"].iter().any(|status| update["status"] == *status);
        let result = updates.iter().rev().find(ended).unwrap_or_else(|| panic!("no result: {updates:?}"));
        (result["rawOutput"].clone(), self.questions())
    }

    /// Runs a command that must succeed. Returns its standard output.
    pub(super) fn works(&mut self, command: &str) -> String {
        let (result, _) = self.shell(command);
        let data = structured(&result);
        assert_eq!(data["exit_code"], 0, "{command}: {result}");
        data["stdout"].as_str().unwrap().to_owned()
    }

    /// Ends the session and Skein. Returns the machine.
    pub(super) fn end(self) -> Sandbox {
        let Self { machine, mut client, .. } = self;
        client.finish();
        machine
    }

    /// Takes the questions so far, except those about the shell.
    pub(super) fn questions(&self) -> Vec<Value> {
        std::mem::take(&mut *self.asked.borrow_mut())
    }
}

/// The structured part of a result.
pub(super) fn structured(result: &Value) -> &Value {
    if result.get("structuredContent").is_some() { &result["structuredContent"] } else { result }
}

/// The titles of questions.
pub(super) fn titles(questions: &[Value]) -> Vec<&str> {
    questions.iter().map(|call| call["title"].as_str().unwrap()).collect()
}
