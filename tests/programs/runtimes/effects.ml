(* SPDX-License-Identifier: GPL-2.0-only *)
(* Work for OCaml: calls of many C functions that do not save the stack pointer, in fibers and under
   handlers. *)
open Effect
open Effect.Deep
type _ Effect.t += Yield : int -> int Effect.t
exception Stop of float
let cbrt = Float.cbrt and hypot = Float.hypot
let floats x =
  let x = 1. +. Float.abs x in
  exp (log x) +. (x ** 0.3) +. cos x +. tan x +. atan2 x 3. +. Float.rem x 0.7 +. cbrt x
  +. hypot x 2. +. tanh x
  [@@inline never]
let generator n = for i = 1 to n do ignore (perform (Yield i)) done
let rec run depth n =
  let sum = ref 0. in
  (match_with generator n { retc = (fun () -> ()); exnc = raise;
    effc = (fun (type a) (e : a Effect.t) -> match e with
      | Yield i -> Some (fun (k : (a, _) continuation) ->
          sum := !sum +. floats (float (i * depth)); continue k (Hashtbl.hash (i, string_of_int i)))
      | _ -> None) });
  if depth > 0 then !sum +. run (depth - 1) (n / 2 + 1) else !sum
let cell = Atomic.make []
let state = Random.State.make [| 1; 2; 3 |]
let turn i =
  let bytes = Bytes.make 300 'x' in
  Bytes.fill bytes (Random.State.int state 100) 150 'y';
  Bytes.blit bytes 5 bytes 70 200;
  let key = Bytes.sub_string bytes (i land 63) 100 in
  Atomic.set cell [ key ];
  if Atomic.compare_and_set cell [] [] then failwith "never";
  ignore (Atomic.exchange cell (String.split_on_char 'x' key));
  let lazies = List.init 20 (fun j -> lazy (floats (float j))) in
  let sum = List.fold_left (fun s l -> s +. Lazy.force l) 0. lazies in
  let caught = try if compare key "y" > 0 then raise (Stop sum) else 0. with Stop s -> s in
  let words = Array.init 200 (fun j ->
    Printf.sprintf "%d%g" (j * i land 0xff) (Random.State.float state 1.)) in
  Array.sort String.compare words;
  let table = Hashtbl.create 16 in
  Array.iter (fun w -> Hashtbl.replace table w (String.length w)) words;
  let found = Array.fold_left (fun n w -> n + Hashtbl.find table w) 0 words in
  sum +. caught +. run 5 40 +. float found
let () =
  let total = ref 0. in
  for i = 0 to (try int_of_string Sys.argv.(1) with _ -> max_int) do total := !total +. turn i done;
  print_float !total
