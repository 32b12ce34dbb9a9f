//! Defines the tables of the session store and their migrations.

use crate::store::Schema;

/// The bytes `skei` in ASCII.
const MARK: i32 = 0x736b_6569;

pub(in crate::store) const SCHEMA: Schema = Schema {
    mark: MARK,
    migrations: &[
        "
    CREATE TABLE session (
        key INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        cwd TEXT NOT NULL,
        roots TEXT NOT NULL,
        agent TEXT NOT NULL,
        mode TEXT NOT NULL,
        model TEXT NOT NULL,
        approval TEXT,
        title TEXT,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        input INTEGER NOT NULL DEFAULT 0,
        output INTEGER NOT NULL DEFAULT 0,
        cached INTEGER NOT NULL DEFAULT 0,
        cost REAL,
        -- How many there are, and so the number of the last one.
        events INTEGER NOT NULL DEFAULT 0,
        -- Counts flushes, so that each has something to write: SQLite leaves out what is the same already.
        flushes INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE INDEX session_newest ON session (updated_at, id);
    CREATE TABLE event (
        key INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES session (key) ON DELETE CASCADE,
        -- From 1, without gaps.
        seq INTEGER NOT NULL,
        at INTEGER NOT NULL,
        kind TEXT NOT NULL,
        body TEXT NOT NULL,
        text TEXT,
        UNIQUE (session, seq)
    ) STRICT;
    CREATE VIRTUAL TABLE event_words USING fts5(text, content='event', content_rowid='key',
        tokenize='porter unicode61 remove_diacritics 2');
    CREATE TRIGGER event_added AFTER INSERT ON event WHEN new.text IS NOT NULL BEGIN
        INSERT INTO event_words (rowid, text) VALUES (new.key, new.text);
    END;
    CREATE TRIGGER event_removed AFTER DELETE ON event WHEN old.text IS NOT NULL BEGIN
        INSERT INTO event_words (event_words, rowid, text) VALUES ('delete', old.key, old.text);
    END;
",
        "
    -- The id of the session that it works for.
    ALTER TABLE session ADD COLUMN parent TEXT;
    CREATE INDEX session_children ON session (parent) WHERE parent IS NOT NULL;
",
        "
    CREATE TABLE state (
        session INTEGER NOT NULL REFERENCES session (key) ON DELETE CASCADE,
        owner TEXT NOT NULL,
        key TEXT NOT NULL,
        value BLOB NOT NULL,
        PRIMARY KEY (session, owner, key)
    ) STRICT, WITHOUT ROWID;
    -- The help text of the offline model is not worth finding. Newer versions store it without a text to search.
    CREATE TEMPORARY TABLE offline_help AS SELECT key FROM event
        WHERE kind = 'message' AND text LIKE '%No language model is configured, so this is the offline stand-in:%'
        AND json_valid(body) AND json_extract(body, '$.message.role') = 'assistant';
    INSERT INTO event_words (event_words, rowid, text)
        SELECT 'delete', key, text FROM event WHERE key IN (SELECT key FROM offline_help);
    UPDATE event SET text = NULL WHERE key IN (SELECT key FROM offline_help);
    DROP TABLE offline_help;
",
        "
    -- The owner. Sessions of older versions belong to the user of the machine.
    ALTER TABLE session ADD COLUMN principal TEXT NOT NULL DEFAULT 'local';
    CREATE INDEX session_of_principal ON session (principal, updated_at, id);
",
        "
    CREATE INDEX session_uuid ON state (key) WHERE owner = 'skein:uuid';
",
        "
    -- Where the files of the session are: `server`, `client` or `own`.
    ALTER TABLE session ADD COLUMN files TEXT NOT NULL DEFAULT 'server';
",
        "
    -- What sessions, profiles and principals have used of their limits.
    CREATE TABLE budget (
        principal TEXT NOT NULL,
        scope TEXT NOT NULL,
        -- Empty, a month or a day.
        period TEXT NOT NULL,
        cost REAL NOT NULL,
        tokens INTEGER NOT NULL,
        requests INTEGER NOT NULL,
        milliseconds INTEGER NOT NULL,
        PRIMARY KEY (principal, scope, period)
    ) STRICT, WITHOUT ROWID;
",
        "
    -- Keys the pseudonym of a principal and the hashes of arguments. Without its key, neither can be traced back.
    CREATE TABLE audit_key (
        principal TEXT PRIMARY KEY,
        key BLOB NOT NULL
    ) STRICT, WITHOUT ROWID;
    -- Decisions. They outlive their session, so they name it by its id.
    CREATE TABLE audit_entry (
        session TEXT NOT NULL,
        -- From 1, without gaps.
        seq INTEGER NOT NULL,
        at INTEGER NOT NULL,
        pseudonym TEXT NOT NULL,
        actor TEXT NOT NULL,
        kind TEXT NOT NULL,
        subject TEXT NOT NULL,
        call TEXT,
        decision TEXT NOT NULL,
        source TEXT NOT NULL,
        rule TEXT,
        -- HMAC of the arguments.
        arguments TEXT,
        -- SHA-256 of the entry before.
        previous TEXT NOT NULL,
        PRIMARY KEY (session, seq)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX audit_time ON audit_entry (at);
    -- The last entry of each chain.
    CREATE TABLE audit_head (
        session TEXT PRIMARY KEY,
        entries INTEGER NOT NULL,
        hash TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    -- The number of entries, next to the session.
    ALTER TABLE session ADD COLUMN audited INTEGER NOT NULL DEFAULT 0;
",
        "
    -- The key that encrypts texts, if one does.
    CREATE TABLE store_key (id TEXT PRIMARY KEY, proof TEXT NOT NULL) STRICT;
    -- Until when a process has the session open. Retention does not remove it before.
    ALTER TABLE session ADD COLUMN busy_until INTEGER NOT NULL DEFAULT 0;
",
        "
    -- The number of chains: one row, which shows that a chain was removed as a whole.
    CREATE TABLE audit_total (chains INTEGER NOT NULL) STRICT;
    INSERT INTO audit_total (chains) SELECT count(*) FROM audit_head;
    CREATE TRIGGER audit_chain_added AFTER INSERT ON audit_head BEGIN
        UPDATE audit_total SET chains = chains + 1;
    END;
",
        "
    -- What sessions spent, and when. Of older sessions, only the sum is known.
    CREATE TABLE spending (
        key INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES session (key) ON DELETE CASCADE,
        at INTEGER NOT NULL,
        input INTEGER NOT NULL,
        output INTEGER NOT NULL,
        cached INTEGER NOT NULL,
        cost REAL
    ) STRICT;
    CREATE INDEX spending_of_session ON spending (session, at);
    INSERT INTO spending (session, at, input, output, cached, cost)
        SELECT key, updated_at, input, output, cached, cost FROM session
        WHERE input > 0 OR output > 0 OR cost IS NOT NULL ORDER BY key;
    CREATE TRIGGER session_spent AFTER UPDATE OF input, output, cached, cost ON session
    WHEN new.input <> old.input OR new.output <> old.output OR new.cost IS NOT old.cost BEGIN
        INSERT INTO spending (session, at, input, output, cached, cost)
        VALUES (new.key, new.updated_at, new.input - old.input, new.output - old.output, new.cached - old.cached,
            new.cost - coalesce(old.cost, 0));
    END;
",
    ],
};
