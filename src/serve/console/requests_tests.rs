//! Answers to requests: who may give them, and which one counts.

use serde_json::{Map, json};

use super::*;
use crate::principal::{Principal, TokenLimits};
use crate::tool::ask::ConsentSubject;

fn source(principal: &str) -> RequestSource {
    RequestSource {
        opener: grant(principal, shop()),
        session: "s1".to_owned(),
        title: None,
        mode: "coding/backend".parse().unwrap(),
        folder: "/srv/shop".into(),
        files: SessionFiles::Server,
        sandbox: "runs no commands".to_owned(),
    }
}

fn question() -> RequestKind {
    RequestKind::Permission(Box::new(PermissionRequest {
        call: None,
        by: None,
        apart: None,
        chain: Vec::new(),
        tool: "developer__shell".to_owned(),
        title: None,
        arguments: Map::new(),
        target: None,
        change: None,
        protected: None,
        always: ConsentSubject::of_host("fetch__fetch", "a.test"),
        rule: None,
    }))
}

fn grant(principal: &str, limits: TokenLimits) -> SessionGrant {
    SessionGrant::new(Principal::new(principal).unwrap(), limits)
}

fn word(word: &str) -> FormFields {
    FormFields::parse(format!("answer={word}").as_bytes())
}

fn shop() -> TokenLimits {
    TokenLimits { roots: vec!["/srv".into()], ..TokenLimits::default() }
}

#[test]
fn the_first_answer_counts_and_the_second_learns_of_it() {
    let requests = OpenRequests::default();
    let (number, mut answer) = requests.open(source("ana"), question());
    let ana = grant("ana", shop());
    assert_eq!(requests.count(&ana), 1);
    assert_eq!(requests.answer(number, &word("reject"), &ana), Ok(()));
    assert_eq!(answer.try_recv().ok(), Some(RequestAnswer::Permission(PermissionResponse::Refuse)));
    let late = requests.answer(number, &word("allow"), &ana);
    assert_eq!(late, Err(RequestAnswerError::Closed("rejected in the console".to_owned())));
    assert_eq!((requests.count(&ana), requests.list(&ana).len()), (0, 1), "it is still shown");
}

#[test]
fn requests_of_others_do_not_exist() {
    let requests = OpenRequests::default();
    let (number, _answer) = requests.open(source("ana"), question());
    let other_mode = TokenLimits { modes: vec!["coding/qa".to_owned()], ..shop() };
    for other in [grant("ben", shop()), grant("ana", TokenLimits::default()), grant("ana", other_mode)] {
        assert_eq!(requests.answer(number, &word("allow"), &other), Err(RequestAnswerError::Unknown));
        assert!(requests.list(&other).is_empty() && requests.count(&other) == 0);
    }
    assert!(requests.is_waiting("s1"));
}

#[test]
fn a_token_that_cannot_consent_does_not_for_another_one() {
    let requests = OpenRequests::default();
    let reader = grant("ana", TokenLimits { approval: Some(ApprovalLevel::ReadOnly), ..shop() });
    let (number, mut answer) = requests.open(source("ana"), question());
    for tried in ["allow", "allow-always"] {
        assert_eq!(requests.answer(number, &word(tried), &reader), Err(RequestAnswerError::Forbidden), "{tried}");
    }
    assert!(answer.try_recv().is_err() && requests.is_waiting("s1"), "the request is still open");
    let asker = grant("ana", TokenLimits { approval: Some(ApprovalLevel::Ask), ..shop() });
    assert_eq!(requests.answer(number, &word("allow"), &asker), Ok(()));
}

#[test]
fn a_request_that_another_client_answers_is_closed() {
    let requests = OpenRequests::default();
    let ana = grant("ana", shop());
    let (number, _answer) = requests.open(source("ana"), question());
    requests.withdraw(number);
    assert!(matches!(requests.answer(number, &word("allow"), &ana), Err(RequestAnswerError::Closed(_))));
    let (number, _answer) = requests.open(source("ana"), question());
    assert_eq!(requests.answer(number, &word("maybe"), &ana), Err(RequestAnswerError::Unfit));
    let (number, answer) = requests.open(source("ana"), question());
    drop(answer);
    assert!(matches!(requests.answer(number, &word("allow"), &ana), Err(RequestAnswerError::Closed(_))));
}

#[test]
fn the_oldest_answered_request_is_forgotten() {
    let requests = OpenRequests::default();
    let ana = grant("ana", shop());
    let (open, _answer) = requests.open(source("ana"), question());
    let closed: Vec<_> = (0..=MAX_CLOSED)
        .map(|_| {
            let (number, _answer) = requests.open(source("ana"), question());
            assert_eq!(requests.answer(number, &word("reject"), &ana), Ok(()));
            number
        })
        .collect();
    let (newest, _answer) = requests.open(source("ana"), question());
    let kept: Vec<_> = requests.list(&ana).iter().map(|request| request.number).collect();
    assert_eq!(kept, [&[open][..], &closed[1..], &[newest]].concat());
}

#[test]
fn a_form_is_answered_with_its_fields() {
    let requests = OpenRequests::default();
    let ana = grant("ana", shop());
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
    let kind = ElicitationKind::Fields(schema.as_object().cloned().unwrap());
    let question = Elicitation { by: "notes".to_owned(), call: None, message: "Who?".to_owned(), kind };
    let (number, mut answer) = requests.open(source("ana"), RequestKind::Elicitation(Box::new(question)));
    assert_eq!(requests.answer(number, &word("accept"), &ana), Err(RequestAnswerError::Unfit), "a field is missing");
    let form = FormFields::parse(b"answer=accept&field:name=Ana");
    assert_eq!(requests.answer(number, &form, &ana), Ok(()));
    let given = json!({"name": "Ana"}).as_object().cloned().unwrap();
    let expected = RequestAnswer::Elicitation(ElicitationResponse::Accepted(given));
    assert_eq!(answer.try_recv().ok(), Some(expected));
}
