; SPDX-License-Identifier: GPL-2.0-only
;
; Recursion, structures and lists for the garbage collector, hash tables and strings, conditions and
; non-local exits, callbacks, and threads.

(defun fib (n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2)))))

(defstruct node left right)
(defun tree (d) (if (= d 0) nil (make-node :left (tree (- d 1)) :right (tree (- d 1)))))
(defun depth (n) (if n (+ 1 (max (depth (node-left n)) (depth (node-right n)))) 0))

(defun words (n)
  (let ((table (make-hash-table :test 'equal)))
    (dotimes (i n) (incf (gethash (format nil "~a-~a" (mod i 97) 'key) table 0)))
    (hash-table-count table)))

(defun signaller (n) (if (= n 0) (error "expected") (+ 1 (signaller (- n 1)))))
(defun handled () (handler-case (signaller 50) (error () 1)))
(defun thrown (n) (if (= n 0) (throw 'out n) (+ 1 (thrown (- n 1)))))
(defun cleaned () (let ((n 0)) (catch 'out (unwind-protect (thrown 20) (incf n))) n))

(defun optional (a &optional (b 2) &rest rest) (apply #'+ a b (remove-if-not #'integerp rest)))

(defun work ()
  (loop
    (fib 20)
    (depth (tree 12))
    (words 500)
    (dotimes (i 50) (handled) (cleaned) (optional i) (optional i 1 2 'c) (funcall 'optional i))
    (sort (loop for k below 2000 collect (mod (* k 7919) 10007)) #'<)
    (mapcar (lambda (x) (* x x)) (loop for k below 500 collect k))))

(mapc #'sb-thread:join-thread (loop repeat 3 collect (sb-thread:make-thread #'work)))
