-- SPDX-License-Identifier: GPL-2.0-only
-- For PostgreSQL, which compiles the expressions of each query: the table, and after `queries` one
-- line for each query.
create table items as select i as a, (i % 5000 * 7919) % 1009 as b, (i * 31) % 97 as c, i * 0.5::float8 as d, 'k' || (i % 97) as e from generate_series(1, 500000) i;
-- queries
select sum(a * b + c), avg(d * 2 + b), count(*), max(length(e)) from items where (a % 7 <> 3 and b > 5) or (c < 50 and d > 100.0) group by c order by 1;
select count(*) from items where e like 'k1%' and (b between 10 and 900 or d * 1.5 - a > 3) and c <> 5;
select max(i.d + j.d), min(i.a - j.b) from items i join items j on i.a = j.b where i.c + j.c < 120 and i.e <> j.e;
