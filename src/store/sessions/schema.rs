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
    ],
};
