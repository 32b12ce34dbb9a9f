//! Times the session store for `scripts/bench --replicas`: one stored event in SQLite and in PostgreSQL, and reads of a
//! PostgreSQL store of any size. The variable `SKEIN_BENCH_STORE` names the database, and `SKEIN_BENCH_READS` asks for
//! reads only. Prints one line of JSON with medians in milliseconds.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use skein::principal::SessionFiles;
use skein::store::{FolderFilter, ListFilter, NewEvent, NewSession, SessionStore, StoreAddress};

type BenchResult<T> = Result<T, Box<dyn std::error::Error>>;

const ROUNDS: usize = 200;

fn main() -> BenchResult<()> {
    // `cargo test` builds and runs benches too, without a database.
    let Ok(url) = std::env::var("SKEIN_BENCH_STORE") else { return Ok(()) };
    let address: Arc<StoreAddress> = Arc::new(url.parse()?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let figures = runtime.block_on(async {
        let database = SessionStore::connect(&address)?;
        match std::env::var("SKEIN_BENCH_READS") {
            Ok(_) => reads(&database).await,
            Err(_) => {
                let folder = tempfile::tempdir_in(std::env::current_dir()?)?;
                events(&database, folder.path()).await
            }
        }
    })?;
    writeln!(std::io::stdout(), "{figures}")?;
    Ok(())
}

/// Times an event until it is durable, in both stores in turn.
async fn events(database: &SessionStore, folder: &Path) -> BenchResult<Value> {
    let files = SessionStore::open(folder)?;
    let mut times = [Vec::new(), Vec::new()];
    let ids = [files.create(new_session()).await?, database.create(new_session()).await?];
    for round in 0..ROUNDS {
        for (index, store) in [&files, database].into_iter().enumerate() {
            let text = format!("event {round} with a few words to find");
            let body = json!({"event": "message", "message": {"role": "user", "parts": [{"text": text}]}}).to_string();
            let begun = Instant::now();
            store.append(&ids[index], NewEvent { kind: "message".into(), body, text: Some(text) });
            store.flush(&ids[index]).await?;
            times[index].push(begun.elapsed().as_secs_f64() * 1_000.0);
        }
    }
    let [files, database] = times.map(median);
    Ok(json!({"sqlite": files, "postgres": database}))
}

/// Times a page of the list, a search, and a session with its events.
async fn reads(store: &SessionStore) -> BenchResult<Value> {
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ROUNDS / 4 {
        let begun = Instant::now();
        let listed = store.list(ListFilter { limit: Some(50), ..ListFilter::default() }).await?;
        times[0].push(begun.elapsed().as_secs_f64() * 1_000.0);
        let begun = Instant::now();
        store.search("needle", FolderFilter::Anywhere, 10).await?;
        times[1].push(begun.elapsed().as_secs_f64() * 1_000.0);
        let Some(first) = listed.first() else { continue };
        let begun = Instant::now();
        store.find(&first.id).await?;
        store.events(&first.id).await?;
        times[2].push(begun.elapsed().as_secs_f64() * 1_000.0);
    }
    let [list, search, load] = times.map(median);
    Ok(json!({"list": list, "search": search, "load": load}))
}

fn new_session() -> NewSession {
    NewSession {
        cwd: "/".into(),
        roots: Vec::new(),
        agent: "goose".to_owned(),
        mode: "assistant".to_owned(),
        model: "offline".to_owned(),
        approval: None,
        parent: None,
        files: SessionFiles::Server,
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}
