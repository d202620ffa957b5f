%% SPDX-License-Identifier: GPL-2.0-only
%%
%% Work for an Erlang virtual machine: processes that send messages, collect garbage, recurse
%% deeply, catch exceptions, sort with functions, and call functions written in C. Lists are short,
%% because functions that go through a list are recursive, and perf takes 127 frames at most.
-module(load).
-export([start/0, tree/1, depth/1]).

start() ->
    Partners = [spawn_link(fun() -> work(Number, 0) end) || Number <- lists:seq(1, 3)],
    [Partner ! {partners, Partners} || Partner <- Partners],
    receive never -> ok end.

work(Seed, Rounds) ->
    Tree = tree(Seed + 7),
    Count = count(Tree),
    true = Count =:= 1 bsl (Seed + 8) - 1,
    Depth = depth(300),
    300 = Depth,
    Sorted = lists:sort(fun(A, B) -> A > B end,
                        [(N * 7919 + Seed) rem 1009 || N <- lists:seq(1, 90)]),
    true = hd(Sorted) >= lists:last(Sorted),
    Add = fun(N, Sums) -> maps:update_with(N rem 17, fun(S) -> S + N end, N, Sums) end,
    Map = lists:foldl(Add, #{}, Sorted),
    true = map_size(Map) > 10,
    Binary = term_to_binary({Map, Sorted}),
    {Map, Sorted} = binary_to_term(Binary),
    _ = erlang:md5(Binary),
    {match, _} = re:run(<<"name = value; other = none">>, "(\\w+)\\s*=\\s*none"),
    Table = ets:new(numbers, [ordered_set]),
    [ets:insert(Table, {N, Seed}) || N <- Sorted],
    _ = ets:foldl(fun({N, _}, Sum) -> N + Sum end, 0, Table),
    ets:delete(Table),
    Text = io_lib:format("~p ~s ~w", [Sorted, "text", Map]),
    _ = unicode:characters_to_binary(Text),
    _ = factorial(50),
    100 = caught(100, 0),
    Next = messages(Rounds),
    work(Seed, Next + 1).

tree(0) -> leaf;
tree(Height) -> {tree(Height - 1), Height, tree(Height - 1)}.

count(leaf) -> 1;
count({Left, _, Right}) -> count(Left) + 1 + count(Right).

depth(0) -> 0;
depth(Left) -> 1 + ?MODULE:depth(Left - 1).

factorial(0) -> 1;
factorial(N) -> N * factorial(N - 1).

caught(0, Caught) -> Caught;
caught(N, Caught) ->
    try throws(N rem 7) of
        _ -> caught(N - 1, Caught)
    catch
        throw:_ -> caught(N - 1, Caught + 1);
        error:{badmatch, _} -> caught(N - 1, Caught + 1);
        error:badarith -> caught(N - 1, Caught + 1)
    end.

throws(0) -> throw(zero);
throws(1) -> 1 / throws(3) * list_to_atom("x");
throws(2) -> {ok, _} = maps:get(two, #{two => {error, two}});
throws(N) -> 1 + throws(N - 1).

messages(Rounds) ->
    receive
        {partners, Partners} ->
            [Partner ! {text, Rounds} || Partner <- Partners],
            put(partners, Partners),
            messages(Rounds);
        {text, Other} when is_integer(Other) ->
            [Partner ! {text, Rounds}
             || Partner <- get(partners), Partner =/= self(), Rounds rem 4 =:= 0],
            messages(Rounds)
    after 0 -> Rounds
    end.
