# SPDX-License-Identifier: GPL-2.0-only
# Work for R: its interpreter, sorting in C, and linear algebra in OpenBLAS.
fib <- function(n) if (n < 2) n else fib(n - 1) + fib(n - 2)
repeat {
  sorted <- sort(runif(20000))
  fib(16)
  solve(matrix(runif(40000), 200))
  text <- paste(sorted[1:1000], collapse = ",")
  fit <- lm(y ~ x, data.frame(x = 1:500, y = runif(500)))
}
