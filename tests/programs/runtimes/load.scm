;; SPDX-License-Identifier: GPL-2.0-only
;; A load for Guile, without an end: recursion, closures, lists, sorting, numbers.
(define (fibonacci n)
  (if (< n 2) n (+ (fibonacci (- n 1)) (fibonacci (- n 2)))))
(define (count-down n total)
  (if (= n 0) total (count-down (- n 1) (+ total (modulo n 7)))))
(define (work)
  (fibonacci 20)
  (count-down 30000 0)
  (sort (map (lambda (n) (modulo (* n 7919) 1009)) (iota 2000)) <)
  (apply + (map (lambda (n) (string-length (number->string n))) (iota 2000))))
(let loop ()
  (work)
  (loop))
