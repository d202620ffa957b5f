-- SPDX-License-Identifier: GPL-2.0-only
-- Tables, indexes, triggers, joins, windows and recursion; the last statement repeats a join TURNS
-- times.
CREATE TABLE customer(id INTEGER PRIMARY KEY, name TEXT, town TEXT);
CREATE TABLE purchase(id INTEGER PRIMARY KEY, customer INTEGER, price REAL, note TEXT);
CREATE INDEX purchase_customer ON purchase(customer, price);
CREATE TABLE total(customer INTEGER PRIMARY KEY, price REAL);
CREATE TRIGGER add_up AFTER INSERT ON purchase BEGIN
	INSERT INTO total VALUES(new.customer, new.price)
	ON CONFLICT DO UPDATE SET price = price + excluded.price;
END;
BEGIN;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20)
INSERT INTO customer SELECT i, printf('name %03d', i * 7919 % 1009), char(65 + i % 7) FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 80)
INSERT INTO purchase SELECT i, 1 + i % 20, i * 31 % 97, hex(i * i) || 'note' FROM n;
COMMIT;
SELECT town, count(*), round(sum(price), 2), group_concat(name, '+') FROM customer
	JOIN total ON total.customer = customer.id GROUP BY town ORDER BY 3 DESC;
SELECT id, rank() OVER (PARTITION BY customer ORDER BY price DESC) AS place FROM purchase
	WHERE note LIKE '%1N%' ORDER BY place, id LIMIT 5;
WITH RECURSIVE turn(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM turn WHERE i < TURNS)
SELECT sum(found) FROM (SELECT (SELECT count(*) FROM purchase JOIN customer
	ON customer.id = purchase.customer
	WHERE price > i % 90 AND upper(name) GLOB '*' || (i % 10)) AS found FROM turn);
