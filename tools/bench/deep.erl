%% SPDX-License-Identifier: GPL-2.0-only
%% Computes for ever in a function below DEPTH calls of another function.
-module(deep).
-export([start/1]).

start([Depth]) ->
    io:format("~p~n", [call(list_to_integer(atom_to_list(Depth)))]).

call(0) ->
    compute(1);
call(Depth) ->
    1 + call(Depth - 1).

compute(Sum) ->
    compute((Sum * 5 + 1) band 16#ffffffff).
