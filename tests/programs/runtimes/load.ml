(* SPDX-License-Identifier: GPL-2.0-only *)
(* Work for OCaml: garbage collection, exceptions, effects (each handler has a stack of its own),
   calls of C that switch stacks and calls that do not save the stack pointer, and callbacks from
   C. *)
module M = Map.Make(String)
let rec fib n = if n < 2 then n else fib (n-1) + fib (n-2)
exception Found of int
open Effect
open Effect.Deep
type _ Effect.t += Ask : int -> int Effect.t
let handled f = match_with f () { retc = (fun x -> x); exnc = raise;
  effc = (fun (type a) (e : a Effect.t) -> match e with
    | Ask n -> Some (fun (k : (a, _) continuation) -> continue k (n + fib 10)) | _ -> None) }
let turn i =
  let m = ref M.empty in
  for j = 0 to 2000 do m := M.add (string_of_int ((i * j) land 0xffff)) (Array.make 20 j) !m done;
  let s = M.fold (fun k a s -> s + String.length k + a.(3)) !m 0 in
  let l = List.init 3000 (fun x -> (x * 7919) mod 1009, Printf.sprintf "%d" x) in
  let l = List.sort compare l in
  let e = try List.iter (fun (x, s) -> if x = 1000 && s > "3" then raise (Found x)) l; 0
    with Found x -> x in
  let q = handled (fun () -> perform (Ask i) + handled (fun () -> perform (Ask 3))) in
  let h = Hashtbl.create 16 in
  List.iter (fun (x, s) -> Hashtbl.replace h s x) l;
  let b = Buffer.create 100 in
  Hashtbl.iter (fun k v -> Buffer.add_string b k;
    Buffer.add_string b (string_of_float (sin (float v)))) h;
  s + e + q + Buffer.length b + fib 18
let () = let t = ref 0 in
  for i = 0 to (try int_of_string Sys.argv.(1) with _ -> max_int) do t := !t + turn i done;
  print_int !t
