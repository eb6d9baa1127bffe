-- What a database does with its file, its memory and its strings: every answer is compared.
.bail on
.mode list
PRAGMA journal_mode = WAL;
CREATE TABLE numbers(n INTEGER PRIMARY KEY, square INTEGER, text TEXT, half REAL);
BEGIN;
WITH RECURSIVE count(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM count WHERE n < 1500)
  INSERT INTO numbers SELECT n, n * n, printf('%05d-%x', n * 7919 % 1500, n), n / 2.0 FROM count;
COMMIT;
CREATE INDEX by_text ON numbers(text);
SELECT count(*), sum(square), min(text), max(text), total(half) FROM numbers;
SELECT n, text FROM numbers WHERE text BETWEEN '00700' AND '00705' ORDER BY text;
SELECT text, row_number() OVER (ORDER BY text), lag(n) OVER (ORDER BY text) FROM numbers ORDER BY text LIMIT 5;
BEGIN; DELETE FROM numbers WHERE n % 3 = 0; SELECT changes(), count(*) FROM numbers; ROLLBACK;
SAVEPOINT here; UPDATE numbers SET text = upper(text) WHERE n % 5 = 0; ROLLBACK TO here; RELEASE here;
UPDATE numbers SET text = replace(text, '-', '+') WHERE n % 7 = 0;
SELECT group_concat(text, ' ') FROM (SELECT text FROM numbers WHERE text LIKE '%+%' ORDER BY text LIMIT 20);
SELECT json_group_array(json_object('n', n, 'half', half)) FROM numbers WHERE n < 6;
SELECT strftime('%Y-%m-%d', '2000-02-28', '+2 days'), round(3.14159, 3), hex(zeroblob(4)), quote('it''s');
CREATE TRIGGER halve AFTER INSERT ON numbers BEGIN UPDATE numbers SET half = half / 2 WHERE n = new.n; END;
INSERT INTO numbers VALUES (5000, 25000000, 'triggered', 100.0);
SELECT half FROM numbers WHERE n = 5000;
EXPLAIN QUERY PLAN SELECT * FROM numbers WHERE text = 'x';
VACUUM;
PRAGMA wal_checkpoint;
PRAGMA integrity_check;
PRAGMA page_count;
.bail off
INSERT INTO numbers(n) VALUES (1);
SELECT nothing FROM nowhere;
.dump by_text
