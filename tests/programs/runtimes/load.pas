{ SPDX-License-Identifier: GPL-2.0-only }
{ Runs without end: a tree, strings, sorting, formatting, exceptions, virtual methods. }
program load;

{$mode objfpc}{$H+}

uses
  SysUtils;

type
  TNode = class
    key: Integer;
    left, right: TNode;
    constructor Create(aKey: Integer);
    destructor Destroy; override;
    function depth: Integer; virtual;
  end;

  TPart = function(turn: Integer): Int64;

constructor TNode.Create(aKey: Integer);
begin
  key := aKey;
end;

destructor TNode.Destroy;
begin
  left.Free;
  right.Free;
  inherited;
end;

function TNode.depth: Integer;
begin
  Result := 0;
  if left <> nil then
    Result := left.depth;
  if (right <> nil) and (right.depth > Result) then
    Result := right.depth;
  Inc(Result);
end;

procedure insert(var node: TNode; key: Integer);
begin
  if node = nil then
    node := TNode.Create(key)
  else if key < node.key then
    insert(node.left, key)
  else
    insert(node.right, key);
end;

function tree(turn: Integer): Int64;
var
  root: TNode;
  at: Integer;
begin
  root := nil;
  for at := 1 to 200 do
    insert(root, (at * 7919 + turn) mod 1009);
  Result := root.depth;
  root.Free;
end;

function strings(turn: Integer): Int64;
var
  text: string;
  at: Integer;
begin
  text := '';
  for at := 0 to 40 do
    text := text + Chr(97 + (at + turn) mod 26);
  Result := Length(StringReplace(UpperCase(text), 'C', '--', [rfReplaceAll])) + Pos('XYZ', text);
end;

procedure sort(var list: array of Integer; low, high: Integer);
var
  left, right, middle, kept: Integer;
begin
  left := low;
  right := high;
  middle := list[(low + high) div 2];
  repeat
    while list[left] < middle do
      Inc(left);
    while list[right] > middle do
      Dec(right);
    if left <= right then begin
      kept := list[left];
      list[left] := list[right];
      list[right] := kept;
      Inc(left);
      Dec(right);
    end;
  until left > right;
  if low < right then
    sort(list, low, right);
  if left < high then
    sort(list, left, high);
end;

function sorted(turn: Integer): Int64;
var
  list: array[0..299] of Integer;
  at: Integer;
begin
  for at := 0 to 299 do
    list[at] := (at * 7919 + turn) mod 1009;
  sort(list, 0, 299);
  Result := list[7];
end;

function formatted(turn: Integer): Int64;
begin
  Result := Length(Format('%d %8x %s %.3f', [turn, turn * 31, 'text', turn / 7]));
end;

procedure raiseAt(depth, turn: Integer);
begin
  if depth > 0 then
    raiseAt(depth - 1, turn)
  else if turn mod 3 = 0 then
    raise Exception.Create(IntToStr(turn));
end;

function exceptions(turn: Integer): Int64;
begin
  Result := 0;
  try
    raiseAt(5, turn);
  except
    on error: Exception do
      Result := Length(error.Message);
  end;
end;

const
  parts: array[0..4] of TPart = (@tree, @strings, @sorted, @formatted, @exceptions);

var
  turn, at: Integer;
  sum: Int64;

begin
  sum := 0;
  turn := 0;
  while True do begin
    for at := Low(parts) to High(parts) do
      sum := sum xor parts[at](turn);
    turn := (turn + 1) and $ffff;
  end;
end.
