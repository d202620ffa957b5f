# SPDX-License-Identifier: GPL-2.0-only
# `workerd test` runs load.mjs, which runs without end.
using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [(
    name = "load",
    worker = (
      modules = [
        (name = "load", esModule = embed "load.mjs"),
        (name = "jit", commonJsModule = embed "../../truth/programs/debian/jit.js"),
      ],
      compatibilityDate = "2026-01-01",
    ),
  )],
);
