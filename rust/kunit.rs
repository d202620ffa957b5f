// SPDX-License-Identifier: GPL-2.0-only

//! KUnit suites for what needs a kernel. The core's own tests run on the host; its cases run here
//! once more.
