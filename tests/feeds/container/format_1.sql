PRAGMA application_id=1279805507;
PRAGMA user_version=1;
BEGIN TRANSACTION;
CREATE TABLE changes (
    lsn INTEGER PRIMARY KEY,
    range INTEGER NOT NULL,
    hash INTEGER NOT NULL,
    key NOT NULL,
    operation TEXT NOT NULL,
    expired INTEGER NOT NULL,
    time_us INTEGER NOT NULL,
    previous_lsn INTEGER,
    previous TEXT
);
INSERT INTO "changes" VALUES(1,1,2846012873,'k0','insert',0,1700000000000000,NULL,NULL);
INSERT INTO "changes" VALUES(2,1,2559977813,'k1','insert',0,1700000000000000,NULL,NULL);
INSERT INTO "changes" VALUES(3,0,726192840,'k2','insert',0,1700000000000000,NULL,NULL);
INSERT INTO "changes" VALUES(4,1,3800615699,'k3','insert',0,1700000000000000,NULL,NULL);
INSERT INTO "changes" VALUES(5,1,2846012873,'k0','replace',0,1700000000000000,1,'{"id":"0","key":"k0","_etag":"bdf8b83d-1","_ts":1700000000,"_lsn":1}');
CREATE TABLE container (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    identity TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    key_path TEXT NOT NULL,
    document_bytes_max INTEGER NOT NULL,
    ttl_s REAL,
    versions_s REAL,
    split_documents INTEGER,
    created_us INTEGER NOT NULL
);
INSERT INTO "container" VALUES(1,'bdf8b83d83917fa9d612b226d781595f','homes.local','alerts','/key',2097152,100.0,86400.0,NULL,1700000000000000);
CREATE TABLE documents (
    lsn INTEGER PRIMARY KEY,
    range INTEGER NOT NULL,
    hash INTEGER NOT NULL,
    key NOT NULL,
    id TEXT NOT NULL,
    time_us INTEGER NOT NULL,
    expires_us INTEGER,
    body TEXT NOT NULL
);
INSERT INTO "documents" VALUES(2,1,2559977813,'k1','1',1700000000000000,1700000100000000,'{"id":"1","key":"k1","_etag":"bdf8b83d-2","_ts":1700000000,"_lsn":2}');
INSERT INTO "documents" VALUES(3,0,726192840,'k2','2',1700000000000000,1700000100000000,'{"id":"2","key":"k2","_etag":"bdf8b83d-3","_ts":1700000000,"_lsn":3}');
INSERT INTO "documents" VALUES(4,1,3800615699,'k3','3',1700000000000000,1700000100000000,'{"id":"3","key":"k3","_etag":"bdf8b83d-4","_ts":1700000000,"_lsn":4}');
INSERT INTO "documents" VALUES(5,1,2846012873,'k0','0',1700000000000000,1700000010000000,'{"id":"0","key":"k0","again":true,"ttl":10,"_etag":"bdf8b83d-5","_ts":1700000000,"_lsn":5}');
CREATE TABLE head (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    next_lsn INTEGER NOT NULL,
    last_us INTEGER NOT NULL,
    layout INTEGER NOT NULL
);
INSERT INTO "head" VALUES(1,6,1700000000000000,1);
CREATE TABLE ranges (
    id INTEGER PRIMARY KEY,
    parent INTEGER,
    low INTEGER NOT NULL,
    high INTEGER NOT NULL,
    next_lsn INTEGER NOT NULL,
    last_us INTEGER,
    documents INTEGER NOT NULL,
    kept_from INTEGER NOT NULL,
    split_above INTEGER,
    is_split INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "ranges" VALUES(0,NULL,0,2147483647,4,1700000000000000,1,0,NULL,0);
INSERT INTO "ranges" VALUES(1,NULL,2147483648,4294967295,6,1700000000000000,3,0,NULL,0);
CREATE INDEX ranges_by_parent ON ranges (parent);
CREATE UNIQUE INDEX documents_by_key ON documents (hash, key, id);
CREATE INDEX documents_by_range ON documents (range, lsn, hash, expires_us);
CREATE INDEX documents_by_expiry ON documents (expires_us) WHERE expires_us IS NOT NULL;
CREATE INDEX changes_by_range ON changes (range, lsn, hash);
CREATE INDEX changes_by_previous ON changes (previous_lsn) WHERE previous_lsn IS NOT NULL;
COMMIT;
