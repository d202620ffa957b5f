; SPDX-License-Identifier: GPL-2.0-only
;
; Another load for Common Lisp, without an end: trees of objects with generic functions, text,
; sorting with keys, conditions with restarts, closures, matrices of floating-point numbers, and
; large numbers.

(defclass node () ((key :initarg :key :reader key) (left :initform nil :accessor left)
                   (right :initform nil :accessor right)))
(defgeneric add (node key))
(defmethod add ((node null) key) (make-instance 'node :key key))
(defmethod add ((node node) key)
  (if (< key (key node))
      (setf (left node) (add (left node) key))
      (setf (right node) (add (right node) key)))
  node)
(defun visit (node function)
  (when node
    (visit (left node) function)
    (funcall function (key node))
    (visit (right node) function)))
(defun trees ()
  (let ((root nil) (sum 0))
    (dotimes (i 200) (setf root (add root (mod (* i 7919) 1009))))
    (visit root (lambda (key) (incf sum key)))
    sum))

(defun text ()
  (let ((words (loop for i below 100 collect (format nil "~4,'0x-~d" (mod (* i 7919) 65536) i))))
    (setf words (sort words #'string<))
    (length (remove #\- (string-upcase (format nil "~{~a~^;~}" words))))))

(define-condition wrong (error) ((depth :initarg :depth :reader depth)))
(defun failing (depth)
  (restart-case (if (= depth 0) (error 'wrong :depth depth) (+ 1 (failing (- depth 1))))
    (use (value) value)))
(defun conditions ()
  (handler-bind ((wrong (lambda (condition) (invoke-restart 'use (depth condition)))))
    (failing 12)))

(defun adders (count)
  (reduce (lambda (sum add) (funcall add sum))
          (loop for i below count collect (let ((i i)) (lambda (value) (+ value i))))
          :initial-value 0))

(defun matrix (size)
  (let ((a (make-array (list size size) :element-type 'double-float)) (sum 0d0))
    (dotimes (i size) (dotimes (j size) (setf (aref a i j) (/ 1d0 (+ i j 1)))))
    (dotimes (i size sum)
      (dotimes (j size)
        (incf sum (loop for k below size sum (* (aref a i k) (aref a k j))))))))

(defun product (n) (if (< n 2) 1 (* n (product (- n 1)))))

(loop
  (trees)
  (text)
  (dotimes (i 20) (conditions))
  (adders 200)
  (matrix 20)
  (integer-length (product 100)))
