;; For SBCL: garbage, big numbers and errors in threads. See threads.c for what it prints.
(defconstant +workers+ 3)
(defvar *rounds* (make-array +workers+ :initial-element 0))

(defun wrong (what seed)
  (format t "WRONG ~a of seed ~a~%" what seed)
  (finish-output))

(declaim (notinline opaque))
(defun opaque (x) x)

(defun do-round (seed)
  (let ((numbers (make-hash-table :test 'equal)) (product 1))
    (dotimes (i 50) (setf (gethash (format nil "~a" (+ seed i)) numbers) (+ seed i)))
    (maphash (lambda (key value) (unless (= (parse-integer key) value) (wrong "the table" seed))) numbers)
    (loop for i from 1 to 60 do (setf product (* product (+ seed i))))
    (loop for i from 1 to 60 do
      (multiple-value-bind (quotient rest) (floor product (+ seed i))
        (unless (zerop rest) (wrong "the product" seed))
        (setf product quotient)))
    (unless (= product 1) (wrong "the quotient" seed))
    ;; Its compiled code tells of errors by a trap.
    (unless (eq :error (handler-case (car (opaque seed)) (type-error () :error)))
      (wrong "no type error" seed))
    (unless (eq :error (handler-case (/ seed (opaque 0)) (division-by-zero () :error)))
      (wrong "no division by zero" seed))
    (unless (= 300 (length (make-list 300))) (wrong "the list" seed))))

(defun work (w)
  (loop for seed from 1 do
    (do-round seed)
    (incf (svref *rounds* w))
    (when (zerop (mod seed 64))
      (unless (= seed (sb-thread:join-thread (sb-thread:make-thread (lambda () seed))))
        (wrong "the thread's answer" seed)))
    (sleep 0.003)))

(defun main ()
  (dotimes (w +workers+) (let ((mine w)) (sb-thread:make-thread (lambda () (work mine)))))
  (loop
    (format t "beat ~a~%" (reduce #'min *rounds*))
    (finish-output)
    (sleep 0.02)))

(main)
