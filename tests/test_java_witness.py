#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""java_witness.py: how it reads the virtual machine's dump, and which stacks it takes for equal."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "truth"))
import java_witness  # pylint: disable=wrong-import-position

DUMP = '''Full thread dump OpenJDK 64-Bit Server VM:

"main" #1 [12] prio=5 nid=12 runnable
\tat Witness.main(Witness.java:1)

"witness" #20 [77] daemon prio=5 os_prio=0 cpu=1.00ms tid=0x00007f nid=77 in \
Object.wait()  [0x00007f]
   java.lang.Thread.State: WAITING (on object monitor)
\tat java.lang.Object.wait0(java.base@21.0.1/Native Method)
\t- locked <0x1> (a java.lang.Object)
\tat Witness$$Lambda/0x00007f0001000a00.call(Unknown Source)
\tat java.base/java.lang.Thread.run(Thread.java:1583)
'''

MAP = '''0x1000 0x100 Interpreter
0x2000 0x80 void java.lang.Object.wait0(long)
0x2100 0x80 int Witness$$Lambda+0x00007f0001000a00.call(int, java.lang.String)
0x3000 0x40 StubRoutines (initial stubs)
'''


class Witness(unittest.TestCase):
    def test_a_dump_has_the_methods_of_a_thread(self):
        expected = (["java.lang.Object.wait0", "Witness$$Lambda.call", "java.lang.Thread.run"], 77)
        self.assertEqual(java_witness.methods_of(DUMP, "witness"), expected)
        self.assertIsNone(java_witness.methods_of(DUMP, "other"))

    def test_frames_of_java_are_interpreted_or_compiled(self):
        code = java_witness.code_of(MAP)
        # The innermost frame is at the start of its code, and the second return address after the
        # end.
        pcs = [0x2000, 0x2180, 0x1050, 0x3010, 0x9000]
        self.assertEqual(java_witness.java_frames(pcs, code),
                         ["java.lang.Object.wait0", "Witness$$Lambda.call",
                          java_witness.INTERPRETED])
        self.assertEqual(java_witness.java_frames([0x2080, 0x2000], code), [])

    def test_frames_stand_for_all_methods_in_order(self):
        one = java_witness.INTERPRETED
        methods = ["a", "b", "c", "b"]
        for frames, equal, equal_without_inlining in [
            (["a", "b", "c", "b"], True, True),
            ([one, one, one, one], True, True),
            (["a", one, "c", one], True, True),
            (["b", "b"], True, False),
            (["a", "c", "b"], True, False),
            ([one, "b", one], False, False),
            # A frame is missing, there is one more, or a name differs.
            (["a", "b", "c"], False, False),
            ([one, one, one], False, False),
            ([one, one, one, one, one], False, False),
            (["a", "c", "b", "b"], False, False),
            (["a", "b", "x", "b"], False, False),
            ([], False, False),
        ]:
            self.assertEqual(java_witness.stands_for(frames, methods, True), equal, frames)
            self.assertEqual(java_witness.stands_for(frames, methods, False),
                             equal_without_inlining, frames)


if __name__ == "__main__":
    unittest.main()
