//! Questions about hosts: one per host, with a time limit, and answers that last as long as the user said.

use futures::future::BoxFuture;
use tokio::sync::mpsc;

use super::*;
use crate::sandbox::proxy::gate::HostRuling;

/// A gate whose questions the test answers.
struct TestGate {
    questions: mpsc::UnboundedSender<(HostQuestion, tokio::sync::oneshot::Sender<HostAnswer>)>,
    /// What a rule or the level says about every host.
    settled: Mutex<Option<HostAnswer>>,
}

impl TestGate {
    fn settle_with(&self, answer: Option<HostAnswer>) {
        *self.settled.lock().unwrap() = answer;
    }
}

impl HostGate for TestGate {
    fn rule(&self, _: &RemoteHost) -> HostRuling {
        HostRuling::Silent
    }

    fn settle(&self, _: &RemoteHost) -> Option<HostAnswer> {
        self.settled.lock().unwrap().clone()
    }

    fn ask(&self, question: HostQuestion) -> BoxFuture<'_, HostAnswer> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.questions.send((question, sender)).unwrap();
        Box::pin(async { receiver.await.unwrap() })
    }

    fn record(&self, _: &HostRecord) {}
}

type Questions = mpsc::UnboundedReceiver<(HostQuestion, tokio::sync::oneshot::Sender<HostAnswer>)>;

/// Commands whose user decides about every host.
fn commands() -> (Arc<ProxyCommands>, Questions) {
    let (commands, questions, _) = settling_commands();
    (commands, questions)
}

/// Commands with their gate, which the test lets settle hosts.
fn settling_commands() -> (Arc<ProxyCommands>, Questions, Arc<TestGate>) {
    let (questions, receiver) = mpsc::unbounded_channel();
    let gate = Arc::new(TestGate { questions, settled: Mutex::default() });
    let asked = Arc::clone(&gate) as Arc<dyn HostGate>;
    (ProxyCommands::new(asked, TaskScope::new(), Duration::from_secs(30)), receiver, gate)
}

fn host(authority: &str) -> RemoteHost {
    RemoteHost::of_authority(authority).unwrap()
}

fn declined() -> RefusalReason {
    RefusalReason::Declined("the user declined".into())
}

#[tokio::test(start_paused = true)]
async fn equal_questions_become_one() {
    let (commands, mut questions) = commands();
    let first = commands.begin("cargo build".into(), &[]);
    let second = commands.begin("npm ci".into(), &[]);
    let (one, two, web) = (host("a.test:443"), host("a.test:443"), host("a.test:80"));
    let answering = async {
        let (question, answer) = questions.recv().await.unwrap();
        assert_eq!(question, HostQuestion { host: host("a.test:443"), command: Some("cargo build".into()) });
        // Let the others join.
        tokio::time::sleep(Duration::from_secs(1)).await;
        answer.send(HostAnswer::Once).unwrap();
    };
    let (a, b, c, ()) = tokio::join!(
        commands.consent(&one, Some(first.id())),
        commands.consent(&two, Some(second.id())),
        commands.consent(&web, Some(second.id())),
        answering,
    );
    assert_eq!((a, b, c), (Ok(HostConsent::User), Ok(HostConsent::User), Ok(HostConsent::User)));
    assert!(questions.try_recv().is_err());
    // It lasts until the command ends.
    assert_eq!(commands.consent(&one, Some(second.id())).await, Ok(HostConsent::User));
    drop(second);
    let third = commands.begin("npm ci".into(), &[]);
    let asked = async { questions.recv().await.unwrap().1.send(HostAnswer::Session).unwrap() };
    assert_eq!(tokio::join!(commands.consent(&one, Some(third.id())), asked).0, Ok(HostConsent::User));
    // The other answer lasts for the session.
    drop(third);
    let fourth = commands.begin("npm ci".into(), &[]);
    assert_eq!(commands.consent(&one, Some(fourth.id())).await, Ok(HostConsent::User));
    assert_eq!(commands.consent(&one, None).await, Ok(HostConsent::User));
}

#[tokio::test(start_paused = true)]
async fn a_connection_waits_30_s_and_a_retry_gets_the_answer() {
    let (commands, mut questions) = commands();
    let command = commands.begin("curl a.test".into(), &[]);
    let start = Instant::now();
    assert_eq!(commands.consent(&host("a.test:443"), Some(command.id())).await, Err(RefusalReason::Unanswered));
    assert_eq!(start.elapsed(), Duration::from_secs(30));
    let server = host("a.test:443");
    let (_, answer) = questions.recv().await.unwrap();
    let late = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        answer.send(HostAnswer::Once).unwrap();
    };
    assert_eq!(tokio::join!(commands.consent(&server, Some(command.id())), late).0, Ok(HostConsent::User));
    assert_eq!(start.elapsed(), Duration::from_secs(40));
    assert!(questions.try_recv().is_err(), "one question for both attempts");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_user_lasts_as_long_as_the_command() {
    let (commands, mut questions) = commands();
    let command = commands.begin("a".into(), &[]);
    let other = commands.begin("b".into(), &[]);
    let server = host("a.test:22");
    let no =
        async { questions.recv().await.unwrap().1.send(HostAnswer::Declined("the user declined".into())).unwrap() };
    assert_eq!(tokio::join!(commands.consent(&server, Some(command.id())), no).0, Err(declined()));
    assert_eq!(commands.consent(&server, Some(command.id())).await, Err(declined()));
    // Another command asks for itself.
    let yes = async { questions.recv().await.unwrap().1.send(HostAnswer::Once).unwrap() };
    assert_eq!(tokio::join!(commands.consent(&server, Some(other.id())), yes).0, Ok(HostConsent::User));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_without_a_user_holds_for_one_attempt() {
    let (commands, mut questions) = commands();
    let service = commands.begin("service `echo`".into(), &[]);
    let server = host("a.test:443");
    for process in [Some(service.id()), None] {
        for (answer, refusal) in [
            (HostAnswer::Unavailable("there is no user".into()), RefusalReason::NoUser("there is no user".into())),
            (HostAnswer::Forbidden("the level".into()), RefusalReason::Declined("the level".into())),
        ] {
            let alone = async { questions.recv().await.unwrap().1.send(answer).unwrap() };
            assert_eq!(tokio::join!(commands.consent(&server, process), alone).0, Err(refusal));
        }
    }
    // Now a user is there, and the answer lasts.
    let yes = async { questions.recv().await.unwrap().1.send(HostAnswer::Once).unwrap() };
    assert_eq!(tokio::join!(commands.consent(&server, Some(service.id())), yes).0, Ok(HostConsent::User));
    assert_eq!(commands.consent(&server, Some(service.id())).await, Ok(HostConsent::User));
    assert!(questions.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn hosts_of_a_consented_command_line_cause_no_question() {
    let (commands, mut questions) = commands();
    let command = commands.begin("curl https://a.test".into(), &[host("a.test:443")]);
    assert_eq!(commands.consent(&host("a.test:443"), Some(command.id())).await, Ok(HostConsent::User));
    assert!(questions.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn questions_end_with_the_commands_that_need_them() {
    let (commands, mut questions) = commands();
    let first = commands.begin("a".into(), &[]);
    let second = commands.begin("b".into(), &[]);
    for command in [&first, &second] {
        let waited = commands.consent(&host("a.test:443"), Some(command.id())).await;
        assert_eq!(waited, Err(RefusalReason::Unanswered));
    }
    let (_, mut answer) = questions.recv().await.unwrap();
    drop(first);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!answer.is_closed(), "the second command still needs the answer");
    drop(second);
    answer.closed().await;
}

#[tokio::test(start_paused = true)]
async fn open_questions_are_bounded() {
    let (commands, _questions) = commands();
    let command = commands.begin("a".into(), &[]);
    for number in 0..MAX_QUESTIONS {
        let host = host(&format!("host{number}.test:443"));
        assert_eq!(commands.consent(&host, Some(command.id())).await, Err(RefusalReason::Unanswered));
    }
    let one_more = commands.consent(&host("more.test:443"), Some(command.id())).await;
    assert_eq!(one_more, Err(RefusalReason::TooManyQuestions));
}

#[tokio::test(start_paused = true)]
async fn a_decision_of_the_level_holds_for_one_connection() {
    let (commands, mut questions, gate) = settling_commands();
    let service = commands.begin("service `echo`".into(), &[]);
    let server = host("a.test:443");
    gate.settle_with(Some(HostAnswer::Permitted));
    assert_eq!(commands.consent(&server, Some(service.id())).await, Ok(HostConsent::Level));
    gate.settle_with(Some(HostAnswer::Forbidden("the level".into())));
    let forbidden = Err(RefusalReason::Declined("the level".into()));
    assert_eq!(commands.consent(&server, Some(service.id())).await, forbidden);
    assert!(questions.try_recv().is_err(), "the level asks nothing");
    // The level asks now.
    gate.settle_with(None);
    let yes = async { questions.recv().await.unwrap().1.send(HostAnswer::Once).unwrap() };
    assert_eq!(tokio::join!(commands.consent(&server, Some(service.id())), yes).0, Ok(HostConsent::User));
    assert_eq!(commands.consent(&server, Some(service.id())).await, Ok(HostConsent::User));
    gate.settle_with(Some(HostAnswer::Permitted));
    assert_eq!(commands.consent(&server, Some(service.id())).await, Ok(HostConsent::User), "the user has seen it");
    // A stricter level counts more than an earlier answer of the user.
    gate.settle_with(Some(HostAnswer::Forbidden("the level".into())));
    assert_eq!(commands.consent(&server, Some(service.id())).await, forbidden);
}

#[tokio::test(start_paused = true)]
async fn decisions_of_the_level_are_no_open_questions() {
    let (commands, _questions, gate) = settling_commands();
    let command = commands.begin("crawl".into(), &[]);
    for number in 0..MAX_QUESTIONS {
        let host = host(&format!("host{number}.test:443"));
        assert_eq!(commands.consent(&host, Some(command.id())).await, Err(RefusalReason::Unanswered));
    }
    gate.settle_with(Some(HostAnswer::Permitted));
    assert_eq!(commands.consent(&host("more.test:443"), Some(command.id())).await, Ok(HostConsent::Level));
    assert_eq!(commands.consent(&host("host0.test:443"), Some(command.id())).await, Ok(HostConsent::Level));
}

#[tokio::test(start_paused = true)]
async fn the_timeout_of_a_command_stops_while_it_waits() {
    let (commands, mut questions) = commands();
    let command = commands.begin("a".into(), &[]);
    let limit = Duration::from_secs(10);
    let start = Instant::now();
    // 5 s of work, 20 s of waiting, 4 s of work.
    let work = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        commands.consent(&host("a.test:443"), Some(command.id())).await.unwrap();
        tokio::time::sleep(Duration::from_secs(4)).await;
    };
    let answering = async {
        let (_, answer) = questions.recv().await.unwrap();
        tokio::time::sleep(Duration::from_secs(20)).await;
        answer.send(HostAnswer::Once).unwrap();
    };
    let (finished, ()) = tokio::join!(command.limit(limit, work), answering);
    assert_eq!((finished, start.elapsed()), (Some(()), Duration::from_secs(29)));
    let start = Instant::now();
    assert_eq!(command.limit(limit, std::future::pending::<()>()).await, None);
    assert_eq!(start.elapsed(), limit);
}

#[tokio::test(start_paused = true)]
async fn waiting_extends_a_timeout_by_five_minutes_at_most() {
    let (commands, _questions) = commands();
    let command = commands.begin("a".into(), &[]);
    let start = Instant::now();
    let asking = async {
        loop {
            drop(commands.consent(&host("a.test:443"), Some(command.id())).await);
        }
    };
    let limited = command.limit(Duration::from_secs(10), asking).await;
    assert_eq!((limited, start.elapsed().as_secs()), (None::<()>, 310));
}

#[tokio::test]
async fn connections_belong_to_the_named_or_the_only_command() {
    let (commands, _questions) = commands();
    assert_eq!(commands.find(Some("command-1")), None);
    let first = commands.begin("a".into(), &[]);
    assert_eq!(commands.find(None), Some(first.id()));
    let second = commands.begin("b".into(), &[]);
    assert_eq!(commands.find(Some(&second.id().to_string())), Some(second.id()));
    assert_eq!(commands.find(Some("command-99")), None);
    assert_eq!(commands.find(None), None);
    // Without a known command, each may be the one.
    commands.record(&host("a.test:443"), None, Some(&RefusalReason::Unlisted), false);
    commands.record(&host("b.test:443"), Some(first.id()), Some(&RefusalReason::Profile), false);
    let shown = |command: &CommandNetwork| command.refusals().iter().map(ToString::to_string).collect::<Vec<_>>();
    let unlisted = "refused by the sandbox: a.test:443 (the sandbox profile does not list this host)";
    assert_eq!(shown(&second), [unlisted]);
    assert_eq!(shown(&first), [unlisted, "refused by the sandbox: b.test:443 (the sandbox profile denies this host)"]);
}

#[tokio::test]
async fn a_command_reports_a_limited_number_of_refusals() {
    let (commands, _questions) = commands();
    let command = commands.begin("a".into(), &[]);
    for number in 0..=MAX_REFUSALS {
        let host = host(&format!("host{number}.test:443"));
        commands.record(&host, Some(command.id()), Some(&RefusalReason::Unlisted), false);
    }
    let hosts: Vec<_> = command.refusals().into_iter().map(|refusal| refusal.host).collect();
    let expected: Vec<_> = (0..MAX_REFUSALS).map(|number| host(&format!("host{number}.test:443"))).collect();
    assert_eq!(hosts, expected);
}
