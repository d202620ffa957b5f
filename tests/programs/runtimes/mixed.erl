%% SPDX-License-Identifier: GPL-2.0-only
%%
%% Another load for an Erlang virtual machine, without an end: trees, text, records, errors with a
%% cause, closures, floating-point numbers, and large numbers.
-module(mixed).
-export([start/0]).

-record(row, {id, name, tag}).

start() ->
    [spawn_link(fun() -> work(Number) end) || Number <- lists:seq(1, 2)],
    receive never -> ok end.

work(Seed) ->
    Tree = lists:foldl(fun insert/2, none, [N * 7919 rem 1009 || N <- lists:seq(Seed, Seed + 60)]),
    true = keys(Tree) =:= lists:sort(keys(Tree)),
    _ = text(Seed),
    7 = records(),
    12 = errors(),
    Adders = [fun(Value) -> Value + N end || N <- lists:seq(1, 60)],
    1830 = lists:foldl(fun(Add, Sum) -> Add(Sum) end, 0, Adders),
    true = norm(20) > 0,
    true = product(60) rem 59 =:= 0,
    work(Seed + 1).

insert(Key, none) -> {Key, none, none};
insert(Key, {Other, Left, Right}) when Key < Other -> {Other, insert(Key, Left), Right};
insert(Key, {Other, Left, Right}) -> {Other, Left, insert(Key, Right)}.

keys(none) -> [];
keys({Key, Left, Right}) -> keys(Left) ++ [Key | keys(Right)].

text(Seed) ->
    Words = [io_lib:format("~4.16.0b-~b", [N * Seed * 7919 rem 65536, N]) || N <- lists:seq(1, 40)],
    Joined = iolist_to_binary(lists:join(";", Words)),
    Parts = binary:split(Joined, <<";">>, [global]),
    {match, Found} = re:run(Joined, "([0-9a-f]{2})+-(\\d+)", [global, {capture, all, binary}]),
    {string:uppercase(Joined), length(Parts) + length(Found)}.

records() ->
    Rows = [#row{id = N, name = N * 7919 rem 1009, tag = N rem 7} || N <- lists:seq(1, 60)],
    Sorted = lists:sort(fun(#row{tag = T, name = A}, #row{tag = U, name = B}) ->
				{T, A} =< {U, B}
			end,
                        Rows),
    Groups = lists:foldl(fun(#row{tag = Tag} = Row, Map) ->
                                 maps:update_with(Tag, fun(L) -> [Row | L] end, [Row], Map)
                         end, #{}, Sorted),
    map_size(Groups).

failing(0) -> binary_to_integer(<<"x">>);
failing(Depth) ->
    try failing(Depth - 1)
    catch error:Cause -> error({level, Depth, Cause})
    end.

errors() ->
    try failing(12)
    catch error:{level, Depth, _} -> Depth
    end.

norm(Size) ->
    Row = fun(I) -> [1.0 / (I + J + 1) || J <- lists:seq(1, Size)] end,
    Rows = [Row(I) || I <- lists:seq(1, Size)],
    Dot = fun(A, B) -> lists:sum(lists:zipwith(fun(X, Y) -> X * Y end, A, B)) end,
    math:sqrt(lists:sum([Dot(A, B) || A <- Rows, B <- Rows])).

product(1) -> 1;
product(N) -> N * product(N - 1).
