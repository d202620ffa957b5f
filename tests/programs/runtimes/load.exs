# SPDX-License-Identifier: GPL-2.0-only
#
# Work for Elixir: processes that call each other, pipelines of enumerables, strings, maps,
# protocols and exceptions. Lists are short, because functions that go through a list are recursive,
# and perf takes 127 frames at most.

defprotocol Area do
  def of(shape)
end

defmodule Circle do
  defstruct radius: 1
end

defmodule Square do
  defstruct side: 1
end

defimpl Area, for: Circle do
  def of(circle), do: 3 * circle.radius * circle.radius
end

defimpl Area, for: Square do
  def of(square), do: square.side * square.side
end

defmodule Load do
  def serve(sums) do
    receive do
      {from, key, value} ->
        sums = Map.update(sums, key, value, &(&1 + value))
        send(from, {:sum, sums[key]})
        serve(sums)
    end
  end

  def work(server, turn) do
    shapes = for n <- 1..60, do: if(rem(n, 2) == 0, do: %Circle{radius: n}, else: %Square{side: n})
    total = shapes |> Enum.map(&Area.of/1) |> Enum.sort(:desc) |> Enum.take(20) |> Enum.sum()
    true = total > 0
    text = "the quick brown fox jumps over the lazy dog"
    words = text |> String.split() |> Enum.map(&String.capitalize/1)
    9 = words |> Enum.join("-") |> String.split("-") |> length()
    groups = Enum.group_by(1..80, &rem(&1, 7), &Integer.to_string/1)
    7 = map_size(groups)
    caught = for n <- 1..20, do: caught(n)
    10 = Enum.count(caught, &(&1 == :argument))
    55 = fibonacci(10)
    send(server, {self(), rem(turn, 10), turn})

    receive do
      {:sum, sum} when is_integer(sum) -> :ok
    end

    work(server, turn + 1)
  end

  defp caught(n) do
    if rem(n, 2) == 0, do: raise(ArgumentError, "even"), else: String.to_integer("x#{n}")
  rescue
    error in ArgumentError -> if Exception.message(error) == "even", do: :argument, else: :number
  end

  defp fibonacci(n) when n < 2, do: n
  defp fibonacci(n), do: fibonacci(n - 1) + fibonacci(n - 2)
end

server = spawn(fn -> Load.serve(%{}) end)
for _ <- 1..2, do: spawn_link(fn -> Load.work(server, 1) end)
Process.sleep(:infinity)
